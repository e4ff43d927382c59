"""Operators: people who act on many runs at once, or on what all runs share.

Now and then one of them pauses a workflow, a queue or single tasks and lets them go on, asks the same of all runs that
match a filter, or publishes another version, to which runs move. Each act has an idempotency key, and is repeated until
it is answered.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from tests.chaos.driver import Driver
from tests.chaos.facts import RUN_TERMINAL
from tests.chaos.system import QUEUE
from tests.chaos.workload import CONTROLLED, POOLS, WORKFLOWS, next_version

EVERY_SECONDS: Final = (3.0, 9.0)
PAUSE_SECONDS: Final = (0.5, 3.0)
TASKS_AT_ONCE: Final = 6
RERUNS_AT_ONCE: Final = 3
FORGOTTEN_SECONDS: Final = 3.0
"""So often it is asked whether a task is still paused, which an answer to its pause does not tell."""
BULK_ACTS: Final = ("cancel", "terminate", "pause", "resume", "rerun", "rerun", "migrate", "move")
_SINCE_SECONDS: Final = {"cancel": 2.0, "terminate": 1.0, "rerun": 20.0}
"""How far back a bulk looks: most runs are to end by themselves."""


class Operators:
    def __init__(self, driver: Driver, seed: int) -> None:
        self._driver, self._draw = driver, random.Random(f"operators/{seed}")
        self._number = 0
        self._pausing: set[str] = set()
        """What one of them pauses at this moment, and will let go on."""
        self._tasks_paused: set[str] = set()
        """Tasks that one of them asked to pause, of runs that are open as far as is known."""
        self._forgotten_at = 0.0
        self._is_over = False

    async def set_pools(self) -> None:
        for name, pool in POOLS.items():
            await self._ask("set_pool", "PUT", f"/pools/{name}", pool._asdict(), pool=name)

    async def work(self, until: float) -> None:
        """One act after the other, each begun before the time is over and carried to its end."""
        acts: tuple[Callable[[], Awaitable[None]], ...] = (
            self._pause_workflow, self._pause_workflow, self._pause_queue, self._pause_tasks, self._pause_tasks,
            self._bulk, self._bulk, self._bulk, self._bulk, self._deploy, self._deploy, self._rerun,
        )  # fmt: skip
        while (left := until - time.monotonic()) > 0:
            await asyncio.sleep(min(left, self._draw.uniform(*EVERY_SECONDS)))
            await self._draw.choice(acts)()
        self._is_over = True

    async def clear_up(self) -> None:
        """What is paused and by nobody here: an unanswered request that came through after its end was asked for. And,
        for the same reason, a limit at which nothing would ever begin."""
        looks = (("/pauses", "workflows", "workflow"), ("/queues/pauses", "queues", "queue"))
        for path, kind, field in looks:
            for item in await self._driver.items(path):
                name = f"/{kind}/{item[field]}"
                if name not in self._pausing:
                    await self._ask("resume_all", "POST", f"{name}/resume", {"reason": "forgotten"}, target=name)
        if time.monotonic() >= self._forgotten_at + FORGOTTEN_SECONDS:
            self._forgotten_at = time.monotonic()
            await self._resume_forgotten()
        if self._is_over and any(pool["limit"] == 0 for pool in await self._driver.items("/pools")):
            await self.set_pools()

    async def _resume_forgotten(self) -> None:
        for task_id in sorted(self._tasks_paused - self._pausing):
            run = await self._driver.get(f"/runs/{task_id.split('.')[0]}")
            if run is not None and run["status"] in RUN_TERMINAL:
                self._tasks_paused.discard(task_id)
            elif run is not None:
                await self._driver.call(*self._of_task("resume", task_id), task_id=task_id)

    async def _pause_workflow(self) -> None:
        await self._pause(f"/workflows/{self._draw.choice(CONTROLLED)}")

    async def _pause_queue(self) -> None:
        await self._pause(f"/queues/{QUEUE}")

    async def _pause(self, target: str) -> None:
        self._pausing.add(target)
        try:
            await self._ask("pause_all", "POST", f"{target}/pause", {"reason": "chaos"}, target=target)
            await asyncio.sleep(self._draw.uniform(*PAUSE_SECONDS))
            await self._ask("resume_all", "POST", f"{target}/resume", {"reason": "chaos"}, target=target)
        finally:
            self._pausing.discard(target)

    async def _pause_tasks(self) -> None:
        """Tasks of runs that go, whatever becomes of them at that moment: many are refused, which is an answer."""
        found = [run for run in await self._driver.items("/runs?status=running&limit=100") if run["workflow"] != "w9"]
        tasks = {workflow["name"]: list(workflow["tasks"]) for workflow in WORKFLOWS}
        picked = self._draw.sample(found, min(len(found), TASKS_AT_ONCE))
        await asyncio.gather(
            *(self._pause_task(f"{run['run_id']}.{self._draw.choice(tasks[run['workflow']])}") for run in picked)
        )

    async def _pause_task(self, task_id: str) -> None:
        self._pausing.add(task_id)
        self._tasks_paused.add(task_id)
        try:
            for verb in ("pause", "resume"):
                op, method, path, body = self._of_task(verb, task_id)
                await self._ask(op, method, path, body, task_id=task_id)
                await asyncio.sleep(self._draw.uniform(*PAUSE_SECONDS) if verb == "pause" else 0.0)
        finally:
            self._pausing.discard(task_id)

    def _of_task(self, verb: str, task_id: str) -> tuple[str, str, str, dict[str, Any]]:
        return f"{verb}_task", "POST", f"/tasks/{task_id}/{verb}", {"reason": "chaos"}

    async def _bulk(self) -> None:
        """Of a workflow, or of runs that somebody has picked, some of which it cannot be asked."""
        act = self._draw.choice(BULK_ACTS)
        if self._draw.random() < 0.5:
            filter = f"workflow:{self._draw.choice(CONTROLLED)}"
            if act in _SINCE_SECONDS:
                filter += f" started:>=-{_SINCE_SECONDS[act]:g}s"
            return await self._ask_bulk(act, filter=filter)
        wanted = {"resume": "paused", "migrate": "paused", "rerun": "failed"}.get(act)
        found = await self._driver.items("/runs?limit=100" + (f"&status={wanted}" if wanted else ""))
        known = [run["run_id"] for run in found if run["workflow"] in CONTROLLED]
        picked = self._draw.sample(known, min(len(known), 3 if act in ("cancel", "terminate") else 10))
        if picked:
            await self._ask_bulk(act, run_ids=picked)

    async def _rerun(self) -> None:
        """Runs that have just ended, however: a task and all that is behind it, or what failed; some asked twice."""
        found = await self._driver.items("/runs?limit=200&filter=is:ended+started:>=-60s")
        ended = [run for run in found if run["workflow"] in CONTROLLED]
        tasks = {workflow["name"]: list(workflow["tasks"]) for workflow in WORKFLOWS}
        for run in self._draw.sample(ended, min(len(ended), RERUNS_AT_ONCE)):
            chosen = [self._draw.choice(tasks[run["workflow"]])] if self._draw.random() < 0.7 else []
            body = {"reason": "chaos", "tasks": chosen, "row_version": run["row_version"]}
            again = ("rerun", "POST", f"/runs/{run['run_id']}/rerun", body)
            times = 2 if self._draw.random() < 0.3 else 1
            await asyncio.gather(*(self._ask(*again, run_id=run["run_id"]) for _ in range(times)))

    async def _ask_bulk(self, act: str, **which: Any) -> None:
        """The reason names the bulk, so that the oracle finds what was asked for it."""
        reason = f"bulk {self._number}"
        body = {"act": act, **which, "reason": reason, "rate": self._draw.choice((2, 20, 500))}
        entry = await self._ask("bulk", "POST", "/bulk", body, act=act, reason=reason)
        if entry["outcome"] == "OK" and self._draw.random() < 0.2:
            await asyncio.sleep(self._draw.uniform(0, 1))
            await self._ask("stop_bulk", "POST", f"/bulk/{entry['answer']['bulk_id']}/stop", None, reason=reason)

    async def _deploy(self) -> None:
        """Another version, to which those are moved that are under way: by a bulk behind it, or by the publish."""
        name = self._draw.choice(CONTROLLED)
        how = self._draw.choice(("bulk", "asked", "said"))
        version = next_version(name, self._draw)
        if how == "said":
            version["on_publish"] = "migrate"
        path = "/workflows?migrate=true" if how == "asked" else "/workflows"
        await self._ask("publish", "POST", path, version, workflow=name)
        if how == "bulk":
            await self._ask_bulk("move", filter=f"workflow:{name}")

    async def _ask(self, op: str, method: str, path: str, body: Any, **facts: Any) -> dict[str, Any]:
        self._number += 1
        return await self._driver.persist(op, method, path, body, request_key=f"operator-{self._number}", **facts)
