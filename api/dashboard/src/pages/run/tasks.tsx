import type { Schemas } from "../../api/client";
import { isTaskOver, type Spans } from "../../api/hooks";
import { useParam } from "../../router";
import { Instant, length } from "../../ui/instant";
import { Status } from "../../ui/status";
import { itemsWord, roundsWord } from "./items";
import { DataTable, type Column } from "../../ui/table";

type TaskSpans = Schemas["TaskSpans"];

/** Time in bodies, over all attempts. */
export const bodyMs = (task: TaskSpans): number =>
  task.spans.reduce((sum, span) => sum + (span.started_at && span.finished_at ? Date.parse(span.finished_at) - Date.parse(span.started_at) : 0), 0);


const COLUMNS: Column<TaskSpans>[] = [
  { id: "index", head: "#", width: "52px", right: true, cell: (task) => <span className="faint num">{task.index + 1}</span>, sort: (task) => task.index },
  { id: "name", head: "Task", width: "minmax(160px, 1.6fr)", cell: (task) => <b className="clip">{task.name}</b>, sort: (task) => task.name },
  { id: "status", head: "Status", width: "140px", cell: (task) => <Status of={task.status} />, sort: (task) => task.status },
  { id: "kind", head: "Kind", width: "130px", cell: (task) => <span className="muted">{task.items ? itemsWord(task.items) : task.kind === "repeat" ? roundsWord(task) : task.kind === "body" ? "task" : task.kind}</span>, sort: (task) => task.kind },
  { id: "attempts", head: "Attempts", width: "92px", right: true, cell: (task) => <span className="num">{task.attempt}</span>, sort: (task) => task.attempt },
  { id: "body", head: "In bodies", width: "104px", right: true, cell: (task) => (task.spans.length ? <span className="num">{length(bodyMs(task))}</span> : <span className="faint">–</span>), sort: bodyMs },
  { id: "worker", head: "Worker", width: "minmax(110px, 1fr)", cell: (task) => <span className="muted clip">{task.worker ?? task.spans.at(-1)?.worker ?? ""}</span> },
  { id: "undone", head: "Undone", width: "118px", cell: (task) => (task.compensation ? <Status of={task.compensation} compact /> : ""), sort: (task) => task.compensation ?? "" },
  { id: "deadline", head: "Deadline", width: "96px", cell: (task) => (task.deadline_at ? <Instant at={task.deadline_at} future /> : ""), sort: (task) => task.deadline_at ?? "9" },
  { id: "changed", head: "Changed", width: "110px", cell: (task) => <Instant at={task.changed_at} />, sort: (task) => task.changed_at ?? "" },
];

export function TasksTab({ spans, selected, onSelect }: { spans: Spans; selected: string; onSelect: (task: string) => void }) {
  const [only, setOnly] = useParam("only");
  const [text, setText] = useParam("find");
  const wanted = text.toLowerCase();
  const rows = spans.tasks.filter((task) => (only !== "open" || !isTaskOver(task.status) || task.status === "failed") && task.name.toLowerCase().includes(wanted));
  return (
    <>
      <div className="filters">
        <input data-filter type="search" placeholder="Name of a task" aria-label="Name of a task" value={text} onChange={(event) => setText(event.target.value)} />
        <button type="button" className="chip" aria-pressed={only === "open"} onClick={() => setOnly(only ? "" : "open")}>Open and failed only</button>
        <span className="grow" />
        <span className="muted num">{rows.length} of {spans.total}</span>
      </div>
      <DataTable label="Tasks of the run" rows={rows} columns={COLUMNS} keyOf={(task) => task.name} selected={selected || null} onOpen={(task) => onSelect(task.name)} />
    </>
  );
}
