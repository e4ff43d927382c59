import { keepPreviousData, useQuery, useQueryClient, type InfiniteData } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useRef, useState } from "react";
import { keepView, removeView } from "../acts";
import { get, type Schemas } from "../api/client";
import { isOver, shortId, useList } from "../api/hooks";
import { onNews, useLive } from "../api/live";
import { currentPrefs, setPrefs, usePrefs } from "../prefs";
import { go, useParam, useTitle } from "../router";
import { actorOf } from "../session";
import { ActButton, Command } from "../ui/act";
import { FilterBar, useReading, withClause } from "../ui/filter";
import { Histogram } from "../ui/histogram";
import { Elapsed, Instant } from "../ui/instant";
import { download } from "../ui/json";
import { Labels } from "../ui/labels";
import { Button, Empty, Failure, Loading } from "../ui/parts";
import { Progress } from "../ui/progress";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { ActOnMany } from "./bulk";

type Run = Schemas["Run"];

const columnsOf = (chosen: Set<string>, choose: (id: string) => void, only: (clause: string) => void): Column<Run>[] => [
  { id: "chosen", head: "", width: "22px", cell: (run) => <Choice label={`Choose ${shortId(run.workflow, run.run_id)}`} checked={chosen.has(run.run_id)} onChange={() => choose(run.run_id)} /> },
  { id: "status", head: "Status", width: "150px", cell: (run) => <Status of={run.status} /> },
  { id: "run", head: "Run", width: "minmax(170px, 1.2fr)", cell: (run) => <b className="mono clip">{shortId(run.workflow, run.run_id)}</b> },
  { id: "version", head: "Version", width: "76px", cell: (run) => <span className="muted">v{run.version}</span> },
  { id: "tasks", head: "Tasks", width: "minmax(120px, 1fr)", cell: (run) => <Progress counts={run.counts} /> },
  { id: "trigger", head: "Started by", width: "minmax(110px, 1fr)", cell: (run) => <span className="muted clip">{run.trigger}</span> },
  { id: "created", head: "Started", width: "110px", cell: (run) => <Instant at={run.created_at} /> },
  { id: "took", head: "Duration", width: "96px", right: true, cell: (run) => <Elapsed from={run.created_at} to={run.finished_at} /> },
  { id: "ended", head: "Ended", width: "110px", cell: (run) => (run.finished_at ? <Instant at={run.finished_at} /> : <span className="faint">–</span>) },
  { id: "updated", head: "Moved", width: "110px", cell: (run) => <Instant at={run.updated_at} /> },
  { id: "deadline", head: "Deadline", width: "110px", cell: (run) => (run.deadline_at ? <Instant at={run.deadline_at} future /> : <span className="faint">–</span>) },
  { id: "priority", head: "Priority", width: "76px", right: true, cell: (run) => <span className="num">{run.priority}</span> },
  { id: "labels", head: "Labels", width: "minmax(160px, 1.4fr)", cell: (run) => (Object.keys(run.labels).length ? <Labels of={run.labels} onChoose={only} /> : <span className="faint">–</span>) },
  { id: "events", head: "Events", width: "76px", right: true, cell: (run) => <span className="num muted">{run.row_version}</span> },
];
/** New runs are counted up to here: nobody waits for the exact number of thousands, and a list may stay open for days. */
const FRESH_MAX = 1000;
const SETTLED_MS = 1000;
const ALWAYS = new Set(["chosen", "run"]);
const USUAL = "status,version,tasks,trigger,created,took";

/** Which columns: those of the address, or else those that were chosen last in this browser. */
function useColumns(): [Set<string>, (id: string) => void] {
  const [given, set] = useParam("columns");
  const kept = usePrefs().columns;
  const shown = useMemo(() => new Set((given || kept || USUAL).split(",")), [given, kept]);
  const toggle = (id: string) => {
    const next = [...toggled(shown, id)].join(",") || "run";
    setPrefs({ columns: next });
    set(next);
  };
  return [shown, toggle];
}

function ColumnPicker({ columns, shown, toggle }: { columns: Column<Run>[]; shown: Set<string>; toggle: (id: string) => void }) {
  return (
    <details className="picker" onKeyDown={(event) => { if (event.key === "Escape") event.currentTarget.open = false; }}>
      <summary className="button small">Columns</summary>
      <div className="picker-list" role="group" aria-label="Columns">
        {columns.filter((column) => !ALWAYS.has(column.id)).map((column) => (
          <label key={column.id}><input type="checkbox" checked={shown.has(column.id)} onChange={() => toggle(column.id)} /> {column.head}</label>
        ))}
      </div>
    </details>
  );
}

/** A press here chooses the row, and does not open it. */
function Choice({ label, checked, onChange }: { label: string; checked: boolean; onChange: () => void }) {
  return (
    <span className="choice" onClick={(event) => event.stopPropagation()}>
      <input type="checkbox" aria-label={label} checked={checked} onChange={onChange} />
    </span>
  );
}

