"""A published graph becomes a plan: positions instead of names, microseconds instead of text."""

import msgspec
import pytest

from headrace.graph import parse
from headrace.machine import Dispatch, RunState, RunStatus, advance, begin, compile_plan
from headrace.machine.backoff import RetryPlan
from headrace.machine.plan import WIDE, ApprovalPlan
from headrace.messages import Succeeded
from tests.unit.machine_model import KEY, NONCE, START, plan_of, task

ORDERS = """
name: orders
tasks:
  ship:
    run: orders.ship
    needs: [charge, validate]
    if: ${{ tasks.validate.output.total > 0 }}
    with: { order: "${{ input }}", total: "${{ tasks.validate.output.total }}" }
    queue: io
    retry: { attempts: 5, backoff: linear, delay: 2s, cap: 1m, jitter: 0.5 }
    timeout: 30s
  validate: { run: orders.validate }
  charge:
    run: payments.charge
    needs: validate
    approval: { title: "Charge it?", approvers: [lead], expires: 2d, on_expiry: reject }
"""


def test_a_published_graph_becomes_a_plan():
    plan = compile_plan(parse(ORDERS), version=3, version_id=7)
    assert (plan.name, plan.version, plan.version_id, plan.is_wide) == ("orders", 3, 7, False)
    ship, validate, charge = plan.tasks
    assert plan.index == {"ship": 0, "validate": 1, "charge": 2}
    assert plan.roots == (1,)
    assert (ship.run, set(ship.needs), ship.queue, ship.timeout) == ("orders.ship", {1, 2}, "io", 30.0)
    assert ship.retry == RetryPlan(5, "linear", 2_000_000, 60_000_000, 0.5)
    assert charge.approval == ApprovalPlan("Charge it?", ("lead",), 2 * 86_400 * 1_000_000, "reject")
    assert (charge.queue, charge.retry, charge.timeout) == ("default", RetryPlan(), None)
    assert set(validate.dependants) == {0, 2}
    assert [spec.is_referenced for spec in plan.tasks] == [False, True, False]


def test_a_task_claims_when_its_bodies_must_not_overlap_or_its_effect_must_not_be_repeated():
    text = """
    name: w
    tasks:
      plain: { run: r }
      alone: { run: r, exclusive: true }
      asked: { run: r, effect: manual }
      known: { run: r, effect: reconcile, lookup: r.find }
    """
    plain, alone, asked, known = compile_plan(parse(text)).tasks
    assert [(spec.claims, spec.exclusive, spec.effect, spec.lookup) for spec in (plain, alone, asked, known)] == [
        (False, False, "idempotent", None),
        (True, True, "idempotent", None),
        (True, False, "manual", None),
        (True, False, "reconcile", "r.find"),
    ]


def test_a_plan_of_a_published_graph_runs():
    plan = compile_plan(parse(ORDERS))
    run = RunState(KEY, plan, b'{"id":7}')
    run.apply(begin(plan, run, START))
    transition = advance(plan, run, Succeeded(1, 1, NONCE), START)
    assert transition is not None
    assert transition.status is RunStatus.WAITING


@pytest.mark.parametrize(("dependants", "is_wide"), [(WIDE, False), (WIDE + 1, True)])
def test_a_plan_is_wide_when_one_task_feeds_many(dependants: int, is_wide: bool):
    assert plan_of(task("a"), *(task(f"t{n}", "a") for n in range(dependants))).is_wide is is_wide


def test_only_outputs_that_something_reads_are_kept_in_memory():
    plan = plan_of(
        task("a"), task("b"), task("c", "a", "b", template={"n": "${{ tasks.a.output.n }}"}), task("d", "b", "c")
    )
    run = RunState(KEY, plan, b"{}")
    run.apply(begin(plan, run, START))
    for index in (0, 1):
        transition = advance(plan, run, Succeeded(index, 1, NONCE, output=msgspec.Raw(b'{"n":1}')), START)
        assert transition is not None
        run.apply(transition)
    assert [run.task(index).output for index in (0, 1)] == [b'{"n":1}', None]
    assert transition.actions[-1] == Dispatch(2, 1, 1, b'{"n":1}')
