// One task: why it waits or how it ended, its attempts, its data, and what can be done about it, where it stands.
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { decide, replayLetter, resolveTask } from "../../acts";
import { get, parseJson, search, type Schemas } from "../../api/client";
import { clause } from "../../api/filter";
import { useAttempts, useExplain, useTask } from "../../api/hooks";
import { Link } from "../../router";
import { ActButton } from "../../ui/act";
import { Causes } from "../../ui/explain";
import { UserFault } from "../../ui/fault";
import { Icon } from "../../ui/icons";
import { Elapsed, Instant } from "../../ui/instant";
import { Difference, Payload, pretty } from "../../ui/json";
import { Items, itemsWord } from "./items";
import { Button, Facts, Failure, Field, Loading, Segmented } from "../../ui/parts";
import { Status } from "../../ui/status";

export function TaskPanel({ run, name, onClose, onSelect }: { run: Schemas["Run"]; name: string; onClose: () => void; onSelect: (task: string) => void }) {
  const { data: task, error } = useTask(run.run_id, name);
  const attempts = useAttempts(run.run_id, name);
  const explain = useExplain(run.run_id, name);
  return (
    <aside className="task-panel" aria-label={`Task ${name}`} onKeyDown={(event) => event.key === "Escape" && !document.querySelector("dialog[open]") && onClose()}>
      <header className="task-head">
        <h2 className="clip">{name}</h2>
        {task && <Status of={task.status} />}
        <span className="grow" />
        <Button kind="quiet" icon="cross" label="Close the task" onClick={onClose} />
      </header>
      {error ? <Failure error={error} /> : !task ? <Loading /> : (
        <div className="task-body" tabIndex={0} role="group" aria-label="Details of the task">
          {explain.data && task.status !== "completed" && <Causes explanation={explain.data} limit={2} />}
          <TaskActs run={run} task={task} />
          <Facts
            items={[
              ["Body", task.run ? <code>{task.run}</code> : <span className="muted">none: it only waits</span>],
              ["Queue", <Link to="/workers" className="link">{task.queue}</Link>],
              task.items ? ["Items", <span className="num">{itemsWord(task.items)}, {task.items.begun} begun</span>] : ["Attempt", <span className="num">{task.attempt} of {task.attempts_max}</span>],
              ["Token", <span className="num">{task.token}</span>],
              ["Needs", task.needs.length ? <span className="needs">{task.needs.map((need) => <button key={need} type="button" className="link" onClick={() => onSelect(need)}>{need}</button>)}</span> : <span className="faint">nothing</span>],
              ["Changed", <Instant at={task.changed_at} />],
              ...(task.due_at ? [[task.status === "pending" ? "Next attempt" : "Due", <Instant at={task.due_at} future />] as [string, ReactNode]] : []),
              ["Effect key", <code className="clip">{run.run_id}/{name}</code>],
            ]}
          />
          {task.progress !== null && <Payload name="Progress, as its body last said" value={task.progress} />}
          {task.error !== null && task.status !== "completed" && <section><h3>Error</h3><UserFault value={task.error} /></section>}
          {task.items && <Items runId={run.run_id} map={name} onSelect={onSelect} />}
          <Attempts attempts={attempts.data?.items ?? []} more={Boolean(attempts.data?.next)} />
          <section>
            <h3>Data</h3>
            {task.input !== undefined ? <Payload name="Input" value={task.input} file={`${name}-input`} /> : <p className="faint">No input yet: it was not handed out.</p>}
            {task.status === "completed" && <Payload name="Output" value={task.output} file={`${name}-output`} />}
          </section>
        </div>
      )}
    </aside>
  );
}

