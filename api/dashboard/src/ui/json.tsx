// Payloads: a tree that opens in place, the raw text, size, copy and download. User data is only ever text.
import { createContext, useContext, useMemo, useState } from "react";
import { rawNumber } from "../api/client";
import { Icon } from "./icons";
import { Button, Copy, Segmented } from "./parts";

/** The run whose objects a payload may refer to. */
export const RunOfPayloads = createContext("");

const SHOWN_MAX = 200;
const STRING_MAX = 2000;

export function pretty(value: unknown): string {
  return JSON.stringify(value, null, 2) ?? "null";
}

export function size(bytes: number): string {
  if (bytes < 1000) return `${bytes} B`;
  if (bytes < 1_000_000) return `${(bytes / 1000).toFixed(bytes < 10_000 ? 1 : 0)} kB`;
  if (bytes < 1e9) return `${(bytes / 1e6).toFixed(1)} MB`;
  return `${(bytes / 1e9).toFixed(1)} GB`;
}

export function Payload({ value, name, file, open = 2 }: { value: unknown; name?: string; file?: string; open?: number }) {
  const [shape, setShape] = useState<"tree" | "raw">("tree");
  const text = useMemo(() => pretty(value), [value]);
  const isSmall = value === null || typeof value !== "object";
  return (
    <div className="payload">
      <div className="payload-head">
        {name && <span className="payload-name">{name}</span>}
        <span className="faint num">{size(new TextEncoder().encode(text).length)}</span>
        <span className="grow" />
        {!isSmall && (
          <Segmented label={`How ${name ?? "the payload"} is shown`} value={shape} onChange={setShape} options={[{ value: "tree", word: "Tree" }, { value: "raw", word: "Raw" }]} />
        )}
        <Copy text={text} label={`Copy ${name ?? "payload"}`} />
        {file && <Button small kind="quiet" icon="download" label={`Download ${name ?? "payload"}`} onClick={() => download(`${file}.json`, text)} />}
      </div>
      <div className="payload-body" tabIndex={0} role="group" aria-label={name ?? "payload"}>
        {shape === "raw" && !isSmall ? <pre>{text}</pre> : <Node value={value} depth={0} open={open} />}
      </div>
    </div>
  );
}

export function download(name: string, text: string): void {
  const link = document.createElement("a");
  const address = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.href = address;
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
}

function Node({ name, value, depth, open }: { name?: string; value: unknown; depth: number; open: number }) {
  const [isOpen, setOpen] = useState(depth < open);
  const [shown, setShown] = useState(SHOWN_MAX);
  const key = name === undefined ? null : <span className="j-key">{name}<span className="j-mark">: </span></span>;
  const raw = rawNumber(value);
  if (raw !== null || value === null || typeof value !== "object") {
    return <div className="j-line">{key}<Leaf value={value} raw={raw} /></div>;
  }
  const reference = referenceOf(value);
  if (reference) return <div className="j-line">{key}<Reference {...reference} /></div>;
  const isList = Array.isArray(value);
  const entries: [string, unknown][] = isList ? value.map((item, index) => [String(index), item]) : Object.entries(value);
  const [left, right] = isList ? ["[", "]"] : ["{", "}"];
  if (!entries.length) return <div className="j-line">{key}<span className="j-mark">{left}{right}</span></div>;
  return (
    <div>
      <button type="button" className="j-line j-toggle" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <Icon name={isOpen ? "down" : "right"} size={10} />
        {key}
        <span className="j-mark">{left}</span>
        {!isOpen && <span className="faint"> {entries.length} {isList ? (entries.length === 1 ? "item" : "items") : entries.length === 1 ? "field" : "fields"} <span className="j-mark">{right}</span></span>}
      </button>
      {isOpen && (
        <div className="j-inner">
          {entries.slice(0, shown).map(([field, item]) => <Node key={field} name={field} value={item} depth={depth + 1} open={open} />)}
          {entries.length > shown && (
            <button type="button" className="link" onClick={() => setShown(shown + 5 * SHOWN_MAX)}>{entries.length - shown} more</button>
          )}
        </div>
      )}
      {isOpen && <div className="j-line j-mark">{right}</div>}
    </div>
  );
}

