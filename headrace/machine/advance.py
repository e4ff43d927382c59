"""`advance`: decide what one event does to one run. See the package's docstring for the theory."""

from collections.abc import Callable, Sequence
from typing import Final, Literal, assert_never

import msgspec

from headrace.errors import PayloadError
from headrace.instant import format_instant, from_microseconds
from headrace.machine.actions import (
    Abort,
    Ask,
    BuryTask,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    Dispatch,
    EndAttempt,
    Finish,
    Grant,
    KeepOutput,
    KeepSignal,
    Listen,
    Park,
    SetTimer,
    StopListening,
    TakeSignal,
    Transition,
    Unpark,
)
from headrace.machine.backoff import backoff
from headrace.machine.event import (
    Cancelled,
    Decided,
    Isolated,
    MachineEvent,
    Paused,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    Signalled,
    Supplied,
    Terminated,
)
from headrace.machine.place import ITEMS_MAX, is_item, item_of, items_of, place_of, task_of
from headrace.machine.plan import Failures, Plan, TaskPlan, read_list
from headrace.machine.run_state import UNTOUCHED, ItemCounts, RunState, TaskState
from headrace.machine.status import PAUSES, RUN_TERMINAL, TERMINAL, TERMINATED, RunStatus, TaskStatus, derive_status
from headrace.messages import PAYLOAD_BYTES_MAX, Due, Error, Failed, Lost, Returned, Started, Succeeded

HANDOUTS_LOST_MAX: Final = 50
"""Hand-outs of one task that vanish in a row before a body began until it is a dead letter; a replay gives it as many
again. A body that kills its worker at once would otherwise go round for ever; rolling restarts that hand waiting work
back stay far below it. Of a lookup likewise, until a person is asked."""
TIMEOUT_GRACE: Final = 5_000_000
"""Microseconds. The worker enforces a task's time-out; this much later the engine does, for a worker that cannot."""
RETRY_AFTER_MAX: Final = 366 * 86_400
"""Seconds; a delay asked for by a body is capped, so that no sum of instants overflows."""

_PENDING, _QUEUED, _RUNNING, _WAITING, _COMPLETED, _FAILED, _SKIPPED, _CANCELLED = (
    TaskStatus.PENDING, TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.WAITING,
    TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.CANCELLED,
)  # fmt: skip


class Verdict(msgspec.Struct):
    """What a lookup answers with."""

    happened: bool | None
    output: msgspec.Raw = msgspec.Raw(b"null")


class Heard(msgspec.Struct):
    """The output of a task that waited for a signal."""

    outcome: str
    """received or timed_out"""
    data: msgspec.Raw = msgspec.Raw(b"null")
    by: str | None = None
    sent_at: str | None = None
    signal_id: str | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode_heard: Final[Callable[[bytes], Heard]] = msgspec.json.Decoder(Heard).decode
_decode_verdict: Final[Callable[[bytes], Verdict]] = msgspec.json.Decoder(Verdict).decode
LOST: Final = Error("WORKER_LOST", "the worker that ran this attempt is gone")
DRAINED: Final = Error("WORKER_DRAINED", "the worker shut down before the attempt ended")
NEVER_BEGAN: Final = Error(
    "WORKER_LOST", f"{HANDOUTS_LOST_MAX} hand-outs vanished before a body began", retryable=False
)
UPSTREAM_FAILED: Final = Error("UPSTREAM_FAILED", "a task that this one needs did not complete", retryable=False)
UPSTREAM_SKIPPED: Final = Error("UPSTREAM_SKIPPED", "a task that this one needs was skipped", retryable=False)
CONDITION_FALSE: Final = Error("CONDITION_FALSE", "its condition was false", retryable=False)
RERUN: Final = Error("RERUN", "the task is to run again", retry_after=0.0)
SUPPLIED: Final = Error("SUPPLIED", "a person gave the task its output", retryable=False)
NOTHING_FAILED: Final = Error("NOTHING_FAILED", "none of the tasks that this one needs failed", retryable=False)


def begin(plan: Plan, run: RunState, at: int) -> Transition:
    """Decide the first step of a new run, within the transaction that creates it: what needs nothing is handed out."""
    draft = Transition(run)
    ended: list[int] = []
    for index in plan.roots:
        _ready(plan, run, draft, index, UNTOUCHED, ended, at)
    return _close(plan, run, draft, ended, at)


def advance(plan: Plan, run: RunState, event: MachineEvent, at: int) -> Transition | None:
    """Decide what one event does to one run; None when it is stale or repeated: nothing changes.

    Total over every (state, event) pair. Reads the run and touches nothing: `run.apply(transition)` makes it so. Both
    cost O(tasks the event touches).

    at: the database's clock when the batch is decided, microseconds UTC.
    Transition.actions: in the order in which they must be persisted. Raises nothing.
    """
    if run.attention and not isinstance(event, Cancelled | Terminated | Released):
        return None
    match event:
        case Succeeded():
            return _succeeded(plan, run, event, at)
        case Failed():
            return _failed(plan, run, event, at)
        case Started():
            return _started(plan, run, event, at)
        case Returned():
            return _returned(plan, run, event, at)
        case Lost():
            return _lost(plan, run, event, at)
        case Due():
            return _due(plan, run, event, at)
        case Decided():
            return _decided(plan, run, event, at)
        case Replayed():
            return _replayed(plan, run, event, at)
        case Resolved():
            return _resolved(plan, run, event, at)
        case Supplied():
            return _supplied(plan, run, event, at)
        case Reran():
            return _reran(plan, run, event, at)
        case Signalled():
            return _signalled(plan, run, event, at)
        case Cancelled():
            return _cancelled(plan, run, event, at)
        case Terminated():
            return _terminated(plan, run, event, at)
        case Paused():
            return _paused(plan, run, event, at)
        case Resumed():
            return _resumed(plan, run, event, at)
        case Isolated():
            return None if run.status in RUN_TERMINAL else _attend(plan, run, at, attention=True)
        case Released():
            return _attend(plan, run, at, attention=False) if run.attention else None
        case _:
            assert_never(event)


