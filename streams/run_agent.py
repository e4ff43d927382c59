"""The run agent: events in, one transaction out.

    batch -> partitions that are still ours, records not applied yet
          -> load the runs named -> fold each run's events in order through `advance`
          -> one statement per table, guarded by epoch, offset and row_version -> outbox -> COMMIT

It only repeats: every decision is `headrace.machine.advance`. What fails with Postgres is retried from Postgres' own
state; a bug that one run's event meets sets that event aside and parks that run, so that one run never stops a
partition; any other bug ends the process.
"""

import asyncio
import re
import time
import traceback
from collections.abc import Callable
from typing import Final, NamedTuple
from uuid import UUID

import msgspec
import structlog
from confluent_kafka import Message

from headrace.errors import MessageError, PayloadError, UnavailableError
from headrace.machine import (
    Cancelled,
    ChildTold,
    Decided,
    Isolated,
    MachineEvent,
    Migrated,
    Paused,
    Prioritised,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    Signalled,
    Supplied,
    Terminated,
    advance,
)
from headrace.machine.status import AWAITS_PERMIT, PAUSED, RUN_TERMINAL
from headrace.messages import (
    Abort,
    Admitted,
    Due,
    Error,
    Event,
    Failed,
    Lost,
    Requested,
    Returned,
    Started,
    Succeeded,
    decode_event,
    make_nonce,
)
from headrace.payload import check
from state.pipe import Overtaken, Pipe, Refused
from state.requests import HEARD_IN_ISOLATION
from state.sql import load
from state.store import Key, Rows, Store, StoredRun
from state.timeline import FIRST, Timeline
from streams.batch import Batch
from streams.clock import DatabaseClock
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Move, Ownership
from streams.run_cache import RunCache, signal_of

log = structlog.get_logger(__name__)
_SQL = load("run")

NOT_YET: Final = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4)
"""Seconds between looks for a run or a request that a record names and a SELECT does not find. Logical decoding shows a
commit once its WAL is flushed, which is before other sessions see its rows, so a fast worker's answer can overtake the
start. Not found means not yet."""
ABSENT_SECONDS: Final = 60.0
"""How long a key that was not found within all those looks is taken to be nobody's, without looking again."""
_is_session: Final = re.compile("[0-9a-f]{32}").fullmatch
_is_run_id: Final = re.compile(rb"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").fullmatch
CLOCK_SECONDS: Final = 5.0
"""How far the clock by which a run got its id may be from the database's."""
TOLD_MAX: Final = 5
"""Runs that one line of the log names."""
INSTANT_MAX: Final = 2**53
"""Microseconds since 1970: some year in the third millennium."""
_ESCAPED_NUL: Final = b"\\u0000"
TRACE_CHARS_MAX: Final = 8_000
RETRY_SECONDS: Final = 0.05
RETRY_SECONDS_MAX: Final = 2.0


OF_A_VERSION: Final = ("migrated", "reran")
"""Requests that may name a version for their run to go on with."""
_WITHOUT_A_SESSION: Final = (Requested, Due, Admitted)
OfHandOut = Started | Succeeded | Failed | Returned | Lost | Due | Admitted
"""What names the hand-out it is about, and so needs its nonce."""


class Told(NamedTuple):
    """A record that could be read."""

    record: Message
    key: bytes
    event: Event


class Request(NamedTuple):
    """A row of `inbox`; decoded only where it is folded, so that a bad one concerns its own run."""

    key: bytes
    """Of the run that it was made to."""
    kind: str
    body: str
    actor: str
    applied: bool
    signal: Signalled | None = None
    """The content of one that stands in `signal`."""

    def event(self) -> MachineEvent | None:
        return self.signal or _event_of(self.kind, self.body, self.actor)


