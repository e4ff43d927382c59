"""The oracle's rules of what one run is made of: sagas, children, repeats, deadlines."""

from collections import defaultdict
from typing import Final

from tests.chaos.facts import (
    CLOCK_SECONDS,
    COMPENSATIONS_FROM,
    STOPS,
    Facts,
    Found,
    Key,
    Row,
    seconds_of,
    task_of,
)

ASIDE_SECONDS: Final = 10.0
"""Two instants of the database are those of the transactions' beginnings; this apart, they are in order."""


# == sagas =============================================================================================================
def sagas(facts: Facts) -> Found:
    """I21: only what has ended badly is undone, and only what may have been done; all of that; what was done last,
    first."""
    for run_id, run in facts.runs.items():
        undone = facts.undone(run_id)
        if undone and run["status"] in ("completed", "failed", "cancelled"):
            yield f"a run is {run['status']} that undid what it did", run_id
        for place in undone:
            is_skipped = facts.tasks[run_id, task_of(place)]["status"] == "skipped"
            ends = [row["outcome"] for row in facts.attempts.get((run_id, task_of(place)), [])]
            if is_skipped and "completed" not in ends:  # unless it was rerun, and had completed before
                yield "what was skipped was undone", facts.name((run_id, place))
            yield from _undone_early(facts, run_id, place, undone)
        if run["status"] in ("failed", "cancelled", "compensated", "compensation_failed"):
            yield from _not_undone(facts, run_id, undone)


def _not_undone(facts: Facts, run_id: str, undone: dict[int, str]) -> Found:
    """What has completed, or has its effect in the ledger, and says how it is undone."""
    for number, (name, spec) in enumerate(facts.specs[facts.runs[run_id]["version_id"]]):
        if "compensate" not in spec or number + COMPENSATIONS_FROM in undone:
            continue
        task = facts.tasks.get((run_id, number))
        if task is not None and task["status"] == "completed":
            yield "what has completed was not undone", f"{run_id}.{name}"
        elif any(line["outcome"] in ("done", "timed_out") for line in facts.effects.get(f"{run_id}/{name}", [])):
            yield "an effect stands that nothing has undone", f"{run_id}.{name}"


def _undone_early(facts: Facts, run_id: str, place: int, undone: dict[int, str]) -> Found:
    """The first body of a compensation begins, as the ledger saw it, behind the last attempts of those that needed its
    task; one that was replayed is late for good."""
    begun = [
        line["begun_at"] for line in facts.effects.get(facts.effect_key((run_id, place)), []) if "begun_at" in line
    ]
    names = [name for name, _ in facts.specs[facts.runs[run_id]["version_id"]]]
    for number, (_, spec) in enumerate(facts.specs[facts.runs[run_id]["version_id"]]):
        after = number + COMPENSATIONS_FROM
        needs = [spec["needs"]] if isinstance(spec.get("needs"), str) else spec.get("needs", [])
        if after not in undone or names[task_of(place)] not in needs or facts.of_task((run_id, after), "replayed"):
            continue
        ended = [row["ended_at"] for row in facts.attempts.get((run_id, after), [])]
        if begun and ended and min(begun) < max(ended) - CLOCK_SECONDS:
            yield f"undone before {names[number]} was", facts.name((run_id, place))


# == children ==========================================================================================================
def children(facts: Facts) -> Found:
    """I16b: who asks for a run gets one, or is told why not; what became of it is noted where it is awaited, and its
    task says the same; it is cancelled because its parent needs it no more, and by policy, or because somebody said so.
    """
    told = [row for row in facts.dump["inbox"] if row["kind"] in STOPS]
    asked = {entry["run_id"] for op in ("cancel", "terminate") for entry in facts.calls(op)}
    asked |= {row["run_id"] for row in told if row.get("actor")}
    heard = {row["run_id"] for row in told}
    for row in facts.dump.get("child_run", []):
        if row["parent_run_id"] not in facts.runs:
            yield "a child whose parent is not there", row["run_id"]
            continue
        key, child = (row["parent_run_id"], row["task"]), facts.runs.get(row["run_id"])
        where = f"{facts.name(key)} token {row['token']}: {row['run_id']}"
        if row["status"] == "asked":
            yield "a child was never started", where
        spec = facts.spec(key)["workflow"]
        is_left = isinstance(spec, dict) and (spec.get("on_cancel") == "abandon" or spec.get("wait") is False)
        if is_left and row["cancel_asked_at"]:
            yield "a child was asked to end that is to be left alone", where
        if child is None:
            if row["status"] not in ("refused", "cancelled"):
                yield f"a child is {row['status']}, and there is no run", where
            continue
        if row["is_awaited"] and row["status"] != child["status"]:
            yield f"a child is {child['status']}, and its row says {row['status']}", where
        if child["status"] == "cancelled" and row["run_id"] not in asked and (is_left or not row["cancel_asked_at"]):
            yield "a child was cancelled, and nobody asked for it", where
        if row["cancel_asked_at"] and row["run_id"] not in heard:
            yield "a child was to end, and was not told", where
        task = facts.tasks[key]
        is_said = row["is_awaited"] and task["token"] == row["token"] and task["status"] == "completed"
        if is_said and child["status"] != "completed" and not facts.of_task(key, "supplied"):
            yield f"a child is {child['status']}, and its task completed", where
        if not is_left and not row["cancel_asked_at"]:
            yield from _outlived(facts, row, child, where)


