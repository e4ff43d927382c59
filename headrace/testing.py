"""Test a workflow in one process, on a virtual clock: no Kafka, no Postgres, and the very machine the engine runs.

    with Harness(workflow, bodies, at="2026-11-27T16:30:00+01:00") as harness:
        run = harness.start({"email": "ada@example.org"})
        harness.advance(days=3)
        run.approve("review", by="owner")
        harness.run_until_idle()
        assert run.status == "completed"

A harness carries out what `headrace.machine` asks for, and decides nothing itself. It does at once what the engine does
by and by: a command is a call of the body, which is bound, validated and encoded as in a worker, and takes no virtual
time; a timer is due when the clock comes to it. So a week of retries, waits and approvals passes in milliseconds, and
the same test gives the same history each time. What it leaves out is everything that Kafka, Postgres and other
processes do to a run; `crash_next` and `hang_next` bring back the two ends of that which a workflow can feel.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from itertools import count
from math import ceil
from types import TracebackType
from typing import Any, Final, Literal, NamedTuple, TypeVar, assert_never

import msgspec

from headrace import payload
from headrace.attempt import Answer, Attempt
from headrace.errors import ConfigurationError, ConflictError, DefinitionError, NotFoundError, PayloadError
from headrace.graph import Workflow, from_data, parse
from headrace.instant import format_instant, from_microseconds, parse_instant, to_microseconds
from headrace.machine import (
    Abort,
    Action,
    Ask,
    AwaitPermit,
    AwaitSlot,
    BuryTask,
    CancelChild,
    Cancelled,
    ChildTold,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    CountRounds,
    Decided,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Grant,
    HoldTasks,
    KeepOutput,
    KeepSignal,
    Listen,
    MachineEvent,
    Migrated,
    NoteRound,
    Park,
    Paused,
    Plan,
    Prioritised,
    RefuseMove,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    ReturnPermit,
    RunState,
    RunStatus,
    SetDeadline,
    SetPriority,
    SetTimer,
    Signalled,
    StartChild,
    StopListening,
    Supplied,
    TakeSignal,
    TakeSlot,
    TaskPlan,
    TaskState,
    TaskStatus,
    Terminated,
    Transition,
    Unpark,
    advance,
    begin,
    compile_plan,
)
from headrace.machine.advance import can_be_supplied, choose_rerun
from headrace.machine.child import refuse_input
from headrace.machine.cleanup import is_ended_by_cancel
from headrace.machine.event import PRIORITY_MAX
from headrace.machine.limit import Line, Verdict
from headrace.machine.migration import find_obstacles
from headrace.machine.place import RUN, compensation_of, is_compensation, is_item, items_of, task_of
from headrace.machine.reason import DEPTH_MAX, LIMIT_REACHED, TOO_DEEP
from headrace.machine.status import AWAITS_PERMIT, CANCELLING, PAUSED, RUN_TERMINAL, TASKS_PAUSED, TERMINAL
from headrace.messages import (
    PAYLOAD_BYTES_MAX,
    Admitted,
    Command,
    Due,
    Error,
    Failed,
    Lost,
    RunId,
    Started,
    Succeeded,
    make_nonce,
)
from headrace.object_store import OBJECT_BYTES_MAX, ObjectStore
from headrace.question import Question
from headrace.rate import Rate, parse_rate
from headrace.registry import Registry
from headrace.registry import default as default_registry
from headrace.standing import Delegated, Person
from headrace.worker.execution import Execution

__all__ = ["Harness", "HarnessRun", "HarnessTask", "HistoryItem"]

_T = TypeVar("_T")
_End = Literal["before", "after", "hang", "leave"]
"""How a body ends without an answer: its worker dies before it, or after it; it never ends; or it never begins."""
SESSION: Final = "harness"
"""The one worker session there is."""
BEGINNING: Final = "2026-01-01T00:00:00Z"
"""When a harness begins that is not told otherwise: always the same, so that a test is, too."""
FOREVER: Final = 2**62
_MINUTE: Final = 60_000_000
_SECRET: Final = b"not secret: nobody but the harness speaks to its machine"


class HistoryItem(NamedTuple):
    """One thing that moved a run. `kind` is what the API's history calls it: started, attempt_completed, due …"""

    at: datetime
    kind: str
    task: str | None = None
    attempt: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        parts = [format_instant(self.at), self.kind, self.task or "", f"attempt {self.attempt}" if self.attempt else ""]
        return "  ".join(part for part in (*parts, self.detail) if part)


class HarnessTask(NamedTuple):
    """A task as it stands."""

    status: TaskStatus
    attempt: int
    """Bodies that began."""
    output: Any
    """None until it has completed."""
    error: str | None
    """`CODE: message` of why it failed, was skipped or is before a person."""
    due_at: datetime | None
    """When its backoff, its time-out, its time in the queue or its wait ends."""
    deadline_at: datetime | None = None
    """When it has to have ended."""
    rounds: int = 0
    """Of a repeat: how many rounds have ended."""


class _Timer(NamedTuple):
    due_at: int
    order: int
    """Of two that are due at once, the first that was set comes first."""
    run: "_Run"
    task: int
    token: int
    kind: str

    @property
    def is_of_a_question(self) -> bool:
        """Its expiry, a reminder (`remind 0`) or a step of its escalation (`escalate 0`)."""
        return self.kind.partition(" ")[0] in ("expiry", "remind", "escalate")

    @property
    def is_an_end(self) -> bool:
        """Whether it ends what somebody may come before: an approval, a wait for a signal or a child, a deadline."""
        spec = None if self.kind != "wait" else self.run.state.plan.tasks[self.task]
        is_a_limit = spec is not None and (spec.signal is not None or spec.child is not None)
        return is_a_limit or self.is_of_a_question or self.kind == "deadline"


class _Delegation(NamedTuple):
    from_name: str
    to: str
    starts: int
    ends: int
    made_by: str


class _Posted:
    """A signal for whoever waits for its key."""

    def __init__(self, name: str, key: str, data: bytes, by: str, sent_at: int) -> None:
        self.name, self.key, self.data, self.by, self.sent_at = name, key, data, by, sent_at
        self.is_taken = False
        self.heard: set[tuple[RunId, int, int]] = set()
        """Waits of `delivery: all` that it came to."""


class _Wait(NamedTuple):
    """A task that waits for a signal with a key."""

    run: "_Run"
    task: int
    token: int
    key: str

    @property
    def is_over(self) -> bool:
        state = self.run.state.task(self.task)
        return (state.status, state.token) != (TaskStatus.WAITING, self.token)


class _Waiter(NamedTuple):
    """A task that waits for a slot."""

    run: "_Run"
    task: int
    token: int
    pool: str
    began_at: int
    order: int

    @property
    def rank(self) -> tuple[int, int]:
        """A point of priority is worth a minute of waiting."""
        return self.began_at - self.run.priority * _MINUTE, self.order


