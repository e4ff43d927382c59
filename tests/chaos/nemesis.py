"""The nemesis: one fault after the other, drawn by seed; some of them two at once."""

import asyncio
import random
import time
from collections.abc import Iterator
from typing import Final

from tests.chaos import (
    client_faults,
    crash_faults,
    network_faults,
    pool_faults,
    process_faults,
    record_faults,
    server_faults,
)
from tests.chaos.client_log import ClientLog
from tests.chaos.fault import KINDS, Fault
from tests.chaos.system import System

MODULES: Final = (
    client_faults, crash_faults, network_faults, pool_faults, process_faults, record_faults, server_faults,
)  # fmt: skip
"""Imported for the kinds they define."""
OVERLAP_SHARE: Final = 0.2
"""F49: how many faults come with a second one inside."""
CALM_SECONDS: Final = (1.5, 4.0)
"""Between a heal and the next fault: now and then long enough to recover, often not."""
FAULT_SECONDS_MAX: Final = 150.0


def chosen_kinds(names: list[str]) -> list[type[Fault]]:
    """Kinds by the beginning of their names; all of them when none is named. Raises ValueError for one unknown."""
    unknown = [name for name in names if not any(kind.startswith(name) for kind in KINDS)]
    if unknown:
        raise ValueError(f"no fault kind begins with {', '.join(unknown)}")
    return [fault for kind, fault in KINDS.items() if not names or any(kind.startswith(name) for name in names)]


class Nemesis:
    def __init__(self, system: System, log: ClientLog, seed: int, kinds: list[type[Fault]]) -> None:
        self._system, self._log, self._kinds = system, log, kinds
        self._draw = random.Random(f"nemesis/{seed}")
        self._deck = self._deal()

    async def run(self, until: float) -> None:
        """Until the time is over or the task is cancelled; every fault that began is healed."""
        if not self._kinds:
            await asyncio.sleep(max(0.0, until - time.monotonic()))
        while time.monotonic() < until:
            first = self._next()
            if self._draw.random() < OVERLAP_SHARE and (second := self._beside(first)) is not None:
                await asyncio.gather(self._one(first), self._later(second, first.seconds))
            else:
                await self._one(first)
            await asyncio.sleep(min(self._draw.uniform(*CALM_SECONDS), max(0.0, until - time.monotonic())))

    def _deal(self) -> Iterator[type[Fault]]:
        """A shuffled deck, again and again, so that every kind comes; a share is the cards of a kind."""
        while True:
            deck = [
                kind
                for kind in self._kinds
                for card in range(1 + int(kind.share))
                if self._draw.random() < kind.share - card
            ]
            self._draw.shuffle(deck)
            yield from deck or self._kinds[:1]

    def _next(self) -> Fault:
        return next(self._deck)(self._system, self._draw)

    def _beside(self, first: Fault) -> Fault | None:
        """Another one that can overlap with it."""
        fitting = [kind for kind in self._kinds if not kind.uses & first.uses and kind.lasts[1] < 30]
        return self._draw.choice(fitting)(self._system, self._draw) if fitting else None

    async def _later(self, fault: Fault, within: float) -> None:
        await asyncio.sleep(self._draw.uniform(0, within))
        fault.facts["overlaps"] = True
        await self._one(fault)

    async def _one(self, fault: Fault) -> None:
        """Begin, last, heal, note. A fault that cannot be made is a fault of the harness, and says so."""
        entry: dict[str, object] = {"op": "fault", "kind": fault.kind, "at": time.time()}
        self._system.note("nemesis", f"begin {fault.kind} for {fault.seconds:.1f} s")
        try:
            async with asyncio.timeout(FAULT_SECONDS_MAX):
                await asyncio.to_thread(fault.begin)
                entry["begun_at"] = time.time()
                await asyncio.sleep(fault.seconds)
        except Exception as error:
            entry["error"] = repr(error)
        finally:
            await asyncio.shield(self._heal(fault, entry))

    async def _heal(self, fault: Fault, entry: dict[str, object]) -> None:
        try:
            await asyncio.to_thread(fault.heal)
        except Exception as error:
            entry["error"] = repr(error)
        entry |= {"healed_at": time.time(), "fired": fault.fired, **fault.facts}
        self._log.add(entry)
        told = {name: entry[name] for name in ("fired", "targets", "links", "topic", "error") if name in entry}
        self._system.note("nemesis", f"healed {fault.kind}: {told}")
