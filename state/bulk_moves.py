"""The bulk act `move`: each run is paused, moved to the latest version of its workflow, and let go on.

    nothing stands in the way   -> it is asked to pause, with a pause of its own kind, and looked at again
    nothing of it runs any more -> it is asked to move; the end of the pause is part of that event
    it cannot be moved, or not within DRAIN_SECONDS -> it is refused, and let go on if it was paused for this

Between two looks there are only the rows of the run and of its item, so whoever carries the bulk on may be killed at
any instant. A run that people have paused is moved as it is, and stays paused.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple
from uuid import UUID

from headrace.errors import HeadraceError
from headrace.machine import RunStatus
from headrace.machine.migration import find_lasting_obstacles, why_not_moved
from headrace.machine.status import MOVING
from state.bulk import Turn
from state.control import Standing, load_runs, stand, touch_runs, why_not
from state.plans import Plans
from state.queries.rows import Connection
from state.requests import Kind, Wanted, request_all
from state.store import Store

DRAIN_SECONDS: Final = 600.0
"""How long a run may be held up for its move: bodies that run longer than that end on the version they began with."""
_KINDS: Final[tuple[Kind, ...]] = ("paused", "migrated", "resumed")


class Waiting(NamedTuple):
    """A run whose turn it is, or whose pause is under way."""

    run_id: UUID
    seconds: float | None
    """Since it was asked to pause; None: it was not."""


class Verdict(NamedTuple):
    why_not: str | None
    """Why it cannot be moved, however long one waits."""
    version_id: int = -1
    """Of the version that it would be moved to."""


class _Step(NamedTuple):
    """What is done about one run now."""

    ask: Kind | None = None
    turn: Turn | None = None
    """None: it is looked at again."""


async def move_runs(
    connection: Connection, store: Store, plans: Plans, waiting: Sequence[Waiting], *, reason: str, actor: str,
    is_stopped: bool = False,
) -> list[Turn | None]:  # fmt: skip
    """Take each a step further, in the caller's open transaction and in a constant number of statements; answers what
    came of them in the order given, None of those that are to be looked at again. is_stopped: somebody has called the
    bulk off: what it has paused is let go."""
    ids = [each.run_id for each in waiting]
    await touch_runs(connection, store.settings.namespace, ids)
    standing = await stand(connection, store.settings.namespace, ids)
    verdicts = await judge(connection, store, plans, [id_ for id_ in ids if id_ in standing])
    known = ((each, standing.get(each.run_id), verdicts.get(each.run_id)) for each in waiting)
    steps = [_decide(*each, is_stopped=is_stopped) for each in known]
    asked: dict[UUID, UUID] = {}
    for kind in _KINDS:
        chosen = [each.run_id for each, step in zip(waiting, steps, strict=True) if step.ask == kind]
        wanted = [Wanted(str(id_), _body(kind, reason, standing[id_], verdicts.get(id_))) for id_ in chosen]
        asked |= zip(chosen, await request_all(connection, store, kind, wanted, actor), strict=True)
    return [
        step.turn._replace(inbox_id=asked[each.run_id], row_version=standing[each.run_id].row_version)
        if step.turn is not None and step.turn.outcome == "done"
        else step.turn
        for each, step in zip(waiting, steps, strict=True)
    ]


def _decide(each: Waiting, run: Standing | None, verdict: Verdict | None, *, is_stopped: bool) -> _Step:
    if run is None or verdict is None:
        return _Step(turn=Turn("gone", "the run is not there any more"))
    if each.seconds is not None and run.unapplied:
        return _Step()  # perhaps its pause: nobody leaves a run that may be paused behind them
    let_go: Kind | None = "resumed" if run.control & MOVING else None
    if is_stopped:
        return _Step(let_go, Turn("stopped"))
    why = why_not("move", run) or verdict.why_not
    if why is None and run.unapplied:
        why = f"something else was asked of the run and is not applied yet: {run.unapplied}"
    is_late = each.seconds is not None and each.seconds > DRAIN_SECONDS and run.status is not RunStatus.PAUSED
    if why is None and is_late:
        why = f"something of it still ran after {DRAIN_SECONDS:.0f} s"
    if why is not None:
        return _Step(let_go, Turn("refused", why))
    if run.status is RunStatus.PAUSED:
        return _Step("migrated", Turn("done"))
    return _Step(None if run.control & MOVING else "paused")


def _body(kind: str, reason: str, run: Standing, verdict: Verdict | None) -> dict[str, object]:
    if kind == "migrated" and verdict is not None:
        resumes = {"resumes": MOVING} if run.control & MOVING else {}
        return {"version_id": verdict.version_id, "reason": reason, **resumes}
    return {"scope": MOVING, "reason": reason}


async def judge(connection: Connection, store: Store, plans: Plans, run_ids: Sequence[UUID]) -> Mapping[UUID, Verdict]:
    """Of each run that is there: whether it could be moved to the latest version once nothing of it runs."""
    found: dict[UUID, Verdict] = {}
    try:
        runs = await load_runs(connection, store, plans, run_ids) if run_ids else {}
        latest = {
            name: await plans.latest(connection, store.settings.namespace, name)
            for name in {run.plan.name for run in runs.values()}
        }
    except HeadraceError as e:  # a version that only a newer release can read
        return {id_: Verdict(e.message) for id_ in run_ids}
    for run_id, run in runs.items():
        to = latest[run.plan.name]
        is_there = to.version_id == run.plan.version_id
        why = f"the run is on version {to.version} already" if is_there else None
        found[run_id] = Verdict(why or why_not_moved(to, find_lasting_obstacles(to, run)), to.version_id)
    return found
