// Named limits on how many tasks run at once: who holds the slots, and who is next.
import { useQuery } from "@tanstack/react-query";
import { useState, type ReactNode } from "react";
import { prioritise, removePool, setPool } from "../acts";
import { get, type Schemas } from "../api/client";
import { shortId, useList } from "../api/hooks";
import { Link, useParam } from "../router";
import { ActButton } from "../ui/act";
import { Instant } from "../ui/instant";
import { Empty, Facts, Failure, Loading, Notice, Panel } from "../ui/parts";
import { DataTable, type Column } from "../ui/table";

type Pool = Schemas["Pool"];
type Holder = Schemas["PoolTask"];

function SlotsOf({ pool }: { pool: Pool }) {
  if (pool.limit === null) return <span className="num">{pool.held}</span>;
  const share = pool.limit ? Math.min(1, pool.held / pool.limit) : 1;
  return (
    <span className="slots" title={`${pool.held} of ${pool.limit} slots held`}>
      <span className="load" aria-hidden="true"><span className={share >= 1 ? "full" : undefined} style={{ width: `${share * 100}%` }} /></span>
      <span className="num">{pool.held}/{pool.limit}</span>
    </span>
  );
}

const COLUMNS: Column<Pool>[] = [
  { id: "name", head: "Pool", width: "minmax(110px, 1fr)", cell: (pool) => <><b className="clip">{pool.name}</b>{!pool.is_set && <span className="tag tone-warn">not set</span>}</>, sort: (pool) => pool.name },
  { id: "held", head: "Slots held", width: "minmax(120px, 1fr)", cell: (pool) => <SlotsOf pool={pool} />, sort: (pool) => pool.held },
  { id: "waiting", head: "Waiting", width: "74px", right: true, cell: (pool) => <span className={pool.waiting ? "num tone-wait" : "num faint"}>{pool.waiting}</span>, sort: (pool) => pool.waiting },
  { id: "rate", head: "Rate", width: "84px", cell: (pool) => pool.rate ?? <span className="faint">any</span> },
  { id: "updated", head: "Set", width: "92px", cell: (pool) => <Instant at={pool.updated_at} /> },
];

export function Pools() {
  const [chosen, setChosen] = useParam("pool");
  const [name, setName] = useState("");
  const list = useList<Pool>(["pools"], (page, signal) => get("/pools", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 3000 });
  const shown = chosen || list.rows[0]?.name;
  const isName = /^[a-zA-Z][\w.-]{0,99}$/.test(name);
  return (
    <>
      <div className="filters">
        <span className="muted">A slot belongs to one hand-out of a task, and ends with it.</span>
        <span className="grow" />
        <label className="inline-field">Pool <input data-filter value={name} size={16} placeholder="name" onChange={(event) => setName(event.target.value)} /></label>
        <ActButton icon="plus" why={isName ? undefined : "say its name"} act={() => setPool({ name }, true)}>Set a pool …</ActButton>
      </div>
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={4} /> : (
        <div className="split even">
          <DataTable label="Pools by name" rows={list.rows} columns={COLUMNS} keyOf={(pool) => pool.name} selected={shown ?? null} onOpen={(pool) => setChosen(pool.name)} more={list.more} onMore={list.fetchMore} empty={<Empty icon="pool" title="There is no pool.">A task with <code>pool: warehouse</code> waits for a slot of it. In the terminal: <code>headrace set-pool warehouse --limit 8</code></Empty>} />
          {shown && <OnePool key={shown} name={shown} />}
        </div>
      )}
    </>
  );
}

function OnePool({ name }: { name: string }) {
  const { data: pool, error } = useQuery({ queryKey: ["pools", "one", name], queryFn: ({ signal }) => get("/pools/{name}", { name }, {}, signal), refetchInterval: 2000 });
  if (error && !pool) return <Failure error={error} />;
  if (!pool) return <Loading rows={4} />;
  const used = pool.held + pool.waiting;
  return (
    <Panel
      title={`Pool ${name}`}
      className="detail"
      aside={<>
        <ActButton icon="edit" act={() => setPool(pool)}>Limits …</ActButton>
        <ActButton icon="trash" kind="danger" why={!pool.is_set ? "it is not set" : used ? "it is in use" : undefined} act={() => removePool(name)}>Remove …</ActButton>
      </>}
    >
      {!pool.is_set && <Notice tone="warn"><b>Nobody has said how many slots it has</b>, so what asks for one waits. Set its limits.</Notice>}
      {pool.limit === 0 && <Notice tone="warn">It has no slots: nothing begins.</Notice>}
      <Facts items={[["Slots", pool.limit === null ? "any number" : <span className="num">{pool.held} of {pool.limit} held</span>], ["Rate", pool.rate ?? "any number at once"], ...(pool.is_set ? [["Set", <><Instant at={pool.updated_at} /> <span className="muted">by {pool.updated_by}</span></>] as [string, ReactNode]] : [])]} />
      <section>
        <h3>Holders <span className="faint num">{pool.held}</span></h3>
        <Tasks label={`Holders of ${name}`} rows={pool.holders} since="Since" empty="No task holds a slot." />
      </section>
      <section>
        <h3>Who is next <span className="faint num">{pool.waiting}</span></h3>
        <Tasks label={`Queue of ${name}`} rows={pool.waiters} since="Waits since" isQueue empty="Nobody waits." />
      </section>
    </Panel>
  );
}

function Tasks({ label, rows, since, isQueue, empty }: { label: string; rows: Holder[]; since: string; isQueue?: boolean; empty: string }) {
  if (!rows.length) return <p className="faint">{empty}</p>;
  const hasKeys = rows.some((row) => row.fairness_key !== null);
  return (
    <table className="plain-table">
      <caption className="sr-only">{label}</caption>
      <thead><tr>{isQueue && <th scope="col">Place</th>}<th scope="col">Task</th><th scope="col">Run</th>{hasKeys && <th scope="col">Fairness key</th>}<th scope="col">{since}</th><th scope="col">Priority</th></tr></thead>
      <tbody>
        {rows.map((row, index) => (
          <tr key={`${row.run_id}.${row.task}`}>
            {isQueue && <td className="num">{index + 1}</td>}
            <td><Link to={`/runs/${row.run_id}?task=${encodeURIComponent(row.task)}`} className="link">{row.task}</Link> <span className="faint">token {row.token}</span></td>
            <td><Link to={`/runs/${row.run_id}`} className="link mono">{shortId(row.workflow, row.run_id)}</Link></td>
            {hasKeys && <td className="mono clip" title={row.fairness_key ?? undefined}>{row.fairness_key ?? <span className="faint">none</span>}</td>}
            <td><Instant at={row.since} /></td>
            <td className="num">{row.priority}{isQueue && <> <ActButton act={() => prioritise(row)}>Change …</ActButton></>}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
