"""The OpenAPI document: routes say what they answer by type, the types' schemas are put in once for all."""

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Final

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api import schemas
from api.schemas.problem import Problem

_REF: Final = "#/components/schemas/{name}"
_WHY: Final = {
    401: "It is not known who calls: send a token",
    403: "Refused: the token lacks the scope, or the request comes from a page of another origin or by a foreign name",
    404: "No such thing",
    405: "No such method",
    408: "The body came too slowly",
    409: "Not possible in the present state",
    413: "The body is larger than 1 MiB",
    415: "The body is neither JSON nor YAML",
    422: "The request is wrong; `errors` says where",
    429: "Too much at once; try again after `Retry-After` seconds",
    500: "A fault of ours",
    503: "The database is away; try again after `Retry-After` seconds",
}
_ALWAYS: Final = (401, 403, 422, 500, 503)


def answers(good: Mapping[int, type[msgspec.Struct]], *errors: int) -> dict[int | str, dict[str, Any]]:
    """What a route answers: types by status, and the errors it adds to those of every route."""
    documented: dict[int | str, dict[str, Any]] = {
        status: {"description": (kind.__doc__ or kind.__name__).splitlines()[0], "content": _content(kind)}
        for status, kind in good.items()
    }
    for status in sorted({*errors, *_ALWAYS} - good.keys()):
        documented[status] = {
            "description": _WHY[status],
            "content": _content(Problem, "application/problem+json"),
        }
    return documented


def stream(*errors: int) -> dict[int | str, dict[str, Any]]:
    """What a route of server-sent events answers."""
    events = {"description": "Events", "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {200: events, **answers({}, *errors)}


def body(
    kind: type[msgspec.Struct] | None,
    *,
    required: bool = True,
    others: Mapping[str, Any] | None = None,
    idempotent: bool = True,
) -> dict[str, Any]:
    """For `openapi_extra` of a route that reads its body itself. others: schemas by media type, beside JSON of this
    kind. idempotent: whether it takes a key.
    """
    content = {} if kind is None else _content(kind)
    content |= {name: {"schema": schema} for name, schema in (others or {}).items()}
    headers = [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "The caller's name for this request: repeating it gives the same answer.",
            "schema": {"type": "string", "minLength": 1, "maxLength": 200},
        },
        {
            "name": "Headrace-Actor",
            "in": "header",
            "required": False,
            "description": "Who acts, for the record; only with the local token. Others act in their own name.",
            "schema": {"type": "string", "maxLength": 200},
        },
    ]
    given = headers if idempotent else headers[1:]
    return {"requestBody": {"required": required, "content": content}, "parameters": given}


def _content(kind: type[msgspec.Struct], media_type: str = "application/json") -> dict[str, Any]:
    return {media_type: {"schema": {"$ref": _REF.format(name=kind.__name__)}}}


def document(app: FastAPI) -> dict[str, Any]:
    """Build the document of an app, with every schema that its routes name."""
    _, components = msgspec.json.schema_components(_kinds(), ref_template=_REF)
    result = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    known = result.setdefault("components", {}).setdefault("schemas", {})
    known.update(components)
    for unused in ("HTTPValidationError", "ValidationError"):
        known.pop(unused, None)
    return result


def _kinds() -> list[type[msgspec.Struct]]:
    modules = [import_module(f"{schemas.__name__}.{found.name}") for found in iter_modules(schemas.__path__)]
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
    ]
