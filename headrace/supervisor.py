"""Runs a set of processes as one: started, watched, started again when they die, stopped in order, never left behind.

    supervisor = Supervisor(os.environ, log=lambda name, line: print(name, line))
    supervisor.add("api", [sys.executable, "-m", "api"])
    supervisor.wait_ready(lambda: answers(url), seconds=20, what="the API")
    supervisor.kill("api", signal.SIGKILL)     # it comes back
    supervisor.stop()

Each child runs under the reaper of `headrace.embedded`, so it ends even when this process is killed with SIGKILL. A
thread per child reads its output line by line, and starts it again when it ended on its own.
"""

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from headrace.embedded.process import REAPER
from headrace.errors import ConfigurationError, HeadraceError, UnavailableError

Log = Callable[[str, str], None]
"""Takes the name of a child and one line it wrote, without its line end; called from several threads."""

BACKOFF_SECONDS: Final = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Wait before each restart in a row; the last one repeats."""
STEADY_SECONDS: Final = 10.0
"""A child that lived this long is no longer in a row of failures."""
GRACE_SECONDS: Final = 4.0
"""Between SIGTERM and SIGKILL: with the servers' own stop it stays under what a person at Ctrl-C waits for."""
ORPHAN_GRACE_SECONDS: Final = 5.0
"""The same, when this process died and the reaper stops the child."""
END_CHECK_SECONDS: Final = 0.5
"""How late the end of a child is seen when a process of its own still holds its output open."""
ASK_SECONDS: Final = 0.05
EXIT_REFUSED: Final = 2
"""A child that ends with it found its configuration wrong: trying again changes nothing until somebody does."""


class Child:
    """One named process over its lives; made by `Supervisor.add`."""

    def __init__(self, name: str, argv: Sequence[str], env: Mapping[str, str], directory: Path | None) -> None:
        self.name = name
        self.argv = list(argv)
        self.env = dict(env)
        self.directory = directory
        self.wanted = True
        """Whether it should be running; a child that is not wanted is not started again."""
        self.is_parked = False
        """It ended with EXIT_REFUSED and waits for `restart`."""
        self.not_before = 0.0
        """Monotonic time of its next start, after it died."""
        self.starts = 0
        self.pid: int | None = None
        self.reaper: subprocess.Popen[bytes] | None = None
        self.channel: socket.socket | None = None
        self.changed = threading.Condition()

    @property
    def is_running(self) -> bool:
        return self.reaper is not None and self.reaper.poll() is None

    def start(self) -> None:
        """Raises ConfigurationError when the command cannot be run at all."""
        ours, theirs = socket.socketpair()
        argv = [
            *(sys.executable, "-I", "-S", str(REAPER), "--channel", str(theirs.fileno()), "--owner", str(os.getpid())),
            *("--grace-seconds", str(ORPHAN_GRACE_SECONDS), "--", *self.argv),
        ]
        reaper = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            env=self.env,
            cwd=self.directory,
            start_new_session=True,
        )
        theirs.close()
        with ours.makefile("rb") as answer:
            line = answer.readline()
        if not line:
            ours.close()
            reaper.communicate()
            raise ConfigurationError(f"cannot run {self.argv[0]} for {self.name}")
        with self.changed:
            self.reaper, self.channel, self.pid = reaper, ours, int(line)
            self.starts += 1
            self.changed.notify_all()

    def signal(self, number: int) -> bool:
        """Send it a signal; False when it is not running."""
        # The reaper has not collected the child while it runs itself, so the id cannot be another process's.
        if self.pid is None or not self.is_running:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        return True

    def collect(self) -> int:
        """Wait for its end and return its exit status: 128 + n after signal n, as a shell says it."""
        if self.reaper is None:
            return 0
        status = self.reaper.wait()
        if self.channel is not None:
            self.channel.close()
        if self.reaper.stdout is not None:
            self.reaper.stdout.close()
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # what it left behind; it led a session of its own
        with self.changed:
            self.pid = None
            self.changed.notify_all()
        return status

    def wait_ended(self, seconds: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.pid is None, seconds)


