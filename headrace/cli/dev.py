"""`headrace dev`: everything on this machine, in one terminal."""

import fcntl
import os
import signal
import socket
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

import headrace
from headrace.cli.address import DATA, forget_addresses, write_addresses
from headrace.cli.api import Api
from headrace.cli.command import Exit, command
from headrace.cli.dev_log import DevLog
from headrace.cli.login import login_url
from headrace.cli.run_feed import RunFeed
from headrace.cli.terminal import Terminal
from headrace.cli.watch import Watch
from headrace.cli.workflow import Published, describe_published, find_workflows, publish_file
from headrace.errors import ConfigurationError, ConflictError, HeadraceError
from headrace.stack import Stack

API_PORT: Final = 8400
PORTS_TRIED: Final = 100
WATCH_SECONDS: Final = 0.5
"""Between two looks at the files: a saved file is at work within a second, and looking costs nothing to notice."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM; raised in the main thread, once."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.code = Exit.INTERRUPTED if number == signal.SIGINT else Exit.OK


@command(
    "dev",
    panel="Run things",
    epilog="Exit codes: 0 stopped by SIGTERM, 130 by Ctrl-C, 1 something did not start, 2 a file or setting is wrong, "
    "4 another dev uses the data folder, 5 Kafka or Postgres does not answer.",
)
def dev(
    terminal: Terminal,
    app: Annotated[
        str | None, typer.Argument(metavar="[APP]", help="your tasks: app.py or app.py:registry; default app.py")
    ] = None,
    workflow: Annotated[
        list[Path] | None, typer.Option(help="a workflow to publish; repeat it; default those beside APP")
    ] = None,
    kafka: Annotated[str | None, typer.Option(help="bootstrap servers of yours, instead of the log in memory")] = None,
    postgres: Annotated[str | None, typer.Option(help="URL of a database of yours, instead of an embedded one")] = None,
    port: Annotated[int, typer.Option(help="of the API; the next free one when it is taken")] = API_PORT,
    data: Annotated[Path, typer.Option(help="folder for what is kept between starts")] = DATA,
    reload: Annotated[bool, typer.Option(help="start the workers anew when a file is saved")] = True,
    workers: Annotated[int, typer.Option(min=0, max=64, help="worker processes")] = 1,
    slots: Annotated[int | None, typer.Option(min=1, help="bodies that run at once in each worker")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="all that the processes have to say")] = False,
) -> None:
    """Start Postgres, a log, the engine and workers; publish your workflows; show one log. Ctrl-C stops it all."""
    app = app or ("app.py" if Path("app.py").is_file() else None)
    folder = _file_of(app).parent if app else Path.cwd()
    _check_files([*([_file_of(app)] if app else []), *(workflow or [])])
    log = DevLog(is_json=terminal.is_json)
    with _signals(), ExitStack() as parts:
        try:
            parts.enter_context(_alone(data))
            stack = Stack(
                app,
                kafka=kafka,
                postgres=postgres,
                data=data,
                port=free_port_from(port),
                workers=workers,
                slots=slots,
                log_level="info" if verbose else "warning",
                worker_log_level="info",
                can_crash=True,
                log=log,
            )
            terminal.say("starting …")
            parts.enter_context(stack)
            parts.callback(forget_addresses, data)
            write_addresses(data, {"api": stack.api_url, "kafka": stack.kafka, "token": stack.token})
            api = parts.enter_context(Api(stack.api_url, stack.token, actor="dev"))
            session = DevSession(stack, api, log, lambda: workflow or find_workflows(folder))
            _banner(terminal, stack, app, session.publish(), login_url(api), is_reloading=reload and bool(app))
            parts.enter_context(RunFeed(stack.api_url, stack.token, lambda line: log("run", line)))
            session.watch([folder] if app else [], is_reloading=reload)
        except Interrupted as interrupted:
            terminal.say("stopping …")
            raise typer.Exit(interrupted.code) from None


class DevSession:
    """What goes on while dev runs: published workflows and workers follow the files."""

    def __init__(self, stack: Stack, api: Api, log: DevLog, files: Callable[[], Sequence[Path]]) -> None:
        self._stack, self._api, self._log, self._find = stack, api, log, files
        self._known: set[Path] = set()

    def publish(self, only: set[Path] | None = None) -> list[Published]:
        """Publish the workflow files, or those of them that are in `only`. A fault is said and the rest goes on."""
        published = []
        for file in self._files():
            if only is not None and file.resolve() not in only:
                continue
            try:
                published.append(publish_file(self._api, file))
            except (HeadraceError, typer.BadParameter) as error:
                self._log("dev", f"{file.name} was not published")
                for line in str(error).splitlines():
                    self._log("dev", f"  {line}")
        return published

    def _files(self) -> list[Path]:
        """Those found now, and those found before: one that is broken for a moment no longer looks like a workflow."""
        self._known = {file for file in self._known.union(self._find()) if file.is_file()}
        return sorted(self._known)

    def watch(self, folders: Sequence[Path], *, is_reloading: bool) -> None:
        """Follow the files until interrupted."""
        watch = Watch(folders if is_reloading else [], self._files())
        while True:
            time.sleep(WATCH_SECONDS)
            if not is_reloading:
                continue
            watch.files = {file.resolve() for file in self._files()}
            changed = watch.changed()
            for published in self.publish(changed & watch.files) if changed else ():
                self._log("dev", f"published {describe_published(published)}")
            if any(path.suffix == ".py" for path in changed):
                names = ", ".join(sorted(path.name for path in changed if path.suffix == ".py")[:3])
                self._log("dev", f"{names} changed; the workers start anew")
                self._stack.restart_workers()


def free_port_from(first: int) -> int:
    """The first free port of the loopback from `first` on. Raises ConfigurationError when there is none near."""
    for port in range(first, min(first + PORTS_TRIED, 65_536)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise ConfigurationError(f"no free port from {first} on; choose another with --port")


def _file_of(app: str) -> Path:
    return Path(app.partition(":")[0])


def _check_files(files: Sequence[Path]) -> None:
    for file in files:
        if not file.is_file():
            raise ConfigurationError(f"there is no file {file}; `headrace new DIR` makes a project to start from")


@contextmanager
def _signals() -> Generator[None]:
    """The first Ctrl-C or SIGTERM stops in order; a second one leaves at once, and the reapers end what still runs."""

    def first(number: int, frame: FrameType | None) -> None:
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, lambda *_: os._exit(Exit.INTERRUPTED))
        raise Interrupted(number)

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _alone(data: Path) -> Generator[None]:
    """Hold the data folder; the kernel lets go of it when we end. Raises ConflictError."""
    data.mkdir(parents=True, exist_ok=True)
    (data / ".gitignore").write_text("*\n")
    with (data / "lock").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise ConflictError(f"another `headrace dev` uses {data}: process {file.read().strip()}") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


# == the banner ========================================================================================================
def _banner(
    terminal: Terminal, stack: Stack, app: str | None, published: Sequence[Published], login: str, *, is_reloading: bool
) -> None:
    document = {
        "api": stack.api_url,
        "console": stack.console_url,
        "login": login,
        "docs": f"{stack.api_url}/docs",
        "kafka": stack.kafka,
        "postgres": stack.postgres,
        "data": str(stack.data),
        "processes": stack.pids(),
        "workflows": [{"name": each.name, "version": each.version} for each in published],
    }
    if terminal.is_json:
        terminal.print_json(document)
    else:
        terminal.console.print(_draw_banner(stack, app, published, login, is_reloading=is_reloading))


def _draw_banner(
    stack: Stack, app: str | None, published: Sequence[Published], login: str, *, is_reloading: bool
) -> RenderableType:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim")
    rows.add_column(overflow="fold")
    for name, text in _facts(stack, app, published, login, is_reloading=is_reloading):
        rows.add_row(name, text)
    return Group(Text(f"headrace {headrace.__version__}", style="bold"), rows, "")


def _facts(
    stack: Stack, app: str | None, published: Sequence[Published], login: str, *, is_reloading: bool
) -> Iterator[tuple[str, Text]]:
    own_postgres, own_log = stack.postgres_server is not None, stack.broker is not None
    yield (
        "postgres",
        _fact(f"embedded, kept in {_near(stack.data)}", "--postgres URL to use yours")
        if own_postgres
        else Text("yours"),
    )
    yield (
        "log",
        _fact("embedded, memory only; losing it loses no run", "--kafka HOST:PORT to use yours")
        if own_log
        else Text(f"yours, {stack.kafka}"),
    )
    yield "workers", _workers_fact(stack, app, is_reloading=is_reloading)
    found = ", ".join(describe_published(each) for each in published)
    yield "workflows", Text(found or "none yet: put a workflow.yaml beside your tasks")
    yield "console", Text.assemble((login, "bold"), ("  (logs in once; headrace login for another)", "dim"))
    yield "api", Text.assemble((stack.api_url, "bold"), f"    docs {stack.api_url}/docs")
    if published:
        yield "try", Text(f"headrace run {published[0].name}{published[0].sample}", style="bold")
    yield "stop", Text("Ctrl-C")


def _workers_fact(stack: Stack, app: str | None, *, is_reloading: bool) -> Text:
    pids = [str(pid) for name, pid in stack.pids().items() if name.startswith("worker")]
    if not app or not pids:
        return _fact("none", "name your file: headrace dev app.py")
    noun = "processes" if len(pids) > 1 else "process"
    return Text(f"{len(pids)} {noun} on {app}, pid {', '.join(pids)}{', reload on save' if is_reloading else ''}")


def _near(path: Path) -> str:
    """Relative to where we are, when it is below."""
    return f"{path.relative_to(Path.cwd())}/" if path.is_relative_to(Path.cwd()) else str(path)


def _fact(text: str, hint: str) -> Text:
    return Text.assemble(text, (f"  ({hint})", "dim"))
