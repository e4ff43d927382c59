"""Look for what must not be: the invariants that SQL can check, and the state of connections, slot, clock and sweeps.

    python -m state.doctor             open runs, the newest and a sample of the others; exit 1 when something is wrong
    python -m state.doctor --full      every run, however long it takes
    python -m state.doctor --runs N    open runs, the newest N, and as many of the others
    python -m state.doctor --json      for programs

Read-only, in one snapshot. The same checks answer `GET /doctor`. Each says what it looked at.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import psycopg

from state.migrate import migrations
from state.passes import SLOW_SWEEPS
from state.queries.rows import Connection
from state.settings import EngineSettings
from state.sql import load

_SQL = load("doctor")
ALL: Final = 2**31 - 1
SAMPLE: Final = 10_000
"""Open runs, newest runs and others that are looked at by default, so many of each: seconds, whatever there is."""
CHUNK: Final = 20_000
"""Runs of one statement: its arrays and hashes stay small."""
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
PASS_SECONDS_MAX: Final = 60.0
"""Every sweep passes within seconds."""
FAILOVER_SECONDS: Final = 7 * 86_400.0
"""So long a failover that lost something counts as wrong: nobody should miss it, and nothing can undo it."""
EXAMPLES_MAX: Final = 3
_SETTINGS: Final = """
    SELECT set_config('statement_timeout', %s, true), set_config('jit', 'off', true),
           set_config('work_mem', '64MB', true), set_config('random_page_cost', '1', true),
           set_config('enable_seqscan', 'off', true)
