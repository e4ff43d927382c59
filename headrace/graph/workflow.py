"""A workflow, and its canonical form."""

from functools import cached_property
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field, StrictInt, StrictStr, model_validator

from headrace.duration import PositiveDuration
from headrace.errors import Fault
from headrace.expressions import EXPRESSION_CHARS_MAX
from headrace.graph.field import DESCRIPTION_CHARS_MAX, LIMIT_RUNS_MAX, TASKS_MAX, Frozen, TaskName, WorkflowName
from headrace.graph.task import Task
from headrace.input_schema import InputSchema


class Limit(Frozen):
    """How many runs of one key go at once, and what becomes of one more. The latest version says how many."""

    key: Annotated[StrictStr | None, Field(min_length=1, max_length=EXPRESSION_CHARS_MAX)] = None
    """Which runs count together: text with expressions over `input`; None: all runs of the workflow."""
    runs: Annotated[StrictInt, Field(ge=1, le=LIMIT_RUNS_MAX)] = 1
    """Runs of one key at once."""
    over: Literal["queue", "reject", "replace_oldest", "drop"] = "queue"
    """What becomes of one more: it waits; it is refused; it waits, and the oldest is cancelled; or nothing is started,
    and the answer is the run that goes."""

    @model_validator(mode="after")
    def _is_a_key(self) -> "Limit":
        if self.key is not None and "${{" not in self.key:
            raise ValueError("a key without an expression is the same for all runs: leave it out")
        return self


class Workflow(Frozen):
    """A published graph. `tasks` keeps the order of the definition: a task's position in it is its number."""

    name: WorkflowName
    """Under which it is published; the same name again is another version of it."""
    description: Annotated[StrictStr, Field(max_length=DESCRIPTION_CHARS_MAX)] = ""
    """For people."""
    input: dict[str, Any] | None = None
    """JSON Schema of a run's input; None: anything goes."""
    output: dict[str, Any] | None = None
    """Template of what comes out of a run that completed; None: only its tasks have outputs."""
    deadline: PositiveDuration | None = None
    """Of a run, from its start on; then all that is open ends, and the run has failed."""
    on_publish: Literal["pin", "migrate"] = "pin"
    """What becomes of runs in flight on older versions when this one is published: they stay on theirs, or those move
    of which nothing stands in the way."""
    limit: Limit | None = None
    """How many runs go at once; None: as many as are started."""
    tasks: Annotated[dict[TaskName, Task], Field(min_length=1, max_length=TASKS_MAX)]
    """By name, in an order that is kept."""

    def canonical(self) -> bytes:
        """The one JSON text of this content, however it was written; `Workflow.model_validate_json` reads it back.

        Tasks keep their order, defaults are left out, and keys inside `with` and `input` are sorted.
        """
        return self._canonical

    @property
    def digest(self) -> str:
        """SHA-256 of the canonical form, in hex: the same content is the same version."""
        return sha256(self._canonical).hexdigest()

    def check_input(self, data: Any) -> list[Fault]:
        """What is wrong with a run's input by the schema; empty when nothing is. Paths are those of the input.

        >>> build("pay", input={"required": ["id"]}).task("charge", run="pay").publishable().check_input({})
        [Fault(path='', message="'id' is a required property", line=None)]
        """
        return [] if self.input is None else self._schema.check(data)

    @cached_property
    def _canonical(self) -> bytes:
        content = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        for task in content["tasks"].values():
            if "with" in task:
                task["with"] = _sort_keys(task["with"])
            if "map" in task:
                task["map"] = _sort_keys(task["map"])
            for part in {"context", "form"} & task.get("approval", {}).keys():
                task["approval"][part] = _sort_keys(task["approval"][part])
            if "with" in task.get("compensate", ()):
                task["compensate"]["with"] = _sort_keys(task["compensate"]["with"])
        if "input" in content:
            content["input"] = _sort_keys(content["input"])
        if "output" in content:
            content["output"] = _sort_keys(content["output"])
        return msgspec.json.encode(content)

    @cached_property
    def _schema(self) -> InputSchema:
        return InputSchema(self.input or {})


def _sort_keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sort_keys(value[key]) for key in sorted(value)}
    return [_sort_keys(item) for item in value] if isinstance(value, list) else value
