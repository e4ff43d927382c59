// One act on many: what it would do is shown first, what was chosen is frozen, and each item says what came of it, then and later.
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { stopBulk } from "../acts";
import { get, send, type Schemas } from "../api/client";
import { useList } from "../api/hooks";
import { go, Link, useParam, useTitle } from "../router";
import { ActButton, quote, type Act, type Step } from "../ui/act";
import { Icon } from "../ui/icons";
import { Instant } from "../ui/instant";
import { Button, Copy, Empty, Facts, Failure, Loading, Notice, Panel } from "../ui/parts";
import { Status, look } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { effectWord } from "./run/rerun";

type Bulk = Schemas["Bulk"];
type Item = Schemas["BulkItem"];
export type BulkAct = Schemas["BulkBody"]["act"];

export const ACTS: Record<BulkAct, { word: string; will: string; tone?: "danger" }> = {
  rerun: { word: "Rerun what failed", will: "Of each what failed or was cancelled runs again, and what was skipped because of that. Each stays on its version." },
  cancel: { word: "Cancel", will: "Each ends as cancelled, and is undone first where its workflow says how. It cannot go on.", tone: "danger" },
  pause: { word: "Pause", will: "Nothing new of them begins. What was handed out ends and counts." },
  resume: { word: "Resume", will: "What their pauses withheld begins." },
  release: { word: "Release", will: "Those that stand aside go on from where they stood; the event that could not be decided stays out." },
  move: { word: "Move to the latest version", will: "Each is paused, moves to the latest version if nothing stands in the way, and goes on; the others stay on theirs." },
  migrate: { word: "Move those that are paused", will: "Each that is paused moves to the latest version, if nothing stands in the way, and stays paused; the others stay on theirs." },
  terminate: { word: "Terminate", will: "Each ends now, by force and without any clean-up.", tone: "danger" },
};

const number = (count: number): string => count.toLocaleString("en");
const runs = (count: number): string => `${number(count)} ${count === 1 ? "run" : "runs"}`;

/** Which runs: those that a filter finds, or those that were chosen one by one. */
export type Which = { filter: string } | { run_ids: string[] };

export async function foreseeBulk(act: BulkAct, which: Which, rate: number): Promise<Act> {
  const shown = await send<Schemas["BulkPreview"]>({ method: "POST", path: "/bulk", body: { act, ...which, dry_run: true } });
  if (!shown.count) throw new Error("No run matches of which this is not asked already.");
  const { word, will, tone } = ACTS[act];
  let bulkId = "";
  return {
    title: `${word}: ${runs(shown.count)}`,
    verb: `${word.split(" ")[0]} ${number(shown.count)}`,
    tone,
    does: act,
    will: [
      `Exactly these ${runs(shown.count)} are chosen, and none that matches later. They have their turn ${rate} a second, the oldest first: about ${Math.max(1, Math.ceil(shown.count / rate))} s in all, also across crashes.`,
      will,
      shown.has_more ? "Older ones match as well and are left: one bulk takes 10,000." : "It can be stopped; of what has not had its turn by then nothing is asked.",
    ],
    reason: "optional",
    path: "/bulk",
    body: (reason) => ({ act, filter: shown.filter, run_ids: shown.run_ids, reason, rate }),
    cli: (reason) => ("filter" in which ? `headrace bulk ${act} --filter ${quote(which.filter)} --rate ${rate}${reason ? ` --reason ${quote(reason)}` : ""}` : null),
    extra: <Preview shown={shown} />,
    wrong: shown.done ? undefined : "it can be asked of none of them as they stand",
    confirm: tone === "danger" ? String(shown.count) : undefined,
    done: (answer) => {
      bulkId = (answer as Bulk).bulk_id;
      go(`/bulk/${bulkId}`);
    },
    follow: () => followBulk(bulkId),
    to: "/bulk",
  };
}

