"""Look for what must not be: the invariants that SQL can check, and the state of connections, slot, clock and sweeps.

    python -m state.doctor             look at every run; exit 1 when something is wrong
    python -m state.doctor --json      the same for programs
    python -m state.doctor --runs N    only open runs and the newest N

Read-only, in one snapshot. The same checks answer `GET /doctor`, there over a bounded number of runs.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
import psycopg

from state.migrate import migrations
from state.queries.rows import Connection
from state.settings import EngineSettings
from state.sql import load

_SQL = load("doctor")
ALL: Final = 2**31 - 1
SERVER_MIN: Final = 15_00_00
"""Postgres 15: what the schema and its statements were written and measured on."""
CLOCK_SECONDS_MAX: Final = 5.0
"""Ids of runs carry a process's clock, and lists are ordered by them; nothing else depends on it."""
RELAY_SECONDS_MAX: Final = 30.0
"""The relay renews its ownership every few seconds; after this it is not there."""
LAG_BYTES_MAX: Final = 256 * 1024 * 1024
"""Seconds of a saturated engine. WAL that is not acknowledged cannot be removed."""
LATE_SECONDS: Final = 10.0
"""Timers, requests and dead sessions older than this should have been swept several times."""


class Check(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    detail: str
    count: int = 0
    """How many things are wrong."""


class _Examination:
    """One pass over one database. runs: how many of the newest runs are looked at, besides the open ones."""

    def __init__(self, connection: Connection, runs: int) -> None:
        self.connection, self.runs = connection, runs

    async def row(self, statement: str, **parameters: Any) -> tuple[Any, ...]:
        return (await self.rows(statement, **parameters))[0]

    async def rows(self, statement: str, **parameters: Any) -> list[tuple[Any, ...]]:
        async with self.connection.cursor() as cursor:
            await cursor.execute(_SQL.text(statement), parameters)
            return await cursor.fetchall()

    # -- the server ----------------------------------------------------------------------
    async def server(self) -> Check:
        version, number, wal_level, _, in_recovery = await self.row("read_server")
        faults = []
        if number < SERVER_MIN:
            faults.append("Headrace needs 15 or later")
        if wal_level != "logical":
            faults.append(f"wal_level is {wal_level}, and the outbox relay needs logical")
        if in_recovery:
            faults.append("it is a standby and cannot be written to")
        return Check("server", not faults, "; ".join([f"Postgres {version}", *faults]), len(faults))

    async def schema(self) -> Check:
        applied = {name for (name,) in await self.rows("list_migrations")}
        missing = [migration.name for migration in migrations() if migration.name not in applied]
        detail = (
            f"missing {', '.join(missing)}; run `python -m state.migrate`" if missing else f"{len(applied)} migrations"
        )
        return Check("schema", not missing, detail, len(missing))

    async def clock(self) -> Check:
        before = time.time()
        at = (await self.row("read_server"))[3]
        apart = abs(at - (before + time.time()) / 2)
        return Check("clock", apart <= CLOCK_SECONDS_MAX, f"database and this process are {apart:.3f} s apart")

    # -- the engine ----------------------------------------------------------------------
    async def relay(self) -> Check:
        rows = await self.rows("read_slot")
        if not rows:
            return Check("relay", False, "no relay has ever worked here, so nothing reaches Kafka", 1)
        slot, owner, age, *_ = rows[0]
        return Check(
            "relay",
            age <= RELAY_SECONDS_MAX,
            f"{owner} renewed slot {slot} {age:.1f} s ago",
            int(age > RELAY_SECONDS_MAX),
        )

    async def slot(self) -> Check:
        faults, details = 0, []
        for slot, _, _, is_there, is_active, wal_status, lag in await self.rows("read_slot"):
            good = is_there and is_active and wal_status != "lost" and (lag or 0) <= LAG_BYTES_MAX
            faults += not good
            state = (
                "missing"
                if not is_there
                else f"{'active' if is_active else 'idle'}, WAL {wal_status}, {lag or 0} bytes behind"
            )
            details.append(f"{slot}: {state}")
        return Check("slot", not faults, "; ".join(details) or "none yet", faults)

    async def sessions(self) -> Check:
        live, expired = await self.row("count_sessions", seconds=LATE_SECONDS)
        return Check("sessions", not expired, f"{live} live, {expired} expired and not swept", expired)

    async def timers(self) -> Check:
        count, late = await self.row("find_late_timers", seconds=LATE_SECONDS)
        return Check(
            "timers", not count, f"{count} late by more than {LATE_SECONDS:g} s, the oldest {late:.1f} s", count
        )

    async def requests(self) -> Check:
        count, age = await self.row("find_unapplied_requests", seconds=LATE_SECONDS)
        return Check(
            "requests",
            not count,
            f"{count} not applied for more than {LATE_SECONDS:g} s, the oldest {age:.1f} s",
            count,
        )

    # -- invariants ----------------------------------------------------------------------
    async def statuses(self) -> Check:
        looked_at, wrong, samples = await self.row("find_wrong_status", limit=self.runs)
        return Check("statuses", not wrong, _found(f"{looked_at} runs derived again", wrong, samples), wrong)

    async def attempts(self) -> Check:
        return await self._sampled(
            "attempts", "find_wrong_attempts", "attempts agree with their tasks", limit=self.runs
        )

    async def history(self) -> Check:
        return await self._sampled("history", "find_history_gaps", "history has no gap", limit=self.runs)

    async def orphan_timers(self) -> Check:
        return await self._sampled("orphan_timers", "find_orphan_timers", "every timer has its task", limit=self.runs)

    async def orphan_approvals(self) -> Check:
        return await self._sampled("orphan_approvals", "find_orphan_approvals", "every open approval has its task")

    async def _sampled(self, name: str, statement: str, good: str, **parameters: Any) -> Check:
        count, samples = await self.row(statement, **parameters)
        return Check(name, not count, _found(good, count, samples), count)

    def checks(self) -> list[Callable[[], Awaitable[Check]]]:
        return [
            self.server, self.schema, self.clock, self.relay, self.slot, self.sessions, self.timers, self.requests,
            self.statuses, self.attempts, self.history, self.orphan_timers, self.orphan_approvals,
        ]  # fmt: skip


def _found(good: str, wrong: int, samples: list[str] | None) -> str:
    return f"{wrong} wrong, such as {'; '.join(samples or [])}" if wrong else good


async def examine(connection: Connection, *, runs: int = ALL, statement_seconds: float = 0) -> list[Check]:
    """Run all checks in one read-only snapshot. Opens its own transaction, on a connection in autocommit.

    runs: how many of the newest runs the invariants are checked for, besides as many open ones.
    statement_seconds: the most that one check may take; 0: as long as it wants. A statement that Postgres refuses
    makes its own check fail and the others go on; raises what a lost connection raises.
    """
    examination = _Examination(connection, runs)
    checks = []
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(
            "SELECT set_config('statement_timeout', %s, true)", (str(int(statement_seconds * 1000)),)
        )
        for check in examination.checks():
            try:
                async with connection.transaction():
                    checks.append(await check())
            except psycopg.Error as error:
                if connection.broken:
                    raise
                checks.append(Check(check.__name__, False, f"cannot be checked: {error}".strip(), 1))
    return checks


async def _main(dsn: str, runs: int) -> list[Check]:
    try:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            return [Check("connection", True, "Postgres answers"), *await examine(connection, runs=runs)]
    except psycopg.OperationalError as error:
        return [Check("connection", False, str(error).strip(), 1)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m state.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--runs", type=int, default=ALL, help="look at open runs and the newest N only")
    options = parser.parse_args()
    checks = asyncio.run(_main(EngineSettings().postgres, options.runs))
    ok = all(check.ok for check in checks)
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode({"ok": ok, "checks": checks}) + b"\n")
    else:
        for check in checks:
            print(f"{'ok   ' if check.ok else 'WRONG'} {check.name:<17} {check.detail}")
    sys.exit(not ok)


if __name__ == "__main__":
    main()
