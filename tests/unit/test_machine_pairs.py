"""Every (state, event) pair, by a table written by hand: what changes, what is asked for, and what stays as it was."""

from collections.abc import Callable

import msgspec
import pytest

from headrace.expressions import compile_template, compile_value
from headrace.machine import (
    Abort,
    Action,
    Ask,
    AwaitSlot,
    BuryTask,
    CancelChild,
    Cancelled,
    ChildTold,
    ClearTimer,
    CloseQuestion,
    Decided,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Grant,
    Isolated,
    KeepOutput,
    KeepSignal,
    MachineEvent,
    Park,
    Released,
    Replayed,
    Resolved,
    RunStatus,
    SetTimer,
    Signalled,
    StopListening,
    TakeSignal,
    TakeSlot,
    TaskState,
    TaskStatus,
    Unpark,
)
from headrace.machine.plan import ApprovalPlan, ChildPlan, SignalPlan, WaitPlan
from headrace.machine.reason import DRAINED, LOST
from headrace.machine.run_state import UNTOUCHED
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded
from tests.unit.machine_model import (
    BRANCHING,
    BROKEN,
    DOUBTFUL,
    ELSEWHERE,
    HOPELESS,
    INPUT,
    NONCE,
    SECOND,
    SESSION,
    START,
    Trial,
    task,
)

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


def _backoff(**options: object) -> Trial:
    trial = _reached(**options)
    assert trial.fail("subject")
    return trial


def _queued(**options: object) -> Trial:
    trial = _backoff(**options)
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


def _late(*events: Callable[[Trial], bool]) -> Trial:
    """A clean-up that failed once, then its run was cancelled, then this happened to it."""
    trial = _backoff(join="finally")
    assert trial.cancel()
    assert all(event(trial) for event in events)
    return trial


def _due(trial: Trial) -> bool:
    return trial.wait_for("subject")


def _claimed(effect: str) -> Trial:
    trial = _queued(effect=effect)
    assert trial.claim("subject")
    return trial


def _looked_up() -> Trial:
    trial = _claimed("reconcile")
    assert trial.lose("subject")
    return trial


def _looking() -> Trial:
    trial = _looked_up()
    assert trial.start("subject")
    return trial


def _look_again() -> Trial:
    trial = _looking()
    assert trial.fail("subject")
    return trial


def _parked() -> Trial:
    trial = _claimed("manual")
    assert trial.lose("subject")
    return trial


def _in_line() -> Trial:
    trial = _reached(pool="pool")
    assert trial.admit("subject")
    assert trial.fail("subject")
    assert trial.wait_for("subject")
    return trial


def _in_pool() -> Trial:
    trial = _in_line()
    assert trial.admit("subject")
    return trial


NEWS = SignalPlan("news", timeout=WaitPlan(length=SECOND))
NEWS_OR_NONE = msgspec.structs.replace(NEWS, on_timeout="complete")
UNASKABLE = ApprovalPlan("", (), None, "fail", context=compile_template("${{ input.n.m }}"))
CHILD, DETACHED = ChildPlan("other"), ChildPlan("other", None, False, False)
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
    "offered": lambda: _queued(effect="manual"),
    "manual": lambda: _claimed("manual"),
    "reconcile": lambda: _claimed("reconcile"),
    "looked_up": _looked_up,  # handed out to its lookup
    "looking": _looking,
    "look_again": _look_again,  # its lookup failed
    "parked": _parked,
    "until": lambda: _reached(run=None, wait=WaitPlan(length=SECOND)),  # an instant comes
    "listening": lambda: _reached(run=None, signal=NEWS),
    "or_none": lambda: _reached(run=None, signal=NEWS_OR_NONE),  # which is no failure
    "or_branches": lambda: _reached(asks=BRANCHING),  # a no is an answer
    "asked_either": lambda: _reached(asks=BRANCHING, run=None),
    "unaskable": lambda: _reached(asks=UNASKABLE),
    "child": lambda: _reached(run=None, child=CHILD),
    "detached": lambda: _reached(run=None, child=DETACHED),
    "no_instant": lambda: _reached(run=None, wait=WaitPlan(value=compile_value("${{ input.n }}"))),  # and cannot
    "in_line": _in_line,  # for a slot of its pool
    "in_pool": _in_pool,  # handed out with it
    "cleaning": lambda: _queued(join="finally"),
    "late_backoff": _late,  # which goes on behind a cancel
    "late_queued": lambda: _late(_due),
    "late_running": lambda: _late(_due, lambda trial: trial.start("subject")),
    "late_failed": lambda: _late(_due, lambda trial: trial.fail("subject", HOPELESS)),
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
    "offered": ("queued", 1, 2),
    "manual": ("running", 2, 2),
    "reconcile": ("running", 2, 2),
    "looked_up": ("queued", 2, 3),
    "looking": ("running", 2, 3),
    "look_again": ("pending", 2, 3),
    "parked": ("waiting", 2, 2),
    "until": ("waiting", 0, 1),
    "or_branches": ("waiting", 0, 1),
    "asked_either": ("waiting", 0, 1),
    "unaskable": ("failed", 0, 1),
    "listening": ("waiting", 0, 1),
    "or_none": ("waiting", 0, 1),
    "child": ("waiting", 0, 1),
    "detached": ("waiting", 0, 1),
    "no_instant": ("failed", 0, 1),
    "in_line": ("waiting", 1, 2),
    "in_pool": ("queued", 1, 2),
    "cleaning": ("queued", 1, 2),
    "late_backoff": ("pending", 1, 1),
    "late_queued": ("queued", 1, 2),
    "late_running": ("running", 2, 2),
    "late_failed": ("failed", 2, 2),
}
LOOKUPS = {"looked_up": 1, "looking": 1, "look_again": 2}
HOLDERS: dict[str, str] = dict.fromkeys(("running", "manual", "reconcile", "looking", "late_running"), SESSION)


# == events ==========================================================================================================
def _verdict(answer: bytes) -> Callable[[int, int], MachineEvent]:
    return lambda task, token: Succeeded(task, token, NONCE, output=msgspec.Raw(answer))


