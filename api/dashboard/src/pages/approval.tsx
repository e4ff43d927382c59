// One question to people: what it takes, who has said what and by what right, and what else happened to it.
import type { ReactNode } from "react";
import { commentOn, decide, yesesOf, type Question } from "../acts";
import type { Schemas } from "../api/client";
import { ActButton } from "../ui/act";
import { Instant } from "../ui/instant";
import { Payload } from "../ui/json";
import { Facts } from "../ui/parts";
import { Status } from "../ui/status";

type Approval = Schemas["Approval"];
type Detail = Schemas["ApprovalDetail"];

const ON_EXPIRY: Record<string, string> = { fail: "the task fails", approve: "it counts as approved", reject: "it counts as rejected", escalate: "the next step is asked; when none is left, the task fails" };

export function ApprovalActs({ approval, large }: { approval: Question & { status: string }; large?: boolean }) {
  if (approval.status !== "waiting") return null;
  return (
    <div className="task-acts">
      <ActButton scope="approve" small={!large} icon="check" kind="primary" act={() => decide(approval, "approve")}>Approve …</ActButton>
      <ActButton scope="approve" small={!large} icon="cross" kind="danger" act={() => decide(approval, "reject")}>Reject …</ActButton>
      <ActButton scope="approve" small={!large} icon="edit" act={() => commentOn(approval)}>Comment …</ActButton>
    </div>
  );
}

export function ApprovalFacts({ approval }: { approval: Approval }) {
  const approvers = Array.isArray(approval.approvers) ? approval.approvers.map(String) : [];
  return (
    <Facts
      items={[
        ["Task", approval.task],
        ["Who may decide", <>{approvers.length ? approvers.join(", ") : "whoever may approve"}{approval.no_self_approval && <span className="muted">, but not who started the run</span>}</>],
        ...(approval.needed > 1 ? [["It takes", <span className="num">{yesesOf(approval)} of {approval.needed} yeses; the first no decides</span>] as [string, ReactNode]] : []),
        ["Asked", <Instant at={approval.asked_at} />],
        ["Expires", approval.expires_at ? <><Instant at={approval.expires_at} future={approval.status === "waiting"} /> <span className="muted">then {ON_EXPIRY[approval.on_expiry] ?? approval.on_expiry}</span></> : "never"],
        ...(approval.decided_at
          ? ([
              ["Decided", <Instant at={approval.decided_at} />],
              ["By", approval.decided_by ?? "–"],
              ["Comment", approval.comment ?? <span className="faint">none</span>],
            ] as [string, ReactNode][])
          : []),
        ["Digest of what is shown", <code className="clip" title={approval.digest}>{approval.digest.slice(0, 16)}</code>],
      ]}
    />
  );
}

/** The record: nothing of it is ever changed. */
export function Votes({ record }: { record: Detail["record"] }) {
  if (!record.length) return null;
  return (
    <section>
      <h3>Votes <span className="faint num">{record.length}</span></h3>
      <ol className="attempts" aria-label="Votes">
        {record.map((vote) => (
          <li key={`${vote.by} ${vote.voter}`}>
            <div className="attempt-head">
              <Status of={vote.decision === "approve" ? "approved" : "rejected"} />
              <b className="clip">{vote.by}</b>
              {vote.in_place_of && <span className="muted">in place of {vote.in_place_of}</span>}
              {vote.role && <span className="tag">{vote.role}</span>}
              <span className="grow" />
              <span className="muted clip" title="by what, and from where">{vote.source}{vote.address && ` ${vote.address}`}</span>
              <Instant at={vote.at} />
            </div>
            {vote.comment && <p>{vote.comment}</p>}
            {vote.form !== null && <Payload name="What was filled in" value={vote.form} />}
            <p className="faint">digest of what was shown <code title={vote.digest}>{vote.digest.slice(0, 16)}</code></p>
          </li>
        ))}
      </ol>
    </section>
  );
}

/** Reminders and steps, with when they fire; comments and all else that happened. */
export function Course({ approval }: { approval: Detail }) {
  if (!approval.timers.length && !approval.history.length) return null;
  return (
    <section>
      <h3>What else happened</h3>
      <ul className="plain" aria-label="What else happened">
        {approval.history.map((entry, index) => (
          <li key={index}>
            <Instant at={entry.at} /> <b>{entry.kind}</b> <span className="muted">by {entry.actor}</span> {textOf(entry.detail)}
          </li>
        ))}
        {approval.timers.filter((timer) => !timer.fired_at).map((timer) => (
          <li key={`${timer.kind}${timer.number}`} className="muted">
            {timer.due_at ? <Instant at={timer.due_at} future /> : "when it expires"} {timer.kind === "remind" ? "a reminder is told" : <>asked besides: {Array.isArray(timer.to) ? timer.to.map(String).join(", ") : "nobody"}</>}
          </li>
        ))}
      </ul>
    </section>
  );
}

function textOf(detail: unknown): string {
  if (detail === null || detail === undefined) return "";
  const said = typeof detail === "object" ? (detail as { comment?: unknown }).comment : detail;
  return typeof said === "string" ? said : JSON.stringify(detail);
}