export function RunsPage() {
  useTitle("Runs");
  const client = useQueryClient();
  const [filter, setFilter] = useParam("filter");
  const key = useMemo(() => ["runs", filter], [filter]);
  const reading = useReading("runs", filter);
  const list = useList<Run>(
    key,
    (page, signal) => get("/runs", {}, { limit: 100, ...(filter ? { filter } : {}), ...(page ? { page } : {}) }, signal),
    // Rows never move under the pointer: what changed is put into them where they stand, what is new is counted.
    { live: false },
  );
  const [chosen, setChosen] = useState(new Set<string>());
  const columns = useMemo(
    () => columnsOf(chosen, (id) => setChosen((before) => toggled(before, id)), (clause) => setFilter(withClause(filter, clause), { push: true })),
    [chosen, filter, setFilter],
  );
  const [shown, toggle] = useColumns();
  const [fresh, setFresh] = useState(new Set<string>());
  useEffect(() => {
    setFresh(new Set());
    setChosen(new Set());
  }, [key]);
  const may = useMemo(() => mayMatch(reading.data?.clauses ?? []), [reading.data]);
  const take = useCallback(
    (runs: Map<string, Schemas["RunSummary"]>) => {
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
      const added = [...runs.values()].filter((run) => !known.has(run.run_id) && may(run));
      if (added.length) setFresh((before) => (before.size >= FRESH_MAX ? before : new Set([...before, ...added.map((run) => run.run_id)])));
    },
    [client, key, may],
  );
  useEffect(() => onNews(take), [take]);
  const current = useRef({ filter, take });
  current.current = { filter, take };
  const { open } = useLive();
  // The stream tells what changes from its first look on. What changed between the answer that is shown and that look is asked for, once.
  useEffect(() => {
    if (!open) return undefined;
    const timer = setTimeout(() => {
      const asked = current.current.filter;
      const newest = get("/runs", {}, { limit: 100, ...(asked ? { filter: asked } : {}) });
      void newest.then((page) => current.current.filter === asked && current.current.take(new Map(page.items.map((run) => [run.run_id, run]))), () => undefined);
    }, SETTLED_MS);
    return () => clearTimeout(timer);
  }, [open]);
  const renew = () => {
    setFresh(new Set());
    void client.resetQueries({ queryKey: key });
  };
  const pages = list.query.data?.pages as Schemas["RunPage"][] | undefined;
  const until = pages?.at(-1)?.searched_until;
  return (
    <div className="page filled">
      <header className="page-head">
        <h1>Runs</h1>
        <Count filter={filter} />
        <span className="grow" />
        <ColumnPicker columns={columns} shown={shown} toggle={toggle} />
        <Button icon="download" small onClick={() => download("runs.csv", csv(list.rows))} disabled={!list.rows.length}>CSV of these</Button>
      </header>
      <Views filter={filter} onChange={setFilter} />
      <FilterBar of="runs" value={filter} onChange={(text) => setFilter(text, { push: true })} />
      <ActOnMany chosen={chosen} filter={filter} onClear={() => setChosen(new Set())} />
      <ByTime filter={filter} onChange={setFilter} />
      <div className="news" role="status" aria-live="polite">
        {fresh.size > 0 && <button type="button" className="news-button" onClick={renew}>{fresh.size >= FRESH_MAX ? `More than ${FRESH_MAX.toLocaleString("en")}` : fresh.size} new {fresh.size === 1 ? "run" : "runs"}: show</button>}
      </div>
      <div className="faceted">
        {list.query.error ? <Failure error={list.query.error} retry={() => void list.query.refetch()} /> : !list.query.data ? <Loading rows={12} /> : (
          <DataTable
            label="Runs, newest first"
            rows={list.rows}
            columns={columns.filter((column) => ALWAYS.has(column.id) || shown.has(column.id))}
            keyOf={(run) => run.run_id}
            onOpen={(run) => go(`/runs/${run.run_id}`)}
            more={list.more}
            onMore={list.fetchMore}
            empty={
              <Empty icon="runs" title={filter ? (until ? "No run matches among the newest." : "No run matches.") : "No run yet."}>
                {list.more ? <button type="button" className="link" onClick={list.fetchMore}>Look further back</button> : filter ? <button type="button" className="link" onClick={() => setFilter("")}>Show all runs</button> : <Command text="headrace run WORKFLOW --input '{}'" />}
              </Empty>
            }
          />
        )}
        <Facets filter={filter} label={reading.data?.clauses.find((each) => each.field.startsWith("label."))?.field.slice(6)} onChange={setFilter} />
      </div>
    </div>
  );
}

/** Whether a run that is new may be one of the list: what the news do not tell is left open. */
function mayMatch(clauses: Schemas["FilterClause"][]): (run: Schemas["RunSummary"]) => boolean {
  const told = clauses.filter((clause) => (clause.field === "status" || clause.field === "workflow") && !clause.values.some((value) => value.includes("*") || value.includes("\\")));
  return (run) => told.every((clause) => clause.values.includes(run[clause.field as "status" | "workflow"]) !== clause.is_negated);
}