class _Permit:
    """A run under the limit of its workflow: it waits for its permit, or has it."""

    def __init__(self, run: "_Run", key: str, asked_at: int, order: int, *, is_granted: bool) -> None:
        self.run, self.key, self._asked_at, self.order, self.is_granted = run, key, asked_at, order, is_granted
        self.is_replaced = False

    @property
    def rank(self) -> tuple[int, int]:
        return self._asked_at - self.run.priority * _MINUTE, self.order

    @property
    def line(self) -> tuple[str, str]:
        return self.run.state.plan.name, self.key


class _Pool:
    """The limits of a pool: a token bucket for its rate, as in the engine."""

    def __init__(self, slots: int | None, rate: Rate | None, at: int) -> None:
        self.slots, self._rate, self._at = slots, rate, at
        self._allowance: float = 0 if rate is None else rate.hand_outs

    def change(self, slots: int | None, rate: Rate | None, at: int) -> None:
        """A rate that changes keeps what it has."""
        self._fill(at)
        if rate is not None:
            self._allowance = rate.hand_outs if self._rate is None else min(self._allowance, rate.hand_outs)
        self.slots, self._rate = slots, rate

    def allows_at(self) -> int:
        """When it allows one more."""
        if self._rate is None or self._allowance >= 1:
            return self._at
        return self._at + ceil((1 - self._allowance) * self._rate.seconds / self._rate.hand_outs * 1_000_000)

    def pay(self, at: int) -> None:
        """For one that is admitted."""
        self._fill(at)
        self._allowance = max(0.0, self._allowance - 1)

    def _fill(self, at: int) -> None:
        if self._rate is not None:
            more = (at - self._at) / 1_000_000 * self._rate.hand_outs / self._rate.seconds
            self._allowance = min(self._rate.hand_outs, self._allowance + more)
        self._at = at


class _VirtualAttempt(Attempt):
    """An attempt that begins by the clock of its harness."""

    __slots__ = ("_at",)

    def __init__(self, key: bytes, command: Command, at: int) -> None:
        super().__init__(key, command)
        self._at = at

    def begin(self) -> None:
        super().begin()
        self.started = self._at


class Harness:
    """Some workflow, its bodies, and a clock that moves only when it is told to.

    workflow: published in any way: a `Workflow`, YAML or JSON text, or parsed data. Raises DefinitionError.
    bodies: a registry, or functions by the names that `run:` says; without them, those of `@headrace.task`. Raises
    ConfigurationError when the workflow names one that is not there.
    pools: what limits each pool: slots, as a number, or a rate, as `10/s`; one that is not named has no limit.
    at: when the clock begins; raises ValueError for an instant without an offset.
    workflows: others, which tasks with `workflow` start. Each is there in one version, whichever is asked for.
    Use it in a `with` statement when bodies are async: they share an event loop, which ends with it.

    >>> harness = Harness("name: hello\\ntasks: { greet: { run: greet } }", {"greet": lambda name: f"Hello, {name}!"})
    >>> harness.start({"name": "Ada"}).outputs
    {'greet': 'Hello, Ada!'}
    """

    def __init__(
        self,
        workflow: Workflow | str | bytes | Mapping[str, Any],
        bodies: Registry | Mapping[str, Callable[..., Any]] | None = None,
        *,
        pools: Mapping[str, int | str] | None = None,
        at: datetime | str = BEGINNING,
        workflows: Sequence[Workflow | str | bytes | Mapping[str, Any]] = (),
    ) -> None:
        published = [_published(each) for each in (workflow, *workflows)]
        self._engine = _Engine(published, _registered(bodies), _instant(at))
        for name, limit in (pools or {}).items():
            slots, rate = (None, limit) if isinstance(limit, str) else (limit, None)
            self._engine.set_pool(name, slots, rate)

    def __enter__(self) -> "Harness":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the event loop of the async bodies, if there is one. Safe to repeat."""
        self._engine.close()

    # -- the clock -----------------------------------------------------------------------------------------------------
    @property
    def now(self) -> datetime:
        """What the clock shows, in UTC."""
        return self._engine.now

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Let so much time pass: everything that is due meanwhile happens, in order and on time."""
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        self.advance_to(self.now + length)

    def advance_to(self, instant: datetime | str) -> None:
        """Let time pass until then. Raises ValueError for an instant that has passed, or has no offset."""
        self._engine.advance_to(_instant(instant))

    def run_until_idle(self) -> None:
        """Let time pass for as long as timers move something: until every run has ended, or waits for a person or a
        signal.

        Neither is waited out, nor is a deadline: an approval expires, and the time-out of a signal or a child, or a
        deadline comes, when the clock is advanced to it or comes to it for another reason.
        """
        while (instant := self._engine.next_instant(without_expiry=True)) is not None:
            self._engine.advance_to(instant)

    # -- runs ----------------------------------------------------------------------------------------------------------
    def start(self, input: Any = None, *, by: str = "", priority: int = 0) -> "HarnessRun":
        """Start a run, and let everything happen that needs no time. by: who starts it, for `no_self_approval`.

        priority: its place in the queues of pools, from -100 to 100. input: JSON data, or what a body may return; an
        empty object when left out. Raises DefinitionError when the workflow's schema refuses it. When no more may go at
        once, it raises ConflictError under a limit with `over: reject`, and answers the run that goes under `drop`.
        """
        raw = payload.encode_input({} if input is None else input)
        if faults := self._engine.workflow.check_input(msgspec.json.decode(raw)):
            raise DefinitionError(faults)
        return HarnessRun(self._engine, self._engine.start(raw, by, _priority(priority)))

    def set_pool(self, name: str, slots: int | None = None, rate: str | None = None) -> None:
        """Give a pool other limits: so many slots, so many hand-outs in some time (`10/s`, `5/30s`), both, or none.

        With fewer slots, what holds one goes on, and nothing is admitted until so many are free. A new rate begins with
        all that it allows at once. Raises ValueError for what is no rate.
        """
        self._engine.set_pool(name, slots, rate)
        self._engine.settle()

    def post(self, name: str, key: str, data: Any = None, *, by: str = "") -> None:
        """Tell something to whoever waits for this name and key, in any run of the harness, now or later: one task
        with `delivery: first` takes it, all with `delivery: all` hear it. It is kept for ever."""
        self._engine.post(_Posted(name, key, payload.encode_input(data), by, self._engine.at))
        self._engine.settle()

    def delegate(
        self, from_name: str, to: str, *, starts: datetime | str | None = None, ends: datetime | str | None = None,
        by: str = "",
    ) -> None:  # fmt: skip
        """Let `to` decide in place of `from_name`, a name or a role, between two instants: from now on, and for ever,
        when left out. by: who gives a role of theirs."""
        since = self._engine.at if starts is None else _instant(starts)
        until = FOREVER if ends is None else _instant(ends)
        self._engine.delegations.append(_Delegation(from_name, to, since, until, by or from_name))

    def crash_next(self, task: str, *, after_its_effect: bool = False, workflow: str | None = None) -> None:
        """Let the worker die with the next body of this task: before the body does anything, or once it has returned
        and before anybody hears of it. Of a map: with the next of its items. May be said several times, for the
        attempts to come. workflow: of the task, where it is one of the other `workflows`."""
        self._engine.plan_end(task, "after" if after_its_effect else "before", workflow)

    def hang_next(self, task: str, *, workflow: str | None = None) -> None:
        """Let the next body of this task never answer, so that only its `timeout` ends it."""
        self._engine.plan_end(task, "hang", workflow)

    def leave_next(self, task: str, *, workflow: str | None = None) -> None:
        """Let the next command of this task lie in its queue, where no worker takes it: only its `start_within` ends
        that, a deadline, or a person."""
        self._engine.plan_end(task, "leave", workflow)


