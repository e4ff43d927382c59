// From attempts to bars, and from instants to places: no drawing here.
import type { Schemas } from "../../api/client";
import { isTaskOver } from "../../api/hooks";
import type { Clock } from "../../prefs";
import { length, written } from "../../ui/instant";

type TaskSpans = Schemas["TaskSpans"];

export interface Segment {
  kind: "queued" | "running" | "completed" | "failed" | "lost" | "cancelled" | "returned" | "backoff" | "waiting" | "asleep" | "skipped";
  from: number;
  to: number;
  attempt?: number;
  /** Of a repeat, from 0. */
  round?: number;
  worker?: string;
  isOpen?: boolean;
}

const ms = (at: string): number => Date.parse(at);

const hasBody = (task: TaskSpans): boolean => task.kind === "body" || task.kind === "repeat";

/** All instants at which something of a task ended: which of them ended it for good is not told, and every later one is a later try. */
function endsOf(task: TaskSpans): number[] {
  const found = hasBody(task) ? task.spans.map((span) => ms(span.ended_at)) : [];
  if (task.changed_at && isTaskOver(task.status) && (!found.length || task.status === "skipped")) found.push(ms(task.changed_at));
  return found;
}

const SKEW_MS = 1000;

/** By the database's clock it had begun then: its worker's is held to be this much behind at most. */
const beganBy = (span: TaskSpans["spans"][number]): number => Math.min(ms(span.started_at ?? span.ended_at) + SKEW_MS, ms(span.ended_at));

/**
 * When the tasks that a task needs had ended, seen from an instant by which it had begun. After a replay or a rerun they may have ended again since:
 * that did not hold it up. One that has ended only since then had been skipped before, which leaves no trace; it was skipped when those had ended
 * that it needs itself. `any` and a number do not wait for all, so what has not ended is nothing to them.
 */
function turnOf(task: TaskSpans, by: number, tasks: TaskSpans[], ended: number[][]): number {
  let turn = -Infinity;
  const seen = new Set<number>();
  const left = [...task.needs];
  const waitsForAll = task.join !== "any" && !/^\d/.test(task.join);
  for (let need = left.pop(); need !== undefined; need = left.pop()) {
    if (seen.has(need)) continue;
    seen.add(need);
    const before = (ended[need] ?? []).filter((at) => at <= by);
    if (before.length) turn = Math.max(turn, before.at(-1) ?? turn);
    else if (waitsForAll) left.push(...(tasks[need]?.needs ?? []));
  }
  return turn;
}

/** Segments of every task, in the order of the tasks; those that go on have no end. Workers' clocks are held between instants of the database's. */
export function segmentsOf(tasks: TaskSpans[], begin: number): Segment[][] {
  const ended = tasks.map(endsOf);
  return tasks.map((task) => {
    if (!task.token && !task.changed_at) return [];
    const first = task.spans[0];
    const bound = first ? beganBy(first) : task.changed_at ? ms(task.changed_at) + SKEW_MS : Infinity;
    let at = Math.max(begin, turnOf(task, bound, tasks, ended));
    const segments: Segment[] = [];
    const add = (segment: Segment) => {
      const from = Math.max(segment.from, at);
      const to = Math.max(segment.to, from);
      segments.push({ ...segment, from, to });
      at = to;
    };
    let last = "";
    const isRepeat = task.kind === "repeat";
    const runsAgain = () => last === "cancelled" || (last === "completed" && !isRepeat);
    /** What lies before a try. One that follows an end was asked for at some instant that is not told: only since when it waited for others then. */
    const wait = (to: number, by: number) => {
      const from = runsAgain() ? turnOf(task, by, tasks, ended) : at;
      if (to > from && (from > at || !runsAgain())) add({ kind: last === "failed" ? "backoff" : last === "completed" && isRepeat ? "asleep" : "queued", from, to });
    };
    for (const span of task.spans) {
      const began = ms(span.started_at ?? span.ended_at);
      const over = ms(span.finished_at ?? span.ended_at);
      wait(began, beganBy(span));
      add({ kind: span.outcome as Segment["kind"], from: began, to: Math.min(Math.max(over, began), ms(span.ended_at) + 1), attempt: span.attempt, round: span.round ?? undefined, worker: span.worker });
      at = Math.max(at, ms(span.ended_at));
      last = span.outcome;
    }
    const changed = task.changed_at ? ms(task.changed_at) : at;
    const open = (kind: Segment["kind"], more: Partial<Segment> = {}) => add({ kind, from: at, to: Infinity, isOpen: true, ...more });
    switch (task.status) {
      case "queued":
        if (runsAgain()) at = Math.max(at, changed);
        open("queued");
        break;
      case "running":
        wait(changed, changed);
        if (runsAgain()) at = Math.max(at, changed);
        open("running", { attempt: task.attempt, worker: task.worker ?? undefined });
        break;
      case "waiting":
        open(task.kind === "wait" ? "asleep" : task.kind === "map" ? "running" : "waiting");
        break;
      case "pending":
        if (task.due_at && task.token) open(task.kind === "repeat" && last === "completed" ? "asleep" : "backoff");
        break;
      case "skipped":
        add({ kind: "skipped", from: Math.max(at, changed), to: Math.max(at, changed) });
        break;
      default:
        if (!hasBody(task) || !task.spans.length) {
          const kind = task.kind === "wait" ? "asleep" : task.kind === "approval" || task.kind === "signal" || task.kind === "workflow" ? "waiting" : task.kind === "map" ? (task.status as Segment["kind"]) : "queued";
          add({ kind, from: at, to: changed });
        }
    }
    return segments;
  });
}

