"""Runs that a harness moves to another version, and pools that have a rate."""

from collections.abc import Callable
from typing import Any

import pytest

from headrace import Context, NonRetryable
from headrace.errors import ConfigurationError, ConflictError
from headrace.testing import Harness

OLD = """
name: orders
tasks:
  pay: { run: pay }
  ask: { needs: pay, approval: { title: Ship it? } }
  ship: { run: ship, needs: ask }
"""
NEW = """
name: orders
tasks:
  pay: { run: pay }
  ask: { needs: pay, approval: { title: Ship it? } }
  pack: { run: pack, needs: ask, with: { paid: "${{ tasks.pay.output }}" } }
  send: { run: ship, needs: pack }
"""
BODIES: dict[str, Callable[..., Any]] = {
    "pay": lambda: 7,
    "ship": lambda: "shipped",
    "pack": lambda paid: f"packed for {paid}",
}


# == moves =============================================================================================================
def test_a_paused_run_goes_on_by_another_version_also_with_outputs_that_nobody_read() -> None:
    with Harness(OLD, BODIES) as harness:
        run = harness.start()
        run.pause()
        run.migrate(NEW, "the parcel is packed first", by="ada")
        assert run.tasks == {"pay": "completed", "ask": "waiting", "pack": "pending", "send": "pending"}
        run.approve("ask")
        assert run.tasks["pack"] == "pending"  # it is paused still
        run.resume()
        assert (run.status, run.outputs["pack"]) == ("completed", "packed for 7")
        assert [item.detail for item in run.history if item.kind == "migrated"] == ["to version 2"]
        assert harness.start().tasks.keys() == {"pay", "ask", "ship"}


def test_what_stands_in_the_way_of_a_move_is_told_and_nothing_is_changed() -> None:
    with Harness(OLD, BODIES) as harness:
        run = harness.start()
        with pytest.raises(ConflictError, match="the run is waiting: pause it"):
            run.migrate(NEW)
        run.pause()
        with pytest.raises(ConflictError, match="task ask: it has begun, and version 2 has no such task"):
            run.migrate(NEW.replace("  ask:", "  answer:").replace("needs: ask", "needs: answer"))
        with pytest.raises(ConfigurationError, match="wrap"):
            run.migrate(NEW.replace("run: pack", "run: wrap"))
        run.resume()
        run.approve("ask")
        assert run.outputs == {"pay": 7, "ask": run.task("ask").output, "ship": "shipped"}


class Flaky:
    """Says under which keys its effects were, and fails until somebody lets it go on."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.fails = True

    def __call__(self, ctx: Context) -> int:
        self.keys.append(ctx.effect_key.partition("/")[2])
        if self.fails:
            raise TimeoutError("no answer")
        return 1


def test_a_renamed_task_goes_on_under_the_same_effect_keys() -> None:
    old = """
    name: keys
    tasks:
      mail: { run: one, compensate: undo, retry: { attempts: 9, delay: 1m } }
      pages: { run: each, map: [1, 2], retry: { attempts: 9, delay: 1m } }
      end: { run: fail, needs: [mail, pages] }
    """
    new = old.replace("mail: {", "notify: { was: mail,").replace("pages: {", "sheets: { was: pages,")
    new = new.replace("[mail, pages]", "[notify, sheets]")
    one, each, undo = Flaky(), Flaky(), Flaky()

    def fail() -> None:
        raise NonRetryable("no")

    with Harness(old, {"one": one, "each": each, "undo": undo, "fail": fail}) as harness:
        run = harness.start()
        run.pause()
        run.migrate(new)
        one.fails = each.fails = undo.fails = False
        run.resume()
        harness.run_until_idle()
        assert run.status == "compensated"
        assert set(one.keys) == {"mail"}
        assert len(one.keys) > 1
        assert {*each.keys} == {"pages.0", "pages.1"}
        assert undo.keys == ["mail.compensate"]


# == rates =============================================================================================================
def begun_at(harness: Harness, names: list[str]) -> dict[str, float]:
    """When bodies of tasks began, in seconds from now, until nothing moves any more."""
    run, begin = harness.start(), harness.now
    harness.run_until_idle()
    admitted = {item.task: item.at for item in run.history if item.kind == "admitted"}
    return {name: (admitted[name] - begin).total_seconds() for name in names}


def test_a_rate_lets_so_many_begin_at_once_and_the_others_as_time_passes() -> None:
    names = [f"t{number}" for number in range(5)]
    tasks = "".join(f"  {name}: {{ run: pay, pool: api }}\n" for name in names)
    with Harness(f"name: w\ntasks:\n{tasks}", BODIES, pools={"api": "2/s"}) as harness:
        assert list(begun_at(harness, names).values()) == [0, 0, 0.5, 1, 1.5]


def test_a_rate_that_is_changed_counts_from_then_on() -> None:
    workflow = "name: w\ntasks: { a: { run: pay, pool: api }, b: { run: pay, pool: api } }"
    with Harness(workflow, BODIES, pools={"api": "1/1h"}) as harness:
        run = harness.start()
        assert run.tasks == {"a": "completed", "b": "waiting"}
        harness.advance(minutes=30)
        harness.set_pool("api", rate="1/m")
        assert run.tasks["b"] == "waiting"  # half of one is allowed
        harness.advance(seconds=30)
        assert run.status == "completed"


def test_a_pool_may_have_slots_and_a_rate() -> None:
    workflow = "name: w\ntasks: { a: { run: pay, pool: api, timeout: 1m, retry: 1 }, b: { run: pay, pool: api } }"
    with Harness(workflow, BODIES) as harness:
        harness.set_pool("api", 1, "10/s")
        harness.hang_next("a")
        run = harness.start()
        harness.advance(seconds=30)
        assert run.tasks == {"a": "running", "b": "waiting"}
        harness.run_until_idle()
        assert run.tasks == {"a": "failed", "b": "completed"}


def test_what_is_no_rate_is_refused() -> None:
    with pytest.raises(ValueError, match="write how many in how long"):
        Harness("name: w\ntasks: { a: { run: pay } }", BODIES, pools={"api": "fast"})
