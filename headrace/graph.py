"""A workflow as a graph: what is published, from YAML, JSON or Python to one frozen model.

    parse(text)             YAML or JSON text   ─┐
    from_data(body)         parsed JSON          ├─> Workflow, or DefinitionError with every fault, its path and line
    build(name).task(...)   Python              ─┘

Two checks make the faults. The models below look at each field alone (types, names, limits). `_GraphCheck` looks at the
whole: needs, cycles, expressions and what they refer to. It works on the raw data, so that a wrong field hides no wrong
edge. Both are iterative where a graph can be long. A `Workflow` made in any other way had only the first check.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from functools import cached_property, partial
from hashlib import sha256
from itertools import islice
from typing import Annotated, Any, Final, Literal

import msgspec
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from headrace.approval import Approval, Escalation
from headrace.cycles import find_knots, shortest_cycle, write_cycle
from headrace.document import BYTES_MAX, Document, Path, copy_plain, format_path
from headrace.duration import Duration, PositiveDuration, format_duration, parse_positive_duration
from headrace.errors import DefinitionError, Fault
from headrace.expressions import (
    EXPRESSION_CHARS_MAX,
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
    unwrap,
)
from headrace.input_schema import InputSchema, find_schema_faults
from headrace.instant import format_instant, parse_instant
from headrace.machine.place import ITEMS_MAX
from headrace.reference import describe_schema

DEFINITION_BYTES_MAX: Final = BYTES_MAX
"""As text and in its canonical form, so that what was published once can be published again from what is stored."""
TASKS_MAX: Final = ITEMS_MAX
"""What fits DEFINITION_BYTES_MAX; the check takes about a second. Items of maps have the numbers behind."""
NEEDS_MAX: Final = 10_000
"""A task may wait for all the others."""
ROUNDS_MAX: Final = 1_000
"""Of a repeat; every round leaves a row."""
ATTEMPTS_MAX: Final = 1_000
"""More is a loop and not a retry; every attempt leaves a row."""
DESCRIPTION_CHARS_MAX: Final = 2_000
KEY_CHARS_MAX: Final = 200
LIMIT_RUNS_MAX: Final = 1_000
"""Of one key. What more runs share is a pool."""
PARALLEL: Final = 1_000
"""Items of one map under way at once, unless it says otherwise: one decision hands out no more than so many."""
FAULTS_MAX: Final = 1_000
"""More are counted, and not listed."""

_BLOCK: Final = 1_024
"""References checked in one pass over the graph: a task then costs 128 bytes and not one bit for every other task."""


# == fields ============================================================================================================
Join = Literal["all", "any", "always", "on_failure", "finally"] | int
_TASK_NAME: Final = r"[A-Za-z][A-Za-z0-9_-]{0,99}"
_DOTTED_NAME: Final = r"[A-Za-z][A-Za-z0-9_.-]{0,99}"
_QUEUE_NAME: Final = r"[a-z][a-z0-9-]{0,49}"


def _matches(pattern: str, what: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            raise ValueError(f"{value[:120]!a} is no name of a {what}")
        return value

    return check


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": f"^{pattern}$"}


# Names travel through URLs, Kafka keys, logs and pages, so they are plain ASCII.
TaskName = Annotated[
    StrictStr,
    AfterValidator(_matches(_TASK_NAME, "task: a letter, then up to 99 letters, digits, _ and -")),
    WithJsonSchema(_text(_TASK_NAME)),
]
WorkflowName = Annotated[
    StrictStr,
    AfterValidator(_matches(_DOTTED_NAME, "workflow: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(_text(_DOTTED_NAME)),
]
BodyName = Annotated[
    StrictStr,
    AfterValidator(_matches(_DOTTED_NAME, "body: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(_text(_DOTTED_NAME)),
]
SignalName = Annotated[
    StrictStr,
    AfterValidator(_matches(_DOTTED_NAME, "signal: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(_text(_DOTTED_NAME)),
]
QueueName = Annotated[
    StrictStr,
    AfterValidator(_matches(_QUEUE_NAME, "queue: a small letter, then up to 49 small letters, digits and -")),
    WithJsonSchema(_text(_QUEUE_NAME)),
]

PoolName = Annotated[
    StrictStr,
    AfterValidator(_matches(_DOTTED_NAME, "pool: a letter, then up to 99 letters, digits, _, . and -")),
    WithJsonSchema(_text(_DOTTED_NAME)),
]


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _attempts_only(value: Any) -> Any:
    return {"attempts": value} if isinstance(value, int) and not isinstance(value, bool) else value


def _name_only(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _body_only(value: Any) -> Any:
    return {"run": value} if isinstance(value, str) else value


def _join(value: Any) -> Any:
    """Said in one message: pydantic would say it once for each kind of join."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if value not in _JOINS and not (is_number and 1 <= value <= NEEDS_MAX):
        raise ValueError(_JOIN_WANTED)
    return value


