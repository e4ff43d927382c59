import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useState } from "react";
import { holdBack } from "../acts";
import { get, search, type Schemas } from "../api/client";
import { filterOf } from "../api/filter";
import { shortId, usePauses, useVersion, useWorkflow, useWorkflows } from "../api/hooks";
import { go, Link, useParam, useTitle } from "../router";
import { ActButton, Command } from "../ui/act";
import { Icon } from "../ui/icons";
import { Elapsed, Instant, length } from "../ui/instant";
import { Difference, Payload, pretty } from "../ui/json";
import { Empty, Failure, Loading, Notice, Panel, Segmented, Tabs } from "../ui/parts";
import { Progress } from "../ui/progress";
import { Status, toneOf } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { foreseeBulk } from "./bulk";
import { Launch } from "./launch";
import { stillRuns } from "./workers";

const Graph = lazy(() => import("./run/graph").then((module) => ({ default: module.Graph })));
type Summary = Schemas["WorkflowSummary"];

export function WorkflowsPage() {
  useTitle("Workflows");
  const { data, error } = useWorkflows();
  const columns: Column<Summary>[] = [
    { id: "name", head: "Workflow", width: "minmax(180px, 1.5fr)", cell: (row) => <b className="clip">{row.name}</b>, sort: (row) => row.name },
    { id: "version", head: "Version", width: "84px", cell: (row) => <span className="tag">v{row.latest_version}</span>, sort: (row) => row.latest_version },
    { id: "tasks", head: "Tasks", width: "76px", right: true, cell: (row) => <span className="num">{row.tasks}</span>, sort: (row) => row.tasks },
    { id: "last", head: "Last runs", width: "minmax(190px, 1fr)", cell: (row) => <LastRuns workflow={row.name} /> },
    { id: "updated", head: "Published", width: "110px", cell: (row) => <Instant at={row.updated_at} />, sort: (row) => row.updated_at },
    { id: "start", head: "", width: "84px", right: true, cell: (row) => <Link to={`/workflows/${row.name}?tab=launch`} className="button small" label={`Start ${row.name}`}><Icon name="play" size={12} /><span>Start</span></Link> },
  ];
  return (
    <div className="page filled">
      <header className="page-head"><h1>Workflows</h1><span className="muted num">{data?.items.length ?? ""}</span><span className="grow" /><Link to="/publish" className="button"><Icon name="plus" size={12} /><span>Publish …</span></Link></header>
      {error ? <Failure error={error} /> : !data ? <Loading /> : (
        <DataTable label="Workflows by name" rows={data.items} columns={columns} keyOf={(row) => row.name} onOpen={(row) => go(`/workflows/${row.name}`)} empty={<Empty icon="workflows" title="No workflow is published yet."><Command text="headrace publish workflow.yaml" /></Empty>} />
      )}
    </div>
  );
}

const useRecent = (workflow: string, limit: number) =>
  useQuery({ queryKey: ["recent-runs", workflow, limit], queryFn: ({ signal }) => get("/workflows/{workflow}/runs", { workflow }, { limit }, signal) });

/** The last runs, oldest left: how each ended by colour, how long it took by height. */
function LastRuns({ workflow }: { workflow: string }) {
  const { data } = useRecent(workflow, 24);
  const runs = [...(data?.items ?? [])].reverse();
  if (!runs.length) return <span className="faint">{data ? "none" : ""}</span>;
  const took = runs.map((run) => Date.parse(run.finished_at ?? run.updated_at) - Date.parse(run.created_at));
  const most = Math.max(1, ...took);
  const done = runs.filter((run) => run.finished_at);
  const good = done.filter((run) => run.status === "completed").length;
  return (
    <span className="sparks">
      <span className="spark-bars" role="img" aria-label={`${good} of the last ${done.length} runs completed`}>
        {runs.map((run, index) => <i key={run.run_id} className={`bar-${toneOf(run.status)}`} style={{ height: `${20 + 80 * ((took[index] ?? 0) / most)}%` }} title={`${run.status}, ${length(took[index] ?? 0)}`} />)}
      </span>
      {done.length > 0 && <span className="num muted">{Math.round((100 * good) / done.length)} %</span>}
    </span>
  );
}

