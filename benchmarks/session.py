"""One command: the rig, the report, and the stacks that several workloads share."""

import contextlib
from types import TracebackType
from typing import Final, Self

from benchmarks import aged
from benchmarks.bench import Bench
from benchmarks.report import Report
from benchmarks.rig import Rig
from benchmarks.sizes import Sizes
from benchmarks.workflows import linear

STEPS: Final = 10
CHAIN: Final = linear(STEPS)
FIRST_RUNS: Final = 300
"""Of a warm-up: then every part has done everything once."""


class Session:
    def __init__(self, rig: Rig, report: Report, sizes: Sizes) -> None:
        self.rig, self.report, self.sizes = rig, report, sizes
        self._open = contextlib.ExitStack()
        self._bench: Bench | None = None
        self._aged: Bench | None = None
        self._is_stranded = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    @property
    def bench(self) -> Bench:
        """The stack on which most is measured: one process of each kind, warm."""
        if self._bench is None:
            self._bench = self._open.enter_context(self.rig.bench("headrace", workflows=[CHAIN]))
            warm_up(self._bench, self.sizes.warm_runs)
        return self._bench

    @property
    def aged(self) -> Bench:
        """Another, warm too, with many finished runs behind it, on a server of its own."""
        if self._aged is None:
            self._aged = self._open.enter_context(self.rig.bench("aged", workflows=[CHAIN], own_postgres=True))
            warm_up(self._aged, self.sizes.warm_runs)
            aged.fill(self._aged, CHAIN["name"], self.sizes.finished)
        return self._aged

    @property
    def stranded(self) -> Bench:
        """The same with open runs besides that only an operator moves, which have been stuck for long enough to be
        called so. They are there from then on."""
        bench = self.aged
        if not self._is_stranded:
            aged.strand(bench, self.sizes.stranded_runs)
            self._is_stranded = True
        return bench

    def close_benches(self) -> None:
        """Stop what is shared, for a workload that wants the machine for its own stack."""
        self._open.close()
        self._bench = self._aged = None
        self._is_stranded = False

    def calibrate(self) -> float:
        return self.rig.calibrate(self.sizes.calibration_seconds)


def warm_up(bench: Bench, runs: int) -> None:
    for number in (min(FIRST_RUNS, runs), runs):
        bench.measure(STEPS, CHAIN["name"], "burst", str(number))
