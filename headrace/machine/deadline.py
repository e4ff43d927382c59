"""Deadlines: of a task over all its attempts, of its time in the queue, and of a run.

What makes a new state of a task knows nothing of them. At the end of each decision about a run that has any,
`keep_deadlines` looks at what was touched, and makes it so.
"""

from typing import Final

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import Abort, EndAttempt, SetDeadline, SetTimer, Transition
from headrace.machine.draft import bury, clear_timer, item_counts, outputs_of, put
from headrace.machine.effect import doubt_effect, keep_doubt
from headrace.machine.mapping import doubt_cancelled, stop_map
from headrace.machine.place import RUN, items_of
from headrace.machine.plan import Plan
from headrace.machine.reason import DEADLINE
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import CANCELLING, FAILED, QUEUED, RUN_TERMINAL, RUNNING, TERMINAL, WAITING
from headrace.machine.waiting import ask_no_more
from headrace.messages import Error

START_GRACE: Final = 1_000_000
"""Microseconds. A body is reported as begun a quarter of a second after it did; one that began in time is no late
one."""


def begin_deadline(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int,
    is_doubtful: bool,
) -> bool:  # fmt: skip
    """Its turn has come, and its deadline counts from here. False: the task has failed of that at once.

    Where it was handed out before, an operator lets it run again: an instant that has passed is no deadline then.
    is_doubtful: it may have had its effect, and its policy is yet to be asked.
    """
    spec = plan.tasks[index].deadline
    assert spec is not None
    try:
        due_at = spec.due_at(at, run.input, outputs_of(plan, run, draft), None)
    except PayloadError as e:
        unread = msgspec.structs.replace(task, token=run.next_token(task))  # every dead letter has its own
        error = Error(e.reason, f"its deadline: {e.message}", retryable=False)
        bury(run, draft, index, unread, keep_doubt(error, is_doubtful=is_doubtful), ended)
        return False
    if due_at <= at and not task.token:
        bury(run, draft, index, msgspec.structs.replace(task, token=run.next_token(task)), DEADLINE, ended)
        return False
    _decide(draft, index, due_at if due_at > at else None)
    return True


def renew_deadline(plan: Plan, run: RunState, draft: Transition, index: int, at: int) -> None:
    """An item of a map that had failed is replayed, so the map goes on: its deadline counts anew."""
    spec = plan.tasks[index].deadline
    if spec is None or run.task(index).status is not FAILED:
        return
    try:
        due_at = spec.due_at(at, run.input, outputs_of(plan, run, draft), None)
    except PayloadError:
        return
    _decide(draft, index, due_at if due_at > at else None)


def end_by_deadline(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]
) -> None:
    """Whatever it does now, the task is to do no more. An effect that may have happened stays to be cleared up: what is
    looked up goes on to be, and fails of its deadline when it did not happen; a person who is asked is asked still."""
    _decide(draft, index, None)
    if task.is_parked:
        return put(run, draft, index, task)
    if task.lookups:
        doubt = f"; {task.error.message}" if task.error is not None else ""
        late = msgspec.structs.replace(DEADLINE, message=DEADLINE.message + doubt)
        return put(run, draft, index, msgspec.structs.replace(task, error=late))
    if task.is_mapping:
        _bury_first_item(plan, run, draft, index, ended)
        return stop_map(plan, run, draft, index, task, DEADLINE, ended)
    if task.status is WAITING:
        ask_no_more(plan, draft, index, task)
    spec = plan.tasks[index]
    error = DEADLINE if spec.compensation is None else doubt_cancelled(spec, task, DEADLINE)
    _stop(draft, index, task, error)
    if task.status is RUNNING and spec.effect != "idempotent":
        return doubt_effect(plan, run, draft, index, task, error)
    bury(run, draft, index, _under_its_own_token(run, task), error, ended)


