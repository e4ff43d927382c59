import { useQuery } from "@tanstack/react-query";
import { useMemo, useState, type ReactNode } from "react";
import { discardLetter, discardMany, replayLetter, replayMany, stopReplay } from "../acts";
import { get, parseJson, search, send, type Schemas } from "../api/client";
import { filterOf } from "../api/filter";
import { shortId, useExplain, useList } from "../api/hooks";
import { go, Link, useParams, useTitle } from "../router";
import { ActButton, ActDialog, type Act } from "../ui/act";
import { offers } from "../ui/explain";
import { errorLine, UserFault } from "../ui/fault";
import { FilterBar } from "../ui/filter";
import { Icon } from "../ui/icons";
import { Instant } from "../ui/instant";
import { Difference, Payload, pretty } from "../ui/json";
import { Button, Copy, Empty, Facts, Failure, Field, Loading, Notice, Panel, Tabs } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";
import { Attempts } from "./run/task_panel";

type Letter = Schemas["DeadLetter"];
type Group = Schemas["DeadLetterGroup"];

const NAMES = ["tab", "status", "filter", "fingerprint"] as const;
const where = (row: { workflow: string | null; task: string | null; topic: string | null; version?: number | null }) =>
  row.workflow ? `${row.workflow}${row.version ? ` v${row.version}` : ""} · ${row.task ?? ""}` : (row.topic ?? "–");

export function LettersPage() {
  useTitle("Dead letters");
  const [filter, set] = useParams(NAMES);
  const tab = filter.tab || "groups";
  const cause = filter.fingerprint ? filterOf({ fingerprint: filter.fingerprint }) : "";
  const query = { status: (filter.status || "parked") as Query["status"], filter: `${filter.filter ?? ""} ${cause}`.trim() };
  const current = filter.fingerprint && tab === "groups" ? "letters" : tab;
  return (
    <div className="page filled">
      <header className="page-head"><h1>Dead letters</h1><span className="muted">failed tasks and unreadable records, to be repaired and replayed</span></header>
      <Tabs
        label="Dead letters"
        current={current}
        onChange={(id) => set({ tab: id === "groups" ? "" : id, fingerprint: "" })}
        tabs={[{ id: "groups", word: "By cause" }, { id: "letters", word: "Each" }, { id: "replays", word: "Replays of many" }]}
      />
      {current !== "replays" && (
        <FilterBar of="dead_letters" value={filter.filter ?? ""} onChange={(text) => set({ filter: text })}>
          {["parked", "replayed", "discarded"].map((status) => (
            <button key={status} type="button" className="chip" aria-pressed={query.status === status} onClick={() => set({ status: status === "parked" ? "" : status })}>{status}</button>
          ))}
          {filter.fingerprint && <button type="button" className="chip" aria-pressed="true" onClick={() => set({ fingerprint: "", tab: "" })}>one cause: {filter.fingerprint.slice(0, 10)} <Icon name="cross" size={12} /></button>}
        </FilterBar>
      )}
      {current === "groups" && <Groups query={query} onOpen={(fingerprint) => set({ fingerprint, tab: "letters" })} />}
      {current === "letters" && <Letters query={query} isCause={Boolean(filter.fingerprint)} />}
      {current === "replays" && <Replays />}
    </div>
  );
}

type Query = { status: "parked" | "replayed" | "discarded"; filter: string };

