// Why it waits, or how it ended: the same answer as `headrace explain`. Shown wherever something waits.
import type { ReactNode } from "react";
import type { Schemas } from "../api/client";
import { Link } from "../router";
import { Command } from "./act";
import { Icon, type IconName } from "./icons";
import { Instant } from "./instant";
import type { Tone } from "./status";

type Cause = Schemas["Cause"];

const FAULTS = new Set(["NOTHING_OPEN", "JOIN_MISSED", "TIMER_MISSING", "APPROVAL_MISSING", "PARKED_MISSING", "SIGNAL_WAIT_MISSING", "CHILD_MISSING", "ITEMS_MISSED"]);
const BAD = new Set(["RUN_FAILED", "TASK_FAILED", "RUN_COMPENSATION_FAILED"]);
const GOOD = new Set(["RUN_COMPLETED", "TASK_COMPLETED"]);
const ALARMS = new Set([
  "NEEDS_ATTENTION", "PARKED", "NO_WORKER", "WORKERS_DRAINING", "COMMAND_LOST", "TIMEOUT_OVERDUE", "SESSION_EXPIRED", "SESSION_ENDED", "SESSION_UNKNOWN",
  "NOT_LISTED", "STREAMS_AWAY", "KAFKA_AWAY", "SWEEP_LATE", "RELAY_AWAY", "RELAY_BEHIND", "SLOT_LOST", "TICKS_LATE", "PARTITION_UNOWNED", "PARTITION_SILENT",
  "APPROVAL_EXPIRED", "TIMER_OVERDUE", "BODY_UNKNOWN", "STILL_HELD", "POOL_NOT_SET", "RUN_COMPENSATING", "RUN_COMPENSATED",
]);
const WAITS = new Set(["PAUSED", "QUEUE_PAUSED", "SLOT_AWAITED", "RATE_AWAITED", "BETWEEN_ROUNDS", "COMPENSATION_LATER", "SIGNAL_AWAITED", "CHILD_OPEN", "APPROVAL_OPEN", "WAIT", "BACKOFF"]);

export function toneOfCause(code: string): Tone {
  if (FAULTS.has(code) || BAD.has(code)) return "bad";
  if (GOOD.has(code)) return "ok";
  if (ALARMS.has(code)) return "warn";
  if (WAITS.has(code)) return "wait";
  if (code.endsWith("CANCELLED") || code.endsWith("SKIPPED")) return "idle";
  return "busy";
}

/** Whether explain offers to replay the letter: there is one place that knows, and it is not here. */
export const offers = (explanation: Schemas["Explanation"] | undefined, letterId: string | undefined): boolean =>
  Boolean(explanation?.causes.some((cause) => cause.acts.some((act) => act.api === `POST /dead-letters/${letterId ?? ""}/replay`)));

const ICONS: Record<Tone, IconName> = { bad: "cross", ok: "check", warn: "alert", wait: "clock", busy: "ring", idle: "dot" };

/** The page of the console for what a cause points to. */
export function pageOf(object: Schemas["CauseObject"], runId: string): string | null {
  const id = encodeURIComponent(object.id);
  switch (object.kind) {
    case "run":
      return `/runs/${id}`;
    case "task": {
      const [run, name] = object.id.includes(".") ? [object.id.slice(0, 36), object.id.slice(37)] : [runId, object.id];
      return `/runs/${run}?task=${encodeURIComponent(name)}`;
    }
    case "approval":
      return "/approvals";
    case "parked_task":
      return "/approvals?show=parked";
    case "dead_letter":
      return object.id ? `/dead-letters/${id}` : "/dead-letters";
    case "pool":
      return `/workers?tab=pools&pool=${id}`;
    case "session":
    case "queue":
      return "/workers";
    case "partition":
    case "relay":
    case "slot":
    case "sweep":
    case "kafka":
      return "/system";
    default:
      return null;
  }
}

export function Causes({ explanation, acts, limit = 3 }: { explanation: Schemas["Explanation"]; acts?: (cause: Cause) => ReactNode; limit?: number }) {
  // That a run has failed stands in its status already; what comes first is the task that failed, and its fix.
  const [first, second] = explanation.causes;
  const causes = first?.code === "RUN_FAILED" && second ? explanation.causes.slice(1) : explanation.causes;
  const shown = causes.slice(0, limit);
  const rest = causes.slice(limit);
  return (
    <div className="causes">
      {shown.map((cause, index) => <OneCause key={index} cause={cause} runId={explanation.run_id} place={index} acts={acts?.(cause)} />)}
      {rest.length > 0 && (
        <details>
          <summary>{rest.length} more {rest.length === 1 ? "cause" : "causes"}</summary>
          {rest.map((cause, index) => <OneCause key={index} cause={cause} runId={explanation.run_id} place={limit + index} acts={acts?.(cause)} />)}
        </details>
      )}
    </div>
  );
}

function OneCause({ cause, runId, place, acts }: { cause: Cause; runId: string; place: number; acts?: ReactNode }) {
  const tone = toneOfCause(cause.code);
  const found = pageOf(cause.points_to, runId);
  const page = found === `/runs/${runId}` ? null : found;
  return (
    <div className={`cause tone-${tone}${place === 0 ? " first" : ""}`} data-code={cause.code}>
      <Icon name={ICONS[tone]} className={tone === "busy" ? "turning" : undefined} />
      <div className="cause-body">
        <p className="cause-text">{cause.text}</p>
        <p className="cause-more">
          <code>{cause.code}</code>
          {FAULTS.has(cause.code) && <span className="tone-bad">this must not be: run the doctor</span>}
          {cause.since && <span>since <Instant at={cause.since} /></span>}
          {cause.moves && <span>moves: {cause.moves}</span>}
          {cause.until && <span>by itself <Instant at={cause.until} future /></span>}
          {page && <Link to={page} className="link">{cause.points_to.kind.replaceAll("_", " ")}</Link>}
          {cause.tasks_total > 1 && <span>holds up {cause.tasks_total} tasks: {cause.tasks.slice(0, 4).join(", ")}{cause.tasks_total > 4 ? " …" : ""}</span>}
        </p>
        {cause.acts.length > 0 && place === 0 && (
          <details className="same-as">
            <summary>From a terminal or a script</summary>
            {cause.acts.map((act, index) => (
              <div key={index}>
                {act.cli && <Command text={act.cli} />}
                {act.api && <Command text={act.api} />}
              </div>
            ))}
          </details>
        )}
      </div>
      {acts && <div className="cause-acts">{acts}</div>}
    </div>
  );
}
