"""The fates of records: what a subscription made of each that it looked at."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from api.answers import reply
from api.identity import check_name
from api.openapi import answers
from api.paging import INT_MAX, ByOffsets, Limit, PageToken, parse, token
from api.schemas.record import RecordFate, RecordFatePage
from api.wiring import Wired
from headrace.errors import NotFoundError
from state.queries.console import OFFSET_MAX, FateRow, find_subscription, list_fate_partitions, list_fates

router = APIRouter(tags=["subscriptions"])


@router.get("/subscriptions/{name}/records", responses=answers({200: RecordFatePage}, 404))
async def list_of_subscription(
    name: str,
    wired: Wired,
    partition: Annotated[int | None, Query(ge=0, le=INT_MAX, description="Only of this partition")] = None,
    limit: Limit = 50,
    page: PageToken = None,
) -> Response:
    """Records and what became of each, newest first: by offset in a partition, by instant between partitions."""
    check_name(name, "subscription")
    seen = {} if page is None else parse(page, ByOffsets).offsets
    async with wired.database.reading() as connection:
        found = await find_subscription(connection, wired.namespace, name)
        if found is None:
            raise NotFoundError(f"there is no subscription {name}", subscription=name)
        subscription_id, topic = found
        partitions = await list_fate_partitions(connection, topic) if partition is None else [partition]
        heads: list[list[FateRow]] = []
        for each in partitions:
            before = seen.get(str(each), OFFSET_MAX)
            heads.append(await list_fates(connection, subscription_id, topic, each, before=before, limit=limit + 1))
    rows = sorted((row for head in heads for row in head), key=lambda row: (row.at, row.offset), reverse=True)
    kept = rows[:limit]
    for row in kept:
        seen[str(row.partition)] = min(row.offset, seen.get(str(row.partition), OFFSET_MAX))
    return reply(RecordFatePage([_fate(row) for row in kept], token(seen) if len(rows) > limit else None))


def _fate(row: FateRow) -> RecordFate:
    run_id = None if row.run_id is None else str(row.run_id)
    signal_id = None if row.signal_id is None else str(row.signal_id)
    return RecordFate(row.topic, row.partition, row.offset, row.fate, run_id, row.reason, row.at, signal_id)
