// An act says what it will do before it is done, asks for a reason, shows the same act for a terminal and a script,
// has a key, so that pressing twice is one act, and is followed to its end: accepted is never shown as done.
import { useQueryClient } from "@tanstack/react-query";
import { useRef, useState, useSyncExternalStore, type ReactNode, type SyntheticEvent } from "react";
import { ApiError, newKey, send } from "../api/client";
import { usePrefs } from "../prefs";
import { go } from "../router";
import { actorOf, currentSession, lacks, rolesOf, type Scope } from "../session";
import { Fields, faultOf, type FormField } from "./form";
import { Icon } from "./icons";
import { Button, Copy, Dialog, Failure, Field } from "./parts";
import { Status } from "./status";

export interface Step {
  /** following goes on being looked at; all others are the end. */
  state: "following" | "completed" | "failed" | "cancelled";
  text: string;
}

export interface Act {
  title: string;
  /** The word on the button. */
  verb: string;
  tone?: "primary" | "danger";
  /** What will happen, a line each. */
  will: ReactNode[];
  /** Says in the default reason what is done, such as "cancel". */
  does: string;
  /** Where the API keeps the reason; without it none is asked for, and the dialog says so. */
  reason?: "required" | "optional";
  method?: "POST" | "PUT" | "DELETE";
  path: string;
  /** What is filled in besides the reason; `under` is where it stands in the body, for the faults that come back. */
  form?: { fields: FormField[]; initial?: Record<string, unknown>; under?: string };
  body: (reason: string, values: Record<string, unknown>) => unknown;
  /** In place of the body, a text as it stands. */
  text?: { type: string; content: string; file: string };
  /** null: the command line has no such act. */
  cli: (reason: string, values: Record<string, unknown>) => string | null;
  /** Looks what became of it, again and again until it has ended. */
  follow?: () => Promise<Step>;
  /** Where to see it. */
  to?: string;
  done?: (answer: unknown) => void;
  extra?: ReactNode;
  /** Why it cannot be done as it stands. */
  wrong?: string;
  confirm?: string;
  /** What is chosen before all else, since all else hangs on it: another choice is another act. */
  choice?: { word: string; value: string; options: { value: string; word: string }[]; choose: (value: string) => Promise<Act> };
}

