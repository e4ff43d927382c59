"""Replay of a dead letter: the one way out of a terminal state, and isolation, the way round a bug of ours."""

from itertools import permutations

import pytest

from headrace.machine import BuryTask, Dispatch, Finish, Replayed, RunStatus
from headrace.machine.backoff import RetryPlan
from headrace.machine.reason import UPSTREAM_SKIPPED
from headrace.messages import Error
from tests.unit.machine_model import BROKEN, HOPELESS, INPUT, Trial, task

EDITED = b'{"n":2}'


def test_a_replayed_task_is_handed_out_and_what_was_skipped_because_of_it_comes_back():
    trial = Trial(task("a"), task("b", "a"), task("c", "b"), task("other"))
    assert trial.fail("a", HOPELESS)
    assert trial.succeed("other")
    assert trial.status is RunStatus.FAILED
    assert trial.replay("a")
    assert trial.told == [Dispatch(0, 2, 2, INPUT)]
    assert trial.states == {"a": "queued", "b": "pending", "c": "pending", "other": "completed"}
    assert trial.state("a").error is None
    assert trial.status is RunStatus.RUNNING
    trial.restart()
    for name in ("a", "b", "c"):
        assert trial.succeed(name)
    assert trial.told[-1] == Finish(RunStatus.COMPLETED)


def test_a_replay_leaves_what_was_skipped_for_another_reason():
    trial = Trial(
        task("a"),
        task("gate"),
        task("no", "gate", condition="false"),
        task("of_no", "no"),
        task("both", "a", "no"),
        task("of_a", "a"),
    )
    assert trial.fail("a", HOPELESS)
    assert trial.succeed("gate")
    assert trial.replay("a")
    assert trial.states == {
        "a": "queued", "gate": "completed", "no": "skipped", "of_no": "skipped", "both": "pending", "of_a": "pending",
    }  # fmt: skip
    assert trial.succeed("a")
    assert (trial.states["both"], trial.state("both").error) == ("skipped", UPSTREAM_SKIPPED)
    assert trial.succeed("of_a")
    assert trial.status is RunStatus.COMPLETED


def test_a_replay_brings_a_diamond_back_whole():
    trial = Trial(
        task("top"), task("l", "top"), task("r", "top"), task("r2", "r"), task("join", "l", "r2"), task("end", "join")
    )
    assert trial.fail("top", HOPELESS)
    assert trial.replay("top")
    assert set(trial.states.values()) == {"queued", "pending"}
    for name in ("top", "r", "r2", "l", "join", "end"):
        assert trial.succeed(name)
    assert trial.status is RunStatus.COMPLETED


def test_what_was_replayed_may_fail_again_and_be_replayed_again():
    trial = Trial(task("a", retry=RetryPlan(attempts=2, delay=0)), task("b", "a"))
    for number in range(3):
        assert trial.fail("a")
        assert trial.fail("a")
        attempt = 2 * number + 2
        assert trial.told[1:] == [BuryTask(0, attempt, attempt, BROKEN), Finish(RunStatus.FAILED)]
        assert trial.states == {"a": "failed", "b": "skipped"}
        assert trial.replay("a")
        assert trial.states == {"a": "queued", "b": "pending"}
    assert trial.succeed("a")
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED


# == two failures ====================================================================================================
STEPS = ("replay f", "replay g", "end f", "end g", "end h")


def _do(trial: Trial, step: str) -> bool:
    act, name = step.split()
    return trial.replay(name) if act == "replay" else trial.succeed(name)


@pytest.mark.parametrize(
    "steps",
    [order for order in permutations(STEPS) if all(order.index(f"replay {n}") < order.index(f"end {n}") for n in "fg")],
    ids=", ".join,
)
@pytest.mark.parametrize("failures", ["fg", "gf"])
def test_two_failed_tasks_that_are_replayed_end_the_run_completed_in_every_order(steps: tuple[str, ...], failures: str):
    """Interleaved with their completions, and with that of a third task that some of the joins need too."""
    trial = Trial(
        task("f"), task("g"), task("h"),
        task("of_f", "f"), task("of_g", "g"), task("fg", "f", "g"), task("fgh", "f", "g", "h"),
        task("deep", "of_f", "fg"), task("all", "deep", "of_g", "fgh"),
    )  # fmt: skip
    for name in failures:
        assert trial.fail(name, HOPELESS)
    assert trial.states["all"] == "skipped"
    for step in steps:
        assert _do(trial, step)
        trial.restart()
    for name in ("of_f", "of_g", "fg", "fgh", "deep", "all"):
        assert trial.states[name] == "queued"
        assert trial.succeed(name)
    assert set(trial.states.values()) == {"completed"}
    assert trial.told[-1] == Finish(RunStatus.COMPLETED)


def test_a_join_behind_two_failures_stays_skipped_until_both_were_replayed():
    trial = Trial(task("f"), task("g"), task("join", "f", "g"))
    assert trial.fail("f", HOPELESS)
    assert trial.fail("g", HOPELESS)
    assert trial.replay("f")
    assert trial.succeed("f")
    assert trial.states["join"] == "skipped"
    assert trial.status is RunStatus.FAILED
    assert trial.replay("g")
    assert trial.states["join"] == "pending"
    assert trial.succeed("g")
    assert trial.states["join"] == "queued"


