"""Where each named statement is found by its model, and what the models share."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import psycopg

from state.sql import load
from tests.simulation.postgres import Must, Row, Transaction

Model = Callable[..., list[tuple[Any, ...]]]


MODELS: Final[dict[str, Model]] = {}
"""Name -> model."""


OPEN_RUN: Final = ("running", "waiting", "pausing", "paused", "cancelling", "compensating")


RUN_ENDS: Final = ("completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed")


PAUSED: Final = ("pausing", "paused")


def model(function: Model) -> Model:
    MODELS[function.__name__.rstrip("_")] = function
    return function


def must(ok: bool, why: str) -> None:
    if not ok:
        raise Must(why)


def refuse(ok: bool, constraint: str) -> None:
    if not ok:
        raise psycopg.errors.CheckViolation(f"violates {constraint}")


def unique(transaction: Transaction, table: str, key: tuple[Any, ...]) -> None:
    if transaction.get(table, *key) is not None:
        raise psycopg.errors.UniqueViolation(f"{table} {key} exists")


def given(name: str, columns: list[list[Any]]) -> Iterator[Row]:
    """The rows of a set-based statement, by the names of its columns."""
    names = [column for column, _ in load("batch")[name].columns]
    for values in zip(*columns, strict=True):
        yield dict(zip(names, values, strict=True))


def text(raw: Any) -> Any:
    return raw.decode() if isinstance(raw, bytes) else raw


def claimable(t: Transaction, table: str, wanted: Callable[[Row], bool], most: int) -> list[tuple[Any, Row]]:
    return [(key, row) for key, row in t.rows(table) if wanted(row) and t.is_free(table, key)][:most]


def find_nothing(t: Transaction, *_: Any, **__: Any) -> list[tuple[Any, ...]]:
    return []