export function WorkflowPage({ params }: { params: Record<string, string> }) {
  const name = params.name ?? "";
  useTitle(name);
  const workflow = useWorkflow(name);
  const [tab, setTab] = useParam("tab", "graph");
  const [asked, setVersion] = useParam("version");
  const latest = workflow.data?.latest_version;
  const number = Number(asked) || latest;
  const version = useVersion(name, number);
  const pause = usePauses().data?.workflows.find((each) => each.workflow === name);
  if (workflow.error) return <div className="page"><Failure error={workflow.error} /></div>;
  if (!workflow.data || !number) return <div className="page"><Loading /></div>;
  const definition = version.data?.definition as { description?: string; input?: unknown } | undefined;
  return (
    <div className="page filled">
      <header className="page-head">
        <Link to="/workflows" className="crumb" label="All workflows"><Icon name="left" size={14} /></Link>
        <h1>{name}</h1>
        <label className="inline-field">
          <span className="sr-only">Version</span>
          <select value={String(number)} onChange={(event) => setVersion(Number(event.target.value) === latest ? "" : event.target.value)}>
            {workflow.data.versions.map((each) => <option key={each.version} value={each.version}>v{each.version}{each.version === latest ? ", the latest" : ""}</option>)}
          </select>
        </label>
        <span className="muted clip">{definition?.description}</span>
        <span className="grow" />
        {pause ? <ActButton small={false} icon="play" act={() => holdBack("workflow", name, "resume")}>Resume …</ActButton> : <ActButton small={false} icon="pause" act={() => holdBack("workflow", name, "pause")}>Pause …</ActButton>}
        <Link to={`/publish${search({ workflow: name })}`} className="button"><span>New version …</span></Link>
        <Link to={`/runs${search({ filter: filterOf({ workflow: name }) })}`} className="button"><span>Its runs</span></Link>
        <button type="button" className="button primary" onClick={() => setTab("launch")}><Icon name="play" size={12} /><span>Start a run</span></button>
      </header>
      {pause && <Notice tone="warn" icon="pause"><b>It is paused</b> by {pause.paused_by}, <Instant at={pause.paused_at} />{pause.reason && <>: {pause.reason}</>}. {stillRuns(pause.runs)}</Notice>}
      <Tabs
        label="Parts of the workflow"
        current={tab}
        onChange={(id) => setTab(id)}
        tabs={[{ id: "graph", word: "Graph" }, { id: "launch", word: "Start" }, { id: "runs", word: "Runs" }, { id: "versions", word: "Versions", count: workflow.data.versions.length }, { id: "definition", word: "Definition" }]}
      />
      <div className="tab-body" role="tabpanel" aria-labelledby={`tab-${tab}`}>
        {version.error && <Failure error={version.error} />}
        {tab === "runs" && <RecentRuns workflow={name} />}
        {tab === "versions" && <Versions name={name} versions={workflow.data.versions} chosen={number} />}
        {!version.data && tab !== "runs" && tab !== "versions" && <Loading />}
        {version.data && tab === "graph" && <Suspense fallback={<Loading />}><Graph id={`${name} ${number}`} definition={version.data.definition} /></Suspense>}
        {version.data && tab === "launch" && <Launch key={`${name} ${number}`} workflow={name} version={number} isLatest={number === latest} schema={definition?.input} />}
        {version.data && tab === "definition" && <div className="scrolled"><Payload name={`${name} v${number}`} value={version.data.definition} file={`${name}-v${number}`} open={4} /></div>}
      </div>
    </div>
  );
}

function RecentRuns({ workflow }: { workflow: string }) {
  const { data, error } = useRecent(workflow, 50);
  const columns: Column<Schemas["Run"]>[] = [
    { id: "status", head: "Status", width: "150px", cell: (run) => <Status of={run.status} /> },
    { id: "run", head: "Run", width: "minmax(160px, 1fr)", cell: (run) => <b className="mono clip">{shortId(run.workflow, run.run_id)}</b> },
    { id: "version", head: "Version", width: "80px", cell: (run) => <span className="muted">v{run.version}</span> },
    { id: "tasks", head: "Tasks", width: "minmax(120px, 1fr)", cell: (run) => <Progress counts={run.counts} /> },
    { id: "created", head: "Started", width: "110px", cell: (run) => <Instant at={run.created_at} /> },
    { id: "took", head: "Duration", width: "96px", right: true, cell: (run) => <Elapsed from={run.created_at} to={run.finished_at} /> },
  ];
  if (error) return <Failure error={error} />;
  if (!data) return <Loading />;
  return <DataTable label="Newest runs of the workflow" rows={data.items} columns={columns} keyOf={(run) => run.run_id} onOpen={(run) => go(`/runs/${run.run_id}`)} empty={<Empty icon="runs" title="No run yet."><Command text={`headrace run ${workflow}`} /></Empty>} />;
}

