"""People who act on runs: on workflows, queues and pools, in bulk, by moving runs to other versions, and by letting
those that have ended run again."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.errors import ConflictError, NotFoundError
from headrace.machine.place import is_compensation
from headrace.rate import Rate
from headrace.standing import Person
from state.bulk import Act, start_bulk, stop_bulk
from state.control import pause_run, rerun
from state.delegations import delegate, end_delegation
from state.migration import move_run
from state.pauses import pause_queue, pause_workflow, resume_queue, resume_workflow
from state.plans import Plans
from state.pools import prioritise_run, set_pool
from state.store import Store
from tests.simulation.postgres import instant

if TYPE_CHECKING:
    from tests.simulation.scene import Scene

Told = Callable[[Any], Coroutine[Any, Any, Any]]
ACTS: Final[tuple[Act, ...]] = ("cancel", "terminate", "pause", "resume", "migrate", "move", "move")


HAS_NEXT: Final = ("linear", "patient")
"""Workflows that have a second version."""


class Operator:
    """Does a few such things in each seed, and undoes what would hold it up for ever."""

    def __init__(self, scene: "Scene", store: Store, until_told: Callable[[Told], Coroutine[Any, Any, Any]]) -> None:
        self._scene, self._store, self._until_told = scene, store, until_told
        self._random = Random(scene.seed + 1)
        """Apart, so that what else happens in a seed stays as it was."""
        self._plans = Plans()
        self.busy = 0

    async def run(self) -> None:
        random, used = self._random, set(self._scene.workflows)
        acts: list[Callable[[], Coroutine[Any, Any, None]]] = []
        if random.random() < 0.3:
            acts.append(partial(self._pause_workflow, random.choice(self._scene.workflows)))
        if used & {"parent", "family"}:
            acts += [partial(self._pause_workflow, child) for child in ("linear", "patient") if random.random() < 0.5]
        if random.random() < 0.15:
            acts.append(self._pause_queue)
        acts += [self._act_on_many for _ in range(random.choice([0, 0, 0, 1, 1, 2]))]
        if used & {"linear", "patient", "parent", "family"}:
            acts.append(self._move_one)
        if "approval" in used:
            acts.append(self._delegate)
        if used & {"narrow", "brisk"}:
            acts += [self._change_limits, self._prioritise]
        self.busy = len(acts)
        async with asyncio.TaskGroup() as group:
            for act in acts:
                group.create_task(self._in_time(act))

    async def _in_time(self, act: Callable[[], Coroutine[Any, Any, None]]) -> None:
        await asyncio.sleep(self._random.random() * self._scene.fault_seconds * 0.8)
        await act()
        self.busy -= 1

    async def _ask(self, act: Callable[..., Coroutine[Any, Any, Any]], *given: Any, **named: Any) -> Any:
        """None where it was refused: it may be done already, by an answer that was lost."""

        async def ask(connection: Any) -> Any:
            with suppress(ConflictError, NotFoundError):
                return await act(connection, self._store, *given, **named)

        return await self._until_told(ask)

    def _runs(self) -> list[UUID]:
        return [UUID(bytes=run_id) for (run_id,) in self._scene.postgres.tables["run"]]

    # -- what they do --------------------------------------------------------------------------------------------------
    async def _pause_workflow(self, workflow: str) -> None:
        await self._ask(pause_workflow, workflow, reason="a whim", actor="operator")
        await asyncio.sleep(0.5 + self._random.random() * 3)
        await self._ask(resume_workflow, workflow, reason="over", actor="operator")

    async def _pause_queue(self) -> None:
        await self._ask(pause_queue, "default", reason="a whim", actor="operator")
        await asyncio.sleep(0.5 + self._random.random() * 3)
        await self._ask(resume_queue, "default", reason="over", actor="operator")

    async def _act_on_many(self) -> None:
        act, rate, ids = self._random.choice(ACTS), self._random.choice([1.0, 3.0, 50.0]), self._runs()
        chosen = self._random.sample(ids, self._random.randint(min(1, len(ids)), len(ids)))
        actor = f"bulk-{self._random.getrandbits(32):x}"  # a start of which nobody heard is made again, as another
        bulk_id = await self._ask(start_bulk, act, chosen, filter=b"{}", reason="many", rate=rate, actor=actor)
        if bulk_id is not None and self._random.random() < 0.2:
            await asyncio.sleep(self._random.random())

            async def stop(connection: Any) -> None:
                with suppress(ConflictError):
                    await stop_bulk(connection, "default", bulk_id, actor="operator")

            await self._until_told(stop)

    async def _move_one(self) -> None:
        """Pause a run of an older version, and try for a while to move it; somebody resumes it some time."""
        for _ in range(20):
            await asyncio.sleep(0.2)
            runs = [run_id for run_id in self._runs() if self._scene.plan_of(run_id.bytes).version == 1]
            open_ = [id_ for id_ in runs if self._scene.postgres.tables["run"][id_.bytes,]["finished_at"] is None]
            if not open_:
                continue
            run_id = self._random.choice(open_)
            await self._ask(pause_run, run_id, reason="to move it", actor="operator")
            for _ in range(5):
                await asyncio.sleep(self._random.random() * 0.3)
                if await self._ask(move_run, self._plans, run_id, None, reason="a better one", actor="operator"):
                    return

    async def _delegate(self) -> None:
        now = self._scene.postgres.clock()
        until, by = instant(now + round(self._random.uniform(1, 5) * 1e6)), Person("ops")
        told: dict[str, Any] = {"from_name": "ops", "to_name": "deputy", "starts_at": None, "ends_at": until}

        async def ask(connection: Any) -> Any:
            with suppress(ConflictError):  # asked so late that it is over
                return await delegate(connection, "default", **told, reason="away", by=by)

        row = await self._until_told(ask)
        await asyncio.sleep(self._random.random() * 4)

        async def end(connection: Any) -> None:
            with suppress(ConflictError):
                await end_delegation(connection, "default", row.delegation_id, by)

        if row is not None and self._random.random() < 0.5:
            await self._until_told(end)

    async def _change_limits(self) -> None:
        for _ in range(self._random.randint(0, 3)):
            slots = self._random.randint(1, 3)
            await self._ask(set_pool, "narrow", slots=slots, rate=None, actor="operator")
            rate = Rate(self._random.randint(1, 4), self._random.choice([0.5, 1.0]))
            await self._ask(set_pool, "brisk", slots=None, rate=rate, actor="operator")
            await asyncio.sleep(self._random.random() * 2)

    async def _prioritise(self) -> None:
        for run_id in self._runs():
            priority = self._random.randint(-100, 100)
            await self._ask(prioritise_run, run_id, priority, reason="a whim", actor="operator")


class Repairer:
    """Lets a few runs of a seed run again after their end, while faults are on and after: what failed of them, or from
    some task on, which may have completed; on their own version or on the next one."""

    def __init__(self, scene: "Scene", store: Store, until_told: Callable[[Told], Coroutine[Any, Any, Any]]) -> None:
        self._scene, self._store, self._until_told = scene, store, until_told
        self._random = Random(scene.seed + 2)
        """Apart, so that what else happens in a seed stays as it was."""
        self._plans = Plans()
        self.busy = 1
        self.reruns = 0
        """Which were accepted."""

    async def run(self) -> None:
        for _ in range(self._random.choice([0, 1, 1, 2, 3])):
            for _ in range(40):
                await asyncio.sleep(0.2 + self._random.random() * 0.6)
                if await self._send_out_again():
                    break
        self.busy = 0

    async def _send_out_again(self) -> bool:
        tables = self._scene.postgres.tables
        ended = [run_id for (run_id,), run in tables["run"].items() if run["finished_at"] is not None]
        if not ended:
            return False
        run_id = self._random.choice(ended)
        plan = self._scene.plan_of(run_id)
        version = 2 if plan.name in HAS_NEXT and self._random.random() < 0.4 else None
        places = [index for of, index in tables["task"] if of == run_id and not is_compensation(index)]
        tasks = [] if not places or self._random.random() < 0.5 else [plan.name_of(self._random.choice(places))]

        async def ask(connection: Any) -> bool:
            given: dict[str, Any] = {"input": None, "row_version": None, "reason": "mended", "actor": "repairer"}
            with suppress(ConflictError, NotFoundError):  # it runs again already, nothing of it failed, or it cannot
                await rerun(connection, self._store, self._plans, UUID(bytes=run_id), tasks, **given, version=version)
                return True
            return False

        is_accepted: bool = await self._until_told(ask)
        self.reruns += is_accepted
        return is_accepted
