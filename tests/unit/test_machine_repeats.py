"""Repeats: rounds of one task until its condition holds, and a number of times at most."""

import pytest

from headrace.expressions import OF_ITS_END, compile_condition
from headrace.machine import BuryTask, CountRounds, Dispatch, NoteRound, Reran, RunStatus, SetTimer, Supplied
from headrace.machine.backoff import RetryPlan
from headrace.machine.plan import Effect, RepeatPlan
from headrace.machine.rerun import foresee
from headrace.messages import Admitted, Error
from tests.unit.machine_model import HOPELESS, NONCE, SECOND, Trial, plan_of, task

DONE = compile_condition("output.done", OF_ITS_END)
THRICE = RepeatPlan(DONE, 3)
LATER = RepeatPlan(DONE, 3, delay=SECOND)
READING = RepeatPlan(DONE, 5, reads_last=True)
NOT_YET, YES = b'{"done":false}', b'{"done":true}'


def _error(trial: Trial, name: str = "a") -> Error:
    error = trial.state(name).error
    assert error is not None
    return error


def _dispatched(trial: Trial) -> list[tuple[int, int, int | None, bytes]]:
    """Token, attempt, round and input of what was just handed out."""
    return [(a.token, a.attempt, a.round, a.input) for a in trial.told if isinstance(a, Dispatch)]


def test_a_round_that_does_not_end_it_is_followed_by_another_under_the_next_token() -> None:
    trial = Trial(task("a", repeat=THRICE), task("b", "a"))
    assert _dispatched(trial) == [(1, 1, 0, b'{"n":1}')]
    assert trial.succeed("a", NOT_YET)
    assert _dispatched(trial) == [(2, 2, 1, b'{"n":1}')]
    assert {CountRounds(0, 1), NoteRound(0, 1, 0)} <= set(trial.told)
    assert trial.states == {"a": "queued", "b": "pending"}
    assert trial.succeed("a", YES)
    assert trial.states == {"a": "completed", "b": "queued"}
    assert NoteRound(0, 2, 1) in trial.told
    assert trial.state("a").rounds == 2


def test_its_output_is_that_of_the_last_round() -> None:
    trial = Trial(task("a", repeat=THRICE), task("b", "a", template="${{ tasks.a.output }}"))
    trial.succeed("a", NOT_YET)
    trial.succeed("a", YES)
    assert _dispatched(trial) == [(1, 1, None, YES)]


def test_a_delay_is_a_timer_between_two_rounds() -> None:
    trial = Trial(task("a", repeat=LATER))
    trial.succeed("a", NOT_YET)
    assert trial.states == {"a": "pending"}
    assert SetTimer(0, 1, "repeat", trial.at + SECOND) in trial.told
    assert trial.status is RunStatus.RUNNING
    trial.restart()
    assert trial.wait_for("a", "repeat")
    assert _dispatched(trial) == [(2, 2, 1, b'{"n":1}')]


@pytest.mark.parametrize("kind", ["backoff", "repeat"])
def test_a_timer_that_was_made_again_starts_the_next_round_by_either_name(kind: str) -> None:
    trial = Trial(task("a", repeat=LATER))
    trial.succeed("a", NOT_YET)
    assert trial.wait_for("a", kind)
    assert trial.states == {"a": "queued"}


def test_the_bound_fails_it_for_a_dead_letter() -> None:
    trial = Trial(task("a", repeat=THRICE), task("b", "a"))
    for _ in range(3):
        assert trial.succeed("a", NOT_YET)
    assert trial.states == {"a": "failed", "b": "skipped"}
    assert (_error(trial).code, _error(trial).retryable) == ("ROUNDS_OVER", False)
    assert any(isinstance(action, BuryTask) for action in trial.told)


def test_or_completes_it_by_declaration() -> None:
    trial = Trial(task("a", repeat=RepeatPlan(DONE, 2, on_max="complete")))
    for _ in range(2):
        assert trial.succeed("a", NOT_YET)
    assert (trial.states, trial.status) == ({"a": "completed"}, RunStatus.COMPLETED)


