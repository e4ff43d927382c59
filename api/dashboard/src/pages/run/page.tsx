import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, type ReactNode } from "react";
import { cancelRun, controlRun, decide, holdBack, pauseTask, prioritise, releaseRun, replayLetter } from "../../acts";
import { ApiError, get, type Schemas } from "../../api/client";
import { isOver, shortId, useExplain, useRelations, useRun, useSpans } from "../../api/hooks";
import { Link, useParam, useTitle } from "../../router";
import { ActButton } from "../../ui/act";
import { Causes } from "../../ui/explain";
import { Icon } from "../../ui/icons";
import { Elapsed, Instant } from "../../ui/instant";
import { RunOfPayloads } from "../../ui/json";
import { Labels } from "../../ui/labels";
import { Copy, Empty, Failure, Loading, Tabs } from "../../ui/parts";
import { Progress } from "../../ui/progress";
import { Status } from "../../ui/status";
import { ActsTab } from "./acts";
import { EffectsTab } from "./effects";
import { LogsTab } from "./logs";
import { RelationsTab } from "./relations";
import { foreseeRerun } from "./rerun";
import { ApprovalsTab, DataTab, DefinitionTab, HistoryTab } from "./tabs";
import { TaskPanel } from "./task_panel";
import { TasksTab } from "./tasks";
import { Timeline } from "./timeline";

// The drawing library comes only with the drawing.
const Graph = lazy(() => import("./graph").then((module) => ({ default: module.RunGraph })));

export function RunPage({ params }: { params: Record<string, string> }) {
  const id = params.id ?? "";
  const { data: run, error, refetch } = useRun(id);
  const [tab, setTab] = useParam("tab", "timeline");
  const [task, setTask] = useParam("task");
  useTitle(run ? shortId(run.workflow, run.run_id) : "Run");
  const isLive = run ? !isOver(run.status) : true;
  const spans = useSpans(id, run?.version, isLive);
  if (!run) {
    if (!error) return <div className="page"><Loading rows={10} /></div>;
    return (
      <div className="page">
        {error instanceof ApiError && error.status === 404 ? (
          <Empty icon="search" title="There is no such run.">It may have been removed by the retention. <Link to="/runs" className="link">All runs</Link></Empty>
        ) : <Failure error={error} retry={() => void refetch()} />}
      </div>
    );
  }
  const total = Object.values(run.counts).reduce((sum, count) => sum + count, 0);
  const tabs = [
    { id: "timeline", word: "Timeline" },
    { id: "graph", word: "Graph" },
    { id: "tasks", word: "Tasks", count: total },
    { id: "history", word: "History", count: run.row_version },
    { id: "logs", word: "Logs" },
    { id: "data", word: "Data" },
    { id: "approvals", word: "Approvals and signals" },
    { id: "effects", word: "Effects" },
    { id: "relations", word: "Relations" },
    { id: "definition", word: "Definition" },
    { id: "audit", word: "Audit" },
  ];
  return (
    <RunOfPayloads.Provider value={run.run_id}>
    <div className={task ? "page filled with-panel" : "page filled"}>
      <div className="run-main">
        <RunHeader run={run} />
        <Banner run={run} />
        <Tabs label="Parts of the run" tabs={tabs} current={tab} onChange={(next) => setTab(next)} />
        <div className="tab-body" role="tabpanel" aria-labelledby={`tab-${tab}`}>
          {tab === "timeline" && (spans.data ? <Timeline spans={spans.data} run={run} selected={task} onSelect={setTask} /> : spans.error ? <Failure error={spans.error} /> : <Loading />)}
          {tab === "graph" && <Suspense fallback={<Loading />}><Graph run={run} spans={spans.data} selected={task} onSelect={setTask} /></Suspense>}
          {tab === "tasks" && (spans.data ? <TasksTab spans={spans.data} selected={task} onSelect={setTask} /> : <Loading />)}
          {tab === "history" && <HistoryTab run={run} onSelect={setTask} />}
          {tab === "logs" && <LogsTab run={run} onSelect={setTask} />}
          {tab === "data" && <DataTab run={run} spans={spans.data} />}
          {tab === "approvals" && <ApprovalsTab run={run} spans={spans.data} />}
          {tab === "effects" && (spans.data ? <EffectsTab run={run} spans={spans.data} selected={task} onSelect={setTask} /> : <Loading />)}
          {tab === "relations" && <RelationsTab run={run} />}
          {tab === "audit" && <ActsTab run={run} />}
          {tab === "definition" && <DefinitionTab run={run} />}
        </div>
      </div>
      {task && <TaskPanel key={task} run={run} name={task} onClose={() => setTask("")} onSelect={setTask} />}
    </div>
    </RunOfPayloads.Provider>
  );
}

