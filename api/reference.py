"""The API's document, and a page that shows it. The page is made here: it runs no script and loads nothing."""

from base64 import b64encode
from hashlib import sha256
from html import escape
from typing import Any, Final

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse, JSONResponse, Response

_STYLE: Final = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font:14px ui-monospace,monospace}dt{margin-top:1rem}dd{margin:.2rem 0 0 2rem}"
    "b{display:inline-block;width:4.5rem}"
)


def csp_hash(content: str) -> str:
    """What allows one inline style, and no other, in a content security policy."""
    return f"sha256-{b64encode(sha256(content.encode()).digest()).decode()}"


_POLICY: Final = (
    f"default-src 'none'; style-src '{csp_hash(_STYLE)}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

router = APIRouter(tags=["reference"], include_in_schema=False)


@router.get("/openapi.json")
async def document(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/docs")
async def page(request: Request) -> Response:
    """The routes, by tag, with what they take and answer."""
    return HTMLResponse(draw(request.app.openapi()), headers={"Content-Security-Policy": _POLICY})


def draw(content: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    groups: dict[str, list[str]] = {}
    for path, operations in content["paths"].items():
        for method, operation in operations.items():
            groups.setdefault(operation["tags"][0], []).append(_operation(method, path, operation))
    title = escape(f"{content['info']['title']} {content['info']['version']}")
    parts = [f"<h2>{escape(tag)}</h2><dl>{''.join(drawn)}</dl>" for tag, drawn in groups.items()]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{_STYLE}</style>'
        f"<h1>{title}</h1><p>{escape(content['info']['description'])} The whole document with all schemas: "
        f'<a href="/openapi.json"><code>/openapi.json</code></a></p>{"".join(parts)}</html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parameters = ", ".join(f"<code>{escape(each['name'])}</code>" for each in operation.get("parameters", ()))
    statuses = ", ".join(escape(status) for status in operation["responses"])
    return (
        f"<dt><b>{escape(method.upper())}</b><code>{escape(path)}</code></dt>"
        f"<dd>{escape(operation.get('description', ''))}</dd>"
        + (f"<dd>takes {parameters}</dd>" if parameters else "")
        + f"<dd>answers {statuses}</dd>"
    )
