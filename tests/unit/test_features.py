"""The list of features names tests that exist: `tests/features.md`."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMED = re.findall(r"`([\w/]+\.py)::(\w+)`", (TESTS / "features.md").read_text())


@pytest.mark.parametrize(("file", "name"), NAMED, ids=lambda part: part)
def test_the_test_of_a_feature_exists(file: str, name: str) -> None:
    assert re.search(rf"^ *(?:async )?(?:def|class) {name}\b|^{name} = ", (TESTS / file).read_text(), re.MULTILINE)


def test_the_list_was_read() -> None:
    assert len(NAMED) > 100
