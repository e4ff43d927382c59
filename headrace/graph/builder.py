"""A workflow written in Python."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel

from headrace.approval import Approval
from headrace.document import Path, copy_plain, format_path
from headrace.errors import Fault
from headrace.graph.check import check
from headrace.graph.field import Join
from headrace.graph.task import Child, Compensate, Deadline, Map, Pool, Repeat, Retry, Signal, Wait
from headrace.graph.workflow import Limit, Workflow


class Builder:
    """Collects its tasks. Nothing is checked before `publishable`, which names every fault at once."""

    def __init__(
        self,
        name: str,
        *,
        description: str = "",
        input: Mapping[str, Any] | None = None,
        output: Mapping[str, Any] | None = None,
        deadline: str | float | timedelta | None = None,
        on_publish: Literal["pin", "migrate"] = "pin",
        limit: Limit | Mapping[str, Any] | None = None,
    ) -> None:
        self._content: dict[str, Any] = {"name": name, "description": description, "input": input, "output": output}
        self._content |= {"deadline": _to_data(deadline), "limit": _to_data(limit)}
        if on_publish != "pin":
            self._content["on_publish"] = on_publish
        self._tasks: dict[str, dict[str, Any]] = {}
        self._repeated: list[str] = []

    def task(
        self,
        name: str,
        *,
        run: str | None = None,
        needs: str | Sequence[str] = (),
        join: Join = "all",
        if_: str | bool | None = None,
        with_: Any = None,
        queue: str = "default",
        retry: int | Retry | Mapping[str, Any] | None = None,
        timeout: str | float | timedelta | None = None,
        approval: Approval | Mapping[str, Any] | None = None,
        exclusive: bool = False,
        effect: Literal["idempotent", "reconcile", "manual"] = "idempotent",
        lookup: str | None = None,
        wait: Wait | Mapping[str, Any] | None = None,
        signal: str | Signal | Mapping[str, Any] | None = None,
        map: Map | Mapping[str, Any] | Sequence[Any] | str | None = None,
        pool: str | Pool | Mapping[str, Any] | None = None,
        deadline: str | float | timedelta | Deadline | Mapping[str, Any] | None = None,
        start_within: str | float | timedelta | None = None,
        repeat: Repeat | Mapping[str, Any] | None = None,
        workflow: str | Child | Mapping[str, Any] | None = None,
        compensate: str | Compensate | Mapping[str, Any] | None = None,
        was: str | None = None,
    ) -> "Builder":
        """Add a task; its position is its number. Fields as in YAML, with `_` after the names Python has taken."""
        if name in self._tasks:
            self._repeated.append(name)
        given = {"run": run, "if": if_, "with": with_, "retry": retry, "timeout": timeout, "approval": approval}
        given |= {"lookup": lookup, "wait": wait, "signal": signal, "map": map, "pool": pool, "compensate": compensate}
        given |= {"deadline": deadline, "start_within": start_within, "repeat": repeat}
        given |= {"workflow": workflow, "was": was}
        fields = {key: _to_data(value) for key, value in given.items() if value is not None}
        self._tasks[name] = {**fields, "needs": needs, "join": join, "queue": queue, "exclusive": exclusive}
        self._tasks[name]["effect"] = effect
        return self

    def publishable(self) -> Workflow:
        """The finished workflow. Raises DefinitionError with every fault."""
        faults = [Fault(format_path(("tasks", name)), "duplicate task name") for name in self._repeated]

        def add(path: Path, message: str) -> None:
            faults.append(Fault(format_path(path), message))

        return check(copy_plain({**self._content, "tasks": self._tasks}, add), faults, lambda path: None)


def build(
    name: str,
    *,
    description: str = "",
    input: Mapping[str, Any] | None = None,
    output: Mapping[str, Any] | None = None,
    deadline: str | float | timedelta | None = None,
    on_publish: Literal["pin", "migrate"] = "pin",
    limit: Limit | Mapping[str, Any] | None = None,
) -> Builder:
    """Begin a workflow in Python.

    >>> orders = build("orders")
    >>> _ = orders.task("validate", run="orders.validate")
    >>> _ = orders.task("charge", run="payments.charge", needs="validate", retry=5, timeout="30s")
    >>> list(orders.publishable().tasks)
    ['validate', 'charge']
    """
    return Builder(
        name, description=description, input=input, output=output, deadline=deadline, on_publish=on_publish, limit=limit
    )


def _to_data(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if isinstance(value, timedelta):
        return value.total_seconds()
    return {key: _to_data(item) for key, item in value.items()} if isinstance(value, Mapping) else value