# == one event, one arm ==============================================================================================
def _succeeded(plan: Plan, run: RunState, event: Succeeded, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None:
        return None
    if task.lookups:
        return _looked_up(plan, run, event, task, at)
    spec, draft = plan.at(event.task), Transition(run)
    begun = _begun(task)
    draft.actions.append(EndAttempt(event.task, begun.attempt, task.token, "completed"))
    _clear_timer(draft, event.task, task)
    output = bytes(event.output) if spec.is_referenced else None
    done = TaskState(_COMPLETED, begun.attempt, task.token, None, task.retries_from, output=output)
    _put(run, draft, event.task, done)
    return _close(plan, run, draft, [event.task], at)


def _failed(plan: Plan, run: RunState, event: Failed, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None or (event.error.code == "UNKNOWN_TASK" and _is_of_another(task, event.session)):
        return None
    draft, ended = Transition(run), list[int]()
    if task.lookups:
        _lookup_failed(plan, run, draft, event.task, task, event.error, at)
    else:
        is_ambiguous = event.error.ambiguous or event.error.code == "TIMEOUT"
        _fail_attempt(plan, run, draft, event.task, _begun(task), event.error, ended, at, is_ambiguous=is_ambiguous)
    return _close(plan, run, draft, ended, at)


def _started(plan: Plan, run: RunState, event: Started, at: int) -> Transition | None:
    """A claim is answered each time it is made, with the owner that was recorded: an answer may get lost."""
    task = _held(plan, run, event.task, event.token)
    if task is None or (task.status is _RUNNING and not event.claim):
        return None
    spec, draft, due_at = plan.at(event.task), Transition(run), task.due_at
    if task.status is _QUEUED and event.claim and draft.control & PAUSES:  # its body has not begun, and need not
        draft.actions.append(Abort(event.task, task.token, "paused"))
        _withhold(run, draft, event.task, task, "body")
        return _close(plan, run, draft, [], at)
    if task.status is _QUEUED:
        if spec.timeout is not None:
            due_at = at + int(spec.timeout * 1_000_000) + TIMEOUT_GRACE
            draft.actions.append(SetTimer(event.task, task.token, "timeout", due_at))
        task = msgspec.structs.replace(_begun(task), due_at=due_at, session=event.session)
        _put(run, draft, event.task, task)
    if event.claim:
        draft.actions.append(Grant(event.task, task.token, task.session))
    return _close(plan, run, draft, [], at)


def _returned(plan: Plan, run: RunState, event: Returned, at: int) -> Transition | None:
    """A drain is nobody's fault: a body that had begun keeps its attempt number, but the retry policy does not count
    it."""
    task = _held(plan, run, event.task, event.token)
    if task is None or (not event.begun and _is_of_another(task, event.session)):
        return None
    draft, ended = Transition(run), list[int]()
    if task.lookups:
        _look_up_again(plan, run, draft, event.task, task)
    elif event.begun or task.status is _RUNNING:
        task = _begun(task)
        draft.actions.append(EndAttempt(event.task, task.attempt, task.token, "returned"))
        _clear_timer(draft, event.task, task)
        task = msgspec.structs.replace(task, retries_from=task.retries_from + 1)
        if event.begun and plan.at(event.task).effect != "idempotent":
            _doubt(plan, run, draft, event.task, task, DRAINED)
        else:
            _hand_out(plan, run, draft, event.task, task, ended)
    else:
        _hand_out_again(plan, run, draft, event.task, task, ended)
    return _close(plan, run, draft, ended, at)


def _lost(plan: Plan, run: RunState, event: Lost, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None or _is_of_another(task, event.session):
        return None
    draft, ended = Transition(run), list[int]()
    if task.lookups:
        _look_up_again(plan, run, draft, event.task, task)
    elif task.status is _QUEUED and not event.begun:  # no body began, as far as anybody knows: no attempt
        _hand_out_again(plan, run, draft, event.task, task, ended)
    else:
        _lose_attempt(plan, run, draft, event.task, _begun(task), ended, has_begun=event.begun is not False)
    return _close(plan, run, draft, ended, at)


def _due(plan: Plan, run: RunState, event: Due, at: int) -> Transition | None:
    """A timer names the token it was set under, and only the database's clock decides that it is due."""
    task = run.task(event.task)
    if task.token != event.token or task.due_at is None or at < task.due_at:
        return None
    draft, ended = Transition(run), list[int]()
    if event.timer == "backoff" and task.status is _PENDING:
        draft.actions.append(ClearTimer(event.task))
        if task.lookups:
            _look_up(plan, run, draft, event.task, task, task.lookups)
        else:
            _hand_out(plan, run, draft, event.task, task, ended)
    elif event.timer == "wait" and task.status is _WAITING:
        draft.actions.append(ClearTimer(event.task))
        if plan.at(event.task).signal is None:
            _wait_no_more(run, draft, event.task, task, ended)
        else:
            draft.actions.append(StopListening(event.task))
            _hear_nothing(plan, run, draft, event.task, task, ended)
    elif event.timer == "timeout" and task.status is _RUNNING:
        draft.actions.append(Abort(event.task, task.token, "timeout"))
        error = Error("TIMEOUT", f"no result within {plan.at(event.task).timeout} s")
        if task.lookups:
            _lookup_failed(plan, run, draft, event.task, task, error, at)
        else:
            _fail_attempt(plan, run, draft, event.task, task, error, ended, at, is_ambiguous=True)
    else:
        return None
    return _close(plan, run, draft, ended, at)


def _decided(plan: Plan, run: RunState, event: Decided, at: int) -> Transition | None:
    task = run.task(event.task)
    is_asked = task.status is _WAITING and not task.is_parked and not task.is_mapping
    if not is_asked or task.token != event.token or plan.at(event.task).approval is None:
        return None
    draft, ended = Transition(run), list[int]()
    if event.outcome == "approved" and plan.tasks[event.task].run is not None:
        _begin_body(plan, run, draft, event.task, task, ended)
    elif event.outcome == "approved":
        answer = msgspec.json.encode({"outcome": event.outcome, "by": event.by, "comment": event.comment})
        _put(run, draft, event.task, msgspec.structs.replace(task, status=_COMPLETED, output=answer))
        ended.append(event.task)
    else:
        who = f" by {event.by}" if event.by else ""
        error = Error(event.outcome.upper(), f"{event.outcome}{who}: {event.comment}".rstrip(": "), retryable=False)
        _put(run, draft, event.task, msgspec.structs.replace(task, status=_FAILED, error=error))
        ended.append(event.task)
    return _close(plan, run, draft, ended, at)


def _replayed(plan: Plan, run: RunState, event: Replayed, at: int) -> Transition | None:
    """The one edge out of a terminal state, and only by an operator's act; it does not go round an approval."""
    task = run.task(event.task)
    if task.status is not _FAILED or task.token != event.token or run.counts.get(_CANCELLED):
        return None
    if task.items is not None or (is_item(event.task) and run.task(task_of(event.task)).status is _COMPLETED):
        return None  # of a map that failed, its items are replayed; of one that has completed, none any more
    draft, ended = Transition(run), list[int]()
    given = event.input if event.input is not None else task.input
    task = msgspec.structs.replace(task, retries_from=task.attempt, error=None, input=given)
    _put(run, draft, event.task, task)
    if is_item(event.task):
        _begin_again(plan, run, draft, event.task, task, ended, at)
        _reopen_map(plan, run, draft, task_of(event.task), ended)
    else:
        _unskip(plan, run, draft, event.task)
        _begin_again(plan, run, draft, event.task, task, ended, at)
    return _close(plan, run, draft, ended, at)


def _signalled(plan: Plan, run: RunState, event: Signalled, at: int) -> Transition | None:
    """The first task of the graph that waits for it takes it; while none does, the run keeps it. One that is offered to
    a certain wait is for that, or for nobody here."""
    if run.status in RUN_TERMINAL or event.signal_id in run.signals:
        return None
    waiting = None
    for index in plan.listeners.get(event.name, ()):
        task = run.task(index)
        if _has_heard(task, event):
            return None
        if waiting is None and task.status is _WAITING and _is_meant(task, event) and _is_offered(task, index, event):
            waiting = index
    if waiting is None and event.task is not None:
        return None
    draft, ended = Transition(run), list[int]()
    if waiting is None:
        draft.kept = event
        draft.actions.append(KeepSignal(event.signal_id))
    else:
        task = run.task(waiting)
        _clear_timer(draft, waiting, task)
        draft.actions.append(StopListening(waiting))
        _hear(run, draft, waiting, task, event, ended)
    return _close(plan, run, draft, ended, at)


def _resolved(plan: Plan, run: RunState, event: Resolved, at: int) -> Transition | None:
    """A person knows what nobody else could tell. A hand-out after it has all its tries again."""
    task = run.task(event.task)
    if not task.is_parked or task.token != event.token:
        return None
    draft, ended = Transition(run), list[int]()
    draft.actions.append(Unpark(event.task))
    if event.outcome == "happened":
        _take_as_done(plan, run, draft, event.task, task, event.output, ended)
    elif event.outcome == "did_not_happen":
        _hand_out(
            plan, run, draft, event.task, msgspec.structs.replace(task, retries_from=task.attempt, error=None), ended
        )
    else:
        _bury(run, draft, event.task, task, task.error or LOST, ended)
    return _close(plan, run, draft, ended, at)


def _supplied(plan: Plan, run: RunState, event: Supplied, at: int) -> Transition | None:
    """What runs of it is told to stop, and what waits is let go. It does not go round an approval."""
    if not 0 <= event.task < len(plan.tasks) or run.counts.get(_CANCELLED):
        return None
    index, task = event.task, run.task(event.task)
    if task.token != event.token or not can_be_supplied(plan, run, index):
        return None
    draft, ended = Transition(run), list[int]()
    if task.status is _FAILED:
        draft.actions.append(CloseLetter(index, task.token, "discarded"))
        _unskip(plan, run, draft, index)
    if task.status is _RUNNING and not task.lookups:
        draft.actions.append(EndAttempt(index, task.attempt, task.token, "cancelled", SUPPLIED))
    if task.status is _RUNNING or task.status is _QUEUED:
        draft.actions.append(Abort(index, task.token, "supplied"))
    if task.status is _WAITING:
        _ask_no_more(plan, draft, index, task)
    _clear_timer(draft, index, task)
    _take_as_done(plan, run, draft, index, task, event.output, ended)
    return _close(plan, run, draft, ended, at)


def can_be_supplied(plan: Plan, run: RunState, index: int) -> bool:
    """Whether a person may give the task its output now: it is open, or has failed, and nobody is to approve it. A map
    has its output from its items."""
    task = run.task(index)
    if is_item(index) or plan.tasks[index].map is not None or task.status in (_COMPLETED, _SKIPPED, _CANCELLED):
        return False
    return plan.tasks[index].approval is None or task.attempt > 0 or task.status is _QUEUED


def _reran(plan: Plan, run: RunState, event: Reran, at: int) -> Transition | None:
    """All that runs again is untouched first, with what it has counted. Then those begin whose joins the results that
    stand decide; the others follow by the graph, as ever."""
    chosen = choose_rerun(plan, run, event.tasks)
    if run.row_version != event.row_version or not chosen:
        return None
    draft, ended = Transition(run), list[int]()
    draft.control &= ~TERMINATED
    for index in chosen:
        task = run.task(index)
        if task.status is _FAILED:
            draft.actions.append(CloseLetter(index, task.token, "replayed"))
        is_named = not event.tasks or index in event.tasks  # what follows another result has its input rendered anew
        given = event.input if is_named and event.input is not None else task.input if is_named else None
        _put(run, draft, index, _untouched_again(task, given))
    answers = {index: _count_needs(plan, run, draft, index) for index in chosen}
    for index, answer in answers.items():
        if answer is None:
            continue
        task = draft.tasks[index]
        if isinstance(answer, Error):
            _skip(run, draft, index, task, answer, ended)
        elif run.task(index).status is _FAILED:
            _begin_again(plan, run, draft, index, task, ended, at)
        else:
            _ready(plan, run, draft, index, task, ended, at)
    _close(plan, run, draft, ended, at)
    if draft.status in RUN_TERMINAL:
        draft.actions.append(_finish(plan, run, draft))
    return draft


def choose_rerun(plan: Plan, run: RunState, tasks: Sequence[int]) -> list[int]:
    """The tasks that a rerun takes, in the order of the graph; none when the run has not ended, or a map is among them,
    of which items are replayed. tasks: as in `Reran`; one that is not in the graph is none of them.
    """
    if run.status not in RUN_TERMINAL:
        return []
    indices = range(len(plan.tasks))
    found = list(tasks) if tasks else [index for index in indices if run.task(index).status in (_FAILED, _CANCELLED)]
    chosen: set[int] = set()
    for index in found:  # grows while it is walked
        if index in indices and index not in chosen:
            chosen.add(index)
            after = plan.tasks[index].dependants
            found += after if tasks else [each for each in after if _was_skipped_by_others(run.task(each))]
    has_begun_map = any(plan.tasks[index].map is not None and run.task(index).token for index in chosen)
    return [] if has_begun_map else sorted(chosen)


def _was_refused(task: TaskState) -> bool:
    """By its approval: it is asked again, also when bodies of it began before that question."""
    return task.error is not None and task.error.code in ("REJECTED", "EXPIRED")


def _was_skipped_by_others(task: TaskState) -> bool:
    return task.status is _SKIPPED and task.error != CONDITION_FALSE


def _untouched_again(task: TaskState, given: bytes | None) -> TaskState:
    """As before its join was decided, but that neither a token nor an attempt number is used again."""
    if not task.token and given is None:
        return UNTOUCHED
    return TaskState(_PENDING, task.attempt, task.token, None, task.attempt, given)


def _count_needs(plan: Plan, run: RunState, draft: Transition, index: int) -> Error | Literal["ready"] | None:
    """Count anew what a task waits for, and answer what its join says already: it may run, why it never will, or
    nothing."""
    spec = plan.tasks[index]
    needs = [draft.tasks.get(need) or run.tasks.get(need, UNTOUCHED) for need in spec.needs]
    missing = sum(need.status not in TERMINAL for need in needs)
    wanted = None if spec.quorum is None else spec.quorum - sum(need.status is _COMPLETED for need in needs)
    if not spec.is_chained:
        draft.missing[index] = missing
    if wanted is not None:
        draft.wanted = {**(draft.wanted or {}), index: wanted}
    if wanted is not None and wanted <= 0:
        return "ready"
    if spec.join == "all" and any(map(_has_failed, needs)):
        return UPSTREAM_FAILED
    return None if missing else _answer(spec, needs) or "ready"


def _cancelled(plan: Plan, run: RunState, event: Cancelled, at: int) -> Transition | None:
    if run.status in RUN_TERMINAL:
        return None
    error = Error("CANCELLED", event.reason or "the run was cancelled", retryable=False)
    return _end_all(plan, run, Transition(run), error, "cancelled", at)


def _terminated(plan: Plan, run: RunState, event: Terminated, at: int) -> Transition | None:
    if run.status in RUN_TERMINAL:
        return None
    draft = Transition(run)
    draft.control |= TERMINATED
    error = Error("TERMINATED", event.reason or "the run was terminated", retryable=False)
    return _end_all(plan, run, draft, error, "terminated", at)


def _end_all(plan: Plan, run: RunState, draft: Transition, error: Error, reason: str, at: int) -> Transition:
    """Every task that has not ended is CANCELLED, and whoever has it is told to stop: its answer is stale now."""
    draft.attention = False
    items = [place for place in run.tasks if is_item(place)]
    for index in (*range(len(plan.tasks)), *items):
        _cancel_task(plan, run, draft, index, error, reason)
    return _close(plan, run, draft, [], at)


def _cancel_task(plan: Plan, run: RunState, draft: Transition, index: int, error: Error, reason: str) -> None:
    """End it where it stands, unless it has ended."""
    task = draft.tasks.get(index) or run.task(index)
    if task.status in TERMINAL:
        return
    if task.status is _RUNNING and not task.lookups:
        draft.actions.append(EndAttempt(index, task.attempt, task.token, "cancelled", error))
    if task.status is _RUNNING or task.status is _QUEUED:
        draft.actions.append(Abort(index, task.token, reason))
    if task.status is _WAITING and not task.is_mapping:
        _ask_no_more(plan, draft, index, task)
    _clear_timer(draft, index, task)
    _put(run, draft, index, _at_rest(task, _CANCELLED, error))


def _paused(plan: Plan, run: RunState, event: Paused, at: int) -> Transition | None:
    """From here on what would begin is withheld. What was handed out goes on, and what waits goes on to wait."""
    if run.status in RUN_TERMINAL or run.control & event.scope:
        return None
    draft = Transition(run)
    draft.control |= event.scope & PAUSES
    return _close(plan, run, draft, [], at)


def _resumed(plan: Plan, run: RunState, event: Resumed, at: int) -> Transition | None:
    """Once nobody pauses the run any more, what was withheld begins, in the order of the graph."""
    if not run.control & event.scope & PAUSES:
        return None
    draft, ended = Transition(run), list[int]()
    draft.control &= ~event.scope
    if not draft.control & PAUSES:
        for index in sorted(run.tasks):
            if run.tasks[index].withheld:
                _begin_withheld(plan, run, draft, index, run.tasks[index], ended, at)
    return _close(plan, run, draft, ended, at)


def _begin_withheld(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    how, task = task.withheld, msgspec.structs.replace(task, withheld="")
    if how == "turn":
        _ready(plan, run, draft, index, task, ended, at)
    elif how == "again":
        _begin_again(plan, run, draft, index, task, ended, at)
    elif task.lookups:
        _look_up(plan, run, draft, index, task, task.lookups)
    else:
        _set_going(plan, run, draft, index, task, ended)


def _attend(plan: Plan, run: RunState, at: int, *, attention: bool) -> Transition:
    draft = Transition(run)
    draft.attention = attention
    return _close(plan, run, draft, [], at)


# == what several arms share =========================================================================================
def _held(plan: Plan, run: RunState, index: int, token: int) -> TaskState | None:
    """The task, if this hand-out of it is the current one and open; None makes the event stale."""
    task = run.tasks.get(index)
    if task is None or task.token != token or not (task.status is _QUEUED or task.status is _RUNNING):
        return None
    return task


def _is_of_another(task: TaskState, session: str) -> bool:
    """Whether somebody else than its recorded holder says it. A record can reach two workers: what becomes of it in
    the one where it waits ends nothing in the one where it runs."""
    return task.status is _RUNNING and bool(task.session) and session not in ("", task.session)


def _begun(task: TaskState) -> TaskState:
    """The task as it is once its body began: a short body sends only its result, so that counts the attempt."""
    if task.status is _RUNNING:
        return task
    if task.lookups:
        return msgspec.structs.replace(task, status=_RUNNING)
    return msgspec.structs.replace(task, status=_RUNNING, attempt=task.attempt + 1, vanished=0)


def _at_rest(task: TaskState, status: TaskStatus, error: Error, due_at: int | None = None) -> TaskState:
    """The task held by nobody; what it has counted stays."""
    return TaskState(
        status, task.attempt, task.token, due_at, task.retries_from, task.input, task.output, error, items=task.items
    )


def _put(run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    before = draft.tasks.get(index)
    if before is None:
        before = run.tasks.get(index)
    if index >= ITEMS_MAX:
        return _put_item(run, draft, index, before, task)
    counts = draft.counts
    # Only what is PENDING can be untouched; asking the others costs a call for each.
    if before is not None and (before.status is not _PENDING or not before.is_untouched):
        counts[before.status] -= 1
    if task.status is not _PENDING or not task.is_untouched:
        counts[task.status] = counts.get(task.status, 0) + 1
    draft.tasks[index] = task


def _put_item(run: RunState, draft: Transition, place: int, before: TaskState | None, task: TaskState) -> None:
    """Open items count in the run's status, and those that have ended in their map's counters."""
    if before is not None and before.status not in TERMINAL:
        draft.counts[before.status] -= 1
    if task.status not in TERMINAL:
        draft.counts[task.status] = draft.counts.get(task.status, 0) + 1
    counts = _counts(run, draft, task_of(place)).after(before, task)
    _count(draft, task_of(place), counts)
    if counts.output_bytes > PAYLOAD_BYTES_MAX and task.output is not None:
        task = msgspec.structs.replace(task, output=None)  # no list will be made of so much
    draft.tasks[place] = task


def _counts(run: RunState, draft: Transition, index: int) -> ItemCounts:
    counts = None if draft.maps is None else draft.maps.get(index)
    return run.maps[index] if counts is None else counts


def _count(draft: Transition, index: int, counts: ItemCounts) -> None:
    if draft.maps is None:
        draft.maps = {}
    draft.maps[index] = counts


def _clear_timer(draft: Transition, index: int, task: TaskState) -> None:
    if task.due_at is not None:
        draft.actions.append(ClearTimer(index))


def _withhold(run: RunState, draft: Transition, index: int, task: TaskState, how: str) -> None:
    """The run is paused: what would begin now begins when it goes on. `how`: see `TaskState.withheld`."""
    kept = TaskState(
        _PENDING, task.attempt, task.token, None, task.retries_from, task.input, error=task.error, lookups=task.lookups,
        vanished=task.vanished, withheld=how,
    )  # fmt: skip
    _put(run, draft, index, kept)


def _ready(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """Its join allows the task to run: skip it, ask, wait, or hand it out."""
    spec = plan.tasks[index]
    if draft.control & PAUSES:
        return _withhold(run, draft, index, task, "turn")
    if spec.is_plain and task is UNTOUCHED:
        return _hand_out(plan, run, draft, index, task, ended)
    if spec.condition is not None:
        try:
            holds = spec.condition.evaluate(run.input, _outputs(plan, run, draft))
        except PayloadError as e:
            undecided = msgspec.structs.replace(task, token=run.next_token(task))  # every dead letter has its own
            return _bury(run, draft, index, undecided, Error(e.reason, e.message, retryable=False), ended)
        if not holds:
            return _skip(run, draft, index, task, CONDITION_FALSE, ended)
    if spec.wait is not None:
        return _wait(plan, run, draft, index, task, ended, at)
    if spec.signal is not None:
        return _listen(plan, run, draft, index, task, ended, at)
    if spec.approval is None:
        return _begin_body(plan, run, draft, index, task, ended)
    _ask(run, draft, index, task)


def _begin_body(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """Hand its body out. A rerun may find that it had its effect already: then its policy is asked first, as after an
    end that is ambiguous."""
    effect = plan.tasks[index].effect
    if task.attempt and effect != "idempotent":
        if effect == "manual":  # a person may fail it: every dead letter of a task has a token of its own
            task = msgspec.structs.replace(task, token=run.next_token(task))
        return _doubt(plan, run, draft, index, task, RERUN)
    _set_going(plan, run, draft, index, task, ended)


def _begin_again(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """An operator sends it out again: nothing asks its join or its condition, but its approval is not gone round."""
    is_refused = _was_refused(run.task(index))
    if draft.control & PAUSES:
        _withhold(run, draft, index, task, "turn" if is_refused else "again")
    elif plan.at(index).approval is not None and (is_refused or not task.attempt):
        _ask(run, draft, index, task)
    elif plan.at(index).wait is not None:
        _wait(plan, run, draft, index, task, ended, at)
    elif plan.at(index).signal is not None:
        _listen(plan, run, draft, index, task, ended, at)
    else:
        _set_going(plan, run, draft, index, task, ended)


def _set_going(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """Its body, or those of its items."""
    begin_it = _hand_out if plan.at(index).map is None else _begin_map
    begin_it(plan, run, draft, index, task, ended)


def _ask(run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    token = run.next_token(task)
    _put(run, draft, index, msgspec.structs.replace(task, status=_WAITING, token=token))
    draft.actions.append(Ask(index, token))


def _ask_no_more(plan: Plan, draft: Transition, index: int, task: TaskState) -> None:
    """Whatever a WAITING task waits for, but its timer, need not come any more."""
    if task.is_parked:
        draft.actions.append(Unpark(index))
    elif plan.at(index).signal is not None:
        draft.actions.append(StopListening(index))
    elif plan.at(index).approval is not None:
        draft.actions.append(CloseQuestion(index, task.token))


def _wait(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int) -> None:
    """WAITING until an instant, under the next token; done at once when that has passed. One that cannot be evaluated
    fails the task, and uses its token up as a hand-out does."""
    spec, token = plan.tasks[index].wait, run.next_token(task)
    assert spec is not None
    try:
        due_at = spec.due_at(at, run.input, _outputs(plan, run, draft), task.input)
    except PayloadError as e:
        undue = msgspec.structs.replace(task, token=token)
        return _bury(run, draft, index, undue, Error(e.reason, e.message, retryable=False), ended)
    waiting = TaskState(_WAITING, task.attempt, token, due_at, task.retries_from, input=task.input)
    if due_at <= at:
        return _wait_no_more(run, draft, index, waiting, ended)
    _put(run, draft, index, waiting)
    draft.actions.append(SetTimer(index, token, "wait", due_at))


def _wait_no_more(run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    until = format_instant(from_microseconds(task.due_at or 0))
    done = msgspec.structs.replace(task, status=_COMPLETED, due_at=None, output=msgspec.json.encode({"until": until}))
    _put(run, draft, index, done)
    ended.append(index)


# == signals =========================================================================================================
def _listen(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """WAITING for a signal, under the next token; what the run has kept for it is taken at once."""
    spec, token, outputs = plan.tasks[index].signal, run.next_token(task), _outputs(plan, run, draft)
    assert spec is not None
    try:
        key = spec.key_of(run.input, outputs, task.input)
        due_at = None if spec.timeout is None else spec.timeout.due_at(at, run.input, outputs, None)
    except PayloadError as e:
        deaf = msgspec.structs.replace(task, token=token)
        return _bury(run, draft, index, deaf, Error(e.reason, e.message, retryable=False), ended)
    meant = None if key is None else msgspec.json.encode(key)
    waiting = TaskState(_WAITING, task.attempt, token, due_at, task.retries_from, input=meant)
    found = [
        signal
        for signal in run.signals.values()
        if signal.name == spec.name and _is_meant(waiting, signal) and signal.signal_id not in draft.taken
    ]
    if found:
        signal = min(found, key=lambda signal: signal.order)
        draft.taken.append(signal.signal_id)
        return _hear(run, draft, index, waiting, signal, ended)
    if due_at is not None and due_at <= at:
        return _hear_nothing(plan, run, draft, index, waiting, ended)
    _put(run, draft, index, waiting)
    draft.actions.append(Listen(index, token, spec.name, key))
    if due_at is not None:
        draft.actions.append(SetTimer(index, token, "wait", due_at))


def _is_meant(task: TaskState, signal: Signalled) -> bool:
    """Whether a signal of the right name is for this task."""
    return signal.key is None or task.input == msgspec.json.encode(signal.key)


def _is_offered(task: TaskState, index: int, signal: Signalled) -> bool:
    return signal.task is None or (signal.task, signal.token) == (index, task.token)


def _has_heard(task: TaskState, signal: Signalled) -> bool:
    """Whether the task took it already: it comes twice."""
    if task.status is not _COMPLETED or task.output is None:
        return False
    try:
        return _decode_heard(task.output).signal_id == signal.signal_id
    except msgspec.DecodeError:  # a person gave it an output of another form
        return False


def _hear(run: RunState, draft: Transition, index: int, task: TaskState, signal: Signalled, ended: list[int]) -> None:
    draft.actions.append(TakeSignal(signal.signal_id, index, task.token))
    sent_at = format_instant(from_microseconds(signal.sent_at))
    heard = Heard("received", msgspec.Raw(signal.data), signal.by, sent_at, signal.signal_id)
    _put(run, draft, index, msgspec.structs.replace(task, status=_COMPLETED, due_at=None, output=_encode(heard)))
    ended.append(index)


def _hear_nothing(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """It was told nothing in time: the task fails, or has that as its output, by declaration."""
    spec = plan.tasks[index].signal
    assert spec is not None
    if spec.on_timeout == "fail":
        error = Error("SIGNAL_TIMEOUT", f"no signal {spec.name} came in time", retryable=False)
        return _bury(run, draft, index, task, error, ended)
    told = msgspec.structs.replace(task, status=_COMPLETED, due_at=None, output=_encode(Heard("timed_out")))
    _put(run, draft, index, told)
    ended.append(index)


def _hand_out(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """QUEUED under the next token, with its input rendered; withheld while the run is paused.

    An input that cannot be rendered fails the task instead. The token is used up all the same, so that every dead
    letter of a task has its own, and the event that led here is stale when it comes again.
    """
    if draft.control & PAUSES:
        known = msgspec.structs.replace(task, error=None, lookups=0)  # a lookup that has answered is not asked again
        return _withhold(run, draft, index, known, "body")
    token = run.next_token(task)
    try:
        given = _render(plan, run, draft, index, task)
    except PayloadError as e:
        unsent = msgspec.structs.replace(task, token=token)
        return _bury(run, draft, index, unsent, Error(e.reason, e.message, retryable=False), ended)
    queued = TaskState(_QUEUED, task.attempt, token, None, task.retries_from, input=task.input, vanished=task.vanished)
    _put(run, draft, index, queued)
    draft.actions.append(Dispatch(index, task.attempt + 1, token, given))


def _render(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState) -> bytes:
    """The input of the task's body. Raises PayloadError."""
    spec = plan.at(index)
    if task.input is not None:
        return task.input
    if index >= ITEMS_MAX:
        items = _counts(run, draft, task_of(index)).items
        return spec.render_item(run.input, _outputs(plan, run, draft), items, item_of(index) or 0)
    return run.input if spec.template is None else spec.template.render(run.input, _outputs(plan, run, draft))


def _hand_out_again(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]
) -> None:
    """After a hand-out that vanished before its body began."""
    vanished = task.vanished + 1
    if vanished >= HANDOUTS_LOST_MAX:
        return _bury(run, draft, index, task, NEVER_BEGAN, ended)
    _hand_out(plan, run, draft, index, msgspec.structs.replace(task, vanished=vanished), ended)


def _lose_attempt(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], *, has_begun: bool
) -> None:
    """Its worker is gone. A granted hand-out whose body provably never began uses up none of the tries."""
    spec = plan.at(index)
    draft.actions.append(EndAttempt(index, task.attempt, task.token, "lost", LOST))
    draft.actions.append(Abort(index, task.token, "lost"))
    _clear_timer(draft, index, task)
    if not has_begun:
        task = msgspec.structs.replace(task, retries_from=task.retries_from + 1)
    if has_begun and spec.effect != "idempotent":
        _doubt(plan, run, draft, index, task, LOST)
    elif task.attempt - task.retries_from < spec.retry.attempts:
        _hand_out(plan, run, draft, index, task, ended)
    else:
        _bury(run, draft, index, task, LOST, ended)


def _fail_attempt(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int], at: int,
    *, is_ambiguous: bool,
) -> None:  # fmt: skip
    draft.actions.append(EndAttempt(index, task.attempt, task.token, "failed", error))
    _clear_timer(draft, index, task)
    if is_ambiguous and plan.at(index).effect != "idempotent":
        _doubt(plan, run, draft, index, task, error)
    else:
        _retry_or_bury(plan, run, draft, index, task, error, ended, at)


def _retry_or_bury(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int], at: int
) -> None:
    """An attempt failed: the next one after its backoff, or none."""
    retry = plan.at(index).retry
    tries = task.attempt - task.retries_from
    if not error.retryable or tries >= retry.attempts:
        return _bury(run, draft, index, task, error, ended)
    if error.retry_after is not None:
        delay = int(min(max(0.0, error.retry_after), RETRY_AFTER_MAX) * 1_000_000)
    else:
        # None counts when a drained attempt turned out to have had no effect.
        delay = backoff(retry, max(1, tries), b"%b/%d/%d" % (run.key, index, task.attempt))
    if delay <= 0:
        return _hand_out(plan, run, draft, index, task, ended)
    due_at = at + delay
    waiting = TaskState(_PENDING, task.attempt, task.token, due_at, task.retries_from, input=task.input)
    _put(run, draft, index, waiting)
    draft.actions.append(SetTimer(index, task.token, "backoff", due_at))


# == an effect that may have happened ================================================================================
def _doubt(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error) -> None:
    """An attempt ended, and nobody knows whether it had its effect: another could repeat it."""
    if plan.at(index).effect == "reconcile":
        _look_up(plan, run, draft, index, msgspec.structs.replace(task, error=error), 1)
    else:
        _park(run, draft, index, task, error)


def _look_up(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, number: int) -> None:
    """Hand the task's lookup out, with the input that its body had. It is no attempt, and has a token of its own."""
    if draft.control & PAUSES:
        return _withhold(run, draft, index, msgspec.structs.replace(task, lookups=number), "body")
    token, error = run.next_token(task), task.error or LOST
    try:
        given = _render(plan, run, draft, index, task)
    except PayloadError as e:
        unsent = msgspec.structs.replace(task, token=token)
        return _park(run, draft, index, unsent, error, f"; its lookup has no input: {e.message}")
    queued = TaskState(
        _QUEUED, task.attempt, token, None, task.retries_from, task.input, error=error, lookups=number,
        vanished=task.vanished,
    )  # fmt: skip
    _put(run, draft, index, queued)
    draft.actions.append(Dispatch(index, task.attempt, token, given, lookup=True))


def _look_up_again(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    """After a lookup that nobody answered: it may not have begun, and a sweep cannot tell."""
    _clear_timer(draft, index, task)
    vanished = task.vanished + 1
    if vanished >= HANDOUTS_LOST_MAX:
        return _park(run, draft, index, task, task.error or LOST, "; nobody answers its lookup")
    _look_up(plan, run, draft, index, msgspec.structs.replace(task, vanished=vanished), task.lookups)


def _lookup_failed(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, at: int
) -> None:
    """Ask again after the task's own backoff, as often as its body would be tried; then ask a person."""
    retry, number, doubt = plan.at(index).retry, task.lookups, task.error or LOST
    _clear_timer(draft, index, task)
    if not error.retryable or number >= retry.attempts:
        return _park(run, draft, index, task, doubt, f"; its lookup failed: {error.message}")
    due_at = at + max(1, backoff(retry, number, b"%b/%d/%d/lookup" % (run.key, index, task.token)))
    waiting = msgspec.structs.replace(_at_rest(task, _PENDING, doubt, due_at), lookups=number + 1)
    _put(run, draft, index, waiting)
    draft.actions.append(SetTimer(index, task.token, "backoff", due_at))


def _looked_up(plan: Plan, run: RunState, event: Succeeded, task: TaskState, at: int) -> Transition:
    draft, ended, doubt = Transition(run), list[int](), task.error or LOST
    _clear_timer(draft, event.task, task)
    try:
        verdict = _decode_verdict(event.output)
    except msgspec.DecodeError:
        verdict = Verdict(None)
    if verdict.happened:
        _take_as_done(plan, run, draft, event.task, task, bytes(verdict.output), ended)
    elif verdict.happened is None:
        _park(run, draft, event.task, task, doubt, "; its lookup cannot tell either")
    else:
        _retry_or_bury(plan, run, draft, event.task, task, doubt, ended, at)
    return _close(plan, run, draft, ended, at)


def _take_as_done(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, output: bytes, ended: list[int]
) -> None:
    """The effect happened, so the task is done; no attempt of it said so."""
    draft.actions.append(KeepOutput(index, output))
    kept = output if plan.at(index).is_referenced else None
    _put(run, draft, index, TaskState(_COMPLETED, task.attempt, task.token, None, task.retries_from, output=kept))
    ended.append(index)


def _park(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, more: str = "") -> None:
    message = f"attempt {task.attempt} may have had its effect: {error.message}{more}"
    doubt = Error("AMBIGUOUS", message, error.type, error.trace, retryable=False)
    _put(run, draft, index, _at_rest(task, _WAITING, doubt))
    draft.actions.append(Park(index, task.token, doubt))


def _bury(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int]) -> None:
    _put(run, draft, index, _at_rest(task, _FAILED, error))
    draft.actions.append(BuryTask(index, task.token, task.attempt, error))
    ended.append(index)


# == maps ============================================================================================================
def _begin_map(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """WAITING for its items under the next token. A list that cannot be read fails it, and uses the token up."""
    if draft.control & PAUSES:
        return _withhold(run, draft, index, task, "body")
    spec, token = plan.tasks[index].map, run.next_token(task)
    assert spec is not None
    try:
        given = task.input if task.input is not None else spec.over.render(run.input, _outputs(plan, run, draft))
        items = read_list(given)
    except PayloadError as e:
        unread = msgspec.structs.replace(task, token=token)
        return _bury(run, draft, index, unread, Error(e.reason, e.message, retryable=False), ended)
    _put(run, draft, index, TaskState(_WAITING, token=token, input=given, items=len(items)))
    _count(draft, index, ItemCounts(items))
    _go_on(plan, run, draft, index, ended)


def _item_ended(plan: Plan, run: RunState, draft: Transition, place: int, ended: list[int]) -> None:
    index = task_of(place)
    spec, task = plan.tasks[index].map, draft.tasks.get(index) or run.task(index)
    if spec is None or not task.is_mapping:
        return None
    item, counts = draft.tasks[place], _counts(run, draft, index)
    if item.status is _FAILED and spec.failures == "fail_fast":
        why = item.error or LOST
        message = f"{plan.name_of(place)} failed: {why.code}: {why.message}"
        return _stop_map(plan, run, draft, index, task, Error("ITEM_FAILED", message, retryable=False), ended)
    if counts.output_bytes > PAYLOAD_BYTES_MAX and plan.tasks[index].is_referenced:
        return _stop_map(plan, run, draft, index, task, _too_large(counts.output_bytes), ended)
    _go_on(plan, run, draft, index, ended)


def _go_on(plan: Plan, run: RunState, draft: Transition, index: int, ended: list[int]) -> None:
    """Hand items out for as long as there are some and it may have more under way; end the map behind the last."""
    spec, counts = plan.tasks[index].map, _counts(run, draft, index)
    assert spec is not None
    while counts.begun < len(counts.items) and counts.open < spec.max_parallel:
        place = place_of(index, counts.begun)
        _hand_out(plan, run, draft, place, UNTOUCHED, ended)
        if draft.tasks[place].status is _FAILED and spec.failures == "fail_fast":
            return None  # the walk comes to it
        counts = _counts(run, draft, index)
    if not counts.open and counts.begun == len(counts.items):
        _end_map(plan, run, draft, index, counts, ended)


def _stop_map(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, why: Error, ended: list[int]
) -> None:
    """Its items are not to go on. One whose effect may have happened is told from the others, should they come back."""
    each = plan.tasks[index].each
    stopped = Error("CANCELLED", f"{plan.tasks[index].name} failed", retryable=False)
    for place in items_of(index, _counts(run, draft, index).begun):
        item = draft.tasks.get(place) or run.task(place)
        has_begun = item.status is _RUNNING or item.lookups > 0 or item.is_parked
        is_doubtful = has_begun and each is not None and each.effect != "idempotent"
        _cancel_task(plan, run, draft, place, msgspec.structs.replace(stopped, ambiguous=is_doubtful), "cancelled")
    _put(run, draft, index, _at_rest(task, _FAILED, why))
    ended.append(index)


def _end_map(plan: Plan, run: RunState, draft: Transition, index: int, counts: ItemCounts, ended: list[int]) -> None:
    spec, task = plan.tasks[index], draft.tasks.get(index) or run.task(index)
    assert spec.map is not None
    ended.append(index)
    if counts.failed and spec.map.failures != "collect":
        message = f"{counts.failed} of {len(counts.items)} items failed"
        return _put(run, draft, index, _at_rest(task, _FAILED, Error("ITEM_FAILED", message, retryable=False)))
    output = _gathered(run, draft, index, counts, spec.map.failures)
    if output is None and spec.is_referenced:
        return _put(run, draft, index, _at_rest(task, _FAILED, _too_large(counts.output_bytes)))
    if output is not None:
        draft.actions.append(KeepOutput(index, output))
    kept = output if spec.is_referenced else None
    _put(run, draft, index, msgspec.structs.replace(task, status=_COMPLETED, output=kept))


def _too_large(size: int) -> Error:
    message = f"the outputs of its items are {size:,} bytes or more, and {PAYLOAD_BYTES_MAX:,} are allowed in one list"
    return Error("RESULT_TOO_LARGE", message, retryable=False)


def _gathered(run: RunState, draft: Transition, index: int, counts: ItemCounts, failures: Failures) -> bytes | None:
    """What its items gave, in the order of the list; None where that is too much for one output."""
    if counts.output_bytes > PAYLOAD_BYTES_MAX:
        return None
    items = [draft.tasks.get(place) or run.task(place) for place in items_of(index, counts.begun)]
    output = b"[%b]" % b",".join([item.output or b"null" for item in items])
    if failures == "collect":
        output = b'{"results":%b,"failures":%b}' % (output, _failures(items))
    return output if len(output) <= PAYLOAD_BYTES_MAX else None


def _failures(items: list[TaskState]) -> bytes:
    failures = [
        {"index": index, "code": item.error.code, "message": item.error.message}
        for index, item in enumerate(items)
        if item.status is _FAILED and item.error is not None
    ]
    return msgspec.json.encode(failures)


def _reopen_map(plan: Plan, run: RunState, draft: Transition, index: int, ended: list[int]) -> None:
    """An item is replayed: a map that had failed waits for its items again. What the failure had cancelled is handed
    out again, what had not begun begins, and what has completed stays."""
    task = run.task(index)
    if task.status is not _FAILED:
        return
    _put(run, draft, index, msgspec.structs.replace(task, status=_WAITING, error=None))
    _unskip(plan, run, draft, index)
    for place in items_of(index, _counts(run, draft, index).begun):
        item = draft.tasks.get(place) or run.task(place)
        if item.status is not _CANCELLED:
            continue
        again = msgspec.structs.replace(item, retries_from=item.attempt, error=None)
        if item.error is not None and item.error.ambiguous:
            _doubt(plan, run, draft, place, again, item.error)
        else:
            _hand_out(plan, run, draft, place, again, ended)
    _go_on(plan, run, draft, index, ended)


# == the end of a decision ===========================================================================================
def _close(plan: Plan, run: RunState, draft: Transition, ended: list[int], at: int) -> Transition:
    """Look at the joins behind every task that ended, then derive the run's status. Depth does not matter."""
    for index in ended:  # grows while it is walked
        if index >= ITEMS_MAX:
            _item_ended(plan, run, draft, index, ended)
            continue
        for after in plan.tasks[index].dependants:
            task = draft.tasks.get(after) or run.tasks.get(after, UNTOUCHED)
            if task is not UNTOUCHED and not task.is_untouched:
                continue
            need = draft.tasks[index]
            if not plan.tasks[after].is_chained:
                _join(plan, run, draft, after, task, need, ended, at)
            elif need.status is _COMPLETED:
                _ready(plan, run, draft, after, task, ended, at)
            else:
                _skip(run, draft, after, task, UPSTREAM_FAILED if _has_failed(need) else UPSTREAM_SKIPPED, ended)
    draft.status = derive_status(len(plan.tasks), draft.counts, attention=draft.attention, control=draft.control)
    if draft.status in RUN_TERMINAL:
        draft.control &= ~PAUSES
    if draft.status in RUN_TERMINAL and run.status not in RUN_TERMINAL:
        draft.actions.append(_finish(plan, run, draft))
    return draft


def _join(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, need: TaskState, ended: list[int],
    at: int,
) -> None:  # fmt: skip
    """One of several needs has ended: decide about the task as soon as its join allows, see the package."""
    spec = plan.tasks[index]
    missing = draft.missing.get(index)
    if missing is None:
        missing = run.missing.get(index, len(spec.needs))
    draft.missing[index] = missing = missing - 1
    if spec.quorum is not None and need.status is _COMPLETED and not _want_one_less(run, draft, index, spec.quorum):
        return _ready(plan, run, draft, index, task, ended, at)
    if spec.join == "all" and _has_failed(need):
        return _skip(run, draft, index, task, UPSTREAM_FAILED, ended)
    if missing:
        return None
    why = _answer(spec, [draft.tasks.get(need) or run.tasks.get(need, UNTOUCHED) for need in spec.needs])
    if why is None:
        return _ready(plan, run, draft, index, task, ended, at)
    _skip(run, draft, index, task, why, ended)


def _answer(spec: TaskPlan, needs: Sequence[TaskState]) -> Error | None:
    """What a join says once all needs have ended: None, the task runs; or why it never will."""
    has_failed = any(map(_has_failed, needs))
    if spec.join == "always" or (spec.join == "on_failure" and has_failed):
        return None
    if spec.join == "all" and all(need.status is _COMPLETED for need in needs):
        return None
    if spec.join == "on_failure":
        return NOTHING_FAILED
    return UPSTREAM_FAILED if has_failed else UPSTREAM_SKIPPED


def _want_one_less(run: RunState, draft: Transition, index: int, quorum: int) -> int:
    """One more need of a quorum has completed: how many have to, still."""
    if draft.wanted is None:
        draft.wanted = {}
    wanted = draft.wanted.get(index)
    if wanted is None:
        wanted = run.wanted.get(index, quorum)
    draft.wanted[index] = wanted = wanted - 1
    return wanted


def _has_failed(task: TaskState) -> bool:
    """Whether it failed, or never ran because something before it did."""
    return task.status is _FAILED or (task.status is _SKIPPED and task.error == UPSTREAM_FAILED)


def _skip(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int]) -> None:
    _put(run, draft, index, TaskState(_SKIPPED, task.attempt, task.token, None, task.retries_from, error=error))
    ended.append(index)


def _finish(plan: Plan, run: RunState, draft: Transition) -> Finish:
    if plan.output is None or draft.status is not RunStatus.COMPLETED:
        return Finish(draft.status)
    try:
        return Finish(draft.status, plan.output.render(run.input, _outputs(plan, run, draft)))
    except PayloadError as e:
        return Finish(draft.status, error=Error(e.reason, e.message, retryable=False))


def _unskip(plan: Plan, run: RunState, draft: Transition, replayed: int) -> None:
    """Take back what only this failure decided: what still needs another failed task stays skipped, and what has begun
    because of it stays as it is."""
    blocking: dict[int, int] = {}  # a skipped task -> how many of its needs have failed and do not come back
    waiting: dict[int, None] = {}
    coming_back = [replayed]
    for current in coming_back:  # grows while it is walked
        for after in plan.tasks[current].dependants:
            spec, task = plan.tasks[after], draft.tasks.get(after) or run.task(after)
            if task.is_untouched:
                waiting[after] = None
            if task.status is not _SKIPPED or task.error != UPSTREAM_FAILED:
                continue
            if after not in blocking:
                blocking[after] = sum(_has_failed(run.task(need)) for need in spec.needs)
            blocking[after] -= 1
            if spec.quorum is not None or not blocking[after]:
                _put(run, draft, after, _untouched_again(task, None))
                coming_back.append(after)
                waiting[after] = None
    for index in waiting:
        spec = plan.tasks[index]
        needs = [(draft.tasks.get(need) or run.task(need)).status for need in spec.needs if need != replayed]
        draft.missing[index] = len(spec.needs) - sum(status in TERMINAL for status in needs)
        if spec.quorum is not None:
            draft.wanted = {**(draft.wanted or {}), index: spec.quorum - needs.count(_COMPLETED)}


def _outputs(plan: Plan, run: RunState, draft: Transition) -> Callable[[str], bytes | None]:
    def output(name: str) -> bytes | None:
        index = plan.index[name]
        return (draft.tasks.get(index) or run.tasks.get(index, UNTOUCHED)).output

    return output