class HarnessRun:
    """One run of a harness: how it stands, and what people can do to it."""

    def __init__(self, engine: "_Engine", run: "_Run") -> None:
        self._engine, self._run = engine, run

    @property
    def run_id(self) -> RunId:
        return self._run.run_id

    @property
    def _plan(self) -> Plan:
        return self._run.state.plan

    # -- how it stands -------------------------------------------------------------------------------------------------
    @property
    def status(self) -> RunStatus:
        return self._run.state.status

    @property
    def tasks(self) -> dict[str, str]:
        """The status of every task."""
        return {spec.name: self._run.state.task(spec.index).status.value for spec in self._plan.tasks}

    @property
    def outputs(self) -> dict[str, Any]:
        """What its tasks returned, as far as they have completed."""
        tasks = {spec.name: self._task(spec.index) for spec in self._plan.tasks}
        return {name: task.output for name, task in tasks.items() if task.status is TaskStatus.COMPLETED}

    @property
    def output(self) -> Any:
        """What came out of it, by the `output` of the workflow; None before its end, and without one."""
        finish = self._run.finish
        return None if finish is None or finish.output is None else self._engine.value(self._run, finish.output)

    @property
    def output_error(self) -> str | None:
        """Why nothing came out of it although it completed: `CODE: message`."""
        return _in_words(self._run.finish.error if self._run.finish else None)

    @property
    def history(self) -> list[HistoryItem]:
        """All that moved it, in order."""
        return list(self._run.history)

    def task(self, name: str) -> HarnessTask:
        """One task as it stands, one item of a map: `pages.17`, or what undoes a task: `charge.compensate`. Raises
        NotFoundError."""
        return self._task(self._run.place(name))

    def items(self, name: str) -> list[HarnessTask]:
        """The items of a map that have begun, in the order of its list. Raises NotFoundError."""
        counts = self._run.state.maps.get(self._run.place(name))
        begun = 0 if counts is None else counts.begun
        return [self._task(place) for place in items_of(self._run.place(name), begun)]

    def child(self, task: str) -> "HarnessRun":
        """The run that this task has started last, to be looked at and acted on like any other. Raises
        NotFoundError."""
        child = self._run.children.get(self._run.place(task))
        if child is None:
            raise NotFoundError(f"task {task} has started no run", task=task)
        return HarnessRun(self._engine, child)

    @property
    def compensations(self) -> dict[str, str]:
        """What undoes it, by task; empty while it has nothing to undo."""
        state = self._run.state
        places = [(spec.name, compensation_of(spec.index)) for spec in state.plan.tasks]
        return {name: state.tasks[place].status.value for name, place in places if place in state.tasks}

    def _task(self, index: int) -> HarnessTask:
        state = self._run.state.task(index)
        is_done = state.status is TaskStatus.COMPLETED
        output = self._engine.value(self._run, self._run.outputs.get(index, b"null")) if is_done else None
        due_at = None if state.due_at is None else from_microseconds(state.due_at)
        deadline_at = None if state.deadline_at is None else from_microseconds(state.deadline_at)
        return HarnessTask(
            state.status, state.attempt, output, _in_words(state.error), due_at, deadline_at, state.rounds
        )

    # -- what people do ------------------------------------------------------------------------------------------------
    def approve(
        self, task: str, *, by: str = "", roles: Iterable[str] = (), comment: str = "", form: Any = None
    ) -> None:
        """Answer the task's question. form: what is filled in, where it has a form. roles: of whoever answers.

        Raises ConflictError when it asks nobody now, or they have voted; ForbiddenError when it is for others;
        DefinitionError when the form's schema refuses what is filled in.
        """
        self._decide(task, "approved", Person(by, frozenset(roles)), comment, form)

    def reject(
        self, task: str, *, by: str = "", roles: Iterable[str] = (), comment: str = "", form: Any = None
    ) -> None:
        """As `approve`."""
        self._decide(task, "rejected", Person(by, frozenset(roles)), comment, form)

    def question(self, task: str) -> Question:
        """What the task asks now: its title, context, approvers and votes. Raises ConflictError when it asks nobody."""
        index = self._run.place(task)
        if index not in self._run.questions:
            raise ConflictError(f"task {task} asks nobody: it is {self._run.state.task(index).status}", task=task)
        return self._run.questions[index]

    def signal(self, name: str, data: Any = None, *, key: str | None = None, by: str = "") -> None:
        """Tell it something: a task that waits for it takes it, now or once it begins to wait.

        Raises NotFoundError when no task of the workflow waits for that name, ConflictError when the run has ended.
        """
        if name not in self._plan.listeners:
            raise NotFoundError(self._plan.why_deaf(name), signal=name)
        if self.status in RUN_TERMINAL:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(self._engine.signal(name, payload.encode_input(data), key, by))

    @property
    def signals(self) -> list[str]:
        """The names of the signals that it was told and that no task has taken."""
        return [signal.name for signal in sorted(self._run.state.signals.values(), key=lambda signal: signal.order)]

    def cancel(self, reason: str = "", *, by: str = "") -> None:
        """End it now, but for its clean-ups, and undo what it did. Raises ConflictError when it has ended, or does only
        that already."""
        state = self._run.state
        if self.status in RUN_TERMINAL or state.compensations is not None or state.control & CANCELLING:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Cancelled(reason, by))

    def terminate(self, reason: str = "", *, by: str = "") -> None:
        """End it by force: as a cancel, and without any clean-up. Raises ConflictError when it has ended."""
        if self.status in RUN_TERMINAL:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Terminated(reason, by))

    def pause(self, reason: str = "", *, by: str = "", task: str | None = None) -> None:
        """Let nothing new begin; what runs and what waits goes on. task: of this one only. Raises ConflictError when it
        is paused, or has ended."""
        if task is not None:
            index, state = self._run.place(task), self._run.state
            if state.task(index).status in TERMINAL or index in state.paused:
                raise ConflictError(f"task {task} is {state.task(index).status}, or paused already", task=task)
            return self._act(Paused(TASKS_PAUSED, reason, by, index))
        if self.status in RUN_TERMINAL or self._run.state.control & PAUSED:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Paused(PAUSED, reason, by))

    def resume(self, reason: str = "", *, by: str = "", task: str | None = None) -> None:
        """End a pause, or that of a task: what it withheld begins. Raises ConflictError when it is not paused."""
        if task is not None:
            index = self._run.place(task)
            if index not in self._run.state.paused:
                raise ConflictError(f"task {task} is not paused by itself", task=task)
            return self._act(Resumed(TASKS_PAUSED, reason, by, index))
        if not self._run.state.control & PAUSED:
            raise ConflictError(f"the run is {self.status}, and not paused", run_id=self.run_id)
        self._act(Resumed(PAUSED, reason, by))

    def migrate(self, workflow: Workflow | str | bytes | Mapping[str, Any], reason: str = "", *, by: str = "") -> None:
        """Move it to another version of its workflow. Runs that are started later begin with the first one still.

        Raises DefinitionError; ConfigurationError when a body is not there; ConflictError when it is not paused,
        something of it runs, or what has begun is another thing in that version.
        """
        published = _published(workflow)
        self._run.read_anew()
        move = self._engine.compile_next(published, self._run)
        if obstacles := find_obstacles(move, self._run.state):
            told = "; ".join(why if task is None else f"task {task}: {why}" for task, why in obstacles)
            raise ConflictError(f"the run cannot be moved: {told}", run_id=self.run_id)
        self._act(Migrated(move, reason, by))

    def prioritise(self, priority: int, reason: str = "", *, by: str = "") -> None:
        """Change its place in the queues of pools. Raises ConflictError when it has ended."""
        if self.status in RUN_TERMINAL:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Prioritised(_priority(priority), reason, by))

    def rerun(self, *tasks: str, input: Any = None, reason: str = "", by: str = "") -> None:
        """Let these tasks of a run that has ended, and all that depends on them, run again; without any, what failed or
        was cancelled. input: of the only task named. Raises ConflictError when the run has not ended, or nothing would
        run again."""
        chosen = tuple(self._run.place(task) for task in tasks)
        if not choose_rerun(self._plan, self._run.state, chosen):
            raise ConflictError(f"the run is {self.status}: nothing of it runs again", run_id=self.run_id)
        given = None if input is None else payload.encode_input(input)
        self._act(Reran(self._run.state.row_version, chosen, given, reason, by))

    def skip(self, task: str, output: Any = None, *, reason: str = "", by: str = "") -> None:
        """Give a task its output, so that it is done without its body. Raises ConflictError when it is not open and has
        not failed, or when its approval would be gone round."""
        index = self._run.place(task)
        if is_ended_by_cancel(self._run.state, index) or not can_be_supplied(self._plan, self._run.state, index):
            raise ConflictError(f"task {task} is {self._run.state.task(index).status}", task=task)
        state = self._run.state.task(index)
        self._act(Supplied(index, state.token, payload.encode_input(output), reason, by))

    def replay(self, task: str, *, input: Any = None, by: str = "") -> None:
        """Send a failed task, a failed item of a map, or a failed compensation out again. input: in place of what it
        was given. Raises ConflictError when it has not failed, or cannot come back."""
        index, state = self._stands(task, TaskStatus.FAILED)
        if self._run.state.compensations is not None and not is_compensation(index):
            raise ConflictError(f"the run is {self.status}: of it only compensations are replayed", task=task)
        if not is_compensation(index) and is_ended_by_cancel(self._run.state, index):
            raise ConflictError("the run was cancelled; its tasks cannot be replayed", task=task)
        given = None if input is None else payload.encode_input(input)
        if state.items is not None:
            raise ConflictError(f"of map {task} the items that failed are replayed", task=task)
        if self._run.state.has_put_away(index):
            raise ConflictError(f"the map of {task} has completed with this failure in its output", task=task)
        self._act(Replayed(index, state.token, by, given))

    def resolve(
        self, task: str, outcome: Literal["happened", "did_not_happen", "fail"], *, output: Any = None, by: str = ""
    ) -> None:
        """Say what became of the effect of a parked task. Raises ConflictError when it is not parked."""
        index, state = self._stands(task, TaskStatus.WAITING)
        if not state.is_parked:
            raise ConflictError(f"task {task} is not parked", task=task)
        self._act(Resolved(index, state.token, outcome, payload.encode_input(output), by))

    def _decide(self, task: str, outcome: str, person: Person, comment: str, form: Any) -> None:
        question, index = self.question(task), self._run.place(task)
        given = None if form is None else payload.encode_input(form)
        delegated = self._engine.delegations_to(person.name)
        decided = question.vote(outcome, person, delegated, comment, given, self._engine.at)
        if decided is None:
            self._run.note_vote(index, outcome, person.name)
        else:
            del self._run.questions[index]
            self._act(decided)

    def _stands(self, task: str, status: TaskStatus) -> tuple[int, TaskState]:
        index = self._run.place(task)
        state = self._run.state.task(index)
        if state.status is not status:
            raise ConflictError(f"task {task} is {state.status} and not {status}", task=task)
        return index, state

    def _act(self, event: MachineEvent) -> None:
        self._run.tell(event)
        self._engine.settle()


