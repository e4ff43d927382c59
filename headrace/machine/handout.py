"""Hand a task out, and what follows when a hand-out or an attempt comes to nothing."""

from typing import Final

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import Abort, AwaitSlot, Dispatch, EndAttempt, SetTimer, TakeSlot, Transition
from headrace.machine.backoff import backoff
from headrace.machine.draft import bury, clear_timer, fairness_key_of, put, render_input, withhold
from headrace.machine.effect import doubt_effect
from headrace.machine.pause import is_held
from headrace.machine.plan import Plan, PoolPlan
from headrace.machine.reason import HANDOUTS_LOST_MAX, LOST, NEVER_BEGAN
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import HOLDS, PENDING, QUEUED, RUNNING, WAITING
from headrace.messages import Error

RETRY_AFTER_MAX: Final = 366 * 86_400
"""Seconds; a delay asked for by a body is capped, so that no sum of instants overflows."""


def as_begun(task: TaskState) -> TaskState:
    """The task as it is once its body began: a short body sends only its result, so that counts the attempt."""
    if task.status is RUNNING:
        return task
    if task.lookups:
        return msgspec.structs.replace(task, status=RUNNING)
    return msgspec.structs.replace(task, status=RUNNING, attempt=task.attempt + 1, vanished=0)


def hand_out(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """QUEUED under the next token, with its input rendered; withheld while the run is paused. One of a pool is WAITING
    for its slot first.

    An input, or a fairness key, that cannot be rendered fails the task instead. The token is used up all the same, so
    that every dead letter of a task has its own, and the event that led here is stale when it comes again.
    """
    if draft.control & HOLDS and is_held(run, draft, index):
        known = msgspec.structs.replace(task, error=None, lookups=0)  # a lookup that has answered is not asked again
        return withhold(run, draft, index, known, "body")
    token, pool = run.next_token(task), plan.at(index).pool
    if pool is not None:
        return _await_slot(plan, run, draft, index, task, token, pool, ended)
    _send(plan, run, draft, index, task, token, ended)


def _await_slot(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, token: int, pool: PoolPlan,
    ended: list[int],
) -> None:  # fmt: skip
    try:
        key = "" if pool.fairness_key is None else fairness_key_of(plan, run, draft, index)
    except PayloadError as e:
        return _bury_unsent(run, draft, index, task, token, e, ended)
    waiting = TaskState(
        WAITING, task.attempt, token, None, task.retries_from, task.input, vanished=task.vanished, pool=pool.name
    )
    put(run, draft, index, waiting)
    draft.actions.append(AwaitSlot(index, token, pool.name, key))


def admit(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """It has its slot: QUEUED under the token under which it waited. In a pause it gives the slot back, and waits for
    another behind the pause; and so it does at once where a lost future may have handed it out under that token."""
    if draft.control & HOLDS and is_held(run, draft, index):
        return withhold(run, draft, index, task, "body")
    if task.token <= run.token_floor:
        return hand_out(plan, run, draft, index, task, ended)
    draft.actions.append(TakeSlot(index))
    _send(plan, run, draft, index, task, task.token, ended)


def _send(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, token: int, ended: list[int]
) -> None:
    try:
        given = render_input(plan, run, draft, index, task)
    except PayloadError as e:
        return _bury_unsent(run, draft, index, task, token, e, ended)
    pool = task.pool if token == task.token else ""  # under another token it has waited for none
    queued = TaskState(
        QUEUED, task.attempt, token, None, task.retries_from, task.input, vanished=task.vanished, pool=pool
    )
    put(run, draft, index, queued)
    draft.actions.append(Dispatch(index, task.attempt + 1, token, given))


def _bury_unsent(
    run: RunState, draft: Transition, index: int, task: TaskState, token: int, why: PayloadError, ended: list[int]
) -> None:
    unsent = msgspec.structs.replace(task, token=token)
    bury(run, draft, index, unsent, Error(why.reason, why.message, retryable=False), ended)


def hand_out_again(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """After a hand-out that vanished before its body began."""
    vanished = task.vanished + 1
    clear_timer(draft, index, task)
    if vanished >= HANDOUTS_LOST_MAX:
        return bury(run, draft, index, task, NEVER_BEGAN, ended)
    hand_out(plan, run, draft, index, msgspec.structs.replace(task, vanished=vanished), ended)


def lose_attempt(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], *, has_begun: bool
) -> None:
    """Its worker is gone. A granted hand-out whose body provably never began uses up none of the tries."""
    spec = plan.at(index)
    draft.actions.append(EndAttempt(index, task.attempt, task.token, "lost", LOST))
    draft.actions.append(Abort(index, task.token, "lost"))
    clear_timer(draft, index, task)
    if not has_begun:
        task = msgspec.structs.replace(task, retries_from=task.retries_from + 1)
    if has_begun and spec.effect != "idempotent":
        doubt_effect(plan, run, draft, index, task, LOST)
    elif task.attempt - task.retries_from < spec.retry.attempts:
        hand_out(plan, run, draft, index, task, ended)
    else:
        bury(run, draft, index, task, LOST, ended)


def fail_attempt(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int], at: int,
    *, is_ambiguous: bool,
) -> None:  # fmt: skip
    draft.actions.append(EndAttempt(index, task.attempt, task.token, "failed", error))
    clear_timer(draft, index, task)
    if is_ambiguous and plan.at(index).effect != "idempotent":
        doubt_effect(plan, run, draft, index, task, error)
    else:
        retry_or_bury(plan, run, draft, index, task, error, ended, at)


def retry_or_bury(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, error: Error, ended: list[int], at: int
) -> None:
    """An attempt failed: the next one after its backoff, or none."""
    retry = plan.at(index).retry
    tries = task.attempt - task.retries_from
    if not error.retryable or tries >= retry.attempts:
        return bury(run, draft, index, task, error, ended)
    if error.retry_after is not None:
        delay = int(min(max(0.0, error.retry_after), RETRY_AFTER_MAX) * 1_000_000)
    else:
        # None counts when a drained attempt turned out to have had no effect.
        delay = backoff(retry, max(1, tries), b"%b/%d/%d" % (run.key, index, task.attempt))
    if delay <= 0:
        return hand_out(plan, run, draft, index, task, ended)
    due_at = at + delay
    waiting = TaskState(PENDING, task.attempt, task.token, due_at, task.retries_from, input=task.input)
    put(run, draft, index, waiting)
    draft.actions.append(SetTimer(index, task.token, "backoff", due_at))