_JOINS: Final = ("all", "any", "always", "on_failure", "finally")
_JOIN_WANTED: Final = f"must be {', '.join(_JOINS)}, or how many of its needs have to complete"


def _length_only(value: Any) -> Any:
    return {"for": value} if isinstance(value, str | int | float | timedelta) else value


def _given(value: Any) -> Any:
    if value is None:
        raise ValueError("null says nothing: leave `with` out for the run's input, or write {} for none")
    return value


def _list_only(value: Any) -> Any:
    return {"over": value} if isinstance(value, str | list | tuple) else value


def _list_given(value: Any) -> Any:
    if isinstance(value, list | tuple) and len(value) <= ITEMS_MAX:
        return list(value)
    if isinstance(value, str) and value.strip().startswith("${{"):
        return value.strip()
    raise ValueError(f"must be a list of up to {ITEMS_MAX:,} items, or one ${{{{ … }}}} that gives one")


def _condition_text(value: Any) -> Any:
    """One spelling for one condition. A wrong one stays as it is: the graph check reports it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        return unwrap(value) if isinstance(value, str) else value
    except ExpressionError:
        return value


def _until_text(value: Any) -> Any:
    try:
        return unwrap(value, OF_ITS_END) if isinstance(value, str) else value
    except ExpressionError:
        return value


def _length_text(value: Any) -> Any:
    """One spelling for one length. An expression stays as it is."""
    if value is None or (isinstance(value, str) and "${{" in value):
        return value.strip() if value else value
    return format_duration(parse_positive_duration(value))


def _instant_text(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    return value.strip() if "${{" in value else format_instant(parse_instant(value))


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Retry(_Frozen):
    """How often, and how long apart, the body of a task is tried. In a definition also just a number of attempts."""

    attempts: Annotated[StrictInt, Field(ge=1, le=ATTEMPTS_MAX)] = 3
    """Tries in all, the first one included."""
    backoff: Literal["exponential", "linear", "fixed"] = "exponential"
    """How the delay grows with the attempts: it doubles, grows by the first one, or stays."""
    delay: Duration = timedelta(seconds=1)
    """Before the second attempt; later ones grow by `backoff`."""
    cap: Duration = timedelta(minutes=1)
    """Above every delay, and not below the first."""
    jitter: Annotated[StrictFloat, Field(ge=0, le=1)] = 0.2
    """Share of the delay by which it may be longer or shorter."""

    @model_validator(mode="after")
    def _cap_holds_the_delay(self) -> "Retry":
        if self.cap < self.delay:
            raise ValueError(f"cap {format_duration(self.cap)} is below delay {format_duration(self.delay)}")
        return self


class Wait(_Frozen):
    """Some time that passes, or an instant that comes, before the run goes on: `for` or `until`."""

    for_: Annotated[
        StrictStr | None, BeforeValidator(_length_text), Field(validation_alias="for", serialization_alias="for")
    ] = None
    """A duration, or an expression that gives one."""
    until: Annotated[StrictStr | None, BeforeValidator(_instant_text)] = None
    """RFC 3339, or an expression that gives that or a timestamp."""

    @model_validator(mode="after")
    def _has_one_end(self) -> "Wait":
        if (self.for_ is None) == (self.until is None):
            raise ValueError(f"a {type(self).__name__.lower()} has either `for` or `until`")
        return self


class Deadline(Wait):
    """When a task has to have ended: so long after its turn came, or at an instant. In a definition also just how
    long."""


class Signal(_Frozen):
    """Something that is told from outside before the run goes on. In a definition also just its name."""

    name: SignalName
    """Which signal."""
    key: Annotated[StrictStr | None, Field(min_length=1, max_length=EXPRESSION_CHARS_MAX)] = None
    """Which of the signals of that name: text with expressions; None: it makes no difference."""
    timeout: Annotated[StrictStr | None, BeforeValidator(_length_text)] = None
    """A duration, or an expression that gives one; None: it waits for as long as it takes."""
    on_timeout: Literal["fail", "complete"] = "fail"
    """What it leads to that none has come by then; an output says which it was."""
    delivery: Literal["first", "all"] = "first"
    """Of a signal that is posted for its key: the task takes it, and nobody else of `first` gets it; or it hears it,
    like all others of `all`."""

    @model_validator(mode="after")
    def _its_end_can_come(self) -> "Signal":
        if self.delivery != "first" and self.key is None:
            raise ValueError("`delivery` needs a `key`: a signal is posted for those who wait for its key")
        if self.on_timeout != "fail" and self.timeout is None:
            raise ValueError("`on_timeout` needs a `timeout`")
        if self.key is not None and "${{" not in self.key and len(self.key) > KEY_CHARS_MAX:
            raise ValueError(f"a key may have {KEY_CHARS_MAX} characters")
        return self


class Map(_Frozen):
    """Over which list the body of a task runs, once for each item. In a definition also just the list."""

    over: Annotated[Any, BeforeValidator(_list_given)]
    """A list, or an expression that gives one; evaluated once."""
    max_parallel: Annotated[StrictInt, Field(ge=1, le=ITEMS_MAX)] = PARALLEL
    """Items under way at once."""
    failures: Literal["fail_fast", "finish", "collect"] = "fail_fast"
    """What an item that failed leads to: the others are cancelled; they go on, and the map fails at their end; or it
    completes, and its output says what failed."""


class Repeat(_Frozen):
    """The body of a task runs again until what comes out of it will do, and a number of times at most."""

    until: Annotated[StrictStr, BeforeValidator(_until_text)]
    """CEL, without `${{ }}`, over `output`, what came out of the round, and `index`, which one it was, from 0."""
    max: Annotated[StrictInt, Field(ge=1, le=ROUNDS_MAX)]
    """Rounds in all."""
    delay: Duration = timedelta(0)
    """Between two rounds."""
    on_max: Literal["fail", "complete"] = "fail"
    """What the task does when it does not hold after the last round."""


class Child(_Frozen):
    """Another workflow that a task runs, as a run of its own. In a definition also just its name."""

    name: WorkflowName
    """Which workflow; another than this one."""
    version: Annotated[StrictInt, Field(ge=1)] | None = None
    """None: the latest when the task has its turn."""
    wait: StrictBool = True
    """The task ends as that run does; otherwise it completes as soon as that has begun."""
    on_cancel: Literal["cancel", "abandon"] = "cancel"
    """What becomes of a run that the task waits for when the task ends first."""

    @model_validator(mode="after")
    def _what_it_says_counts(self) -> "Child":
        if not self.wait and "on_cancel" in self.model_fields_set:
            raise ValueError("`on_cancel` is for a task that waits: with `wait: false` nothing of it is cancelled")
        return self


class Compensate(_Frozen):
    """What undoes a task when its run fails or is cancelled. In a definition also just the name of the body."""

    run: BodyName
    """Registered name of the body, such as `payments.refund`."""
    with_: Annotated[Any, BeforeValidator(_given)] = Field(None, validation_alias="with", serialization_alias="with")
    """Template of its input; None: `{input, output}` of the task."""
    queue: QueueName | None = None
    """None: that of the task."""
    retry: Annotated[Retry, BeforeValidator(_attempts_only)] = Retry()
    """How often, and how long apart, the body is tried; a number: so many attempts."""
    timeout: PositiveDuration | None = None
    """How long one attempt may take."""


class Limit(_Frozen):
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


class Task(_Frozen):
    """One unit of work. With `approval` and no `run` it is only the question; with both, the question comes first.
    A `wait` or a `signal` is nothing else; a `map` is a `run` for each item of a list; a `workflow` is a run of another
    workflow, with this task's `with` as its input and `timeout` as the most that it is waited for."""

    run: BodyName | None = None
    """Registered name of the body, such as `payments.charge`."""
    needs: Annotated[tuple[TaskName, ...], BeforeValidator(_one_or_more), Field(max_length=NEEDS_MAX)] = ()
    """The tasks that must be done before, one name or a list of them; without it: it begins with the run."""
    join: Annotated[
        Literal["all", "any", "always", "on_failure", "finally"] | Annotated[StrictInt, Field(ge=1, le=NEEDS_MAX)],
        BeforeValidator(_join),
    ] = "all"
    """What it asks of its needs; a number: that so many of them complete; `finally`: only that they have ended, also
    when the run is cancelled."""
    if_: Annotated[StrictStr | None, BeforeValidator(_condition_text)] = Field(
        None, validation_alias="if", serialization_alias="if"
    )
    """CEL, without `${{ }}`; false skips the task."""
    with_: Annotated[Any, BeforeValidator(_given)] = Field(None, validation_alias="with", serialization_alias="with")
    """Template of the input; None: the run's input."""
    queue: QueueName = "default"
    """The lane of workers that takes it."""
    retry: Annotated[Retry, BeforeValidator(_attempts_only)] = Retry()
    """What an attempt that failed leads to; a number: that many attempts."""
    timeout: PositiveDuration | None = None
    """How long one attempt may take."""
    approval: Approval | None = None
    """A question to people; asked before `run`, if there is one."""
    exclusive: StrictBool = False
    """Two bodies of this task never overlap: each starts only after the engine has recorded its owner."""
    effect: Literal["idempotent", "reconcile", "manual"] = "idempotent"
    """What happens when an attempt may have had its effect and nobody knows: it is tried again, `lookup` is asked, or
    the task waits for a person."""
    lookup: BodyName | None = None
    """Registered name of the body that tells what became of an effect."""
    wait: Wait | None = None
    """Nothing runs, and time passes."""
    signal: Annotated[Signal | None, BeforeValidator(_name_only)] = None
    """Nothing runs until the run is told this; text: the name of the signal."""
    map: Annotated[Map | None, BeforeValidator(_list_only)] = None
    """`run` for each item of a list; a list, or an expression that gives one: only that."""
    pool: PoolName | None = None
    """Each hand-out of its body waits for a slot of this pool; of a map, that of each item."""
    repeat: Repeat | None = None
    """`run` again and again, until what comes out of it will do."""
    deadline: Annotated[Deadline | None, BeforeValidator(_length_only)] = None
    """Of all its attempts and what lies between them, from its turn on; then it fails."""
    start_within: PositiveDuration | None = None
    """How long a hand-out may wait until its body begins; then the task fails."""
    workflow: Annotated[Child | None, BeforeValidator(_name_only)] = None
    """Another workflow runs, as a run of its own; text: the name of the workflow."""
    compensate: Annotated[Compensate | None, BeforeValidator(_body_only)] = None
    """What undoes it when its run fails or is cancelled; text: only the body."""

    @model_validator(mode="after")
    def _does_something(self) -> "Task":
        if self.join == "finally":
            self._ends_by_itself()
        if self.wait is not None:
            return self._does_only("wait")
        if self.signal is not None:
            return self._does_only("signal")
        if self.workflow is not None:
            return self._does_only("workflow", "with_", "timeout")
        if self.run is None and self.approval is None:
            raise ValueError(_DOES_NOTHING)
        if self.run is None and self.start_within is not None:
            raise ValueError("`start_within` needs a `run`: a body that begins")
        if self.run is None and (self.exclusive or self.effect != "idempotent"):
            raise ValueError("`exclusive` and `effect` need a `run`")
        if self.run is None and self.pool is not None:
            raise ValueError("a `pool` needs a `run`: its slots are for bodies")
        if (self.effect == "reconcile") != (self.lookup is not None):
            raise ValueError("`effect: reconcile` and `lookup` go together")
        if self.compensate is not None and self.run is None:
            raise ValueError("a `compensate` needs a `run`, which it undoes")
        if self.compensate is not None and self.repeat is not None:
            raise ValueError("a `repeat` has no `compensate`: let a task behind it have one")
        if self.map is not None and self.run is None:
            raise ValueError("a `map` needs a `run`, the body of each item")
        if self.repeat is not None and (self.run is None or self.map is not None):
            raise ValueError("a `repeat` needs a `run`, the body of each round, and no `map`")
        return self

    def _ends_by_itself(self) -> None:
        """A cancelled run has ended when its clean-ups have, so none of them waits for anybody."""
        waits = [name for name in ("approval", "wait", "signal") if getattr(self, name) is not None]
        if waits:
            raise ValueError(f"`join: finally` cleans up, and a run that is cancelled does not wait: no `{waits[0]}`")
        if self.compensate is not None:
            raise ValueError("`join: finally` cleans up, and nothing undoes that: no `compensate`")

    def _does_only(self, what: str, *but: str) -> "Task":
        bodies = (
            "run", "with_", "queue", "retry", "timeout", "approval", "exclusive", "effect", "lookup", "signal", "map",
            "pool", "repeat", "deadline", "start_within", "workflow", "compensate",
        )  # fmt: skip
        fields = type(self).model_fields
        more = [
            name.rstrip("_") for name in bodies if name not in but and getattr(self, name) != fields[name].get_default()
        ]
        if more := [name for name in more if name != what]:
            hint = (
                "; the time-out of a signal is `signal: {timeout: …}`" if what == "signal" and "timeout" in more else ""
            )
            message = f"a `{what}` does nothing else: leave out {', '.join(more)}, or write another task{hint}"
            raise ValueError(message)
        return self


