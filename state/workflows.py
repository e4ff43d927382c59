"""Publish workflows and read them back. A version is frozen: the same content is the same version, other content is
the next.
"""

from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec

from headrace.document import Path, format_path
from headrace.errors import DefinitionError, Fault, InvariantError
from state.queries.rows import Connection, fetch, fetch_one
from state.sql import load

_SQL = load("workflow_queries")


class VersionRow(NamedTuple):
    version_id: int
    name: str
    version: int
    digest: str
    published_at: datetime
    published_by: str
    definition: str


class WorkflowRow(NamedTuple):
    name: str
    latest_version: int
    created_at: datetime
    updated_at: datetime
    tasks: int


class VersionSummaryRow(NamedTuple):
    version: int
    digest: str
    published_at: datetime
    published_by: str


class Published(NamedTuple):
    version_id: int
    version: int
    digest: str
    published_at: datetime
    created: bool
    """False: this content was a version already."""


class _Numbered(NamedTuple):
    version_id: int
    version: int
    published_at: datetime


class _Edge(NamedTuple):
    workflow: str
    child: str


async def publish(
    connection: Connection,
    namespace: str,
    name: str,
    definition: str,
    actor: str = "",
    find_line: Callable[[Path], int | None] = lambda path: None,
) -> Published:
    """Freeze a checked definition as a version, in the caller's open transaction; repeating it answers the version
    that is there.

    definition: its canonical JSON, the same for the same content. Publishing an older content again makes it no later
    version: it answers the older one, and `latest` stays. Holds the workflow's row to the end of the transaction, so
    that racing publishes are counted one by one. find_line: of a path in the text that it was written in.

    Raises DefinitionError when a task of it starts a workflow that leads back to it.
    """
    await _refuse_cycles(connection, namespace, name, definition, find_line)
    digest = sha256(definition.encode()).hexdigest()
    latest = await fetch_one(connection, int, _SQL.text("lock_workflow"), namespace=namespace, name=name)
    if latest is None:
        raise InvariantError("the row of a workflow could not be locked", workflow=name)
    found = await fetch_one(
        connection, _Numbered, _SQL.text("find_digest"), namespace=namespace, name=name, digest=digest
    )
    if found is not None:
        return Published(found.version_id, found.version, digest, found.published_at, created=False)
    made = await fetch_one(
        connection,
        _Numbered,
        _SQL.text("insert_version"),
        namespace=namespace,
        name=name,
        version=latest + 1,
        digest=digest,
        definition=definition,
        published_by=actor,
    )
    if made is None:
        raise InvariantError("a version was not stored", workflow=name)
    limit = msgspec.json.decode(definition, type=_Limited).limit
    runs_max = None if limit is None else limit.runs
    parameters = {"namespace": namespace, "name": name, "version": made.version, "runs_max": runs_max}
    await connection.execute(_SQL.text("set_latest_version"), parameters)
    return Published(made.version_id, made.version, digest, made.published_at, created=True)


class _Task(msgspec.Struct):
    workflow: dict[str, Any] | None = None


class _Definition(msgspec.Struct):
    tasks: dict[str, _Task]


class _Limit(msgspec.Struct):
    runs: int = 1


class _Limited(msgspec.Struct):
    limit: _Limit | None = None


async def _refuse_cycles(
    connection: Connection, namespace: str, name: str, definition: str, find_line: Callable[[Path], int | None]
) -> None:
    """A workflow that is not published yet leads nowhere: whoever closes the cycle is refused."""
    if '"workflow"' not in definition:
        return
    tasks = msgspec.json.decode(definition, type=_Definition).tasks
    asked = {task: given.workflow for task, given in tasks.items() if given.workflow is not None}
    if not asked:
        return
    await connection.execute(_SQL.text("lock_children"))
    names, versions = [c["name"] for c in asked.values()], [c.get("version") for c in asked.values()]
    edges = await fetch(
        connection, _Edge, _SQL.text("walk_children"), namespace=namespace, name=name, names=names, versions=versions
    )
    children: dict[str, list[str]] = {}
    for workflow, child in edges:
        children.setdefault(workflow, []).append(child)
    faults = []
    for task, start in asked.items():
        way = _find_way(children, start["name"], name)
        if way is not None:
            path: Path = ("tasks", task, "workflow")
            message = f"workflows that start each other in a cycle: {' -> '.join([name, *way])}"
            faults.append(Fault(format_path(path), message, find_line(path)))
    if faults:
        raise DefinitionError(faults)


def _find_way(children: dict[str, list[str]], first: str, last: str) -> list[str] | None:
    """The shortest way from one workflow to another, both included; None when there is none."""
    came_from: dict[str, str | None] = {first: None}
    for workflow in (walked := [first]):  # grows while it is walked
        if workflow == last:
            way: list[str] = []
            step: str | None = workflow
            while step is not None:
                way.append(step)
                step = came_from[step]
            return way[::-1]
        for child in children.get(workflow, ()):
            if child not in came_from:
                came_from[child] = workflow
                walked.append(child)
    return None


async def get_version(
    connection: Connection, namespace: str, name: str, version: int | None = None
) -> VersionRow | None:
    """The version asked for, or the latest."""
    return await fetch_one(
        connection, VersionRow, _SQL.text("get_version"), namespace=namespace, name=name, version=version
    )


async def list_versions(connection: Connection, namespace: str, name: str) -> list[VersionSummaryRow]:
    """All of one workflow, newest first; none: no such workflow."""
    return await fetch(connection, VersionSummaryRow, _SQL.text("list_versions"), namespace=namespace, name=name)


async def list_workflows(connection: Connection, namespace: str, *, limit: int, after: str = "") -> list[WorkflowRow]:
    """By name. after: the last name seen."""
    return await fetch(
        connection, WorkflowRow, _SQL.text("list_workflows"), namespace=namespace, after=after, limit=limit
    )


async def get_input_schema(connection: Connection, version_id: int) -> str | None:
    """JSON Schema of the input of a version's runs, as JSON text; None or `null` when it takes anything."""

    def schema(text: str | None) -> str | None:
        return text

    return await fetch_one(connection, schema, _SQL.text("get_input_schema"), version_id=version_id)
