"""What runs: workflows small enough to read in a trace, bodies that are slow, fail, and have effects, and a client."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psycopg

from headrace.context import Context
from headrace.errors import ConflictError, FencedError, ForbiddenError, NotFoundError
from headrace.graph import Workflow
from headrace.lookup import did_not_happen, happened, unknown
from headrace.machine import Plan, compile_plan
from headrace.machine.status import TASKS_PAUSED
from headrace.messages import effect_key
from headrace.registry import Registry
from headrace.standing import Person
from state.approvals import Voter, decide_approval
from state.control import pause_run, resume_run, terminate_run
from state.decisions import cancel_run, resolve_task
from state.posted_signals import post_signal
from state.requests import Kind, request
from state.signals import Message, send_signal
from state.starts import start_run
from state.store import Store
from tests.control_bits import PAUSES
from tests.simulation.ledger import Ledger
from tests.simulation.operators import Operator, Repairer
from tests.simulation.postgres_clients import AsyncConnection
from tests.simulation.scheduler import sim

if TYPE_CHECKING:
    from tests.simulation.scene import Scene

_RETRY: Final = {"attempts": 6, "delay": "0.2s", "cap": "1s"}

_QUESTION: Final = {
    "title": "Go on?", "approvers": ["ops"], "expires": "4s", "on_expiry": "approve", "remind": ["1s", "2s"],
    "escalate": [{"after": "1s", "to": ["boss"]}],
}  # fmt: skip
_OF_TWO: Final = {
    "title": "Go on?", "approvers": ["ops", "boss"], "needed": 2, "expires": "3s", "on_expiry": "escalate",
    "escalate": [{"to": ["owner"]}],
}  # fmt: skip


def _step(*needs: str, **more: Any) -> dict[str, Any]:
    return {"run": "step", "needs": list(needs), "retry": _RETRY} | more


_UNDO: Final = {"run": "step", "with": {"fails": "${{ input.fails }}", "of": "${{ task.output }}"}, "retry": _RETRY}
_READ: Final = {"fails": "${{ input.fails }}", "read": "${{ tasks.each.output }}"}


def _item(
    *needs: str, max_parallel: int = 1_000, failures: str = "fail_fast", retry: object = _RETRY, **more: Any
) -> dict[str, Any]:
    """A map over six items."""
    list_ = {"over": [*range(6)], "max_parallel": max_parallel, "failures": failures}
    given = {"fails": "${{ input.fails }}", "item": "${{ item }}", "index": "${{ index }}"}
    return _step(*needs, map=list_, retry=retry, **{"with": given}, **more)


POOLS: Final[dict[str, dict[str, Any]]] = {"narrow": {"slots_max": 2, "rate_count": None, "rate_seconds": None},
                "brisk": {"slots_max": None, "rate_count": 3, "rate_seconds": 2.0}}  # fmt: skip
WORKFLOWS: Final[dict[str, dict[str, Any]]] = {
    "linear": {"tasks": {"a": _step(), "b": _step("a"), "c": _step("b")}},
    "diamond": {
        "tasks": {"a": _step(), "b": _step("a"), "c": _step("a", **{"if": "input.takes_c"}), "d": _step("b", "c")}
    },
    "fan": {"tasks": {**{f"w{i}": _step() for i in range(8)}, "join": _step(*(f"w{i}" for i in range(8)))}},
    "approval": {
        "tasks": {
            "a": _step(),
            "ask": {"needs": ["a"], "approval": _QUESTION},
            "b": _step("ask"),
            "pair": {"needs": ["a"], "approval": _OF_TWO},
            "c": _step("pair"),
        }
    },
    "exclusive": {"tasks": {"x": _step(run="guarded", exclusive=True), "b": _step("x")}},
    "manual": {"tasks": {"m": _step(run="guarded", effect="manual"), "b": _step("m")}},
    "reconcile": {"tasks": {"r": _step(run="guarded", effect="reconcile", lookup="look"), "b": _step("r")}},
    "merge": {
        "tasks": {
            "a": _step(),
            "b": _step("a", **{"if": "input.takes_c"}),
            "c": _step("a", **{"if": "!input.takes_c"}),
            "meet": _step("b", "c", join="any"),
            "two": _step("a", "b", "meet", join=2),
            "rescue": _step("meet", "two", join="on_failure"),
            "last": _step("two", "rescue", join="always"),
        }
    },
    "map": {"tasks": {"a": _step(), "each": _item("a", max_parallel=3), "b": _step("each", **{"with": _READ})}},
    "finish": {"tasks": {"each": _item(failures="finish", retry=1), "b": _step("each", join="always")}},
    "fail_fast": {"tasks": {"each": _item(run="guarded", effect="manual", retry=2), "b": _step("each", join="always")}},
    "patient": {"tasks": {"a": _step(), "pause": {"needs": "a", "wait": {"for": "3s"}}, "b": _step("pause")}},
    "told": {
        "tasks": {
            "a": _step(),
            "news": {"needs": "a", "signal": {"name": "news", "timeout": "3s", "on_timeout": "complete"}},
            "more": {"needs": "a", "signal": {"name": "news", "key": "k", "timeout": "4s", "on_timeout": "complete"}},
            "all": {"needs": "a", "signal": {"name": "news", "key": "k", "timeout": "2s", "on_timeout": "complete",
                                             "delivery": "all"}},
            "b": _step("news", "more", "all"),
        }
    },
    "narrow": {
        "tasks": {
            **{f"p{i}": _step(pool={"name": "narrow", "fairness_key": f"k{i % 2}"}) for i in range(3)},
            "each": _item("p0", max_parallel=3, pool={"name": "narrow", "fairness_key": "k${{ index % 3 }}"}),
            "guarded": _step("p1", run="guarded", effect="reconcile", lookup="look", pool="narrow"),
        }
    },
    "parent": {
        "tasks": {"a": _step(), "kid": {"needs": "a", "workflow": "linear"}, "b": _step("kid", join="always")},
        "output": {"kid": "${{ tasks.kid.output }}"},
    },
    "family": {
        "tasks": {
            "kid": {"workflow": {"name": "parent", "on_cancel": "abandon"}},
            "hasty": {"workflow": "patient", "timeout": "4s"},
            "free": {"workflow": {"name": "linear", "wait": False}},
            "nobody": {"workflow": "nobody"},
            "b": _step("kid", "hasty", "free", "nobody", join="always"),
        }
    },
    "saga": {
        "tasks": {
            "a": _step(compensate=_UNDO),
            "b": _step("a", compensate=_UNDO, retry=2),
            "c": _step("a", compensate=_UNDO, **{"if": "input.takes_c"}),
            "d": _step("b", "c", join="any", retry=1, compensate=_UNDO | {"retry": 2}),
            "e": _step("d", retry=1),
        }
    },
    "limited": {"limit": {"runs": 2}, "tasks": {"a": _step(), "b": _step("a")}},
    "replaced": {"limit": {"over": "replace_oldest"}, "tasks": {"a": _step(compensate=_UNDO), "b": _step("a")}},
    "dropped": {"limit": {"over": "drop"}, "tasks": {"a": _step(), "b": _step("a")}},
    "leased": {
        "tasks": {
            "a": _step(),
            "b": _step("a", compensate=_UNDO),
            "tidy": _step("b", join="finally", retry=2),
            "each": _item("a", join="finally", max_parallel=2, failures="finish"),
            "c": _step("tidy"),
            "last": _step("tidy", "c", join="finally", run="guarded", effect="reconcile", lookup="look"),
        }
    },
    "impatient": {"tasks": {"a": _step(timeout="1s"), "b": _step("a", timeout="1s")}},
    "late": {
        "deadline": "8s",
        "tasks": {
            "a": _step(deadline="2s", compensate=_UNDO),
            "b": _step("a", start_within="1s"),
            "m": _step("a", run="guarded", effect="manual", deadline="1s"),
            "each": _item("a", max_parallel=2, deadline="2s"),
            "c": _step("b", "m", "each", join="always"),
        },
    },
    "rounds": {
        "tasks": {
            "a": _step(repeat={"until": "index >= 2", "max": 5, "delay": "0.2s"}),
            "b": _step("a", repeat={"until": "false", "max": 2, "on_max": "complete"}),
        }
    },
    "brisk": {
        "tasks": {
            **{f"q{i}": _step(pool={"name": "brisk", "fairness_key": "c${{ input.takes_c }}"}) for i in range(2)},
            **{f"q{i}": _step(pool="brisk") for i in range(2, 4)},
            "b": _step("q0", "q1", pool={"name": "brisk", "fairness_key": "t${{ tasks.q0.output.token }}"}),
        }
    },
}  # fmt: skip
NEXT: Final[dict[str, dict[str, Any]]] = {
    "linear": {"tasks": {"a": _step(), "b": _step("a", retry=2), "c": _step("b"), "d": _step("a", "c")}},
    "patient": {"tasks": {"a": _step(), "pause": {"needs": "a", "wait": {"for": "3s"}}, "b": _step("a", "pause"),
                          "c": _step("b", **{"if": "input.takes_c"})}},
}  # fmt: skip
"""Their second versions, to which runs of the first may be moved."""


def publish(scene: "Scene") -> dict[int, Plan]:
    """Versions by their ids: of a workflow, the first comes first."""
    tables, plans = scene.postgres.tables, dict[int, Plan]()
    for name, limits in POOLS.items():
        bucket = {"allowance": limits["rate_count"] or 0, "allowed_at": scene.postgres.clock()}
        tables["pool"]["default", name] = {"name": name, **limits, **bucket}
    for version, workflows in enumerate((WORKFLOWS, NEXT), 1):
        for name, tasks in workflows.items():
            workflow, version_id = Workflow.model_validate({"name": name, **tasks}), len(plans) + 1
            row = {"name": name, "version": version, "definition": workflow.canonical().decode()}
            tables["workflow_version"][version_id,] = row
            plans[version_id] = compile_plan(workflow, version=version, version_id=version_id)
    return plans


def make_registry(ledger: Ledger) -> Registry:
    registry = Registry()

    @registry.task("step")
    async def step(ctx: Context, input: dict[str, Any]) -> dict[str, Any]:
        return await _attempt(ledger, ctx, input, is_guarded=False)

    @registry.task("guarded")
    async def guarded(ctx: Context, input: dict[str, Any]) -> dict[str, Any]:
        return await _attempt(ledger, ctx, input, is_guarded=True)

    @registry.task("look")
    async def look(ctx: Context) -> dict[str, Any]:
        await asyncio.sleep(_duration(sim().random.random()))
        draw = sim().random.random()
        if draw < 0.1:
            raise RuntimeError("the lookup fails")
        if draw < 0.2:
            return unknown()
        return happened({"looked": "up"}) if ctx.effect_key in ledger.effects else did_not_happen()

    return registry


async def _attempt(ledger: Ledger, ctx: Context, given: dict[str, Any], *, is_guarded: bool) -> dict[str, Any]:
    random, hand = sim().random, (ctx.run_id, ctx.task, ctx.token)
    ledger.begin(*hand, is_exclusive=is_guarded)
    try:
        await asyncio.sleep(_duration(random.random()) if not is_guarded else 2.0 * random.random() ** 2)
        if is_guarded:
            with ctx.effect() as key:
                ledger.call(key, *hand, ctx.attempt, is_guarded=True)
                if random.random() < 0.2:
                    raise TimeoutError("done, and the answer was lost")
        else:
            ledger.call(ctx.effect_key, *hand, ctx.attempt, is_guarded=False)
        await asyncio.sleep(_duration(random.random()) / 2)
        if random.random() < given.get("fails", 0.1):
            raise RuntimeError("a simulated failure")
    except asyncio.CancelledError:
        ledger.end(*hand, "stopped")
        raise
    except (RuntimeError, TimeoutError, FencedError):
        ledger.end(*hand, "failed")
        raise
    ledger.end(*hand, "completed")
    return {"task": ctx.task, "token": ctx.token}


def _duration(draw: float) -> float:
    """Mostly short, sometimes longer than a heartbeat, seldom longer than a lease."""
    if draw < 0.75:
        return draw * 0.05
    return 0.6 * (draw - 0.75) / 0.2 if draw < 0.95 else 3.0 * draw


class Client:
    """Starts, decides and cancels, and keeps a log of what it was told. Asks again until it is told something."""

    def __init__(self, scene: "Scene", store: Store) -> None:
        self._scene, self._store = scene, store
        self._whims = Random(scene.seed)
        """Apart, so that what else happens in a seed stays as it was."""
        self.started: dict[str, str] = {}
        """Trigger key -> run id, of every start that was answered OK."""
        self.asked: set[str] = set()
        self.conflicts: list[str] = []
        self.signals: dict[str, list[str]] = {}
        """Run id -> ids of signals that were answered, in the order in which they were sent one after another."""
        self.busy = 0
        self.operator: Final = Operator(scene, store, self._until_told)
        self.repairer: Final = Repairer(scene, store, self._until_told)

    async def run(self) -> None:
        """All of a seed's requests, spread over the time in which faults are on."""
        random = sim().random
        async with asyncio.TaskGroup() as group:
            group.create_task(self.operator.run())
            group.create_task(self.repairer.run())
            group.create_task(self.resolve())
            group.create_task(self.let_go_on())
            for number in range(self._scene.runs):
                name = random.choice(self._scene.workflows)
                when = random.random() * self._scene.fault_seconds * 0.8
                self.busy += 1
                group.create_task(self._one(f"key-{number}", name, when))

    async def _one(self, key: str, workflow: str, when: float) -> None:
        random = sim().random
        await asyncio.sleep(when)
        given = b'{"takes_c":%s,"fails":%s}' % (
            random.choice([b"true", b"true", b"false"]),
            random.choice([b"0.0", b"0.3"]),
        )
        self.asked.add(key)
        starts = 2 if random.random() < 0.2 else 1
        ids = await asyncio.gather(*(self._start(key, workflow, given) for _ in range(starts)))
        run_id = ids[0]
        if len(set(ids)) > 1:
            self.conflicts.append(f"start {key} gave the runs {sorted(set(ids))}")
        if random.random() < 0.15:
            await asyncio.sleep(random.random() * 2)
            await self._until_told(lambda c: self._cancel(c, run_id))
        await self._control(run_id)
        if workflow == "approval" and random.random() < 0.6:
            await self._approve(run_id)
        if workflow == "told":
            await self._signal(run_id)
            await self._post(key)
        self.busy -= 1

    async def _start(self, key: str, workflow: str, given: bytes) -> str:
        plan = self._whims.choice([plan for plan in self._scene.versions.values() if plan.name == workflow])

        async def start(connection: Any) -> str:
            run_id, _ = await start_run(
                connection, self._store, plan, given, namespace="default", key=key, labels={"start": key}
            )
            return run_id

        run_id: str = await self._until_told(start)
        self.started[key] = run_id
        return run_id

    async def _control(self, run_id: str) -> None:
        """Pause a run now and then, and end some by force."""
        random = self._whims
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 2)
            await self._until_told(partial(self._act, act=pause_run, run_id=run_id))
        if random.random() < 0.3:
            await asyncio.sleep(random.random() * 2)
            tasks = random.sample(range(8), 2)  # not all of them are there
            await self._until_told(partial(self._ask_of_tasks, "paused", run_id, tasks))
        if random.random() < 0.05:
            await asyncio.sleep(random.random() * 2)
            await self._until_told(partial(self._act, act=terminate_run, run_id=run_id))

    async def _ask_of_tasks(self, kind: Kind, run_id: str, tasks: Iterable[int], connection: Any) -> None:
        for task in tasks:
            body = {"scope": TASKS_PAUSED, "task": task, "reason": "a whim"}
            await request(connection, self._store, run_id, kind, body, "client")

    async def _act(self, connection: Any, act: Callable[..., Coroutine[Any, Any, None]], run_id: str) -> None:
        with suppress(ConflictError, NotFoundError):
            await act(connection, self._store, UUID(run_id), reason="a whim", actor="client")

    async def let_go_on(self) -> None:
        """Be whoever ends every pause, some time."""
        while True:
            await asyncio.sleep(0.3)
            for (run_id,), run in list(self._scene.postgres.tables["run"].items()):
                if run["control"] & PAUSES and self._whims.random() < 0.2:
                    await self._until_told(partial(self._act, act=resume_run, run_id=str(UUID(bytes=run_id))))
                if run.get("paused_tasks") and self._whims.random() < 0.2:
                    paused = (str(UUID(bytes=run_id)), run["paused_tasks"])
                    await self._until_told(partial(self._ask_of_tasks, "resumed", *paused))

    async def _cancel(self, connection: Any, run_id: str) -> None:
        with suppress(ConflictError, NotFoundError):
            await cancel_run(connection, self._store, UUID(run_id), reason="no longer wanted", actor="client")

    async def _signal(self, run_id: str) -> None:
        """Some come before anybody waits, some as it times out, some to a run that has ended; some twice."""
        random = sim().random
        for number in range(random.randint(0, 4)):
            await asyncio.sleep(random.random() * random.choice([0.0, 0.3, 3.0]))
            key = random.choice([None, "k", "other"])
            message = Message("news", b'{"number":%d}' % number, key, f"signal-{number}")
            times = random.choice([1, 1, 2])
            told = await asyncio.gather(*(self._until_told(partial(self._send, run_id, message)) for _ in range(times)))
            ids = {str(row.signal_id) for row in told if row is not None}
            if len(ids) > 1:
                self.conflicts.append(f"signal {number} of run {run_id[-6:]} was stored as {sorted(ids)}")
            self.signals.setdefault(run_id, []).extend(ids)

    async def _post(self, key: str) -> None:
        """For whoever waits, in this run or another, now or in a while; some twice."""
        random = sim().random
        for number in range(random.randint(0, 3)):
            await asyncio.sleep(random.random() * random.choice([0.0, 1.0]))
            message = Message("news", b'{"posted":%d}' % number, "k", f"{key}-{number}")
            keep = random.choice([0.0, 2.0, 30.0])

            async def post(connection: Any, message: Message = message, keep: float = keep) -> Any:
                return (await post_signal(connection, self._store, message, keep_seconds=keep, actor="client"))[0]

            told = await asyncio.gather(*(self._until_told(post) for _ in range(random.choice([1, 1, 2]))))
            if len({row.posted_id for row in told}) > 1:
                self.conflicts.append(f"signal {key}-{number} was posted as {[str(row.posted_id) for row in told]}")

    async def _send(self, run_id: str, message: Message, connection: Any) -> Any:
        with suppress(ConflictError, NotFoundError):
            return (await send_signal(connection, self._store, UUID(run_id), message, actor="client"))[0]

    async def _approve(self, run_id: str) -> None:
        """Look for the questions for a while; answer those that come, one person after another, unless the expiry was
        faster."""
        for _ in range(40):
            await asyncio.sleep(0.2)
            rows = self._scene.postgres.tables["approval"].items()
            found = [key[0] for key, row in rows if row["run_id"] == UUID(run_id).bytes and row["status"] == "waiting"]
            for approval_id in found:
                outcome = sim().random.choice(["approved", "approved", "rejected"])
                for name in self._whims.sample(["ops", "boss", "owner", "deputy"], self._whims.choice([1, 2, 2, 3])):
                    vote = partial(self._decide, approval_id=UUID(bytes=approval_id), outcome=outcome, name=name)
                    await self._until_told(vote)
                    await asyncio.sleep(sim().random.random())
            if found:
                return

    async def _decide(self, connection: Any, approval_id: UUID, outcome: Any, name: str) -> None:
        with suppress(ConflictError, NotFoundError, ForbiddenError):
            voter = Voter(Person(name))
            await decide_approval(connection, self._store, approval_id, outcome, comment="", voter=voter)

    async def resolve(self) -> None:
        """Be the person before whom ambiguous tasks are set: looks, thinks, and says what the ledger says."""
        while True:
            await asyncio.sleep(0.2)
            for (run_id, task), row in list(self._scene.postgres.tables["parked_task"].items()):
                if row["resolved_by"] is None and sim().random.random() < 0.3:
                    await self._until_told(partial(self._resolve, run_id=UUID(bytes=run_id), task=task))

    async def _resolve(self, connection: Any, run_id: UUID, task: int) -> None:
        name = self._scene.task_name(run_id.bytes, task)
        is_done = self._scene.ledger.ask(effect_key(str(run_id), name), str(run_id), name)
        outcome: Any = "happened" if is_done else sim().random.choice(["did_not_happen", "fail"])
        with suppress(ConflictError, NotFoundError):
            output = b'{"said": "so"}' if is_done else None
            await resolve_task(
                connection, self._store, run_id, task, outcome, output=output, comment="", actor="client"
            )

    async def _until_told(self, ask: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
        """One transaction; again with the same key when its outcome is not known."""
        while True:
            try:
                connection = await AsyncConnection.connect()
                async with connection, connection.transaction():
                    answer = await ask(connection)
                return answer
            except psycopg.OperationalError:
                await asyncio.sleep(0.1 + sim().random.random() * 0.3)
