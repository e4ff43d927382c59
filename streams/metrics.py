"""What a streams process counts, by Prometheus conventions. Nothing is labelled by run or task: those have no bound."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from headrace.machine import Abort, BuryTask, Dispatch, EndAttempt, MachineEvent, Transition
from headrace.messages import Failed, Succeeded
from state.counters import CounterRow


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
        self.seconds = Histogram(
            "headrace_task_attempt_seconds",
            "How long bodies ran, by the worker's clock.",
            registry=registry,
            buckets=(0.005, 0.02, 0.1, 0.5, 2, 10, 60, 300, 1800),
        )
        self.batch_records = Histogram(
            "headrace_batch_records",
            "Records per transaction.",
            registry=registry,
            buckets=(1, 3, 10, 30, 100, 300, 1000, 3000),
        )
        self._outcomes = {o: self.attempts.labels(o) for o in ("completed", "failed", "lost", "cancelled", "returned")}

    def fresh(self) -> list[CounterRow]:
        """What came since the last call."""
        rows = []
        for family in self._registry.collect():
            for sample in family.samples:
                if sample.name.endswith("_created"):
                    continue
                known = (sample.name, *sorted(sample.labels.items()))
                came = sample.value - self._told.get(known, 0.0)
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
        self.records.inc(records)
        self.batch_records.observe(records)

    def event(self, event: MachineEvent, transition: Transition) -> None:
        lost = False
        for action in transition.actions:
            if isinstance(action, Dispatch):
                self.handed_out.inc()
                if action.token > 1:
                    self.retries.inc()
                    if lost:
                        self.takeovers.inc()
            elif isinstance(action, EndAttempt):
                self._outcomes[action.outcome].inc()
                lost = action.outcome == "lost"
            elif isinstance(action, BuryTask):
                self.buried.inc()
            elif isinstance(action, Abort):
                lost = lost or action.reason == "lost"
        if isinstance(event, Succeeded | Failed) and event.started:
            self.seconds.observe(max(0, event.finished - event.started) / 1_000_000)
