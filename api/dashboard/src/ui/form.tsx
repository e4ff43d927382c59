// A form from a JSON Schema: a field for each property that is flat, the JSON itself for one that is not.
import { useState } from "react";
import { parseJson, rawNumber } from "../api/client";
import { pretty } from "./json";
import { Field } from "./parts";

export interface Schema {
  type?: string | string[];
  title?: string;
  description?: string;
  enum?: unknown[];
  const?: unknown;
  default?: unknown;
  properties?: Record<string, Schema>;
  required?: string[];
  minimum?: number;
  maximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
  format?: string;
}

export interface FormField {
  name: string;
  schema: Schema;
  kind: "text" | "long" | "number" | "integer" | "boolean" | "choice" | "json";
  isRequired: boolean;
}

const LONG = 200;

function kindOf(schema: Schema): FormField["kind"] {
  if (schema.enum) return "choice";
  const type = Array.isArray(schema.type) ? schema.type.find((one) => one !== "null") : schema.type;
  if (type === "string") return (schema.maxLength ?? 0) > LONG ? "long" : "text";
  return type === "number" || type === "integer" || type === "boolean" ? type : "json";
}

/** Null when the schema names no properties: then the JSON is written. */
export function fieldsOf(given: unknown): FormField[] | null {
  const schema = given as Schema | null | undefined;
  const required = new Set(Array.isArray(schema?.required) ? schema.required : []);
  const properties: Record<string, Schema> = { ...Object.fromEntries([...required].map((name) => [name, { type: "string" } as Schema])), ...schema?.properties };
  const fields = Object.entries(properties).map(([name, each]): FormField => ({ name, schema: each, kind: kindOf(each), isRequired: required.has(name) }));
  return fields.length ? fields : null;
}

export function defaultsOf(given: unknown): Record<string, unknown> {
  const properties = Object.entries((given as Schema | null | undefined)?.properties ?? {});
  return Object.fromEntries(properties.filter(([, each]) => each.default !== undefined).map(([name, each]) => [name, each.default]));
}

/** Text that is being written, and is no JSON yet. */
export class Unfinished {
  constructor(readonly text: string) {}
}

/** What is wrong with a value, as far as can be told here; the API tells the rest with its path. */
export function faultOf({ schema, kind, isRequired }: FormField, value: unknown): string | undefined {
  if (value === undefined) return isRequired ? "is needed" : undefined;
  if (value instanceof Unfinished) return "not JSON";
  if (kind === "number" || kind === "integer") {
    if (typeof value !== "number") return rawNumber(value) === null ? "must be a number" : undefined;
    if (kind === "integer" && !Number.isInteger(value)) return "must be a whole number";
    if (schema.minimum !== undefined && value < schema.minimum) return `must be at least ${schema.minimum}`;
    if (schema.maximum !== undefined && value > schema.maximum) return `must be at most ${schema.maximum}`;
  }
  if (typeof value === "string") {
    if (schema.minLength !== undefined && value.length < schema.minLength) return `must have at least ${schema.minLength} characters`;
    if (schema.maxLength !== undefined && value.length > schema.maxLength) return `may have at most ${schema.maxLength} characters`;
  }
  return undefined;
}

export function Fields({ fields, values, onChange, faults }: { fields: FormField[]; values: Record<string, unknown>; onChange: (values: Record<string, unknown>) => void; faults: (name: string) => string | undefined }) {
  const put = (name: string, given: unknown) => {
    const next = { ...values };
    if (given === undefined) delete next[name];
    else next[name] = given;
    onChange(next);
  };
  return <>{fields.map((field) => <OneField key={field.name} {...field} value={values[field.name]} error={faults(field.name)} onChange={(given) => put(field.name, given)} />)}</>;
}

const wordOf = (value: unknown): string => (typeof value === "string" ? value : JSON.stringify(value));

function OneField({ name, schema, kind, isRequired, value, error, onChange }: FormField & { value: unknown; error: string | undefined; onChange: (value: unknown) => void }) {
  const shown = value === undefined || value === null ? "" : value instanceof Unfinished ? value.text : kind === "json" ? pretty(value) : wordOf(value);
  const hint = [schema.description, schema.format, schema.minimum !== undefined && `from ${schema.minimum}`, schema.maximum !== undefined && `up to ${schema.maximum}`, kind === "json" && "as JSON"].filter(Boolean).join(" · ");
  return (
    <Field label={<>{schema.title ?? name}{isRequired && <span className="tone-bad" title="required"> *</span>}</>} hint={hint || undefined} error={error}>
      {(id) => {
        switch (kind) {
          case "boolean":
            return (
              <select id={id} value={shown} onChange={(event) => onChange(event.target.value === "" ? undefined : event.target.value === "true")}>
                <option value="">not given</option><option value="true">true</option><option value="false">false</option>
              </select>
            );
          case "choice":
            return (
              <select id={id} value={shown} onChange={(event) => onChange((schema.enum ?? []).find((each) => wordOf(each) === event.target.value))}>
                <option value="">not given</option>
                {(schema.enum ?? []).map((each) => <option key={wordOf(each)}>{wordOf(each)}</option>)}
              </select>
            );
          case "json":
            return <JsonText id={id} shown={shown} onChange={onChange} />;
          case "long":
            return <textarea id={id} rows={3} value={shown} onChange={(event) => onChange(event.target.value || undefined)} />;
          case "number":
          case "integer":
            return <input id={id} value={shown} inputMode="decimal" onChange={(event) => onChange(numbered(event.target.value))} />;
          case "text":
            return <input id={id} value={shown} onChange={(event) => onChange(event.target.value || undefined)} />;
        }
      }}
    </Field>
  );
}

/** What is typed stays as it is typed; only what it means is told. */
function JsonText({ id, shown, onChange }: { id: string; shown: string; onChange: (value: unknown) => void }) {
  const [text, setText] = useState(shown);
  return (
    <textarea
      id={id}
      className="mono"
      rows={3}
      spellCheck={false}
      value={text}
      onChange={(event) => {
        setText(event.target.value);
        onChange(parsed(event.target.value));
      }}
    />
  );
}

function parsed(text: string): unknown {
  if (!text.trim()) return undefined;
  try {
    return parseJson(text);
  } catch {
    return new Unfinished(text);
  }
}

/** Digits stay what was typed until they are a number: `1.` is on its way to 1.5. */
function numbered(text: string): unknown {
  if (text === "") return undefined;
  return Number.isNaN(Number(text)) || text.endsWith(".") || !text.trim() ? text : Number(text);
}
