"""Maps: a body for each item of a list, counted and never walked; what a failed item leads to, and its replay."""

import itertools
from itertools import permutations
from typing import Any

import msgspec
import pytest

from headrace.machine import Abort, BuryTask, Cancelled, Dispatch, EndAttempt, KeepOutput, Park, RunStatus
from headrace.machine.advance import advance
from headrace.machine.place import ITEMS_MAX, items_of
from headrace.machine.plan import Failures
from headrace.machine.run_state import ItemCounts, RunState
from headrace.messages import PAYLOAD_BYTES_MAX, Succeeded
from tests.unit.machine_model import (
    BROKEN,
    DOUBTFUL,
    HOPELESS,
    INPUT,
    NONCE,
    Spec,
    Trial,
    content,
    reload,
    task,
)
from tests.unit.test_machine_pairs import OF_A_TASK

LIST = "${{ tasks.before.output }}"


def mapped(
    items: object = (1, 2, 3),
    *more: Spec,
    failures: Failures = "fail_fast",
    max_parallel: int = 1_000,
    **options: object,
) -> Trial:
    """`before` gives the list, `map` works through it, `after` reads what it gave."""
    pages = task("map", "before", over=LIST, failures=failures, max_parallel=max_parallel, **options)  # type: ignore[arg-type]
    trial = Trial(task("before"), pages, task("after", "map", template="${{ tasks.map.output }}"), *more)
    assert trial.succeed("before", msgspec.json.encode(items))
    return trial


def handed_out(trial: Trial) -> list[tuple[str, int, bytes]]:
    return [
        (trial.plan.name_of(action.task), action.attempt, action.input)
        for action in trial.told
        if isinstance(action, Dispatch)
    ]


def test_each_item_is_handed_out_with_itself_as_its_input():
    trial = mapped(["a", {"b": 1}, None])
    assert trial.states == {"before": "completed", "map": "waiting", "after": "pending"}
    assert handed_out(trial) == [("map.0", 1, b'"a"'), ("map.1", 1, b'{"b":1}'), ("map.2", 1, b"null")]
    assert (trial.token("map"), trial.state("map").items, trial.status) == (1, 3, RunStatus.RUNNING)
    assert [action.token for action in trial.told if isinstance(action, Dispatch)] == [1, 1, 1]


def test_the_input_of_an_item_is_rendered_from_the_item_and_its_index():
    template = {
        "page": "${{ item.page }}",
        "of": "${{ index + 1 }}/${{ size(tasks.before.output) }}",
        "run": "${{ input.n }}",
    }
    trial = mapped([{"page": 7}, {"page": 8}], template=template)
    assert [given for *_, given in handed_out(trial)] == [
        b'{"page":7,"of":"1/2","run":1}',
        b'{"page":8,"of":"2/2","run":1}',
    ]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_output_is_the_list_of_outputs_in_the_order_of_the_list(order: tuple[int, ...]):
    trial = mapped()
    for item in order:
        trial.restart()
        assert trial.states["map"] == "waiting"
        assert trial.succeed(f"map.{item}", b"%d0" % item)
    assert trial.states == {"before": "completed", "map": "completed", "after": "queued"}
    assert handed_out(trial) == [("after", 1, b"[00,10,20]")]
    assert KeepOutput(1, b"[00,10,20]") in trial.told
    assert not trial.succeed("map.0"), "an item ends once"
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED


@pytest.mark.parametrize(("failures", "output"), [("fail_fast", b"[]"), ("collect", b'{"results":[],"failures":[]}')])
def test_a_map_over_nothing_is_done_at_once(failures: Failures, output: bytes):
    trial = mapped([], failures=failures)
    assert trial.states == {"before": "completed", "map": "completed", "after": "queued"}
    assert KeepOutput(1, output) in trial.told


def test_no_more_than_max_parallel_are_under_way():
    trial = mapped(list(range(7)), max_parallel=3)
    for item in range(7):
        open_items = trial.items("map").count("queued")
        assert open_items == min(3, 7 - item)
        assert trial.succeed(f"map.{item}")
        trial.restart()
    assert trial.states["map"] == "completed"


