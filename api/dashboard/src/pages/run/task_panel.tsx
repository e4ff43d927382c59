// One task: why it waits or how it ended, its attempts, its data, and what can be done about it, where it stands.
import { useQuery } from "@tanstack/react-query";
import { useMemo, useState, type ReactNode } from "react";
import { crashWorker, decide, pauseTask, replayLetter, resolveTask, skipTask } from "../../acts";
import { get, parseJson, search, type Schemas } from "../../api/client";
import { filterOf } from "../../api/filter";
import { isOver, useAttempts, useExplain, useTask, useVersion } from "../../api/hooks";
import { Link } from "../../router";
import { canCrash } from "../../session";
import { ActButton } from "../../ui/act";
import { Causes, offers } from "../../ui/explain";
import { UserFault } from "../../ui/fault";
import { Icon } from "../../ui/icons";
import { Elapsed, Instant } from "../../ui/instant";
import { Difference, Payload, pretty } from "../../ui/json";
import { ApprovalFacts, Votes } from "../approval";
import { Items, itemsWord, roundsWord } from "./items";
import { ChildrenOf } from "./relations";
import { foreseeRerun } from "./rerun";
import { deadlineWord, poolOf, specsOf } from "./spec";
import { Button, Facts, Failure, Field, Loading, Segmented } from "../../ui/parts";
import { Status } from "../../ui/status";