def test_a_replay_after_the_bound_has_as_many_rounds_again() -> None:
    trial = Trial(task("a", repeat=THRICE))
    for _ in range(3):
        trial.succeed("a", NOT_YET)
    trial.restart()
    assert trial.replay("a")
    assert _dispatched(trial) == [(4, 4, 3, b'{"n":1}')]
    for _ in range(2):
        trial.succeed("a", NOT_YET)
    assert trial.states == {"a": "queued"}
    trial.succeed("a", NOT_YET)
    assert trial.states == {"a": "failed"}


@pytest.mark.parametrize("named", [(), (0,)])
@pytest.mark.parametrize("effect", ["idempotent", "manual", "reconcile"])
def test_a_rerun_after_the_bound_has_rounds_with_other_keys(effect: Effect, named: tuple[int, ...]) -> None:
    """The rounds that there were had their effects, and whoever knows their keys would swallow the new ones."""
    trial = Trial(task("a", repeat=THRICE, effect=effect))
    for _ in range(3):
        trial.claim("a")
        trial.succeed("a", NOT_YET)
    assert _error(trial).code == "ROUNDS_OVER"
    trial.restart()
    (foreseen,) = foresee(trial.plan, trial.run, Reran(trial.run.row_version, named), trial.at)
    assert foreseen.round == 3
    assert trial.tell(Reran(trial.run.row_version, named))
    assert _dispatched(trial) == [(4, 4, 3, b'{"n":1}')]
    trial.restart()
    for _ in range(3):
        trial.claim("a")
        trial.succeed("a", NOT_YET)
    assert (_error(trial).code, trial.state("a").rounds) == ("ROUNDS_OVER", 6)


def test_a_rerun_of_a_round_that_failed_has_that_round_again() -> None:
    trial = Trial(task("a", repeat=READING, template={"last": "${{ last }}", "index": "${{ index }}"}))
    trial.succeed("a", b'{"done":false,"x":7}')
    trial.fail("a", HOPELESS)
    trial.restart()
    assert trial.tell(Reran(trial.run.row_version))
    assert _dispatched(trial) == [(3, 3, 1, b'{"last":{"done":false,"x":7},"index":1}')]
    trial.restart()
    trial.lose("a")
    assert _dispatched(trial) == [(4, 3, 1, b'{"last":{"done":false,"x":7},"index":1}')]


def test_a_rerun_of_a_round_that_was_cancelled_asks_about_that_round() -> None:
    trial = Trial(task("a", repeat=THRICE, effect="manual"))
    trial.claim("a")
    trial.succeed("a", NOT_YET)
    trial.claim("a")
    trial.cancel()
    trial.restart()
    assert trial.tell(Reran(trial.run.row_version))
    assert (trial.state("a").is_parked, trial.state("a").rounds, _dispatched(trial)) == (True, 1, [])
    assert trial.resolve("a", "happened", NOT_YET)
    assert (trial.state("a").is_parked, trial.state("a").rounds, _dispatched(trial)) == (True, 2, [])
    trial.restart()
    assert trial.resolve("a", "did_not_happen")
    assert _dispatched(trial) == [(5, 3, 2, b'{"n":1}')]
    trial.claim("a")
    assert trial.succeed("a", YES)
    assert trial.states == {"a": "completed"}


def test_rounds_that_happened_are_looked_up_one_by_one_when_a_rerun_begins_with_the_first() -> None:
    trial = Trial(task("a", repeat=READING, effect="reconcile", template="${{ last }}"))
    for output in (NOT_YET, NOT_YET, YES):
        trial.claim("a")
        trial.succeed("a", output)
    trial.restart()
    assert trial.tell(Reran(trial.run.row_version, (0,)))
    for number, last in enumerate((b"null", NOT_YET)):
        (sent,) = [action for action in trial.told if isinstance(action, Dispatch)]
        assert (sent.lookup, sent.round, sent.input) == (True, number, last)
        trial.restart()
        assert trial.look_up("a", True, {"done": False})
    assert trial.look_up("a", False)
    (sent,) = [action for action in trial.told if isinstance(action, Dispatch)]
    assert (sent.lookup, sent.round) == (False, 2)
    trial.claim("a")
    assert trial.succeed("a", NOT_YET)
    (sent,) = [action for action in trial.told if isinstance(action, Dispatch)]
    assert (sent.lookup, sent.round) == (False, 3), "what is behind a round that did not happen has not either"


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_a_round_that_had_its_effect_and_could_not_be_judged_is_not_repeated_blindly(effect: Effect) -> None:
    trial = Trial(task("a", repeat=THRICE, effect=effect))
    trial.claim("a")
    trial.succeed("a", b'{"other":1}')
    assert (_error(trial).code, _error(trial).ambiguous) == ("BAD_INPUT", True)
    trial.restart()
    assert trial.replay("a")
    assert trial.state("a").is_parked or trial.state("a").lookups


