"""The difference between two definitions of one workflow."""

import json

import pytest

from headrace.difference import Difference, Rename, TaskChange, compare
from headrace.graph import parse

OLD = """
name: pay
description: as it was
tasks:
  check: { run: pay.check }
  charge: { run: pay.charge, needs: check, retry: 5 }
  book: { run: pay.book, needs: charge }
"""


def difference(new: str, old: str = OLD) -> Difference:
    return compare(*(json.loads(parse(text).canonical()) for text in (old, new)))


def test_another_spelling_is_no_difference() -> None:
    spelled = OLD.replace("needs: check, retry: 5", 'queue: default, retry: { attempts: 5 }, needs: ["check"]')
    assert not any(difference(spelled))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("as it was", "as it is"), {"fields": ("description",)}),
        (("retry: 5", "retry: 6, timeout: 1m"), {"changed": (TaskChange("charge", ("retry", "timeout")),)}),
        ((", retry: 5", ""), {"changed": (TaskChange("charge", ("retry",)),)}),
        (("  book: { run: pay.book, needs: charge }\n", ""), {"removed": ("book",)}),
        (("  book:", "  tell: { run: mail.send, needs: check }\n  book:"), {"added": ("tell",), "moved": ("book",)}),
        (("  book:", "  write:"), {"added": ("write",), "removed": ("book",)}),
        (("  book: {", "  write: { was: book,"), {"renamed": (Rename("write", "book"),)}),
        (
            ("  book: { run: pay.book", "  write: { was: book, run: pay.write"),
            {"renamed": (Rename("write", "book"),), "changed": (TaskChange("write", ("run",)),)},
        ),
        (("  book: {", "  book: { was: write,"), {"added": ("book",), "removed": ("book",)}),
    ],
    ids=[
        "description",
        "fields of a task",
        "a field that is left out",
        "removed",
        "added before",
        "another",
        "renamed",
        "renamed and changed",
        "the same name with other effect keys",
    ],
)
def test_what_differs_is_named_and_nothing_else(change: tuple[str, str], found: dict[str, object]) -> None:
    empty = Difference((), (), (), (), (), ())
    assert difference(OLD.replace(*change)) == empty._replace(**found)


def test_the_same_tasks_in_another_order_have_moved() -> None:
    swapped = "name: two\ntasks: {{ {0}: {{ run: x }}, {1}: {{ run: x }} }}"
    assert difference(swapped.format("b", "a"), swapped.format("a", "b")).moved == ("b", "a")
