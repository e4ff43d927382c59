// Who did what to the run, when and why: the lines of its history that have somebody behind them.
import { get, type Schemas } from "../../api/client";
import { isOver, useList } from "../../api/hooks";
import { Instant } from "../../ui/instant";
import { Empty, Failure, Loading } from "../../ui/parts";
import { DataTable, type Column } from "../../ui/table";

type Item = Schemas["HistoryItem"];

const said = (item: Item, field: string): string => {
  const value = (item.detail as Record<string, unknown> | null)?.[field];
  return typeof value === "string" ? value : "";
};
const whyOf = (item: Item): string => said(item, "reason") || said(item, "comment");

const COLUMNS: Column<Item>[] = [
  { id: "at", head: "When", width: "112px", cell: (item) => <Instant at={item.at} ms /> },
  { id: "actor", head: "Who", width: "minmax(120px, 1fr)", cell: (item) => <b className="clip">{item.actor ?? ""}</b> },
  { id: "kind", head: "Did", width: "minmax(130px, 1fr)", cell: (item) => <span className="clip">{item.kind.replaceAll("_", " ")}{item.task ? <span className="muted"> {item.task}</span> : null}</span> },
  { id: "why", head: "Why", width: "minmax(160px, 2fr)", cell: (item) => <span className="clip">{whyOf(item)}</span> },
  { id: "from", head: "From", width: "112px", cell: (item) => <span className="muted clip">{said(item, "address")}</span> },
  { id: "row", head: "Event", width: "64px", right: true, cell: (item) => <span className="faint num">{item.row_version}</span> },
];

export function ActsTab({ run }: { run: Schemas["Run"] }) {
  const list = useList<Item>(["run", run.run_id, "acts"], (page, signal) => get("/runs/{run_id}/history", { run_id: run.run_id }, { by: "people", limit: 200, ...(page ? { page } : {}) }, signal), {
    live: isOver(run.status) ? false : 5000,
  });
  if (list.query.error) return <Failure error={list.query.error} />;
  if (!list.query.data) return <Loading />;
  return (
    <DataTable
      label="What people and programs did to the run"
      rows={list.rows}
      columns={COLUMNS}
      keyOf={(item) => `${item.row_version}-${item.kind}-${item.task ?? ""}`}
      more={list.more}
      onMore={list.fetchMore}
      empty={<Empty icon="person" title="Nobody has done anything to it." />}
    />
  );
}