OF_A_TASK: dict[str, Callable[[int, int], MachineEvent]] = {
    "started": lambda task, token: Started(task, token, NONCE, SESSION),
    "claimed": lambda task, token: Started(task, token, NONCE, SESSION, claim=True),
    "claimed_twice": lambda task, token: Started(task, token, NONCE, ELSEWHERE, claim=True),  # by another
    "succeeded": _verdict(b"7"),
    "happened": _verdict(b'{"happened":true,"output":7}'),
    "not_happened": _verdict(b'{"happened":false}'),
    "cannot_tell": _verdict(b'{"happened":null}'),
    "failed": lambda task, token: Failed(task, token, NONCE, BROKEN),
    "failed_for_good": lambda task, token: Failed(task, token, NONCE, HOPELESS),
    "failed_doubtful": lambda task, token: Failed(task, token, NONCE, DOUBTFUL),
    "out_of_time": lambda task, token: Failed(task, token, NONCE, SLOW),  # as its worker says
    "returned": lambda task, token: Returned(task, token, NONCE),
    "returned_begun": lambda task, token: Returned(task, token, NONCE, begun=True),
    "lost": lambda task, token: Lost(task, token, NONCE),
    "lost_begun": lambda task, token: Lost(task, token, NONCE, begun=True),
    "lost_unbegun": lambda task, token: Lost(task, token, NONCE, begun=False),
    "backoff_due": lambda task, token: Due(task, token, NONCE, "backoff"),
    "backoff_early": lambda task, token: Due(task, token, NONCE, "backoff"),
    "timeout_due": lambda task, token: Due(task, token, NONCE, "timeout"),
    "timeout_early": lambda task, token: Due(task, token, NONCE, "timeout"),
    "wait_due": lambda task, token: Due(task, token, NONCE, "wait"),
    "wait_early": lambda task, token: Due(task, token, NONCE, "wait"),
    "repeat_due": lambda task, token: Due(task, token, NONCE, "repeat"),  # by either name, what waits goes on
    "start_due": lambda task, token: Due(task, token, NONCE, "start"),  # and there is no such limit
    "deadline_due": lambda task, token: Due(task, token, NONCE, "deadline"),
    "other_timer": lambda task, token: Due(task, token, NONCE, "of a later release"),
    "admitted": lambda task, token: Admitted(task, token, NONCE),
    "approved": lambda task, token: Decided(task, token, "approved"),
    "rejected": lambda task, token: Decided(task, token, "rejected"),
    "expired": lambda task, token: Decided(task, token, "expired"),
    "replayed": lambda task, token: Replayed(task, token),
    "replayed_edited": lambda task, token: Replayed(task, token, input=EDITED),
    "it_happened": lambda task, token: Resolved(task, token, "happened", b"7", "ada"),
    "it_did_not": lambda task, token: Resolved(task, token, "did_not_happen", by="ada"),
    "it_shall_fail": lambda task, token: Resolved(task, token, "fail", by="ada"),
}
OF_A_TASK["offered"] = lambda task, token: Signalled("signal-1", "news", b"7", None, "ada", START, task, token)
NO_SUCH = Error("CHILD_NOT_FOUND", "there is no workflow other", retryable=False)
OF_A_TASK["child_started"] = lambda task, token: ChildTold(task, token, "run-2", "started")
OF_A_TASK["child_refused"] = lambda task, token: ChildTold(task, token, "run-2", "refused", error=NO_SUCH)
OF_A_TASK["child_completed"] = lambda task, token: ChildTold(task, token, "run-2", "completed", b"7")
OF_A_TASK["child_failed"] = lambda task, token: ChildTold(task, token, "run-2", "failed")
OF_A_TASK["child_cancelled"] = lambda task, token: ChildTold(task, token, "run-2", "cancelled")
OF_A_RUN: dict[str, MachineEvent] = {
    "signalled": Signalled("signal-1", "news", b"7", None, "ada", START),
    "other_signal": Signalled("signal-1", "olds", b"7", None, "ada", START),
    "cancelled": Cancelled(),
    "isolated": Isolated(BROKEN),
    "released": Released(),
}
EVENTS = [*OF_A_TASK, *OF_A_RUN]
CLAIMS = ("claimed", "claimed_twice")
SIGNALS = ("signalled", "other_signal")
ENDED = ("completed", "failed", "rejected", "skipped", "no_instant", "unaskable")
SPARED = (*ENDED, "cleaning")
"""What a cancel moves the run of, and leaves as it is."""

# What the subject is afterwards. `.` stale: nothing changes; `=` the run changes, the subject does not; `?` no task
# changes, and the claim is answered.
TABLE = """
                 untouched  backoff    queued     running    waiting    asked      completed  failed   rejected  skipped  cancelled
started          .          .          running    .          .          .          .          .        .         .        .
claimed          .          .          running    ?          .          .          .          .        .         .        .
claimed_twice    .          .          running    ?          .          .          .          .        .         .        .
succeeded        .          .          completed  completed  .          .          .          .        .         .        .
happened         .          .          completed  completed  .          .          .          .        .         .        .
not_happened     .          .          completed  completed  .          .          .          .        .         .        .
cannot_tell      .          .          completed  completed  .          .          .          .        .         .        .
failed           .          .          pending    pending    .          .          .          .        .         .        .
failed_for_good  .          .          failed     failed     .          .          .          .        .         .        .
failed_doubtful  .          .          pending    pending    .          .          .          .        .         .        .
out_of_time      .          .          pending    pending    .          .          .          .        .         .        .
returned         .          .          queued     queued     .          .          .          .        .         .        .
returned_begun   .          .          queued     queued     .          .          .          .        .         .        .
lost             .          .          queued     queued     .          .          .          .        .         .        .
lost_begun       .          .          queued     queued     .          .          .          .        .         .        .
lost_unbegun     .          .          queued     queued     .          .          .          .        .         .        .
backoff_due      .          queued     .          .          .          .          .          .        .         .        .
backoff_early    .          .          .          .          .          .          .          .        .         .        .
timeout_due      .          .          .          pending    .          .          .          .        .         .        .
timeout_early    .          .          .          .          .          .          .          .        .         .        .
wait_due         .          .          .          .          .          .          .          .        .         .        .
wait_early       .          .          .          .          .          .          .          .        .         .        .
repeat_due       .          queued     .          .          .          .          .          .        .         .        .
start_due        .          .          .          .          .          .          .          .        .         .        .
deadline_due     .          .          .          .          .          .          .          .        .         .        .
other_timer      .          .          .          .          .          .          .          .        .         .        .
admitted         .          .          .          .          .          .          .          .        .         .        .
approved         .          .          .          .          queued     completed  .          .        .         .        .
rejected         .          .          .          .          failed     failed     .          .        .         .        .
expired          .          .          .          .          failed     failed     .          .        .         .        .
replayed         .          .          .          .          .          .          .          queued   waiting   .        .
replayed_edited  .          .          .          .          .          .          .          queued   waiting   .        .
it_happened      .          .          .          .          .          .          .          .        .         .        .
it_did_not       .          .          .          .          .          .          .          .        .         .        .
it_shall_fail    .          .          .          .          .          .          .          .        .         .        .
offered          .          .          .          .          .          .          .          .        .         .        .
child_started    .          .          .          .          .          .          .          .        .         .        .
child_refused    .          .          .          .          .          .          .          .        .         .        .
child_completed  .          .          .          .          .          .          .          .        .         .        .
child_failed     .          .          .          .          .          .          .          .        .         .        .
child_cancelled  .          .          .          .          .          .          .          .        .         .        .
signalled        =          =          =          =          =          =          =          =        =         =        .
other_signal     =          =          =          =          =          =          =          =        =         =        .
cancelled        cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  =          =        =         =        .
isolated         =          =          =          =          =          =          =          =        =         =        .
released         .          .          .          .          .          .          .          .        .         .        .
"""  # noqa: E501 - a table is read across

