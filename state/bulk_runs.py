"""Bulk acts on runs: cancel, terminate, pause, resume, release, rerun or migrate many at a rate; see `bulk`.

At its turn a run is asked what one person would ask of it: a row of `inbox`, which the run agent applies once. So what
a run came to before that stands, and the bulk says so: refused at its turn, or overtaken later.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple
from uuid import UUID

from headrace.errors import ConflictError, HeadraceError
from headrace.filter import Filter
from headrace.machine import RunStatus
from headrace.machine.status import PAUSED, RUN_TERMINAL
from state.bulk import SELECTED_MAX, Selection, Turn
from state.bulk_moves import judge
from state.control import Standing, foresee, load_runs, stand, touch_runs, why_not
from state.filter_sql import STUCK_SECONDS
from state.migration import look_at_moves
from state.plans import Plans
from state.queries.rows import Connection
from state.queries.search import find_runs
from state.requests import Kind, Wanted, request_all
from state.store import Store

LOADED_STEP_MAX: Final = 20
"""Runs that one step reruns or moves: each is read with all its tasks."""
FORESEEN_MAX: Final = 20
"""Runs whose effects a dry run of a rerun tells, or whose obstacles one of a move, for the same reason."""

RunAct = Literal["cancel", "terminate", "pause", "resume", "release", "rerun", "migrate", "move"]
LOADED: Final = ("rerun", "migrate", "move")
"""Acts for which a run is read with all its tasks, and that nothing else may be asked of it meanwhile."""

_OPEN: Final = tuple(status for status in RunStatus if status not in RUN_TERMINAL)
_MEANT: Final[Mapping[RunAct, tuple[RunStatus, ...]]] = {
    "cancel": _OPEN,
    "terminate": _OPEN,
    "pause": (RunStatus.RUNNING, RunStatus.WAITING),
    "resume": (RunStatus.PAUSING, RunStatus.PAUSED),
    "release": (RunStatus.NEEDS_ATTENTION,),
    "rerun": (RunStatus.FAILED,),
    "migrate": (RunStatus.PAUSED,),
    "move": _OPEN,
}
"""The statuses that are meant where a filter names none."""
_KINDS: Final[Mapping[RunAct, Kind]] = {
    "cancel": "cancelled", "terminate": "terminated", "pause": "paused", "resume": "resumed", "release": "released",
    "rerun": "reran", "migrate": "migrated", "move": "migrated",
}  # fmt: skip


class Outlook(NamedTuple):
    """What a bulk would do, as the runs stand."""

    done: int
    refused: list[tuple[str, int]]
    """Why, and how many; the most frequent first."""
    effects: list[tuple[str, str | None, int]]
    """Of a rerun: (effect, protected_by, how many tasks), over the runs looked at."""
    foreseen: int
    """Runs whose effects were looked at."""


# == asked for by people ===============================================================================================
async def select_runs(
    connection: Connection,
    namespace: str,
    act: RunAct,
    filter: Filter,
    *,
    among: Collection[UUID] | None = None,
    stuck_seconds: float = STUCK_SECONDS,
) -> Selection:
    """Those that match and that no open bulk of the same act has. A filter that says no status means those in which the
    act can be done; for a rerun, those that failed. among: of these only, however they stand."""
    if among is None and not filter.named("status") and not filter.named("is"):
        filter = filter.and_("status", *_MEANT[act])
    found, bound = await find_runs(
        connection,
        namespace,
        filter,
        limit=SELECTED_MAX + 1,
        among=among,
        not_in_bulk_of=act,
        stuck_seconds=stuck_seconds,
    )
    return Selection(found[:SELECTED_MAX][::-1], len(found) > SELECTED_MAX or bound is not None)


async def look_ahead(connection: Connection, store: Store, plans: Plans, act: RunAct, ids: Sequence[UUID]) -> Outlook:
    """What an act on these runs would do now; asks nothing of them."""
    standing = await stand(connection, store.settings.namespace, ids)
    refused = Counter(why for run in standing.values() if (why := why_not(act, run)))
    effects: Counter[tuple[str, str | None]] = Counter()
    looked_at: list[UUID] = []
    if act == "rerun":
        looked_at = [id_ for id_ in ids if id_ in standing and not why_not(act, standing[id_])][:FORESEEN_MAX]
        for turn, found in (await _foresee(connection, store, plans, looked_at)).values():
            effects.update((each.effect, each.protected_by) for each in found)
            if turn is not None:
                refused[turn.reason or ""] += 1
    elif act == "migrate":
        looked_at = [id_ for id_ in ids if id_ in standing and not why_not(act, standing[id_])][:FORESEEN_MAX]
        refused.update(why for why, _ in (await _look_at_moves(connection, store, plans, looked_at)).values() if why)
    elif act == "move":
        looked_at = [id_ for id_ in ids if id_ in standing and not why_not(act, standing[id_])][:FORESEEN_MAX]
        refused.update(v.why_not for v in (await judge(connection, store, plans, looked_at)).values() if v.why_not)
    return Outlook(
        len(standing) - refused.total(),
        refused.most_common(),
        [(effect, protected_by, count) for (effect, protected_by), count in effects.most_common()],
        len(looked_at),
    )


# == carried out by the sweep ==========================================================================================
async def ask_runs(
    connection: Connection,
    store: Store,
    plans: Plans,
    act: RunAct,
    ids: Sequence[UUID],
    *,
    reason: str,
    actor: str,
) -> list[Turn]:
    """Ask this of each, in the caller's open transaction and in a constant number of statements; answers in the order
    of `ids`."""
    if act in LOADED:
        await touch_runs(connection, store.settings.namespace, ids)
    standing = await stand(connection, store.settings.namespace, ids)
    turns = {id_: _refusal(act, standing.get(id_)) for id_ in ids}
    asked = [id_ for id_, turn in turns.items() if turn is None]
    if act == "rerun" and asked:
        for id_, (turn, _) in (await _foresee(connection, store, plans, asked)).items():
            turns[id_] = turn
        asked = [id_ for id_ in asked if turns[id_] is None]
    versions: dict[UUID, int] = {}
    if act == "migrate" and asked:
        moves = await _look_at_moves(connection, store, plans, asked)
        turns |= {id_: Turn("refused", why) for id_, (why, _) in moves.items() if why}
        versions = {id_: version_id for id_, (why, version_id) in moves.items() if why is None}
        asked = [id_ for id_ in asked if id_ in versions]
    wanted = [Wanted(str(id_), _body(act, standing[id_], reason, versions.get(id_, -1))) for id_ in asked]
    inbox_ids = await request_all(connection, store, _KINDS[act], wanted, actor)
    for id_, inbox_id in zip(asked, inbox_ids, strict=True):
        turns[id_] = Turn("done", None, inbox_id, standing[id_].row_version)
    return [turns[id_] or Turn("gone") for id_ in ids]


def _refusal(act: RunAct, run: Standing | None) -> Turn | None:
    if run is None:
        return Turn("gone", "the run is not there any more")
    why = why_not(act, run)
    if why is None and act in LOADED and run.unapplied:
        why = f"something else was asked of the run and is not applied yet: {run.unapplied}"
    return None if why is None else Turn("refused", why)


def _body(act: RunAct, run: Standing, reason: str, version_id: int) -> dict[str, Any]:
    match act:
        case "migrate":
            return {"version_id": version_id, "reason": reason}
        case "pause" | "resume":
            return {"scope": PAUSED, "reason": reason}
        case "rerun":
            return {"row_version": run.row_version, "tasks": [], "reason": reason}
        case "release":
            return {}
        case _:
            return {"reason": reason}


async def _look_at_moves(
    connection: Connection, store: Store, plans: Plans, ids: Sequence[UUID]
) -> dict[UUID, tuple[str | None, int]]:
    """As `look_at_moves`; with a version that only a newer release can read, none is moved."""
    try:
        return await look_at_moves(connection, store, plans, ids)
    except HeadraceError as e:
        return {id_: (e.message, -1) for id_ in ids}


async def _foresee(
    connection: Connection, store: Store, plans: Plans, ids: Sequence[UUID]
) -> dict[UUID, tuple[Turn | None, list[Any]]]:
    """Of each run: why what failed of it cannot run again, or None and what would."""
    found: dict[UUID, tuple[Turn | None, list[Any]]] = {}
    try:
        runs = await load_runs(connection, store, plans, ids)
    except HeadraceError as e:  # a version that only a newer release can read
        return {id_: (Turn("refused", e.message), []) for id_ in ids}
    for id_ in ids:
        run = runs.get(id_)
        if run is None:
            found[id_] = Turn("gone"), []
            continue
        try:
            found[id_] = None, foresee(run, [])
        except ConflictError as e:
            found[id_] = Turn("refused", e.message), []
    return found
