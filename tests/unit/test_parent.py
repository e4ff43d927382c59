"""The parent of a worker, with real processes and without Kafka: what it passes on, and whom it speaks for."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import confluent_kafka
import psutil
import pytest

from headrace import parent
from headrace.listing import DESCRIPTOR, HeldTask
from headrace.messages import Heartbeat, Lost, decode_event, decode_worker_message

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 60.0
RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
NONCE = "0123456789abcdef01234567"
NOTES = {"session": "s-1", "worker": "w-1", "lease": 3.0, "producer": {}, "events": "e", "workers": "w"}

DRIVER = """
import json, os, signal, sys, time
from headrace import parent

LOG = os.environ["LOG"]

def tell(what, **more):
    with open(LOG, "a") as log:
        log.write(json.dumps({"what": what, **more}) + "\\n")

def report(notes, held, reason):
    tell("report", notes=notes, held=[list(task) for task in held], reason=reason)
    if "no_kafka" in sys.argv:
        raise TimeoutError("2 records were not taken")

if parent.is_wanted():
    parent._report, parent._load_kafka = report, lambda: None
    parent.PAUSE_SECONDS = parent.PAUSE_SECONDS_MAX = float(os.environ.get("PAUSE", "0.01"))
    if "slow_timer" in sys.argv:
        timer = parent.threading.Timer
        parent.threading.Timer = lambda seconds, function: timer(3600, function)
    sys.exit(parent.Parent().run())

# -- the child
from headrace.attempt import Attempt
from headrace.listing import Listing
from headrace.messages import Command

parent.follow_parent()
listing = Listing.from_environment()
number = sum(json.loads(line)["what"] == "child" for line in open(LOG)) if os.path.exists(LOG) else 0

def stop(number, frame):
    tell("signal", number=number)

signal.signal(signal.SIGTERM, stop)
signal.signal(signal.SIGINT, stop)
tell("child", pid=os.getpid(), group=os.getpgid(0), found=[listing.notes(), list(listing.held())],
     left=[name for name in os.environ if name.startswith("HEADRACE_WORKER")])

def hold():
    listing.note(NOTES)
    for task, token in ((0, 1), (1, 2), (2, 3)):
        attempt = Attempt(RUN, Command(task, "t", "b", 1, token, NONCE))
        listing.put(attempt)
        if task == 1:
            attempt.begin()
        if task == 2:
            listing.remove(attempt)

"""


class Driven:
    """A parent in a process of its own, whose child does what `script` says."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._log = folder, folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, script: str, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        names = f"NOTES, RUN, NONCE = {NOTES!r}, {RUN.encode()!r}, {NONCE!r}\n"
        file = self._folder / "driver.py"
        file.write_text(names + DRIVER + script)
        clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_WORKER")}
        given = {**clean, "LOG": str(self._log), "PYTHONPATH": str(ROOT), **environment}
        self._process = subprocess.Popen(
            [sys.executable, file, *words], env=given, start_new_session=True, stderr=subprocess.PIPE
        )
        return self._process

    def run(self, script: str, *words: str, **environment: str) -> int:
        return self.start(script, *words, **environment).wait(WAIT_SECONDS)

    def told(self, what: str) -> list[dict[str, Any]]:
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        return [line for line in map(json.loads, lines) if line["what"] == what]

    def until(self, fact: Callable[[], object]) -> None:
        deadline = time.monotonic() + WAIT_SECONDS
        while not fact():
            assert time.monotonic() < deadline, self._log.read_text()
            time.sleep(0.01)

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        for child in self.told("child"):
            if is_alive(child["pid"]):
                os.kill(child["pid"], signal.SIGKILL)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(tmp_path)
    yield driven
    driven.end()


# == what it passes on =================================================================================================
@pytest.mark.parametrize("code", [0, 1, 2, 75, 255])
def test_an_exit_code_passes_through(driven: Driven, code: int) -> None:
    assert driven.run(f"sys.exit({code})") == code
    assert len(driven.told("child")) == 1
    assert driven.told("report") == []


def test_a_child_that_dies_before_it_noted_anything_is_not_started_again(driven: Driven) -> None:
    assert driven.run("os.kill(os.getpid(), signal.SIGKILL)") == 128 + signal.SIGKILL
    assert len(driven.told("child")) == 1
    assert driven.told("report") == []


@pytest.mark.parametrize("code", [0, 1])
def test_a_child_that_ended_in_order_has_said_all_itself(driven: Driven, code: int) -> None:
    assert driven.run(f"hold(); listing.end(); sys.exit({code})") == code
    assert len(driven.told("child")) == 1
    assert driven.told("report") == []


def test_a_child_that_ends_at_once_is_not_waited_for_any_longer(driven: Driven) -> None:
    assert driven.run("sys.exit(2)", "slow_timer") == 2


WAITS = "hold()\nwhile not os.path.exists(LOG + '.go'): time.sleep(0.01)\nlisting.end()\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_all_of_the_terminal_reaches_the_child_once_as_sigterm(
    driven: Driven, tmp_path: Path, number: signal.Signals
) -> None:
    process = driven.start(WAITS)
    driven.until(lambda: driven.told("child"))
    (child,) = driven.told("child")
    assert child["group"] == child["pid"] != process.pid
    for count in (1, 2):
        os.killpg(process.pid, number)
        driven.until(lambda count=count: len(driven.told("signal")) == count)
    (tmp_path / "log.go").touch()
    assert process.wait(WAIT_SECONDS) == 0
    assert [told["number"] for told in driven.told("signal")] == [signal.SIGTERM] * 2
    assert driven.told("report") == []


