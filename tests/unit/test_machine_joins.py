"""Joins and skips: a dependant is decided at once, and a run ends when all its tasks have."""

from collections.abc import Callable
from itertools import permutations, product
from random import Random

import pytest

from headrace.machine import Dispatch, Finish, RunState, RunStatus
from headrace.machine.advance import CONDITION_FALSE, UPSTREAM_FAILED, UPSTREAM_SKIPPED
from headrace.machine.run_state import UNTOUCHED
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
COMBINATIONS = [ends for width in (1, 2, 3) for ends in product(ENDS, repeat=width)]


@pytest.mark.parametrize("ends", COMBINATIONS, ids=" ".join)
def test_b48_a_join_is_decided_by_every_combination_of_ends_in_every_order(ends: tuple[str, ...]):
    names = ["p", "q", "r"][: len(ends)]
    specs = [spec for end, name in zip(ends, names, strict=True) for spec in _parent(end, name)]
    for order in permutations(range(len(ends))):
        trial = Trial(*specs, task("join", *names), task("behind", "join"))
        decided_by = next((index for index in order if ends[index] != "completed"), None)
        for position, index in enumerate(order):
            assert trial.states["join"] == ("pending" if decided_by not in order[:position] else "skipped")
            assert ENDS[ends[index]](trial, names[index])
            trial.restart()
        if decided_by is None:
            assert trial.states["join"] == "queued"
            assert trial.succeed("join")
            assert trial.succeed("behind")
            assert trial.status is RunStatus.COMPLETED
        else:
            reason = UPSTREAM_SKIPPED if ends[decided_by] == "skipped" else UPSTREAM_FAILED
            assert (trial.states["join"], trial.state("join").error) == ("skipped", reason)
            assert (trial.states["behind"], trial.state("behind").error) == ("skipped", reason)
            is_failed = bool({"failed", "rejected", "unreached"} & set(ends))
            assert trial.status is (RunStatus.FAILED if is_failed else RunStatus.COMPLETED)
        assert [action for action in trial.actions if isinstance(action, Finish)] == [Finish(trial.status)]
        assert trial.actions[-1] == Finish(trial.status)


@pytest.mark.parametrize("ends", [ends for ends in COMBINATIONS if len(ends) < 3], ids=" ".join)
def test_b48_a_join_behind_a_cancelled_need_is_cancelled_too(ends: tuple[str, ...]):
    names = ["p", "q"][: len(ends)]
    specs = [spec for end, name in zip(ends, names, strict=True) for spec in _parent(end, name)]
    trial = Trial(*specs, task("last"), task("join", *names, "last"))
    for end, name in zip(ends, names, strict=True):
        assert ENDS[end](trial, name)
    assert trial.cancel()
    assert trial.states["last"] == "cancelled"
    assert trial.states["join"] == ("cancelled" if set(ends) == {"completed"} else "skipped")
    assert trial.status in FINISHED


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
