"""How much each workload does: the sizes that numbers are published with, and two smaller sets."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Sizes:
    repeat: int = 5
    warm_runs: int = 2_500
    """The broker's JVM compiles its hot paths for its first 20 to 30 s, at half a core."""
    calibration_seconds: int = 4
    runs: int = 4_000
    """W1, and W6 before and after."""
    sustained_runs: int = 100_000
    rates: tuple[float, ...] = (20.0, 250.0)
    """W2, runs per second."""
    rate_seconds: float = 8.0
    rate_warm_seconds: float = 25.0
    rate_warm_times: int = 3
    """Before W2 at each rate. A load that is far from saturation calls the broker's code so seldom that its JVM goes on
    compiling for more than a minute, and what is compiled at saturation is compiled for other batches."""
    width: int = 1_000
    """W3."""
    timers: int = 10_000
    """W4."""
    faults: int = 5
    """W5, of each kind."""
    finished: int = 1_000_000
    """W6 and W7, runs behind."""
    wide_tasks: int = 10_000
    """W7, of the widest run: the most that a graph may have."""
    requests: int = 60
    """W7, of each kind."""
    stranded_runs: int = 2_000
    """W7 and console, open runs that only an operator moves."""
    items: int = 10_000
    """console, of the map: the most that a map may have."""
    busy_steps: int = 2_000
    """W1-console, of the run that is looked at: more than end while W1 goes on."""
    growth_runs: int = 2_500
    """W8, of each number of processes."""
    streams: tuple[int, ...] = (1, 2, 4)
    workers: tuple[int, ...] = (1, 2, 4, 8)
    payloads: tuple[tuple[int, int], ...] = ((10 * 1024, 1_000), (200 * 1024, 100))
    """W9, bytes and runs."""
    idle_seconds: float = 15.0
    overload_factor: float = 10.0
    overload_seconds: float = 60.0
    overload_patience: float = 60.0
    """So long after the burst the latency may take to be normal again."""


FULL: Final = Sizes()
QUICK: Final = Sizes(repeat=1, runs=1_500)
"""W1 alone, within 50 s."""
TINY: Final = Sizes(
    repeat=1,
    sustained_runs=400,
    warm_runs=100,
    calibration_seconds=1,
    runs=200,
    rates=(20.0,),
    rate_seconds=2.0,
    rate_warm_seconds=1.0,
    width=100,
    timers=500,
    faults=1,
    finished=10_000,
    wide_tasks=1_000,
    requests=10,
    stranded_runs=100,
    items=1_000,
    busy_steps=500,
    growth_runs=150,
    streams=(1, 2),
    workers=(1, 2),
    payloads=((10 * 1024, 30), (200 * 1024, 5)),
    idle_seconds=3.0,
    overload_seconds=3.0,
    overload_patience=30.0,
)
"""Whether it works; its numbers say nothing."""
