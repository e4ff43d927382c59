"""Faults put into a process from outside: the product knows nothing of them.

Put this folder first on PYTHONPATH of a child process, and say in HEADRACE_INJECT, as JSON, what is to happen:

    {"crash": "CP05", "when": "before|after|reply_lost", "nth": 3, "once_file": "/tmp/fired"}
        one crash point of `tests/faults/points.py`, at the third time it is passed, in one process life only
    {"armed": "/tmp/orders/now.json", "process": "streams-1"}
        all crash points are wrapped and do nothing, until that file holds an order such as
        {"id": "7", "point": "CP05", "when": "after", "process": "streams", "nth": 1}: no restart to begin with
    {"plant": "B08"}
        a planted bug of `tests/faults/planted/plants.py`, for as long as the process lives; together with either of
        the others as well

A function is wrapped right behind the import of its module, so before anybody can take its name from there. A name that
does not exist ends the process with status 2 and a line that says so: a rename must not silently take a fault away.
"""

import contextlib
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

CRASHED = 137
REFUSED = 2
FAULTS = Path(__file__).resolve().parents[1]

Function = Callable[..., Any]
Change = Callable[[Any], Any]
"""Takes what stands at a target and gives what is to stand there instead."""


# == where ============================================================================================================
def change(module: ModuleType, path: str, change: Change) -> Callable[[], None]:
    """Replace `path` in a module, `Class.method` or a name; answers what undoes it. Raises AttributeError."""
    *outer, name = path.split(".")
    owner: Any = functools.reduce(getattr, outer, module)
    before = inspect.getattr_static(owner, name)
    setattr(owner, name, change(before))
    return lambda: setattr(owner, name, before)


class Hook(importlib.abc.MetaPathFinder):
    """Changes modules as soon as they have been imported."""

    def __init__(self, changes: Mapping[str, list[tuple[str, Change]]]) -> None:
        """changes: module -> (path in it, change)."""
        self._changes = changes

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._changes:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            for name, to in self._changes[fullname]:
                try:
                    change(module, name, to)
                except AttributeError as error:
                    refuse(f"{fullname}:{name} cannot be wrapped: {error}")

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def refuse(why: str) -> None:
    """End the process now, whatever would catch an exception; status 2 is not started again."""
    os.write(2, f"fault injection: {why}\n".encode())
    os._exit(REFUSED)


# == when =============================================================================================================
class Order:
    """What one crash point is to do, and how often it was passed in this process life."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.point, self.when = str(given["point"]), str(given["when"])
        self.place = str(given.get("place", ""))
        """One of the point's places; empty: any."""
        self.process = str(given.get("process", ""))
        self.nth = int(given.get("nth", 1))
        self.once_file = given.get("once_file")
        self._passed = 0
        self._lock = threading.Lock()

    def is_now(self) -> bool:
        """Count one pass; whether it is the one. With `once_file` only one process life ever hears yes."""
        with self._lock:
            self._passed += 1
            if self._passed != self.nth:
                return False
        return self.once_file is None or claim(self.once_file)


def claim(path: str) -> bool:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.write(descriptor, f"{os.getpid()}\n".encode())
    os.close(descriptor)
    return True


class Orders:
    """The order that counts now: given at the start, or read from a file whenever that has become another."""

    def __init__(self, *, order: Order | None = None, file: str | None = None, process: str = "") -> None:
        self._order, self._file, self._process = order, file, process
        self._identity: tuple[int, int] | None = None

    def of(self, point: str, place: str, when: str) -> Order | None:
        if self._file is not None:
            self._look(self._file)
        order = self._order
        if order is None or (order.point, order.when) != (point, when) or order.place not in ("", place):
            return None
        return order if self._process.startswith(order.process) else None

    def _look(self, file: str) -> None:
        try:
            found = os.stat(file)
        except FileNotFoundError:
            self._identity = self._order = None
            return
        identity = (found.st_ino, found.st_mtime_ns)
        if identity != self._identity:
            with contextlib.suppress(FileNotFoundError):
                self._order = Order({"once_file": f"{file}.fired", **json.loads(Path(file).read_text())})
                self._identity = identity


