"""The oracle's rules of pools (I15), from what was seen of their slots and from what bodies told the ledger."""

from collections import defaultdict
from itertools import pairwise
from typing import Any, Final

from tests.chaos.facts import CLOCK_SECONDS, RUN_TERMINAL, Facts, Found, Row
from tests.chaos.workload import POOL_LIMIT_MAX, POOLS

ROBBED: Final = "robbed"
"""Rows of it are deleted, and what works then gets its slot again, also above the limit."""
WAIT_SECONDS: Final = 3.5
"""A grant has the instant at which its transaction began, and may have waited so long for the row of the pool."""


def pools(facts: Facts) -> Found:
    """I15: nobody is granted a slot above the limit; the rate is kept; no more bodies work than there are slots; and at
    the end every slot has its holder."""
    yield from _left(facts)
    looks: dict[str, list[Row]] = defaultdict(list)
    for entry in facts.calls("slots"):
        looks[entry["pool"]].append(entry)
    for pool, seen in looks.items():
        if pool != ROBBED:
            for before, after in pairwise(sorted(seen, key=lambda entry: entry["at"])):
                yield from _granted_above(before, after)
        rate = POOLS[pool].rate if pool in POOLS else None
        if rate is not None:
            yield from _too_fast(pool, rate, seen)
    yield from _too_many_bodies(facts)


def _left(facts: Facts) -> Found:
    for row in facts.dump.get("pool_slot", []):
        task = facts.tasks.get((row["run_id"], row["task"]))
        if task is None or task["token"] != row["token"] or task["status"] not in ("waiting", "queued", "running"):
            yield f"a slot of {row['pool']} has no holder", f"{row['run_id']} task {row['task']}"
    for row in facts.dump.get("pool_waiter", []):
        if facts.runs[row["run_id"]]["status"] in RUN_TERMINAL:
            yield f"somebody waits for a slot of {row['pool']} whose run has ended", row["run_id"]


def _granted_above(before: Row, after: Row) -> Found:
    """Both snapshots know the same limit, so whoever was granted a slot between them was counted against it."""
    is_same = (before["limit"], before["set_at"]) == (after["limit"], after["set_at"])
    if after["limit"] is None or not is_same or len(after["held"]) <= after["limit"]:
        return
    for run_id, task, token, granted_at in after["held"]:
        if granted_at > before["at"]:
            yield (
                f"{len(after['held'])} hold a slot of {after['pool']}, which has {after['limit']}",
                f"{run_id} task {task} token {token}",
            )


def _too_fast(pool: str, rate: str, seen: list[Row]) -> Found:
    """Whatever was seen is part of what was granted. A bucket gives `count` at once, and so many in each length."""
    text, _, length = rate.partition("/")
    count, seconds = int(text), float(length.removesuffix("s"))
    found: dict[tuple[Any, ...], float] = {
        (run_id, task, token): granted_at for entry in seen for run_id, task, token, granted_at in entry["held"]
    }
    times = sorted(found.values())
    for first, begin in enumerate(times):
        for last in range(first + count, len(times)):
            allowed = count + (times[last] - begin + WAIT_SECONDS) * count / seconds
            if last - first + 1 > allowed:
                yield f"{last - first + 1} were granted in {times[last] - begin:.1f} s, by {rate}", pool
                return
            if last - first > 4 * count:
                break  # longer spans are made of these


def _too_many_bodies(facts: Facts) -> Found:
    """Only bodies whose result counted: their hand-out held its slot all the time. A command that was read twice may
    have its body run again behind that, and no slot is left for it."""
    moments: list[tuple[float, int]] = []
    for key, attempts in facts.attempts.items():
        spec = facts.spec(key)
        if spec.get("pool", {}).get("name") != "strict":
            continue
        for row in attempts:
            if row["outcome"] != "completed":
                continue
            until = row["ended_at"] + CLOCK_SECONDS
            lines = [line for line in facts.bodies(key) if line.get("token") == row["token"] and line["at"] < until]
            marks = {line.get("mark"): line["at"] for line in lines if line["outcome"] in ("noted", "stale")}
            if "enter" in marks and "leave" in marks:
                moments += [(marks["enter"], 1), (marks["leave"], -1)]
    inside = 0
    for at, change in sorted(moments):
        inside += change
        if inside > POOL_LIMIT_MAX:
            yield f"{inside} bodies of strict at once, where {POOL_LIMIT_MAX} are the most", f"at {at:.3f}"
            return
