"""Moving a run in flight to another version: what stands in the way, and the move itself.

A task is a number, its position in the graph, in every row, record, timer and nonce. So a task that was touched keeps
its position: what was added stands behind it, and what was not touched may be anything. A touched task keeps its kind,
and the name that its effect keys say: one that is renamed says what it `was`. The run is paused and nothing of it runs:
no answer is under way that the new version would have to understand, and what newly may begin is withheld until
somebody resumes the run.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.machine.actions import RefuseMove, Transition
from headrace.machine.close import close_decision
from headrace.machine.deadline import drop_run_deadline
from headrace.machine.draft import put, skip
from headrace.machine.effect import doubt_what_was_idempotent
from headrace.machine.event import Migrated
from headrace.machine.join import count_needs
from headrace.machine.limit import move_permit
from headrace.machine.place import task_of
from headrace.machine.plan import Plan, TaskPlan
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState
from headrace.machine.status import CANCELLING, COMPLETED, PAUSES, RUN_TERMINAL, TERMINAL, WAITING, RunStatus
from headrace.machine.turn import begin_all_withheld, ready
from headrace.messages import Error


class Obstacle(NamedTuple):
    """Why a run cannot be moved to a version, or cannot yet."""

    task: str | None
    """None: the run as a whole."""
    why: str


def find_obstacles(new: Plan, run: RunState) -> list[Obstacle]:
    """All of them, the run's own first, then in the order of the graph; none: it can be moved now."""
    of_now = [] if run.status is RunStatus.PAUSED else [Obstacle(None, why_not_paused(run.status))]
    return [*_of_the_workflow(new, run), *of_now, *_of_the_graph(new, run)]


def find_lasting_obstacles(new: Plan, run: RunState) -> list[Obstacle]:
    """Those that no pause takes away. Of a run that has ended and is to run again on another version, too: what stands
    and what runs again keep their places and names alike, since results, tokens and effect keys stand under them."""
    return [*_of_the_workflow(new, run), *_of_the_graph(new, run)]


def _of_the_workflow(new: Plan, run: RunState) -> Iterator[Obstacle]:
    if run.plan.name != new.name:
        yield Obstacle(None, f"{new.name} is another workflow than {run.plan.name}")
    if run.compensations is not None:
        yield Obstacle(None, "the run undoes what it did: it has ended, but for that")
    if run.control & CANCELLING and run.status not in RUN_TERMINAL:
        yield Obstacle(None, "the run was cancelled, and only cleans up")


def _of_the_graph(new: Plan, run: RunState) -> Iterator[Obstacle]:
    places = {task.effect_name: task.index for task in new.tasks}
    for index in sorted({task_of(place) for place in run.tasks} | run.paused):
        if (why := _why_not(run, new, places, index)) is not None:
            yield Obstacle(run.plan.tasks[index].name, why)


def why_not_paused(status: RunStatus) -> str:
    return f"the run is {status}: pause it, and wait until nothing of it runs"


def why_not_moved(to: Plan, obstacles: Sequence[Obstacle]) -> str | None:
    """In one line; None when nothing stands in the way."""
    if not obstacles:
        return None
    first, *others = obstacles
    what = "" if first.task is None else f"task {first.task}: "
    more = f"; and {len(others)} more, which a dry run names" if others else ""
    return f"the run cannot be moved to version {to.version}: {what}{first.why}{more}"


def _is_only_held(task: TaskState) -> bool:
    """Nothing of it has begun: its turn came in a pause, and no hand-out, question or wait of it was ever made. Where a
    person gave it an input, that is of this task and of none that takes its place."""
    return task.withheld == "turn" and not task.token and task.input is None


