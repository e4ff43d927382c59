"""The screenshots that the console's tests keep: of which test, under which name, of which size.

    python -m tests.browser.screenshots      the table of them in docs/console.md, when a test came or went

They are read from the tests themselves: each that has a console keeps what that showed last, and what it shows in
between where it says `shot("-ending")`. `Console.shot` refuses one that is not in the table or has another size.
"""

import inspect
import re
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

PAGE: Final = Path(__file__).parents[2] / "docs" / "console.md"
WIDE: Final = (1440, 900)
SMALL: Final = (1024, 768)
HEAD: Final = "| of the test | what is kept | pixels |\n|---|---|---|\n"

_FIXTURES: Final = frozenset({"console", "operator"})
_SHOT: Final = re.compile(r'\.shot\("(-[\w-]+)"\)')
_ROW: Final = re.compile(r"^\| `(\w+)` \| (.+) \| (\d+) by (\d+) \|$", re.MULTILINE)


class Kept(NamedTuple):
    test: str
    """Its name without `test_`."""
    endings: tuple[str, ...]
    """Behind that name: empty for what stood there last."""
    size: tuple[int, int]


def name_of(test: str) -> str:
    """The name of the picture that a test ends with. test: as pytest calls it, `test_a_page_opens[runs]`."""
    return test.removeprefix("test_").replace("/", "-").replace("[", "-").rstrip("]")


def of_tests() -> Iterator[Kept]:
    """As the tests are written, by file and in their order."""
    for file in sorted(Path(__file__).parent.glob("test_*.py")):
        module = import_module(f"tests.browser.{file.stem}")
        for name, test in vars(module).items():
            if name.startswith("test_") and _FIXTURES & set(inspect.signature(test).parameters):
                yield _kept(name, test)


def _kept(name: str, test: Any) -> Kept:
    source = inspect.getsource(test)
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    assert len(marks) <= 1, f"{name} has parameters of several kinds, which are not told here"
    each = [f"-{value}" for value in marks[0].args[1]] if marks else [""]
    return Kept(
        name_of(name),
        tuple(value + ending for value in each for ending in ("", *_SHOT.findall(source))),
        SMALL if "resize(SMALL)" in source else WIDE,
    )


def table() -> str:
    return HEAD + "".join(map(_row, of_tests()))


def _row(kept: Kept) -> str:
    endings = ", ".join(f"`{ending}.png`" for ending in kept.endings)
    return f"| `{kept.test}` | {endings} | {kept.size[0]} by {kept.size[1]} |\n"


def listed() -> dict[str, tuple[int, int]]:
    """What the page lists: name of the file -> width and height."""
    rows = _ROW.findall(PAGE.read_text(encoding="utf-8"))
    return {
        f"{test}{ending}": (int(width), int(height))
        for test, endings, width, height in rows
        for ending in re.findall(r"`([^`]+)`", endings)
    }


def size_of(png: bytes) -> tuple[int, int]:
    """Width and height as the file itself says."""
    width, height = struct.unpack(">II", png[16:24])
    return width, height


if __name__ == "__main__":
    print(table(), end="")
