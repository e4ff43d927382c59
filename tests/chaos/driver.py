"""The clients: start runs, send signals, decide, cancel, replay and discard; each call with its outcome in the log.

An UNKNOWN call is repeated with its key until it is answered, as a client of ours does. Now and then a client does what
it must not: uses a key again with another input, decides twice, replays twice; then the log says what it was told.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Coroutine
from typing import Any, Final

import httpx

from tests.caller import HEADERS
from tests.chaos.client_log import ClientLog
from tests.chaos.system import System
from tests.chaos.workload import WORKFLOWS, choose

CALL_SECONDS: Final = 8.0
CANCEL_SHARE: Final = 0.05
TERMINATE_SHARE: Final = 0.02
PAUSE_SHARE: Final = 0.15
REUSE_SHARE: Final = 0.02
LOOK_SECONDS: Final = 0.5
TRIES_MAX: Final = 400
_NEVER_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)


class Driver:
    """rate: runs to start in a second, open loop."""

    def __init__(self, system: System, log: ClientLog, seed: int, rate: float) -> None:
        self._system, self._log = system, log
        self._draw = random.Random(f"driver/{seed}")
        self.rate = rate
        self.started = 0
        self._client = httpx.AsyncClient(
            headers=HEADERS, timeout=CALL_SECONDS, limits=httpx.Limits(max_connections=100)
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._seen: set[str] = set()
        self._replays: dict[str, int] = {}
        self._stopping = asyncio.Event()

    # == calls =========================================================================================================
    async def call(self, op: str, method: str, path: str, body: Any = None, **facts: Any) -> dict[str, Any]:
        """One try of one call, noted; `answer` is its JSON when there was one."""
        entry: dict[str, Any] = {"op": op, "at": time.time(), **facts}
        url = self._draw.choice(self._system.api_urls)
        try:
            given = await self._client.request(
                method, url + path, json=body, headers={"Headrace-Actor": facts.get("actor", "chaos")}
            )
            entry |= {"status": given.status_code, "outcome": _outcome(given.status_code), "answer": _json(given)}
        except httpx.HTTPError as error:
            outcome = "FAIL" if isinstance(error, _NEVER_SENT) else "UNKNOWN"
            entry |= {"status": 0, "outcome": outcome, "answer": None, "error": repr(error)}
        entry["done_at"] = time.time()
        self._log.add(entry)
        return entry

    async def persist(self, op: str, method: str, path: str, body: Any = None, **facts: Any) -> dict[str, Any]:
        """Repeat a call until it is OK or refused for good."""
        tries = 1
        entry = await self.call(op, method, path, body, **facts)
        while entry["outcome"] != "OK" and not 400 <= entry["status"] < 500 and tries < TRIES_MAX:
            await asyncio.sleep(self._draw.uniform(0.1, 0.5))
            entry = await self.call(op, method, path, body, **facts)
            tries += 1
        return entry

    async def _get(self, path: str) -> Any:
        """A look that is nobody's promise, so it is not noted; None when there was no answer."""
        with contextlib.suppress(httpx.HTTPError, ValueError):
            given = await self._client.get(self._draw.choice(self._system.api_urls) + path)
            return given.json() if given.status_code == 200 else None
        return None

    # == the load ======================================================================================================
    async def publish(self) -> None:
        for workflow in WORKFLOWS:
            await self.persist("publish", "POST", "/workflows", workflow, workflow=workflow["name"])

    async def start_runs(self, until: float) -> None:
        """Open loop: a start is due at its time, whatever became of the ones before."""
        begun = time.monotonic()
        first = self.started
        while (now := time.monotonic()) < until and not self._stopping.is_set():
            while self.started - first < (now - begun) * self.rate:
                self._spawn(self._one_run(self.started))
                self.started += 1
            await asyncio.sleep(0.05)

    def burst(self, count: int) -> None:
        """So many starts at once."""
        for _ in range(count):
            self._spawn(self._one_run(self.started))
            self.started += 1

    async def _one_run(self, number: int) -> None:
        workflow, given = choose(self._draw, number)
        key = f"run-{number}"
        path = f"/workflows/{workflow}/runs"
        entry = await self.persist(
            "start", "POST", path, {"input": given, "key": key}, key=key, workflow=workflow, input=given
        )
        if entry["outcome"] != "OK":
            return
        run_id = entry["answer"]["run_id"]
        if self._draw.random() < REUSE_SHARE:
            other = {**given, "n": -1}
            await self.call(
                "start", "POST", path, {"input": other, "key": key}, key=key, workflow=workflow, input=other
            )
        if self._draw.random() < REUSE_SHARE:
            await self.call(
                "start", "POST", path, {"input": given, "key": key}, key=key, workflow=workflow, input=given
            )
        if workflow == "w4-signal":
            self._spawn(self._tell(run_id, number))
        if self._draw.random() < CANCEL_SHARE:
            await asyncio.sleep(self._draw.uniform(0, 2))
            await self.persist("cancel", "POST", f"/runs/{run_id}/cancel", {"reason": "chaos"}, run_id=run_id)
        for verb, share in (("pause", PAUSE_SHARE), ("terminate", TERMINATE_SHARE)):
            if self._draw.random() < share:
                await asyncio.sleep(self._draw.uniform(0, 2))
                await self.persist(verb, "POST", f"/runs/{run_id}/{verb}", {"reason": "chaos"}, run_id=run_id)

    async def _tell(self, run_id: str, number: int) -> None:
        """One sender's signals, one behind the other: before anybody waits, while somebody does, as the wait times out,
        to a run that has ended; some twice at once under their id."""
        for count in range(self._draw.randint(0, 5)):
            await asyncio.sleep(self._draw.choice((0.0, 0.2, 2.0)) * self._draw.random())
            key = self._draw.choice((None, None, str(number), "nobody's"))
            body = {"name": "chaos.news", "data": {"count": count}, "id": f"signal-{count}"}
            facts = {"run_id": run_id, "id": body["id"], "count": count, "key": key}
            send = ("signal", "POST", f"/runs/{run_id}/signals", body if key is None else {**body, "key": key})
            times = 2 if self._draw.random() < 0.2 else 1
            await asyncio.gather(*(self.persist(*send, **facts) for _ in range(times)))
            if self._draw.random() < 0.3:
                id_ = f"post-{number}-{count}"
                post = {"name": "chaos.news", "key": str(number), "id": id_, "data": {"count": count}}
                await self.persist("post", "POST", "/signals", post, id=id_, count=count)

    # == people ========================================================================================================
    async def answer_questions(self) -> None:
        """Until stopped: decide approvals, and close dead letters."""
        while not self._stopping.is_set():
            for look in (
                self._look_at_approvals, self._look_at_parked, self._look_at_dead_letters, self._look_at_paused,
            ):  # fmt: skip
                await look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), LOOK_SECONDS)

    async def _look_at_approvals(self) -> None:
        for item in await self._items("/approvals?limit=200"):
            if item["approval_id"] not in self._seen:
                self._seen.add(item["approval_id"])
                self._spawn(self._decide(item["approval_id"]))

    async def _decide(self, approval_id: str) -> None:
        """Some are left to expire; some are decided at the very moment in which they expire, some by two at once."""
        choice = self._draw.random()
        if choice < 0.25:
            return
        await asyncio.sleep(self._draw.uniform(3.3, 4.0) if choice < 0.45 else self._draw.uniform(0, 1))
        people = ["ada", "grace"] if self._draw.random() < 0.3 else ["ada"]
        await asyncio.gather(*(self._say(approval_id, person) for person in people))

    async def _say(self, approval_id: str, person: str) -> None:
        word = self._draw.choice(("approve", "approve", "reject"))
        path = f"/approvals/{approval_id}/{word}"
        await self.persist("decide", "POST", path, {}, approval_id=approval_id, decision=word, actor=person)

    async def _look_at_parked(self) -> None:
        for item in await self._items("/parked-tasks?limit=200"):
            name = f"{item['task_id']}/{item['token']}"
            if name not in self._seen:
                self._seen.add(name)
                self._spawn(self._resolve(item))

    async def _resolve(self, parked: dict[str, Any]) -> None:
        """A person asks the other system, which refuses the old attempt from then on, and says what it was told."""
        run_id, task, token = parked["run_id"], parked["task"], parked["token"]
        await asyncio.sleep(self._draw.uniform(0, 1))
        asked = {"op": "lookup", "key": f"{run_id}/{task}", "token": token + 1}
        found = await asyncio.to_thread(self._system.ask_ledger, **asked)
        if found["happened"]:
            body: dict[str, Any] = {"outcome": "happened", "output": {"receipt": found["receipt"]}}
        else:
            body = {"outcome": self._draw.choices(("did_not_happen", "fail"), (8, 1))[0]}
        facts = {"task_id": parked["task_id"], "token": token, "said": body["outcome"]}
        times = 2 if self._draw.random() < 0.2 else 1
        resolve = ("resolve", "POST", f"/tasks/{parked['task_id']}/resolve", body)
        await asyncio.gather(*(self.persist(*resolve, **facts) for _ in range(times)))

    async def _look_at_dead_letters(self) -> None:
        for item in await self._items("/dead-letters?limit=200"):
            if item["dead_letter_id"] not in self._seen:
                self._seen.add(item["dead_letter_id"])
                self._spawn(self._close(item))

    async def _close(self, letter: dict[str, Any]) -> None:
        """A failed task is sent out again once, mended or as it was; what fails again, and a record, is discarded."""
        id_, task = letter["dead_letter_id"], str(letter.get("task_id"))
        await asyncio.sleep(self._draw.uniform(0, 0.5))
        if letter["kind"] == "task" and self._replays.get(task, 0) < 2:
            self._replays[task] = self._replays.get(task, 0) + 1
            run = await self._get(f"/runs/{letter['run_id']}")
            body = {"input": {**run["input"], "mended": True}} if run and self._draw.random() < 0.7 else {}
            times = 2 if self._draw.random() < 0.2 else 1
            replay = ("replay", "POST", f"/dead-letters/{id_}/replay", body)
            await asyncio.gather(*(self.persist(*replay, dead_letter_id=id_) for _ in range(times)))
            return
        path = f"/dead-letters/{id_}/discard"
        await self.persist("discard", "POST", path, {"reason": "chaos"}, dead_letter_id=id_)

    async def _look_at_paused(self) -> None:
        """Every pause ends, some time; some are ended twice."""
        for status in ("pausing", "paused"):
            for item in await self._items(f"/runs?status={status}&limit=200"):
                if self._draw.random() < 0.3:
                    path = f"/runs/{item['run_id']}/resume"
                    for _ in range(2 if self._draw.random() < 0.2 else 1):
                        self._spawn(self._resume(path, item["run_id"]))

    async def _resume(self, path: str, run_id: str) -> None:
        await self.persist("resume", "POST", path, {"reason": "chaos"}, run_id=run_id)

    async def _items(self, path: str) -> list[dict[str, Any]]:
        answer = await self._get(path)
        return answer["items"] if answer else []

    # == the end =======================================================================================================
    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def settle(self, seconds: float) -> int:
        """Wait until every call under way has its answer; answers how many have not."""
        end = time.monotonic() + seconds
        while self._tasks and (left := end - time.monotonic()) > 0:
            await asyncio.wait(set(self._tasks), timeout=left, return_when=asyncio.FIRST_COMPLETED)
        return len(self._tasks)

    async def close(self) -> None:
        self._stopping.set()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._client.aclose()


def _outcome(status: int) -> str:
    if status < 300:
        return "OK"
    return "UNKNOWN" if status >= 500 else "FAIL"


def _json(given: httpx.Response) -> Any:
    with contextlib.suppress(ValueError):
        return given.json()
    return None
