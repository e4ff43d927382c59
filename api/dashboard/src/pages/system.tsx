import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { get, type Schemas } from "../api/client";
import { useTitle } from "../router";
import { Command } from "../ui/act";
import { Icon } from "../ui/icons";
import { Instant, length } from "../ui/instant";
import { size } from "../ui/json";
import { Button, Empty, Facts, Failure, Loading, Notice, Panel } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";

const LATE_SECONDS = 30;
const LAG_BYTES = 16 * 1024 * 1024;

export function SystemPage() {
  useTitle("System");
  const { data, error } = useQuery({ queryKey: ["system"], queryFn: ({ signal }) => get("/system", {}, {}, signal), refetchInterval: 3000, placeholderData: keepPreviousData });
  const health = useQuery({ queryKey: ["health"], queryFn: ({ signal }) => get("/health", {}, {}, signal), refetchInterval: 3000, retry: false });
  if (!data) return <div className="page">{error ? <Failure error={error} /> : <Loading />}</div>;
  const owners = new Set(data.partitions.map((each) => each.owner));
  return (
    <div className="page">
      <header className="page-head"><h1>System</h1>{health.data && <Status of={health.data.status} />}<span className="muted">headrace {data.version}, Postgres {health.data?.postgres ?? "away"}</span></header>
      {health.data?.status === "degraded" && <Notice tone="warn">The relay or the sweeps have not been heard of lately. What is decided is kept; it goes on when they are back.</Notice>}
      <div className="columns">
        <Panel title="Relay: from Postgres to Kafka">
          {data.slots.length ? data.slots.map((slot) => (
            <Facts
              key={slot.slot}
              items={[
                ["Slot", <><code>{slot.slot}</code> {slot.wal_status && <span className={slot.wal_status === "lost" ? "tone-bad" : "muted"}>{slot.wal_status}</span>}</>],
                ["Relay", <span className="clip">{slot.owner} <span className="faint">epoch {slot.epoch}</span></span>],
                ["Heard of", <span className={slot.age_seconds > LATE_SECONDS ? "tone-bad" : undefined}>{length(slot.age_seconds * 1000)} ago</span>],
                ["Not acknowledged", <span className={(slot.lag_bytes ?? 0) > LAG_BYTES ? "num tone-warn" : "num"}>{slot.lag_bytes === null ? "–" : size(slot.lag_bytes)}</span>],
                ["WAL kept for it", <span className="num">{slot.retained_bytes === null ? "–" : size(slot.retained_bytes)}</span>],
              ]}
            />
          )) : <Empty icon="triggers" title="No relay has ever worked here."><Command text="python -m connectors" /></Empty>}
        </Panel>
        <Panel title="Sweeps" flush aside={<span className="faint">what finds what is due, lost or forgotten</span>}>
          {data.sweeps.length ? <Sweeps sweeps={data.sweeps} /> : <Empty icon="clock" title="No sweep has passed yet."><Command text="python -m streams" /></Empty>}
        </Panel>
      </div>
      <Doctor />
      <Panel title="Partitions" aside={<span className="faint">{data.partitions.length} with {owners.size} {owners.size === 1 ? "owner" : "owners"}</span>} flush>
        <DataTable height={14} label="Partitions" rows={data.partitions} columns={PARTITIONS} keyOf={(row) => `${row.topic}/${row.partition}`} empty={<Empty icon="system" title="No partition was taken yet." />} />
      </Panel>
      <Panel title="Largest tables" flush>
        <DataTable height={12} label="Largest tables" rows={data.tables} columns={TABLES} keyOf={(row) => row.name} />
      </Panel>
    </div>
  );
}

const PARTITIONS: Column<Schemas["PartitionState"]>[] = [
  { id: "topic", head: "Topic", width: "minmax(160px, 1.4fr)", cell: (row) => <span className="mono clip">{row.topic}</span>, sort: (row) => row.topic },
  { id: "partition", head: "Partition", width: "88px", right: true, cell: (row) => <span className="num">{row.partition}</span>, sort: (row) => row.partition },
  { id: "owner", head: "Owner", width: "minmax(150px, 1.4fr)", cell: (row) => <span className="clip">{row.owner}</span>, sort: (row) => row.owner },
  { id: "epoch", head: "Epoch", width: "76px", right: true, cell: (row) => <span className="num">{row.epoch}</span>, sort: (row) => row.epoch },
  { id: "offset", head: "Applied up to", width: "120px", right: true, cell: (row) => <span className="num">{row.next_offset?.toLocaleString("en") ?? "–"}</span>, sort: (row) => row.next_offset ?? -1 },
  { id: "taken", head: "Taken", width: "96px", cell: (row) => <Instant at={row.taken_at} />, sort: (row) => row.taken_at },
];

const TABLES: Column<Schemas["TableSize"]>[] = [
  { id: "name", head: "Table", width: "minmax(150px, 1fr)", cell: (row) => <span className="mono">{row.name}</span>, sort: (row) => row.name },
  { id: "rows", head: "Rows, about", width: "120px", right: true, cell: (row) => <span className="num">{row.rows.toLocaleString("en")}</span>, sort: (row) => row.rows },
  { id: "bytes", head: "Size with indexes", width: "140px", right: true, cell: (row) => <span className="num">{size(row.bytes)}</span>, sort: (row) => row.bytes },
];

function Sweeps({ sweeps }: { sweeps: Schemas["SweepState"][] }) {
  return (
    <ul className="sweeps">
      {sweeps.map((sweep) => (
        <li key={sweep.name}>
          <span className="clip">{sweep.name.replaceAll("_", " ")}</span>
          <span className={sweep.age_seconds > 10 * LATE_SECONDS ? "num tone-warn" : "num muted"}>{length(sweep.age_seconds * 1000)} ago</span>
          <span className="num faint">{sweep.found ? `found ${sweep.found}` : ""}</span>
        </li>
      ))}
    </ul>
  );
}

function Doctor() {
  const doctor = useQuery({ queryKey: ["doctor"], queryFn: ({ signal }) => get("/doctor", {}, {}, signal), enabled: false, gcTime: Infinity, staleTime: Infinity, retry: false });
  const checks = [...(doctor.data?.checks ?? [])].sort((a, b) => Number(a.ok) - Number(b.ok));
  return (
    <Panel
      title={<>Doctor {doctor.data && <Status of={doctor.data.ok ? "ok" : "degraded"} word={doctor.data.ok ? "all checks hold" : `${checks.filter((check) => !check.ok).length} do not hold`} />}</>}
      aside={<Button small kind="primary" icon="heart" disabled={doctor.isFetching} onClick={() => void doctor.refetch()}>{doctor.isFetching ? "examining …" : "Examine now"}</Button>}
    >
      {doctor.error && <Failure error={doctor.error} />}
      {!doctor.data && !doctor.error && <p className="muted">Recomputes every invariant that SQL can check, in one read-only snapshot; it takes a few seconds and changes nothing. In the terminal, with what only Kafka knows: <code>headrace doctor</code></p>}
      {doctor.data && (
        <ul className="checks">
          {checks.map((check) => (
            <li key={check.name} className={check.ok ? "tone-ok" : "tone-bad"}>
              <Icon name={check.ok ? "check" : "cross"} size={14} />
              <b>{check.name.replaceAll("_", " ")}</b>
              <span className="muted">{check.detail}{check.hint && <> – {check.hint}</>}</span>
              <span className="num faint">{length(check.seconds * 1000)}</span>
            </li>
          ))}
        </ul>
      )}
    </Panel>
  );
}
