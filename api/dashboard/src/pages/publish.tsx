// The gate before a publish: which version it would be, what is different, and what it means for the runs in flight.
import { useEffect, useState } from "react";
import { get, send, type Schemas } from "../api/client";
import { useVersion, useWorkflow } from "../api/hooks";
import { go, Link, useParam, useTitle } from "../router";
import { ActButton, type Act } from "../ui/act";
import { Icon } from "../ui/icons";
import { Instant } from "../ui/instant";
import { Difference as Diff, pretty } from "../ui/json";
import { Button, Empty, Facts, Failure, Field, Notice, Panel } from "../ui/parts";
import { Status, type Tone } from "../ui/status";

type Check = Schemas["PublishCheck"];

interface Checked {
  check: Check;
  content: string;
  /** Whether runs in flight are moved by the publish. */
  moves: boolean;
}

const typeOf = (content: string): string => (content.trimStart().startsWith("{") ? "application/json" : "application/yaml");

const VERDICTS: Record<Check["verdict"], { tone: Tone; text: (check: Check) => string }> = {
  first: { tone: "ok", text: () => "There is no workflow of this name yet." },
  new: { tone: "ok", text: (check) => `It would be version ${check.version}, and new runs would be on it.` },
  latest: { tone: "idle", text: (check) => `It is the content of the latest version, ${check.version}: a publish changes nothing.` },
  older: { tone: "warn", text: (check) => `It is the content of version ${check.version}. A publish does not make that the latest again; to go back, change something, such as the description.` },
};

export function PublishPage() {
  useTitle("Publish");
  const [from] = useParam("workflow");
  const [content, setContent] = useState("");
  const [moves, setMoves] = useState(false);
  const [checked, setChecked] = useState<Checked | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isChecking, setChecking] = useState(false);
  const latest = useWorkflowText(from);
  useEffect(() => {
    if (latest) setContent((before) => before || latest);
  }, [latest]);
  const check = async () => {
    setChecking(true);
    setError(null);
    setChecked(null);
    try {
      setChecked({ content, moves, check: await send<Check>({ method: "POST", path: `/workflows/check${moves ? "?migrate=true" : ""}`, text: { type: typeOf(content), content } }) });
    } catch (e) {
      setError(e);
    } finally {
      setChecking(false);
    }
  };
  const isStale = checked !== null && (checked.content !== content || checked.moves !== moves);
  return (
    <div className="page">
      <header className="page-head"><Link to="/workflows" className="crumb" label="All workflows"><Icon name="left" size={14} /></Link><h1>Publish</h1><span className="muted">what it would lead to is asked first; nothing that runs is changed by a publish</span></header>
      <div className="columns">
        <Panel title="The workflow" aside={<FileButton onText={setContent} />}>
          <form onSubmit={(event) => { event.preventDefault(); void check(); }}>
            <Field label="Definition, as YAML or JSON" hint={from ? `Begins with the latest version of ${from}.` : undefined}>
              {(id) => <textarea id={id} className="mono editor" rows={24} spellCheck={false} value={content} onChange={(event) => setContent(event.target.value)} />}
            </Field>
            <div className="task-acts"><label className="inline-field"><input type="checkbox" checked={moves} onChange={(event) => setMoves(event.target.checked)} /> Move runs in flight, where nothing stands in the way</label></div>
            <div className="task-acts"><Button type="submit" kind="primary" icon="search" disabled={!content.trim() || isChecking}>{isChecking ? "checking …" : "Check"}</Button></div>
          </form>
          {error !== null && <Failure error={error} />}
        </Panel>
        {checked ? <Gate checked={checked} isStale={isStale} /> : <Panel title="The gate"><Empty icon="search" title="Check it first.">In the terminal: <code>headrace publish --check workflow.yaml</code></Empty></Panel>}
      </div>
    </div>
  );
}

/** The latest definition of a workflow, to begin with. */
function useWorkflowText(name: string): string | null {
  const workflow = useWorkflow(name);
  return name && workflow.data ? pretty(workflow.data.definition) : null;
}

function FileButton({ onText }: { onText: (text: string) => void }) {
  return (
    <label className="button small file">
      <Icon name="download" size={13} /><span>Open a file</span>
      <input type="file" accept=".yaml,.yml,.json" className="sr-only" onChange={(event) => void event.target.files?.[0]?.text().then(onText)} />
    </label>
  );
}

