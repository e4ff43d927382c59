"""One run of the harness: start, load, break, heal, wait until it is quiet, read what is left."""

import asyncio
import contextlib
import json
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg

from tests.chaos.client_log import ClientLog, read_client_log
from tests.chaos.driver import Driver
from tests.chaos.dump import read_dump
from tests.chaos.fault import Fault
from tests.chaos.ledger import read_ledger
from tests.chaos.nemesis import Nemesis
from tests.chaos.operators import Operators
from tests.chaos.photograph import photograph
from tests.chaos.pool_watch import watch_pools
from tests.chaos.system import PREFIX, System

WARM_SECONDS: Final = 5.0
"""Load without faults first, so that takeovers without a reason show."""
QUIET_SECONDS: Final = 600.0
"""From the last heal until nothing is open, at most: then what is open counts as lost."""
STILL_SECONDS: Final = 60.0
"""Or when nothing has moved for so long: several leases, sweeps and backoffs."""
STEADY_SECONDS: Final = 3.0
"""So long nothing may be open before it counts as quiet: a dead letter may still be on its way to a person."""
OPEN: Final = """SELECT (SELECT sum(row_version) FROM run), (
  (SELECT count(*) FROM run WHERE status NOT IN
    ('completed', 'failed', 'cancelled', 'terminated', 'compensated', 'compensation_failed'))
  + (SELECT count(*) FROM dead_letter WHERE status = 'parked')
  + (SELECT count(*) FROM parked_task)
  + (SELECT count(*) FROM bulk WHERE finished_at IS NULL)
  + (SELECT count(*) FROM held_command WHERE released_at IS NULL)
  + (SELECT count(*) FROM inbox WHERE applied_at IS NULL))"""
Evidence = tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, list[dict[str, Any]]]]


class Settings(NamedTuple):
    folder: Path
    seed: int
    seconds: float
    rate: float
    kinds: list[type[Fault]]
    plant: str = ""
    """A planted bug to run with."""


class Chaos:
    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._system = System(settings.folder, settings.seed, settings.plant)
        self._log = ClientLog(settings.folder / "client_log.jsonl")
        self._system.on_fenced = self._note_fenced

    async def run(self) -> Evidence:
        """Whatever happens, nothing is left running."""
        starting = asyncio.create_task(asyncio.to_thread(self._system.start))
        try:
            await asyncio.shield(starting)
            return await self._run()
        finally:
            with contextlib.suppress(Exception):
                await starting  # it cannot be stopped before it is there
            await asyncio.to_thread(self._system.close)
            self._log.close()

    async def _run(self) -> Evidence:
        driver = Driver(self._system, self._log, self._settings.seed, self._settings.rate)
        operators = Operators(driver, self._settings.seed)
        driver.looks.append(operators.clear_up)
        nemesis = Nemesis(self._system, self._log, self._settings.seed, self._settings.kinds)
        loop = asyncio.get_running_loop()
        self._system.on_burst = lambda count, workflow: loop.call_soon_threadsafe(driver.burst, count, workflow)
        beside: list[asyncio.Task[None]] = []
        try:
            await driver.publish()
            await operators.set_pools()
            until = time.monotonic() + WARM_SECONDS + self._settings.seconds
            beside = [
                asyncio.create_task(work)
                for work in (
                    driver.start_runs(until), operators.work(until), driver.answer_questions(),
                    watch_pools(self._system, self._log), driver.records.run(),
                )
            ]  # fmt: skip
            await asyncio.sleep(WARM_SECONDS)
            await nemesis.run(until)
            await asyncio.gather(*beside[:2])
            await driver.settle(QUIET_SECONDS)
            await self._wait_until_quiet()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await driver.close()
        return await asyncio.to_thread(self._gather)

    def _note_fenced(self, name: str) -> None:
        self._log.add({"op": "fenced", "at": time.time(), "done_at": time.time(), "worker": name})

    async def _wait_until_quiet(self) -> None:
        """Until nothing is open, or nothing has moved for so long that nothing will."""
        healed = moved = time.monotonic()
        quiet_since, before = None, None
        while (now := time.monotonic()) < min(moved + STILL_SECONDS, healed + QUIET_SECONDS):
            with contextlib.suppress(psycopg.Error):
                ((moves, count),) = await asyncio.to_thread(self._system.query, OPEN)
                quiet_since = None if count else quiet_since or now
                if moves != before:
                    moved, before = now, moves
            if quiet_since and now - quiet_since >= STEADY_SECONDS:
                self._log.add({"op": "quiet", "at": time.time(), "seconds": quiet_since - healed})
                return
            await asyncio.sleep(0.25)
        await asyncio.to_thread(photograph, self._system)

    def _gather(self) -> Evidence:
        dump = read_dump(self._system.postgres.dsn, self._system.kafka.bootstrap, PREFIX)
        (self._settings.folder / "dump.json").write_text(json.dumps(dump))
        return read_ledger(self._system.ledger_file), self._log.entries, dump


def read_evidence(folder: Path) -> Evidence:
    """What an earlier run left in its folder."""
    dump = json.loads((folder / "dump.json").read_text())
    return read_ledger(folder / "ledger.jsonl"), read_client_log(folder / "client_log.jsonl"), dump