_DOES_NOTHING: Final = "a task must have `run`, `approval`, or both; or `wait`; or `signal`; or `workflow`"


class Workflow(_Frozen):
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


def json_schema() -> dict[str, Any]:
    """JSON Schema of a definition, for editors and other languages. It cannot say all that `parse` checks."""
    schema = Workflow.model_json_schema(by_alias=True)
    task = schema["$defs"]["Task"]
    properties = task["properties"]
    names = _text(_TASK_NAME)
    properties["needs"] = {
        "anyOf": [names, {"type": "array", "items": names, "uniqueItems": True, "maxItems": NEEDS_MAX}],
        "default": [],
    }
    properties["retry"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": ATTEMPTS_MAX}, {"$ref": "#/$defs/Retry"}],
        "default": {},
    }
    properties["join"] = {
        "anyOf": [{"enum": list(_JOINS)}, {"type": "integer", "minimum": 1, "maximum": NEEDS_MAX}],
        "default": "all",
    }
    properties["if"] = {"type": ["string", "boolean", "null"], "default": None}
    properties["with"] = {"not": {"type": "null"}}
    for model, field in (("Approval", "approvers"), ("Approval", "remind"), ("Escalation", "to")):
        many = schema["$defs"][model]["properties"][field]
        schema["$defs"][model]["properties"][field] = {"anyOf": [many["items"], many]}
    task["anyOf"] = [{"required": [name]} for name in ("run", "approval", "wait", "signal", "workflow")]
    lists = {"anyOf": [{"type": "array", "maxItems": ITEMS_MAX}, {"type": "string"}]}
    properties["map"] = {"anyOf": [*lists["anyOf"], {"$ref": "#/$defs/Map"}, {"type": "null"}], "default": None}
    schema["$defs"]["Map"]["properties"]["over"] = lists
    length = {"type": ["string", "number"], "exclusiveMinimum": 0}
    for name in ("Wait", "Deadline"):
        schema["$defs"][name]["properties"]["for"] = {**length}
        schema["$defs"][name]["properties"]["until"] = {"type": "string"}
        schema["$defs"][name]["oneOf"] = [{"required": ["for"]}, {"required": ["until"]}]
    properties["deadline"] = {"anyOf": [length, {"$ref": "#/$defs/Deadline"}, {"type": "null"}], "default": None}
    properties["signal"] = {
        "anyOf": [_text(_DOTTED_NAME), {"$ref": "#/$defs/Signal"}, {"type": "null"}],
        "default": None,
    }
    properties["workflow"] = {
        "anyOf": [_text(_DOTTED_NAME), {"$ref": "#/$defs/Child"}, {"type": "null"}],
        "default": None,
    }
    properties["compensate"] = {
        "anyOf": [_text(_DOTTED_NAME), {"$ref": "#/$defs/Compensate"}, {"type": "null"}],
        "default": None,
    }
    undo = schema["$defs"]["Compensate"]["properties"]
    undo["with"], undo["retry"] = {"not": {"type": "null"}}, dict(properties["retry"])
    schema["$defs"]["Signal"]["properties"]["timeout"] = {"type": ["string", "number", "null"], "exclusiveMinimum": 0}
    schema["properties"]["tasks"]["propertyNames"] = names
    describe_schema(schema, Workflow)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# == three ways in =====================================================================================================
