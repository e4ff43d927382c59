// Items of a map: counters wherever the map is shown, and a table of them that comes in pages.
import { get, type Schemas } from "../../api/client";
import { useList } from "../../api/hooks";
import { useParam } from "../../router";
import { errorLine } from "../../ui/fault";
import { Instant } from "../../ui/instant";
import { Empty, Failure, Loading } from "../../ui/parts";
import { Status } from "../../ui/status";
import { DataTable, type Column } from "../../ui/table";

export function itemsWord(items: Schemas["ItemCounts"]): string {
  return `${items.completed}/${items.total} ok${items.failed ? `, ${items.failed} failed` : ""}`;
}

/** Of a repeat: how many rounds have ended. After a replay it has as many again, which are numbered on. */
export function roundsWord(task: { rounds: number }, max?: number): string {
  const bound = max === undefined ? "" : ` of ${Math.max(1, Math.ceil(task.rounds / max)) * max}`;
  return `${task.rounds}${bound} ${task.rounds === 1 && max === undefined ? "round" : "rounds"}`;
}

export function Items({ runId, map, isLive, onSelect }: { runId: string; map: string; isLive: boolean; onSelect: (task: string) => void }) {
  const [status, setStatus] = useParam("items");
  const list = useList<Schemas["Task"]>(
    ["run", runId, "items", map, status],
    (page, signal) => get("/runs/{run_id}/tasks/{task}/items", { run_id: runId, task: map }, { limit: 200, ...(status ? { status: status as Schemas["TaskStatus"] } : {}), ...(page ? { page } : {}) }, signal),
    { live: isLive ? 5000 : false },
  );
  const columns: Column<Schemas["Task"]>[] = [
    { id: "item", head: "Item", width: "64px", right: true, cell: (item) => <span className="num">{item.name.slice(map.length + 1)}</span> },
    { id: "status", head: "Status", width: "116px", cell: (item) => <Status of={item.status} /> },
    { id: "error", head: "Error", width: "minmax(80px, 1fr)", cell: (item) => <span className="clip muted">{errorLine(item.error)}</span> },
    { id: "changed", head: "Changed", width: "78px", cell: (item) => <Instant at={item.changed_at} /> },
  ];
  return (
    <section>
      <h3>Items that have begun</h3>
      <div className="filters">
        {["", "failed", "running", "queued", "completed"].map((each) => (
          <button key={each} type="button" className="chip" aria-pressed={status === each} onClick={() => setStatus(each)}>{each || "all"}</button>
        ))}
      </div>
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={3} /> : (
        <DataTable height={10} label={`Items of ${map}`} rows={list.rows} columns={columns} keyOf={(item) => item.name} onOpen={(item) => onSelect(item.name)} more={list.more} onMore={list.fetchMore} empty={<Empty title={status ? `No item is ${status}.` : "No item has begun."} />} />
      )}
    </section>
  );
}
