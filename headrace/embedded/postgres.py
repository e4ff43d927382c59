"""A real Postgres for development and tests: the machine's own server, or the engine extra's.

Durable as in production (`fsync` and `synchronous_commit` are on), with logical decoding, on 127.0.0.1 and a socket in
its data folder. Whoever can open a connection from this machine is let in: it is for one developer's machine.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import quote

from headrace.embedded.binaries import Binaries, find_binaries
from headrace.embedded.process import ServerProcess, free_port, log_tail
from headrace.embedded.unprivileged import find_account, reachable_binaries, reachable_data_dir
from headrace.errors import UnavailableError

SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "fsync": "on",
    "synchronous_commit": "on",
    "max_connections": "100",
    "max_wal_size": "4GB",
    # A slot whose relay is gone may hold this much; then Postgres drops it and the sweep publishes anew.
    "max_slot_wal_keep_size": "4GB",
    "jit": "off",  # compiling costs more than any statement of ours runs
    "autovacuum_naptime": "10s",
    "log_line_prefix": "%m [%p] ",
}
SUPERUSER: Final = "postgres"
SOCKET_PATH_BYTES_MAX: Final = 107
"""Linux, `sun_path` in unix(7), less its final zero."""
START_SECONDS: Final = 60.0
"""Long enough for crash recovery of `max_wal_size`."""
OTHER_SERVER_SECONDS: Final = 10.0
"""How long a server whose owner died may take to shut down before we say that its data is in use."""
POLL_SECONDS: Final = 0.02
CRASH_LEFTOVERS: Final = ("is still in use", 'lock file "postmaster.pid" already exists')
"""What a start says while the backends of a killed server are still ending."""
ADDRESS_TAKEN: Final = "could not create any TCP/IP sockets"


class EmbeddedPostgres:
    """One Postgres server.

        with EmbeddedPostgres(Path(".headrace/postgres")) as postgres:
            psycopg.connect(postgres.dsn)

    data_dir: kept, and used again by the next start; None for a temporary one, removed at `close`.
    settings: more of postgresql.conf, over SETTINGS.
    bin_dir: where `postgres` and `initdb` are; None to find them.
    user: who runs the server when we are root; None for the first of `postgres`, `pg`, `nobody`.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        port: int | None = None,
        shared_buffers: str = "128MB",
        settings: Mapping[str, str] | None = None,
        bin_dir: Path | None = None,
        user: str | None = None,
    ) -> None:
        self._is_temporary = data_dir is None
        self._account = find_account(user)
        wanted = data_dir or Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        self._wanted_dir = wanted.absolute()
        self._fixed_port = port
        self.port = port or free_port()
        self.settings = {**SETTINGS, "shared_buffers": shared_buffers, **(settings or {})}
        self._bin_dir = bin_dir
        self._process: ServerProcess | None = None
        self.data_dir = self._wanted_dir
        """Where the data is; after a start as root, possibly not where it was asked for (see `unprivileged`)."""
        self._socket_dir: Path | None = None

    @property
    def dsn(self) -> str:
        """libpq's keyword form, for the database `postgres`."""
        return self.dsn_of("postgres")

    @property
    def url(self) -> str:
        """libpq's URL form, for the database `postgres`."""
        return self.url_of("postgres")

    def dsn_of(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user={SUPERUSER} dbname={database}"

    def url_of(self, database: str) -> str:
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{quote(database)}"

    @property
    def socket_dir(self) -> Path:
        """The folder of the unix socket: `host=` of a DSN that avoids TCP."""
        assert self._socket_dir is not None, "known once started"
        return self._socket_dir

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.is_running

    @property
    def log(self) -> Path:
        return self.data_dir / "server.log"

    def start(self) -> Self:
        """Start, making the database cluster first if there is none; returns once connections are accepted.

        Raises ConfigurationError (no binaries, no user to run as) or UnavailableError with the end of the log.
        """
        assert not self.is_running, "already started"
        self.data_dir = reachable_data_dir(self._wanted_dir, self._account)
        binaries = reachable_binaries(find_binaries(self._existing_major(), self._bin_dir), self._account)
        if self._existing_major() is None:
            self._make_cluster(binaries)
        self._socket_dir = self._choose_socket_dir()
        self._process = self._start_server(binaries)
        return self

    def stop(self) -> None:
        """Stop as `pg_ctl stop -m fast` does; sessions are ended, the data stays."""
        if self._process:
            self._process.stop()
            self._process = None

    def kill9(self) -> None:
        """End the server by SIGKILL; `start` then goes through crash recovery."""
        if self._process:
            self._process.kill9()
            self._process = None

    def restart(self) -> Self:
        self.stop()
        return self.start()

    def close(self) -> None:
        """Stop, and remove what was temporary."""
        self.stop()
        for path in self._temporary_dirs():
            shutil.rmtree(path, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _existing_major(self) -> int | None:
        try:
            return int((self.data_dir / "PG_VERSION").read_text())
        except FileNotFoundError:
            return None

    def _make_cluster(self, binaries: Binaries) -> None:
        # `initdb` wants an empty folder: what is there is the log of a first start that failed.
        self.log.unlink(missing_ok=True)
        result = subprocess.run(
            [
                binaries.initdb,
                *("--pgdata", self.data_dir, "--username", SUPERUSER, "--auth", "trust"),
                *("--encoding", "UTF8", "--locale", "C"),
                # Temporary data does not outlive a power cut anyhow; kept data is flushed once.
                *(["--no-sync"] if self._is_temporary else []),
            ],
            user=self._account.user_id if self._account else None,
            group=self._account.group_id if self._account else None,
            extra_groups=[] if self._account else None,
            cwd="/",
            env=_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if result.returncode != 0:
            raise UnavailableError(f"initdb failed:\n{result.stdout.strip()}")

    def _choose_socket_dir(self) -> Path:
        if len(os.fsencode(self.data_dir / ".s.PGSQL.65535.lock")) <= SOCKET_PATH_BYTES_MAX:
            return self.data_dir
        if self._socket_dir and self._socket_dir.is_dir():
            return self._socket_dir
        folder = Path(tempfile.mkdtemp(prefix="headrace-socket-"))
        if self._account:
            os.chown(folder, self._account.user_id, self._account.group_id)
        return folder

    def _temporary_dirs(self) -> list[Path]:
        dirs = [self._wanted_dir] if self._is_temporary else []
        if self._is_temporary and self.data_dir != self._wanted_dir:
            dirs.append(self.data_dir)
        if self._socket_dir and self._socket_dir != self.data_dir:
            dirs.append(self._socket_dir)
        return dirs

    def _start_server(self, binaries: Binaries) -> ServerProcess:
        give_up_at = time.monotonic() + START_SECONDS
        while True:
            self._wait_for_other_server()
            log_from = self.log.stat().st_size if self.log.exists() else 0
            process = self._spawn(binaries)
            if self._becomes_ready(process, give_up_at):
                return process
            process.kill9()
            said = self.log.read_bytes()[log_from:].decode(errors="replace")
            if ADDRESS_TAKEN in said and self._fixed_port is None:
                self.port = free_port()
            elif not any(phrase in said for phrase in CRASH_LEFTOVERS) or time.monotonic() > give_up_at:
                raise UnavailableError(f"Postgres did not start in {self.data_dir}:\n{log_tail(self.log)}")
            else:
                time.sleep(POLL_SECONDS)

    def _spawn(self, binaries: Binaries) -> ServerProcess:
        settings = {
            **self.settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.socket_dir),
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ServerProcess.start(
            [binaries.postgres, "-D", self.data_dir, *options],
            log=self.log,
            stop_signal=signal.SIGINT,  # Postgres: fast shutdown
            grace_seconds=30.0,
            account=self._account,
            environment=_environment(),
            directory=self.data_dir,
            remove=self._temporary_dirs(),
        )

    def _becomes_ready(self, process: ServerProcess, give_up_at: float) -> bool:
        """Read what `pg_ctl -w` reads: the server writes its state into the last line of its lock file."""
        while process.is_running and time.monotonic() < give_up_at:
            lines = self._lock_file()
            if lines and lines[0] == str(process.pid) and lines[-1].strip() == "ready":
                return True
            time.sleep(POLL_SECONDS)
        return False

    def _lock_file(self) -> list[str]:
        """Manual, chapter "Database File Layout": process id first, state last; empty when there is none."""
        with contextlib.suppress(FileNotFoundError):
            return (self.data_dir / "postmaster.pid").read_text().splitlines()
        return []

    def _wait_for_other_server(self) -> None:
        """Let a server on the same data end (its owner died, its reaper stops it), and clear a lock that lies.

        A lock file left by a crash may name a process id that something else has by now, and Postgres then refuses
        to start for ever. A lock that names no process at all is Postgres's own to judge.
        """
        give_up_at = time.monotonic() + OTHER_SERVER_SECONDS
        while lines := self._lock_file():
            command = _command_of(int(lines[0]))
            if command is None:
                return
            if b"\0%b\0" % os.fsencode(self.data_dir) not in command:
                (self.data_dir / "postmaster.pid").unlink(missing_ok=True)
                return
            if time.monotonic() > give_up_at:
                raise UnavailableError(f"another server runs on {self.data_dir}, process {lines[0]}")
            time.sleep(POLL_SECONDS)


def _command_of(pid: int) -> bytes | None:
    """The command line of a process; None when there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None


def _environment() -> dict[str, str]:
    """Ours, less what would change the server: PG* variables, the locale (its log is read), a closed HOME."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C", "HOME": "/"}
