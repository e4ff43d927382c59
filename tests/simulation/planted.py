"""Bugs put into the product, to see that the simulation finds them. Named after the cases they were taken from."""

import importlib
from collections.abc import Callable
from typing import Any, Final

import msgspec

import state.children
import state.pools
import streams.run_agent
from headrace.attempt import Attempt
from headrace.errors import UnavailableError
from headrace.machine import FreeSlot, TaskStatus
from headrace.worker.hold import Hold
from headrace.worker.session import Session
from state.bulk_steps import step
from state.pipe import Overtaken, Refused
from state.store import Rows
from streams.bulk import Bulk
from streams.ownership import Ownership
from streams.run_agent import RunAgent
from tests.simulation.postgres_clients import FakePipe
from tests.simulation.seams import put
from tests.simulation.statements import session
from tests.simulation.statements.registry import MODELS

machine: Final[Any] = importlib.import_module("headrace.machine.advance")  # the package's own name for it is a function


def _lost_without_token() -> None:
    _ignore_token("_lost")


def _failure_without_ownership() -> None:
    _ignore_token("_failed")


def _ignore_token(arm: str) -> None:
    original = getattr(machine, arm)

    def decide(plan: Any, run: Any, event: Any, at: int) -> Any:
        task = run.tasks.get(event.task)
        return original(plan, run, event if task is None else msgspec.structs.replace(event, token=task.token), at)

    setattr(machine, arm, decide)


def _command_in_a_second_transaction() -> None:
    original = FakePipe.run

    def run(self: FakePipe, calls: Any) -> None:
        later = [call for call in calls if call[0] in ("hand_out_tasks", "publish_messages")]
        original(self, [call for call in calls if call not in later])
        if later:
            self.before = lambda transaction: None
            original(self, later)

    put(FakePipe, run=run)


def _nobody_restores_timers() -> None:
    MODELS["restore_timers"] = lambda t, *_: []


class _Deaf(list[int]):
    """Tasks that ended, without those whose end the joins behind them are not told of."""

    def __init__(self, draft: Any, ended: list[int]) -> None:
        super().__init__()
        self._draft = draft
        for index in ended:
            self.append(index)

    def append(self, index: int) -> None:
        if self._draft.tasks[index].status is TaskStatus.COMPLETED:
            super().append(index)


def _join_waits_for_the_skipped() -> None:
    close = machine.close_decision
    machine.close_decision = lambda plan, run, draft, ended, at: close(plan, run, draft, _Deaf(draft, ended), at)


def _offset_passes_a_record() -> None:
    take = Ownership.take
    put(Ownership, take=lambda self, batch, **_: take(self, batch, is_gapless=False))

    async def once(self: RunAgent, batch: Any) -> None:
        try:
            await self._apply(batch)
        except (Overtaken, UnavailableError, Refused):
            self._forget()

    put(RunAgent, __call__=once)


def _start_claims_nothing() -> None:
    def claim(t: Any, namespace: str, keys: list[str], *_: Any) -> Any:
        return [(key,) for key in keys]

    MODELS["claim_trigger_keys"] = claim


def _ended_session_is_renewed() -> None:
    put(session, is_renewable=lambda known, seq: known["seq"] < seq)


def _no_fence_at_the_effect() -> None:
    put(Attempt, is_ours=lambda self: True)
    put(Session, is_lapsed=lambda self, now, *, holds: False)


def _claimed_body_does_not_wait() -> None:
    put(Hold, _claim=Hold._start)


def _not_visible_is_not_there() -> None:
    put(streams.run_agent, NOT_YET=(0.0,))


def _copy_outlives_the_ownership() -> None:
    put(RunAgent, _trust=lambda self, moves: None)


def _start_counts_without_its_lock() -> None:
    MODELS["lock_permits"] = lambda t, *_: []


def _slot_kept_after_a_cancel() -> None:
    act = Rows._act

    def keep(self: Rows, run: Any, transition: Any, event: Any) -> Any:
        cancelled = {index for index, task in transition.tasks.items() if task.status is TaskStatus.CANCELLED}
        kept = [one for one in transition.actions if isinstance(one, FreeSlot) and one.task in cancelled]
        transition.actions = [one for one in transition.actions if one not in kept]
        return act(self, run, transition, event)

    put(Rows, _act=keep)


def _undone_in_any_order() -> None:
    compensation: Any = importlib.import_module("headrace.machine.compensation")
    count = compensation.count_undone
    put(compensation, count_undone=lambda plan, found: dict.fromkeys(count(plan, found), 0))


def _bulk_item_acted_twice() -> None:
    async def act(self: Bulk, connection: Any) -> int:
        """What is asked of runs, and that it was asked, are not one transaction."""
        return await step(connection, self._store, self._plans)

    put(Bulk, act=act)


def _child_of_a_paused_workflow_begins() -> None:
    async def find(connection: Any, workflows: Any) -> dict[Any, Any]:
        return {}

    put(state.children, find_pauses=find)


def _key_lost_with_its_row() -> None:
    put(state.pools, _key_again=lambda run, task: "")


def _rerun_repeats_blindly() -> None:
    turn: Any = importlib.import_module("headrace.machine.turn")
    put(turn, may_have_had=lambda spec, task: False)


def _letter_outlives_its_rerun() -> None:
    MODELS["close_letters"] = lambda t, *_: []


PLANTED: Final[dict[str, Callable[[], None]]] = {
    "B01-lost-without-token": _lost_without_token,
    "B08-failure-without-ownership": _failure_without_ownership,
    "B22-command-in-a-second-transaction": _command_in_a_second_transaction,
    "B27-nobody-restores-timers": _nobody_restores_timers,
    "B48-join-waits-for-the-skipped": _join_waits_for_the_skipped,
    "B92-offset-passes-a-record": _offset_passes_a_record,
    "start-claims-nothing": _start_claims_nothing,
    "ended-session-is-renewed": _ended_session_is_renewed,
    "no-fence-at-the-effect": _no_fence_at_the_effect,
    "claimed-body-does-not-wait": _claimed_body_does_not_wait,
    "not-visible-is-not-there": _not_visible_is_not_there,
    "copy-outlives-the-ownership": _copy_outlives_the_ownership,
    "start-counts-without-its-lock": _start_counts_without_its_lock,
    "slot-kept-after-a-cancel": _slot_kept_after_a_cancel,
    "undone-in-any-order": _undone_in_any_order,
    "bulk-item-acted-twice": _bulk_item_acted_twice,
    "child-of-a-paused-workflow-begins": _child_of_a_paused_workflow_begins,
    "key-lost-with-its-row": _key_lost_with_its_row,
    "rerun-repeats-blindly": _rerun_repeats_blindly,
    "letter-outlives-its-rerun": _letter_outlives_its_rerun,
}
