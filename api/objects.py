"""Large results, by their hash: what a reference in a run's or a task's payload stands for."""

import asyncio

from fastapi import APIRouter
from starlette.responses import Response

from api.errors import faulty
from api.identity import parse_id
from api.openapi import answers
from api.runs import find_run
from api.wiring import Wired
from headrace.errors import MissingObjectError
from headrace.object_store import is_hash

router = APIRouter(tags=["runs"])


@router.get("/runs/{run_id}/objects/{sha256}", responses=answers({}, 404))
async def read_object(run_id: str, sha256: str, wired: Wired) -> Response:
    """The JSON value that `{"$object": {"sha256": …}}` stands for, compared with its hash.

    404 when it is not there, or is another value than it was.
    """
    if not is_hash(sha256):
        raise faulty("sha256", "is 64 digits of lower-case hexadecimal")
    async with wired.database.reading() as connection:
        row = await find_run(wired, connection, parse_id(run_id, "run"))
    if wired.objects is None:
        raise MissingObjectError("this API has no object store: set HEADRACE_OBJECTS")
    value = await asyncio.to_thread(wired.objects.get, str(row.run_id), sha256)
    headers = {"Cache-Control": "private, max-age=31536000, immutable", "ETag": f'"{sha256}"'}
    return Response(value, headers=headers, media_type="application/json")