def test_an_item_is_retried_by_itself():
    trial = mapped()
    assert trial.fail("map.1", BROKEN)
    assert trial.items("map") == ["queued", "pending", "queued"]
    trial.restart()
    assert trial.wait_for("map.1")
    assert handed_out(trial) == [("map.1", 2, b"2")]
    for item in range(3):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert trial.states["map"] == "completed"


def test_a_run_waits_when_all_that_is_open_waits():
    trial = mapped([1, 2], effect="manual")
    for item in range(2):
        assert trial.claim(f"map.{item}")
        assert trial.status is RunStatus.RUNNING
    for item in range(2):
        assert trial.fail(f"map.{item}", DOUBTFUL)
    assert trial.status is RunStatus.WAITING
    trial.restart()
    assert trial.resolve("map.0", "happened", b"5")
    assert trial.resolve("map.1", "did_not_happen")
    assert trial.status is RunStatus.RUNNING
    assert trial.claim("map.1")
    assert trial.succeed("map.1", b"6")
    assert KeepOutput(1, b"[5,6]") in trial.told


def test_fail_fast_cancels_the_others_and_begins_no_more():
    trial = mapped(list(range(5)), max_parallel=3)
    assert trial.succeed("map.0")
    assert trial.start("map.2")
    assert trial.fail("map.1", HOPELESS)
    assert trial.states == {"before": "completed", "map": "failed", "after": "skipped"}
    assert trial.items("map") == ["completed", "failed", "cancelled", "cancelled"]
    error = trial.state("map").error
    assert error is not None
    assert (error.code, error.message) == ("ITEM_FAILED", "map.1 failed: ERROR: it can never work")
    (letter,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert (trial.plan.name_of(letter.task), letter.token) == ("map.1", 1), "what can be repaired is the item"
    assert [action.task for action in trial.told if isinstance(action, Abort)] == [
        trial.place("map.2"),
        trial.place("map.3"),
    ]
    assert [a.task for a in trial.told if isinstance(a, EndAttempt)] == [trial.place("map.1"), trial.place("map.2")]
    assert trial.status is RunStatus.FAILED
    assert not trial.succeed("map.2"), "it was cancelled"


def test_finish_lets_the_others_go_on_and_then_fails():
    trial = mapped(list(range(4)), failures="finish", max_parallel=2)
    assert trial.fail("map.0", HOPELESS)
    assert trial.states["map"] == "waiting"
    for item in (1, 2, 3):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert trial.states == {"before": "completed", "map": "failed", "after": "skipped"}
    error = trial.state("map").error
    assert error is not None
    assert error.message == "1 of 4 items failed"


def test_collect_completes_and_tells_results_from_failures():
    trial = mapped(list(range(3)), failures="collect")
    assert trial.succeed("map.2", b'"c"')
    assert trial.fail("map.1", HOPELESS)
    trial.restart()
    assert trial.succeed("map.0", b'"a"')
    failures = b'[{"index":1,"code":"ERROR","message":"it can never work"}]'
    assert KeepOutput(1, b'{"results":["a",null,"c"],"failures":%b}' % failures) in trial.told
    assert trial.states == {"before": "completed", "map": "completed", "after": "queued"}
    assert not trial.replay("map.1"), "what came after has seen the failure"
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED


@pytest.mark.parametrize("failures", ["fail_fast", "finish", "collect"])
def test_a_failed_item_is_replayed_while_the_map_goes_on(failures: Failures):
    trial = mapped([1, 2, 3], failures=failures)
    assert trial.fail("map.1", HOPELESS)
    assert trial.replay("map.1", b'"another"')
    assert ("map.1", 2, b'"another"') in handed_out(trial)
    trial.restart()
    for item in range(3):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert trial.states == {"before": "completed", "map": "completed", "after": "queued"}
    assert KeepOutput(1, b'{"results":[0,1,2],"failures":[]}' if failures == "collect" else b"[0,1,2]") in trial.told


def test_a_replayed_item_takes_its_map_back_and_completed_items_stay():
    trial = mapped(list(range(5)), max_parallel=3)
    assert trial.succeed("map.0", b"0")
    assert trial.fail("map.1", HOPELESS)
    trial.restart()
    assert not trial.replay("map"), "of a map whose items failed, they are replayed"
    assert trial.replay("map.1")
    assert [name for name, *_ in handed_out(trial)] == ["map.1", "map.2", "map.3"]
    assert [trial.token(f"map.{item}") for item in range(4)] == [1, 2, 2, 2]
    assert trial.states == {"before": "completed", "map": "waiting", "after": "pending"}
    trial.restart()
    for item in (3, 2, 1, 4):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert KeepOutput(1, b"[0,1,2,3,4]") in trial.told
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED


def test_every_failed_item_has_to_be_replayed():
    trial = mapped([1, 2, 3], failures="finish")
    for item in (0, 1):
        assert trial.fail(f"map.{item}", HOPELESS)
    assert trial.succeed("map.2")
    assert trial.states["map"] == "failed"
    assert trial.replay("map.0")
    assert trial.succeed("map.0")
    assert trial.states == {"before": "completed", "map": "failed", "after": "skipped"}
    assert trial.replay("map.1")
    assert trial.succeed("map.1")
    assert trial.states == {"before": "completed", "map": "completed", "after": "queued"}


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_a_cancelled_item_with_a_doubtful_effect_does_not_come_back_blindly(effect: str):
    trial = mapped([1, 2, 3], effect=effect)
    assert trial.claim("map.1")
    assert trial.fail("map.0", HOPELESS)
    assert trial.items("map") == ["failed", "cancelled", "cancelled"]
    trial.restart()
    assert trial.replay("map.0")
    (doubtful,) = [a for a in trial.told if isinstance(a, Park) or (isinstance(a, Dispatch) and a.lookup)]
    assert doubtful.task == trial.place("map.1")
    assert trial.items("map")[2] == "queued", "its body had not begun"


def test_a_replay_of_an_item_takes_back_no_skip_that_another_failure_caused():
    trial = mapped([1, 2], task("other"), task("both", "map", "other"), failures="finish")
    assert trial.fail("map.0", HOPELESS)
    assert trial.fail("other", HOPELESS)
    assert trial.states["both"] == "skipped"
    assert trial.replay("map.0")
    assert trial.states["both"] == "skipped"


@pytest.mark.parametrize(
    ("given", "why"),
    [(b"7", "a map needs a list, and not 7"), (b"null", "a map needs a list"), (b'{"a":1}', "a map needs a list"),
     (b"[%b]" % b",".join([b"1"] * (ITEMS_MAX + 1)), "a map may have 10,000 items, and not 10,001")],
)  # fmt: skip
def test_a_list_that_cannot_be_read_fails_the_map_and_a_replay_may_give_another(given: bytes, why: str):
    trial = Trial(task("before"), task("map", "before", over=LIST), task("after", "map"))
    assert trial.succeed("before", given)
    assert trial.states == {"before": "completed", "map": "failed", "after": "skipped"}
    (letter,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert (letter.task, letter.token, letter.error.code) == (1, 1, "BAD_INPUT")
    assert why in letter.error.message
    assert trial.replay("map", b"[4]")
    assert handed_out(trial) == [("map.0", 1, b"4")]
    trial.restart()
    assert trial.succeed("map.0")
    assert trial.states["map"] == "completed"


def test_an_item_whose_input_cannot_be_rendered_fails_alone():
    trial = mapped([{"a": 1}, {}, {"a": 3}], failures="collect", template="${{ item.a }}")
    assert trial.items("map") == ["queued", "failed", "queued"]
    trial = mapped([{"a": 1}, {}, {"a": 3}], template="${{ item.a }}")
    assert trial.items("map") == ["cancelled", "failed"]
    assert trial.states["map"] == "failed"


def test_all_items_may_fail_before_any_is_handed_out():
    trial = mapped([{}] * 5_000, failures="collect", template="${{ item.a }}", max_parallel=10)
    assert trial.states["map"] == "completed"
    assert trial.items("map") == ["failed"] * 5_000


def test_a_cancel_ends_the_items_and_begins_no_more():
    trial = mapped(list(range(5)), max_parallel=3)
    assert trial.succeed("map.0")
    assert trial.start("map.1")
    assert trial.cancel()
    assert trial.items("map") == ["completed", "cancelled", "cancelled", "cancelled"]
    assert trial.states["map"] == "cancelled"
    assert trial.status is RunStatus.CANCELLED
    assert {a.task for a in trial.told if isinstance(a, Abort)} == {trial.place(f"map.{item}") for item in (1, 2, 3)}
    trial.restart()
    assert not trial.succeed("map.1")


def test_a_paused_run_begins_no_items_and_goes_on_with_them():
    trial = mapped(list(range(4)), task("beside"), max_parallel=2)
    assert trial.pause()
    assert trial.succeed("map.0", b"0")
    assert trial.items("map") == ["completed", "queued", "pending"], "the next one is withheld"
    trial.restart()
    assert trial.fail("map.1", HOPELESS)
    assert trial.states["map"] == "failed"
    assert trial.replay("map.1")
    trial.restart()
    assert trial.items("map") == ["completed", "pending", "pending"]
    assert trial.resume()
    for item in (1, 2, 3):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert KeepOutput(1, b"[0,1,2,3]") in trial.told


def test_an_approved_map_of_a_paused_run_begins_when_it_goes_on():
    trial = mapped([1, 2], asks=True)
    assert trial.pause()
    assert trial.decide("map", "approved", "ada")
    assert (trial.states["map"], trial.items("map")) == ("pending", [])
    trial.restart()
    assert trial.resume()
    assert trial.items("map") == ["queued", "queued"]


def test_an_approval_is_asked_once_before_the_list_is_read():
    trial = mapped([1, 2], asks=True)
    assert (trial.states["map"], trial.items("map")) == ("waiting", [])
    assert trial.decide("map", "approved", "ada")
    assert trial.items("map") == ["queued", "queued"]
    assert not trial.decide("map", "approved", "ada"), "it asks nobody now"


def test_a_false_condition_skips_the_map():
    trial = mapped([1], condition="false")
    assert trial.states == {"before": "completed", "map": "skipped", "after": "skipped"}


def test_more_output_than_a_list_may_have_fails_a_map_that_somebody_reads():
    big = b'"%b"' % (b"x" * (PAYLOAD_BYTES_MAX // 2))
    trial = mapped([1, 2, 3], failures="collect")
    assert trial.succeed("map.0", big)
    assert trial.succeed("map.1", big)
    error = trial.state("map").error
    assert error is not None
    assert error.code == "RESULT_TOO_LARGE"
    assert trial.items("map") == ["completed", "completed", "cancelled"]
    assert trial.states["after"] == "skipped"


def test_a_map_that_nobody_reads_completes_without_a_list_that_would_be_too_large():
    big = b'"%b"' % (b"x" * (PAYLOAD_BYTES_MAX // 2))
    trial = Trial(task("map", over=[1, 2, 3]))
    for item in range(3):
        assert trial.succeed(f"map.{item}", big)
    assert trial.status is RunStatus.COMPLETED
    assert not [action for action in trial.told if isinstance(action, KeepOutput)]
    assert sum(len(state.output or b"") for state in trial.run.tasks.values()) < PAYLOAD_BYTES_MAX, "it holds no more"


def test_events_of_places_where_nothing_is_change_nothing():
    trial = mapped([1, 2])
    for place in (trial.place("map.7"), *items_of(0, 1), *items_of(77, 1), 5_000, -1, 2**31):
        for token in (0, 1):
            assert not trial.tell(Succeeded(place, token, NONCE))


def test_an_item_costs_the_same_in_a_map_of_any_length():
    """Nothing is walked for one result: what an event reads and writes does not grow with the list."""

    class Counted(dict):  # type: ignore[type-arg]
        looks = 0

        def get(self, *args: object) -> object:
            Counted.looks += 1
            return super().get(*args)

        def __getitem__(self, key: object) -> object:
            Counted.looks += 1
            return super().__getitem__(key)

        def __iter__(self) -> object:  # type: ignore[override]
            raise AssertionError("all tasks were walked")

    looks = {}
    for length in (100, ITEMS_MAX):
        trial = mapped(list(range(length)), max_parallel=10)
        trial.run.tasks = Counted(trial.run.tasks)
        Counted.looks = 0
        transition = advance(trial.plan, trial.run, Succeeded(trial.place("map.3"), 1, NONCE), trial.at)
        assert transition is not None
        assert len(transition.tasks) == 2  # the one that ended, and the next
        looks[length] = Counted.looks
    assert looks[100] == looks[ITEMS_MAX]


@pytest.mark.parametrize("failures", ["fail_fast", "finish", "collect"])
def test_whatever_becomes_of_its_items_a_map_ends_by_its_policy(failures: Failures):
    """Every combination of ends, in every order: the map's end depends on neither."""
    for ends in [("ok", "ok"), ("ok", "bad"), ("bad", "bad")]:
        for order in permutations(range(2)):
            trial = mapped([1, 2], failures=failures)
            for item in order:
                if trial.state(f"map.{item}").status.value == "queued":
                    assert trial.succeed(f"map.{item}") if ends[item] == "ok" else trial.fail(f"map.{item}", HOPELESS)
            expected = "completed" if failures == "collect" or "bad" not in ends else "failed"
            assert trial.states["map"] == expected
            counts = trial.run.maps[1]
            assert counts.open == 0
            again = reload(trial.run)
            assert again.status is trial.run.status
            if expected == "failed":
                assert again.maps == trial.run.maps


@pytest.mark.parametrize("options", [{}, {"effect": "manual"}, {"effect": "reconcile"}, {"timeout": 10.0}], ids=str)
def test_an_item_answers_every_event_in_every_state_as_a_task_does(options: dict[str, Any]):
    """Stories of three events, told of a task and of an item: they come to stand alike."""
    stories = 0
    first = [None, "started", "claimed", "lost_begun", "failed", "failed_for_good"]
    for story in itertools.product(first, OF_A_TASK, OF_A_TASK):
        alone = Trial(task("subject", **options), task("beside"))
        of_map = Trial(task("subject", over=[{"n": 1}, 2], failures="collect", **options), task("beside"))
        for name in filter(None, story):
            stands = []
            for trial, place in ((alone, 0), (of_map, of_map.place("subject.0"))):
                state = trial.run.task(place)
                trial.at = max(trial.at, state.due_at or 0) - (1 if name.endswith("early") else 0)
                transition = advance(trial.plan, trial.run, OF_A_TASK[name](place, state.token), trial.at)
                if transition is not None:
                    trial.run.apply(transition)
                after = trial.run.task(place)
                stands.append(
                    (transition is None, after.status, after.attempt, after.token, after.lookups, after.due_at)
                )
            assert stands[0] == stands[1], (story, name)
        stories += 1
    assert stories == len(first) * len(OF_A_TASK) ** 2


@pytest.mark.parametrize("event", OF_A_TASK)
def test_a_map_itself_is_moved_by_its_items_and_by_a_cancel_only(event: str):
    working, failed = mapped([1, 2]), mapped([1, 2])
    assert failed.fail("map.0", HOPELESS)
    for trial in (working, failed):
        for distance in (-1, 0, 1):
            assert not trial.tell(OF_A_TASK[event](1, trial.token("map") + distance))


def test_counters_are_those_of_the_states():
    counts = ItemCounts([])
    run = RunState(b"", Trial(task("a")).plan, INPUT)
    assert (counts.open, run.maps) == (0, {})
    trial = mapped(list(range(6)), failures="finish", max_parallel=4)
    trial.succeed("map.0")
    trial.fail("map.1", HOPELESS)
    trial.fail("map.2")
    counts = trial.run.maps[1]
    assert (counts.begun, counts.completed, counts.failed, counts.open) == (6, 1, 1, 4)
    transition = advance(trial.plan, trial.run, Cancelled(), trial.at)
    assert transition is not None
    assert transition.maps is not None
    assert transition.maps[1].cancelled == 4
    assert content(transition) is not None
