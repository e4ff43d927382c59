"""The tables: every peer beside the Headrace that was measured next to it, with the ratios of these neighbours."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from benchmarks.peers.measurement import NOISY_CORES
from benchmarks.peers.settings import HEADRACE, versions

Record = Mapping[str, Any]


class Measure(NamedTuple):
    title: str
    is_rate: bool = False
    """More is better."""


WORKLOADS: Final[Mapping[str, tuple[str, Mapping[str, Measure]]]] = {
    "w1": ("10-step workflows at saturation", {"steps_per_s": Measure("steps/s", is_rate=True)}),
    "w2": (
        "light load, one run at a time",
        {
            "p50_ms": Measure("trigger to first step, p50 ms"),
            "p99_ms": Measure("p99 ms"),
            "gap_p50_ms": Measure("step to next step, p50 ms"),
            "gap_p99_ms": Measure("p99 ms"),
        },
    ),
    "w3": ("1,000 parallel steps and a join", {"wall_s": Measure("s")}),
    "w4": (
        "timers that are all due at once",
        {
            "wakeups_per_s": Measure("wake-ups/s", is_rate=True),
            "late_p50_s": Measure("late, p50 s"),
            "late_p99_s": Measure("late, p99 s"),
        },
    ),
    "w5": (
        "kill -9 to the next step elsewhere",
        {"resume_p50_s": Measure("s, median of a round"), "resume_max_s": Measure("s, worst of a round")},
    ),
}


def report(told: Mapping[str, Any]) -> str:
    """told: what `python -m benchmarks.peers` wrote. Markdown."""
    records: list[Record] = told["records"]
    calibrations = {record["round"]: record["pgbench_c8"] for record in records if record["pgbench_c8"]}
    lines = [
        "# Peers",
        "",
        f"{told['cores']} cores, {told['memory_gib']} GiB, Postgres {told['postgres']}. Every cell is the median"
        " [least..most] over the rounds. Each peer stands beside the Headrace that was measured right behind it; a",
        "ratio above 1 says how many times better Headrace was than its neighbour, the median [least..most] of these"
        " pairs.",
        f"A round is noisy where others used more than {NOISY_CORES} core.",
        "",
        f"pgbench, single-row commits/s with 8 clients: {span(list(calibrations.values()))}.",
        "",
    ]
    for workload, (title, measures) in WORKLOADS.items():
        of_one = [record for record in records if record["workload"] == workload]
        if of_one:
            lines += [f"## {workload.upper()}: {title}", "", *_table(of_one, measures), ""]
            lines += [
                f"Headrace: `{settings}`" for settings in {_settings(r): 0 for r in of_one if r["name"] == HEADRACE}
            ]
            lines += [""]
    if told["missing"]:
        lines += ["## Not measured", ""]
        lines += [f"- {peer}: {why}" for peer, why in told["missing"].items()]
    return "\n".join(lines).rstrip() + "\n"


def _table(records: Sequence[Record], measures: Mapping[str, Measure]) -> Iterable[str]:
    titles = [cell for measure in measures.values() for cell in (measure.title, "Headrace", "ratio")]
    head = ["peer", *titles, "rounds", "settings", "version"]
    yield "| " + " | ".join(head) + " |"
    yield "|---" * len(head) + "|"
    names = dict.fromkeys(record["name"] for record in records if record["name"] != HEADRACE)
    rows = [_row(name, records, measures) for name in names]
    for _, row in sorted(rows):
        yield row


def _row(name: str, records: Sequence[Record], measures: Mapping[str, Measure]) -> tuple[float, str]:
    """What the row is sorted by, the best peer first; and the row."""
    of_peer = [record for record in records if record["name"] == name]
    pairs = [(record, _neighbour(record, records)) for record in of_peer]
    cells = [cell for key, measure in measures.items() for cell in _cells(key, measure, pairs)]
    failed = sum(record["value"] is None for record in of_peer)
    noisy = sum(record["other_cores"] > NOISY_CORES for pair in pairs for record in pair if record)
    rounds = (
        f"{len(of_peer) - failed}" + (f", {failed} failed" if failed else "") + (f", {noisy} noisy" if noisy else "")
    )
    first_key, first = next(iter(measures.items()))
    values = [record["value"][first_key] for record in of_peer if record["value"]]
    rank = statistics.median(values) * (-1 if first.is_rate else 1) if values else float("inf")
    return rank, "| " + " | ".join([name, *cells, rounds, f"`{_settings(of_peer[0])}`", versions(name)]) + " |"


def _settings(record: Record) -> str:
    return " ".join(f"{key}={value}" for key, value in record["arguments"].items())


def _neighbour(record: Record, records: Sequence[Record]) -> Record | None:
    """The Headrace of the same pair."""
    return next((one for one in records if one["name"] == HEADRACE and one["pair"] == record["pair"]), None)


def _cells(key: str, measure: Measure, pairs: Sequence[tuple[Record, Record | None]]) -> list[str]:
    both = [(_value(peer, key), _value(ours, key)) for peer, ours in pairs]
    ratios = [
        ours / theirs if measure.is_rate else theirs / ours
        for theirs, ours in both
        if theirs is not None and ours is not None and min(theirs, ours) > 0
    ]
    columns = [[one for one in column if one is not None] for column in zip(*both, strict=True)]
    return [span(columns[0]), span(columns[1]), span(ratios)]


def _value(record: Record | None, key: str) -> float | None:
    return record["value"].get(key) if record and record["value"] else None


def span(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = _number(statistics.median(values))
    return middle if min(values) == max(values) else f"{middle} [{_number(min(values))}..{_number(max(values))}]"


def _number(value: float) -> str:
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:,.{digits}f}"