function Preview({ shown }: { shown: Schemas["BulkPreview"] }) {
  return (
    <div className="preview">
      <div className="outcomes">
        <div className="tone-busy"><b className="num">{number(shown.done)}</b> as they stand</div>
        <div className={shown.done < shown.count ? "tone-warn" : "faint"}><b className="num">{number(shown.count - shown.done)}</b> skipped</div>
      </div>
      {shown.refused.length > 0 && <ul className="plain">{shown.refused.map((each) => <li key={each.reason}><b className="num">{number(each.count)}</b> {each.reason}</li>)}</ul>}
      {shown.effects.length > 0 && (
        <>
          <p className="muted">Effects, over the first {runs(shown.foreseen)}:</p>
          <ul className="plain">{shown.effects.map((each) => <li key={`${each.effect} ${each.protected_by ?? ""}`} className={each.effect === "repeats" ? (each.protected_by ? "tone-warn" : "tone-bad") : undefined}><b className="num">{number(each.tasks)}</b> {each.tasks === 1 ? "task" : "tasks"}: {effectWord(each)}</li>)}</ul>
        </>
      )}
    </div>
  );
}

async function followBulk(bulkId: string): Promise<Step> {
  const now = await get("/bulk/{bulk_id}", { bulk_id: bulkId });
  const later = Object.entries(now.later).map(([word, count]) => `${number(count)} ${word === "pending" ? "not applied yet" : look(word).word}`).join(", ");
  const text = `${number(now.done)} asked, ${number(now.left)} left${now.refused ? `, ${number(now.refused)} refused` : ""}${later ? ` · ${later}` : ""}`;
  if (now.status === "running" || isUnderWay(now)) return { state: "following", text };
  return { state: now.later.failed_again ? "failed" : now.status === "stopped" ? "cancelled" : "completed", text };
}

/** After a rerun its runs are on their way until they have ended again. */
const isUnderWay = (bulk: Schemas["BulkProgress"]): boolean => Boolean(bulk.later.pending) || (bulk.act === "rerun" && Boolean(bulk.later.running));

// == the bar over a list of runs ======================================================================================
export function ActOnMany({ chosen, filter, onClear }: { chosen: Set<string>; filter: string; onClear: () => void }) {
  const [act, setAct] = useState<BulkAct>("rerun");
  const [rate, setRate] = useState("10");
  const perSecond = Number(rate);
  const isRate = perSecond >= 0.01 && perSecond <= 1000;
  const ids = chosen.size ? [...chosen] : null;
  if (!ids && !filter) return null;
  return (
    <div className="group-acts" role="group" aria-label="One act on many runs">
      <b>{ids ? `${runs(ids.length)} chosen` : "All that match"}</b>
      {ids && <Button kind="quiet" small icon="cross" label="Choose none" onClick={onClear} />}
      <label className="inline-field">Act
        <select value={act} onChange={(event) => setAct(event.target.value as BulkAct)}>
          {(Object.keys(ACTS) as BulkAct[]).map((each) => <option key={each} value={each}>{ACTS[each].word}</option>)}
        </select>
      </label>
      <label className="inline-field">Rate <input value={rate} size={4} inputMode="decimal" onChange={(event) => setRate(event.target.value)} /> a second</label>
      <ActButton icon="search" why={isRate ? undefined : "a rate is 0.01 to 1000"} act={() => foreseeBulk(act, ids ? { run_ids: ids } : { filter }, perSecond)}>See what it would do …</ActButton>
      <span className="grow" />
      <Link to="/bulk" className="link">Bulk acts</Link>
    </div>
  );
}

// == all of them ======================================================================================================
const COUNTS = ["done", "refused", "gone", "stopped", "left"] as const;

const filterWord = (bulk: Bulk): string => bulk.filter || `${bulk.selected.toLocaleString("en")} chosen one by one`;

const wordOf = (act: string): string => ACTS[act as BulkAct]?.word ?? (act === "replay" ? "Replay dead letters" : act);

const COLUMNS: Column<Bulk>[] = [
  { id: "status", head: "Status", width: "116px", cell: (bulk) => <Status of={bulk.status} /> },
  { id: "act", head: "Act", width: "minmax(130px, 1fr)", cell: (bulk) => <b className="clip">{wordOf(bulk.act)}</b> },
  { id: "progress", head: "Had their turn", width: "150px", cell: (bulk) => <Turns bulk={bulk} /> },
  { id: "refused", head: "Refused", width: "72px", right: true, cell: (bulk) => <span className={bulk.refused ? "num tone-warn" : "num faint"}>{number(bulk.refused)}</span> },
  { id: "filter", head: "Which", width: "minmax(140px, 1.4fr)", cell: (bulk) => <span className="muted clip">{filterWord(bulk)}</span> },
  { id: "reason", head: "Why", width: "minmax(120px, 1.4fr)", cell: (bulk) => <span className="clip">{bulk.reason}</span> },
  { id: "by", head: "By", width: "minmax(90px, 0.8fr)", cell: (bulk) => <span className="muted clip">{bulk.created_by}</span> },
  { id: "at", head: "Asked", width: "92px", cell: (bulk) => <Instant at={bulk.created_at} /> },
];

