"""How a person names a run: its id, the last digits of it, or `last`."""

import uuid
from typing import Final

from headrace.cli.api import Api
from headrace.errors import ConflictError, NotFoundError

DIGITS_MIN: Final = 4
SHORT_DIGITS: Final = 8
"""Shown where space is scarce; the end of a UUIDv7 is random, its beginning the time."""
RECENT: Final = 200
"""A short form means one of so many latest runs."""


def find_run(api: Api, text: str) -> str:
    """The id of the run that `text` names. Raises NotFoundError, or ConflictError when it names several."""
    if is_run_id(text):
        return text.lower()
    if text == "last":
        return _last(api)
    digits = text.rpartition("-")[2].lower()
    recent = api.page("/runs", limit=RECENT)["items"] if len(digits) >= DIGITS_MIN else []
    found = [run["run_id"] for run in recent if run["run_id"].endswith(digits)]
    if not found:
        raise NotFoundError(f"no run {text!r}; name it by its id, by the last digits of a recent one, or `last`")
    if len(found) > 1:
        raise ConflictError("\n".join([f"{text!r} names {len(found)} runs:", *found[:5]]))
    return str(found[0])


def is_run_id(text: str) -> bool:
    try:
        uuid.UUID(text)
    except ValueError:
        return False
    return len(text) == 36


def short(run_id: str) -> str:
    return run_id[-SHORT_DIGITS:]


def _last(api: Api) -> str:
    runs = api.get("/runs", limit=1)["items"]
    if not runs:
        raise NotFoundError("no runs yet; start one: headrace run WORKFLOW")
    return str(runs[0]["run_id"])
