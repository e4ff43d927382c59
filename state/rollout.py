"""A publish that moves runs: a bulk over those in flight on older versions, see `bulk_moves`.

It is asked for in the transaction of the publish, so that a version which is to move runs never stands without that.
"""

from uuid import UUID

from headrace.filter import parse
from state.bulk import RATE_DEFAULT, start_bulk
from state.bulk_runs import select_runs
from state.queries.rows import Connection
from state.store import Store
from state.workflows import get_version


async def start_moves(connection: Connection, store: Store, workflow: str, version: int, *, actor: str) -> UUID | None:
    """Move runs in flight on versions before this one, by a bulk, in the caller's open transaction. None: there are
    none that no open bulk moves already, or it is not the latest version, to which alone runs are moved so."""
    namespace = store.settings.namespace
    latest = await get_version(connection, namespace, workflow)
    if latest is None or latest.version != version:
        return None
    filter = parse("runs", f"workflow:{workflow} version:<{version}")
    selection = await select_runs(connection, namespace, "move", filter)
    if not selection.ids:
        return None
    reason = f"version {version} was published"
    return await start_bulk(
        connection, store, "move", selection.ids, filter=str(filter), reason=reason, rate=RATE_DEFAULT, actor=actor
    )