export function TaskPanel({ run, name, onClose, onSelect }: { run: Schemas["Run"]; name: string; onClose: () => void; onSelect: (task: string) => void }) {
  const { data: task, error } = useTask(run.run_id, name);
  const attempts = useAttempts(run.run_id, name);
  const explain = useExplain(run.run_id, name);
  const version = useVersion(run.workflow, run.version);
  // An item and a compensation have the specification of their task.
  const spec = specsOf(version.data?.definition)[name.split(".")[0] ?? name] ?? {};
  const pool = poolOf(spec);
  return (
    <aside className="task-panel" aria-label={`Task ${name}`} onKeyDown={(event) => event.key === "Escape" && !document.querySelector("dialog[open]") && onClose()}>
      <header className="task-head">
        <h2 className="clip">{name}</h2>
        {task && <Status of={task.status} />}
        {task?.is_paused && <Status of="paused" />}
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
              ...(pool ? [["Pool", <Link to={`/workers?tab=pools&pool=${encodeURIComponent(pool)}`} className="link">{pool}</Link>] as [string, ReactNode]] : []),
              ...(spec.repeat ? [["Rounds", <span className="num">{roundsWord(task, spec.repeat.max)} ended, until <code>{spec.repeat.until}</code></span>] as [string, ReactNode]] : []),
              task.items ? ["Items", <span className="num">{itemsWord(task.items)}, {task.items.begun} begun</span>] : ["Attempt", <span className="num">{task.attempt} of {task.attempts_max}</span>],
              ["Token", <span className="num">{task.token}</span>],
              ...(task.session_id ? [["Worker", <Holder sessionId={task.session_id} />] as [string, ReactNode]] : []),
              ["Needs", task.needs.length ? <Needs names={task.needs} onSelect={onSelect} /> : <span className="faint">nothing</span>],
              ["Changed", <Instant at={task.changed_at} />],
              ...(task.due_at ? [[task.status === "pending" ? "Next attempt" : "Due", <Instant at={task.due_at} future />] as [string, ReactNode]] : []),
              ...(task.deadline_at ? [["Deadline", <Instant at={task.deadline_at} future />] as [string, ReactNode]] : spec.deadline ? [["Deadline", deadlineWord(spec.deadline)] as [string, ReactNode]] : []),
              ...(spec.start_within ? [["Begins within", `${spec.start_within} of a hand-out`] as [string, ReactNode]] : []),
              ...(spec.timeout ? [["Time-out", `${spec.timeout} an attempt`] as [string, ReactNode]] : []),
              ...(task.compensation ? [["Undone", <button type="button" className="link" onClick={() => onSelect(`${name}.compensate`)}><Status of={task.compensation} compact /></button>] as [string, ReactNode]] : []),
              ["Effect key", <code className="clip">{run.run_id}/{name}</code>],
            ]}
          />
          {task.progress !== null && <Payload name="Progress, as its body last said" value={task.progress} />}
          {task.error !== null && task.status !== "completed" && <section><h3>Error</h3><UserFault value={task.error} /></section>}
          {task.workflow && <ChildrenOf runId={run.run_id} task={name} />}
          {task.items && <Items runId={run.run_id} map={name} isLive={!isOver(run.status)} onSelect={onSelect} />}
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
    queryFn: ({ signal }) => get("/dead-letters", {}, { filter: filterOf({ run: run.run_id, task: task.name }), limit: 1 }, signal),
    enabled: task.status === "failed",
  });
  const letter = letters.data?.items[0];
  const canReplay = offers(useExplain(run.run_id, task.name).data, letter?.dead_letter_id);
  return (
    <>
      {isAsking && approval.data && (
        <div className="task-acts">
          <p><Icon name="person" size={14} /> {approval.data.title || "A decision is asked for."}</p>
          <ActButton scope="approve" icon="check" kind="primary" act={() => decide(approval.data, "approve")}>Approve …</ActButton>
          <ActButton scope="approve" icon="cross" kind="danger" act={() => decide(approval.data, "reject")}>Reject …</ActButton>
        </div>
      )}
      {isAsking && approval.data && <><ApprovalFacts approval={approval.data} />{approval.data.context !== null && <Payload name="What is shown" value={approval.data.context} />}<Votes record={approval.data.record} /></>}
      {isParked && <Resolve task={{ task_id: task.task_id, run_id: run.run_id, task: task.name, workflow: run.workflow }} />}
      {letter && (
        <div className="task-acts">
          {canReplay && <ActButton icon="replay" kind="primary" act={() => replayLetter(letter)}>Replay …</ActButton>}
          <Link to={`/dead-letters/${letter.dead_letter_id}`} className="button small"><Icon name={canReplay ? "edit" : "letters"} size={14} /><span>{canReplay ? "Edit a copy and replay" : "Its dead letter"}</span></Link>
          <Link to={`/dead-letters${search({ fingerprint: letter.fingerprint })}`} className="link">Others of this cause</Link>
        </div>
      )}
      {task.status === "running" && task.session_id && canCrash() && <CrashHolder sessionId={task.session_id} />}
      {!task.name.endsWith(".compensate") && <Take run={run} task={task} />}
    </>
  );
}

function useHolder(sessionId: string) {
  return useQuery({ queryKey: ["workers", "one", sessionId], queryFn: ({ signal }) => get("/workers/{session_id}", { session_id: sessionId }, {}, signal), refetchInterval: 5000 }).data;
}

const NEEDS_SHOWN = 20;

function Needs({ names, onSelect }: { names: string[]; onSelect: (task: string) => void }) {
  const [isWhole, setWhole] = useState(names.length <= NEEDS_SHOWN + 5);
  return (
    <span className="needs">
      {(isWhole ? names : names.slice(0, NEEDS_SHOWN)).map((need) => <button key={need} type="button" className="link" onClick={() => onSelect(need)}>{need}</button>)}
      {!isWhole && <button type="button" className="link" onClick={() => setWhole(true)}>and {(names.length - NEEDS_SHOWN).toLocaleString("en")} more</button>}
    </span>
  );
}

function Holder({ sessionId }: { sessionId: string }) {
  const worker = useHolder(sessionId);
  if (!worker) return <code className="clip">{sessionId}</code>;
  return <span><Link to="/workers" className="link">{worker.worker}</Link> <span className="muted">last heard of <Instant at={worker.renewed_at} />, its lease ends <Instant at={worker.expires_at} future /></span></span>;
}

