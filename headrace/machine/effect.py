"""An effect that may have happened: look it up, or set the task before a person."""

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import Dispatch, KeepOutput, Park, SetTimer, Transition
from headrace.machine.backoff import backoff
from headrace.machine.draft import at_rest, clear_timer, put, render_input, withhold
from headrace.machine.pause import is_held
from headrace.machine.place import is_item
from headrace.machine.plan import Plan, TaskPlan
from headrace.machine.reason import HANDOUTS_LOST_MAX, LOST, NEVER_ASKED, RERUN
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import CANCELLED, COMPLETED, FAILED, HOLDS, PENDING, QUEUED, WAITING
from headrace.messages import Error


def is_in_doubt(spec: TaskPlan, task: TaskState) -> bool:
    """Whether nobody has said what became of the effect of a task that has ended, and may have had it. It goes by its
    policy when it is sent out again, whoever sends it: so the person who let it fail is asked once more."""
    error = task.error
    return spec.effect != "idempotent" and error is not None and (error.ambiguous or error.code == "AMBIGUOUS")


def may_have_had(spec: TaskPlan, task: TaskState) -> bool:
    """Whether a task at its turn may have had its effect: it runs again, and a body of it began before."""
    return task.attempt > 0 and spec.effect != "idempotent"


def keep_doubt(error: Error, *, is_doubtful: bool) -> Error:
    """Why it fails before its policy was asked: nobody knows more than before."""
    return msgspec.structs.replace(error, ambiguous=True) if is_doubtful else error


def doubt_what_was_idempotent(new: Plan, run: RunState, draft: Transition) -> None:
    """The run goes on by another version. Of a task that is idempotent nobody asks what became of an attempt, the last
    or one before it; where it is so no more, whatever of it began may have had its effect, and its policy is asked
    before it begins again. What is at rest says so in its error from here on; what would begin by itself is asked
    now."""
    for place, task in run.tasks.items():
        if not task.attempt or run.plan.at(place).effect != "idempotent" or new.at(place).effect == "idempotent":
            continue
        # Others that were cancelled are asked at their turn.
        is_over = task.status is FAILED or (task.status is CANCELLED and is_item(place))
        if run.has_put_away(place) or task.is_untouched or task.withheld == "turn" or task.lookups:
            continue
        if is_over or task.withheld in ("again", "room"):
            doubt = keep_doubt(task.error or NEVER_ASKED, is_doubtful=True)
            put(run, draft, place, msgspec.structs.replace(task, error=doubt))
        elif task.awaits_slot or (task.status is PENDING and not task.is_between_rounds):
            clear_timer(draft, place, task)
            ask_policy(new, run, draft, place, msgspec.structs.replace(task, due_at=None, withheld=""), NEVER_ASKED)


def ask_policy(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error = RERUN) -> None:
    """It is to run again, and may have had its effect. A person may fail it, and every dead letter of a task has a
    token of its own."""
    if plan.at(index).effect == "manual":
        task = msgspec.structs.replace(task, token=run.next_token(task))
    doubt_effect(plan, run, draft, index, task, error)


def doubt_effect(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error) -> None:
    """An attempt ended, and nobody knows whether it had its effect: another could repeat it."""
    if plan.at(index).effect == "reconcile":
        look_up(plan, run, draft, index, msgspec.structs.replace(task, error=error), 1)
    else:
        park(run, draft, index, task, error)


def look_up(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, number: int) -> None:
    """Hand the task's lookup out, with the input that its body had. It is no attempt, and has a token of its own."""
    if draft.control & HOLDS and is_held(run, draft, index):
        return withhold(run, draft, index, msgspec.structs.replace(task, lookups=number), "body")
    token, error = run.next_token(task), task.error or LOST
    try:
        given = render_input(plan, run, draft, index, task)
    except PayloadError as e:
        unsent = msgspec.structs.replace(task, token=token)
        return park(run, draft, index, unsent, error, f"; its lookup has no input: {e.message}")
    queued = TaskState(
        QUEUED, task.attempt, token, None, task.retries_from, task.input, error=error, lookups=number,
        vanished=task.vanished,
    )  # fmt: skip
    put(run, draft, index, queued)
    draft.actions.append(Dispatch(index, task.attempt, token, given, lookup=True))


def look_up_again(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState) -> None:
    """After a lookup that nobody answered: it may not have begun, and a sweep cannot tell."""
    clear_timer(draft, index, task)
    vanished = task.vanished + 1
    if vanished >= HANDOUTS_LOST_MAX:
        return park(run, draft, index, task, task.error or LOST, "; nobody answers its lookup")
    look_up(plan, run, draft, index, msgspec.structs.replace(task, vanished=vanished), task.lookups)


def lookup_failed(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, at: int
) -> None:
    """Ask again after the task's own backoff, as often as its body would be tried; then ask a person."""
    retry, number, doubt = plan.at(index).retry, task.lookups, task.error or LOST
    clear_timer(draft, index, task)
    if not error.retryable or number >= retry.attempts:
        return park(run, draft, index, task, doubt, f"; its lookup failed: {error.message}")
    due_at = at + max(1, backoff(retry, number, b"%b/%d/%d/lookup" % (run.key, index, task.token)))
    waiting = msgspec.structs.replace(at_rest(task, PENDING, doubt, due_at), lookups=number + 1)
    put(run, draft, index, waiting)
    draft.actions.append(SetTimer(index, task.token, "backoff", due_at))


def take_as_done(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, output: bytes, ended: list[int]
) -> None:
    """The effect happened, so the task is done; no attempt of it said so."""
    draft.actions.append(KeepOutput(index, output))
    kept = output if plan.at(index).is_referenced else None
    put(run, draft, index, TaskState(COMPLETED, task.attempt, task.token, None, task.retries_from, output=kept))
    ended.append(index)


def park(run: RunState, draft: Transition, index: int, task: TaskState, error: Error, more: str = "") -> None:
    message = f"attempt {task.attempt} may have had its effect: {error.message}{more}"
    doubt = Error("AMBIGUOUS", message, error.type, error.trace, retryable=False)
    put(run, draft, index, at_rest(task, WAITING, doubt))
    draft.actions.append(Park(index, task.token, doubt))
