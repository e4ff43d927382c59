"""`advance`: decide what one event does to one run. See the package's docstring for the theory."""

from collections.abc import Callable
from typing import Final, assert_never

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import (
    Abort,
    Ask,
    BuryTask,
    ClearTimer,
    CloseQuestion,
    Dispatch,
    EndAttempt,
    Finish,
    SetTimer,
    Transition,
)
from headrace.machine.backoff import backoff
from headrace.machine.event import Cancelled, Decided, Isolated, MachineEvent, Released, Replayed
from headrace.machine.plan import Plan
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState
from headrace.machine.status import RUN_TERMINAL, TERMINAL, TaskStatus, derive_status
from headrace.messages import Due, Error, Failed, Lost, Returned, Started, Succeeded

HANDOUTS_LOST_MAX: Final = 50
"""Hand-outs of one task that vanish before a body began until it is a dead letter; a replay gives it as many again.
A body that kills its worker at once would otherwise go round for ever; rolling restarts that hand waiting work back
stay far below it."""
TIMEOUT_GRACE: Final = 5_000_000
"""Microseconds. The worker enforces a task's time-out; this much later the engine does, for a worker that cannot."""
RETRY_AFTER_MAX: Final = 366 * 86_400
"""Seconds; a delay asked for by a body is capped, so that no sum of instants overflows."""

_PENDING, _QUEUED, _RUNNING, _WAITING, _COMPLETED, _FAILED, _SKIPPED, _CANCELLED = (
    TaskStatus.PENDING, TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.WAITING,
    TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.SKIPPED, TaskStatus.CANCELLED,
)  # fmt: skip
_STOPPED: Final = TERMINAL - {_COMPLETED}
LOST: Final = Error("WORKER_LOST", "the worker that ran this attempt is gone")
NEVER_BEGAN: Final = Error(
    "WORKER_LOST", f"{HANDOUTS_LOST_MAX} hand-outs vanished before a body began", retryable=False
)
UPSTREAM_FAILED: Final = Error("UPSTREAM_FAILED", "a task that this one needs did not complete", retryable=False)
UPSTREAM_SKIPPED: Final = Error("UPSTREAM_SKIPPED", "a task that this one needs was skipped", retryable=False)
CONDITION_FALSE: Final = Error("CONDITION_FALSE", "its condition was false", retryable=False)


def begin(plan: Plan, run: RunState, at: int) -> Transition:
    """Decide the first step of a new run, within the transaction that creates it: what needs nothing is handed out."""
    draft = Transition(run)
    ended: list[int] = []
    for index in plan.roots:
        _ready(plan, run, draft, index, ended, at)
    return _close(plan, run, draft, ended, at)


def advance(plan: Plan, run: RunState, event: MachineEvent, at: int) -> Transition | None:
    """Decide what one event does to one run; None when it is stale or repeated: nothing changes.

    Total over every (state, event) pair. Reads the run and touches nothing: `run.apply(transition)` makes it so. Both
    cost O(tasks the event touches).

    at: the database's clock when the batch is decided, microseconds UTC.
    Transition.actions: in the order in which they must be persisted. Raises nothing.
    """
    if run.attention and not isinstance(event, Cancelled | Released):
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
        case Cancelled():
            return _cancelled(plan, run, event, at)
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
    spec, draft = plan.tasks[event.task], Transition(run)
    begun = _begun(task)
    draft.actions.append(EndAttempt(event.task, begun.attempt, task.token, "completed"))
    _clear_timer(draft, event.task, task)
    output = bytes(event.output) if spec.is_referenced else None
    done = TaskState(_COMPLETED, begun.attempt, task.token, None, task.retries_from, output=output)
    _put(run, draft, event.task, done)
    return _close(plan, run, draft, [event.task], at)


