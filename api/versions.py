"""Versions of a workflow: what a publish would lead to, and which runs still hold to older ones."""

from typing import Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from api.answers import reply
from api.identity import check_name
from api.openapi import answers
from api.schemas.version import (
    Blocked,
    Difference,
    Moves,
    PublishCheck,
    Rename,
    RunsInFlight,
    RunVerdict,
    TaskChange,
    VersionRuns,
    VersionRunsList,
)
from api.wiring import Wired
from api.workflows import DEFINITION, Migrate, read_workflow
from headrace.errors import NotFoundError
from headrace.machine import RunStatus
from state.versions import Check, InFlight, Standing, check_publish, list_standing

router = APIRouter(tags=["workflows"])
Then = Literal["stays", "moves"]


@router.get("/workflows/{workflow}/versions", responses=answers({200: VersionRunsList}, 404))
async def list_versions(workflow: str, wired: Wired) -> Response:
    """The latest version of a workflow, and the older ones that have runs in flight: how many, since when, and which
    bodies workers must keep for them.
    """
    check_name(workflow, "workflow")
    async with wired.database.reading() as connection:
        standing = await list_standing(connection, wired.namespace, workflow)
    if not standing:
        raise NotFoundError(f"there is no workflow {workflow}", workflow=workflow)
    latest = standing[0].version
    return reply(VersionRunsList(workflow, [_tell(each, is_latest=each.version == latest) for each in standing]))


@router.post("/workflows/check", responses=answers({200: PublishCheck}, 408, 413, 415), openapi_extra=DEFINITION)
async def check(request: Request, wired: Wired, migrate: Migrate = False) -> Response:
    """Say what publishing this content would lead to, and publish nothing: which version it would be, what is different
    from the latest one, which runs are in flight on which version, and which of them could be moved. A wrong definition
    is refused as by a publish.
    """
    _, workflow = await read_workflow(request)
    async with wired.database.reading() as connection:
        found = await check_publish(connection, wired.store, wired.plans, workflow)
    then: Then = "moves" if migrate or workflow.on_publish == "migrate" else "stays"
    return reply(_tell_check(workflow.name, found, then))


def _tell_check(name: str, check: Check, then: Then) -> PublishCheck:
    latest = None if check.latest is None else check.latest.version
    return PublishCheck(
        name,
        _verdict(check, latest),
        check.version,
        latest,
        check.digest,
        None
        if check.difference is None
        else Difference(
            list(check.difference.fields),
            list(check.difference.added),
            list(check.difference.removed),
            [TaskChange(change.task, list(change.fields)) for change in check.difference.changed],
            list(check.difference.moved),
            [Rename(*each) for each in check.difference.renamed],
        ),
        [_in_flight(each, "stays" if each.version == check.version else then) for each in check.in_flight],
        Moves(
            check.moves.looked_at,
            check.moves.movable,
            [Blocked(*each) for each in check.moves.obstacles],
            [RunVerdict(each.run_id, each.version, RunStatus(each.status), each.why_not) for each in check.moves.runs],
        ),
    )


def _verdict(check: Check, latest: int | None) -> Literal["first", "new", "latest", "older"]:
    if latest is None:
        return "first"
    if check.is_new:
        return "new"
    return "latest" if check.version == latest else "older"


def _tell(standing: Standing, *, is_latest: bool) -> VersionRuns:
    return VersionRuns(
        standing.version,
        standing.digest,
        standing.published_at,
        standing.published_by,
        is_latest,
        sum(each.runs for each in standing.in_flight),
        [_in_flight(each) for each in standing.in_flight],
        standing.bodies,
    )


def _in_flight(each: InFlight, then: Then = "stays") -> RunsInFlight:
    status = RunStatus(each.status)
    return RunsInFlight(each.version, status, each.runs, str(each.oldest_run_id), each.oldest_at, then)