interface ObjectReference {
  sha256: string;
  bytes: number;
}

/** A large result is kept elsewhere, and this stands for it. */
function referenceOf(value: object): ObjectReference | null {
  const inner = (value as { $object?: Partial<ObjectReference> }).$object;
  const isOne = Object.keys(value).length === 1 && typeof inner?.sha256 === "string" && /^[0-9a-f]{64}$/.test(inner.sha256) && typeof inner.bytes === "number";
  return isOne ? (inner as ObjectReference) : null;
}

function Reference({ sha256, bytes }: ObjectReference) {
  const runId = useContext(RunOfPayloads);
  return (
    <span className="j-reference" title={`sha256 ${sha256}`}>
      large value, {size(bytes)}, <code>{sha256.slice(0, 12)}</code>
      {runId && <a className="link" href={`/runs/${runId}/objects/${sha256}`} target="_blank" rel="noreferrer"> open</a>}
    </span>
  );
}

function Leaf({ value, raw }: { value: unknown; raw: string | null }) {
  const [whole, setWhole] = useState(false);
  if (raw !== null) return <span className="j-number">{raw}</span>;
  if (typeof value === "string") {
    const isLong = value.length > STRING_MAX && !whole;
    return (
      <span className="j-string">
        "{isLong ? value.slice(0, STRING_MAX) : value}"
        {isLong && <button type="button" className="link" onClick={() => setWhole(true)}> … {value.length - STRING_MAX} more</button>}
      </span>
    );
  }
  if (typeof value === "number") return <span className="j-number">{String(value)}</span>;
  return <span className="j-word">{String(value)}</span>;
}

// == differences ======================================================================================================
export interface Line {
  kind: "same" | "gone" | "new";
  text: string;
}

const LINES_MAX = 1500;

/** Line by line, by the longest common part. Too much to compare is shown as all gone and all new. */
export function compare(before: string, after: string): Line[] {
  const [a, b] = [before.split("\n"), after.split("\n")];
  if (a.length > LINES_MAX || b.length > LINES_MAX) {
    return [...a.map((text): Line => ({ kind: "gone", text })), ...b.map((text): Line => ({ kind: "new", text }))];
  }
  const width = b.length + 1;
  const common = new Uint16Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      common[i * width + j] = a[i] === b[j] ? (common[(i + 1) * width + j + 1] ?? 0) + 1 : Math.max(common[(i + 1) * width + j] ?? 0, common[i * width + j + 1] ?? 0);
    }
  }
  const lines: Line[] = [];
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      lines.push({ kind: "same", text: a[i] ?? "" });
      i++;
      j++;
    } else if (j >= b.length || (i < a.length && (common[(i + 1) * width + j] ?? 0) >= (common[i * width + j + 1] ?? 0))) {
      lines.push({ kind: "gone", text: a[i++] ?? "" });
    } else {
      lines.push({ kind: "new", text: b[j++] ?? "" });
    }
  }
  return lines;
}

export function Difference({ before, after, label }: { before: string; after: string; label: string }) {
  const lines = useMemo(() => compare(before, after), [before, after]);
  const changed = lines.some((line) => line.kind !== "same");
  if (!changed) return <p className="muted">No difference.</p>;
  return (
    <div className="diff" role="group" aria-label={label} tabIndex={0}>
      {lines.map((line, index) => (
        <div key={index} className={`diff-line ${line.kind}`}>
          <span className="diff-mark" aria-label={line.kind === "gone" ? "removed" : line.kind === "new" ? "added" : undefined}>
            {line.kind === "gone" ? "−" : line.kind === "new" ? "+" : " "}
          </span>
          {line.text}
        </div>
      ))}
    </div>
  );
}
