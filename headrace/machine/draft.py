"""What every part of a decision does to its draft: put a task, count, withhold, bury, skip."""

from collections.abc import Callable

import msgspec

from headrace.machine.actions import BuryTask, ClearTimer, FreeSlot, Transition
from headrace.machine.place import COMPENSATIONS_FROM, ITEMS_MAX, item_of, task_of
from headrace.machine.plan import Plan, TaskPlan
from headrace.machine.run_state import UNTOUCHED, ItemCounts, RunState, TaskState
from headrace.machine.status import FAILED, PENDING, SKIPPED, TERMINAL, TaskStatus
from headrace.messages import PAYLOAD_BYTES_MAX, Error


def put(run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    before = draft.tasks.get(index)
    if before is None:
        before = run.tasks.get(index)
    # Here, where every new state passes, so that no path can keep a slot: it belongs to one hand-out and ends with it.
    if before is not None and before.pool and (not task.pool or task.token != before.token):
        draft.actions.append(FreeSlot(index, before.pool))
    if index >= ITEMS_MAX:
        put_it = _put_item if index < COMPENSATIONS_FROM else _put_compensation
        return put_it(run, draft, index, before, task)
    counts = draft.counts
    # Only what is PENDING can be untouched; asking the others costs a call for each.
    if before is not None and (before.status is not PENDING or not before.is_untouched):
        counts[before.status] -= 1
    if task.status is not PENDING or not task.is_untouched:
        counts[task.status] = counts.get(task.status, 0) + 1
    draft.tasks[index] = task


def _put_item(run: RunState, draft: Transition, place: int, before: TaskState | None, task: TaskState) -> None:
    """Open items count in the run's status, and those that have ended in their map's counters."""
    if before is not None and before.status not in TERMINAL and not before.is_untouched:
        draft.counts[before.status] -= 1
    if task.status not in TERMINAL:
        draft.counts[task.status] = draft.counts.get(task.status, 0) + 1
    counts = item_counts(run, draft, task_of(place)).after(before, task)
    count_items(draft, task_of(place), counts)
    if counts.output_bytes > PAYLOAD_BYTES_MAX and task.output is not None:
        task = msgspec.structs.replace(task, output=None)  # no list will be made of so much
    draft.tasks[place] = task


def _put_compensation(run: RunState, draft: Transition, place: int, before: TaskState | None, task: TaskState) -> None:
    """Those under way count in the run's status, as items do; one that has not begun, and those that have ended, in
    counters of their own."""
    counts, known = draft.counts, draft.compensations
    if before is not None and before.status not in TERMINAL and not before.is_untouched:
        counts[before.status] -= 1
    if task.status not in TERMINAL and not task.is_untouched:
        counts[task.status] = counts.get(task.status, 0) + 1
    if known is not None:
        draft.compensations = known.after(None if before is None else before.status, task.status)
    draft.tasks[place] = task


def item_counts(run: RunState, draft: Transition, index: int) -> ItemCounts:
    counts = None if draft.maps is None else draft.maps.get(index)
    return run.maps[index] if counts is None else counts


def count_items(draft: Transition, index: int, counts: ItemCounts) -> None:
    if draft.maps is None:
        draft.maps = {}
    draft.maps[index] = counts


def clear_timer(draft: Transition, index: int, task: TaskState) -> None:
    if task.due_at is not None:
        draft.actions.append(ClearTimer(index))


def at_rest(task: TaskState, status: TaskStatus, error: Error, due_at: int | None = None) -> TaskState:
    """The task held by nobody; what it has counted stays."""
    return TaskState(
        status, task.attempt, task.token, due_at, task.retries_from, task.input, task.output, error, items=task.items
    )


def withhold(run: RunState, draft: Transition, index: int, task: TaskState, how: str) -> None:
    """The run is paused: what would begin now begins when it goes on. `how`: see `TaskState.withheld`."""
    kept = TaskState(
        PENDING, task.attempt, task.token, None, task.retries_from, task.input, error=task.error, lookups=task.lookups,
        vanished=task.vanished, withheld=how,
    )  # fmt: skip
    put(run, draft, index, kept)


def outputs_of(plan: Plan, run: RunState, draft: Transition) -> Callable[[str], bytes | None]:
    def output(name: str) -> bytes | None:
        index = plan.index[name]
        return (draft.tasks.get(index) or run.tasks.get(index, UNTOUCHED)).output

    return output


def render_input(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState) -> bytes:
    """The input of the task's body; of a map, the list of its items. Raises PayloadError."""
    spec = plan.at(index)
    if task.input is not None:
        return task.input
    if index >= COMPENSATIONS_FROM:
        return _render_compensation(plan, run, draft, task_of(index), spec)
    if index >= ITEMS_MAX:
        items = item_counts(run, draft, task_of(index)).items
        return spec.render_item(run.input, outputs_of(plan, run, draft), items, item_of(index) or 0)
    if spec.map is not None:
        return spec.map.over.render(run.input, outputs_of(plan, run, draft))
    if spec.template is None:
        return run.input
    if spec.repeat is not None:
        return spec.render_round(spec.template, run.input, outputs_of(plan, run, draft), task.rounds, task.output)
    return spec.template.render(run.input, outputs_of(plan, run, draft))


def fairness_key_of(plan: Plan, run: RunState, draft: Transition, index: int) -> str:
    """Of the place's hand-outs in the queue of their pool. Raises PayloadError."""
    is_item = ITEMS_MAX <= index < COMPENSATIONS_FROM
    items = item_counts(run, draft, task_of(index)).items if is_item else []
    item = item_of(index) if is_item else None
    return plan.at(index).render_fairness_key(run.input, outputs_of(plan, run, draft), items, item)


def _render_compensation(plan: Plan, run: RunState, draft: Transition, index: int, spec: TaskPlan) -> bytes:
    """Raises PayloadError."""
    task = draft.tasks.get(index) or run.task(index)
    given = render_input(plan, run, draft, index, task)
    return spec.render_compensation(run.input, outputs_of(plan, run, draft), given, task.output)


def skip(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int]) -> None:
    put(run, draft, index, TaskState(SKIPPED, task.attempt, task.token, None, task.retries_from, error=error))
    ended.append(index)


def bury(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int]) -> None:
    put(run, draft, index, at_rest(task, FAILED, error))
    draft.actions.append(BuryTask(index, task.token, task.attempt, error))
    ended.append(index)
