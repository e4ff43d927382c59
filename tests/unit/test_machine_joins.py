"""Joins and skips: a join is decided as soon as it can be, and a run ends when all its tasks have."""

from collections.abc import Callable, Sequence
from itertools import permutations, product
from random import Random

import pytest

from headrace.machine import Dispatch, Finish, RunState, RunStatus
from headrace.machine.plan import Join
from headrace.machine.reason import CONDITION_FALSE, NOTHING_FAILED, UPSTREAM_FAILED, UPSTREAM_SKIPPED
from headrace.machine.run_state import UNTOUCHED
from headrace.messages import Error
from tests.unit.machine_model import HOPELESS, KEY, Spec, Trial, task

FINISHED = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED)


# == every combination of ends =======================================================================================
def _parent(end: str, name: str) -> list[Spec]:
    """A task that can come to that end, and a gate that says when."""
    gate = task(f"gate_{name}")
    match end:
        case "skipped":
            return [gate, task(name, gate.name, condition="false")]
        case "rejected":
            return [gate, task(name, gate.name, run=None, asks=True)]
        case _:
            return [gate, task(name, gate.name)]


ENDS: dict[str, Callable[[Trial, str], bool]] = {
    "completed": lambda trial, name: trial.succeed(f"gate_{name}") and trial.succeed(name),
    "failed": lambda trial, name: trial.succeed(f"gate_{name}") and trial.fail(name, HOPELESS),
    "rejected": lambda trial, name: trial.succeed(f"gate_{name}") and trial.decide(name, "rejected"),
    "skipped": lambda trial, name: trial.succeed(f"gate_{name}"),
    "unreached": lambda trial, name: trial.fail(f"gate_{name}", HOPELESS),
}
FAILURES = {"failed", "rejected", "unreached"}
PLAIN = [end for end in ENDS if end != "rejected"]
NAMES = ("p", "q", "r", "s")
# Every sequence of ends is there, so every order in which some ends can come is there too.
COMBINATIONS = [
    *(ends for width in (1, 2, 3) for ends in product(ENDS, repeat=width)),
    *product(PLAIN, repeat=4),
]
JOINS: list[Join] = ["all", "any", 1, 2, 3, 4, "always", "on_failure", "finally"]


def decision(join: Join, ends: Sequence[str], width: int) -> str:
    """What a join says once these ends have come, of so many: the rule, told again in other words."""
    is_over, completed = len(ends) == width, sum(end == "completed" for end in ends)
    failed = any(end in FAILURES for end in ends)
    match join:
        case "all":
            runs, stops = completed == width, failed or is_over
        case "always" | "finally":
            runs, stops = is_over, False
        case "on_failure":
            runs, stops = is_over and failed, is_over
        case _:
            runs, stops = completed >= (1 if join == "any" else join), is_over
    return "queued" if runs else "skipped" if stops else "pending"


def reason(join: Join, ends: Sequence[str]) -> Error:
    if join == "on_failure":
        return NOTHING_FAILED
    return UPSTREAM_FAILED if any(end in FAILURES for end in ends) else UPSTREAM_SKIPPED


def joined(join: Join, ends: Sequence[str]) -> Trial:
    """A join of needs that can come to these ends, and behind it one who goes on and one who catches a failure."""
    specs = [spec for end, name in zip(ends, NAMES, strict=False) for spec in _parent(end, name)]
    return Trial(
        *specs,
        task("join", *NAMES[: len(ends)][::-1], join=join),
        task("behind", "join"),
        task("caught", "join", join="on_failure"),
    )


def finish(trial: Trial) -> None:
    for name in ("join", "behind", "caught"):
        if trial.states[name] == "queued":
            assert trial.succeed(name)