def test_tries_count_anew_in_each_round() -> None:
    trial = Trial(task("a", repeat=THRICE))  # three attempts
    for _ in range(2):
        for _ in range(2):
            trial.fail("a")
            trial.wait_for("a")
        assert trial.succeed("a", NOT_YET)
    assert (trial.state("a").attempt, trial.state("a").rounds) == (6, 2)
    for _ in range(2):
        trial.fail("a")
        trial.wait_for("a")
    assert trial.fail("a")
    assert trial.states == {"a": "failed"}
    assert NoteRound(0, 9, 2) in trial.told


def test_b58_a_poll_that_goes_on_for_thirty_hours_and_fails_now_and_then_uses_up_no_try() -> None:
    hourly = RepeatPlan(DONE, 31, delay=3_600 * SECOND)
    trial = Trial(task("a", repeat=hourly, retry=RetryPlan(5, "fixed", SECOND)))
    for number in range(30):
        for _ in range(4):
            trial.fail("a")
            assert trial.wait_for("a")
        assert trial.succeed("a", NOT_YET)
        assert (trial.states["a"], trial.state("a").rounds) == ("pending", number + 1)
        assert trial.wait_for("a", "repeat")
    assert trial.succeed("a", YES)
    assert (trial.states["a"], trial.state("a").attempt) == ("completed", 151)


def test_b88_a_thousand_rounds_are_a_thousand_steps_of_one_task() -> None:
    trial = Trial(task("a", repeat=RepeatPlan(DONE, 1_000)), task("b", "a"))
    for number in range(999):
        assert trial.succeed("a", NOT_YET)
        assert len(trial.told) == 4, number
    trial.restart()
    assert trial.succeed("a", YES)
    assert trial.states == {"a": "completed", "b": "queued"}


def test_an_attempt_of_a_round_has_the_round_of_that_round() -> None:
    trial = Trial(task("a", repeat=THRICE))
    trial.succeed("a", NOT_YET)
    trial.fail("a")
    assert NoteRound(0, 2, 1) in trial.told
    trial.wait_for("a")
    assert _dispatched(trial) == [(3, 3, 1, b'{"n":1}')]


def test_a_round_that_failed_is_replayed_as_that_round() -> None:
    trial = Trial(task("a", repeat=READING, template={"last": "${{ last }}", "index": "${{ index }}"}))
    trial.succeed("a", b'{"done":false,"x":7}')
    trial.fail("a", HOPELESS)
    assert trial.state("a").rounds == 1
    trial.restart()
    assert trial.replay("a")
    assert _dispatched(trial) == [(3, 3, 1, b'{"last":{"done":false,"x":7},"index":1}')]


def test_what_an_operator_gives_it_is_for_one_round() -> None:
    trial = Trial(task("a", repeat=THRICE))
    trial.fail("a", HOPELESS)
    assert trial.replay("a", b"5")
    assert trial.succeed("a", NOT_YET)
    assert _dispatched(trial) == [(3, 3, 1, b'{"n":1}')]


def test_the_input_may_read_the_round_before() -> None:
    trial = Trial(task("a", repeat=READING, template={"last": "${{ last }}", "index": "${{ index }}"}))
    assert _dispatched(trial) == [(1, 1, 0, b'{"last":null,"index":0}')]
    trial.succeed("a", b'{"done":false,"x":1}')
    assert _dispatched(trial) == [(2, 2, 1, b'{"last":{"done":false,"x":1},"index":1}')]
    trial.restart()
    trial.lose("a")
    assert _dispatched(trial) == [(3, 2, 1, b'{"last":{"done":false,"x":1},"index":1}')]
    trial.pause()
    trial.succeed("a", b'{"done":false,"x":2}')
    assert trial.state("a").withheld
    trial.restart()
    trial.resume()
    assert _dispatched(trial) == [(4, 3, 2, b'{"last":{"done":false,"x":2},"index":2}')]


