"""The graph as a whole: needs, cycles, expressions and what they refer to."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from headrace.cycles import find_knots, shortest_cycle, write_cycle
from headrace.document import Path
from headrace.expressions import (
    OF_A_COMPENSATION,
    OF_A_ROUND,
    OF_AN_ITEM,
    OF_ITS_END,
    Condition,
    ExpressionError,
    Value,
    Variables,
    compile_condition,
    compile_value,
    inspect_template,
)
from headrace.graph.fault import Found, suggest
from headrace.graph.field import JOINS, NEEDS_MAX, TASKS_MAX
from headrace.graph.task import DOES_NOTHING
from headrace.input_schema import find_schema_faults

_BLOCK: Final = 1_024
"""References checked in one pass over the graph: a task then costs 128 bytes and not one bit for every other task."""
_LENGTHS: Final = (
    ("wait", "for"), ("wait", "until"), ("signal", "timeout"), ("deadline", "for"), ("deadline", "until")
)  # fmt: skip
"""Fields that hold a duration or an instant, or an expression that gives one."""


class GraphCheck:
    """Finds what no field shows alone, in data that may be wrong in any way."""

    def __init__(self, data: Any) -> None:
        self._data: dict[str, Any] = data if isinstance(data, dict) else {}
        tasks = self._data.get("tasks")
        is_usable = isinstance(tasks, dict) and len(tasks) <= TASKS_MAX
        self._all: dict[str, Any] = tasks if isinstance(tasks, dict) and is_usable else {}
        self._tasks: dict[str, dict[str, Any]] = {
            name: task for name, task in self._all.items() if isinstance(task, dict)
        }
        self._edges: dict[str, dict[str, Path]] = {}
        """The needs of each task that make sense, with the path of each."""
        self._found: list[Found] = []

    def faults(self) -> list[Found]:
        for name, task in self._tasks.items():
            if all(task.get(what) is None for what in ("run", "approval", "wait", "signal", "workflow")):
                self._found.append((("tasks", name), DOES_NOTHING))
            self._edges[name] = self._find_needs(name, task.get("needs"))
            self._check_join(name, task)
            self._check_child(name, task)
        self._check_renames()
        order = self._sort()
        self._find_cycles(order)
        self._check_references(order)
        self._check_limit()
        self._check_schema(("input",), self._data.get("input"))
        for name, task in self._tasks.items():
            if isinstance(task.get("approval"), dict):
                self._check_schema(("tasks", name, "approval", "form"), task["approval"].get("form"))
        return self._found

    def _check_schema(self, place: Path, schema: Any) -> None:
        if isinstance(schema, dict):
            self._found.extend(((*place, *path), message) for path, message in find_schema_faults(schema))

    def _find_needs(self, name: str, needs: Any) -> dict[str, Path]:
        place: Path = ("tasks", name, "needs")
        listed = enumerate(needs) if isinstance(needs, list) else ()
        given = [(needs, place)] if isinstance(needs, str) else [(need, (*place, at)) for at, need in listed]
        edges: dict[str, Path] = {}
        for need, path in given:
            if not isinstance(need, str):
                continue
            if need == name:
                self._found.append((path, f"a task cannot need itself: {name} -> {name}"))
            elif need not in self._all:
                self._found.append((path, f"there is no task {need[:120]!a}{self._suggest_task(need)}"))
            elif need in edges:
                self._found.append((path, f"needs {need} twice"))
            else:
                edges[need] = path
        return edges

    def _check_join(self, name: str, task: dict[str, Any]) -> None:
        join, needs = task.get("join"), task.get("needs")
        count = len(needs) if isinstance(needs, list) else int(isinstance(needs, str))
        if join in JOINS[1:] and not count:
            self._found.append((("tasks", name, "join"), f"there is nothing to join: {name} has no needs"))
        elif isinstance(join, int) and not isinstance(join, bool) and count < join <= NEEDS_MAX:
            self._found.append((("tasks", name, "join"), f"{join} cannot complete: {name} has {count} needs"))

    def _check_child(self, name: str, task: dict[str, Any]) -> None:
        """What other workflows it leads to is known, and looked at, where it is published."""
        child = task.get("workflow")
        given = child.get("name") if isinstance(child, dict) else child
        if given is not None and given == self._data.get("name"):
            where: Path = ("tasks", name, "workflow")
            self._found.append((where, f"a workflow cannot start itself: {given} -> {given}"))

    def _check_renames(self) -> None:
        """Two tasks whose effects went by one name would have the same effect keys."""
        renamed = {name: task["was"] for name, task in self._tasks.items() if isinstance(task.get("was"), str)}
        whose = {name: name for name in self._all if name not in renamed}
        for name, was in renamed.items():
            if was == name:
                self._found.append((("tasks", name, "was"), f"is its name now: {name} needs no `was`"))
            elif (other := whose.setdefault(was, name)) != name:
                message = f"{other} has the effect keys of {was}: no two tasks of a workflow share them"
                self._found.append((("tasks", name, "was"), message))

    def _suggest_task(self, name: str) -> str:
        return suggest(name, self._all) if len(self._found) < 20 else ""

    def _sort(self) -> list[str]:
        """Every task after all it needs; without those on a cycle or behind one."""
        waiting = {name: len(needs) for name, needs in self._edges.items()}
        dependants: dict[str, list[str]] = {}
        for name, needs in self._edges.items():
            for need in needs:
                dependants.setdefault(need, []).append(name)
        order = [name for name in self._all if not waiting.get(name)]
        for name in order:  # grows while it is read
            for dependant in dependants.get(name, ()):
                waiting[dependant] -= 1
                if not waiting[dependant]:
                    order.append(dependant)
        return order

    # -- cycles --------------------------------------------------------------------------------------------------------
    def _find_cycles(self, order: list[str]) -> None:
        """Report one cycle for each knot: a set of tasks that all need each other, directly or not."""
        placed = set(order)
        rest = {
            name: [need for need in needs if need not in placed]
            for name, needs in self._edges.items()
            if name not in placed
        }
        for knot in find_knots(rest):
            cycle = shortest_cycle(next(name for name in self._all if name in knot), rest, knot)
            path = self._edges[cycle[0]][cycle[1]]
            self._found.append((path, f"the needs form a cycle: {write_cycle(cycle)}"))

    # -- references ----------------------------------------------------------------------------------------------------
    def _check_references(self, order: list[str]) -> None:
        placed = set(order)
        far: dict[str, list[tuple[str, Path]]] = {}
        for name, reference, path in self._references():
            if reference == name:
                self._found.append((path, "a task cannot use its own output"))
            elif reference not in self._all:
                self._found.append((path, f"there is no task {reference}{self._suggest_task(reference)}"))
            elif name in placed and reference not in self._edges[name]:
                far.setdefault(reference, []).append((name, path))
        self._check_output()
        wanted = list(far)
        for start in range(0, len(wanted), _BLOCK):
            self._check_block({name: far[name] for name in wanted[start : start + _BLOCK]}, order)

    def _check_output(self) -> None:
        """It may use every task: they have all ended by then."""
        output = self._data.get("output")
        for finding in inspect_template(output) if isinstance(output, dict) else ():
            path = ("output", *finding.path)
            if finding.error is not None:
                self._found.append((path, finding.error))
            for name in sorted(finding.references - self._all.keys()):
                self._found.append((path, f"there is no task {name}{self._suggest_task(name)}"))

    def _check_limit(self) -> None:
        """Its key is worked out before anything of the run has begun."""
        limit = self._data.get("limit")
        key = limit.get("key") if isinstance(limit, dict) else None
        for finding in inspect_template(key) if isinstance(key, str) else ():
            if finding.error is not None:
                self._found.append((("limit", "key"), finding.error))
            elif finding.references:
                self._found.append((("limit", "key"), "sees only `input`: no task of the run has begun by then"))

    def _references(self) -> Iterator[tuple[str, str, Path]]:
        """(task, task it refers to, path) of every expression; the wrong ones become faults."""
        for name, task in self._tasks.items():
            place: Path = ("tasks", name)
            mapped = task.get("map")
            over, where = (
                (mapped.get("over"), (*place, "map", "over")) if isinstance(mapped, dict) else (mapped, (*place, "map"))
            )
            repeat = task.get("repeat")
            variables = OF_AN_ITEM if mapped is not None else OF_A_ROUND if repeat is not None else ()
            approval = task.get("approval")
            shown = approval if isinstance(approval, dict) else dict[str, Any]()
            undo = task.get("compensate")
            undone = undo.get("with") if isinstance(undo, dict) else None
            pool = task.get("pool")
            fair = pool.get("fairness_key") if isinstance(pool, dict) else None
            templates: list[tuple[Any, Path, Variables]] = [
                (task.get("with"), (*place, "with"), variables),
                (over, where, ()),
                (undone, (*place, "compensate", "with"), OF_A_COMPENSATION),
                (fair, (*place, "pool", "fairness_key"), OF_AN_ITEM if mapped is not None else ()),
                *((shown.get(part), (*place, "approval", part), ()) for part in ("title", "context")),
            ]
            for given, start, known in templates:
                for finding in inspect_template(given, known) if given is not None else ():
                    path = (*start, *finding.path)
                    if finding.error is not None:
                        self._found.append((path, finding.error))
                    yield from ((name, reference, path) for reference in sorted(finding.references))
            for what, key in _LENGTHS:
                waits = task.get(what)
                if what == "deadline" and isinstance(waits, str):
                    waits = {"for": waits}
                text = waits.get(key) if isinstance(waits, dict) else None
                if isinstance(text, str) and "${{" in text:
                    where = (*place, what, key) if isinstance(task[what], dict) else (*place, what)
                    yield from ((name, reference, where) for reference in self._read(where, compile_value, text))
            signal = task.get("signal")
            for finding in inspect_template(signal["key"]) if isinstance(signal, dict) and signal.get("key") else ():
                where = (*place, "signal", "key")
                if finding.error is not None:
                    self._found.append((where, finding.error))
                yield from ((name, reference, where) for reference in sorted(finding.references))
            until = repeat.get("until") if isinstance(repeat, dict) else None
            for text, where, known in (
                (task.get("if"), (*place, "if"), ()),
                (until, (*place, "repeat", "until"), OF_ITS_END),
            ):
                if isinstance(text, str):
                    compile_it = partial(compile_condition, variables=known)
                    yield from ((name, reference, where) for reference in self._read(where, compile_it, text))

    def _read(self, where: Path, compile_it: Callable[[str], Condition | Value], text: str) -> list[str]:
        try:
            return sorted(compile_it(text).references)
        except ExpressionError as error:
            self._found.append((where, error.message))
            return []

    def _check_block(self, far: dict[str, list[tuple[str, Path]]], order: list[str]) -> None:
        """Walk down the graph once, carrying for each task which of the tasks in `far` are upstream, as bits."""
        bits = {name: 1 << position for position, name in enumerate(far)}
        upstream: dict[str, int] = {}
        for name in order:
            seen = 0
            for need in self._edges.get(name, ()):
                seen |= upstream[need] | bits.get(need, 0)
            upstream[name] = seen
        for reference, uses in far.items():
            for name, path in uses:
                if not upstream[name] & bits[reference]:
                    message = f"uses the output of {reference}, which is not upstream: add it to the needs of {name}"
                    self._found.append((path, message))