@pytest.mark.parametrize("join", JOINS)
def test_b48_every_join_is_decided_by_every_combination_of_up_to_four_ends_in_every_order(join: Join):
    outcomes: dict[tuple[str, ...], object] = {}
    for ends in (ends for ends in COMBINATIONS if not isinstance(join, int) or join <= len(ends)):
        trial = joined(join, ends)
        decided = "pending"
        for position, (end, name) in enumerate(zip(ends, NAMES, strict=False), 1):
            assert ENDS[end](trial, name), (ends, name)
            decided = decision(join, ends[:position], len(ends)) if decided == "pending" else decided
            assert trial.states["join"] == decided, (ends, position)
            trial.restart()
        assert decided != "pending"
        if decided == "skipped":
            assert trial.state("join").error == reason(join, ends), ends
        finish(trial)
        has_failed = bool(FAILURES & set(ends))
        is_caught = decided == "skipped" and reason(join, ends) == UPSTREAM_FAILED
        assert trial.states["behind"] == ("skipped" if decided == "skipped" else "completed")
        assert trial.states["caught"] == ("completed" if is_caught else "skipped")
        assert trial.status is (RunStatus.FAILED if has_failed else RunStatus.COMPLETED)
        assert not set(trial.states.values()) - {"completed", "failed", "skipped"}, "a task has not ended"
        assert [action for action in trial.actions if isinstance(action, Finish)] == [Finish(trial.status)]
        assert trial.actions[-1] == Finish(trial.status)
        outcome = [(trial.state(name).status, trial.state(name).error) for name in ("join", "behind", "caught")]
        assert outcomes.setdefault(tuple(sorted(ends)), outcome) == outcome, "the order in which they ended counts"


@pytest.mark.parametrize("join", JOINS)
def test_a_replay_of_what_failed_decides_again_about_what_had_not_begun(join: Join):
    for ends in (ends for ends in COMBINATIONS if FAILURES & set(ends)):
        if isinstance(join, int) and join > len(ends):
            continue
        for are_done in (False, True):  # the others have ended before the replay, or end after it
            trial = joined(join, ends)
            pairs = list(zip(ends, NAMES, strict=False))
            pairs.sort(key=lambda pair: pair[0] not in FAILURES)
            later = [pair for pair in pairs if pair[0] not in FAILURES and not are_done]
            for end, name in pairs[: len(pairs) - len(later)]:
                assert ENDS[end](trial, name)
            begun = trial.states["join"] == "queued"
            for end, name in pairs:
                if end in FAILURES:
                    _repair(trial, end, name)
                    trial.restart()
            for end, name in later:
                assert ENDS[end](trial, name)
            repaired = ["completed" if end in FAILURES else end for end in ends]
            decided = "queued" if begun else decision(join, repaired, len(ends))
            assert trial.states["join"] == decided, (ends, are_done)
            if decided == "skipped":
                assert trial.state("join").error == reason(join, repaired)
            finish(trial)
            assert trial.status is RunStatus.COMPLETED, trial.states


def _repair(trial: Trial, end: str, name: str) -> None:
    match end:
        case "unreached":
            assert trial.replay(f"gate_{name}")
            assert trial.succeed(f"gate_{name}")
            assert trial.succeed(name)
        case "rejected":
            assert trial.replay(name)
            assert trial.decide(name, "approved")
        case _:
            assert trial.replay(name)
            assert trial.succeed(name)


@pytest.mark.parametrize("join", JOINS[:2] + JOINS[6:8])
def test_a_cancel_ends_a_join_that_is_undecided_whatever_it_is(join: Join):
    for ends in (ends for ends in COMBINATIONS if len(ends) < 3):
        specs = [spec for end, name in zip(ends, NAMES, strict=False) for spec in _parent(end, name)]
        trial = Trial(*specs, task("last"), task("join", *NAMES[: len(ends)], "last", join=join))
        for end, name in zip(ends, NAMES, strict=False):
            assert ENDS[end](trial, name)
        decided = decision(join, ends, len(ends) + 1)
        assert trial.cancel()
        assert trial.states["last"] == "cancelled"
        assert trial.states["join"] == ("skipped" if decided == "skipped" else "cancelled")
        assert trial.status in FINISHED


def test_a_branch_is_merged_by_the_first_that_completes():
    for amount, way in ((5, "small"), (50, "large")):
        trial = Trial(
            task("split"),
            task("small", "split", condition="input.n < 10"),
            task("large", "split", condition="input.n >= 10"),
            task("merge", "small", "large", join="any"),
            input=b'{"n":%d}' % amount,
        )
        assert trial.succeed("split")
        assert trial.states[way] == "queued"
        assert trial.states["merge"] == "pending"
        assert trial.succeed(way)
        assert trial.succeed("merge")
        assert trial.status is RunStatus.COMPLETED


def test_b50_a_task_that_runs_always_runs_behind_a_skip_and_behind_a_failure():
    for ends in (lambda trial: trial.succeed("a", b'{"go":false}'), lambda trial: trial.fail("a", HOPELESS)):
        trial = Trial(task("a"), task("b", "a", condition="tasks.a.output.go"), task("c", "b", join="always"))
        assert ends(trial)
        assert trial.states["b"] == "skipped"
        assert trial.states["c"] == "queued"


