"""Tasks that wait: for a person, an instant, or a signal."""

from collections.abc import Callable
from typing import Final

import msgspec

from headrace.errors import PayloadError
from headrace.instant import format_instant, from_microseconds
from headrace.machine.actions import (
    Ask,
    CancelChild,
    CloseQuestion,
    Listen,
    SetTimer,
    StopListening,
    TakeSignal,
    Transition,
    Unpark,
)
from headrace.machine.draft import bury, outputs_of, put
from headrace.machine.effect import take_as_done
from headrace.machine.event import Decided, Signalled
from headrace.machine.plan import Plan
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import COMPLETED, WAITING
from headrace.messages import Error


class Answered(msgspec.Struct):
    """The output of a task that was only a question, or was rejected and completes with that."""

    outcome: str
    """approved or rejected"""
    by: str
    comment: str
    form: msgspec.Raw
    votes: msgspec.Raw


class Heard(msgspec.Struct):
    """The output of a task that waited for a signal."""

    outcome: str
    """received or timed_out"""
    data: msgspec.Raw = msgspec.Raw(b"null")
    by: str | None = None
    sent_at: str | None = None
    signal_id: str | None = None


_encode: Final = msgspec.json.Encoder().encode
_decode_answered: Final[Callable[[bytes], Answered]] = msgspec.json.Decoder(Answered).decode
_decode_heard: Final[Callable[[bytes], Heard]] = msgspec.json.Decoder(Heard).decode


