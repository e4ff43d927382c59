import { useMemo } from "react";
import { decide } from "../acts";
import { get, type Schemas } from "../api/client";
import { shortId, useList, useVersion } from "../api/hooks";
import { Link, useParams, useTitle } from "../router";
import { ActButton } from "../ui/act";
import { UserFault } from "../ui/fault";
import { Instant } from "../ui/instant";
import { Payload } from "../ui/json";
import { Empty, Failure, Loading, Panel, Segmented, Tabs } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { useQuery } from "@tanstack/react-query";
import { ApprovalFacts } from "./run/tabs";
import { Resolve } from "./run/task_panel";

type Approval = Schemas["Approval"];
type Parked = Schemas["ParkedTask"];
const NAMES = ["status", "show", "id"] as const;

export function ApprovalsPage() {
  useTitle("Approvals");
  const [filter, set] = useParams(NAMES);
  const parked = useList<Parked>(["parked"], (page, signal) => get("/parked-tasks", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const isParked = filter.show === "parked";
  return (
    <div className="page filled">
      <header className="page-head"><h1>Approvals</h1><span className="muted">questions to people, and effects of which nobody knows whether they happened</span></header>
      <Tabs
        label="What waits for a person"
        current={isParked ? "parked" : "approvals"}
        onChange={(id) => set({ show: id === "parked" ? "parked" : "", id: "" })}
        tabs={[{ id: "approvals", word: "Approvals" }, { id: "parked", word: "Did it happen?", count: parked.rows.length || undefined, tone: "warn" }]}
      />
      {isParked ? <ParkedTasks list={parked} selected={filter.id ?? ""} onSelect={(id) => set({ id })} /> : <Inbox status={(filter.status || "waiting") as Schemas["ApprovalFilter"]} selected={filter.id ?? ""} set={set} />}
    </div>
  );
}

function Inbox({ status, selected, set }: { status: Schemas["ApprovalFilter"]; selected: string; set: (change: Record<string, string>) => void }) {
  const list = useList<Approval>(["approvals", "list", status], (page, signal) => get("/approvals", {}, { status, limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const columns = useMemo<Column<Approval>[]>(
    () => [
      { id: "status", head: "Status", width: "116px", cell: (row) => <Status of={row.status} /> },
      { id: "title", head: "Question", width: "minmax(180px, 2fr)", cell: (row) => <b className="clip">{row.title || row.task}</b> },
      { id: "run", head: "Run", width: "minmax(140px, 1fr)", cell: (row) => <Link to={`/runs/${row.run_id}?task=${encodeURIComponent(row.task)}`} className="link mono clip">{shortId(row.workflow, row.run_id)}</Link> },
      { id: "asked", head: "Asked", width: "96px", cell: (row) => <Instant at={row.asked_at} /> },
      status === "waiting"
        ? { id: "expires", head: "Expires", width: "96px", cell: (row: Approval) => (row.expires_at ? <Instant at={row.expires_at} future /> : <span className="faint">never</span>) }
        : { id: "by", head: "Decided by", width: "minmax(110px, 1fr)", cell: (row: Approval) => <span className="clip muted">{row.decided_by ?? ""}</span> },
    ],
    [status],
  );
  const chosen = list.rows.find((row) => row.approval_id === selected) ?? (selected ? undefined : list.rows[0]);
  const other = useQuery({ queryKey: ["approvals", "one", selected], queryFn: ({ signal }) => get("/approvals/{approval_id}", { approval_id: selected }, {}, signal), enabled: Boolean(selected) && !chosen });
  const shown = chosen ?? other.data;
  return (
    <>
      <div className="filters">
        <Segmented
          label="Status"
          value={status}
          onChange={(next) => set({ status: next === "waiting" ? "" : next, id: "" })}
          options={(["waiting", "approved", "rejected", "expired", "cancelled", "all"] as const).map((value) => ({ value, word: value }))}
        />
      </div>
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading /> : (
        <div className="split">
          <DataTable
            label="Approvals, newest first"
            rows={list.rows}
            columns={columns}
            keyOf={(row) => row.approval_id}
            selected={shown?.approval_id ?? null}
            onOpen={(row) => set({ id: row.approval_id })}
            more={list.more}
            onMore={list.fetchMore}
            empty={<Empty icon="check" title={status === "waiting" ? "Nobody is waited for." : `No approval is ${status}.`}>A task with <code>approval: {"{ title: … }"}</code> asks here, and in the terminal: <code>headrace approvals</code></Empty>}
          />
          {shown && <Detail approval={shown} />}
        </div>
      )}
    </>
  );
}

function Detail({ approval }: { approval: Approval }) {
  const run = useQuery({ queryKey: ["run", approval.run_id, "itself"], queryFn: ({ signal }) => get("/runs/{run_id}", { run_id: approval.run_id }, {}, signal) });
  const version = useVersion(approval.workflow, run.data?.version);
  const spec = (version.data?.definition as { tasks?: Record<string, { needs?: string[]; approval?: { on_expiry?: string } }> } | undefined)?.tasks?.[approval.task];
  const needs = spec?.needs ?? [];
  const outputs = useQuery({
    queryKey: ["run", approval.run_id, "asked-about", approval.task],
    queryFn: async ({ signal }) => Promise.all(needs.slice(0, 8).map((need) => get("/tasks/{task_id}", { task_id: `${approval.run_id}.${need}` }, {}, signal))),
    enabled: needs.length > 0,
  });
  return (
    <Panel title={approval.title || approval.task} aside={<Status of={approval.status} />} className="detail">
      {approval.status === "waiting" && (
        <div className="task-acts">
          <ActButton small={false} icon="check" kind="primary" act={() => decide(approval, "approve")}>Approve …</ActButton>
          <ActButton small={false} icon="cross" kind="danger" act={() => decide(approval, "reject")}>Reject …</ActButton>
        </div>
      )}
      <ApprovalFacts approval={approval} />
      {approval.status === "waiting" && approval.expires_at && spec && <p className="muted">If nobody answers in time, the task {({ approve: "counts as approved", reject: "counts as rejected" } as Record<string, string>)[spec.approval?.on_expiry ?? "fail"] ?? "fails"}.</p>}
      <p><Link to={`/runs/${approval.run_id}?task=${encodeURIComponent(approval.task)}`} className="link">Run {shortId(approval.workflow, approval.run_id)}</Link></p>
      {run.data && <Payload name="Input of the run" value={run.data.input} />}
      {outputs.data?.filter((task) => task.status === "completed").map((task) => <Payload key={task.name} name={`Output of ${task.name}`} value={task.output} />)}
    </Panel>
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
