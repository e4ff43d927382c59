// The frame around every page: where one is, what needs somebody, how live it is, who acts.
import { Component, lazy, Suspense, useMemo, useState, type ComponentType, type ReactNode } from "react";
import { useOverview } from "./api/hooks";
import { useLive } from "./api/live";
import { MAP, useKeys } from "./keys";
import { ApprovalsPage } from "./pages/approvals";
import { AuditPage } from "./pages/audit";
import { BulkPage, BulksPage } from "./pages/bulk";
import { LetterPage, LettersPage } from "./pages/letters";
import { OverviewPage } from "./pages/overview";
import { PublishPage } from "./pages/publish";
import { RunPage } from "./pages/run/page";
import { RunsPage } from "./pages/runs";
import { SystemPage } from "./pages/system";
import { TriggersPage } from "./pages/triggers";
import { WorkersPage } from "./pages/workers";
import { WorkflowPage, WorkflowsPage } from "./pages/workflows";
import { currentPrefs, setPrefs, usePrefs, type Clock, type Theme } from "./prefs";
import { Link, match, usePlace } from "./router";
import { actorOf, currentSession, logOut } from "./session";
import { Tray } from "./ui/act";
import { Icon, type IconName } from "./ui/icons";
import { Instant } from "./ui/instant";
import { Button, Dialog, Empty, Failure, Field, Segmented } from "./ui/parts";
import type { Tone } from "./ui/status";

const Palette = lazy(() => import("./palette").then((module) => ({ default: module.Palette })));

type Page = ComponentType<{ params: Record<string, string> }>;
const ROUTES: [string, Page][] = [
  ["", OverviewPage],
  ["/runs", RunsPage],
  ["/runs/:id", RunPage],
  ["/approvals", ApprovalsPage],
  ["/dead-letters", LettersPage],
  ["/dead-letters/:id", LetterPage],
  ["/bulk", BulksPage],
  ["/bulk/:id", BulkPage],
  ["/publish", PublishPage],
  ["/audit", AuditPage],
  ["/workflows", WorkflowsPage],
  ["/workflows/:name", WorkflowPage],
  ["/triggers", TriggersPage],
  ["/workers", WorkersPage],
  ["/system", SystemPage],
];

export function App() {
  const { path } = usePlace();
  const [open, setOpen] = useState<"palette" | "help" | "actor" | null>(null);
  const live = useLive();
  const keys = useMemo(
    () => ({ palette: () => setOpen("palette"), help: () => setOpen("help"), pause: () => live.pause(!live.paused) }),
    [live.paused],
  );
  useKeys(keys);
  const close = () => setOpen(null);
  const found = ROUTES.map(([pattern, page]) => ({ page, params: match(pattern, path) })).find(({ params }) => params);
  return (
    <div className="shell">
      <a className="skip-link" href="#main">To the content</a>
      <Navigation />
      <div className="main-column">
        <TopBar onPalette={() => setOpen("palette")} onHelp={() => setOpen("help")} onActor={() => setOpen("actor")} />
        <main id="main" tabIndex={-1}>
          <Guard key={path}>{found?.params ? <found.page params={found.params} /> : <NotFound />}</Guard>
        </main>
      </div>
      <Tray />
      {open === "palette" && <Suspense fallback={null}><Palette onClose={close} /></Suspense>}
      {open === "help" && <Help onClose={close} />}
      {open === "actor" && <ActorDialog onClose={close} />}
    </div>
  );
}