// == places ===========================================================================================================
export interface Scale {
  from: number;
  to: number;
  /** 0 to 1. */
  x: (at: number) => number;
  at: (x: number) => number;
  breaks: number[];
}

export function straight(from: number, to: number): Scale {
  const width = Math.max(1, to - from);
  return { from, to, x: (at) => (at - from) / width, at: (x) => from + x * width, breaks: [] };
}

const FOLDED_SHARE = 0.02;
const IDLE_SHARE = 0.05;

/** The same with stretches in which nothing ran made short. */
export function fold(segments: Segment[], from: number, to: number): Scale {
  const busy = segments
    .filter((segment) => !["backoff", "waiting", "asleep"].includes(segment.kind) && segment.to >= from && segment.from <= to)
    .map((segment): [number, number] => [Math.max(from, segment.from), Math.min(to, segment.to)])
    .sort((a, b) => a[0] - b[0]);
  const idle: [number, number][] = [];
  let at = from;
  for (const [start, end] of busy) {
    if (start - at > (to - from) * IDLE_SHARE) idle.push([at, start]);
    at = Math.max(at, end);
  }
  if (to - at > (to - from) * IDLE_SHARE) idle.push([at, to]);
  if (!idle.length) return straight(from, to);
  const left = to - from - idle.reduce((sum, [start, end]) => sum + end - start, 0);
  const perIdle = FOLDED_SHARE;
  const rest = 1 - perIdle * idle.length;
  const points: [number, number][] = [[from, 0]];
  let x = 0;
  at = from;
  for (const [start, end] of idle) {
    x += ((start - at) / Math.max(1, left)) * rest;
    points.push([start, x]);
    x += perIdle;
    points.push([end, x]);
    at = end;
  }
  points.push([to, 1]);
  const between = (value: number, key: 0 | 1, other: 0 | 1): number => {
    for (let index = 1; index < points.length; index++) {
      const [a, b] = [points[index - 1]!, points[index]!];
      if (value <= b[key] || index === points.length - 1) return b[key] === a[key] ? a[other] : a[other] + ((value - a[key]) / (b[key] - a[key])) * (b[other] - a[other]);
    }
    return value;
  };
  return { from, to, x: (instant) => between(instant, 0, 1), at: (place) => between(place, 1, 0), breaks: idle.map(([start, end]) => between((start + end) / 2, 0, 1)) };
}

const NICE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5, 6048e5];
const TICKS = 7;

export function axis(scale: Scale, begin: number, clock: Clock): { at: number; x: number; word: string }[] {
  const step = NICE.find((each) => each >= (scale.to - scale.from) / TICKS) ?? 6048e5;
  const ticks = [];
  let last = -1;
  for (let at = begin + Math.ceil((scale.from - begin) / step) * step; at <= scale.to; at += step) {
    const x = scale.x(at);
    if ((x - last < 0.07 && last >= 0) || x > 0.96) continue;
    last = x;
    const after = at - begin;
    ticks.push({ at, x, word: clock === "relative" ? (after ? `+${length(after)}` : "0") : written(at, clock, { ms: step < 1000 }) });
  }
  return ticks;
}
