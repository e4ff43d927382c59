import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";
import { get, search, type Schemas } from "../api/client";
import { shortId, useOverview, usePauses } from "../api/hooks";
import { usePrefs } from "../prefs";
import { go, Link, useTitle } from "../router";
import { Command } from "../ui/act";
import { Icon, type IconName } from "../ui/icons";
import { Instant, length, serverNow, written } from "../ui/instant";
import { size } from "../ui/json";
import { Empty, Failure, Loading, Notice, Panel } from "../ui/parts";
import { Progress } from "../ui/progress";
import { look, Status, type Tone } from "../ui/status";

const LAG_BYTES = 16 * 1024 * 1024;

export function OverviewPage() {
  useTitle("Overview");
  const { data, error, refetch } = useOverview();
  const groups = useQuery({ queryKey: ["letter-groups", "overview"], queryFn: ({ signal }) => get("/dead-letters/groups", {}, { limit: 6 }, signal) });
  const approvals = useQuery({ queryKey: ["approvals", "overview"], queryFn: ({ signal }) => get("/approvals", {}, { limit: 6 }, signal) });
  const runs = useQuery({ queryKey: ["recent-runs"], queryFn: ({ signal }) => get("/runs", {}, { limit: 8 }, signal) });
  const stuck = useQuery({ queryKey: ["runs-count", "is:stuck"], queryFn: ({ signal }) => get("/runs/count", {}, { filter: "is:stuck" }, signal), refetchInterval: 10_000 }).data;
  if (!data) return <div className="page">{error ? <Failure error={error} retry={() => void refetch()} /> : <Loading />}</div>;
  const open = Object.values(data.runs).reduce((sum, count) => sum + count, 0);
  return (
    <div className="page">
      <header className="page-head"><h1>Overview</h1><span className="muted">{open ? `${open.toLocaleString("en")} open runs` : "nothing is under way"}</span></header>
      <Alarms overview={data} />
      <div className="tiles">
        <Tile to="/runs?filter=status:running" icon="ring" tone="busy" word="Running" value={data.runs.running ?? 0} more="runs with something to do" />
        <Tile to="/approvals" icon="person" tone={data.approvals_waiting + data.parked_tasks ? "wait" : "idle"} word="Wait for a person" value={data.approvals_waiting + data.parked_tasks} more={data.parked_tasks ? `${data.parked_tasks} of them: did it happen?` : "approvals to decide"} />
        <Tile to="/dead-letters" icon="letters" tone={data.dead_letters_parked ? "bad" : "idle"} word="Dead letters" value={data.dead_letters_parked} more="to repair and replay" />
        <Tile to="/runs?filter=is:stuck" icon="alert" tone={stuck?.count ? "warn" : "idle"} word="Stuck" title={`Nobody has served their queue, or what is due has not moved them, for ${data.stuck_seconds} s; or they stand aside`} value={stuck?.count ?? "–"} more={stuck?.has_more ? "of the newest open runs" : "runs that only an operator moves"} />
        <Tile to="/workers" icon="workers" tone={data.workers_lost ? "warn" : data.workers_live ? "ok" : "warn"} word="Workers" value={data.workers_live} more={data.workers_lost ? `${data.workers_lost} lost within the hour` : "live sessions"} />
        <Tile to="/system" icon="clock" tone={data.timers_late ? "warn" : "idle"} word="Timers late" value={data.timers_late} more={data.timers_late ? `by ${length(data.timer_lateness_seconds * 1000)}` : "all on time"} />
        <Tile to="/system" icon="triggers" tone={lagTone(data)} word="Outbox lag" value={data.outbox_lag_bytes === null ? "–" : size(data.outbox_lag_bytes)} more={data.relay_renewed_seconds === null ? "no relay yet" : `relay heard of ${length(data.relay_renewed_seconds * 1000)} ago`} />
      </div>
      <div className="overview-grid">
        <Panel title="Runs of the last hour" aside={<Legend />} className="span-2"><Histogram minutes={data.recent} /></Panel>
        <Panel title="Failing now" aside={<Link to="/dead-letters" className="link">All dead letters</Link>} flush>
          {groups.data?.items.length ? (
            <ul className="list">
              {groups.data.items.map((group) => (
                <li key={group.fingerprint}>
                  <Link to={`/dead-letters${search({ fingerprint: group.fingerprint })}`} className="list-row">
                    <span className="count tone-bad">{group.count}</span>
                    <span className="list-main"><b>{group.workflow ? `${group.workflow} · ${group.task ?? ""}` : group.topic}</b><span className="muted clip">{group.message}</span></span>
                    <Instant at={group.last_at} />
                  </Link>
                </li>
              ))}
            </ul>
          ) : groups.error ? <Failure error={groups.error} /> : <Empty icon="check" title="Nothing has failed for good.">A task without a try left, or a record that cannot be read, would be here.</Empty>}
        </Panel>
        <Panel title="Waiting for a person" aside={<Link to="/approvals" className="link">All approvals</Link>} flush>
          {approvals.data?.items.length ? (
            <ul className="list">
              {approvals.data.items.map((approval) => (
                <li key={approval.approval_id}>
                  <Link to={`/approvals${search({ id: approval.approval_id })}`} className="list-row">
                    <span className="tone-wait"><Icon name="person" size={14} /></span>
                    <span className="list-main"><b className="clip">{approval.title || approval.task}</b><span className="muted clip">{shortId(approval.workflow, approval.run_id)} · {approval.task}</span></span>
                    <Instant at={approval.asked_at} />
                  </Link>
                </li>
              ))}
            </ul>
          ) : approvals.error ? <Failure error={approvals.error} /> : <Empty icon="check" title="Nobody is waited for.">Tasks with an <code>approval</code> ask here.</Empty>}
        </Panel>
        <Panel title="Queues" aside={<Link to="/workers" className="link">Workers and queues</Link>} flush>
          {data.queues.length ? (
            <ul className="list">
              {data.queues.map((queue) => (
                <li key={queue.queue}>
                  <Link to="/workers" className="list-row">
                    <span className="list-main"><b>{queue.queue}</b><span className="muted">{queue.workers ? `${queue.workers} ${queue.workers === 1 ? "worker" : "workers"}, ${queue.held} of ${queue.slots} slots used` : "nobody serves it"}</span></span>
                    <Load queue={queue} />
                    <span className={queue.queued && !queue.workers ? "num tone-warn" : "num"}>{queue.queued} wait{queue.queued ? `, oldest ${length(queue.oldest_seconds * 1000)}` : ""}</span>
                  </Link>
                </li>
              ))}
            </ul>
          ) : <Empty icon="workers" title="No worker serves any queue, and nothing waits in one."><Command text="headrace worker app.py" /></Empty>}
        </Panel>
        <Panel title="Newest runs" aside={<Link to="/runs" className="link">All runs</Link>} flush>
          {runs.data?.items.length ? (
            <ul className="list">
              {runs.data.items.map((run) => (
                <li key={run.run_id}>
                  <Link to={`/runs/${run.run_id}`} className="list-row">
                    <Status of={run.status} />
                    <span className="list-main one"><b>{shortId(run.workflow, run.run_id)}</b></span>
                    <Progress counts={run.counts} />
                    <Instant at={run.created_at} />
                  </Link>
                </li>
              ))}
            </ul>
          ) : runs.error ? <Failure error={runs.error} /> : <Empty icon="play" title="No run yet."><Command text="headrace run WORKFLOW --input '{}'" /></Empty>}
        </Panel>
      </div>
    </div>
  );
}

