"""Every (state, event) pair, by a table written by hand: what changes, what is asked for, and what stays as it was."""

from collections.abc import Callable

import msgspec
import pytest

from headrace.machine import (
    Abort,
    Action,
    Ask,
    BuryTask,
    Cancelled,
    ClearTimer,
    CloseQuestion,
    Decided,
    Dispatch,
    EndAttempt,
    Finish,
    Isolated,
    MachineEvent,
    Released,
    Replayed,
    RunStatus,
    SetTimer,
    TaskState,
    TaskStatus,
)
from headrace.machine.advance import LOST
from headrace.machine.run_state import UNTOUCHED
from headrace.messages import Due, Error, Failed, Lost, Returned, Started, Succeeded
from tests.unit.machine_model import BROKEN, HOPELESS, INPUT, NONCE, SECOND, START, Trial, task

BEFORE, SUBJECT, AFTER, BESIDE = range(4)
EDITED = b'{"n":2}'


# == states: a run that stands so, by what happened to it ============================================================
def _trial(**options: object) -> Trial:
    return Trial(
        task("before"),
        task("subject", "before", timeout=10.0, **options),  # type: ignore[arg-type]
        task("after", "subject"),
        task("beside"),
    )


def _reached(**options: object) -> Trial:
    trial = _trial(**options)
    assert trial.succeed("before")
    return trial


def _backoff() -> Trial:
    trial = _reached()
    assert trial.fail("subject")
    return trial


def _queued() -> Trial:
    trial = _backoff()
    assert trial.wait_for("subject")
    return trial


def _running() -> Trial:
    trial = _queued()
    assert trial.start("subject")
    return trial


def _completed() -> Trial:
    trial = _queued()
    assert trial.succeed("subject")
    return trial


def _failed() -> Trial:
    trial = _queued()
    assert trial.fail("subject", HOPELESS)
    return trial


def _rejected() -> Trial:
    trial = _reached(asks=True)
    assert trial.decide("subject", "rejected")
    return trial


def _cancelled() -> Trial:
    trial = _queued()
    assert trial.cancel()
    return trial


STATES: dict[str, Callable[[], Trial]] = {
    "untouched": _trial,
    "backoff": _backoff,
    "queued": _queued,
    "running": _running,
    "waiting": lambda: _reached(asks=True),
    "asked": lambda: _reached(asks=True, run=None),  # nothing but a question
    "completed": _completed,
    "failed": _failed,
    "rejected": _rejected,
    "skipped": lambda: _reached(condition="false"),
    "cancelled": _cancelled,
}
STANDS: dict[str, tuple[str, int, int]] = {  # status, attempt, token
    "untouched": ("pending", 0, 0),
    "backoff": ("pending", 1, 1),
    "queued": ("queued", 1, 2),
    "running": ("running", 2, 2),
    "waiting": ("waiting", 0, 1),
    "asked": ("waiting", 0, 1),
    "completed": ("completed", 2, 2),
    "failed": ("failed", 2, 2),
    "rejected": ("failed", 0, 1),
    "skipped": ("skipped", 0, 0),
    "cancelled": ("cancelled", 1, 2),
}

# == events ==========================================================================================================
OF_A_TASK: dict[str, Callable[[int, int], MachineEvent]] = {
    "started": lambda task, token: Started(task, token, NONCE),
    "succeeded": lambda task, token: Succeeded(task, token, NONCE, output=msgspec.Raw(b"7")),
    "failed": lambda task, token: Failed(task, token, NONCE, BROKEN),
    "failed_for_good": lambda task, token: Failed(task, token, NONCE, HOPELESS),
    "returned": lambda task, token: Returned(task, token, NONCE),
    "returned_begun": lambda task, token: Returned(task, token, NONCE, begun=True),
    "lost": lambda task, token: Lost(task, token, NONCE),
    "backoff_due": lambda task, token: Due(task, token, NONCE, "backoff"),
    "backoff_early": lambda task, token: Due(task, token, NONCE, "backoff"),
    "timeout_due": lambda task, token: Due(task, token, NONCE, "timeout"),
    "timeout_early": lambda task, token: Due(task, token, NONCE, "timeout"),
    "other_timer": lambda task, token: Due(task, token, NONCE, "of a later release"),
    "approved": lambda task, token: Decided(task, token, "approved"),
    "rejected": lambda task, token: Decided(task, token, "rejected"),
    "expired": lambda task, token: Decided(task, token, "expired"),
    "replayed": lambda task, token: Replayed(task, token),
    "replayed_edited": lambda task, token: Replayed(task, token, input=EDITED),
}
OF_A_RUN: dict[str, MachineEvent] = {
    "cancelled": Cancelled(),
    "isolated": Isolated(BROKEN),
    "released": Released(),
}
EVENTS = [*OF_A_TASK, *OF_A_RUN]