def _outlived(facts: Facts, row: Row, child: Row, where: str) -> Found:
    """Its parent was stopped while it waited for it, and asked nothing of it."""
    stops = facts.of_run(row["parent_run_id"], *STOPS)
    task = facts.tasks[row["parent_run_id"], row["task"]]
    if not stops or task["status"] != "cancelled" or task["token"] != row["token"]:
        return
    if facts.of_run(row["run_id"], "replayed", "reran"):
        return  # it had ended before, and was taken up again for itself
    if child["finished_at"] and child["finished_at"] > stops[-1]["at"] + ASIDE_SECONDS:
        yield "a child outlived its parent, and nobody asked it to end", where


# == repeats ===========================================================================================================
def repeats(facts: Facts) -> Found:
    """I12: rounds follow each other without a gap, each with one result and one effect; the last one that was needed is
    the last. What failed goes on where it was, behind the bound too; only what had completed and runs again begins
    anew."""
    for key, task in facts.tasks.items():
        if not facts.rounds(key):
            continue
        again, is_supplied = facts.again(key), bool(facts.of_task(key, "supplied"))
        done = [row for row in facts.attempts.get(key, []) if row["outcome"] == "completed"]
        for before, row in zip([None, *done], done, strict=False):
            is_anew = before is not None and any(before["row_version"] < move < row["row_version"] for move in again)
            had_completed = before is not None and bool((before["output"] or {}).get("done") or is_supplied)
            expected = 0 if before is None or (is_anew and had_completed) else before["round"] + 1
            if row["round"] != expected and not is_supplied:
                yield f"round {row['round']} follows {before and before['round']}", facts.name(key)
            if before is not None and not is_anew and (before["output"] or {}).get("done"):
                yield "another round followed one that would do", facts.name(key)
            yield from _effect_of_round(facts, key, row)
        if task["status"] == "completed" and not (done and (done[-1]["output"] or {}).get("done")):
            yield "a repeat is completed, and its last round would not do", facts.name(key)


def _effect_of_round(facts: Facts, key: Key, row: Row) -> Found:
    lines = facts.effects.get(f"{facts.effect_key(key)}/{row['round']}", [])
    receipts = {line["receipt"] for line in lines if line["outcome"] in ("done", "timed_out")}
    if receipts != {(row["output"] or {}).get("receipt")}:
        yield f"round {row['round']} has effects {sorted(map(str, receipts))}", facts.name(key)


# == deadlines =========================================================================================================
def deadlines(facts: Facts) -> Found:
    """I10: none is early, each ends what it is of, and what it ended did not end well."""
    late: dict[Key, list[Row]] = defaultdict(list)
    for run_id, rows in facts.history.items():
        for row in rows:
            if row["kind"] == "due" and (row["detail"] or {}).get("timer") in ("deadline", "start"):
                late[run_id, -1 if row["task"] is None else row["task"]].append(row)
    for key, rows in late.items():
        of_run = key[1] < 0
        spec = facts.version(key[0])["definition"] if of_run else facts.spec(key)
        begun = facts.history[key[0]][0]["at"]
        where = key[0] if of_run else facts.name(key)
        for row in rows:
            length = spec.get("start_within" if row["detail"]["timer"] == "start" else "deadline")
            if length is None:
                continue  # the run has moved to a version without one
            seconds = seconds_of(length["for"] if isinstance(length, dict) else length)
            if row["at"] < begun + seconds - CLOCK_SECONDS:
                yield f"a deadline of {seconds} s was over after {row['at'] - begun:.3f} s", where
        if of_run and facts.runs[key[0]]["status"] == "completed" and not facts.again((key[0], 0)):
            yield "a run completed behind its deadline", where
