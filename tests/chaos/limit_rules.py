"""The oracle's rule of limits of runs by key (I27), from history and from what bodies told the ledger."""

from collections import Counter, defaultdict
from math import inf
from typing import Final

from tests.chaos.facts import CLOCK_SECONDS, RUN_TERMINAL, Facts, Found, Row

ASIDE_SECONDS: Final = 10.0
"""A request is applied in a transaction that may have begun before the end of its run was committed."""
REOPENS: Final = ("replayed", "reran")
"""What brings back a run that has ended; it needs another permit."""


def limits(facts: Facts) -> Found:
    """I27: never more runs of one key at once than the limit, from the first body or the permit until the end; who is
    in line begins nothing; a start that is refused or dropped leaves nothing and names a run that goes; one that was
    replaced ends cancelled, asked once; and nobody has, or waits for, a permit behind the end."""
    moments: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    for run_id, run in facts.runs.items():
        if (limit := facts.limit(run_id)) is None:
            continue
        yield from _begun_in_line(facts, run_id)
        for begin, end in _spans(facts, run_id, run):
            if begin < end:
                moments[limit["name"], run["input"]["customer"]] += [(begin, 1), (end - CLOCK_SECONDS, -1)]
    sizes = {limit["name"]: limit["runs"] for run_id in facts.runs if (limit := facts.limit(run_id))}
    for (workflow, key), changes in moments.items():
        inside = 0
        for at, change in sorted(changes):
            inside += change
            if inside > sizes[workflow]:
                yield f"{inside} runs of {key} at once, where {sizes[workflow]} may go", f"{workflow} at {at:.3f}"
                break
    yield from _answers(facts)
    yield from _replaced(facts)
    for row in facts.dump.get("run_permit", []):
        if facts.runs[row["run_id"]]["status"] in RUN_TERMINAL:
            yield "a permit, or a wait for one, outlived its run", row["run_id"]


def _turns(facts: Facts, run_id: str) -> list[tuple[int, float | None, float]]:
    """Moves from and to which a run had a permit, and since when if that was told: (from, since, before)."""
    turns: list[tuple[int, float | None, float]] = []
    since: tuple[int, float | None] | None = None if _is_queued(facts, run_id) else (0, None)
    for row in facts.of_run(run_id, "permitted", *REOPENS):
        if row["kind"] == "permitted":
            since = (row["row_version"], row["at"])
        elif since is not None:
            turns.append((since[0], since[1], row["row_version"]))
            since = None
    return turns if since is None else [*turns, (since[0], since[1], inf)]


def _is_queued(facts: Facts, run_id: str) -> bool:
    """Its start waited: the first that was told of permits is one, and nothing was before that."""
    told = facts.of_run(run_id, "permitted", *REOPENS)
    return bool(told) and told[0]["kind"] == "permitted"


def _attempts(facts: Facts, run_id: str) -> list[Row]:
    return [row for (of, _), rows in facts.attempts.items() if of == run_id for row in rows]


def _spans(facts: Facts, run_id: str, run: Row) -> list[tuple[float, float]]:
    """Never longer than it had its permit. A body that began behind the end, from a hand-out that was out, has none."""
    begun = sorted(line["begun_at"] for line in facts.by_run.get(run_id, []) if "begun_at" in line)
    spans = []
    for first, since, before in _turns(facts, run_id):
        begin = since if since is not None else begun[0] if begun else inf
        if before == inf:
            end = inf if run["finished_at"] is None else run["finished_at"]
        else:
            ended = [row["ended_at"] for row in _attempts(facts, run_id) if first < row["row_version"] < before]
            end = max(ended, default=begin)
        spans.append((begin, end))
    return spans


def _begun_in_line(facts: Facts, run_id: str) -> Found:
    turns = _turns(facts, run_id)
    for row in _attempts(facts, run_id):
        opened = row["outcome"] != "cancelled"  # which a cancel says of what was never handed out, too
        if opened and not any(first < row["row_version"] < before for first, _, before in turns):
            yield "an attempt ended of a run without its permit", f"{run_id} task {row['task']}"
    if _is_queued(facts, run_id):
        since = turns[0][1]
        begun = [line["begun_at"] for line in facts.by_run.get(run_id, []) if "begun_at" in line]
        if begun and since is not None and min(begun) < since - CLOCK_SECONDS:
            yield "a body began while its run was in line", run_id


def _answers(facts: Facts) -> Found:
    """What starts were told. One that was not answered may have made the run for which the next is refused."""
    kept = {row["key"].removeprefix("api:") for row in facts.dump["trigger_key"]}
    unsure = {entry["key"] for entry in facts.calls("start") if entry["outcome"] != "FAIL"}
    for entry in facts.calls("start"):
        over, is_reuse = facts.over(entry.get("workflow", "")), (entry.get("input") or {}).get("n") == -1
        if over is None or is_reuse:
            continue
        if entry["outcome"] == "FAIL" and entry.get("status") == 409:
            if over != "reject":
                yield f"a start was refused, and its limit says {over}", entry["key"]
            elif entry["key"] in kept - unsure:
                yield "a start that was refused is there", entry["key"]
        elif entry["outcome"] != "OK":
            continue
        run_id = (entry.get("answer") or {}).get("run_id")
        if run_id is None:
            continue
        run = facts.runs.get(run_id)
        mine = (entry["workflow"], entry["input"]["customer"])
        if run is not None and ((facts.limit(run_id) or {}).get("name"), run["input"].get("customer")) != mine:
            yield "a start was answered with a run of another key", f"{entry['key']} {run_id}"


def _replaced(facts: Facts) -> Found:
    asked: dict[str, list[Row]] = defaultdict(list)
    for row in facts.dump["inbox"]:
        if row["kind"] == "cancelled" and row.get("actor") == "limit":
            asked[row["run_id"]].append(row)
    again = Counter({run_id: len(facts.of_run(run_id, *REOPENS)) for run_id in asked})
    for run_id, rows in asked.items():
        if (facts.limit(run_id) or {}).get("over") != "replace_oldest":
            yield "a run was replaced, and its limit does not say so", run_id
        if len(rows) > 1 + again[run_id]:
            yield f"a run was asked {len(rows)} times to end for another", run_id
        run, told = facts.runs[run_id], facts.of_run(run_id, "cancelled")
        if told and run["status"] != "cancelled" and not again[run_id]:
            yield f"a run that was replaced is {run['status']}", run_id
        heard = [row["applied_at"] for row in rows if row["applied_at"] is not None]
        is_late = bool(heard) and (run["finished_at"] or inf) > max(heard) + ASIDE_SECONDS
        if not told and is_late and not again[run_id]:
            yield "a run was asked to end for another, and went on", run_id