# == in place of the engine and of a worker ============================================================================
class _Engine:
    """The clock, what is due by it, and the commands that wait to be carried out."""

    def __init__(self, workflows: Sequence[Workflow], registry: Registry, at: int) -> None:
        """workflows: the first is the one that is tested."""
        self.workflow: Final = workflows[0]
        self._workflows: Final = {workflow.name: (workflow, compile_plan(workflow)) for workflow in workflows}
        self._pools: Final[dict[str, _Pool]] = {}
        self._slots: dict[tuple[_Run, int], str] = {}
        """Who holds a slot -> of which pool."""
        self._waiters: list[_Waiter] = []
        self._permits: dict[_Run, _Permit] = {}
        self.at = at
        self._objects = _objects()
        self._bodies = registry.prepare(PAYLOAD_BYTES_MAX if self._objects is None else OBJECT_BYTES_MAX)
        for _, plan in self._workflows.values():
            _check_bodies(plan, self._bodies)
        self._timers: list[_Timer] = []
        self._order = count()
        self._commands: deque[tuple[_Run, Dispatch]] = deque()
        self._runner: asyncio.Runner | None = None
        self._execution = Execution(SESSION, lambda: SESSION, None, self._objects)
        self._ends: dict[tuple[str, int], deque[_End]] = {}
        """By workflow and place."""
        self._asked: dict[tuple[RunId, int, int], tuple[_Run, StartChild]] = {}
        """Runs that are to start, by who asks for them: run, task, token."""
        self._told: deque[tuple[_Run, ChildTold]] = deque()
        self._runs = 0
        self._signals = 0
        self.delegations: Final[list[_Delegation]] = []
        self._posted: list[_Posted] = []
        self._waits: list[_Wait] = []
        """For signals with a key, oldest first."""

    @property
    def now(self) -> datetime:
        return from_microseconds(self.at)

    def close(self) -> None:
        if self._runner is not None:
            self._apart(self._runner.close)
            self._runner = None

    def delegations_to(self, name: str) -> list[Delegated]:
        """What has been delegated to them, now."""
        return [
            Delegated(each.from_name, each.made_by)
            for each in self.delegations
            if each.to == name and each.starts <= self.at < each.ends
        ]

    def start(self, input: bytes, by: str, priority: int) -> "_Run":
        plan, run_id = self._workflows[self.workflow.name][1], self._new_id()
        verdict = self._admit_run(plan, run_id, input)
        if verdict.how == "rejected":
            message = f"as many runs of workflow {plan.name} go as go at once; run {verdict.holder} is one of them"
            raise ConflictError(message, holder=verdict.holder, workflow=plan.name)
        if verdict.how == "dropped":
            return next(run for run in self._permits if run.run_id == verdict.holder)
        run = _Run(self, run_id, plan, input, by, priority, verdict=verdict)
        self._replace(verdict, run)
        self.settle()
        return run

    # -- limits --------------------------------------------------------------------------------------------------------
    def _admit_run(self, plan: Plan, run_id: RunId, input: bytes) -> Verdict:
        """As `state.starts` does. Raises PayloadError when the input gives no key."""
        if plan.limit is None:
            return Verdict("begins")
        line = (plan.name, plan.limit.key_of(input))
        found = sorted((one for one in self._permits.values() if one.line == line), key=lambda one: one.order)
        granted = [one for one in found if one.is_granted]
        waiting = sorted((one for one in found if not one.is_granted), key=lambda one: one.rank)
        holder = next((one.run.run_id for one in (*granted, *waiting)), None)
        staying: list[str] = [one.run.run_id for one in found if not one.is_replaced]
        stands = Line(plan.limit.runs, len(granted), is_waited=bool(waiting), holder=holder, staying=staying)
        return stands.admit(run_id, plan.limit.over)

    def _replace(self, verdict: Verdict, by: "_Run") -> None:
        for permit in [one for one in self._permits.values() if one.run.run_id in verdict.replaced]:
            permit.is_replaced = True
            permit.run.tell(Cancelled(f"run {by.run_id} takes its place", "limit"))

    def await_permit(self, run: "_Run", key: str, *, is_granted: bool) -> None:
        self._permits[run] = _Permit(run, key, self.at, next(self._order), is_granted=is_granted)

    def return_permit(self, run: "_Run") -> None:
        self._permits.pop(run, None)

    def _permit(self) -> bool:
        """Give one permit to the run that is next for it; whether there was one."""
        held = [one.line for one in self._permits.values() if one.is_granted]
        for permit in sorted(self._permits.values(), key=lambda one: one.rank):
            limit = permit.run.state.plan.limit
            is_full = limit is not None and held.count(permit.line) >= limit.runs
            if not permit.is_granted and not is_full and not permit.run.state.control & PAUSED:
                permit.is_granted = True
                permit.run.tell(Resumed(AWAITS_PERMIT))
                return True
        return False

    def _new_id(self) -> RunId:
        self._runs += 1
        return RunId(f"00000000-0000-7000-8000-{self._runs:012}")

    # -- children ------------------------------------------------------------------------------------------------------
    def ask_for_run(self, run: "_Run", action: StartChild) -> None:
        self._asked[run.run_id, action.task, action.token] = (run, action)

    def cancel_child(self, run: "_Run", action: CancelChild) -> None:
        if self._asked.pop((run.run_id, action.task, action.token), None) is None:
            reason = f"run {run.run_id} does not wait for it any more"
            run.children[action.task].tell(Cancelled(reason))

    def tell_parent(self, parent: "_Run", event: ChildTold) -> None:
        self._told.append((parent, event))

    def _start_child(self, parent: "_Run", action: StartChild) -> None:
        """As `state.children` does: start it, or say why not."""
        spec, run_id = parent.state.plan.tasks[action.task].child, self._new_id()
        assert spec is not None
        told = ChildTold(action.task, action.token, run_id, "refused")
        found = self._workflows.get(spec.workflow)
        if parent.depth >= DEPTH_MAX:
            return self.tell_parent(parent, msgspec.structs.replace(told, error=TOO_DEEP))
        if found is None:
            why = Error("CHILD_NOT_FOUND", f"there is no workflow {spec.workflow}", retryable=False)
            return self.tell_parent(parent, msgspec.structs.replace(told, error=why))
        workflow, plan = found
        if faults := workflow.check_input(msgspec.json.decode(action.input)):
            why = refuse_input(workflow.name, faults)
            return self.tell_parent(parent, msgspec.structs.replace(told, error=why))
        try:
            verdict = self._admit_run(plan, run_id, action.input)
        except PayloadError as error:
            why = Error(error.reason, error.message, retryable=False)
            return self.tell_parent(parent, msgspec.structs.replace(told, error=why))
        if verdict.how in ("rejected", "dropped"):
            why = Error(
                LIMIT_REACHED, f"run {verdict.holder} of workflow {workflow.name} goes already", retryable=False
            )
            return self.tell_parent(parent, msgspec.structs.replace(told, error=why))
        if not spec.is_awaited:
            self.tell_parent(parent, msgspec.structs.replace(told, outcome="started"))
        parent.children[action.task] = child = _Run(
            self,
            run_id,
            plan,
            action.input,
            parent.started_by,
            parent=_Parent(parent, action, spec.is_awaited),
            verdict=verdict,
        )
        self._replace(verdict, child)

    def signal(self, name: str, data: bytes, key: str | None, by: str) -> Signalled:
        """Store a signal, as it were: it has an identity and an instant."""
        self._signals += 1
        return Signalled(f"00000000-0000-7000-9000-{self._signals:012}", name, data, key, by, self.at)

    def post(self, posted: _Posted) -> None:
        self._posted.append(posted)

    def listen(self, run: "_Run", action: Listen) -> None:
        if action.key is not None:
            self._waits.append(_Wait(run, action.task, action.token, action.key))

    def _offer_posted(self) -> bool:
        """Bring one posted signal to one wait; whether there was one."""
        self._waits = [wait for wait in self._waits if not wait.is_over]
        for wait in self._waits:
            spec, place = wait.run.state.plan.tasks[wait.task].signal, (wait.run.run_id, wait.task, wait.token)
            assert spec is not None
            for posted in self._posted:
                is_free = place not in posted.heard if spec.delivery == "all" else not posted.is_taken
                if is_free and (posted.name, posted.key) == (spec.name, wait.key):
                    posted.is_taken |= spec.delivery == "first"
                    posted.heard.add(place)
                    signal = self.signal(posted.name, posted.data, posted.key, posted.by)
                    offer = {"sent_at": posted.sent_at, "task": wait.task, "token": wait.token}
                    wait.run.tell(msgspec.structs.replace(signal, **offer))
                    return True
        return False

    def plan_end(self, task: str, how: "_End", workflow: str | None) -> None:
        name = self.workflow.name if workflow is None else workflow
        if name not in self._workflows:
            raise NotFoundError(f"the harness has no workflow {name}", workflow=name)
        self._ends.setdefault((name, _place(self._workflows[name][1], task)), deque()).append(how)

    # -- what the machine asks for -------------------------------------------------------------------------------------
    def hand_out(self, run: "_Run", action: Dispatch) -> None:
        self._commands.append((run, action))

    def await_slot(self, run: "_Run", action: AwaitSlot) -> None:
        self._waiters.append(_Waiter(run, action.task, action.token, action.pool, self.at, next(self._order)))

    def free_slot(self, run: "_Run", task: int) -> None:
        self._waiters = [waiter for waiter in self._waiters if (waiter.run, waiter.task) != (run, task)]
        self._slots.pop((run, task), None)

    def _admit(self) -> bool:
        """Give one slot to who is next for it; whether there was one."""
        free = [one for one in self._waiters if self._has_slot(one.pool) and self._admitted_at(one.pool) <= self.at]
        if not free:
            return False
        waiter = min(free, key=lambda one: one.rank)
        if waiter.pool in self._pools:
            self._pools[waiter.pool].pay(self.at)
        self._waiters.remove(waiter)
        self._slots[waiter.run, waiter.task] = waiter.pool
        nonce = waiter.run.nonce(waiter.task, waiter.token)
        waiter.run.tell(Admitted(waiter.task, waiter.token, nonce))
        return True

    def set_pool(self, name: str, slots: int | None, rate: str | None) -> None:
        parsed = None if rate is None else parse_rate(rate)
        if (known := self._pools.get(name)) is None:
            self._pools[name] = _Pool(slots, parsed, self.at)
        else:
            known.change(slots, parsed, self.at)

    def _has_slot(self, pool: str) -> bool:
        slots = self._pools[pool].slots if pool in self._pools else None
        return slots is None or sum(each == pool for each in self._slots.values()) < slots

    def _admitted_at(self, pool: str) -> int:
        """When its rate allows one more."""
        return self._pools[pool].allows_at() if pool in self._pools else self.at

    def compile_next(self, workflow: Workflow, run: "_Run") -> Plan:
        """A version that comes after that of a run. Raises ConfigurationError."""
        plan = run.state.plan
        later = compile_plan(workflow, version=plan.version + 1, version_id=plan.version_id + 1)
        _check_bodies(later, self._bodies)
        return later

    def set_timer(self, run: "_Run", task: int, token: int, kind: str, due_at: int) -> None:
        self._timers.append(_Timer(due_at, next(self._order), run, task, token, kind))

    # -- time ----------------------------------------------------------------------------------------------------------
    def advance_to(self, until: int) -> None:
        if until < self.at:
            raise ValueError(f"the clock shows {format_instant(self.now)} already, and does not go back")
        while (instant := self.next_instant()) is not None and instant <= until:
            timer = self._next_timer()
            if timer is not None and timer.due_at == instant:
                self._fire(timer)
            else:  # a pool admits one more
                self.at = instant
                self.settle()
        self.at = until

    def next_instant(self, *, without_expiry: bool = False) -> int | None:
        """When something happens next: a timer is due, or the rate of a pool allows one more."""
        timer = self._next_timer(without_expiry=without_expiry)
        instants = [] if timer is None else [timer.due_at]
        instants += [self._admitted_at(one.pool) for one in self._waiters if self._has_slot(one.pool)]
        return min(instants, default=None)

    def _next_timer(self, *, without_expiry: bool = False) -> _Timer | None:
        self._timers = [timer for timer in self._timers if timer.run.waits_for(timer)]
        timers = self._timers
        if without_expiry:
            timers = [timer for timer in timers if not timer.is_an_end]
        return min(timers, default=None)

    def _fire(self, timer: _Timer) -> None:
        self._timers.remove(timer)
        self.at = timer.due_at
        if timer.kind == "expiry":
            timer.run.expire(timer.task)
        elif timer.is_of_a_question:
            timer.run.look_after(timer)
        else:
            timer.run.tell(Due(timer.task, timer.token, timer.run.nonce(timer.task, timer.token), timer.kind))
        self.settle()

    # -- work ----------------------------------------------------------------------------------------------------------
    def settle(self) -> None:
        """Carry out every command there is, and those that come of it; start children, tell their ends, give
        slots, and offer what is posted."""
        while self._go_on():
            pass

    def _go_on(self) -> bool:
        """Do one thing of those; whether there was one."""
        if self._told:
            parent, event = self._told.popleft()
            parent.tell(event)
        elif self._asked:
            self._start_child(*self._asked.pop(next(iter(self._asked))))
        elif self._commands:
            run, action = self._commands.popleft()
            if run.is_handed_out(action):
                self._work(run, action)
        else:
            return self._permit() or self._admit() or self._offer_posted()
        return True

    def _work(self, run: "_Run", action: Dispatch) -> None:
        """What a worker does with a command: claim it where it must, run the body, and say what came of it."""
        plan = run.state.plan
        spec = plan.at(action.task)
        nonce = run.nonce(action.task, action.token)
        ends = self._ends.get((plan.name, action.task))
        if not ends and is_item(action.task):
            ends = self._ends.get((plan.name, task_of(action.task)))
        end = ends.popleft() if ends and not action.lookup else None
        claim = spec.claims and not action.lookup
        if end == "leave":
            return
        if claim or end is not None:
            run.tell(Started(action.task, action.token, nonce, SESSION, SESSION, claim=claim))
        if end == "hang":
            return
        answer = None if end == "before" else self._call(run, spec, action, nonce)
        if answer is None or end is not None:
            run.tell(Lost(action.task, action.token, nonce, "its worker died", begun=True))
        else:
            run.tell(answer)

    def _call(self, run: "_Run", spec: TaskPlan, action: Dispatch, nonce: str) -> Answer:
        name, plan = (spec.lookup if action.lookup else spec.run) or "", run.state.plan
        command = Command(
            action.task, plan.name_of(action.task), name, action.attempt, action.token, nonce,
            msgspec.Raw(action.input), timeout=spec.timeout, exclusive=spec.exclusive,
            inline=spec.is_read or action.lookup, lookup=action.lookup, round=action.round,
            workflow=plan.name, version=plan.version,
        )  # fmt: skip
        attempt = _VirtualAttempt(run.run_id.encode(), command, self.at)
        body = attempt.body = self._bodies[name]
        if not body.is_async:
            return self._execution.attend_in_thread(attempt)
        return self._apart(lambda: self._loop().run(self._execution.attend(attempt)))

    def value(self, run: "_Run", raw: bytes) -> Any:
        """A result as the body returned it, also one that is too large for a message."""
        return msgspec.json.decode(raw if self._objects is None else self._objects.fill(run.run_id, raw))

    def _loop(self) -> asyncio.Runner:
        self._runner = self._runner or asyncio.Runner()
        return self._runner

    def _apart(self, act: Callable[[], _T]) -> _T:
        """Do it here; or in another thread, where an event loop runs here already: that of an async test."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return act()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(act).result()


def _objects() -> ObjectStore | None:
    try:
        return ObjectStore("memory:///", above=PAYLOAD_BYTES_MAX)
    except ConfigurationError:  # without `headrace[objects]` large results are refused, as by a worker without a store
        return None


def _place(plan: Plan, task: str) -> int:
    """Of a task, or of an item. Raises NotFoundError."""
    place = plan.find(task)
    if place is None:
        raise NotFoundError(f"workflow {plan.name} has no task {task}", task=task)
    return place


class _Parent(NamedTuple):
    """Who asked for a run."""

    run: "_Run"
    action: StartChild
    is_waiting: bool


_BEGINS: Final = Verdict("begins")


class _Run:
    """One run: its state, and what Postgres would hold beside that."""

    def __init__(
        self, engine: _Engine, run_id: RunId, plan: Plan, input: bytes, by: str = "", priority: int = 0,
        parent: _Parent | None = None, verdict: Verdict = _BEGINS,
    ) -> None:  # fmt: skip
        self._engine, self.run_id, self.started_by, self._parent = engine, run_id, by, parent
        self.priority = priority
        self.depth: int = 0 if parent is None else parent.run.depth + 1
        self.children: Final[dict[int, _Run]] = {}
        """By the task that asked for it: the last of each."""
        control = AWAITS_PERMIT if verdict.how == "waits" else 0
        self.state: Final = RunState(run_id.encode(), plan, input, control=control)
        self.outputs: Final[dict[int, bytes]] = {}
        self.questions: Final[dict[int, Question]] = {}
        """By task: those that are open."""
        self.finish: Finish | None = None
        self.history: Final[list[HistoryItem]] = []
        self._note("started")
        if plan.limit is not None:
            engine.await_permit(self, plan.limit.key_of(input), is_granted=not control)
        self._accept(begin(plan, self.state, engine.at), None)

    def place(self, task: str) -> int:
        """Raises NotFoundError."""
        return _place(self.state.plan, task)

    def nonce(self, task: int, token: int) -> str:
        return make_nonce(_SECRET, self.state.key, task, token)

    def read_anew(self) -> None:
        """As the engine does before a move: also the outputs that no task of this version reads."""
        for index, task in self.state.tasks.items():
            if task.status is TaskStatus.COMPLETED and task.output is None and index in self.outputs:
                self.state.tasks[index] = msgspec.structs.replace(task, output=self.outputs[index])

    def is_handed_out(self, action: Dispatch) -> bool:
        """Whether that hand-out is the current one: a command that was overtaken is dropped."""
        task = self.state.task(action.task)
        return task.status is TaskStatus.QUEUED and task.token == action.token

    def waits_for(self, timer: _Timer) -> bool:
        """Whether that timer is still there: one that was replaced or cleared is not."""
        if timer.is_of_a_question:
            question = self.questions.get(timer.task)
            if question is None or question.token != timer.token:
                return False
            return timer.kind != "expiry" or question.expires_at == timer.due_at
        if timer.kind == "deadline":
            state = self.state if timer.task == RUN else self.state.task(timer.task)
            return state.deadline_at == timer.due_at
        task = self.state.task(timer.task)
        return task.token == timer.token and task.due_at == timer.due_at

    def expire(self, task: int) -> None:
        """Nobody answered in time: the answer is what the approval says, or somebody else is asked."""
        question = self.questions[task]
        decided = question.expire(self._engine.at)
        if decided is not None:
            del self.questions[task]
            self.tell(decided)
            return
        self._note("escalated", task, detail=", ".join(question.approvers))
        self._engine.set_timer(self, task, question.token, "expiry", question.expires_at or 0)

    def look_after(self, timer: _Timer) -> None:
        """A reminder, or a step of escalation, of a question that is still open."""
        question, (kind, _, step) = self.questions[timer.task], timer.kind.partition(" ")
        if kind == "remind":
            self._note("reminded", timer.task, detail=", ".join(question.approvers))
        elif question.escalate(int(step)):
            self._note("escalated", timer.task, detail=", ".join(question.approvers))

    def note_vote(self, task: int, outcome: str, by: str) -> None:
        self._note("voted", task, detail=f"{outcome}{f' by {by}' if by else ''}")

    def tell(self, event: MachineEvent) -> None:
        """Let the machine decide about an event, and carry out what it asks for."""
        transition = advance(self.state.plan, self.state, event, self._engine.at)
        if transition is not None:
            self._accept(transition, event)

    def _accept(self, transition: Transition, event: MachineEvent | None) -> None:
        self.state.apply(transition)
        self._tell_history(event, transition)
        for index, task in transition.tasks.items():
            if task.status is TaskStatus.COMPLETED and task.output is not None:
                self.outputs[index] = task.output
        if isinstance(event, Succeeded) and any(isinstance(action, EndAttempt) for action in transition.actions):
            self.outputs[event.task] = bytes(event.output)
        for action in transition.actions:
            self._carry_out(action)

    def _carry_out(self, action: Action) -> None:
        match action:
            case Dispatch():
                self._engine.hand_out(self, action)
            case SetTimer():
                self._engine.set_timer(self, action.task, action.token, action.kind, action.due_at)
            case SetDeadline():
                if action.due_at is not None:
                    self._engine.set_timer(self, action.task, 0, "deadline", action.due_at)
            case Ask():
                self._ask(action)
            case CloseQuestion():
                self.questions.pop(action.task, None)
            case KeepOutput():
                self.outputs[action.task] = action.output
            case Park():
                self._note("parked", action.task, detail=action.error.message)
            case BuryTask():
                self._note("dead_letter", action.task, action.attempt or None, _in_words(action.error) or "")
            case Finish():
                self.finish = action
                self._note("finished", detail=action.status)
                self._tell_parent(action)
            case StartChild():
                self._engine.ask_for_run(self, action)
            case CancelChild():
                self._engine.cancel_child(self, action)
            case Listen():
                self._engine.listen(self, action)
                self._note("listens", action.task, detail=action.name + (f" {action.key}" if action.key else ""))
            case TakeSignal():
                self._note("took_signal", action.task)
            case AwaitSlot():
                self._engine.await_slot(self, action)
                self._note("awaits_slot", action.task, detail=action.pool)
            case FreeSlot():
                self._engine.free_slot(self, action.task)
            case RefuseMove():
                self._note("migration_refused", detail=action.why)
            case SetPriority():
                self.priority = action.priority
            case AwaitPermit():
                self._engine.await_permit(self, action.key, is_granted=action.is_granted)
            case ReturnPermit():
                self._engine.return_permit(self)
            case (
                EndAttempt()
                | ClearTimer()
                | CloseLetter()
                | Unpark()
                | Grant()
                | Abort()
                | StopListening()
                | CountRounds()
                | NoteRound()
                | KeepSignal()
                | TakeSlot()
                | HoldTasks()
            ):
                pass  # in the history already, or true of the run as it stands
            case _:
                assert_never(action)

    def _ask(self, action: Ask) -> None:
        approval = self.state.plan.tasks[action.task].approval
        assert approval is not None
        at, timer = self._engine.at, self._engine.set_timer
        question = self.questions[action.task] = Question(approval, action, at, self.started_by)
        self._note("asked", action.task, detail=", ".join(approval.approvers))
        if question.expires_at is not None:
            timer(self, action.task, action.token, "expiry", question.expires_at)
        for position, after in enumerate(approval.remind):
            timer(self, action.task, action.token, f"remind {position}", at + after)
        for position, step in enumerate(approval.steps):
            if step.after is not None:
                timer(self, action.task, action.token, f"escalate {position}", at + step.after)

    def _tell_parent(self, finish: Finish) -> None:
        if self._parent is not None and self._parent.is_waiting:
            hand = (self._parent.action.task, self._parent.action.token)
            output = finish.output or b"null"
            told = ChildTold(*hand, self.run_id, finish.status.value, output, finish.error)
            self._engine.tell_parent(self._parent.run, told)

    # -- its history ---------------------------------------------------------------------------------------------------
    def _tell_history(self, event: MachineEvent | None, transition: Transition) -> None:
        ended = [action for action in transition.actions if isinstance(action, EndAttempt)]
        match event:
            case Due():
                self._note("due", None if event.task == RUN else event.task, detail=event.timer)
            case Decided():
                by = f" by {event.by}" if event.by else ""
                self._note("decided", event.task, detail=f"{event.outcome}{by}")
            case Cancelled():
                self._note("cancelled", detail=event.reason)
            case Terminated():
                self._note("terminated", detail=event.reason)
            case Resumed() if event.scope == AWAITS_PERMIT:
                self._note("permitted")
            case Paused() | Resumed():
                kind = "paused" if isinstance(event, Paused) else "resumed"
                self._note(kind, event.task if event.scope == TASKS_PAUSED else None, detail=event.reason)
            case Prioritised():
                self._note("prioritised", detail=str(event.priority))
            case Admitted():
                self._note("admitted", event.task)
            case Supplied():
                self._note("supplied", event.task, detail=event.reason)
            case Reran():
                names = ", ".join(self.state.plan.name_of(place) for place in event.tasks)
                self._note("reran", detail=f"from {names}" if names else "what failed")
                self.finish = None
            case Migrated() if transition.plan is None:
                pass  # noted with what stood in the way
            case Migrated():
                self._note("migrated", detail=f"to version {event.plan.version}")
            case Replayed():
                self._note("replayed", event.task)
            case Resolved():
                self._note("resolved", event.task, detail=event.outcome)
            case Signalled():
                by = f" by {event.by}" if event.by else ""
                kept = ", kept" if transition.kept is not None else ""
                self._note("signalled", detail=f"{event.name}{by}{kept}")
            case ChildTold():
                self._note("child_told", event.task, detail=f"run {event.child}: {event.outcome}")
            case Lost():
                self._note("lost", event.task)
            case Succeeded() | Failed() if all(end.task != event.task for end in ended):
                self._note("looked_up" if isinstance(event, Succeeded) else "lookup_failed", event.task)
            case _:
                pass
        for end in ended:
            self._note(f"attempt_{end.outcome}", end.task, end.attempt, _in_words(end.error) or "")
        for action in transition.actions:
            if isinstance(action, SetTimer) and action.kind not in ("timeout", "start"):
                until = f"until {format_instant(from_microseconds(action.due_at))}"
                self._note("waits" if action.kind == "wait" else action.kind, action.task, detail=until)

    def _note(self, kind: str, task: int | None = None, attempt: int | None = None, detail: str = "") -> None:
        name = None if task is None else self.state.plan.name_of(task)
        self.history.append(HistoryItem(self._engine.now, kind, name, attempt, detail))


def _in_words(error: Error | None) -> str | None:
    return None if error is None else f"{error.code}: {error.message}"


# == what a harness is given ===========================================================================================
def _instant(given: datetime | str) -> int:
    """Raises ValueError without an offset."""
    instant = parse_instant(given) if isinstance(given, str) else given
    if instant.tzinfo is None:
        raise ValueError(f"{instant} has no offset: give an aware datetime, or text such as 2026-01-01T09:00:00Z")
    return to_microseconds(instant)


def _priority(given: int) -> int:
    if not -PRIORITY_MAX <= given <= PRIORITY_MAX:
        raise ValueError(f"a priority is from -{PRIORITY_MAX} to {PRIORITY_MAX}, and not {given}")
    return given


def _published(workflow: Workflow | str | bytes | Mapping[str, Any]) -> Workflow:
    if isinstance(workflow, Workflow):
        return workflow
    return parse(workflow) if isinstance(workflow, str | bytes) else from_data(dict(workflow))


def _registered(bodies: Registry | Mapping[str, Callable[..., Any]] | None) -> Registry:
    if bodies is None or isinstance(bodies, Registry):
        return default_registry if bodies is None else bodies
    registry = Registry()
    for name, function in bodies.items():
        registry.task(name)(function)
    return registry


def _check_bodies(plan: Plan, bodies: Mapping[str, object]) -> None:
    specs = [*plan.tasks, *(spec.compensation for spec in plan.tasks if spec.compensation is not None)]
    named = {name: spec.name for spec in specs for name in (spec.run, spec.lookup) if name is not None}
    if missing := sorted(named.keys() - bodies.keys()):
        tasks = ", ".join(f"{name} (task {named[name]})" for name in missing)
        raise ConfigurationError(f"no body is registered for {tasks}; known are {', '.join(sorted(bodies)) or 'none'}")
