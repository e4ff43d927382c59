"""Published versions, compiled once per process. They never change, so a cache of them is never wrong."""

from collections.abc import Iterable
from typing import Any

import psycopg

from headrace.errors import NotFoundError
from headrace.graph import Workflow
from headrace.machine import Plan, compile_plan
from state.sql import load

_SQL = load("run")


class Plans:
    """Compiled versions by their id. Bounded by how many versions there are; a plan of ten tasks is some 10 KiB."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}

    def get(self, version_id: int) -> Plan | None:
        return self._plans.get(version_id)

    def missing(self, version_ids: Iterable[int]) -> list[int]:
        return [version_id for version_id in set(version_ids) if version_id not in self._plans]

    def add(self, version_id: int, version: int, definition: str) -> Plan:
        plan = compile_plan(Workflow.model_validate_json(definition), version=version, version_id=version_id)
        self._plans[version_id] = plan
        return plan

    async def load(self, connection: psycopg.AsyncConnection[Any], version_ids: Iterable[int]) -> None:
        """Read those not known yet."""
        if missing := self.missing(version_ids):
            async with psycopg.AsyncRawCursor(connection) as cursor:
                await cursor.execute(_SQL.text("load_versions"), (missing,))
                for version_id, _, version, definition in await cursor.fetchall():
                    self.add(version_id, version, definition)

    def load_sync(self, connection: psycopg.Connection[Any], version_ids: Iterable[int]) -> None:
        """The same, for a thread of its own."""
        if missing := self.missing(version_ids):
            with psycopg.RawCursor(connection) as cursor:
                for version_id, _, version, definition in cursor.execute(
                    _SQL.text("load_versions"), (missing,)
                ).fetchall():
                    self.add(version_id, version, definition)

    async def latest(
        self, connection: psycopg.AsyncConnection[Any], namespace: str, workflow: str, version: int | None = None
    ) -> Plan:
        """The plan a new run is pinned to: of `version`, or of the latest. Raises NotFoundError."""
        async with psycopg.AsyncRawCursor(connection) as cursor:
            await cursor.execute(_SQL.text("find_version"), (namespace, workflow, version))
            row = await cursor.fetchone()
        return self._found(row, workflow, version)

    def latest_sync(self, connection: psycopg.Connection[Any], namespace: str, workflow: str) -> Plan:
        """The same, for a thread of its own."""
        with psycopg.RawCursor(connection) as cursor:
            row = cursor.execute(_SQL.text("find_version"), (namespace, workflow, None)).fetchone()
        return self._found(row, workflow, None)

    def _found(self, row: Any, workflow: str, version: int | None) -> Plan:
        if row is None:
            what = f"workflow {workflow}" if version is None else f"version {version} of workflow {workflow}"
            raise NotFoundError(f"there is no {what}", workflow=workflow, version=version)
        version_id, _, number, definition = row
        return self.get(version_id) or self.add(version_id, number, definition)
