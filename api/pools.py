"""Pools: how many tasks run at once, who holds the slots and who is next; the priority of a run in their queues."""

from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.bodies import read
from api.errors import faulty
from api.idempotency import perform
from api.identity import actor, check_name, parse_id
from api.openapi import answers, body
from api.paging import ByName, Limit, PageToken, cut, parse
from api.schemas.pool import Pool, PoolBody, PoolPage, PoolTask, PriorityBody
from api.schemas.wire import Accepted
from api.wiring import Wired, Wiring
from headrace.errors import NotFoundError
from headrace.rate import Rate, format_rate, parse_rate
from state.pools import prioritise_run, remove_pool, set_pool
from state.queries.pool import PoolRow, PoolTaskRow, get_pool, list_holders, list_pools, list_waiters
from state.queries.rows import Connection

TASKS_MAX: Final = 100
"""Holders, and waiters, of one answer."""

router = APIRouter(tags=["pools"])


@router.put(
    "/pools/{name}",
    responses=answers({200: Pool}, 404, 408, 409, 413, 415),
    openapi_extra=body(PoolBody),
)
async def put(name: str, request: Request, wired: Wired) -> Response:
    """Make a pool, or give it other limits; at least one of the two. With fewer slots nothing is stopped: what holds
    one goes on, and nothing is granted until so many are free. With `limit` 0 nothing begins.
    """
    check_name(name, "pool")
    asked, content = await read(request, PoolBody)
    if asked.limit is None and asked.rate is None:
        raise faulty("limit", "a pool has a `limit`, a `rate`, or both")
    rate, who = _rate(asked.rate), actor(request)

    async def act(connection: Connection) -> Answer:
        row = await set_pool(connection, wired.store, name, slots=asked.limit, rate=rate, actor=who)
        return answer(_pool(row))

    return await perform(wired, request, content, act)


@router.get("/pools", responses=answers({200: PoolPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Pools by name; also those that some task waits for and nobody has set."""
    after = "" if page is None else parse(page, ByName).name
    async with wired.database.reading() as connection:
        rows = await list_pools(connection, wired.namespace, limit=limit + 1, after=after)
    kept, following = cut(rows, limit, lambda row: (row.name,))
    return reply(PoolPage([_pool(row) for row in kept], following))


@router.get("/pools/{name}", responses=answers({200: Pool}, 404))
async def get(name: str, wired: Wired) -> Response:
    """One pool with those who hold its slots and those who wait, up to a hundred of each."""
    check_name(name, "pool")
    async with wired.database.reading() as connection:
        row = await get_pool(connection, wired.namespace, name)
        if row is None:
            raise NotFoundError(f"there is no pool {name}", pool=name)
        found = _pool(row)
        found.holders = await _tasks(
            wired, connection, await list_holders(connection, wired.namespace, name, limit=TASKS_MAX)
        )
        found.waiters = await _tasks(
            wired, connection, await list_waiters(connection, wired.namespace, name, limit=TASKS_MAX)
        )
    return reply(found)


@router.delete("/pools/{name}", status_code=204, responses={204: {"description": "Removed"}, **answers({}, 404, 409)})
async def delete(name: str, request: Request, wired: Wired) -> Response:
    """Remove a pool that nobody needs: 409 while some task holds a slot of it or waits for one."""
    check_name(name, "pool")

    async def act(connection: Connection) -> Answer:
        await remove_pool(connection, wired.store, name)
        return Answer(200, b"null")

    response = await perform(wired, request, b"", act)
    headers = {key: value for key, value in response.headers.items() if key.startswith("idempotent")}
    return Response(status_code=204, headers=headers)


@router.post(
    "/runs/{run_id}/priority",
    status_code=202,
    responses=answers({202: Accepted}, 404, 408, 409, 413, 415),
    openapi_extra=body(PriorityBody),
)
async def prioritise(run_id: str, request: Request, wired: Wired) -> Response:
    """Change the place of a run's tasks in the queues of pools, also of those that wait already. Each point is worth a
    minute of waiting, so whoever waits long enough is next all the same.
    """
    id_ = parse_id(run_id, "run")
    asked, content = await read(request, PriorityBody)
    who = actor(request)

    async def act(connection: Connection) -> Answer:
        await prioritise_run(connection, wired.store, id_, asked.priority, reason=asked.reason, actor=who)
        return answer(Accepted(str(id_), accepted=True), 202)

    return await perform(wired, request, content, act)


def _rate(text: str | None) -> Rate | None:
    try:
        return None if text is None else parse_rate(text)
    except ValueError as error:
        raise faulty("rate", str(error)) from None


def _pool(row: PoolRow) -> Pool:
    has_rate = row.rate_count is not None and row.rate_seconds is not None
    rate = format_rate(Rate(row.rate_count or 0, row.rate_seconds or 0.0)) if has_rate else None
    return Pool(
        row.name, row.is_set, row.slots, rate, row.held, row.waiting, row.created_at, row.updated_at, row.updated_by
    )


async def _tasks(wiring: Wiring, connection: Connection, rows: Sequence[PoolTaskRow]) -> list[PoolTask]:
    plans = await wiring.load_plans(connection, {row.version_id for row in rows})
    return [
        PoolTask(
            str(row.run_id),
            plans[row.version_id].name_of(row.task),
            plans[row.version_id].name,
            row.token,
            row.since,
            row.priority,
            row.fairness_key,
        )
        for row in rows
    ]
