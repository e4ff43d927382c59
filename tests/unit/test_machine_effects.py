"""Effects that must not be repeated blindly: claims, ambiguous ends, lookups, and what a person resolves."""

import msgspec
import pytest

from headrace.machine import (
    Abort,
    BuryTask,
    ClearTimer,
    CloseQuestion,
    Dispatch,
    EndAttempt,
    Finish,
    Grant,
    KeepOutput,
    Park,
    RunStatus,
    SetTimer,
    TaskStatus,
    Unpark,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.reason import HANDOUTS_LOST_MAX, LOST, NEVER_BEGAN
from headrace.messages import Error, Failed
from tests.unit.machine_model import BROKEN, DOUBTFUL, ELSEWHERE, HOPELESS, INPUT, NONCE, SECOND, SESSION, Trial, task

ONCE = RetryPlan(attempts=1)


def parked(**options: object) -> Trial:
    """A task under `effect: manual` whose worker is gone in the middle of it, and one that needs its output."""
    trial = Trial(
        task("pay", effect="manual", **options),  # type: ignore[arg-type]
        task("ship", "pay", template={"receipt": "${{ tasks.pay.output.receipt }}"}),
    )
    assert trial.claim("pay")
    assert trial.lose("pay")
    assert trial.state("pay").is_parked
    return trial


def looked_up(**options: object) -> Trial:
    trial = Trial(
        task("pay", effect="reconcile", **options),  # type: ignore[arg-type]
        task("ship", "pay", template={"receipt": "${{ tasks.pay.output.receipt }}"}),
    )
    assert trial.claim("pay")
    assert trial.lose("pay")
    assert trial.state("pay").lookups == 1
    return trial


# == claims ============================================================================================================
@pytest.mark.parametrize("options", [{"exclusive": True}, {"effect": "manual"}, {"effect": "reconcile"}])
def test_a_claim_records_its_holder_and_grants_to_it(options: dict[str, object]):
    trial = Trial(task("a", timeout=5.0, **options))  # type: ignore[arg-type]
    assert trial.plan.tasks[0].claims
    assert trial.claim("a")
    assert trial.state("a").session == SESSION
    assert trial.told[-1] == Grant(0, 1, SESSION)
    assert isinstance(trial.told[0], SetTimer)


def test_whoever_claims_second_is_told_of_the_first():
    trial = Trial(task("a", exclusive=True))
    assert trial.claim("a", ELSEWHERE)
    assert trial.claim("a", SESSION)
    assert trial.told == [Grant(0, 1, ELSEWHERE)]
    assert (trial.changed, trial.state("a").session) == (set(), ELSEWHERE)


def test_a_claim_is_answered_the_same_after_a_restart():
    trial = Trial(task("a", exclusive=True))
    assert trial.claim("a")
    trial.restart()
    assert trial.claim("a", ELSEWHERE)
    assert trial.told == [Grant(0, 1, SESSION)]


def test_a_claim_of_what_is_not_current_is_not_answered():
    trial = Trial(task("a", exclusive=True, retry=ONCE))
    assert trial.claim("a")
    assert trial.succeed("a")
    assert not trial.claim("a")


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_a_claimed_hand_out_that_was_never_granted_is_simply_handed_out_again(effect: str):
    trial = Trial(task("a", effect=effect, retry=ONCE))  # type: ignore[arg-type]
    for token in range(1, 5):
        assert trial.lose("a", begun=(None, False)[token % 2])
        assert trial.told == [Dispatch(0, 1, token + 1, INPUT)]


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_a_granted_body_that_provably_never_began_uses_up_no_try(effect: str):
    trial = Trial(task("a", effect=effect, retry=ONCE))  # type: ignore[arg-type]
    for number in range(1, 4):
        assert trial.claim("a")
        assert trial.lose("a", begun=False)
        assert trial.told[0] == EndAttempt(0, number, number, "lost", LOST)
        assert trial.told[-1] == Dispatch(0, number + 1, number + 1, INPUT)
    assert trial.claim("a")
    assert trial.fail("a")  # this one counts, and is the last
    assert isinstance(trial.told[-2], BuryTask)


def test_a_granted_body_that_was_handed_back_unbegun_is_handed_out_again():
    trial = Trial(task("a", effect="manual", retry=ONCE))
    assert trial.claim("a")
    assert trial.give_back("a", begun=False)
    assert trial.told == [EndAttempt(0, 1, 1, "returned"), Dispatch(0, 2, 2, INPUT)]


@pytest.mark.parametrize("options", [{}, {"exclusive": True}, {"effect": "manual"}, {"effect": "reconcile"}])
def test_what_becomes_of_the_same_record_in_another_worker_ends_nothing(options: dict[str, object]):
    """A rebalance can give one record to two workers. The second drains, dies or lacks the body while it still waits
    there, and the first runs it."""
    trial = Trial(task("a", **options))  # type: ignore[arg-type]
    assert trial.claim("a") if options else trial.start("a")
    for begun in (False, None):
        assert not trial.lose("a", begun=begun, session=ELSEWHERE)
    assert not trial.give_back("a", begun=False, session=ELSEWHERE)
    assert not trial.tell(Failed(0, 1, NONCE, Error("UNKNOWN_TASK", "?"), ELSEWHERE))
    trial.restart()
    assert not trial.give_back("a", begun=False, session=ELSEWHERE)
    assert trial.give_back("a", begun=False, session=SESSION)


def test_before_anybody_is_recorded_anybody_may_hand_it_back():
    trial = Trial(task("a", effect="manual"))
    assert trial.give_back("a", begun=False, session=ELSEWHERE)
    assert trial.lose("a", begun=False, session=SESSION)
    assert trial.fail("a", Error("UNKNOWN_TASK", "?"))


def test_an_exclusive_task_is_tried_again_after_an_ambiguous_end():
    trial = Trial(task("a", exclusive=True))
    assert trial.claim("a")
    assert trial.lose("a")
    assert trial.told == [EndAttempt(0, 1, 1, "lost", LOST), Abort(0, 1, "lost"), Dispatch(0, 2, 2, INPUT)]


# == a plain end =======================================================================================================
@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_a_failure_that_is_not_ambiguous_is_retried_and_buried_as_ever(effect: str):
    trial = Trial(task("a", effect=effect, retry=RetryPlan(2)))  # type: ignore[arg-type]
    assert trial.claim("a")
    assert trial.fail("a")
    assert trial.states == {"a": "pending"}
    assert trial.wait_for("a")
    assert trial.claim("a")
    assert trial.fail("a")
    assert trial.told == [EndAttempt(0, 2, 2, "failed", BROKEN), BuryTask(0, 2, 2, BROKEN), Finish(RunStatus.FAILED)]


# == parked ============================================================================================================
def test_a_parked_task_says_what_is_not_known_and_holds_up_what_needs_it():
    trial = parked()
    error = trial.state("pay").error
    assert error is not None
    assert (error.code, error.retryable) == ("AMBIGUOUS", False)
    assert error.message == f"attempt 1 may have had its effect: {LOST.message}"
    assert trial.told == [EndAttempt(0, 1, 1, "lost", LOST), Abort(0, 1, "lost"), Park(0, 1, error)]
    assert trial.states == {"pay": "waiting", "ship": "pending"}
    assert trial.status is RunStatus.WAITING
    trial.restart()
    assert trial.state("pay").is_parked


def test_the_type_and_the_trace_of_an_ambiguous_failure_are_kept_for_the_person():
    trial = Trial(task("a", effect="manual"))
    assert trial.fail("a", Error("ERROR", "no answer", "ReadTimeout", "Traceback ...", ambiguous=True))
    error = trial.state("a").error
    assert error is not None
    assert (error.type, error.trace) == ("ReadTimeout", "Traceback ...")


@pytest.mark.parametrize("error", [DOUBTFUL, Error("BAD_RESULT", "?", retryable=False, ambiguous=True)])
def test_an_ambiguous_failure_is_parked_whether_or_not_a_try_is_left(error: Error):
    for retry in (ONCE, RetryPlan(5)):
        trial = Trial(task("a", effect="manual", retry=retry))
        assert trial.claim("a")
        assert trial.fail("a", error)
        assert trial.state("a").is_parked


def test_nobody_decides_a_parked_task_as_if_it_were_an_approval():
    trial = parked()
    for outcome in ("approved", "rejected", "expired"):
        assert not trial.decide("pay", outcome)


def test_nobody_resolves_an_approval_as_if_it_were_parked():
    trial = Trial(task("a", asks=True, effect="manual"))
    for outcome in ("happened", "did_not_happen", "fail"):
        assert not trial.resolve("a", outcome)  # type: ignore[arg-type]
    assert trial.decide("a", "approved")
    assert trial.claim("a")
    assert trial.lose("a")
    assert trial.resolve("a", "did_not_happen")
    assert trial.states == {"a": "queued"}, "it was approved once"


def test_what_happened_completes_the_task_with_the_output_a_person_gave():
    trial = parked()
    assert trial.resolve("pay", "happened", b'{"receipt":"r-1"}')
    assert trial.told == [
        Unpark(0), KeepOutput(0, b'{"receipt":"r-1"}'), Dispatch(1, 1, 1, b'{"receipt":"r-1"}'),
    ]  # fmt: skip
    trial.restart()
    assert trial.succeed("ship")
    assert trial.status is RunStatus.COMPLETED


def test_what_did_not_happen_has_all_its_tries_again():
    trial = parked(retry=RetryPlan(attempts=2, delay=0))
    assert trial.resolve("pay", "did_not_happen")
    assert trial.told == [Unpark(0), Dispatch(0, 2, 2, INPUT)]
    assert trial.state("pay").error is None
    for number in (2, 3):
        assert trial.states["pay"] == "queued"
        assert trial.claim("pay")
        assert trial.fail("pay")
        assert trial.told[0] == EndAttempt(0, number, number, "failed", BROKEN)
    assert trial.states["pay"] == "failed"


def test_what_a_person_lets_fail_is_a_dead_letter_and_can_be_replayed():
    trial = parked()
    error = trial.state("pay").error
    assert trial.resolve("pay", "fail")
    assert trial.told[:2] == [Unpark(0), BuryTask(0, 1, 1, error)]  # type: ignore[arg-type]
    assert trial.states == {"pay": "failed", "ship": "skipped"}
    assert trial.replay("pay")
    (parking,) = trial.told  # nobody knows more
    assert isinstance(parking, Park)
    assert (parking.task, parking.token) == (0, 2)
    trial.restart()
    assert trial.resolve("pay", "did_not_happen")
    assert trial.told == [Unpark(0), Dispatch(0, 2, 3, INPUT)]


def test_a_parked_task_that_is_cancelled_leaves_no_row_behind():
    trial = parked()
    assert trial.cancel()
    assert trial.told == [Unpark(0), Finish(RunStatus.CANCELLED)]
    assert not any(isinstance(action, CloseQuestion) for action in trial.told)
    assert not trial.resolve("pay", "did_not_happen")


def test_a_task_may_be_parked_again():
    trial = parked()
    for token in (2, 3):
        assert trial.resolve("pay", "did_not_happen")
        assert trial.claim("pay")
        assert trial.fail("pay", DOUBTFUL)
        assert isinstance(trial.told[-1], Park)
        assert (trial.told[-1].token, trial.state("pay").attempt) == (token, token)


def test_an_edited_input_survives_being_parked():
    trial = Trial(task("a", effect="manual", retry=ONCE))
    assert trial.fail("a", HOPELESS)
    assert trial.replay("a", b'{"n":2}')
    assert trial.claim("a")
    assert trial.lose("a")
    assert trial.resolve("a", "did_not_happen")
    assert trial.told[-1] == Dispatch(0, 3, 3, b'{"n":2}')


# == looked up =========================================================================================================
def test_a_lookup_gets_the_input_of_the_body_and_is_no_attempt():
    trial = looked_up()
    assert trial.told == [
        EndAttempt(0, 1, 1, "lost", LOST), Abort(0, 1, "lost"), Dispatch(0, 1, 2, INPUT, lookup=True),
    ]  # fmt: skip
    assert trial.start("pay")
    assert (trial.state("pay").attempt, trial.state("pay").token) == (1, 2)
    trial.restart()
    assert trial.look_up("pay", happened=False)
    assert trial.wait_for("pay")
    assert trial.told == [ClearTimer(0), Dispatch(0, 2, 3, INPUT)]
    assert trial.state("pay").lookups == 0


def test_what_a_lookup_found_is_the_output_of_the_task():
    trial = looked_up()
    assert trial.look_up("pay", happened=True, output={"receipt": "r-1"})
    assert trial.told == [
        KeepOutput(0, b'{"receipt":"r-1"}'), Dispatch(1, 1, 1, b'{"receipt":"r-1"}'),
    ]  # fmt: skip
    assert [action for action in trial.actions if isinstance(action, EndAttempt)] == [
        EndAttempt(0, 1, 1, "lost", LOST)
    ], "the attempt itself never succeeded"


def test_a_lookup_that_finds_nothing_leaves_the_end_as_it_was_and_nothing_open():
    """The attempt counts as failed: retried by the policy while tries are left, and a dead letter after the last."""
    trial = looked_up(retry=RetryPlan(attempts=2, delay=SECOND, jitter=0.0))
    assert trial.look_up("pay", happened=False)
    assert trial.told == [SetTimer(0, 2, "backoff", trial.at + SECOND)]
    assert trial.wait_for("pay")
    assert trial.claim("pay")
    assert trial.fail("pay", DOUBTFUL)
    assert trial.look_up("pay", happened=False)
    assert trial.told[0] == BuryTask(0, 4, 2, msgspec.structs.replace(DOUBTFUL, ambiguous=False))


def test_what_cannot_help_is_not_tried_again_although_it_did_not_happen():
    trial = Trial(task("a", effect="reconcile"))
    error = Error("BAD_RESULT", "?", retryable=False, ambiguous=True)
    assert trial.fail("a", error)
    assert trial.look_up("a", happened=False)
    assert trial.told[0] == BuryTask(0, 2, 1, msgspec.structs.replace(error, ambiguous=False))


def test_a_body_that_was_drained_before_its_effect_is_tried_again_and_uses_up_no_try():
    trial = Trial(task("a", effect="reconcile", retry=ONCE))
    for number in (1, 2, 3):
        assert trial.claim("a")
        assert trial.give_back("a", begun=True)
        assert trial.told == [
            EndAttempt(0, number, 2 * number - 1, "returned"), Dispatch(0, number, 2 * number, INPUT, lookup=True)
        ]  # fmt: skip
        assert trial.look_up("a", happened=False)
        assert trial.states == {"a": "pending"}
        assert trial.wait_for("a")
    assert trial.states == {"a": "queued"}


@pytest.mark.parametrize("answer", [b"null", b"true", b"[]", b"{}", b'{"happened":"yes"}', b'{"happened":null}'])
def test_a_lookup_that_does_not_say_puts_the_task_before_a_person(answer: bytes):
    trial = looked_up()
    assert trial.succeed("pay", answer)
    error = trial.state("pay").error
    assert error is not None
    assert trial.told == [Park(0, 2, error)]
    assert error.message.endswith("its lookup cannot tell either")
    assert trial.resolve("pay", "did_not_happen")
    assert trial.told == [Unpark(0), Dispatch(0, 2, 3, INPUT)]


def test_a_lookup_that_fails_is_asked_as_often_as_the_body_would_be_tried_then_a_person_is():
    trial = looked_up(retry=RetryPlan(attempts=3, backoff="fixed", jitter=0.0))
    for number in (1, 2):
        assert trial.state("pay").lookups == number
        assert trial.fail("pay")
        assert trial.told == [SetTimer(0, number + 1, "backoff", trial.at + SECOND)]
        trial.restart()
        assert trial.wait_for("pay")
        assert trial.told == [ClearTimer(0), Dispatch(0, 1, number + 2, INPUT, lookup=True)]
    assert trial.fail("pay")
    error = trial.state("pay").error
    assert error is not None
    assert trial.told == [Park(0, 4, error)]
    assert error.message == f"attempt 1 may have had its effect: {LOST.message}; its lookup failed: it broke"


def test_a_lookup_without_a_delay_still_waits_for_its_timer():
    trial = looked_up(retry=RetryPlan(attempts=2, delay=0))
    assert trial.fail("pay")
    assert trial.states["pay"] == "pending"
    assert trial.wait_for("pay")
    assert trial.states["pay"] == "queued"


def test_a_lookup_that_is_lost_or_handed_back_is_asked_again_and_uses_nothing_up():
    trial = looked_up(retry=ONCE)
    token = trial.token("pay")
    for begun in (None, True, False, None):
        if begun:
            assert trial.start("pay")
        assert trial.lose("pay", begun=begun)
        token += 1
        assert trial.told[-1] == Dispatch(0, 1, token, INPUT, lookup=True)
    for begun in (True, False):
        assert trial.give_back("pay", begun=begun)
        token += 1
        assert trial.told == [Dispatch(0, 1, token, INPUT, lookup=True)]
    assert trial.state("pay").lookups == 1


def test_a_lookup_that_never_begins_puts_the_task_before_a_person():
    trial = looked_up()
    for _ in range(HANDOUTS_LOST_MAX):
        if trial.state("pay").is_parked:
            break
        assert trial.lose("pay")
    error = trial.state("pay").error
    assert trial.state("pay").is_parked
    assert error is not None
    assert error.message.endswith("nobody answers its lookup")


def test_lookups_that_were_answered_do_not_count_as_vanished():
    trial = looked_up(retry=RetryPlan(attempts=2 * HANDOUTS_LOST_MAX, delay=0))
    for _ in range(HANDOUTS_LOST_MAX + 1):
        assert trial.look_up("pay", False)
        assert trial.lose("pay"), "its command is gone once, before its body began"
        assert trial.states["pay"] == "queued"
        assert trial.claim("pay")
        assert trial.lose("pay")
        assert trial.state("pay").lookups == 1


def test_a_lookup_is_cancelled_as_no_attempt():
    trial = looked_up()
    assert trial.start("pay")
    assert trial.cancel()
    assert trial.told == [Abort(0, 2, "cancelled"), Finish(RunStatus.CANCELLED)]
    assert trial.state("pay").status is TaskStatus.CANCELLED
    assert trial.state("pay").lookups == 0


def test_a_lookup_has_the_time_of_its_task():
    trial = looked_up(timeout=5.0)
    assert trial.start("pay")
    assert isinstance(trial.told[0], SetTimer)
    assert trial.wait_for("pay", "timeout")
    assert [type(action) for action in trial.told] == [Abort, ClearTimer, SetTimer]
    assert trial.state("pay").lookups == 2


def test_the_last_hand_out_of_a_claimed_task_is_a_dead_letter_as_of_any_other():
    trial = Trial(task("a", effect="manual"))
    for _ in range(HANDOUTS_LOST_MAX - 1):
        assert trial.lose("a")
    assert trial.lose("a")
    assert trial.told[0] == BuryTask(0, HANDOUTS_LOST_MAX, 0, NEVER_BEGAN)
