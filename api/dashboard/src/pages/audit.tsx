// Who did what through the API, when, why and from where: rows are only ever added.
import { get, type Schemas } from "../api/client";
import { useList } from "../api/hooks";
import { go, Link, useParams, useTitle } from "../router";
import { lacks } from "../session";
import { Instant } from "../ui/instant";
import { Empty, Failure, Loading, Notice, Typed } from "../ui/parts";
import { DataTable, type Column } from "../ui/table";

type Item = Schemas["AuditItem"];
const NAMES = ["actor", "act", "target"] as const;
const UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}";

/** The page of the console for what was acted on. */
function pageOf(target: string): string | null {
  const found = new RegExp(`^/(runs|tasks|approvals|dead-letters|bulk|workflows|pools)/([^/]+)`).exec(target);
  if (!found) return null;
  const [, noun, id] = found as unknown as [string, string, string];
  const isId = new RegExp(`^${UUID}$`).test(id);
  switch (noun) {
    case "tasks":
      return `/runs/${id.slice(0, 36)}?task=${encodeURIComponent(id.slice(37))}`;
    case "approvals":
      return `/approvals?id=${id}`;
    case "pools":
      return `/workers?tab=pools&pool=${id}`;
    case "workflows":
      return `/workflows/${id}`;
    default:
      return isId ? `/${noun}/${id}` : null;
  }
}

const COLUMNS: Column<Item>[] = [
  { id: "at", head: "When", width: "96px", cell: (item) => <Instant at={item.at} /> },
  { id: "actor", head: "Who", width: "minmax(110px, 1fr)", cell: (item) => <b className="clip">{item.actor}</b> },
  { id: "act", head: "Did", width: "minmax(130px, 1fr)", cell: (item) => <span className="clip">{item.act}</span> },
  { id: "target", head: "On", width: "minmax(200px, 2fr)", cell: (item) => { const page = pageOf(item.target); return page ? <Link to={page} className="link mono clip">{item.target}</Link> : <span className="mono clip">{item.target}</span>; } },
  { id: "reason", head: "Why", width: "minmax(150px, 1.6fr)", cell: (item) => <span className="clip">{item.reason}</span> },
  { id: "from", head: "From", width: "112px", cell: (item) => <span className="muted clip">{item.address}</span> },
  { id: "request", head: "Request", width: "90px", cell: (item) => <span className="mono faint clip" title={item.request_id}>{item.request_id}</span> },
];

export function AuditPage() {
  useTitle("Audit");
  const [filter, set] = useParams(NAMES);
  const missing = lacks("admin");
  const given = Object.fromEntries(NAMES.filter((name) => filter[name]).map((name) => [name, filter[name]]));
  const list = useList<Item>(["audit", given], (page, signal) => get("/audit", {}, { ...given, limit: 200, ...(page ? { page } : {}) }, signal), { live: 5000, enabled: !missing });
  return (
    <div className="page filled">
      <header className="page-head"><h1>Audit</h1><span className="muted">what was done through the API; starts and signals are in the history of their runs</span></header>
      {missing ? <Notice tone="idle">{missing}. What was done to one run stands in its tab Audit, for everybody who may look.</Notice> : (
        <>
          <div className="filters">
            <Typed name="Who" value={filter.actor ?? ""} onChange={(actor) => set({ actor })} isMain />
            <Typed name="Did, such as runs.cancel" value={filter.act ?? ""} onChange={(act) => set({ act })} />
            <Typed name="On: a part of the address" value={filter.target ?? ""} onChange={(target) => set({ target })} />
          </div>
          {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading /> : (
            <DataTable label="What was done, newest first" rows={list.rows} columns={COLUMNS} keyOf={(item) => item.audit_id} more={list.more} onMore={list.fetchMore} onOpen={(item) => { const page = pageOf(item.target); if (page) go(page); }} empty={<Empty icon="audit" title="Nothing was done that matches.">In the terminal: <code>headrace audit</code></Empty>} />
          )}
        </>
      )}
    </div>
  );
}
