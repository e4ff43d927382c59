"""Waits: an instant comes, once, by the database's clock; what cannot be evaluated fails and can be replayed."""

from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from zoneinfo import ZoneInfo, reset_tzpath

import pytest

from headrace.expressions import compile_value
from headrace.instant import find_zone, format_instant, from_microseconds, parse_instant, to_microseconds
from headrace.machine import BuryTask, ClearTimer, Decided, RunStatus, SetTimer
from headrace.machine.plan import WaitPlan
from tests.unit.machine_model import SECOND, START, Trial, task

DAY = 86_400 * SECOND


def waiting(wait: WaitPlan, input: bytes = b"{}") -> Trial:
    trial = Trial(task("before"), task("wait", "before", run=None, wait=wait), task("after", "wait"), input=input)
    trial.at += 5 * SECOND
    assert trial.succeed("before", b'{"days":2}')
    return trial


def until(text: str) -> WaitPlan:
    return WaitPlan(value=compile_value(f"${{{{ {text} }}}}"))


@pytest.mark.parametrize(
    ("wait", "days"),
    [
        (WaitPlan(length=3 * DAY), 3),
        (WaitPlan(until=START + 5 * SECOND + DAY), 1),
        (until('now + duration("24h")'), 1),
        (until('addDays(now, tasks.before.output.days, "UTC")'), 2),
        (WaitPlan(value=compile_value('${{ "1d12h" }}'), is_for=True), 1.5),
        (WaitPlan(value=compile_value("${{ 86400 * tasks.before.output.days }}"), is_for=True), 2),
        (WaitPlan(value=compile_value("${{ duration('24h') }}"), is_for=True), 1),
    ],
)
def test_a_wait_is_over_when_its_instant_comes_and_not_before(wait: WaitPlan, days: float):
    trial = waiting(wait)
    due_at = START + 5 * SECOND + int(days * DAY)
    assert trial.told[-1] == SetTimer(1, 1, "wait", due_at)
    assert (trial.states["wait"], trial.status) == ("waiting", RunStatus.WAITING)
    trial.restart()
    trial.at = due_at - 1
    event = trial.state("wait")
    assert not trial.tell(Decided(1, event.token, "approved", "ada")), "nobody is asked"
    assert not trial.wait_for("before", "wait")
    trial.at = due_at - 1
    assert trial.wait_for("wait", "wait")
    assert trial.told[0] == ClearTimer(1)
    assert trial.states == {"before": "completed", "wait": "completed", "after": "queued"}
    assert trial.state("wait").output == b'{"until":"%s"}' % format_instant(from_microseconds(due_at)).encode()
    assert not trial.wait_for("wait", "wait")


@pytest.mark.parametrize("wait", [WaitPlan(until=START), until("now"), until("'2001-01-01T00:00:00Z'")])
def test_an_instant_that_has_passed_is_not_waited_for(wait: WaitPlan):
    trial = waiting(wait)
    assert trial.states == {"before": "completed", "wait": "completed", "after": "queued"}
    assert not [action for action in trial.told if isinstance(action, SetTimer)]


@pytest.mark.parametrize(
    ("wait", "why"),
    [
        (until("input.at"), "there is no field 'at'"),
        (until("'2026-03-29T09:00:00'"), "says no offset"),
        (until("nextDay(now, '09:00', 'Asia/' + 'Nowhere')"), "there is no time zone 'Asia/Nowhere'"),
        (until("now + duration('100000h')"), "a wait may take 3650 days"),
        (until("7"), "an instant is RFC 3339 text or a timestamp, not a int"),
        (WaitPlan(value=compile_value("${{ -1 }}"), is_for=True), "a duration lies between 0 and 3650 days"),
        (WaitPlan(value=compile_value("${{ 'soon' }}"), is_for=True), "'soon' is no duration"),
        (WaitPlan(value=compile_value("${{ now }}"), is_for=True), "write a duration such as"),
    ],
)
def test_a_wait_that_cannot_be_evaluated_fails_and_a_replay_may_say_what_it_is(wait: WaitPlan, why: str):
    trial = waiting(wait)
    assert trial.states == {"before": "completed", "wait": "failed", "after": "skipped"}
    (letter,) = [action for action in trial.told if isinstance(action, BuryTask)]
    assert (letter.token, letter.error.code) == (1, "BAD_INPUT")
    assert why in letter.error.message
    assert trial.replay("wait")
    assert (trial.states["wait"], trial.token("wait")) == ("failed", 2)
    assert trial.replay("wait", b'"2d"' if wait.is_for else b'"2027-03-01T00:00:00Z"')
    assert trial.states == {"before": "completed", "wait": "waiting", "after": "pending"}
    assert trial.token("wait") == 3
    trial.restart()
    assert trial.wait_for("wait", "wait")
    assert trial.succeed("after")
    assert trial.status is RunStatus.COMPLETED