# == what =============================================================================================================
def wrapped(
    function: Function,
    *,
    point: str,
    place: str,
    orders: Orders,
    error: Callable[[], Exception] | None = None,
    only: Callable[..., bool] | None = None,
    instead: Mapping[str, Function] | None = None,
) -> Function:
    """A function with a crash point around it.

    before      the process ends instead of the call
    after       the call is done, then the process ends
    refused     the call is not done, and raises `error`: the request was lost
    reply_lost  the call is done, and raises `error`: its caller cannot know

    only: asked with the arguments and, behind them, the result (None before the call): whether this pass counts.
    instead: for one of these words, what takes the place of all that; given the function itself first, and not async.
    """
    acts = instead or {}

    def is_now(when: str, args: tuple[Any, ...], result: Any) -> bool:
        order = orders.of(point, place, when)
        return order is not None and (only is None or only(*args, result)) and order.is_now()

    def lose() -> Exception:
        return error() if error is not None else ConnectionError(f"{point}: injected")

    def begin(args: tuple[Any, ...]) -> None:
        if "before" not in acts and is_now("before", args, None):
            os._exit(CRASHED)
        if "refused" not in acts and is_now("refused", args, None):
            raise lose()

    def end(args: tuple[Any, ...], result: Any) -> Any:
        if "after" not in acts and is_now("after", args, result):
            os._exit(CRASHED)
        if "reply_lost" not in acts and is_now("reply_lost", args, result):
            raise lose()
        return result

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def later(*args: Any, **kwargs: Any) -> Any:
            begin(args)
            return end(args, await function(*args, **kwargs))

        return later

    @functools.wraps(function)
    def at_once(*args: Any, **kwargs: Any) -> Any:
        for when, act in acts.items():
            if is_now(when, args, None):
                return act(function, *args, **kwargs)
        begin(args)
        return end(args, function(*args, **kwargs))

    return at_once


# == all of it ========================================================================================================
def install(text: str) -> None:
    """Do what HEADRACE_INJECT says; a description that makes no sense ends the process."""
    try:
        given = json.loads(text)
        changes = plants(given["plant"]) if "plant" in given else []
        if "plant" not in given or "crash" in given or "armed" in given:
            changes = [*changes, *points(given)]
    except Exception as error:
        refuse(f"HEADRACE_INJECT={text}: {error!r}")
        return
    hooked: dict[str, list[tuple[str, Change]]] = {}
    for target, to in changes:
        module, _, path = target.partition(":")
        if module in sys.modules:
            refuse(f"{module} was imported before it could be wrapped")
        hooked.setdefault(module, []).append((path, to))
    sys.meta_path.insert(0, Hook(hooked))


def points(given: Mapping[str, Any]) -> list[tuple[str, Change]]:
    """What the crash points change: one of them, or all of them for orders that come by file."""
    table = _load("headrace_crash_points", FAULTS / "points.py")
    if "crash" in given:
        if given["crash"] not in table.POINTS:
            raise LookupError(f"there is no crash point {given['crash']}")
        order = Order({"when": "before", **given, "point": given["crash"]})
        orders, wanted = Orders(order=order, process=given.get("process", "")), {given["crash"]}
    else:
        orders, wanted = Orders(file=given["armed"], process=given.get("process", "")), set(table.POINTS)
    changes: list[tuple[str, Change]] = table.changes(orders, wanted, wrapped)
    return changes


def plants(name: str) -> list[tuple[str, Change]]:
    table = _load("headrace_plants", FAULTS / "planted" / "plants.py")
    changes: list[tuple[str, Change]] = table.PLANTS[name].changes
    return changes


def _load(name: str, file: Path) -> ModuleType:
    """By its file: the process under test need not have `tests` on its path."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look for their module there
    spec.loader.exec_module(module)
    return module
