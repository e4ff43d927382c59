"""The crash points of RELIABILITY.md §3: where each lies in our code, what may go wrong there, and what must hold.

CP21 and up are seams that the list does not name.

A process under test reads this table by its file, before anything of the product is imported: so nothing is imported
here, and errors are made when they are raised.
"""

import importlib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

CRASHED: Final = 137
Act = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """One function at a crash point."""

    process: str
    """What its name begins with: api, streams, relay, worker."""
    target: str
    """module:name or module:Class.method"""
    whens: tuple[str, ...]
    """Which of before, after, refused, reply_lost make sense here; see `fault_injection.wrapped`."""
    error: str = ""
    """What a lost request or reply raises: an entry of ERRORS."""
    only: Callable[..., bool] | None = None
    """Of the arguments and the result: whether a pass counts."""
    instead: Mapping[str, Act] = field(default_factory=dict[str, Act])
    need: str = ""
    """What has to happen so that the place is passed, beside runs: `loss` of a host, `death` of a worker, `stop`,
    `replay`, `bulk replay`, `migration`."""
    nth: int = 1


@dataclass(frozen=True)
class Point:
    where: str
    holds: str
    places: Mapping[str, Place]


# == what is raised ===================================================================================================
def _named(module: str, name: str, *arguments: Any) -> Exception:
    made: Exception = getattr(importlib.import_module(module), name)(*arguments)
    return made


def _kafka_gone() -> Exception:
    kafka = importlib.import_module("confluent_kafka")
    made: Exception = kafka.KafkaException(kafka.KafkaError(kafka.KafkaError._TRANSPORT, "injected"))
    return made


ERRORS: Final[Mapping[str, Callable[[], Exception]]] = {
    "postgres": lambda: _named("psycopg", "OperationalError", "injected: the connection is lost"),
    "unavailable": lambda: _named("headrace.errors", "UnavailableError", "injected: no answer"),
    "overtaken": lambda: _named("state.pipe", "Overtaken", "injected: overtaken"),
    "kafka": _kafka_gone,
    "interrupted": lambda: _named("connectors.publisher", "Interrupted"),
    "transport": lambda: _named("streams.membership", "Rebuild", "injected"),
    "intake": lambda: _named("headrace.worker.broker", "Rebuild", "injected"),
    "timeout": lambda: TimeoutError("injected: no answer from Kafka"),
    "effect": lambda: ConnectionError("injected: no answer from the other system"),
}


# == which passes count ===============================================================================================
def _has_events(_: Any, batches: Any, __: Any) -> bool:
    return any(batch.topic.endswith(".events") for batch in batches)


def _moves_events(_: Any, moves: Any, __: Any) -> bool:
    return any(move.topic.endswith(".events") for move in moves)


def _has_commands(_: Any, records: Any, __: Any) -> bool:
    return any(".commands." in record.topic for record in records)


def _of_commands(_: Any, __: Any, lane: Any, *___: Any) -> bool:
    return ".commands." in lane.topic


def _of_events(_: Any, __: Any, lane: Any, *___: Any) -> bool:
    return str(lane.topic).endswith(".events")


def _has_answers(reports: Any, _: Any) -> bool:
    return bool(reports.unsent)


def _starts_a_run(_: Any, request: Any, *__: Any) -> bool:
    return str(request.url.path).endswith("/runs")


def _finds_timers(_: Any, statement: str, __: Any, cursor: Any) -> bool:
    return statement == "claim_due_timers" and (cursor is None or cursor.rowcount > 0)


def _found_some(_: Any, __: Any, found: Any) -> bool:
    return bool(found)


def _lost_some(_: Any, __: Any, rows: Any, *___: Any) -> bool:
    return bool(rows)


