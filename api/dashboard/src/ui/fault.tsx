// Errors of users' bodies: code, type and message first, the rest on demand. Text only.
import { useState } from "react";
import { Copy } from "./parts";

export interface UserError {
  code?: string;
  type?: string;
  message?: string;
  traceback?: string;
  [more: string]: unknown;
}

export const asError = (value: unknown): UserError | null =>
  value !== null && typeof value === "object" && !Array.isArray(value) ? (value as UserError) : null;

export const errorLine = (value: unknown): string => {
  const error = asError(value);
  if (!error) return "";
  return [error.type, error.message].filter((part) => typeof part === "string" && part).join(": ") || String(error.code ?? "");
};

export function UserFault({ value }: { value: unknown }) {
  const error = asError(value);
  const [open, setOpen] = useState(false);
  if (!error) return null;
  const trace = ["traceback", "trace", "stack"].map((name) => error[name]).find((text) => typeof text === "string" && text) as string | undefined;
  const more = Object.entries(error).filter(([name]) => !["code", "type", "message", "traceback", "trace", "stack"].includes(name));
  return (
    <div className="user-fault">
      <p>
        {error.code && <code className="tag tone-bad">{String(error.code)}</code>}
        {error.type && <b>{String(error.type)}</b>}
        <span className="user-fault-message">{String(error.message ?? "")}</span>
      </p>
      {more.length > 0 && (
        <p className="faint">
          {more.map(([name, value]) => (
            <span key={name} className="pair">{name} {typeof value === "string" ? value : JSON.stringify(value)}</span>
          ))}
        </p>
      )}
      {trace && (
        <details open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
          <summary>Traceback</summary>
          <div className="trace" tabIndex={0} role="group" aria-label="Traceback">
            <Copy text={trace} label="Copy traceback" />
            <pre>{trace}</pre>
          </div>
        </details>
      )}
    </div>
  );
}