function RunHeader({ run }: { run: Schemas["Run"] }) {
  const over = isOver(run.status);
  const ended = over ? `the run is ${run.status} already` : undefined;
  const isPaused = run.status === "paused" || run.status === "pausing";
  const parent = useRelations(run.run_id).data?.parent;
  const rerunWhy = !over ? "only a run that has ended runs again" : run.status === "completed" ? "nothing of it failed; open a task to run it again from there" : run.status.startsWith("compensat") ? "what it did was undone, so its results do not stand" : undefined;
  return (
    <header className="run-head">
      <div className="run-title">
        <Link to="/runs" className="crumb" label="All runs"><Icon name="left" size={14} /></Link>
        <h1 className="mono">{shortId(run.workflow, run.run_id)}</h1>
        <Copy text={run.run_id} label="Copy run id" />
        <Status of={run.status} />
        <Progress counts={run.counts} />
        <span className="run-acts">
        {isPaused ? (
          <ActButton icon="play" act={() => controlRun(run, "resume")}>Resume …</ActButton>
        ) : (
          <ActButton icon="pause" act={() => controlRun(run, "pause")} why={ended}>Pause …</ActButton>
        )}
        <ActButton icon="replay" act={() => foreseeRerun(run, [])} why={rerunWhy}>Rerun …</ActButton>
        <ActButton icon="alert" act={() => releaseRun(run)} why={run.status === "needs_attention" ? undefined : "only a run that needs attention is released"}>Release …</ActButton>
        <ActButton icon="cross" kind="danger" act={() => cancelRun(run)} why={ended}>Cancel …</ActButton>
        <ActButton icon="stop" kind="danger" act={() => controlRun(run, "terminate")} why={ended}>Terminate …</ActButton>
        </span>
      </div>
      <dl className="run-facts">
        <Fact name="Workflow"><Link to={`/workflows/${run.workflow}?version=${run.version}`} className="link">{run.workflow} <span className="muted">v{run.version}</span></Link></Fact>
        <Fact name="Started by">{parent ? <Link to={`/runs/${parent.run_id}?task=${encodeURIComponent(parent.task)}`} className="link">{shortId(parent.workflow, parent.run_id)} · {parent.task}</Link> : <span className="clip">{run.trigger}</span>}</Fact>
        <Fact name="Started"><Instant at={run.created_at} /></Fact>
        <Fact name={over ? "Took" : "Runs for"}><Elapsed from={run.created_at} to={run.finished_at} /></Fact>
        {run.deadline_at && <Fact name="Deadline"><Instant at={run.deadline_at} /></Fact>}
        {run.priority !== 0 && <Fact name="Priority"><span className="num">{run.priority}</span></Fact>}
        {Object.keys(run.labels).length > 0 && <Fact name="Labels"><Labels of={run.labels} /></Fact>}
        <Fact name="Events"><span className="num">{run.row_version}</span></Fact>
        <Fact name="Namespace">{run.namespace}</Fact>
        <Fact name="Run id"><span className="mono faint clip">{run.run_id}</span></Fact>
      </dl>
    </header>
  );
}

