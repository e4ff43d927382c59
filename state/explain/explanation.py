"""Why a run or a task does not move: facts in, ordered causes out. Pure; `state.queries.explain` reads the facts.

A task waits for exactly one thing, which its status and the rows beside it name: that is the nearest cause. Behind it
stands what that thing waits for: a task that needs others waits for the nearest open one of them, a command for a
worker, everything for the engine. So the causes of a task are a chain, nearest first; the causes of a run are the
chains of its open tasks, first those that nothing but a person can move. Total: every state that can be stored has a
cause, also those that must not be.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headrace.instant import format_instant
from headrace.machine import RunStatus, TaskStatus
from headrace.machine.place import is_compensation, is_item, task_of
from headrace.machine.reason import CHILD_CANCELLED
from headrace.machine.status import RUN_TERMINAL
from state.explain.cause import NAMES_MAX, Act, Cause, Code, Kind, Object
from state.explain.engine import causes_in_engine
from state.explain.facts import Facts, Pause, TaskFacts
from state.explain.permit import awaits_permit
from state.explain.task import causes_of_ended_task, causes_of_open_task
from state.explain.words import (
    DOCTOR,
    MUST_NOT_BE,
    ago,
    by_whom,
    for_how_long,
    in_how_long,
    name_of,
    run_object,
    task_object,
)

CAUSES_MAX: Final = 50
"""In one answer; a run of thousands of tasks repeats itself long before."""


_PERSON: Final = frozenset({
    Code.NEEDS_ATTENTION, Code.WITHHELD, Code.PARKED, Code.APPROVAL_OPEN, Code.NO_WORKER, Code.TIMER_MISSING,
    Code.APPROVAL_MISSING, Code.POOL_NOT_SET, Code.PARKED_MISSING, Code.JOIN_MISSED, Code.ITEMS_MISSED,
    Code.CHILD_MISSING,
})  # fmt: skip
"""Nothing but a person, or a sweep that finds what must not be, moves these."""
_ON_ITS_WAY: Final = frozenset({
    Code.NEEDS_UNFINISHED, Code.COMPENSATION_LATER, Code.SLOT_GRANTED, Code.BACKOFF, Code.BETWEEN_ROUNDS, Code.WAIT,
    Code.ITEMS_OPEN, Code.RUNNING, Code.RECEIVED, Code.IN_PREFETCH, Code.NOT_RECEIVED, Code.NOT_PUBLISHED,
    Code.DEADLINE, Code.START_DEADLINE, Code.CHILD_OPEN, Code.RUN_DEADLINE,
})  # fmt: skip


def explain_run(facts: Facts) -> list[Cause]:
    """Why the run does not move, nearest cause first; for one that has ended: how and why. Never empty."""
    if facts.status in RUN_TERMINAL:
        return [*_requests(facts), *_run_ended(facts)]
    chains = [causes_of_open_task(facts, index) for index in facts.tasks if index not in facts.ended]
    chains = [chain for chain in chains if chain]
    chains.sort(key=lambda chain: _rank(chain[0].code))
    causes = [*_attention(facts), *_requests(facts), *_pauses(facts), *awaits_permit(facts)]
    causes += [*_cancelling(facts), *_compensating(facts), *_merged(cause for chain in chains for cause in chain)]
    if not causes or (facts.status in (RunStatus.CANCELLING, RunStatus.COMPENSATING) and not chains):
        causes.append(_nothing_open(facts))
    causes += _deadline(facts)
    return _limited(causes, causes_in_engine(facts))


def explain_task(facts: Facts, index: int) -> list[Cause]:
    """Why the task does not move, nearest cause first; for one that has ended: how and why. Never empty."""
    if index in facts.ended:
        return [*_requests(facts, index), *causes_of_ended_task(facts, index)]
    items = [place for place in facts.tasks if is_item(place) and task_of(place) == index]
    chains = [causes_of_open_task(facts, place) for place in (index, *items)]
    causes = [*_attention(facts), *_requests(facts, index)]
    causes += [*_pauses(facts, index), *awaits_permit(facts)]
    causes += _merged(cause for chain in chains for cause in chain)
    return _limited(causes, causes_in_engine(facts))


def _limited(causes: list[Cause], engine: list[Cause]) -> list[Cause]:
    """The engine's part is never cut off."""
    return [*causes[: CAUSES_MAX - len(engine)], *engine]


def _rank(code: Code) -> int:
    return 0 if code in _PERSON else 2 if code in _ON_ITS_WAY else 1


