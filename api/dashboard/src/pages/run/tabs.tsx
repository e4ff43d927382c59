import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { get, type Schemas } from "../../api/client";
import { isOver, useList, useVersion, useWorkflow, type Spans } from "../../api/hooks";
import { useParam } from "../../router";
import { ActButton } from "../../ui/act";
import { Instant, length } from "../../ui/instant";
import { Difference, download, Payload, pretty } from "../../ui/json";
import { Button, Empty, Facts, Failure, Loading, Panel, Segmented } from "../../ui/parts";
import { Status } from "../../ui/status";
import { DataTable, type Column } from "../../ui/table";
import { ApprovalActs, ApprovalFacts, Votes } from "../approval";
import { foreseeMove } from "./rerun";
import { Signals } from "./signals";
import { Resolve } from "./task_panel";

type Run = Schemas["Run"];
type Item = Schemas["HistoryItem"];

// == history ==========================================================================================================
const KIND_WORDS: Record<string, string> = {
  started: "run started",
  attempt_completed: "attempt completed",
  attempt_failed: "attempt failed",
  attempt_lost: "attempt lost",
  attempt_cancelled: "attempt cancelled",
  attempt_returned: "attempt handed back",
};

export function HistoryTab({ run, onSelect }: { run: Run; onSelect: (task: string) => void }) {
  const [kind, setKind] = useParam("kind");
  const [order, setOrder] = useParam("order", "down");
  const [open, setOpen] = useState<Item | null>(null);
  const first = order === "up" ? "newest" : "oldest";
  const list = useList<Item>(["run", run.run_id, "history", first], (page, signal) => get("/runs/{run_id}/history", { run_id: run.run_id }, { limit: 200, order: first, ...(page ? { page } : {}) }, signal), {
    live: isOver(run.status) ? false : 5000,
  });
  const kinds = [...new Set(list.rows.map((item) => item.kind))].sort();
  const begin = Date.parse(run.created_at);
  const rows = kind ? list.rows.filter((item) => item.kind === kind) : list.rows;
  const columns: Column<Item>[] = [
    { id: "version", head: "#", width: "58px", right: true, cell: (item) => <span className="faint num">{item.row_version}</span> },
    { id: "at", head: "At", width: "112px", cell: (item) => <Instant at={item.at} ms /> },
    { id: "after", head: "After", width: "96px", right: true, cell: (item) => <span className="num muted">+{length(Date.parse(item.at) - begin)}</span> },
    { id: "kind", head: "Event", width: "minmax(140px, 1fr)", cell: (item) => <span className="clip">{KIND_WORDS[item.kind] ?? item.kind.replaceAll("_", " ")}</span> },
    { id: "task", head: "Task", width: "minmax(110px, 1fr)", cell: (item) => (item.task ? <button type="button" className="link clip" onClick={(event) => { event.stopPropagation(); onSelect(item.task ?? ""); }}>{item.task}</button> : "") },
    { id: "token", head: "Token", width: "66px", right: true, cell: (item) => <span className="faint num">{item.token ?? ""}</span> },
    { id: "actor", head: "By", width: "minmax(110px, 1fr)", cell: (item) => <span className="muted clip">{item.actor ?? ""}</span> },
    { id: "detail", head: "Detail", width: "minmax(120px, 1.6fr)", cell: (item) => <span className="mono faint clip">{item.detail === null ? "" : JSON.stringify(item.detail)}</span> },
  ];
  if (list.query.error) return <Failure error={list.query.error} />;
  if (!list.query.data) return <Loading />;
  return (
    <>
      <div className="filters">
        <label className="inline-field">Event
          <select data-filter value={kind} onChange={(event) => setKind(event.target.value)}>
            <option value="">all</option>
            {kinds.map((each) => <option key={each} value={each}>{KIND_WORDS[each] ?? each.replaceAll("_", " ")}</option>)}
          </select>
        </label>
        <Segmented label="Order" value={order} onChange={setOrder} options={[{ value: "down", word: "Oldest first" }, { value: "up", word: "Newest first" }]} />
        <span className="grow" />
        <span className="muted num">{list.rows.length}{list.more ? "+" : ""} events</span>
        <Button small icon="download" onClick={() => download(`history-${run.run_id}.json`, pretty(list.rows))}>JSON</Button>
      </div>
      <DataTable label="History of the run" rows={rows} columns={columns} keyOf={(item) => `${item.row_version}-${item.kind}-${item.task ?? ""}-${item.token ?? ""}`} onOpen={setOpen} more={list.more} onMore={list.fetchMore} />
      {open && (
        <div className="below">
          <Payload name={`Event ${open.row_version}: ${open.kind}`} value={open} open={4} />
          <Button small kind="quiet" icon="cross" label="Close the event" onClick={() => setOpen(null)} />
        </div>
      )}
    </>
  );
}

