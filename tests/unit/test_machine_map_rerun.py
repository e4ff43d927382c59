"""Maps that run again: over a new list, or only some of their items; and items that are given their output."""

import pytest

from headrace.machine import Abort, CloseLetter, Dispatch, KeepOutput, Park, Reran, RunStatus, Supplied, TaskStatus
from headrace.machine.place import place_of
from headrace.machine.plan import Effect, Failures, Join
from headrace.machine.rerun import Foreseen, foresee
from tests.unit.machine_model import DOUBTFUL, HOPELESS, SECOND, Trial, plan_of, task
from tests.unit.test_machine_maps import handed_out, mapped

MAP = 1


def rerun(trial: Trial, *names: str, input: bytes | None = None) -> bool:
    return trial.tell(Reran(trial.run.row_version, tuple(trial.place(name) for name in names), input, "again", "ada"))


def supply(trial: Trial, name: str, output: bytes = b"7") -> bool:
    return trial.tell(Supplied(trial.place(name), trial.token(name), output, "I know", "ada"))


def letters_closed(trial: Trial) -> list[tuple[str, str]]:
    return [(trial.plan.name_of(a.task), a.status) for a in trial.told if isinstance(a, CloseLetter)]


def completed(items: int = 3, **options: object) -> Trial:
    """The map and what is behind it have completed."""
    trial = mapped(list(range(items)), **options)  # type: ignore[arg-type]
    for item in range(items):
        if options.get("effect", "idempotent") != "idempotent":
            assert trial.claim(f"map.{item}")
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED
    return trial


def failed(items: int = 5, *bad: int, failures: Failures = "finish", **options: object) -> Trial:
    """All items have ended, and these have failed."""
    trial = mapped(list(range(items)), failures=failures, **options)  # type: ignore[arg-type]
    for item in range(items):
        if options.get("effect", "idempotent") != "idempotent":
            assert trial.claim(f"map.{item}")
        assert trial.fail(f"map.{item}", HOPELESS) if item in bad else trial.succeed(f"map.{item}", b"%d" % item)
    return trial


# == on another version ================================================================================================
@pytest.mark.parametrize("name", ["", "map.1"])
def test_a_map_that_another_version_puts_behind_other_tasks_starts_over_by_their_ends(name: str):
    skipped = task("skipped", condition="false")
    trial = Trial(task("before"), task("map", "before", over=[1, 2], failures="finish"), skipped)
    assert trial.succeed("before")
    assert trial.succeed("map.0")
    assert trial.fail("map.1", HOPELESS)
    new = plan_of(
        task("before"), task("map", "before", "skipped", over=[1, 2], failures="finish"), skipped, version_id=1
    )
    assert trial.tell(Reran(trial.run.row_version, (trial.place(name),) if name else (), plan=new))
    assert trial.states == {"before": "completed", "map": "skipped", "skipped": "skipped"}


# == what failed =======================================================================================================
def test_of_a_map_that_failed_only_the_items_that_failed_run_again():
    trial = failed(5, 1, 3)
    assert trial.status is RunStatus.FAILED
    trial.restart()
    assert rerun(trial)
    assert trial.states == {"before": "completed", "map": "waiting", "after": "pending"}
    assert handed_out(trial) == [("map.1", 2, b"1"), ("map.3", 2, b"3")]
    assert letters_closed(trial) == [("map.1", "replayed"), ("map.3", "replayed")]
    assert [action.token for action in trial.told if isinstance(action, Dispatch)] == [2, 2]
    trial.restart()
    assert trial.succeed("map.3", b"30")
    assert trial.states["map"] == "waiting"
    assert trial.succeed("map.1", b"10")
    assert KeepOutput(MAP, b"[0,10,2,30,4]") in trial.told
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED


