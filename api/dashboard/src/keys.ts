// The keyboard map: one table for what is done and what the help shows.
import { useEffect } from "react";
import { go } from "./router";

export const GOES: Record<string, { to: string; word: string }> = {
  o: { to: "/", word: "Overview" },
  r: { to: "/runs", word: "Runs" },
  a: { to: "/approvals", word: "Approvals" },
  d: { to: "/dead-letters", word: "Dead letters" },
  w: { to: "/workflows", word: "Workflows" },
  t: { to: "/triggers", word: "Triggers" },
  k: { to: "/workers", word: "Workers" },
  b: { to: "/bulk", word: "Bulk acts" },
  s: { to: "/system", word: "System" },
  u: { to: "/audit", word: "Audit" },
  p: { to: "/publish", word: "Publish" },
};

export const MAP: [string[], string][] = [
  [["Ctrl", "K"], "find anything, or do it"],
  [["?"], "this map"],
  [["/"], "to the filter of the page"],
  ...Object.entries(GOES).map(([key, { word }]): [string[], string] => [["g", key], `to ${word}`]),
  [["j"], "next row"],
  [["k"], "row before"],
  [["Enter"], "open the row"],
  [["p"], "pause or resume live news"],
  [["Esc"], "close what is open"],
];

const isTyping = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));

export function useKeys(acts: { palette: () => void; help: () => void; pause: () => void }): void {
  useEffect(() => {
    let isGoing = false;
    const press = (event: KeyboardEvent) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        return acts.palette();
      }
      if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
      if (isGoing) {
        isGoing = false;
        const there = GOES[event.key];
        if (there) {
          event.preventDefault();
          go(there.to);
        }
        return;
      }
      if (event.key === "g") {
        isGoing = true;
        setTimeout(() => (isGoing = false), 1200);
      } else if (event.key === "?") acts.help();
      else if (event.key === "p") acts.pause();
      else if (event.key === "/") {
        const filter = document.querySelector<HTMLElement>("[data-filter]");
        if (filter) {
          event.preventDefault();
          filter.focus();
        }
      } else if (event.key === "j" && !(event.target as HTMLElement).closest?.("[role=row]")) {
        document.querySelector<HTMLElement>(".table-row.opens")?.focus();
      }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, [acts]);
}
