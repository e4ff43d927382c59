"""The feed of all runs: what a reader that was cut off is told."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from api import feed
from api.feed import Gap, Here, RunFeed
from api.schemas.run import RunSummary
from headrace.machine import RunStatus
from state.queries.run import PositionRow


def summary(number: int) -> RunSummary:
    return RunSummary(f"run {number}", "orders", RunStatus.RUNNING, number, {})


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[RunFeed]:
    made = RunFeed(SimpleNamespace(), SimpleNamespace(), "default")  # type: ignore[arg-type]  # nobody looks

    async def look_on(self: RunFeed) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(RunFeed, "_look_on", look_on)
    yield made
    await made.close()


def versions(heard: Any) -> list[int]:
    """Of the runs of one look."""
    return [change.run.row_version for change in heard]


async def told(one: RunFeed, after: str = "", count: int = 1) -> list[Any]:
    source = one.listen(after)
    found = [await anext(source) for _ in range(count)]
    await source.aclose()
    return found


async def test_what_was_missed_is_told_again_in_order(one: RunFeed) -> None:
    (here,) = await told(one)
    assert isinstance(here, Here)
    one._tell([summary(number) for number in range(1, 6)])
    _, missed = await told(one, here.id, 2)
    assert versions(missed) == [1, 2, 3, 4, 5]
    assert await told(one, missed[2].id, 2) == [Here(missed[2].id), missed[3:]]
    assert (await told(one, missed[-1].id))[0] == Here(missed[-1].id)


async def test_the_changes_of_a_look_come_together(one: RunFeed) -> None:
    source = one.listen()
    await anext(source)
    one._tell([])
    one._tell([summary(1), summary(2)])
    one._tell([summary(3)])
    looks = [await anext(source) for _ in range(2)]
    assert [versions(look) for look in looks] == [[1, 2], [3]]
    await source.aclose()


async def test_a_slow_reader_is_told_to_read_again(one: RunFeed) -> None:
    source = one.listen()
    await anext(source)
    for number in range(feed.BACKLOG_MAX + 2):
        one._tell([summary(number)])
    gap, behind = await anext(source), await anext(source)
    assert isinstance(gap, Gap)
    assert versions(behind) == [feed.BACKLOG_MAX + 1]
    await source.aclose()


async def test_a_reader_of_what_is_forgotten_reads_again(one: RunFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    (here,) = await told(one)
    one._tell([summary(number) for number in range(feed.REMEMBERED + 1)])
    (gap,) = await told(one, here.id)
    assert isinstance(gap, Gap)
    assert isinstance((await told(one, gap.id))[0], Here)
    for odd in ("x", "-", "-1", f"{here.id}0", "other-1", "-".join(here.id.split("-")[:1]) + "-99999999999999999999"):
        assert isinstance((await told(one, odd))[0], Gap), odd


async def test_a_change_between_two_looks_at_the_list_comes_once(one: RunFeed) -> None:
    source = one.listen()
    assert isinstance(await anext(source), Here)
    one._tell([summary(1)])
    assert versions(await anext(source)) == [1]
    assert await anext(source) is None
    await source.aclose()


# == looking ===========================================================================================================
class Runs:
    """Stands for the database: runs by their number, a row version each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.versions: dict[int, int] = {}
        self.over: set[int] = set()
        self.counted: list[int] = []
        monkeypatch.setattr(feed, "list_positions", self.list_positions)
        monkeypatch.setattr(feed, "count_tasks", self.count_tasks)
        monkeypatch.setattr(feed, "load_plans", self.load_plans)
        monkeypatch.setattr(feed, "full_counts", lambda plan, counts: counts)
        monkeypatch.setattr(feed, "id_at", lambda seconds: UUID(int=2**127))  # all began long ago

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None]:
        yield None

    async def list_positions(self, *_: Any, run_ids: Any, **__: Any) -> list[PositionRow]:
        wanted = {number for number in self.versions if number not in self.over} | {id_.int for id_ in run_ids}
        return [
            PositionRow(UUID(int=n), "completed" if n in self.over else "running", self.versions[n], 1, "orders")
            for n in wanted
        ]

    async def count_tasks(self, _: Any, run_ids: list[UUID]) -> list[Any]:
        self.counted.append(len(run_ids))
        return []

    async def load_plans(self, *_: Any) -> dict[int, Any]:
        return {1: None}


async def test_a_flood_is_told_in_parts_and_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs(monkeypatch)
    flood = range(2 * feed.CHANGES_MAX + 10)
    one = RunFeed(runs, SimpleNamespace(), "default")  # type: ignore[arg-type]
    runs.versions[10**6] = 1
    assert await one.look() == [], "how all stood before is no news"
    runs.versions |= dict.fromkeys(flood, 1)
    first = await one.look()
    runs.over |= set(flood)
    runs.versions |= dict.fromkeys(flood, 2)
    later = [await one.look() for _ in range(4)]
    assert len(first) == max(runs.counted) == feed.CHANGES_MAX
    ended = {run.run_id for look in later for run in look if run.status is RunStatus.COMPLETED}
    assert ended >= {str(UUID(int=number)) for number in flood}, "also of those that ended before they were told"
    assert later[-1] == []
