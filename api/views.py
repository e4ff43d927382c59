"""Views: filters under a name. Some are always there; people keep others, for themselves or for all."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from api.answers import Answer, answer, raw, reply
from api.bodies import check_payload, read
from api.errors import faulty
from api.idempotency import perform
from api.identity import actor, parse_id, principal_of
from api.openapi import answers, body
from api.schemas.view import View, ViewBody, ViewList, ViewOf
from api.wiring import Wired
from headrace.errors import ForbiddenError
from headrace.filter import Filter, parse
from state.queries.rows import Connection
from state.saved_views import ViewRow, change_view, delete_view, get_view, list_views, save_view
from state.tokens import Scope

LAYOUT_BYTES_MAX: Final = 10_000

router = APIRouter(tags=["views"])

OfViews = Annotated[ViewOf | None, Query(description="Only those of these lists")]


@router.get("/views", responses=answers({200: ViewList}))
async def list_all(request: Request, wired: Wired, of: OfViews = None) -> Response:
    """Views that the caller sees: those that are always there, those that are shared, and their own."""
    who = actor(request)
    async with wired.database.reading() as connection:
        rows = await list_views(connection, wired.namespace, who, of)
    always = [view for view in _always(who) if of in (None, view.of)]
    return reply(ViewList([*always, *(_view(row) for row in rows)]))


@router.get("/views/{view_id}", responses=answers({200: View}, 404))
async def get(view_id: str, request: Request, wired: Wired) -> Response:
    """One view."""
    id_, who = parse_id(view_id, "view"), actor(request)
    async with wired.database.reading() as connection:
        return reply(_view(await get_view(connection, wired.namespace, who, id_)))


@router.post(
    "/views",
    status_code=201,
    responses=answers({201: View}, 408, 409, 413, 415),
    openapi_extra=body(ViewBody),
)
async def save(request: Request, wired: Wired) -> Response:
    """Keep a filter under a name."""
    asked, content = await read(request, ViewBody)
    wanted, layout, who = _checked(request, asked)

    async def act(connection: Connection) -> Answer:
        row = await save_view(
            connection, wired.namespace, who, asked.name, wanted, is_shared=asked.is_shared, layout=layout
        )
        return answer(_view(row), 201)

    return await perform(wired, request, content, act)


@router.put(
    "/views/{view_id}",
    responses=answers({200: View}, 404, 408, 409, 413, 415),
    openapi_extra=body(ViewBody),
)
async def change(view_id: str, request: Request, wired: Wired) -> Response:
    """Change a view of one's own: all of it is as the body says."""
    id_ = parse_id(view_id, "view")
    asked, content = await read(request, ViewBody)
    wanted, layout, who = _checked(request, asked)

    async def act(connection: Connection) -> Answer:
        row = await change_view(
            connection, wired.namespace, who, id_, asked.name, wanted, is_shared=asked.is_shared, layout=layout
        )
        return answer(_view(row))

    return await perform(wired, request, content, act)


@router.delete("/views/{view_id}", responses=answers({200: View}, 404, 408, 409, 413))
async def delete(view_id: str, request: Request, wired: Wired) -> Response:
    """Remove a view of one's own; the answer is what it was."""
    id_, who = parse_id(view_id, "view"), actor(request)

    async def act(connection: Connection) -> Answer:
        row = await get_view(connection, wired.namespace, who, id_)
        await delete_view(connection, wired.namespace, who, id_)
        return answer(_view(row))

    return await perform(wired, request, b"", act)


def _checked(request: Request, asked: ViewBody) -> tuple[Filter, bytes, str]:
    """The filter, the layout, and who asks. Raises FilterError, FaultyRequest, ForbiddenError."""
    if asked.is_shared and Scope.OPERATE not in principal_of(request).scopes:
        raise ForbiddenError("a view for all is kept by whoever has the scope operate")
    layout = b"{}" if isinstance(asked.layout, msgspec.UnsetType) else check_payload(asked.layout, "layout")
    if len(layout) > LAYOUT_BYTES_MAX or not layout.startswith(b"{"):
        raise faulty("layout", f"must be an object of at most {LAYOUT_BYTES_MAX} bytes")
    return parse(asked.of, asked.filter), layout, actor(request)


def _always(who: str) -> list[View]:
    """Views that nobody need keep."""
    runs = {
        "In flight": "is:open",
        "Failing": "waits:retry",
        "Waiting for a person": "waits:person",
        "Waiting for a slot": "waits:slot",
        "Stuck": "is:stuck",
        "Started by me": str(Filter("runs").and_("by", who)),
        "With failed tasks": "failed:*",
    }
    return [_fixed("runs", name, filter) for name, filter in runs.items()]


def _fixed(of: ViewOf, name: str, filter: str) -> View:
    return View(None, name, of, filter, "", True, msgspec.Raw(b"{}"), None, None)


def _view(row: ViewRow) -> View:
    given: dict[str, Any] = row._asdict() | {"view_id": str(row.view_id), "layout": raw(row.layout)}
    return View(**given)