# == what else may happen =============================================================================================
def _half_sent(_: Act, pipe: Any, calls: Any) -> None:
    """Half of the transaction reaches Postgres, then the process ends: no Sync, so no commit."""
    for name, parameters in calls[: (len(calls) + 1) // 2]:
        pipe._pg.send_query_prepared(name.encode(), parameters, [1] * len(parameters), 1)
    pipe._pg.flush()
    os._exit(CRASHED)


def _answer_lost(answered: Act, producer: Any, client: Any, lane: Any, code: int) -> None:
    """The records are in Kafka, and the producer hears that Kafka did not manage in time: it sends them again."""
    answered(producer, client, lane, 7)


# == the table ========================================================================================================
_ANSWERED: Final = "headrace.batch_producer:BatchProducer._answered"
CRASHES: Final = ("before", "after")
ALL: Final = ("before", "after", "reply_lost")

POINTS: Final[Mapping[str, Point]] = {
    "CP01": Point(
        "api, before the run is inserted",
        "no run, or a whole one; the client's repetition under its key makes it one",
        {"insert": Place("api", "state.starts:start_run", ALL, "postgres")},
    ),
    "CP02": Point(
        "api, after the run is inserted and committed, before the reply",
        "one run; the repetition under its key returns it",
        {"answer": Place("api", "api.idempotency:perform", ALL, "unavailable", _starts_a_run)},
    ),
    "CP03": Point(
        "agent, after the poll",
        "the records are polled again by the next owner of their partition",
        {"poll": Place("streams", "streams.transport:Transport._hand_over", ALL, "transport", _has_events)},
    ),
    "CP04": Point(
        "agent, batch folded, before its transaction",
        "nothing of it is visible; it is folded again from Postgres' own state",
        {
            "transaction": Place(
                "streams",
                "state.pipe:Pipe.run",
                ("before", "after", "refused"),
                "unavailable",
                instead={"after": _half_sent},
            )
        },
    ),
    "CP05": Point(
        "agent, after COMMIT, before it sees the reply",
        "applied once: what is delivered again lies before the stored offset",
        {"commit": Place("streams", "state.pipe:Pipe._collect", ALL, "unavailable")},
    ),
    "CP06": Point(
        "agent, after it has noted the stored offset, before the next poll",
        "the offset is Postgres': nothing is skipped and nothing applied again",
        {"offset": Place("streams", "streams.ownership:Ownership.moved", ALL, "overtaken", _moves_events)},
    ),
    "CP07": Point(
        "connector, after reading the outbox",
        "read again from the recorded position",
        {"read": Place("relay", "connectors.outbox_source:read_records", ALL, "postgres", nth=2)},
    ),
    "CP08": Point(
        "connector, after produce, before Kafka's acknowledgement",
        "published again: duplicates only",
        {
            "produce": Place("relay", "connectors.delivery:Delivery.begin", CRASHES, only=_has_commands),
            "answer": Place(
                "relay", _ANSWERED, ("before", "reply_lost"), "", _of_commands, {"reply_lost": _answer_lost}
            ),
        },
    ),
    "CP09": Point(
        "connector, after the acknowledgement, before the position is confirmed",
        "published again: duplicates only",
        {
            "acknowledged": Place(
                "relay", "connectors.publisher:Publisher.publish", ("after", "reply_lost"), "interrupted", _has_commands
            ),
            "recorded": Place("relay", "connectors.ownership:Ownership._renew", ALL, "postgres"),
        },
    ),
    "CP10": Point(
        "worker, after receipt of the command",
        "handed out again under a new token; it never began, so no attempt is counted",
        {
            "receipt": Place(
                "worker", "headrace.worker.intake:Intake._hand_over", ("before", "after", "refused"), "intake"
            )
        },
    ),
    "CP11": Point(
        "worker, before the effect",
        "another attempt does it, once",
        {"effect": Place("worker", "tests.faults.effect_ledger:note", ("before", "refused"), "effect")},
    ),
    "CP12": Point(
        "worker, after the effect, before the result is sent",
        "another attempt repeats the call under the same effect key",
        {"effect": Place("worker", "tests.faults.effect_ledger:note", ("after", "reply_lost"), "effect")},
    ),
    "CP13": Point(
        "worker, after the result is sent, before local clean-up",
        "the result is accepted once",
        {
            "result": Place("worker", "headrace.worker.reports:Reports.flush", CRASHES, only=_has_answers),
            "answer": Place("worker", _ANSWERED, ALL, "", _of_events, {"reply_lost": _answer_lost}),
        },
    ),
    "CP14": Point(
        "timer sweep, after the select",
        "the timer is found again, and takes effect once",
        {"timers": Place("streams", "streams.sweeps:_run", ALL, "postgres", _finds_timers)},
    ),
    "CP15": Point(
        "timer sweep, after the commit",
        "said already, or said again: it takes effect once",
        {"timers": Place("streams", "streams.sweeps:Sweeps._timers", ("after", "reply_lost"), "postgres", _found_some)},
    ),
    "CP17": Point(
        "lost-task sweep, in the middle of a batch",
        "found again by the next sweep; the task goes to one new hand-out",
        {"lost": Place("streams", "streams.sweeps:Sweeps._say_lost", ALL, "postgres", _lost_some, need="loss")},
    ),
    "CP18": Point(
        "migration, between any two statements",
        "a restart finishes it; each migration is there wholly or not at all",
        {"statement": Place("migrate", "psycopg:Connection.execute", CRASHES, need="migration")},
    ),
    "CP19": Point(
        "replay of a dead letter, half way",
        "replayed once: still parked, or replayed with its request",
        {
            "one": Place("api", "state.decisions:_close", ALL, "postgres", need="replay"),
            "bulk": Place("streams", "state.bulk_replays:_replay", ALL, "postgres", need="bulk replay", nth=2),
        },
    ),
    "CP20": Point(
        "graceful shutdown, at each stage of each process",
        "as if it had been killed: what it held is handed out again",
        {
            "worker-drain": Place("worker", "headrace.worker.hold:Hold.drain", CRASHES, need="stop"),
            "worker-give-up": Place("worker", "headrace.worker.hold:Hold.give_up", CRASHES, need="stop"),
            "worker-goodbye": Place("worker", "headrace.worker.reports:Reports.close", CRASHES, need="stop"),
            "streams-drain": Place("streams", "streams.transport:Transport.stop", CRASHES, need="stop"),
            "relay-release": Place("relay", "connectors.ownership:Ownership.release", CRASHES, need="stop"),
            "api-close": Place("api", "api.database:Database.close", CRASHES, need="stop"),
        },
    ),
    "CP21": Point(
        "the worker's parent, when its worker has died, around its report",
        "lost at once, or when the lease has run out; the task goes to one new hand-out",
        {
            "report": Place(
                "worker",
                "headrace.parent:_report",
                ("before", "after", "refused", "reply_lost"),
                "timeout",
                need="death",
            )
        },
    ),
    "CP22": Point(
        "worker, between its claim of a task and the start of the body",
        "the claim is answered again, or the hand-out is lost; the body begins under one token",
        {"grant": Place("worker", "headrace.worker.hold:Hold.granted", CRASHES)},
    ),
}

SETTINGS: Final[Mapping[str, Any]] = {
    "headrace.parent:PAUSE_SECONDS_MAX": 0.2,  # these workers die on purpose, one soon after the other
}

ABSENT: Final[Mapping[str, str]] = {
    "CP16": "schedule sweep, after the tick is inserted: there are no schedules yet",
}


def changes(orders: Any, wanted: Collection[str], wrapped: Callable[..., Any]) -> list[tuple[str, Callable[..., Any]]]:
    """(target, what wraps it) for the points wanted; `wrapped` is `fault_injection.wrapped`."""
    places = [
        (place.target, _wrapper(orders, wrapped, name, label, place))
        for name, point in POINTS.items()
        if name in wanted
        for label, place in point.places.items()
    ]
    return [*places, *((target, _constant(value)) for target, value in SETTINGS.items())]


def _constant(value: Any) -> Callable[..., Any]:
    return lambda _: value


def _wrapper(orders: Any, wrapped: Callable[..., Any], point: str, label: str, place: Place) -> Callable[..., Any]:
    def wrap(function: Any) -> Any:
        return wrapped(
            function,
            point=point,
            place=label,
            orders=orders,
            error=ERRORS.get(place.error),
            only=place.only,
            instead=place.instead,
        )

    return wrap
