"""Cases on the pure machine, and on what else needs nothing to run."""

import re
import socket
import traceback
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import permutations
from pathlib import Path
from typing import Any

import msgspec
import pytest

from headrace import failure, payload
from headrace.errors import MessageError, PayloadError
from headrace.machine import (
    Abort,
    BuryTask,
    Decided,
    Dispatch,
    Finish,
    MachineEvent,
    Replayed,
    Resolved,
    RunStatus,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.plan import Effect
from headrace.machine.reason import HANDOUTS_LOST_MAX, LOST
from headrace.messages import (
    PAYLOAD_BYTES_MAX,
    Due,
    Failed,
    Lost,
    Returned,
    Started,
    Succeeded,
    decode_command,
    decode_control_message,
    decode_event,
    decode_worker_message,
)
from tests.unit.machine_model import BROKEN, DOUBTFUL, HOPELESS, NONCE, SECOND, SESSION, Trial, picture, task

ROOT = Path(__file__).parents[2]
PRODUCT = [
    path for folder in ("headrace", "state", "streams", "connectors", "api") for path in (ROOT / folder).rglob("*.py")
]
ONCE = RetryPlan(attempts=1)


# == an old hand-out ===================================================================================================
def events_of(token: int) -> dict[str, MachineEvent]:
    """Everything that anybody can say about one hand-out of the first task."""
    return {
        "started": Started(0, token, NONCE, SESSION),
        "claimed": Started(0, token, NONCE, SESSION, claim=True),
        "succeeded": Succeeded(0, token, NONCE),
        "failed": Failed(0, token, NONCE, BROKEN),
        "failed for good": Failed(0, token, NONCE, HOPELESS),
        "failed in doubt": Failed(0, token, NONCE, DOUBTFUL),
        "returned begun": Returned(0, token, NONCE, begun=True),
        "returned": Returned(0, token, NONCE, begun=False),
        "lost, says a sweep": Lost(0, token, NONCE),
        "lost, says its parent": Lost(0, token, NONCE, begun=True, session=SESSION),
        "backoff due": Due(0, token, NONCE, "backoff"),
        "timeout due": Due(0, token, NONCE, "timeout"),
        "decided": Decided(0, token, "approved"),
        "replayed": Replayed(0, token),
        "resolved": Resolved(0, token, "did_not_happen"),
    }  # fmt: skip


def _handed_out_again(effect: Effect = "idempotent", delay: int = 0) -> Trial:
    """A task whose first hand-out was lost; the second is on its way."""
    trial = Trial(task("a", effect=effect, retry=RetryPlan(9, delay=delay), timeout=60.0), task("b", "a"))
    assert trial.lose("a")
    assert trial.token("a") == 2
    return trial


def _looked_up() -> Trial:
    trial = _handed_out_again("reconcile")
    assert trial.claim("a")
    assert trial.lose("a", begun=True)
    return trial


def _parked() -> Trial:
    trial = _handed_out_again("manual")
    assert trial.claim("a")
    assert trial.lose("a", begun=True)
    return trial


def _after(*said: Callable[[Trial], bool], **options: Any) -> Callable[[], Trial]:
    def make() -> Trial:
        trial = _handed_out_again(**options)
        assert all(say(trial) for say in said)
        return trial

    return make


PRESENT: dict[str, Callable[[], Trial]] = {
    "queued": _after(),
    "running": _after(lambda trial: trial.start("a")),
    "in backoff": _after(lambda trial: trial.fail("a"), delay=SECOND),
    "looked up": _looked_up,
    "parked": _parked,
    "completed": _after(lambda trial: trial.succeed("a")),
    "failed": _after(lambda trial: trial.fail("a", HOPELESS)),
    "replayed": _after(lambda trial: trial.fail("a", HOPELESS), lambda trial: trial.replay("a")),
    "cancelled": _after(lambda trial: trial.cancel()),
}


@pytest.mark.parametrize("present", PRESENT)
def test_b08_nothing_that_is_said_of_an_old_hand_out_changes_a_newer_one(present: str) -> None:
    trial = PRESENT[present]()
    trial.at += 10**12  # every timer would be due
    before = picture(trial.run)
    for token in range(trial.token("a")):
        for what, event in events_of(token).items():
            assert not trial.tell(event), what
    assert picture(trial.run) == before


@pytest.mark.parametrize("order", sorted(set(permutations(["lost", "lost", "started"]))))
def test_b01_of_losses_found_twice_one_counts_whatever_comes_between(order: tuple[str, ...]) -> None:
    trial = Trial(task("a"))
    assert trial.start("a")
    lost, changed = Lost(0, 1, NONCE), 0
    for what in order:
        if what == "lost":
            changed += trial.tell(lost)
        else:
            trial.tell(Started(0, 2, NONCE, "session-2"))
    assert changed == 1
    assert [action for action in trial.actions if isinstance(action, Dispatch)] == [
        Dispatch(0, 1, 1, trial.run.input), Dispatch(0, 2, 2, trial.run.input),
    ]  # fmt: skip


@pytest.mark.parametrize("late", ["succeeded", "failed", "failed for good", "returned begun", "lost, says its parent"])
def test_b06_of_an_attempt_out_of_time_nothing_more_counts_and_what_follows_begins_once(late: str) -> None:
    trial = Trial(task("t", timeout=4.0), task("u", "t", template="${{ tasks.t.output }}"))
    assert trial.start("t")
    assert trial.wait_for("t", "timeout")
    assert Abort(0, 1, "timeout") in trial.told
    assert trial.wait_for("t")
    assert trial.start("t")
    assert not trial.tell(events_of(1)[late])
    assert trial.succeed("t", b'"of the second"')
    assert not trial.tell(events_of(1)[late])
    assert [action.input for action in trial.actions if isinstance(action, Dispatch) and action.task == 1] == [
        b'"of the second"'
    ]


# == what waits, and its end ===========================================================================================
WAITING: dict[str, Callable[[], Trial]] = {
    "in backoff": lambda: _prepared(lambda trial: trial.fail("a")),
    "for a lookup's next try": lambda: _prepared(
        lambda trial: trial.claim("a"),
        lambda trial: trial.fail("a", DOUBTFUL),
        lambda trial: trial.fail("a"),
        effect="reconcile",
    ),
    "for a lookup": lambda: _prepared(
        lambda trial: trial.claim("a"), lambda trial: trial.fail("a", DOUBTFUL), effect="reconcile"
    ),
    "parked": lambda: _prepared(
        lambda trial: trial.claim("a"), lambda trial: trial.fail("a", DOUBTFUL), effect="manual"
    ),
    "for a person": lambda: _prepared(asks=True),
    "for a worker": lambda: _prepared(),
    "for a grant": lambda: _prepared(exclusive=True),
}


def _prepared(*said: Callable[[Trial], bool], **options: Any) -> Trial:
    trial = Trial(task("a", **options), task("b", "a"))
    assert all(say(trial) for say in said)
    return trial


@pytest.mark.parametrize("waiting", WAITING)
def test_b38_whatever_a_task_waits_for_a_cancel_is_at_once_and_nothing_revives_it(waiting: str) -> None:
    trial = WAITING[waiting]()
    assert trial.cancel()
    assert (trial.status, trial.told[-1]) == (RunStatus.CANCELLED, Finish(RunStatus.CANCELLED))
    assert trial.state("a").due_at is None
    before, trial.at = picture(trial.run), trial.at + 10**12
    for token in range(trial.token("a") + 2):
        for what, event in events_of(token).items():
            assert not trial.tell(event), what
    assert picture(trial.run) == before


@pytest.mark.parametrize("how", ["lost, says a sweep", "lost, says its parent", "timeout due"])
@pytest.mark.parametrize("exclusive", [False, True])
def test_b20_the_only_attempt_that_is_lost_leaves_no_task_running_for_ever(how: str, exclusive: bool) -> None:
    trial = Trial(task("a", retry=ONCE, timeout=1.0, exclusive=exclusive))
    assert trial.claim("a") if exclusive else trial.start("a")
    trial.at = trial.state("a").due_at or 0
    assert trial.tell(events_of(1)[how])
    assert trial.status is RunStatus.FAILED
    error = trial.state("a").error
    assert error is not None
    assert error == LOST or error.code == "TIMEOUT"
    assert BuryTask(0, 1, 1, error) in trial.told
    assert trial.state("a").session == ""


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_b54_tasks_that_end_badly_at_the_same_instant_are_all_retried_in_any_order(order: tuple[int, ...]) -> None:
    names = ["fails", "is lost", "is out of time"]
    trial = Trial(*(task(name, timeout=1.0) for name in names))
    assert all(trial.start(name) for name in names)
    trial.at = trial.state(names[0]).due_at or 0
    ends: list[Callable[[], bool]] = [
        lambda: trial.fail(names[0]),
        lambda: trial.lose(names[1]),
        lambda: trial.tell(Due(2, 1, NONCE, "timeout")),
    ]
    assert all(ends[index]() for index in order)
    assert trial.states == {"fails": "pending", "is lost": "queued", "is out of time": "pending"}
    assert trial.status is RunStatus.RUNNING
    assert not any(isinstance(action, Finish) for action in trial.actions)


def test_b58_lookups_and_hand_outs_that_never_began_use_up_no_try() -> None:
    trial = Trial(task("a", effect="reconcile", retry=RetryPlan(attempts=2, delay=0)))
    for _ in range(HANDOUTS_LOST_MAX // 3):
        assert trial.lose("a")
    assert trial.claim("a")
    assert trial.lose("a", begun=True)
    for _ in range(10):
        assert trial.lose("a")  # of the lookup's worker
    assert trial.look_up("a", False)
    assert (trial.states["a"], trial.state("a").attempt) == ("queued", 1)
    assert trial.claim("a")
    assert trial.fail("a")
    assert (trial.states["a"], trial.state("a").attempt) == ("failed", 2)


# == sizes and odd values ==============================================================================================
@pytest.mark.parametrize(("more", "state"), [(-1, "queued"), (0, "queued"), (1, "failed")])
def test_b85_an_input_put_together_from_outputs_is_measured_before_it_is_published(more: int, state: str) -> None:
    envelope = len(b'{"a":"","b":""}')
    half, rest = divmod(PAYLOAD_BYTES_MAX - envelope + more, 2)
    template = {"a": "${{ tasks.a.output }}", "b": "${{ tasks.b.output }}"}
    trial = Trial(task("a"), task("b"), task("both", "a", "b", template=template))
    assert trial.succeed("a", b'"' + b"x" * half + b'"')
    assert trial.succeed("b", b'"' + b"y" * (half + rest) + b'"')
    assert trial.states["both"] == state
    if state == "failed":
        error = trial.state("both").error
        assert error is not None
        assert (error.code, error.retryable) == ("INPUT_TOO_LARGE", False)


class Picky(Exception):
    def __init__(self, one: int, two: int, three: int) -> None:
        super().__init__(one, two, three)


class Evil(Exception):
    def __reduce__(self) -> Any:
        raise AssertionError("somebody tried to copy it")

    def __repr__(self) -> str:
        raise RuntimeError("no picture either")


class NoText(Exception):
    def __str__(self) -> str:
        return 7  # type: ignore[return-value]


def _endless() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    "error",
    [
        Picky(1, 2, 3), Evil("e"), NoText(), _endless(), ExceptionGroup("g", [Picky(1, 2, 3), _endless()]),
        Exception("a\0b"), type("N" * 100_000, (Exception,), {})("y" * 1_000_000),
        RecursionError("\ud800"), SystemExit(Decimal(3)), BaseExceptionGroup("b", [KeyboardInterrupt()]),
    ],
    ids=lambda error: type(error).__name__[:20],
)  # fmt: skip
def test_b87_any_exception_becomes_data_that_can_be_stored(error: BaseException) -> None:
    try:
        raise error
    except BaseException as raised:
        described = failure.describe(raised)
    raw = msgspec.json.encode(described)
    payload.check(raw)
    assert len(raw) < 20_000
    assert described.code == "ERROR"


def _itself() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


def _generator() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (socket.socket, "socket"), (_generator, "generator"), (_itself, "contain itself"), (lambda: b"raw", "bytes"),
        (lambda: Decimal("1.5"), "Decimal"), (lambda: {1}, "set"), (lambda: {1: 2}, "int"), (lambda: 2**64, "int"),
        (lambda: Picky(1, 2, 3), "Picky"), (lambda: _itself, "function"),
        (lambda: object, "type"), (lambda: traceback, "module"), (lambda: memoryview(b""), "memoryview"),
        (lambda: ..., "ellipsis"), (lambda: 1j, "complex"),
    ],
)  # fmt: skip
def test_b87_a_result_that_is_no_json_is_named(make: Callable[[], Any], named: str) -> None:
    value = make()
    with pytest.raises(PayloadError) as caught:
        payload.encode({"deep": [value]})
    assert caught.value.reason == "BAD_RESULT"
    assert named in caught.value.message
    if isinstance(value, socket.socket):
        value.close()


