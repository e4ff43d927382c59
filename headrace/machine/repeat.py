"""Repeats: the body of a task runs again, in rounds, until what comes out of it will do.

Each round is handed out like any task, with all its tries, and ends with an output. What makes a new state of a task
knows nothing of rounds: at the end of each decision about a run that has repeats, `keep_rounds` makes it so.
"""

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import CountRounds, Dispatch, EndAttempt, NoteRound, SetTimer, Transition
from headrace.machine.draft import bury, outputs_of, put
from headrace.machine.effect import ask_policy, keep_doubt, take_as_done
from headrace.machine.handout import hand_out
from headrace.machine.plan import Plan
from headrace.machine.reason import ROUNDS_OVER
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import CANCELLED, COMPLETED, FAILED, PENDING
from headrace.messages import Error


def end_round(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, output: bytes, ended: list[int], at: int,
    *, is_answered: bool = True,
) -> None:  # fmt: skip
    """A round has its output: the task is done, or has another round, or none is left. is_answered: an attempt of its
    body said so, and nobody else."""
    spec, rounds = plan.tasks[index], task.rounds + 1
    repeat = spec.repeat
    assert repeat is not None
    last = output if repeat.reads_last else None
    variables, outputs = {".output": output, ".index": b"%d" % task.rounds}, outputs_of(plan, run, draft)
    try:
        is_done = repeat.until.evaluate(run.input, lambda name: variables.get(name) or outputs(name))
    except PayloadError as e:  # of this round, which a replay has again; and it had its effect
        error = Error(e.reason, f"its `until`: {e.message}", retryable=False)
        return bury(run, draft, index, task, keep_doubt(error, is_doubtful=spec.effect != "idempotent"), ended)
    count_rounds(draft, index, rounds, last)
    is_last = rounds == repeat.bound(task.rounds)
    if is_done or (is_last and repeat.on_max == "complete"):
        if not is_answered:
            return take_as_done(plan, run, draft, index, task, output, ended)
        kept = output if spec.is_referenced else None
        put(run, draft, index, TaskState(COMPLETED, task.attempt, task.token, None, task.retries_from, output=kept))
        return ended.append(index)
    if is_last:
        message = f"{repeat.max} rounds did not make its `until` true"
        return bury(run, draft, index, task, Error(ROUNDS_OVER, message, retryable=False), ended)
    begun = TaskState(PENDING, task.attempt, task.token, None, task.attempt, output=last, rounds=rounds)
    if not is_answered and spec.effect != "idempotent" and task.attempt == task.retries_from:
        # No body of this round ran since an operator sent it out: it happened before, and so may the next one have.
        return ask_policy(plan, run, draft, index, begun)
    if not repeat.delay:
        return hand_out(plan, run, draft, index, begun, ended)
    due_at = at + repeat.delay
    put(run, draft, index, msgspec.structs.replace(begun, due_at=due_at))
    draft.actions.append(SetTimer(index, task.token, "repeat", due_at))


def count_rounds(draft: Transition, index: int, rounds: int, last: bytes | None) -> None:
    draft.rounds = {**(draft.rounds or {}), index: (rounds, last)}


def take_up(draft: Transition, index: int, before: TaskState, task: TaskState) -> TaskState:
    """A rerun sends it out as it failed or was cancelled: it goes on with the round that it was at, as by a replay.
    What those before it did has been done. before: as it had ended. task: as it is now."""
    if before.status is not FAILED and before.status is not CANCELLED:
        return task
    count_rounds(draft, index, before.rounds, before.output)
    return msgspec.structs.replace(task, rounds=before.rounds, output=before.output)


def keep_rounds(plan: Plan, run: RunState, draft: Transition) -> None:
    """At the end of a decision: a repeat keeps its rounds and what came out of the last one, and what was handed out or
    has ended says which round it is of."""
    decided = draft.rounds or {}
    for index in list(draft.tasks):
        if plan.at(index).repeat is None:
            continue
        before, task = run.task(index), draft.tasks[index]
        rounds, last = decided.get(index, (before.rounds, None if before.status is COMPLETED else before.output))
        if task.is_untouched:
            rounds, last = 0, None
        output = task.output if task.status is COMPLETED else last
        if (task.rounds, task.output) != (rounds, output):
            draft.tasks[index] = msgspec.structs.replace(task, rounds=rounds, output=output)
        if before.rounds != rounds:
            draft.actions.append(CountRounds(index, rounds))
    for place, action in enumerate(list(draft.actions)):
        if isinstance(action, Dispatch) and plan.at(action.task).repeat is not None:
            draft.actions[place] = msgspec.structs.replace(action, round=draft.tasks[action.task].rounds)
        elif isinstance(action, EndAttempt) and plan.at(action.task).repeat is not None:
            draft.actions.append(NoteRound(action.task, action.token, run.task(action.task).rounds))