class RunAgent:
    """The body of the events topic."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        database: Database,
        cache: RunCache,
        clock: DatabaseClock,
        metrics: Metrics,
        on_timer: Callable[[int], None] = lambda due_at: None,
        timeline_of: Callable[[Pipe], Timeline] = lambda pipe: FIRST,
        on_keys: Callable[[set[Key]], None] = lambda keys: None,
        on_slots: Callable[[], None] = lambda: None,
        on_children: Callable[[], None] = lambda: None,
        on_permits: Callable[[set[Key]], None] = lambda keys: None,
    ) -> None:
        """timeline_of: what a connection writes to; by default of a database that is never another one. on_keys: told
        of committed waits for which a signal may be posted already. on_slots: told when a wait for a slot, or a slot
        that is free, was committed. on_children: told that runs were asked for. on_permits: told of keys of limits
        that a run gave its permit of back, or began to wait for one."""
        self._store, self._ownership, self._database = store, ownership, database
        self._cache, self._clock, self._metrics, self._on_timer = cache, clock, metrics, on_timer
        self._timeline_of, self._on_keys = timeline_of, on_keys
        self._on_slots, self._on_children, self._on_permits = on_slots, on_children, on_permits
        self._timeline = FIRST
        self._pipe: Pipe | None = None
        self._absent: dict[bytes, float] = {}
        self._epochs: dict[tuple[str, int], int] = {}

    async def __call__(self, batch: Batch) -> None:
        """Apply a batch, however often it takes. Returns when it is committed or no longer ours; raises only a bug of
        ours."""
        pause, away, singly = RETRY_SECONDS, False, False
        while True:
            try:
                await (self._apply_singly(batch) if singly else self._apply(batch))
                if away:
                    log.info("Postgres is back")
                return
            except Overtaken as e:
                log.warning("batch overtaken: reading again", topic=batch.topic, why=str(e).strip())
                self._metrics.overtaken.inc()
            except UnavailableError as e:
                if not away:
                    log.warning("Postgres is away: the batch waits", why=e.message)
                away = True
            except Refused as e:
                log.warning(
                    "a batch was refused: applying its records one by one", topic=batch.topic, why=str(e).strip()
                )
                singly = True
            self._forget()
            await asyncio.sleep(pause)
            pause = min(pause * 2, RETRY_SECONDS_MAX)
            try:
                self._ownership.refresh(batch.topic)
            except UnavailableError:
                away = True

    # -- one transaction
    async def _apply(self, batch: Batch) -> None:
        records, moves = self._ownership.take(batch)
        if moves:
            await self._commit(records, moves)

    async def _commit(self, records: list[Message], moves: list[Move], *, substitute: str | None = None) -> None:
        """Fold records and commit them with their offsets. substitute: store results as FAILED(BAD_RESULT), for this
        reason."""
        self._trust(moves)
        pipe = self._connect()
        rows = Rows(self._store)
        self._ownership.fence(rows, moves)
        told = self._decode(records, rows)
        await self._load({key for _, key, _ in told})
        requests = await self._requests(told)
        self._read_anew(requests)
        at = self._clock.now()
        lost = self._of_lost_future(told) if self._timeline.epoch else []
        refused = set(map(id, lost))
        ended, mapping = list[bytes](), set[bytes]()
        for one in await self._in_order(told, requests):
            run = self._cache.get(one.key)
            if id(one) in refused:
                self._refuse_lost_future(one, rows)
            elif run is None:
                self._leave(one, rows)
            elif self._fold(run, one, requests, at, rows, substitute):
                if run.status in RUN_TERMINAL:
                    ended.append(one.key)
                if run.maps:
                    mapping.add(one.key)
        if lost:
            rows.add("count_lost_records", self._timeline.epoch, len(lost))
        pipe.run(rows.calls())
        self._ownership.moved(moves)
        if lost:
            self._report_lost_future(lost)
        if rows.soonest is not None:
            self._on_timer(rows.soonest)
        for key in mapping:
            self._cache.weigh(key)
        if rows.keys:
            self._on_keys(rows.keys)
        if rows.has_slots_to_give:
            self._on_slots()
        if rows.asks_for_runs:
            self._on_children()
        if rows.permit_keys:
            self._on_permits(rows.permit_keys)
        for key in ended:
            self._cache.drop(key)
        self._cache.trim()
        self._metrics.batch(len(records))

    def _connect(self) -> Pipe:
        """The connection, with what is known of its timeline before anything is decided for it. A run in memory has the
        floor of the timeline it was loaded under."""
        if self._pipe is None:
            self._pipe = Pipe(self._store.settings.postgres, self._store.statements())
            self._timeline = self._timeline_of(self._pipe)
            self._cache.clear()
            self._cache.token_floor = self._timeline.token_floor
        return self._pipe

    def _trust(self, moves: list[Move]) -> None:
        """A run in memory is as good as the ownership it was loaded under: another process may have moved it since. An
        event that an old copy takes for stale writes nothing that a row_version would guard."""
        epochs = {(move.topic, move.partition): move.epoch for move in moves}
        if any(self._epochs.get(place) != epoch for place, epoch in epochs.items()):
            self._cache.clear()
            self._epochs.update(epochs)

    def _decode(self, records: list[Message], rows: Rows) -> list[Told]:
        told = []
        for record in records:
            key = record.key() or b""
            try:
                if len(key) != 36:
                    raise MessageError("the key is no run id")
                event = _checked(decode_event(value := record.value() or b""))
                told.append(Told(record, key, event if _ESCAPED_NUL not in value else _without_nul(event)))
            except MessageError as e:
                self._bury(rows, record, None, e.message)
        return told

    async def _load(self, keys: set[bytes]) -> None:
        now = time.monotonic()
        unknown = {key for key in self._cache.unknown(keys) if self._absent.get(key, 0.0) < now and _is_run_id(key)}
        for pause in NOT_YET:
            if not unknown:
                return
            if pause:
                await asyncio.sleep(pause)
            self._cache.load(unknown)
            unknown = self._cache.unknown(unknown)
        if len(self._absent) > 10_000:
            self._absent.clear()
        self._absent.update(dict.fromkeys(unknown, now + ABSENT_SECONDS))

    async def _requests(self, told: list[Told]) -> dict[str, Request]:
        """The rows of `inbox` that this batch names."""
        wanted = {
            event.inbox for _, _, event in told if isinstance(event, Requested) and _is_run_id(event.inbox.encode())
        }
        found: dict[str, Request] = {}
        for pause in NOT_YET:
            if not wanted:
                break
            if pause:
                await asyncio.sleep(pause)
            for inbox_id, run_id, kind, body, actor, applied in self._database.fetch(
                _SQL.text("load_inbox"), ([UUID(i) for i in wanted],)
            ):
                found[str(inbox_id)] = Request(str(run_id).encode(), kind, body, actor, applied)
            wanted -= found.keys()
        return found

    def _read_anew(self, requests: dict[str, Request]) -> None:
        """Runs that are to be moved to another version: that may read outputs which the older one had no use for, and
        which are not in memory."""
        moving = {one.key for one in requests.values() if one.kind in OF_A_VERSION and not one.applied}
        known = {key for key in moving if self._cache.get(key) is not None}
        for key in known:
            self._cache.drop(key)
        if known:
            self._cache.load(known)

    async def _in_order(self, told: list[Told], requests: dict[str, Request]) -> list[Told]:
        """The same, where for a signal stands all that was sent to its run and that the run has not taken note of, in
        the order in which it was stored: a wake-up may have been lost, and a sender's first signal comes first."""
        named = [inbox_id for inbox_id, request in requests.items() if request.kind == "signalled"]
        if not named:
            return told
        sent: dict[bytes, list[str]] = {}
        statement = _SQL.text("load_unapplied_signals")
        for run_id, *content in self._database.fetch(statement, ([UUID(inbox_id) for inbox_id in named],)):
            key, signal = str(run_id).encode(), signal_of(*content)
            sent.setdefault(key, []).append(signal.signal_id)
            requests[signal.signal_id] = Request(key, "signalled", "", signal.by, applied=False, signal=signal)
        ordered = []
        for one in told:
            if isinstance(one.event, Requested) and one.event.inbox in named:
                ordered += [one._replace(event=Requested(signal_id)) for signal_id in sent.pop(one.key, ())]
            else:
                ordered.append(one)
        return ordered

    # -- one event
    def _fold(
        self, run: StoredRun, told: Told, requests: dict[str, Request], at: int, rows: Rows, substitute: str | None
    ) -> bool:
        """Fold one event into its run; answers whether it changed something."""
        if self._is_forged(run, told.event):
            self._metrics.forged.inc()
            return False
        try:
            event = self._event(run, told, requests, rows, substitute)
            transition = None if event is None else advance(run.plan, run, event, at)
        except Exception as e:
            return self._isolate(run, told.record, e, at, rows)
        if event is None or transition is None:
            self._metrics.stale.inc()
            if isinstance(event, Signalled) and run.status in RUN_TERMINAL:
                rows.refuse_signal(run, event, f"the run was {run.status} when it came")
            elif isinstance(event, Signalled) and event.task is not None and not run.attention:
                rows.refuse_signal(run, event, "the task to which it was offered no longer waited")
            if isinstance(event, Started) and event.claim and not run.attention:
                # Changes nothing, but whoever claims waits for an answer in one of its slots.
                rows.control(run.key, Abort(run.key.decode(), event.task, event.token, "stale"))
            return False
        rows.move(run, event, transition)
        self._metrics.event(event, transition)
        return True

    def _leave(self, told: Told, rows: Rows) -> None:
        """An event of no run that this process has: nobody's, or of a version that only a newer release can read.

        What the engine says to itself has its truth in Postgres and is said again until it is heard. A worker says
        things once, so they are set aside for a person to replay.
        """
        self._metrics.stale.inc()
        unreadable = self._cache.unreadable(told.key)
        if unreadable is not None and isinstance(told.event, Started | Succeeded | Failed | Returned):
            self._bury(rows, told.record, unreadable.run_id.bytes, unreadable.error.message)

    def _of_lost_future(self, told: list[Told]) -> list[Told]:
        """What an engine handed out, and this database does not know: it went back in time. An unknown run that may
        have been removed, since it is older than the last run that was, proves nothing."""
        unknown = [one for one in told if self._is_unknown_hand_out(one)]
        if not any(self._cache.get(one.key) is None for one in unknown):
            return unknown
        ((removed_until,),) = self._database.fetch(_SQL.text("read_removed_until"))
        return [one for one in unknown if self._cache.get(one.key) or _made_at(one.key) > removed_until]

    def _is_unknown_hand_out(self, told: Told) -> bool:
        event, run = told.event, self._cache.get(told.key)
        if isinstance(event, Requested):
            return False
        if run is not None:
            is_unknown = event.token > run.task(event.task).token and not run.has_put_away(event.task)
        else:
            made_by = self._timeline.noted_at + CLOCK_SECONDS
            is_unknown = _is_run_id(told.key) is not None and _made_at(told.key) < made_by
        return is_unknown and not self._lacks_nonce(told.key, event)

    def _refuse_lost_future(self, told: Told, rows: Rows) -> None:
        """Nothing of it counts. Whoever claims waits for an answer; others are told to stop by a sweep."""
        event = told.event
        if isinstance(event, Started) and event.claim:
            rows.control(told.key, Abort(told.key.decode(), event.task, event.token, "stale"))

    def _report_lost_future(self, lost: list[Told]) -> None:
        self._metrics.lost_future.inc(len(lost))
        runs = sorted({one.key.decode() for one in lost})
        log.warning(
            "the database went back in time: records tell of what it does not have",
            records=len(lost),
            runs=len(runs),
            such_as=runs[:TOLD_MAX],
        )

    def _is_forged(self, run: StoredRun, event: Event) -> bool:
        """Whether it lacks the nonce of the hand-out it names. A request needs none: it is read from Postgres."""
        return not isinstance(event, Requested) and self._lacks_nonce(run.key, event)

    def _lacks_nonce(self, key: bytes, event: OfHandOut) -> bool:
        return event.nonce != make_nonce(self._store.secret, key, event.task, event.token)

    def _event(
        self, run: StoredRun, told: Told, requests: dict[str, Request], rows: Rows, substitute: str | None
    ) -> MachineEvent | None:
        """What a record says to its run; None for nothing. Raises when a row of `inbox` cannot be understood."""
        if isinstance(told.event, Requested):
            return self._requested(run, told.event.inbox, requests, rows)
        if substitute is not None and isinstance(told.event, Succeeded | Failed):
            return _unstorable(told.event, substitute)
        return told.event

    def _requested(self, run: StoredRun, inbox: str, requests: dict[str, Request], rows: Rows) -> MachineEvent | None:
        request = requests.get(inbox)
        if request is None or request.applied or request.key != run.key:
            return None  # one of another run, too: whoever can write to the topic may not move what was asked for
        if run.attention and request.kind not in HEARD_IN_ISOLATION:
            return None  # it stays in the inbox, and is said again once somebody has let the run go on
        given = msgspec.json.decode(request.body, type=_Body) if request.kind in OF_A_VERSION else _NO_VERSION
        plan = None if given.version_id < 0 else self._cache.plan(given.version_id)
        is_missing = plan is None and given.version_id >= 0
        if is_missing and self._cache.is_unreadable(given.version_id):
            return None  # it stays in the inbox, too, for a release that can read the version it names
        rows.add("apply_inbox", UUID(inbox).bytes)
        requests[inbox] = request._replace(applied=True)
        if request.kind == "migrated":
            return Migrated(plan, given.reason, request.actor, given.resumes)
        if is_missing:  # a rerun on a version that does not exist is none, like one of a run that has moved on
            log.warning("a request is refused: its version does not exist", request=inbox, version_id=given.version_id)
            return None
        event = request.event()
        return msgspec.structs.replace(event, plan=plan) if isinstance(event, Reran) and plan is not None else event

    def _isolate(self, run: StoredRun, record: Message, bug: Exception, at: int, rows: Rows) -> bool:
        """Deciding this run's event raised, which is a bug of ours: the record is set aside, and the run waits for a
        person."""
        trace = "".join(traceback.format_exception(bug))[-TRACE_CHARS_MAX:]
        log.error("a run is parked: deciding one of its events raised", run_id=run.key.decode(), error=repr(bug))
        self._bury(rows, record, run.run_id, f"deciding this event raised {bug!r}", trace)
        event = Isolated(Error("INTERNAL", f"deciding an event raised {bug!r}", trace=trace, retryable=False))
        transition = advance(run.plan, run, event, at)
        if transition is not None:
            rows.move(run, event, transition)
        return transition is not None

    def _bury(self, rows: Rows, record: Message, run_id: bytes | None, reason: str, trace: str = "") -> None:
        topic, partition, offset = record.topic() or "", record.partition() or 0, record.offset() or 0
        log.warning("record set aside", topic=topic, partition=partition, offset=offset, reason=reason)
        rows.bury_record(
            self._store.settings.namespace,
            run_id,
            topic,
            partition,
            offset,
            record.key(),
            record.value(),
            reason,
            trace,
            record.headers(),
        )
        self._metrics.set_aside.inc()

    # -- trouble
    async def _apply_singly(self, batch: Batch) -> None:
        """Postgres refused a value in this batch: find the record it came from, so that the others go on."""
        while True:
            self._ownership.refresh(batch.topic)
            records, moves = self._ownership.take(batch)
            if not moves:
                return
            first = records[0]
            of_first = next(move for move in moves if move.partition == first.partition())
            move = of_first._replace(new=(first.offset() or 0) + 1)
            try:
                await self._commit([first], [move])
            except Refused as e:
                self._forget()
                await self._store_refused(first, move, str(e).strip())

    async def _store_refused(self, record: Message, move: Move, why: str) -> None:
        """One record cannot be stored as it is: a result becomes FAILED(BAD_RESULT), which always can; anything else is
        set aside."""
        try:
            await self._commit([record], [move], substitute=why)
        except Refused:
            self._forget()
            rows = Rows(self._store)
            self._ownership.fence(rows, [move])
            self._bury(rows, record, None, f"Postgres refused it: {why}"[:2000])
            self._connect().run(rows.calls())
            self._ownership.moved([move])

    def close(self) -> None:
        """Give its connection back; a later batch makes another."""
        self._forget()

    def _forget(self) -> None:
        """Nothing in memory is to be trusted: start from Postgres."""
        self._cache.clear()
        self._metrics.forget_batch()
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _unstorable(event: Succeeded | Failed, why: str) -> Failed:
    error = Error("BAD_RESULT", f"the result cannot be stored: {why}".replace("\0", "\\0")[:2000], retryable=False)
    return Failed(event.task, event.token, event.nonce, error, started=event.started, finished=event.finished)


