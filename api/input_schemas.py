"""The JSON Schemas that workflows declare for the input of their runs, by version."""

import asyncio
from typing import Final

import msgspec

from api.errors import FaultyRequest
from api.schemas.problem import Fault
from headrace.input_schema import InputSchema
from state.queries.rows import Connection
from state.workflows import get_input_schema

_INLINE_BYTES_MAX: Final = 16_384
"""A larger input is checked in a thread, so that other requests go on."""


class InputSchemas:
    """Compiled schemas, which never change. Bounded by how many versions there are."""

    def __init__(self) -> None:
        self._schemas: dict[int, InputSchema | None] = {}

    async def check(self, connection: Connection, version_id: int, input: bytes) -> None:
        """Raises FaultyRequest with every fault of the input, by path."""
        schema = await self._schema(connection, version_id)
        if schema is None:
            return
        data = msgspec.json.decode(input)
        if len(input) <= _INLINE_BYTES_MAX:
            faults = schema.check(data)
        else:
            faults = await asyncio.to_thread(schema.check, data)
        if faults:
            found = [Fault(_inside(fault.path), fault.message) for fault in faults]
            raise FaultyRequest("the input does not match the workflow's schema", found)

    async def _schema(self, connection: Connection, version_id: int) -> InputSchema | None:
        if version_id not in self._schemas:
            text = await get_input_schema(connection, version_id)
            declared = None if text is None else msgspec.json.decode(text)
            self._schemas[version_id] = None if declared is None else InputSchema(declared)
        return self._schemas[version_id]


def _inside(path: str) -> str:
    """A path within the input, as one within the request's body."""
    return f"input{'' if not path or path.startswith('[') else '.'}{path}"
