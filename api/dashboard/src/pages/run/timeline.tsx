// One row per task, one bar per thing it did: queued, running, backing off, waiting for a person, asleep.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useMemo, useRef, useState, type PointerEvent } from "react";
import type { Schemas } from "../../api/client";
import { isOver, isTaskOver, type Spans } from "../../api/hooks";
import { usePrefs } from "../../prefs";
import { useParam } from "../../router";
import { length, useNow } from "../../ui/instant";
import { Button, Empty } from "../../ui/parts";
import { Icon } from "../../ui/icons";
import { StatusDot, toneOf } from "../../ui/status";
import { itemsWord, roundsWord } from "./items";
import { axis, fold, segmentsOf, straight, type Scale, type Segment } from "./spans";

const ROW = 28;
const LABEL = 232;

export function Timeline({ spans, run, selected, onSelect }: { spans: Spans; run: Schemas["Run"]; selected: string; onSelect: (task: string) => void }) {
  const { clock } = usePrefs();
  const [only, setOnly] = useParam("only");
  const [folded, setFolded] = useParam("fold");
  const [zoom, setZoom] = useParam("zoom");
  const ticking = useNow();
  const now = isOver(run.status) && run.finished_at ? Date.parse(run.finished_at) : Math.max(ticking, Date.parse(spans.at));
  const begin = Date.parse(run.created_at);
  // Anew with the tasks, not with every second: there may be ten thousand of them.
  const segments = useMemo(() => segmentsOf(spans.tasks, begin), [spans.tasks, begin]);
  const last = useMemo(() => lastOf(segments), [segments]);
  const end = Math.max(begin + 50, Math.min(last.to, now), last.from);
  const [from, to] = parseZoom(zoom, begin, end);
  const scale = useMemo(() => (folded ? fold(segments.flat(), from, to) : straight(from, to)), [folded, segments, from, to]);
  const rows = useMemo(
    () => spans.tasks.map((task, index) => ({ task, segments: segments[index] ?? [] })).filter(({ task }) => (only === "open" ? !isTaskOver(task.status) || task.status === "failed" : true)),
    [spans.tasks, segments, only],
  );
  const scroll = useRef<HTMLDivElement>(null);
  const virtual = useVirtualizer({ count: rows.length, getScrollElement: () => scroll.current, estimateSize: () => ROW, overscan: 16, initialRect: { width: 1000, height: 600 } });
  const ticks = axis(scale, begin, clock);
  return (
    <div className="timeline">
      <div className="timeline-tools">
        <button type="button" className="chip" aria-pressed={only === "open"} onClick={() => setOnly(only ? "" : "open")}>Open and failed only</button>
        <button type="button" className="chip" aria-pressed={Boolean(folded)} onClick={() => setFolded(folded ? "" : "idle")}>Fold idle time</button>
        {zoom && <Button small icon="cross" onClick={() => setZoom("")}>Whole run</Button>}
        <span className="grow" />
        <span className="legend timeline-legend">
          {(["queued", "running", "completed", "failed", "backoff", "waiting", "asleep"] as const).map((kind) => <span key={kind}><i className={`seg seg-${kind}`} />{WORDS[kind]}</span>)}
        </span>
      </div>
      {rows.length === 0 ? <Empty icon="check" title="No task is open, and none has failed." /> : (
        <div className="timeline-scroll" ref={scroll} tabIndex={0} role="group" aria-label="Timeline of the tasks">
          <Axis ticks={ticks} scale={scale} onZoom={(a, b) => setZoom(`${Math.round(a - begin)}-${Math.round(b - begin)}`)} />
          <div className="timeline-rows" style={{ height: virtual.getTotalSize() }}>
            <div className="timeline-grid" aria-hidden="true">{ticks.map((tick) => <i key={tick.at} style={{ left: `${tick.x * 100}%` }} />)}</div>
            {virtual.getVirtualItems().map((item) => {
              const row = rows[item.index];
              if (!row) return null;
              return (
                <button
                  type="button"
                  key={row.task.index}
                  className={`timeline-row${selected === row.task.name ? " selected" : ""}`}
                  aria-pressed={selected === row.task.name}
                  data-task={row.task.name}
                  style={{ transform: `translateY(${item.start}px)`, height: ROW }}
                  onClick={() => onSelect(selected === row.task.name ? "" : row.task.name)}
                >
                  <span className="timeline-label" style={{ width: LABEL }}>
                    <StatusDot of={row.task.status} />
                    <span className="clip">{row.task.name}</span>
                    {row.task.items ? <span className="faint num">{itemsWord(row.task.items)}</span> : row.task.kind === "repeat" ? <span className="faint num">{roundsWord(row.task)}</span> : row.task.attempt > 1 && <span className="faint num">×{row.task.attempt}</span>}
                    {row.task.compensation && <span className={`tone-${toneOf(row.task.compensation)}`} title={`undone: ${row.task.compensation}`}><Icon name="undo" size={12} /><span className="sr-only">undone: {row.task.compensation}</span></span>}
                  </span>
                  <span className="timeline-bars">
                    {row.segments.map((segment, index) => <Bar key={index} segment={segment} scale={scale} now={now} />)}
                  </span>
                </button>
              );
            })}
          </div>
        </div>
      )}
    </div>
  );
}

