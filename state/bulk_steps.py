"""Carries bulks out: some items of one bulk have their turn, in one transaction. See `bulk`."""

from collections.abc import Sequence
from typing import Final, NamedTuple
from uuid import UUID

from state.bulk import SQL, Act, Turn
from state.bulk_moves import Waiting, move_runs
from state.bulk_replays import replay_letters
from state.bulk_runs import LOADED, LOADED_STEP_MAX, ask_runs
from state.plans import Plans
from state.queries.rows import Connection, fetch, fetch_one
from state.store import Store

STEP_MAX: Final = 100
"""Items of one transaction, some of which may carry a mebibyte."""
LOOK_SECONDS: Final = 0.5
"""How soon a run is looked at again that was asked to pause for its move."""


class _Claim(NamedTuple):
    bulk_id: UUID
    act: Act
    actor: str
    reason: str
    rate: float
    is_stopped: bool
    allowed: int


class _Left(NamedTuple):
    position: int
    item_id: UUID
    seconds: float | None
    """Since it was asked to pause, for a move."""


async def step(connection: Connection, store: Store, plans: Plans) -> int:
    """Give as many items of one open bulk their turn as its rate allows now, in the caller's open transaction; answers
    how many those were, 0 when none is due.
    """
    namespace = store.settings.namespace
    claim = await fetch_one(connection, _Claim, SQL.text("claim_bulk"), namespace=namespace, step_max=STEP_MAX)
    if claim is None:
        return 0
    allowed = min(claim.allowed, LOADED_STEP_MAX) if claim.act in LOADED else claim.allowed
    given = {"bulk_id": claim.bulk_id, "look": LOOK_SECONDS}
    left = await fetch(connection, _Left, SQL.text("list_items_left"), **given, limit=allowed)
    ids = [item.item_id for item in left]
    turns: Sequence[Turn | None]
    if claim.act == "replay":
        turns = await replay_letters(connection, store, ids, claim.actor)
    elif claim.act == "move":
        waiting = [Waiting(item.item_id, item.seconds) for item in left]
        turns = await move_runs(
            connection, store, plans, waiting, reason=claim.reason, actor=claim.actor, is_stopped=claim.is_stopped
        )
    else:
        turns = await ask_runs(connection, store, plans, claim.act, ids, reason=claim.reason, actor=claim.actor)
    had = [(item.position, turn) for item, turn in zip(left, turns, strict=True) if turn is not None]
    await connection.execute(
        SQL.text("note_outcomes"),
        {
            "bulk_id": claim.bulk_id,
            "positions": [position for position, _ in had],
            "outcomes": [turn.outcome for _, turn in had],
            "reasons": [turn.reason for _, turn in had],
            "inbox_ids": [turn.inbox_id for _, turn in had],
            "row_versions": [turn.row_version for _, turn in had],
        },
    )
    again = [item.position for item, turn in zip(left, turns, strict=True) if turn is None]
    if again:
        await connection.execute(SQL.text("note_looks"), {"bulk_id": claim.bulk_id, "positions": again})
    await connection.execute(SQL.text("note_step"), {**given, "done": len(left)})
    return len(left)