// == the dialog =======================================================================================================
export function ActDialog({ act: first, onClose }: { act: Act; onClose: () => void }) {
  const [act, setAct] = useState(first);
  const [isLooking, setLooking] = useState(false);
  const prefs = usePrefs();
  const actor = actorOf(prefs);
  const client = useQueryClient();
  const key = useRef(newKey());
  const [reason, setReason] = useState(`${act.does} by ${actor}`);
  const [values, setValues] = useState(act.form?.initial ?? {});
  const [typed, setTyped] = useState("");
  const [error, setError] = useState<unknown>(null);
  const [isSending, setSending] = useState(false);
  const body = act.body(reason.trim(), values);
  const cli = act.cli(reason.trim(), values);
  const curl = asCurl(act, body, actor, rolesOf(prefs));
  const faults = error instanceof ApiError ? (error.problem.errors ?? []) : [];
  const faultOfField = (name: string) => {
    const path = act.form?.under ? `${act.form.under}.${name}` : name;
    return faults.find((fault) => fault.path === path || fault.path.startsWith(`${path}.`))?.message;
  };
  const unfilled = act.form?.fields.map((field) => [field.schema.title ?? field.name, faultOf(field, values[field.name])] as const).find(([, fault]) => fault);
  const why = act.wrong ?? (unfilled && `${unfilled[0]} ${unfilled[1]}`) ?? (act.reason === "required" && !reason.trim() ? "a reason is needed" : act.confirm && typed !== act.confirm ? `type ${act.confirm} to confirm` : undefined);
  const choose = async (value: string) => {
    setLooking(true);
    setError(null);
    try {
      setAct((await act.choice?.choose(value)) ?? act);
    } catch (e) {
      setError(e);
    } finally {
      setLooking(false);
    }
  };
  const carryOut = async () => {
    if (isSending || isLooking || why) return;
    setSending(true);
    setError(null);
    try {
      const answer = await send({ method: act.method ?? "POST", path: act.path, body: act.method === "DELETE" ? undefined : body, text: act.text, key: key.current });
      follow(act, () => void client.invalidateQueries());
      void client.invalidateQueries();
      act.done?.(answer);
      onClose();
    } catch (e) {
      setError(e);
      // A refusal did not use the key up; what may have arrived keeps it, so that trying again is the same act.
      if (e instanceof ApiError && e.status >= 400 && e.status < 500) key.current = newKey();
      setSending(false);
    }
  };
  return (
    <Dialog title={act.title} onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          void carryOut();
        }}
      >
        <div className="dialog-body" aria-busy={isLooking}>
          {act.choice && (
            <Field label={act.choice.word}>
              {(id) => (
                <select id={id} value={act.choice?.value} disabled={isLooking || isSending} onChange={(event) => void choose(event.target.value)}>
                  {act.choice?.options.map((option) => <option key={option.value} value={option.value}>{option.word}</option>)}
                </select>
              )}
            </Field>
          )}
          <ul className="will">
            {act.will.map((line, index) => <li key={index}>{line}</li>)}
          </ul>
          {act.extra}
          {act.form && <Fields fields={act.form.fields} values={values} onChange={setValues} faults={faultOfField} />}
          {act.reason ? (
            <Field label={act.reason === "required" ? "Reason" : "Reason or comment"} hint={`kept in the record, with your name: ${actor}`}>
              {(id) => <input id={id} value={reason} onChange={(event) => setReason(event.target.value)} maxLength={1000} autoFocus />}
            </Field>
          ) : (
            <p className="field-hint">The record keeps who did it ({actor}) and when; the API keeps no reason for this.</p>
          )}
          {act.confirm && (
            <Field label={<>Type <b>{act.confirm}</b> to confirm</>}>
              {(id) => <input id={id} value={typed} onChange={(event) => setTyped(event.target.value)} autoComplete="off" />}
            </Field>
          )}
          <details className="same-as">
            <summary>The same from a terminal or a script</summary>
            {cli && <Command text={cli} />}
            <Command text={curl} />
          </details>
          {error !== null && <Failure error={error} />}
        </div>
        <footer className="dialog-foot">
          <span className="grow faint">{why}</span>
          <Button onClick={onClose}>Not now</Button>
          <Button type="submit" kind={act.tone ?? "primary"} disabled={isSending || isLooking || Boolean(why)} title={why}>{isSending ? "sending …" : act.verb}</Button>
        </footer>
      </form>
    </Dialog>
  );
}

export function Command({ text }: { text: string }) {
  return (
    <div className="command">
      <code>{text}</code>
      <Copy text={text} label="Copy command" />
    </div>
  );
}

