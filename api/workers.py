"""Worker sessions."""

from fastapi import APIRouter
from starlette.responses import Response

from api.answers import reply
from api.openapi import answers
from api.paging import ByInstant, Limit, PageToken, cut, parse
from api.schemas.worker import Worker, WorkerPage
from api.wiring import Wired
from state.queries.rows import AT_MAX, ID_MAX
from state.queries.worker import list_workers

router = APIRouter(tags=["workers"])


@router.get("/workers", responses=answers({200: WorkerPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Worker sessions, newest first, with those that ended within the last hour."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_workers(connection, limit=limit + 1, before=before)
    kept, after = cut(rows, limit, lambda row: (row.started_at, row.session_id))
    return reply(WorkerPage([Worker(str(row.session_id), *row[1:]) for row in kept], after))