function Gate({ checked: { check, content, moves }, isStale }: { checked: Checked; isStale: boolean }) {
  const { tone, text } = VERDICTS[check.verdict];
  const total = check.runs.reduce((sum, each) => sum + each.runs, 0);
  const stays = check.verdict === "latest" || check.verdict === "older";
  return (
    <Panel
      title={<>{check.name} v{check.version}</>}
      aside={<ActButton icon="play" kind="primary" small={false} why={isStale ? "the text was changed since: check it again" : stays ? "it is published already" : undefined} act={() => publish(check, content, total, moves)}>Publish …</ActButton>}
    >
      <Notice tone={tone}><b>{check.verdict === "first" ? "A new workflow." : check.verdict === "new" ? "A new version." : "Published already."}</b> {text(check)}</Notice>
      {check.difference && <Changes of={check.difference} against={check.latest_version} />}
      <section>
        <h3>Runs in flight <span className="faint num">{total}</span></h3>
        {check.runs.length ? (
          <table className="plain-table">
            <caption className="sr-only">Runs in flight, by version and status</caption>
            <thead><tr><th scope="col">Version</th><th scope="col">Status</th><th scope="col">Runs</th><th scope="col">Oldest</th><th scope="col">Then</th></tr></thead>
            <tbody>
              {check.runs.map((each) => (
                <tr key={`${each.version} ${each.status}`}>
                  <td>v{each.version}</td>
                  <td><Status of={each.status} compact /></td>
                  <td className="num">{each.runs}</td>
                  <td><Link to={`/runs/${each.oldest_run_id}`} className="link"><Instant at={each.oldest_at} /></Link></td>
                  <td>{each.then === "moves" ? "moves, where nothing stands in the way" : `finishes on v${each.version}`}</td>
                </tr>
              ))}
            </tbody>
          </table>
        ) : <p className="muted">None: nobody notices but new runs.</p>}
        {total > 0 && (
          <>
            <p className="muted">{check.moves.movable} of the oldest {check.moves.looked_at} could be moved to it, once paused.</p>
            {check.moves.obstacles.length > 0 && <ul className="plain" aria-label="What stands in the way of moving">{check.moves.obstacles.map((each) => <li key={`${each.task} ${each.why}`}><b className="num">{each.runs}</b> not: task <code>{each.task}</code> {each.why}</li>)}</ul>}
          </>
        )}
      </section>
      <LatestDiff check={check} content={content} />
      <Facts items={[["Digest", <code className="clip">{check.digest}</code>]]} />
    </Panel>
  );
}

function Changes({ of, against }: { of: NonNullable<Check["difference"]>; against: number | null }) {
  const lines = [
    ["added", of.added],
    ["removed", of.removed],
    ["renamed", of.renamed.map((each) => `${each.was} to ${each.task}`)],
    ["moved to another position", of.moved],
    ["changed", of.changed.map((each) => `${each.task} (${each.fields.join(", ")})`)],
    ["of the workflow", of.fields],
  ] as const;
  const shown = lines.filter(([, names]) => names.length);
  return (
    <section>
      <h3>Against v{against}</h3>
      {shown.length ? <ul className="plain" aria-label="Difference">{shown.map(([word, names]) => <li key={word}><span className="muted">{word}</span> {names.join(", ")}</li>)}</ul> : <p className="muted">No difference in content.</p>}
    </section>
  );
}

/** Line by line, where both are JSON; of YAML the names above say it. */
function LatestDiff({ check, content }: { check: Check; content: string }) {
  const latest = useVersion(check.name, check.latest_version ?? undefined);
  if (!latest.data || check.verdict !== "new" || typeOf(content) !== "application/json") return null;
  let after: string;
  try {
    after = pretty(JSON.parse(content));
  } catch {
    return null;
  }
  return <details><summary>Line by line</summary><Diff label="Difference to the latest version" before={pretty(latest.data.definition)} after={after} /></details>;
}

function publish(check: Check, content: string, inFlight: number, moves: boolean): Act {
  const file = typeOf(content) === "application/json" ? "workflow.json" : "workflow.yaml";
  return {
    title: `Publish ${check.name} v${check.version}`,
    verb: "Publish",
    does: "publish",
    will: [
      `${check.name} gets version ${check.version}. Runs that start from now on are on it, also those of records.`,
      inFlight && (moves || check.runs.some((each) => each.then === "moves")) ? `${check.moves.movable} of the ${check.moves.looked_at} runs in flight that were looked at would be moved, each by its own verdict: paused, moved, and let go on. The others finish on their version.` : inFlight ? `${inFlight} ${inFlight === 1 ? "run" : "runs"} in flight finish on the version they began with.` : "No run is in flight.",
      "A version cannot be changed or taken back; the way back is another version.",
    ],
    path: `/workflows${moves ? "?migrate=true" : ""}`,
    body: () => undefined,
    text: { type: typeOf(content), content, file },
    cli: () => `headrace publish ${file}${moves ? " --migrate" : ""}`,
    done: (answer) => go((answer as Schemas["Published"]).bulk_id ? `/bulk/${(answer as Schemas["Published"]).bulk_id ?? ""}` : `/workflows/${check.name}?tab=versions`),
    follow: async () => {
      const now = await get("/workflows/{workflow}", { workflow: check.name });
      return now.latest_version === check.version ? { state: "completed", text: `version ${check.version} is the latest` } : { state: "failed", text: `version ${now.latest_version} is the latest` };
    },
    to: `/workflows/${check.name}?tab=versions`,
  };
}
