import { useState, type ReactNode } from "react";
import { useQueryClient } from "@tanstack/react-query";
import { deleteSubscription } from "../acts";
import { get, newKey, parseJson, send, type Schemas } from "../api/client";
import { useList, useWorkflows } from "../api/hooks";
import { Link, useParam, useTitle } from "../router";
import { ActButton, Command } from "../ui/act";
import { Instant } from "../ui/instant";
import { Payload } from "../ui/json";
import { Button, Dialog, Empty, Facts, Failure, Field, Loading, Notice, Panel } from "../ui/parts";
import { Status } from "../ui/status";
import { DataTable, type Column } from "../ui/table";

type Subscription = Schemas["Subscription"];
type Fate = Schemas["RecordFate"];

export function TriggersPage() {
  useTitle("Triggers");
  const [name, setName] = useParam("name");
  const [isNew, setNew] = useState(false);
  const list = useList<Subscription>(["subscriptions"], (page, signal) => get("/subscriptions", {}, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 5000 });
  const chosen = list.rows.find((row) => row.name === name) ?? list.rows[0];
  const columns: Column<Subscription>[] = [
    { id: "name", head: "Subscription", width: "minmax(130px, 1.2fr)", cell: (row) => <b className="clip">{row.name}</b> },
    { id: "topic", head: "Topic", width: "minmax(130px, 1.2fr)", cell: (row) => <span className="mono clip">{row.topic}</span> },
    { id: "workflow", head: "Starts or signals", width: "minmax(110px, 1fr)", cell: (row) => (row.workflow ? <Link to={`/workflows/${row.workflow}`} className="link clip">{row.workflow}</Link> : <span className="clip">signal {row.signal?.name}</span>) },
    { id: "state", head: "State", width: "110px", cell: (row) => (row.waits_since ? <Status of="late" word="waits" /> : <Status of="live" word={row.enabled ? "reads" : "off"} />) },
  ];
  return (
    <div className="page filled">
      <header className="page-head">
        <h1>Triggers</h1><span className="muted">topics whose records start runs, and what became of each record</span>
        <span className="grow" />
        <Button icon="plus" onClick={() => setNew(true)}>Subscribe …</Button>
      </header>
      {isNew && <NewSubscription onClose={() => setNew(false)} />}
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading /> : !list.rows.length ? (
        <Empty icon="triggers" title="No topic starts runs yet.">A subscription turns each record of a topic into a run, once, by its CloudEvents id or its place in the topic.</Empty>
      ) : (
        <div className="split even">
          <DataTable label="Subscriptions by name" rows={list.rows} columns={columns} keyOf={(row) => row.name} selected={chosen?.name ?? null} onOpen={(row) => setName(row.name)} more={list.more} onMore={list.fetchMore} />
          {chosen && <OneSubscription key={chosen.name} subscription={chosen} />}
        </div>
      )}
    </div>
  );
}

function OneSubscription({ subscription }: { subscription: Subscription }) {
  const list = useList<Fate>(["records", subscription.name], (page, signal) => get("/subscriptions/{name}/records", { name: subscription.name }, { limit: 100, ...(page ? { page } : {}) }, signal), { live: 3000 });
  const columns: Column<Fate>[] = [
    { id: "at", head: "At", width: "92px", cell: (row) => <Instant at={row.at} /> },
    { id: "place", head: "Offset", width: "92px", right: true, cell: (row) => <span className="num"><span className="faint">{row.partition}/</span>{row.offset}</span> },
    { id: "fate", head: "Fate", width: "112px", cell: (row) => <Status of={row.fate} /> },
    { id: "what", head: "Run or reason", width: "minmax(140px, 1fr)", cell: (row) => (row.run_id ? <Link to={`/runs/${row.run_id}`} className="link mono clip">{subscription.workflow ?? "run"}-{row.run_id.slice(-6)}</Link> : <span className="muted clip">{row.reason ?? (row.signal_id ? `signal ${row.signal_id}` : row.fate === "filtered" ? "the filter is not true for it" : "")}</span>) },
  ];
  return (
    <Panel title={subscription.name} className="detail" aside={<ActButton icon="trash" kind="danger" act={() => deleteSubscription(subscription.name, subscription.topic)}>Delete …</ActButton>}>
      {subscription.waits_since && <Notice tone="warn" icon="clock">Its records wait in Kafka since <Instant at={subscription.waits_since} /> because too many runs are under way. They are read when there is room.</Notice>}
      <Facts items={[["Topic", <code>{subscription.topic}</code>], subscription.signal ? ["Signals", <code>{subscription.signal.name}{subscription.signal.key ? ` ${subscription.signal.key}` : ""}{subscription.signal.run ? ` to ${subscription.signal.run}` : ""}</code>] : ["Starts", <Link to={`/workflows/${subscription.workflow}`} className="link">{subscription.workflow}</Link>], ["Filter", subscription.filter ? <code>{subscription.filter}</code> : <span className="muted">every record</span>], ...Object.entries(subscription.labels).map(([name, text]): [string, ReactNode] => [`Label ${name}`, <code>{text}</code>]), ["Made", <Instant at={subscription.created_at} />]]} />
      {subscription.input !== null && <Payload name={subscription.signal ? "Data, from the record" : "Input, from the record"} value={subscription.input} />}
      <h3>Records</h3>
      {list.query.error ? <Failure error={list.query.error} /> : !list.query.data ? <Loading rows={3} /> : (
        <DataTable height={14} label="Records and their fates, newest first" rows={list.rows} columns={columns} keyOf={(row) => `${row.partition}/${row.offset}/${row.at}`} more={list.more} onMore={list.fetchMore} empty={<Empty icon="triggers" title="No record was read yet."><Command text={`headrace send ${subscription.topic} --data '{}'`} /></Empty>} />
      )}
    </Panel>
  );
}