function TaskActs({ run, task }: { run: Schemas["Run"]; task: Schemas["Task"] }) {
  const isAsking = task.status === "waiting" && task.approval_id !== null;
  const isParked = task.status === "waiting" && task.approval_id === null && task.error !== null;
  const approval = useQuery({
    queryKey: ["approvals", "one", task.approval_id],
    queryFn: ({ signal }) => get("/approvals/{approval_id}", { approval_id: task.approval_id ?? "" }, {}, signal),
    enabled: isAsking,
  });
  const letters = useQuery({
    queryKey: ["letters", "of-task", task.task_id, task.token],
    queryFn: ({ signal }) => get("/dead-letters", {}, { filter: `${clause("run", run.run_id)} ${clause("task", task.name)}`, limit: 1 }, signal),
    enabled: task.status === "failed",
  });
  const letter = letters.data?.items[0];
  if (isAsking && approval.data) {
    return (
      <div className="task-acts">
        <p><Icon name="person" size={14} /> {approval.data.title || "A decision is asked for."}</p>
        <ActButton icon="check" kind="primary" act={() => decide(approval.data, "approve")}>Approve …</ActButton>
        <ActButton icon="cross" kind="danger" act={() => decide(approval.data, "reject")}>Reject …</ActButton>
      </div>
    );
  }
  if (isParked) return <Resolve task={{ task_id: task.task_id, run_id: run.run_id, task: task.name, workflow: run.workflow }} />;
  if (letter) {
    return (
      <div className="task-acts">
        <ActButton icon="replay" kind="primary" act={() => replayLetter(letter)}>Replay …</ActButton>
        <Link to={`/dead-letters/${letter.dead_letter_id}`} className="button small"><Icon name="edit" size={14} /><span>Edit a copy and replay</span></Link>
        <Link to={`/dead-letters${search({ fingerprint: letter.fingerprint })}`} className="link">Others of this cause</Link>
      </div>
    );
  }
  return null;
}

/** The three ends of an attempt of which nobody knows whether it had its effect. */
export function Resolve({ task }: { task: { task_id: string; run_id: string; task: string; workflow: string } }) {
  const [text, setText] = useState("null");
  let output: unknown = null;
  let wrong: string | undefined;
  try {
    output = parseJson(text);
  } catch (error) {
    wrong = error instanceof Error ? error.message : "not JSON";
  }
  return (
    <div className="resolve">
      <p><Icon name="alert" size={14} /> <b>Did its effect happen?</b> An attempt ended, and nobody reported how.</p>
      <Field label="If it happened: what the body would have returned, as JSON" error={wrong}>
        {(id) => <textarea id={id} className="mono" rows={2} value={text} onChange={(event) => setText(event.target.value)} spellCheck={false} />}
      </Field>
      <div className="task-acts">
        <ActButton icon="check" kind="primary" why={wrong && "the output is not JSON"} act={() => resolveTask(task, "happened", output, <Payload name="Result" value={output} />)}>It happened …</ActButton>
        <ActButton icon="replay" act={() => resolveTask(task, "did_not_happen", null, null)}>It did not: retry …</ActButton>
        <ActButton icon="cross" kind="danger" act={() => resolveTask(task, "fail", null, null)}>Fail …</ActButton>
      </div>
    </div>
  );
}

export function Attempts({ attempts, more }: { attempts: Schemas["Attempt"][]; more?: boolean }) {
  const [compared, setCompared] = useState<"off" | "last">("off");
  const newest = [...attempts].reverse();
  const two = newest.length > 1 ? [newest[1]!, newest[0]!] : null;
  return (
    <section>
      <h3>
        Attempts that ended <span className="faint num">{attempts.length}{more ? "+" : ""}</span>
        <span className="grow" />
        {two && <Segmented label="Compare" value={compared} onChange={setCompared} options={[{ value: "off", word: "Each" }, { value: "last", word: "Last two compared" }]} />}
      </h3>
      {!attempts.length && <p className="faint">None yet.</p>}
      {compared === "last" && two ? (
        <Difference label="Difference between the last two attempts" before={pretty({ outcome: two[0]!.outcome, output: two[0]!.output, error: two[0]!.error })} after={pretty({ outcome: two[1]!.outcome, output: two[1]!.output, error: two[1]!.error })} />
      ) : (
        <ol className="attempts">
          {newest.map((attempt) => (
            <li key={attempt.token}>
              <div className="attempt-head">
                <b className="num">#{attempt.attempt}</b>
                <Status of={attempt.outcome} />
                <Elapsed from={attempt.started_at ?? attempt.ended_at} to={attempt.finished_at ?? attempt.ended_at} />
                <span className="muted clip" title="worker">{attempt.worker}</span>
                <span className="grow" />
                <span className="faint num" title="fencing token">token {attempt.token}</span>
                <Instant at={attempt.ended_at} />
              </div>
              {attempt.error !== null && <UserFault value={attempt.error} />}
            </li>
          ))}
        </ol>
      )}
    </section>
  );
}
