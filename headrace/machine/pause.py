"""Pauses: of a run, of its workflow, of one task. What they hold back is PENDING and withheld, see the package."""

from headrace.machine.actions import HoldTasks, Transition
from headrace.machine.event import Paused, Resumed
from headrace.machine.place import is_compensation, task_of
from headrace.machine.plan import Plan
from headrace.machine.run_state import RunState
from headrace.machine.status import HOLDS, PAUSES, RUN_TERMINAL, TASKS_PAUSED, TERMINAL, WITHHOLDS


def is_held(run: RunState, draft: Transition, place: int) -> bool:
    """Whether nothing new of this task may begin; an item is held with its map. What undoes a task is not held by a
    pause of it. To be asked while any of `HOLDS` is set."""
    if draft.control & WITHHOLDS:
        return True
    return task_of(place) in paused_tasks(run, draft) and not is_compensation(place)


def paused_tasks(run: RunState, draft: Transition) -> frozenset[int]:
    return run.paused if draft.paused is None else draft.paused


def begin_pause(plan: Plan, run: RunState, draft: Transition, event: Paused) -> bool:
    """Whether that pauses what nobody had paused yet."""
    if run.status in RUN_TERMINAL:
        return False
    if event.scope != TASKS_PAUSED:
        draft.control |= event.scope & PAUSES
        return not run.control & event.scope
    if not 0 <= event.task < len(plan.tasks) or run.task(event.task).status in TERMINAL or event.task in run.paused:
        return False
    _hold(draft, run.paused | {event.task})
    return True


def end_pause(run: RunState, draft: Transition, event: Resumed) -> bool:
    """Whether that ends a pause, or the wait for a permit."""
    if event.scope != TASKS_PAUSED:
        draft.control &= ~(event.scope & WITHHOLDS)
        return run.control & event.scope & WITHHOLDS > 0
    if event.task not in run.paused:
        return False
    _hold(draft, run.paused - {event.task})
    return True


def drop_pauses(run: RunState, draft: Transition) -> None:
    """A run that ends is paused no more, nor is a task of it."""
    draft.control &= ~HOLDS
    if paused_tasks(run, draft):
        _hold(draft, frozenset())


def _hold(draft: Transition, tasks: frozenset[int]) -> None:
    draft.paused = tasks
    draft.control = draft.control | TASKS_PAUSED if tasks else draft.control & ~TASKS_PAUSED
    draft.actions.append(HoldTasks(tuple(sorted(tasks))))
