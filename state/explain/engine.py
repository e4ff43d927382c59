"""What holds up every task alike: streams processes, the relay, Kafka, a partition."""

from collections.abc import Iterator
from typing import Final

from headrace.machine import RunStatus
from state.explain.cause import Act, Cause, Code, Object
from state.explain.facts import Facts
from state.explain.words import DOCTOR, LATE_SECONDS, START_RELAY, ago, for_how_long, seconds_since
from state.passes import SLOW_SWEEPS

RELAY_SECONDS: Final = 10.0
"""The relay renews its row every second."""

LAG_BYTES: Final = 64 * 1024 * 1024
"""About a second of a saturated engine."""

SWEEP_SECONDS: Final = 15.0
"""In which every sweep has made several passes, except the slow ones, which nothing waits for."""

KAFKA_SWEEPS: Final = frozenset({"lost", "topics"})
"""The sweeps that ask Kafka; the others only need Postgres."""


def causes_in_engine(facts: Facts) -> list[Cause]:
    """What is wrong with the parts that carry events and commands, as far as Postgres shows it."""
    return [*_streams(facts), *_relay(facts), *_partition(facts)]


def _streams(facts: Facts) -> Iterator[Cause]:
    passes = {name: at for name, at in facts.engine.passes.items() if name not in SLOW_SWEEPS}
    late = {name for name, at in passes.items() if seconds_since(facts, at) > SWEEP_SECONDS}
    if len(late) == len(passes):
        at = max(passes.values(), default=None)
        text = f"No sweep has passed{for_how_long(facts, at)}: no streams process works."
        moves = "a streams process starts"
        acts = [Act("headrace doctor", "GET /health"), Act("python -m streams", "GET /doctor")]
        yield Cause(Code.STREAMS_AWAY, text, Object("sweep", "", "/health"), moves, at, acts=acts)
        return
    if late and late == KAFKA_SWEEPS & passes.keys():
        at = min(passes[name] for name in late)
        text = f"Kafka has not answered the sweeps{for_how_long(facts, at)}."
        yield Cause(Code.KAFKA_AWAY, text, Object("kafka", "", "/health"), "Kafka answers again", at, acts=[DOCTOR])
        return
    for name in sorted(late):
        text = f"The sweep of {name} last passed {ago(facts, passes[name])}."
        yield Cause(Code.SWEEP_LATE, text, Object("sweep", name, "/health"), "the sweep passes again", passes[name])


def _relay(facts: Facts) -> Iterator[Cause]:
    engine, relay = facts.engine, facts.engine.relay
    if relay is None:
        text = "No relay has ever worked here: nothing that is decided reaches Kafka."
        yield Cause(Code.RELAY_AWAY, text, Object("relay", "", "/health"), "a relay starts", acts=[START_RELAY])
        return
    this, slot = Object("relay", relay.owner, "/health"), Object("slot", relay.slot, "/health")
    if not relay.slot_is_there or relay.wal_status == "lost":
        text = f"The relay's replication slot {relay.slot} is {'lost' if relay.slot_is_there else 'missing'}."
        yield Cause(Code.SLOT_LOST, text, slot, "the relay makes it anew, and a sweep hands out again what is open")
    if seconds_since(facts, relay.renewed_at) > RELAY_SECONDS:
        at = None if relay.renewed_at.year <= 1970 else relay.renewed_at
        text = f"No relay works: {relay.owner} was last heard of {ago(facts, at)}." if at else (
            f"No relay works: {relay.owner} has stopped in order, and no other one has taken over.")  # fmt: skip
        yield Cause(Code.RELAY_AWAY, text, this, "a relay starts", at, acts=[START_RELAY])
    elif relay.lag_bytes > LAG_BYTES:
        text = f"The relay is {relay.lag_bytes / 1_000_000:.0f} MB of the database's log behind."
        yield Cause(Code.RELAY_BEHIND, text, slot, "it catches up", relay.renewed_at)
    if (
        engine.ticked_at is None
        or seconds_since(facts, engine.ticked_at) > LATE_SECONDS + facts.lease.total_seconds() / 10
    ):
        text = "Nothing is known to have gone through relay, Kafka and session agent"
        text += f"{for_how_long(facts, engine.ticked_at)}: sessions and lost commands are not judged meanwhile."
        yield Cause(Code.TICKS_LATE, text, this, "a tick arrives at the session agent", engine.ticked_at)


def _partition(facts: Facts) -> Iterator[Cause]:
    """A run agent shows that it works only by what it applies."""
    engine = facts.engine
    this = Object("partition", str(engine.partition), "/health")
    if engine.owner is None:
        text = f"Nobody has ever read partition {engine.partition} of the events, where this run's are."
        yield Cause(Code.PARTITION_UNOWNED, text, this, "a streams process takes it", acts=[DOCTOR])
        return
    said = [request.created_at for request in facts.requests if facts.status is not RunStatus.NEEDS_ATTENTION]
    overdue = [t.timer.due_at for t in facts.tasks.values() if t.timer is not None and t.timer.said_at is not None]
    unheard = min((at for at in (*said, *overdue) if seconds_since(facts, at) > LATE_SECONDS), default=None)
    if unheard is not None:
        text = f"Process {engine.owner} reads partition {engine.partition} of the events, and has not applied what was "
        text += f"said {ago(facts, unheard)}."
        moves = "it goes on, or another streams process takes the partition"
        yield Cause(Code.PARTITION_SILENT, text, this, moves, unheard, acts=[DOCTOR])
