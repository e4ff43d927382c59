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
from headrace.errors import AmbiguousError, ConfigurationError, InvariantError, PayloadError
from headrace.messages import PAYLOAD_BYTES_MAX
from headrace.object_store import MARK, ObjectStore, refuse_references
from headrace.registry import Body
from headrace.tracing import attempt_span, record_outcome


class Execution:
    """Carries out attempts. Whatever a body raises ends in its answer, SystemExit and KeyboardInterrupt included: no
    body may stop the worker that runs it, and with it the bodies of others."""

    def __init__(
        self, worker: str, session_id: Callable[[], str], tracer: Tracer | None, objects: ObjectStore | None = None
    ) -> None:
        """objects: where large results go; None: nowhere, and they are refused."""
        self._worker, self._session_id, self._tracer, self._objects = worker, session_id, tracer, objects
        self._above = PAYLOAD_BYTES_MAX if objects is None else min(objects.above, PAYLOAD_BYTES_MAX)
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
            body, input = _begin(attempt)
            if MARK in input:
                input = await asyncio.to_thread(self._fill, attempt, input)
            args, kwargs = _bind(body, attempt, input)
            output = body.encode(await body.function(*args, **kwargs))
            if len(output) > self._above or MARK in output:
                output = await asyncio.to_thread(self._keep, attempt, output)
        except GeneratorExit:
            raise  # the loop itself is going away
        except BaseException as e:
            return self._failed(attempt, e)
        return attempt.succeeded(output, self._session_id(), self._worker)

    def _carry_out_sync(self, attempt: Attempt) -> Answer:
        try:
            body, input = _begin(attempt)
            if MARK in input:
                input = self._fill(attempt, input)
            args, kwargs = _bind(body, attempt, input)
            output = body.encode(body.function(*args, **kwargs))
            if len(output) > self._above or MARK in output:
                output = self._keep(attempt, output)
        except BaseException as e:
            return self._failed(attempt, e)
        return attempt.succeeded(output, self._session_id(), self._worker)

    def _fill(self, attempt: Attempt, input: bytes) -> bytes:
        if self._objects is None:
            raise ConfigurationError("the input has values in an object store: give this worker HEADRACE_OBJECTS too")
        return self._objects.fill(attempt.run_id, input)

    def _keep(self, attempt: Attempt, output: bytes) -> bytes:
        """The reference to a large result, where one may stand for it."""
        refuse_references(output)
        if self._objects is not None and not attempt.command.inline:
            return self._objects.put(attempt.run_id, output)
        if len(output) <= PAYLOAD_BYTES_MAX:
            return output
        raise PayloadError(
            f"the result is {len(output)} bytes of JSON, more than {PAYLOAD_BYTES_MAX}, and an expression of the "
            "workflow looks into it: let it name the whole output, or return that part apart",
            "RESULT_TOO_LARGE",
        )

    def _failed(self, attempt: Attempt, error: BaseException) -> Answer:
        """What is said once more after an effect began cannot tell whether it happened."""
        described = failure.describe(error)
        if attempt.had_effect or isinstance(error, AmbiguousError):
            described = msgspec.structs.replace(described, ambiguous=True)
        return attempt.failed(described, self._session_id(), self._worker)


def _begin(attempt: Attempt) -> tuple[Body, bytes]:
    attempt.begin()
    if attempt.stop is not None:  # given up between its turn and now, as a hand-out that never began
        raise asyncio.CancelledError
    if attempt.body is None:
        raise InvariantError("an attempt without a body was started")
    return attempt.body, bytes(attempt.command.input)


def _bind(body: Body, attempt: Attempt, input: bytes) -> tuple[Any, Any]:
    context = Context(attempt)
    running.set(context)
    return body.bind(context, input)
