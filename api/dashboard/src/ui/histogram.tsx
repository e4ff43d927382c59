// How many, by time and by how they stand now; dragging chooses a stretch of it.
import { useRef, useState, type PointerEvent } from "react";
import { usePrefs } from "../prefs";
import { written } from "./instant";

const STACK = ["completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed", "needs_attention", "paused", "pausing", "waiting", "cancelling", "compensating", "running"];

export interface Bar {
  /** Milliseconds. */
  at: number;
  counts: Record<string, number>;
}

const totalOf = (bar: Bar): number => Object.values(bar.counts).reduce((sum, count) => sum + count, 0);

/** bars: in order, each `step` milliseconds long; those without a run may be left out. */
export function Histogram({ bars, from, to, step, label, onBrush }: { bars: Bar[]; from: number; to: number; step: number; label: string; onBrush?: (from: number, to: number) => void }) {
  const { clock } = usePrefs();
  const box = useRef<HTMLDivElement>(null);
  const [brush, setBrush] = useState<[number, number] | null>(null);
  const most = Math.max(1, ...bars.map(totalOf));
  const width = Math.max(step, to - from);
  const place = (event: PointerEvent) => {
    const area = box.current?.getBoundingClientRect();
    return area ? Math.max(0, Math.min(1, (event.clientX - area.left) / area.width)) : 0;
  };
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  return (
    <div className="histogram small" role="img" aria-label={label}>
      <span className="histogram-most num faint">{most}</span>
      <div
        className={onBrush ? "histogram-bars brushed" : "histogram-bars"}
        ref={box}
        title={onBrush ? "Drag to choose a stretch of time" : undefined}
        onPointerDown={onBrush && ((event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          setBrush([place(event), place(event)]);
        })}
        onPointerMove={(event) => brush && setBrush([brush[0], place(event)])}
        onPointerUp={() => {
          if (brush && onBrush && Math.abs(brush[1] - brush[0]) > 0.005) onBrush(from + Math.min(...brush) * width, from + Math.max(...brush) * width);
          setBrush(null);
        }}
      >
        {bars.map((bar) => (
          <div key={bar.at} className="histogram-bar placed" style={{ left: `${((bar.at - from) / width) * 100}%`, width: `max(2px, calc(${(step / width) * 100}% - 1px))` }} title={`${written(bar.at, clock, { seconds: step < 60_000 })}: ${totalOf(bar)} runs`}>
            {STACK.filter((status) => bar.counts[status]).map((status) => <span key={status} className={`part-${status}`} style={{ height: `${((bar.counts[status] ?? 0) / most) * 100}%` }} />)}
          </div>
        ))}
        {brush && <i className="timeline-brush" style={{ left: `${Math.min(...brush) * 100}%`, width: `${Math.abs(brush[1] - brush[0]) * 100}%` }} />}
      </div>
      <div className="histogram-axis faint">{ticks.map((tick) => <span key={tick}>{written(from + tick * width, clock === "local" ? "local" : "utc", { seconds: width < 600_000 })}</span>)}</div>
    </div>
  );
}
