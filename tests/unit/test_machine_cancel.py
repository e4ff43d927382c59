"""Cancel: everything that has not ended ends now, and nothing of the run starts later."""

import pytest

from headrace.machine import Abort, CloseQuestion, EndAttempt, Finish, RunStatus
from headrace.messages import Due, Error, Failed, Lost, Returned, Started, Succeeded
from tests.unit.machine_model import BROKEN, HOPELESS, NONCE, SECOND, Trial, task


def busy() -> Trial:
    """A run with a task in every state that a run may hold at once."""
    trial = Trial(
        task("done"),
        task("queued"),
        task("running", timeout=10.0),
        task("backoff"),
        task("asked", run=None, asks=True),
        task("untouched", "queued"),
        task("skipped", condition="false"),
    )
    assert trial.succeed("done")
    assert trial.start("running")
    assert trial.fail("backoff")
    return trial


def test_a_cancel_ends_every_task_that_has_not_ended():
    trial = busy()
    done, skipped = trial.state("done"), trial.state("skipped")
    assert trial.cancel("no longer wanted")
    assert trial.states == {
        "done": "completed", "queued": "cancelled", "running": "cancelled", "backoff": "cancelled",
        "asked": "cancelled", "untouched": "cancelled", "skipped": "skipped",
    }  # fmt: skip
    assert (trial.state("done"), trial.state("skipped")) == (done, skipped)
    why = Error("CANCELLED", "no longer wanted", retryable=False)
    assert trial.state("untouched").error == why
    assert all(trial.state(name).due_at is None for name in trial.states)
    assert [action for action in trial.told if isinstance(action, EndAttempt)] == [
        EndAttempt(2, 1, 1, "cancelled", why)
    ]
    assert [action for action in trial.told if isinstance(action, Abort)] == [
        Abort(1, 1, "cancelled"), Abort(2, 1, "cancelled"),
    ]  # fmt: skip
    assert [action for action in trial.told if isinstance(action, CloseQuestion)] == [CloseQuestion(4, 1)]
    assert trial.told[-1] == Finish(RunStatus.CANCELLED)
    trial.restart()


def test_after_a_cancel_nothing_moves_the_run():
    trial = busy()
    tokens = {index: trial.run.task(index).token for index in range(7)}
    assert trial.cancel()
    trial.at += 3600 * SECOND
    for index, token in tokens.items():
        for event in (
            Started(index, token, NONCE), Succeeded(index, token, NONCE), Failed(index, token, NONCE, BROKEN),
            Returned(index, token, NONCE), Lost(index, token, NONCE),
            Due(index, token, NONCE, "backoff"), Due(index, token, NONCE, "timeout"),
        ):  # fmt: skip
            assert not trial.tell(event)
    for name in trial.states:
        assert not trial.decide(name, "approved")
        assert not trial.replay(name)
    assert not trial.cancel()
    assert not trial.isolate()


def test_b38_a_cancel_in_backoff_is_at_once_and_voids_the_timer():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.fail("a")
    timer = Due(0, 1, NONCE, "backoff")
    due_at = trial.state("a").due_at
    assert trial.cancel()
    assert trial.status is RunStatus.CANCELLED
    assert due_at is not None
    trial.at = due_at + SECOND
    assert not trial.tell(timer)
    assert trial.states == {"a": "cancelled", "b": "cancelled"}


def test_b36_a_backoff_of_a_cancelled_run_starts_nothing_later():
    trial = Trial(task("a"), task("b"))
    assert trial.fail("a")
    assert trial.wait_for("a")
    assert trial.fail("a")
    before = len(trial.actions)
    assert trial.cancel()
    assert not trial.wait_for("a")
    assert not trial.succeed("b")
    assert trial.actions[before:] == trial.told


def test_b52_a_run_with_a_real_failure_is_failed_even_when_the_rest_was_cancelled():
    trial = Trial(task("a"), task("b"))
    assert trial.fail("a", HOPELESS)
    assert trial.cancel()
    assert trial.told[-1] == Finish(RunStatus.FAILED)
    assert not trial.replay("a"), "a cancelled run stays cancelled"


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_a_run_that_has_ended_cannot_be_cancelled(end: str):
    trial = Trial(task("a"))
    assert {"completed": trial.succeed, "failed": lambda n: trial.fail(n, HOPELESS), "cancelled": trial.cancel}[end](
        "a"
    )
    assert not trial.cancel()


def test_a_cancel_before_the_first_result_ends_the_run():
    trial = Trial(task("a"), task("b", "a"))
    assert trial.cancel()
    assert trial.told == [Abort(0, 1, "cancelled"), Finish(RunStatus.CANCELLED)]


def test_an_isolated_run_that_is_cancelled_needs_no_attention_any_more():
    trial = busy()
    assert trial.isolate()
    assert trial.status is RunStatus.NEEDS_ATTENTION
    assert trial.cancel()
    assert (trial.status, trial.run.attention) == (RunStatus.CANCELLED, False)
    assert trial.told[-1] == Finish(RunStatus.CANCELLED)
    assert not trial.release()