UNDER_A_POLICY = """
                 offered    manual     reconcile  looked_up  looking    look_again parked     until      listening  or_none    no_instant
started          running    .          .          running    .          .          .          .          .          .          .
claimed          running    ?          ?          running    ?          .          .          .          .          .          .
claimed_twice    running    ?          ?          running    ?          .          .          .          .          .          .
succeeded        completed  completed  completed  waiting    waiting    .          .          .          .          .          .
happened         completed  completed  completed  completed  completed  .          .          .          .          .          .
not_happened     completed  completed  completed  pending    pending    .          .          .          .          .          .
cannot_tell      completed  completed  completed  waiting    waiting    .          .          .          .          .          .
failed           pending    pending    pending    pending    pending    .          .          .          .          .          .
failed_for_good  failed     failed     failed     waiting    waiting    .          .          .          .          .          .
failed_doubtful  waiting    waiting    queued     pending    pending    .          .          .          .          .          .
out_of_time      waiting    waiting    queued     pending    pending    .          .          .          .          .          .
returned         queued     queued     queued     queued     queued     .          .          .          .          .          .
returned_begun   waiting    waiting    queued     queued     queued     .          .          .          .          .          .
lost             queued     waiting    queued     queued     queued     .          .          .          .          .          .
lost_begun       waiting    waiting    queued     queued     queued     .          .          .          .          .          .
lost_unbegun     queued     queued     queued     queued     queued     .          .          .          .          .          .
backoff_due      .          .          .          .          .          queued     .          .          .          .          .
backoff_early    .          .          .          .          .          .          .          .          .          .          .
timeout_due      .          waiting    queued     .          pending    .          .          .          .          .          .
timeout_early    .          .          .          .          .          .          .          .          .          .          .
wait_due         .          .          .          .          .          .          .          completed  failed     completed  .
wait_early       .          .          .          .          .          .          .          .          .          .          .
repeat_due       .          .          .          .          .          queued     .          .          .          .          .
start_due        .          .          .          .          .          .          .          .          .          .          .
deadline_due     .          .          .          .          .          .          .          .          .          .          .
other_timer      .          .          .          .          .          .          .          .          .          .          .
admitted         .          .          .          .          .          .          .          .          .          .          .
approved         .          .          .          .          .          .          .          .          .          .          .
rejected         .          .          .          .          .          .          .          .          .          .          .
expired          .          .          .          .          .          .          .          .          .          .          .
replayed         .          .          .          .          .          .          .          .          .          .          failed
replayed_edited  .          .          .          .          .          .          .          .          .          .          failed
it_happened      .          .          .          .          .          .          completed  .          .          .          .
it_did_not       .          .          .          .          .          .          queued     .          .          .          .
it_shall_fail    .          .          .          .          .          .          failed     .          .          .          .
offered          .          .          .          .          .          .          .          .          completed  completed  .
child_started    .          .          .          .          .          .          .          .          .          .          .
child_refused    .          .          .          .          .          .          .          .          .          .          .
child_completed  .          .          .          .          .          .          .          .          .          .          .
child_failed     .          .          .          .          .          .          .          .          .          .          .
child_cancelled  .          .          .          .          .          .          .          .          .          .          .
signalled        =          =          =          =          =          =          =          =          completed  completed  =
other_signal     =          =          =          =          =          =          =          =          =          =          =
cancelled        cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  cancelled  =
isolated         =          =          =          =          =          =          =          =          =          =          =
released         .          .          .          .          .          .          .          .          .          .          .
"""  # noqa: E501 - a table is read across

OF_PEOPLE = """
                 or_branches  asked_either  unaskable
started          .            .             .
claimed          .            .             .
claimed_twice    .            .             .
succeeded        .            .             .
happened         .            .             .
not_happened     .            .             .
cannot_tell      .            .             .
failed           .            .             .
failed_for_good  .            .             .
failed_doubtful  .            .             .
out_of_time      .            .             .
returned         .            .             .
returned_begun   .            .             .
lost             .            .             .
lost_begun       .            .             .
lost_unbegun     .            .             .
backoff_due      .            .             .
backoff_early    .            .             .
timeout_due      .            .             .
timeout_early    .            .             .
wait_due         .            .             .
wait_early       .            .             .
repeat_due       .            .             .
start_due        .            .             .
deadline_due     .            .             .
other_timer      .            .             .
admitted         .            .             .
approved         queued       completed     .
rejected         completed    completed     .
expired          failed       failed        .
replayed         .            .             failed
replayed_edited  .            .             failed
it_happened      .            .             .
it_did_not       .            .             .
it_shall_fail    .            .             .
offered          .            .             .
child_started    .            .             .
child_refused    .            .             .
child_completed  .            .             .
child_failed     .            .             .
child_cancelled  .            .             .
signalled        =            =             =
other_signal     =            =             =
cancelled        cancelled    cancelled     =
isolated         =            =             =
released         .            .             .
"""

