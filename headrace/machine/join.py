"""Joins: what a task asks of those that it needs, and what a replay or a rerun takes back. See the package."""

from collections.abc import Sequence
from typing import Literal

from headrace.machine.actions import Transition
from headrace.machine.draft import put
from headrace.machine.plan import Plan, TaskPlan
from headrace.machine.reason import NOTHING_FAILED, UPSTREAM_FAILED, UPSTREAM_SKIPPED
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState
from headrace.machine.status import CANCELLED, CANCELLING, COMPLETED, FAILED, PENDING, SKIPPED, TERMINAL
from headrace.messages import Error


def has_failed(task: TaskState) -> bool:
    """Whether it failed, was cancelled with its child, or never ran because something before it did either."""
    return (
        task.status is FAILED or task.status is CANCELLED or (task.status is SKIPPED and task.error == UPSTREAM_FAILED)
    )


def answer_of(spec: TaskPlan, needs: Sequence[TaskState]) -> Error | None:
    """What a join says once all needs have ended: None, the task runs; or why it never will."""
    is_failure = any(map(has_failed, needs))
    if spec.join == "always" or spec.cleans_up or (spec.join == "on_failure" and is_failure):
        return None
    if spec.join == "all" and all(need.status is COMPLETED for need in needs):
        return None
    if spec.join == "on_failure":
        return NOTHING_FAILED
    return UPSTREAM_FAILED if is_failure else UPSTREAM_SKIPPED


def want_one_less(run: RunState, draft: Transition, index: int, quorum: int) -> int:
    """One more need of a quorum has completed: how many have to, still."""
    if draft.wanted is None:
        draft.wanted = {}
    wanted = draft.wanted.get(index)
    if wanted is None:
        wanted = run.wanted.get(index, quorum)
    draft.wanted[index] = wanted = wanted - 1
    return wanted


def count_needs(plan: Plan, run: RunState, draft: Transition, index: int) -> Error | Literal["ready"] | None:
    """Count anew what a task waits for, and answer what its join says already: it may run, why it never will, or
    nothing."""
    spec = plan.tasks[index]
    needs = [draft.tasks.get(need) or run.tasks.get(need, UNTOUCHED) for need in spec.needs]
    missing = sum(need.status not in TERMINAL for need in needs)
    wanted = None if spec.quorum is None else spec.quorum - sum(need.status is COMPLETED for need in needs)
    if not spec.is_chained:
        draft.missing[index] = missing
    if wanted is not None:
        draft.wanted = {**(draft.wanted or {}), index: wanted}
    if wanted is not None and wanted <= 0:
        return "ready"
    if spec.join == "all" and any(map(has_failed, needs)):
        return UPSTREAM_FAILED
    return None if missing else answer_of(spec, needs) or "ready"


def is_skipped_in_vain(plan: Plan, run: RunState, index: int) -> bool:
    """Whether it was skipped for a failure that a person has mended since: by an output given to a clean-up of a
    cancelled run, where nothing comes back by itself."""
    spec, task = plan.tasks[index], run.task(index)
    if task.status is not SKIPPED or task.error != UPSTREAM_FAILED:
        return False
    needs = [run.task(need) for need in spec.needs]
    if spec.quorum is not None and sum(need.status is COMPLETED for need in needs) >= spec.quorum:
        return True
    return not any(map(has_failed, needs))


def untouched_again(task: TaskState, given: bytes | None) -> TaskState:
    """As before its join was decided, but that neither a token nor an attempt number is used again."""
    if not task.token and given is None:
        return UNTOUCHED
    return TaskState(PENDING, task.attempt, task.token, None, task.attempt, given)


def unskip(plan: Plan, run: RunState, draft: Transition, replayed: int) -> None:
    """Take back what only this failure decided: what still needs another failed task stays skipped, and what has begun
    because of it stays as it is. In a run that was cancelled nothing comes back behind a clean-up."""
    blocking: dict[int, int] = {}  # a skipped task -> how many of its needs have failed and do not come back
    waiting: dict[int, None] = {}
    coming_back = [replayed]
    for current in coming_back:  # grows while it is walked
        for after in plan.tasks[current].dependants:
            spec, task = plan.tasks[after], draft.tasks.get(after) or run.task(after)
            if task.is_untouched:
                waiting[after] = None
            if task.status is not SKIPPED or task.error != UPSTREAM_FAILED or draft.control & CANCELLING:
                continue
            if after not in blocking:
                blocking[after] = sum(has_failed(run.task(need)) for need in spec.needs)
            blocking[after] -= 1
            if spec.quorum is not None or not blocking[after]:
                put(run, draft, after, untouched_again(task, None))
                coming_back.append(after)
                waiting[after] = None
    for index in waiting:
        spec = plan.tasks[index]
        needs = [(draft.tasks.get(need) or run.task(need)).status for need in spec.needs if need != replayed]
        draft.missing[index] = len(spec.needs) - sum(status in TERMINAL for status in needs)
        if spec.quorum is not None:
            draft.wanted = {**(draft.wanted or {}), index: spec.quorum - needs.count(COMPLETED)}
