"""OpenTelemetry at its edge: one span per attempt, continuing the trace that its command carries.

Costs nothing unless the process has configured a tracer provider; then `attempt_tracer` returns a tracer, otherwise
None, and the worker takes the path without spans. A command's own `traceparent` is passed on to its answer anyway.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from opentelemetry import trace
from opentelemetry.trace import (
    Link,
    NoOpTracerProvider,
    ProxyTracerProvider,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from headrace.attempt import Attempt
from headrace.messages import TRACEPARENT, Failed

_propagator: Final = TraceContextTextMapPropagator()


def attempt_tracer() -> Tracer | None:
    """The tracer for attempts, or None when this process has no provider configured."""
    if isinstance(trace.get_tracer_provider(), ProxyTracerProvider | NoOpTracerProvider):
        return None
    return trace.get_tracer("headrace")


@contextmanager
def attempt_span(tracer: Tracer, attempt: Attempt, worker: str) -> Generator[Span]:
    """Open the span `headrace.attempt` around a body, and make the answer carry it.

    Child of the command's trace context, and linked to it: the link survives where a backend cuts long traces.
    """
    carrier = {TRACEPARENT: attempt.traceparent} if attempt.traceparent else {}
    parent = _propagator.extract(carrier)
    trigger = trace.get_current_span(parent).get_span_context()
    command = attempt.command
    attributes: dict[str, str | int] = {
        "headrace.run_id": attempt.run_id,
        "headrace.workflow": command.workflow,
        "headrace.task": command.name,
        "headrace.body": command.run,
        "headrace.attempt": command.attempt,
        "headrace.worker": worker,
    }
    links = [Link(trigger)] if trigger.is_valid else []
    with tracer.start_as_current_span(
        "headrace.attempt", context=parent, kind=SpanKind.CONSUMER, attributes=attributes, links=links
    ) as span:
        out: dict[str, str] = {}
        _propagator.inject(out)
        attempt.traceparent = out.get(TRACEPARENT, attempt.traceparent)
        yield span


def record_outcome(span: Span, answer: object) -> None:
    """Write how the attempt ended: its error code, or `succeeded`."""
    if isinstance(answer, Failed):
        span.set_attribute("headrace.outcome", answer.error.code)
        span.set_status(Status(StatusCode.ERROR, answer.error.message))
    else:
        span.set_attribute("headrace.outcome", "succeeded")