def test_a_cancel_ends_a_wait():
    trial = waiting(WaitPlan(length=DAY))
    assert trial.cancel()
    assert trial.told[0] == ClearTimer(1)
    assert trial.status is RunStatus.CANCELLED
    assert not trial.wait_for("wait", "wait")


def test_a_wait_behind_a_false_condition_is_skipped():
    trial = Trial(task("wait", run=None, wait=WaitPlan(length=DAY), condition="false"))
    assert trial.status is RunStatus.COMPLETED


@pytest.fixture
def rule(tmp_path: Path) -> Iterator[Callable[[str], None]]:
    """The data of a time zone, Test/Zone, which are another zone's; and others from when a process begins with them."""
    known = files("tzdata") / "zoneinfo"
    (tmp_path / "Test").mkdir()

    def follow(zone: str) -> None:
        (tmp_path / "Test/Zone").write_bytes((known / zone).read_bytes())
        ZoneInfo.clear_cache()
        find_zone.cache_clear()

    reset_tzpath([tmp_path])
    yield follow
    reset_tzpath()
    ZoneInfo.clear_cache()
    find_zone.cache_clear()


NINE = 'nextDay(now, "09:00", "Test/Zone")'


def test_new_data_of_a_time_zone_move_no_wait_that_has_begun_and_every_later_one(rule: Callable[[str], None]):
    rule("Etc/GMT-1")
    trial = waiting(until(NINE))
    (before,) = [action.due_at for action in trial.told if isinstance(action, SetTimer)]
    assert from_microseconds(before).hour == 8
    rule("Etc/GMT-2")
    trial.restart()
    trial.at = before - 1
    assert trial.wait_for("wait", "wait"), "the timer that was set is the one that is due"
    assert trial.state("wait").output == b'{"until":"%s"}' % format_instant(from_microseconds(before)).encode()
    (later,) = [action.due_at for action in waiting(until(NINE)).told if isinstance(action, SetTimer)]
    assert before - later == 3600 * SECOND


@pytest.mark.parametrize(("began", "hours"), [("2027-03-27T08:00:00Z", 23), ("2027-10-30T07:00:00Z", 25)])
def test_a_day_until_the_same_time_has_as_many_hours_as_the_clocks_say(began: str, hours: int):
    trial = Trial(
        task("before"), task("wait", "before", run=None, wait=until('nextDay(now, "09:00", "Europe/Berlin")'))
    )
    trial.at = to_microseconds(parse_instant(began))
    assert trial.succeed("before")
    due_at = trial.at + hours * 3600 * SECOND
    assert trial.told[-1] == SetTimer(1, 1, "wait", due_at)
    trial.restart()
    assert trial.wait_for("wait", "wait")
    assert (trial.at, trial.status) == (due_at, RunStatus.COMPLETED)


def test_a_run_may_begin_with_a_wait():
    trial = Trial(task("wait", run=None, wait=until('nextWeekday(now, "09:00", "Europe/Berlin")')), task("a", "wait"))
    assert trial.status is RunStatus.WAITING
    assert trial.wait_for("wait", "wait")
    assert trial.at == to_microseconds(from_microseconds(trial.at).replace(hour=8, minute=0, second=0))
    assert trial.states["a"] == "queued"
