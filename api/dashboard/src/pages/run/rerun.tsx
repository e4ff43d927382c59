// What has ended runs again, or moves to another version: what that would do is asked first, and is what the act then takes.
import { fill, get, send, type Schemas } from "../../api/client";
import { isOver, shortId } from "../../api/hooks";
import { quote, type Act } from "../../ui/act";
import { Difference, pretty } from "../../ui/json";
import { Notice } from "../../ui/parts";
import { Status } from "../../ui/status";

type Run = Schemas["Run"];
type Rerun = Schemas["Rerun"];
type Again = Rerun["again"][number];

const PROTECTION: Record<string, string> = {
  effect_key: "its effect key: the other side, if it knows the key, does it once",
  lookup: "its lookup, which is asked first",
  person: "a person, who is asked first",
};

/** What an effect that may have happened means for whoever presses. */
export function effectWord({ effect, protected_by }: { effect: string; protected_by: string | null }): string {
  switch (effect) {
    case "repeats":
      return protected_by ? `repeats, protected by ${PROTECTION[protected_by] ?? protected_by}` : "repeats, and nothing protects it";
    case "did_not_happen":
      return "did not happen, as its last attempt told";
    case "first":
      return "happens for the first time";
    default:
      return "it has none";
  }
}

const THEN: Record<Again["then"], string> = { begins: "begins at once", follows: "follows", skipped: "is skipped again", failed: "fails again at once" };

