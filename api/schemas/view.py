"""Filters that are kept under a name."""

from typing import Literal

import msgspec

from api.schemas.wire import FilterText, Instant, Name

ViewOf = Literal["runs", "tasks", "attempts", "history", "dead_letters"]


class ViewBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    of: ViewOf = "runs"
    filter: FilterText = ""
    is_shared: bool = False
    """For all who read; it takes the scope `operate`. Otherwise for whoever keeps it."""
    layout: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    """What the page that shows it wants to know, such as columns: an object of at most 10,000 bytes."""


class View(msgspec.Struct):
    view_id: str | None
    """null for one that is always there."""
    name: str
    of: ViewOf
    filter: str
    owner: str
    """Who keeps it; empty for one that is always there."""
    is_shared: bool
    layout: msgspec.Raw
    created_at: Instant | None
    updated_at: Instant | None


class ViewList(msgspec.Struct):
    items: list[View]
    """Those that are always there, then those that are kept, by name."""
