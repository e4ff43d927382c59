"""Bulk acts: one act on many runs, at a rate; and how far those are, with the replays of many dead letters."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.bodies import read
from api.filters import read_selection
from api.idempotency import perform
from api.identity import actor, parse_id
from api.openapi import answers, body
from api.paging import ByInstant, ByInt, Limit, PageToken, cut, parse
from api.schemas.bulk import (
    Bulk,
    BulkBody,
    BulkEffect,
    BulkItem,
    BulkItemPage,
    BulkPage,
    BulkPreview,
    BulkProgress,
    Refusals,
)
from api.wiring import Wired, Wiring
from headrace.filter import Filter
from state.bulk import (
    BulkItemRow,
    BulkRow,
    Selection,
    count_later,
    count_refusals,
    get_bulk,
    list_bulks,
    list_items,
    start_bulk,
    stop_bulk,
)
from state.bulk_runs import Outlook, look_ahead, select_runs
from state.filter_sql import freeze
from state.queries.rows import AT_MAX, ID_MAX, Connection

router = APIRouter(tags=["bulk"])

OutcomeFilter = Annotated[
    Literal["done", "refused", "gone", "stopped"] | None, Query(description="Only items with this outcome")
]


@router.post(
    "/bulk",
    status_code=202,
    responses=answers({202: Bulk, 200: BulkPreview}, 408, 409, 413, 415),
    openapi_extra=body(BulkBody),
)
async def start(request: Request, wired: Wired) -> Response:
    """Ask the same of all runs that match, at a rate.

    What matches now is frozen, has its turn in the background, and survives any crash; ask `/bulk/{id}` how far it has
    come, and what became of the runs. With `dry_run` nothing is asked: the answer is what would be.
    """
    asked, content = await read(request, BulkBody)
    wanted, who = read_selection("runs", asked.filter, asked.run_ids, "run_ids"), actor(request)

    async def act(connection: Connection) -> Answer:
        dated = await freeze(connection, wanted)
        selection = await select_runs(
            connection,
            wired.namespace,
            asked.act,
            dated,
            among=asked.run_ids,
            stuck_seconds=wired.settings.api_stuck_seconds,
        )
        if asked.dry_run:
            outlook = await look_ahead(connection, wired.store, wired.plans, asked.act, selection.ids)
            return answer(_preview(asked.act, dated, selection, outlook))
        bulk_id = await start_bulk(
            connection, wired.store, asked.act, selection.ids, filter=str(dated), reason=asked.reason,
            rate=asked.rate, actor=who,
        )  # fmt: skip
        return answer(Bulk(**_bulk(await get_bulk(connection, wired.namespace, bulk_id))), 202)

    return await perform(wired, request, content, act)


@router.get("/bulk", responses=answers({200: BulkPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Bulks, newest first."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_bulks(connection, wired.namespace, limit=limit + 1, before=before)
    kept, after = cut(rows, limit, lambda row: (row.created_at, row.bulk_id))
    return reply(BulkPage([Bulk(**_bulk(row)) for row in kept], after))


@router.get("/bulk/{bulk_id}", responses=answers({200: BulkProgress}, 404))
async def get(bulk_id: str, wired: Wired) -> Response:
    """How far a bulk has come, and what became of what it asked for."""
    id_ = parse_id(bulk_id, "bulk")
    async with wired.database.reading() as connection:
        return reply(await _progress(wired, connection, id_))


@router.get("/bulk/{bulk_id}/items", responses=answers({200: BulkItemPage}, 404))
async def items(
    bulk_id: str, wired: Wired, outcome: OutcomeFilter = None, limit: Limit = 50, page: PageToken = None
) -> Response:
    """What came of each item, in the order of their turns."""
    id_ = parse_id(bulk_id, "bulk")
    after = 0 if page is None else parse(page, ByInt).number
    async with wired.database.reading() as connection:
        row = await get_bulk(connection, wired.namespace, id_)
        found = await list_items(connection, id_, after=after, outcome=outcome, limit=limit + 1)
    kept, following = cut(found, limit, lambda item: (item.position,))
    return reply(BulkItemPage([_item(row, each) for each in kept], following))


@router.post("/bulk/{bulk_id}/stop", responses=answers({200: BulkProgress}, 404, 408, 409, 413))
async def stop(bulk_id: str, request: Request, wired: Wired) -> Response:
    """End a bulk: of what has not had its turn nothing is asked."""
    id_, who = parse_id(bulk_id, "bulk"), actor(request)

    async def act(connection: Connection) -> Answer:
        await stop_bulk(connection, wired.namespace, id_, actor=who)
        return answer(await _progress(wired, connection, id_))

    return await perform(wired, request, b"", act)


# == as they are shown =================================================================================================
def _preview(act: str, filter: Filter, selection: Selection, outlook: Outlook) -> BulkPreview:
    return BulkPreview(
        dry_run=True,
        act=act,
        filter=str(filter),
        count=len(selection.ids),
        has_more=selection.has_more,
        done=outlook.done,
        refused=_refusals(outlook.refused),
        effects=[BulkEffect(*each) for each in outlook.effects],
        foreseen=outlook.foreseen,
        run_ids=[str(id_) for id_ in selection.ids],
    )


async def _progress(wiring: Wiring, connection: Connection, bulk_id: UUID) -> BulkProgress:
    row = await get_bulk(connection, wiring.namespace, bulk_id)
    later, refusals = await count_later(connection, bulk_id), await count_refusals(connection, bulk_id)
    return BulkProgress(**_bulk(row), later=later, refusals=_refusals(refusals))


def _refusals(counted: Sequence[tuple[str, int]]) -> list[Refusals]:
    return [Refusals(reason or "", count) for reason, count in counted]


def _bulk(row: BulkRow) -> dict[str, Any]:
    over = "completed" if row.stopped_by is None else "stopped"
    return {
        "bulk_id": str(row.bulk_id),
        "act": row.act,
        "status": "running" if row.finished_at is None else over,
        "filter": row.filter,
        "reason": row.reason,
        "rate": row.rate,
        "selected": row.selected,
        "left": row.left,
        "done": row.done,
        "refused": row.refused,
        "gone": row.gone,
        "stopped": row.stopped,
        "created_at": row.created_at,
        "created_by": row.created_by,
        "finished_at": row.finished_at,
        "stopped_by": row.stopped_by,
    }


def _item(bulk: BulkRow, row: BulkItemRow) -> BulkItem:
    is_letter, id_ = bulk.act == "replay", str(row.item_id)
    return BulkItem(
        run_id=None if is_letter else id_,
        dead_letter_id=id_ if is_letter else None,
        outcome=row.outcome,
        reason=row.reason,
        done_at=row.done_at,
        later=row.later,
    )
