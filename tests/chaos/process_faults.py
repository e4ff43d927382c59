"""Faults of processes: killed, frozen, restarted, too many, too few."""

import contextlib
import os
import signal
import time
from typing import ClassVar

from headrace.errors import HeadraceError
from tests.chaos.fault import Fault
from tests.chaos.system import LEASE_SECONDS, SESSION_TIMEOUT_MS

FREEZE_SECONDS = SESSION_TIMEOUT_MS / 1000
"""What a group's session timeout makes of a frozen member: gone."""


class _Kill(Fault):
    """SIGKILL to some processes; the supervisor brings them back."""

    kinds: ClassVar[tuple[str, ...]] = ()
    lasts = (0.0, 0.0)

    def targets(self) -> list[str]:
        return [self.draw.choice(self.system.names(self.draw.choice(self.kinds)))]

    def begin(self) -> None:
        names = self.targets()
        self.facts["targets"] = names
        for name in names:
            self.fired += self.system.signal(name, signal.SIGKILL)


class KillWorker(_Kill):
    kind = "F01 worker process killed"
    uses = frozenset({"worker"})
    share = 2.0

    def begin(self) -> None:
        """The process that runs bodies; its parent, when it has one, lives and says so."""
        (name,) = self.facts["targets"] = [self.draw.choice(self.system.names("worker"))]
        pid = self.system.body_pid(name)
        if pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.fired += 1


class KillWorkerHost(_Kill):
    kind = "F02 worker with its parent killed"
    uses = frozenset({"worker"})
    kinds = ("worker",)


class KillStreams(_Kill):
    kind = "F07 streams killed"
    uses = frozenset({"streams"})
    kinds = ("streams",)


class KillRelay(_Kill):
    kind = "F10 relay killed"
    uses = frozenset({"relay"})
    kinds = ("relay",)


class KillApi(_Kill):
    kind = "F12 api killed"
    uses = frozenset({"api"})
    kinds = ("api",)


class KillAll(_Kill):
    kind = "F13 all processes killed"
    uses = frozenset({"worker", "streams", "relay", "api"})
    share = 0.5

    def targets(self) -> list[str]:
        return [name for kind in ("worker", "streams", "relay", "api") for name in self.system.names(kind)]


class _KillAtEffect(Fault):
    """The ledger kills the next process that asks it for an effect, at the sharpest moments there are."""

    when: ClassVar[str] = ""
    uses = frozenset({"worker"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        before = self.system.ask_ledger(op="arm", when=self.when)["killed"]
        end = time.monotonic() + 5
        while not self.fired and time.monotonic() < end:
            time.sleep(0.05)
            self.fired = self.system.ask_ledger(op="arm", when=self.when)["killed"] - before
        self.system.ask_ledger(op="arm", when="")


class KillBeforeEffect(_KillAtEffect):
    kind = "F01 worker killed before its effect"
    when = "before"


class KillAfterEffect(_KillAtEffect):
    kind = "F02 worker killed after its effect"
    when = "after"


class _Freeze(Fault):
    """SIGSTOP, and SIGCONT after a while."""

    of: ClassVar[str] = ""

    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self._name = self.draw.choice(self.system.names(self.of))

    def begin(self) -> None:
        self.facts["targets"] = [self._name]
        self.fired += self.system.signal(self._name, signal.SIGSTOP)

    def heal(self) -> None:
        self.system.signal(self._name, signal.SIGCONT)


class FreezeWorkerShortly(_Freeze):
    kind = "F04 worker frozen 1.1 leases"
    uses = frozenset({"worker"})
    of = "worker"
    lasts = (1.05 * LEASE_SECONDS, 1.2 * LEASE_SECONDS)


class FreezeWorker(_Freeze):
    kind = "F04 worker frozen 3 leases"
    uses = frozenset({"worker"})
    of = "worker"
    lasts = (2.8 * LEASE_SECONDS, 3.2 * LEASE_SECONDS)


class FreezeWorkerLong(_Freeze):
    kind = "F04 worker frozen 20 leases"
    uses = frozenset({"worker"})
    of = "worker"
    lasts = (20 * LEASE_SECONDS, 20 * LEASE_SECONDS)
    share = 0.3


class FreezeStreams(_Freeze):
    kind = "F08 streams frozen through a rebalance"
    uses = frozenset({"streams"})
    of = "streams"
    lasts = (1.5 * FREEZE_SECONDS, 3 * FREEZE_SECONDS)


class FreezeRelayOwner(_Freeze):
    kind = "F11 two relays: the owner frozen, then back"
    uses = frozenset({"relay"})
    of = "relay"
    lasts = (4.0, 7.0)

    def begin(self) -> None:
        """The owner is known by the process id in its name; by chance when Postgres does not say."""
        with contextlib.suppress(Exception):
            ((owner,),) = self.system.query("SELECT owner FROM relay_owner")
            pids = {name: self.system.pid(name) for name in self.system.names("relay")}
            self._name = next(name for name, pid in pids.items() if str(pid) in str(owner))
        super().begin()


class FreezeApi(_Freeze):
    kind = "F16 api frozen"
    uses = frozenset({"api"})
    of = "api"
    lasts = (1.0, 4.0)


class Storm(Fault):
    kind = "F09 rebalance storm"
    uses = frozenset({"streams"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        """A third member comes and goes, killed as often as stopped."""
        for _ in range(3):
            name = self.system.add_extra("streams")
            time.sleep(self.draw.uniform(0.8, 2.0))
            self.system.remove(name, self.draw.choice((signal.SIGTERM, signal.SIGKILL)))
            self.fired += 1


class WorkersComeAndGo(Fault):
    kind = "F09 workers come and go"
    uses = frozenset({"worker"})
    lasts = (1.0, 3.0)

    def begin(self) -> None:
        self._name = self.system.add_extra("worker")
        self.facts["targets"] = [self._name]
        self.fired += 1

    def heal(self) -> None:
        self.system.remove(self._name, self.draw.choice((signal.SIGTERM, signal.SIGKILL)))


class RollingRestart(Fault):
    kind = "F14 rolling SIGTERM"
    uses = frozenset({"worker", "streams", "relay", "api"})
    lasts = (0.0, 0.0)

    def begin(self) -> None:
        for kind in ("worker", "streams", "relay", "api"):
            names = self.system.names(kind)
            name = self.draw.choice(names)
            with contextlib.suppress(HeadraceError):
                self.system.supervisor.restart(name)
                self.fired += 1


class SweepsDown(Fault):
    kind = "F39 all streams down, then back"
    uses = frozenset({"streams"})
    lasts = (4.0, 8.0)

    def begin(self) -> None:
        """Agents and sweeps are one process here, so timers fall due while nobody looks."""
        for name in self.system.names("streams"):
            self.system.supervisor.end(name, signal.SIGKILL)
            self.fired += 1

    def heal(self) -> None:
        self.system.supervisor.restart(*self.system.names("streams"))


class SkewedWorker(Fault):
    kind = "F36 worker with a wrong clock"
    uses = frozenset({"worker"})
    lasts = (4.0, 8.0)

    def begin(self) -> None:
        skew = self.draw.choice((-3600, -5, 5, 3600))
        self._name = self.system.add_extra("worker", CHAOS_SKEW=str(skew))
        self.facts |= {"targets": [self._name], "skew": skew}
        self.fired += 1

    def heal(self) -> None:
        self.system.remove(self._name)
