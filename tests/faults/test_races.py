"""F46: what people ask meets what happens to a run, in every order in which the two can come.

All that moves a run stands in one line, the partition of the run; so a race has as many outcomes as orders. Here each
is made to happen, with both in one transaction of the run agent, and in two: exactly one of them ends what it ends,
nothing is left behind (the doctor says so), and the run comes to an end.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from itertools import permutations
from typing import Any, NamedTuple

import msgspec
import pytest

from headrace.messages import Admitted, Due, Error, Event, Failed, Lost, Requested, Succeeded
from state.doctor import examine
from state.pools import grant_slots
from streams.children import Children
from tests.integration.desk import Desk, open_desk

Moves = tuple[str, Event] | None
OF_RUNS = {
    "statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "pools", "maps", "children", "approvals",
    "dead_letters", "timers", "orphan_timers", "orphan_approvals", "requests", "parked", "unparked",
}  # fmt: skip


class Race(Desk):
    """A desk at which two things are asked before either is applied."""

    # -- what may happen
    async def ask(self, run_id: str, path: str, body: Any) -> Moves:
        """A request of a person, stored and not applied; None when it was refused."""
        before = self._unapplied(run_id)
        response = await self.api.post(path, json=body, headers={"Headrace-Actor": "ada"})
        assert response.status_code in (200, 201, 202, 409), response.text
        new = [inbox_id for inbox_id in self._unapplied(run_id) if inbox_id not in before]
        return (run_id, Requested(new[0])) if new else None

    async def act(self, run_id: str, verb: str) -> Moves:
        match verb:
            case "skip":
                return await self.ask(run_id, f"/tasks/{run_id}.a/skip", {"output": 7})
            case "approve" | "reject":
                ((id_,),) = self.query("SELECT approval_id FROM approval WHERE run_id = %s", run_id)
                return await self.ask(run_id, f"/approvals/{id_}/{verb}", {})
            case "signal":
                return await self.ask(run_id, f"/runs/{run_id}/signals", {"name": "news"})
            case "priority":
                return await self.ask(run_id, f"/runs/{run_id}/priority", {"priority": 3})
            case "child":
                return run_id, Requested(self._unapplied(run_id)[0])
            case "undone":
                return run_id, self.succeeded(run_id, 200_000_000)
            case "not undone":
                return run_id, self.failed(run_id, 200_000_000)
            case "done":
                return run_id, self.succeeded(run_id)
            case "fails":
                return run_id, self.failed(run_id)
            case "lost":
                return run_id, Lost(*self.hand_out(run_id))
            case "admitted":
                return run_id, Admitted(*self.hand_out(run_id))
            case "time is over":
                return run_id, Due(*self.hand_out(run_id), "wait")
            case "deadline":
                nonce = self.hand_out(run_id, token=0)[2]
                return run_id, Due(0, 0, nonce, "deadline")
            case _:
                return await self.ask(run_id, f"/runs/{run_id}/{verb}", {"reason": "a race"})

    def succeeded(self, run_id: str, task: int = 0) -> Succeeded:
        return Succeeded(*self.hand_out(run_id, task), worker="host/1", output=msgspec.Raw(b'{"done":true}'))

    def failed(self, run_id: str, task: int = 0) -> Failed:
        error = Error("ERROR", "it broke", retryable=False)
        return Failed(*self.hand_out(run_id, task), error, worker="host/1")

    def _unapplied(self, run_id: str) -> list[str]:
        rows = self.query("SELECT inbox_id FROM inbox WHERE run_id = %s AND applied_at IS NULL ORDER BY 1", run_id)
        return [str(inbox_id) for (inbox_id,) in rows]

    # -- the way there, and on from there
    async def grant(self) -> list[tuple[str, int]]:
        """Give slots; answers who has one and does not know it."""
        async with self.connection() as connection, connection.transaction():
            await grant_slots(connection, 1_000)
        told = self.query("SELECT run_id, task FROM pool_waiter WHERE granted_at IS NOT NULL")
        return [(str(run_id), task) for run_id, task in told]

    async def go_on(self) -> None:
        """Let everything happen that is left, until every run has ended."""
        for _ in range(12):
            open_runs = self.query(OPEN)
            if not open_runs:
                return
            paused = [str(run_id) for run_id, status in open_runs if status in ("pausing", "paused")]
            resumed = [await self.act(run_id, "resume") for run_id in paused]
            granted = [(of, Admitted(*self.hand_out(of, task))) for of, task in await self.grant()]
            handed_out = self.query("SELECT run_id, task FROM task WHERE status IN ('queued', 'running')")
            done = [(str(run_id), self.succeeded(str(run_id), task)) for run_id, task in handed_out]
            asked = [await self.act(str(run_id), "approve") for (run_id,) in self.query(ASKED)]
            told = [await self.act(str(run_id), "signal") for (run_id,) in self.query(LISTENING)]
            await self.apply(*filter(None, [*resumed, *asked, *told]), *granted, *done)
            await self.apply_requests()
        raise AssertionError(f"nothing moves {self.query(OPEN)}")


async def _plain(race: Race, run_ids: Sequence[str]) -> None:
    pass


async def _granted(race: Race, run_ids: Sequence[str]) -> None:
    await race.grant()


async def _overdue(race: Race, run_ids: Sequence[str]) -> None:
    """Whatever is to be over is, and nobody has said so."""
    while race.query("SELECT FROM timer WHERE due_at >= now() LIMIT 1"):  # noqa: ASYNC110  # Postgres tells nobody
        await asyncio.sleep(0.02)


async def _child(race: Race, run_ids: Sequence[str]) -> None:
    """The children have ended, and their parents do not know it yet."""
    async with race.connection() as connection:
        while await Children(race.store, race.plans).start(connection):
            pass
    await race.apply_requests()
    children = [str(run_id) for (run_id,) in race.query("SELECT run_id FROM child_run")]
    await race.apply(*((child, race.succeeded(child)) for child in children))


async def _undoing(race: Race, run_ids: Sequence[str]) -> None:
    await race.apply(*((run_id, race.succeeded(run_id)) for run_id in run_ids))
    await race.apply(*((run_id, race.failed(run_id, 1)) for run_id in run_ids))


class Scene(NamedTuple):
    tasks: dict[str, Any]
    ends: dict[str, str]
    """What ends the run, and how."""
    others: tuple[str, ...] = ("pause", "priority")
    """What does not."""
    at_last: str = "completed"
    """How it ends when nothing of that came, or all of that was too late."""
    prepare: Callable[[Race, Sequence[str]], Awaitable[None]] = _plain


STOPS = {"cancel": "cancelled", "terminate": "terminated"}
BODY = {"run": "t.work", "retry": {"attempts": 1}}
SCENES = {
    "a body": Scene(
        {"a": BODY}, {"done": "completed", "fails": "failed", "skip": "completed", **STOPS}, ("pause", "lost")
    ),
    "a question": Scene(
        {"a": {"approval": {"title": "?"}}}, {"approve": "completed", "reject": "failed", **STOPS}
    ),
    "a signal": Scene(
        {"a": {"signal": {"name": "news", "timeout": "200ms"}}},
        {"signal": "completed", "time is over": "failed", "skip": "completed", **STOPS},
        prepare=_overdue,
    ),
    "a slot": Scene({"a": {**BODY, "pool": "db"}}, STOPS, ("pause", "priority", "admitted"), prepare=_granted),
    "a child": Scene({"a": {"workflow": "work"}}, {"child": "completed", **STOPS}, prepare=_child),
    "a round": Scene(
        {"a": {**BODY, "repeat": {"until": "output.done", "max": 3}}},
        {"done": "completed", "fails": "failed", **STOPS},
        ("pause", "lost"),
    ),
    "a deadline": Scene(
        {"a": {**BODY, "deadline": "200ms"}},
        {"done": "completed", "deadline": "failed", **STOPS},
        ("pause",),
        prepare=_overdue,
    ),
    "a compensation": Scene(
        {"a": {**BODY, "compensate": {"run": "t.undo", "retry": {"attempts": 1}}}, "b": {**BODY, "needs": "a"}},
        {"undone": "compensated", "not undone": "compensation_failed", "terminate": "terminated"},
        ("pause", "cancel"),
        "compensated",
        _undoing,
    ),
}  # fmt: skip


@pytest.fixture
async def race(database: str) -> AsyncIterator[Race]:
    work = {"name": "work", "tasks": {"a": BODY}}
    scenes = [{"name": name.replace(" ", "-"), "tasks": scene.tasks} for name, scene in SCENES.items()]
    async with open_desk(Race, database, work, *scenes) as made:
        response = await made.api.put("/pools/db", json={"limit": 1_000})
        assert response.status_code == 200, response.text
        yield made


def foretell(scene: Scene, order: Sequence[str]) -> str:
    """How a run ends to which these came in this order: by the first that ends it."""
    stale = ("done", "fails") if order[0] == "lost" else ()  # what is lost has another hand-out
    ends = [what for what in order if what in scene.ends and what not in stale]
    if not ends:
        return scene.at_last
    is_repaired = scene.ends[ends[0]] == "failed" and "skip" in ends
    return "completed" if is_repaired else scene.ends[ends[0]]


@pytest.mark.parametrize("name", SCENES)
async def test_f46_of_two_that_meet_the_first_one_in_the_line_has_it(race: Race, name: str) -> None:
    scene = SCENES[name]
    orders = [order for order in permutations([*scene.ends, *scene.others], 2) for _ in ("together", "apart")]
    run_ids = [await race.start(workflow=name.replace(" ", "-")) for _ in orders]
    await scene.prepare(race, run_ids)
    first: list[tuple[str, Event]] = []
    second: list[tuple[str, Event]] = []
    expected: dict[str, tuple[str, tuple[str, ...], bool]] = {}
    for number, (run_id, order) in enumerate(zip(run_ids, orders, strict=True)):
        is_apart = number % 2 == 1
        # Asked in the order of their names, so that the order of asking is another one as often as it is the same.
        asked = {what: await race.act(run_id, what) for what in sorted(order)}
        came = tuple(what for what in order if asked[what] is not None)
        expected[run_id] = foretell(scene, came), came, is_apart
        for place, what in enumerate(came):
            move = asked[what]
            assert move is not None
            (second if place and is_apart else first).append(move)
    await race.apply(*first)
    await race.apply(*second)
    await race.apply_requests()
    await race.go_on()
    for run_id, (ended, came, is_apart) in expected.items():
        ((status,),) = race.query("SELECT status::text FROM run WHERE run_id = %s", run_id)
        assert status == ended, (came, is_apart, race.query(HISTORY, run_id))
    assert race.query(TWICE) == []
    async with race.connection() as connection:
        checks = await examine(connection)
    assert {check.name for check in checks} >= OF_RUNS
    assert not [check for check in checks if check.name in OF_RUNS and not check.ok]


ASKED = "SELECT run_id FROM approval WHERE status = 'waiting'"
LISTENING = "SELECT run_id FROM signal_wait"
OPEN = "SELECT run_id, status::text FROM run WHERE finished_at IS NULL"
HISTORY = "SELECT row_version, kind, task, token FROM run_event WHERE run_id = %s ORDER BY row_version"
TWICE = "SELECT run_id, task FROM attempt WHERE outcome = 'completed' GROUP BY run_id, task HAVING count(*) > 1"