def _checked(event: Event) -> Event:
    """Refuse what no row can hold, so that one record does not stop the others. Raises MessageError."""
    if isinstance(event, _WITHOUT_A_SESSION):
        return event
    if event.session and not _is_session(event.session):
        try:
            event.session = UUID(event.session).hex  # a UUID has several spellings; everywhere here it has this one
        except ValueError:
            raise MessageError(f"{event.session[:80]!r} is no worker session") from None
    if not isinstance(event, Lost):
        finished = 0 if isinstance(event, Started) else event.finished
        if not (0 <= event.started < INSTANT_MAX and 0 <= finished < INSTANT_MAX):
            raise MessageError("an instant lies outside of all calendars")
    return event


def _without_nul(event: Event) -> Event:
    """Postgres' json keeps an escaped U+0000 and then fails every statement that reads into it. Our workers send none;
    others may."""
    match event:
        case Succeeded():
            try:
                check(bytes(event.output))
            except PayloadError as e:
                return _unstorable(event, e.message)
        case Failed():
            texts = {
                name: getattr(event.error, name).replace("\0", "\\0") for name in ("code", "message", "type", "trace")
            }
            event.error = msgspec.structs.replace(event.error, **texts)
        case _:
            pass
    return event


def _made_at(key: bytes) -> float:
    """Seconds since 1970 by the clock of whoever made this UUIDv7."""
    return int(key[:8] + key[9:13], 16) / 1000


