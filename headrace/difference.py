"""What is different between two definitions of one workflow, before the newer one is published.

Compared are canonical forms, as parsed JSON: the difference is then one of content, never of spelling. A task is the
same task when it has the same name; its position is its number in the runs of a version, so it is told when that moves.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_OF_THE_WHOLE: Final = ("description", "input", "output", "deadline", "on_publish", "limit")


class TaskChange(NamedTuple):
    task: str
    fields: tuple[str, ...]
    """Those that say something else, in the order of their names."""


class Difference(NamedTuple):
    fields: tuple[str, ...]
    """Of the workflow itself, such as `input`."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[TaskChange, ...]
    moved: tuple[str, ...]
    """Tasks that are in both and stand at another position, whatever else of them changed."""


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """Tasks stand in the order of the definition they are in; those in both, in that of the newer one.

    >>> compare({"tasks": {"check": {"run": "c"}}}, {"tasks": {"check": {"run": "c"}, "book": {"run": "b"}}}).added
    ('book',)
    """
    before: Mapping[str, Any] = old.get("tasks") or {}
    after: Mapping[str, Any] = new.get("tasks") or {}
    places = {name: place for place, name in enumerate(before)}
    return Difference(
        fields=_changed(old, new, _OF_THE_WHOLE),
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(
            TaskChange(name, fields)
            for name, task in after.items()
            if name in before and (fields := _changed(before[name], task, sorted({*before[name], *task})))
        ),
        moved=tuple(name for place, name in enumerate(after) if places.get(name, place) != place),
    )


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], fields: Any) -> tuple[str, ...]:
    return tuple(field for field in fields if old.get(field) != new.get(field))
