"""Types that several nouns share."""

from datetime import datetime
from typing import Annotated

import msgspec

Text = Annotated[str, msgspec.Meta(max_length=10_000, pattern=r"^[^\x00]*$(?!\n)")]
"""Words of a person."""
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=1_000, pattern=r"^[^\x00]+$(?!\n)")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$(?!\n)")]
"""A name or key given by a caller: compared as it is, character by character; nothing is normalised or trimmed."""
WorkflowName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z][A-Za-z0-9_.-]{0,99}$(?!\n)")]
FilterText = Annotated[str, msgspec.Meta(max_length=4_000, pattern=r"^[^\x00]*$(?!\n)")]
"""As `/filters/{of}` explains it."""
Instant = Annotated[datetime, msgspec.Meta(tz=True)]
Version = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
Priority = Annotated[int, msgspec.Meta(ge=-100, le=100)]


class ReasonBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Text = ""


class EmptyBody(msgspec.Struct, forbid_unknown_fields=True):
    """Nothing to say."""


class Accepted(msgspec.Struct):
    run_id: str
    accepted: bool