function Fact({ name, children }: { name: string; children: ReactNode }) {
  return <div><dt>{name}</dt><dd>{children}</dd></div>;
}

/** Why it waits, or why it failed, with the button that helps. */
function Banner({ run }: { run: Schemas["Run"] }) {
  const { data, error } = useExplain(run.run_id);
  if (error && !data) return <Failure error={error} />;
  if (!data) return <div className="banner-space" />;
  if (run.status === "completed") return null;
  return (
    <div className="banner" aria-live="polite">
      <Causes explanation={data} limit={2} acts={(cause) => <CauseActs cause={cause} run={run} />} />
    </div>
  );
}

/** The buttons of a cause are the acts that explain offers with it: which of them are possible is known there, and only there. */
function CauseActs({ cause, run }: { cause: Schemas["Cause"]; run: Schemas["Run"] }) {
  const offered = cause.acts.map((act) => /^POST \/([\w-]+)\/([^/ ]+)\/(\w+)/.exec(act.api) ?? []);
  const all = new Set(offered.map(([, kind, , verb]) => `${kind ?? ""} ${verb ?? ""}`));
  const id = decodeURIComponent(offered[0]?.[2] ?? "");
  const task = cause.tasks[0];
  if (all.has("runs release")) return <ActButton kind="primary" act={() => releaseRun(run)}>Release …</ActButton>;
  if (all.has("runs resume")) return <ActButton kind="primary" act={() => controlRun(run, "resume")}>Resume …</ActButton>;
  if (all.has("tasks resume")) return <ActButton kind="primary" act={() => pauseTask(run, id.slice(run.run_id.length + 1), "resume")}>Resume …</ActButton>;
  if (all.has("workflows resume")) return <ActButton kind="primary" act={() => holdBack("workflow", id, "resume")}>Resume {id} …</ActButton>;
  if (all.has("queues resume")) return <ActButton kind="primary" act={() => holdBack("queue", id, "resume")}>Resume queue {id} …</ActButton>;
  if (all.has("runs priority")) return <ActButton act={() => prioritise(run)}>Priority …</ActButton>;
  if (all.has("approvals approve")) return <Decide approvalId={id} />;
  if (all.has("dead-letters replay")) return <LetterActs letterId={id} />;
  if (all.has("dead-letters discard")) return <Link to={`/dead-letters/${id}`} className="button small"><span>Its dead letter</span></Link>;
  if (all.has("tasks resolve") && task) return <Link to={`/runs/${run.run_id}?task=${encodeURIComponent(task)}`} className="link">Say what happened</Link>;
  return null;
}

function Decide({ approvalId }: { approvalId: string }) {
  const { data } = useQuery({ queryKey: ["approvals", "one", approvalId], queryFn: ({ signal }) => get("/approvals/{approval_id}", { approval_id: approvalId }, {}, signal) });
  if (!data || data.status !== "waiting") return null;
  return (
    <>
      <ActButton scope="approve" icon="cross" kind="danger" act={() => decide(data, "reject")}>Reject …</ActButton>
      <ActButton scope="approve" icon="check" kind="primary" act={() => decide(data, "approve")}>Approve …</ActButton>
    </>
  );
}

function LetterActs({ letterId }: { letterId: string }) {
  const { data } = useQuery({ queryKey: ["letters", "one", letterId], queryFn: ({ signal }) => get("/dead-letters/{dead_letter_id}", { dead_letter_id: letterId }, {}, signal) });
  if (!data || data.status !== "parked") return null;
  return (
    <>
      <Link to={`/dead-letters/${letterId}`} className="button small"><Icon name="edit" size={14} /><span>Edit a copy …</span></Link>
      <ActButton icon="replay" kind="primary" act={() => replayLetter(data)}>Replay …</ActButton>
    </>
  );
}