def test_b87_nothing_is_rebuilt_from_a_name_or_a_byte_string_in_data() -> None:
    loads = re.compile(
        r"\b(pickle|cPickle|marshal|shelve|dill|jsonpickle)\b|yaml\.(load|unsafe_load|full_load)\(|\beval\(|\bexec\("
    )
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path in PRODUCT
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if loads.search(line.partition("#")[0])
    }
    assert found == set()


@pytest.mark.parametrize(
    "decode", [decode_command, decode_event, decode_worker_message, decode_control_message], ids=lambda f: f.__name__
)
@pytest.mark.parametrize(
    "opening", [b"[", b'{"a":', b'{"kind":"succeeded","output":[', b'{"kind":"heartbeat","held":[']
)
def test_b88_a_record_nested_200000_deep_is_refused_and_ends_nobody(
    decode: Callable[[bytes], object], opening: bytes
) -> None:
    with pytest.raises(MessageError):
        decode(opening * 200_000)
    with pytest.raises((MessageError, PayloadError)):
        decode(b'{"kind":"succeeded","task":0,"token":1,"nonce":"n","output":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


@pytest.mark.parametrize("depth", [65, 10_000])
def test_b88_data_nested_deeper_than_the_limit_is_refused_at_every_edge(depth: int) -> None:
    nested: Any = 1
    for _ in range(depth):
        nested = [nested]
    with pytest.raises(PayloadError):
        payload.encode(nested)
    with pytest.raises(PayloadError):
        payload.encode_input(nested)
    with pytest.raises(PayloadError):
        payload.check(b"[" * depth + b"]" * depth)


def test_b88_a_task_that_is_lost_and_found_2000_times_needs_no_deeper_stack() -> None:
    trial = Trial(task("a", retry=RetryPlan(attempts=1_000, delay=0)), task("b", "a"))
    for number in range(999):
        assert trial.start("a")
        assert trial.lose("a") if number % 2 else trial.give_back("a", begun=True)
    assert trial.states == {"a": "queued", "b": "pending"}
    assert trial.token("a") == 1_000