class _Body(msgspec.Struct):
    """What the bodies of `inbox` may hold, over all kinds."""

    task: int = -1
    token: int = -1
    outcome: str = ""
    comment: str = ""
    reason: str = ""
    scope: int = PAUSED
    row_version: int = -1
    version_id: int = -1
    resumes: int = 0
    priority: int = 0
    tasks: tuple[int, ...] = ()
    child: str = ""
    error: Error | None = None
    input: msgspec.Raw = msgspec.Raw()
    """Empty: not given. A union with None would refuse every object."""
    output: msgspec.Raw = msgspec.Raw(b"null")
    votes: msgspec.Raw = msgspec.Raw(b"[]")
    form: msgspec.Raw = msgspec.Raw(b"null")


_NO_VERSION: Final = _Body()


def _event_of(kind: str, body: str, actor: str) -> MachineEvent | None:
    given = msgspec.json.decode(body, type=_Body)
    match kind:
        case "cancelled":
            return Cancelled(given.reason, actor)
        case "terminated":
            return Terminated(given.reason, actor)
        case "paused":
            return Paused(given.scope, given.reason, actor, given.task)
        case "resumed":
            return Resumed(given.scope, given.reason, actor, given.task)
        case "permitted":
            return Resumed(AWAITS_PERMIT)
        case "prioritised":
            return Prioritised(given.priority, given.reason, actor)
        case "supplied":
            return Supplied(given.task, given.token, bytes(given.output), given.reason, actor)
        case "reran":
            return Reran(given.row_version, given.tasks, bytes(given.input) or None, given.reason, actor)
        case "child_told":
            output = bytes(given.output)
            return ChildTold(given.task, given.token, given.child, given.outcome, output, given.error)
        case "decided":
            votes, form = bytes(given.votes), bytes(given.form)
            return Decided(given.task, given.token, given.outcome, actor, given.comment, votes, form)
        case "replayed":
            return Replayed(given.task, given.token, actor, bytes(given.input) or None)
        case "resolved":
            output = bytes(given.output)
            return Resolved(given.task, given.token, given.outcome, output, actor, given.comment)
        case "released":
            return Released(actor)
        case _:
            return None
