"""Who holds the slots of which pool, seen again and again from outside: what no final state can tell."""

import asyncio
import contextlib
from typing import Any, Final

import psycopg

from tests.chaos.client_log import ClientLog
from tests.chaos.system import System

LOOK_SECONDS: Final = 0.2
_LOOK: Final = """
  SELECT extract(epoch FROM now())::float8, p.name, p.slots_max, extract(epoch FROM p.updated_at)::float8,
         coalesce((SELECT json_agg(json_build_array(s.run_id, s.task, s.token, extract(epoch FROM s.granted_at)::float8)
                                   ORDER BY s.run_id, s.task)
                   FROM pool_slot s WHERE s.namespace = p.namespace AND s.pool = p.name), '[]')
  FROM pool p"""


async def watch_pools(system: System, log: ClientLog) -> None:
    """Until cancelled: every change is an entry of the log, `slots`, with all of one pool in one snapshot: `limit`,
    `set_at` and `held`, a list of [run, task, token, granted_at], by the database's clock."""
    seen: dict[str, Any] = {}
    while True:
        with contextlib.suppress(psycopg.Error):
            async with await psycopg.AsyncConnection.connect(
                system.postgres.dsn, autocommit=True, connect_timeout=3
            ) as connection:
                while True:
                    for at, pool, limit, set_at, held in await (await connection.execute(_LOOK)).fetchall():
                        if seen.get(pool) != (limit, set_at, held):
                            seen[pool] = limit, set_at, held
                            log.add(
                                {"op": "slots", "at": at, "pool": pool, "limit": limit, "set_at": set_at, "held": held}
                            )
                    await asyncio.sleep(LOOK_SECONDS)
        await asyncio.sleep(LOOK_SECONDS)
