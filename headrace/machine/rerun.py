"""What a rerun would do, before anybody asks for it: the machine's own decision, told task by task and not applied."""

from typing import Final, Literal, NamedTuple

import msgspec

from headrace.machine.advance import advance
from headrace.machine.effect import is_in_doubt
from headrace.machine.event import Reran
from headrace.machine.place import ITEMS_MAX, is_item, task_of
from headrace.machine.plan import Plan
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import TaskStatus

Then = Literal["begins", "follows", "skipped", "failed"]

_THEN: Final[dict[TaskStatus, Then]] = {
    TaskStatus.PENDING: "follows",
    TaskStatus.SKIPPED: "skipped",
    TaskStatus.FAILED: "failed",
}


class Foreseen(NamedTuple):
    """One task that runs again."""

    task: int
    then: Then
    """Begins at once; follows when what it needs has run again; or is skipped, or fails, again at once."""
    effect: Literal["none", "first", "repeats", "did_not_happen"]
    """It has no body; its body has never begun; its body may have had its effect; it failed, and told that it had
    none."""
    protected_by: Literal["effect_key", "lookup", "person"] | None
    """What keeps an effect that repeats from happening twice: the other side, which knows the key; the task's lookup,
    which is asked first; or a person, who is."""
    items: int | None = None
    """Of a map: how many of its items that began run again; all of them where it starts over with a new list."""
    round: int | None = None
    """Of a repeat: with which it begins."""


def foresee(plan: Plan, run: RunState, event: Reran, at: int) -> list[Foreseen]:
    """The tasks that would run again, in the order of the graph; none when the run is not as the event says, has not
    ended, or has nothing to run again."""
    # Under a limit it would wait for its permit first, and what is asked is what it does then.
    if event.plan is not None:
        event = msgspec.structs.replace(event, plan=event.plan.without_limit())
    transition = advance(plan.without_limit(), run, event, at)
    if transition is None:
        return []
    plan = transition.plan or plan
    found = []
    items: dict[int, list[int]] = {}
    again = [place for place, after in transition.tasks.items() if not _stands(run.task(place), after)]
    for place in again:
        if is_item(place) and run.task(place).token:
            items.setdefault(task_of(place), []).append(place)
    # What it undoes, should it fail at once, is no rerun.
    for index in sorted(place for place in again if place < ITEMS_MAX):
        spec, before, after = plan.tasks[index], run.task(index), transition.tasks[index]
        if spec.map is not None:
            found.append(_foresee_map(plan, run, index, after, items.get(index, [])))
            continue
        then: Then = _THEN.get(after.status, "begins")
        is_sent = after.awaits_slot or (after.status is TaskStatus.QUEUED and not after.lookups)
        round = None if spec.repeat is None else after.rounds
        had_none = before.status is TaskStatus.FAILED and is_sent
        if spec.run is None:
            found.append(Foreseen(index, then, "none", None))
        elif not before.attempt:
            found.append(Foreseen(index, then, "first", None, round=round))
        elif spec.effect == "idempotent":
            found.append(Foreseen(index, then, "repeats", "effect_key", round=round))
        elif had_none:
            found.append(Foreseen(index, then, "did_not_happen", None, round=round))
        else:
            is_told = spec.effect == "reconcile"
            found.append(Foreseen(index, then, "repeats", "lookup" if is_told else "person", round=round))
    return found


def _stands(before: TaskState, after: TaskState) -> bool:
    """It does not run again, and only what is in doubt of it is said: a body that fails again at once uses up a
    token."""
    has_begun = before.attempt > 0 and before.status in (TaskStatus.FAILED, TaskStatus.CANCELLED)
    return has_begun and (before.status, before.token) == (after.status, after.token)


def _foresee_map(plan: Plan, run: RunState, index: int, after: TaskState, items: list[int]) -> Foreseen:
    """One line for all its items, however many: what repeats of any, repeats."""
    then, effect = _THEN.get(after.status, "begins"), plan.tasks[index].effect
    states = [run.task(place) for place in items]
    if not any(item.attempt for item in states):
        return Foreseen(index, then, "first", None, len(items) or None)
    if effect == "idempotent":
        return Foreseen(index, then, "repeats", "effect_key", len(items))
    is_reopened = after.items is not None and after.token == run.task(index).token
    each = plan.at(items[0])
    begun = [item for item in states if item.attempt]
    was_asked = run.plan.at(items[0]).effect != "idempotent"
    if (
        was_asked
        and is_reopened
        and all(item.status is TaskStatus.FAILED and not is_in_doubt(each, item) for item in begun)
    ):
        return Foreseen(index, then, "did_not_happen", None, len(items))
    return Foreseen(index, then, "repeats", "lookup" if effect == "reconcile" else "person", len(items))