def _merged(causes: Iterable[Cause]) -> list[Cause]:
    """One cause for all tasks that the same thing holds up, where the first of them stood."""
    found: dict[tuple[Code, Kind, str], Cause] = {}
    for cause in causes:
        key = (cause.code, cause.points_to.kind, "" if cause.points_to.kind == "task" else cause.points_to.id)
        known = found.get(key)
        if known is None:
            found[key] = cause
        elif cause.tasks[:1] and cause.tasks[0] not in known.tasks:
            names = (*known.tasks, *cause.tasks)[:NAMES_MAX]
            found[key] = known._replace(tasks=names, tasks_total=known.tasks_total + 1)
    return list(found.values())


# == the run as a whole ================================================================================================
def _run_ended(facts: Facts) -> Iterator[Cause]:
    run = run_object(facts)
    never = "nothing: it has ended"
    if facts.status is RunStatus.COMPLETED:
        yield Cause(Code.RUN_COMPLETED, "The run has completed.", run, never, facts.changed_at)
    elif facts.status is RunStatus.CANCELLED:
        without = _first_without_child(facts) if facts.stop is None else None
        how = by_whom(facts.stop) if without is None else f": task {name_of(facts, without)} was, with its child"
        yield Cause(Code.RUN_CANCELLED, f"The run was cancelled{how}.", run, never, facts.changed_at)
        if without is not None:
            yield from causes_of_ended_task(facts, without)
    elif facts.status is RunStatus.TERMINATED:
        text = f"The run was terminated{by_whom(facts.stop)}."
        yield Cause(Code.RUN_TERMINATED, text, run, never, facts.changed_at)
    elif facts.status in (RunStatus.COMPENSATED, RunStatus.COMPENSATION_FAILED):
        yield from _undone(facts)
    else:
        failed = _first_failed(facts)
        name = f": task {name_of(facts, failed)} failed first" if failed is not None else ""
        if facts.stop is not None and facts.stop.kind == "due":
            name = ": it had not ended by its deadline, and what was open was ended"
        yield Cause(Code.RUN_FAILED, f"The run has failed{name}.", run, "a replay, or a rerun", facts.changed_at)
        if failed is not None:
            yield from causes_of_ended_task(facts, failed)
        if facts.stop is not None and facts.stop.kind == "cancelled":
            but = ", but of its clean-ups" if facts.is_cancelled else ""
            text = f"The run was also cancelled{by_whom(facts.stop)}, so no replay can take it up again{but}."
            yield Cause(Code.RUN_CANCELLED, text, run, never, facts.stop.at)


def _first_without_child(facts: Facts) -> int | None:
    """Of the tasks that were cancelled since their children were."""
    return next((i for i, task in facts.tasks.items() if task.error and task.error.code == CHILD_CANCELLED), None)


def _first_failed(facts: Facts) -> int | None:
    """Of the tasks of the graph."""
    failed = (i for i, task in facts.tasks.items() if task.status is TaskStatus.FAILED and not is_compensation(i))
    return next(failed, None)


def _why_undone(facts: Facts) -> str:
    failed = _first_failed(facts)
    if facts.stop is not None and facts.stop.kind == "due":
        return "The run had not ended by its deadline"
    if failed is not None:
        return f"The run has failed: task {name_of(facts, failed)} failed first"
    if facts.stop is None and (without := _first_without_child(facts)) is not None:
        return f"The run was cancelled: task {name_of(facts, without)} was, with its child"
    return f"The run was cancelled{by_whom(facts.stop)}"


def _cancelling(facts: Facts) -> Iterator[Cause]:
    """Once all of the graph has ended, what is undone is what is told."""
    if not facts.is_cancelled or facts.is_undone:
        return
    kind = None if facts.stop is None else facts.stop.kind
    why = "had not ended by its deadline" if kind == "due" else "was cancelled"
    if kind == "cancelled":
        why += by_whom(facts.stop)
    ended = sum(index in facts.ended for index in facts.plan.clean_ups)
    text = f"The run {why}; it cleans up, and {ended} of {len(facts.plan.clean_ups)} clean-ups have ended."
    moves, act = "they end", Act(f"headrace terminate {facts.run_id}", f"POST /runs/{facts.run_id}/terminate")
    yield Cause(Code.RUN_CANCELLING, text, run_object(facts), moves, facts.changed_at, acts=[act])


def _end(facts: Facts) -> str:
    """What ends it: a cancel does no more once it has been cancelled, or is undone."""
    return "terminate" if facts.is_undone or facts.is_cancelled else "cancel"


