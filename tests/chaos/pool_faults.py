"""Faults of pools: their rows taken away, their limit moved, and whoever holds a slot killed at each stage of that."""

import signal
import time
from typing import ClassVar, Final

import httpx
import psycopg

from tests.caller import HEADERS
from tests.chaos.fault import Fault
from tests.chaos.workload import POOL_LIMIT_MAX

LOOK_SECONDS: Final = 8.0


class _Pools(Fault):
    """Some runs are started that need slots, and then it looks for the moment in which there is what it wants."""

    uses = frozenset({"postgres"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        self.system.on_burst(4, "pool")
        end = time.monotonic() + LOOK_SECONDS
        while not self.fired and time.monotonic() < end:
            self.fired += self.strike()
            time.sleep(0.02)

    def strike(self) -> int:
        """Do it, if this is the moment; answers to how many."""
        raise NotImplementedError


class _PoolRowsDeleted(_Pools):
    statement: ClassVar[str] = ""

    def strike(self) -> int:
        return len(self.system.query(self.statement))


class SlotsDeleted(_PoolRowsDeleted):
    kind = "F40 pool slots deleted"
    statement = "DELETE FROM pool_slot WHERE pool = 'robbed' RETURNING 1"


class WaitersDeleted(_PoolRowsDeleted):
    kind = "F42 queue of a pool deleted"
    statement = "DELETE FROM pool_waiter WHERE pool = 'robbed' RETURNING 1"


class LimitMoved(Fault):
    kind = "F40 limit of a pool moved"
    uses = frozenset({"api", "postgres"})
    lasts = (1.0, 4.0)

    def begin(self) -> None:
        """Below what is held, while it is."""
        self.system.on_burst(3, "pool")
        time.sleep(self.draw.uniform(0.2, 1.5))
        self.fired += self._set(self.draw.choice((0, 1)))

    def heal(self) -> None:
        for _ in range(60):
            if self._set(self.draw.randint(2, POOL_LIMIT_MAX)):
                return
            time.sleep(1)
        raise RuntimeError("the limit could not be set again")

    def _set(self, limit: int) -> bool:
        """An unanswered one may come later than the next: operators look at that at the end."""
        try:
            url = f"{self.draw.choice(self.system.api_urls)}/pools/strict"
            return httpx.put(url, json={"limit": limit}, headers=HEADERS, timeout=8).is_success
        except httpx.TransportError:
            return False


class HolderKilled(_Pools):
    kind = "F40 holder of a slot killed"
    uses = frozenset({"worker", "streams", "relay", "postgres"})
    _STAGES: ClassVar = {
        "granted": ("streams", "SELECT 1 FROM pool_waiter WHERE granted_at IS NOT NULL"),
        "queued": ("relay", "SELECT 1 FROM task WHERE pool IS NOT NULL AND status = 'queued'"),
        "running": ("worker", "SELECT 1 FROM task WHERE pool IS NOT NULL AND status = 'running'"),
    }
    """Whose word the task waits for: that it has its slot, its command, its result."""

    def begin(self) -> None:
        self.facts["stage"] = self._stage = self.draw.choice(list(self._STAGES))
        super().begin()

    def strike(self) -> int:
        kind, look = self._STAGES[self._stage]
        try:
            if not self.system.query(look):
                return 0
        except psycopg.Error:
            return 0
        names = self.facts["targets"] = self.system.names(kind)
        return sum(self.system.signal(name, signal.SIGKILL) for name in names)