/** Only where `headrace dev` is: what becomes of a task whose worker is lost. */
function CrashHolder({ sessionId }: { sessionId: string }) {
  const worker = useHolder(sessionId);
  return worker?.live ? <div className="task-acts"><ActButton icon="triggers" kind="danger" act={() => crashWorker(worker)}>Crash its worker …</ActButton></div> : null;
}

/** A task is a unit: it runs again with all behind it, or is done without its body. */
function Take({ run, task }: { run: Schemas["Run"]; task: Schemas["Task"] }) {
  const before = pretty(task.input ?? null);
  const [input, setInput] = useState<string | null>(null);
  const [output, setOutput] = useState("null");
  const given = useJson(input ?? before);
  const made = useJson(output);
  const isEdited = input !== null && given.wrong === undefined && pretty(given.value) !== before;
  const over = isOver(run.status);
  const foresee = () => foreseeRerun(run, [task.name], isEdited ? { before: task.input ?? null, after: given.value } : undefined);
  const whyNoPause = task.is_paused || !["completed", "skipped", "cancelled", "failed"].includes(task.status) ? (over ? `the run is ${run.status} already` : undefined) : `it is ${task.status} already`;
  const whyNoRerun = !over ? "only a run that has ended runs again" : run.status.startsWith("compensat") ? "what the run did was undone" : !task.token && task.status === "pending" ? "it has not run" : given.wrong && "the input is not JSON";
  const whyNoSkip = run.status.startsWith("compensat") ? "its run undoes what it did" : ["completed", "skipped", "cancelled"].includes(task.status) ? `it is ${task.status} already` : task.approval_id !== null ? "a skip does not go round an approval" : made.wrong && "the output is not JSON";
  return (
    <div className="take">
      <div className="task-acts">
        <ActButton icon="replay" why={whyNoRerun || undefined} act={foresee}>{isEdited ? "Rerun from here with the edited input …" : "Rerun from here …"}</ActButton>
        {task.is_paused ? <ActButton icon="play" why={whyNoPause} act={() => pauseTask(run, task.name, "resume")}>Resume …</ActButton> : <ActButton icon="pause" why={whyNoPause} act={() => pauseTask(run, task.name, "pause")}>Pause …</ActButton>}
      </div>
      {over && task.input !== undefined && (
        <details>
          <summary>With another input</summary>
          <Field label="Input of the task, as JSON" error={given.wrong}>{(id) => <textarea id={id} className="mono editor" rows={6} spellCheck={false} value={input ?? before} onChange={(event) => setInput(event.target.value)} />}</Field>
        </details>
      )}
      <details>
        <summary>Skip it with an output</summary>
        <Field label="What its body would have returned, as JSON" error={made.wrong}>{(id) => <textarea id={id} className="mono editor" rows={3} spellCheck={false} value={output} onChange={(event) => setOutput(event.target.value)} />}</Field>
        <div className="task-acts"><ActButton icon="skip" why={whyNoSkip || undefined} act={() => skipTask(run, task.name, made.value, <Payload name="Output" value={made.value} />)}>Skip with this output …</ActButton></div>
      </details>
    </div>
  );
}

function useJson(text: string): { value: unknown; wrong: string | undefined } {
  return useMemo(() => {
    try {
      return { value: parseJson(text), wrong: undefined };
    } catch (error) {
      return { value: null, wrong: error instanceof Error ? error.message : "not JSON" };
    }
  }, [text]);
}

/** The three ends of an attempt of which nobody knows whether it had its effect. */
export function Resolve({ task }: { task: { task_id: string; run_id: string; task: string; workflow: string } }) {
  const [text, setText] = useState("null");
  const { value: output, wrong } = useJson(text);
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
                {attempt.round !== null && <span className="tag num">round {attempt.round + 1}</span>}
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
