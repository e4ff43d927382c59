"""What a rerun would do, before anybody asks for it: the machine's own decision, told task by task and not applied."""

from typing import Final, Literal, NamedTuple

from headrace.machine.advance import advance
from headrace.machine.event import Reran
from headrace.machine.plan import Plan
from headrace.machine.run_state import RunState
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


def foresee(plan: Plan, run: RunState, event: Reran, at: int) -> list[Foreseen]:
    """The tasks that would run again, in the order of the graph; none when the run is not as the event says, has not
    ended, or has nothing to run again."""
    transition = advance(plan, run, event, at)
    if transition is None:
        return []
    found = []
    for index in sorted(transition.tasks):
        spec, before, after = plan.tasks[index], run.task(index), transition.tasks[index]
        then: Then = _THEN.get(after.status, "begins")
        had_none = before.status is TaskStatus.FAILED and after.status is TaskStatus.QUEUED and not after.lookups
        if spec.run is None:
            found.append(Foreseen(index, then, "none", None))
        elif not before.attempt:
            found.append(Foreseen(index, then, "first", None))
        elif spec.effect == "idempotent":
            found.append(Foreseen(index, then, "repeats", "effect_key"))
        elif had_none:
            found.append(Foreseen(index, then, "did_not_happen", None))
        else:
            found.append(Foreseen(index, then, "repeats", "lookup" if spec.effect == "reconcile" else "person"))
    return found
