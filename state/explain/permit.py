"""Why a run waits for its permit under the limit of its workflow."""

from collections.abc import Iterator
from typing import Final

from state.explain.cause import NAMES_MAX, Act, Cause, Code, Object
from state.explain.facts import Facts, PermitFacts
from state.explain.words import ago, in_line_as, name_of, run_object

GRANTED: Final = "Resumed: the sweep of permits grants what is free, at once and at every pass"


def awaits_permit(facts: Facts) -> Iterator[Cause]:
    permit = facts.permit
    if permit is None:
        return
    withheld = [task.task for task in facts.tasks.values() if task.withheld]
    names = [name_of(facts, index) for index in withheld[:NAMES_MAX]]
    of_key = f" and key {permit.key!r}" if permit.key else ""
    what = f"a permit of workflow {facts.plan.name}{of_key}"
    if permit.since is None:
        text = f"The run waits for {what}, and is not in line for one."
        moves = "a sweep puts it there again from the state"
        cause = Cause(Code.PERMIT_MISSING, text, run_object(facts), moves, facts.changed_at)
    elif permit.granted_at is not None:
        text = f"The run was given {what} {ago(facts, permit.granted_at)}; it has not moved yet."
        moves = "Resumed: the run agent applies it; said again every 5 s"
        cause = Cause(Code.PERMIT_GRANTED, text, run_object(facts), moves, permit.granted_at)
    else:
        cause = _in_line(facts, permit, what)
    yield cause._replace(tasks=names, tasks_total=len(withheld))


def _in_line(facts: Facts, permit: PermitFacts, what: str) -> Cause:
    text = f"The run waits for {what}, {in_line_as(permit.position, permit.waiting)}"
    if permit.runs is None or permit.held < permit.runs:
        return Cause(Code.PERMIT_AWAITED, f"{text}: one is free.", run_object(facts), GRANTED, permit.since)
    more = f" and {permit.held - len(permit.holders)} more" if permit.held > len(permit.holders) else ""
    text += f": {permit.held} of {permit.runs} are held, by {', '.join(map(str, permit.holders))}{more}."
    first = permit.holders[0] if permit.holders else facts.run_id
    acts = [
        Act(f"headrace explain {first}", f"GET /runs/{first}/explain"),
        Act(f"headrace prioritise {facts.run_id} N", f"POST /runs/{facts.run_id}/priority"),
        Act(f"headrace cancel {facts.run_id}", f"POST /runs/{facts.run_id}/cancel"),
    ]
    points_to = Object("run", str(first), f"/runs/{first}")
    return Cause(Code.PERMIT_AWAITED, text, points_to, "a holder ends, and it is next", permit.since, acts=acts)
