// Start a run: a form from the workflow's JSON Schema where it is flat enough, and the JSON itself always.
import { useMemo, useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { ApiError, get, newKey, parseJson, send, type Schemas } from "../api/client";
import { shortId } from "../api/hooks";
import { go } from "../router";
import { Command, quote } from "../ui/act";
import { Instant } from "../ui/instant";
import { pretty } from "../ui/json";
import { Button, Failure, Field, Panel, Segmented } from "../ui/parts";

interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  default?: unknown;
  properties?: Record<string, Schema>;
  required?: string[];
  minimum?: number;
  maximum?: number;
  format?: string;
}

export function Launch({ workflow, version, isLatest, schema }: { workflow: string; version: number; isLatest: boolean; schema: unknown }) {
  const fields = useMemo(() => fieldsOf(schema as Schema | undefined), [schema]);
  const [shape, setShape] = useState<"form" | "json">(fields ? "form" : "json");
  const [text, setText] = useState(() => pretty(defaultsOf(schema as Schema | undefined)));
  const [key, setKey] = useState("");
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
  const faults = error instanceof ApiError ? (error.problem.errors ?? []) : [];
  const faultOf = (field: string) => faults.find((fault) => fault.path === `input.${field}` || fault.path.startsWith(`input.${field}.`) || fault.path === field)?.message;
  const put = (field: string, given: unknown) => {
    const next = { ...object };
    if (given === undefined) delete next[field];
    else next[field] = given;
    setText(pretty(next));
  };
  const start = async () => {
    setSending(true);
    setError(null);
    try {
      const body = { input: value, ...(isLatest ? {} : { version }), ...(key.trim() ? { key: key.trim() } : {}) };
      const run = await send<Schemas["Run"]>({ method: "POST", path: `/workflows/${encodeURIComponent(workflow)}/runs`, body, key: `${name}-${await digest(JSON.stringify(body))}` });
      go(`/runs/${run.run_id}`);
    } catch (e) {
      setError(e);
      setSending(false);
    }
  };
  const cli = `headrace run ${workflow} --input ${quote(JSON.stringify(value ?? {}))}${isLatest ? "" : ` --version ${version}`}${key.trim() ? ` --key ${quote(key.trim())}` : ""}`;
  return (
    <div className="scrolled columns launch">
      <Panel title={`Start ${workflow} v${version}`} aside={fields && <Segmented label="How the input is written" value={shape} onChange={setShape} options={[{ value: "form", word: "Form" }, { value: "json", word: "JSON" }]} />}>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            if (!wrong && !isSending) void start();
          }}
        >
          {shape === "form" && fields ? (
            fields.map((field) => <OneField key={field.name} {...field} value={object[field.name]} error={faultOf(field.name)} onChange={(given) => put(field.name, given)} />)
          ) : (
            <Field label="Input, as JSON" error={wrong} hint={schema ? "The workflow declares a schema; every fault comes back with its path." : "The workflow takes any JSON."}>
              {(id) => <textarea id={id} className="mono editor" rows={12} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />}
            </Field>
          )}
          <Field label="Key" hint="The run's identity: one key makes one run, for ever. Empty: every start is a new run.">
            {(id) => <input id={id} value={key} maxLength={200} onChange={(event) => setKey(event.target.value)} />}
          </Field>
          <p className="muted">A run of v{version} begins at once and stays on that version.</p>
          <div className="task-acts">
            <Button type="submit" kind="primary" icon="play" disabled={Boolean(wrong) || isSending}>{isSending ? "starting …" : "Start"}</Button>
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

interface FormField {
  name: string;
  schema: Schema;
  kind: "text" | "number" | "integer" | "boolean" | "choice";
  isRequired: boolean;
}

/** Null when the schema is more than a flat object: then the JSON is written. */
function fieldsOf(schema: Schema | undefined): FormField[] | null {
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  const properties = { ...Object.fromEntries([...required].map((name) => [name, {} as Schema])), ...schema?.properties };
  const fields: FormField[] = [];
  for (const [name, each] of Object.entries(properties)) {
    const type = Array.isArray(each.type) ? each.type.find((one) => one !== "null") : each.type;
    const kind = each.enum ? "choice" : type === undefined || type === "string" ? "text" : type === "number" || type === "integer" || type === "boolean" ? type : null;
    if (kind === null) return null;
    if (type === undefined && !each.enum && schema?.properties?.[name]) return null;
    fields.push({ name, schema: each, kind, isRequired: required.has(name) });
  }
  return fields.length ? fields : null;
}

function defaultsOf(schema: Schema | undefined): Record<string, unknown> {
  return Object.fromEntries(Object.entries(schema?.properties ?? {}).filter(([, each]) => each.default !== undefined).map(([name, each]) => [name, each.default]));
}

function OneField({ name, schema, kind, isRequired, value, error, onChange }: FormField & { value: unknown; error: string | undefined; onChange: (value: unknown) => void }) {
  const shown = value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value);
  const hint = [schema.description, schema.format, schema.minimum !== undefined && `from ${schema.minimum}`, schema.maximum !== undefined && `up to ${schema.maximum}`].filter(Boolean).join(" · ");
  return (
    <Field label={<>{schema.title ?? name}{isRequired && <span className="tone-bad" title="required"> *</span>}</>} hint={hint || undefined} error={error}>
      {(id) =>
        kind === "boolean" ? (
          <select id={id} value={shown} onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value === "true")}>
            <option value="">not given</option><option value="true">true</option><option value="false">false</option>
          </select>
        ) : kind === "choice" ? (
          <select id={id} value={shown} onChange={(event) => onChange((schema.enum ?? []).find((each) => (typeof each === "string" ? each : JSON.stringify(each)) === event.target.value))}>
            <option value="">not given</option>
            {(schema.enum ?? []).map((each) => { const word = typeof each === "string" ? each : JSON.stringify(each); return <option key={word}>{word}</option>; })}
          </select>
        ) : (
          <input
            id={id}
            value={shown}
            required={isRequired}
            inputMode={kind === "text" ? undefined : "decimal"}
            onChange={(event) => {
              const given = event.target.value;
              const number = Number(given);
              onChange(given === "" ? undefined : kind === "text" || Number.isNaN(number) || given.endsWith(".") ? given : number);
            }}
          />
        )
      }
    </Field>
  );
}

/** The same input sent twice is the same start; another input is another. */
async function digest(text: string): Promise<string> {
  if (!crypto.subtle) return String(text.length);
  const hash = new Uint8Array(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));
  return Array.from(hash.slice(0, 8), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