SAID_NO = b'{"outcome":"rejected","by":"","comment":"","form":null,"votes":[]}'
NO_CONTEXT = STATES["unaskable"]().state("subject").error or BROKEN
OF_CHILDREN = """
                 child      detached
started          .          .
claimed          .          .
claimed_twice    .          .
succeeded        .          .
happened         .          .
not_happened     .          .
cannot_tell      .          .
failed           .          .
failed_for_good  .          .
failed_doubtful  .          .
out_of_time      .          .
returned         .          .
returned_begun   .          .
lost             .          .
lost_begun       .          .
lost_unbegun     .          .
backoff_due      .          .
backoff_early    .          .
timeout_due      .          .
timeout_early    .          .
wait_due         failed     failed
wait_early       .          .
repeat_due       .          .
start_due        .          .
deadline_due     .          .
other_timer      .          .
admitted         .          .
approved         .          .
rejected         .          .
expired          .          .
replayed         .          .
replayed_edited  .          .
it_happened      .          .
it_did_not       .          .
it_shall_fail    .          .
offered          .          .
child_started    .          completed
child_refused    failed     failed
child_completed  completed  completed
child_failed     failed     failed
child_cancelled  cancelled  cancelled
signalled        =          =
other_signal     =          =
cancelled        cancelled  cancelled
isolated         =          =
released         .          .
"""

UNDER_A_POOL = """
                 in_line    in_pool
started          .          running
claimed          .          running
claimed_twice    .          running
succeeded        .          completed
happened         .          completed
not_happened     .          completed
cannot_tell      .          completed
failed           .          pending
failed_for_good  .          failed
failed_doubtful  .          pending
out_of_time      .          pending
returned         .          waiting
returned_begun   .          waiting
lost             .          waiting
lost_begun       .          waiting
lost_unbegun     .          waiting
backoff_due      .          .
backoff_early    .          .
timeout_due      .          .
timeout_early    .          .
wait_due         .          .
wait_early       .          .
repeat_due       .          .
start_due        .          .
deadline_due     .          .
other_timer      .          .
admitted         queued     .
approved         .          .
rejected         .          .
expired          .          .
replayed         .          .
replayed_edited  .          .
it_happened      .          .
it_did_not       .          .
it_shall_fail    .          .
offered          .          .
child_started    .          .
child_refused    .          .
child_completed  .          .
child_failed     .          .
child_cancelled  .          .
signalled        =          =
other_signal     =          =
cancelled        cancelled  cancelled
isolated         =          =
released         .          .
"""

OF_CLEAN_UPS = """
                 cleaning   late_backoff  late_queued  late_running  late_failed
started          running    .             running      .             .
claimed          running    .             running      ?             .
claimed_twice    running    .             running      ?             .
succeeded        completed  .             completed    completed     .
happened         completed  .             completed    completed     .
not_happened     completed  .             completed    completed     .
cannot_tell      completed  .             completed    completed     .
failed           pending    .             pending      pending       .
failed_for_good  failed     .             failed       failed        .
failed_doubtful  pending    .             pending      pending       .
out_of_time      pending    .             pending      pending       .
returned         queued     .             queued       queued        .
returned_begun   queued     .             queued       queued        .
lost             queued     .             queued       queued        .
lost_begun       queued     .             queued       queued        .
lost_unbegun     queued     .             queued       queued        .
backoff_due      .          queued        .            .             .
backoff_early    .          .             .            .             .
timeout_due      .          .             .            pending       .
timeout_early    .          .             .            .             .
wait_due         .          .             .            .             .
wait_early       .          .             .            .             .
repeat_due       .          queued        .            .             .
start_due        .          .             .            .             .
deadline_due     .          .             .            .             .
other_timer      .          .             .            .             .
admitted         .          .             .            .             .
approved         .          .             .            .             .
rejected         .          .             .            .             .
expired          .          .             .            .             .
replayed         .          .             .            .             queued
replayed_edited  .          .             .            .             queued
it_happened      .          .             .            .             .
it_did_not       .          .             .            .             .
it_shall_fail    .          .             .            .             .
offered          .          .             .            .             .
child_started    .          .             .            .             .
child_refused    .          .             .            .             .
child_completed  .          .             .            .             .
child_failed     .          .             .            .             .
child_cancelled  .          .             .            .             .
signalled        =          =             =            =             .
other_signal     =          =             =            =             .
cancelled        =          .             .            .             .
isolated         =          =             =            =             .
released         .          .             .            .             .
"""

AGAIN = Dispatch(SUBJECT, 2, 3, INPUT)
ONWARD = Dispatch(AFTER, 1, 1, INPUT)
CANCEL = Error("CANCELLED", "the run was cancelled", retryable=False)
TIMEOUT = Error("TIMEOUT", "no result within 10.0 s")
SLOW = Error("TIMEOUT", "the body did not end within 10 s")
T0 = START + SECOND  # when the first backoff is over
T1 = T0 + 15 * SECOND  # ten seconds for the body, five of grace
STOP_OTHERS: list[Action] = [Abort(BESIDE, 1, "cancelled")]


def no_instant(kind: str) -> Error:
    message = f"how long to wait: an instant is RFC 3339 text or a timestamp, not a {kind}"
    return Error("BAD_INPUT", message, retryable=False)


def ends(outcome: str, error: Error | None = None) -> EndAttempt:
    """The second attempt, which every state here is about."""
    return EndAttempt(SUBJECT, 2, 2, outcome, error)


def asks(token: int) -> Dispatch:
    """The lookup of the second attempt."""
    return Dispatch(SUBJECT, 2, token, INPUT, lookup=True)


def waits_for_a_person(token: int, error: Error, more: str = "") -> Park:
    message = f"attempt 2 may have had its effect: {error.message}{more}"
    return Park(SUBJECT, token, Error("AMBIGUOUS", message, retryable=False))


