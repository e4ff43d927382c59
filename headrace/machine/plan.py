"""A version compiled for the machine: positions instead of names, expressions ready to evaluate."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from headrace.duration import DURATION_MAX, parse_duration
from headrace.errors import PayloadError
from headrace.expressions import (
    OF_AN_ITEM,
    Condition,
    Outputs,
    Template,
    Value,
    compile_condition,
    compile_template,
    compile_value,
)
from headrace.instant import from_microseconds, parse_instant, to_microseconds
from headrace.machine.backoff import RetryPlan
from headrace.machine.place import ITEMS_MAX, item_of, place_of, task_of

if TYPE_CHECKING:
    from headrace.graph import Signal, Wait, Workflow

_MICROSECONDS: Final = 1_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_WAIT_MAX: Final = DURATION_MAX // _MICROSECOND
KEY_CHARS_MAX: Final = 200
"""As in a definition, and for whoever sends a signal."""
LISTENERS_TOLD_MAX: Final = 10
WIDE: Final = 16
"""A task with more dependants than this makes its workflow wide: commands are spread over the partitions by position,
so that one run's fan-out reaches every worker. Those of ordinary runs stay on one partition, which keeps Kafka's
batches large."""


Effect = Literal["idempotent", "reconcile", "manual"]
"""What the task's call to the outside can promise, and so what an ambiguous end leads to: another attempt, a lookup, a
person."""


Join = Literal["all", "any", "always", "on_failure"] | int
"""What a task asks of those that it needs; a number: that so many of them complete."""


class ApprovalPlan(msgspec.Struct, frozen=True):
    title: str
    approvers: tuple[str, ...]
    expires: int | None
    """Microseconds from the moment it is asked; None: never."""
    on_expiry: str
    """fail, approve or reject"""


class WaitPlan(msgspec.Struct, frozen=True):
    """How long, or until when; one of the three is given."""

    length: int | None = None
    """Microseconds from the moment the wait begins."""
    until: int | None = None
    """Microseconds since 1970 UTC."""
    value: Value | None = None
    """Gives a length (text such as `3d`, or seconds) for a `for`, an instant for an `until`."""
    is_for: bool = False

    @property
    def references(self) -> frozenset[str]:
        return self.value.references if self.value is not None else frozenset()

    reads = references

    def due_at(self, at: int, input: bytes, outputs: Outputs, given: bytes | None) -> int:
        """When a wait that begins at `at` is over. given: JSON of an operator, in place of what was written.

        Raises PayloadError(BAD_INPUT).
        """
        if given is not None:
            found = msgspec.json.decode(given)
        elif self.value is not None:
            found = self.value.evaluate(input, outputs, from_microseconds(at))
        else:
            return self.until if self.until is not None else at + (self.length or 0)
        try:
            due_at = at + _length_of(found) if self.is_for else _instant_of(found)
        except ValueError as error:
            raise PayloadError(f"how long to wait: {error}", reason="BAD_INPUT") from None
        if due_at > at + _WAIT_MAX:
            raise PayloadError(f"a wait may take {DURATION_MAX.days} days", reason="BAD_INPUT")
        return due_at


def _length_of(found: object) -> int:
    return parse_duration(found) // _MICROSECOND


def _instant_of(found: object) -> int:
    if isinstance(found, str):
        found = parse_instant(found)
    if not isinstance(found, datetime) or found.tzinfo is None:
        raise ValueError(f"an instant is RFC 3339 text or a timestamp, not a {type(found).__name__}")
    return to_microseconds(found)


class SignalPlan(msgspec.Struct, frozen=True):
    """What a task waits to be told, and for how long."""

    name: str
    key: Template | None = None
    timeout: WaitPlan | None = None
    on_timeout: Literal["fail", "complete"] = "fail"
    delivery: Literal["first", "all"] = "first"

    @property
    def references(self) -> frozenset[str]:
        key = self.key.references if self.key is not None else frozenset[str]()
        return key | (self.timeout.references if self.timeout is not None else frozenset())

    reads = references

    def key_of(self, input: bytes, outputs: Outputs, given: bytes | None) -> str | None:
        """The key that a signal must have; None: any will do. given: JSON of an operator, or of an earlier wait, in
        place of what was written.

        Raises PayloadError(BAD_INPUT).
        """
        if self.key is None:
            return None
        found = msgspec.json.decode(self.key.render(input, outputs) if given is None else given)
        if isinstance(found, int) and not isinstance(found, bool):
            found = str(found)
        if not isinstance(found, str) or not 0 < len(found) <= KEY_CHARS_MAX or "\0" in found:
            why = f"a text of 1 to {KEY_CHARS_MAX} characters, or a whole number"
            raise PayloadError(f"the key of signal {self.name} must be {why}", reason="BAD_INPUT")
        return found


Failures = Literal["fail_fast", "finish", "collect"]
"""What an item of a map that failed leads to: the others are cancelled; they go on, and the map fails at their end; or
the map completes, and its output says what failed."""
_decode_list: Final[Callable[[bytes], list[msgspec.Raw]]] = msgspec.json.Decoder(list[msgspec.Raw]).decode


class MapPlan(msgspec.Struct, frozen=True):
    over: Template
    """Gives the list."""
    max_parallel: int
    failures: Failures

    @property
    def references(self) -> frozenset[str]:
        return self.over.references

    reads = references


def read_list(given: bytes) -> list[msgspec.Raw]:
    """The items of a map, from JSON. Raises PayloadError(BAD_INPUT)."""
    try:
        items = _decode_list(given)
    except msgspec.DecodeError:
        raise PayloadError(
            f"a map needs a list, and not {bytes(given[:50]).decode(errors='replace')}", reason="BAD_INPUT"
        ) from None
    if len(items) > ITEMS_MAX:
        raise PayloadError(f"a map may have {ITEMS_MAX:,} items, and not {len(items):,}", reason="BAD_INPUT")
    return items


class TaskPlan:
    """One task of a version. `needs` and `dependants` are positions in the graph."""

    __slots__ = (
        "approval", "claims", "condition", "dependants", "each", "effect", "exclusive", "index", "is_chained",
        "is_plain", "is_read", "is_referenced", "join", "lookup", "map", "name", "needs", "queue", "quorum", "retry",
        "run", "signal",
        "template", "timeout", "wait",
    )  # fmt: skip

    def __init__(
        self,
        index: int,
        name: str,
        *,
        run: str | None,
        needs: tuple[int, ...] = (),
        queue: str = "default",
        retry: RetryPlan | None = None,
        timeout: float | None = None,
        approval: ApprovalPlan | None = None,
        template: Template | None = None,
        condition: Condition | None = None,
        exclusive: bool = False,
        effect: Effect = "idempotent",
        lookup: str | None = None,
        join: Join = "all",
        wait: WaitPlan | None = None,
        signal: SignalPlan | None = None,
        map: MapPlan | None = None,
    ) -> None:
        self.index, self.name, self.run, self.needs, self.queue = index, name, run, needs, queue
        self.retry = retry or RetryPlan()
        self.timeout = timeout
        """Seconds."""
        self.approval, self.template, self.condition = approval, template, condition
        self.exclusive, self.effect, self.lookup, self.wait, self.signal = exclusive, effect, lookup, wait, signal
        self.is_referenced = False
        """Some template or condition reads its output, so the machine must keep it."""
        self.is_read = False
        """Some of them looks into it, so it must be there as a value."""
        self.map = map
        self.each: TaskPlan | None = None
        """What each item of a map is: a task that nothing stands before and nothing comes after."""
        if map is not None:
            self.each = TaskPlan(
                index, name, run=run, queue=queue, retry=retry, timeout=timeout, template=template,
                exclusive=exclusive, effect=effect, lookup=lookup,
            )  # fmt: skip
            self.each.is_referenced = True
        self.is_plain = approval is None and condition is None and wait is None and signal is None and map is None
        """Nothing stands between its join and its body."""
        self.claims = exclusive or effect != "idempotent"
        """Its body starts only after the engine has recorded who runs it: a hand-out without an owner never began."""
        self.join = join
        self.quorum: int | None = join if isinstance(join, int) else 1 if join == "any" else None
        """How many of its needs have to complete, where that is fewer than all."""
        self.is_chained = join == "all" and len(needs) == 1
        """Its one need decides about it: nothing is counted."""
        self.dependants: tuple[int, ...] = ()

    def render_item(self, input: bytes, outputs: Outputs, items: list[msgspec.Raw], item: int) -> bytes:
        """What the body of an item is given: the item, unless the map says something else. Raises PayloadError."""
        given = bytes(items[item])
        if self.template is None:
            return given
        variables = {".item": given, ".index": b"%d" % item}
        return self.template.render(input, lambda name: variables.get(name) or outputs(name))


class Plan:
    """A frozen version, ready for `advance`. Shared by all its runs, never changed."""

    __slots__ = ("index", "is_wide", "listeners", "name", "output", "roots", "tasks", "version", "version_id")

    def __init__(
        self,
        name: str,
        tasks: list[TaskPlan],
        *,
        version: int = 1,
        version_id: int = 0,
        output: Template | None = None,
    ) -> None:
        """output: of a run, once it has completed; None: it has none of its own."""
        self.name, self.version, self.version_id, self.output = name, version, version_id, output
        self.tasks: tuple[TaskPlan, ...] = tuple(tasks)
        self.index: dict[str, int] = {task.name: task.index for task in tasks}
        self.roots: tuple[int, ...] = tuple(task.index for task in tasks if not task.needs)
        dependants: list[list[int]] = [[] for _ in tasks]
        for task in tasks:
            for need in task.needs:
                dependants[need].append(task.index)
            for source in (task.template, task.condition, task.wait, task.signal, task.map):
                self._mark(tasks, source)
        self._mark(tasks, output)
        for task in tasks:
            if task.each is not None:
                task.each.is_read = task.is_read
        for task, after in zip(tasks, dependants, strict=True):
            task.dependants = tuple(after)
        self.is_wide = any(len(after) > WIDE for after in dependants)
        self.listeners: dict[str, list[int]] = {}
        """The tasks that wait for a signal, by its name, in the order of the graph."""
        for task in tasks:
            if task.signal is not None:
                self.listeners.setdefault(task.signal.name, []).append(task.index)

    def why_deaf(self, signal: str) -> str:
        """What to tell whoever sends a signal that no task waits for."""
        names = ", ".join(sorted(self.listeners)[:LISTENERS_TOLD_MAX]) or "none"
        return f"no task of workflow {self.name} waits for signal {signal!r}; its tasks wait for {names}"

    def _mark(
        self, tasks: list[TaskPlan], source: Template | Condition | WaitPlan | SignalPlan | MapPlan | None
    ) -> None:
        if source is not None:
            for name in source.references:
                tasks[self.index[name]].is_referenced = True
            for name in source.reads:
                tasks[self.index[name]].is_read = True

    def at(self, place: int) -> TaskPlan:
        """What stands there: a task of the graph, or an item of a map."""
        if place < ITEMS_MAX:
            return self.tasks[place]
        each = self.tasks[task_of(place)].each
        if each is None:
            raise IndexError(place)
        return each

    def name_of(self, place: int) -> str:
        """`pages`, or `pages.17` for an item."""
        name = self.tasks[task_of(place)].name
        return name if place < ITEMS_MAX else f"{name}.{item_of(place)}"

    def find(self, name: str) -> int | None:
        """The place that `name_of` calls so."""
        task, dot, item = name.partition(".")
        index = self.index.get(task)
        if index is None or not dot:
            return index
        is_number = item.isascii() and item.isdecimal() and item == str(int(item)) and int(item) < ITEMS_MAX
        return place_of(index, int(item)) if is_number and self.tasks[index].each is not None else None


def _compile_wait(wait: "Wait") -> WaitPlan:
    text, is_for = (wait.until, False) if wait.for_ is None else (wait.for_, True)
    return _compile_end(text, is_for=is_for)


def _compile_signal(signal: "Signal") -> SignalPlan:
    return SignalPlan(
        signal.name,
        None if signal.key is None else compile_template(signal.key),
        None if signal.timeout is None else _compile_end(signal.timeout, is_for=True),
        signal.on_timeout,
        signal.delivery,
    )


def _compile_end(text: str | None, *, is_for: bool) -> WaitPlan:
    if "${{" in (text or ""):
        return WaitPlan(value=compile_value(text or ""), is_for=is_for)
    if is_for:
        return WaitPlan(length=_length_of(text), is_for=True)
    return WaitPlan(until=_instant_of(text))


def compile_plan(workflow: "Workflow", *, version: int = 1, version_id: int = 0) -> Plan:
    """Compile a published workflow. It was checked at publish, so nothing here is refused."""
    index = {name: position for position, name in enumerate(workflow.tasks)}
    tasks = []
    for position, (name, task) in enumerate(workflow.tasks.items()):
        approval = task.approval
        tasks.append(
            TaskPlan(
                position,
                name,
                run=task.run,
                needs=tuple(index[need] for need in task.needs),
                queue=task.queue,
                retry=RetryPlan(
                    attempts=task.retry.attempts,
                    backoff=task.retry.backoff,
                    delay=int(task.retry.delay.total_seconds() * _MICROSECONDS),
                    cap=int(task.retry.cap.total_seconds() * _MICROSECONDS),
                    jitter=task.retry.jitter,
                ),
                timeout=None if task.timeout is None else task.timeout.total_seconds(),
                approval=None
                if approval is None
                else ApprovalPlan(
                    title=approval.title,
                    approvers=tuple(approval.approvers),
                    expires=None if approval.expires is None else int(approval.expires.total_seconds() * _MICROSECONDS),
                    on_expiry=approval.on_expiry,
                ),
                template=None
                if task.with_ is None
                else compile_template(task.with_, () if task.map is None else OF_AN_ITEM),
                condition=None if task.if_ is None else compile_condition(task.if_),
                exclusive=task.exclusive,
                effect=task.effect,
                lookup=task.lookup,
                join=task.join,
                wait=None if task.wait is None else _compile_wait(task.wait),
                signal=None if task.signal is None else _compile_signal(task.signal),
                map=None
                if task.map is None
                else MapPlan(compile_template(task.map.over), task.map.max_parallel, task.map.failures),
            )
        )
    output = None if workflow.output is None else compile_template(workflow.output)
    return Plan(workflow.name, tasks, version=version, version_id=version_id, output=output)
