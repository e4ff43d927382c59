"""Children: a task that runs another workflow, as a run of its own."""

from collections.abc import Sequence
from typing import Final

import msgspec

from headrace.errors import Fault, PayloadError
from headrace.machine.actions import SetTimer, StartChild, Transition
from headrace.machine.draft import at_rest, bury, put, render_input
from headrace.machine.event import ChildTold
from headrace.machine.plan import Plan
from headrace.machine.reason import CHILD_CANCELLED
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import CANCELLED, COMPLETED, WAITING
from headrace.machine.waiting import ask_no_more
from headrace.messages import Error

FAULTS_TOLD: Final = 3
"""Of an input that is refused."""


def start_child(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """WAITING for its child, under the next token. An input that cannot be rendered fails it, and uses the token up."""
    spec, token = plan.tasks[index], run.next_token(task)
    try:
        given = render_input(plan, run, draft, index, task)
    except PayloadError as e:
        childless = msgspec.structs.replace(task, token=token)
        return bury(run, draft, index, childless, Error(e.reason, e.message, retryable=False), ended)
    due_at = None if spec.timeout is None else at + int(spec.timeout * 1_000_000)
    put(run, draft, index, TaskState(WAITING, task.attempt, token, due_at, task.retries_from, input=task.input))
    draft.actions.append(StartChild(index, token, given))
    if due_at is not None:
        draft.actions.append(SetTimer(index, token, "wait", due_at))


def is_news(plan: Plan, event: ChildTold) -> bool:
    """Whether a task that waits for its child wants to know this: that it has begun, only if it waits for no more."""
    child = plan.tasks[event.task].child if 0 <= event.task < len(plan.tasks) else None
    return child is not None and (event.outcome != "started" or not child.is_awaited)


def hear_of_child(
    plan: Plan, run: RunState, draft: Transition, event: ChildTold, task: TaskState, ended: list[int]
) -> None:
    if event.outcome in ("cancelled", "terminated"):  # somebody's will, and no failure: there is nothing to repair
        error = Error(CHILD_CANCELLED, _what_became_of_it(plan, event), retryable=False)
        put(run, draft, event.task, at_rest(task, CANCELLED, error))
        return ended.append(event.task)
    if event.outcome == "started":
        output = msgspec.json.encode({"run_id": event.child})
    elif event.outcome == "completed" and event.error is None:
        output = event.output
    else:
        return bury(run, draft, event.task, task, _why_it_failed(plan, event), ended)
    put(run, draft, event.task, msgspec.structs.replace(task, status=COMPLETED, due_at=None, output=output))
    ended.append(event.task)


def _why_it_failed(plan: Plan, event: ChildTold) -> Error:
    if event.outcome == "refused" and event.error is not None:
        return msgspec.structs.replace(event.error, retryable=False)
    return Error("CHILD_FAILED", _what_became_of_it(plan, event), retryable=False)


def _what_became_of_it(plan: Plan, event: ChildTold) -> str:
    child = plan.tasks[event.task].child
    what = f"run {event.child} of workflow {child.workflow if child else ''}"
    if event.error is not None:
        return f"{what} completed without an output: {event.error.code}: {event.error.message}"
    if event.outcome == "compensation_failed":
        return f"{what} failed, and could not undo all that it did"
    return f"{what} failed" if event.outcome == "failed" else f"{what} was {event.outcome}"


def child_timed_out(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]
) -> None:
    spec = plan.tasks[index]
    ask_no_more(plan, draft, index, task)
    what = f"run of workflow {spec.child.workflow}" if spec.child is not None else "child"
    error = Error("TIMEOUT", f"the {what} did not end within {spec.timeout} s", retryable=False)
    bury(run, draft, index, task, error, ended)


def refuse_input(workflow: str, faults: Sequence[Fault]) -> Error:
    """Why a child was not started: its workflow's schema does not take what the task gives it."""
    said = "; ".join(
        f"{fault.path}: {fault.message}" if fault.path else fault.message for fault in faults[:FAULTS_TOLD]
    )
    more = f"; and {len(faults) - FAULTS_TOLD} more" if len(faults) > FAULTS_TOLD else ""
    return Error("BAD_INPUT", f"workflow {workflow} does not take this input: {said}{more}", retryable=False)
