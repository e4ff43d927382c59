// What the run changed in the world outside: under which key, whether it happened, and whether it was undone.
import type { Schemas } from "../../api/client";
import { useVersion, type Spans } from "../../api/hooks";
import { Empty, Failure, Loading, Notice } from "../../ui/parts";
import { look, Status } from "../../ui/status";
import { DataTable, type Column } from "../../ui/table";
import { specsOf, type Spec } from "./spec";

type TaskSpans = Schemas["TaskSpans"];

const POLICIES: Record<string, string> = { idempotent: "may repeat", reconcile: "its lookup is asked", manual: "a person is asked" };

function outcomeOf(task: TaskSpans): string {
  if (task.status === "completed") return "happened";
  if (!task.attempt) return "not begun";
  if (task.status === "waiting") return "not known";
  const last = task.spans.at(-1);
  if (task.status === "failed" || task.status === "cancelled") return last?.outcome === "failed" ? "its body failed" : "not known";
  return "under way";
}

export function EffectsTab({ run, spans, selected, onSelect }: { run: Schemas["Run"]; spans: Spans; selected: string; onSelect: (task: string) => void }) {
  const version = useVersion(run.workflow, run.version);
  if (version.error) return <Failure error={version.error} />;
  if (!version.data) return <Loading />;
  const specs = specsOf(version.data.definition);
  const specOf = (task: TaskSpans): Spec => specs[task.name] ?? {};
  const rows = spans.tasks.filter((task) => specOf(task).run);
  const undone = spans.tasks.filter((task) => task.compensation);
  const left = undone.filter((task) => task.compensation !== "completed");
  const columns: Column<TaskSpans>[] = [
    { id: "task", head: "Task", width: "minmax(130px, 1fr)", cell: (task) => <b className="clip">{task.name}</b>, sort: (task) => task.name },
    { id: "body", head: "Body", width: "minmax(120px, 1fr)", cell: (task) => <code className="clip">{specOf(task).run}</code> },
    { id: "policy", head: "Without an answer", width: "140px", cell: (task) => <span className="muted">{POLICIES[specOf(task).effect ?? "idempotent"]}</span> },
    { id: "outcome", head: "It", width: "minmax(110px, 1fr)", cell: (task) => <span className="clip">{outcomeOf(task)}</span>, sort: outcomeOf },
    { id: "undo", head: "Undone by", width: "minmax(120px, 1fr)", cell: (task) => <code className="clip">{undoOf(specOf(task)) ?? ""}</code> },
    { id: "undone", head: "Undone", width: "140px", cell: (task) => (task.compensation ? <button type="button" className="link" aria-label={`${look(task.compensation).word}: what undoes ${task.name}`} onClick={(event) => { event.stopPropagation(); onSelect(`${task.name}.compensate`); }}><Status of={task.compensation} /></button> : <span className="faint">{undoOf(specOf(task)) ? "no" : "nothing undoes it"}</span>), sort: (task) => task.compensation ?? "" },
    { id: "key", head: "Effect key", width: "minmax(160px, 1.6fr)", cell: (task) => <code className="clip faint">{run.run_id}/{task.name}{specOf(task).repeat ? "/{round}" : specOf(task).map ? ".{item}" : ""}</code> },
  ];
  return (
    <>
      {undone.length > 0 && (
        <Notice tone={left.some((task) => task.compensation === "failed") ? "bad" : left.length ? "warn" : "ok"}>
          <b>{undone.length - left.length} of {undone.length} undone.</b> What was done last is undone first, branches side by side.
          {left.some((task) => task.compensation === "failed") && " Some could not be: each has a dead letter, and its replay undoes it again."}
        </Notice>
      )}
      <DataTable label="Effects of the run" rows={rows} columns={columns} keyOf={(task) => task.name} selected={selected || null} onOpen={(task) => onSelect(task.name)} empty={<Empty icon="triggers" title="Nothing of this workflow has a body.">A task with <code>run</code> may change the world outside.</Empty>} />
    </>
  );
}

function undoOf({ compensate }: Spec): string | undefined {
  return typeof compensate === "string" ? compensate : compensate?.run;
}
