"""What a harness is given, in the ways a test may write it."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from headrace.graph import Workflow, from_data, parse
from headrace.instant import parse_instant, to_microseconds
from headrace.machine.event import PRIORITY_MAX
from headrace.registry import Registry
from headrace.registry import default as default_registry

Published = Workflow | str | bytes | Mapping[str, Any]
"""A workflow, YAML or JSON text, or parsed data."""
Bodies = Registry | Mapping[str, Callable[..., Any]]


def read_instant(given: datetime | str) -> int:
    """Raises ValueError without an offset."""
    instant = parse_instant(given) if isinstance(given, str) else given
    if instant.tzinfo is None:
        raise ValueError(f"{instant} has no offset: give an aware datetime, or text such as 2026-01-01T09:00:00Z")
    return to_microseconds(instant)


def read_priority(given: int) -> int:
    if not -PRIORITY_MAX <= given <= PRIORITY_MAX:
        raise ValueError(f"a priority is from -{PRIORITY_MAX} to {PRIORITY_MAX}, and not {given}")
    return given


def read_workflow(workflow: Published) -> Workflow:
    if isinstance(workflow, Workflow):
        return workflow
    return parse(workflow) if isinstance(workflow, str | bytes) else from_data(dict(workflow))


def read_bodies(bodies: Bodies | None) -> Registry:
    if bodies is None or isinstance(bodies, Registry):
        return default_registry if bodies is None else bodies
    registry = Registry()
    for name, function in bodies.items():
        registry.task(name)(function)
    return registry
