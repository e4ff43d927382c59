import { get, type Schemas } from "../api/client";
import { useList, useOverview } from "../api/hooks";
import { useTitle } from "../router";
import { Command } from "../ui/act";
import { Instant, length } from "../ui/instant";
import { Empty, Failure, Loading, Notice, Panel } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";

type Worker = Schemas["Worker"];
type Queue = Schemas["QueueLoad"];

const stateOf = (worker: Worker): string => (!worker.live ? (Date.parse(worker.expires_at) < Date.now() ? "lost" : "ended") : worker.draining ? "draining" : "live");

export function Slots({ held, slots }: { held: number; slots: number }) {
  if (!slots) return <span className="faint">–</span>;
  const share = Math.min(1, held / slots);
  return (
    <span className="slots" title={`${held} of ${slots} worker slots used`}>
      <span className="load" aria-hidden="true"><span className={share >= 1 ? "full" : undefined} style={{ width: `${share * 100}%` }} /></span>
      <span className="num">{held}/{slots}</span>
    </span>
  );
}

const QUEUES: Column<Queue>[] = [
  { id: "queue", head: "Queue", width: "minmax(120px, 1fr)", cell: (row) => <b className="clip">{row.queue}</b>, sort: (row) => row.queue },
  { id: "queued", head: "Waiting", width: "92px", right: true, cell: (row) => <span className="num">{row.queued.toLocaleString("en")}</span>, sort: (row) => row.queued },
  { id: "oldest", head: "Oldest", width: "100px", right: true, cell: (row) => (row.queued ? <span className="num">{length(row.oldest_seconds * 1000)}</span> : <span className="faint">–</span>), sort: (row) => row.oldest_seconds },
  { id: "running", head: "Running", width: "92px", right: true, cell: (row) => <span className="num">{row.running.toLocaleString("en")}</span>, sort: (row) => row.running },
  { id: "workers", head: "Workers", width: "92px", right: true, cell: (row) => <span className={row.workers ? "num" : "num tone-warn"}>{row.workers}</span>, sort: (row) => row.workers },
  { id: "slots", head: "Slots used", width: "minmax(130px, 1fr)", cell: (row) => <Slots held={row.held} slots={row.slots} /> },
];

const WORKERS: Column<Worker>[] = [
  { id: "state", head: "State", width: "112px", cell: (row) => <Status of={stateOf(row)} />, sort: stateOf },
  { id: "worker", head: "Worker", width: "minmax(150px, 1.4fr)", cell: (row) => <b className="clip">{row.worker}</b>, sort: (row) => row.worker },
  { id: "queues", head: "Queues", width: "minmax(120px, 1fr)", cell: (row) => <span className="clip muted">{row.queues.join(", ")}</span> },
  { id: "slots", head: "Holds", width: "minmax(120px, 1fr)", cell: (row) => <Slots held={row.held} slots={row.slots} />, sort: (row) => row.held },
  { id: "renewed", head: "Heartbeat", width: "100px", cell: (row) => <Instant at={row.renewed_at} />, sort: (row) => row.renewed_at },
  { id: "lease", head: "Lease until", width: "104px", cell: (row) => <Instant at={row.expires_at} future />, sort: (row) => row.expires_at },
  { id: "started", head: "Started", width: "92px", cell: (row) => <Instant at={row.started_at} />, sort: (row) => row.started_at },
  { id: "library", head: "Library", width: "92px", cell: (row) => <span className="faint clip">{row.library}</span> },
];

export function WorkersPage() {
  useTitle("Workers");
  const overview = useOverview();
  const list = useList<Worker>(["workers"], (page, signal) => get("/workers", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 3000 });
  const alone = overview.data?.queues.filter((queue) => queue.queued > 0 && !queue.workers) ?? [];
  return (
    <div className="page">
      <header className="page-head"><h1>Workers</h1><span className="muted">{overview.data ? `${overview.data.workers_live} live` : ""}{overview.data?.workers_lost ? `, ${overview.data.workers_lost} lost within the hour` : ""}</span></header>
      {alone.map((queue) => (
        <Notice key={queue.queue} tone="warn">
          <b>Nobody serves queue {queue.queue}.</b> {queue.queued} wait, the oldest for {length(queue.oldest_seconds * 1000)}.
          <Command text={`HEADRACE_QUEUES=${queue.queue} headrace worker APP`} />
        </Notice>
      ))}
      <Panel title="Queues" flush>
        {overview.data ? <DataTable height={14} label="Queues" rows={overview.data.queues} columns={QUEUES} keyOf={(row) => row.queue} sort={[{ id: "queued", desc: true }]} empty={<Empty icon="queued" title="No queue is served, and nothing waits in one." />} /> : overview.error ? <Failure error={overview.error} /> : <Loading rows={3} />}
      </Panel>
      <Panel title="Worker sessions" aside={<span className="faint">those that live, and those that ended within the hour</span>} flush>
        {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={4} /> : (
          <DataTable height={18} label="Worker sessions, newest first" rows={list.rows} columns={WORKERS} keyOf={(row) => row.session_id} more={list.more} onMore={list.fetchMore} empty={<Empty icon="workers" title="No worker has been heard of."><Command text="headrace worker app.py" /></Empty>} />
        )}
      </Panel>
    </div>
  );
}
