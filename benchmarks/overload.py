"""overload: runs arrive ten times as fast as they can be worked off, for 60 s. Once through the API, once as records of
a topic that starts them, each on a stack of its own.

A caller of the API is told to come again. A record waits in Kafka, which takes all of them; what is told there is how
starts over HTTP fare meanwhile and while the topic is worked off, which takes as long as it takes.

Told are the memory of every process before, at most and in the end, what the API answers, and when latency is normal
again: probes, single-task runs started over HTTP five times a second all the while, must end within twice what the
slowest took before the burst. A probe passes every queue there is: to the relay, to the worker, to the run agent. One
that was refused, or never ends, is not normal either.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import httpx
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from benchmarks.bench import ROOT, Bench, Measurement
from benchmarks.saturation import saturate
from benchmarks.session import CHAIN, STEPS, Session, warm_up
from benchmarks.table import percentiles
from benchmarks.workflows import independent

PROBE: Final = independent(1)
PROBES_PER_SECOND: Final = 5.0
BEFORE_SECONDS: Final = 5.0
STEADY_SECONDS: Final = 5.0
"""Latency is normal again once every probe of so long a time was."""
YOUNG_SECONDS: Final = 1.0
"""A probe that is younger and has not ended says nothing yet."""
NORMAL_SECONDS_MIN: Final = 0.1
LOOK_SECONDS: Final = 1.0
TIMEOUT_SECONDS: Final = 30.0
TOPIC_PARTITIONS: Final = 8

_PROBES: Final = """
SELECT (r.input ->> 'due')::float / 1e6, extract(epoch FROM r.finished_at)::float - (r.input ->> 'due')::float / 1e6
FROM run r JOIN workflow_version v USING (version_id)
WHERE v.name = %(probe)s AND (r.input ->> 'due')::float / 1e6 > %(since)s ORDER BY 1"""
_OPEN: Final = (
    "SELECT count(*) FROM run "
    "WHERE status IN ('running', 'waiting', 'pausing', 'paused', 'cancelling', 'compensating', 'needs_attention')"
)
_STATUSES: Final = "SELECT status::text, count(*) FROM run GROUP BY 1"

Flood = Callable[[Bench, float, float], "subprocess.Popen[str]"]
"""Starts runs at so many per second for so many seconds, in a process of its own."""


def through_api(bench: Bench, per_second: float, seconds: float) -> "subprocess.Popen[str]":
    address = bench.stack.api_url.removeprefix("http://")
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.callers", address, CHAIN["name"], str(per_second), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "HEADRACE_API_TOKEN": bench.stack.token},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def through_topic(bench: Bench, per_second: float, seconds: float) -> "subprocess.Popen[str]":
    topic = f"flood.{bench.name}"  # the engine's own topics start nothing
    admin = AdminClient({"bootstrap.servers": bench.kafka.bootstrap})
    admin.create_topics([NewTopic(topic, TOPIC_PARTITIONS, 1)])[topic].result(TIMEOUT_SECONDS)
    answer = httpx.post(
        f"{bench.stack.api_url}/subscriptions",
        headers=bench.stack.headers,
        json={"name": "flood", "topic": topic, "workflow": CHAIN["name"]},
        timeout=TIMEOUT_SECONDS,
    )
    answer.raise_for_status()
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.records", bench.kafka.bootstrap, topic, str(per_second), str(seconds)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


FLOODS: Final[dict[str, Flood]] = {"api": through_api, "topic": through_topic}
WAYS: Final = {"api": "through the API", "topic": "as records of a topic"}


def measure(session: Session) -> None:
    session.close_benches()
    for name, flood in FLOODS.items():
        with session.rig.bench(f"overload_{name}", workflows=[CHAIN, PROBE]) as bench:
            warm_up(bench, session.sizes.warm_runs)
            pgbench = session.calibrate()
            _report(session, name, _overload(session, bench, flood), pgbench)


def _overload(session: Session, bench: Bench, flood: Flood) -> Measurement:
    sizes = session.sizes
    per_second = saturate(bench, sizes.growth_runs)["steps_per_s"] / STEPS * sizes.overload_factor
    sampler = bench.sampler()
    memory_before = sampler.sample_memory()
    with Probes(bench) as probes:
        time.sleep(BEFORE_SECONDS)
        normal = max(NORMAL_SECONDS_MIN, 2 * max(probes.latencies(probes.began), default=0.0))
        burst, backlog = time.time(), 0
        with flood(bench, per_second, sizes.overload_seconds) as process:
            while process.poll() is None:
                sampler.sample_memory()
                backlog = max(backlog, int(bench.one(_OPEN)))
                time.sleep(LOOK_SECONDS)
            told = json.loads(process.communicate()[0])
        over = time.time()
        backlog = max(backlog, int(bench.one(_OPEN)))
        while (back := probes.normal_since(over, normal)) is None and time.time() < over + sizes.overload_patience:
            sampler.sample_memory()
            time.sleep(LOOK_SECONDS)
        statuses = probes.statuses(burst)
    return {
        "arrivals_per_s": per_second,
        "burst_s": over - burst,
        "watched_s": time.time() - burst,
        "told": told,
        "backlog_runs": backlog,
        "normal_s": normal,
        "back_s": back,
        "patience_s": sizes.overload_patience,
        "probes": statuses,
        "probe_s": percentiles(probes.latencies(burst), 3),
        "runs": dict(bench.rows(_STATUSES)),
        "memory_mib": {"before": memory_before, "most": sampler.most_mib, "after": sampler.sample_memory()},
    }


def _report(session: Session, name: str, found: Measurement, pgbench: float) -> None:
    told, memory = found["told"], found["memory_mib"]
    started = sum(found["runs"].values())
    late = f"not within {found['patience_s']:g} s of the end of the burst"
    back = f"{found['back_s']:.1f}" if found["back_s"] is not None else late
    rows = [
        ("arrivals/s asked for", f"{found['arrivals_per_s']:,.0f}"),
        ("runs started, probes with them", f"{started:,}, {started / found['watched_s']:,.0f}/s"),
        ("answers to the flood", _counts(told.get("answers", {})) or f"records in Kafka x {told['sent']:,}"),
        ("with Retry-After", _counts(told.get("retry_after", {})) or "-"),
        ("answer of 201 to the flood, ms", _shares(told.get("answer_ms", {}).get("201", {})) or "-"),
        ("answers to the probes", _counts(found["probes"])),
        ("probes: due -> end of the run, s", _shares(found["probe_s"])),
        ("backlog at most, runs", f"{found['backlog_runs']:,}"),
        ("runs in the end", _counts(found["runs"])),
        (f"normal (<= {found['normal_s']:.2f} s) again after, s", back),
    ]
    rows += [
        (f"MiB of {part}: before, most, after", f"{memory['before'].get(part, 0):.0f}, {most:.0f}, {after:.0f}")
        for part, most in sorted(memory["most"].items(), key=lambda item: -item[1])
        for after in (memory["after"].get(part, 0.0),)
    ]
    factor, seconds = session.sizes.overload_factor, session.sizes.overload_seconds
    title = f"{factor:g} times the saturated arrival for {seconds:g} s, {WAYS[name]}"
    session.report.add(f"overload {name}", title, rows, [found], pgbench_c8=pgbench)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} x {count:,}" for name, count in sorted(counts.items()) if count)


def _shares(found: dict[str, float]) -> str:
    return ", ".join(f"{share} {value:g}" for share, value in found.items())


class Answered(NamedTuple):
    due: float
    status: str


class Probes:
    """An open loop of single-task runs over HTTP while the block lasts."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._url = f"{bench.stack.api_url}/workflows/{PROBE['name']}/runs"
        self._client = httpx.Client(headers=bench.stack.headers, timeout=TIMEOUT_SECONDS)
        self._pool = ThreadPoolExecutor(64)
        self._halt = threading.Event()
        self._thread = threading.Thread(target=self._run, name="probes", daemon=True)
        self._answers: list[Answered] = []
        self.began = time.time()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._halt.set()
        self._thread.join()
        self._pool.shutdown()
        self._client.close()

    def _run(self) -> None:
        number = 0
        while not self._halt.wait(max(0.0, self.began + number / PROBES_PER_SECOND - time.time())):
            self._pool.submit(self._start, self.began + number / PROBES_PER_SECOND)
            number += 1

    def _start(self, due: float) -> None:
        try:
            status = str(self._client.post(self._url, json={"input": {"due": round(due * 1e6)}}).status_code)
        except httpx.HTTPError as error:
            status = type(error).__name__
        self._answers.append(Answered(due, status))

    def statuses(self, since: float) -> dict[str, int]:
        """Answers to the probes that were due since then: status, or what broke, and how many."""
        return dict(Counter(status for due, status in self._answers if due >= since))

    def latencies(self, since: float) -> list[float]:
        """Seconds from due to the end of the probes that ended."""
        return [late for _, late in self._rows(since) if late is not None]

    def normal_since(self, over: float, normal: float) -> float | None:
        """Seconds after `over` since which every probe was normal; None while that is not long enough ago."""
        now = time.time()
        wrong = [due for due, late in self._rows(over) if late is None or late > normal]
        wrong += [due for due, status in self._answers if due > over and status not in ("200", "201")]
        last = max((due for due in wrong if due < now - YOUNG_SECONDS), default=over)
        return last - over if now - YOUNG_SECONDS - last > STEADY_SECONDS and self._are_answered(last, now) else None

    def _are_answered(self, since: float, now: float) -> bool:
        """Whether most probes between then and a moment ago have an answer: one that waits is in no row yet."""
        due = sum(since < answered.due < now - YOUNG_SECONDS for answered in self._answers)
        return due >= (now - YOUNG_SECONDS - since) * PROBES_PER_SECOND - 2

    def _rows(self, since: float) -> list[tuple[Any, ...]]:
        return self._bench.rows(_PROBES, probe=PROBE["name"], since=since)
