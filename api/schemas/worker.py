"""Worker sessions."""

import msgspec

from api.schemas.wire import Instant


class Worker(msgspec.Struct):
    session_id: str
    worker: str
    queues: list[str]
    slots: int
    held: int
    draining: bool
    library: str
    started_at: Instant
    renewed_at: Instant
    expires_at: Instant
    live: bool


class WorkerCrash(msgspec.Struct):
    session_id: str
    worker: str
    """The process that is killed, as a lost host would be; `headrace dev` starts another one."""


class WorkerPage(msgspec.Struct):
    items: list[Worker]
    next: str | None
