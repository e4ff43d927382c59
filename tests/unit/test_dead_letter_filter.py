"""The filter of dead letters stands twice in SQL; it is one filter."""

from dataclasses import fields

from state.queries.dead_letter import LetterFilter
from state.sql import load


def conditions(statement: str) -> list[str]:
    lines = [line.strip() for line in load("dead_letter_queries")[statement].sql.splitlines()]
    return [line for line in lines if line.startswith("AND (%(")]


def test_lists_and_groups_heed_every_field_of_the_filter_alike():
    listed = conditions("find_dead_letters")
    assert conditions("group_dead_letters") == listed
    assert sorted(line.split("%(")[1].split(")s")[0] for line in listed) == sorted(
        field.name for field in fields(LetterFilter)
    )
