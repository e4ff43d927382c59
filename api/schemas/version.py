"""What a publish leads to, and which runs hold to a version."""

from typing import Literal

import msgspec

from api.schemas.wire import Instant
from headrace.machine import RunStatus


class RunsInFlight(msgspec.Struct):
    """Runs of one version and status that have not ended."""

    version: int
    status: RunStatus
    runs: int
    oldest_run_id: str
    oldest_at: Instant
    """When that began."""
    then: Literal["stays", "moves"]
    """What a publish leads to for them: a run stays on the version it began with, or is moved where nothing stands in
    the way, if the workflow says so or the publish will ask for it."""


class TaskChange(msgspec.Struct):
    task: str
    fields: list[str]
    """Those that say something else."""


class Rename(msgspec.Struct):
    task: str
    was: str
    """In the latest version."""


class Difference(msgspec.Struct):
    """From the latest version to what is to be published."""

    fields: list[str]
    """Of the workflow itself: description, input, output, deadline or on_publish."""
    added: list[str]
    removed: list[str]
    changed: list[TaskChange]
    moved: list[str]
    """Tasks that stand at another position."""
    renamed: list[Rename]
    """Tasks with another name and the same effect keys."""


class Blocked(msgspec.Struct):
    """What stands in the way of moving runs to a version."""

    task: str
    why: str
    runs: int


class RunVerdict(msgspec.Struct):
    """Whether one run could be moved."""

    run_id: str
    version: int
    status: RunStatus
    why_not: str | None
    """None: nothing stands in the way, once nothing of it runs."""


class Moves(msgspec.Struct):
    """Which runs in flight could be moved to a version, once they are paused."""

    looked_at: int
    """The oldest so many, 200 at most."""
    movable: int
    obstacles: list[Blocked]
    """Of the others, the most frequent first."""
    runs: list[RunVerdict]
    """Each that was looked at, oldest first."""


class PublishCheck(msgspec.Struct):
    """What a publish of this content would lead to; nothing was published."""

    name: str
    verdict: Literal["first", "new", "latest", "older"]
    """The first version of its workflow; the next one; the content of the latest; or that of an older version, which a
    publish does not make the latest again."""
    version: int
    """That it would have, or has."""
    latest_version: int | None
    digest: str
    difference: Difference | None
    """None for the first."""
    runs: list[RunsInFlight]
    """Newest version first."""
    moves: Moves


class VersionRuns(msgspec.Struct):
    """A version, and the runs that still hold to it."""

    version: int
    digest: str
    published_at: Instant
    published_by: str
    is_latest: bool
    in_flight: int
    """Runs that have not ended."""
    runs: list[RunsInFlight]
    bodies: list[str]
    """Registered names that it needs and the latest version does not: workers keep them while a run is in flight."""


class VersionRunsList(msgspec.Struct):
    name: str
    items: list[VersionRuns]
    """Newest first: the latest version, and older ones with runs in flight."""
