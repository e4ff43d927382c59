"""Builds the application: reads the environment once, wires the parts, hands them on.

uvicorn api.app:create_app --factory --timeout-graceful-shutdown 10        or        python -m api
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from pydantic import ValidationError

from api import (
    approvals,
    console,
    control,
    dead_letters,
    errors,
    explain,
    health,
    objects,
    openapi,
    overview,
    parked_tasks,
    records,
    runs,
    signals,
    spans,
    stream,
    subscriptions,
    system,
    tasks,
    workers,
    workflows,
)
from api.backlog import Backlog
from api.database import Database
from api.feed import RunFeed
from api.input_schemas import InputSchemas
from api.metrics import Metrics
from api.middleware import Envelope
from api.settings import ApiSettings
from api.wiring import Wiring
from headrace import __version__
from headrace.errors import ConfigurationError
from headrace.object_store import ObjectStore
from state.plans import Plans
from state.store import Store

_ROUTERS = (
    workflows,
    runs,
    control,
    signals,
    tasks,
    objects,
    explain,
    approvals,
    parked_tasks,
    dead_letters,
    workers,
    subscriptions,
    health,
    stream,
    spans,
    overview,
    records,
    system,
    console,
)


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """The application; its connections open when it starts. Raises ConfigurationError that names the setting."""
    settings = settings or read_settings()
    settings.check_is_local()
    wiring = wire(settings)
    app = FastAPI(
        title="Headrace",
        version=__version__,
        description="Durable workflows: start, query, approve, operate.",
        lifespan=_lifespan,
        redirect_slashes=False,
        generate_unique_id_function=lambda route: "_".join((str(route.tags[0]).replace(" ", "_"), route.name)),
    )
    app.state.wiring = wiring
    for module in _ROUTERS:
        app.include_router(module.router)
    errors.install(app)
    app.add_middleware(Envelope, metrics=wiring.metrics)
    _document(app)
    return app


def read_settings() -> ApiSettings:
    try:
        return ApiSettings()
    except ValidationError as error:
        faults = "; ".join(
            f"HEADRACE_{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors()
        )
        raise ConfigurationError(faults) from None


def wire(settings: ApiSettings) -> Wiring:
    try:
        store = Store(settings)
    except ValueError as error:
        raise ConfigurationError(str(error), setting="HEADRACE_SECRET") from None
    # The pool repeats every failed attempt in the log; `Database` says it once.
    logging.getLogger("psycopg.pool").setLevel(logging.CRITICAL)
    plans, database = Plans(), Database(settings)
    metrics = Metrics(database, plans, settings.namespace)
    feed = RunFeed(database, plans, settings.namespace)
    return Wiring(
        settings, database, store, plans, InputSchemas(), metrics, feed, Backlog(settings.api_backlog_max, metrics),
        ObjectStore(settings.objects) if settings.objects else None,
    )  # fmt: skip


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    wiring: Wiring = app.state.wiring
    await wiring.database.open()
    try:
        yield
    finally:
        wiring.is_draining = True
        await wiring.database.close()


def _document(app: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the way FastAPI documents
