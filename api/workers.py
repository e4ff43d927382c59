"""Worker sessions."""

import re
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.idempotency import perform
from api.identity import parse_id, principal_of
from api.openapi import answers, body
from api.paging import ByInstant, Limit, PageToken, cut, parse
from api.schemas.worker import Worker, WorkerCrash, WorkerPage
from api.wiring import Wired
from headrace.errors import ConflictError, NotFoundError
from state.queries.rows import AT_MAX, ID_MAX, Connection
from state.queries.worker import WorkerRow, find_live_worker, find_worker, list_workers

router = APIRouter(tags=["workers"])
_FILE: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
"""Names of workers that `headrace dev` has started; they become names of files."""


@router.get("/workers", responses=answers({200: WorkerPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Worker sessions, newest first, with those that ended within the last hour."""
    before = (AT_MAX, ID_MAX) if page is None else parse(page, ByInstant)
    async with wired.database.reading() as connection:
        rows = await list_workers(connection, limit=limit + 1, before=before)
    kept, after = cut(rows, limit, lambda row: (row.started_at, row.session_id))
    return reply(WorkerPage([_worker(row) for row in kept], after))


@router.get("/workers/{session_id}", responses=answers({200: Worker}, 404))
async def show(session_id: str, wired: Wired) -> Response:
    """One session: who holds a task, and when it was last heard of."""
    id_ = parse_id(session_id, "worker session")
    async with wired.database.reading() as connection:
        row = await find_worker(connection, id_)
    if row is None:
        raise NotFoundError(f"there is no worker session {id_}")
    return reply(_worker(row))


@router.post(
    "/workers/{session_id}/crash",
    status_code=202,
    responses=answers({202: WorkerCrash}, 404, 409),
    openapi_extra=body(None, required=False),
)
async def crash(session_id: str, request: Request, wired: Wired) -> Response:
    """Kill a worker without a warning, to see what becomes of its tasks. Only the owner of a `headrace dev` can, whose
    workers they are; elsewhere it is refused with 409.
    """
    id_, folder = parse_id(session_id, "worker session"), wired.settings.api_crash_folder
    if folder is None or not principal_of(request).is_local:
        raise ConflictError("only `headrace dev` lets a worker be crashed")

    async def act(connection: Connection) -> Answer:
        worker = await find_live_worker(connection, id_)
        if worker is None or not _FILE.fullmatch(worker):
            raise ConflictError(f"there is no live worker of this dev with session {id_}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / worker).touch()
        return answer(WorkerCrash(str(id_), worker), 202)

    return await perform(wired, request, b"", act)


def _worker(row: WorkerRow) -> Worker:
    return Worker(str(row.session_id), *row[1:])
