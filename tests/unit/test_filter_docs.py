"""The page on filters names every field of every list, what it takes, and whether an index finds it."""

from pathlib import Path

import pytest

from headrace.filter_field import NOUNS, Noun, fields_of

PAGE = (Path(__file__).parents[2] / "docs" / "filters.md").read_text(encoding="utf-8")
TITLES: dict[Noun, str] = {"dead_letters": "Dead letters"}


@pytest.mark.parametrize("of", NOUNS)
def test_the_page_has_the_fields_of_a_list_and_no_others(of: Noun) -> None:
    section = PAGE.split(f"### {TITLES.get(of, of.capitalize())}\n")[1].split("\n### ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `")]
    said = {row[0].strip("| "): row[2].rstrip(" |") for row in rows}
    assert said == {
        f"`{field.name}{'.…' * field.has_parts}`{' ·' * field.is_indexed}": field.about
        for field in fields_of(of).values()
    }
    for row in rows:
        name = row[0].strip("| ·`").removesuffix(".…")
        choices = fields_of(of)[name].choices
        assert not choices or row[1] == ", ".join(f"`{choice}`" for choice in choices), name