# What the subject is afterwards. `.` stale: nothing changes; `=` the run changes, the subject does not.
TABLE = """
                 untouched  backoff    queued     running    waiting    asked      completed  failed   rejected  skipped  cancelled
started          .          .          running    .          .          .          .          .        .         .        .
succeeded        .          .          completed  completed  .          .          .          .        .         .        .
failed           .          .          pending    pending    .          .          .          .        .         .        .
failed_for_good  .          .          failed     failed     .          .          .          .        .         .        .
returned         .          .          queued     queued     .          .          .          .        .         .        .
returned_begun   .          .          queued     queued     .          .          .          .        .         .        .
lost             .          .          queued     queued     .          .          .          .        .         .        .
backoff_due      .          queued     .          .          .          .          .          .        .         .        .
backoff_early    .          .          .          .          .          .          .          .        .         .        .
timeout_due      .          .          .          pending    .          .          .          .        .         .        .
timeout_early    .          .          .          .          .          .          .          .        .         .        .
other_timer      .          .          .          .          .          .          .          .        .         .        .
approved         .          .          .          .          queued     completed  .          .        .         .        .
rejected         .          .          .          .          failed     failed     .          .        .         .        .
expired          .          .          .          .          failed     failed     .          .        .         .        .
replayed         .          .          .          .          .          .          .          queued   waiting   .        .
replayed_edited  .          .          .          .          .          .          .          queued   waiting   .        .
cancelled        cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  =          =        =         =        .
isolated         =          =          =          =          =          =          =          =        =         =        .
released         .          .          .          .          .          .          .          .        .         .        .
"""  # noqa: E501 - a table is read across

AGAIN = Dispatch(SUBJECT, 2, 3, INPUT)
ONWARD = Dispatch(AFTER, 1, 1, INPUT)
CANCEL = Error("CANCELLED", "the run was cancelled", retryable=False)
TIMEOUT = Error("TIMEOUT", "no result within 10.0 s")
T0 = START + SECOND  # when the first backoff is over
T1 = T0 + 15 * SECOND  # ten seconds for the body, five of grace
STOP_OTHERS: list[Action] = [Abort(BESIDE, 1, "cancelled")]