def _compensating(facts: Facts) -> Iterator[Cause]:
    if not facts.is_undone:
        return
    ended = sum(map(is_compensation, facts.ended))
    total = ended + sum(is_compensation(place) and place not in facts.ended for place in facts.tasks)
    text = f"{_why_undone(facts)}; what it did is being undone, and {ended} of {total} compensations have ended."
    moves, act = "they end", Act(f"headrace terminate {facts.run_id}", f"POST /runs/{facts.run_id}/terminate")
    yield Cause(Code.RUN_COMPENSATING, text, run_object(facts), moves, facts.changed_at, acts=[act])


def _undone(facts: Facts) -> Iterator[Cause]:
    """How a run ended that undid what it did."""
    ended = sum(map(is_compensation, facts.ended))
    failed = [place for place in facts.ended if place in facts.tasks and is_compensation(place)]
    failed = sorted(place for place in failed if facts.tasks[place].status is TaskStatus.FAILED)
    if facts.status is RunStatus.COMPENSATED:
        text, code = f"{_why_undone(facts)}, and what it did was undone.", Code.RUN_COMPENSATED
        yield Cause(code, text, run_object(facts), "nothing: it has ended", facts.changed_at)
    else:
        text = f"{_why_undone(facts)}, and {len(failed)} of {ended} compensations failed: what they undo still stands."
        code, moves = Code.RUN_COMPENSATION_FAILED, "a replay of their dead letters"
        yield Cause(code, text, run_object(facts), moves, facts.changed_at)
        for place in failed:
            yield from causes_of_ended_task(facts, place)
    if (first := _first_failed(facts)) is not None:
        yield from causes_of_ended_task(facts, first)


def _attention(facts: Facts) -> Iterator[Cause]:
    if facts.status is not RunStatus.NEEDS_ATTENTION:
        return
    stop, run, end = facts.stop, run_object(facts), _end(facts)
    why = f": {stop.reason}" if stop is not None and stop.reason else ""
    acts = [
        Act(f"headrace release {facts.run_id}", f"POST /runs/{facts.run_id}/release"),
        Act(f"headrace {end} {facts.run_id}", f"POST /runs/{facts.run_id}/{end}"),
    ]
    points_to = run
    if stop is not None and stop.letter is not None:
        points_to = Object("dead_letter", str(stop.letter), f"/dead-letters/{stop.letter}")
        acts.insert(0, Act(f"headrace dead-letters {stop.letter}", f"GET /dead-letters/{stop.letter}"))
    text = f"The run stands aside until a person has looked: one of its events could not be decided{why}."
    since = stop.at if stop is not None else facts.changed_at
    yield Cause(Code.NEEDS_ATTENTION, text, points_to, f"a person releases the run or {end}s it", since, acts=acts)


def _pauses(facts: Facts, index: int | None = None) -> Iterator[Cause]:
    """What was handed out before a pause goes on, so what still runs is said with it."""
    for pause in facts.pauses if index is None else facts.pauses_of(index):
        yield _pause_of_task(facts, pause, pause.task) if pause.task is not None else _pause_of_run(facts, pause)


def _still(facts: Facts, tasks: Iterable[TaskFacts], goes_on: str) -> tuple[str, list[int]]:
    """What is under way in a pause, and which tasks are withheld. tasks: what it is about."""
    open_tasks = [task for task in tasks if task.task not in facts.ended]
    runs_still = [t.task for t in open_tasks if t.status in (TaskStatus.QUEUED, TaskStatus.RUNNING)]
    waits = [t.task for t in open_tasks if t.status is TaskStatus.WAITING or t.timer is not None]
    withheld = [t.task for t in open_tasks if t.withheld]
    now = f"{_names(facts, runs_still)} still {_is('runs', runs_still)}" if runs_still else "nothing of it runs"
    now += f", {_names(facts, waits)} {_is('waits', waits)} on" if waits else ""
    now += f", and {_names(facts, withheld)} {_is('begins', withheld)} when {goes_on}" if withheld else ""
    return now, withheld


_LET_GO: Final = "Resumed: somebody lets it go on"


def _pause_of_run(facts: Facts, pause: Pause) -> Cause:
    now, withheld = _still(facts, facts.tasks.values(), "it goes on")
    who = (f" by {pause.actor}" if pause.actor else "") + (f": {pause.reason}" if pause.reason else "")
    what = f"The run is paused with its workflow {facts.plan.name}" if pause.of_workflow else "The run is paused"
    acts, moves = [Act(f"headrace resume {facts.run_id}", f"POST /runs/{facts.run_id}/resume")], _LET_GO
    if pause.of_workflow:
        name = facts.plan.name
        acts = [Act(f"headrace resume workflow {name}", f"POST /workflows/{name}/resume")]
    elif pause.is_moving:
        what, acts = "The run is paused while it is moved to another version", [Act("headrace bulk", "GET /bulk")]
        moves = (
            "Migrated, once nothing of it runs; or Resumed, when that takes too long: the bulk that moves it says so"
        )
    return Cause(
        Code.PAUSED, f"{what}{for_how_long(facts, pause.at)}{who}; {now}.", run_object(facts),
        moves, pause.at, acts=acts,
        tasks=[name_of(facts, index) for index in withheld[:NAMES_MAX]], tasks_total=len(withheld),
    )  # fmt: skip