@pytest.mark.parametrize("join", ["any", "always", 2, "on_failure"])
def test_a_map_whose_items_fail_again_at_once_is_counted_once_by_what_is_behind_it(join: Join):
    unreadable = task("map", over=[None, None], template="${{ item.n }}", failures="finish")
    trial = Trial(unreadable, task("other"), task("after", "map", "other", join=join))
    assert trial.fail("other", HOPELESS)
    if join in ("always", "on_failure"):
        assert trial.fail("after", HOPELESS)
    assert rerun(trial)
    assert trial.states == {"map": "failed", "other": "queued", "after": "pending"}
    trial.restart()
    assert trial.succeed("other")
    assert trial.states["after"] == ("skipped" if join == 2 else "queued")


def test_items_that_run_again_keep_to_max_parallel_also_through_restarts():
    trial = failed(8, *range(8), max_parallel=3)
    trial.restart()
    assert rerun(trial)
    for item in range(8):
        assert trial.items("map").count("queued") == min(3, 8 - item)
        assert trial.status is RunStatus.RUNNING
        trial.restart()
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert trial.states["map"] == "completed"
    assert KeepOutput(MAP, b"[0,1,2,3,4,5,6,7]") in trial.told


def test_an_item_that_is_replayed_waits_for_room_like_any_other():
    trial = mapped(list(range(6)), failures="finish", max_parallel=2)
    assert trial.fail("map.0", HOPELESS)
    assert trial.fail("map.1", HOPELESS)
    for name in ("map.1", "map.0"):
        assert trial.replay(name, b'"mended"' if name == "map.1" else None)
        assert (trial.state(name).withheld, handed_out(trial)) == ("room", [])
        assert not trial.replay(name)
        trial.restart()
    assert trial.succeed("map.2")
    assert handed_out(trial) == [("map.0", 2, b"0")]
    trial.restart()
    assert trial.succeed("map.3")
    assert handed_out(trial) == [("map.1", 2, b'"mended"')]
    for item in (0, 1, 4, 5):
        assert trial.items("map").count("queued") <= 2
        assert trial.succeed(f"map.{item}")
    assert trial.states["map"] == "completed"


def test_a_replay_behind_a_map_that_failed_brings_no_more_back_at_once_than_ever():
    trial = mapped(list(range(5)), max_parallel=2)
    assert trial.succeed("map.0")
    assert trial.fail("map.1", HOPELESS)  # map.2 is cancelled, and the others never began
    assert rerun(trial)
    assert trial.succeed("map.2")
    assert trial.fail("map.3", HOPELESS)  # map.1 is cancelled before its body began
    trial.restart()
    assert trial.replay("map.3")
    assert handed_out(trial) == [("map.1", 2, b"1"), ("map.3", 2, b"3")]
    for item in (1, 3, 4):
        trial.restart()
        assert trial.succeed(f"map.{item}")
    assert trial.states["map"] == "completed"


def test_many_replays_at_once_keep_to_max_parallel():
    trial = failed(8, *range(8), max_parallel=3)
    trial.restart()
    for item in reversed(range(8)):
        assert trial.replay(f"map.{item}")
        assert trial.items("map").count("queued") <= 3
    for item in (7, 6, 5, 0, 1, 2, 3, 4):
        trial.restart()
        assert trial.succeed(f"map.{item}")
    assert trial.states["map"] == "completed"


def test_a_doubt_outlives_the_wait_for_room():
    """The map fails while an item waits to be looked up: its effect is still in doubt when it comes back."""
    trial = mapped(list(range(3)), max_parallel=1, effect="reconcile")
    for item in range(3):
        assert trial.claim(f"map.{item}")
        assert trial.succeed(f"map.{item}")
    assert trial.succeed("after")
    assert rerun(trial, "map.0", "map.1", "map.2")
    assert trial.look_up("map.0", happened=False)
    assert trial.claim("map.0")
    assert trial.fail("map.0", HOPELESS)
    trial.restart()
    assert trial.replay("map.0")
    assert trial.claim("map.0")
    assert trial.succeed("map.0")
    (asked,) = [action for action in trial.told if isinstance(action, Dispatch)]
    assert (trial.plan.name_of(asked.task), asked.lookup) == ("map.1", True)


