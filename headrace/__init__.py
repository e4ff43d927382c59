"""Durable workflows: Kafka wakes workers, Postgres decides.

    import headrace

    @headrace.task("payments.charge")
    async def charge(order_id: str, amount: int, ctx: headrace.Context) -> dict[str, str]: ...

A user's process needs this name only: `task` and `Registry` for bodies, `Worker` to run them, `Client` to start and
read runs, `build` and `parse` for workflows. Names are loaded when they are first used, so that the command line starts
quickly.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.client import AsyncClient, Client
    from headrace.context import Context, current
    from headrace.errors import AmbiguousError, FencedError, HeadraceError, NonRetryable, RetryAfter
    from headrace.graph import Workflow, build, parse
    from headrace.lookup import did_not_happen, happened, unknown
    from headrace.registry import Registry, task
    from headrace.worker import Worker

__version__ = "0.1.0"

__all__ = [
    "AmbiguousError",
    "AsyncClient",
    "Client",
    "Context",
    "FencedError",
    "HeadraceError",
    "NonRetryable",
    "Registry",
    "RetryAfter",
    "Worker",
    "Workflow",
    "__version__",
    "build",
    "current",
    "did_not_happen",
    "happened",
    "parse",
    "task",
    "unknown",
]

_HOMES = {
    "AmbiguousError": "errors",
    "AsyncClient": "client",
    "Client": "client",
    "Context": "context",
    "current": "context",
    "FencedError": "errors",
    "HeadraceError": "errors",
    "NonRetryable": "errors",
    "RetryAfter": "errors",
    "Workflow": "graph",
    "build": "graph",
    "parse": "graph",
    "did_not_happen": "lookup",
    "happened": "lookup",
    "unknown": "lookup",
    "Registry": "registry",
    "task": "registry",
    "Worker": "worker",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"headrace has no {name!r}")
    return getattr(import_module(f"headrace.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