THIRD = Dispatch(SUBJECT, 3, 3, INPUT)
CLEAR = ClearTimer(SUBJECT)
DEAF = StopListening(SUBJECT)
IT_FAILED = Error("CHILD_FAILED", "run run-2 of workflow other failed", retryable=False)
TOO_LONG = Error("TIMEOUT", "the run of workflow other did not end within 10.0 s", retryable=False)
NO_NEWS = Error("SIGNAL_TIMEOUT", "no signal news came in time", retryable=False)
GONE = Abort(SUBJECT, 2, "lost")
FREE, AWAIT = FreeSlot(SUBJECT, "pool"), AwaitSlot(SUBJECT, 3, "pool")
SOON = T0 + SECOND  # a second's backoff from when all these states are reached
ALL_CANCELLED = {"after": "cancelled", "beside": "cancelled"}
END_OF_RUN = [*STOP_OTHERS, Finish(RunStatus.CANCELLED)]


# (state, event) -> attempt, token, due_at of the subject; the other tasks that change, with their states; the actions.
Told = tuple[int, int, int | None, dict[str, str], list[Action]]
ASKED_FOR: dict[tuple[str, str], Told] = {
    ("untouched", "cancelled"): (
        0, 0, None, {"before": "cancelled", "after": "cancelled", "beside": "cancelled"},
        [Abort(BEFORE, 1, "cancelled"), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("backoff", "backoff_due"): (1, 2, None, {}, [ClearTimer(SUBJECT), Dispatch(SUBJECT, 2, 2, INPUT)]),
    ("backoff", "repeat_due"): (1, 2, None, {}, [ClearTimer(SUBJECT), Dispatch(SUBJECT, 2, 2, INPUT)]),
    ("backoff", "cancelled"): (
        1, 1, None, {"after": "cancelled", "beside": "cancelled"},
        [ClearTimer(SUBJECT), *STOP_OTHERS, Finish(RunStatus.CANCELLED)],
    ),
    ("queued", "started"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1)]),
    ("queued", "claimed"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1), Grant(SUBJECT, 2, SESSION)]),
    ("queued", "claimed_twice"): (
        2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1), Grant(SUBJECT, 2, ELSEWHERE)],
    ),
    ("queued", "failed_doubtful"): (
        2, 2, SOON, {}, [ends("failed", DOUBTFUL), SetTimer(SUBJECT, 2, "backoff", SOON)],
    ),
    ("queued", "out_of_time"): (2, 2, SOON, {}, [ends("failed", SLOW), SetTimer(SUBJECT, 2, "backoff", SOON)]),
    ("queued", "lost_begun"): (2, 3, None, {}, [ends("lost", LOST), GONE, THIRD]),
    ("queued", "lost_unbegun"): (1, 3, None, {}, [AGAIN]),
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
    ("running", "failed_doubtful"): (
        2, 2, SOON, {}, [ends("failed", DOUBTFUL), CLEAR, SetTimer(SUBJECT, 2, "backoff", SOON)],
    ),
    ("running", "out_of_time"): (
        2, 2, SOON, {}, [ends("failed", SLOW), CLEAR, SetTimer(SUBJECT, 2, "backoff", SOON)],
    ),
    ("running", "lost_begun"): (2, 3, None, {}, [ends("lost", LOST), GONE, CLEAR, THIRD]),
    ("running", "lost_unbegun"): (2, 3, None, {}, [ends("lost", LOST), GONE, CLEAR, THIRD]),
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
    # -- claimed, and its end ambiguous or not
    ("offered", "started"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1)]),
    ("offered", "claimed"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1), Grant(SUBJECT, 2, SESSION)]),
    ("offered", "claimed_twice"): (
        2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1), Grant(SUBJECT, 2, ELSEWHERE)],
    ),
    ("offered", "failed"): (2, 2, SOON, {}, [ends("failed", BROKEN), SetTimer(SUBJECT, 2, "backoff", SOON)]),
    ("offered", "failed_for_good"): (
        2, 2, None, {"after": "skipped"}, [ends("failed", HOPELESS), BuryTask(SUBJECT, 2, 2, HOPELESS)],
    ),
    ("offered", "failed_doubtful"): (
        2, 2, None, {}, [ends("failed", DOUBTFUL), waits_for_a_person(2, DOUBTFUL)],
    ),
    ("offered", "out_of_time"): (2, 2, None, {}, [ends("failed", SLOW), waits_for_a_person(2, SLOW)]),
    ("offered", "returned"): (1, 3, None, {}, [AGAIN]),
    ("offered", "returned_begun"): (2, 2, None, {}, [ends("returned"), waits_for_a_person(2, DRAINED)]),
    ("offered", "lost"): (1, 3, None, {}, [AGAIN]),
    ("offered", "lost_begun"): (2, 2, None, {}, [ends("lost", LOST), GONE, waits_for_a_person(2, LOST)]),
    ("offered", "lost_unbegun"): (1, 3, None, {}, [AGAIN]),
    ("offered", "cancelled"): (1, 2, None, ALL_CANCELLED, [Abort(SUBJECT, 2, "cancelled"), *END_OF_RUN]),
    ("manual", "failed_doubtful"): (
        2, 2, None, {}, [ends("failed", DOUBTFUL), CLEAR, waits_for_a_person(2, DOUBTFUL)],
    ),
    ("manual", "out_of_time"): (2, 2, None, {}, [ends("failed", SLOW), CLEAR, waits_for_a_person(2, SLOW)]),
    ("manual", "returned_begun"): (2, 2, None, {}, [ends("returned"), CLEAR, waits_for_a_person(2, DRAINED)]),
    ("manual", "lost"): (2, 2, None, {}, [ends("lost", LOST), GONE, CLEAR, waits_for_a_person(2, LOST)]),
    ("manual", "lost_begun"): (2, 2, None, {}, [ends("lost", LOST), GONE, CLEAR, waits_for_a_person(2, LOST)]),
    ("manual", "timeout_due"): (
        2, 2, None, {},
        [Abort(SUBJECT, 2, "timeout"), ends("failed", TIMEOUT), CLEAR, waits_for_a_person(2, TIMEOUT)],
    ),
    ("reconcile", "failed_doubtful"): (2, 3, None, {}, [ends("failed", DOUBTFUL), CLEAR, asks(3)]),
    ("reconcile", "out_of_time"): (2, 3, None, {}, [ends("failed", SLOW), CLEAR, asks(3)]),
    ("reconcile", "returned_begun"): (2, 3, None, {}, [ends("returned"), CLEAR, asks(3)]),
    ("reconcile", "lost"): (2, 3, None, {}, [ends("lost", LOST), GONE, CLEAR, asks(3)]),
    ("reconcile", "lost_begun"): (2, 3, None, {}, [ends("lost", LOST), GONE, CLEAR, asks(3)]),
    ("reconcile", "timeout_due"): (
        2, 3, None, {}, [Abort(SUBJECT, 2, "timeout"), ends("failed", TIMEOUT), CLEAR, asks(3)],
    ),
    # -- its lookup is asked: no attempt, and a token each time
    ("looked_up", "started"): (2, 3, T1, {}, [SetTimer(SUBJECT, 3, "timeout", T1)]),
    ("looked_up", "claimed"): (2, 3, T1, {}, [SetTimer(SUBJECT, 3, "timeout", T1), Grant(SUBJECT, 3, SESSION)]),
    ("looked_up", "claimed_twice"): (
        2, 3, T1, {}, [SetTimer(SUBJECT, 3, "timeout", T1), Grant(SUBJECT, 3, ELSEWHERE)],
    ),
    ("looked_up", "succeeded"): (2, 3, None, {}, [waits_for_a_person(3, LOST, "; its lookup cannot tell either")]),
    ("looked_up", "happened"): (2, 3, None, {"after": "queued"}, [KeepOutput(SUBJECT, b"7"), ONWARD]),
    ("looked_up", "not_happened"): (2, 3, SOON, {}, [SetTimer(SUBJECT, 3, "backoff", SOON)]),
    ("looked_up", "cannot_tell"): (2, 3, None, {}, [waits_for_a_person(3, LOST, "; its lookup cannot tell either")]),
    ("looked_up", "failed"): (2, 3, SOON, {}, [SetTimer(SUBJECT, 3, "backoff", SOON)]),
    ("looked_up", "failed_for_good"): (
        2, 3, None, {}, [waits_for_a_person(3, LOST, "; its lookup failed: it can never work")],
    ),
    ("looked_up", "failed_doubtful"): (2, 3, SOON, {}, [SetTimer(SUBJECT, 3, "backoff", SOON)]),
    ("looked_up", "out_of_time"): (2, 3, SOON, {}, [SetTimer(SUBJECT, 3, "backoff", SOON)]),
    ("looked_up", "returned"): (2, 4, None, {}, [asks(4)]),
    ("looked_up", "returned_begun"): (2, 4, None, {}, [asks(4)]),
    ("looked_up", "lost"): (2, 4, None, {}, [asks(4)]),
    ("looked_up", "lost_begun"): (2, 4, None, {}, [asks(4)]),
    ("looked_up", "lost_unbegun"): (2, 4, None, {}, [asks(4)]),
    ("looked_up", "cancelled"): (2, 3, None, ALL_CANCELLED, [Abort(SUBJECT, 3, "cancelled"), *END_OF_RUN]),
    ("looking", "timeout_due"): (
        2, 3, T1 + SECOND, {},
        [Abort(SUBJECT, 3, "timeout"), CLEAR, SetTimer(SUBJECT, 3, "backoff", T1 + SECOND)],
    ),
    ("looking", "cancelled"): (2, 3, None, ALL_CANCELLED, [Abort(SUBJECT, 3, "cancelled"), CLEAR, *END_OF_RUN]),
    ("look_again", "backoff_due"): (2, 4, None, {}, [CLEAR, asks(4)]),
    ("look_again", "repeat_due"): (2, 4, None, {}, [CLEAR, asks(4)]),
    ("look_again", "cancelled"): (2, 3, None, ALL_CANCELLED, [CLEAR, *END_OF_RUN]),
    # -- a person is asked
    ("parked", "it_happened"): (2, 2, None, {"after": "queued"}, [Unpark(SUBJECT), KeepOutput(SUBJECT, b"7"), ONWARD]),
    ("parked", "it_did_not"): (2, 3, None, {}, [Unpark(SUBJECT), THIRD]),
    ("parked", "it_shall_fail"): (
        2, 2, None, {"after": "skipped"},
        [Unpark(SUBJECT), BuryTask(SUBJECT, 2, 2, waits_for_a_person(2, LOST).error)],
    ),
    ("parked", "cancelled"): (2, 2, None, ALL_CANCELLED, [Unpark(SUBJECT), *END_OF_RUN]),
    # -- a signal, or that none comes
    ("listening", "signalled"): (0, 1, None, {"after": "queued"}, [CLEAR, DEAF, TakeSignal("signal-1", 1, 1), ONWARD]),
    ("listening", "wait_due"): (0, 1, None, {"after": "skipped"}, [CLEAR, DEAF, BuryTask(SUBJECT, 1, 0, NO_NEWS)]),
    ("listening", "cancelled"): (0, 1, None, ALL_CANCELLED, [DEAF, CLEAR, *END_OF_RUN]),
    ("listening", "offered"): (0, 1, None, {"after": "queued"}, [CLEAR, DEAF, TakeSignal("signal-1", 1, 1), ONWARD]),
    ("or_none", "offered"): (0, 1, None, {"after": "queued"}, [CLEAR, DEAF, TakeSignal("signal-1", 1, 1), ONWARD]),
    ("or_none", "signalled"): (0, 1, None, {"after": "queued"}, [CLEAR, DEAF, TakeSignal("signal-1", 1, 1), ONWARD]),
    ("or_none", "wait_due"): (0, 1, None, {"after": "queued"}, [CLEAR, DEAF, ONWARD]),
    ("or_none", "cancelled"): (0, 1, None, ALL_CANCELLED, [DEAF, CLEAR, *END_OF_RUN]),
    # -- a no that is an answer, and a question that cannot be written
    ("or_branches", "approved"): (0, 2, None, {}, [Dispatch(SUBJECT, 1, 2, INPUT)]),
    ("or_branches", "rejected"): (0, 1, None, {"after": "queued"}, [KeepOutput(SUBJECT, SAID_NO), ONWARD]),
    ("or_branches", "expired"): (0, 1, None, {"after": "skipped"}, []),
    ("or_branches", "cancelled"): (0, 1, None, ALL_CANCELLED, [CloseQuestion(SUBJECT, 1), *END_OF_RUN]),
    ("asked_either", "approved"): (0, 1, None, {"after": "queued"}, [ONWARD]),
    ("asked_either", "rejected"): (0, 1, None, {"after": "queued"}, [ONWARD]),
    ("asked_either", "expired"): (0, 1, None, {"after": "skipped"}, []),
    ("asked_either", "cancelled"): (0, 1, None, ALL_CANCELLED, [CloseQuestion(SUBJECT, 1), *END_OF_RUN]),
    ("unaskable", "replayed"): (0, 2, None, {"after": "skipped"}, [BuryTask(SUBJECT, 2, 0, NO_CONTEXT)]),
    ("unaskable", "replayed_edited"): (0, 2, None, {"after": "skipped"}, [BuryTask(SUBJECT, 2, 0, NO_CONTEXT)]),
    ("unaskable", "cancelled"): (0, 1, None, {"beside": "cancelled"}, [*STOP_OTHERS, Finish(RunStatus.FAILED)]),
    # -- a slot is waited for, and held for one hand-out
    ("in_line", "admitted"): (1, 2, None, {}, [TakeSlot(SUBJECT), Dispatch(SUBJECT, 2, 2, INPUT)]),
    ("in_line", "cancelled"): (1, 2, None, ALL_CANCELLED, [FREE, *END_OF_RUN]),
    ("in_pool", "started"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1)]),
    ("in_pool", "claimed"): (2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1), Grant(SUBJECT, 2, SESSION)]),
    ("in_pool", "claimed_twice"): (
        2, 2, T1, {}, [SetTimer(SUBJECT, 2, "timeout", T1), Grant(SUBJECT, 2, ELSEWHERE)],
    ),
    ("in_pool", "succeeded"): (2, 2, None, {"after": "queued"}, [ends("completed"), FREE, ONWARD]),
    ("in_pool", "failed"): (2, 2, SOON, {}, [ends("failed", BROKEN), FREE, SetTimer(SUBJECT, 2, "backoff", SOON)]),
    ("in_pool", "failed_for_good"): (
        2, 2, None, {"after": "skipped"}, [ends("failed", HOPELESS), FREE, BuryTask(SUBJECT, 2, 2, HOPELESS)],
    ),
    ("in_pool", "failed_doubtful"): (
        2, 2, SOON, {}, [ends("failed", DOUBTFUL), FREE, SetTimer(SUBJECT, 2, "backoff", SOON)],
    ),
    ("in_pool", "out_of_time"): (2, 2, SOON, {}, [ends("failed", SLOW), FREE, SetTimer(SUBJECT, 2, "backoff", SOON)]),
    ("in_pool", "returned"): (1, 3, None, {}, [FREE, AWAIT]),
    ("in_pool", "returned_begun"): (2, 3, None, {}, [ends("returned"), FREE, AWAIT]),
    ("in_pool", "lost"): (1, 3, None, {}, [FREE, AWAIT]),
    ("in_pool", "lost_begun"): (2, 3, None, {}, [ends("lost", LOST), GONE, FREE, AWAIT]),
    ("in_pool", "lost_unbegun"): (1, 3, None, {}, [FREE, AWAIT]),
    ("in_pool", "cancelled"): (1, 2, None, ALL_CANCELLED, [Abort(SUBJECT, 2, "cancelled"), FREE, *END_OF_RUN]),
    # -- a run of another workflow, until it has ended, or has begun
    ("child", "child_refused"): (0, 1, None, {"after": "skipped"}, [CLEAR, BuryTask(SUBJECT, 1, 0, NO_SUCH)]),
    ("child", "child_completed"): (0, 1, None, {"after": "queued"}, [CLEAR, ONWARD]),
    ("child", "child_failed"): (0, 1, None, {"after": "skipped"}, [CLEAR, BuryTask(SUBJECT, 1, 0, IT_FAILED)]),
    ("child", "child_cancelled"): (0, 1, None, {"after": "skipped"}, [CLEAR]),
    ("child", "wait_due"): (
        0, 1, None, {"after": "skipped"}, [CLEAR, CancelChild(SUBJECT, 1), BuryTask(SUBJECT, 1, 0, TOO_LONG)],
    ),
    ("child", "cancelled"): (0, 1, None, ALL_CANCELLED, [CancelChild(SUBJECT, 1), CLEAR, *END_OF_RUN]),
    ("detached", "child_started"): (0, 1, None, {"after": "queued"}, [CLEAR, ONWARD]),
    ("detached", "child_refused"): (0, 1, None, {"after": "skipped"}, [CLEAR, BuryTask(SUBJECT, 1, 0, NO_SUCH)]),
    ("detached", "child_completed"): (0, 1, None, {"after": "queued"}, [CLEAR, ONWARD]),
    ("detached", "child_failed"): (0, 1, None, {"after": "skipped"}, [CLEAR, BuryTask(SUBJECT, 1, 0, IT_FAILED)]),
    ("detached", "child_cancelled"): (0, 1, None, {"after": "skipped"}, [CLEAR]),
    ("detached", "wait_due"): (0, 1, None, {"after": "skipped"}, [CLEAR, BuryTask(SUBJECT, 1, 0, TOO_LONG)]),
    ("detached", "cancelled"): (0, 1, None, ALL_CANCELLED, [CLEAR, *END_OF_RUN]),
    # -- an instant has to come
    ("until", "wait_due"): (0, 1, None, {"after": "queued"}, [CLEAR, ONWARD]),
    ("until", "cancelled"): (0, 1, None, ALL_CANCELLED, [CLEAR, *END_OF_RUN]),
    ("no_instant", "replayed"): (0, 2, None, {"after": "skipped"}, [BuryTask(SUBJECT, 2, 0, no_instant("int"))]),
    ("no_instant", "replayed_edited"): (
        0, 2, None, {"after": "skipped"}, [BuryTask(SUBJECT, 2, 0, no_instant("dict"))],
    ),
    ("no_instant", "cancelled"): (0, 1, None, {"beside": "cancelled"}, [*STOP_OTHERS, Finish(RunStatus.FAILED)]),
    # -- it cleans up, and a cancel leaves it
    ("cleaning", "cancelled"): (1, 2, None, ALL_CANCELLED, STOP_OTHERS),
    ("late_failed", "replayed"): (2, 3, None, {}, [THIRD]),
    ("late_failed", "replayed_edited"): (2, 3, None, {}, [Dispatch(SUBJECT, 3, 3, EDITED)]),
}  # fmt: skip

