"""The engine's own parts: who owns which partition, when each sweep passed last, what Postgres keeps."""

from fastapi import APIRouter
from starlette.responses import Response

from api.answers import reply
from api.openapi import answers
from api.schemas.system import PartitionState, SlotState, SweepState, System, TableSize
from api.wiring import Wired
from headrace import __version__
from state.queries.console import list_partitions, list_slots, list_sweeps, list_table_sizes, read_clock

router = APIRouter(tags=["health"])


@router.get("/system", responses=answers({200: System}))
async def system(wired: Wired) -> Response:
    """Partitions with owner, epoch and offset; sweeps; replication slots; the largest tables."""
    async with wired.database.reading() as connection:
        content = System(
            at=await read_clock(connection),
            version=__version__,
            partitions=[PartitionState(*row) for row in await list_partitions(connection)],
            sweeps=[SweepState(*row) for row in await list_sweeps(connection)],
            slots=[SlotState(*row) for row in await list_slots(connection)],
            tables=[TableSize(*row) for row in await list_table_sizes(connection)],
        )
    return reply(content)