def test_a_task_behind_the_failure_that_completed_before_is_not_run_again():
    trial = Trial(task("a"), task("f"), task("join", "a", "f"))
    assert trial.succeed("a")
    assert trial.fail("f", HOPELESS)
    done = trial.state("a")
    assert trial.replay("f")
    assert trial.state("a") is done
    assert trial.succeed("f")
    assert trial.states["join"] == "queued"


def test_a_wide_replay_costs_what_it_brings_back():
    """A thousand branches between the failure and their join: no need is counted a thousand times."""
    looked = 0

    class Counted(tuple[int, ...]):
        def __iter__(self):
            nonlocal looked
            looked += len(self)
            return super().__iter__()

    items = [f"item_{n}" for n in range(1000)]
    trial = Trial(task("top"), *(task(item, "top") for item in items), task("join", *items))
    assert trial.fail("top", HOPELESS)
    trial.plan.tasks[-1].needs = Counted(trial.plan.tasks[-1].needs)
    assert trial.replay("top")
    assert looked <= 2 * 2 * 1000, "asked twice, each time once to count what blocks and once what is missing"
    assert trial.changed == {"top", *items, "join"}


# == what is replayed ================================================================================================
def test_an_edited_input_stays_over_retries_losses_and_further_replays():
    trial = Trial(task("a", template={"n": "${{ input.n }}"}, retry=RetryPlan(attempts=2)))
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a", EDITED)
    assert trial.told == [Dispatch(0, 2, 2, EDITED)]
    assert trial.lose("a")
    assert trial.told == [Dispatch(0, 2, 3, EDITED)]
    assert trial.fail("a")
    trial.restart()
    assert trial.wait_for("a")
    assert trial.told[-1] == Dispatch(0, 3, 4, EDITED)
    assert trial.fail("a")
    assert trial.replay("a")
    assert trial.told == [Dispatch(0, 4, 5, EDITED)]
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a", b"3")
    assert trial.told == [Dispatch(0, 5, 6, b"3")]


def test_a_replay_gives_the_task_its_whole_policy_again():
    trial = Trial(task("a"))
    for _ in range(2):
        for number in range(3):
            if number:
                assert trial.wait_for("a")
            assert trial.fail("a")
        assert trial.states == {"a": "failed"}
        assert trial.replay("a")
    assert trial.state("a").attempt == 6
    assert trial.fail("a")
    assert (trial.state("a").due_at or 0) - trial.at == 1_000_000, "the first backoff again"


def test_b98_a_replay_is_applied_once():
    trial = Trial(task("a"))
    assert trial.fail("a", HOPELESS)
    click = Replayed(0, 1, "ada")
    assert trial.tell(click)
    assert not trial.tell(click)
    assert trial.fail("a", HOPELESS)
    assert not trial.tell(click), "it names the hand-out that failed then"
    assert trial.tell(Replayed(0, 2, "ada"))


def test_b98_a_replay_whose_input_cannot_be_rendered_is_applied_once_too():
    trial = Trial(task("a", template={"n": "${{ input.missing }}"}))
    assert trial.states == {"a": "failed"}
    click = Replayed(0, trial.token("a"))
    assert trial.tell(click)
    assert not trial.tell(click)
    buried = [(action.task, action.token) for action in trial.actions if isinstance(action, BuryTask)]
    assert buried == [(0, 1), (0, 2)]


def test_b99_a_task_that_completed_after_its_replay_cannot_be_replayed():
    trial = Trial(task("a"))
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a")
    assert trial.succeed("a")
    assert not trial.replay("a")
    assert trial.status is RunStatus.COMPLETED


# == isolation =======================================================================================================
def test_an_isolated_run_goes_on_where_it_stood_once_it_is_released():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.start("a")
    assert trial.isolate()
    assert trial.status is RunStatus.NEEDS_ATTENTION
    assert not trial.succeed("a")
    assert not trial.isolate()
    trial.restart()
    assert trial.release()
    assert not trial.release()
    assert trial.status is RunStatus.RUNNING
    assert trial.succeed("a")
    assert trial.states == {"a": "completed", "b": "queued"}


def test_a_run_that_has_ended_is_not_isolated():
    trial = Trial(task("a"))
    assert trial.succeed("a")
    assert not trial.isolate()
    assert trial.status is RunStatus.COMPLETED


def test_a_waiting_run_waits_again_after_its_release():
    trial = Trial(task("ask", run=None, asks=True))
    assert trial.isolate()
    assert not trial.decide("ask", "approved")
    assert trial.release()
    assert trial.status is RunStatus.WAITING
    assert trial.decide("ask", "approved")
    assert trial.status is RunStatus.COMPLETED


def test_a_backoff_that_became_due_while_the_run_stood_aside_is_due_afterwards():
    trial = Trial(task("a"))
    assert trial.fail("a", Error("ERROR", "once"))
    assert trial.isolate()
    assert not trial.wait_for("a")
    assert trial.release()
    assert trial.wait_for("a")
    assert trial.states == {"a": "queued"}
