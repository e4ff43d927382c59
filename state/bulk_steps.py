"""Carries bulks out: some items of one bulk have their turn, in one transaction. See `bulk`."""

from typing import Final, NamedTuple
from uuid import UUID

from state.bulk import SQL, Act, Turn
from state.bulk_replays import replay_letters
from state.bulk_runs import LOADED, LOADED_STEP_MAX, ask_runs
from state.plans import Plans
from state.queries.rows import Connection, fetch, fetch_one
from state.store import Store

STEP_MAX: Final = 100
"""Items of one transaction, some of which may carry a mebibyte."""


class _Claim(NamedTuple):
    bulk_id: UUID
    act: Act
    actor: str
    reason: str
    rate: float
    allowed: int


class _Left(NamedTuple):
    position: int
    item_id: UUID


async def step(connection: Connection, store: Store, plans: Plans) -> int:
    """Give as many items of one open bulk their turn as its rate allows now, in the caller's open transaction; answers
    how many those were, 0 when none is due.
    """
    namespace = store.settings.namespace
    claim = await fetch_one(connection, _Claim, SQL.text("claim_bulk"), namespace=namespace, step_max=STEP_MAX)
    if claim is None:
        return 0
    allowed = min(claim.allowed, LOADED_STEP_MAX) if claim.act in LOADED else claim.allowed
    left = await fetch(connection, _Left, SQL.text("list_items_left"), bulk_id=claim.bulk_id, limit=allowed)
    ids = [item.item_id for item in left]
    turns: list[Turn]
    if claim.act == "replay":
        turns = await replay_letters(connection, store, ids, claim.actor)
    else:
        turns = await ask_runs(connection, store, plans, claim.act, ids, reason=claim.reason, actor=claim.actor)
    await connection.execute(
        SQL.text("note_outcomes"),
        {
            "bulk_id": claim.bulk_id,
            "positions": [item.position for item in left],
            "outcomes": [turn.outcome for turn in turns],
            "reasons": [turn.reason for turn in turns],
            "inbox_ids": [turn.inbox_id for turn in turns],
            "row_versions": [turn.row_version for turn in turns],
        },
    )
    await connection.execute(SQL.text("note_step"), {"bulk_id": claim.bulk_id, "done": len(left)})
    return len(left)