# What is asked for where another row says it already: the same hand-out in the same state, but for its policy.
LOOKUP_ENDS = [
    "succeeded", "happened", "not_happened", "cannot_tell", "failed", "failed_for_good", "failed_doubtful",
    "out_of_time", "returned", "returned_begun", "lost", "lost_begun", "lost_unbegun",
]  # fmt: skip
for event in ("happened", "not_happened", "cannot_tell"):  # the output of a body is its own affair
    for state in ("queued", "running", "in_pool"):
        ASKED_FOR[state, event] = ASKED_FOR[state, "succeeded"]
for event in ("succeeded", "happened", "not_happened", "cannot_tell"):
    ASKED_FOR["offered", event] = ASKED_FOR["queued", "succeeded"]
for state in ("manual", "reconcile"):  # what ends plainly ends as under no policy at all
    for event in ("succeeded", "happened", "not_happened", "cannot_tell", "failed", "failed_for_good", "returned"):
        ASKED_FOR[state, event] = ASKED_FOR["running", event]
    for event in ("lost_unbegun", "cancelled"):
        ASKED_FOR[state, event] = ASKED_FOR["running", event]
for event in LOOKUP_ENDS:  # a lookup that was seen to start has a timer besides
    attempt, token, due_at, others, actions = ASKED_FOR["looked_up", event]
    ASKED_FOR["looking", event] = (attempt, token, due_at, others, [CLEAR, *actions])
