"""Why a task waits for a slot of its pool."""

from typing import Final

from state.explain.cause import Act, Cause, Code, Object
from state.explain.facts import Facts, Holder, InLine, PoolFacts, TaskFacts
from state.explain.words import ago, in_line_as, name_of, task_object

GRANTED: Final = "Admitted: the slots sweep grants what is free, at once and at every pass"


def awaits_slot(facts: Facts, task: TaskFacts, pool: str) -> Cause:
    name, place, found = name_of(facts, task.task), facts.in_line.get(task.task), facts.pools.get(pool)
    this = Object("pool", pool, f"/pools/{pool}")
    if place is None:
        text = f"Task {name} waits for a slot of pool {pool}, and is not in its queue."
        moves = "a sweep puts it there again from the state"
        return Cause(Code.SLOT_WAIT_MISSING, text, task_object(facts, task.task), moves, task.changed_at)
    if place.granted_at is not None:
        text = (
            f"Task {name} was granted a slot of pool {pool} {ago(facts, place.granted_at)}; the run has not moved yet."
        )
        moves = "Admitted: the run agent applies it; said again every 5 s"
        return Cause(Code.SLOT_GRANTED, text, this, moves, place.granted_at)
    if found is None:
        text = f"Task {name} waits for a slot of pool {pool}, and nobody has said how many that has."
        acts = [Act(f"headrace set-pool {pool} --limit N", f"PUT /pools/{pool}")]
        return Cause(Code.POOL_NOT_SET, text, this, "somebody sets the pool", place.began_at, acts=acts)
    text = f"Task {name} waits for a slot of pool {pool}, {_in_line(place, found)}"
    show = Act(f"headrace pools {pool}", f"GET /pools/{pool}")
    first = Act(f"headrace prioritise {facts.run_id} N", f"POST /runs/{facts.run_id}/priority")
    if found.slots is not None and found.held >= found.slots:
        more = Act(f"headrace set-pool {pool} --limit N", f"PUT /pools/{pool}")
        moves = "a holder ends, and it is next" if found.slots else "somebody gives the pool slots"
        return Cause(
            Code.SLOT_AWAITED, f"{text}: {_held(found)}.", this, moves, place.began_at, acts=[show, first, more]
        )
    if found.rate is not None:
        count, seconds = found.rate
        text += f": the pool lets {count} begin in {seconds:g} s."
        return Cause(
            Code.RATE_AWAITED, text, this, "time passes: then the slots sweep grants", place.began_at, acts=[show]
        )
    return Cause(Code.SLOT_AWAITED, f"{text}: a slot is free.", this, GRANTED, place.began_at, acts=[show])


def _in_line(place: InLine, pool: PoolFacts) -> str:
    if not place.is_shared:
        return in_line_as(place.position, pool.waiting)
    of = f"of fairness key {place.fairness_key!r}" if place.fairness_key else "of those without a fairness key"
    keys = "1 key has its turn" if place.keys_before == 1 else f"{place.keys_before or 'no'} keys have their turn"
    return f"as number {place.position} {of}, and {keys} before"


def _held(pool: PoolFacts) -> str:
    if not pool.held:
        return "it has none"
    named = ", ".join(_holder(holder) for holder in pool.holders)
    more = f" and {pool.held - len(pool.holders)} more" if pool.held > len(pool.holders) else ""
    return f"{pool.held} of {pool.slots} are held, by {named}{more}"


def _holder(holder: Holder) -> str:
    return f"{holder.run_id}.{holder.task}"
