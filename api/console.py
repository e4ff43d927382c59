"""The operator's console: serves the built bundle of `api/dashboard/` under `/console/`.

The bundle is files and the console is its own client of the API: nothing is rendered here. Every address below
`/console/` that is no file answers with the page itself, so that a link deep into it survives a reload.
"""

import asyncio
import gzip
import mimetypes
import re
from functools import cache
from pathlib import Path
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import FileResponse, RedirectResponse, Response

from headrace.errors import NotFoundError

BUNDLE: Final = Path(__file__).parent / "dashboard" / "dist"
PREFIX: Final = "/console/"
CONTENT_SECURITY_POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "worker-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
    )
)
_SECURITY: Final = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
_FOR_EVER: Final = "public, max-age=31536000, immutable"
_MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".woff2": "font/woff2"}
"""Written out: what the system's own table says of these differs from machine to machine."""

_PACKED: Final = frozenset({".js", ".css"})
"""Texts, which are a third as large when packed. Fonts are packed already."""

_GZIP: Final = re.compile(r"(^|,)gzip(?!;q=0(\.0*)?(,|$))(;|,|$)")

router = APIRouter(tags=["console"], include_in_schema=False)


@router.get("/")
async def root(request: Request) -> Response:
    """A browser goes to the console. Whoever does not ask for a page hears where the API's document is."""
    if "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(PREFIX, 307)
    raise NotFoundError("there is nothing at this address; /openapi.json says what there is")


@router.get("/console")
async def without_slash() -> Response:
    return RedirectResponse(PREFIX, 307)


@router.get("/console/{path:path}")
async def serve(path: str, request: Request) -> Response:
    """A file of the bundle, or the page.

    Files under `assets/` carry a hash of their content in their name, so they never change. One that is missing is
    not found: a page in its place would be run as a script.
    """
    file = find(path)
    if file is not None and file.parent.name == "assets":
        if file.suffix in _PACKED and _takes_gzip(request):
            return await _packed_file(file)
        return _file(file, _FOR_EVER)
    if file is not None:
        return _file(file, "no-cache")
    if path.startswith("assets/"):
        raise NotFoundError("the console has no such file; reload the page", path=path)
    return _file(_index(), "no-cache")


def find(path: str) -> Path | None:
    """The file of the bundle at a path; None when there is none, and for a path that leaves the bundle."""
    if not path or "\x00" in path:
        return None
    file = (BUNDLE / path).resolve()
    return file if file.is_relative_to(BUNDLE.resolve()) and file.is_file() else None


def _index() -> Path:
    index = BUNDLE / "index.html"
    if not index.is_file():
        raise NotFoundError("this installation has no console; `make console` builds it")
    return index


def _file(file: Path, cache: str) -> Response:
    headers = {**_SECURITY, "Cache-Control": cache, "Vary": "Accept-Encoding"}
    return FileResponse(file, media_type=_media_type(file), headers=headers)


async def _packed_file(file: Path) -> Response:
    content = await asyncio.to_thread(_pack, file)
    headers = {**_SECURITY, "Cache-Control": _FOR_EVER, "Vary": "Accept-Encoding", "Content-Encoding": "gzip"}
    return Response(content, media_type=_media_type(file), headers=headers)


@cache
def _pack(file: Path) -> bytes:
    """Once for each file of the bundle: what is under `assets/` never changes."""
    return gzip.compress(file.read_bytes(), mtime=0)


def _takes_gzip(request: Request) -> bool:
    return _GZIP.search(request.headers.get("accept-encoding", "").lower().replace(" ", "")) is not None


def _media_type(file: Path) -> str:
    return _MEDIA_TYPES.get(file.suffix) or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
