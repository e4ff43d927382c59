"""Attempts, tokens and backoffs: what a failure, a loss and a hand-back cost."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.machine import (
    Abort,
    BuryTask,
    ClearTimer,
    Dispatch,
    EndAttempt,
    Finish,
    RunStatus,
    SetTimer,
)
from headrace.machine.advance import TIMEOUT_GRACE
from headrace.machine.backoff import RetryPlan, backoff
from headrace.machine.handout import RETRY_AFTER_MAX
from headrace.machine.reason import HANDOUTS_LOST_MAX, LOST, NEVER_BEGAN
from headrace.messages import Due, Error, Succeeded
from tests.unit.machine_model import BROKEN, HOPELESS, INPUT, NONCE, SECOND, Trial, task

MINUTE = 60 * SECOND
any_retry = st.builds(
    RetryPlan,
    st.integers(1, 100),
    st.sampled_from(["exponential", "linear", "fixed"]),
    st.integers(0, 3600 * SECOND),
    st.integers(0, 24 * 3600 * SECOND),
    st.floats(0, 1),
)


def numbers(trial: Trial) -> list[int]:
    return [action.attempt for action in trial.actions if isinstance(action, EndAttempt)]


# == how long ========================================================================================================
@pytest.mark.parametrize(
    ("kind", "seconds"),
    [("exponential", [1, 2, 4, 8, 16, 30, 30]), ("linear", [1, 2, 3, 4, 5, 6, 7]), ("fixed", [1, 1, 1, 1, 1, 1, 1])],
)
def test_a_backoff_grows_as_its_kind_says_up_to_its_cap(kind: str, seconds: list[int]):
    retry = RetryPlan(8, kind, SECOND, 30 * SECOND, 0.0)  # type: ignore[arg-type]
    assert [backoff(retry, tries, b"") for tries in range(1, 8)] == [n * SECOND for n in seconds]


@given(any_retry, st.integers(1, 10_000), st.binary(max_size=40))
def test_a_backoff_stays_within_its_jitter_and_its_cap(retry: RetryPlan, tries: int, seed: bytes):
    plain = backoff(RetryPlan(retry.attempts, retry.backoff, retry.delay, retry.cap, 0.0), tries, seed)
    delay = backoff(retry, tries, seed)
    assert 0 <= delay <= retry.cap
    assert abs(delay - plain) <= retry.jitter * plain + 1
    assert backoff(retry, tries, seed) == delay


def test_jitter_spreads_tasks_that_failed_together():
    delays = [backoff(RetryPlan(jitter=0.2), 1, b"run/%d/1" % index) for index in range(1000)]
    assert len(set(delays)) > 990
    assert min(delays) < 0.81 * SECOND
    assert max(delays) > 1.19 * SECOND
    assert abs(sum(delays) / 1000 - SECOND) < 0.02 * SECOND


def test_jitter_still_spreads_at_the_cap():
    retry = RetryPlan(delay=SECOND, cap=MINUTE, jitter=0.2)
    delays = [backoff(retry, 30, b"run/%d/30" % index) for index in range(1000)]
    assert max(delays) == MINUTE
    assert len(set(delays)) > 400


def test_jitter_depends_on_the_run_the_task_and_the_attempt_alone():
    retry = RetryPlan(attempts=4, backoff="fixed", jitter=0.5)
    waits: list[list[int]] = []
    for _ in range(2):
        trial = Trial(task("a", retry=retry), task("b", retry=retry))
        waits.append([])
        for name in ("a", "b", "a", "b", "a", "b"):
            assert trial.fail(name)
            waits[-1].append((trial.state(name).due_at or 0) - trial.at)
            assert trial.wait_for(name)
    assert waits[0] == waits[1]
    assert len(set(waits[0])) == 6


@pytest.mark.parametrize(
    ("asked", "microseconds"),
    [
        (7.5, 7_500_000),
        (3600.0, 3600 * SECOND),  # past the cap of the policy: the body knows better
        (1e-6, 1),
        (1e300, RETRY_AFTER_MAX * SECOND),
        (math.inf, RETRY_AFTER_MAX * SECOND),
    ],
)
def test_a_body_may_say_when_to_try_again(asked: float, microseconds: int):
    trial = Trial(task("a", retry=RetryPlan(attempts=2, cap=MINUTE)))
    assert trial.fail("a", Error("BUSY", "come back later", retry_after=asked))
    assert trial.told[-1] == SetTimer(0, 1, "backoff", trial.at + microseconds)


@pytest.mark.parametrize("asked", [0.0, -1.0, -math.inf, math.nan, 1e-9])
def test_no_delay_hands_the_task_out_at_once(asked: float):
    trial = Trial(task("a", retry=RetryPlan(attempts=2)))
    error = Error("BUSY", "try again", retry_after=asked)
    assert trial.fail("a", error)
    assert trial.told == [EndAttempt(0, 1, 1, "failed", error), Dispatch(0, 2, 2, INPUT)]
    assert trial.fail("a", error)
    assert trial.states == {"a": "failed"}


def test_a_policy_without_a_delay_hands_the_task_out_at_once():
    trial = Trial(task("a", retry=RetryPlan(attempts=2, delay=0)))
    assert trial.fail("a")
    assert trial.told == [EndAttempt(0, 1, 1, "failed", BROKEN), Dispatch(0, 2, 2, INPUT)]


# == how often =======================================================================================================
@pytest.mark.parametrize("attempts", [1, 2, 3, 7])
@pytest.mark.parametrize("says_started", [False, True])
def test_the_last_failure_fails_the_task_and_buries_it_with_its_error(attempts: int, says_started: bool):
    trial = Trial(task("a", retry=RetryPlan(attempts=attempts)))
    for number in range(1, attempts + 1):
        if number > 1:
            assert trial.wait_for("a")
        if says_started:
            assert trial.start("a")
        assert trial.fail("a", Error("ERROR", f"failure {number}"))
    last = Error("ERROR", f"failure {attempts}")
    assert trial.told == [
        EndAttempt(0, attempts, attempts, "failed", last),
        BuryTask(0, attempts, attempts, last),
        Finish(RunStatus.FAILED),
    ]
    assert trial.state("a").error == last
    assert numbers(trial) == list(range(1, attempts + 1))


def test_an_error_that_cannot_be_retried_uses_no_more_attempts():
    trial = Trial(task("a"))
    assert trial.fail("a", HOPELESS)
    assert trial.told == [
        EndAttempt(0, 1, 1, "failed", HOPELESS), BuryTask(0, 1, 1, HOPELESS), Finish(RunStatus.FAILED),
    ]  # fmt: skip


def test_b54_two_tasks_that_fail_at_once_are_both_retried():
    trial = Trial(task("a", retry=RetryPlan(attempts=5)), task("b", retry=RetryPlan(attempts=5)))
    for _ in range(4):
        assert trial.fail("a")
        assert trial.fail("b")
        assert trial.status is RunStatus.RUNNING
        assert trial.wait_for("a")
        assert trial.wait_for("b")
    assert trial.fail("a")
    assert trial.status is RunStatus.RUNNING
    assert trial.succeed("b")
    assert trial.status is RunStatus.FAILED


def test_a_loss_while_the_body_ran_uses_an_attempt_and_goes_out_at_once():
    trial = Trial(task("a"))
    assert trial.start("a")
    assert trial.lose("a")
    assert trial.told == [EndAttempt(0, 1, 1, "lost", LOST), Abort(0, 1, "lost"), Dispatch(0, 2, 2, INPUT)]


def test_losses_use_up_the_policy_like_failures():
    trial = Trial(task("a"))
    assert trial.fail("a")
    assert trial.wait_for("a")
    for _ in range(2):
        assert trial.states == {"a": "queued"}
        assert trial.start("a")
        assert trial.lose("a")
    assert trial.told == [
        EndAttempt(0, 3, 3, "lost", LOST), Abort(0, 3, "lost"), BuryTask(0, 3, 3, LOST), Finish(RunStatus.FAILED),
    ]  # fmt: skip


def test_a_loss_before_the_body_began_uses_no_attempt():
    trial = Trial(task("a", retry=RetryPlan(attempts=1)))
    for token in range(2, 12):
        assert trial.lose("a")
        assert trial.told == [Dispatch(0, 1, token, INPUT)]
    assert trial.succeed("a")
    assert trial.told[0] == EndAttempt(0, 1, 11, "completed")


def test_b58_a_body_that_is_handed_back_does_not_use_up_the_policy():
    trial = Trial(task("a"))
    for number in range(1, 31):
        assert trial.start("a")
        assert trial.give_back("a", begun=True)
        assert trial.told == [EndAttempt(0, number, number, "returned"), Dispatch(0, number + 1, number + 1, INPUT)]
    assert trial.fail("a")
    assert trial.wait_for("a")
    assert trial.give_back("a", begun=True)
    assert trial.fail("a")
    assert trial.wait_for("a")
    assert trial.states == {"a": "queued"}
    assert trial.fail("a")
    assert trial.states == {"a": "failed"}
    assert numbers(trial) == list(range(1, 35))


def test_a_hand_back_before_the_body_began_has_no_attempt():
    trial = Trial(task("a", retry=RetryPlan(attempts=1)))
    assert trial.give_back("a", begun=False)
    assert trial.told == [Dispatch(0, 1, 2, INPUT)]


def test_a_task_that_no_worker_ever_begins_is_set_aside_and_a_replay_gives_it_as_many_hand_outs_again():
    trial = Trial(task("a"))
    for _ in range(2):
        for number in range(1, HANDOUTS_LOST_MAX):
            assert trial.lose("a") if number % 2 else trial.give_back("a", begun=False)
            assert trial.states == {"a": "queued"}
        assert trial.lose("a")
        token = trial.token("a")
        assert trial.told == [BuryTask(0, token, 0, NEVER_BEGAN), Finish(RunStatus.FAILED)]
        assert trial.replay("a")
        assert trial.told == [Dispatch(0, 1, token + 1, INPUT)]
    assert trial.start("a")
    assert trial.lose("a")
    assert trial.states == {"a": "queued"}, "its body began this time"


def test_only_hand_outs_that_vanish_in_a_row_are_counted():
    trial = Trial(task("a", retry=RetryPlan(attempts=3, delay=0)))
    for _ in range(2):
        for _ in range(HANDOUTS_LOST_MAX - 1):
            assert trial.lose("a")
        assert trial.fail("a"), "its body began"
        assert trial.states == {"a": "queued"}
    for _ in range(HANDOUTS_LOST_MAX - 1):
        assert trial.lose("a")
    assert trial.states == {"a": "queued"}
    assert trial.lose("a")
    assert trial.states == {"a": "failed"}


def test_every_hand_out_behind_a_floor_has_a_token_above_it():
    trial = Trial(task("a", effect="reconcile", retry=RetryPlan(attempts=3, delay=0)), task("b", "a", asks=True))
    trial.run.token_floor = 1000
    assert trial.lose("a")
    assert trial.told == [Dispatch(0, 1, 1001, INPUT)]
    assert trial.claim("a")
    assert trial.lose("a")
    assert trial.token("a") == 1002, "a lookup's"
    assert trial.look_up("a", False)
    assert trial.told == [Dispatch(0, 2, 1003, INPUT)]
    trial.run.token_floor = 2000
    assert trial.succeed("a")
    assert (trial.token("a"), trial.token("b")) == (1003, 2001)
    assert trial.decide("b", "approved")
    assert trial.told[0] == Dispatch(1, 1, 2002, INPUT)


def test_b20_attempts_are_numbered_without_a_gap_whatever_ends_them():
    trial = Trial(task("a", retry=RetryPlan(attempts=4), timeout=1.0))
    assert trial.lose("a")
    assert trial.fail("a")  # 1
    assert trial.wait_for("a")
    assert trial.give_back("a", begun=False)
    assert trial.start("a")
    assert trial.wait_for("a", "timeout")  # 2
    assert trial.wait_for("a")
    assert trial.start("a")
    assert trial.give_back("a", begun=True)  # 3
    assert trial.start("a")
    assert trial.lose("a")  # 4
    assert trial.fail("a", HOPELESS)  # 5
    assert trial.replay("a")
    assert trial.lose("a")
    assert trial.succeed("a")  # 6
    assert numbers(trial) == [1, 2, 3, 4, 5, 6]
    tokens = [action.token for action in trial.actions if isinstance(action, Dispatch)]
    assert tokens == list(range(1, len(tokens) + 1))


def test_b59_the_next_attempt_is_handed_out_only_behind_the_end_of_the_last():
    trial = Trial(task("a"))
    for _ in range(2):
        assert trial.start("a")
        assert trial.lose("a")
    kinds = [type(action) for action in trial.actions]
    assert kinds == [Dispatch, EndAttempt, Abort, Dispatch, EndAttempt, Abort, Dispatch]


# == timers ==========================================================================================================
def test_b07_a_backoff_is_due_by_the_clock_and_not_before():
    trial = Trial(task("a"))
    assert trial.fail("a")
    due_at = trial.at + SECOND
    assert trial.state("a").due_at == due_at
    for at in (trial.at, due_at - 1):
        trial.at = at
        assert not trial.tell(Due(0, 1, NONCE, "backoff"))
    trial.at = due_at
    assert trial.tell(Due(0, 1, NONCE, "backoff"))
    assert trial.told == [ClearTimer(0), Dispatch(0, 2, 2, INPUT)]


def test_a_timer_of_an_earlier_hand_out_is_stale():
    trial = Trial(task("a"))
    assert trial.fail("a")
    assert trial.wait_for("a")
    assert trial.fail("a")
    trial.at += MINUTE
    assert not trial.tell(Due(0, 1, NONCE, "backoff"))
    assert trial.tell(Due(0, 2, NONCE, "backoff"))


def test_a_time_out_counts_from_the_start_of_the_body_with_grace_for_the_worker():
    trial = Trial(task("a", timeout=30.0))
    assert trial.state("a").due_at is None
    trial.at += MINUTE
    assert trial.start("a")
    due_at = trial.at + 30 * SECOND + TIMEOUT_GRACE
    assert trial.told == [SetTimer(0, 1, "timeout", due_at)]
    trial.at = due_at - 1
    assert not trial.tell(Due(0, 1, NONCE, "timeout"))
    trial.at = due_at
    assert trial.tell(Due(0, 1, NONCE, "timeout"))
    assert trial.states == {"a": "pending"}


def test_a_time_out_on_the_last_attempt_fails_the_task():
    trial = Trial(task("a", timeout=1.0, retry=RetryPlan(attempts=1)))
    assert trial.start("a")
    assert trial.wait_for("a", "timeout")
    error = Error("TIMEOUT", "no result within 1.0 s")
    assert trial.told == [
        Abort(0, 1, "timeout"), EndAttempt(0, 1, 1, "failed", error), ClearTimer(0), BuryTask(0, 1, 1, error),
        Finish(RunStatus.FAILED),
    ]  # fmt: skip


def test_b06_a_result_that_comes_after_its_time_out_is_refused_by_its_token():
    trial = Trial(task("t", timeout=4.0), task("u", "t", template="${{ tasks.t.output }}"))
    assert trial.start("t")
    assert trial.wait_for("t", "timeout")
    assert trial.told[0] == Abort(0, 1, "timeout")
    late = Succeeded(0, 1, NONCE)
    assert not trial.tell(late)
    assert trial.wait_for("t")
    assert not trial.tell(late)
    assert trial.succeed("t", b'"of the second"')
    assert trial.told[-1] == Dispatch(1, 1, 1, b'"of the second"')
    assert not trial.tell(late)
    handed_out = [action for action in trial.actions if isinstance(action, Dispatch) and action.task == 1]
    assert len(handed_out) == 1


# == inputs ==========================================================================================================
def test_an_input_that_cannot_be_rendered_buries_its_task_under_a_token_of_its_own():
    trial = Trial(task("a"), task("b", "a", template={"n": "${{ tasks.a.output.n }}"}), task("c", "b"))
    assert trial.succeed("a", b"{}")
    assert trial.states == {"a": "completed", "b": "failed", "c": "skipped"}
    assert (trial.token("b"), trial.state("b").attempt) == (1, 0)
    error = trial.state("b").error
    assert error is not None
    assert not error.retryable
    assert trial.told[1:] == [BuryTask(1, 1, 0, error), Finish(RunStatus.FAILED)]
    assert trial.replay("b")
    assert trial.told == [BuryTask(1, 2, 0, error)]
    assert trial.states == {"a": "completed", "b": "failed", "c": "skipped"}
    assert trial.replay("b", b'{"n":1}')
    assert trial.told == [Dispatch(1, 1, 3, b'{"n":1}')]