// == data =============================================================================================================
export function DataTab({ run, spans }: { run: Run; spans: Spans | undefined }) {
  const [task, setTask] = useState("");
  const last = useQuery({
    queryKey: ["run", run.run_id, "last-good"],
    queryFn: async ({ signal }) => {
      const page = await get("/workflows/{workflow}/runs", { workflow: run.workflow }, { status: "completed", limit: 2 }, signal);
      return page.items.find((each) => each.run_id !== run.run_id) ?? null;
    },
  });
  const [shown, setShown] = useState<"itself" | "last">(run.status === "failed" ? "last" : "itself");
  const names = spans?.tasks.filter((each) => each.token).map((each) => each.name) ?? [];
  return (
    <div className="scrolled columns">
      <Panel title="In" aside={last.data && <Segmented label="Compare" value={shown} onChange={setShown} options={[{ value: "itself", word: "Input" }, { value: "last", word: "Against the last good run" }]} />}>
        {shown === "last" && last.data ? <Difference label="Input against the last good run" before={pretty(last.data.input)} after={pretty(run.input)} /> : <Payload name="Input of the run" value={run.input} file={`input-${run.run_id}`} open={4} />}
      </Panel>
      <Panel title="Out">
        {run.output !== null && <Payload name="Output of the run" value={run.output} file={`output-${run.run_id}`} open={4} />}
        {run.output_error !== null && <Payload name="Why it has no output" value={run.output_error} open={4} />}
        {Object.entries(run.outputs).map(([name, value]) => <Payload key={name} name={`Output of ${name}`} value={value} file={name} open={3} />)}
        {run.output === null && !Object.keys(run.outputs).length && <Empty title="Nothing has come out yet.">Outputs of the tasks that no other task needs would be here.</Empty>}
      </Panel>
      <Panel title="Of one task" className="span-2" aside={
        <label className="inline-field">Task
          <select value={task} onChange={(event) => setTask(event.target.value)}>
            <option value="">choose</option>
            {names.map((name) => <option key={name}>{name}</option>)}
          </select>
        </label>
      }>
        {task ? <TaskData runId={run.run_id} task={task} /> : <p className="faint">Choose a task that was handed out.</p>}
      </Panel>
    </div>
  );
}

function TaskData({ runId, task }: { runId: string; task: string }) {
  const { data, error } = useQuery({ queryKey: ["run", runId, "task", task], queryFn: ({ signal }) => get("/tasks/{task_id}", { task_id: `${runId}.${task}` }, {}, signal) });
  if (error) return <Failure error={error} />;
  if (!data) return <Loading rows={3} />;
  return (
    <div className="columns">
      <Payload name="Input" value={data.input ?? null} file={`${task}-input`} />
      <Payload name={data.status === "completed" ? "Output" : "Error"} value={data.status === "completed" ? data.output : data.error} file={`${task}-output`} />
    </div>
  );
}