def test_a_join_that_was_decided_by_some_does_not_look_at_the_others():
    trial = Trial(task("a"), task("b"), task("c"), task("join", "a", "b", "c", join=2), task("after", "join"))
    assert trial.succeed("c")
    assert trial.succeed("a")
    assert trial.succeed("join")
    assert trial.fail("b", HOPELESS)
    assert trial.states["after"] == "queued"
    assert trial.succeed("after")
    assert trial.status is RunStatus.FAILED
    assert trial.replay("b")
    assert trial.states == {
        "a": "completed",
        "b": "queued",
        "c": "completed",
        "join": "completed",
        "after": "completed",
    }
    assert trial.succeed("b")
    assert trial.status is RunStatus.COMPLETED


def test_a_quorum_of_a_thousand_is_decided_by_the_one_that_makes_it():
    items = [f"item_{n}" for n in range(1000)]
    trial = Trial(*(task(item) for item in items), task("join", *items, join=600))
    for item in items[:400]:
        assert trial.fail(item, HOPELESS)
    for item in items[400:-1]:
        assert trial.succeed(item)
        assert trial.states["join"] == "pending"
    trial.restart()
    assert trial.succeed(items[-1])
    assert trial.states["join"] == "queued"


# == what comes out of a run =========================================================================================
def test_a_run_that_completes_has_the_output_that_its_workflow_says():
    trial = Trial(
        task("a"),
        task("b", "a", condition="tasks.a.output.go"),
        output={"n": "${{ input.n }}", "a": "${{ tasks.a.output }}", "b": "${{ tasks.b.output }}"},
    )
    assert trial.succeed("a", b'{"go":false}')
    assert trial.told[-1] == Finish(RunStatus.COMPLETED, b'{"n":1,"a":{"go":false},"b":null}')


def test_an_output_that_cannot_be_evaluated_changes_no_status():
    trial = Trial(task("a"), output={"total": "${{ tasks.a.output.total }}"})
    assert trial.succeed("a", b"{}")
    assert trial.status is RunStatus.COMPLETED
    (finish,) = [action for action in trial.told if isinstance(action, Finish)]
    assert finish.output is None
    assert finish.error == Error("BAD_INPUT", "tasks.a.output.total: there is no field 'total'", retryable=False)


def test_only_a_run_that_completes_has_an_output():
    trial = Trial(task("a"), output={"a": "${{ tasks.a.output }}"})
    assert trial.fail("a", HOPELESS)
    assert trial.told[-1] == Finish(RunStatus.FAILED)
    assert trial.replay("a")
    assert trial.succeed("a", b"7")
    assert trial.told[-1] == Finish(RunStatus.COMPLETED, b'{"a":7}')


# == skips ===========================================================================================================
def test_b50_a_skip_goes_edge_by_edge_and_no_further():
    trial = Trial(
        task("gate"),
        task("skipped", "gate", condition="false"),
        task("child", "skipped"),
        task("grandchild", "child"),
        task("other", "gate"),
        task("of_other", "other"),
    )
    assert trial.succeed("gate")
    assert trial.changed == {"gate", "skipped", "child", "grandchild", "other"}
    assert trial.states == {
        "gate": "completed", "skipped": "skipped", "child": "skipped", "grandchild": "skipped",
        "other": "queued", "of_other": "pending",
    }  # fmt: skip
    assert trial.state("skipped").error == CONDITION_FALSE
    assert trial.state("grandchild").error == UPSTREAM_SKIPPED
    assert trial.succeed("other")
    assert trial.succeed("of_other")
    assert trial.status is RunStatus.COMPLETED


def test_a_condition_reads_what_is_upstream():
    trial = Trial(
        task("count"),
        task("many", "count", condition="tasks.count.output.n > 10"),
        task("few", "count", condition="tasks.count.output.n <= 10"),
    )
    assert trial.succeed("count", b'{"n":11}')
    assert trial.states == {"count": "completed", "many": "queued", "few": "skipped"}


def test_a_condition_that_cannot_be_evaluated_fails_its_task():
    trial = Trial(task("count"), task("many", "count", condition="tasks.count.output.n > 10"), task("behind", "many"))
    assert trial.succeed("count", b'{"m":11}')
    assert trial.states == {"count": "completed", "many": "failed", "behind": "skipped"}
    assert trial.state("many").error is not None
    assert trial.status is RunStatus.FAILED


