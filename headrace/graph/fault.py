"""What is wrong with a definition, in words and in the order of the document."""

from collections.abc import Callable, Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from headrace.approval import Approval, Escalation
from headrace.document import Path, format_path
from headrace.errors import Fault
from headrace.graph.task import Child, Compensate, Deadline, Map, Repeat, Retry, Signal, Task, Wait
from headrace.graph.workflow import Limit, Workflow

FAULTS_MAX: Final = 1_000
"""More are counted, and not listed."""

Found = tuple[Path, str]


def in_order(data: Any, known: list[Fault], found: list[Found], line: Callable[[Path], int | None]) -> list[Fault]:
    """Without repetition, in the order of the document."""
    order = _Order(data)
    found = sorted(dict.fromkeys(found), key=lambda fault: order.of(fault[0]))
    faults = list(dict.fromkeys([*known, *(Fault(format_path(path), message, line(path)) for path, message in found)]))
    faults.sort(key=lambda fault: fault.line or 0)
    if len(faults) > FAULTS_MAX:
        faults = [*faults[:FAULTS_MAX], Fault("", f"and {len(faults) - FAULTS_MAX} more faults")]
    return faults


class _Order:
    """Compares paths by where they stand in the data."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._positions: dict[int, dict[Any, int]] = {}

    def of(self, path: Path) -> tuple[int, ...]:
        order, here = [], self._data
        for key in path:
            if isinstance(here, dict) and key in here:
                order.append(self._within(here)[key])
                here = here[key]
            elif isinstance(here, list) and isinstance(key, int) and key < len(here):
                order.append(key)
                here = here[key]
            else:
                break
        return tuple(order)

    def _within(self, fields: dict[Any, Any]) -> dict[Any, int]:
        if id(fields) not in self._positions:
            self._positions[id(fields)] = {key: position for position, key in enumerate(fields)}
        return self._positions[id(fields)]


def field_faults(error: ValidationError) -> Iterator[Found]:
    for detail in error.errors(include_url=False):
        path = tuple(key for key in detail["loc"] if key != "[key]")
        yield path, _message(detail, path)


def _message(detail: Any, path: Path) -> str:
    context, given = detail.get("ctx", {}), type(detail["input"]).__name__
    match detail["type"]:
        case "value_error":
            return str(context["error"])
        case "missing":
            return "is missing"
        case "extra_forbidden":
            return f"unknown field{suggest(str(path[-1]), _known_fields(path[:-1]))}"
        case "string_type":
            return f"must be text, not {_NAMES.get(given, given)}"
        case "int_type" | "float_type":
            return f"must be a number, not {_NAMES.get(given, given)}"
        case "tuple_type":
            return f"must be a list, not {_NAMES.get(given, given)}"
        case "dict_type" | "model_type" | "model_attributes_type":
            return f"must be a map, not {_NAMES.get(given, given)}"
        case "literal_error":
            return f"must be {context['expected']}"
        case "too_long":
            return f"{context['actual_length'] or 'too many'} are too many: at most {context['max_length']}"
        case "too_short":
            return f"must have at least {context['min_length']}"
        case _:
            return str(detail["msg"]).removeprefix("Input should be ").removeprefix("String should ")


_NAMES: Final = {
    **{"str": "text", "int": "a number", "float": "a number", "bool": "true or false"},
    **{"NoneType": "null", "dict": "a map", "list": "a list"},
}


def _known_fields(path: Path) -> list[str]:
    if len(path) > 3 and path[2:4] == ("approval", "escalate"):
        return list(Escalation.model_fields)
    models: dict[str, type[BaseModel]] = {
        "retry": Retry, "approval": Approval, "wait": Wait, "signal": Signal, "map": Map,
        "deadline": Deadline, "repeat": Repeat, "workflow": Child, "compensate": Compensate,
    }  # fmt: skip
    model: type[BaseModel] = Limit if path[:1] == ("limit",) else Workflow
    if len(path) >= 2:  # tasks.NAME and deeper
        model = models.get(str(path[2]), Task) if len(path) > 2 else Task
    return [str(field.validation_alias or name) for name, field in model.model_fields.items()]


def suggest(name: str, known: Iterable[str]) -> str:
    choices = list(islice(known, 1_000))
    close = get_close_matches(name, choices, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(choices)}" if len(choices) <= 20 else ""
