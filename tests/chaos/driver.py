"""The clients: start runs, send signals, decide, cancel, replay and discard; each call with its outcome in the log.

An UNKNOWN call is repeated with its key until it is answered, as a client of ours does. Now and then a client does what
it must not: uses a key again with another input, decides twice, replays twice; then the log says what it was told.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import httpx

from tests.caller import HEADERS
from tests.chaos.client_log import ClientLog
from tests.chaos.record_sender import SUBSCRIPTION, RecordSender
from tests.chaos.system import System
from tests.chaos.workload import CROWD, WORKFLOWS, choose

CALL_SECONDS: Final = 8.0
CANCEL_SHARE: Final = 0.05
CANCEL_SHARES: Final = {"w5": 0.2, "w6": 0.3, "w4-votes": 0.25, "pool": 0.15, "repeat": 0.15, "clean": 0.5}
"""Where a cancel has more to do."""
TERMINATE_SHARE: Final = 0.02
TERMINATE_SHARES: Final = {"clean": 0.1}
PAUSE_SHARE: Final = 0.15
MIGRATE_SHARE: Final = 0.5
PRIORITY_SHARE: Final = 0.3
RACES: Final = (
    ("cancel", "pause"), ("cancel", "terminate"), ("cancel", "cancel"), ("pause", "resume"), ("pause", "pause"),
    ("skip", "cancel"), ("skip", "pause"), ("rerun", "rerun"), ("rerun", "cancel"), ("terminate", "rerun"),
)  # fmt: skip
"""Asked at once of a run that is about to end."""
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
        self.records: Final = RecordSender(system, log)
        self.looks: list[Callable[[], Awaitable[None]]] = []
        """What else to look at, again and again."""

    # == calls =========================================================================================================
    async def call(self, op: str, method: str, path: str, body: Any = None, **facts: Any) -> dict[str, Any]:
        """One try of one call, noted; `answer` is its JSON when there was one."""
        entry: dict[str, Any] = {"op": op, "at": time.time(), **facts}
        url = self._draw.choice(self._system.api_urls)
        headers = {"Headrace-Actor": facts.get("actor", "chaos")}
        if "request_key" in facts:
            headers["Idempotency-Key"] = facts["request_key"]
        try:
            given = await self._client.request(method, url + path, json=body, headers=headers)
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

    async def get(self, path: str) -> Any:
        """A look that is nobody's promise, so it is not noted; None when there was no answer."""
        with contextlib.suppress(httpx.HTTPError, ValueError):
            given = await self._client.get(self._draw.choice(self._system.api_urls) + path)
            return given.json() if given.status_code == 200 else None
        return None

    # == the load ======================================================================================================
    async def publish(self) -> None:
        for workflow in WORKFLOWS:
            await self.persist("publish", "POST", "/workflows", workflow, workflow=workflow["name"])
        await self.records.begin()
        await self.persist("subscribe", "POST", "/subscriptions", SUBSCRIPTION)

    async def start_runs(self, until: float) -> None:
        """Open loop: a start is due at its time, whatever became of the ones before."""
        begun = time.monotonic()
        first = self.started
        while (now := time.monotonic()) < until and not self._stopping.is_set():
            while self.started - first < (now - begun) * self.rate:
                self._spawn(self._one_run(self.started))
                self.started += 1
            await asyncio.sleep(0.05)

    def burst(self, count: int, workflow: str = "") -> None:
        """So many starts at once."""
        for _ in range(count):
            self._spawn(self._one_run(self.started, workflow))
            self.started += 1

    async def _one_run(self, number: int, workflow: str = "") -> None:
        is_drawn = not workflow
        workflow, given = choose(self._draw, number, workflow)
        if is_drawn and workflow.startswith("limit-"):
            self.burst(CROWD, workflow)
        key = f"run-{number}"
        path = f"/workflows/{workflow}/runs"
        body: dict[str, Any] = {"input": given, "key": key}
        if workflow == "pool":
            body["priority"] = self._draw.choice((-5, 0, 0, 5))
        entry = await self.persist("start", "POST", path, body, key=key, workflow=workflow, input=given)
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
        if workflow == "race":
            return await self._race(run_id, given)
        if workflow == "pool" and self._draw.random() < PRIORITY_SHARE:
            body = {"priority": self._draw.randint(-9, 9), "reason": "chaos"}
            await self.persist("prioritise", "POST", f"/runs/{run_id}/priority", body, run_id=run_id)
        if self._draw.random() < CANCEL_SHARES.get(workflow, CANCEL_SHARE):
            await asyncio.sleep(self._draw.uniform(0, 2))
            await self._act("cancel", run_id)
        for verb, share in (("pause", PAUSE_SHARE), ("terminate", TERMINATE_SHARES.get(workflow, TERMINATE_SHARE))):
            if self._draw.random() < share:
                await asyncio.sleep(self._draw.uniform(0, 2))
                await self._act(verb, run_id)

    async def _race(self, run_id: str, given: dict[str, Any]) -> None:
        """Two acts meet the end of the run and each other: each as near to it as the network lets it come."""
        await asyncio.sleep(2 * given["before"] + self._draw.uniform(0, 0.3))
        acts = self._draw.choice(RACES)
        await asyncio.gather(*(self._later(self._draw.uniform(0, 0.01), self._act(verb, run_id)) for verb in acts))

    async def _later(self, seconds: float, act: Coroutine[Any, Any, Any]) -> None:
        await asyncio.sleep(seconds)
        await act

    async def _act(self, verb: str, run_id: str) -> dict[str, Any]:
        path, body = f"/runs/{run_id}/{verb}", {"reason": "chaos"}
        if verb == "skip":
            return await self.persist(
                "skip", "POST", f"/tasks/{run_id}.two/skip", {**body, "output": {"given": True}}, run_id=run_id
            )
        return await self.persist(verb, "POST", path, body, run_id=run_id)

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
                await self.records.send(number, count)
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
                *self.looks,
            ):  # fmt: skip
                await look()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), LOOK_SECONDS)

    async def _look_at_approvals(self) -> None:
        for item in await self.items("/approvals?limit=200"):
            if item["approval_id"] not in self._seen:
                self._seen.add(item["approval_id"])
                decide = self._decide if item["needed"] == 1 else self._vote
                self._spawn(decide(item["approval_id"]))

    async def _vote(self, approval_id: str) -> None:
        """Each of three says something, or nothing: early, as it expires, or when it is decided; some twice."""
        moments = (0.0, 0.3, 3.5) if self._draw.random() < 0.6 else (3.4,)
        said = []
        for person in ("ada", "grace", "eve"):
            if self._draw.random() < 0.7:
                moment = self._draw.choice(moments) + self._draw.uniform(0, 0.4)
                said.append(self._later(moment, self._say(approval_id, person)))
                if self._draw.random() < 0.15:
                    said.append(self._later(moment, self._say(approval_id, person)))
        await asyncio.gather(*said)

    async def _decide(self, approval_id: str) -> None:
        """Some are left to expire; some are decided at the very moment in which they expire, some by two at once."""
        choice = self._draw.random()
        if choice < 0.25:
            return
        await asyncio.sleep(self._draw.uniform(3.3, 4.0) if choice < 0.45 else self._draw.uniform(0, 1))
        people = ["ada", "grace"] if self._draw.random() < 0.3 else ["ada"]
        await asyncio.gather(*(self._say(approval_id, person) for person in people))

    async def _say(self, approval_id: str, person: str) -> None:
        word = self._draw.choices(("approve", "reject"), (3, 1))[0]
        path = f"/approvals/{approval_id}/{word}"
        await self.persist("decide", "POST", path, {}, approval_id=approval_id, decision=word, actor=person)

    async def _look_at_parked(self) -> None:
        for item in await self.items("/parked-tasks?limit=200"):
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
        for item in await self.items("/dead-letters?limit=200"):
            if item["dead_letter_id"] not in self._seen:
                self._seen.add(item["dead_letter_id"])
                self._spawn(self._close(item))

    async def _close(self, letter: dict[str, Any]) -> None:
        """A failed task is sent out again once, mended or as it was; what fails again, and a record, is discarded."""
        id_, task = letter["dead_letter_id"], str(letter.get("task_id"))
        await asyncio.sleep(self._draw.uniform(0, 0.5))
        if letter["kind"] == "task" and self._replays.get(task, 0) < 2:
            self._replays[task] = self._replays.get(task, 0) + 1
            run = await self.get(f"/runs/{letter['run_id']}")
            body = {"input": {**run["input"], "mended": True}} if run and self._draw.random() < 0.7 else {}
            times = 2 if self._draw.random() < 0.2 else 1
            replay = ("replay", "POST", f"/dead-letters/{id_}/replay", body)
            told = await asyncio.gather(*(self.persist(*replay, dead_letter_id=id_) for _ in range(times)))
            if any(entry["outcome"] == "OK" for entry in told):
                return  # otherwise its run has ended for good, or undoes what it did
        path = f"/dead-letters/{id_}/discard"
        await self.persist("discard", "POST", path, {"reason": "chaos"}, dead_letter_id=id_)

    async def _look_at_paused(self) -> None:
        """Every pause ends, some time; some are ended twice."""
        for status in ("pausing", "paused"):
            for item in await self.items(f"/runs?status={status}&limit=200"):
                if self._draw.random() < 0.3:
                    self._spawn(self._resume(item["run_id"], moves=status == "paused"))

    async def _resume(self, run_id: str, *, moves: bool) -> None:
        """Some are moved to the latest version first, where nothing stands in the way."""
        if moves and self._draw.random() < MIGRATE_SHARE:
            await self._act("migrate", run_id)
        for _ in range(2 if self._draw.random() < 0.2 else 1):
            await self._act("resume", run_id)

    async def items(self, path: str) -> list[dict[str, Any]]:
        answer = await self.get(path)
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