def test_what_a_failure_had_cancelled_or_kept_from_beginning_runs_too():
    trial = mapped(list(range(6)), max_parallel=3)
    assert trial.succeed("map.0", b"0")
    assert trial.fail("map.1", HOPELESS)
    assert trial.items("map") == ["completed", "failed", "cancelled", "cancelled"]
    trial.restart()
    assert rerun(trial)
    for item in (1, 2, 3, 4, 5):
        trial.restart()
        assert trial.items("map").count("queued") <= 3
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert KeepOutput(MAP, b"[0,1,2,3,4,5]") in trial.told


def test_a_map_of_a_run_that_was_cancelled_goes_on_where_it_was():
    trial = mapped(list(range(4)), max_parallel=2)
    assert trial.succeed("map.0", b"0")
    assert trial.cancel()
    trial.restart()
    assert rerun(trial)
    for item in (1, 2, 3):
        assert trial.succeed(f"map.{item}", b"%d" % item)
        trial.restart()
    assert KeepOutput(MAP, b"[0,1,2,3]") in trial.told
    assert trial.states["after"] == "queued"


def test_an_item_fails_again_and_the_map_with_it():
    trial = failed(3, 1)
    assert rerun(trial)
    assert trial.fail("map.1", HOPELESS)
    assert trial.status is RunStatus.FAILED
    assert rerun(trial)
    assert handed_out(trial) == [("map.1", 3, b"1")]
    assert trial.succeed("map.1")
    assert trial.states["map"] == "completed"


def test_a_pause_withholds_no_more_than_was_under_way_and_all_goes_on():
    trial = failed(4, 0, 1, 2, 3, max_parallel=2)
    assert rerun(trial)
    assert trial.pause()
    assert trial.succeed("map.0")
    assert [trial.state(f"map.{item}").withheld for item in range(4)] == ["", "", "body", "room"]
    trial.restart()
    assert trial.resume()
    assert trial.items("map") == ["completed", "queued", "queued", "pending"]
    for item in (1, 2, 3):
        assert trial.succeed(f"map.{item}")
    assert trial.states["map"] == "completed"


def test_a_cancel_ends_what_waits_for_room():
    trial = failed(4, 0, 1, 2, 3, max_parallel=1)
    assert rerun(trial)
    assert trial.cancel()
    assert trial.items("map") == ["cancelled"] * 4
    assert [trial.plan.name_of(a.task) for a in trial.told if isinstance(a, Abort)] == ["map.0"]
    assert trial.status is RunStatus.CANCELLED
    trial.restart()
    assert rerun(trial)
    for item in range(4):
        assert trial.succeed(f"map.{item}")
    assert trial.states["map"] == "completed"


# == chosen items ======================================================================================================
@pytest.mark.parametrize("failures", ["finish", "collect", "fail_fast"])
def test_chosen_items_run_again_and_all_behind_the_map(failures: Failures):
    trial = completed(3, failures=failures)
    trial.restart()
    assert rerun(trial, "map.2", "map.0")
    assert trial.states == {"before": "completed", "map": "waiting", "after": "pending"}
    assert handed_out(trial) == [("map.0", 2, b"0"), ("map.2", 2, b"2")]
    trial.restart()
    assert trial.succeed("map.0", b"00")
    assert trial.succeed("map.2", b"22")
    output = b"[00,1,22]"
    assert KeepOutput(MAP, output if failures != "collect" else b'{"results":%b,"failures":[]}' % output) in trial.told
    assert trial.succeed("after")
    assert trial.state("after").attempt == 2


def test_one_item_is_given_another_input():
    trial = completed()
    assert rerun(trial, "map.1", input=b'"repaired"')
    assert handed_out(trial) == [("map.1", 2, b'"repaired"')]