for (state, event), (attempt, token, due_at, others, actions) in list(ASKED_FOR.items()):
    if event == "cancelled" or state not in ("backoff", "queued", "running"):
        continue
    if state == "queued":
        ASKED_FOR["cleaning", event] = ASKED_FOR[state, event]
    # Behind a cancel there is nothing that it could hand on to, and its end is that of the run.
    end = {"completed": [Finish(RunStatus.CANCELLED)], "failed": [Finish(RunStatus.FAILED)]}
    told = [action for action in actions if action != ONWARD]
    has_ended = "completed" if ONWARD in actions else "failed" if "after" in others else ""
    ASKED_FOR[f"late_{state}", event] = (attempt, token, due_at, {}, [*told, *end.get(has_ended, [])])


def _cells(table: str) -> dict[tuple[str, str], str]:
    head, *rows = [line.split() for line in table.strip().splitlines()]
    assert [row[0] for row in rows] == EVENTS
    return {(state, row[0]): cell for row in rows for state, cell in zip(head, row[1:], strict=True)}


for state in STATES:  # kept, whatever the subject is, until somebody waits for it
    for event in ("signalled", "other_signal"):
        subject = STATES[state]().state("subject")
        kept = (
            subject.attempt,
            subject.token,
            subject.due_at,
            dict[str, str](),
            list[Action]([KeepSignal("signal-1")]),
        )
        if state not in ("cancelled", "late_failed") and (state, event) not in ASKED_FOR:
            ASKED_FOR[state, event] = kept