def _why_not(run: RunState, new: Plan, places: Mapping[str, int], index: int) -> str | None:
    """places: of the new version's tasks, by the name in their effect keys."""
    if _is_only_held(run.task(index)) and index < len(new.tasks) and index not in run.paused:
        return None
    spec = run.plan.tasks[index]
    moved = places.get(spec.effect_name)
    if moved is None:
        hint = f": one that was only renamed says `was: {spec.effect_name}`"
        return f"it has begun, and version {new.version} has no such task{hint}"
    if moved != index:
        return f"it has begun as task {index + 1}, and is task {moved + 1} now: add new tasks behind it"
    task, other = run.task(index), new.tasks[index]
    if _kind(other) != _kind(spec):
        return f"it has begun as {_kind(spec)}, and is {_kind(other)} now"
    if other.lookup is None and any(state.lookups for place, state in run.tasks.items() if task_of(place) == index):
        return "it is being looked up what became of its effect, and it has no lookup now"
    if task.status not in TERMINAL and _limits(other) != _limits(spec):
        return f"it is open with {_limits(spec)}, and has {_limits(other)} now"
    if task.status is WAITING and spec.signal and other.signal and other.signal.name != spec.signal.name:
        return f"it waits for signal {spec.signal.name}, and would wait for {other.signal.name}"
    if (other.repeat is None) is not (spec.repeat is None):
        return "its rounds are counted, and it is a repeat in one of the versions only"
    if other.is_referenced and task.status is COMPLETED and task.output is None:
        return "its output was not kept, and would be read now"
    return None


def _kind(spec: TaskPlan) -> str:
    parts: dict[str, object] = {
        "approval": spec.approval, "wait": spec.wait, "signal": spec.signal, "map": spec.map, "run": spec.run
    }  # fmt: skip
    if spec.child is not None:
        parts["workflow" if spec.child.is_awaited else "workflow, which it does not wait for"] = spec.child
    return "a task with " + " and ".join(name for name, part in parts.items() if part is not None)


def _limits(spec: TaskPlan) -> str:
    parts = {"deadline": spec.deadline, "start_within": spec.start_within, "repeat": spec.repeat}
    return " and ".join(name for name, part in parts.items() if part is not None) or "no deadline and no repeat"


def migrate(plan: Plan, run: RunState, event: Migrated, at: int) -> Transition | None:
    """Move the run. What has ended stands as it ended; every other join is counted anew. While anything stands in the
    way it stays, and the history says what it was: somebody was told that it would be moved. Where it was paused for
    the move only, it goes on in either case."""
    new, draft, ended = event.plan, Transition(run), list[int]()
    draft.control &= ~(event.resumes & PAUSES)
    is_there = new is not None and plan.version_id == new.version_id
    if run.status in RUN_TERMINAL or (is_there and draft.control == run.control):
        return None
    if new is None:
        why: str | None = "the version that it was to be moved to does not exist"
    elif is_there:
        why = f"the run is on version {new.version} already"
    else:
        why = why_not_moved(new, find_obstacles(new, run))
    if new is None or why is not None:
        draft.actions.append(RefuseMove(None if new is None else new.version, why or ""))
        begin_all_withheld(plan, run, draft, ended, at)
        return close_decision(plan, run, draft, ended, at)
    draft.plan = new
    move_permit(new, run, draft)
    doubt_what_was_idempotent(new, run, draft)
    for index, task in run.tasks.items():
        if _is_only_held(task) and index not in run.paused:
            put(run, draft, index, UNTOUCHED)
    states = {spec.index: draft.tasks.get(spec.index) or run.task(spec.index) for spec in new.tasks}
    undecided = [index for index, task in states.items() if task.is_untouched]
    answers = {index: count_needs(new, run, draft, index) for index in undecided}
    for index, answer in answers.items():
        if isinstance(answer, Error):
            skip(run, draft, index, states[index], answer, ended)
        elif answer is not None:
            ready(new, run, draft, index, states[index], ended, at)
    begin_all_withheld(new, run, draft, ended, at)
    close_decision(new, run, draft, ended, at)
    if new.deadline is None:
        drop_run_deadline(run, draft)
    return draft