def test_an_item_that_never_began_or_of_a_map_that_did_not_is_not_rerun():
    trial = mapped(list(range(5)), max_parallel=1)
    assert trial.fail("map.0", HOPELESS)
    trial.restart()
    assert not rerun(trial, "map.3")
    assert not trial.tell(Reran(trial.run.row_version, (place_of(2, 0),)))
    assert not trial.tell(Reran(trial.run.row_version, (place_of(77, 0),)))
    assert rerun(trial, "map.0")


# == over a new list ===================================================================================================
@pytest.mark.parametrize("names", [("before",), ("before", "map.1"), ("before", "map")])
def test_a_map_behind_what_runs_again_starts_over_with_its_new_list(names: tuple[str, ...]):
    trial = completed(3)
    trial.restart()
    assert rerun(trial, *names)
    assert trial.states == {"before": "queued", "map": "pending", "after": "pending"}
    trial.restart()
    assert trial.succeed("before", b'["a","b","c","d"]')
    assert handed_out(trial) == [("map.0", 2, b'"a"'), ("map.1", 2, b'"b"'), ("map.2", 2, b'"c"'), ("map.3", 1, b'"d"')]
    assert [action.token for action in trial.told if isinstance(action, Dispatch)] == [2, 2, 2, 1]
    assert trial.token("map") == 2
    trial.restart()
    for item in range(4):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert KeepOutput(MAP, b"[0,1,2,3]") in trial.told


def test_a_shorter_list_leaves_items_that_have_not_begun():
    trial = completed(3, max_parallel=1)
    trial.restart()
    assert rerun(trial, "before")
    assert trial.succeed("before", b'["a"]')
    trial.restart()
    assert trial.succeed("map.0", b"1")
    assert KeepOutput(MAP, b"[1]") in trial.told
    assert [trial.run.tasks[place_of(MAP, item)].status for item in (1, 2)] == [TaskStatus.PENDING] * 2
    assert trial.succeed("after")
    trial.restart()
    assert rerun(trial, "before")
    assert trial.succeed("before", b'["a","b"]')
    assert trial.succeed("map.0")
    assert trial.succeed("map.1")
    assert trial.status is RunStatus.RUNNING
    assert (trial.state("map.0").attempt, trial.state("map.1").attempt) == (3, 2)


def test_a_map_that_is_named_works_its_list_out_anew_and_stale_answers_count_no_more():
    trial = failed(3, 1)
    late = trial.token("map.0")
    trial.restart()
    assert rerun(trial, "map")
    assert handed_out(trial) == [("map.0", 2, b"0"), ("map.1", 2, b"1"), ("map.2", 2, b"2")]
    assert letters_closed(trial) == [("map.1", "replayed")]
    assert not trial.tell(Supplied(trial.place("map.0"), late, b"1", "", ""))
    for item in range(3):
        assert trial.succeed(f"map.{item}", b"%d" % item)
    assert KeepOutput(MAP, b"[0,1,2]") in trial.told


# == effects ===========================================================================================================
@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_item_whose_body_began_before_goes_by_its_policy(effect: str):
    trial = completed(2, effect=effect)
    trial.restart()
    assert rerun(trial, "map.1")
    if effect == "manual":
        assert trial.state("map.1").is_parked
        assert trial.resolve("map.1", "did_not_happen")
        assert handed_out(trial) == [("map.1", 2, b"1")]
    else:
        assert trial.state("map.1").lookups == 1
        assert trial.look_up("map.1", True, "known")
        assert KeepOutput(MAP, b'[0,"known"]') in trial.told


def test_an_item_that_failed_and_had_no_effect_is_simply_tried_again():
    trial = failed(2, 1, effect="manual")
    trial.restart()
    assert rerun(trial)
    assert handed_out(trial) == [("map.1", 2, b"1")]


