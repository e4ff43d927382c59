// What the bodies of the run logged, followed live while it runs.
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { get, type Schemas } from "../../api/client";
import { isOver } from "../../api/hooks";
import { useParam } from "../../router";
import { Instant } from "../../ui/instant";
import { download } from "../../ui/json";
import { Button, Empty, Failure, Loading } from "../../ui/parts";

type Line = Schemas["LogLine"];
type Level = Line["level"];
const PAGE = 1000;
const LINES_MAX = 5000;
const LOOK_MS = 1000;
/** A worker sends its last lines a moment after its result. */
const STRAGGLERS_MS = 5000;

export function LogsTab({ run, onSelect }: { run: Schemas["Run"]; onSelect: (task: string) => void }) {
  const [task, setTask] = useParam("of");
  const [level, setLevel] = useParam("level", "debug");
  const [text, setText] = useParam("q");
  const [follows, setFollows] = useState(true);
  const asked = { level: level as Level, ...(task ? { task } : {}), ...(text ? { q: text } : {}) };
  const key = JSON.stringify(asked);
  const kept = useRef<{ key: string; lines: Line[]; last: number | null }>({ key: "", lines: [], last: null });
  const isLive = !run.finished_at || Date.now() - Date.parse(run.finished_at) < STRAGGLERS_MS;
  const { data, error } = useQuery({
    queryKey: ["run", run.run_id, "logs", key],
    queryFn: async ({ signal }) => {
      if (kept.current.key !== key) kept.current = { key, lines: [], last: null };
      const { last } = kept.current;
      const place = last === null ? { tail: true } : { after: last };
      const page = await get("/runs/{run_id}/logs", { run_id: run.run_id }, { ...asked, ...place, limit: PAGE }, signal);
      kept.current = { key, lines: [...kept.current.lines, ...page.items].slice(-LINES_MAX), last: page.last };
      return kept.current.lines;
    },
    refetchInterval: isLive ? LOOK_MS : false,
  });
  const end = useRef<HTMLDivElement>(null);
  const count = data?.length ?? 0;
  useEffect(() => {
    if (follows) end.current?.scrollIntoView({ block: "nearest" });
  }, [count, follows]);
  if (error && !data) return <Failure error={error} />;
  return (
    <div className="logs">
      <div className="filters">
        <label className="inline-field">Task <input data-filter value={task} placeholder="all" size={14} onChange={(event) => setTask(event.target.value)} /></label>
        <label className="inline-field">Level
          <select value={level} onChange={(event) => setLevel(event.target.value)}>
            {["debug", "info", "warning", "error"].map((each) => <option key={each} value={each}>{each} and above</option>)}
          </select>
        </label>
        <label className="inline-field">Text <input type="search" value={text} size={20} onChange={(event) => setText(event.target.value)} /></label>
        {!isOver(run.status) && <Button small pressed={follows} onClick={() => setFollows(!follows)}>Follow</Button>}
        <span className="grow" />
        <span className="muted num">{count} lines</span>
        <Button small icon="download" onClick={() => download(`logs-${run.run_id}.txt`, (data ?? []).map(plain).join("\n"))}>Text</Button>
      </div>
      {!data ? <Loading /> : !count ? (
        <Empty title="Nothing was logged.">What a body says with <code>ctx.log</code> or Python’s <code>logging</code> is here a moment later. In a terminal: <code>headrace logs {run.run_id.slice(-6)} --follow</code></Empty>
      ) : (
        <div className="log-lines" role="log" aria-label="Log of the run" tabIndex={0}>
          {data.map((line) => (
            <div key={line.line_id} className={`log-line level-${line.level}`}>
              <Instant at={line.at} ms />
              <span className="log-level">{line.level}</span>
              <button type="button" className="link" onClick={() => onSelect(line.task)}>{line.task}<span className="faint">#{line.attempt}</span></button>
              <span className="log-text">{line.message}<Fields of={line.fields} /></span>
            </div>
          ))}
          <div ref={end} />
        </div>
      )}
    </div>
  );
}

function Fields({ of }: { of: unknown }) {
  if (of === null || typeof of !== "object") return null;
  const { exception, ...rest } = of as Record<string, unknown>;
  return (
    <>
      {Object.entries(rest).map(([name, value]) => <span key={name} className="faint"> {name}={typeof value === "string" ? value : JSON.stringify(value)}</span>)}
      {typeof exception === "string" && <span className="log-trace">{exception}</span>}
    </>
  );
}

function plain(line: Line): string {
  const fields = line.fields === null ? "" : ` ${JSON.stringify(line.fields)}`;
  return `${line.at} ${line.level} ${line.task}#${line.attempt} ${line.message}${fields}`;
}
