"""Clean-ups: tasks whose join is `finally`, which run behind a cancel, too. See the package."""

from headrace.machine.place import ITEMS_MAX, task_of
from headrace.machine.plan import Plan
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import CANCELLING, COMPLETED, TERMINAL


def find_clean_ups(plan: Plan, run: RunState) -> frozenset[int]:
    """Those that a cancel leaves to run: they have begun, or something before them has, however far back. Where nothing
    ever began, nothing is to be cleaned up. O(edges)."""
    begun = [index for index, task in run.tasks.items() if index < ITEMS_MAX and _has_begun(task)]
    behind = set(begun)
    for index in begun:  # grows while it is walked
        for after in plan.tasks[index].dependants:
            if after not in behind:
                behind.add(after)
                begun.append(after)
    return frozenset(index for index in plan.clean_ups if index in behind and run.task(index).status not in TERMINAL)


def is_ended_by_cancel(run: RunState, place: int) -> bool:
    """Whether nobody's act brings it back: its run was cancelled, and it is no clean-up of it."""
    if run.control & CANCELLING:
        return not run.plan.tasks[task_of(place)].cleans_up
    return run.was_cancelled


def _has_begun(task: TaskState) -> bool:
    """It had its turn: it was handed out, asked about or made to wait, or a person gave it its output."""
    return task.token > 0 or task.status is COMPLETED
