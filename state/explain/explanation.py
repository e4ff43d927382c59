"""Why a run or a task does not move: facts in, ordered causes out. Pure; `state.queries.explain` reads the facts.

A task waits for exactly one thing, which its status and the rows beside it name: that is the nearest cause. Behind it
stands what that thing waits for: a task that needs others waits for the nearest open one of them, a command for a
worker, everything for the engine. So the causes of a task are a chain, nearest first; the causes of a run are the
chains of its open tasks, first those that nothing but a person can move. Total: every state that can be stored has a
cause, also those that must not be.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from headrace.machine import RunStatus, TaskStatus
from headrace.machine.status import RUN_TERMINAL
from state.explain.cause import NAMES_MAX, Act, Cause, Code, Kind, Object
from state.explain.engine import causes_in_engine
from state.explain.facts import Facts
from state.explain.task import causes_of_ended_task, causes_of_open_task
from state.explain.words import DOCTOR, MUST_NOT_BE, ago, by_whom, name_of, run_object

CAUSES_MAX: Final = 50
"""In one answer; a run of thousands of tasks repeats itself long before."""


_PERSON: Final = frozenset({
    Code.NEEDS_ATTENTION, Code.PARKED, Code.APPROVAL_OPEN, Code.NO_WORKER, Code.TIMER_MISSING, Code.APPROVAL_MISSING,
    Code.PARKED_MISSING, Code.JOIN_MISSED,
})  # fmt: skip
"""Nothing but a person, or a sweep that finds what must not be, moves these."""
_ON_ITS_WAY: Final = frozenset({
    Code.NEEDS_UNFINISHED, Code.BACKOFF, Code.WAIT, Code.RUNNING, Code.RECEIVED, Code.IN_PREFETCH, Code.NOT_RECEIVED,
    Code.NOT_PUBLISHED,
})  # fmt: skip


def explain_run(facts: Facts) -> list[Cause]:
    """Why the run does not move, nearest cause first; for one that has ended: how and why. Never empty."""
    if facts.status in RUN_TERMINAL:
        return [*_requests(facts), *_run_ended(facts)]
    chains = [causes_of_open_task(facts, index) for index in facts.tasks if index not in facts.ended]
    chains = [chain for chain in chains if chain]
    chains.sort(key=lambda chain: _rank(chain[0].code))
    causes = [*_attention(facts), *_requests(facts), *_merged(cause for chain in chains for cause in chain)]
    if not causes:
        causes.append(_nothing_open(facts))
    return _limited(causes, causes_in_engine(facts))


def explain_task(facts: Facts, index: int) -> list[Cause]:
    """Why the task does not move, nearest cause first; for one that has ended: how and why. Never empty."""
    if index in facts.ended:
        return [*_requests(facts, index), *causes_of_ended_task(facts, index)]
    causes = [*_attention(facts), *_requests(facts, index), *causes_of_open_task(facts, index)]
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
        yield Cause(Code.RUN_CANCELLED, f"The run was cancelled{by_whom(facts.stop)}.", run, never, facts.changed_at)
    else:
        failed = next((i for i, task in facts.tasks.items() if task.status is TaskStatus.FAILED), None)
        name = f": task {facts.plan.tasks[failed].name} failed first" if failed is not None else ""
        yield Cause(Code.RUN_FAILED, f"The run has failed{name}.", run, "a replay of what failed", facts.changed_at)
        if failed is not None:
            yield from causes_of_ended_task(facts, failed)
        if facts.stop is not None and facts.stop.kind == "cancelled":
            text = f"The run was also cancelled{by_whom(facts.stop)}, so no replay can take it up again."
            yield Cause(Code.RUN_CANCELLED, text, run, never, facts.stop.at)


def _attention(facts: Facts) -> Iterator[Cause]:
    if facts.status is not RunStatus.NEEDS_ATTENTION:
        return
    stop, run = facts.stop, run_object(facts)
    why = f": {stop.reason}" if stop is not None and stop.reason else ""
    acts = [
        Act(f"headrace release {facts.run_id}", f"POST /runs/{facts.run_id}/release"),
        Act(f"headrace cancel {facts.run_id}", f"POST /runs/{facts.run_id}/cancel"),
    ]
    points_to = run
    if stop is not None and stop.letter is not None:
        points_to = Object("dead_letter", str(stop.letter), f"/dead-letters/{stop.letter}")
        acts.insert(0, Act(f"headrace dead-letters {stop.letter}", f"GET /dead-letters/{stop.letter}"))
    text = f"The run stands aside until a person has looked: one of its events could not be decided{why}."
    since = stop.at if stop is not None else facts.changed_at
    yield Cause(Code.NEEDS_ATTENTION, text, points_to, "a person releases the run or cancels it", since, acts=acts)


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
        waits = held_back and request.kind not in ("cancelled", "released")
        text = f"{what}{at}{who} was accepted {ago(facts, request.created_at)} and is not applied yet"
        text += ", and stays so until the run is released." if waits else "."
        moves = "Released, then the request" if waits else "Requested: the run agent applies it; said again every 5 s"
        yield Cause(
            Code.REQUEST_NOT_APPLIED, text[0].upper() + text[1:], Object("request", str(request.inbox_id)), moves,
            request.created_at, tasks=tasks, tasks_total=len(tasks),
        )  # fmt: skip


_REQUEST: Final = {
    "cancelled": "the cancellation",
    "decided": "the decision",
    "replayed": "the replay",
    "released": "the release",
    "resolved": "the resolution",
    "signalled": "a signal",
}


def _nothing_open(facts: Facts) -> Cause:
    return Cause(
        Code.NOTHING_OPEN,
        f"The run is {facts.status}, but none of its tasks is open: what should move it is missing.",
        run_object(facts), MUST_NOT_BE, facts.changed_at,
        acts=[DOCTOR, Act(f"headrace cancel {facts.run_id}", f"POST /runs/{facts.run_id}/cancel")],
    )  # fmt: skip