export function quote(text: string): string {
  return /^[\w./:=@%+-]+$/.test(text) ? text : `'${text.replaceAll("'", `'\\''`)}'`;
}

function asCurl({ method = "POST", path, text }: Act, body: unknown, actor: string, roles: string[]): string {
  const data = text
    ? ` -H ${quote(`Content-Type: ${text.type}`)} --data-binary @${text.file}`
    : method === "DELETE" || body === undefined ? "" : ` -H 'Content-Type: application/json' -d ${quote(JSON.stringify(body))}`;
  const who = currentSession()?.local === false ? "" : ` -H ${quote(`Headrace-Actor: ${actor}`)}${roles.length ? ` -H ${quote(`Headrace-Roles: ${roles.join(",")}`)}` : ""}`;
  return `curl -X ${method} ${location.origin}${path} -H "Authorization: Bearer $HEADRACE_API_TOKEN"${who}${data}`;
}

/** A button that opens the dialog of an act; one that has to be looked ahead at first asks the API what it would do. */
export function ActButton({ act, children, why, small = true, kind, icon, scope = "operate" }: {
  act: () => Act | Promise<Act>;
  children: ReactNode;
  why?: string;
  small?: boolean;
  kind?: "plain" | "primary" | "danger" | "quiet";
  icon?: Parameters<typeof Button>[0]["icon"];
  scope?: Scope;
}) {
  const [open, setOpen] = useState<Act | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isLooking, setLooking] = useState(false);
  const press = async () => {
    setLooking(true);
    try {
      setOpen(await act());
    } catch (e) {
      setError(e);
    } finally {
      setLooking(false);
    }
  };
  const keep = { onClick: (event: SyntheticEvent) => event.stopPropagation(), onKeyDown: (event: SyntheticEvent) => event.stopPropagation() };
  return (
    <>
      <span className="act" {...keep}>
        <Button small={small} kind={kind} icon={icon} why={lacks(scope) ?? why} disabled={isLooking} onClick={() => void press()}>{children}</Button>
      </span>
      {open && <span {...keep}><ActDialog act={open} onClose={() => setOpen(null)} /></span>}
      {error !== null && (
        <span {...keep}>
          <Dialog title="It cannot be done" onClose={() => setError(null)}>
            <div className="dialog-body"><Failure error={error} /></div>
            <footer className="dialog-foot"><span className="grow" /><Button onClick={() => setError(null)}>Close</Button></footer>
          </Dialog>
        </span>
      )}
    </>
  );
}

// == the tray: what became of what was done ===========================================================================
interface Followed {
  id: number;
  title: string;
  steps: Step[];
  to?: string;
}

let followed: Followed[] = [];
let count = 0;
const watchers = new Set<() => void>();
const LOOK_MS = 1000;
const LOOKS_MAX = 1800;
const SHOWN_MAX = 5;

function change(next: Followed[]): void {
  followed = next;
  watchers.forEach((watch) => watch());
}

function follow(act: Act, refresh: () => void): void {
  const id = ++count;
  const first: Step = act.follow ? { state: "following", text: "accepted, and kept whatever crashes" } : { state: "completed", text: "done" };
  change([{ id, title: act.title, steps: [first], to: act.to }, ...followed].slice(0, SHOWN_MAX));
  const note = (step: Step) => {
    change(followed.map((each) => (each.id !== id || each.steps.at(-1)?.text === step.text ? each : { ...each, steps: [...each.steps, step] })));
  };
  const look = async (left: number) => {
    if (!act.follow || !followed.some((each) => each.id === id)) return;
    try {
      const step = await act.follow();
      note(step);
      if (step.state !== "following") return refresh();
    } catch (error) {
      if (error instanceof ApiError && !error.isAway) return note({ state: "failed", text: error.message });
    }
    if (left > 0) setTimeout(() => void look(left - 1), LOOK_MS);
  };
  setTimeout(() => void look(LOOKS_MAX), 300);
}

export function Tray() {
  const acts = useSyncExternalStore(
    (watch) => (watchers.add(watch), () => watchers.delete(watch)),
    () => followed,
  );
  return (
    <div className="tray" role="status" aria-live="polite">
      {acts.map((act) => {
        const last = act.steps.at(-1);
        return (
          <div key={act.id} className={`tray-act is-${last?.state ?? ""}`}>
            <div className="tray-head">
              <b>{act.title}</b>
              <Button kind="quiet" small icon="cross" label="Dismiss" onClick={() => change(followed.filter((each) => each.id !== act.id))} />
            </div>
            <ol className="tray-steps">
              {act.steps.map((step, index) => (
                <li key={index}>
                  {index < act.steps.length - 1 ? <span className="status tone-idle"><Icon name="check" size={12} /></span> : <Status of={step.state} word=" " compact />}
                  <span>{step.text}</span>
                </li>
              ))}
            </ol>
            {act.to && <button type="button" className="link" onClick={() => go(act.to ?? "/")}>Look at it</button>}
          </div>
        );
      })}
    </div>
  );
}