def parse(text: str | bytes, *, source: str | None = None) -> Workflow:
    """Read a definition in YAML or JSON (a text that begins with `{` is JSON).

    source: a name for people, such as the file's; it comes back as `error.fields["source"]`.
    Raises DefinitionError with every fault, each with its path and 1-based line.

    >>> parse("name: hello\\ntasks: { greet: { run: hello.greet } }").tasks["greet"].run
    'hello.greet'
    """
    document = Document(text)
    try:
        if document.is_broken:
            raise DefinitionError(document.faults)
        return _check(document.data, document.faults, document.line)
    except DefinitionError as error:
        error.fields["source"] = source
        raise


def from_data(data: Any) -> Workflow:
    """Read a definition that was parsed already, such as a request's body. Faults as for `parse`, without lines."""
    faults: list[Fault] = []
    plain = copy_plain(data, lambda path, message: faults.append(Fault(format_path(path), message)))
    return _check(plain, faults, lambda path: None)


class Builder:
    """A workflow written in Python. Nothing is checked before `publishable`, which names every fault at once."""

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
        pool: str | None = None,
        deadline: str | float | timedelta | Deadline | Mapping[str, Any] | None = None,
        start_within: str | float | timedelta | None = None,
        repeat: Repeat | Mapping[str, Any] | None = None,
        workflow: str | Child | Mapping[str, Any] | None = None,
        compensate: str | Compensate | Mapping[str, Any] | None = None,
    ) -> "Builder":
        """Add a task; its position is its number. Fields as in YAML, with `_` after the names Python has taken."""
        if name in self._tasks:
            self._repeated.append(name)
        given = {"run": run, "if": if_, "with": with_, "retry": retry, "timeout": timeout, "approval": approval}
        given |= {"lookup": lookup, "wait": wait, "signal": signal, "map": map, "pool": pool, "compensate": compensate}
        given |= {"deadline": deadline, "start_within": start_within, "repeat": repeat}
        given |= {"workflow": workflow}
        fields = {key: _to_data(value) for key, value in given.items() if value is not None}
        self._tasks[name] = {**fields, "needs": needs, "join": join, "queue": queue, "exclusive": exclusive}
        self._tasks[name]["effect"] = effect
        return self

    def publishable(self) -> Workflow:
        """The finished workflow. Raises DefinitionError with every fault."""
        faults = [Fault(format_path(("tasks", name)), "duplicate task name") for name in self._repeated]

        def add(path: Path, message: str) -> None:
            faults.append(Fault(format_path(path), message))

        return _check(copy_plain({**self._content, "tasks": self._tasks}, add), faults, lambda path: None)


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