def test_a_root_with_a_false_condition_ends_its_run_at_once():
    trial = Trial(task("root", condition="false"), task("behind", "root"))
    assert trial.states == {"root": "skipped", "behind": "skipped"}
    assert trial.actions == [Finish(RunStatus.COMPLETED)]


def test_a_run_of_no_tasks_is_completed():
    assert Trial().status is RunStatus.COMPLETED


def test_another_branch_goes_on_when_one_fails():
    trial = Trial(
        task("split"), task("a", "split"), task("b", "split"), task("b2", "b"), task("join", "a", "b2"), task("c", "b2")
    )
    assert trial.succeed("split")
    assert trial.fail("a", HOPELESS)
    assert trial.states["join"] == "skipped"
    assert trial.status is RunStatus.RUNNING
    for name in ("b", "b2", "c"):
        assert trial.states[name] == "queued"
        assert trial.succeed(name)
    assert trial.status is RunStatus.FAILED
    assert trial.told[-1] == Finish(RunStatus.FAILED)


# == wide and deep ===================================================================================================
@pytest.mark.parametrize("seed", range(3))
def test_b30_a_join_of_a_thousand_fires_once_whatever_the_order_and_the_repetitions(seed: int):
    random = Random(seed)
    items = [f"item_{n}" for n in range(1000)]
    trial = Trial(task("split"), *(task(item, "split") for item in items), task("join", *items), task("after", "join"))
    assert trial.succeed("split")
    assert len(trial.told) == 1001
    results = items + random.sample(items, 300)
    random.shuffle(results)
    done: set[str] = set()
    for number, item in enumerate(results):
        assert trial.state("join") is UNTOUCHED
        assert trial.succeed(item) == (item not in done)
        done.add(item)
        if number == 700:
            trial.restart()
        if len(done) == 1000:
            break
    assert trial.told[-1] == Dispatch(1001, 1, 1, trial.run.input)
    assert len(trial.changed) == 2
    assert not any(trial.succeed(item) for item in random.sample(items, 100))
    assert trial.succeed("join")
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED
    dispatched = [(action.task, action.token) for action in trial.actions if isinstance(action, Dispatch)]
    assert len(dispatched) == len(set(dispatched)) == 1003


def _chain(length: int) -> Trial:
    return Trial(task("t0"), *(task(f"t{n}", f"t{n - 1}") for n in range(1, length)))


def test_b88_a_chain_of_five_thousand_ends_with_two_tasks_touched_a_step():
    trial = _chain(5000)
    for n in range(4999):
        assert trial.succeed(f"t{n}")
        assert trial.changed == {f"t{n}", f"t{n + 1}"}
    assert trial.succeed("t4999")
    assert trial.status is RunStatus.COMPLETED
    trial.restart()


def test_b88_a_failure_at_the_head_of_a_chain_of_five_thousand_skips_it_whole_and_a_replay_brings_it_back():
    trial = _chain(5000)
    assert trial.fail("t0", HOPELESS)
    assert set(trial.states.values()) == {"failed", "skipped"}
    assert trial.status is RunStatus.FAILED
    assert trial.replay("t0")
    assert trial.states == {f"t{n}": "queued" if n == 0 else "pending" for n in range(5000)}
    assert trial.run.tasks.keys() == {0}
    trial.restart()


def test_b88_a_chain_of_five_thousand_is_cancelled_and_reloaded():
    trial = _chain(5000)
    assert trial.cancel()
    assert set(trial.states.values()) == {"cancelled"}
    trial.restart()


def test_b29_the_last_two_results_end_the_run_in_either_order():
    for order in permutations(("a", "b")):
        trial = Trial(task("a"), task("b"))
        assert trial.succeed(order[0], b"null")
        assert trial.status is RunStatus.RUNNING
        assert trial.succeed(order[1], b"[]")
        assert trial.status is RunStatus.COMPLETED


def test_a_run_in_memory_that_was_loaded_counts_what_its_joins_miss():
    trial = Trial(task("a"), task("b"), task("c"), task("join", "a", "b", "c"))
    assert trial.succeed("a")
    assert trial.succeed("c")
    loaded = RunState(KEY, trial.plan, trial.run.input, tasks=dict(trial.run.tasks))
    assert loaded.missing == {3: 1}