function NewSubscription({ onClose }: { onClose: () => void }) {
  const client = useQueryClient();
  const workflows = useWorkflows();
  const [given, setGiven] = useState({ name: "", topic: "", workflow: "", filter: "", input: "" });
  const [error, setError] = useState<unknown>(null);
  const [key] = useState(newKey);
  const put = (field: keyof typeof given) => (event: { target: { value: string } }) => setGiven({ ...given, [field]: event.target.value });
  let mapping: unknown;
  let wrong: string | undefined;
  try {
    mapping = given.input.trim() ? parseJson(given.input) : undefined;
  } catch {
    wrong = "not JSON";
  }
  const body = { name: given.name, topic: given.topic, workflow: given.workflow, ...(given.filter.trim() ? { filter: given.filter } : {}), ...(mapping === undefined ? {} : { input: mapping }) };
  const save = async () => {
    try {
      await send({ method: "POST", path: "/subscriptions", body, key: `${key}-${JSON.stringify(body).length}` });
      await client.invalidateQueries({ queryKey: ["subscriptions"] });
      onClose();
    } catch (e) {
      setError(e);
    }
  };
  return (
    <Dialog title="Subscribe a workflow to a topic" onClose={onClose}>
      <form onSubmit={(event) => { event.preventDefault(); if (!wrong) void save(); }}>
        <div className="dialog-body">
          <ul className="will"><li>Every record of the topic from now on starts one run, once, whatever crashes.</li><li>A record that cannot be read is set aside as a dead letter; the topic goes on.</li></ul>
          <Field label="Name">{(id) => <input id={id} value={given.name} required pattern="[A-Za-z][A-Za-z0-9_.\-]{0,99}" onChange={put("name")} autoFocus />}</Field>
          <Field label="Topic">{(id) => <input id={id} value={given.topic} required pattern="[A-Za-z0-9._\-]{1,249}" onChange={put("topic")} />}</Field>
          <Field label="Workflow">{(id) => <select id={id} value={given.workflow} required onChange={put("workflow")}><option value="">choose</option>{workflows.data?.items.map((each) => <option key={each.name}>{each.name}</option>)}</select>}</Field>
          <Field label="Filter" hint="CEL over the record as `input`; empty: every record. Such as: input.type == 'order.created'">{(id) => <input id={id} className="mono" value={given.filter} onChange={put("filter")} />}</Field>
          <Field label="Input of the run" error={wrong} hint={'JSON with ${{ input.data.… }} in it; empty: the record\'s value'}>{(id) => <textarea id={id} className="mono" rows={3} value={given.input} onChange={put("input")} spellCheck={false} />}</Field>
          {error !== null && <Failure error={error} />}
        </div>
        <footer className="dialog-foot"><span className="grow" /><Button onClick={onClose}>Not now</Button><Button type="submit" kind="primary">Subscribe</Button></footer>
      </form>
    </Dialog>
  );
}
