// Runs above and below this one: who asked for it, and what its own tasks have asked for.
import type { Schemas } from "../../api/client";
import { shortId, useRelations } from "../../api/hooks";
import { go, Link } from "../../router";
import { Instant } from "../../ui/instant";
import { Button, Empty, Facts, Failure, Loading, Panel } from "../../ui/parts";
import { Status } from "../../ui/status";
import { DataTable, type Column } from "../../ui/table";

type Child = Schemas["ChildRun"];

/** It has a page once it has started. */
const hasStarted = (child: Child): boolean => child.started_at !== null;

const COLUMNS: Column<Child>[] = [
  { id: "status", head: "Status", width: "150px", cell: (child) => <Status of={child.status} />, sort: (child) => child.status },
  { id: "run", head: "Run", width: "minmax(150px, 1fr)", cell: (child) => (hasStarted(child) ? <Link to={`/runs/${child.run_id}`} className="link mono clip">{shortId(child.workflow, child.run_id)}</Link> : <span className="muted clip">{child.workflow}, not started</span>) },
  { id: "version", head: "Version", width: "70px", cell: (child) => <span className="muted">{child.version === null ? "latest" : `v${child.version}`}</span> },
  { id: "task", head: "Asked for by", width: "minmax(120px, 1fr)", cell: (child) => <span className="clip">{child.task} <span className="faint">under token {child.token}</span></span>, sort: (child) => child.task },
  { id: "waits", head: "The task", width: "140px", cell: (child) => <span className="muted">{child.cancel_asked_at ? "asked it to end" : child.waits ? "ends with it" : "does not wait"}</span> },
  { id: "asked", head: "Asked", width: "92px", cell: (child) => <Instant at={child.asked_at} />, sort: (child) => child.asked_at },
  { id: "ended", head: "Ended", width: "92px", cell: (child) => <Instant at={child.ended_at} /> },
  { id: "reason", head: "Why it was refused", width: "minmax(110px, 1fr)", cell: (child) => <span className="clip muted">{child.reason ?? ""}</span> },
];

export function RelationsTab({ run }: { run: Schemas["Run"] }) {
  const { data, error, more, fetchMore } = useRelations(run.run_id);
  if (error) return <Failure error={error} />;
  if (!data) return <Loading rows={3} />;
  const { parent, children } = data;
  return (
    <div className="scrolled">
      <Panel title="What started it">
        {parent ? (
          <Facts
            items={[
              ["Parent", <><Link to={`/runs/${parent.run_id}?task=${encodeURIComponent(parent.task)}`} className="link mono">{shortId(parent.workflow, parent.run_id)}</Link> <Status of={parent.status} compact /></>],
              ["Its task", <>{parent.task} <span className="faint">under token {parent.token}</span></>],
              ["Then", parent.waits ? "the task ends with this run" : "the task did not wait for it"],
              ["Depth", <span className="num">{parent.depth} {parent.depth === 1 ? "run stands" : "runs stand"} above it</span>],
            ]}
          />
        ) : <Facts items={[["Started by", run.trigger], ["Parent", <span className="faint">none: no task has asked for it</span>]]} />}
      </Panel>
      <Panel title="What its tasks started" flush>
        <DataTable
          height={14}
          label="Runs that its tasks have asked for"
          rows={children}
          columns={COLUMNS}
          keyOf={(child) => `${child.task}.${child.token}`}
          onOpen={(child) => hasStarted(child) && go(`/runs/${child.run_id}`)}
          empty={<Empty icon="workflows" title="None of its tasks has asked for a run.">A task with <code>workflow: {"{ name: … }"}</code> runs another workflow as a run of its own.</Empty>}
        />
        {more && <Button onClick={fetchMore}>More</Button>}
      </Panel>
    </div>
  );
}

/** The runs of one task, where it is shown. */
export function ChildrenOf({ runId, task }: { runId: string; task: string }) {
  const { data } = useRelations(runId);
  const mine = data?.children.filter((child) => child.task === task) ?? [];
  if (!mine.length) return null;
  return (
    <section>
      <h3>{mine.length === 1 ? "Its run" : "Its runs"}</h3>
      <ul className="plain">
        {[...mine].reverse().map((child) => (
          <li key={child.token}>
            <Status of={child.status} compact />{" "}
            {hasStarted(child) ? <Link to={`/runs/${child.run_id}`} className="link mono">{shortId(child.workflow, child.run_id)}</Link> : child.workflow}
            {child.cancel_asked_at && <span className="muted"> asked to end</span>}
            {child.reason && <span className="muted"> {child.reason}</span>}
          </li>
        ))}
      </ul>
    </section>
  );
}
