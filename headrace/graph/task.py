"""A task, and what it may be made of."""

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictFloat, StrictInt, StrictStr, model_validator

from headrace.approval import Approval
from headrace.duration import Duration, PositiveDuration, format_duration
from headrace.expressions import EXPRESSION_CHARS_MAX
from headrace.graph.field import (
    ATTEMPTS_MAX,
    KEY_CHARS_MAX,
    NEEDS_MAX,
    PARALLEL,
    ROUNDS_MAX,
    BodyName,
    Frozen,
    PoolName,
    QueueName,
    SignalName,
    TaskName,
    WorkflowName,
    attempts_only,
    body_only,
    condition_text,
    instant_text,
    known_join,
    length_only,
    length_text,
    list_given,
    list_only,
    name_only,
    not_null,
    one_or_more,
    until_text,
)
from headrace.machine.place import ITEMS_MAX


class Retry(Frozen):
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


class Wait(Frozen):
    """Some time that passes, or an instant that comes, before the run goes on: `for` or `until`."""

    for_: Annotated[
        StrictStr | None, BeforeValidator(length_text), Field(validation_alias="for", serialization_alias="for")
    ] = None
    """A duration, or an expression that gives one."""
    until: Annotated[StrictStr | None, BeforeValidator(instant_text)] = None
    """RFC 3339, or an expression that gives that or a timestamp."""

    @model_validator(mode="after")
    def _has_one_end(self) -> "Wait":
        if (self.for_ is None) == (self.until is None):
            raise ValueError(f"a {type(self).__name__.lower()} has either `for` or `until`")
        return self


class Deadline(Wait):
    """When a task has to have ended: so long after its turn came, or at an instant. In a definition also just how
    long."""


class Signal(Frozen):
    """Something that is told from outside before the run goes on. In a definition also just its name."""

    name: SignalName
    """Which signal."""
    key: Annotated[StrictStr | None, Field(min_length=1, max_length=EXPRESSION_CHARS_MAX)] = None
    """Which of the signals of that name: text with expressions; None: it makes no difference."""
    timeout: Annotated[StrictStr | None, BeforeValidator(length_text)] = None
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


class Map(Frozen):
    """Over which list the body of a task runs, once for each item. In a definition also just the list."""

    over: Annotated[Any, BeforeValidator(list_given)]
    """A list, or an expression that gives one; evaluated once."""
    max_parallel: Annotated[StrictInt, Field(ge=1, le=ITEMS_MAX)] = PARALLEL
    """Items under way at once."""
    failures: Literal["fail_fast", "finish", "collect"] = "fail_fast"
    """What an item that failed leads to: the others are cancelled; they go on, and the map fails at their end; or it
    completes, and its output says what failed."""


class Pool(Frozen):
    """Of which pool each hand-out of a body needs a slot. In a definition also just its name."""

    name: PoolName
    """Which pool."""
    fairness_key: Annotated[StrictStr | None, Field(min_length=1, max_length=EXPRESSION_CHARS_MAX)] = None
    """Between whom the slots go in turns: text with expressions; None: with all others that have none."""

    @model_validator(mode="after")
    def _is_a_key(self) -> "Pool":
        key = self.fairness_key or ""
        if "${{" not in key and len(key) > KEY_CHARS_MAX:
            raise ValueError(f"a key may have {KEY_CHARS_MAX} characters")
        return self


class Repeat(Frozen):
    """The body of a task runs again until what comes out of it will do, and a number of times at most."""

    until: Annotated[StrictStr, BeforeValidator(until_text)]
    """CEL, without `${{ }}`, over `output`, what came out of the round, and `index`, which one it was, from 0."""
    max: Annotated[StrictInt, Field(ge=1, le=ROUNDS_MAX)]
    """Rounds in all."""
    delay: Duration = timedelta(0)
    """Between two rounds."""
    on_max: Literal["fail", "complete"] = "fail"
    """What the task does when it does not hold after the last round."""


class Child(Frozen):
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


class Compensate(Frozen):
    """What undoes a task when its run fails or is cancelled. In a definition also just the name of the body."""

    run: BodyName
    """Registered name of the body, such as `payments.refund`."""
    with_: Annotated[Any, BeforeValidator(not_null)] = Field(None, validation_alias="with", serialization_alias="with")
    """Template of its input; None: `{input, output}` of the task."""
    queue: QueueName | None = None
    """None: that of the task."""
    retry: Annotated[Retry, BeforeValidator(attempts_only)] = Retry()
    """How often, and how long apart, the body is tried; a number: so many attempts."""
    timeout: PositiveDuration | None = None
    """How long one attempt may take."""


class Task(Frozen):
    """One unit of work. With `approval` and no `run` it is only the question; with both, the question comes first.
    A `wait` or a `signal` is nothing else; a `map` is a `run` for each item of a list; a `workflow` is a run of another
    workflow, with this task's `with` as its input and `timeout` as the most that it is waited for."""

    run: BodyName | None = None
    """Registered name of the body, such as `payments.charge`."""
    needs: Annotated[tuple[TaskName, ...], BeforeValidator(one_or_more), Field(max_length=NEEDS_MAX)] = ()
    """The tasks that must be done before, one name or a list of them; without it: it begins with the run."""
    join: Annotated[
        Literal["all", "any", "always", "on_failure", "finally"] | Annotated[StrictInt, Field(ge=1, le=NEEDS_MAX)],
        BeforeValidator(known_join),
    ] = "all"
    """What it asks of its needs; a number: that so many of them complete; `finally`: only that they have ended, also
    when the run is cancelled."""
    if_: Annotated[StrictStr | None, BeforeValidator(condition_text)] = Field(
        None, validation_alias="if", serialization_alias="if"
    )
    """CEL, without `${{ }}`; false skips the task."""
    with_: Annotated[Any, BeforeValidator(not_null)] = Field(None, validation_alias="with", serialization_alias="with")
    """Template of the input; None: the run's input."""
    queue: QueueName = "default"
    """The lane of workers that takes it."""
    retry: Annotated[Retry, BeforeValidator(attempts_only)] = Retry()
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
    signal: Annotated[Signal | None, BeforeValidator(name_only)] = None
    """Nothing runs until the run is told this; text: the name of the signal."""
    map: Annotated[Map | None, BeforeValidator(list_only)] = None
    """`run` for each item of a list; a list, or an expression that gives one: only that."""
    pool: Annotated[Pool | None, BeforeValidator(name_only)] = None
    """Each hand-out of its body waits for a slot of this pool; of a map, that of each item; text: the name of the
    pool."""
    repeat: Repeat | None = None
    """`run` again and again, until what comes out of it will do."""
    deadline: Annotated[Deadline | None, BeforeValidator(length_only)] = None
    """Of all its attempts and what lies between them, from its turn on; then it fails."""
    start_within: PositiveDuration | None = None
    """How long a hand-out may wait until its body begins; then the task fails."""
    workflow: Annotated[Child | None, BeforeValidator(name_only)] = None
    """Another workflow runs, as a run of its own; text: the name of the workflow."""
    compensate: Annotated[Compensate | None, BeforeValidator(body_only)] = None
    """What undoes it when its run fails or is cancelled; text: only the body."""
    was: TaskName | None = None
    """The name under which it was first published, once it is renamed: its effect keys go on to say that, so runs that
    have begun it may be moved."""

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
            raise ValueError(DOES_NOTHING)
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


DOES_NOTHING: Final = "a task must have `run`, `approval`, or both; or `wait`; or `signal`; or `workflow`"
