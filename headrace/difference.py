"""What is different between two definitions of one workflow, before the newer one is published.

Compared are canonical forms, as parsed JSON: the difference is then one of content, never of spelling. A task is the
same task when its effect keys say the same name: its own, or the one that it says it `was`. Its position is its number
in the runs of a version, so it is told when that moves.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_OF_THE_WHOLE: Final = ("description", "input", "output", "deadline", "on_publish", "limit")


class TaskChange(NamedTuple):
    task: str
    fields: tuple[str, ...]
    """Those that say something else, in the order of their names."""


class Rename(NamedTuple):
    task: str
    was: str
    """In the older one."""


class Difference(NamedTuple):
    fields: tuple[str, ...]
    """Of the workflow itself, such as `input`."""
    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[TaskChange, ...]
    moved: tuple[str, ...]
    """Tasks that are in both and stand at another position, whatever else of them changed."""
    renamed: tuple[Rename, ...]


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> Difference:
    """Tasks stand in the order of the definition they are in; those in both, in that of the newer one.

    >>> compare({"tasks": {"check": {"run": "c"}}}, {"tasks": {"check": {"run": "c"}, "book": {"run": "b"}}}).added
    ('book',)
    """
    before, after = _by_effect_name(old), _by_effect_name(new)
    places = {name: place for place, name in enumerate(before)}
    both = [(before[key], name) for key, name in after.items() if key in before]
    was, tasks = (each.get("tasks") or {} for each in (old, new))
    return Difference(
        fields=_changed(old, new, _OF_THE_WHOLE),
        added=tuple(name for key, name in after.items() if key not in before),
        removed=tuple(name for key, name in before.items() if key not in after),
        changed=tuple(
            TaskChange(name, fields)
            for old_name, name in both
            if (fields := _changed(was[old_name], tasks[name], sorted({*was[old_name], *tasks[name]} - {"was"})))
        ),
        moved=tuple(name for place, (key, name) in enumerate(after.items()) if places.get(key, place) != place),
        renamed=tuple(Rename(name, old_name) for old_name, name in both if name != old_name),
    )


def _by_effect_name(definition: Mapping[str, Any]) -> dict[str, str]:
    """Names of its tasks, in order, by what their effect keys say."""
    return {task.get("was") or name: name for name, task in (definition.get("tasks") or {}).items()}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any], fields: Any) -> tuple[str, ...]:
    return tuple(field for field in fields if old.get(field) != new.get(field))