function Versions({ name, versions, chosen }: { name: string; versions: Schemas["VersionSummary"][]; chosen: number }) {
  const [against, setAgainst] = useState<string>("before");
  const before = versions.find((each) => each.version < chosen)?.version;
  const other = against === "latest" ? versions[0]?.version : before;
  const left = useVersion(name, other);
  const right = useVersion(name, chosen);
  return (
    <div className="scrolled columns">
      <Standing name={name} />
      <Panel title="Versions" flush>
        <ul className="list">
          {versions.map((version, index) => (
            <li key={version.version}>
              <Link to={`/workflows/${name}${search({ tab: "versions", version: version.version })}`} className="list-row" current={version.version === chosen}>
                <span className="tag">v{version.version}</span>
                <span className="list-main"><b>{index === 0 ? "current: new runs begin with it" : "runs that began with it stay on it"}</b><span className="muted">by {version.published_by || "–"} · {version.digest.slice(0, 12)}</span></span>
                <Instant at={version.published_at} />
              </Link>
            </li>
          ))}
        </ul>
      </Panel>
      <Panel title={other ? `v${other} → v${chosen}` : `v${chosen}`} aside={<Segmented label="Compare with" value={against} onChange={setAgainst} options={[{ value: "before", word: "the one before" }, { value: "latest", word: "the latest" }]} />}>
        {other && left.data && right.data ? <Difference label="Difference between the versions" before={pretty(left.data.definition)} after={pretty(right.data.definition)} /> : <p className="muted">It is the first version.</p>}
      </Panel>
    </div>
  );
}

/** Which versions still have runs, and what workers must keep for them. */
function Standing({ name }: { name: string }) {
  const { data, error } = useQuery({ queryKey: ["workflow", name, "versions"], queryFn: ({ signal }) => get("/workflows/{workflow}/versions", { workflow: name }, {}, signal), refetchInterval: 5000 });
  if (error && !data) return <Failure error={error} />;
  if (!data) return <Loading rows={2} />;
  const latest = data.items[0];
  const older = data.items.slice(1);
  const pinned = older.reduce((sum, each) => sum + each.in_flight, 0);
  return (
    <Panel title={pinned ? `${pinned} ${pinned === 1 ? "run is" : "runs are"} still pinned to an older version` : "All runs in flight are on the latest version"} className="span-2">
      <table className="plain-table">
        <caption className="sr-only">Versions with runs in flight</caption>
        <thead><tr><th scope="col">Version</th><th scope="col">State</th><th scope="col">In flight</th><th scope="col">Oldest</th><th scope="col">Bodies that workers must keep</th><th scope="col"><span className="sr-only">Acts</span></th></tr></thead>
        <tbody>
          {data.items.map((each) => (
            <tr key={each.version}>
              <td><b>v{each.version}</b></td>
              <td><Status of={each.is_latest ? "current" : "draining"} /></td>
              <td>{each.runs.length ? each.runs.map((runs) => <span key={runs.status} className="pair"><span className="num">{runs.runs}</span> {runs.status}</span>) : <span className="faint">none</span>}</td>
              <td>{each.runs[0] ? <Link to={`/runs/${oldestOf(each.runs).oldest_run_id}`} className="link"><Instant at={oldestOf(each.runs).oldest_at} /></Link> : "–"}</td>
              <td>{each.is_latest ? "" : each.bodies.length ? each.bodies.map((body) => <code key={body} className="pair">{body}</code>) : <span className="faint">none but those of the latest</span>}</td>
              <td>
                {!each.is_latest && latest && (
                  <span className="task-acts">
                    <ActButton icon="right" act={() => foreseeBulk("move", { filter: `${filterOf({ workflow: name, version: each.version })} is:open` }, 50)}>Move to v{latest.version} …</ActButton>
                  </span>
                )}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="muted">A run stays on the version it began with, unless it is moved. <code>headrace drain {name}</code> ends with 0 once none is left on an older version.</p>
    </Panel>
  );
}

const oldestOf = (runs: Schemas["RunsInFlight"][]): Schemas["RunsInFlight"] => runs.reduce((a, b) => (a.oldest_at < b.oldest_at ? a : b));