# (state, event) -> attempt, token, due_at of the subject; the other tasks that change, with their states; the actions.
Told = tuple[int, int, int | None, dict[str, str], list[Action]]
ASKED_FOR: dict[tuple[str, str], Told] = {
    ("untouched", "cancelled"): (
        0, 0, None, {"before": "cancelled", "after": "cancelled", "beside": "cancelled"},
        [Abort(BEFORE, 1, "cancelled"), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("backoff", "backoff_due"): (1, 2, None, {}, [ClearTimer(SUBJECT), Dispatch(SUBJECT, 2, 2, INPUT)]),
    ("backoff", "cancelled"): (
        1, 1, None, {"after": "cancelled", "beside": "cancelled"},
        [ClearTimer(SUBJECT), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("queued", "started"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1)]),
    ("queued", "succeeded"): (2, 2, None, {"after": "queued"}, [EndAttempt(SUBJECT, 2, 2, "completed"), ONWARD]),
    ("queued", "failed"): (
        2, 2, T0 + SECOND, {},
        [EndAttempt(SUBJECT, 2, 2, "failed", BROKEN), SetTimer(SUBJECT, 2, "backoff", T0 + SECOND)],
    ),
    ("queued", "failed_for_good"): (
        2, 2, None, {"after": "skipped"},
        [EndAttempt(SUBJECT, 2, 2, "failed", HOPELESS), BuryTask(SUBJECT, 2, 2, HOPELESS)],
    ),
    ("queued", "returned"): (1, 3, None, {}, [AGAIN]),
    ("queued", "returned_begun"): (
        2, 3, None, {}, [EndAttempt(SUBJECT, 2, 2, "returned"), Dispatch(SUBJECT, 3, 3, INPUT)],
    ),
    ("queued", "lost"): (1, 3, None, {}, [AGAIN]),
    ("queued", "cancelled"): (
        1, 2, None, {"after": "cancelled", "beside": "cancelled"},
        [Abort(SUBJECT, 2, "cancelled"), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("running", "succeeded"): (
        2, 2, None, {"after": "queued"}, [EndAttempt(SUBJECT, 2, 2, "completed"), ClearTimer(SUBJECT), ONWARD],
    ),
    ("running", "failed"): (
        2, 2, T0 + SECOND, {},
        [
            EndAttempt(SUBJECT, 2, 2, "failed", BROKEN), ClearTimer(SUBJECT),
            SetTimer(SUBJECT, 2, "backoff", T0 + SECOND),
        ],
    ),
    ("running", "failed_for_good"): (
        2, 2, None, {"after": "skipped"},
        [
            EndAttempt(SUBJECT, 2, 2, "failed", HOPELESS), ClearTimer(SUBJECT),
            BuryTask(SUBJECT, 2, 2, HOPELESS),
        ],
    ),
    ("running", "returned"): (
        2, 3, None, {},
        [EndAttempt(SUBJECT, 2, 2, "returned"), ClearTimer(SUBJECT), Dispatch(SUBJECT, 3, 3, INPUT)],
    ),
    ("running", "returned_begun"): (
        2, 3, None, {},
        [EndAttempt(SUBJECT, 2, 2, "returned"), ClearTimer(SUBJECT), Dispatch(SUBJECT, 3, 3, INPUT)],
    ),
    ("running", "lost"): (
        2, 3, None, {},
        [
            EndAttempt(SUBJECT, 2, 2, "lost", LOST), Abort(SUBJECT, 2, "lost"), ClearTimer(SUBJECT),
            Dispatch(SUBJECT, 3, 3, INPUT),
        ],
    ),
    ("running", "timeout_due"): (
        2, 2, T1 + SECOND, {},
        [
            Abort(SUBJECT, 2, "timeout"), EndAttempt(SUBJECT, 2, 2, "failed", TIMEOUT), ClearTimer(SUBJECT),
            SetTimer(SUBJECT, 2, "backoff", T1 + SECOND),
        ],
    ),
    ("running", "cancelled"): (
        2, 2, None, {"after": "cancelled", "beside": "cancelled"},
        [
            EndAttempt(SUBJECT, 2, 2, "cancelled", CANCEL), Abort(SUBJECT, 2, "cancelled"), ClearTimer(SUBJECT),
            *STOP_OTHERS, Finish(RunStatus.CANCELLED),
        ],
    ),
    ("waiting", "approved"): (0, 2, None, {}, [Dispatch(SUBJECT, 1, 2, INPUT)]),
    ("waiting", "rejected"): (0, 1, None, {"after": "skipped"}, []),
    ("waiting", "expired"): (0, 1, None, {"after": "skipped"}, []),
    ("waiting", "cancelled"): (
        0, 1, None, {"after": "cancelled", "beside": "cancelled"},
        [CloseQuestion(SUBJECT, 1), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("asked", "approved"): (0, 1, None, {"after": "queued"}, [ONWARD]),
    ("asked", "rejected"): (0, 1, None, {"after": "skipped"}, []),
    ("asked", "expired"): (0, 1, None, {"after": "skipped"}, []),
    ("asked", "cancelled"): (
        0, 1, None, {"after": "cancelled", "beside": "cancelled"},
        [CloseQuestion(SUBJECT, 1), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("completed", "cancelled"): (
        2, 2, None, {"after": "cancelled", "beside": "cancelled"},
        [Abort(AFTER, 1, "cancelled"), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("failed", "replayed"): (2, 3, None, {"after": "pending"}, [Dispatch(SUBJECT, 3, 3, INPUT)]),
    ("failed", "replayed_edited"): (2, 3, None, {"after": "pending"}, [Dispatch(SUBJECT, 3, 3, EDITED)]),
    ("failed", "cancelled"): (
        2, 2, None, {"beside": "cancelled"}, [*STOP_OTHERS, Finish(RunStatus.FAILED)],
    ),
    ("rejected", "replayed"): (0, 2, None, {"after": "pending"}, [Ask(SUBJECT, 2)]),
    ("rejected", "replayed_edited"): (0, 2, None, {"after": "pending"}, [Ask(SUBJECT, 2)]),
    ("rejected", "cancelled"): (
        0, 1, None, {"beside": "cancelled"}, [*STOP_OTHERS, Finish(RunStatus.FAILED)],
    ),
    ("skipped", "cancelled"): (
        0, 0, None, {"beside": "cancelled"}, [*STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
}  # fmt: skip


def _table() -> dict[tuple[str, str], str]:
    head, *rows = [line.split() for line in TABLE.strip().splitlines()]
    assert head == list(STATES)
    assert [row[0] for row in rows] == EVENTS
    return {(state, row[0]): cell for row in rows for state, cell in zip(head, row[1:], strict=True)}


CELLS = _table()
MOVES = [pair for pair, cell in CELLS.items() if cell not in ".="]
STALE = [pair for pair, cell in CELLS.items() if cell == "."]
WITH_A_TASK = [(state, event) for state in STATES for event in OF_A_TASK]


def event_for(trial: Trial, event: str, task: int, token: int) -> MachineEvent:
    """The event, with the clock set to when it would be said."""
    due_at = trial.state("subject").due_at
    if due_at is not None and event in ("backoff_due", "timeout_due", "other_timer"):
        trial.at = due_at
    elif due_at is not None and event in ("backoff_early", "timeout_early"):
        trial.at = due_at - 1
    return OF_A_TASK[event](task, token) if event in OF_A_TASK else OF_A_RUN[event]


def current(trial: Trial, event: str) -> MachineEvent:
    return event_for(trial, event, SUBJECT, trial.token("subject"))


def states_of(trial: Trial) -> list[TaskState]:
    return [trial.run.task(index) for index in range(4)]


@pytest.mark.parametrize("state", STATES)
def test_a_state_stands_as_the_table_says(state: str):
    subject = STATES[state]().state("subject")
    assert (subject.status, subject.attempt, subject.token) == STANDS[state]


def test_the_table_covers_every_pair():
    assert {trial().state("subject").status for trial in STATES.values()} == set(TaskStatus)
    assert len(CELLS) == len(STATES) * len(EVENTS)
    assert set(ASKED_FOR) == {*MOVES, *((s, "cancelled") for s in ("completed", "failed", "rejected", "skipped"))}


@pytest.mark.parametrize(("state", "event"), list(ASKED_FOR))
def test_an_event_moves_a_state_as_the_table_says(state: str, event: str):
    trial = STATES[state]()
    before, states, row_version = states_of(trial), trial.states, trial.run.row_version
    assert trial.tell(current(trial, event))
    attempt, token, due_at, others, actions = ASKED_FOR[state, event]
    subject = trial.state("subject")
    status = states["subject"] if CELLS[state, event] == "=" else CELLS[state, event]
    assert (subject.status, subject.attempt, subject.token, subject.due_at) == (status, attempt, token, due_at)
    assert trial.told == actions
    assert trial.states == {**states, **others, "subject": status}
    assert trial.run.row_version == row_version + 1
    for index, name in enumerate(states):
        if name not in others and (name != "subject" or CELLS[state, event] == "="):
            assert trial.run.task(index) is before[index]
            assert name not in trial.changed
    trial.restart()


@pytest.mark.parametrize(("state", "event"), STALE)
def test_a_stale_event_changes_nothing(state: str, event: str):
    trial = STATES[state]()
    assert not trial.tell(current(trial, event))


@pytest.mark.parametrize(("state", "event"), WITH_A_TASK)
def test_another_token_changes_nothing(state: str, event: str):
    trial = STATES[state]()
    for distance in (-2, -1, 1, 1000):
        assert not trial.tell(event_for(trial, event, SUBJECT, trial.token("subject") + distance))


@pytest.mark.parametrize(("state", "event"), WITH_A_TASK)
def test_an_unknown_task_changes_nothing(state: str, event: str):
    trial = STATES[state]()
    for index in (-1, -3, -4, -1000, 4, 2**31):
        for token in range(3):
            assert not trial.tell(event_for(trial, event, index, token))


@pytest.mark.parametrize(("state", "event"), list(ASKED_FOR))
def test_an_event_told_twice_counts_once(state: str, event: str):
    trial = STATES[state]()
    told = current(trial, event)
    assert trial.tell(told)
    assert not trial.tell(told)


@pytest.mark.parametrize("state", [state for state in STATES if CELLS[state, "isolated"] == "="])
def test_isolation_and_release_touch_no_task(state: str):
    trial = STATES[state]()
    before, status = states_of(trial), trial.status
    assert trial.isolate()
    assert (trial.status, trial.told, trial.changed) == (RunStatus.NEEDS_ATTENTION, [], set())
    assert trial.release()
    assert (trial.status, trial.told, trial.changed) == (status, [], set())
    assert all(now is then for now, then in zip(states_of(trial), before, strict=True))


@pytest.mark.parametrize("event", [event for event in EVENTS if event not in ("cancelled", "released")])
@pytest.mark.parametrize("state", [state for state in STATES if CELLS[state, "isolated"] == "="])
def test_an_isolated_run_takes_nothing_but_a_cancel_and_its_release(state: str, event: str):
    trial = STATES[state]()
    assert trial.isolate()
    assert not trial.tell(current(trial, event))


@pytest.mark.parametrize("state", [state for state in STATES if CELLS[state, "isolated"] == "="])
def test_an_isolated_run_is_cancelled_like_any_other(state: str):
    trial, plain = STATES[state](), STATES[state]()
    assert trial.isolate()
    assert trial.cancel()
    assert plain.cancel()
    assert (trial.told, trial.states, trial.status) == (plain.told, plain.states, plain.status)


def test_a_replayed_task_takes_its_dependants_back_untouched():
    trial = _failed()
    assert trial.replay("subject")
    assert trial.state("after") is UNTOUCHED
    assert AFTER not in trial.run.tasks
