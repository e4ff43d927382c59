"""OpenTelemetry at its edge: one span per attempt, continuing the trace that its command carries.

Costs nothing unless the process has configured a tracer provider; then `attempt_tracer` returns a tracer, otherwise
None, and the worker takes the path without spans. A command's own `traceparent` is passed on to its answer anyway.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

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
from headrace.errors import ConfigurationError
from headrace.messages import TRACEPARENT, Failed

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter


def export_traces(to: Literal["none", "otlp", "console"]) -> None:
    """Set up this process's tracer provider; for `headrace worker`, whose user has no place to do it.

    A program that runs a `Worker` itself configures OpenTelemetry as it likes instead. Spans leave in batches, and
    those still held leave when the process ends. Raises ConfigurationError when the SDK or the exporter is not
    installed.
    """
    if to == "none":
        return
    try:
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        provider = TracerProvider(resource=Resource.create({"service.name": "headrace-worker"}))
        provider.add_span_processor(BatchSpanProcessor(_exporter(to)))
    except ImportError as e:
        raise ConfigurationError(f"HEADRACE_TRACES={to} needs headrace[engine] or OpenTelemetry's SDK: {e}") from e
    trace.set_tracer_provider(provider)


def _exporter(to: Literal["otlp", "console"]) -> "SpanExporter":
    if to == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


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
