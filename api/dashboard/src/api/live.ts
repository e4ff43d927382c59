// News from the server. One stream for the whole browser: the tab that holds the lock reads it and tells the others.
import type { Query, QueryClient } from "@tanstack/react-query";
import { useSyncExternalStore } from "react";
import type { Schemas } from "./client";
import { isSlow } from "./long";

type Summary = Schemas["RunSummary"];
type Told = { kind: "runs"; runs: Summary[] } | { kind: "gap" } | { kind: "state"; open: boolean };

/** By a tab that has just come: whether somebody reads the stream. */
interface Asked {
  kind: "asked";
}

const CHANNEL = "headrace-live";
const FLUSH_MS = 1000;
/** When more runs change in a second than anybody can follow, the pages are drawn anew every few seconds only. */
const FLOOD = 50;
const FLOOD_MS = 3000;
const TOGETHER_MS = 25;

interface State {
  open: boolean;
  paused: boolean;
  /** Changes that came while paused. */
  held: number;
}

let state: State = { open: false, paused: false, held: 0 };
const watchers = new Set<() => void>();
const listeners = new Set<(runs: Map<string, Summary>, isGap: boolean) => void>();
let waiting = new Map<string, Summary>();
let hasGap = false;
let flushing = false;
/** In the tab that reads it. */
let source: EventSource | undefined;
let restMs = 0;
let flushedAt = 0;

function set(change: Partial<State>): void {
  state = { ...state, ...change };
  watchers.forEach((watch) => watch());
}

export function useLive(): State & { pause: (paused: boolean) => void } {
  const current = useSyncExternalStore(
    (watch) => (watchers.add(watch), () => watchers.delete(watch)),
    () => state,
  );
  return { ...current, pause };
}

function pause(paused: boolean): void {
  set({ paused, held: 0 });
  if (!paused) flush();
}

/** Called at most once a second, and more rarely in a flood, with the runs that changed, newest state each. */
export function onNews(listener: (runs: Map<string, Summary>, isGap: boolean) => void): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function hear(told: Told): void {
  if (told.kind === "state") return set({ open: told.open });
  if (told.kind === "gap") hasGap = true;
  else for (const run of told.runs) waiting.set(run.run_id, run);
  if (state.paused) return set({ held: waiting.size });
  if (flushing) return;
  flushing = true;
  // What comes after a silence is told at once, with what comes together with it; what follows has to wait its second.
  setTimeout(flush, Math.max(TOGETHER_MS, flushedAt + restMs - performance.now()));
}

function flush(): void {
  flushing = false;
  if (state.paused || (!waiting.size && !hasGap)) return;
  flushedAt = performance.now();
  restMs = waiting.size > FLOOD ? FLOOD_MS : FLUSH_MS;
  const [runs, isGap] = [waiting, hasGap];
  waiting = new Map();
  hasGap = false;
  listeners.forEach((listener) => listener(runs, isGap));
}

export function startLive(client: QueryClient): void {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }: MessageEvent<Told | Asked>) => {
    if (data.kind !== "asked") hear(data);
    else if (source) channel.postMessage({ kind: "state", open: source.readyState === EventSource.OPEN } satisfies Told);
  };
  channel.postMessage({ kind: "asked" } satisfies Asked);
  const tell = (told: Told) => {
    hear(told);
    channel.postMessage(told);
  };
  // Without locks every tab reads for itself, which costs a connection each.
  if (navigator.locks) void navigator.locks.request(CHANNEL, () => read(tell));
  else void read(tell);
  onNews((runs, isGap) => refresh(client, runs, isGap));
}

/** Reads as long as the tab lives. What comes together is told together: a busy engine says hundreds of changes at once. */
function read(tell: (told: Told) => void): Promise<never> {
  let runs: Summary[] = [];
  const tellRuns = () => {
    tell({ kind: "runs", runs });
    runs = [];
  };
  source = new EventSource("/events");
  source.onopen = () => tell({ kind: "state", open: true });
  source.onerror = () => tell({ kind: "state", open: false });
  source.addEventListener("run", (event) => {
    if (runs.push(JSON.parse((event as MessageEvent<string>).data) as Summary) === 1) setTimeout(tellRuns, TOGETHER_MS);
  });
  source.addEventListener("gap", () => tell({ kind: "gap" }));
  return new Promise(() => undefined);
}

const OF_ANY_RUN = ["overview", "approvals", "letters", "letter-groups", "parked", "recent-runs"];

function refresh(client: QueryClient, runs: Map<string, Summary>, isGap: boolean): void {
  const noun = (query: Query) => query.queryKey[0] as string;
  void client.invalidateQueries({ predicate: (query) => OF_ANY_RUN.includes(noun(query)) || (isGap && noun(query) === "runs") });
  // What is being read of a run is read to its end: one that never rests would else cut off each answer about it.
  const isOfThese = (query: Query) => noun(query) === "run" && (isGap || (runs.has(query.queryKey[1] as string) && !isSlow(query)));
  void client.invalidateQueries({ predicate: isOfThese }, { cancelRefetch: false });
}
