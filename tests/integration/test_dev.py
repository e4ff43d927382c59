"""`headrace new` and `headrace dev` as a user runs them, on the embedded parts."""

import json
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.embedded.process import free_port

pytestmark = pytest.mark.slow

START_SECONDS = 120.0
FACT_SECONDS = 120.0
STOP_SECONDS = 15.0
"""It takes two to four seconds; the bound is for a machine that does other things as well."""
HEADRACE = [sys.executable, "-m", "headrace"]


class Dev:
    """One `headrace dev --json` in a folder: its lines as they come, its banner, its processes."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*HEADRACE, "dev", "--json", "--port", str(free_port()), *options],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._arrived: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.banner = self.wait_line(lambda line: "api" in line, START_SECONDS)
        except BaseException:
            self.kill()
            raise
        self.api = self.banner["api"]
        addresses = json.loads((folder / ".headrace" / "dev.json").read_text())
        self.headers = {"Authorization": f"Bearer {addresses['token']}"}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for text in self.process.stdout:
            self._arrived.put(json.loads(text) if text.startswith("{") else {"process": "dev", "line": text.rstrip()})
        self._arrived.put(None)

    def wait_line(self, is_it: Callable[[dict[str, Any]], bool], seconds: float = FACT_SECONDS) -> dict[str, Any]:
        """The first line from here on that is it."""
        end = time.monotonic() + seconds
        while True:
            try:
                line = self._arrived.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                said = "\n".join(f"{line.get('process')} | {line.get('line')}" for line in self.lines[-60:])
                pytest.fail(f"headrace dev did not say it; it said:\n{said}")
            self.lines.append(line)
            if is_it(line):
                return line

    def wait_text(self, text: str) -> dict[str, Any]:
        return self.wait_line(lambda line: text in str(line.get("line")))

    def stop(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        try:
            code = self.process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._close()
        return code

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()

    def pids(self) -> dict[str, int]:
        pids: dict[str, int] = self.banner["processes"]
        return pids


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}


def headrace(folder: Path, *arguments: str, code: int = 0) -> Any:
    """Run a command with `--json` and return its document."""
    done = subprocess.run(
        [*HEADRACE, *arguments, "--json"],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr + done.stdout
    return json.loads(done.stdout) if done.stdout else None


def wait_for(fact: Callable[[], Any], seconds: float = FACT_SECONDS) -> Any:
    """Ask until it is so, and return what it was."""
    end = time.monotonic() + seconds
    while not (found := fact()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def project(tmp_path: Path) -> Path:
    headrace(tmp_path, "new", "hello")
    return tmp_path / "hello"


@pytest.fixture
def start(project: Path) -> Generator[Callable[..., Dev]]:
    """Starts a dev in the project; one that still runs at the end is killed."""
    started: list[Dev] = []

    def run(*options: str) -> Dev:
        started.append(Dev(project, *options))
        return started[-1]

    yield run
    for dev in started:
        if dev.process.poll() is None:
            dev.kill()


def test_a_new_project_runs_stops_cleanly_and_remembers_its_runs(project: Path, start: Callable[..., Dev]) -> None:
    dev = start()
    assert dev.banner["workflows"] == [{"name": "greet", "version": 1}]
    run = headrace(project, "run", "greet", "--input", '{"name": "Ada"}')
    assert run["status"] == "completed"
    assert run["outputs"]["send"]["sent"] == "Guten Tag, Ada!"
    dev.wait_text("completed in")
    shown = headrace(project, "show", "last")
    assert {task["name"]: task["attempt"] for task in shown["tasks"]} == {"look_up": 1, "compose": 2, "send": 1}
    attempts = headrace(project, "show", "last", "--task", "compose")["attempts"]
    assert [attempt["outcome"] for attempt in sorted(attempts, key=lambda each: each["attempt"])] == [
        "failed",
        "completed",
    ]
    assert headrace(project, "doctor")["ok"]

    refused = subprocess.run(
        [*HEADRACE, "dev"], cwd=project, env=environment(), capture_output=True, text=True, check=False
    )
    assert refused.returncode == 4
    assert str(dev.process.pid) in refused.stderr

    assert dev.stop(signal.SIGINT) == 130
    assert not any(is_alive(pid) for pid in dev.pids().values())
    assert not (project / ".headrace" / "dev.json").exists()
    assert (project / ".headrace" / "secret").stat().st_mode & 0o777 == 0o600

    again = start()
    assert [each["run_id"] for each in headrace(project, "runs")["items"]] == [run["run_id"]]
    assert headrace(project, "run", "greet", "--input", '{"name": "Grace"}')["status"] == "completed"
    assert again.stop(signal.SIGTERM) == 0
    assert not any(is_alive(pid) for pid in again.pids().values())


def test_saved_files_are_taken_up_and_a_killed_worker_is_replaced(project: Path, start: Callable[..., Dev]) -> None:
    dev = start()
    wait_for(
        lambda: any(worker["live"] for worker in httpx.get(f"{dev.api}/workers", headers=dev.headers).json()["items"])
    )

    (project / "app.py").write_text("def broken(:\n")
    dev.wait_text("cannot be imported")
    dev.wait_text("waiting for a change")
    (project / "app.py").write_text(
        textwrap.dedent(
            """
            import time
            from pathlib import Path
            from headrace.context import Context
            from headrace.registry import task

            @task("hello.slow")
            def slow(ctx: Context) -> int:
                with Path("begun").open("a") as file:
                    print(ctx.attempt, file=file)
                while len(Path("begun").read_text().split()) == 1:
                    time.sleep(0.1)
                return ctx.attempt

            @task("hello.fast")
            def fast() -> str:
                return "done"
            """
        )
    )
    dev.wait_text("worker started")

    (project / "workflow.yaml").write_text("name: slow\ntasks:\n  nap: { run: hello.slow\n")
    dev.wait_text("workflow.yaml was not published")
    workflow = """
        name: slow
        tasks:
          nap: { run: hello.slow }
          sign: { run: hello.fast, needs: nap, approval: { title: Sign it? } }
        """
    (project / "workflow.yaml").write_text(textwrap.dedent(workflow))
    dev.wait_text("published slow v1")

    run = headrace(project, "run", "slow", "--detach")
    wait_for(lambda: (project / "begun").is_file() and (project / "begun").read_text())
    os.kill(worker_pid(dev), signal.SIGKILL)
    dev.wait_text("died (SIGKILL); starting it again")
    dev.wait_text("waiting")
    assert [each["task"] for each in headrace(project, "approvals")["items"]] == ["sign"]
    headrace(project, "approve", "last", "--comment", "fine")
    wait_for(lambda: httpx.get(f"{dev.api}/runs/{run['run_id']}", headers=dev.headers).json()["status"] == "completed")
    # Killed before anybody heard that it had begun, the first body counts as none: then this is attempt 1 again.
    assert (project / "begun").read_text().split() in (["1", "2"], ["1", "1"])
    assert headrace(project, "doctor")["ok"]
    assert dev.stop() == 130


def test_embedded_servers_that_die_come_back_and_runs_go_on(project: Path, start: Callable[..., Dev]) -> None:
    dev = start("--workers", "2")
    for server in ("broker", "postgres"):
        os.kill(dev.pids()[server], signal.SIGKILL)
        dev.wait_text("died; starting it again")
        wait_for(lambda: is_healthy(dev))
        assert headrace(project, "run", "greet", "--input", '{"name": "Ada"}')["status"] == "completed"
    assert dev.stop() == 130


def test_nothing_is_left_when_dev_itself_is_killed(start: Callable[..., Dev]) -> None:
    dev = start()
    dev.kill()
    wait_for(lambda: not any(is_alive(pid) for pid in dev.pids().values()))


def worker_pid(dev: Dev) -> int:
    """The process id of the live worker, found as a person would: by its command line."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                command = (folder / "cmdline").read_bytes().split(b"\0")
                parent = (folder / "cwd").resolve()
            except OSError:
                continue
            if b"headrace" in command and b"worker" in command and parent == dev.folder and b"--owner" not in command:
                return int(folder.name)
    pytest.fail("no worker runs")


def is_healthy(dev: Dev) -> bool:
    try:
        return httpx.get(f"{dev.api}/health", timeout=2).status_code == httpx.codes.OK
    except httpx.HTTPError:
        return False
