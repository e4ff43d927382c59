"""Filters as SQL, without a database: every field has its condition, and nothing of a filter's text stands in a
statement."""

import re
from datetime import UTC, datetime
from typing import Any, cast
from uuid import UUID

import pytest

from headrace.filter import parse
from headrace.filter_field import NOUNS, Field, Kind, Noun, fields_of
from state import filter_sql
from state.filter_sql import Conditions, conditions_of
from state.queries.rows import Connection

STATEMENTS: dict[Noun, tuple[str, ...]] = {
    "runs": ("find_runs", "find_last_candidate", "count_runs", "count_facets", "count_by_time"),
    "tasks": ("find_tasks",),
    "attempts": ("find_attempts",),
    "history": ("find_events",),
    "dead_letters": ("find_letters", "find_last_letter", "group_letters"),
}
MARK = "Zzmarkzz"
OWN = {
    "namespace", "before", "before_at", "scanned", "limit", "values_max", "errors", "buckets", "at_run", "at_task",
    "at_token", "at_row_version", "at_attempt", "after_at", "after_fingerprint", "label_counted",
}  # fmt: skip
"""What a search gives beside its filter."""
sent: list[str] = []


async def made_of(text: str, of: Noun = "runs") -> Conditions:
    """Of a filter, where `nobody` stands for the database."""
    return await conditions_of(cast("Connection", None), "default", parse(of, text))


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the database: two versions, a run, two places in graphs."""

    async def fetch(_: Any, row: Any, statement: Any, **given: Any) -> list[Any]:
        sent.append(statement if isinstance(statement, str) else statement.as_string(None))
        assert set(re.findall(r"%\((\w+)\)s", sent[-1])) <= given.keys()
        return [1, 2] if row is int else []

    async def fetch_one(*_: Any, **__: Any) -> datetime:
        return datetime(2026, 11, 30, tzinfo=UTC)

    sent.clear()
    monkeypatch.setattr(filter_sql, "fetch", fetch)
    monkeypatch.setattr(filter_sql, "fetch_filtered", fetch)
    monkeypatch.setattr(filter_sql, "fetch_one", fetch_one)


def clauses(field: Field) -> list[str]:
    match field.kind:
        case Kind.WORD | Kind.TEXT:
            return [f"{field.name}:{MARK}", f'{field.name}:"{MARK} \'; --","%(x)s {{y}}"']
        case Kind.CHOICE:
            return [f"{field.name}:{field.choices[0]}", f"{field.name}:{','.join(field.choices[1:])}"]
        case Kind.ID:
            return [f"{field.name}:019b0000-0000-7000-8000-000000000000"]
        case Kind.INTEGER:
            return [f"{field.name}:>=7", f"{field.name}:1,2"]
        case Kind.INSTANT:
            return [f"{field.name}:>-2h", f"{field.name}:<=2026-11-01", f"{field.name}:2026-11-01,now"]
        case Kind.LENGTH:
            return [f"{field.name}:<5m"]
        case Kind.LABEL:
            name = MARK.lower()
            return [f"{field.name}.{name}:{MARK},b", f"{field.name}.{name}:{MARK}*", f"{field.name}.{name}:*"]
        case Kind.JSON:
            return [f"{field.name}.{MARK}.0:{MARK}*", f"{field.name}.{MARK}:>7", f"{field.name}.{MARK}:<=7"]


@pytest.mark.parametrize("of", NOUNS)
async def test_every_field_has_its_condition_and_no_value_stands_in_a_statement(of: Noun) -> None:
    for field in fields_of(of).values():
        for clause in clauses(field):
            for text in (clause, f"-{clause}"):
                made = await made_of(text, of)
                conditions = [each.as_string(None) for each in (*made.narrow, *made.look)]
                narrows = any((made.versions is not None, made.label, made.is_nothing, of == "dead_letters"))
                assert conditions or narrows, text
                for name in STATEMENTS[of]:
                    statement = made.statement(name).as_string(None)
                    asked = set(re.findall(r"%\((\w+)\)s", statement))
                    assert asked <= made.given().keys() | OWN, text
                    sent.append(statement)
    assert not [
        statement for statement in sent if MARK.lower() in statement.lower() or re.search(r"[{}]|%(?!\()", statement)
    ]


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("", "walk"),
        ("status:failed workflow:a", "ended badly"),
        ("is:open", "open"),
        ("waits:person", "open"),
        ("status:failed,running workflow:a", "versions"),
        ("workflow:a error:x", "versions"),
        ("-workflow:a", "walk"),
        ("queue:slow", "versions"),
        ("run:019b0000-0000-7000-8000-000000000000 is:open workflow:a", "ids"),
        ("label.customer:acme,b workflow:a error:x", "label"),
        ("label.customer:acme started:>-1h", "label"),
        ("-label.customer:acme label.region:eu", "label"),
        ("label.customer:acme is:open", "open"),
        ("label.customer:acme status:failed", "ended badly"),
        ("run:019b0000-0000-7000-8000-000000000000 label.customer:acme", "ids"),
        ("label.customer:* workflow:a", "versions"),
        ("label.customer:ac*", "walk"),
        ("-label.customer:acme", "walk"),
    ],
)
async def test_what_finds_fewest_is_walked(text: str, index: str) -> None:
    made = await made_of(text)
    narrow = " ".join(each.as_string(None) for each in made.narrow)
    found = {
        "ids": "r.run_id = ANY" in narrow,
        "open": "'needs_attention')" in narrow,
        "ended badly": "'compensation_failed')" in narrow,
        "label": made.label is not None,
        "versions": made.versions is not None,
        "walk": not made.narrow and made.versions is None,
    }
    assert next(name for name, is_so in found.items() if is_so) == index


async def test_a_label_that_is_walked_is_not_looked_at_and_any_other_is() -> None:
    made = await made_of("label.a:x label.b:y")
    assert (made.given()["label"], made.given()["values"], len(made.look)) == ("a", ["x"], 1)
    made = await made_of(r"label.a:\*,\*,x took:>1h")
    assert (made.given()["values"], len(made.look), made.looks) == (["*", "x"], 1, filter_sql.LOOKS_CHEAP)
    made = await made_of("label.a:* took:>1h")
    assert (made.label, made.looks) == (None, filter_sql.LOOKS_DEAR)


async def test_on_the_way_along_a_label_only_ids_are_asked_of_runs() -> None:
    """What stands there is a label, which has no other column of a run."""
    made = await made_of("label.a:x started:>-2h started:<now")
    made.only([UUID("019b0000-0000-7000-8000-000000000000")])
    columns = re.findall(r"r\.(\w+)", " ".join(each.as_string(None) for each in made.narrow))
    assert set(columns) == {"run_id"}
    assert {"created_at"} == set(re.findall(r"r\.(\w+)", " ".join(each.as_string(None) for each in made.look)))


async def test_what_cannot_be_is_not_searched_for() -> None:
    for text in ("is:open is:ended", "status:failed waits:person", "parent:019b0000-0000-7000-8000-000000000000"):
        assert (await made_of(text)).is_nothing, text
