"""Builds the application: reads the environment once, wires the parts, hands them on.

uvicorn api.app:create_app --factory --timeout-graceful-shutdown 10        or        python -m api
"""

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import Depends, FastAPI
from pydantic import ValidationError

from api import (
    approval_links,
    approvals,
    bulk,
    console,
    control,
    dead_letters,
    delegations,
    errors,
    explain,
    filters,
    health,
    logs,
    objects,
    openapi,
    overview,
    parked_tasks,
    pauses,
    pools,
    records,
    reference,
    relations,
    runs,
    search,
    sessions,
    signals,
    spans,
    stream,
    subscriptions,
    system,
    tasks,
    tokens,
    versions,
    views,
    workers,
    workflows,
)
from api.access import Gate, admit, check_exposure
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
from state.tokens import Scope

_ROUTERS = (
    workflows,
    versions,
    search,  # before what takes the id of a run
    runs,
    relations,
    control,
    signals,
    tasks,
    objects,
    explain,
    approvals,
    approval_links,
    delegations,
    parked_tasks,
    pauses,
    bulk,
    pools,
    dead_letters,
    filters,
    views,
    workers,
    subscriptions,
    health,
    stream,
    logs,
    spans,
    overview,
    records,
    system,
    sessions,
    tokens,
    reference,
    console,
)
_OPEN: Final = frozenset(
    {
        health.health,  # says more to those it knows
        health.metrics,  # asks who calls when others than this machine can
        sessions.follow_code,
        sessions.log_in,
        approval_links.show,  # whoever has a link may, once: what is in it is its own proof
        approval_links.decide,
        console.root,
        console.without_slash,
        console.serve,  # the console's files; what it shows it has to ask for
    }
)
"""The routes that anybody may call, whoever they are."""
_SCOPES: Final = {
    approvals.approve: Scope.APPROVE,
    approvals.reject: Scope.APPROVE,
    approvals.comment: Scope.APPROVE,
    tasks.decide_task: Scope.APPROVE,
    delegations.make: Scope.APPROVE,
    delegations.end: Scope.APPROVE,
    approval_links.make: Scope.ADMIN,  # whoever makes a link could decide by it as the one that it is for
    tokens.create: Scope.ADMIN,
    tokens.list_all: Scope.ADMIN,
    tokens.revoke: Scope.ADMIN,
    tokens.list_acts: Scope.ADMIN,
    sessions.create_code: Scope.READ,
    sessions.log_out: Scope.READ,
    views.save: Scope.READ,  # of one's own; for all it takes more, see there
    views.change: Scope.READ,
    views.delete: Scope.READ,
}
"""What a route asks for otherwise than `read` to read and `operate` to write."""


def create_app(settings: ApiSettings | None = None) -> FastAPI:
    """The application; its connections open when it starts. Raises ConfigurationError that names the setting."""
    settings = settings or read_settings()
    settings.check_exposure()
    wiring = wire(settings)
    app = FastAPI(
        title="Headrace",
        version=__version__,
        description="Durable workflows: start, query, approve, operate.",
        lifespan=_lifespan,
        redirect_slashes=False,
        # These would be routes without the dependency: `reference` has them.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[Depends(admit)],
        generate_unique_id_function=lambda route: "_".join((str(route.tags[0]).replace(" ", "_"), route.name)),
    )
    app.state.wiring = wiring
    for module in _ROUTERS:
        app.include_router(module.router)
    errors.install(app)
    app.add_middleware(Envelope, metrics=wiring.metrics, settings=settings)
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
        Gate(database, settings, open_=_OPEN, scopes=_SCOPES),
        ObjectStore(settings.objects) if settings.objects else None,
    )  # fmt: skip


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncGenerator[None]:
    wiring: Wiring = app.state.wiring
    await check_exposure(wiring.settings)
    await wiring.database.open()
    try:
        yield
    finally:
        wiring.is_draining = True
        await wiring.feed.close()
        await wiring.database.close()


def _document(app: FastAPI) -> None:
    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = openapi.document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the way FastAPI documents
