"""Which fields the filters of lists have: for each noun its names, what their values are, and what a field costs.

A field that is *indexed* finds what it asks for. Any other is looked at, row by row from the newest, and a list looks
at no more than so many rows at once: then its page ends early, says so, and its `next` goes on from there.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Literal, get_args

from headrace.label import is_label_name
from headrace.machine import RunStatus, TaskStatus

Noun = Literal["runs", "tasks", "attempts", "history", "dead_letters"]
NOUNS: Final[tuple[Noun, ...]] = get_args(Noun)

LENGTH_MAX: Final = 200


class Kind(StrEnum):
    """What the values of a field are."""

    WORD = "word"
    """A name; the whole of it, and with `*` any that look so."""
    TEXT = "text"
    """Stands somewhere in it, in small or capital letters."""
    CHOICE = "choice"
    ID = "id"
    INTEGER = "integer"
    INSTANT = "instant"
    LENGTH = "length"
    JSON = "json"
    """`input.customer.id`: what stands at a path of a document, as text; compared, as a number."""
    LABEL = "label"
    """`label.customer`: the whole of the label of this name, and with `*` any that look so."""


@dataclass(frozen=True)
class Field:
    name: str
    kind: Kind
    about: str
    choices: tuple[str, ...] = ()
    is_indexed: bool = False
    is_wild: bool = False
    """Whether `*` stands for any text."""
    length_max: int = LENGTH_MAX

    @property
    def has_parts(self) -> bool:
        """Whether a clause names one of its parts behind a dot."""
        return self.kind in (Kind.JSON, Kind.LABEL)

    @property
    def is_ordered(self) -> bool:
        """Whether > and < can be asked."""
        return self.kind in (Kind.INTEGER, Kind.INSTANT, Kind.LENGTH, Kind.JSON)


def _word(name: str, about: str, *, is_indexed: bool = False) -> Field:
    return Field(name, Kind.WORD, about, is_indexed=is_indexed, is_wild=True)


def _choice(name: str, about: str, choices: Iterable[str], *, is_indexed: bool = False) -> Field:
    return Field(name, Kind.CHOICE, about, tuple(choices), is_indexed=is_indexed)


def _text(name: str, about: str) -> Field:
    return Field(name, Kind.TEXT, about, is_wild=True)


def _json(name: str, about: str) -> Field:
    return Field(name, Kind.JSON, about, is_wild=True)


def _id(name: str, about: str) -> Field:
    return Field(name, Kind.ID, about, is_indexed=True)


WAITS: Final = ("person", "slot", "signal", "child", "time", "retry")
_WORKFLOW = _word("workflow", "name of the workflow", is_indexed=True)
_VERSION = Field("version", Kind.INTEGER, "version of the workflow", is_indexed=True)
_RUN = _id("run", "id of the run")
_RUN_STATUS = _choice("run_status", "status of the run", RunStatus)
_LABEL = Field(
    "label", Kind.LABEL, "`label.customer`: a label of the run; `label.customer:*`: it has one", is_indexed=True,
    is_wild=True,
)  # fmt: skip
_BEGAN = Field("began", Kind.INSTANT, "when the run was started", is_indexed=True)
_TASK = _word("task", "name of the task; of an item, that of its map", is_indexed=True)
_QUEUE = _word("queue", "queue of the task", is_indexed=True)
_CODE = _word("code", "code of the error")
_ERROR = _text("error", "stands in the message of the error")

_FIELDS: Final[Mapping[Noun, tuple[Field, ...]]] = {
    "runs": (
        _choice("status", "how it stands", RunStatus, is_indexed=True),
        _choice(
            "is",
            "whether it has ended; `stuck`: nothing will move it without an operator",
            ("open", "ended", "stuck"),
            is_indexed=True,
        ),
        _WORKFLOW,
        _VERSION,
        Field("started", Kind.INSTANT, "when it was started", is_indexed=True),
        Field("ended", Kind.INSTANT, "when it ended"),
        Field("updated", Kind.INSTANT, "when it moved last"),
        Field("took", Kind.LENGTH, "from its start to its end, or until now"),
        _word("task", "its workflow has a task of this name", is_indexed=True),
        _word("queue", "its workflow has a task in this queue", is_indexed=True),
        _word("failed", "a task of this name has failed; `failed:*`: any has"),
        _CODE,
        _ERROR,
        _choice("waits", "what it waits for, among other things", WAITS),
        _word("pool", "a task of it waits for this pool, or holds a slot of it"),
        _word("trigger", "what started it: `api`, `child`, or a subscription"),
        _word("by", "who started it"),
        Field("key", Kind.WORD, "the key that it was started with", is_indexed=True),
        _id("parent", "id of the run that asked for it"),
        _LABEL,
        Field("priority", Kind.INTEGER, "in the queues of pools"),
        _id("run", "its id"),
        _json("input", "`input.customer.id`: what stands there in its input"),
        _json("output", "`output.total`: what stands there in its output"),
    ),
    "tasks": (
        _choice("status", "how it stands", TaskStatus),
        _TASK,
        _QUEUE,
        _WORKFLOW,
        _VERSION,
        _RUN,
        _RUN_STATUS,
        _LABEL,
        _BEGAN,
        Field("changed", Kind.INSTANT, "when it moved last"),
        Field("due", Kind.INSTANT, "when its timer is due"),
        Field("attempt", Kind.INTEGER, "attempts that have begun"),
        _word("pool", "pool whose slot it waits for, or holds"),
        _CODE,
        _ERROR,
        _json("output", "`output.total`: what stands there in its output"),
    ),
    "attempts": (
        _choice("outcome", "how it ended", ("completed", "failed", "lost", "cancelled", "returned")),
        _TASK,
        _QUEUE,
        _WORKFLOW,
        _VERSION,
        _RUN,
        _RUN_STATUS,
        _LABEL,
        _BEGAN,
        _word("worker", "name of the worker"),
        Field("attempt", Kind.INTEGER, "which one it was"),
        Field("started", Kind.INSTANT, "when its body began, by the worker's clock"),
        Field("ended", Kind.INSTANT, "when it ended"),
        Field("took", Kind.LENGTH, "how long its body ran"),
        _CODE,
        _ERROR,
    ),
    "history": (
        _word("kind", "what happened, such as `started` or `attempt_failed`"),
        _TASK,
        _WORKFLOW,
        _VERSION,
        _RUN,
        _RUN_STATUS,
        _LABEL,
        _BEGAN,
        _word("by", "who did it: a person or a worker"),
        Field("at", Kind.INSTANT, "when it happened"),
        _text("detail", "stands somewhere in its detail"),
    ),
    "dead_letters": (
        _choice(
            "status", "parked, unless the filter says another", ("parked", "replayed", "discarded"), is_indexed=True
        ),
        _choice("kind", "a task that failed, or a record", ("task", "record")),
        _word("workflow", "workflow of the task"),
        Field("version", Kind.INTEGER, "version of the workflow"),
        _word("task", "name of the task"),
        _word("topic", "topic of the record"),
        Field("fingerprint", Kind.WORD, "its cause", is_indexed=True),
        _CODE,
        _text("error", "stands in the reason or the message"),
        _id("run", "id of the run"),
        _id("letter", "its own id"),
        Field("at", Kind.INSTANT, "when it was set aside", is_indexed=True),
        _word("by", "who closed it"),
    ),
}
_BY_NAME: Final[Mapping[Noun, Mapping[str, Field]]] = {
    of: {field.name: field for field in fields} for of, fields in _FIELDS.items()
}


def fields_of(of: Noun) -> Mapping[str, Field]:
    """By name, the most used first."""
    return _BY_NAME[of]


def find_field(of: Noun, name: str) -> Field | None:
    """The field that a clause names: of `input.customer`, `input`. A document is asked by a path, labels by a name."""
    head, dot, part = name.partition(".")
    field = _BY_NAME[of].get(head)
    if field is None or field.has_parts != bool(dot):
        return None
    is_named = is_label_name(part) if field.kind is Kind.LABEL else not dot or all(part.split("."))
    return field if is_named else None
