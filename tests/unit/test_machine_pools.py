"""Pools: a slot is waited for before every hand-out of a body, belongs to that hand-out, and ends with it."""

import pytest

from headrace.machine import (
    AwaitSlot,
    BuryTask,
    Dispatch,
    FreeSlot,
    Prioritised,
    RunStatus,
    SetPriority,
    Supplied,
    TakeSlot,
)
from headrace.messages import Lost
from tests.unit.machine_model import HOPELESS, INPUT, NONCE, STEADY, Trial, task

AWAIT, FREE, TAKE = AwaitSlot(0, 1, "db"), FreeSlot(0, "db"), TakeSlot(0)


def held() -> Trial:
    trial = Trial(task("load", pool="db"), task("after", "load"))
    assert trial.admit("load")
    return trial


def test_a_task_waits_for_its_slot_before_its_first_hand_out_and_keeps_its_token():
    trial = Trial(task("load", pool="db"), task("beside"))
    assert trial.told == [AWAIT, Dispatch(1, 1, 1, INPUT)]
    assert (trial.states, trial.state("load").awaits_slot) == ({"load": "waiting", "beside": "queued"}, True)
    assert trial.admit("load")
    assert trial.told == [TAKE, Dispatch(0, 1, 1, INPUT)]
    assert (trial.state("load").pool, trial.state("load").token, trial.state("load").awaits_slot) == ("db", 1, False)


def test_behind_a_failover_no_hand_out_has_the_token_of_a_wait_before_it():
    trial = Trial(task("load", pool="db"))
    trial.run.token_floor = 10
    assert trial.admit("load")
    assert trial.told == [FREE, AwaitSlot(0, 11, "db")], "a lost future may have used the first"
    assert trial.admit("load")
    assert trial.told == [TAKE, Dispatch(0, 1, 11, INPUT)]


def test_a_run_that_waits_for_nothing_but_slots_is_waiting():
    trial = Trial(task("load", pool="db"))
    assert trial.status is RunStatus.WAITING
    assert trial.admit("load")
    assert trial.status is RunStatus.RUNNING


def test_a_slot_stays_while_the_body_runs_and_ends_with_its_result():
    trial = held()
    assert trial.start("load")
    assert (FREE not in trial.told, trial.state("load").pool) == (True, "db")
    trial.restart()
    assert trial.succeed("load")
    assert (FREE in trial.told, trial.state("load").pool) == (True, "")


@pytest.mark.parametrize("is_begun", [False, True])
def test_a_slot_ends_with_a_hand_out_that_is_lost_and_the_next_one_waits_again(is_begun: bool):
    trial = held()
    if is_begun:
        assert trial.start("load")
    assert trial.lose("load")
    assert trial.told[-2:] == [FREE, AwaitSlot(0, 2, "db")]
    assert (trial.state("load").status, trial.state("load").token) == ("waiting", 2)


def test_a_backoff_holds_no_slot_and_waits_for_one_when_it_is_due():
    trial = held()
    assert trial.fail("load")
    assert FREE in trial.told
    assert (trial.state("load").status, trial.state("load").pool) == ("pending", "")
    assert trial.wait_for("load")
    assert AwaitSlot(0, 2, "db") in trial.told


def test_a_drained_worker_gives_the_slot_back_with_the_task():
    trial = held()
    assert trial.start("load")
    assert trial.give_back("load", begun=True)
    assert trial.told[-2:] == [FREE, AwaitSlot(0, 2, "db")]


def test_a_cancel_leaves_the_queue_and_gives_nothing_to_do_to_anybody():
    trial = Trial(task("load", pool="db"))
    assert trial.cancel()
    assert trial.told[0] == FREE
    assert not trial.admit("load"), "a slot that comes late finds nobody"
    assert trial.status is RunStatus.CANCELLED


def test_a_replay_waits_for_its_slot_like_anybody():
    trial = held()
    assert trial.fail("load", HOPELESS)
    assert trial.told[1:3] == [FREE, BuryTask(0, 1, 1, HOPELESS)]
    assert trial.replay("load")
    assert trial.told == [AwaitSlot(0, 2, "db")]


def test_a_slot_that_comes_in_a_pause_is_given_back_and_waited_for_again_behind_it():
    trial = Trial(task("load", pool="db"))
    assert trial.pause()
    assert trial.admit("load")
    assert trial.told == [FREE]
    assert (trial.state("load").status, trial.state("load").withheld) == ("pending", "body")
    assert trial.resume()
    assert trial.told == [AwaitSlot(0, 2, "db")]


def test_in_a_pause_nobody_begins_to_wait_for_a_slot():
    trial = Trial(task("before"), task("load", "before", pool="db"))
    assert trial.pause()
    assert trial.succeed("before")
    assert trial.state("load").withheld == "turn"
    assert trial.resume()
    assert trial.told == [AwaitSlot(1, 1, "db")]


def test_an_approval_comes_before_the_queue_and_a_decision_about_it_counts_once():
    trial = Trial(task("load", asks=True, pool="db"))
    assert trial.told[0] != AWAIT
    assert trial.decide("load", "approved")
    assert trial.told == [AwaitSlot(0, 2, "db")]
    assert not trial.decide("load", "rejected"), "it waits for a slot, and for nobody"
    assert trial.cancel()
    assert trial.told[0] == FREE


