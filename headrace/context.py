"""What a running body may know about its attempt, and how it learns that it should stop."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import structlog

from headrace import payload
from headrace.attempt import Attempt, Stop
from headrace.errors import ConfigurationError, FencedError, NonRetryable, PayloadError, RetryAfter
from headrace.messages import RunId, effect_key

TASK_LOGGER: Final = "headrace.task"
DETAILS_BYTES_MAX: Final = 4_096
"""All that a session holds travels in one record, so what is said about each task has to be short."""


class Context:
    """One attempt of one task, as its body sees it; handed to a parameter named `ctx` or annotated `Context`."""

    __slots__ = ("_attempt", "_log")

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._log: Any = None

    @property
    def run_id(self) -> RunId:
        return self._attempt.run_id

    @property
    def workflow(self) -> str:
        return self._attempt.command.workflow

    @property
    def version(self) -> int:
        return self._attempt.command.version

    @property
    def task(self) -> str:
        """Name of the task in its graph; of an item of a map with its place in the list: `pages.17`."""
        return self._attempt.command.name

    @property
    def item(self) -> int | None:
        """The item's place in the list of its map, from 0; None outside of a map."""
        _, dot, item = self._attempt.command.name.partition(".")
        return int(item) if dot else None

    @property
    def round(self) -> int | None:
        """Which round of a repeat this is, from 0; None outside of one."""
        return self._attempt.command.round

    @property
    def attempt(self) -> int:
        """Number of this try, from 1."""
        return self._attempt.command.attempt

    @property
    def token(self) -> int:
        """Fencing token of this hand-out: hand it to a system that can refuse an older one."""
        return self._attempt.command.token

    @property
    def effect_key(self) -> str:
        """Send it as the idempotency key of an outside call: the same for every attempt of this task, also when it was
        renamed meanwhile, and another one in the next round of a repeat."""
        return effect_key(self.run_id, self._attempt.command.effect_name or self.task, self.round)

    @property
    def deadline(self) -> datetime | None:
        """When the body runs out of time, in UTC; None without a timeout."""
        timeout = self._attempt.command.timeout
        if timeout is None:
            return None
        return datetime.fromtimestamp(self._attempt.started / 1e6, UTC) + timedelta(seconds=timeout)

    def remaining(self) -> timedelta | None:
        """Time left until the deadline, never below zero; None without a timeout."""
        left = self._attempt.seconds_left()
        return None if left is None else timedelta(seconds=max(0.0, left))

    @property
    def log(self) -> Any:
        """A structlog logger bound to run, task, attempt and token. What it says goes on as structlog is configured,
        and to the engine, where the console and `headrace logs` show it; `logging` used in a body does so too."""
        if self._log is None:
            log, processors = self._attempt.log, structlog.get_config()["processors"]
            if log is not None:
                processors = [log.take(self._attempt), *processors]
            logger = structlog.wrap_logger(None, processors=processors, logger_factory_args=(TASK_LOGGER,))
            self._log = logger.bind(run_id=self.run_id, task=self.task, attempt=self.attempt, token=self.token)
        return self._log

    @property
    def hand_out(self) -> Attempt:
        """For the worker: what it holds this body by."""
        return self._attempt

    @property
    def cancelled(self) -> bool:
        """Whether this attempt should stop: cancelled, out of time, fenced, or its worker is going away."""
        return self._attempt.stop is not None

    def heartbeat(self, details: object = None) -> None:
        """Raise when the attempt should stop. Call it now and then in a long sync body: it cannot learn it otherwise.

        details: how far the body is, as JSON of at most DETAILS_BYTES_MAX; it goes out with the session's next
        heartbeat and is shown with the task. Raises PayloadError when it is not.
        Raises FencedError when the hand-out is no longer ours: do nothing more to the world outside.
        Raises asyncio.CancelledError when it is ours but has to stop: out of time, or the worker is shutting down.
        """
        if details is not None:
            self._attempt.details = _encode_details(details)
        self._check()

    @contextmanager
    def effect(self) -> Generator[str]:
        """Make the outside call within it: the lease is checked right before, and the effect key is what you get.

            with ctx.effect() as key:
                bank.charge(card, amount, idempotency_key=key)

        From its first line on, a failure of the body says nothing about the effect, so a task with `effect: manual` or
        `reconcile` is not simply tried again. Raise NonRetryable or RetryAfter in it to say that nothing happened.
        Raises FencedError when the hand-out is no longer ours, and CancelledError when it has to stop: as `heartbeat`.
        """
        self._check()
        if not self._attempt.is_ours():
            raise self._fenced("out of its lease")
        before, self._attempt.had_effect = self._attempt.had_effect, True
        try:
            yield self.effect_key
        except (NonRetryable, RetryAfter):
            self._attempt.had_effect = before
            raise

    def _check(self) -> None:
        match self._attempt.stop:
            case None:
                return
            case Stop.FENCED | Stop.ABORTED | Stop.SUPERSEDED as stop:
                raise self._fenced(stop)
            case stop:
                raise asyncio.CancelledError(f"this attempt has to stop: {stop}")

    def _fenced(self, why: str) -> FencedError:
        return FencedError(f"this attempt was {why}", run_id=self.run_id, task=self.task, token=self.token)


def _encode_details(details: object) -> bytes:
    raw = payload.encode(details)
    if len(raw) > DETAILS_BYTES_MAX:
        raise PayloadError(f"heartbeat details of {len(raw)} bytes, more than {DETAILS_BYTES_MAX}", "RESULT_TOO_LARGE")
    return raw


running: Final[ContextVar[Context]] = ContextVar("headrace_context")


def current() -> Context:
    """The context of the body that is running here; raises ConfigurationError outside of a body."""
    try:
        return running.get()
    except LookupError:
        raise ConfigurationError("headrace.current() was called where no task body is running") from None
