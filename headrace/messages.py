"""What travels through Kafka: the wire contract between engine and workers.

    topic                        key         value
    headrace.commands.<queue>    run id      Command       engine -> a worker of that queue
    headrace.events              run id      Event         workers and engine -> run agent
    headrace.workers             session id  WorkerMessage workers -> session agent
    headrace.control             session id  ControlMessage engine -> every worker

Values are JSON. User data inside them (`input`, `output`) is `msgspec.Raw`: carried as bytes, never parsed on the way.
`v` is the wire version; it is left out while it is 1, and a reader that meets a higher one raises `MessageError`, so
that an old process sets a new record aside instead of guessing. New optional fields need no new version: unknown fields
are ignored. A trace context travels as the record header `traceparent`, and only when there is one.

A message is never the truth: commands say "try", events say "look"; tokens and nonces decide in the state machine.
Instants on the wire are whole microseconds since 1970 UTC.
"""

import functools
import hashlib
from typing import Final, NewType, TypeVar

import msgspec

from headrace.errors import MessageError

RunId = NewType("RunId", str)
"""A UUIDv7 in its 36-character text form; also the Kafka key of all that concerns the run."""
SessionId = NewType("SessionId", str)
"""A random id of one life of one worker process; never a host name."""

WIRE_VERSION: Final = 1
PAYLOAD_BYTES_MAX: Final = 900_000
"""Largest input or output, in bytes of JSON: it must fit a Kafka record (1 MiB by default) with its envelope."""
TRACEPARENT: Final = "traceparent"
"""The Kafka header that carries the W3C trace context."""

_EMPTY: Final = msgspec.Raw(b"{}")
_NULL: Final = msgspec.Raw(b"null")


