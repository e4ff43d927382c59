import { useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { delegate, endDelegation, yesesOf } from "../acts";
import { get, type Schemas } from "../api/client";
import { shortId, useList, useVersion } from "../api/hooks";
import { usePrefs } from "../prefs";
import { Link, useParams, useTitle } from "../router";
import { actorOf, lacks, rolesOf } from "../session";
import { ActButton } from "../ui/act";
import { UserFault } from "../ui/fault";
import { Instant } from "../ui/instant";
import { Payload } from "../ui/json";
import { Button, Empty, Failure, Loading, Panel, Segmented, Tabs } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { DecideMany, whyAlone } from "./decide_many";
import { ApprovalActs, ApprovalFacts, Course, Votes } from "./approval";
import { specsOf } from "./run/spec";
import { Resolve } from "./run/task_panel";

type Approval = Schemas["Approval"];
type Parked = Schemas["ParkedTask"];
const NAMES = ["status", "show", "id"] as const;

export function ApprovalsPage() {
  useTitle("Approvals");
  const [filter, set] = useParams(NAMES);
  const parked = useList<Parked>(["parked"], (page, signal) => get("/parked-tasks", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const show = filter.show || "approvals";
  return (
    <div className="page filled">
      <header className="page-head"><h1>Approvals</h1><span className="muted">questions to people, and effects of which nobody knows whether they happened</span></header>
      <Tabs
        label="What waits for a person"
        current={show}
        onChange={(id) => set({ show: id === "approvals" ? "" : id, id: "" })}
        tabs={[{ id: "approvals", word: "Approvals" }, { id: "parked", word: "Did it happen?", count: parked.rows.length || undefined, tone: "warn" }, { id: "delegations", word: "Delegations" }]}
      />
      {show === "parked" ? <ParkedTasks list={parked} selected={filter.id ?? ""} onSelect={(id) => set({ id })} /> : show === "delegations" ? <Delegations /> : <Inbox status={(filter.status || "waiting") as Shown} selected={filter.id ?? ""} set={set} />}
    </div>
  );
}

type Shown = Schemas["ApprovalFilter"] | "mine";
const WORDS: Record<Shown, string> = { waiting: "waiting", mine: "waiting for me", approved: "approved", rejected: "rejected", expired: "expired", cancelled: "cancelled", all: "all" };

function Inbox({ status, selected, set }: { status: Shown; selected: string; set: (change: Record<string, string>) => void }) {
  const prefs = usePrefs();
  const asked = status === "mine" ? { for: "me" as const } : { status };
  const key = ["approvals", "list", status, ...(status === "mine" ? [actorOf(prefs), rolesOf(prefs).join()] : [])];
  const list = useList<Approval>(key, (page, signal) => get("/approvals", {}, { ...asked, limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const isOpen = status === "waiting" || status === "mine";
  const [chosen, setChosen] = useState(new Set<string>());
  const [verdict, setVerdict] = useState<"approve" | "reject" | null>(null);
  useEffect(() => setChosen(new Set()), [status]);
  const several = list.rows.filter((row) => chosen.has(row.approval_id) && row.status === "waiting");
  const form = several[0]?.form;
  const columns = useMemo<Column<Approval>[]>(
    () => [
      ...(isOpen
        ? [{ id: "chosen", head: "", width: "22px", cell: (row: Approval) => <Choice row={row} why={whyAlone(row, form)} isChosen={chosen.has(row.approval_id)} onChange={() => setChosen((before) => new Set(before.has(row.approval_id) ? [...before].filter((id) => id !== row.approval_id) : [...before, row.approval_id]))} /> }]
        : []),
      { id: "status", head: "Status", width: "116px", cell: (row) => <Status of={row.status} /> },
      { id: "title", head: "Question", width: "minmax(180px, 2fr)", cell: (row) => <b className="clip">{row.title || row.task}</b> },
      { id: "votes", head: "Yeses", width: "62px", right: true, cell: (row) => <span className="num muted">{yesesOf(row)}/{row.needed}</span> },
      { id: "run", head: "Run", width: "minmax(140px, 1fr)", cell: (row) => <Link to={`/runs/${row.run_id}?task=${encodeURIComponent(row.task)}`} className="link mono clip">{shortId(row.workflow, row.run_id)}</Link> },
      { id: "asked", head: "Asked", width: "96px", cell: (row) => <Instant at={row.asked_at} /> },
      isOpen
        ? { id: "expires", head: "Expires", width: "96px", cell: (row: Approval) => (row.expires_at ? <Instant at={row.expires_at} future /> : <span className="faint">never</span>) }
        : { id: "by", head: "Decided by", width: "minmax(110px, 1fr)", cell: (row: Approval) => <span className="clip muted">{row.decided_by ?? ""}</span> },
    ],
    [isOpen, chosen, form],
  );
  const shown = selected || list.rows[0]?.approval_id;
  return (
    <>
      <div className="filters">
        <Segmented
          label="Status"
          value={status}
          onChange={(next) => set({ status: next === "waiting" ? "" : next, id: "" })}
          options={(Object.keys(WORDS) as Shown[]).map((value) => ({ value, word: WORDS[value] }))}
        />
      </div>
      {several.length > 0 && (
        <div className="group-acts" role="group" aria-label="One decision of many questions">
          <b>{several.length} {several.length === 1 ? "question" : "questions"} chosen</b>
          <Button kind="quiet" small icon="cross" label="Choose none" onClick={() => setChosen(new Set())} />
          <Button small icon="check" kind="primary" why={lacks("approve")} onClick={() => setVerdict("approve")}>Approve {several.length} …</Button>
          <Button small icon="cross" kind="danger" why={lacks("approve")} onClick={() => setVerdict("reject")}>Reject {several.length} …</Button>
        </div>
      )}
      {verdict && <DecideMany questions={several} verdict={verdict} onClose={() => { setVerdict(null); setChosen(new Set()); }} />}
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading /> : (
        <div className="split">
          <DataTable
            label="Approvals, newest first"
            rows={list.rows}
            columns={columns}
            keyOf={(row) => row.approval_id}
            selected={shown ?? null}
            onOpen={(row) => set({ id: row.approval_id })}
            more={list.more}
            onMore={list.fetchMore}
            empty={<Empty icon="check" title={status === "waiting" ? "Nobody is waited for." : status === "mine" ? "Nothing waits for you." : `No approval is ${status}.`}>A task with <code>approval: {"{ title: … }"}</code> asks here, and in the terminal: <code>headrace approvals</code></Empty>}
          />
          {shown && <Detail key={shown} id={shown} />}
        </div>
      )}
    </>
  );
}

function Choice({ row, why, isChosen, onChange }: { row: Approval; why: string | undefined; isChosen: boolean; onChange: () => void }) {
  return (
    <span className="choice" title={why} onClick={(event) => event.stopPropagation()}>
      <input type="checkbox" aria-label={`Choose ${row.title || row.task} of ${shortId(row.workflow, row.run_id)}`} checked={isChosen} disabled={Boolean(why) && !isChosen} onChange={onChange} />
    </span>
  );
}

function Detail({ id }: { id: string }) {
  const { data: approval, error } = useQuery({ queryKey: ["approvals", "one", id], queryFn: ({ signal }) => get("/approvals/{approval_id}", { approval_id: id }, {}, signal), refetchInterval: 5000 });
  if (error && !approval) return <Failure error={error} />;
  if (!approval) return <Loading rows={4} />;
  return (
    <Panel title={approval.title || approval.task} aside={<Status of={approval.status} />} className="detail">
      <ApprovalActs approval={approval} large />
      {approval.context !== null && <Payload name="What is shown" value={approval.context} open={4} />}
      <ApprovalFacts approval={approval} />
      <p><Link to={`/runs/${approval.run_id}?task=${encodeURIComponent(approval.task)}`} className="link">Run {shortId(approval.workflow, approval.run_id)}</Link></p>
      <Votes record={approval.record} />
      <Course approval={approval} />
      {approval.form !== null && <Payload name="Form of the answer" value={approval.form} open={1} />}
      <About approval={approval} />
    </Panel>
  );
}

/** What stands behind the question, beside what its author chose to show. */
function About({ approval }: { approval: Approval }) {
  const run = useQuery({ queryKey: ["run", approval.run_id, "itself"], queryFn: ({ signal }) => get("/runs/{run_id}", { run_id: approval.run_id }, {}, signal) });
  const version = useVersion(approval.workflow, run.data?.version);
  const needs = specsOf(version.data?.definition)[approval.task]?.needs ?? [];
  const outputs = useQuery({
    queryKey: ["run", approval.run_id, "asked-about", approval.task],
    queryFn: async ({ signal }) => Promise.all(needs.slice(0, 8).map((need) => get("/tasks/{task_id}", { task_id: `${approval.run_id}.${need}` }, {}, signal))),
    enabled: needs.length > 0,
  });
  return (
    <>
      {run.data && <Payload name="Input of the run" value={run.data.input} />}
      {outputs.data?.filter((task) => task.status === "completed").map((task) => <Payload key={task.name} name={`Output of ${task.name}`} value={task.output} />)}
    </>
  );
}

type Delegation = Schemas["Delegation"];

function Delegations() {
  const prefs = usePrefs();
  const { data, error } = useQuery({ queryKey: ["approvals", "delegations"], queryFn: ({ signal }) => get("/delegations", {}, {}, signal), refetchInterval: 10_000 });
  const columns: Column<Delegation>[] = [
    { id: "from", head: "In place of", width: "minmax(120px, 1fr)", cell: (row) => <b className="clip">{row.from}</b>, sort: (row) => row.from },
    { id: "to", head: "Decides", width: "minmax(120px, 1fr)", cell: (row) => <span className="clip">{row.to}</span>, sort: (row) => row.to },
    { id: "starts", head: "From", width: "100px", cell: (row) => <Instant at={row.starts_at} /> },
    { id: "ends", head: "Until", width: "100px", cell: (row) => <Instant at={row.ends_at} future /> },
    { id: "reason", head: "Why", width: "minmax(140px, 1.4fr)", cell: (row) => <span className="clip muted">{row.reason}</span> },
    { id: "by", head: "By", width: "minmax(100px, 0.8fr)", cell: (row) => <span className="clip muted">{row.made_by}</span> },
    { id: "act", head: "", width: "84px", right: true, cell: (row) => <ActButton scope="approve" kind="danger" act={() => endDelegation(row)}>End …</ActButton> },
  ];
  return (
    <>
      <div className="filters">
        <span className="muted">Who decides in whose place, and until when.</span>
        <span className="grow" />
        <ActButton scope="approve" icon="plus" act={() => delegate(actorOf(prefs))}>Delegate …</ActButton>
      </div>
      {error ? <Failure error={error} /> : !data ? <Loading rows={3} /> : (
        <DataTable label="Delegations" rows={data.items} columns={columns} keyOf={(row) => row.delegation_id} empty={<Empty icon="person" title="Everybody decides for themselves.">In the terminal: <code>headrace delegate TO --until WHEN</code></Empty>} />
      )}
    </>
  );
}

function ParkedTasks({ list, selected, onSelect }: { list: ReturnType<typeof useList<Parked>>; selected: string; onSelect: (id: string) => void }) {
  const columns: Column<Parked>[] = [
    { id: "status", head: "Status", width: "110px", cell: () => <Status of="parked" /> },
    { id: "task", head: "Task", width: "minmax(140px, 1fr)", cell: (row) => <b className="clip">{row.task}</b> },
    { id: "run", head: "Run", width: "minmax(150px, 1fr)", cell: (row) => <Link to={`/runs/${row.run_id}?task=${encodeURIComponent(row.task)}`} className="link mono clip">{shortId(row.workflow, row.run_id)}</Link> },
    { id: "at", head: "Parked", width: "100px", cell: (row) => <Instant at={row.parked_at} /> },
  ];
  if (list.query.error) return <Failure error={list.query.error} />;
  if (!list.query.data) return <Loading />;
  const shown = list.rows.find((row) => row.task_id === selected) ?? list.rows[0];
  return (
    <div className="split">
      <DataTable
        label="Tasks whose effect may have happened"
        rows={list.rows}
        columns={columns}
        keyOf={(row) => row.task_id}
        selected={shown?.task_id ?? null}
        onOpen={(row) => onSelect(row.task_id)}
        more={list.more}
        onMore={list.fetchMore}
        empty={<Empty icon="check" title="Of every effect it is known whether it happened.">A task with <code>effect: manual</code> whose attempt ended without an answer waits here for a person.</Empty>}
      />
      {shown && (
        <Panel title={`${shown.task} of ${shortId(shown.workflow, shown.run_id)}`} className="detail">
          <Resolve task={shown} />
          <UserFault value={shown.error} />
        </Panel>
      )}
    </div>
  );
}