function Navigation() {
  const { path } = usePlace();
  const { data } = useOverview();
  const { nav } = usePrefs();
  const attention = data?.runs.needs_attention ?? 0;
  const queuesAlone = data?.queues.filter((queue) => queue.queued > 0 && !queue.workers).length ?? 0;
  const people = (data?.approvals_waiting ?? 0) + (data?.parked_tasks ?? 0);
  return (
    <nav className="nav" aria-label="Console">
      <Link to="/" className="brand" label="Headrace, overview">
        <svg width="22" height="22" viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="8" className="brand-box" /><path d="M7 10c4.500 0 4.500 4 9 4s4.500-4 9-4M7 16c4.500 0 4.500 4 9 4s4.500-4 9-4M7 22c4.500 0 4.500 4 9 4s4.500-4 9-4" transform="translate(0 -2)" className="brand-waves" /></svg>
        <span className="nav-word">Headrace</span>
      </Link>
      <ul>
        <Item to="/" icon="overview" word="Overview" current={path === "/"} />
        <Item to="/runs" icon="runs" word="Runs" current={path.startsWith("/runs")} count={attention} tone="warn" what="need attention" />
        <Item to="/approvals" icon="approvals" word="Approvals" current={path.startsWith("/approvals")} count={people} tone="wait" what="wait for a person" />
        <Item to="/dead-letters" icon="letters" word="Dead letters" current={path.startsWith("/dead-letters")} count={data?.dead_letters_parked ?? 0} tone="bad" what="parked" />
      </ul>
      <p className="nav-group">Build</p>
      <ul>
        <Item to="/workflows" icon="workflows" word="Workflows" current={path.startsWith("/workflows") || path === "/publish"} />
        <Item to="/triggers" icon="triggers" word="Triggers" current={path.startsWith("/triggers")} />
      </ul>
      <p className="nav-group">Operate</p>
      <ul>
        <Item to="/workers" icon="workers" word="Workers" current={path.startsWith("/workers")} count={queuesAlone} tone="warn" what="queues nobody serves" />
        <Item to="/bulk" icon="bulk" word="Bulk acts" current={path.startsWith("/bulk")} />
        <Item to="/system" icon="system" word="System" current={path.startsWith("/system")} />
        <Item to="/audit" icon="audit" word="Audit" current={path.startsWith("/audit")} />
      </ul>
      <div className="nav-foot">
        <span className="nav-word faint">{data ? `v${data.version}` : ""}</span>
        <Button kind="quiet" small icon={nav === "narrow" ? "right" : "left"} label={nav === "narrow" ? "Wide navigation" : "Narrow navigation"} onClick={() => setPrefs({ nav: currentPrefs().nav === "narrow" ? "wide" : "narrow" })} />
      </div>
    </nav>
  );
}

function Item({ to, icon, word, current, count, tone, what }: { to: string; icon: IconName; word: string; current: boolean; count?: number; tone?: Tone; what?: string }) {
  return (
    <li>
      <Link to={to} current={current} title={count ? `${word}: ${count} ${what}` : word}>
        <Icon name={icon} />
        <span className="nav-word">{word}</span>
        {count ? <span className={`count tone-${tone}`} aria-label={`${count} ${what}`}>{count > 999 ? "999+" : count}</span> : null}
      </Link>
    </li>
  );
}

function TopBar({ onPalette, onHelp, onActor }: { onPalette: () => void; onHelp: () => void; onActor: () => void }) {
  const prefs = usePrefs();
  const overview = useOverview();
  const themes: { value: Theme; word: ReactNode; title: string }[] = [
    { value: "light", word: <Icon name="sun" size={13} />, title: "Light" },
    { value: "system", word: <Icon name="display" size={13} />, title: "As the system" },
    { value: "dark", word: <Icon name="moon" size={13} />, title: "Dark" },
  ];
  const clocks: { value: Clock; word: string; title: string }[] = [
    { value: "relative", word: "ago", title: "Instants as an age" },
    { value: "utc", word: "UTC", title: "Instants in UTC" },
    { value: "local", word: "local", title: "Instants in local time" },
  ];
  return (
    <header className="topbar">
      <span className="environment" title="Namespace and place of the API"><b>{overview.data?.namespace ?? "…"}</b><span className="faint host">{location.host}</span></span>
      <button type="button" className="find" onClick={onPalette} title="Go to a page, a workflow or a run">
        <Icon name="search" size={14} /><span className="find-word">Go to …</span><kbd>Ctrl K</kbd>
      </button>
      <span className="grow" />
      <Liveness error={overview.isError ? overview.dataUpdatedAt : null} />
      <Segmented label="How instants are shown" options={clocks} value={prefs.clock} onChange={(clock) => setPrefs({ clock })} />
      <Segmented label="Theme" options={themes} value={prefs.theme} onChange={(theme) => setPrefs({ theme })} />
      <Button kind="quiet" icon="dense" label="Dense rows" pressed={prefs.density === "dense"} onClick={() => setPrefs({ density: prefs.density === "dense" ? "normal" : "dense" })} />
      <Button kind="quiet" icon="keyboard" label="Keyboard map" onClick={onHelp} />
      <button type="button" className="actor" onClick={onActor} title="Whom the record names for what you do">
        <Icon name="person" size={14} /><span className="actor-name">{actorOf(prefs)}</span>
      </button>
    </header>
  );
}

