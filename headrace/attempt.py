"""One command while this worker holds it, from receipt to its answer.

    waiting ──(claim, granted)──▶ begin ──▶ running ──answer──▶ settled
       └──────────────────────────────────────┴──── drop ────▶ settled

Settled means: answered once, or dropped without an answer. Only the event loop settles an attempt; a body that comes
back later is ignored. `stop` says why a body should end early; threads read it, so it is one plain attribute.
"""

import asyncio
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from msgspec import Raw

from headrace.messages import Command, Error, Failed, Returned, RunId, Started, Succeeded

if TYPE_CHECKING:
    from headrace.listing import Listing
    from headrace.registry import Body
    from headrace.worker.session import Session
    from headrace.worker.task_log import TaskLog

Name = tuple[bytes, int]
"""(run id as it stands in the Kafka key, task): what a worker holds at most one attempt of."""
Answer = Succeeded | Failed | Returned


class Stop(StrEnum):
    """Why a body should end before it is done."""

    FENCED = "fenced"
    """The session's lease ran out: somebody else may hold the task now."""
    ABORTED = "aborted"
    """The engine said that this hand-out is no longer current."""
    SUPERSEDED = "superseded"
    """A newer hand-out of the same task arrived here."""
    TIMED_OUT = "timed out"
    DRAINED = "drained"
    """The worker is shutting down and cannot wait for it."""


ABANDONED: Final = frozenset({Stop.FENCED, Stop.ABORTED, Stop.SUPERSEDED})
"""Somebody else decides about the task now: nothing more is to be done or said."""


class Attempt:
    __slots__ = (
        "announced",
        "asks",
        "began_at",
        "body",
        "claimed_at",
        "command",
        "details",
        "had_effect",
        "limit_at",
        "lines",
        "listing",
        "log",
        "name",
        "overdue",
        "place",
        "session",
        "settled",
        "size",
        "started",
        "stop",
        "task",
        "traceparent",
    )

    def __init__(self, key: bytes, command: Command, size: int = 0, traceparent: str | None = None) -> None:
        self.name: Name = (key, command.task)
        self.command: Final = command
        self.size: Final = size
        """Bytes of the record, for the bound on what is held."""
        self.traceparent = traceparent
        self.body: Body | None = None
        self.task: asyncio.Task[None] | None = None
        self.started = 0
        """Wall clock at the start of the body, for people; microseconds since 1970. 0 while waiting."""
        self.began_at = 0.0
        """The same by the monotonic clock, which decides. 0.0 while waiting."""
        self.limit_at: float | None = None
        """When the body is out of time, by the monotonic clock."""
        self.claimed_at: float | None = None
        """When its claim was last made; None once it is granted, and when it needs none."""
        self.session: Session | None = None
        """Under whose lease it is held."""
        self.listing: Listing | None = None
        """What the worker's parent reads, and has this in it at `place`."""
        self.place = -1
        self.had_effect = False
        """The body has begun to act on the world outside, so a failure says nothing about the effect."""
        self.asks = command.claim
        """Its body starts only once the engine has said that the hand-out is this session's."""
        self.announced = False
        self.settled = False
        self.overdue = False
        """Settled while its body still runs, and so still occupies a slot."""
        self.stop: Stop | None = None
        self.log: TaskLog | None = None
        """Takes what the body logs; None: nobody does."""
        self.lines = 0
        """Logged by it until now."""
        self.details: bytes | None = None
        """JSON that the body gave by `ctx.heartbeat`."""

    @property
    def run_id(self) -> RunId:
        return RunId(self.name[0].decode())

    def begin(self) -> None:
        self.started = time.time_ns() // 1000
        now = time.monotonic()
        if self.command.timeout is not None:
            self.limit_at = now + self.command.timeout
        self.began_at = now
        if (listing := self.listing) is not None:
            listing.begin(self.place)

    @property
    def is_exclusive_body(self) -> bool:
        """Whether its body has begun, has not been answered for, and must not run beside another."""
        return self.command.exclusive and self.began_at > 0.0 and not self.settled

    def is_ours(self) -> bool:
        """Whether the hand-out is still ours by this process's own clock, however long it was frozen."""
        if self.stop in ABANDONED:
            return False
        return self.session is None or not self.session.has_expired(time.monotonic())

    def seconds_left(self) -> float | None:
        return None if self.limit_at is None else self.limit_at - time.monotonic()

    # What goes out. `session` and `worker` are filled in by the worker that sends it.
    def succeeded(self, output: bytes, session: str, worker: str) -> Succeeded:
        c = self.command
        return Succeeded(c.task, c.token, c.nonce, session, worker, self.started, time.time_ns() // 1000, Raw(output))

    def failed(self, error: Error, session: str, worker: str) -> Failed:
        c = self.command
        finished = time.time_ns() // 1000
        return Failed(c.task, c.token, c.nonce, error, session, worker, self.started or finished, finished)

    def returned(self, reason: str, session: str, worker: str) -> Returned:
        c = self.command
        begun = self.began_at > 0.0
        finished = time.time_ns() // 1000 if begun else 0
        return Returned(c.task, c.token, c.nonce, begun, reason, session, worker, self.started, finished)

    def announcement(self, session: str, worker: str) -> Started:
        c = self.command
        return Started(c.task, c.token, c.nonce, session, worker, self.started)

    def claim(self, session: str, worker: str) -> Started:
        c = self.command
        return Started(c.task, c.token, c.nonce, session, worker, claim=True)
