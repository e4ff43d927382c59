"""A version compiled for the machine: positions instead of names, expressions ready to evaluate."""

from collections.abc import Callable
from copy import copy
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from headrace.duration import DURATION_MAX, parse_duration
from headrace.errors import PayloadError
from headrace.expressions import (
    OF_A_COMPENSATION,
    OF_A_ROUND,
    OF_AN_ITEM,
    OF_ITS_END,
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
from headrace.machine.place import (
    COMPENSATE,
    COMPENSATIONS_FROM,
    ITEMS_MAX,
    compensation_of,
    item_of,
    place_of,
    task_of,
)

if TYPE_CHECKING:
    from headrace.approval import Approval
    from headrace.graph import Child, Limit, Pool, Repeat, Retry, Signal, Task, Wait, Workflow

_MICROSECONDS: Final = 1_000_000
_MICROSECOND: Final = timedelta(microseconds=1)
_WAIT_MAX: Final = DURATION_MAX // _MICROSECOND
KEY_CHARS_MAX: Final = 200
"""As in a definition, and for whoever sends a signal."""
TITLE_CHARS_MAX: Final = 200
CONTEXT_BYTES_MAX: Final = 64 * 1024
"""What a person looks at; it stands in the row of the approval."""
LISTENERS_TOLD_MAX: Final = 10
WIDE: Final = 16
"""A task with more dependants than this makes its workflow wide: commands are spread over the partitions by position,
so that one run's fan-out reaches every worker. Those of ordinary runs stay on one partition, which keeps Kafka's
batches large."""


Effect = Literal["idempotent", "reconcile", "manual"]
"""What the task's call to the outside can promise, and so what an ambiguous end leads to: another attempt, a lookup, a
person."""


Join = Literal["all", "any", "always", "on_failure", "finally"] | int
"""What a task asks of those that it needs; a number: that so many of them complete."""


class StepPlan(msgspec.Struct, frozen=True):
    """Who is asked besides, and when."""

    to: tuple[str, ...]
    after: int | None = None
    """Microseconds from the moment it is asked; None: only when it expires."""


class ApprovalPlan(msgspec.Struct, frozen=True):
    title: str
    approvers: tuple[str, ...]
    expires: int | None
    """Microseconds from the moment it is asked; None: never."""
    on_expiry: str
    """fail, approve, reject or escalate"""
    title_template: Template | None = None
    """In place of `title`, where that has expressions."""
    context: Template | None = None
    form: bytes | None = None
    """JSON Schema of the answer."""
    needed: int = 1
    no_self_approval: bool = False
    remind: tuple[int, ...] = ()
    """Microseconds from the moment it is asked."""
    steps: tuple[StepPlan, ...] = ()
    on_reject: Literal["fail", "complete"] = "fail"

    @property
    def references(self) -> frozenset[str]:
        return self._of("references")

    @property
    def reads(self) -> frozenset[str]:
        return self._of("reads")

    def _of(self, which: Literal["references", "reads"]) -> frozenset[str]:
        templates = (self.title_template, self.context)
        return frozenset().union(*(getattr(template, which) for template in templates if template is not None))

    def show(self, input: bytes, outputs: Outputs) -> tuple[str | None, bytes | None]:
        """The title and the JSON that people are shown, where they have expressions. Raises PayloadError."""
        title = context = None
        if self.title_template is not None:
            found = msgspec.json.decode(self.title_template.render(input, outputs))
            title = found if isinstance(found, str) else msgspec.json.encode(found).decode()
            title = " ".join(title.replace("\0", "").split())[:TITLE_CHARS_MAX]
        if self.context is not None:
            context = self.context.render(input, outputs)
            if len(context) > CONTEXT_BYTES_MAX:
                why = f"the context of the approval would be {len(context)} bytes, and {CONTEXT_BYTES_MAX} are allowed"
                raise PayloadError(why, reason="BAD_INPUT")
        return title, context


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
        return _key_in(self.key.render(input, outputs) if given is None else given, f"the key of signal {self.name}")


class PoolPlan(msgspec.Struct, frozen=True):
    """Of which pool the body of a task needs a slot."""

    name: str
    fairness_key: Template | None = None
    """Between whom its slots go in turns."""

    @property
    def references(self) -> frozenset[str]:
        return self.fairness_key.references if self.fairness_key is not None else frozenset()

    reads = references


class ChildPlan(msgspec.Struct, frozen=True):
    """Which workflow a task runs, as a run of its own."""

    workflow: str
    version: int | None = None
    """None: the latest when it begins."""
    is_awaited: bool = True
    """The task ends with the child; otherwise as soon as that has begun."""
    is_cancelled_with_task: bool = True
    """Whoever needs the child no more asks it to end."""


Over = Literal["queue", "reject", "replace_oldest", "drop"]
"""What becomes of one more run than the limit of a workflow lets go at once."""


class LimitPlan(msgspec.Struct, frozen=True):
    """How many runs of one key go at once."""

    key: Template | None = None
    """None: all runs of the workflow have one key."""
    runs: int = 1
    over: Over = "queue"

    def key_of(self, input: bytes) -> str:
        """The key of a run with this input; empty where all have the same. Raises PayloadError(BAD_INPUT)."""
        if self.key is None:
            return ""
        return _key_in(self.key.render(input, lambda name: None), "the key of the workflow's limit")


def _key_in(given: bytes, what: str) -> str:
    """Raises PayloadError(BAD_INPUT)."""
    found = msgspec.json.decode(given)
    if isinstance(found, int) and not isinstance(found, bool):
        found = str(found)
    if not isinstance(found, str) or not 0 < len(found) <= KEY_CHARS_MAX or "\0" in found:
        why = f"a text of 1 to {KEY_CHARS_MAX} characters, or a whole number"
        raise PayloadError(f"{what} must be {why}", reason="BAD_INPUT")
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


class RepeatPlan(msgspec.Struct, frozen=True):
    """Until when a body runs again, and how often at most."""

    until: Condition
    max: int
    delay: int = 0
    """Microseconds between two rounds."""
    on_max: Literal["fail", "complete"] = "fail"
    reads_last: bool = False
    """Its input is made from what came out of the round before."""

    def bound(self, rounds: int) -> int:
        """With how many rounds it is over, when so many have ended: a replay of one that was over has as many again,
        numbered on, since the number of a round is in its effect key."""
        return (rounds // self.max + 1) * self.max

    @property
    def references(self) -> frozenset[str]:
        return self.until.references

    reads = references


_THE_TASK: Final = compile_template("${{ task }}", OF_A_COMPENSATION)


class TaskPlan:
    """One task of a version. `needs` and `dependants` are positions in the graph."""

    __slots__ = (
        "approval", "child", "claims", "cleans_up", "compensation", "condition", "deadline", "dependants", "each",
        "effect", "exclusive", "index", "is_answered", "is_chained", "is_plain", "is_read", "is_referenced", "join",
        "lookup", "map", "name", "needs", "pool", "queue", "quorum", "repeat", "retry", "run", "signal", "start_within",
        "template", "timeout", "wait", "was",
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
        pool: PoolPlan | None = None,
        deadline: WaitPlan | None = None,
        start_within: int | None = None,
        repeat: RepeatPlan | None = None,
        child: ChildPlan | None = None,
        compensation: "TaskPlan | None" = None,
        was: str = "",
    ) -> None:
        self.index, self.name, self.run, self.needs, self.queue = index, name, run, needs, queue
        self.was = was
        """The name that its effect keys go on to say; empty: it was never renamed."""
        self.retry = retry or RetryPlan()
        self.timeout = timeout
        """Seconds."""
        self.approval, self.template, self.condition = approval, template, condition
        self.exclusive, self.effect, self.lookup, self.wait, self.signal = exclusive, effect, lookup, wait, signal
        self.pool = pool
        """Its body needs a slot of this pool."""
        self.child = child
        self.compensation = compensation
        """What undoes it: a task that nothing stands before but the compensations of what came after."""
        self.is_referenced = compensation is not None
        """Some template or condition reads its output, or its compensation is given it, so the machine must keep it."""
        self.is_read = repeat is not None
        """Some of them looks into it, so it must be there as a value."""
        self.repeat = repeat
        self.is_answered = run is not None and map is None and repeat is None
        """Its output is what an attempt of its body answered with."""
        self.deadline = deadline
        """Of all its attempts and what lies between them, from its turn on."""
        self.start_within = start_within
        """Microseconds from a hand-out until its body has to have begun."""
        self.map = map
        self.each: TaskPlan | None = None
        """What each item of a map is: a task that nothing stands before and nothing comes after."""
        if map is not None:
            self.each = TaskPlan(
                index, name, run=run, queue=queue, retry=retry, timeout=timeout, template=template,
                exclusive=exclusive, effect=effect, lookup=lookup, pool=pool, start_within=start_within, was=was,
            )  # fmt: skip
            self.each.is_referenced = True
        stops = (approval, condition, wait, signal, map, deadline, child)
        self.is_plain = all(each is None for each in stops)
        """Nothing stands between its join and its body."""
        self.claims = exclusive or effect != "idempotent"
        """Its body starts only after the engine has recorded who runs it: a hand-out without an owner never began."""
        self.join = join
        self.cleans_up = join == "finally"
        """A cancel of the run does not end it."""
        self.quorum: int | None = join if isinstance(join, int) else 1 if join == "any" else None
        """How many of its needs have to complete, where that is fewer than all."""
        self.is_chained = join == "all" and len(needs) == 1
        """Its one need decides about it: nothing is counted."""
        self.dependants: tuple[int, ...] = ()

    @property
    def effect_name(self) -> str:
        """What its effect keys say. It stays when the task is renamed, so by it two versions mean the same task."""
        return self.was or self.name

    def render_compensation(self, input: bytes, outputs: Outputs, given: bytes, answer: bytes | None) -> bytes:
        """What the body of a compensation is given: the input and the output of its task, unless the workflow says
        something else. answer: None of a task that did not complete. Raises PayloadError."""
        variables = {".task": b'{"input":%b,"output":%b}' % (given, answer or b"null")}
        return (self.template or _THE_TASK).render(input, lambda name: variables.get(name) or outputs(name))

    def render_item(self, input: bytes, outputs: Outputs, items: list[msgspec.Raw], item: int) -> bytes:
        """What the body of an item is given: the item, unless the map says something else. Raises PayloadError."""
        given = bytes(items[item])
        if self.template is None:
            return given
        variables = {".item": given, ".index": b"%d" % item}
        return self.template.render(input, lambda name: variables.get(name) or outputs(name))

    def render_fairness_key(self, input: bytes, outputs: Outputs, items: list[msgspec.Raw], item: int | None) -> str:
        """Between whom the slots of its pool go in turns; empty: nobody said. items, item: of a map. Raises
        PayloadError."""
        if self.pool is None or self.pool.fairness_key is None:
            return ""
        known = outputs
        if item is not None:
            variables = {".item": bytes(items[item]), ".index": b"%d" % item}
            known = lambda name: variables.get(name) or outputs(name)  # noqa: E731
        return _key_in(self.pool.fairness_key.render(input, known), f"the fairness key of pool {self.pool.name}")

    def render_round(
        self, template: Template, input: bytes, outputs: Outputs, rounds: int, last: bytes | None
    ) -> bytes:
        """What the body of a repeat is given, after so many rounds. Raises PayloadError."""
        variables = {".last": last or b"null", ".index": b"%d" % rounds}
        return template.render(input, lambda name: variables.get(name) or outputs(name))


class Plan:
    """A frozen version, ready for `advance`. Shared by all its runs, never changed."""

    __slots__ = (
        "clean_ups", "compensates", "deadline", "has_deadlines", "has_repeats", "index", "is_wide", "limit",
        "listeners", "name", "output", "roots", "tasks", "version", "version_id",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        tasks: list[TaskPlan],
        *,
        version: int = 1,
        version_id: int = 0,
        output: Template | None = None,
        deadline: int | None = None,
        limit: LimitPlan | None = None,
    ) -> None:
        """output: of a run, once it has completed; None: it has none of its own. deadline: of a run, microseconds from
        its start. limit: None: as many runs go at once as are started."""
        self.limit = limit
        self.name, self.version, self.version_id, self.output = name, version, version_id, output
        self.tasks: tuple[TaskPlan, ...] = tuple(tasks)
        self.index: dict[str, int] = {task.name: task.index for task in tasks}
        self.roots: tuple[int, ...] = tuple(task.index for task in tasks if not task.needs)
        dependants: list[list[int]] = [[] for _ in tasks]
        for task in tasks:
            for need in task.needs:
                dependants[need].append(task.index)
            undo = None if task.compensation is None else task.compensation.template
            sources = (task.template, task.condition, task.wait, task.signal, task.map, task.approval, task.deadline)
            for source in (*sources, task.repeat, task.pool, undo):
                self._mark(tasks, source)
            if task.child is not None and task.template is not None:
                for name in task.template.references:  # what refers to an object can be followed in its own run only
                    tasks[self.index[name]].is_read = True
            task.is_read |= undo is not None
        self._mark(tasks, output)
        for task in tasks:
            if task.each is not None:
                task.each.is_read = task.is_read
        for task, after in zip(tasks, dependants, strict=True):
            task.dependants = tuple(after)
        self.deadline = deadline
        self.has_deadlines = deadline is not None or any(t.deadline or t.start_within is not None for t in tasks)
        self.has_repeats = any(task.repeat is not None for task in tasks)
        self.is_wide = any(len(after) > WIDE for after in dependants)
        self.compensates = any(task.compensation is not None for task in tasks)
        self.clean_ups: tuple[int, ...] = tuple(task.index for task in tasks if task.cleans_up)
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
        self,
        tasks: list[TaskPlan],
        source: Template | Condition | WaitPlan | SignalPlan | MapPlan | PoolPlan | ApprovalPlan | RepeatPlan | None,
    ) -> None:
        if source is not None:
            for name in source.references:
                tasks[self.index[name]].is_referenced = True
            for name in source.reads:
                tasks[self.index[name]].is_read = True

    def without_limit(self) -> "Plan":
        """The same, as if as many runs went at once as are started."""
        if self.limit is None:
            return self
        other = copy(self)
        other.limit = None
        return other

    def at(self, place: int) -> TaskPlan:
        """What stands there: a task of the graph, an item of a map, or a compensation."""
        if place < ITEMS_MAX:
            return self.tasks[place]
        task = self.tasks[task_of(place)]
        each = task.each if place < COMPENSATIONS_FROM else task.compensation
        if each is None:
            raise IndexError(place)
        return each

    def name_of(self, place: int) -> str:
        """`charge`; `pages.17` for an item; `charge.compensate` for a compensation."""
        return _name_at(place, self.tasks[task_of(place)].name)

    def effect_name_of(self, place: int) -> str:
        """As `name_of`, by the name that its effect keys say."""
        return _name_at(place, self.tasks[task_of(place)].effect_name)

    def find(self, name: str) -> int | None:
        """The place that `name_of` calls so."""
        task, dot, item = name.partition(".")
        index = self.index.get(task)
        if index is None or not dot:
            return index
        if item == COMPENSATE:
            return None if self.tasks[index].compensation is None else compensation_of(index)
        is_number = item.isascii() and item.isdecimal() and item == str(int(item)) and int(item) < ITEMS_MAX
        return place_of(index, int(item)) if is_number and self.tasks[index].each is not None else None


def _name_at(place: int, name: str) -> str:
    if place < ITEMS_MAX:
        return name
    return f"{name}.{item_of(place) if place < COMPENSATIONS_FROM else COMPENSATE}"


def _compile_approval(approval: "Approval") -> ApprovalPlan:
    return ApprovalPlan(
        title=approval.title,
        approvers=tuple(approval.approvers),
        expires=None if approval.expires is None else approval.expires // _MICROSECOND,
        on_expiry=approval.on_expiry,
        title_template=compile_template(approval.title) if "${{" in approval.title else None,
        context=None if approval.context is None else compile_template(approval.context),
        form=None if approval.form is None else msgspec.json.encode(approval.form),
        needed=approval.needed,
        no_self_approval=approval.no_self_approval,
        remind=tuple(length // _MICROSECOND for length in approval.remind),
        steps=tuple(
            StepPlan(tuple(step.to), None if step.after is None else step.after // _MICROSECOND)
            for step in approval.escalate
        ),
        on_reject=approval.on_reject,
    )


def _compile_wait(wait: "Wait") -> WaitPlan:
    text, is_for = (wait.until, False) if wait.for_ is None else (wait.for_, True)
    return _compile_end(text, is_for=is_for)


def _compile_deadline(deadline: "Wait | None") -> WaitPlan | None:
    return None if deadline is None else _compile_wait(deadline)


def _compile_input(task: "Task") -> Template | None:
    if task.with_ is None:
        return None
    return compile_template(task.with_, OF_AN_ITEM if task.map else OF_A_ROUND if task.repeat else ())


def _compile_repeat(repeat: "Repeat", template: Template | None) -> RepeatPlan:
    return RepeatPlan(
        compile_condition(repeat.until, OF_ITS_END),
        repeat.max,
        repeat.delay // _MICROSECOND,
        repeat.on_max,
        template is not None and template.knows("last"),
    )


def _compile_signal(signal: "Signal") -> SignalPlan:
    return SignalPlan(
        signal.name,
        None if signal.key is None else compile_template(signal.key),
        None if signal.timeout is None else _compile_end(signal.timeout, is_for=True),
        signal.on_timeout,
        signal.delivery,
    )


def _compile_pool(pool: "Pool", *, is_mapped: bool) -> PoolPlan:
    if pool.fairness_key is None:
        return PoolPlan(pool.name)
    return PoolPlan(pool.name, compile_template(pool.fairness_key, OF_AN_ITEM if is_mapped else ()))


def _compile_child(child: "Child") -> ChildPlan:
    return ChildPlan(child.name, child.version, child.wait, child.wait and child.on_cancel == "cancel")


def _compile_limit(limit: "Limit") -> LimitPlan:
    return LimitPlan(None if limit.key is None else compile_template(limit.key), limit.runs, limit.over)


def _compile_end(text: str | None, *, is_for: bool) -> WaitPlan:
    if "${{" in (text or ""):
        return WaitPlan(value=compile_value(text or ""), is_for=is_for)
    if is_for:
        return WaitPlan(length=_length_of(text), is_for=True)
    return WaitPlan(until=_instant_of(text))


def _compile_retry(retry: "Retry") -> RetryPlan:
    return RetryPlan(
        attempts=retry.attempts,
        backoff=retry.backoff,
        delay=int(retry.delay.total_seconds() * _MICROSECONDS),
        cap=int(retry.cap.total_seconds() * _MICROSECONDS),
        jitter=retry.jitter,
    )


def _compile_compensation(position: int, name: str, task: "Task") -> TaskPlan | None:
    compensate = task.compensate
    if compensate is None:
        return None
    return TaskPlan(
        position,
        f"{name}.{COMPENSATE}",
        run=compensate.run,
        queue=compensate.queue or task.queue,
        retry=_compile_retry(compensate.retry),
        timeout=None if compensate.timeout is None else compensate.timeout.total_seconds(),
        template=None if compensate.with_ is None else compile_template(compensate.with_, OF_A_COMPENSATION),
        was=task.was or "",
    )


def compile_plan(workflow: "Workflow", *, version: int = 1, version_id: int = 0) -> Plan:
    """Compile a published workflow. It was checked at publish, so nothing here is refused."""
    index = {name: position for position, name in enumerate(workflow.tasks)}
    tasks = []
    for position, (name, task) in enumerate(workflow.tasks.items()):
        tasks.append(
            TaskPlan(
                position,
                name,
                run=task.run,
                needs=tuple(index[need] for need in task.needs),
                queue=task.queue,
                retry=_compile_retry(task.retry),
                timeout=None if task.timeout is None else task.timeout.total_seconds(),
                approval=None if task.approval is None else _compile_approval(task.approval),
                template=(template := _compile_input(task)),
                condition=None if task.if_ is None else compile_condition(task.if_),
                exclusive=task.exclusive,
                effect=task.effect,
                lookup=task.lookup,
                pool=None if task.pool is None else _compile_pool(task.pool, is_mapped=task.map is not None),
                join=task.join,
                wait=None if task.wait is None else _compile_wait(task.wait),
                signal=None if task.signal is None else _compile_signal(task.signal),
                map=None
                if task.map is None
                else MapPlan(compile_template(task.map.over), task.map.max_parallel, task.map.failures),
                repeat=None if task.repeat is None else _compile_repeat(task.repeat, template),
                deadline=_compile_deadline(task.deadline),
                start_within=None if task.start_within is None else task.start_within // _MICROSECOND,
                child=None if task.workflow is None else _compile_child(task.workflow),
                compensation=_compile_compensation(position, name, task),
                was=task.was or "",
            )
        )
    output = None if workflow.output is None else compile_template(workflow.output)
    deadline = None if workflow.deadline is None else workflow.deadline // _MICROSECOND
    limit = None if workflow.limit is None else _compile_limit(workflow.limit)
    return Plan(
        workflow.name, tasks, version=version, version_id=version_id, output=output, deadline=deadline, limit=limit
    )