function Count({ filter }: { filter: string }) {
  const { data } = useQuery({ queryKey: ["runs-count", filter], queryFn: ({ signal }) => get("/runs/count", {}, filter ? { filter } : {}, signal), placeholderData: keepPreviousData, refetchInterval: 10_000, retry: false });
  if (!data) return null;
  return <span className="muted num" aria-label="How many match">{data.has_more ? "more than " : ""}{data.count.toLocaleString("en")}</span>;
}

/** Filters under a name: those that are always there, and those that were kept. */
function Views({ filter, onChange }: { filter: string; onChange: (filter: string) => void }) {
  const { data } = useQuery({ queryKey: ["views", "runs"], queryFn: ({ signal }) => get("/views", {}, { of: "runs" }, signal) });
  const current = data?.items.find((view) => view.filter === filter);
  return (
    <div className="filters" role="group" aria-label="Views">
      <button type="button" className="chip" aria-pressed={!filter} onClick={() => onChange("")}>All</button>
      {data?.items.map((view) => <button key={view.view_id ?? view.name} type="button" className="chip" aria-pressed={view.filter === filter} title={view.owner ? `${view.filter}\nkept by ${view.owner}${view.is_shared ? ", for all" : ""}` : view.filter} onClick={() => onChange(view.filter)}>{view.name}</button>)}
      <span className="grow" />
      {current?.view_id ? (
        <ActButton icon="trash" kind="quiet" scope="read" why={current.owner === actorOf(currentPrefs()) ? undefined : `it is kept by ${current.owner}`} act={() => removeView(current)}>Remove the view …</ActButton>
      ) : (
        <ActButton icon="plus" kind="quiet" scope="read" why={!filter ? "filter the list first" : current ? "there is a view of it" : undefined} act={() => keepView("runs", filter)}>Keep as a view …</ActButton>
      )}
    </div>
  );
}

/** label: that of the filter, of which the values are counted as well. */
function Facets({ filter, label, onChange }: { filter: string; label?: string; onChange: (filter: string) => void }) {
  const { data } = useQuery({ queryKey: ["runs-facets", filter, label], queryFn: ({ signal }) => get("/runs/facets", {}, { ...(filter ? { filter } : {}), ...(label ? { label } : {}) }, signal), placeholderData: keepPreviousData, refetchInterval: 10_000, retry: false });
  if (!data?.facets.length) return null;
  return (
    <aside className="facets" aria-label="What they are" tabIndex={0}>
      {data.has_more && <p className="faint">of the newest {data.count.toLocaleString("en")}</p>}
      {data.facets.map((facet) => (
        <section key={facet.field}>
          <h3>{facet.field}</h3>
          <ul>
            {facet.values.map((each) => (
              <li key={each.value}>
                <button type="button" className="facet" onClick={() => onChange(withClause(filter, each.clause))} title={`Only ${each.clause}`}>
                  <span className="clip">{facet.field === "status" ? <Status of={each.value} compact /> : each.value}</span>{" "}
                  <span className="num muted">{each.count.toLocaleString("en")}</span>
                </button>
                <button type="button" className="facet-not" title={`Not ${each.clause}`} aria-label={`Not ${each.clause}`} onClick={() => onChange(withClause(filter, `-${each.clause}`))}>−</button>
              </li>
            ))}
          </ul>
        </section>
      ))}
    </aside>
  );
}

const BUCKETS = 80;

function ByTime({ filter, onChange }: { filter: string; onChange: (filter: string) => void }) {
  const { data } = useQuery({ queryKey: ["runs-histogram", filter], queryFn: ({ signal }) => get("/runs/histogram", {}, { buckets: BUCKETS, ...(filter ? { filter } : {}) }, signal), placeholderData: keepPreviousData, refetchInterval: 10_000, retry: false });
  if (!data?.buckets.length || !data.since) return null;
  const step = data.step_seconds * 1000;
  const bars = data.buckets.map((bucket) => ({ at: Date.parse(bucket.at), counts: bucket.counts }));
  const from = bars[0]!.at;
  const to = bars.at(-1)!.at + step;
  const instant = (at: number) => `${new Date(at).toISOString().slice(0, 19)}Z`;
  return (
    <Histogram
      bars={bars}
      from={from}
      to={to}
      step={step}
      label={`${data.count} runs by when they were started`}
      onBrush={(a, b) => onChange(`${filter.split(/\s+/).filter((clause) => clause && !clause.startsWith("started:")).join(" ")} started:>=${instant(a)} started:<${instant(b)}`.trim())}
    />
  );
}

function toggled(before: Set<string>, id: string): Set<string> {
  const next = new Set(before);
  if (!next.delete(id)) next.add(id);
  return next;
}

function csv(runs: Run[]): string {
  const cell = (text: string) => (/^[=+\-@\t\r]/.test(text) ? `"'${text.replaceAll('"', '""')}"` : `"${text.replaceAll('"', '""')}"`);
  const rows = runs.map((run) => [run.run_id, run.workflow, String(run.version), run.status, run.trigger, run.created_at, run.finished_at ?? "", JSON.stringify(run.labels)].map(cell).join(","));
  return ["run_id,workflow,version,status,trigger,created_at,finished_at,labels", ...rows].join("\n");
}
