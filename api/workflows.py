"""Workflows: publish them, and read what was published."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Path, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, reply
from api.bodies import read_body
from api.errors import Refusal, faulty
from api.idempotency import perform
from api.identity import actor, check_name
from api.openapi import answers, body
from api.paging import INT_MAX, ByName, Limit, PageToken, cut, parse
from api.schemas.workflow import Published, VersionSummary, Workflow, WorkflowPage, WorkflowSummary, WorkflowVersion
from api.wiring import Wired
from headrace import graph
from headrace.document import Document
from headrace.errors import NotFoundError
from state.queries.rows import Connection
from state.rollout import start_moves
from state.workflows import get_version, list_versions, list_workflows, publish

Migrate = Annotated[bool, Query(description="Move runs in flight on older versions, where nothing stands in the way")]
DEFINITION = body(None, others={"application/json": {"type": "object"}, "application/yaml": {"type": "string"}})
_YAML = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})

router = APIRouter(tags=["workflows"])


@router.post(
    "/workflows",
    status_code=201,
    responses=answers({201: Published, 200: Published}, 408, 413, 415),
    openapi_extra=DEFINITION,
)
async def publish_workflow(request: Request, wired: Wired, migrate: Migrate = False) -> Response:
    """Publish a workflow in JSON or YAML. The same content is the same version (200); other content is the next one
    (201). With `migrate`, or where the workflow says `on_publish: migrate`, runs in flight on older versions are moved
    to it by a bulk, those of which nothing stands in the way; a publish that is no news moves nobody unless it is asked
    to.
    """
    text, workflow = await read_workflow(request)
    definition, who = workflow.canonical().decode(), actor(request)

    async def act(connection: Connection) -> Answer:
        done = await publish(
            connection, wired.namespace, workflow.name, definition, who, lambda path: Document(text).line(path)
        )
        bulk_id = None
        if migrate or (done.created and workflow.on_publish == "migrate"):
            bulk_id = await start_moves(connection, wired.store, workflow.name, done.version, actor=who)
        told = None if bulk_id is None else str(bulk_id)
        content = Published(workflow.name, done.version, done.created, done.digest, done.published_at, told)
        return answer(content, 201 if done.created else 200)

    return await perform(wired, request, text, act)


async def read_workflow(request: Request) -> tuple[bytes, graph.Workflow]:
    """The body as it came, and the workflow it is. Raises what the API answers with."""
    _check_media_type(request)
    text = await read_body(request)
    if not text.strip():
        raise faulty("", "the body is empty; send a workflow")
    return text, await asyncio.to_thread(graph.parse, text)


def _check_media_type(request: Request) -> None:
    media_type = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if media_type not in _YAML and media_type != "application/json":
        raise Refusal(415, f"send application/json or application/yaml, not {media_type[:100]}")


@router.get("/workflows", responses=answers({200: WorkflowPage}))
async def list_all(wired: Wired, limit: Limit = 50, page: PageToken = None) -> Response:
    """Workflows by name."""
    after = "" if page is None else parse(page, ByName).name
    async with wired.database.reading() as connection:
        rows = await list_workflows(connection, wired.namespace, limit=limit + 1, after=after)
    kept, following = cut(rows, limit, lambda row: (row.name,))
    return reply(WorkflowPage([WorkflowSummary(*row) for row in kept], following))


@router.get("/workflows/{workflow}", responses=answers({200: Workflow}, 404))
async def get(workflow: str, wired: Wired) -> Response:
    """A workflow with its versions and its latest definition."""
    check_name(workflow, "workflow")
    async with wired.database.reading() as connection:
        latest = await get_version(connection, wired.namespace, workflow)
        versions = await list_versions(connection, wired.namespace, workflow)
    if latest is None:
        raise NotFoundError(f"there is no workflow {workflow}", workflow=workflow)
    definition = msgspec.Raw(latest.definition.encode())
    return reply(Workflow(workflow, latest.version, [VersionSummary(*row) for row in versions], definition))


@router.get("/workflows/{workflow}/versions/{version}", responses=answers({200: WorkflowVersion}, 404))
async def get_one_version(workflow: str, version: Annotated[int, Path(ge=1, le=INT_MAX)], wired: Wired) -> Response:
    """One version of a workflow."""
    check_name(workflow, "workflow")
    async with wired.database.reading() as connection:
        row = await get_version(connection, wired.namespace, workflow, version)
    if row is None:
        raise NotFoundError(f"there is no version {version} of workflow {workflow}", workflow=workflow, version=version)
    definition = msgspec.Raw(row.definition.encode())
    return reply(WorkflowVersion(row.name, row.version, row.digest, row.published_at, row.published_by, definition))
