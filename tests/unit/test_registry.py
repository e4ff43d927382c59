"""How functions become bodies, and how a body gets its arguments."""

import asyncio
import datetime
from typing import Any

import msgspec
import pydantic
import pytest

from headrace import registry as registry_module
from headrace.attempt import Attempt
from headrace.context import Context, current
from headrace.errors import ConfigurationError, PayloadError
from headrace.messages import Command
from headrace.registry import Registry

CONTEXT = Context(Attempt(b"run", Command(0, "t", "body", 1, 1, "n")))


def call(function: Any, input: object) -> Any:
    registry = Registry()
    registry.task("body")(function)
    body = registry.prepare()["body"]
    args, kwargs = body.bind(CONTEXT, msgspec.json.encode(input))
    result = body.function(*args, **kwargs)
    return asyncio.run(result) if body.is_async else result


class Order(pydantic.BaseModel):
    id: int
    on: datetime.date


def test_a_function_stays_what_it_was() -> None:
    registry = Registry()

    @registry.task("payments.charge")
    def charge(total: int) -> int:
        return total + 1

    @registry.task
    async def ship() -> str:
        return "shipped"

    assert charge(1) == 2
    assert asyncio.run(ship()) == "shipped"
    assert list(registry) == ["payments.charge", "ship"]
    assert not registry["payments.charge"].is_async
    assert registry["ship"].is_async


def test_arguments_are_matched_by_name_and_validated() -> None:
    def body(ctx: Context, order: Order, count: int = 3, *, note: str = "-") -> Any:
        return ctx is CONTEXT, order, count, note

    order = {"id": "7", "on": "2026-01-02", "extra": 1}
    expected = Order(id=7, on=datetime.date(2026, 1, 2))
    assert call(body, {"order": order, "unknown": 1}) == (True, expected, 3, "-")
    assert call(body, {"order": order, "count": 4, "note": "n"}) == (True, expected, 4, "n")


def test_input_is_the_whole_value_and_a_context_is_known_by_its_annotation() -> None:
    async def whole(input: list[int], attempt: Context) -> Any:
        return input, attempt is CONTEXT

    assert call(whole, [1, 2]) == ([1, 2], True)

    def both(input: Any, a: int) -> Any:
        return input, a

    assert call(both, {"a": 1, "b": 2}) == ({"a": 1, "b": 2}, 1)


def test_odd_parameters_are_bound_like_others() -> None:
    def body(a: int, b: int = 2, /, *, model_config: int = 0, json: Any = None) -> Any:
        return a, b, model_config, json

    assert call(body, {"a": 1}) == (1, 2, 0, None)
    assert call(body, {"a": 1, "b": 5, "model_config": 6, "json": {}}) == (1, 5, 6, {})

    class Callable:
        async def __call__(self, x: int) -> int:
            return x

    assert call(Callable(), {"x": 1}) == 1


@pytest.mark.parametrize("input", [{}, {"a": "x"}, {"a": None}, [], "text", None, 7])
def test_an_input_that_does_not_fit_is_bad_input(input: object) -> None:
    def body(a: int) -> None: ...

    with pytest.raises(PayloadError) as caught:
        call(body, input)
    assert caught.value.reason == "BAD_INPUT"


def test_a_validator_that_raises_anything_is_bad_input() -> None:
    class Picky(pydantic.BaseModel):
        a: int

        @pydantic.field_validator("a")
        @classmethod
        def _check(cls, value: int) -> int:
            raise KeyError(value)

    def body(input: Picky) -> None: ...

    with pytest.raises(PayloadError, match="KeyError"):
        call(body, {"a": 1})


def test_names_are_unique_and_well_formed() -> None:
    registry = Registry()
    registry.task("a.b-c_1")(lambda: None)
    with pytest.raises(ConfigurationError, match="two functions"):
        registry.task("a.b-c_1")(lambda: None)
    for name in ["", "1a", "a b", "a/b", "ä", "a" * 101]:
        with pytest.raises(ConfigurationError):
            registry.task(name)(lambda: None)
    with pytest.raises(ConfigurationError, match="queue"):
        registry.task("b", queue="No")(lambda: None)


def test_annotations_that_cannot_be_used_are_found_at_start() -> None:
    class Odd:
        pass

    def unknown(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821

    def odd(a: Odd) -> None: ...

    def odd_result() -> Odd:
        return Odd()

    def many(*values: int) -> None: ...

    for function in (unknown, odd, odd_result, many):
        registry = Registry()
        registry.task("body")(function)
        with pytest.raises(ConfigurationError, match="body"):
            registry.prepare()


def test_annotations_may_name_what_comes_later() -> None:
    def body(a: "Later") -> Any:
        return a

    assert call(body, {"a": {"x": 1}}) == Later(x=1)


class Later(pydantic.BaseModel):
    x: int


def test_queues_are_those_that_bodies_name() -> None:
    registry = Registry()
    assert registry.queues() == ("default",)
    registry.task("a", queue="io")(lambda: None)
    assert registry.queues() == ("io",)
    registry.task("b")(lambda: None)
    assert registry.queues() == ("default", "io")


def test_the_module_has_a_registry_of_its_own() -> None:
    assert registry_module.task.__self__ is registry_module.default  # type: ignore[attr-defined]


def test_current_is_refused_outside_of_a_body() -> None:
    with pytest.raises(ConfigurationError):
        current()