function Turns({ bulk }: { bulk: Bulk }) {
  const had = bulk.selected - bulk.left;
  return <span className="slots"><span className="load" aria-hidden="true"><span style={{ width: `${bulk.selected ? (100 * had) / bulk.selected : 0}%` }} /></span><span className="num">{number(had)}/{number(bulk.selected)}</span></span>;
}

export function BulksPage() {
  useTitle("Bulk acts");
  const list = useList<Bulk>(["bulks"], (page, signal) => get("/bulk", {}, { limit: 50, ...(page ? { page } : {}) }, signal), { live: 2000 });
  return (
    <div className="page filled">
      <header className="page-head"><h1>Bulk acts</h1><span className="muted">one act on many runs or dead letters: frozen, at a rate, followed to its end</span></header>
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading /> : (
        <DataTable
          label="Bulk acts, newest first"
          rows={list.rows}
          columns={COLUMNS}
          keyOf={(bulk) => bulk.bulk_id}
          onOpen={(bulk) => go(`/bulk/${bulk.bulk_id}`)}
          more={list.more}
          onMore={list.fetchMore}
          empty={<Empty icon="bulk" title="Nothing was done to many yet.">Choose runs in the <Link to="/runs" className="link">list of runs</Link>, or filter it. In the terminal: <code>headrace bulk rerun --workflow NAME --dry-run</code></Empty>}
        />
      )}
    </div>
  );
}

// == one of them ======================================================================================================
const TONES = { done: "busy", refused: "warn", gone: "idle", stopped: "idle", left: "wait" } as const;
const WORDS = { done: "asked", refused: "refused", gone: "gone", stopped: "stopped", left: "to come" } as const;
const OUTCOMES = ["", "done", "refused", "gone", "stopped"] as const;

export function BulkPage({ params }: { params: Record<string, string> }) {
  const id = params.id ?? "";
  const { data: bulk, error } = useQuery({
    queryKey: ["bulks", "one", id],
    queryFn: ({ signal }) => get("/bulk/{bulk_id}", { bulk_id: id }, {}, signal),
    refetchInterval: (query) => (query.state.data && query.state.data.status !== "running" && !isUnderWay(query.state.data) ? 10_000 : 1000),
  });
  useTitle(bulk ? `${wordOf(bulk.act)} of ${bulk.selected}` : "Bulk act");
  if (error && !bulk) return <div className="page"><Failure error={error} /></div>;
  if (!bulk) return <div className="page"><Loading /></div>;
  const isRunning = bulk.status === "running";
  const act = bulk.act as BulkAct;
  const stop = () => stopBulk(bulk);
  return (
    <div className="page filled">
      <header className="page-head">
        <Link to="/bulk" className="crumb" label="All bulk acts"><Icon name="left" size={14} /></Link>
        <h1>{wordOf(bulk.act)} · {number(bulk.selected)}</h1>
        <Copy text={bulk.bulk_id} label="Copy the id of the bulk" />
        <Status of={bulk.status} />
        <Turns bulk={bulk} />
        <span className="grow" />
        {act in ACTS && <ActButton icon="play" why={bulk.stopped ? undefined : "nothing of it was stopped"} act={() => doTheRest(bulk)}>Do the rest …</ActButton>}
        <ActButton icon="stop" kind="danger" act={stop} why={isRunning ? undefined : `it is ${bulk.status}`}>Stop …</ActButton>
      </header>
      {bulk.stopped_by && <Notice tone="warn" icon="stop">Stopped by <b>{bulk.stopped_by}</b>, <Instant at={bulk.finished_at} />. {number(bulk.stopped)} had not had their turn.</Notice>}
      <div className="columns">
        <Panel title="What came of it">
          <div className="outcomes">
            {COUNTS.map((each) => <div key={each} className={bulk[each] ? `tone-${TONES[each]}` : "faint"}><b className="num">{number(bulk[each])}</b> {WORDS[each]}</div>)}
          </div>
          <h3>And later</h3>
          <div className="outcomes" role="group" aria-label="What became of them later">
            {Object.entries(bulk.later).map(([word, count]) => <div key={word} className={`tone-${look(word).tone}`} data-later={word}><b className="num">{number(count)}</b> {word === "pending" ? "not applied yet" : look(word).word}</div>)}
            {!Object.keys(bulk.later).length && <span className="faint">nothing yet</span>}
          </div>
          {bulk.refusals.length > 0 && <ul className="plain">{bulk.refusals.map((each) => <li key={each.reason}><b className="num">{number(each.count)}</b> refused: {each.reason}</li>)}</ul>}
        </Panel>
        <Panel title="What was asked">
          <Facts items={[["Which", <code>{filterWord(bulk)}</code>], ["Rate", <span className="num">{bulk.rate} a second</span>], ["By", bulk.created_by], ["Asked", <Instant at={bulk.created_at} />], ["Why", bulk.reason || <span className="faint">no reason given</span>]]} />
        </Panel>
      </div>
      <Items bulk={bulk} />
    </div>
  );
}