def test_a_lookup_needs_no_slot_and_the_body_after_it_does():
    trial = Trial(task("pay", effect="reconcile", pool="db"))
    assert trial.admit("pay")
    assert trial.claim("pay")
    assert trial.lose("pay")
    assert trial.told[-2:] == [FREE, Dispatch(0, 1, 2, INPUT, lookup=True)]
    assert trial.look_up("pay", happened=False)
    assert trial.wait_for("pay")
    assert trial.told[-1] == AwaitSlot(0, 3, "db")


def test_an_input_that_cannot_be_rendered_frees_the_slot():
    trial = Trial(task("load", pool="db", template="${{ input.missing }}", retry=STEADY))
    assert trial.admit("load")
    assert trial.told[:2] == [TAKE, FREE]
    assert trial.status is RunStatus.FAILED


def test_every_item_of_a_map_waits_for_a_slot_of_its_own():
    trial = Trial(task("each", over=[1, 2, 3], max_parallel=2, pool="db"))
    places = [trial.place(f"each.{item}") for item in range(3)]
    assert trial.told == [AwaitSlot(place, 1, "db") for place in places[:2]]
    assert trial.items("each") == ["waiting", "waiting"]
    for item in range(3):
        assert trial.admit(f"each.{item}")
        assert trial.succeed(f"each.{item}")
        assert FreeSlot(places[item], "db") in trial.told
    assert trial.status is RunStatus.COMPLETED


def test_a_map_that_stops_takes_its_items_out_of_the_queue():
    trial = Trial(task("each", over=[1, 2, 3], pool="db"))
    places = [trial.place(f"each.{item}") for item in range(3)]
    assert trial.admit("each.0")
    assert trial.fail("each.0", HOPELESS)
    assert [action for action in trial.told if isinstance(action, FreeSlot)] == [FreeSlot(p, "db") for p in places]


def test_b88_two_thousand_who_wait_for_a_slot_leave_the_queue_in_one_decision():
    trial = Trial(task("each", over=list(range(2_000)), max_parallel=2_000, pool="db"))
    assert [type(action) for action in trial.told] == [AwaitSlot] * 2_000
    assert trial.cancel()
    assert sum(isinstance(action, FreeSlot) for action in trial.told) == 2_000
    assert trial.status is RunStatus.CANCELLED


def test_a_task_that_waits_for_a_slot_may_be_given_its_output():
    trial = Trial(task("load", pool="db"), task("after", "load"))
    assert trial.tell(Supplied(0, 1, b"7", "by hand", "ada"))
    assert FREE in trial.told
    assert trial.states == {"load": "completed", "after": "queued"}


def test_what_is_lost_says_nothing_to_a_task_that_waits_for_its_slot():
    trial = Trial(task("load", pool="db"))
    assert not trial.tell(Lost(0, 1, NONCE))


def test_a_priority_moves_no_task_and_is_none_of_a_run_that_has_ended():
    trial = Trial(task("load", pool="db"))
    before = trial.state("load")
    assert trial.tell(Prioritised(5, "urgent", "ada"))
    assert (trial.told, trial.changed, trial.state("load") is before) == ([SetPriority(5)], set(), True)
    assert trial.cancel()
    assert not trial.tell(Prioritised(5))


FAIR = "${{ input.customer }}"


@pytest.mark.parametrize(("customer", "key"), [('"ada"', "ada"), ("7", "7"), ('"' + "x" * 200 + '"', "x" * 200)])
def test_a_fairness_key_is_worked_out_at_each_hand_out(customer: str, key: str):
    trial = Trial(task("load", pool="db", fairness_key=FAIR), input=f'{{"customer": {customer}}}'.encode())
    assert trial.told == [AwaitSlot(0, 1, "db", key)]
    assert trial.admit("load")
    assert trial.lose("load")
    assert trial.told[-2:] == [FREE, AwaitSlot(0, 2, "db", key)]


@pytest.mark.parametrize("customer", ['""', "null", "true", "1.5", "[]", '"' + "x" * 201 + '"', '"a\\u0000b"'])
def test_what_is_no_fairness_key_fails_the_task_under_its_token(customer: str):
    trial = Trial(task("load", pool="db", fairness_key=FAIR), input=f'{{"customer": {customer}}}'.encode())
    (buried,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert (buried.token, buried.error.code, trial.states) == (1, "BAD_INPUT", {"load": "failed"})
    assert (
        "the fairness key of pool db must be a text of 1 to 200 characters, or a whole number" in buried.error.message
    )
    assert not [action for action in trial.told if isinstance(action, AwaitSlot)]


def test_each_item_of_a_map_may_have_a_fairness_key_of_its_own():
    trial = Trial(task("each", over=["ada", "eve", 3], pool="db", fairness_key="${{ item }}"))
    keys = [action.fairness_key for action in trial.told if isinstance(action, AwaitSlot)]
    assert keys == ["ada", "eve", "3"]


def test_a_fairness_key_may_read_what_came_out_before():
    trial = Trial(task("who"), task("load", "who", pool="db", fairness_key="${{ tasks.who.output }}"))
    assert trial.succeed("who", b'"ada"')
    assert AwaitSlot(1, 1, "db", "ada") in trial.told
