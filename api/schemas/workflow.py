"""Workflows and their versions."""

import msgspec

from api.schemas.wire import Instant


class Published(msgspec.Struct):
    name: str
    version: int
    created: bool
    """False: this content was that version already."""
    digest: str
    published_at: Instant
    bulk_id: str | None
    """That moves runs in flight on older versions, where that was asked for and there are any."""


class WorkflowSummary(msgspec.Struct):
    name: str
    latest_version: int
    created_at: Instant
    updated_at: Instant
    tasks: int
    """Of the latest version."""


class WorkflowPage(msgspec.Struct):
    items: list[WorkflowSummary]
    next: str | None


class VersionSummary(msgspec.Struct):
    version: int
    digest: str
    published_at: Instant
    published_by: str


class Workflow(msgspec.Struct):
    name: str
    latest_version: int
    versions: list[VersionSummary]
    """Newest first."""
    definition: msgspec.Raw
    """Of the latest version."""


class WorkflowVersion(msgspec.Struct):
    name: str
    version: int
    digest: str
    published_at: Instant
    published_by: str
    definition: msgspec.Raw