function Preview({ shown }: { shown: Rerun }) {
  return (
    <div className="preview">
      <table className="plain-table">
        <caption className="sr-only">What runs again</caption>
        <thead><tr><th scope="col">Runs again</th><th scope="col">Now</th><th scope="col">Then</th><th scope="col">Its effect</th></tr></thead>
        <tbody>
          {shown.again.map((each) => (
            <tr key={each.task}>
              <th scope="row">{each.task}{each.items !== null && <span className="faint"> {each.items} items</span>}</th>
              <td><Status of={each.status} compact /></td>
              <td>{THEN[each.then]}</td>
              <td className={each.effect === "repeats" ? (each.protected_by ? "tone-warn" : "tone-bad") : undefined}>{effectWord(each)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="muted">{shown.reused.length ? <>Reused as they stand: {shown.reused.join(", ")}.</> : "No result is reused."}</p>
    </div>
  );
}

/**
 * tasks: none for what failed or was cancelled. edited: takes the place of the input of the one task. version: to go on
 * with; left out, the one that the run is on.
 */
export async function foreseeRerun(run: Run, tasks: string[], edited?: { before: unknown; after: unknown }, version?: number): Promise<Act> {
  const path = fill("/runs/{id}/rerun", { id: run.run_id });
  const asked = { tasks, ...(edited ? { input: edited.after } : {}), ...(version === undefined ? {} : { version }) };
  const [shown, { versions, latest_version }] = await Promise.all([
    send<Rerun>({ method: "POST", path, body: { ...asked, dry_run: true } }),
    get("/workflows/{workflow}", { workflow: run.workflow }),
  ]);
  const isOwn = shown.to_version === shown.version;
  const name = shortId(run.workflow, run.run_id);
  const repeats = shown.again.filter((each) => each.effect === "repeats").length;
  const from = tasks.map((task) => ` --from ${task}`).join("");
  return {
    title: tasks.length ? `Rerun ${name} from ${tasks.join(", ")}` : `Rerun what failed of ${name}`,
    verb: `Rerun ${shown.again.length} ${shown.again.length === 1 ? "task" : "tasks"}`,
    does: "rerun",
    will: [
      isOwn
        ? `The same run goes on, on version ${shown.version}, the one that it is on.`
        : `The same run goes on, moved from version ${shown.version} to ${shown.to_version}. What that adds runs, too.`,
      `Its attempts are numbered on, and its former results stay with them.`,
      repeats ? `${repeats} ${repeats === 1 ? "effect repeats" : "effects repeat"}; what protects each stands below.` : "No effect repeats.",
      "Approvals of what runs again are asked for again, and its waits begin again. Signals that were stored are kept.",
    ],
    reason: "optional",
    path,
    body: (reason) => ({ ...asked, reason, row_version: shown.row_version }),
    cli: (reason) => `headrace rerun ${run.run_id}${from}${edited ? ` --input ${quote(JSON.stringify(edited.after))}` : ""}${version === undefined ? "" : ` --version ${version}`}${reason ? ` --reason ${quote(reason)}` : ""}`,
    wrong: shown.obstacles.length ? "something stands in the way of that version" : undefined,
    choice: {
      word: "On version",
      value: String(shown.to_version),
      options: versions.map((each) => ({ value: String(each.version), word: versionWord(each.version, shown.version, latest_version) })),
      choose: (value) => foreseeRerun(run, tasks, edited, Number(value) === shown.version ? undefined : Number(value)),
    },
    extra: (
      <>
        <Obstacles of={shown.obstacles} />
        {!isOwn && !shown.obstacles.length && <Notice tone="ok">It fits version {shown.to_version}: nothing stands in the way.</Notice>}
        {!shown.obstacles.length && <Preview shown={shown} />}
        {edited && <Difference label="What was changed of the input" before={pretty(edited.before)} after={pretty(edited.after)} />}
      </>
    ),
    follow: async () => {
      const now = await get("/runs/{run_id}", { run_id: run.run_id });
      if (now.row_version <= shown.row_version) return { state: "following", text: "accepted; the run has not taken it yet" };
      if (!isOver(now.status)) return { state: "following", text: `the run is ${now.status}` };
      return now.status === "completed" ? { state: "completed", text: "it helped: the run is completed" } : { state: "failed", text: `the run is ${now.status} again` };
    },
    to: `/runs/${run.run_id}`,
  };
}

const versionWord = (version: number, own: number, latest: number): string =>
  `v${version}${version === own ? ", the one that it is on" : ""}${version === latest ? ", the latest" : ""}`;

function Obstacles({ of }: { of: Schemas["Obstacle"][] }) {
  if (!of.length) return null;
  return (
    <Notice tone="warn">
      <b>It cannot be moved as it stands.</b>
      <ul className="plain">{of.map((each) => <li key={`${each.task ?? ""} ${each.why}`}>{each.task && <code>{each.task}</code>} {each.why}</li>)}</ul>
    </Notice>
  );
}

/** version: undefined for the latest. What stands in the way is shown, and then it cannot be done. */
export async function foreseeMove(run: Run, version?: number): Promise<Act> {
  const path = fill("/runs/{id}/migrate", { id: run.run_id });
  const asked = version === undefined ? {} : { version };
  const shown = await send<Schemas["Migration"]>({ method: "POST", path, body: { ...asked, dry_run: true } });
  const { obstacles } = shown;
  return {
    title: `Move ${shortId(run.workflow, run.run_id)} to version ${shown.to_version}`,
    verb: "Move",
    does: "migrate",
    will: [
      `It is moved from version ${shown.from_version} to ${shown.to_version}. What has ended stands, and what has begun keeps its place, name and effect key.`,
      "All other joins are counted anew by the new graph. Nothing begins by the move itself: what may begin does so when the run is resumed.",
    ],
    reason: "optional",
    path,
    body: (reason) => ({ ...asked, reason }),
    cli: (reason) => `headrace migrate ${run.run_id}${version === undefined ? "" : ` --to ${version}`}${reason ? ` --reason ${quote(reason)}` : ""}`,
    wrong: obstacles.length ? "something stands in the way" : undefined,
    extra: obstacles.length ? <Obstacles of={obstacles} /> : <Notice tone="ok">Nothing stands in the way.</Notice>,
    follow: async () => {
      const now = await get("/runs/{run_id}", { run_id: run.run_id });
      return now.version === shown.to_version ? { state: "completed", text: `the run is on version ${now.version}` } : { state: "following", text: `accepted; the run is on version ${now.version} still` };
    },
    to: `/runs/${run.run_id}?tab=definition`,
  };
}
