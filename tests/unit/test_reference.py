"""The reference of the language is drawn from the models, and editors are told the same."""

import json
from pathlib import Path

import pytest

from headrace.graph import Map, Retry, Task, Wait, Workflow, json_schema
from headrace.reference import draw, fields_of, models_of
from tests.unit.test_cli import headrace

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_is_what_the_models_say() -> None:
    assert PAGE.read_text() == draw(), "python -m headrace.reference > docs/reference.md"


@pytest.mark.parametrize("model", models_of(Workflow), ids=lambda model: model.__name__)
def test_every_field_says_what_it_means(model: type) -> None:
    assert [field.name for field in fields_of(model) if not field.note] == []


def test_models_are_found_wherever_a_field_holds_one() -> None:
    assert {Workflow, Task, Retry, Wait, Map} <= set(models_of(Workflow))


def test_editors_are_told_what_every_field_means() -> None:
    schema = json_schema()
    for model in models_of(Workflow):
        properties = schema["properties"] if model is Workflow else schema["$defs"][model.__name__]["properties"]
        told = {name: given.get("description") for name, given in properties.items()}
        assert told == {field.name: field.note for field in fields_of(model)}


def test_the_schema_is_printed_for_editors() -> None:
    printed = headrace("schema")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == json_schema()
