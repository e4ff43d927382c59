"""The trigger agent: records of users' topics start runs, or say signals.

One transaction per batch: the runs, their first commands, the signals, the fate of every record, and the offsets. A
record's identity is the source and id of its CloudEvent, else topic/partition/offset, so a record that comes twice
gives the run or the signal that exists. One that cannot be read is set aside with its bytes, and the partition goes on.
"""

import asyncio
import traceback
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

import msgspec
import psycopg
import structlog
from confluent_kafka import Message

from headrace import payload
from headrace.errors import HeadraceError, MessageError, PayloadError, UnavailableError, UnreadableError
from headrace.expressions import Condition, Template, compile_condition, compile_template
from headrace.label import faults_of_labels
from headrace.messages import TRACEPARENT
from state.pipe import Overtaken
from state.plans import Plans
from state.record_signals import Saying, say_signals
from state.sql import load
from state.starts import Start, Started, start_runs, why_rejected
from state.store import Key, Rows, Store, execute_sync
from streams.backlog import Backlog
from streams.batch import Batch
from streams.clock import DatabaseClock
from streams.cloud_event import Happening, read_record
from streams.database import Database
from streams.metrics import Metrics
from streams.ownership import Move, Ownership
from streams.record_signal import SignalOfRecord, SignalTarget, compile_target

log = structlog.get_logger(__name__)
_SQL = load("subscription")
LOOK_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.1


class Subscription(NamedTuple):
    subscription_id: UUID
    namespace: str
    name: str
    topic: str
    workflow: str | None
    filter: Condition | None
    input: Template | None
    signal: SignalTarget | None = None
    labels: Template | None = None
    """Gives an object."""

    def read(self, happening: Happening, record: Message) -> tuple[bytes, bytes] | None:
        """What its expressions see, and the input of the run or the data of the signal; None: filtered. Raises
        PayloadError."""
        seen = msgspec.json.encode(
            {
                **happening.attributes,
                "data": happening.data,
                "key": _printable(record.key()),
                "topic": record.topic(),
                "partition": record.partition(),
                "offset": record.offset(),
            }
        )
        if self.filter is not None and not self.filter.evaluate(seen, _no_output):
            return None
        given = bytes(happening.data) if self.input is None else self.input.render(seen, _no_output)
        payload.check(given)
        return seen, given

    def labels_of(self, seen: bytes) -> dict[str, str] | None:
        """How the run of a record is labelled. Raises PayloadError."""
        if self.labels is None:
            return None
        given: dict[str, Any] = msgspec.json.decode(self.labels.render(seen, _no_output))
        labels = {name: _as_text(value) for name, value in given.items() if value is not None}
        for fault in faults_of_labels(labels):
            raise PayloadError(f"{fault.path}: {fault.message}", reason="BAD_INPUT")
        return labels


class Fate(NamedTuple):
    subscription: Subscription
    record: Message
    start: Start | None = None
    reason: str | None = None
    """Why there is neither a new run nor a signal, when it was not the filter."""
    saying: Saying | None = None
    word: str = ""
    """Once it is known: started, signalled or duplicate; rejected or dropped by the limit of its workflow."""
    run_id: UUID | None = None
    signal_id: UUID | None = None


def _subscription(
    id_: UUID, namespace: str, name: str, topic: str, workflow: str | None, condition: str | None, mapping: str | None,
    signal: str | None, labels: str | None,
) -> Subscription:  # fmt: skip
    """A row, ready to be applied. Raises what its expressions raise."""
    return Subscription(
        id_,
        namespace,
        name,
        topic,
        workflow,
        None if condition is None else compile_condition(condition),
        None if mapping is None else compile_template(msgspec.json.decode(mapping)),
        None if signal is None else compile_target(msgspec.json.decode(signal, type=SignalOfRecord)),
        None if labels is None else compile_template(msgspec.json.decode(labels)),
    )


def _as_text(value: Any) -> Any:
    """Numbers and booleans as JSON writes them, so that a record need not quote them for the sake of a label."""
    return msgspec.json.encode(value).decode() if isinstance(value, int | float) else value


