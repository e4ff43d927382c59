// What a person chose, kept in this browser: it changes how a page looks and never what it shows.
import { useSyncExternalStore } from "react";

export type Theme = "system" | "light" | "dark";
export type Clock = "relative" | "utc" | "local";
export type Density = "normal" | "dense";

export interface Prefs {
  theme: Theme;
  clock: Clock;
  density: Density;
  actor: string;
  /** Roles of the actor, with commas between them; only the local token may say them. */
  roles: string;
  nav: "wide" | "narrow" | "auto";
  /** Of the list of runs, with commas between them; empty for the usual ones. */
  columns: string;
}

const KEY = "headrace-console";
const DEFAULTS: Prefs = { theme: "system", clock: "relative", density: "normal", actor: "console", roles: "", nav: "auto", columns: "" };

function read(): Prefs {
  try {
    return { ...DEFAULTS, ...(JSON.parse(localStorage.getItem(KEY) ?? "{}") as Partial<Prefs>) };
  } catch {
    return DEFAULTS;
  }
}

let prefs = read();
const watchers = new Set<() => void>();

export function setPrefs(change: Partial<Prefs>): void {
  prefs = { ...prefs, ...change };
  try {
    localStorage.setItem(KEY, JSON.stringify(prefs));
  } catch {
    // A browser that keeps nothing: the choice lasts as long as the page.
  }
  show();
  watchers.forEach((watch) => watch());
}

export const currentPrefs = (): Prefs => prefs;

export function usePrefs(): Prefs {
  return useSyncExternalStore(
    (watch) => (watchers.add(watch), () => watchers.delete(watch)),
    () => prefs,
  );
}

const dark = matchMedia("(prefers-color-scheme: dark)");

export function show(): void {
  const root = document.documentElement;
  root.dataset.theme = prefs.theme === "system" ? (dark.matches ? "dark" : "light") : prefs.theme;
  root.dataset.density = prefs.density;
  root.dataset.nav = prefs.nav;
}

dark.addEventListener("change", show);
