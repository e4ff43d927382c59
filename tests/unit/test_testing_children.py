"""Children in the harness: parent and child in one process, on one clock."""

from typing import Any

import pytest

from headrace.errors import NotFoundError
from headrace.machine.reason import DEPTH_MAX
from headrace.testing import Harness

PARENT = """
name: order
tasks:
  price: { run: price }
  bill: { workflow: invoice, needs: price, with: { sum: "${{ tasks.price.output }}" }, timeout: 1h }
  mail: { run: mail, needs: bill, with: { text: "${{ tasks.bill.output.id }}" } }
"""
CHILD = """
name: invoice
input: { type: object, required: [sum], properties: { sum: { type: integer } } }
output: { id: "${{ tasks.write.output }}" }
tasks:
  settle: { wait: { for: 10s } }
  write: { run: write, needs: settle, retry: 1, with: { sum: "${{ input.sum }}" } }
"""


def order(price: Any = 7, fails: int = 0, parent: str = PARENT, **given: Any) -> Harness:
    left = [fails]

    def write(sum: int) -> str:
        left[0] -= 1
        if left[0] >= 0:
            raise ValueError("out of paper")
        return f"invoice over {sum}"

    bodies = {"price": lambda: price, "write": write, "mail": lambda text: text}
    return Harness(parent, bodies, workflows=given.get("workflows", [CHILD]))


def test_a_parent_goes_on_with_what_came_out_of_its_child():
    harness = order()
    run = harness.start()
    assert (run.tasks["bill"], run.status, run.child("bill").tasks["settle"]) == ("waiting", "waiting", "waiting")
    harness.run_until_idle()
    assert (run.status, run.outputs["mail"]) == ("completed", "invoice over 7")
    assert run.child("bill").output == {"id": "invoice over 7"}
    assert [str(item.kind) for item in run.history if item.task == "bill"] == ["waits", "child_told"]


def test_a_failure_of_the_child_is_one_of_its_task_and_a_replay_starts_another():
    harness = order(fails=1)
    run = harness.start()
    harness.run_until_idle()
    first = run.child("bill")
    assert (first.status, run.status) == ("failed", "failed")
    assert run.task("bill").error == f"CHILD_FAILED: run {first.run_id} of workflow invoice failed"
    first.replay("write")
    assert (first.status, run.tasks["bill"]) == ("completed", "failed"), "repaired too late for its parent"
    run.replay("bill")
    harness.run_until_idle()
    assert run.child("bill").run_id != first.run_id
    assert run.status == "completed"


def test_a_cancel_of_the_parent_ends_its_child_or_leaves_it():
    run = order().start()
    child = run.child("bill")
    run.cancel("changed my mind")
    assert (run.status, child.status) == ("cancelled", "cancelled")
    harness = order(parent=PARENT.replace("workflow: invoice", "workflow: { name: invoice, on_cancel: abandon }"))
    run = harness.start()
    run.terminate()
    harness.run_until_idle()
    assert (run.status, run.child("bill").status) == ("terminated", "completed")


@pytest.mark.parametrize(("other", "ends"), [("completes", "cancelled"), ("fails", "failed")])
def test_b52_a_child_that_an_operator_cancels_cancels_its_parent_and_a_failure_fails_it(other: str, ends: str):
    parent = "name: p\ntasks:\n"
    parent += "".join(f"  {name}: {{ workflow: invoice, with: {{ sum: 1 }} }}\n" for name in ("one", "two"))
    harness = order(parent=parent, fails=1 if other == "fails" else 0)
    run = harness.start()
    run.child("two").cancel("not needed", by="ada")
    assert (run.tasks["two"], run.status) == ("cancelled", "waiting")
    assert run.task("two").error == f"CHILD_CANCELLED: run {run.child('two').run_id} of workflow invoice was cancelled"
    harness.run_until_idle()
    assert run.status == ends
    run.rerun()
    harness.run_until_idle()
    assert run.status == "completed"


def test_a_time_out_fails_the_task_and_ends_the_child():
    harness = order()
    run = harness.start()
    run.child("bill").pause()
    harness.run_until_idle()
    assert run.tasks["bill"] == "waiting", "nobody waits out a time-out"
    harness.advance(hours=1)
    assert (run.tasks["bill"], run.child("bill").status) == ("failed", "cancelled")


def test_a_pause_of_the_parent_is_none_of_its_child():
    harness = order()
    run = harness.start()
    run.pause()
    harness.run_until_idle()
    assert (run.child("bill").status, run.tasks["bill"], run.tasks["mail"]) == ("completed", "completed", "pending")
    run.resume()
    assert run.status == "completed"


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"price": "7"}, "BAD_INPUT: workflow invoice does not take this input: sum: '7' is not of type 'integer'"),
        ({"workflows": []}, "CHILD_NOT_FOUND: there is no workflow invoice"),
    ],
)  # fmt: skip
def test_what_cannot_start_fails_its_task_and_can_be_replayed(given: dict[str, Any], error: str):
    harness = order(**given)
    run = harness.start()
    assert (run.task("bill").error, run.status) == (error, "failed")
    run.replay("bill", input={"sum": 1})
    harness.run_until_idle()
    assert run.status == ("completed" if "price" in given else "failed")


def test_a_child_that_nobody_waits_for_is_left_to_itself():
    parent = "name: p\ntasks: { kid: { workflow: { name: invoice, wait: false }, with: { sum: 1 } } }"
    harness = order(parent=parent)
    run = harness.start()
    assert (run.status, run.child("kid").status) == ("completed", "waiting")
    assert run.outputs == {"kid": {"run_id": run.child("kid").run_id}}
    harness.run_until_idle()
    assert run.child("kid").status == "completed"


def test_workflows_that_go_round_stop_at_the_depth_limit():
    here, there = ("name: {}\ntasks: {{ go: {{ workflow: {} }} }}".format(*pair) for pair in (("a", "b"), ("b", "a")))
    run = Harness(here, {}, workflows=[there]).start()
    for _ in range(DEPTH_MAX):
        assert run.status == "failed"
        run = run.child("go")
    assert run.task("go").error == "CHILD_TOO_DEEP: 10 runs stand above it, and more are not allowed"


def test_a_crash_is_planned_in_the_workflow_of_a_child():
    harness = order(parent=PARENT)
    harness.crash_next("write", workflow="invoice")
    run = harness.start()
    harness.run_until_idle()
    assert run.task("bill").status == "failed"
    with pytest.raises(NotFoundError, match="no workflow nobody"):
        harness.crash_next("write", workflow="nobody")
    with pytest.raises(NotFoundError, match="has started no run"):
        run.child("price")
