import { useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useEffect, useMemo, useState } from "react";
import { get, type Schemas } from "../api/client";
import { isOver, shortId, useList, useWorkflows } from "../api/hooks";
import { onNews } from "../api/live";
import { go, useParams, useTitle } from "../router";
import { Command } from "../ui/act";
import { Elapsed, Instant } from "../ui/instant";
import { download } from "../ui/json";
import { Button, Empty, Failure, Loading } from "../ui/parts";
import { Progress } from "../ui/progress";
import { look, Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";

type Run = Schemas["Run"];
type Status_ = Schemas["RunStatus"];

const NAMES = ["status", "workflow"] as const;
const PRESETS: { word: string; status: string }[] = [
  { word: "All", status: "" },
  { word: "Running", status: "running" },
  { word: "Waiting for a person or a time", status: "waiting" },
  { word: "Stuck", status: "needs_attention" },
  { word: "Paused", status: "paused" },
  { word: "Failed", status: "failed" },
  { word: "Completed", status: "completed" },
  { word: "Cancelling", status: "cancelling" },
  { word: "Cancelled", status: "cancelled" },
  { word: "Terminated", status: "terminated" },
  { word: "Compensating", status: "compensating" },
  { word: "Compensated", status: "compensated" },
  { word: "Compensation failed", status: "compensation_failed" },
];

const COLUMNS: Column<Run>[] = [
  { id: "status", head: "Status", width: "150px", cell: (run) => <Status of={run.status} /> },
  { id: "run", head: "Run", width: "minmax(170px, 1.2fr)", cell: (run) => <b className="mono clip">{shortId(run.workflow, run.run_id)}</b> },
  { id: "version", head: "Version", width: "76px", cell: (run) => <span className="muted">v{run.version}</span> },
  { id: "tasks", head: "Tasks", width: "minmax(120px, 1fr)", cell: (run) => <Progress counts={run.counts} /> },
  { id: "trigger", head: "Started by", width: "minmax(110px, 1fr)", cell: (run) => <span className="muted clip">{run.trigger}</span> },
  { id: "created", head: "Started", width: "110px", cell: (run) => <Instant at={run.created_at} /> },
  { id: "took", head: "Duration", width: "96px", right: true, cell: (run) => <Elapsed from={run.created_at} to={run.finished_at} /> },
];

export function RunsPage() {
  useTitle("Runs");
  const client = useQueryClient();
  const [filter, setFilter] = useParams(NAMES);
  const workflows = useWorkflows();
  const status = filter.status as Status_ | "";
  const key = useMemo(() => ["runs", status, filter.workflow], [status, filter.workflow]);
  const list = useList<Run>(
    key,
    (page, signal) => get("/runs", {}, { limit: 100, ...(status ? { status } : {}), ...(filter.workflow ? { workflow: filter.workflow } : {}), ...(page ? { page } : {}) }, signal),
    // Rows never move under the pointer: what changed is put into them where they stand, what is new is counted.
    { live: false },
  );
  const [fresh, setFresh] = useState(new Set<string>());
  useEffect(() => setFresh(new Set()), [key]);
  useEffect(
    () =>
      onNews((runs) => {
        const known = new Set<string>();
        client.setQueryData<InfiniteData<Schemas["RunPage"]>>(key, (data) => {
          if (!data) return data;
          const pages = data.pages.map((page) => ({
            ...page,
            items: page.items.map((run) => {
              const news = runs.get(run.run_id);
              known.add(run.run_id);
              if (!news || news.row_version <= run.row_version) return run;
              const finished_at = isOver(news.status) ? (run.finished_at ?? new Date().toISOString()) : null;
              return { ...run, status: news.status, counts: news.counts, row_version: news.row_version, finished_at };
            }),
          }));
          return { ...data, pages };
        });
        const added = [...runs.values()].filter((run) => !known.has(run.run_id) && (!status || run.status === status) && (!filter.workflow || run.workflow === filter.workflow));
        if (added.length) setFresh((before) => new Set([...before, ...added.map((run) => run.run_id)]));
      }),
    [client, key, status, filter.workflow],
  );
  const renew = () => {
    setFresh(new Set());
    void client.resetQueries({ queryKey: key });
  };
  return (
    <div className="page filled">
      <header className="page-head">
        <h1>Runs</h1>
        <span className="muted num">{list.rows.length}{list.more ? "+" : ""}</span>
        <span className="grow" />
        <Button icon="download" small onClick={() => download("runs.csv", csv(list.rows))} disabled={!list.rows.length}>CSV of these</Button>
      </header>
      <div className="filters" role="group" aria-label="Filters">
        {PRESETS.map((preset) => (
          <button key={preset.word} type="button" className="chip" aria-pressed={status === preset.status} onClick={() => setFilter({ status: preset.status })}>
            {preset.word}
          </button>
        ))}
        <span className="grow" />
        <label className="inline-field">
          Workflow
          <select data-filter value={filter.workflow} onChange={(event) => setFilter({ workflow: event.target.value })}>
            <option value="">all</option>
            {filter.workflow && !workflows.data?.items.some((workflow) => workflow.name === filter.workflow) && <option>{filter.workflow}</option>}
            {workflows.data?.items.map((workflow) => <option key={workflow.name}>{workflow.name}</option>)}
          </select>
        </label>
      </div>
      <div className="news" role="status" aria-live="polite">
        {fresh.size > 0 && <button type="button" className="news-button" onClick={renew}>{fresh.size} new {fresh.size === 1 ? "run" : "runs"}: show</button>}
      </div>
      {list.query.error ? <Failure error={list.query.error} retry={() => void list.query.refetch()} /> : !list.query.data ? <Loading rows={12} /> : (
        <DataTable
          label="Runs, newest first"
          rows={list.rows}
          columns={COLUMNS}
          keyOf={(run) => run.run_id}
          onOpen={(run) => go(`/runs/${run.run_id}`)}
          more={list.more}
          onMore={list.fetchMore}
          empty={
            <Empty icon="runs" title={status || filter.workflow ? `No ${status ? `${look(status).word} ` : ""}run${filter.workflow ? ` of ${filter.workflow}` : ""}.` : "No run yet."}>
              {status || filter.workflow ? <button type="button" className="link" onClick={() => setFilter({ status: "", workflow: "" })}>Show all runs</button> : <Command text="headrace run WORKFLOW --input '{}'" />}
            </Empty>
          }
        />
      )}
    </div>
  );
}

function csv(runs: Run[]): string {
  const cell = (text: string) => (/^[=+\-@\t\r]/.test(text) ? `"'${text.replaceAll('"', '""')}"` : `"${text.replaceAll('"', '""')}"`);
  const rows = runs.map((run) => [run.run_id, run.workflow, String(run.version), run.status, run.trigger, run.created_at, run.finished_at ?? ""].map(cell).join(","));
  return ["run_id,workflow,version,status,trigger,created_at,finished_at", ...rows].join("\n");
}
