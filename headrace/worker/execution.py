"""How a body becomes an answer: bind its input, call it, encode what it returned; or say what went wrong, as data."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context as Variables
from typing import Any

import msgspec
from opentelemetry.trace import Tracer

from headrace import failure
from headrace.attempt import Answer, Attempt
from headrace.context import Context, running
from headrace.errors import AmbiguousError, InvariantError
from headrace.registry import Body
from headrace.tracing import attempt_span, record_outcome


class Execution:
    """Carries out attempts. Whatever a body raises ends in its answer, SystemExit and KeyboardInterrupt included: no
    body may stop the worker that runs it, and with it the bodies of others."""

    def __init__(self, worker: str, session_id: Callable[[], str], tracer: Tracer | None) -> None:
        self._worker, self._session_id, self._tracer = worker, session_id, tracer
        # Chosen once: without a tracer, no trace of tracing on the hot path.
        self.attend: Callable[[Attempt], Coroutine[None, None, Answer]]
        """Run an async body on this event loop."""
        self.attend = self._carry_out if tracer is None else self._trace
        self._attend_sync = self._carry_out_sync if tracer is None else self._trace_sync

    def attend_in_thread(self, attempt: Attempt) -> Answer:
        """Run a sync body on this thread, in context variables of its own."""
        return Variables().run(self._attend_sync, attempt)

    async def _trace(self, attempt: Attempt) -> Answer:
        assert self._tracer is not None
        with attempt_span(self._tracer, attempt, self._worker) as span:
            answer = await self._carry_out(attempt)
            record_outcome(span, answer)
            return answer

    def _trace_sync(self, attempt: Attempt) -> Answer:
        assert self._tracer is not None
        with attempt_span(self._tracer, attempt, self._worker) as span:
            answer = self._carry_out_sync(attempt)
            record_outcome(span, answer)
            return answer

    async def _carry_out(self, attempt: Attempt) -> Answer:
        try:
            body, args, kwargs = _begin(attempt)
            output = body.encode(await body.function(*args, **kwargs))
        except GeneratorExit:
            raise  # the loop itself is going away
        except BaseException as e:
            return self._failed(attempt, e)
        return attempt.succeeded(output, self._session_id(), self._worker)

    def _carry_out_sync(self, attempt: Attempt) -> Answer:
        try:
            body, args, kwargs = _begin(attempt)
            output = body.encode(body.function(*args, **kwargs))
        except BaseException as e:
            return self._failed(attempt, e)
        return attempt.succeeded(output, self._session_id(), self._worker)

    def _failed(self, attempt: Attempt, error: BaseException) -> Answer:
        """What is said once more after an effect began cannot tell whether it happened."""
        described = failure.describe(error)
        if attempt.had_effect or isinstance(error, AmbiguousError):
            described = msgspec.structs.replace(described, ambiguous=True)
        return attempt.failed(described, self._session_id(), self._worker)


def _begin(attempt: Attempt) -> tuple[Body, Any, Any]:
    attempt.begin()
    if attempt.stop is not None:  # given up between its turn and now, as a hand-out that never began
        raise asyncio.CancelledError
    if attempt.body is None:
        raise InvariantError("an attempt without a body was started")
    context = Context(attempt)
    running.set(context)
    args, kwargs = attempt.body.bind(context, attempt.command.input)
    return attempt.body, args, kwargs