function Items({ bulk }: { bulk: Bulk }) {
  const [outcome, setOutcome] = useParam("outcome");
  const list = useList<Item>(
    ["bulks", "items", bulk.bulk_id, outcome],
    (page, signal) => get("/bulk/{bulk_id}/items", { bulk_id: bulk.bulk_id }, { limit: 200, ...(outcome ? { outcome: outcome as "done" } : {}), ...(page ? { page } : {}) }, signal),
    { live: 2000 },
  );
  const pathOf = (item: Item) => (item.run_id ? `/runs/${item.run_id}` : `/dead-letters/${item.dead_letter_id ?? ""}`);
  const columns: Column<Item>[] = [
    { id: "item", head: bulk.act === "replay" ? "Dead letter" : "Run", width: "minmax(220px, 1.2fr)", cell: (item) => <span className="mono clip">{item.run_id ?? item.dead_letter_id}</span> },
    { id: "outcome", head: "At its turn", width: "130px", cell: (item) => (item.outcome ? <Status of={item.outcome} /> : <span className="faint">to come</span>) },
    { id: "later", head: "Later", width: "150px", cell: (item) => (item.later ? <Status of={item.later} word={item.later === "pending" ? "not applied yet" : undefined} /> : "") },
    { id: "reason", head: "Why not", width: "minmax(160px, 2fr)", cell: (item) => <span className="clip muted">{item.reason ?? ""}</span> },
    { id: "at", head: "Turn", width: "96px", cell: (item) => <Instant at={item.done_at} /> },
  ];
  return (
    <>
      <div className="filters" role="group" aria-label="Outcome at their turn">
        {OUTCOMES.map((each) => <button key={each} type="button" className="chip" aria-pressed={outcome === each} onClick={() => setOutcome(each)}>{each ? WORDS[each] : "all"}</button>)}
      </div>
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={4} /> : (
        <DataTable label="Items, in the order of their turns" rows={list.rows} columns={columns} keyOf={(item) => item.run_id ?? item.dead_letter_id ?? ""} onOpen={(item) => go(pathOf(item))} more={list.more} onMore={list.fetchMore} empty={<Empty title="No item is so." />} />
      )}
    </>
  );
}

/** What was stopped before its turn, as another bulk. */
async function doTheRest(bulk: Bulk): Promise<Act> {
  const ids: string[] = [];
  for (let page: string | undefined; ; ) {
    const answer: Schemas["BulkItemPage"] = await get("/bulk/{bulk_id}/items", { bulk_id: bulk.bulk_id }, { outcome: "stopped", limit: 200, ...(page ? { page } : {}) });
    ids.push(...answer.items.map((item) => item.run_id).filter((id) => id !== null));
    if (!answer.next) break;
    page = answer.next;
  }
  return foreseeBulk(bulk.act as BulkAct, { run_ids: ids }, bulk.rate);
}
