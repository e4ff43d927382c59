"""Health, metrics and the doctor."""

from typing import Final, Literal

from fastapi import APIRouter, Request
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.responses import Response

from api.answers import reply
from api.openapi import answers
from api.schemas.health import AppliedOffset, CheckResult, Diagnosis, Health, RelayHealth, StreamsHealth
from api.wiring import Wired
from headrace.errors import UnavailableError
from state.doctor import Check, examine
from state.queries.health import RelayRow, StreamsRow, read_relay, read_streams
from state.tokens import Scope

STALE_SECONDS: Final = 30.0
"""Relay and sweeps say that they live every few seconds."""
DOCTOR_RUNS: Final = 10_000
"""Runs whose invariants are checked by request, besides as many open ones; `python -m state.doctor` looks at all."""
DOCTOR_SECONDS: Final = 20.0
"""For one check."""

router = APIRouter(tags=["health"])


@router.get("/health", responses=answers({200: Health, 503: Health}))
async def health(request: Request, wired: Wired) -> Response:
    """Whether the engine can work: `degraded` when its relay or its sweeps have not been heard of lately; 503 without
    Postgres. Open to anybody; its parts are told to callers that are known.
    """
    try:
        async with wired.database.reading() as connection:
            relay, streams = await read_relay(connection), await read_streams(connection)
    except UnavailableError:
        response = reply(Health("degraded", "away", None, None), 503)
        response.headers["Retry-After"] = "2"
        return response
    status: Literal["ok", "degraded"] = "ok" if _is_fresh(relay, streams) else "degraded"
    if await wired.gate.identify_if_right(request) is None:
        return reply(Health(status, "ok", None, None))
    content = Health(
        status,
        "ok",
        None if relay is None else RelayHealth(relay.owner, relay.renewed_at, relay.lag_bytes),
        StreamsHealth(streams.partitions, streams.owners, streams.swept_at),
    )
    return reply(content)


def _is_fresh(relay: RelayRow | None, streams: StreamsRow) -> bool:
    if relay is None or streams.age_seconds is None:
        return False
    return relay.age_seconds <= STALE_SECONDS and streams.age_seconds <= STALE_SECONDS


@router.get("/metrics", responses={200: {"description": "Prometheus text", "content": {"text/plain": {}}}})
async def metrics(request: Request, wired: Wired) -> Response:
    """Metrics for Prometheus; `headrace_postgres_up` says whether the database's part is in them. Open on the loopback;
    beyond it they need a token that may read.
    """
    if wired.settings.is_exposed:
        await wired.gate.require(request, Scope.READ)
    return Response(await wired.metrics.scrape(), media_type=CONTENT_TYPE_LATEST)


@router.get("/doctor", responses=answers({200: Diagnosis}))
async def doctor(wired: Wired) -> Response:
    """Check connections, versions, clock, slot, lag and the invariants of open and recent runs. Reads only."""
    async with wired.database.connection() as connection:
        checks = await examine(connection, runs=DOCTOR_RUNS, statement_seconds=DOCTOR_SECONDS)
    return reply(Diagnosis(all(check.ok for check in checks), [_result(check) for check in checks]))


def _result(check: Check) -> CheckResult:
    positions = [AppliedOffset(p.topic, p.partition, p.next_offset, p.topic_id) for p in check.positions]
    return CheckResult(check.name, check.ok, check.detail, check.count, check.hint, check.seconds, positions)