class Supervisor:
    """Owns the children it was given.

    env: what every child gets, before its own additions.
    log: gets every line of every child, and what the supervisor has to say itself, under the name of that child.
    """

    def __init__(self, env: Mapping[str, str], log: Log, *, grace_seconds: float = GRACE_SECONDS) -> None:
        self._env = dict(env)
        self._log = log
        self._grace = grace_seconds
        self._children: dict[str, Child] = {}
        self._watchers: dict[str, threading.Thread] = {}
        self._stopping = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def add(
        self,
        name: str,
        argv: Sequence[str],
        *,
        restart: bool = True,
        env: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> Child:
        """Start a process and keep it running. restart: start it again whenever it ends, until `stop` or `end`.

        Raises ConfigurationError for a name in use, or a command that cannot be run.
        """
        if name in self._children:
            raise ConfigurationError(f"there is a process named {name} already")
        child = Child(name, argv, {**self._env, **(env or {})}, directory)
        child.start()
        self._children[name] = child
        watcher = threading.Thread(target=self._watch, args=(child, restart), name=f"watch-{name}", daemon=True)
        self._watchers[name] = watcher
        watcher.start()
        return child

    def run(self, name: str, argv: Sequence[str], *, seconds: float = 60, env: Mapping[str, str] | None = None) -> None:
        """Run a command to its end, such as a migration. Raises HeadraceError with its output when it fails."""
        try:
            done = subprocess.run(
                list(argv),
                env={**self._env, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{name} did not end within {seconds:g} s") from None
        lines = done.stdout.decode(errors="replace").splitlines()
        if done.returncode:
            raise HeadraceError("\n".join([f"{name} failed:", *lines[-20:]]))
        for line in lines:
            self._log(name, line)

    def child(self, name: str) -> Child:
        try:
            return self._children[name]
        except KeyError:
            known = ", ".join(self._children) or "none"
            raise ConfigurationError(f"no process named {name}; there are: {known}") from None

    def names(self) -> list[str]:
        return list(self._children)

    def pids(self) -> dict[str, int]:
        """The process id of every child that runs now, by name, in the order they were added."""
        return {name: child.pid for name, child in self._children.items() if child.pid is not None and child.is_running}

    def kill(self, name: str, number: int = signal.SIGKILL) -> int | None:
        """Send a signal, as a fault or an operator would; a child added with `restart` comes back.

        Returns the process id it had, None when it was not running.
        """
        child = self.child(name)
        pid = child.pid
        return pid if child.signal(number) else None

    def end(self, name: str, number: int = signal.SIGTERM, *, seconds: float | None = None) -> None:
        """Stop one child for good, or until `restart`."""
        child = self.child(name)
        self._end_all([child], number, self._grace if seconds is None else seconds)

    def restart(self, *names: str) -> None:
        """Stop these children in order and start them anew, also those that had ended or were parked."""
        children = [self.child(name) for name in names]
        self._end_all(children, signal.SIGTERM, self._grace)
        for child in children:
            with child.changed:
                child.wanted, child.is_parked, child.not_before = True, False, 0.0
                child.changed.notify_all()

    def wait_ready(
        self, is_ready: Callable[[], bool], *, seconds: float, what: str, of: Collection[str] | None = None
    ) -> None:
        """Ask until it is so. Raises UnavailableError after `seconds`, HeadraceError once a child in `of` was parked.

        of: the children it depends on; None for all of them.
        """
        end = time.monotonic() + seconds
        while not is_ready():
            names = self._children if of is None else of
            parked = [name for name in names if self.child(name).is_parked]
            if parked:
                raise HeadraceError(f"{', '.join(parked)} refused to start; its reason is in the log above")
            if time.monotonic() > end:
                raise UnavailableError(f"{what} was not ready within {seconds:g} s")
            if self._stopping.wait(ASK_SECONDS):
                raise UnavailableError(f"stopped while waiting for {what}")

    def stop(self, *groups: Collection[str]) -> None:
        """Stop everything: the children of each group together, group after group, then all others. Safe to repeat."""
        self._stopping.set()
        named = {name for group in groups for name in group}
        for group in [*groups, [name for name in self._children if name not in named]]:
            children = [self._children[name] for name in group if name in self._children]
            self._end_all(children, signal.SIGTERM, self._grace)
        for child in self._children.values():
            with child.changed:
                child.changed.notify_all()
        for watcher in self._watchers.values():
            watcher.join(timeout=2)

    def _end_all(self, children: Sequence[Child], number: int, grace: float) -> None:
        for child in children:
            child.wanted = False
            child.signal(number)
        end = time.monotonic() + grace
        for child in children:
            if not child.wait_ended(max(0.0, end - time.monotonic())):
                self._log(child.name, f"did not stop within {grace:g} s; killed")
                child.signal(signal.SIGKILL)
                child.wait_ended(2)

    def _watch(self, child: Child, restart: bool) -> None:
        failures = 0
        while True:
            started = time.monotonic()
            self._read(child)
            status = child.collect()
            failures = 0 if time.monotonic() - started > STEADY_SECONDS else failures + 1
            if not self._await_next_start(child, status, failures, restart):
                return

    def _read(self, child: Child) -> None:
        """Hand on its output until it ends; a process of its own may hold the pipe longer and is not waited for."""
        output = child.reaper.stdout if child.reaper is not None else None
        if output is None:
            return
        rest = b""
        while True:
            readable, _, _ = select.select([output], [], [], END_CHECK_SECONDS)
            part = os.read(output.fileno(), 65_536) if readable else b""
            if not part and (readable or not child.is_running):
                break
            *lines, rest = (rest + part).split(b"\n")
            for line in lines:
                self._log(child.name, line.decode(errors="replace").rstrip())
        if rest:
            self._log(child.name, rest.decode(errors="replace").rstrip())

    def _await_next_start(self, child: Child, status: int, failures: int, restart: bool) -> bool:
        """Wait as long as this end of the child asks for, then start it. False when it should not run any more."""
        if child.wanted and not self._stopping.is_set():
            self._note_end(child, status, failures, restart)
        while not self._stopping.is_set():
            with child.changed:
                pause = max(0.0, min(child.not_before - time.monotonic(), END_CHECK_SECONDS))
                if pause or not child.wanted or child.is_parked:
                    child.changed.wait(pause or END_CHECK_SECONDS)
                    continue
            if self._try_start(child):
                return True
        return False

    def _note_end(self, child: Child, status: int, failures: int, restart: bool) -> None:
        """The child ended and nobody asked for it."""
        if not restart:
            child.wanted = False
        elif status == EXIT_REFUSED:
            child.is_parked = True
            self._log(child.name, "refused to start; waiting for a change")
        else:
            pause = BACKOFF_SECONDS[min(max(failures, 1), len(BACKOFF_SECONDS)) - 1]
            child.not_before = time.monotonic() + pause
            self._log(child.name, f"{describe_end(status)}; starting it again in {pause:g} s")

    def _try_start(self, child: Child) -> bool:
        try:
            child.start()
        except (OSError, ConfigurationError) as error:
            self._log(child.name, str(error))
            child.not_before = time.monotonic() + BACKOFF_SECONDS[-1]
            return False
        if self._stopping.is_set():  # `stop` looked before there was a process
            child.signal(signal.SIGTERM)
        return True


def describe_end(status: int) -> str:
    """An exit status in words: `died (SIGKILL)`, `ended with status 1`."""
    if status <= 128:
        return f"ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"died ({signal.Signals(status - 128).name})"
    return f"died (signal {status - 128})"
