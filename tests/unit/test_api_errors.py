"""How errors become problem details, and how bodies, ids and tokens are read; without a database."""

from datetime import UTC, datetime
from uuid import UUID

import msgspec
import pytest
from psycopg import errors as pg
from psycopg_pool import PoolTimeout

from api.bodies import canonical, check_payload, decode
from api.database import Database
from api.errors import FaultyRequest, Refusal, respond
from api.identity import parse_id, parse_run_id_given, parse_task_id
from api.paging import ByInstant, ByInt, cut, parse, token
from api.schemas.problem import Problem
from api.schemas.run import StartBody
from api.settings import ApiSettings, is_loopback
from headrace import errors


def every_error(kind=errors.HeadraceError):
    yield kind
    for narrower in kind.__subclasses__():
        if narrower.__module__ == "headrace.errors":
            yield from every_error(narrower)


@pytest.mark.parametrize("kind", list(every_error()), ids=lambda kind: kind.__name__)
def test_every_error_has_an_answer_with_its_code(kind):
    odd = {errors.DefinitionError: [errors.Fault("tasks.a", "wrong", 3)], errors.RetryAfter: 1.0}
    error = kind(odd.get(kind, "what happened"))
    response = respond(error, "req-1")
    problem = msgspec.json.decode(response.body, type=Problem)
    assert response.media_type == "application/problem+json"
    assert (problem.code, problem.status, problem.request_id) == (kind.code, response.status_code, "req-1")
    assert ("retry-after" in response.headers) == (response.status_code == 503)
    if response.status_code == 500:
        assert "what happened" not in problem.detail


def test_expected_errors_have_the_status_of_what_the_caller_does_next():
    expected = {
        "DefinitionError": 422,
        "NotFoundError": 404,
        "ConflictError": 409,
        "UnavailableError": 503,
        "PayloadError": 422,
        "KeyReusedError": 422,
    }
    for name, status in expected.items():
        error = errors.DefinitionError([]) if name == "DefinitionError" else getattr(errors, name)("x")
        assert respond(error, "").status_code == status


def test_a_refusal_keeps_its_status_and_headers():
    response = respond(Refusal(429, "full", code="HR-1007", headers={"Retry-After": "2"}), "")
    assert (response.status_code, response.headers["retry-after"]) == (429, "2")


def test_faults_of_a_definition_keep_path_and_line():
    response = respond(errors.DefinitionError([errors.Fault("tasks.a.needs[0]", "there is no task b", 4)]), "")
    (fault,) = msgspec.json.decode(response.body)["errors"]
    assert fault == {"path": "tasks.a.needs[0]", "message": "there is no task b", "line": 4}


@pytest.mark.parametrize(
    ("content", "path"),
    [
        (b'{"version": "a"}', "version"),
        (b'{"key": 1}', "key"),
        (b"[]", ""),
        (b"{", ""),
        (b"\xff", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_a_wrong_body_names_the_path(content, path):
    with pytest.raises(FaultyRequest) as caught:
        decode(content, StartBody)
    assert caught.value.faults[0].path == path


def test_user_data_keeps_its_bytes_and_is_refused_with_its_path():
    given = decode(b'{"input": {"b": 1.0,  "a": 1e2}}', StartBody)
    assert isinstance(given.input, msgspec.Raw)
    assert check_payload(given.input, "input") == b'{"b": 1.0,  "a": 1e2}'
    for raw, path in ((b'{"a": [1, "\\u0000"]}', "input.a[1]"), (b'["\\u0000"]', "input[0]"), (b'"\\u0000"', "input")):
        with pytest.raises(FaultyRequest) as caught:
            check_payload(msgspec.Raw(raw), "input")
        assert caught.value.faults[0].path == path


def test_canonical_bodies_differ_only_where_their_content_does():
    assert canonical(b'{"a": 1, "b": {"y": 1, "x": 2}}') == canonical(b'{"b":{"x":2,"y":1},"a":1}')
    assert canonical(b'{"a": 1}') != canonical(b'{"a": 1.0}')
    assert canonical(b"name: x") == b"name: x"


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 32, "{" + "0" * 36 + "}", "01890000-0000-7000-8000-00000000000g", "é" * 36]
)
def test_what_is_no_id_is_not_found(text):
    with pytest.raises(errors.NotFoundError):
        parse_id(text, "run")
    with pytest.raises(errors.NotFoundError):
        parse_task_id(f"{text}.a")


def test_ids_make_the_round_trip():
    run_id = "01890000-0000-7000-8000-000000000001"
    assert str(parse_id(run_id.upper(), "run")) == run_id
    assert parse_task_id(f"{run_id}.a-b_c") == (UUID(run_id), "a-b_c")
    assert parse_run_id_given(run_id.upper()) == run_id
    with pytest.raises(FaultyRequest):
        parse_run_id_given("01890000-0000-4000-8000-000000000001")


def test_page_tokens_make_the_round_trip_and_fit_one_kind_of_list():
    key = (datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC), UUID(int=7))
    assert parse(token(*key), ByInstant) == key
    for wrong in (token(1), token("x"), token(), "x", "é", "===", token(-2), token(2**40), token(True)):
        with pytest.raises(FaultyRequest):
            parse(wrong, ByInt if wrong != token(1) else ByInstant)


def test_a_page_has_a_next_one_exactly_when_more_was_found():
    assert cut([1, 2], 2, lambda item: (item,)) == ([1, 2], None)
    items, following = cut([1, 2, 3], 2, lambda item: (item,))
    assert items == [1, 2]
    assert following is not None
    assert parse(following, ByInt) == (2,)


@pytest.mark.parametrize(
    ("host", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),  # noqa: S104  # nothing listens
        ("::", False),
        ("10.0.0.1", False),
        ("a.localhost", False),
        ("2130706433", False),
        ("", False),
    ],
)
def test_only_this_machine_is_loopback(host, local):
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (pg.AdminShutdown(), True),
        (pg.CannotConnectNow(), True),
        (pg.TooManyConnections(), True),
        (pg.ConnectionFailure(), True),
        (pg.OperationalError("connection refused"), True),
        (pg.InterfaceError("the connection is closed"), True),
        (pg.LockNotAvailable(), False),
        (pg.QueryCanceled(), False),
        (pg.DeadlockDetected(), False),
        (pg.SerializationFailure(), False),
        (pg.ReadOnlySqlTransaction(), False),
        (pg.UndefinedTable(), False),
        (PoolTimeout(), False),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_another_try_may_get_through_is_unavailable(error, away):
    database = Database(ApiSettings())
    assert isinstance(database._translate(error), errors.UnavailableError)
    assert database.is_away is away


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (pg.DiskFull(), "the disk of the database is full"),
        (pg.ReadOnlySqlTransaction(), "the database is a standby that takes no writes yet"),
        (pg.OutOfMemory(), "the database is busy with conflicting work"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_makes_the_database_unavailable_is_told_as_what_it_is(error, message):
    unavailable = Database(ApiSettings())._translate(error)
    assert unavailable is not None
    assert unavailable.message == message


@pytest.mark.parametrize(
    "error", [pg.UniqueViolation(), pg.SyntaxError(), pg.CheckViolation(), pg.ProgrammingError("x")]
)
async def test_a_bug_is_not_taken_for_an_outage(error):
    assert Database(ApiSettings())._translate(error) is None
