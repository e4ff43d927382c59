"""Puts the world of the simulation under the product: its modules find virtual time, lanes, and the modelled edges.

Everything is patched from outside, once for the life of the interpreter; so a simulation has an interpreter of its
own. What stays real is every decision: machine, agents, sweeps, store, transport and membership, relay, publisher and
its ownership, worker with intake, control, hold, session, execution, reports.
"""

import gc
import importlib
import pkgutil
import select
import socket
import sys
import threading
import time
from types import ModuleType, SimpleNamespace
from typing import Any, Final, NoReturn
from uuid import UUID

import psycopg
import structlog

from tests.simulation import kafka_clients, postgres_clients
from tests.simulation.loop import Asyncio
from tests.simulation.primitives import Select, Socket, Thread, Threading, Time
from tests.simulation.scheduler import Killed, sim

_PACKAGES: Final = (
    "headrace",
    "headrace.worker",
    "headrace.machine",
    "state",
    "state.queries",
    "streams",
    "connectors",
)
_SKIPPED: Final = {
    *("headrace.stack", "headrace.supervisor", "headrace.client", "headrace.requests", "headrace.parent"),
    *("headrace.__main__", "streams.faust_host", "connectors.__main__"),
}


def install() -> None:
    for module in _modules():
        _replace(module)
    _replace_classes()
    _replace_details()
    silent: Any = _Silent
    structlog.configure(wrapper_class=silent, cache_logger_on_first_use=False)
    sys.unraisablehook = lambda _: None  # coroutines of killed processes are dropped, not ended


def put(target: Any, **attributes: Any) -> None:
    """Replace what a module or class of the product has under these names."""
    for name, value in attributes.items():
        setattr(target, name, value)


def _modules() -> list[ModuleType]:
    names = []
    for package in _PACKAGES:
        found = importlib.import_module(package)
        names += [f"{package}.{info.name}" for info in pkgutil.iter_modules(found.__path__) if not info.ispkg]
    wanted = [n for n in names if n not in _SKIPPED]
    return [importlib.import_module(package) for package in _PACKAGES] + [importlib.import_module(n) for n in wanted]


_MODULES: Final[dict[Any, Any]] = {
    time: Time,
    threading: Threading,
    select: Select,
    socket: Socket,
    psycopg: postgres_clients.Psycopg(),
    gc: SimpleNamespace(collect=lambda: 0, freeze=lambda: None, set_threshold=lambda *_: None),
}


def _replace(module: ModuleType) -> None:
    """Names in a module that stand for a part of the world outside."""
    names = {
        "Consumer": kafka_clients.FakeConsumer,
        "Producer": kafka_clients.FakeProducer,
        "BatchProducer": kafka_clients.FakeBatchProducer,
        "Delivery": kafka_clients.FakeDelivery,
        "AdminClient": kafka_clients.FakeAdminClient,
        "Pipe": postgres_clients.FakePipe,
        "ReplicationStream": postgres_clients.FakeReplicationStream,
        "uuid7": make_uuid7,
        "uuid4": make_uuid,
    }
    for name, value in list(vars(module).items()):
        if isinstance(value, ModuleType) and value in _MODULES:
            setattr(module, name, _MODULES[value])
        elif name in names:
            setattr(module, name, names[name])


def _replace_classes() -> None:
    """Threads that are classes of the product, and defaults bound when a class was made."""
    from headrace.pace import Pace
    from headrace.worker.control import Control
    from headrace.worker.intake import Intake

    for kind in (Control, Intake):
        put(kind, start=_start, join=_join)
    put(Pace.__init__, __defaults__=(Time.monotonic, Time.sleep))


def _start(thread: Any) -> None:
    thread.simulated = Thread(target=thread.run, name=thread.name)
    thread.simulated.start()


def _join(thread: Any, timeout: float | None = None) -> None:
    thread.simulated.join(timeout)


def _replace_details() -> None:
    import confluent_kafka

    import connectors.relay
    import headrace.leave
    import headrace.listing
    import headrace.worker.control
    import headrace.worker.hold
    import headrace.worker.session
    import state.store
    import streams.metrics
    import streams.transport

    put(confluent_kafka, Producer=kafka_clients.FakeProducer)  # a worker's parent asks for it late
    put(headrace.leave, leave=kafka_clients.leave)
    put(headrace.listing, PLACES=64)  # of 4,096: it is mapped and read for every worker that dies
    put(streams.transport, asyncio=Asyncio())
    put(connectors.relay, secrets=SimpleNamespace(token_hex=lambda size: make_uuid().hex[: 2 * size]))
    for module in (headrace.worker.control, headrace.worker.hold):  # what an exclusive body leads to
        put(module, os=SimpleNamespace(_exit=_exit))
    put(headrace.worker.session, uuid=SimpleNamespace(uuid4=make_uuid))
    put(state.store, _encode=lambda statement, rows: [list(column) for column in zip(*rows, strict=True)])
    put(streams.metrics.Metrics, fresh=lambda self: [])


def _exit(code: int) -> NoReturn:
    """A process ends itself, at once."""
    sim().current.process.kill()
    raise Killed


def make_uuid() -> UUID:
    return UUID(int=sim().random.getrandbits(128), version=4)


def make_uuid7() -> UUID:
    """Rises with time, as the real one does."""
    at = round(sim().now * 1000)
    return UUID(int=(at << 80) | sim().random.getrandbits(80), version=None)


class _Silent:
    """A logger that says nothing, unless a trace is wanted."""

    is_traced = False

    def __init__(self, *_: Any, **__: Any) -> None:
        return None

    def bind(self, **_: Any) -> "_Silent":
        return self

    def _log(self, event: str = "", *_: Any, **fields: Any) -> None:
        if _Silent.is_traced:
            said = " ".join(f"{name}={value}" for name, value in fields.items() if name != "exc_info")
            sim().tell(sim().current.process.name, f"log: {event} {said}"[:300])

    debug = info = warning = error = exception = critical = _log


def trace_logs() -> None:
    _Silent.is_traced = True
