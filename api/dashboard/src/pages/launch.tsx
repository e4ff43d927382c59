// Start a run: a form from the workflow's JSON Schema where it is flat enough, and the JSON itself always.
import { useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { ApiError, get, newKey, parseJson, send, type Schemas } from "../api/client";
import { shortId } from "../api/hooks";
import { go } from "../router";
import { Command, quote } from "../ui/act";
import { defaultsOf, Fields, fieldsOf, Unfinished } from "../ui/form";
import { Instant } from "../ui/instant";
import { pretty } from "../ui/json";
import { Button, Failure, Field, Panel, Segmented } from "../ui/parts";

export function Launch({ workflow, version, isLatest, schema }: { workflow: string; version: number; isLatest: boolean; schema: unknown }) {
  const fields = useMemo(() => fieldsOf(schema), [schema]);
  const [shape, setShape] = useState<"form" | "json">(fields ? "form" : "json");
  const [text, setText] = useState(() => pretty(defaultsOf(schema)));
  const [drafts, setDrafts] = useState<Record<string, unknown>>({});
  const [key, setKey] = useState("");
  const [labelText, setLabelText] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const [name] = useState(newKey);
  const recent = useQuery({ queryKey: ["recent-runs", workflow, 8], queryFn: ({ signal }) => get("/workflows/{workflow}/runs", { workflow }, { limit: 8 }, signal) });
  let value: unknown;
  let wrong: string | undefined;
  try {
    value = parseJson(text);
  } catch (e) {
    wrong = e instanceof Error ? e.message : "not JSON";
  }
  const object = value !== null && typeof value === "object" && !Array.isArray(value) ? (value as Record<string, unknown>) : {};
  const labels = labelsOf(labelText);
  const isWrong = Boolean(wrong) || labels === null || Object.keys(drafts).length > 0;
  const faults = error instanceof ApiError ? (error.problem.errors ?? []) : [];
  const faultOf = (field: string) => faults.find((fault) => fault.path === `input.${field}` || fault.path.startsWith(`input.${field}.`) || fault.path === field)?.message;
  const put = (given: Record<string, unknown>) => {
    const entries = Object.entries(given);
    setDrafts(Object.fromEntries(entries.filter(([, each]) => each instanceof Unfinished)));
    setText(pretty(Object.fromEntries(entries.filter(([, each]) => !(each instanceof Unfinished)))));
  };
  const start = async () => {
    setSending(true);
    setError(null);
    try {
      const body = { input: value, ...(isLatest ? {} : { version }), ...(key.trim() ? { key: key.trim() } : {}), ...(labels && Object.keys(labels).length ? { labels } : {}) };
      const run = await send<Schemas["Run"]>({ method: "POST", path: `/workflows/${encodeURIComponent(workflow)}/runs`, body, key: `${name}-${await digest(JSON.stringify(body))}` });
      go(`/runs/${run.run_id}`);
    } catch (e) {
      setError(e);
      setSending(false);
    }
  };
  const cli = `headrace run ${workflow} --input ${quote(JSON.stringify(value ?? {}))}${isLatest ? "" : ` --version ${version}`}${key.trim() ? ` --key ${quote(key.trim())}` : ""}${Object.entries(labels ?? {}).map(([name, value]) => ` --label ${quote(`${name}=${value}`)}`).join("")}`;
  return (
    <div className="scrolled columns launch">
      <Panel title={`Start ${workflow} v${version}`} aside={fields && <Segmented label="How the input is written" value={shape} onChange={setShape} options={[{ value: "form", word: "Form" }, { value: "json", word: "JSON" }]} />}>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (!isWrong && !isSending) void start();
          }}
        >
          {shape === "form" && fields ? (
            <Fields fields={fields} values={{ ...object, ...drafts }} onChange={put} faults={(name) => (name in drafts ? "not JSON" : faultOf(name))} />
          ) : (
            <Field label="Input, as JSON" error={wrong} hint={schema ? "The workflow declares a schema; every fault comes back with its path." : "The workflow takes any JSON."}>
              {(id) => <textarea id={id} className="mono editor" rows={12} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />}
            </Field>
          )}
          <Field label="Key" hint="The run's identity: one key makes one run, for ever. Empty: every start is a new run.">
            {(id) => <input id={id} value={key} maxLength={200} onChange={(event) => setKey(event.target.value)} />}
          </Field>
          <Field label="Labels" hint="What it is found by again: customer=acme, one a line." error={labels ? undefined : "write NAME=VALUE, one a line"}>
            {(id) => <textarea id={id} className="mono" rows={2} spellCheck={false} value={labelText} onChange={(event) => setLabelText(event.target.value)} />}
          </Field>
          <p className="muted">A run of v{version} begins at once and stays on that version.</p>
          <div className="task-acts">
            <Button type="submit" kind="primary" icon="play" disabled={isWrong || isSending}>{isSending ? "starting …" : "Start"}</Button>
          </div>
          {error !== null && <Failure error={error} />}
        </form>
        <details className="same-as"><summary>The same from a terminal</summary><Command text={cli} /></details>
      </Panel>
      <Panel title="Recent inputs" flush>
        <ul className="list">
          {recent.data?.items.map((run) => (
            <li key={run.run_id}>
              <button type="button" className="list-row" onClick={() => setText(pretty(run.input))} title="Use this input">
                <span className="list-main"><b className="mono">{shortId(workflow, run.run_id)}</b><span className="muted mono clip">{JSON.stringify(run.input)}</span></span>
                <Instant at={run.created_at} />
              </button>
            </li>
          ))}
          {!recent.data?.items.length && <li className="faint padded">None yet.</li>}
        </ul>
      </Panel>
    </div>
  );
}

/** One a line, by name; null when a line is none. Which names there may be, the API says. */
function labelsOf(text: string): Record<string, string> | null {
  const pairs = text.split("\n").filter((line) => line.trim()).map((line) => /^\s*([^=\s]+)\s*=\s*(.*?)\s*$/.exec(line));
  return pairs.every((pair) => pair !== null) ? Object.fromEntries(pairs.map(([, name, value]) => [name, value])) : null;
}

/** The same input sent twice is the same start; another input is another. */
async function digest(text: string): Promise<string> {
  if (!crypto.subtle) return String(text.length);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return Array.from(hash.slice(0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
