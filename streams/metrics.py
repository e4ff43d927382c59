"""What a streams process counts, by Prometheus conventions. Nothing is labelled by run or task: those have no bound."""

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from headrace.machine import Abort, BuryTask, Dispatch, EndAttempt, MachineEvent, Transition
from headrace.messages import Failed, Succeeded
from state.counters import CounterRow

_ANSWERS: Final = (Succeeded, Failed)


class Durations(Collector):
    """A histogram with one writer and no lock: an event of the hot path pays a fifth of what it pays otherwise."""

    def __init__(self, name: str, what: str, bounds: tuple[float, ...]) -> None:
        self._name, self._what, self._bounds = name, what, bounds
        self._counts, self._sum = [0] * (len(bounds) + 1), 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterable[Metric]:
        bounds = [*map(str, self._bounds), "+Inf"]
        buckets = [(bound, float(count)) for bound, count in zip(bounds, accumulate(self._counts), strict=True)]
        yield HistogramMetricFamily(self._name, self._what, buckets, self._sum)


class Metrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._told: dict[tuple[Any, ...], float] = {}

        def counter(name: str, what: str, labels: tuple[str, ...] = ()) -> Counter:
            return Counter(f"headrace_{name}", what, labels, registry=registry)

        self.attempts = counter("task_attempts", "Attempts that ended, by outcome.", ("outcome",))
        self.handed_out = counter("task_hand_outs", "Commands decided.")
        self.retries = counter("task_retries", "Hand-outs after the first of a task.")
        self.takeovers = counter("task_takeovers", "Hand-outs of tasks whose worker was lost.")
        self.buried = counter("task_dead_letters", "Tasks set aside: no try was left.")
        self.stale = counter("events_stale", "Events that changed nothing: late, repeated, or of a run that is over.")
        self.forged = counter("events_forged", "Events whose nonce was wrong.")
        self.lost_future = counter(
            "lost_future_records", "Records that tell of what the database lost when it failed over."
        )
        self.set_aside = counter("records_set_aside", "Records that could not be read or handled.")
        self.trigger_waits = counter(
            "trigger_waits", "Times that records began to wait in Kafka because too many runs were under way."
        )
        self.trigger_wait_seconds = counter(
            "trigger_wait_seconds", "Seconds that topics waited for that, over all of them."
        )
        self.overtaken = counter(
            "batches_overtaken", "Batches that met another writer and were decided again (fenced writes)."
        )
        self.records = counter("records", "Records applied.")
        self.sweep_found = counter("sweep_found", "What the sweeps found, by sweep.", ("sweep",))
        self.seconds = Durations(
            "headrace_task_attempt_seconds",
            "How long bodies ran, by the worker's clock.",
            (0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0, 300.0, 1800.0),
        )
        registry.register(self.seconds)
        self.batch_records = Histogram(
            "headrace_batch_records",
            "Records per transaction.",
            registry=registry,
            buckets=(1, 3, 10, 30, 100, 300, 1000, 3000),
        )
        outcomes = ("completed", "failed", "lost", "cancelled", "returned")
        self._counters = {outcome: self.attempts.labels(outcome) for outcome in outcomes} | {
            "handed out": self.handed_out,
            "retry": self.retries,
            "takeover": self.takeovers,
            "buried": self.buried,
        }
        self._tally: Tally[str] = Tally()
        """Of the batch that is being decided: a counter has a lock, and is paid once per batch."""

    def fresh(self) -> list[CounterRow]:
        """What came since the last call."""
        rows = []
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                known = (sample.name, *sorted(sample.labels.items()))
                came = float(sample.value) - self._told.get(known, 0.0)
                if came:
                    self._told[known] = sample.value
                    rows.append(
                        CounterRow(family.name, family.type, family.documentation, sample.name, sample.labels, came)
                    )
        return rows

    def take_back(self, rows: Iterable[CounterRow]) -> None:
        """They could not be stored: tell them again next time."""
        for row in rows:
            self._told[row.sample, *sorted(row.labels.items())] -= row.value

    def batch(self, records: int) -> None:
        """A batch was committed."""
        self.records.inc(records)
        self.batch_records.observe(records)
        for what, count in self._tally.items():
            self._counters[what].inc(count)
        self._tally.clear()

    def forget_batch(self) -> None:
        """A batch was not committed; what it decided is decided again."""
        self._tally.clear()

    def event(self, event: MachineEvent, transition: Transition) -> None:
        tally, lost = self._tally, False
        for action in transition.actions:
            if isinstance(action, Dispatch):
                tally["handed out"] += 1
                if action.token > 1:
                    tally["retry"] += 1
                    if lost:
                        tally["takeover"] += 1
            elif isinstance(action, EndAttempt):
                tally[action.outcome] += 1
                lost = action.outcome == "lost"
            elif isinstance(action, BuryTask):
                tally["buried"] += 1
            elif isinstance(action, Abort):
                lost = lost or action.reason == "lost"
        if isinstance(event, _ANSWERS) and event.started:
            self.seconds.observe(max(0, event.finished - event.started) / 1_000_000)
