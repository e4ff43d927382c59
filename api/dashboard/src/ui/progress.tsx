// How the tasks of a run stand, as one bar.
import { look } from "./status";

const ORDER = ["completed", "skipped", "cancelled", "failed", "waiting", "running", "queued", "pending"];

export function Progress({ counts, wide }: { counts: Record<string, number>; wide?: boolean }) {
  const total = Object.values(counts).reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  const done = (counts.completed ?? 0) + (counts.skipped ?? 0);
  const parts = ORDER.filter((status) => counts[status]);
  const words = parts.map((status) => `${counts[status]} ${look(status).word}`).join(", ");
  return (
    <span className={wide ? "progress wide" : "progress"} title={words}>
      <span className="progress-bar" role="img" aria-label={words}>
        {parts.map((status) => (
          <span key={status} className={`part-${status}`} style={{ flexGrow: counts[status] }} />
        ))}
      </span>
      <span className="num muted">{done}/{total}</span>
    </span>
  );
}
