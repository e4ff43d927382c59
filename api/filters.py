"""Filters in requests: read, bound into page tokens, and explained."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Annotated, Any, Final
from uuid import UUID

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from api.answers import reply
from api.errors import faulty
from api.openapi import answers
from api.paging import Key, parse, token
from api.schemas.filter import FilterClause, FilterField, FilterReading
from api.schemas.view import ViewOf
from headrace.filter import TEXT_MAX, Filter
from headrace.filter import parse as parse_filter
from headrace.filter_field import Noun, fields_of

_DIGEST_CHARS: Final = 12

router = APIRouter(tags=["filters"])

FilterText = Annotated[
    str,
    Query(
        max_length=TEXT_MAX,
        description="Which ones, such as `status:failed started:>-2h -workflow:orders`; `/filters/{of}` has the fields",
    ),
]


async def _only_known(request: Request) -> None:
    known = {each.alias for each in request.scope["route"].dependant.query_params}
    for name in request.query_params:
        if name not in known:
            raise faulty(name, f"is no parameter here; what to list is said by a filter, such as filter={name}:…")


OnlyKnown = Depends(_only_known)
"""For lists that take a filter: a parameter that is passed over would make them answer with more than was asked for."""


@router.get("/filters/{of}", responses=answers({200: FilterReading}))
async def read(of: ViewOf, filter: FilterText = "") -> Response:
    """The fields that filters of these lists have, and what the text of one means: its clauses are chips."""
    found = parse_filter(of, filter)
    clauses = [
        FilterClause(str(clause), clause.field, clause.comparison, list(clause.values), clause.is_negated)
        for clause in found.clauses
    ]
    fields = [
        FilterField(
            field.name, field.kind, field.about, list(field.choices), field.is_indexed, field.is_wild, field.is_ordered
        )
        for field in fields_of(of).values()
    ]
    return reply(FilterReading(of, str(found), clauses, fields))


def read_selection(of: Noun, text: str, ids: Sequence[UUID] | None, ids_name: str) -> Filter:
    """The filter of an act on many. Raises FaultyRequest when neither it nor ids say which: nobody acts on everything
    by leaving something out."""
    found = parse_filter(of, text)
    if not found.clauses and ids is None:
        raise faulty("filter", f"say which, by a filter or by {ids_name}")
    return found


def page_token(filter: Filter, *key: Any) -> str:
    """A page token that is good for this filter only."""
    return token(_digest(filter), key)


def page_key(page: str, filter: Filter, kind: type[Key]) -> Key:
    """The key in a page token. kind: a named tuple. Raises FaultyRequest for a token of another list, or of another
    filter: it would silently leave out what that one does not have."""
    digest, key = parse(page, tuple[str, kind])  # type: ignore[valid-type]  # a type known at run time
    if digest != _digest(filter):
        raise faulty("page", "a page token of another filter")
    found: Key = key
    return found


def _digest(filter: Filter) -> str:
    return sha256(f"{filter.of} {filter}".encode()).hexdigest()[:_DIGEST_CHARS]