const lagTone = (data: Schemas["Overview"]): Tone =>
  data.relay_renewed_seconds === null || data.relay_renewed_seconds > 30 || (data.outbox_lag_bytes ?? 0) > LAG_BYTES ? "warn" : "idle";

function Alarms({ overview }: { overview: Schemas["Overview"] }) {
  const alone = overview.queues.filter((queue) => queue.queued > 0 && !queue.workers && queue.oldest_seconds >= overview.stuck_seconds);
  const attention = overview.runs.needs_attention ?? 0;
  const pauses = usePauses().data;
  const silent = overview.relay_renewed_seconds === null || overview.relay_renewed_seconds > 30;
  return (
    <>
      {alone.map((queue) => (
        <Notice key={queue.queue} tone="warn" act={<Link to="/workers" className="link">Workers</Link>}>
          <b>No worker serves queue {queue.queue}.</b> {queue.queued} {queue.queued === 1 ? "task waits" : "tasks wait"}, the oldest for {length(queue.oldest_seconds * 1000)}. It moves when one starts: <code>HEADRACE_QUEUES={queue.queue} headrace worker APP</code>
        </Notice>
      ))}
      {pauses && pauses.workflows.length + pauses.queues.length > 0 && (
        <Notice tone="warn" icon="pause" act={<Link to="/workers?tab=pauses" className="link">What is paused</Link>}>
          <b>Paused:</b> {[...pauses.workflows.map((pause) => `workflow ${pause.workflow}`), ...pauses.queues.map((pause) => `queue ${pause.queue}, ${pause.held} kept back`)].join("; ")}.
        </Notice>
      )}
      {attention > 0 && (
        <Notice tone="warn" act={<Link to="/runs?filter=status:needs_attention" className="link">Look at them</Link>}>
          <b>{attention} {attention === 1 ? "run stands" : "runs stand"} aside</b> because an event could not be decided; nothing moves {attention === 1 ? "it" : "them"} but a release or a cancel.
        </Notice>
      )}
      {silent && overview.relay_renewed_seconds !== null && (
        <Notice tone="bad" act={<Link to="/system" className="link">System</Link>}>
          <b>The relay is silent</b> for {length(overview.relay_renewed_seconds * 1000)}: nothing goes from Postgres to Kafka. Start one: <code>python -m connectors</code>
        </Notice>
      )}
    </>
  );
}