/** error: since when the last data that is shown stands, while the API is away. */
function Liveness({ error }: { error: number | null }) {
  const { open, paused, held, pause } = useLive();
  if (error !== null) {
    return <span className="live tone-bad" role="status"><Icon name="alert" size={14} /> API away{error > 0 && <>, data of <Instant at={new Date(error).toISOString()} /></>}</span>;
  }
  const tone: Tone = paused ? "warn" : open ? "ok" : "idle";
  const word = paused ? (held ? `${held} new` : "paused") : open ? "live" : "polling";
  return (
    <button type="button" className={`live tone-${tone}`} aria-pressed={paused} onClick={() => pause(!paused)} title={paused ? "Go on (p)" : open ? "Changes come by themselves. Pause (p)" : "No stream; pages look every few seconds. Pause (p)"}>
      <Icon name={paused ? "play" : "dot"} size={14} className={!paused && open ? "beating" : undefined} />
      <span aria-live="polite">{word}</span>
    </button>
  );
}

function Help({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard" onClose={onClose}>
      <dl className="keys">
        {MAP.map(([keys, what]) => (
          <div key={keys.join()}>
            <dt>{keys.map((key) => <kbd key={key}>{key}</kbd>)}</dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}

function ActorDialog({ onClose }: { onClose: () => void }) {
  const { actor, roles } = usePrefs();
  const [name, setName] = useState(actor);
  const [said, setSaid] = useState(roles);
  const isGood = /^[^\p{C}]{1,200}$/u.test(name.trim());
  const session = currentSession();
  const leave = <Button kind="quiet" onClick={() => void logOut()}>Log out</Button>;
  if (session && !session.local) {
    return (
      <Dialog title="Who acts" onClose={onClose}>
        <div className="dialog-body">
          <p>You are <b>{session.name}</b>, by the API token of that name. It may {session.scopes.join(", ")}{session.roles.length > 0 && <>, and has the roles {session.roles.join(", ")}</>}.</p>
        </div>
        <footer className="dialog-foot">{leave}</footer>
      </Dialog>
    );
  }
  return (
    <Dialog title="Who acts" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (!isGood) return;
          setPrefs({ actor: name.trim(), roles: said.trim() });
          onClose();
        }}
      >
        <div className="dialog-body">
          <Field label="Your name" hint="Stands in the history of everything you do here. With the token of this machine you may choose it." error={isGood ? undefined : "up to 200 printable characters"}>
            {(id) => <input id={id} value={name} onChange={(event) => setName(event.target.value)} autoFocus />}
          </Field>
          <Field label="Your roles" hint="With commas between them: approvals may ask for one, such as finance.">
            {(id) => <input id={id} value={said} maxLength={1000} onChange={(event) => setSaid(event.target.value)} />}
          </Field>
        </div>
        <footer className="dialog-foot">
          {leave}
          <span className="grow" />
          <Button type="submit" kind="primary" disabled={!isGood}>Keep</Button>
        </footer>
      </form>
    </Dialog>
  );
}

function NotFound() {
  return (
    <Empty icon="search" title="The console has no such page.">
      <Link to="/" className="link">To the overview</Link>
    </Empty>
  );
}

/** A page that breaks leaves the others working. */
class Guard extends Component<{ children: ReactNode }, { error: unknown }> {
  state: { error: unknown } = { error: null };
  static getDerivedStateFromError(error: unknown) {
    return { error };
  }
  render() {
    if (this.state.error === null) return this.props.children;
    return <div className="page"><Failure error={this.state.error} retry={() => this.setState({ error: null })} /></div>;
  }
}