class TriggerAgent:
    """The body of users' topics."""

    def __init__(
        self,
        store: Store,
        ownership: Ownership,
        database: Database,
        plans: Plans,
        clock: DatabaseClock,
        metrics: Metrics,
        backlog: Backlog,
        on_keys: Callable[[set[Key]], None] = lambda keys: None,
    ) -> None:
        """on_keys: told of keys for which a signal was posted."""
        self._on_keys = on_keys
        self._store, self._ownership, self._database = store, ownership, database
        self._plans, self._clock, self._metrics, self._backlog = plans, clock, metrics, backlog
        self.is_leaving = False
        """Its topics are about to be left: what waits for room is given back."""
        self.subscriptions: dict[str, list[Subscription]] = {}
        """By topic."""
        self._unusable: set[str] = set()

    def look(self) -> set[str]:
        """Read the subscriptions; answers the topics they need. Raises UnavailableError."""
        found: dict[str, list[Subscription]] = {}
        for row in self._database.fetch(_SQL.text("list_enabled")):
            try:
                subscription = _subscription(*row)
            except Exception as e:  # whatever stands in a row: it must not stop the others
                self._say_unusable(row[2], e)
            else:
                found.setdefault(subscription.topic, []).append(subscription)
        self.subscriptions = found
        return set(found)

    def _say_unusable(self, name: str, why: Exception) -> None:
        if name not in self._unusable:
            self._unusable.add(name)
            log.error("a subscription cannot be used", subscription=name, why=str(why))

    async def __call__(self, batch: Batch) -> None:
        """Apply a batch, however often it takes. Returns when it is committed, no longer ours, or given back.

        While too many runs are under way it waits, and nothing more of its topics is read. Offsets stay where they are.
        """
        while not self.is_leaving:
            pause = RETRY_SECONDS
            try:
                if not self._ownership.holds(batch) or await self._backlog.has_room(batch.topic):
                    return self._apply(batch)
                pause = LOOK_SECONDS
                self._metrics.trigger_wait_seconds.inc(pause)
            except (Overtaken, UnavailableError) as e:
                log.debug("records wait", topic=batch.topic, why=str(e))
            await asyncio.sleep(pause)
            try:
                self._ownership.refresh(batch.topic)
            except UnavailableError:
                continue

    def _apply(self, batch: Batch) -> None:
        records, moves = self._ownership.take(batch, is_gapless=False)
        if not moves:
            return
        try:
            self._commit(records, moves)
        except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded):
            self._apply_singly(batch)

    def _apply_singly(self, batch: Batch) -> None:
        """Postgres refused a value in this batch: one bad record must not hold the others up."""
        while True:
            self._ownership.refresh(batch.topic)
            records, moves = self._ownership.take(batch, is_gapless=False)
            if not moves:
                return
            first = records[0]
            of_first = next(move for move in moves if move.partition == first.partition())
            move = of_first._replace(new=(first.offset() or 0) + 1)
            try:
                self._commit([first], [move])
            except (psycopg.DataError, psycopg.errors.ProgramLimitExceeded) as e:
                self._set_aside(first, move, f"Postgres refused it: {e}")

    def _commit(self, records: list[Message], moves: list[Move]) -> None:
        rows = Rows(self._store)
        self._ownership.fence(rows, moves)
        fates = [fate for record in records for fate in self._decide(record, rows)]
        at = self._clock.now()
        keys: set[Key] = set()
        with self._database.transaction() as connection:
            execute_sync(connection, rows.calls())
            told = []
            by_namespace: dict[str, list[Fate]] = {}
            for fate in fates:
                by_namespace.setdefault(fate.subscription.namespace, []).append(fate)
            for namespace, group in by_namespace.items():
                group = self._say(connection, group, namespace, keys)
                starting = [fate for fate in group if fate.start is not None]
                answers = iter(
                    start_runs(connection, self._store, [f.start for f in starting if f.start], namespace, at)
                )
                for fate in group:
                    if fate.start is not None:
                        fate = _started(fate, next(answers))
                    told.append(_row(fate))
            if told:
                columns = [list(column) for column in zip(*told, strict=True)]
                psycopg.RawCursor(connection).execute(_SQL.text("insert_fates"), columns)
        self._ownership.moved(moves)
        self._backlog.add(sum(fate.start is not None for fate in fates))
        if keys:
            self._on_keys(keys)

    def _say(
        self, connection: psycopg.Connection[Any], fates: list[Fate], namespace: str, keys: set[Key]
    ) -> list[Fate]:
        """Store the signals among them; one that its run does not take is set aside like a record that starts none."""
        if not any(fate.saying is not None for fate in fates):
            return fates
        sayings = [fate.saying for fate in fates if fate.saying is not None]
        answers = iter(say_signals(connection, self._store, self._plans, sayings, namespace))
        told, refused = list[Fate](), Rows(self._store)
        for fate in fates:
            saying = fate.saying
            if saying is None:
                told.append(fate)
                continue
            said = next(answers)
            if said.refused is not None:
                self._bury(refused, fate.record, f"subscription {fate.subscription.name}: {said.refused}")
                told.append(fate._replace(reason=said.refused))
                continue
            if saying.run_id is None and saying.key is not None:
                keys.add(Key(namespace, saying.name, saying.key))
            word = "signalled" if said.is_new else "duplicate"
            told.append(fate._replace(word=word, run_id=saying.run_id, signal_id=said.signal_id))
        execute_sync(connection, refused.calls())
        return told

    def _decide(self, record: Message, rows: Rows) -> list[Fate]:
        """What each subscription of the topic makes of one record."""
        subscriptions = self.subscriptions.get(record.topic() or "", [])
        if not subscriptions:
            return []
        try:
            headers = _headers(record)
            happening = read_record(record.value(), headers)
        except MessageError as e:
            self._bury(rows, record, e.message)
            return [Fate(subscription, record, reason=e.message) for subscription in subscriptions]
        return [self._of_subscription(subscription, record, happening, headers, rows) for subscription in subscriptions]

    def _of_subscription(
        self, subscription: Subscription, record: Message, happening: Happening, headers: dict[str, bytes], rows: Rows
    ) -> Fate:
        try:
            read = subscription.read(happening, record)
            if read is None:
                return Fate(subscription, record)
            seen, given = read
            identity = happening.identity or f"{record.topic()}/{record.partition()}/{record.offset()}"
            if subscription.signal is not None:
                sender_id = f"subscription:{subscription.name}:{identity}"
                actor = f"subscription {subscription.name}"
                return Fate(subscription, record, saying=subscription.signal.saying(seen, given, sender_id, actor))
            with self._database.connection() as connection:
                plan = self._plans.latest_sync(connection, subscription.namespace, subscription.workflow or "")
            if plan.limit is not None:
                plan.limit.key_of(given)  # a record whose run would have no key of its limit is set aside, as others
            labels = subscription.labels_of(seen)
        except HeadraceError as e:
            if isinstance(e, UnavailableError) and not isinstance(e, UnreadableError):
                raise
            self._bury(rows, record, f"subscription {subscription.name}: {e.message}")
            return Fate(subscription, record, reason=e.message)
        except Exception as e:
            self._bury(rows, record, f"subscription {subscription.name}: {e!r}", traceback.format_exc()[-8000:])
            return Fate(subscription, record, reason=repr(e))
        trace = headers.get(TRACEPARENT)
        start = Start(
            plan,
            given,
            key=f"subscription:{subscription.name}:{identity}",
            traceparent=None if trace is None else trace.decode("ascii", "ignore"),
            source=f"kafka:{record.topic()}",
            actor=f"subscription {subscription.name}",
            detail={
                "topic": record.topic(),
                "partition": record.partition(),
                "offset": record.offset(),
                "identity": identity,
            },
            labels=labels,
        )
        return Fate(subscription, record, start)

    def _bury(self, rows: Rows, record: Message, reason: str, trace: str = "") -> None:
        topic, partition, offset = record.topic() or "", record.partition() or 0, record.offset() or 0
        log.warning("record set aside", topic=topic, partition=partition, offset=offset, reason=reason)
        rows.bury_record(
            self._store.settings.namespace,
            None,
            topic,
            partition,
            offset,
            record.key(),
            record.value(),
            reason.replace("\0", "\\0"),
            trace,
            record.headers(),
        )
        self._metrics.set_aside.inc()

    def _set_aside(self, record: Message, move: Move, reason: str) -> None:
        rows = Rows(self._store)
        self._ownership.fence(rows, [move])
        self._bury(rows, record, reason)
        with self._database.transaction() as connection:
            execute_sync(connection, rows.calls())
        self._ownership.moved([move])


