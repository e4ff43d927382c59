"""What a run of the harness showed: faults by kind with their counts and recovery times, violations, the last line."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from statistics import quantiles
from typing import Any, NamedTuple

from tests.chaos.facts import Facts, Violation
from tests.chaos.operator_rules import is_of_publish
from tests.control_bits import TASKS_PAUSED

Row = dict[str, Any]


class KindLine(NamedTuple):
    kind: str
    faults: int
    fired: int
    errors: int
    progress: list[float]
    """Seconds from the heal to the first thing that moved any run."""
    attempts: list[float]
    """Seconds from the fault to the next attempt of each task whose worker it took."""


def summarise(facts: Facts) -> list[KindLine]:
    moves = sorted(
        [row["at"] for rows in facts.history.values() for row in rows]
        + [row["ended_at"] for rows in facts.attempts.values() for row in rows]
    )
    kinds: dict[str, list[Row]] = defaultdict(list)
    for fault in facts.faults:
        kinds[fault["kind"]].append(fault)
    lines = []
    for kind, faults in sorted(kinds.items()):
        progress = [
            moves[place] - f["healed_at"] for f in faults if (place := bisect_right(moves, f["healed_at"])) < len(moves)
        ]
        attempts = [
            seconds for fault in faults if kind.startswith(("F01", "F02")) for seconds in _taken_over(facts, fault)
        ]
        fired, errors = sum(f["fired"] for f in faults), sum("error" in f for f in faults)
        lines.append(KindLine(kind, len(faults), fired, errors, progress, attempts))
    return lines


def firing(lines: list[KindLine], kinds: Iterable[str]) -> str:
    """Which kinds did nothing, and which of those that were to be drawn never came: a short run draws but some."""
    silent = [line.kind for line in lines if not line.fired]
    drawn = {line.kind for line in lines}
    said = [f"never fired: {', '.join(silent)}" if silent else f"every fault fired, of {len(drawn)} kinds"]
    if absent := [kind for kind in kinds if kind not in drawn]:
        said.append(f"not drawn in this time: {', '.join(absent)}")
    return "\n".join(said)


def _taken_over(facts: Facts, fault: Row) -> list[float]:
    """For each task that a killed worker ran: how long until its next body began, as the ledger saw it."""
    found = []
    for (run_id, task), attempts in facts.attempts.items():
        for row in attempts:
            if row["outcome"] != "lost" or not fault["at"] < row["ended_at"] < fault["at"] + 10:
                continue
            begun = [r for r in facts.of_task((run_id, task), "attempt_started") if r["token"] == row["token"]]
            if not begun or begun[0]["at"] > fault["at"] or begun[0]["actor"] not in fault.get("targets", []):
                continue
            key = facts.effect_key((run_id, task))
            calls = [line for line in facts.effects.get(key, []) if "begun_at" in line]
            later = [line["begun_at"] for line in calls if line["token"] > row["token"]]
            if later:
                found.append(min(later) - fault["at"])
    return found


def table(lines: list[KindLine]) -> str:
    rows = [("fault", "count", "fired", "progress p50/p99 s", "next attempt p50/p99 s", "")]
    rows += [
        (
            x.kind,
            str(x.faults),
            str(x.fired),
            _spread(x.progress),
            _spread(x.attempts),
            f"{x.errors} ERRORS" if x.errors else "",
        )
        for x in lines
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _spread(values: list[float]) -> str:
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.2f}"
    cuts = quantiles(values, n=100, method="inclusive")
    return f"{cuts[49]:.2f} / {cuts[98]:.2f}"


def constructs(facts: Facts) -> dict[str, int]:
    """How often each construct was met, so that one that never came is seen."""
    rows = facts.dump.get
    kinds = Counter(row["kind"] for rows_ in facts.history.values() for row in rows_)
    due = Counter(
        f"{(row['detail'] or {}).get('timer')}{'' if row['task'] is not None else ' of a run'}"
        for rows_ in facts.history.values()
        for row in rows_
        if row["kind"] == "due"
    )
    told = [row for rows_ in facts.history.values() for row in rows_ if row["kind"] == "paused"]
    turns = Counter(row["outcome"] for row in rows("bulk_item", []))
    looks = list(facts.calls("slots"))
    return {
        "compensations": sum(len(facts.undone(run_id)) for run_id in facts.runs),
        "compensations failed": sum("failed" in facts.undone(run_id).values() for run_id in facts.runs),
        "children": len(rows("child_run", [])),
        "children asked to end": sum(row["cancel_asked_at"] is not None for row in rows("child_run", [])),
        "children that failed": sum(row["status"] == "failed" for row in rows("child_run", [])),
        "slots granted, as seen": len({(look["pool"], *held[:3]) for look in looks for held in look["held"]}),
        "limits": len({(look["pool"], look["set_at"]) for look in looks}),
        "rounds": sum(row.get("round") is not None for row in rows("attempt", [])),
        "deadlines over": due["deadline"],
        "deadlines of a queue over": due["start"],
        "deadlines of a run over": due["deadline of a run"],
        "questions to several": sum(row["needed"] > 1 for row in rows("approval", [])),
        "votes": len(rows("approval_vote", [])),
        "pauses of a run": sum(row["detail"]["scope"] == 1 for row in told),
        "by a pause of its workflow": sum(row["detail"]["scope"] == 2 for row in told),
        "pauses of a queue": sum("/queues/" in entry["target"] for entry in facts.calls("pause_all", "OK")),
        "turns of bulks": turns["done"],
        "refused turns": turns["refused"],
        "pauses of a task": sum(row["detail"]["scope"] == TASKS_PAUSED for row in told),
        "runs in line that had their turn": kinds["permitted"],
        "starts rejected by a limit": sum(
            facts.over(entry.get("workflow", "")) == "reject" and entry.get("status") == 409
            for entry in facts.calls("start", "FAIL")
        ),
        "starts dropped by a limit": sum(
            len(keys) - 1 for run_id, keys in _keys(facts).items() if (facts.limit(run_id) or {}).get("over") == "drop"
        ),
        "runs replaced": len({row["run_id"] for row in rows("inbox", []) if row.get("actor") == "limit"}),
        "clean-ups": sum(task["token"] > 0 for key, task in facts.tasks.items() if facts.cleans_up(key)),
        "clean-ups behind a cancel": _clean_ups_behind(facts, lambda row: row["kind"] == "cancelled"),
        "clean-ups behind a deadline": _clean_ups_behind(facts, facts.is_deadline_of_run),
        "moves": kinds["migrated"],
        "moves of a publish": sum(
            item["outcome"] == "done"
            for bulk in rows("bulk", [])
            for item in rows("bulk_item", [])
            if is_of_publish(bulk) and item["bulk_id"] == bulk["bulk_id"]
        ),
        "skips": kinds["supplied"],
        "reruns": kinds["reran"],
        "signals of records": sum((row["sender_id"] or "").startswith("sub") for row in rows("posted_signal", [])),
    }


def _keys(facts: Facts) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for row in facts.dump.get("trigger_key", []):
        if row["run_id"] in facts.runs:
            found[row["run_id"]].append(row["key"])
    return found


def _clean_ups_behind(facts: Facts, is_end: Callable[[Row], bool]) -> int:
    """Clean-ups that completed behind what had ended the rest of their runs."""
    ends = {run_id: row["row_version"] for run_id, rows in facts.history.items() for row in rows if is_end(row)}
    return sum(
        row["outcome"] == "completed" and row["row_version"] > ends[key[0]]
        for key, rows in facts.attempts.items()
        if key[0] in ends and facts.cleans_up(key)
        for row in rows
    )


def outcomes(facts: Facts) -> str:
    """What became of runs, calls and effects, a line for each."""
    runs = Counter(run["status"] for run in facts.runs.values())
    calls = Counter(f"{entry['op']} {entry['outcome']}" for entry in facts.log if "outcome" in entry)
    effects = Counter(line["outcome"] for line in facts.ledger)
    lost = Counter(row["outcome"] for rows in facts.attempts.values() for row in rows)
    calm = [e for e in facts.calls("fenced") if not any(f["at"] < e["at"] < f["healed_at"] + 10 for f in facts.faults)]
    quiet = [f"{e['seconds']:.1f} s" for e in facts.calls("quiet")] or ["never"]
    said = [f"quiet after the last heal: {quiet[0]}"]
    met = constructs(facts)
    said += ["constructs: " + ", ".join(f"{count} {what}" for what, count in met.items() if count)]
    said += [f"never met: {', '.join(what for what, count in met.items() if not count)}"] * (0 in met.values())
    said += [
        f"workers that fenced themselves: {sum(1 for _ in facts.calls('fenced'))}, far from any fault: {len(calm)}"
    ]
    return (
        "\n".join(said)
        + "\n"
        + "\n".join(
            f"{name}: {', '.join(f'{count} {what}' for what, count in sorted(counted.items()))}"
            for name, counted in (("runs", runs), ("calls", calls), ("ledger", effects), ("attempts", lost))
        )
    )


def last_line(seed: int, facts: Facts, violations: list[Violation]) -> str:
    """Only faults that did something are counted."""
    fired = [fault for fault in facts.faults if fault["fired"]]
    kinds = {fault["kind"] for fault in fired}
    return (
        f"chaos: seed {seed}, {len(fired)} faults of {len(kinds)} kinds, "
        f"{len(facts.runs)} runs, {len(violations)} violations"
    )
