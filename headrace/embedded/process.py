"""One server process that cannot outlive the process that started it."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from headrace.embedded.reaper import STOP
from headrace.errors import UnavailableError

REAPER = Path(__file__).with_name("reaper.py")
LOG_TAIL_BYTES = 4_000
"""What an error shows of a server's log: the last screen."""
PORT_MIN: Final = 12_000
"""Above the ports that well-known servers, also Headrace's own API, listen on."""
PORT_TRIES: Final = 200


@dataclass(frozen=True)
class Account:
    """The user a server runs as when we are root; the primary group only."""

    name: str
    user_id: int
    group_id: int


class ServerProcess:
    """A running server under its reaper.

        process = ServerProcess.start(["java", …], log=Path("broker.log"))
        process.stop()

    `pid` is the server's own. The reaper is a direct child and ends with the server.
    """

    def __init__(self, reaper: "subprocess.Popen[bytes]", channel: socket.socket, pid: int) -> None:
        self._reaper = reaper
        self._channel = channel
        self.pid = pid

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        *,
        log: Path,
        stop_signal: signal.Signals = signal.SIGTERM,
        grace_seconds: float = 10.0,
        account: Account | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        remove: Sequence[Path] = (),
        talk: bool = False,
    ) -> Self:
        """Start `command`; its output is added to `log`.

        remove: folders to delete once the server stopped because we died; while we live that is ours to do.
        talk: connect the server's standard input and output to `stdin` and `stdout` instead.
        Raises UnavailableError when the command cannot be run.
        """
        ours, theirs = socket.socketpair()
        arguments: list[str | Path] = [
            *(sys.executable, "-I", "-S", REAPER),
            *("--channel", str(theirs.fileno()), "--owner", str(os.getpid())),
            *("--stop-signal", stop_signal.name, "--grace-seconds", str(grace_seconds)),
            *_account_arguments(account),
            *(part for path in remove for part in ("--remove", path)),
            "--",
            *command,
        ]
        with log.open("ab") as output:
            reaper = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE if talk else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talk else output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=directory,
                start_new_session=True,
            )
        theirs.close()
        pid = _read_pid(ours)
        if pid is None:
            ours.close()
            reaper.wait()
            raise UnavailableError(f"cannot run {command[0]}:\n{log_tail(log)}")
        return cls(reaper, ours, pid)

    @property
    def is_running(self) -> bool:
        return self._reaper.poll() is None

    @property
    def stdin(self) -> IO[bytes]:
        assert self._reaper.stdin is not None, "only a server started with `talk` is asked"
        return self._reaper.stdin

    @property
    def stdout(self) -> IO[bytes]:
        assert self._reaper.stdout is not None, "only a server started with `talk` is asked"
        return self._reaper.stdout

    def stop(self) -> None:
        """Stop the server: its stop signal, then SIGKILL after the grace. Safe to repeat."""
        with contextlib.suppress(OSError):  # the reaper is gone, and so is the server
            self._channel.sendall(STOP)
        self._end()

    def kill9(self) -> None:
        """End the server as a crash would."""
        # The reaper has not collected the server while it runs itself, so the id cannot be another process's.
        if self.is_running:
            os.kill(self.pid, signal.SIGKILL)
        self._end()

    def _end(self) -> None:
        self._reaper.wait()
        self._channel.close()
        for stream in (self._reaper.stdin, self._reaper.stdout):
            if stream is not None:
                stream.close()


def log_tail(log: Path) -> str:
    """The end of a server's log, for an error message; empty when there is none."""
    try:
        return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
    except OSError:
        return ""


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now.

    Below the range from which the kernel takes ports for outgoing connections: one from inside it may be some client's
    by the time a server wants it, or wants it again after a restart. Another server may still take it first. Raises
    OSError when none is free.
    """
    first_of_clients = _first_client_port()
    servers = range(PORT_MIN, first_of_clients)
    draw = random.SystemRandom()  # several processes that start together must not draw the same
    for port in draw.sample(servers, min(PORT_TRIES, len(servers))) or [0]:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return int(probe.getsockname()[1])
    raise OSError(f"no free port of 127.0.0.1 between {PORT_MIN} and {first_of_clients}")


def _first_client_port() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32_768  # Linux's own default


def _account_arguments(account: Account | None) -> Sequence[str]:
    if account is None:
        return ()
    return ("--user", str(account.user_id), "--group", str(account.group_id))


def _read_pid(channel: socket.socket) -> int | None:
    """The server's process id; None when the reaper ended without one."""
    line = b""
    while not line.endswith(b"\n"):
        part = channel.recv(64)
        if not part:
            return None
        line += part
    return int(line)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started and that still run, oldest first. Needs /proc."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return sorted(found)