CELLS = {
    pair: cell
    for table in (TABLE, UNDER_A_POLICY, OF_PEOPLE, UNDER_A_POOL, OF_CHILDREN, OF_CLEAN_UPS)
    for pair, cell in _cells(table).items()
}
MOVES = [pair for pair, cell in CELLS.items() if cell not in ".=?"]
ANSWERED = [pair for pair, cell in CELLS.items() if cell == "?"]
STALE = [pair for pair, cell in CELLS.items() if cell == "."]
WITH_A_TASK = [(state, event) for state in STATES for event in OF_A_TASK]


DUE = ("backoff_due", "timeout_due", "wait_due", "repeat_due", "start_due", "deadline_due", "other_timer")


def event_for(trial: Trial, event: str, task: int, token: int) -> MachineEvent:
    """The event, with the clock set to when it would be said."""
    due_at = trial.state("subject").due_at
    if due_at is not None and event in DUE:
        trial.at = due_at
    elif due_at is not None and event in ("backoff_early", "timeout_early", "wait_early"):
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
    assert (subject.lookups, subject.session) == (LOOKUPS.get(state, 0), HOLDERS.get(state, ""))
    assert subject.is_parked is (state == "parked")


def test_the_table_covers_every_pair():
    assert {trial().state("subject").status for trial in STATES.values()} == set(TaskStatus)
    assert CELLS.keys() == {(state, event) for state in STATES for event in EVENTS}
    moves_only_the_run = {pair for pair, cell in CELLS.items() if cell == "=" and pair[1] in SIGNALS}
    assert set(ASKED_FOR) == {*MOVES, *moves_only_the_run, *((s, "cancelled") for s in SPARED)}


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
    before = states_of(trial)
    assert trial.tell(told) is (event in CLAIMS)  # which is answered each time
    assert states_of(trial) == before


@pytest.mark.parametrize(("state", "event"), ANSWERED)
def test_a_claim_of_what_runs_is_answered_with_its_holder_and_changes_no_task(state: str, event: str):
    trial = STATES[state]()
    before, status = states_of(trial), trial.status
    for _ in range(3):
        assert trial.tell(current(trial, event))
        assert trial.told == [Grant(SUBJECT, trial.token("subject"), SESSION)]
        assert (trial.changed, trial.status) == (set(), status)
    assert all(now is then for now, then in zip(states_of(trial), before, strict=True))


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


@pytest.mark.parametrize("state", [state for state in STATES if CELLS[state, "cancelled"] != "."])
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
