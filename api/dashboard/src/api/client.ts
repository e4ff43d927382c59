// The only place that talks to the server. Types come from the API's OpenAPI document.
import type { components, paths } from "./schema";

export type Schemas = components["schemas"];

type Method = "get" | "post" | "delete";
type PathsWith<M extends Method> = {
  [P in keyof paths]: paths[P] extends Record<M, infer Operation> ? (Operation extends object ? P : never) : never;
}[keyof paths];
type Operation<P extends keyof paths, M extends Method> = paths[P][M];
type Json<R> = R extends { content: { "application/json": infer T } } ? T : never;
type Answer<O> = O extends { responses: infer R } ? { [S in keyof R]: S extends 200 | 201 | 202 ? Json<R[S]> : never }[keyof R] : never;
type Query<O> = O extends { parameters: { query?: infer Q } } ? Q : never;

/** What the server answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Partial<Schemas["Problem"]>,
    readonly retryAfterSeconds: number | null,
  ) {
    super(problem.detail ?? problem.title ?? (status ? `the server answered ${status}` : "the API does not answer"));
  }
  get code(): string {
    return this.problem.code ?? "";
  }
  get isAway(): boolean {
    return this.status === 0 || this.status === 503;
  }
}

/** What every request carries; a login adds its CSRF token here, and nowhere else. */
const carried: { actor: () => string; roles: () => string; csrfToken: () => string | null; onUnauthorized: () => void } = {
  actor: () => "console",
  roles: () => "",
  csrfToken: () => null,
  onUnauthorized: () => undefined,
};

export function configure(parts: Partial<typeof carried>): void {
  Object.assign(carried, parts);
}

export interface Sent {
  method: string;
  path: string;
  body?: unknown;
  /** In place of `body`: a text as it stands, such as a workflow. */
  text?: { type: string; content: string };
  key?: string;
}

export async function send<T>({ method, path, body, text: written, key }: Sent, signal?: AbortSignal): Promise<T> {
  const headers = new Headers({ Accept: "application/json", "Headrace-Source": "console" });
  headers.set("Headrace-Actor", asHeader(carried.actor()));
  if (carried.roles()) headers.set("Headrace-Roles", asHeader(carried.roles()));
  if (method !== "GET") {
    if (key) headers.set("Idempotency-Key", key);
    const token = carried.csrfToken();
    if (token) headers.set("X-CSRF-Token", token);
    if (written) headers.set("Content-Type", written.type);
    else if (body !== undefined) headers.set("Content-Type", "application/json");
  }
  let response: Response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: written ? written.content : body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "same-origin",
      cache: "no-store",
    });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, {}, null);
  }
  const text = await response.text();
  if (response.status === 401) carried.onUnauthorized();
  if (!response.ok) throw new ApiError(response.status, problemOf(text), Number(response.headers.get("Retry-After")) || null);
  return (text ? parseJson(text) : null) as T;
}

/** GET a route of the document; `{name}` in it is filled from `params`. */
export function get<P extends PathsWith<"get">>(
  path: P,
  params: Record<string, string | number> = {},
  query: Query<Operation<P, "get">> | Record<string, never> = {},
  signal?: AbortSignal,
): Promise<Answer<Operation<P, "get">>> {
  return send({ method: "GET", path: fill(path, params) + search(query as Record<string, unknown>) }, signal);
}

export function fill(path: string, params: Record<string, string | number>): string {
  return path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(params[name] ?? "")));
}

export function search(query: Record<string, unknown>): string {
  const given = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") given.set(name, String(value));
  }
  const text = given.toString();
  return text ? `?${text}` : "";
}

/** A name for one act: a double click, and a repetition after a lost answer, have one effect. */
export function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return `console-${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

// == JSON of users keeps its numbers ==================================================================================
interface RawJson {
  rawJSON: string;
}
const json = JSON as typeof JSON & {
  rawJSON?: (text: string) => RawJson;
  isRawJSON?: (value: unknown) => value is RawJson;
};

/** Where a number may stand that JavaScript changes; within a text it does no harm. */
const LONG_NUMBER = /(?:^|[:,[\s])-?(?:\d{16}|\d[\d.]*[eE])/;

/** Integers that JavaScript cannot hold keep their digits, on the page and when they are sent back. */
export function parseJson(text: string): unknown {
  if (!LONG_NUMBER.test(text)) return JSON.parse(text); // a reviver looks at every value: of ten thousand tasks, at half a million
  const reviver = (_: string, value: unknown, context?: { source?: string }) =>
    typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source && json.rawJSON
      ? json.rawJSON(context.source)
      : value;
  return JSON.parse(text, reviver as (this: unknown, key: string, value: unknown) => unknown);
}

export function rawNumber(value: unknown): string | null {
  return json.isRawJSON?.(value) ? value.rawJSON : null;
}

/** Headers are bytes; the API reads them as UTF-8. */
function asHeader(text: string): string {
  return Array.from(new TextEncoder().encode(text), (byte) => String.fromCharCode(byte)).join("");
}

function problemOf(text: string): Partial<Schemas["Problem"]> {
  try {
    return JSON.parse(text) as Partial<Schemas["Problem"]>;
  } catch {
    return {};
  }
}
