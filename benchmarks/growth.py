"""W8: what more processes of a kind cost and bring on this machine: 1, 2, 4 streams processes with one worker, then 1,
2, 4, 8 workers with one streams process; the workload of W1. All share the same cores, so this shows the price of
dividing the work, not how far it scales."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from benchmarks.bench import Bench, Measurement
from benchmarks.saturation import saturate
from benchmarks.session import CHAIN, Session, warm_up
from benchmarks.table import spread

SETTLED_SECONDS: Final = 90.0
KINDS: Final = ("streams", "worker")

_OWNERS: Final = "SELECT owner, count(*) FROM partition_owner WHERE topic = %(topic)s GROUP BY owner"


def measure(session: Session) -> None:
    sizes = session.sizes
    session.close_benches()
    for kind, counts in zip(KINDS, (sizes.streams, sizes.workers), strict=True):
        with session.rig.bench(f"growth_{kind}", workflows=[CHAIN]) as bench:
            warm_up(bench, sizes.warm_runs)
            _grow(session, bench, kind, counts)


def _grow(session: Session, bench: Bench, kind: str, counts: Sequence[int]) -> None:
    sizes, pgbench = session.sizes, session.calibrate()
    by_count: dict[int, list[Measurement]] = {}
    for count in counts:
        _have(bench, kind, count, session.rig.partitions)
        by_count[count] = [saturate(bench, sizes.growth_runs) for _ in range(sizes.repeat)]
    rows = [row for count, found in by_count.items() for row in _rows(count, kind, found)]
    found = [{str(count): of_one[turn] for count, of_one in by_count.items()} for turn in range(sizes.repeat)]
    plural = "streams processes" if kind == "streams" else "workers"
    title = f"{', '.join(map(str, counts))} {plural}, {sizes.growth_runs} runs x {sizes.repeat}"
    session.report.add(f"W8 {kind}", title, rows, found, pgbench_c8=pgbench)


def _rows(count: int, kind: str, found: list[Measurement]) -> Iterator[tuple[str, str]]:
    yield f"{count}: steps/s", spread([one["steps_per_s"] for one in found], 0)
    yield f"{count}: CPU us per step", spread([sum(one["cpu_us_per_step"].values()) for one in found], 1)
    yield f"{count}:   of it {kind}", spread([_of_kind(one["cpu_us_per_step"], kind) for one in found], 1)
    yield f"{count}:   of it broker", spread([one["cpu_us_per_step"].get("broker", 0.0) for one in found], 1)
    yield f"{count}: records per transaction", spread([one["records_per_transaction"] for one in found], 0)
    yield f"{count}: MiB of {kind}", spread([_of_kind(one["memory_mib"], kind) for one in found], 0)


def _of_kind(parts: dict[str, float], kind: str) -> float:
    return sum(value for part, value in parts.items() if part.startswith(kind))


def _have(bench: Bench, kind: str, count: int, partitions: int) -> None:
    """Add processes until there are so many, and wait until each has a share of the work."""
    add = bench.stack.add_streams if kind == "streams" else bench.stack.add_worker
    while sum(name.startswith(kind) for name in bench.stack.pids()) < count:
        add()
    shares = _streams_shares if kind == "streams" else _worker_shares

    def are_settled() -> bool:
        found = shares(bench)
        return len(found) == count and sum(found) == partitions and all(found)

    bench.wait(are_settled, SETTLED_SECONDS, f"{count} processes of {kind} share the partitions")


def _streams_shares(bench: Bench) -> list[int]:
    return [int(share) for _, share in bench.rows(_OWNERS, topic=f"{bench.name}.events")]


def _worker_shares(bench: Bench) -> list[int]:
    """Partitions of each member of the workers' group; empty while the broker cannot tell."""
    admin, name = AdminClient({"bootstrap.servers": bench.kafka.bootstrap, "log_level": 0}), f"{bench.name}.workers"
    try:
        group: Any = admin.describe_consumer_groups([name])[name].result(5)
    except (KafkaException, TimeoutError):
        return []
    return [len(member.assignment.topic_partitions) for member in group.members]
