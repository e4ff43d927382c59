"""The answer to a request, as data: it can be stored with an idempotency key and given again."""

from typing import Any, Final, NamedTuple

import msgspec
from starlette.responses import Response

_encode: Final = msgspec.json.Encoder().encode
NULL: Final = msgspec.Raw(b"null")


class Answer(NamedTuple):
    status: int
    body: bytes

    def response(self, **headers: str) -> Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return Response(self.body, self.status, named, media_type="application/json")


def answer(content: msgspec.Struct, status: int = 200) -> Answer:
    return Answer(status, _encode(content))


def reply(content: msgspec.Struct, status: int = 200) -> Response:
    """An answer that need not be stored."""
    return answer(content, status).response()


def raw(text: str | None) -> msgspec.Raw:
    """JSON text from the database, as it stands there."""
    return NULL if text is None else msgspec.Raw(text.encode())


def encode(content: Any) -> bytes:
    return _encode(content)