def _pause_of_task(facts: Facts, pause: Pause, index: int) -> Cause:
    name, who = name_of(facts, index), (f" by {pause.actor}" if pause.actor else "")
    who += f": {pause.reason}" if pause.reason else ""
    of_it = (task for place, task in facts.tasks.items() if task_of(place) == index and not is_compensation(place))
    now, withheld = _still(facts, of_it, "it is resumed")
    act = Act(f"headrace resume {facts.run_id} --task {name}", f"POST /tasks/{facts.run_id}.{name}/resume")
    return Cause(
        Code.TASK_PAUSED, f"Task {name} is paused{for_how_long(facts, pause.at)}{who}; {now}.",
        task_object(facts, index), _LET_GO, pause.at, acts=[act],
        tasks=[name_of(facts, place) for place in withheld[:NAMES_MAX]], tasks_total=len(withheld),
    )  # fmt: skip


def _names(facts: Facts, tasks: Sequence[int]) -> str:
    more = f" and {len(tasks) - NAMES_MAX} more" if len(tasks) > NAMES_MAX else ""
    return ", ".join(name_of(facts, index) for index in tasks[:NAMES_MAX]) + more


def _is(verb: str, tasks: Sequence[int]) -> str:
    return verb if len(tasks) == 1 else verb.removesuffix("s")


def _requests(facts: Facts, index: int | None = None) -> Iterator[Cause]:
    """What was accepted and not applied: of the whole run, or what concerns one task."""
    held_back = facts.status is RunStatus.NEEDS_ATTENTION
    for request in facts.requests:
        if index is not None and request.task not in (None, index):
            continue
        tasks = () if request.task is None else (name_of(facts, request.task),)
        what = _REQUEST.get(request.kind, f"a request ({request.kind})")
        at = f" of task {tasks[0]}" if tasks else ""
        who = f" by {request.actor}" if request.actor else ""
        waits = held_back and request.kind not in ("cancelled", "terminated", "released")
        text = f"{what}{at}{who} was accepted {ago(facts, request.created_at)} and is not applied yet"
        text += ", and stays so until the run is released." if waits else "."
        moves = "Released, then the request" if waits else "Requested: the run agent applies it; said again every 5 s"
        yield Cause(
            Code.REQUEST_NOT_APPLIED, text[0].upper() + text[1:], Object("request", str(request.inbox_id)), moves,
            request.created_at, tasks=tasks, tasks_total=len(tasks),
        )  # fmt: skip


_REQUEST: Final = {
    "cancelled": "the cancellation",
    "terminated": "the termination",
    "paused": "the pause",
    "supplied": "the output given by hand",
    "reran": "the rerun",
    "migrated": "the move to another version",
    "resumed": "the end of the pause",
    "permitted": "its permit",
    "decided": "the decision",
    "replayed": "the replay",
    "released": "the release",
    "resolved": "the resolution",
    "signalled": "a signal",
    "prioritised": "the priority",
}


def _deadline(facts: Facts) -> Iterator[Cause]:
    """What ends the run, if nothing does before."""
    at = facts.deadline_at
    if at is None:
        return
    code, moves, until = Code.RUN_DEADLINE, "Due: the timer sweep says so", at if at > facts.now else None
    text = f"The run fails unless it has ended by {format_instant(at)}, {in_how_long(facts, at)}."
    if until is None:
        code, text = Code.TIMER_OVERDUE, f"The deadline of the run passed {ago(facts, at)}, and it has not ended yet."
    yield Cause(code, text, run_object(facts), moves, None, until)


def _nothing_open(facts: Facts) -> Cause:
    end = _end(facts)
    return Cause(
        Code.NOTHING_OPEN,
        f"The run is {facts.status}, but none of its tasks is open: what should move it is missing.",
        run_object(facts), MUST_NOT_BE, facts.changed_at,
        acts=[DOCTOR, Act(f"headrace {end} {facts.run_id}", f"POST /runs/{facts.run_id}/{end}")],
    )  # fmt: skip
