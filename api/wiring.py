"""What the routes work with: built once by `create_app`, handed to each of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from api.access import Gate
from api.backlog import Backlog
from api.database import Database
from api.feed import RunFeed
from api.input_schemas import InputSchemas
from api.metrics import Metrics
from api.pinned import load_plans
from api.settings import ApiSettings
from headrace.machine import Plan
from headrace.object_store import ObjectStore
from state.plans import Plans
from state.queries.rows import Connection
from state.store import Store


@dataclass
class Wiring:
    settings: ApiSettings
    database: Database
    store: Store
    plans: Plans
    input_schemas: InputSchemas
    metrics: Metrics
    feed: RunFeed
    backlog: Backlog
    gate: Gate
    objects: ObjectStore | None
    """Where large results are; None: nowhere."""
    streams_open: int = 0
    """Server-sent event streams that are being sent."""
    is_draining: bool = False
    """The process is about to stop: streams end, so that their callers turn to another one."""

    @property
    def namespace(self) -> str:
        return self.settings.namespace

    async def plan(self, connection: Connection, version_id: int) -> Plan:
        """The plan of a version that some row names."""
        return (await self.load_plans(connection, [version_id]))[version_id]

    async def load_plans(self, connection: Connection, version_ids: Iterable[int]) -> dict[int, Plan]:
        return await load_plans(self.plans, connection, version_ids)


async def _wiring(request: Request) -> Wiring:
    wiring: Wiring = request.app.state.wiring
    return wiring


Wired = Annotated[Wiring, Depends(_wiring)]
"""A route's parameter: the wiring of its app."""