def test_an_item_that_the_deadline_of_its_map_ended_in_the_middle_goes_by_its_policy():
    trial = Trial(task("map", over=[1], deadline=60 * SECOND, effect="manual"), task("after", "map"))
    assert trial.claim("map.0")
    assert trial.pass_deadline("map")
    assert seen(trial)["map"] == Foreseen(0, "begins", "repeats", "person", 1)
    assert rerun(trial)
    assert letters_closed(trial) == [("map.0", "replayed")]
    assert trial.state("map.0").is_parked


def seen(trial: Trial, *names: str) -> dict[str, Foreseen]:
    event = Reran(trial.run.row_version, tuple(trial.place(name) for name in names))
    return {trial.plan.tasks[each.task].name: each for each in foresee(trial.plan, trial.run, event, 0)}


def test_a_preview_has_one_line_for_a_map_however_many_items_it_has():
    trial = failed(40, *range(10))
    trial.restart()
    assert seen(trial)["map"] == Foreseen(MAP, "begins", "repeats", "effect_key", 10)
    assert seen(trial, "map")["map"] == Foreseen(MAP, "begins", "repeats", "effect_key", 40)
    assert seen(trial, "map.3")["map"].items == 1
    assert seen(trial, "before")["map"] == Foreseen(MAP, "follows", "repeats", "effect_key", 40)
    assert set(seen(trial, "map.3")) == {"map", "after"}
    manual = failed(3, 1, effect="manual")
    assert seen(manual)["map"] == Foreseen(MAP, "begins", "did_not_happen", None, 1)
    assert seen(manual, "map")["map"] == Foreseen(MAP, "begins", "repeats", "person", 3)


# == an item is given its output =======================================================================================
def test_an_item_that_failed_is_given_its_output_and_the_map_completes():
    trial = failed(3, 1)
    trial.restart()
    assert supply(trial, "map.1", b'"by hand"')
    assert letters_closed(trial) == [("map.1", "discarded")]
    assert KeepOutput(MAP, b'[0,"by hand",2]') in trial.told
    assert trial.states == {"before": "completed", "map": "completed", "after": "queued"}


def test_an_open_item_is_given_its_output_and_its_worker_is_told_to_stop():
    trial = mapped([1, 2], failures="finish")
    assert trial.start("map.0")
    assert supply(trial, "map.0")
    assert [trial.plan.name_of(a.task) for a in trial.told if isinstance(a, Abort)] == ["map.0"]
    assert not supply(trial, "map.0")
    assert trial.succeed("map.1", b"2")
    assert KeepOutput(MAP, b"[7,2]") in trial.told


def test_an_item_that_has_ended_otherwise_or_not_begun_is_given_nothing():
    trial = mapped([1, 2, 3], max_parallel=1, failures="collect")
    assert trial.succeed("map.0")
    assert not supply(trial, "map.0")
    assert not trial.tell(Supplied(place_of(MAP, 2), 0, b"7", "", ""))
    assert not trial.tell(Supplied(place_of(77, 2), 0, b"7", "", ""))
    assert not trial.tell(Supplied(-1, 0, b"7", "", ""))
    assert trial.fail("map.1", HOPELESS)
    assert trial.succeed("map.2")
    assert not supply(trial, "map.1"), "what came after has seen the failure"


def asked(trial: Trial) -> list[str]:
    """Of which items a lookup was handed out, or a person asked."""
    actions = [a for a in trial.told if isinstance(a, Park) or (isinstance(a, Dispatch) and a.lookup)]
    return [trial.plan.name_of(action.task) for action in actions]


def say_it_did_not_happen(trial: Trial, name: str) -> bool:
    is_looked_up = trial.state(name).lookups > 0
    return trial.look_up(name, happened=False) if is_looked_up else trial.resolve(name, "did_not_happen")


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_item_that_comes_back_is_tried_once_it_is_known_that_it_had_no_effect(effect: Effect):
    """And does not fail of what had cancelled it."""
    trial = mapped([1, 2], effect=effect)
    assert trial.claim("map.1")
    assert trial.fail("map.0", HOPELESS)
    trial.restart()
    assert trial.replay("map.0")
    assert asked(trial) == ["map.1"]
    assert say_it_did_not_happen(trial, "map.1")
    assert trial.items("map") == ["queued", "queued"]
    assert handed_out(trial) == [("map.1", 2, b"2")]


