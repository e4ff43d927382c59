"""One measurement: a script in a session of its own, its last line of JSON, and who else used the machine meanwhile."""

import ctypes
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import psutil
import psycopg

from benchmarks.peers.environments import python_of
from benchmarks.peers.settings import HEADRACE
from benchmarks.processes import families, thread_seconds
from headrace.embedded.databases import create_database, drop_database
from headrace.embedded.postgres import EmbeddedPostgres
from headrace.embedded.process import free_port

SCRIPTS: Final = Path(__file__).parent / "scripts"
ROOT: Final = Path(__file__).parent.parent.parent
DATABASE: Final = "peer"
PORTS: Final = 4
NOISY_CORES: Final = 0.2
"""More than this, used by others, makes a measurement noisy."""
PR_SET_CHILD_SUBREAPER: Final = 36
GRACE_SECONDS: Final = 20.0


class Asked(NamedTuple):
    workload: str
    name: str
    """`PEER` or `PEER:VARIANT`."""
    arguments: dict[str, str]


class Measurements:
    """home: where the environments are. timeout: seconds for one script."""

    def __init__(self, home: Path, postgres: EmbeddedPostgres, timeout: float) -> None:
        self._home, self._postgres, self._timeout = home, postgres, timeout
        # What a script leaves behind comes to this process when its parent ends, so that it is ended and its CPU known.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def measure(self, asked: Asked) -> dict[str, Any]:
        """`value` is what the script told; None when it failed, and its output is in `logs`."""
        load, began, own, busy = os.getloadavg()[0], time.time(), self._own_cpu(), _machine_cpu()
        output = self._home / "logs" / f"{asked.workload}-{asked.name.replace(':', '-')}.out"
        with self._surroundings(asked) as env, output.open("w") as out, output.with_suffix(".err").open("w") as err:
            status = _run(self._command(asked), env, out, err, self._timeout)
        seconds = time.time() - began
        others = max(0.0, _machine_cpu() - busy - (self._own_cpu() - own)) / seconds
        return {
            "at": round(began),
            **asked._asdict(),
            "value": _last_json(output.read_text(errors="replace")) if status == 0 else None,
            "status": status,
            "seconds": round(seconds, 1),
            "load_before": round(load, 2),
            "other_cores": round(others, 2),
        }

    def _command(self, asked: Asked) -> list[str | Path]:
        given = [f"{key}={value}" for key, value in asked.arguments.items()]
        if asked.name == HEADRACE:
            return [sys.executable, "-m", "benchmarks.peers.headrace", asked.workload, *given]
        peer = asked.name.split(":")[0]
        return [python_of(self._home, peer), SCRIPTS / f"{peer}_bench.py", asked.workload, *given]

    @contextmanager
    def _surroundings(self, asked: Asked) -> Generator[dict[str, str]]:
        """A fresh database after a checkpoint, and a fresh folder."""
        folder = self._home / "tmp" / asked.name.replace(":", "-")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        drop_database(self._postgres.dsn, DATABASE)
        create_database(self._postgres.dsn, DATABASE)
        with psycopg.connect(self._postgres.dsn, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        env = {
            **os.environ,
            "PEERS_PG": self._postgres.url_of(DATABASE),
            "PEERS_TMP": str(folder),
            "PEERS_HOME": str(self._home),
            "PEERS_PORTS": ",".join(str(free_port()) for _ in range(PORTS)),
            "PYTHONDONTWRITEBYTECODE": "1",
            "DO_NOT_TRACK": "1",
        }
        yield env | ({"PYTHONPATH": str(ROOT)} if asked.name == HEADRACE else {})
        shutil.rmtree(folder, ignore_errors=True)

    def _own_cpu(self) -> float:
        """Seconds of this process, of what it has waited for, and of its Postgres."""
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        pid = self._postgres.pid or 0
        servers = sum(sum(thread_seconds(one).values()) for one in families([pid])[pid])
        return sum(one.ru_utime + one.ru_stime for one in used) + servers


def wait_for_quiet(load_max: float, seconds_max: float) -> float:
    """Wait until the load average is low and nobody else is busy; the seconds it took."""
    began = time.monotonic()
    while True:
        before = _machine_cpu()
        time.sleep(1.0)
        is_quiet = os.getloadavg()[0] < load_max and _machine_cpu() - before < NOISY_CORES
        if is_quiet or time.monotonic() - began > seconds_max:
            return round(time.monotonic() - began, 1)


def _run(command: list[str | Path], env: dict[str, str], out: Any, err: Any, timeout: float) -> int | str:
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
    )
    try:
        return process.wait(timeout)
    except subprocess.TimeoutExpired:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        return "timeout"
    finally:
        _end_session(process)


def _end_session(process: "subprocess.Popen[bytes]") -> None:
    """End what the script left running in its session, and collect it."""
    if process.poll() is None:  # an interrupt
        process.terminate()
        process.wait()
    try:
        os.killpg(process.pid, signal.SIGKILL)
        while True:
            os.waitpid(-process.pid, 0)
    except (ProcessLookupError, ChildProcessError):
        pass


def _machine_cpu() -> float:
    """CPU seconds used on the machine."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def _last_json(told: str) -> dict[str, Any] | None:
    for line in reversed(told.splitlines()):
        if line.startswith("{"):
            try:
                found: dict[str, Any] = json.loads(line)
            except ValueError:
                continue
            return found
    return None
