"""The filter language: its text, what is wrong with one, and what its values stand for."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import FilterError
from headrace.filter import Bounds, Clause, Comparison, Filter, bounds, escape, has_wildcard, like, literal, parse
from headrace.filter_field import NOUNS, Kind, fields_of, find_field

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
LONG = (
    "status:failed,paused workflow:orders started:>2026-11-01T00:00Z input.customer.Id:acme"
    ' -queue:slow error:"time out"'
)


def test_a_filter_is_its_clauses():
    assert parse("runs", LONG).clauses == (
        Clause("status", ("failed", "paused")),
        Clause("workflow", ("orders",)),
        Clause("started", ("2026-11-01T00:00Z",), ">"),
        Clause("input.customer.Id", ("acme",)),
        Clause("queue", ("slow",), is_negated=True),
        Clause("error", ("time out",)),
    )


def test_its_text_is_always_the_same():
    text = str(parse("runs", LONG))
    assert text == LONG
    untidy = '  STATUS:failed,"paused"   workflow:"orders" workflow:orders '
    assert str(parse("runs", untidy)) == "status:failed,paused workflow:orders"
    assert str(parse("runs", "")) == str(parse("runs", " \n")) == ""


values = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)


@given(st.lists(st.tuples(st.booleans(), st.lists(values, min_size=1, max_size=4)), max_size=5))
def test_any_text_can_be_a_value_and_comes_back(clauses):
    made = Filter(
        "runs", tuple(dict.fromkeys(Clause("workflow", tuple(map(escape, each)), "", no) for no, each in clauses))
    )
    again = parse("runs", str(made))
    assert again == made
    read = [[literal(value) for value in clause.values] for clause in again.clauses]
    assert read == [[literal(value) for value in clause.values] for clause in made.clauses]
    assert not any(has_wildcard(value) for clause in again.clauses for value in clause.values)


@given(st.text(max_size=80), st.sampled_from(NOUNS))
def test_whatever_is_typed_is_read_or_refused_with_its_places(text, of):
    faults = []
    try:
        found = parse(of, text)
    except FilterError as error:
        faults = error.faults
    else:
        assert parse(of, str(found)) == found
    places = [fault.path.partition(":") for fault in faults]
    assert all(place == "filter" and 1 <= int(column) <= len(text) + 1 for place, _, column in places)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("stats:failed", "column 1 of the filter: runs have no field 'stats'; did you mean status?"),
        ("  workflow:a -statuss:failed", "column 14 of the filter: runs have no field 'statuss'; did you mean status?"),
        ("status:fialed", "column 1 of the filter: status: 'fialed' is none; did you mean failed?"),
        ("status:>failed", "column 1 of the filter: status cannot be compared with >"),
        ("version:>1,2", "column 1 of the filter: > takes one value"),
        ("version:one", "column 1 of the filter: version: 'one' is no whole number"),
        ('error:"time', "column 7 of the filter: the quotes that open here are not closed"),
        ("status:", 'column 8 of the filter: a value is missing; an empty one is ""'),
        ("status:failed,", 'column 15 of the filter: a value is missing; an empty one is ""'),
        ('status:"failed"x', "column 16 of the filter: a space, or a comma and another value, must stand before 'x'"),
        ("status", "column 1 of the filter: 'status' says no field; write status:…"),
        ("started:2h", "so long ago is -2h"),
        ("started:>yesterday", "'yesterday' is no instant"),
        ("input:acme", "input is asked by a path, such as input.customer.id"),
        ("label:acme", "label: they are asked by name; labels have names such as label.customer"),
        ("label.Customer:acme", "label: 'Customer' names none; labels have names such as label.customer"),
        (f"label.{'a' * 64}:x", "names none"),
        ("label.customer:>7", "label cannot be compared with >"),
        ("status.a:failed", "runs have no field 'status.a'; did you mean status?"),
        ("input.amount:>many", "'many' is no number, and only numbers are compared"),
        ("run:7", "'7' is no id"),
        ("key:a*", "it takes no *"),
        ("error:a\\", "a backslash stands before what it is meant for"),
        ("x:1 y:2", "(and 1 more)"),
    ],
)
def test_what_is_wrong_is_said_with_its_column_and_what_was_meant(text, said):
    with pytest.raises(FilterError) as caught:
        parse("runs", text)
    assert said in caught.value.message


def test_every_fault_is_said_at_once():
    with pytest.raises(FilterError) as caught:
        parse("runs", 'stats:failed version:x "a')
    assert [fault.path for fault in caught.value.faults] == ["filter:1", "filter:14", "filter:24"]


def test_a_label_is_asked_by_its_name_dots_and_all():
    text = 'label.customer.id:acme,"b c" -label.region:eu* label.a.-_:*'
    assert str(parse("runs", text)) == text
    assert [clause.field for clause in parse("tasks", text).clauses] == [
        "label.customer.id",
        "label.region",
        "label.a.-_",
    ]


def test_a_filter_has_an_end():
    for text in (
        "workflow:" + "a" * 4_000,
        " ".join(f"-workflow:a{n}" for n in range(31)),
        "version:" + "1," * 100 + "1",
    ):
        with pytest.raises(FilterError):
            parse("runs", text)


@pytest.mark.parametrize(
    ("value", "pattern"),
    [("a", "a"), ("a*", "a%"), ("50%_", r"50\%\_"), (r"a\*b", "a*b"), (r"a\\b", r"a\\b"), ("*", "%")],
)
def test_a_star_is_any_text_and_everything_else_itself(value, pattern):
    assert like(value) == pattern


def at(value, comparison: Comparison = ""):
    field = find_field("runs", "started")
    assert field is not None
    return bounds(field, comparison, value, NOW)


def test_an_instant_is_as_long_as_it_is_written():
    day, minute = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 1, 9, 30, tzinfo=UTC)
    assert at("2026-11-01") == Bounds(day, day + timedelta(days=1))
    assert at("2026-11-01T09:30Z") == Bounds(minute, minute + timedelta(minutes=1))
    assert at("2026-11-01T10:30+01:00", ">") == Bounds(minute + timedelta(minutes=1), None)
    assert at("2026-11-01", "<=") == Bounds(None, day + timedelta(days=1))
    assert at("-2h", ">=") == Bounds(NOW - timedelta(hours=2), None)
    assert at("now", "<") == Bounds(None, NOW)


def test_numbers_and_lengths_are_ranges():
    version, took = find_field("runs", "version"), find_field("runs", "took")
    assert version
    assert took
    assert bounds(version, "", "3", NOW) == Bounds(3, 4)
    assert bounds(version, ">", "3", NOW) == Bounds(4, None)
    assert bounds(took, "<", "1m30s", NOW) == Bounds(None, 90_000_000)


def test_a_clause_is_added_as_text_that_means_itself():
    found = parse("runs", "status:failed").and_("workflow", "a*b c")
    assert str(found) == r'status:failed workflow:"a\*b c"'
    assert parse("dead_letters", "").and_("status", "parked").named("status")
    with pytest.raises(FilterError):
        parse("runs", "").and_("status", "nope")


def test_every_field_says_what_it_is():
    for of in NOUNS:
        for name, field in fields_of(of).items():
            assert name == field.name
            assert field.about
            assert bool(field.choices) == (field.kind is Kind.CHOICE)


def test_ages_become_the_instants_that_they_mean():
    found = parse("runs", "workflow:a started:>-2h ended:2026-11-01 updated:<=now -took:>5m").at(NOW)
    assert str(found) == (
        "workflow:a started:>2026-11-30T10:00:00Z ended:2026-11-01 updated:<=2026-11-30T12:00:00Z -took:>5m"
    )
    assert parse("runs", str(found)) == found.at(NOW + timedelta(days=1))
