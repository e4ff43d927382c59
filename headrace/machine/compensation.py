"""Compensations: a run that failed or was cancelled undoes what its tasks did, see the package."""

from collections.abc import Iterable
from typing import Final

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import KeepUndo, Transition
from headrace.machine.draft import put, render_input
from headrace.machine.handout import hand_out
from headrace.machine.place import compensation_of, is_compensation, task_of
from headrace.machine.plan import Plan, TaskPlan
from headrace.machine.reason import LOST
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState, count_undone
from headrace.machine.status import (
    COMPLETED,
    PENDING,
    SKIPPED,
    TERMINAL,
    CompensationCounts,
    RunStatus,
)
from headrace.machine.waiting import is_refusal

UNDONE: Final = frozenset({RunStatus.FAILED, RunStatus.CANCELLED})
"""How a run would end that undoes what it did first."""
_DOUBTFUL: Final = ("TIMEOUT", LOST.code)
_UNTOLD: Final = b"null"
"""Its compensation's input could not be told. That is told when the compensation begins, as of any."""


def is_to_undo(spec: TaskPlan, task: TaskState) -> bool:
    """Whether it had an effect, or may have had: it completed; items of it began; or its end leaves open what became of
    its last attempt. A plain failure says that there is nothing to undo, and so does a rejection. Of a task with a
    policy a lookup or a person has said so, unless that person let it fail."""
    if task.status is COMPLETED or task.items:
        return spec.approval is None or not is_refusal(task)
    error = task.error
    if task.status is SKIPPED or error is None:
        return False
    is_open = error.code in _DOUBTFUL if spec.effect == "idempotent" else error.code == "AMBIGUOUS"
    return error.ambiguous or is_open


def keep_undo(plan: Plan, run: RunState, draft: Transition, chosen: Iterable[int]) -> None:
    """These tasks run again, and none of them has been touched yet: what they have done stands, however they end."""
    for index in chosen:
        spec, task = plan.tasks[index], run.task(index)
        if spec.compensation is None or task.status is not COMPLETED or not is_to_undo(spec, task):
            continue
        if index in run.undo and _is_refused_since(task):
            continue
        try:
            _keep(draft, index, render_input(plan, run, draft, compensation_of(index), UNTOUCHED))
        except PayloadError:
            _keep(draft, index, _UNTOLD)


def forget_undo(run: RunState, draft: Transition, index: int) -> None:
    """A lookup or a person has said that its effect did not happen."""
    if index in run.undo:
        _keep(draft, index, None)


def _keep(draft: Transition, index: int, given: bytes | None) -> None:
    draft.undo = {**(draft.undo or {}), index: given}
    draft.actions.append(KeepUndo(index, given))


def _is_refused_since(task: TaskState) -> bool:
    """It was rejected when it was to run again, and takes that for its end."""
    return task.attempt == task.retries_from and is_refusal(msgspec.structs.replace(task, attempt=0))


def _undoing(run: RunState, draft: Transition, spec: TaskPlan, task: TaskState) -> TaskState | None:
    """The compensation of a task, before it begins; None: there is nothing to undo. A task that had completed, was
    rerun and did not complete again is undone as of that end."""
    given = run.undo.get(spec.index) if draft.undo is None else draft.undo.get(spec.index, run.undo.get(spec.index))
    if given is not None and (task.status is not COMPLETED or _is_refused_since(task)):
        return TaskState(PENDING, input=None if given == _UNTOLD else given)
    return TaskState(PENDING) if is_to_undo(spec, task) else None


def begin_compensations(plan: Plan, run: RunState, draft: Transition) -> None:
    """Every task of the graph has ended: undo what they did, the last of each branch first. Nothing happens where
    they did nothing."""
    found: dict[int, TaskState] = {}
    for spec in plan.tasks:
        if spec.compensation is None:
            continue
        undoing = _undoing(run, draft, spec, draft.tasks.get(spec.index) or run.task(spec.index))
        if undoing is not None:
            found[compensation_of(spec.index)] = undoing
    if not found:
        return
    draft.compensations = CompensationCounts(len(found))
    for place, task in found.items():
        put(run, draft, place, task)
    draft.missing.update(count_undone(plan, found))
    ended: list[int] = []
    for place in found:
        if not draft.missing[place]:
            hand_out(plan, run, draft, place, draft.tasks[place], ended)
    for place in ended:  # grows while it is walked: an input that cannot be rendered fails one at once
        compensation_ended(plan, run, draft, place, ended)


def compensation_ended(plan: Plan, run: RunState, draft: Transition, place: int, ended: list[int]) -> None:
    """What came before its task is undone next, once all that needed that is."""
    if _missing(run, draft, place):
        return  # it had begun before, and something behind it runs again; that one passes it by
    passed = [task_of(place)]
    for index in passed:  # grows while it is walked
        for need in plan.tasks[index].needs:
            before = compensation_of(need)
            draft.missing[before] = missing = _missing(run, draft, before) - 1
            if missing:
                continue
            task = draft.tasks.get(before) or run.tasks.get(before)
            if task is None or task.status in TERMINAL:
                passed.append(need)
            elif task.is_untouched:
                hand_out(plan, run, draft, before, task, ended)


def wait_for_it_again(plan: Plan, run: RunState, draft: Transition) -> None:
    """A compensation that had failed is replayed: what has not begun waits for it again."""
    places = [place for place in run.tasks if is_compensation(place)]
    draft.missing.update(count_undone(plan, {place: draft.tasks.get(place) or run.tasks[place] for place in places}))


def _missing(run: RunState, draft: Transition, place: int) -> int:
    missing = draft.missing.get(place)
    return run.missing[place] if missing is None else missing