// == approvals ========================================================================================================
export function ApprovalsTab({ run, spans }: { run: Run; spans: Spans | undefined }) {
  const asked = spans?.tasks.filter((task) => task.kind === "approval" || task.status === "waiting") ?? [];
  const tasks = useQuery({
    queryKey: ["run", run.run_id, "asked", asked.map((task) => `${task.index}:${task.status}`).join()],
    queryFn: async ({ signal }) => {
      const found = await Promise.all(asked.slice(0, 50).map((task) => get("/tasks/{task_id}", { task_id: `${run.run_id}.${task.name}` }, {}, signal)));
      return Promise.all(found.map(async (task) => ({ task, approval: task.approval_id ? await get("/approvals/{approval_id}", { approval_id: task.approval_id }, {}, signal) : null })));
    },
    enabled: spans !== undefined,
  });
  if (tasks.error) return <Failure error={tasks.error} />;
  if (!tasks.data) return <Loading rows={3} />;
  const shown = tasks.data.filter(({ task, approval }) => approval || (task.status === "waiting" && task.error !== null));
  return (
    <div className="scrolled columns">
      {!shown.length && <Panel title="Approvals" className="span-2"><Empty icon="person" title="Nobody has been asked anything yet.">{asked.length ? "A task with an approval asks when what it needs has ended." : "No task of this workflow asks for an approval."}</Empty></Panel>}
      <Signals run={run} />
      {shown.map(({ task, approval }) => (
        <Panel key={task.task_id} title={approval?.title || task.name} aside={<Status of={approval?.status ?? "parked"} />}>
          {approval ? (
            <>
              <ApprovalFacts approval={approval} />
              <ApprovalActs approval={approval} />
              {approval.context !== null && <Payload name="What is shown" value={approval.context} />}
              <Votes record={approval.record} />
            </>
          ) : <Resolve task={{ task_id: task.task_id, run_id: run.run_id, task: task.name, workflow: run.workflow }} />}
        </Panel>
      ))}
    </div>
  );
}

// == definition =======================================================================================================
export function DefinitionTab({ run }: { run: Run }) {
  const version = useVersion(run.workflow, run.version);
  const workflow = useWorkflow(run.workflow);
  const [shown, setShown] = useState<"itself" | "latest">("itself");
  if (version.error) return <Failure error={version.error} />;
  if (!version.data) return <Loading />;
  const latest = workflow.data;
  const isOld = latest && latest.latest_version !== run.version;
  return (
    <div className="scrolled">
      <Panel
        title={`${run.workflow} v${run.version}`}
        aside={isOld ? <Segmented label="Compare" value={shown} onChange={setShown} options={[{ value: "itself", word: `v${run.version}` }, { value: "latest", word: `against the latest, v${latest.latest_version}` }]} /> : <span className="muted">the latest version</span>}
      >
        <Facts items={[["Published", <Instant at={version.data.published_at} />], ["By", version.data.published_by], ["Digest", <code className="clip">{version.data.digest}</code>]]} />
        {latest && latest.versions.length > 1 && <Move run={run} versions={latest.versions.map((each) => each.version).filter((each) => each !== run.version)} />}
        {shown === "latest" && latest ? <Difference label="Difference to the latest version" before={pretty(version.data.definition)} after={pretty(latest.definition)} /> : <Payload name="Definition" value={version.data.definition} file={`${run.workflow}-v${run.version}`} open={3} />}
      </Panel>
    </div>
  );
}

/** Where it could go on by another version; a run is moved while it is paused. */
function Move({ run, versions }: { run: Run; versions: number[] }) {
  const [to, setTo] = useState(String(versions[0] ?? ""));
  const why = run.status === "paused" ? undefined : isOver(run.status) ? "it has ended" : "a run is moved while it is paused: pause it first";
  return (
    <div className="task-acts">
      <label className="inline-field">Move it to
        <select value={to} onChange={(event) => setTo(event.target.value)}>{versions.map((each) => <option key={each} value={each}>v{each}</option>)}</select>
      </label>
      <ActButton icon="right" why={why} act={() => foreseeMove(run, Number(to))}>See what stands in the way …</ActButton>
    </div>
  );
}
