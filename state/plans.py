"""Published versions, compiled once per process. They never change, so a cache of them is never wrong.

A version that a newer release published may hold what this one cannot read. Its runs are left to processes that can;
those of other versions go on.
"""

from collections.abc import Iterable
from typing import Any

import psycopg
import structlog

from headrace.errors import NotFoundError, UnreadableError
from headrace.graph import Workflow
from headrace.machine import Plan, compile_plan
from state.sql import load

_SQL = load("run")
log = structlog.get_logger(__name__)


class Plans:
    """Compiled versions by their id. Bounded by how many versions there are; a plan of ten tasks is some 10 KiB."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._unreadable: dict[int, UnreadableError] = {}

    def get(self, version_id: int) -> Plan | None:
        """None for a version that was not loaded, does not exist, or cannot be read (`unreadable`)."""
        return self._plans.get(version_id)

    def unreadable(self, version_id: int) -> UnreadableError | None:
        """Why a version that was loaded has no plan here."""
        return self._unreadable.get(version_id)

    def missing(self, version_ids: Iterable[int]) -> list[int]:
        """Those that nobody tried to load yet."""
        return [id_ for id_ in set(version_ids) if id_ not in self._plans and id_ not in self._unreadable]

    def _add(self, version_id: int, workflow: str, version: int, definition: str) -> None:
        try:
            parsed = Workflow.model_validate_json(definition)
            self._plans[version_id] = compile_plan(parsed, version=version, version_id=version_id)
        except Exception as e:  # whatever a definition of another release does to this one's parser
            error = UnreadableError(
                f"this process cannot read version {version} of workflow {workflow}: a newer release published it",
                workflow=workflow,
                version=version,
            )
            self._unreadable[version_id] = error
            log.error(error.message, why=str(e)[:2000])

    async def load(self, connection: psycopg.AsyncConnection[Any], version_ids: Iterable[int]) -> None:
        """Read those not known yet."""
        if missing := self.missing(version_ids):
            async with psycopg.AsyncRawCursor(connection) as cursor:
                await cursor.execute(_SQL.text("load_versions"), (missing,))
                for row in await cursor.fetchall():
                    self._add(*row)

    def load_sync(self, connection: psycopg.Connection[Any], version_ids: Iterable[int]) -> None:
        """The same, for a thread of its own."""
        if missing := self.missing(version_ids):
            with psycopg.RawCursor(connection) as cursor:
                for row in cursor.execute(_SQL.text("load_versions"), (missing,)).fetchall():
                    self._add(*row)

    async def latest(
        self, connection: psycopg.AsyncConnection[Any], namespace: str, workflow: str, version: int | None = None
    ) -> Plan:
        """The plan a new run is pinned to: of `version`, or of the latest. Raises NotFoundError, UnreadableError."""
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
        if self.missing([row[0]]):
            self._add(*row)
        if (plan := self.get(row[0])) is None:
            raise self._unreadable[row[0]]
        return plan