def _started(fate: Fate, answer: Started) -> Fate:
    told, start = fate._replace(run_id=UUID(answer.run_id), word=answer.how), fate.start
    if answer.how in ("started", "duplicate") or start is None or start.plan.limit is None:
        return told
    key = start.plan.limit.key_of(start.input)
    return told._replace(reason=why_rejected(start.plan.name, key, answer.run_id))


def _row(fate: Fate) -> tuple[Any, ...]:
    word = fate.word or ("filtered" if fate.reason is None else "failed")
    record = fate.record
    reason = None if fate.reason is None else fate.reason.replace("\0", "\\0")
    place = (record.topic(), record.partition(), record.offset())
    return (fate.subscription.subscription_id, *place, word, fate.run_id, reason, fate.signal_id)


def _headers(record: Message) -> dict[str, bytes]:
    pairs = cast("list[tuple[str, bytes | None]]", record.headers() or [])
    return {name: value for name, value in pairs if value is not None}


def _no_output(name: str) -> bytes | None:
    return None


def _printable(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace").replace("\0", "\\0")


Serve = Callable[[set[str], asyncio.Event], Coroutine[Any, Any, None]]
Find = Callable[[set[str]], set[str]]
"""Those of the topics that exist. Blocks; raises UnavailableError."""


async def follow(agent: TriggerAgent, serve: Serve, find: Find) -> None:
    """Serve the topics that subscriptions name, for ever: when the set of topics changes, the transport is stopped and
    made anew.

    One that does not exist yet is not subscribed to, but looked for: a consumer that asked for it in vain hears of it
    only tens of seconds after it was made.
    """
    stop, serving, topics = asyncio.Event(), None, set[str]()
    named, there, missing = set[str](), set[str](), set[str]()
    while True:
        with suppress(UnavailableError):
            named = agent.look()
        there &= named
        if unseen := named - there:
            with suppress(UnavailableError):  # Kafka is away: what is served knows that itself
                there |= await asyncio.to_thread(find, unseen)
                if new := named - there - missing:
                    log.warning("subscriptions wait for topics that do not exist", topics=sorted(new))
                missing = named - there
        wanted = set(there)
        if wanted != topics:
            if serving is not None:
                agent.is_leaving = True
                stop.set()
                await serving
                serving, agent.is_leaving = None, False
            topics, stop = wanted, asyncio.Event()
            if topics:
                serving = asyncio.create_task(serve(topics, stop))
        if serving is not None and serving.done():
            await serving
        await asyncio.sleep(LOOK_SECONDS)
