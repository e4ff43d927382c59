// Instants are the database's. The page's own clock only says how long ago they were, corrected by what the API last said.
import { useEffect, useSyncExternalStore } from "react";
import { usePrefs, type Clock } from "../prefs";

let skewMs = 0;

/** at: the database's clock in an answer that has just come. */
export function noteServerClock(at: string): void {
  const skew = Date.parse(at) - Date.now();
  if (Math.abs(skew - skewMs) > 500) skewMs = skew;
}

export const serverNow = (): number => Date.now() + skewMs;

let tick = serverNow();
const watchers = new Set<() => void>();
let timer: number | undefined;

function watch(watcher: () => void): () => void {
  watchers.add(watcher);
  timer ??= window.setInterval(() => {
    tick = serverNow();
    watchers.forEach((each) => each());
  }, 1000);
  return () => {
    watchers.delete(watcher);
    if (!watchers.size) {
      window.clearInterval(timer);
      timer = undefined;
    }
  };
}

/** Milliseconds, anew every second. */
export const useNow = (): number => useSyncExternalStore(watch, () => tick);

export function length(ms: number): string {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(ms))} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${pad(Math.floor(seconds % 60))} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${pad(Math.floor((seconds % 3600) / 60))} m`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function coarse(ms: number): string {
  const seconds = Math.abs(ms) / 1000;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

const pad = (number: number): string => String(number).padStart(2, "0");

export function written(at: string | number, clock: Clock, { seconds = true, ms = false } = {}): string {
  const date = new Date(at);
  const parts =
    clock === "local"
      ? [date.getFullYear(), date.getMonth() + 1, date.getDate(), date.getHours(), date.getMinutes(), date.getSeconds()]
      : [date.getUTCFullYear(), date.getUTCMonth() + 1, date.getUTCDate(), date.getUTCHours(), date.getUTCMinutes(), date.getUTCSeconds()];
  const [year, month, day, hour, minute, second] = parts as [number, number, number, number, number, number];
  const today = new Date(serverNow());
  const isToday =
    clock === "local"
      ? date.toDateString() === today.toDateString()
      : date.toISOString().slice(0, 10) === today.toISOString().slice(0, 10);
  const time = `${pad(hour)}:${pad(minute)}${seconds ? `:${pad(second)}` : ""}${ms ? `.${String(date.getUTCMilliseconds()).padStart(3, "0")}` : ""}`;
  return isToday ? time : `${year}-${pad(month)}-${pad(day)} ${time}`;
}

export function Instant({ at, ms = false, future = false }: { at: string | null | undefined; ms?: boolean; future?: boolean }) {
  const { clock } = usePrefs();
  if (!at) return <span className="faint">–</span>;
  const full = `${at.replace("T", " ").replace(/Z$/, "")} UTC`;
  return (
    <time dateTime={at} title={`${full}\n${written(at, "local", { ms: true })} here`} className="instant">
      {clock === "relative" ? <Relative at={Date.parse(at)} future={future} /> : written(at, clock, { ms })}
    </time>
  );
}

function Relative({ at, future }: { at: number; future: boolean }) {
  const now = useNow();
  const ago = now - at;
  // What an answer tells of this moment may be a little ahead of the clock as the page last heard it.
  if (ago < -5000 || future) return <>{ago > 0 ? `${coarse(ago)} overdue` : `in ${ago < -86_400_000 ? length(ago) : coarse(ago)}`}</>;
  return <>{ago < 1000 ? "just now" : `${coarse(ago)} ago`}</>;
}

/** A length that goes on while `to` is not known. */
export function Elapsed({ from, to }: { from: string | null | undefined; to?: string | null }) {
  if (!from) return <span className="faint">–</span>;
  return to ? <span className="num">{length(Date.parse(to) - Date.parse(from))}</span> : <Growing from={Date.parse(from)} />;
}

function Growing({ from }: { from: number }) {
  return <span className="num">{length(Math.max(0, useNow() - from))}</span>;
}

export function useServerClock(at: string | undefined): void {
  useEffect(() => {
    if (at) noteServerClock(at);
  }, [at]);
}