def _failed(plan: Plan, run: RunState, event: Failed, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None:
        return None
    draft, ended = Transition(run), list[int]()
    _retry_or_bury(plan, run, draft, event.task, _begun(task), event.error, ended, at)
    return _close(plan, run, draft, ended, at)


def _started(plan: Plan, run: RunState, event: Started, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None or task.status is not _QUEUED:
        return None
    spec, draft, due_at = plan.tasks[event.task], Transition(run), None
    if spec.timeout is not None:
        due_at = at + int(spec.timeout * 1_000_000) + TIMEOUT_GRACE
        draft.actions.append(SetTimer(event.task, task.token, "timeout", due_at))
    begun = _begun(task)
    _put(run, draft, event.task, msgspec.structs.replace(begun, due_at=due_at))
    return _close(plan, run, draft, [], at)


def _returned(plan: Plan, run: RunState, event: Returned, at: int) -> Transition | None:
    """A drain is nobody's fault: a body that had begun keeps its attempt number, but the retry policy does not count
    it."""
    task = _held(plan, run, event.task, event.token)
    if task is None:
        return None
    draft, ended = Transition(run), list[int]()
    if event.begun or task.status is _RUNNING:
        task = _begun(task)
        draft.actions.append(EndAttempt(event.task, task.attempt, task.token, "returned"))
        _clear_timer(draft, event.task, task)
        task = msgspec.structs.replace(task, retries_from=task.retries_from + 1)
        _hand_out(plan, run, draft, event.task, task, ended)
    else:
        _hand_out_again(plan, run, draft, event.task, task, ended)
    return _close(plan, run, draft, ended, at)


def _lost(plan: Plan, run: RunState, event: Lost, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None:
        return None
    draft, ended = Transition(run), list[int]()
    if task.status is _QUEUED:  # no body began, as far as anybody knows: a new token, no attempt
        _hand_out_again(plan, run, draft, event.task, task, ended)
    else:
        draft.actions.append(EndAttempt(event.task, task.attempt, task.token, "lost", LOST))
        draft.actions.append(Abort(event.task, task.token, "lost"))
        _clear_timer(draft, event.task, task)
        if task.attempt - task.retries_from < plan.tasks[event.task].retry.attempts:
            _hand_out(plan, run, draft, event.task, task, ended)
        else:
            _bury(run, draft, event.task, task, LOST, ended)
    return _close(plan, run, draft, ended, at)


def _due(plan: Plan, run: RunState, event: Due, at: int) -> Transition | None:
    """A timer names the token it was set under, and only the database's clock decides that it is due."""
    if not 0 <= event.task < len(plan.tasks):
        return None
    task = run.task(event.task)
    if task.token != event.token or task.due_at is None or at < task.due_at:
        return None
    draft, ended = Transition(run), list[int]()
    if event.timer == "backoff" and task.status is _PENDING:
        draft.actions.append(ClearTimer(event.task))
        _hand_out(plan, run, draft, event.task, task, ended)
    elif event.timer == "timeout" and task.status is _RUNNING:
        draft.actions.append(Abort(event.task, task.token, "timeout"))
        error = Error("TIMEOUT", f"no result within {plan.tasks[event.task].timeout} s")
        _retry_or_bury(plan, run, draft, event.task, task, error, ended, at)
    else:
        return None
    return _close(plan, run, draft, ended, at)


def _decided(plan: Plan, run: RunState, event: Decided, at: int) -> Transition | None:
    if not 0 <= event.task < len(plan.tasks):
        return None
    task = run.task(event.task)
    if task.status is not _WAITING or task.token != event.token:
        return None
    draft, ended = Transition(run), list[int]()
    if event.outcome == "approved" and plan.tasks[event.task].run is not None:
        _hand_out(plan, run, draft, event.task, task, ended)
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
    if not 0 <= event.task < len(plan.tasks):
        return None
    task = run.task(event.task)
    if task.status is not _FAILED or task.token != event.token or run.counts.get(_CANCELLED):
        return None
    draft, ended = Transition(run), list[int]()
    given = event.input if event.input is not None else task.input
    task = msgspec.structs.replace(task, retries_from=task.attempt, error=None, input=given)
    _put(run, draft, event.task, task)
    _unskip(plan, run, draft, event.task)
    if plan.tasks[event.task].approval is not None and not task.attempt:
        _ask(run, draft, event.task, task)
    else:
        _hand_out(plan, run, draft, event.task, task, ended)
    return _close(plan, run, draft, ended, at)


def _cancelled(plan: Plan, run: RunState, event: Cancelled, at: int) -> Transition | None:
    if run.status in RUN_TERMINAL:
        return None
    draft = Transition(run)
    draft.attention = False
    error = Error("CANCELLED", event.reason or "the run was cancelled", retryable=False)
    for index in range(len(plan.tasks)):
        task = run.task(index)
        if task.status in TERMINAL:
            continue
        if task.status is _RUNNING:
            draft.actions.append(EndAttempt(index, task.attempt, task.token, "cancelled", error))
        if task.status is _RUNNING or task.status is _QUEUED:
            draft.actions.append(Abort(index, task.token, "cancelled"))
        if task.status is _WAITING:
            draft.actions.append(CloseQuestion(index, task.token))
        _clear_timer(draft, index, task)
        _put(run, draft, index, msgspec.structs.replace(task, status=_CANCELLED, due_at=None, error=error))
    return _close(plan, run, draft, [], at)


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


def _begun(task: TaskState) -> TaskState:
    """The task as it is once its body began: a short body sends only its result, so that counts the attempt."""
    if task.status is _RUNNING:
        return task
    return msgspec.structs.replace(task, status=_RUNNING, attempt=task.attempt + 1)


def _put(run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    before = draft.tasks.get(index)
    if before is None:
        before = run.tasks.get(index)
    counts = draft.counts
    if before is not None and before is not UNTOUCHED:
        counts[before.status] -= 1
    if task is not UNTOUCHED:
        counts[task.status] = counts.get(task.status, 0) + 1
    draft.tasks[index] = task


def _clear_timer(draft: Transition, index: int, task: TaskState) -> None:
    if task.due_at is not None:
        draft.actions.append(ClearTimer(index))


def _ready(plan: Plan, run: RunState, draft: Transition, index: int, ended: list[int], at: int) -> None:
    """All that the task needs has completed: skip it, ask, or hand it out."""
    spec = plan.tasks[index]
    if spec.condition is not None:
        try:
            holds = spec.condition.evaluate(run.input, _outputs(plan, run, draft))
        except PayloadError as e:
            return _bury(run, draft, index, UNTOUCHED, Error(e.reason, e.message, retryable=False), ended)
        if not holds:
            _put(run, draft, index, TaskState(_SKIPPED, error=CONDITION_FALSE))
            return ended.append(index)
    if spec.approval is None:
        return _hand_out(plan, run, draft, index, UNTOUCHED, ended)
    _ask(run, draft, index, UNTOUCHED)


def _ask(run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    token = task.token + 1
    _put(run, draft, index, msgspec.structs.replace(task, status=_WAITING, token=token))
    draft.actions.append(Ask(index, token))


def _hand_out(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """QUEUED under the next token, with its input rendered.

    An input that cannot be rendered fails the task instead. The token is used up all the same, so that every dead
    letter of a task has its own, and the event that led here is stale when it comes again.
    """
    spec, token = plan.tasks[index], task.token + 1
    try:
        if task.input is not None:
            given = task.input
        elif spec.template is not None:
            given = spec.template.render(run.input, _outputs(plan, run, draft))
        else:
            given = run.input
    except PayloadError as e:
        unsent = msgspec.structs.replace(task, token=token)
        return _bury(run, draft, index, unsent, Error(e.reason, e.message, retryable=False), ended)
    _put(run, draft, index, TaskState(_QUEUED, task.attempt, token, None, task.retries_from, input=task.input))
    draft.actions.append(Dispatch(index, task.attempt + 1, token, given))


def _hand_out_again(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]
) -> None:
    """After a hand-out that vanished before its body began."""
    vanished = task.token - task.attempt
    if vanished % HANDOUTS_LOST_MAX == 0:
        return _bury(run, draft, index, task, NEVER_BEGAN, ended)
    _hand_out(plan, run, draft, index, task, ended)


def _retry_or_bury(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int], at: int
) -> None:
    """An attempt failed: the next one after its backoff, or none."""
    retry = plan.tasks[index].retry
    draft.actions.append(EndAttempt(index, task.attempt, task.token, "failed", error))
    _clear_timer(draft, index, task)
    tries = task.attempt - task.retries_from
    if not error.retryable or tries >= retry.attempts:
        return _bury(run, draft, index, task, error, ended)
    if error.retry_after is not None:
        delay = int(min(max(0.0, error.retry_after), RETRY_AFTER_MAX) * 1_000_000)
    else:
        delay = backoff(retry, tries, b"%b/%d/%d" % (run.key, index, task.attempt))
    if delay <= 0:
        return _hand_out(plan, run, draft, index, task, ended)
    due_at = at + delay
    _put(run, draft, index, msgspec.structs.replace(task, status=_PENDING, due_at=due_at))
    draft.actions.append(SetTimer(index, task.token, "backoff", due_at))


def _bury(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int]) -> None:
    _put(run, draft, index, msgspec.structs.replace(task, status=_FAILED, due_at=None, error=error))
    draft.actions.append(BuryTask(index, task.token, task.attempt, error))
    ended.append(index)


def _close(plan: Plan, run: RunState, draft: Transition, ended: list[int], at: int) -> Transition:
    """Look at the joins behind every task that ended, then derive the run's status. Depth does not matter."""
    for index in ended:  # grows while it is walked
        status = draft.tasks[index].status
        for after in plan.tasks[index].dependants:
            if (draft.tasks.get(after) or run.tasks.get(after, UNTOUCHED)) is not UNTOUCHED:
                continue
            if status is _COMPLETED:
                missing = draft.missing.get(after)
                if missing is None:
                    missing = run.missing.get(after, len(plan.tasks[after].needs))
                draft.missing[after] = missing = missing - 1
                if not missing:
                    _ready(plan, run, draft, after, ended, at)
            else:
                _put(run, draft, after, TaskState(_SKIPPED, error=_reason(draft.tasks[index])))
                ended.append(after)
    draft.status = derive_status(len(plan.tasks), draft.counts, attention=draft.attention)
    if draft.status in RUN_TERMINAL and run.status not in RUN_TERMINAL:
        draft.actions.append(Finish(draft.status))
    return draft


def _reason(task: TaskState) -> Error:
    """Why what needs this ended task is skipped."""
    if task.status is _SKIPPED and task.error is not UPSTREAM_FAILED and task.error != UPSTREAM_FAILED:
        return UPSTREAM_SKIPPED
    return UPSTREAM_FAILED


def _unskip(plan: Plan, run: RunState, draft: Transition, index: int) -> None:
    """Take back the skips that only this failure caused: what still needs another failed task stays skipped."""
    blocking: dict[int, int] = {}  # a skipped task -> how many of its needs will not complete
    coming_back = [index]
    for current in coming_back:  # grows while it is walked
        for after in plan.tasks[current].dependants:
            task, needs = run.task(after), plan.tasks[after].needs
            if task.status is not _SKIPPED or task.error != UPSTREAM_FAILED:
                continue
            if after not in blocking:
                blocking[after] = sum(run.task(need).status in _STOPPED for need in needs)
            blocking[after] -= 1
            if not blocking[after]:
                draft.missing[after] = sum(run.task(need).status is not _COMPLETED for need in needs)
                _put(run, draft, after, UNTOUCHED)
                coming_back.append(after)


def _outputs(plan: Plan, run: RunState, draft: Transition) -> Callable[[str], bytes | None]:
    def output(name: str) -> bytes | None:
        index = plan.index[name]
        return (draft.tasks.get(index) or run.tasks.get(index, UNTOUCHED)).output

    return output
