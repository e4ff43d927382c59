"""Rerun, move and skip: what is asked, and what it leads to."""

from typing import Annotated, Literal

import msgspec

from api.schemas.wire import Name, Text, Version
from headrace.machine import TaskStatus


class RerunBody(msgspec.Struct, forbid_unknown_fields=True):
    tasks: Annotated[list[Name], msgspec.Meta(max_length=1_000)] = []
    """These, and all that depends on them; items of a map, such as `pages.17`. Left out: what failed or was cancelled,
    of a map only its items that did, and what was skipped because of that."""
    input: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """Takes the place of the input of the only task named."""
    reason: Text = ""
    dry_run: bool = False
    """Only say what would run again."""
    row_version: Version | None = None
    """As a dry run said: refused when the run has moved since."""
    version: Version | None = None
    """Of its workflow, to go on with; left out: the one that it is on. What that adds runs, too."""


class MigrateBody(msgspec.Struct, forbid_unknown_fields=True):
    version: Version | None = None
    """The latest, when left out."""
    reason: Text = ""
    dry_run: bool = False
    """Only say what stands in the way."""


class Obstacle(msgspec.Struct):
    task: str | None
    """None: the run as a whole."""
    why: str


class Migration(msgspec.Struct):
    """A run that is moved to another version, or what stands in the way."""

    run_id: str
    dry_run: bool
    workflow: str
    from_version: int
    to_version: int
    obstacles: list[Obstacle]
    """None: it can be moved as it stands."""


class RerunTask(msgspec.Struct):
    task: str
    status: TaskStatus
    """As it stands."""
    attempt: int
    then: Literal["begins", "follows", "skipped", "failed"]
    """Begins at once; follows what it needs; or is skipped, or fails, again at once."""
    effect: Literal["none", "first", "repeats", "did_not_happen"]
    """It has no body; its body never began; its body may have had its effect, and runs again; it failed, and said that
    it had none."""
    protected_by: Literal["effect_key", "lookup", "person"] | None
    """What keeps an effect that repeats from happening twice."""
    effect_key: str | None
    items: int | None
    """Of a map: how many of its items that began run again; all of them where it starts over with a new list."""


class Rerun(msgspec.Struct):
    """What runs again, and what stands."""

    run_id: str
    dry_run: bool
    workflow: str
    version: int
    """The one that it is on."""
    row_version: int
    again: list[RerunTask]
    reused: list[str]
    """Tasks whose ends stand."""
    to_version: int
    """The one on which it runs again: its own, unless another was asked for."""
    obstacles: list[Obstacle]
    """What stands in the way of that version; then nothing runs again."""


class SkipBody(msgspec.Struct, forbid_unknown_fields=True):
    output: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What its body would have returned; null when left out."""
    reason: Text = ""