function Tile({ to, icon, tone, word, value, more, title }: { to: string; icon: IconName; tone: Tone; word: string; value: ReactNode; more: string; title?: string }) {
  return (
    <Link to={to} className={`tile tone-${tone}`} title={title}>
      <span className="tile-word"><Icon name={icon} size={14} />{word}</span>
      <span className="tile-value num">{typeof value === "number" ? value.toLocaleString("en") : value}</span>
      <span className="tile-more">{more}</span>
    </Link>
  );
}

function Load({ queue }: { queue: Schemas["QueueLoad"] }) {
  const share = queue.slots ? Math.min(1, queue.held / queue.slots) : 0;
  return <span className="load" aria-hidden="true"><span style={{ width: `${share * 100}%` }} /></span>;
}

// == the last hour ====================================================================================================
const STACK = ["completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed", "needs_attention", "paused", "pausing", "waiting", "cancelling", "compensating", "running"];
const MINUTES = 60;

function Legend() {
  return <span className="legend">{["completed", "running", "waiting", "failed"].map((status) => <span key={status}><i className={`part-${status}`} />{look(status).word}</span>)}</span>;
}

function Histogram({ minutes }: { minutes: Schemas["MinuteOfRuns"][] }) {
  const { clock } = usePrefs();
  const end = Math.floor(serverNow() / 60_000);
  const byMinute = new Map(minutes.map((minute) => [Math.floor(Date.parse(minute.at) / 60_000), minute.counts]));
  const bars = Array.from({ length: MINUTES }, (_, index) => {
    const minute = end - MINUTES + 1 + index;
    const counts = byMinute.get(minute) ?? {};
    return { minute, counts, total: Object.values(counts).reduce((sum, count) => sum + count, 0) };
  });
  const most = Math.max(1, ...bars.map((bar) => bar.total));
  const sum = bars.reduce((total, bar) => total + bar.total, 0);
  return (
    <div className="histogram" role="img" aria-label={`${sum} runs began within the last hour, at most ${most} in a minute`}>
      <span className="histogram-most num faint">{most}</span>
      <div className="histogram-bars">
        {bars.map((bar) => (
          <div key={bar.minute} className="histogram-bar" title={`${written(bar.minute * 60_000, clock, { seconds: false })}: ${bar.total} runs`} onClick={() => bar.total && go("/runs")}>
            {STACK.filter((status) => bar.counts[status]).map((status) => (
              <span key={status} className={`part-${status}`} style={{ height: `${((bar.counts[status] ?? 0) / most) * 100}%` }} />
            ))}
          </div>
        ))}
      </div>
      <div className="histogram-axis faint">
        {[60, 45, 30, 15, 0].map((ago) => <span key={ago}>{clock === "relative" ? (ago ? `${ago} m ago` : "now") : written((end - ago) * 60_000, clock, { seconds: false })}</span>)}
      </div>
    </div>
  );
}
