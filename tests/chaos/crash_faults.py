"""Faults at the crash points of `tests/faults/points.py`: a process ends at a named place, or its request or the answer
to it is lost there.
"""

import json
import time
from typing import ClassVar

from tests.chaos.fault import Fault


class _CrashPoint(Fault):
    """Arms one point in the processes that pass it, waits until one of them has, and disarms."""

    points: ClassVar[dict[str, tuple[str, ...]]] = {}
    """Point -> the ways in which it can be hit here."""
    uses = frozenset({"crash point"})
    lasts = (0.0, 0.0)
    wait_seconds: ClassVar[float] = 8.0

    def begin(self) -> None:
        point = self.draw.choice(list(self.points))
        when = self.draw.choice(self.points[point])
        self.facts |= {"point": point, "when": when}
        orders, fired = self.system.orders, self.system.orders.with_name("order.json.fired")
        fired.unlink(missing_ok=True)
        scratch = orders.with_name("order.json.new")
        scratch.write_text(json.dumps({"id": str(time.time_ns()), "point": point, "when": when, "nth": 1}))
        scratch.replace(orders)
        end = time.monotonic() + self.wait_seconds
        try:
            while not fired.exists() and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            orders.unlink(missing_ok=True)
            self.fired = int(fired.exists())


class ApiCrashes(_CrashPoint):
    kind = "F12 api dies around its commit"
    points: ClassVar = {"CP01": ("before", "after", "reply_lost"), "CP02": ("before", "after")}


class AgentCrashes(_CrashPoint):
    kind = "F06 F07 agent dies around its commit"
    points: ClassVar = {
        "CP03": ("before", "after"),
        "CP04": ("before", "after", "refused"),
        "CP05": ("before", "after", "reply_lost"),
        "CP06": ("before", "after"),
    }
    share = 2.0


class RelayCrashes(_CrashPoint):
    kind = "F10 relay dies between publish and mark"
    points: ClassVar = {
        "CP07": ("before", "after"),
        "CP08": ("before", "after"),
        "CP09": ("after", "reply_lost"),
    }


class WorkerCrashes(_CrashPoint):
    kind = "F03 worker dies around its report"
    points: ClassVar = {"CP10": ("before", "after"), "CP13": ("before", "after", "reply_lost")}


class SweepCrashes(_CrashPoint):
    kind = "F39 sweep dies with timers in hand"
    points: ClassVar = {"CP14": ("before", "after"), "CP15": ("after", "reply_lost")}