class Error(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt failed, as data; nothing is ever rebuilt from `type`."""

    code: str
    """Stable word for programs: ERROR, TIMEOUT, BAD_INPUT, BAD_RESULT, RESULT_TOO_LARGE, UNKNOWN_TASK, WORKER_LOST,
    REJECTED, EXPIRED …"""
    message: str
    type: str = ""
    trace: str = ""
    retryable: bool = True
    retry_after: float | None = None
    """Seconds; the body asked for this delay instead of the backoff."""
    ambiguous: bool = False
    """The body failed when its effect may have happened already."""


class Command(msgspec.Struct, frozen=True, omit_defaults=True):
    """Asks a worker to try a task once. The record's key is the run id."""

    task: int
    """Position of the task in its graph, from 0; items of maps have numbers behind, see `headrace.machine.place`."""
    name: str
    """Name of the task in its graph, or of an item: `pages.17`."""
    run: str
    """Registered name of the body, such as `payments.charge`."""
    attempt: int
    """Number of this try, from 1."""
    token: int
    """Fencing token of this hand-out; every answer carries it."""
    nonce: str
    """Keyed hash that only the engine can make; every answer carries it."""
    input: msgspec.Raw = _EMPTY
    lease: float = 30.0
    """Seconds a session may hold tasks without being renewed."""
    timeout: float | None = None
    """Seconds the body may take, from its start."""
    claim: bool = False
    """The body may start only once `Granted` names the worker's session."""
    exclusive: bool = False
    """Two bodies of this task must never overlap: one that cannot be stopped takes its process with it."""
    inline: bool = False
    """Its result is looked into by an expression, and so may not be a reference to an object store."""
    lookup: bool = False
    """`run` is the lookup: it tells what became of the effect of an attempt, and does nothing itself."""
    round: int | None = None
    """Which round of a repeat this is, from 0."""
    effect_name: str = ""
    """What its effect keys say, where that is not `name`: the task was renamed."""
    workflow: str = ""
    version: int = 0
    v: int = WIRE_VERSION


# == events: what can move a run =====================================================================================
class Started(msgspec.Struct, tag="started", tag_field="kind", omit_defaults=True):
    """A worker's body has begun (sent for bodies that outlive a moment; a short body sends only its result).

    `claim`: it has not, and waits for `Granted`; said again until that comes.
    """

    task: int
    token: int
    nonce: str
    session: str = ""
    worker: str = ""
    started: int = 0
    claim: bool = False
    v: int = WIRE_VERSION


class Succeeded(msgspec.Struct, tag="succeeded", tag_field="kind", omit_defaults=True):
    """A worker's body returned."""

    task: int
    token: int
    nonce: str
    session: str = ""
    worker: str = ""
    started: int = 0
    finished: int = 0
    output: msgspec.Raw = _NULL
    v: int = WIRE_VERSION


class Failed(msgspec.Struct, tag="failed", tag_field="kind", omit_defaults=True):
    """A worker's body raised, ran out of time, or returned what cannot be stored."""

    task: int
    token: int
    nonce: str
    error: Error
    session: str = ""
    worker: str = ""
    started: int = 0
    finished: int = 0
    v: int = WIRE_VERSION


class Returned(msgspec.Struct, tag="returned", tag_field="kind", omit_defaults=True):
    """A worker hands a task back unfinished (drain, full, unknown body). `begun`: its body had started, so an attempt
    is used up."""

    task: int
    token: int
    nonce: str
    begun: bool = False
    reason: str = ""
    session: str = ""
    worker: str = ""
    started: int = 0
    finished: int = 0
    v: int = WIRE_VERSION


class Lost(msgspec.Struct, tag="lost", tag_field="kind", omit_defaults=True):
    """Nobody holds this hand-out any more: a sweep found it, or the parent of a worker that died. Behind every result
    already in the log, so it never overtakes one."""

    task: int
    token: int
    nonce: str
    reason: str = ""
    begun: bool | None = None
    """Whether its body had begun; None when whoever says so cannot know."""
    worker: str = ""
    session: str = ""
    """Who held it; empty: whoever did."""
    v: int = WIRE_VERSION


class Due(msgspec.Struct, tag="due", tag_field="kind", omit_defaults=True):
    """A timer of this hand-out is due."""

    task: int
    token: int
    nonce: str
    timer: str = "backoff"
    v: int = WIRE_VERSION


class Admitted(msgspec.Struct, tag="admitted", tag_field="kind", omit_defaults=True):
    """A slot of its pool is this task's: it may be handed out."""

    task: int
    token: int
    nonce: str
    v: int = WIRE_VERSION


class Requested(msgspec.Struct, tag="requested", tag_field="kind", omit_defaults=True):
    """A row of `inbox` waits to be applied: the record only names it, so nobody can forge a decision or a cancel
    through Kafka."""

    inbox: str
    v: int = WIRE_VERSION


Event = Started | Succeeded | Failed | Returned | Lost | Due | Admitted | Requested


# == workers -> session agent ========================================================================================
class Heartbeat(msgspec.Struct, tag="heartbeat", tag_field="kind", omit_defaults=True):
    """One worker session, and all it holds (waiting in its prefetch or running). Asks for renewal; answered by
    `Renewed`."""

    session: str
    worker: str
    """A name for people (host and pid); never an identity."""
    seq: int
    queues: list[str]
    held: list[tuple[str, int, int]]
    """(run id, task, token) of every command received and not yet answered."""
    lease: float
    slots: int = 0
    draining: bool = False
    ended: bool = False
    """The last message of a session that stopped in order, or fenced itself: nobody will answer for what it lists."""
    library: str = ""
    """Version of the headrace library in that process."""
    details: list[tuple[str, int, int, msgspec.Raw]] = []
    """(run id, task, token, JSON) of what bodies said about their progress by `ctx.heartbeat(details)`."""
    v: int = WIRE_VERSION


class Tick(msgspec.Struct, tag="tick", tag_field="kind", omit_defaults=True):
    """Sent by the sweeps through outbox and relay. Its arrival shows how far both the relay and the session agent have
    come: all that was decided before `at` has been published, all heartbeats sent before it have been read."""

    at: int
    v: int = WIRE_VERSION


WorkerMessage = Heartbeat | Tick


# == workers -> log agent ============================================================================================
class LogLine(msgspec.Struct, array_like=True):
    """One line that a body wrote."""

    seq: int
    """From 0 within its hand-out: a record that comes twice is told by it."""
    at: int
    """The worker's wall clock, microseconds since 1970: for people."""
    level: int
    """As in Python's logging: 10 debug, 20 info, 30 warning, 40 error, 50 critical."""
    logger: str
    message: str
    fields: msgspec.Raw = msgspec.Raw(b"null")
    """JSON object, or null."""


class Logged(msgspec.Struct, tag="logged", tag_field="kind", omit_defaults=True):
    """What the body of one hand-out wrote since the last of these."""

    task: int
    attempt: int
    token: int
    nonce: str
    worker: str
    lines: list[LogLine]
    v: int = WIRE_VERSION


# == engine -> workers ===============================================================================================
class Renewed(msgspec.Struct, tag="renewed", tag_field="kind", omit_defaults=True):
    """Heartbeat `seq` of `session` was recorded: its lease counts from when that heartbeat was *sent*."""

    session: str
    seq: int
    lease: float
    v: int = WIRE_VERSION


class Granted(msgspec.Struct, tag="granted", tag_field="kind", omit_defaults=True):
    """This hand-out belongs to `session`, recorded before this was said: its body may start. A session that claimed it
    and is not named lets go of it."""

    run: str
    task: int
    token: int
    session: str
    v: int = WIRE_VERSION


class Abort(msgspec.Struct, tag="abort", tag_field="kind", omit_defaults=True):
    """This hand-out is no longer current (cancelled, timed out, taken over): stop the body, report nothing."""

    run: str
    task: int
    token: int
    reason: str = ""
    v: int = WIRE_VERSION


class Yield(msgspec.Struct, tag="yield", tag_field="kind", omit_defaults=True):
    """This hand-out waits where every worker slot is taken, while another worker of its queue is idle: hand it back,
    unless its body has begun. An older worker does not know this, and keeps it."""

    run: str
    task: int
    token: int
    v: int = WIRE_VERSION


ControlMessage = Renewed | Granted | Abort | Yield


_T = TypeVar("_T", Command, Event, WorkerMessage, ControlMessage, Logged)

encode: Final = msgspec.json.Encoder().encode
_command: Final[msgspec.json.Decoder[Command]] = msgspec.json.Decoder(Command)
_event: Final[msgspec.json.Decoder[Event]] = msgspec.json.Decoder(Event)
_worker: Final[msgspec.json.Decoder[WorkerMessage]] = msgspec.json.Decoder(WorkerMessage)
_logged: Final[msgspec.json.Decoder[Logged]] = msgspec.json.Decoder(Logged)
_control: Final[msgspec.json.Decoder[ControlMessage]] = msgspec.json.Decoder(ControlMessage)


def decode_command(value: bytes | None) -> Command:
    """Raises MessageError on anything that is not a command of a known wire version."""
    return _decode(_command, value)


def decode_event(value: bytes | None) -> Event:
    """Raises MessageError on anything that is not an event of a known wire version."""
    return _decode(_event, value)


def decode_worker_message(value: bytes | None) -> WorkerMessage:
    """Raises MessageError on anything that is not a heartbeat or a tick of a known wire version."""
    return _decode(_worker, value)


def decode_control_message(value: bytes | None) -> ControlMessage:
    """Raises MessageError on anything that is not a control message of a known wire version."""
    return _decode(_control, value)


def decode_logged(value: bytes | None) -> Logged:
    """Raises MessageError on anything that is not a log record of a known wire version."""
    return _decode(_logged, value)


def _decode(decoder: "msgspec.json.Decoder[_T]", value: bytes | None) -> _T:
    try:
        message = decoder.decode(value or b"")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        raise MessageError(f"not a message of ours: {e}") from e
    if message.v > WIRE_VERSION:
        raise MessageError(f"wire version {message.v} is newer than {WIRE_VERSION}, the newest known here")
    return message


def make_nonce(secret: bytes, run: bytes, task: int, token: int) -> str:
    """Derive the nonce of one hand-out. Not stored: a replayed transaction makes the same one, a guesser cannot.

    run: the run id's text form as bytes, as it stands in a Kafka key.
    """
    digest = _keyed(secret).copy()
    digest.update(b"%b/%d/%d" % (run, task, token))
    return digest.hexdigest()


@functools.cache
def _keyed(secret: bytes) -> "hashlib.blake2b":
    """Taking in the key is a third of the price, and a process has one."""
    return hashlib.blake2b(key=secret, digest_size=12)


def effect_key(run: str, name: str, round: int | None = None) -> str:
    """Name one effect for the outside world: the same for every attempt of the task, different for every task of every
    run, and for every round of a repeat."""
    return f"{run}/{name}" if round is None else f"{run}/{name}/{round}"
