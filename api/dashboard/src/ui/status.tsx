// A status is colour, icon and word together, and the same everywhere.
import { Icon, type IconName } from "./icons";

interface Look {
  icon: IconName;
  word: string;
  tone: Tone;
}
export type Tone = "ok" | "bad" | "busy" | "wait" | "warn" | "idle";

const LOOKS: Record<string, Look> = {
  // runs and tasks
  running: { icon: "ring", word: "running", tone: "busy" },
  queued: { icon: "queued", word: "queued", tone: "idle" },
  waiting: { icon: "clock", word: "waiting", tone: "wait" },
  pending: { icon: "circle", word: "pending", tone: "idle" },
  completed: { icon: "check", word: "completed", tone: "ok" },
  failed: { icon: "cross", word: "failed", tone: "bad" },
  cancelled: { icon: "stop", word: "cancelled", tone: "idle" },
  skipped: { icon: "skip", word: "skipped", tone: "idle" },
  needs_attention: { icon: "alert", word: "needs attention", tone: "warn" },
  pausing: { icon: "pause", word: "pausing", tone: "warn" },
  paused: { icon: "pause", word: "paused", tone: "warn" },
  terminated: { icon: "stop", word: "terminated", tone: "idle" },
  cancelling: { icon: "stop", word: "cancelling", tone: "busy" },
  compensating: { icon: "replay", word: "compensating", tone: "busy" },
  compensated: { icon: "replay", word: "compensated", tone: "warn" },
  compensation_failed: { icon: "cross", word: "compensation failed", tone: "bad" },
  // runs of tasks
  asked: { icon: "queued", word: "asked for", tone: "idle" },
  // items of a bulk, at their turn and later
  done: { icon: "check", word: "asked", tone: "busy" },
  gone: { icon: "dot", word: "gone", tone: "idle" },
  overtaken: { icon: "skip", word: "overtaken", tone: "idle" },
  // attempts
  lost: { icon: "alert", word: "lost", tone: "warn" },
  returned: { icon: "replay", word: "handed back", tone: "idle" },
  // approvals
  approved: { icon: "check", word: "approved", tone: "ok" },
  rejected: { icon: "cross", word: "rejected", tone: "bad" },
  expired: { icon: "clock", word: "expired", tone: "warn" },
  // dead letters and what became of them
  parked: { icon: "alert", word: "parked", tone: "bad" },
  replayed: { icon: "replay", word: "replayed", tone: "busy" },
  discarded: { icon: "trash", word: "discarded", tone: "idle" },
  failed_again: { icon: "cross", word: "failed again", tone: "bad" },
  stopped: { icon: "stop", word: "stopped", tone: "idle" },
  // signals
  sent: { icon: "triggers", word: "sent", tone: "busy" },
  kept: { icon: "clock", word: "kept", tone: "wait" },
  taken: { icon: "check", word: "taken", tone: "ok" },
  refused: { icon: "cross", word: "refused", tone: "bad" },
  // records
  started: { icon: "play", word: "started", tone: "ok" },
  signalled: { icon: "triggers", word: "signalled", tone: "ok" },
  dropped: { icon: "filter", word: "dropped", tone: "idle" },
  duplicate: { icon: "copy", word: "duplicate", tone: "idle" },
  filtered: { icon: "filter", word: "filtered", tone: "idle" },
  // workers and parts
  live: { icon: "heart", word: "live", tone: "ok" },
  draining: { icon: "download", word: "draining", tone: "warn" },
  current: { icon: "check", word: "current", tone: "ok" },
  ended: { icon: "stop", word: "ended", tone: "idle" },
  ok: { icon: "check", word: "ok", tone: "ok" },
  degraded: { icon: "alert", word: "degraded", tone: "warn" },
  late: { icon: "clock", word: "late", tone: "warn" },
  // the console's own acts
  sending: { icon: "ring", word: "sending", tone: "busy" },
  following: { icon: "ring", word: "under way", tone: "busy" },
};

export const look = (status: string): Look => LOOKS[status] ?? { icon: "dot", word: status.replaceAll("_", " "), tone: "idle" };
export const toneOf = (status: string): Tone => look(status).tone;

export function Status({ of, word, compact }: { of: string; word?: string; compact?: boolean }) {
  const { icon, word: usual, tone } = look(of);
  return (
    <span className={`status tone-${tone}${compact ? " compact" : ""}`} data-status={of}>
      <Icon name={icon} size={14} className={icon === "ring" ? "turning" : undefined} />
      <span className="status-word">{word ?? usual}</span>
    </span>
  );
}

export function StatusDot({ of }: { of: string }) {
  const { icon, word, tone } = look(of);
  return (
    <span className={`status-dot tone-${tone}`} title={word} role="img" aria-label={word}>
      <Icon name={icon} size={14} />
    </span>
  );
}
