"""The sweeps: find in Postgres what is due, lost or forgotten, and say so on the run's partition.

A sweep never changes a run. It says an event, through the outbox, in the transaction that notes that it did; the run
agent decides. Any number of processes may sweep: rows are claimed with SKIP LOCKED, and what is said twice is stale the
second time. An event said here stands in the log behind every result that was there before, so a sweep never overtakes
an answer that only waits to be read.

Sweeps that are alike in what they may have to wait for share a connection (`Lane`): those that ask Kafka, or the object
store, or look through tables, keep nobody else waiting.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec
import psycopg
import structlog
from uuid_utils import uuid7

from headrace.errors import UnavailableError
from headrace.messages import Abort, Admitted, Due, Event, Lost, Requested, Tick, Yield, encode, make_nonce
from headrace.object_store import ObjectStore
from state.counters import add_counters
from state.outbox import Record, emit
from state.permits import restore_permits
from state.plans import Plans
from state.pools import grant_slots, has_waiters, restore_slots, restore_waiters, say_granted
from state.posted_signals import OFFERS_MAX, offer_signals
from state.sql import load
from state.store import Key, Store
from state.timeline import find_timeline
from streams.bulk import Bulk
from streams.children import Children
from streams.clock import Steps
from streams.lane import Connection, Lane
from streams.lifecycle import approval_event
from streams.metrics import Metrics
from streams.objects import Objects
from streams.pauses import Pauses, QueuePauses
from streams.permits import Permits
from streams.received import Received
from streams.retention import Retention
from streams.topics import Log, Topics

log = structlog.get_logger(__name__)
_SQL, _POSTED = load("sweep"), load("posted_signal")
_READ_CLOCK: Final = load("run").text("read_clock")

FOUND_MAX: Final = 5_000
"""Per pass: one transaction's worth. More is there again at the next pass, at once."""
SAY_AGAIN_SECONDS: Final = 5.0
"""After this, something said and not applied is said again: its record may be gone."""
KEYS_MAX: Final = 500
"""Keys of posted signals that one pass looks at besides those it is told of."""
NO_KEY: Final = Key("", "", "")
SLOT_SECONDS: Final = 0.25
"""Longest sleep of the slots sweep: for those who began to wait, or were freed, in another process, and for rates."""
TIMER_SECONDS: Final = 0.25
"""Longest sleep of the timer sweep; a timer set in this process or due within two seconds wakes it on time."""
NOTE_SECONDS: Final = 1.0
"""Between two looks at which sweeps passed: one commit for all of them."""
AWAY: Final = (psycopg.OperationalError, psycopg.InterfaceError, psycopg.errors.ReadOnlySqlTransaction)
"""The last one is said by a standby that was not promoted yet."""
Stray = tuple[UUID, int, int]
"""Run, task, token."""
Sweep = Callable[[Connection], Awaitable[int]]
Wait = Callable[[], Awaitable[None]]
Loop = Callable[[], Coroutine[Any, Any, None]]