def test_nothing_is_kept_of_a_round_that_nothing_reads() -> None:
    trial = Trial(task("a", repeat=THRICE))
    trial.succeed("a", NOT_YET)
    assert trial.state("a").output is None


def test_a_result_said_twice_is_one_round() -> None:
    trial = Trial(task("a", repeat=LATER))
    trial.succeed("a", NOT_YET)
    assert not trial.succeed("a", NOT_YET)
    assert trial.state("a").rounds == 1


def test_a_condition_that_cannot_be_evaluated_fails_the_round() -> None:
    trial = Trial(task("a", repeat=THRICE))
    assert trial.succeed("a", b'{"other":1}')
    assert (trial.states, _error(trial).code) == ({"a": "failed"}, "BAD_INPUT")
    assert trial.state("a").rounds == 0
    assert trial.replay("a")
    assert trial.succeed("a", YES)
    assert trial.states == {"a": "completed"}


def test_the_condition_may_count() -> None:
    trial = Trial(task("a", repeat=RepeatPlan(compile_condition("index == 2", OF_ITS_END), 9)))
    for _ in range(3):
        trial.succeed("a")
    assert trial.states == {"a": "completed"}


def test_a_rerun_of_one_that_had_completed_begins_with_the_first_round() -> None:
    trial = Trial(task("a", repeat=READING, template="${{ last }}"))
    trial.succeed("a", NOT_YET)
    trial.succeed("a", YES)
    assert trial.tell(Reran(trial.run.row_version, (0,)))
    assert _dispatched(trial) == [(3, 3, 0, b"null")]
    assert CountRounds(0, 0) in trial.told
    trial.restart()
    assert trial.state("a").rounds == 0


def test_a_person_who_gives_it_its_output_ends_it() -> None:
    trial = Trial(task("a", repeat=LATER), task("b", "a"))
    trial.succeed("a", NOT_YET)
    assert trial.tell(Supplied(0, trial.token("a"), NOT_YET))
    assert trial.states == {"a": "completed", "b": "queued"}


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_effect_that_turns_out_to_have_happened_ends_its_round(effect: str) -> None:
    trial = Trial(task("a", repeat=THRICE, effect=effect))  # type: ignore[arg-type]
    trial.claim("a")
    trial.lose("a")
    if effect == "manual":
        assert trial.resolve("a", "happened", NOT_YET)
    else:
        assert trial.look_up("a", True, {"done": False})
    assert (trial.states, trial.state("a").rounds) == ({"a": "queued"}, 1)
    trial.claim("a")
    assert trial.succeed("a", YES)
    assert trial.states == {"a": "completed"}


def test_each_round_waits_for_a_slot_of_its_own() -> None:
    trial = Trial(task("a", repeat=READING, template="${{ last }}", pool="p"))
    trial.tell(Admitted(0, 1, NONCE))
    assert trial.succeed("a", NOT_YET)
    assert (trial.states["a"], trial.token("a")) == ("waiting", 2)
    trial.restart()
    assert trial.tell(Admitted(0, 2, NONCE))
    assert _dispatched(trial) == [(2, 2, 1, NOT_YET)]


def test_a_deadline_is_over_all_rounds() -> None:
    trial = Trial(task("a", repeat=LATER, deadline=3 * SECOND))
    deadline_at = trial.state("a").deadline_at
    trial.succeed("a", NOT_YET)
    assert trial.state("a").deadline_at == deadline_at
    assert trial.pass_deadline("a")
    assert trial.states == {"a": "failed"}


def test_a_plan_without_repeats_says_so() -> None:
    assert not plan_of(task("a")).has_repeats
    trial = Trial(task("a"))
    trial.succeed("a")
    assert not any(isinstance(action, CountRounds | NoteRound) for action in trial.actions)
