// What the run was told, what became of it, and a form to tell it more.
import { useState } from "react";
import { signalRun } from "../../acts";
import { get, parseJson, type Schemas } from "../../api/client";
import { isOver, useList, useVersion } from "../../api/hooks";
import { ActButton } from "../../ui/act";
import { Instant } from "../../ui/instant";
import { Payload } from "../../ui/json";
import { Empty, Failure, Field, Loading, Panel } from "../../ui/parts";
import { Status } from "../../ui/status";

type Spec = { signal?: string | { name?: string } };

export function Signals({ run }: { run: Schemas["Run"] }) {
  const version = useVersion(run.workflow, run.version);
  const tasks = Object.values((version.data?.definition as { tasks?: Record<string, Spec> } | undefined)?.tasks ?? {});
  const names = [...new Set(tasks.map((task) => (typeof task.signal === "string" ? task.signal : task.signal?.name)).filter((name): name is string => Boolean(name)))];
  const list = useList<Schemas["Signal"]>(["run", run.run_id, "signals"], (page, signal) => get("/runs/{run_id}/signals", { run_id: run.run_id }, { limit: 50, ...(page ? { page } : {}) }, signal), { live: 5000 });
  if (!names.length && !list.rows.length) return null;
  return (
    <Panel title="Signals" className="span-2">
      {names.length > 0 && <Send run={run} names={names} />}
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={2} /> : !list.rows.length ? <Empty icon="triggers" title="It was told nothing yet." /> : (
        <ul className="signals">
          {list.rows.map((signal) => (
            <li key={signal.signal_id}>
              <div className="attempt-head">
                <b>{signal.name}</b>{signal.key !== null && <code>{signal.key}</code>}
                <Status of={signal.status} />
                {signal.task && <span className="muted">by {signal.task}</span>}
                {signal.reason && <span className="muted">{signal.reason}</span>}
                <span className="grow" />
                <span className="muted clip">{signal.actor}</span>
                <Instant at={signal.sent_at} />
              </div>
              <Payload value={signal.data} name="Data" />
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}

function Send({ run, names }: { run: Schemas["Run"]; names: string[] }) {
  const [name, setName] = useState(names[0] ?? "");
  const [key, setKey] = useState("");
  const [text, setText] = useState("null");
  let data: unknown = null;
  let wrong: string | undefined;
  try {
    data = parseJson(text);
  } catch (error) {
    wrong = error instanceof Error ? error.message : "not JSON";
  }
  const why = isOver(run.status) ? `the run is ${run.status} already` : wrong && "the data is not JSON";
  return (
    <div className="columns">
      <div>
        <Field label="Signal">{(id) => <select id={id} value={name} onChange={(event) => setName(event.target.value)}>{names.map((each) => <option key={each}>{each}</option>)}</select>}</Field>
        <Field label="Key" hint="only for a task that waits for this key">{(id) => <input id={id} value={key} maxLength={200} onChange={(event) => setKey(event.target.value)} />}</Field>
      </div>
      <div>
        <Field label="Data, as JSON" error={wrong}>{(id) => <textarea id={id} className="mono" rows={3} value={text} onChange={(event) => setText(event.target.value)} spellCheck={false} />}</Field>
        <div className="task-acts"><ActButton icon="triggers" kind="primary" why={why} act={() => signalRun(run, { name, key, data }, <Payload name="Data" value={data} />)}>Send the signal …</ActButton></div>
      </div>
    </div>
  );
}