"""
"""A chunk is a small part of large tables: a look into an index for each run, never a walk through a table."""


class Position(msgspec.Struct, frozen=True):
    """How far a partition has been applied; whether its log goes that far, only Kafka knows."""

    topic: str
    partition: int
    next_offset: int | None
    topic_id: str


class Check(msgspec.Struct, frozen=True):
    name: str
    ok: bool
    detail: str
    """What was looked at; when something is wrong, with up to three examples."""
    count: int = 0
    """How many things are wrong."""
    hint: str = ""
    """What to do, when something is wrong."""
    seconds: float = 0.0
    positions: list[Position] = []
    """Only of `partitions`."""


class _OfRuns(NamedTuple):
    """A check of runs: one statement over a chunk of them."""

    name: str
    statement: str
    good: str
    hint: str


_SAVE_IT: Final = "this must not be: keep the database's log and report it; `headrace show RUN --history` shows the run"
OF_RUNS: Final = (
    _OfRuns("statuses", "find_wrong_status", "derived again", _SAVE_IT),
    _OfRuns("attempts", "find_wrong_attempts", "with attempts that agree with their tasks and limits", _SAVE_IT),
    _OfRuns("tokens", "find_wrong_tokens", "whose tokens only rise", _SAVE_IT),
    _OfRuns("history", "find_history_gaps", "whose history has no gap", _SAVE_IT),
    _OfRuns("ended", "find_moved_after_end", "not moved after their end", _SAVE_IT),
    _OfRuns("waits", "find_orphan_waits", "with something that will move them",
            "cancel the run and start it again; `headrace explain RUN` shows where it stands"),
    _OfRuns("pauses", "find_wrong_pauses", "paused as somebody has said", _SAVE_IT),
    _OfRuns("joins", "find_missed_joins", "without a missed join",
            "cancel the run and start it again; `headrace explain RUN TASK` shows what the task needs"),
    _OfRuns("cancels", "find_wrong_cancels", "of which a cancel left nothing but clean-ups", _SAVE_IT),
    _OfRuns("maps", "find_wrong_maps", "whose maps have counted their items", _SAVE_IT),
    _OfRuns("approvals", "find_wrong_approvals", "with one outcome for every question", _SAVE_IT),
    _OfRuns("signals", "find_wrong_signals", "whose signals were taken once, or wait for their task", _SAVE_IT),
    _OfRuns("children", "find_wrong_children", "whose children have what waits for them", _SAVE_IT),
    _OfRuns("unparked", "find_unparked", "whose doubtful effects are before a person", _SAVE_IT),
    _OfRuns("dead_letters", "find_wrong_dead_letters", "whose dead letters agree with their tasks", _SAVE_IT),
)  # fmt: skip


class _Slot(NamedTuple):
    """A replication slot as it was when looked at. confirmed: a position; lag: bytes."""

    is_active: bool
    wal_status: str
    confirmed: int
    lag: int


class _Examination:
    """One pass over one database. runs: how many of the newest runs are looked at, besides as many open ones and as
    many of the others; ALL for all.
    """

    def __init__(self, connection: Connection, runs: int) -> None:
        self.connection, self.runs = connection, runs
        self.limit = SAMPLE if runs >= ALL else max(runs, 1)
        self.percent = 100.0
        self.slots: dict[str, _Slot] = {}

    async def look_at_slots(self) -> None:
        """To be done before the snapshot: no snapshot holds slots, and a relay tells its own only what is committed."""
        self.slots = {name: _Slot(*state) for name, *state in await self.rows("list_slots")}

    @property
    def is_full(self) -> bool:
        return self.runs >= ALL

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
        detail = "; ".join([f"Postgres {version}", *faults])
        return Check("server", not faults, detail, len(faults), "see docs/operations.md")

    async def schema(self) -> Check:
        applied = {name for (name,) in await self.rows("list_migrations")}
        missing = [migration.name for migration in migrations() if migration.name not in applied]
        detail = f"missing {', '.join(missing)}" if missing else f"{len(applied)} migrations"
        return Check("schema", not missing, detail, len(missing), "run `python -m state.migrate`")

    async def clock(self) -> Check:
        before = time.time()
        at = (await self.row("read_server"))[3]
        apart = abs(at - (before + time.time()) / 2)
        detail = f"database and this process are {apart:.3f} s apart"
        return Check("clock", apart <= CLOCK_SECONDS_MAX, detail, int(apart > CLOCK_SECONDS_MAX), "set both by NTP")

    # -- the engine ----------------------------------------------------------------------
    async def relay(self) -> Check:
        rows = await self.rows("list_relays")
        hint = "start a relay: `python -m connectors`"
        if not rows:
            return Check("relay", False, "no relay has ever worked here, so nothing reaches Kafka", 1, hint)
        slot, owner, age, _ = rows[0]
        silent = age > RELAY_SECONDS_MAX
        return Check("relay", not silent, f"{owner} renewed slot {slot} {age:.1f} s ago", int(silent), hint)

    async def slot(self) -> Check:
        faults, details = 0, []
        for name, _, _, delivered in await self.rows("list_relays"):
            slot = self.slots.get(name)
            if slot is None:
                faults += 1
                details.append(f"{name}: missing")
                continue
            is_ahead = slot.confirmed > delivered
            faults += not slot.is_active or slot.wal_status == "lost" or slot.lag > LAG_BYTES_MAX or is_ahead
            state = f"{'active' if slot.is_active else 'idle'}, WAL {slot.wal_status}, {slot.lag} bytes behind"
            details.append(f"{name}: {state}{', further than what was delivered' if is_ahead else ''}")
        hint = "a relay that works makes a lost slot anew; what lags for long has no relay, or a Kafka that is away"
        return Check("slot", not faults, "; ".join(details) or "none yet", faults, hint)

    async def timeline(self) -> Check:
        """Whether the database went back in time: records that Kafka has of what it does not know prove it."""
        failovers = await self.rows("list_failovers", seconds=FAILOVER_SECONDS)
        lost = sum(records for *_, records in failovers)
        details = [
            f"timeline {number} since {noted_at:%Y-%m-%d %H:%M:%S%z}, with what was committed until "
            f"{'nobody knows when' if until is None else f'{until:%Y-%m-%d %H:%M:%S.%f%z}'}"
            for number, noted_at, until, _ in failovers
        ]
        if lost:
            details.insert(0, f"the database went back in time: {lost} records tell of what it does not have")
        hint = "what was accepted in between may be lost, and can be started again with its key: see docs/operations.md"
        return Check("timeline", not lost, "; ".join(details) or "no failover within a week", lost, hint)

    async def sessions(self) -> Check:
        live, expired = await self.row("count_sessions", seconds=LATE_SECONDS)
        detail = f"{live} live, {expired} expired and not swept"
        return Check("sessions", not expired, detail, expired, "no streams process sweeps, or no tick arrives")

    async def timers(self) -> Check:
        count, late = await self.row("find_late_timers", seconds=LATE_SECONDS)
        detail = f"{count} late by more than {LATE_SECONDS:g} s, the oldest {late:.1f} s"
        return Check("timers", not count, detail, count, "no streams process sweeps or applies: see its log")

    async def requests(self) -> Check:
        count, age = await self.row("find_unapplied_requests", seconds=LATE_SECONDS)
        detail = f"{count} not applied for more than {LATE_SECONDS:g} s, the oldest {age:.1f} s"
        return Check("requests", not count, detail, count, "no run agent applies them: see the log of `streams`")

    async def sweeps(self) -> Check:
        passes = await self.rows("list_passes")
        late = [f"{name} {age:.0f} s ago" for name, age in passes if age > SLOW_SWEEPS.get(name, PASS_SECONDS_MAX)]
        detail = f"late: {', '.join(late)}" if late else f"{len(passes)} sweeps have passed lately"
        return Check("sweeps", not late, detail if passes else "none has ever passed", len(late), "see to `streams`")

    async def ticks(self) -> Check:
        rows = await self.rows("read_ticks")
        if not rows:
            return Check("ticks", True, "none yet")
        late = rows[0][0] > PASS_SECONDS_MAX
        detail = f"what was committed {max(0.0, rows[0][0]):.1f} s ago has been through relay, Kafka and session agent"
        return Check("ticks", not late, detail, int(late), "relay, Kafka or the session agent is away")

    async def partitions(self) -> Check:
        rows = await self.rows("list_positions")
        positions = [Position(*row[:4]) for row in rows]
        seen: dict[str, set[int]] = {}
        for position in positions:
            seen.setdefault(position.topic, set()).add(position.partition)
        holes = [f"{t}/{p}" for t, known in seen.items() for p in range(max(known) + 1) if p not in known]
        owners = len({row[4] for row in rows})
        detail = f"{len(rows)} of {len(seen)} topics, taken by {owners} processes"
        detail += _such_as("without an owner", len(holes), holes)
        hint = "start a streams process; one that runs takes what is free within its session time-out"
        return Check("partitions", not holes, detail, len(holes), hint, positions=positions)

    async def holders(self) -> Check:
        hint = "no sweep says Lost: see `sweeps` and `ticks`"
        return await self._of_a_table("holders", "find_wrong_holders", "every held task has its holder", hint,
                                      seconds=LATE_SECONDS)  # fmt: skip

    # -- what waits ----------------------------------------------------------------------
    async def orphan_timers(self) -> Check:
        return await self._of_a_table("orphan_timers", "find_orphan_timers", "timers and tasks agree", _SAVE_IT)

    async def orphan_approvals(self) -> Check:
        good = "every open approval has its task"
        return await self._of_a_table("orphan_approvals", "find_orphan_approvals", good, _SAVE_IT)

    async def parked(self) -> Check:
        return await self._of_a_table("parked", "find_wrong_parked", "every parked task waits", _SAVE_IT)

    async def posted_signals(self) -> Check:
        hint = "no sweep offers what is posted: see `sweeps`, and the log of `streams`"
        return await self._of_a_table("posted_signals", "find_wrong_posted", "whoever waits has what is posted", hint,
                                      seconds=LATE_SECONDS)  # fmt: skip

    async def pools(self) -> Check:
        good = "every slot of a pool has its holder, and whoever waits for one is in its queue"
        hint = "a sweep sets what is missing again within seconds; what is too much must not be: report it"
        return await self._of_a_table("pools", "find_wrong_slots", good, hint)

    async def permits(self) -> Check:
        good = "every open run under a limit has its permit, or is in line for one"
        hint = "a sweep sets what is missing again within seconds; what is too much must not be: report it"
        return await self._of_a_table("permits", "find_wrong_permits", good, hint)

    async def triggers(self) -> Check:
        keys, wrong, examples = await self.row("count_wrong_triggers", percent=self.percent)
        detail = f"{keys} trigger keys{'' if self.percent >= 100 else ' of a sample'} have their runs"
        return Check("triggers", not wrong, detail + _such_as("wrong", wrong, examples), wrong, _SAVE_IT)

    async def _of_a_table(self, name: str, statement: str, good: str, hint: str, **parameters: Any) -> Check:
        limit = ALL if self.is_full else SAMPLE
        count, examples = await self.row(statement, limit=limit, **parameters)
        return Check(name, not count, (good if not count else "") + _such_as("wrong", count, examples), count, hint)

    # -- runs ----------------------------------------------------------------------------
    async def choose(self) -> AsyncIterator[tuple[str, int]]:
        """The runs to look at, in chunks: an array of ids as text, and how many. Raises what Postgres refuses."""
        if not self.is_full:
            async with self.connection.transaction():
                (estimate,) = await self.row("estimate_runs")
                self.percent = min(100.0, 100.0 * self.limit / max(estimate, 1))
                chosen = await self.rows("choose_runs", limit=self.limit, percent=self.percent, chunk=CHUNK)
            for ids, count in chosen:
                yield ids, count
            return
        after = UUID(int=0)
        while True:
            async with self.connection.transaction():
                ids, count, last = await self.row("next_runs", after=after, chunk=CHUNK)
            if not count:
                return
            yield ids, count
            after = last

    def checks(self) -> list[Callable[[], Awaitable[Check]]]:
        return [
            self.server, self.schema, self.clock, self.timeline, self.relay, self.slot, self.sessions, self.timers,
            self.requests,
        ]  # fmt: skip

    def later_checks(self) -> list[Callable[[], Awaitable[Check]]]:
        return [
            self.orphan_timers, self.orphan_approvals, self.parked, self.posted_signals, self.pools, self.permits,
            self.triggers, self.sweeps, self.ticks, self.partitions, self.holders,
        ]  # fmt: skip


class _Findings:
    """What one check of runs has found so far."""

    def __init__(self, check: _OfRuns) -> None:
        self.check, self.wrong, self.seconds = check, 0, 0.0
        self.examples: list[str] = []
        self.error = ""

    def result(self, looked_at: int) -> Check:
        if self.error:
            return Check(self.check.name, False, self.error, 1, seconds=self.seconds)
        detail = f"{looked_at} runs {self.check.good}" if not self.wrong else f"{looked_at} runs looked at"
        detail += _such_as("wrong", self.wrong, self.examples)
        return Check(self.check.name, not self.wrong, detail, self.wrong, self.check.hint, self.seconds)


def _such_as(what: str, wrong: int, examples: list[str] | None) -> str:
    return f"; {wrong} {what}, such as {'; '.join((examples or [])[:EXAMPLES_MAX])}" if wrong else ""


async def examine(connection: Connection, *, runs: int = ALL, statement_seconds: float = 0) -> list[Check]:
    """Run all checks in one read-only snapshot. Opens its own transaction, on a connection in autocommit.

    runs: how many of the newest runs the invariants are checked for, besides as many open ones and a sample of as many
    others; ALL: every run.
    statement_seconds: the most that one statement may take; 0: as long as it wants. A statement that Postgres refuses
    makes its own check fail and the others go on; raises what a lost connection raises.
    """
    examination = _Examination(connection, runs)
    await examination.look_at_slots()
    async with connection.transaction():
        await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        await connection.execute(_SETTINGS, (str(int(statement_seconds * 1000)),))
        checks = [await _timed(connection, check) for check in examination.checks()]
        checks += await _examine_runs(examination)
        checks += [await _timed(connection, check) for check in examination.later_checks()]
    return checks


async def _timed(connection: Connection, check: Callable[[], Awaitable[Check]]) -> Check:
    began = time.perf_counter()
    try:
        async with connection.transaction():
            made = await check()
    except psycopg.Error as error:
        if connection.broken:
            raise
        made = Check(check.__name__, False, _refused(error), 1)
    hint = "" if made.ok else made.hint
    return msgspec.structs.replace(made, hint=hint, seconds=round(time.perf_counter() - began, 3))


async def _examine_runs(examination: _Examination) -> list[Check]:
    findings = [_Findings(check) for check in OF_RUNS]
    looked_at = 0
    try:
        async for ids, count in examination.choose():
            looked_at += count
            for finding in findings:
                await _look(examination, finding, ids)
    except psycopg.Error as error:
        if examination.connection.broken:
            raise
        for finding in findings:
            finding.error = finding.error or _refused(error)
    return [finding.result(looked_at) for finding in findings]


def _refused(error: psycopg.Error) -> str:
    return f"cannot be checked: {str(error).strip()}"


async def _look(examination: _Examination, finding: _Findings, ids: str) -> None:
    if finding.error:
        return
    began = time.perf_counter()
    try:
        async with examination.connection.transaction():
            count, examples = await examination.row(finding.check.statement, runs=ids)
    except psycopg.Error as error:
        if examination.connection.broken:
            raise
        finding.error = _refused(error)
        return
    finally:
        finding.seconds = round(finding.seconds + time.perf_counter() - began, 3)
    finding.wrong += count
    finding.examples = [*finding.examples, *(examples or [])][:EXAMPLES_MAX]


async def _main(dsn: str, runs: int) -> list[Check]:
    try:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, connect_timeout=5) as connection:
            return [Check("connection", True, "Postgres answers"), *await examine(connection, runs=runs)]
    except psycopg.OperationalError as error:
        return [Check("connection", False, str(error).strip(), 1, "is Postgres running, and HEADRACE_POSTGRES right?")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m state.doctor", description=__doc__)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--full", action="store_true", help="look at every run, however long it takes")
    parser.add_argument("--runs", type=int, default=SAMPLE, help=f"newest runs to look at; {SAMPLE} by default")
    options = parser.parse_args()
    began = time.perf_counter()
    checks = asyncio.run(_main(EngineSettings().postgres, ALL if options.full else options.runs))
    ok = all(check.ok for check in checks)
    if options.json:
        sys.stdout.buffer.write(msgspec.json.encode({"ok": ok, "checks": checks}) + b"\n")
    else:
        for check in checks:
            print(f"{'ok   ' if check.ok else 'WRONG'} {check.name:<17} {check.detail}")
            if check.hint and not check.ok:
                print(f"      {'':<17} {check.hint}")
        print(f"{len(checks)} checks in {time.perf_counter() - began:.1f} s")
    sys.exit(not ok)


if __name__ == "__main__":
    main()