def test_a_child_ends_when_its_parent_is_killed(driven: Driven) -> None:
    process = driven.start("hold()\nwhile True: time.sleep(0.01)\n")
    driven.until(lambda: driven.told("child"))
    (child,) = driven.told("child")
    assert is_alive(child["pid"])
    process.send_signal(signal.SIGKILL)
    driven.until(lambda: not is_alive(child["pid"]))


# == whom it speaks for ================================================================================================
DIES = "hold()\nif not number: {}\nlisting.end()\n"


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "its worker was killed by signal 9"),
        ("os.abort()", "its worker was killed by signal 6"),
        ("os._exit(3)", "its worker ended with code 3"),
        ("os._exit(0)", "its worker ended with code 0"),
    ],
)
def test_what_a_dead_child_held_is_reported_and_it_is_started_again(driven: Driven, death: str, reason: str) -> None:
    assert driven.run(DIES.format(death)) == 0
    assert len(driven.told("child")) == 2
    (report,) = driven.told("report")
    assert report["reason"] == reason
    assert report["notes"] == NOTES
    assert [HeldTask(*task) for task in report["held"]] == [
        HeldTask(RUN, 0, 1, NONCE, begun=False),
        HeldTask(RUN, 1, 2, NONCE, begun=True),
    ]


def test_the_next_child_finds_a_clean_listing(driven: Driven) -> None:
    assert driven.run(DIES.format("os._exit(1)")) == 0
    assert [child["found"] for child in driven.told("child")] == [[None, []]] * 2


def test_a_child_that_cannot_be_spoken_for_is_started_again_all_the_same(driven: Driven) -> None:
    process = driven.start(DIES.format("os._exit(1)"), "no_kafka")
    assert process.wait(WAIT_SECONDS) == 0
    assert len(driven.told("child")) == 2
    assert len(driven.told("report")) == 1


def test_a_child_that_dies_while_it_is_asked_to_stop_is_reported_and_not_started_again(driven: Driven) -> None:
    script = "hold()\nwhile 'signal' not in open(LOG).read(): time.sleep(0.01)\nos._exit(9)\n"
    process = driven.start(script)
    driven.until(lambda: driven.told("child"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 9
    assert len(driven.told("child")) == 1
    assert len(driven.told("report")) == 1


def test_asked_between_two_children_it_starts_no_other(driven: Driven) -> None:
    process = driven.start("hold(); os._exit(9)", PAUSE="600")
    driven.until(lambda: driven.told("report"))
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT_SECONDS) == 9
    assert len(driven.told("child")) == 1


# == who has one =======================================================================================================
@pytest.mark.parametrize(
    ("environment", "is_wanted"),
    [({}, True), ({parent.SWITCH: "1"}, True), ({parent.SWITCH: "0"}, False), ({DESCRIPTOR: "9"}, False)],
)
def test_a_worker_has_a_parent_unless_it_is_told_otherwise_or_has_one(
    environment: dict[str, str], is_wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (parent.SWITCH, DESCRIPTOR):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert parent.is_wanted() is is_wanted


def test_what_a_body_starts_does_not_take_itself_for_the_child(driven: Driven) -> None:
    assert driven.run("sys.exit(0)") == 0
    assert driven.told("child")[0]["left"] == []


# == what it says ======================================================================================================
class Producer:
    """Stands for Kafka's."""

    sent: ClassVar[list[tuple[str, bytes, str]]] = []
    left = 0

    def __init__(self, options: dict[str, Any]) -> None:
        assert options == {"bootstrap.servers": "k:1"}

    def produce(self, topic: str, value: bytes, key: str) -> None:
        self.sent.append((topic, value, key))

    def flush(self, seconds: float) -> int:
        return self.left


def test_it_says_that_each_task_is_lost_and_then_that_the_session_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", Producer)
    monkeypatch.setattr(Producer, "sent", [])
    held = [HeldTask(RUN, 0, 1, NONCE, begun=False), HeldTask(RUN, 1, 2, NONCE, begun=True)]
    notes = {**NOTES, "producer": {"bootstrap.servers": "k:1"}}
    parent._report(notes, held, "it fell")
    assert [(topic, key) for topic, _, key in Producer.sent] == [("e", RUN), ("e", RUN), ("w", "s-1")]
    lost = [decode_event(value) for _, value, _ in Producer.sent[:2]]
    assert lost == [
        Lost(0, 1, NONCE, "it fell", begun=False, worker="w-1", session="s-1"),
        Lost(1, 2, NONCE, "it fell", begun=True, worker="w-1", session="s-1"),
    ]
    last = decode_worker_message(Producer.sent[2][1])
    assert isinstance(last, Heartbeat)
    assert (last.session, last.worker, last.ended, last.held, last.lease) == ("s-1", "w-1", True, [], 3.0)
    assert last.seq > 2**32
    monkeypatch.setattr(Producer, "left", 2)
    with pytest.raises(TimeoutError):
        parent._report(notes, held, "it fell")