function Groups({ query, onOpen }: { query: Query; onOpen: (fingerprint: string) => void }) {
  const list = useList<Group>(["letter-groups", query], (page, signal) => get("/dead-letters/groups", {}, { ...query, limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const columns: Column<Group>[] = [
    { id: "count", head: "Letters", width: "80px", right: true, cell: (group) => <span className="count tone-bad">{group.count}</span> },
    { id: "where", head: "Where", width: "minmax(160px, 1fr)", cell: (group) => <b className="clip">{where(group)}</b> },
    { id: "code", head: "Code", width: "130px", cell: (group) => <code className="clip">{group.code}</code> },
    { id: "message", head: "Message of the newest", width: "minmax(200px, 2fr)", cell: (group) => <span className="clip muted">{group.message}</span> },
    { id: "first", head: "First", width: "90px", cell: (group) => <Instant at={group.first_at} /> },
    { id: "last", head: "Last", width: "90px", cell: (group) => <Instant at={group.last_at} /> },
  ];
  if (list.query.error) return <Failure error={list.query.error} />;
  if (!list.query.data) return <Loading />;
  return (
    <DataTable
      label="Dead letters by cause, the newest first"
      rows={list.rows}
      columns={columns}
      keyOf={(group) => group.fingerprint || group.sample}
      onOpen={(group) => onOpen(group.fingerprint)}
      more={list.more}
      onMore={list.fetchMore}
      empty={<Empty icon="check" title={query.status === "parked" ? "Nothing is set aside." : `No letter is ${query.status}.`}>A task without a try left, and a record that cannot be read, come here. In the terminal: <code>headrace dead-letters</code></Empty>}
    />
  );
}

function Letters({ query, isCause }: { query: Query; isCause: boolean }) {
  const list = useList<Letter>(["letters", "list", query], (page, signal) => get("/dead-letters", {}, { ...query, limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const columns: Column<Letter>[] = [
    { id: "status", head: "Status", width: "124px", cell: (letter) => <Status of={letter.replay_outcome && letter.replay_outcome !== "pending" ? letter.replay_outcome : letter.status} /> },
    { id: "where", head: "Where", width: "minmax(150px, 1fr)", cell: (letter) => <b className="clip">{letter.kind === "task" ? where(letter) : `${letter.topic ?? ""} ${letter.partition ?? ""}/${letter.offset ?? ""}`}</b> },
    { id: "run", head: "Run", width: "minmax(120px, 1fr)", cell: (letter) => (letter.run_id ? <Link to={`/runs/${letter.run_id}${search({ task: letter.task })}`} className="link mono clip">{shortId(letter.workflow ?? "run", letter.run_id)}</Link> : <span className="faint">record</span>) },
    { id: "reason", head: "Reason", width: "minmax(200px, 2fr)", cell: (letter) => <span className="clip muted">{errorLine(letter.error) || letter.reason}</span> },
    { id: "at", head: "Set aside", width: "92px", cell: (letter) => <Instant at={letter.created_at} /> },
  ];
  return (
    <>
      {query.filter && query.status === "parked" && list.rows.length > 0 && <GroupActs filter={query.filter} name={isCause ? where(list.rows[0]!) : "what matches"} />}
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading /> : (
        <DataTable
          label="Dead letters, newest first"
          rows={list.rows}
          columns={columns}
          keyOf={(letter) => letter.dead_letter_id}
          onOpen={(letter) => go(`/dead-letters/${letter.dead_letter_id}`)}
          more={list.more}
          onMore={list.fetchMore}
          empty={<Empty icon="check" title="No letter matches." />}
        />
      )}
    </>
  );
}

/** What would be done is counted and frozen first; the act takes exactly that. */
function GroupActs({ filter, name }: { filter: string; name: string }) {
  const [rate, setRate] = useState("10");
  const [act, setAct] = useState<Act | null>(null);
  const [error, setError] = useState<unknown>(null);
  const [isCounting, setCounting] = useState(false);
  const perSecond = Number(rate);
  const isRate = perSecond >= 0.01 && perSecond <= 1000;
  const count = async (what: "replay" | "discard") => {
    setCounting(true);
    setError(null);
    try {
      const body = { filter, dry_run: true, ...(what === "discard" ? { reason: "dry run" } : {}) };
      const selection = await send<Schemas["DeadLetterSelection"]>({ method: "POST", path: `/dead-letters/${what}`, body });
      if (!selection.count) throw new Error("None is left: they were closed meanwhile, or another replay has them.");
      setAct(what === "replay" ? replayMany(selection, name, filter, perSecond, () => go("/dead-letters?tab=replays")) : discardMany(selection, name, filter));
    } catch (e) {
      setError(e);
    }
    setCounting(false);
  };
  return (
    <div className="group-acts">
      <span><b>All of this cause</b> <span className="muted">are counted first; nothing is done before you have seen how many.</span></span>
      <span className="grow" />
      <label className="inline-field">per second <input value={rate} inputMode="decimal" size={4} aria-invalid={!isRate} onChange={(event) => setRate(event.target.value)} /></label>
      <Button small kind="primary" icon="replay" disabled={isCounting} why={isRate ? undefined : "0.01 to 1000 a second"} onClick={() => void count("replay")}>Replay all …</Button>
      <Button small kind="danger" icon="trash" disabled={isCounting} onClick={() => void count("discard")}>Discard all …</Button>
      {error !== null && <Failure error={error} />}
      {act && <ActDialog act={act} onClose={() => setAct(null)} />}
    </div>
  );
}

function Replays() {
  const list = useList<Schemas["BulkReplay"]>(["letters", "replays"], (page, signal) => get("/dead-letters/replays", {}, { limit: 50, ...(page ? { page } : {}) }, signal), { live: 2000 });
  if (list.query.error) return <Failure error={list.query.error} />;
  if (!list.query.data) return <Loading />;
  if (!list.rows.length) return <Empty icon="replay" title="No replay of many yet.">Open a cause and replay all its letters, or <code>headrace replay --fingerprint … --rate 5</code></Empty>;
  return <div className="scrolled">{list.rows.map((replay) => <OneReplay key={replay.replay_id} replay={replay} />)}{list.more && <Button onClick={list.fetchMore}>More</Button>}</div>;
}

function OneReplay({ replay }: { replay: Schemas["BulkReplay"] }) {
  const { data } = useQuery({
    queryKey: ["letters", "replay", replay.replay_id],
    queryFn: ({ signal }) => get("/dead-letters/replays/{replay_id}", { replay_id: replay.replay_id }, {}, signal),
    refetchInterval: (query) => (query.state.data && query.state.data.status !== "running" && !query.state.data.outcomes.pending ? false : 1500),
  });
  const outcomes = data?.outcomes ?? {};
  return (
    <Panel
      title={<>{replay.selected.toLocaleString("en")} letters, {replay.rate} a second <Status of={replay.status} /></>}
      aside={<ActButton icon="stop" kind="danger" act={() => stopReplay(replay)} why={replay.status === "running" ? undefined : `it is ${replay.status}`}>Stop …</ActButton>}
    >
      <div className="outcomes">
        {([["left", replay.left, "idle"], ["replayed", replay.replayed, "busy"], ["now completed", outcomes.completed ?? 0, "ok"], ["pending", outcomes.pending ?? 0, "wait"], ["failed again", outcomes.failed_again ?? 0, "bad"], ["cancelled", outcomes.cancelled ?? 0, "idle"], ["refused", replay.refused, "warn"], ["stopped", replay.stopped, "idle"]] as const).map(([word, count, tone]) => (
          <div key={word} className={count ? `tone-${tone}` : "faint"}><b className="num">{count}</b> {word}</div>
        ))}
      </div>
      <p className="muted">by {replay.created_by}, <Instant at={replay.created_at} />{replay.stopped_by && <> · stopped by {replay.stopped_by}</>}</p>
      {data?.refusals.length ? <ul className="plain">{data.refusals.map((refusal) => <li key={refusal.dead_letter_id}><Link to={`/dead-letters/${refusal.dead_letter_id}`} className="link mono">{refusal.dead_letter_id.slice(-6)}</Link> {refusal.reason}</li>)}</ul> : null}
    </Panel>
  );
}

// == one letter =======================================================================================================
export function LetterPage({ params }: { params: Record<string, string> }) {
  const id = params.id ?? "";
  const { data: letter, error } = useQuery({
    queryKey: ["letters", "one", id],
    queryFn: ({ signal }) => get("/dead-letters/{dead_letter_id}", { dead_letter_id: id }, {}, signal),
    refetchInterval: (query) => (query.state.data?.replay_outcome === "pending" ? 1000 : 10_000),
  });
  useTitle(letter ? `Dead letter of ${letter.task ?? letter.topic ?? ""}` : "Dead letter");
  if (error && !letter) return <div className="page"><Failure error={error} /></div>;
  if (!letter) return <div className="page"><Loading /></div>;
  const isTask = letter.kind === "task";
  return (
    <div className="page">
      <header className="page-head">
        <Link to="/dead-letters" className="crumb" label="All dead letters"><Icon name="left" size={14} /></Link>
        <h1>{where(letter)}</h1>
        <Copy text={letter.dead_letter_id} label="Copy the letter's id" />
        <Status of={letter.status} />
        <span className="grow" />
        <ActButton icon="trash" kind="danger" act={() => discardLetter(letter)} why={letter.status === "parked" ? undefined : `it was ${letter.status} already`}>Discard …</ActButton>
      </header>
      <Chain letter={letter} />
      <div className="columns letter">
        <div>
          <Panel title="What went wrong">
            {letter.reason !== letter.code && <p className="reason">{letter.reason}</p>}
            <UserFault value={letter.error} />
            <Facts
              items={[
                ...(isTask
                  ? ([
                      ["Run", <Link to={`/runs/${letter.run_id ?? ""}${search({ task: letter.task })}`} className="link mono">{shortId(letter.workflow ?? "run", letter.run_id ?? "")}</Link>],
                      ["Task", <>{letter.task} <span className="faint">under token {letter.token}</span></>],
                    ] as [string, ReactNode][])
                  : ([["Topic", letter.topic], ["Partition, offset", <span className="num">{letter.partition} / {letter.offset}</span>], ["Key", <code>{letter.key ?? "–"}</code>]] as [string, ReactNode][])),
                ["Set aside", <Instant at={letter.created_at} />],
                ["Cause", <Link to={`/dead-letters${search({ fingerprint: letter.fingerprint })}`} className="link">others of {letter.fingerprint.slice(0, 12)}</Link>],
              ]}
            />
          </Panel>
          {isTask && <Panel title="Attempts"><Attempts attempts={letter.attempts} /></Panel>}
          {!isTask && (
            <Panel title="The record">
              <Payload name="Value" value={letter.value_encoding === "text" ? letter.value : letter.value_base64} />
              {letter.headers.length > 0 && <Facts items={letter.headers.map((header): [string, ReactNode] => [header.name, <code>{header.value ?? "null"}</code>])} />}
            </Panel>
          )}
        </div>
        <Repair key={letter.dead_letter_id} letter={letter} />
      </div>
    </div>
  );
}

/** What it came from and what became of it: accepted is not yet repaired. */
function Chain({ letter }: { letter: Schemas["DeadLetterContext"] }) {
  return (
    <>
      {letter.replay_of && <Notice tone="warn" icon="replay" act={<Link to={`/dead-letters/${letter.replay_of}`} className="link">The letter before</Link>}>This came of a replay that failed again.</Notice>}
      {letter.status === "discarded" && <Notice tone="idle" icon="trash">Discarded by <b>{letter.closed_by}</b>, <Instant at={letter.closed_at} />{letter.close_reason && <>: {letter.close_reason}</>}</Notice>}
      {letter.status === "replayed" && (
        <Notice
          tone={letter.replay_outcome === "completed" ? "ok" : letter.replay_outcome === "failed_again" ? "bad" : "busy"}
          icon={letter.replay_outcome === "completed" ? "check" : letter.replay_outcome === "failed_again" ? "cross" : "ring"}
          act={letter.replayed_as ? <Link to={`/dead-letters/${letter.replayed_as}`} className="link">The new letter</Link> : letter.run_id ? <Link to={`/runs/${letter.run_id}${search({ task: letter.task })}`} className="link">The run</Link> : undefined}
        >
          Replayed by <b>{letter.closed_by}</b>, <Instant at={letter.closed_at} />. {({ pending: "It is under way.", completed: "It helped: completed.", failed_again: "It failed again.", cancelled: "The run was cancelled before." } as Record<string, string>)[letter.replay_outcome ?? ""]}
        </Notice>
      )}
    </>
  );
}

function Repair({ letter }: { letter: Schemas["DeadLetterContext"] }) {
  const original = useMemo(() => originalOf(letter), [letter]);
  const [text, setText] = useState(original.text);
  const { value, wrong } = useMemo(() => parsed(text), [text]);
  const isEdited = text.trim() !== original.text.trim();
  const isParked = letter.status === "parked";
  const explained = useExplain(letter.kind === "task" && isParked ? (letter.run_id ?? "") : "", letter.task ?? undefined).data;
  const whyNot = wrong ? "the copy is not JSON" : explained && !offers(explained, letter.dead_letter_id) ? "its run takes nothing up again" : undefined;
  return (
    <Panel title={isParked ? "Edit a copy and replay" : "Its input"} className="repair">
      {original.missing && <p className="muted">{original.missing}</p>}
      {isParked ? (
        <>
          <Field label={letter.kind === "task" ? "Input of the task, as JSON" : "Value of the record, as JSON"} error={wrong}>
            {(id) => <textarea id={id} className="mono editor" rows={Math.min(24, Math.max(8, text.split("\n").length + 1))} spellCheck={false} value={text} onChange={(event) => setText(event.target.value)} />}
          </Field>
          {isEdited && !wrong && <Difference label="What was changed" before={original.text} after={pretty(value)} />}
          <div className="task-acts">
            <ActButton small={false} icon="replay" kind="primary" why={whyNot} act={() => replayLetter(letter, isEdited ? value : undefined)}>{isEdited ? "Replay the edited copy …" : "Replay as it was …"}</ActButton>
            {isEdited && <Button onClick={() => setText(original.text)}>Back to the original</Button>}
          </div>
        </>
      ) : original.missing ? null : <Payload name="Original" value={parsed(original.text).value} open={4} />}
      <Payload name="Input of the run" value={letter.run_input} />
    </Panel>
  );
}

function originalOf(letter: Schemas["DeadLetterContext"]): { text: string; missing: string | null } {
  if (letter.kind === "task") return { text: letter.input === undefined ? "{}" : pretty(letter.input), missing: letter.input_missing };
  const { value, wrong } = parsed(letter.value ?? "");
  return wrong ? { text: letter.value_encoding === "text" ? (letter.value ?? "") : "", missing: "Its value is no JSON. What you write takes its place." } : { text: pretty(value), missing: null };
}

function parsed(text: string): { value: unknown; wrong: string | undefined } {
  try {
    return { value: parseJson(text), wrong: undefined };
  } catch (error) {
    return { value: null, wrong: error instanceof Error ? error.message : "not JSON" };
  }
}