const WORDS: Record<Segment["kind"], string> = {
  queued: "queued",
  running: "running",
  completed: "completed",
  failed: "failed",
  lost: "lost: another worker took over",
  cancelled: "cancelled",
  returned: "handed back",
  backoff: "backing off",
  waiting: "waits for somebody",
  asleep: "asleep",
  skipped: "skipped",
};

function Bar({ segment, scale, now }: { segment: Segment; scale: Scale; now: number }) {
  const to = segment.isOpen ? Math.max(segment.from, now) : segment.to;
  const [left, right] = [scale.x(segment.from), scale.x(to)];
  if (right < 0 || left > 1) return null;
  const width = Math.min(1, right) - Math.max(0, left);
  const who = segment.worker ? `, ${segment.worker}` : "";
  const which = segment.attempt ? `, attempt ${segment.attempt}` : "";
  return (
    <span
      className={`seg seg-${segment.kind}${segment.isOpen ? " open" : ""}`}
      style={{ left: `${Math.max(0, left) * 100}%`, width: `max(3px, ${width * 100}%)` }}
      title={`${WORDS[segment.kind]} ${length(to - segment.from)}${segment.round === undefined ? "" : `, round ${segment.round + 1}`}${which}${who}`}
    />
  );
}

function Axis({ ticks, scale, onZoom }: { ticks: { at: number; x: number; word: string }[]; scale: Scale; onZoom: (from: number, to: number) => void }) {
  const bar = useRef<HTMLDivElement>(null);
  const [brush, setBrush] = useState<[number, number] | null>(null);
  const place = (event: PointerEvent) => {
    const box = bar.current?.getBoundingClientRect();
    return box ? Math.max(0, Math.min(1, (event.clientX - box.left) / box.width)) : 0;
  };
  return (
    <div className="timeline-axis" title="Drag to zoom">
      <div
        className="timeline-axis-bar"
        ref={bar}
        onPointerDown={(event) => {
          event.currentTarget.setPointerCapture(event.pointerId);
          setBrush([place(event), place(event)]);
        }}
        onPointerMove={(event) => brush && setBrush([brush[0], place(event)])}
        onPointerUp={() => {
          if (brush && Math.abs(brush[1] - brush[0]) > 0.01) onZoom(scale.at(Math.min(...brush)), scale.at(Math.max(...brush)));
          setBrush(null);
        }}
      >
        {ticks.map((tick) => <span key={tick.at} className="num" style={{ left: `${tick.x * 100}%` }}>{tick.word}</span>)}
        {scale.breaks.map((x) => <i key={x} className="timeline-break" style={{ left: `${x * 100}%` }} title="idle time is folded here" />)}
        {brush && <i className="timeline-brush" style={{ left: `${Math.min(...brush) * 100}%`, width: `${Math.abs(brush[1] - brush[0]) * 100}%` }} />}
      </div>
    </div>
  );
}

/** The last beginning and the last end; Infinity while anything goes on. */
function lastOf(segments: Segment[][]): { from: number; to: number } {
  let [from, to] = [0, 0];
  for (const each of segments) {
    for (const segment of each) [from, to] = [Math.max(from, segment.from), Math.max(to, segment.to)];
  }
  return { from, to };
}

/** `begin-end` in milliseconds of the run, as it stands in the address. */
function parseZoom(text: string, begin: number, end: number): [number, number] {
  const found = /^(\d+)-(\d+)$/.exec(text);
  const [from, to] = found ? [begin + Number(found[1]), begin + Number(found[2])] : [begin, end];
  return to > from ? [from, to + (found ? 0 : (to - from) * 0.01)] : [begin, end];
}