def _bury_first_item(plan: Plan, run: RunState, draft: Transition, index: int, ended: list[int]) -> None:
    """Of a map that is ended one item fails, so that there is a dead letter by which it can be taken up again: the
    first that is open, if it can be one whose effect is not in doubt."""
    places = items_of(index, item_counts(run, draft, index).begun)
    is_idempotent = plan.at(places[0]).effect == "idempotent"
    open_items = [place for place in places if run.task(place).status not in TERMINAL]
    free = [p for p in open_items if is_idempotent or (run.task(p).status is not RUNNING and not run.task(p).error)]
    place = (free or open_items)[0]
    item, error = run.task(place), DEADLINE if free else msgspec.structs.replace(DEADLINE, ambiguous=True)
    if item.status is WAITING:
        ask_no_more(plan, draft, place, item)
    _stop(draft, place, item, error)
    bury(run, draft, place, _under_its_own_token(run, item), error, ended)


def _under_its_own_token(run: RunState, task: TaskState) -> TaskState:
    """What is withheld may be so since a replay, and its dead letter has its token already: the next one is used up, so
    that every dead letter has its own."""
    return msgspec.structs.replace(task, token=run.next_token(task)) if task.withheld else task


def _stop(draft: Transition, index: int, task: TaskState, error: Error) -> None:
    if task.status is RUNNING and not task.lookups:
        draft.actions.append(EndAttempt(index, task.attempt, task.token, "failed", error))
    if task.status is RUNNING or task.status is QUEUED:
        draft.actions.append(Abort(index, task.token, "deadline"))
    clear_timer(draft, index, task)


def _decide(draft: Transition, index: int, due_at: int | None) -> None:
    draft.deadlines = {**(draft.deadlines or {}), index: due_at}


def drop_run_deadline(run: RunState, draft: Transition) -> None:
    """The run moves to a version that has none."""
    if run.deadline_at is not None:
        _decide(draft, RUN, None)
        draft.actions.append(SetDeadline(RUN, None))


def keep_deadlines(plan: Plan, run: RunState, draft: Transition, at: int) -> None:
    """At the end of a decision: what goes on keeps its deadline, what has ended has none any more, and what was handed
    out has its time in the queue."""
    decided = draft.deadlines or {}
    for index in list(draft.tasks):
        spec, before, task = plan.at(index), run.task(index), draft.tasks[index]
        if spec.start_within is not None and task.status is QUEUED and task.due_at is None and not task.lookups:
            # A command that was lost began nothing: its time goes on.
            is_again = before.status is QUEUED and before.attempt == task.attempt
            due_at = (before.due_at if is_again else None) or at + spec.start_within + START_GRACE
            draft.tasks[index] = task = msgspec.structs.replace(task, due_at=due_at)
            draft.actions.append(SetTimer(index, task.token, "start", due_at))
        if spec.deadline is None:
            continue
        is_open = task.status not in TERMINAL and not task.is_untouched
        deadline_at = decided.get(index, before.deadline_at) if is_open else None
        if task.deadline_at != deadline_at:
            draft.tasks[index] = msgspec.structs.replace(task, deadline_at=deadline_at)
        if before.deadline_at != deadline_at:
            draft.actions.append(SetDeadline(index, deadline_at))
    if plan.deadline is not None:
        _keep_that_of_the_run(plan.deadline, run, draft, at)


def _keep_that_of_the_run(length: int, run: RunState, draft: Transition, at: int) -> None:
    """It counts from the start, and anew from a replay or a rerun of a run that had ended."""
    is_begun = not run.row_version or run.status in RUN_TERMINAL
    deadline_at = at + length if is_begun else run.deadline_at
    if draft.status in RUN_TERMINAL or draft.compensations is not None or draft.control & CANCELLING:
        deadline_at = None  # what is undone, or only cleaned up behind, has ended
    if deadline_at != run.deadline_at:
        _decide(draft, RUN, deadline_at)
        draft.actions.append(SetDeadline(RUN, deadline_at))