# == faults ============================================================================================================
_Found = tuple[Path, str]


def _check(data: Any, known: list[Fault], line: Callable[[Path], int | None]) -> Workflow:
    """Check everything. `known`: faults met on the way here. Raises DefinitionError unless there are none at all."""
    found: list[_Found] = []
    workflow = None
    try:
        workflow = Workflow.model_validate(data, by_alias=True, by_name=False)  # `if_` is for Python only
    except ValidationError as error:
        found.extend(_field_faults(error))
    found.extend(_GraphCheck(data).faults())
    if workflow is not None and not known and not found and len(workflow.canonical()) > DEFINITION_BYTES_MAX:
        found.append(((), f"its canonical form may have {DEFINITION_BYTES_MAX} bytes"))
    if workflow is None or known or found:
        raise DefinitionError(_in_order(data, known, found, line))
    return workflow


def _in_order(data: Any, known: list[Fault], found: list[_Found], line: Callable[[Path], int | None]) -> list[Fault]:
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


def _field_faults(error: ValidationError) -> Iterator[_Found]:
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
            return f"unknown field{_suggest(str(path[-1]), _known_fields(path[:-1]))}"
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


def _suggest(name: str, known: Iterable[str]) -> str:
    choices = list(islice(known, 1_000))
    close = get_close_matches(name, choices, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known are {', '.join(choices)}" if len(choices) <= 20 else ""


_LENGTHS: Final = (
    ("wait", "for"), ("wait", "until"), ("signal", "timeout"), ("deadline", "for"), ("deadline", "until")
)  # fmt: skip
"""Fields that hold a duration or an instant, or an expression that gives one."""


# == the graph as a whole ==============================================================================================
class _GraphCheck:
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
        self._found: list[_Found] = []

    def faults(self) -> list[_Found]:
        for name, task in self._tasks.items():
            if all(task.get(what) is None for what in ("run", "approval", "wait", "signal", "workflow")):
                self._found.append((("tasks", name), _DOES_NOTHING))
            self._edges[name] = self._find_needs(name, task.get("needs"))
            self._check_join(name, task)
            self._check_child(name, task)
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
        if join in _JOINS[1:] and not count:
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

    def _suggest_task(self, name: str) -> str:
        return _suggest(name, self._all) if len(self._found) < 20 else ""

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
            templates: list[tuple[Any, Path, Variables]] = [
                (task.get("with"), (*place, "with"), variables),
                (over, where, ()),
                (undone, (*place, "compensate", "with"), OF_A_COMPENSATION),
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
