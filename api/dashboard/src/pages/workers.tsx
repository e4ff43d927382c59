import { crashWorker, holdBack } from "../acts";
import { get, type Schemas } from "../api/client";
import { filterOf } from "../api/filter";
import { useList, useOverview, usePauses } from "../api/hooks";
import { Link, useParam, useTitle } from "../router";
import { canCrash } from "../session";
import { ActButton, Command } from "../ui/act";
import { Instant, length } from "../ui/instant";
import { Empty, Facts, Failure, Loading, Notice, Panel, Tabs } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { Pools } from "./pools";

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

const queuesOf = (paused: Set<string>): Column<Queue>[] => [
  { id: "queue", head: "Queue", width: "minmax(120px, 1fr)", cell: (row) => <><b className="clip">{row.queue}</b>{paused.has(row.queue) && <Status of="paused" />}</>, sort: (row) => row.queue },
  { id: "queued", head: "Waiting", width: "92px", right: true, cell: (row) => <span className="num">{row.queued.toLocaleString("en")}</span>, sort: (row) => row.queued },
  { id: "oldest", head: "Oldest", width: "100px", right: true, cell: (row) => (row.queued ? <span className="num">{length(row.oldest_seconds * 1000)}</span> : <span className="faint">–</span>), sort: (row) => row.oldest_seconds },
  { id: "running", head: "Running", width: "92px", right: true, cell: (row) => <span className="num">{row.running.toLocaleString("en")}</span>, sort: (row) => row.running },
  { id: "workers", head: "Workers", width: "92px", right: true, cell: (row) => <span className={row.workers ? "num" : "num tone-warn"}>{row.workers}</span>, sort: (row) => row.workers },
  { id: "slots", head: "Slots used", width: "minmax(130px, 1fr)", cell: (row) => <Slots held={row.held} slots={row.slots} /> },
  { id: "act", head: "", width: "96px", right: true, cell: (row) => (paused.has(row.queue) ? <ActButton icon="play" act={() => holdBack("queue", row.queue, "resume")}>Resume …</ActButton> : <ActButton icon="pause" act={() => holdBack("queue", row.queue, "pause")}>Pause …</ActButton>) },
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
const CRASH: Column<Worker> = { id: "crash", head: "", width: "92px", right: true, cell: (row) => <ActButton icon="triggers" kind="danger" why={row.live ? undefined : "it is not live"} act={() => crashWorker(row)}>Crash …</ActButton> };

export function WorkersPage() {
  useTitle("Workers");
  const [tab, setTab] = useParam("tab", "queues");
  const overview = useOverview();
  const pauses = usePauses();
  const pools = useList<Schemas["Pool"]>(["pools"], (page, signal) => get("/pools", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 3000 });
  const waiting = pools.rows.reduce((sum, pool) => sum + pool.waiting, 0);
  const paused = (pauses.data?.workflows.length ?? 0) + (pauses.data?.queues.length ?? 0);
  return (
    <div className={tab === "pools" ? "page filled" : "page"}>
      <header className="page-head"><h1>Workers</h1><span className="muted">{overview.data ? `${overview.data.workers_live} live` : ""}{overview.data?.workers_lost ? `, ${overview.data.workers_lost} lost within the hour` : ""}</span></header>
      <Tabs
        label="What holds tasks up"
        current={tab}
        onChange={(id) => setTab(id)}
        tabs={[{ id: "queues", word: "Queues and workers" }, { id: "pools", word: "Pools", count: waiting || undefined, tone: "wait" }, { id: "pauses", word: "Pauses", count: paused || undefined, tone: "warn" }]}
      />
      {tab === "queues" && <Queues paused={new Set(pauses.data?.queues.map((pause) => pause.queue))} />}
      {tab === "pools" && <Pools />}
      {tab === "pauses" && <Pauses />}
    </div>
  );
}

function Queues({ paused }: { paused: Set<string> }) {
  const overview = useOverview();
  const list = useList<Worker>(["workers"], (page, signal) => get("/workers", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 3000 });
  const alone = overview.data?.queues.filter((queue) => queue.queued > 0 && !queue.workers) ?? [];
  return (
    <>
      {alone.map((queue) => (
        <Notice key={queue.queue} tone="warn">
          <b>Nobody serves queue {queue.queue}.</b> {queue.queued} wait, the oldest for {length(queue.oldest_seconds * 1000)}.
          <Command text={`HEADRACE_QUEUES=${queue.queue} headrace worker APP`} />
        </Notice>
      ))}
      <Panel title="Queues" flush>
        {overview.data ? <DataTable height={14} label="Queues" rows={overview.data.queues} columns={queuesOf(paused)} keyOf={(row) => row.queue} sort={[{ id: "queued", desc: true }]} empty={<Empty icon="queued" title="No queue is served, and nothing waits in one." />} /> : overview.error ? <Failure error={overview.error} /> : <Loading rows={3} />}
      </Panel>
      <Panel title="Worker sessions" aside={<span className="faint">those that live, and those that ended within the hour</span>} flush>
        {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={4} /> : (
          <DataTable height={18} label="Worker sessions, newest first" rows={list.rows} columns={canCrash() ? [...WORKERS, CRASH] : WORKERS} keyOf={(row) => row.session_id} more={list.more} onMore={list.fetchMore} empty={<Empty icon="workers" title="No worker has been heard of."><Command text="headrace worker app.py" /></Empty>} />
        )}
      </Panel>
    </>
  );
}

/** What is held back by somebody, and what of it still runs. */
function Pauses() {
  const { data, error } = usePauses();
  if (error && !data) return <Failure error={error} />;
  if (!data) return <Loading rows={3} />;
  if (!data.workflows.length && !data.queues.length) return <Empty icon="play" title="No workflow and no queue is paused.">A pause lets what was handed out end and begins nothing new. In the terminal: <code>headrace pause workflow NAME</code>, <code>headrace pause queue NAME</code></Empty>;
  return (
    <div className="columns">
      {data.workflows.map((pause) => (
        <Panel key={`w ${pause.workflow}`} title={<>Workflow {pause.workflow} <Status of="paused" /></>} aside={<ActButton icon="play" act={() => holdBack("workflow", pause.workflow, "resume")}>Resume …</ActButton>}>
          <PauseFacts pause={pause} />
          <p>{stillRuns(pause.runs)}</p>
          <p><Link to={`/runs?filter=${encodeURIComponent(filterOf({ workflow: pause.workflow }))}`} className="link">Its runs</Link></p>
        </Panel>
      ))}
      {data.queues.map((pause) => (
        <Panel key={`q ${pause.queue}`} title={<>Queue {pause.queue} <Status of="paused" /></>} aside={<ActButton icon="play" act={() => holdBack("queue", pause.queue, "resume")}>Resume …</ActButton>}>
          <PauseFacts pause={pause} />
          <p><b className="num">{pause.held}</b> {pause.held === 1 ? "command is" : "commands are"} kept back; what workers have taken before goes on.</p>
        </Panel>
      ))}
    </div>
  );
}

function PauseFacts({ pause }: { pause: { paused_at: string; paused_by: string; reason: string } }) {
  return <Facts items={[["Since", <Instant at={pause.paused_at} />], ["By", pause.paused_by], ["Why", pause.reason || <span className="faint">no reason given</span>]]} />;
}

export function stillRuns(runs: Record<string, number>): string {
  const { pausing = 0, paused = 0, ...others } = runs;
  const untold = Object.values(others).reduce((sum, count) => sum + count, 0);
  const open = pausing + paused + untold;
  if (!open) return "It has no open run; those that are started begin paused.";
  return `${paused} of ${open} open runs stand still${pausing ? `, ${pausing} still run what was handed out` : ""}${untold ? `, ${untold} are yet to be told` : ""}.`;
}
