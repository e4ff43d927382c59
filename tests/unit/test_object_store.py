"""Large results stand apart from the messages, and come back as they were."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from headrace import payload
from headrace.attempt import Answer, Attempt
from headrace.errors import ConfigurationError, MissingObjectError, PayloadError
from headrace.graph import from_data
from headrace.machine import compile_plan
from headrace.messages import PAYLOAD_BYTES_MAX, Command, Failed, Succeeded
from headrace.object_store import OBJECT_BYTES_MAX, ObjectStore, references
from headrace.registry import Registry
from headrace.worker.execution import Execution

RUN = "0190a5b0-0000-7000-8000-000000000001"
OTHER_RUN = "0190a5b0-0000-7000-8000-000000000002"
LARGE = "x" * 100_000
FORGED = {"$object": {"sha256": "0" * 64, "bytes": 1}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
def store(folder: Path) -> ObjectStore:
    return ObjectStore(folder.as_uri(), above=50_000)


def kept(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


# == the store =========================================================================================================
def test_a_value_comes_back_wherever_its_reference_stands(store: ObjectStore) -> None:
    first, second = (json.dumps({"n": n, "text": LARGE}).encode() for n in (1, 2))
    raw = b'{"a":%b,"b":[%b,7]}' % (store.put(RUN, first), store.put(RUN, second))
    assert len(raw) < 300
    assert [reference.size for reference in references(raw)] == [len(first), len(second)]
    assert store.fill(RUN, raw) == b'{"a":%b,"b":[%b,7]}' % (first, second)


def test_what_has_no_reference_stays_as_it_is(store: ObjectStore) -> None:
    text = json.dumps({"text": '{"$object":{"sha256":"' + "0" * 64 + '","bytes":1}}'}).encode()
    assert store.fill(RUN, text) == text


def test_the_same_value_is_kept_once(store: ObjectStore, folder: Path) -> None:
    assert store.put(RUN, b"[1]") == store.put(RUN, b"[1]")
    assert len(kept(folder)) == 1


def test_a_reference_means_nothing_in_another_run(store: ObjectStore) -> None:
    raw = store.put(RUN, b"[1]")
    with pytest.raises(MissingObjectError):
        store.fill(OTHER_RUN, raw)


def test_an_object_that_was_changed_is_not_given(store: ObjectStore, folder: Path) -> None:
    raw = store.put(RUN, b"[1]")
    kept(folder)[0].write_bytes(b"[2]")
    with pytest.raises(MissingObjectError, match="was changed"):
        store.fill(RUN, raw)


def test_an_input_is_bounded_with_what_it_refers_to(store: ObjectStore) -> None:
    raw = b'{"$object":{"sha256":"%b","bytes":%d}}' % (b"0" * 64, OBJECT_BYTES_MAX // 2 + 1)
    with pytest.raises(PayloadError, match="are allowed"):
        store.fill(RUN, b"[%b,%b]" % (raw, raw))


def test_pages_name_all_and_what_is_removed_is_gone(store: ObjectStore) -> None:
    for run_id, value in ((RUN, b"[1]"), (RUN, b"[2]"), (OTHER_RUN, b"[1]")):
        store.put(run_id, value)
    (page,) = store.pages()
    assert {run_id: len(paths) for run_id, paths in page.items()} == {RUN: 2, OTHER_RUN: 1}
    store.remove(page[RUN])
    store.remove(page[RUN])
    assert [list(page) for page in store.pages()] == [[OTHER_RUN]]


@pytest.mark.parametrize("url", ["nowhere", "ftp://x/y", "s3:"])
def test_a_url_of_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HEADRACE_OBJECTS"):
        ObjectStore(url)


def test_a_bucket_needs_no_more_than_its_url() -> None:
    assert ObjectStore("s3://bucket/prefix").above > 0


# == callers ===========================================================================================================
@pytest.mark.parametrize(
    "text",
    [
        json.dumps(FORGED),
        json.dumps({"deep": [FORGED]}, indent=2),
        json.dumps(FORGED).replace("$", "\\u0024"),
        json.dumps(FORGED).replace("object", "\\u006fbject"),
    ],
)
def test_a_caller_cannot_forge_a_reference(text: str) -> None:
    with pytest.raises(PayloadError, match="use another key") as refused:
        payload.check(text.encode())
    assert refused.value.reason == "BAD_INPUT"
    payload.check(text.encode(), may_refer=True)


@pytest.mark.parametrize("value", [{"$object": 1}, {"$object": {"bytes": 1}}, "$object", {"a": "\u00e9"}])
def test_what_only_looks_a_little_like_one_is_data(value: Any) -> None:
    payload.check(json.dumps(value).encode())


# == the worker ========================================================================================================
def carry_out(
    function: Callable[..., Any], objects: ObjectStore | None, *, input: bytes = b"{}", inline: bool = False
) -> Answer:
    registry = Registry()
    registry.task("b")(function)
    attempt = Attempt(RUN.encode(), Command(0, "b", "b", 1, 1, "n", Raw(input), inline=inline))
    attempt.body = registry.prepare(OBJECT_BYTES_MAX if objects else PAYLOAD_BYTES_MAX)["b"]
    execution = Execution("w", lambda: "s", None, objects)
    return asyncio.run(execution.attend(attempt)) if attempt.body.is_async else execution.attend_in_thread(attempt)


def sync_and_async(value: Any) -> list[Callable[..., Any]]:
    def body() -> Any:
        return value

    async def async_body() -> Any:
        return value

    return [body, async_body]


def test_a_large_result_leaves_as_a_reference_and_reaches_the_next_body_whole(store: ObjectStore) -> None:
    for body in sync_and_async({"text": LARGE * 20}):
        answer = carry_out(body, store)
        assert isinstance(answer, Succeeded)
        assert len(bytes(answer.output)) < 150

        def length(doc: dict[str, str]) -> int:
            return len(doc["text"])

        async def async_length(doc: dict[str, str]) -> int:
            return len(doc["text"])

        for following in (length, async_length):
            told = carry_out(following, store, input=b'{"doc":%b}' % bytes(answer.output))
            assert isinstance(told, Succeeded)
            assert bytes(told.output) == b"2000000"


def test_a_small_result_and_one_that_is_looked_into_travel_as_they_are(store: ObjectStore, folder: Path) -> None:
    for value, inline in (("x" * 49_000, False), (LARGE, True)):
        for body in sync_and_async(value):
            answer = carry_out(body, store, inline=inline)
            assert isinstance(answer, Succeeded)
            assert json.loads(bytes(answer.output)) == value
    assert kept(folder) == []


def test_a_result_that_nothing_can_carry_is_refused_for_good(store: ObjectStore) -> None:
    for objects, inline, why in ((None, False, "more than 900000"), (store, True, "let it name the whole output")):
        for body in sync_and_async(["x" * 900_000, 1]):
            answer = carry_out(body, objects, inline=inline)
            assert isinstance(answer, Failed)
            assert (answer.error.code, answer.error.retryable) == ("RESULT_TOO_LARGE", False)
            assert why in answer.error.message


def test_a_body_cannot_forge_a_reference(store: ObjectStore) -> None:
    for objects in (store, None):
        for body in sync_and_async({"doc": FORGED}):
            answer = carry_out(body, objects)
            assert isinstance(answer, Failed)
            assert answer.error.code == "BAD_RESULT"


def test_a_worker_without_a_store_says_that_it_needs_one(store: ObjectStore) -> None:
    input = b'{"doc":%b}' % store.put(RUN, b"[1]")
    for body in sync_and_async(1):
        answer = carry_out(body, None, input=input)
        assert isinstance(answer, Failed)
        assert "HEADRACE_OBJECTS" in answer.error.message


def test_an_object_that_is_gone_fails_the_attempt_and_may_be_tried_again(store: ObjectStore, folder: Path) -> None:
    input = b'{"doc":%b}' % store.put(RUN, b"[1]")
    kept(folder)[0].unlink()
    answer = carry_out(sync_and_async(1)[0], store, input=input)
    assert isinstance(answer, Failed)
    assert answer.error.retryable


# == the plan ==========================================================================================================
def test_a_task_that_is_looked_into_is_told_from_one_that_is_handed_on() -> None:
    plan = compile_plan(
        from_data({
            "name": "w",
            "tasks": {
                "whole": {"run": "t.a"},
                "nested": {"run": "t.a"},
                "part": {"run": "t.a"},
                "text": {"run": "t.a"},
                "asked": {"run": "t.a"},
                "timed": {"run": "t.a"},
                "end": {
                    "run": "t.b",
                    "needs": ["whole", "nested", "part", "text", "asked", "timed"],
                    "if": "tasks.asked.output == 1",
                    "with": {
                        "a": "${{ tasks.whole.output }}",
                        "b": {"c": ["${{ tasks.nested.output }}"]},
                        "d": "${{ tasks.part.output.total }}",
                        "e": "it is ${{ tasks.text.output }}",
                    },
                },
                "pause": {"wait": {"for": "${{ tasks.timed.output }}"}, "needs": ["timed"]},
            },
        })
    )  # fmt: skip
    assert {task.name for task in plan.tasks if task.is_read} == {"part", "text", "asked", "timed"}
    assert {"whole", "nested"} <= {task.name for task in plan.tasks if task.is_referenced}