class Sweeps:
    def __init__(
        self,
        store: Store,
        plans: Plans,
        topics: Topics,
        metrics: Metrics,
        *,
        retention_days: float = 0.0,
        fails_over: bool = False,
        objects: ObjectStore | None = None,
        hand_over_seconds: float = 1.0,
    ) -> None:
        """hand_over_seconds: how long a command waits behind a busy worker before an idle one is given it; 0: for as
        long as it takes. fails_over: whether the database may become another one. objects: where large results are."""
        self._objects, self._hand_over_seconds = objects, hand_over_seconds
        self._yields: dict[Stray, float] = {}
        """What workers were told to hand over, and when."""
        self.children: Final = Children(store, plans)
        """To be told when runs are asked for in this process."""
        self.permits: Final = Permits(store)
        """To be told of keys of limits, of which permits were given back in this process."""
        self._fails_over, self._retention_days = fails_over, retention_days
        self._strays: set[Stray] = set()
        self._store, self._plans, self._topics, self._metrics = store, plans, topics, metrics
        self._lease = store.settings.lease_seconds
        self._received = Received(timedelta(seconds=self._lease))
        self._steps = Steps()
        self._said: dict[tuple[str, int, int, str], float] = {}
        self._timer, self._waits, self._slot = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._keys: set[Key] = set()
        self._last_key = NO_KEY
        self._passes: dict[str, tuple[float, int]] = {}
        """Passes that no row tells of yet: when, and how many were found."""
        self._noted_at = 0.0

    def background(self) -> list[Loop]:
        """The loops, to run beside the agents."""
        beat = max(0.1, self._lease / 10)
        pauses, queues = Pauses(self._store), QueuePauses(self._store)
        bulk, retention = Bulk(self._store, self._plans, self._topics), Retention(self._retention_days)
        timers, turns, sessions, requests, kafka, upkeep = (Lane(self._store.settings.postgres) for _ in range(6))
        follow = [self._loop(sessions, "strays", self._stop_strays, _pause(beat))] if self._fails_over else []
        stuck = [self._loop(requests, "stuck", self._stuck, _pause(1.0))] if self._hand_over_seconds else []
        return [
            self._loop(timers, "timers", self._timers, lambda: self._until_timer_of(timers)),
            self._loop(turns, "slots", self._slots, self._until_slot),
            self._loop(turns, "permits", self.permits.grant, self.permits.until_due),
            self._loop(turns, "children", self.children.start, self.children.until_asked),
            self._loop(turns, "held commands", queues.release, _pause(0.5)),
            *follow,
            self._loop(sessions, "ticks", self._ticks, _pause(beat)),
            self._loop(sessions, "sessions", self._sessions, _pause(beat)),
            *stuck,
            self._loop(requests, "requests", self._requests, _pause(1.0)),
            self._loop(requests, "signals", self._signals, self._until_keys),
            self._loop(requests, "approvals", self._approvals, _pause(1.0)),
            self._loop(requests, "bulk", bulk.act, bulk.until_due),
            self._loop(requests, "pauses", pauses.align, pauses.until_due),
            self._loop(kafka, "lost", self._lost, _pause(max(0.5, self._lease / 6))),
            self._loop(kafka, "topics", self._make_topics, _pause(2.0)),
            self._loop(kafka, "replayed records", bulk.note_published, _pause(5.0)),
            self._loop(upkeep, "vanished", self._vanished, _pause(max(1.0, self._lease / 2))),
            self._loop(upkeep, "counters", self._counters, _pause(2.0)),
            self._loop(upkeep, "retention", retention.purge, retention.until_due),
            *self._object_sweep(),
        ]

    def _object_sweep(self) -> list[Loop]:
        if self._objects is None:
            return []
        objects = Objects(self._objects)
        return [self._loop(Lane(self._store.settings.postgres), "objects", objects.purge, objects.until_due)]

    def expect_timer(self, due_at: int) -> None:
        """A timer was set in this process: look before the next tick."""
        self._timer.set()

    def expect_signals(self, keys: set[Key]) -> None:
        """Tasks began to wait in this process: something may be posted for them already."""
        self._keys |= keys
        self._waits.set()

    def expect_slot(self) -> None:
        """Something waits for a slot, or gave one back, in this process."""
        self._slot.set()

    # -- one loop
    def _loop(self, lane: Lane, name: str, sweep: Sweep, wait: Wait) -> Loop:
        return lambda: self._run(lane, name, sweep, wait)

    async def _run(self, lane: Lane, name: str, sweep: Sweep, wait: Wait) -> None:
        """Repeat a sweep for ever, through lost connections; says once when it cannot work and once when it can
        again."""
        away = False
        try:
            while True:
                try:
                    async with lane.enter() as connection:
                        await self._pass(connection, name, sweep)
                    if away:
                        log.info("sweep goes on", sweep=name)
                        away = False
                    await wait()
                except (*AWAY, UnavailableError) as e:
                    if not away:
                        log.warning("sweep waits", sweep=name, why=str(e).strip())
                    away = True
                    await asyncio.sleep(0.5)
        finally:
            await lane.close()

    async def _pass(self, connection: Connection, name: str, sweep: Sweep) -> None:
        started = time.monotonic()
        found = await sweep(connection)
        while found >= FOUND_MAX:
            found = await sweep(connection)
        if found:
            self._metrics.sweep_found.labels(name).inc(found)
        self._passes[name] = started, found
        if started - self._noted_at > NOTE_SECONDS:
            self._noted_at, passes, self._passes = started, self._passes, {}
            now = time.monotonic()
            columns = [(name, now - at, found) for name, (at, found) in sorted(passes.items())]
            await _run(connection, "note_passes", tuple(map(list, zip(*columns, strict=True))))

    async def _say(self, connection: Connection, events: Iterable[tuple[str, Event]]) -> int:
        """Leave events in the outbox, in the caller's transaction."""
        topic = self._store.settings.events_topic
        records = [Record(topic, run_id.encode(), encode(event)) for run_id, event in events]
        await emit(connection, records, self._store.mode)
        return len(records)

    def _nonce(self, run_id: str, task: int, token: int) -> str:
        return make_nonce(self._store.secret, run_id.encode(), task, token)

    # -- the sweeps
    async def _timers(self, connection: Connection) -> int:
        async with connection.transaction():
            rows = await (await _run(connection, "claim_due_timers", (FOUND_MAX, SAY_AGAIN_SECONDS))).fetchall()
            return await self._say(
                connection,
                [
                    (str(run_id), Due(task, token, self._nonce(str(run_id), task, token), kind))
                    for run_id, task, token, kind in rows
                ],
            )

    async def _until_timer_of(self, lane: Lane) -> None:
        async with lane.enter() as connection:
            await self._until_timer(connection)

    async def _until_timer(self, connection: Connection) -> None:
        """Wait until a timer is due; also returns now and then, for those that were said and not applied."""
        give_up_at = time.monotonic() + SAY_AGAIN_SECONDS / 2
        while time.monotonic() < give_up_at:
            self._timer.clear()  # before the look, so that a timer set during it is not missed
            row = await (await _run(connection, "next_timer", ())).fetchone()
            pause = TIMER_SECONDS if row is None else min(TIMER_SECONDS, row[0])
            if pause <= 0:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(self._timer.wait(), pause)

    async def _vanished(self, connection: Connection) -> int:
        """Rows that a task or a run counts on and that somebody took away."""
        async with connection.transaction():
            if not await _is_first(connection, "vanished"):
                return 0
            timers = await (await _run(connection, "restore_timers", (FOUND_MAX,))).fetchall()
            for statement in ("restore_deadlines", "restore_run_deadlines"):
                timers += await (await _run(connection, statement, (FOUND_MAX,))).fetchall()
            parked = await (await _run(connection, "restore_parked_tasks", (FOUND_MAX,))).fetchall()
            waiters = await restore_waiters(connection, self._store, self._plans, FOUND_MAX)
            slots = await restore_slots(connection, self._store, self._plans, FOUND_MAX)
            permits = await restore_permits(connection, self._plans, FOUND_MAX)
        self._timer.set()
        found = {"timers": len(timers), "parked_tasks": len(parked)}
        found |= {"waiters": waiters, "slots": slots, "permits": permits}
        if any(found.values()):
            log.warning("rows were missing and are there again", **found)
        return sum(found.values())

    async def _ticks(self, connection: Connection) -> int:
        """Its arrival at the session agent proves how far relay and session agent are."""
        async with connection.transaction():
            if not await _is_first(connection, "ticks"):
                return 0
            row = await (await _run(connection, "read_tick", ())).fetchone()
            at = row[0] if row else 0
            record = Record(self._store.settings.workers_topic, b"tick", encode(Tick(at)))
            await emit(connection, [record], self._store.mode)
        return 0

    @asynccontextmanager
    async def _telling(self, connection: Connection) -> AsyncGenerator[None, None]:
        """A transaction in which something is said: when it is undone, nobody has heard it."""
        try:
            async with connection.transaction():
                yield
        except BaseException:
            self._said.clear()
            raise

    async def _can_judge(self, connection: Connection) -> bool:
        """Whether for a lease nobody stepped the database's clock: what it said before says nothing about who is late,
        until everybody alive has been heard again."""
        asked = time.monotonic_ns() // 1000
        row = await (await connection.execute(_READ_CLOCK)).fetchone()
        seconds = self._steps.note(asked, row[0] if row else 0, time.monotonic_ns() // 1000)
        if seconds:
            log.warning("the database's clock was stepped: nothing is called lost for a lease", seconds=seconds)
            self._received = Received(timedelta(seconds=self._lease))
        return self._steps.seconds_ago() > self._lease

    async def _sessions(self, connection: Connection) -> int:
        """Sessions whose lease ran out, and what ended sessions still held."""
        can_judge = await self._can_judge(connection)
        async with self._telling(connection):
            expired = await (await _run(connection, "expire_sessions", ())).fetchall() if can_judge else []
            for session_id, worker in expired:
                log.warning("a worker session ran out of its lease", session_id=str(session_id), worker=worker)
            rows = await (await _run(connection, "release_ended", ())).fetchall()
            return await self._say_lost(connection, rows, "its worker session has ended")

    async def _lost(self, connection: Connection) -> int:
        found = 0
        if not await self._can_judge(connection):
            return 0
        async with self._telling(connection):
            if not await _is_first(connection, "lost"):
                return 0
            rows = await (await _run(connection, "find_lost_running", (self._lease, FOUND_MAX))).fetchall()
            found += await self._say_lost(connection, rows, "no live session lists it")
        return found + await self._lost_commands(connection)

    async def _lost_commands(self, connection: Connection) -> int:
        """Commands that reached a worker which never answered, or that lay in a log which is gone."""
        mark, gap_at = (await (await _run(connection, "read_marks", ())).fetchall())[0]
        if mark is None:
            return 0
        queues = await self._queues(connection)
        by_topic = {self._store.commands_topic(queue): queue for queue in queues}
        logs, committed = await asyncio.to_thread(self._read_logs, list(by_topic))
        if not logs or not await self._can_judge(connection):  # reading takes a while, and the mark is from before it
            return 0
        cutoffs: dict[str, datetime] = {}
        settled = timedelta(
            seconds=self._lease / 2
        )  # long enough for live holders to have listed what they had received
        async with self._telling(connection):
            noted = await _run(connection, "note_logs", (list(logs), [log_.topic_id for log_ in logs.values()]))
            for topic, since in await noted.fetchall():
                self._received.observe(topic, logs[topic], committed.get(topic, {}), mark)
                marks = [self._received.before(topic)]
                marks += [at for at in (since, gap_at) if at is not None and at + settled <= mark]
                if given := [at for at in marks if at is not None]:
                    cutoffs[by_topic[topic]] = max(given)
            if not cutoffs:
                return 0
            found = await (await _run(connection, "find_lost_queued", (max(cutoffs.values()), FOUND_MAX))).fetchall()
            return await self._say_lost(
                connection, await self._of_queues(connection, found, cutoffs), "its command is gone"
            )

    async def _of_queues(
        self, connection: Connection, rows: list[Any], cutoffs: dict[str, datetime]
    ) -> list[tuple[Any, int, int]]:
        await self._plans.load(connection, {row[4] for row in rows})
        lost = []
        for run_id, task, token, changed_at, version_id in rows:
            plan = self._plans.get(version_id)
            cutoff = cutoffs.get(plan.at(task).queue) if plan else None
            if cutoff is not None and changed_at < cutoff:
                lost.append((run_id, task, token))
        return lost

    def _read_logs(self, topics: list[str]) -> tuple[dict[str, Log], dict[str, dict[int, int]]]:
        logs = self._topics.read(topics)
        return logs, self._topics.committed(logs)

    async def _say_lost(self, connection: Connection, rows: Iterable[tuple[Any, ...]], reason: str) -> int:
        """Say each hand-out once per lease: until the run agent has read it, it is found again at every pass.

        rows: run id, task, token, and which session lost it, when one did: another may hold it by now.
        """
        now = time.monotonic()
        self._said = {known: at for known, at in self._said.items() if at > now - self._lease}
        events: list[tuple[str, Event]] = []
        for run_id, task, token, *session in rows:
            loser = "".join(one.hex for one in session)
            known = (str(run_id), task, token, loser)
            if known not in self._said:
                self._said[known] = now
                nonce = self._nonce(known[0], task, token)
                events.append((known[0], Lost(task, token, nonce, reason, session=loser)))
        if events:
            log.info("tasks lost", count=len(events), reason=reason)
        return await self._say(connection, events)

    async def _stop_strays(self, connection: Connection) -> int:
        """Tell workers to stop what this database never handed out to them: another one did, which it succeeded.

        Only what is found twice, a beat apart: a command can be listed before its own transaction is visible. Said
        again until its worker lists it no more.
        """
        if not (await find_timeline(connection)).epoch:
            return 0
        found: set[Stray] = set(await (await _run(connection, "find_strays", (FOUND_MAX,))).fetchall())
        stopped, self._strays = found & self._strays, found
        if not stopped:
            return 0
        log.warning("workers are told to stop what this database did not hand out", count=len(stopped))
        topic, records = self._store.settings.control_topic, list[Record]()
        for run_id, task, token in stopped:
            key = str(run_id)
            records.append(Record(topic, key.encode(), encode(Abort(key, task, token, "stale"))))
        async with connection.transaction():
            await emit(connection, records, self._store.mode)
        return len(stopped)

    async def _stuck(self, connection: Connection) -> int:
        """Have commands handed back that wait where every slot is taken, as many as others could begin at once. The
        worker knows whether a body has begun; what it hands back goes to another partition."""
        now = time.monotonic()
        self._yields = {known: at for known, at in self._yields.items() if at > now - self._lease}
        looked = (self._hand_over_seconds, self._lease, FOUND_MAX)
        found = await (await _run(connection, "find_stuck", looked)).fetchall()
        told = [stray for stray in found if stray not in self._yields]
        if not told:
            return 0
        topic, records = self._store.settings.control_topic, list[Record]()
        for run_id, task, token in told:
            key = str(run_id)
            records.append(Record(topic, key.encode(), encode(Yield(key, task, token))))
        async with connection.transaction():
            await emit(connection, records, self._store.mode)
        self._yields.update(dict.fromkeys(told, now))
        return len(told)

    async def _requests(self, connection: Connection) -> int:
        async with connection.transaction():
            rows = await (await _run(connection, "claim_unapplied", (SAY_AGAIN_SECONDS, FOUND_MAX))).fetchall()
            return await self._say(connection, [(str(run_id), Requested(str(inbox_id))) for inbox_id, run_id in rows])

    async def _signals(self, connection: Connection) -> int:
        """Offer what is posted to those who wait: for the keys of waits that began here, and, some at each pass, for
        all others, since a post and a wait that began at the same moment did not see each other."""
        asked, self._keys = self._keys, set()
        async with connection.transaction():
            after = (*self._last_key, KEYS_MAX)
            found = [Key(*row) for row in await (await _posted(connection, "next_keys", after)).fetchall()]
            self._last_key = found[-1] if len(found) == KEYS_MAX else NO_KEY
            keys = asked | set(found)
            offers = await offer_signals(connection, self._store, keys) if keys else 0
        if offers == OFFERS_MAX:
            self.expect_signals(keys)
        return offers

    async def _until_keys(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._waits.wait(), 1.0)
        self._waits.clear()

    async def _slots(self, connection: Connection) -> int:
        """Admit those who are next for what is free in their pools."""
        if not await has_waiters(connection):  # one look, four times a second, is all that an idle engine pays
            return 0
        async with connection.transaction():
            granted = await grant_slots(connection, FOUND_MAX)
            again = await say_granted(connection, SAY_AGAIN_SECONDS, FOUND_MAX)
            await self._say(
                connection,
                [
                    (str(run_id), Admitted(task, token, self._nonce(str(run_id), task, token)))
                    for run_id, task, token in granted + again
                ],
            )
            return len(granted)

    async def _until_slot(self) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._slot.wait(), SLOT_SECONDS)
        self._slot.clear()

    async def _approvals(self, connection: Connection) -> int:
        """Questions whose time is over become requests like a person's, unless somebody else is asked then; reminders
        and steps of escalation that are due fire."""
        async with connection.transaction():
            escalated = await (await _run(connection, "escalate_expired", (FOUND_MAX,))).fetchall()
            rows = await (await _run(connection, "expire_approvals", (FOUND_MAX,))).fetchall()
            fired = await (await _run(connection, "fire_approval_timers", (FOUND_MAX,))).fetchall()
            told = [
                approval_event(self._store.settings, kind, approval_id, run_id, position, targets)
                for approval_id, run_id, kind, position, targets in (*escalated, *fired)
            ]
            if told:
                await emit(connection, told, self._store.mode)
            if rows:
                await self._say_expired(connection, rows)
        return max(len(rows), len(escalated), len(fired))

    async def _say_expired(self, connection: Connection, rows: list[Any]) -> None:
        ids = [UUID(bytes=uuid7().bytes) for _ in rows]
        bodies = [
            msgspec.json.encode(
                {"task": task, "token": token, "outcome": status, "comment": "nobody answered in time",
                 "votes": msgspec.Raw(votes.encode())}
            ).decode()
            for _, task, token, status, votes in rows
        ]  # fmt: skip
        await _run(connection, "insert_requests", (ids, [row[0] for row in rows], "decided", "expiry", bodies))
        await self._say(connection, [(str(row[0]), Requested(str(id_))) for id_, row in zip(ids, rows, strict=True)])

    async def _make_topics(self, connection: Connection) -> int:
        queues = await self._queues(connection)
        await asyncio.to_thread(self._topics.ensure, self._topics.names(queues))
        return 0

    async def _queues(self, connection: Connection) -> set[str]:
        rows = await (await _run(connection, "list_queues", ())).fetchall()
        return {"default", *(queue for (queue,) in rows)}

    async def _counters(self, connection: Connection) -> int:
        """Add what this process counted to the sums that the API shows."""
        if rows := self._metrics.fresh():
            try:
                await add_counters(connection, rows)
            except psycopg.Error:
                self._metrics.take_back(rows)
                raise
        return 0


def _pause(seconds: float) -> Wait:
    return lambda: asyncio.sleep(seconds)


async def _run(connection: Connection, name: str, parameters: tuple[Any, ...]) -> "psycopg.AsyncRawCursor[Any]":
    return await psycopg.AsyncRawCursor(connection).execute(_SQL.text(name), parameters)


async def _posted(connection: Connection, name: str, parameters: tuple[Any, ...]) -> "psycopg.AsyncRawCursor[Any]":
    return await psycopg.AsyncRawCursor(connection).execute(_POSTED.text(name), parameters)


async def _is_first(connection: Connection, name: str) -> bool:
    """Whether this transaction is the only one that makes this pass now."""
    cursor = await connection.execute(
        "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", (f"headrace.sweep.{name}",)
    )
    row = await cursor.fetchone()
    return bool(row and row[0])