@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_item_in_doubt_that_had_no_room_yet_is_not_tried_blindly_when_it_comes_back(effect: Effect):
    trial = completed(2, effect=effect, max_parallel=1)
    assert rerun(trial, "map.0", "map.1")
    assert trial.state("map.1").withheld == "room"
    assert say_it_did_not_happen(trial, "map.0")
    assert trial.claim("map.0")
    assert trial.fail("map.0", HOPELESS)
    assert trial.items("map") == ["failed", "cancelled"]
    trial.restart()
    assert trial.replay("map.0")
    assert handed_out(trial) == [("map.0", 3, b"0")]
    assert trial.claim("map.0")
    assert trial.succeed("map.0")
    assert asked(trial) == ["map.1"]
    assert not any(isinstance(action, Dispatch) and not action.lookup for action in trial.told)


@pytest.mark.parametrize("act", ["rerun", "replay"])
@pytest.mark.parametrize("effect", ["manual", "reconcile"])
def test_an_item_that_a_person_let_fail_without_knowing_is_asked_about_again(effect: Effect, act: str):
    trial = mapped([1, 2], effect=effect, failures="finish")
    assert trial.claim("map.0")
    assert trial.fail("map.0", DOUBTFUL)
    if effect == "reconcile":
        assert trial.look_up("map.0", None)
    assert trial.resolve("map.0", "fail")
    assert trial.claim("map.1")
    assert trial.succeed("map.1")
    trial.restart()
    (foreseen, _) = foresee(trial.plan, trial.run, Reran(trial.run.row_version), trial.at)
    assert foreseen.effect == "repeats"
    assert rerun(trial) if act == "rerun" else trial.replay("map.0")
    assert asked(trial) == ["map.0"]
    assert say_it_did_not_happen(trial, "map.0")
    assert trial.succeed("map.0")
    assert trial.states["map"] == "completed"


# == what is to start over, and is ended before it does ================================================================
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("act", ["cancel", "terminate", "deadline"])
def test_a_run_can_be_ended_while_a_map_of_it_is_yet_to_start_over(act: str, is_restarted: bool):
    """Its items are as if none had begun, and have nothing to be ended."""
    trial = Trial(task("before"), task("map", "before", over=[1, 2]), deadline=60 * SECOND)
    assert trial.succeed("before")
    for item in range(2):
        assert trial.succeed(f"map.{item}")
    assert rerun(trial, "before")
    if is_restarted:
        trial.restart()
    assert trial.pass_deadline() if act == "deadline" else getattr(trial, act)()
    assert trial.states == {"before": "cancelled", "map": "cancelled"}
    assert trial.items("map") == ["pending", "pending"]
    trial.restart()
    assert rerun(trial)
    assert trial.succeed("before")
    assert [(name, attempt) for name, attempt, _ in handed_out(trial)] == [("map.0", 2), ("map.1", 2)]
    for item in range(2):
        assert trial.succeed(f"map.{item}")
    assert trial.status is RunStatus.COMPLETED


def test_a_run_is_ended_while_a_map_of_it_has_begun_over_a_shorter_list():
    trial = Trial(task("list"), task("map", "list", over="${{ tasks.list.output }}", max_parallel=1))
    assert trial.succeed("list", b"[1,2,3]")
    for item in range(3):
        assert trial.succeed(f"map.{item}")
    assert rerun(trial, "list")
    assert trial.succeed("list", b"[7,8]")
    assert trial.cancel()
    assert trial.items("map") == ["cancelled", "pending", "pending"]
    trial.restart()
    assert rerun(trial)
    assert handed_out(trial) == [("map.0", 2, b"7")]