def ask(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """WAITING for people, under the next token. A question that cannot be written fails the task, and uses its token up
    as a hand-out does."""
    spec, token = plan.tasks[index].approval, run.next_token(task)
    assert spec is not None
    try:
        shown = spec.show(run.input, outputs_of(plan, run, draft))
    except PayloadError as e:
        unasked = msgspec.structs.replace(task, token=token)
        return bury(run, draft, index, unasked, Error(e.reason, e.message, retryable=False), ended)
    put(run, draft, index, msgspec.structs.replace(task, status=WAITING, token=token))
    draft.actions.append(Ask(index, token, *shown))


def take_answer(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, event: Decided, ended: list[int]
) -> None:
    """The question ends its task: the output is who said what."""
    answer = _encode(
        Answered(event.outcome, event.by, event.comment, msgspec.Raw(event.form), msgspec.Raw(event.votes))
    )
    if plan.tasks[index].run is not None:
        return take_as_done(plan, run, draft, index, task, answer, ended)
    put(run, draft, index, msgspec.structs.replace(task, status=COMPLETED, output=answer))
    ended.append(index)


def is_refusal(task: TaskState) -> bool:
    """Whether it has completed with the answer of those who rejected it, in place of what its body would have done."""
    if task.status is not COMPLETED or task.attempt or task.items is not None or task.output is None:
        return False
    try:
        return _decode_answered(task.output).outcome == "rejected"
    except msgspec.DecodeError:  # a person gave it an output
        return False


def ask_no_more(plan: Plan, draft: Transition, index: int, task: TaskState) -> None:
    """Whatever a WAITING task waits for, but its timer, need not come any more."""
    if task.awaits_slot:
        return  # it leaves its queue with this state
    if task.is_parked:
        draft.actions.append(Unpark(index))
    elif plan.at(index).signal is not None:
        draft.actions.append(StopListening(index))
    elif (child := plan.at(index).child) is not None:
        if child.is_cancelled_with_task:
            draft.actions.append(CancelChild(index, task.token))
    elif plan.at(index).approval is not None:
        draft.actions.append(CloseQuestion(index, task.token))


def begin_wait(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """WAITING until an instant, under the next token; done at once when that has passed. One that cannot be evaluated
    fails the task, and uses its token up as a hand-out does."""
    spec, token = plan.tasks[index].wait, run.next_token(task)
    assert spec is not None
    try:
        due_at = spec.due_at(at, run.input, outputs_of(plan, run, draft), task.input)
    except PayloadError as e:
        undue = msgspec.structs.replace(task, token=token)
        return bury(run, draft, index, undue, Error(e.reason, e.message, retryable=False), ended)
    waiting = TaskState(WAITING, task.attempt, token, due_at, task.retries_from, input=task.input)
    if due_at <= at:
        return wait_no_more(run, draft, index, waiting, ended)
    put(run, draft, index, waiting)
    draft.actions.append(SetTimer(index, token, "wait", due_at))


def wait_no_more(run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    until = format_instant(from_microseconds(task.due_at or 0))
    done = msgspec.structs.replace(task, status=COMPLETED, due_at=None, output=msgspec.json.encode({"until": until}))
    put(run, draft, index, done)
    ended.append(index)


def listen(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """WAITING for a signal, under the next token; what the run has kept for it is taken at once."""
    spec, token, outputs = plan.tasks[index].signal, run.next_token(task), outputs_of(plan, run, draft)
    assert spec is not None
    try:
        key = spec.key_of(run.input, outputs, task.input)
        due_at = None if spec.timeout is None else spec.timeout.due_at(at, run.input, outputs, None)
    except PayloadError as e:
        deaf = msgspec.structs.replace(task, token=token)
        return bury(run, draft, index, deaf, Error(e.reason, e.message, retryable=False), ended)
    meant = None if key is None else msgspec.json.encode(key)
    waiting = TaskState(WAITING, task.attempt, token, due_at, task.retries_from, input=meant)
    found = [
        signal
        for signal in run.signals.values()
        if signal.name == spec.name and is_meant(waiting, signal) and signal.signal_id not in draft.taken
    ]
    if found:
        signal = min(found, key=lambda signal: signal.order)
        draft.taken.append(signal.signal_id)
        return hear(run, draft, index, waiting, signal, ended)
    if due_at is not None and due_at <= at:
        return hear_nothing(plan, run, draft, index, waiting, ended)
    put(run, draft, index, waiting)
    draft.actions.append(Listen(index, token, spec.name, key))
    if due_at is not None:
        draft.actions.append(SetTimer(index, token, "wait", due_at))


def is_meant(task: TaskState, signal: Signalled) -> bool:
    """Whether a signal of the right name is for this task."""
    return signal.key is None or task.input == msgspec.json.encode(signal.key)


def is_offered(task: TaskState, index: int, signal: Signalled) -> bool:
    return signal.task is None or (signal.task, signal.token) == (index, task.token)


def has_heard(task: TaskState, signal: Signalled) -> bool:
    """Whether the task took it already: it comes twice."""
    if task.status is not COMPLETED or task.output is None:
        return False
    try:
        return _decode_heard(task.output).signal_id == signal.signal_id
    except msgspec.DecodeError:  # a person gave it an output of another form
        return False


def hear(run: RunState, draft: Transition, index: int, task: TaskState, signal: Signalled, ended: list[int]) -> None:
    draft.actions.append(TakeSignal(signal.signal_id, index, task.token))
    sent_at = format_instant(from_microseconds(signal.sent_at))
    heard = Heard("received", msgspec.Raw(signal.data), signal.by, sent_at, signal.signal_id)
    put(run, draft, index, msgspec.structs.replace(task, status=COMPLETED, due_at=None, output=_encode(heard)))
    ended.append(index)


def hear_nothing(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """It was told nothing in time: the task fails, or has that as its output, by declaration."""
    spec = plan.tasks[index].signal
    assert spec is not None
    if spec.on_timeout == "fail":
        error = Error("SIGNAL_TIMEOUT", f"no signal {spec.name} came in time", retryable=False)
        return bury(run, draft, index, task, error, ended)
    told = msgspec.structs.replace(task, status=COMPLETED, due_at=None, output=_encode(Heard("timed_out")))
    put(run, draft, index, told)
    ended.append(index)
