"""In place of a worker and its queues: commands, the bodies they call, and how a body ends without an answer."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal, TypeVar

import msgspec

from headrace.attempt import Answer, Attempt
from headrace.errors import ConfigurationError
from headrace.machine import Dispatch, Plan, TaskPlan
from headrace.machine.place import is_item, task_of
from headrace.messages import PAYLOAD_BYTES_MAX, Command, Lost, Started
from headrace.object_store import OBJECT_BYTES_MAX, ObjectStore
from headrace.registry import Registry
from headrace.testing.clock import Clock
from headrace.testing.run import Run
from headrace.worker.execution import Execution

_T = TypeVar("_T")
End = Literal["before", "after", "hang", "leave"]
"""How a body ends without an answer: its worker dies before it, or after it; it never ends; or it never begins."""
SESSION: Final = "harness"
"""The one worker session there is."""


class _VirtualAttempt(Attempt):
    """An attempt that begins by the clock of its harness."""

    __slots__ = ("_at",)

    def __init__(self, key: bytes, command: Command, at: int) -> None:
        super().__init__(key, command)
        self._at = at

    def begin(self) -> None:
        super().begin()
        self.started = self._at


class Worker:
    """It takes one command after the other, and answers in no virtual time."""

    def __init__(self, registry: Registry, plans: Iterable[Plan], clock: Clock) -> None:
        """Raises ConfigurationError when a plan names a body that is not there."""
        self._clock = clock
        self._objects = _objects()
        self._bodies = registry.prepare(PAYLOAD_BYTES_MAX if self._objects is None else OBJECT_BYTES_MAX)
        for plan in plans:
            self.check_bodies(plan)
        self._execution = Execution(SESSION, lambda: SESSION, None, self._objects)
        self._runner: asyncio.Runner | None = None
        self._commands: deque[tuple[Run, Dispatch]] = deque()
        self._ends: dict[tuple[str, int], deque[End]] = {}
        """By workflow and place."""

    def close(self) -> None:
        if self._runner is not None:
            self._apart(self._runner.close)
            self._runner = None

    def check_bodies(self, plan: Plan) -> None:
        """Raises ConfigurationError."""
        _check_bodies(plan, self._bodies)

    def plan_end(self, workflow: str, place: int, how: End) -> None:
        self._ends.setdefault((workflow, place), deque()).append(how)

    def hand_out(self, run: Run, action: Dispatch) -> None:
        self._commands.append((run, action))

    def work(self) -> bool:
        """Take one command; whether there was one."""
        if not self._commands:
            return False
        run, action = self._commands.popleft()
        if run.is_handed_out(action):
            self._carry_out(run, action)
        return True

    def _carry_out(self, run: Run, action: Dispatch) -> None:
        """Claim it where it must, run the body, and say what came of it."""
        plan = run.state.plan
        spec = plan.at(action.task)
        nonce = run.nonce(action.task, action.token)
        ends = self._ends.get((plan.name, action.task))
        if not ends and is_item(action.task):
            ends = self._ends.get((plan.name, task_of(action.task)))
        end = ends.popleft() if ends and not action.lookup else None
        claim = spec.claims and not action.lookup
        if end == "leave":
            return
        if claim or end is not None:
            run.tell(Started(action.task, action.token, nonce, SESSION, SESSION, claim=claim))
        if end == "hang":
            return
        answer = None if end == "before" else self._call(run, spec, action, nonce)
        if answer is None or end is not None:
            run.tell(Lost(action.task, action.token, nonce, "its worker died", begun=True))
        else:
            run.tell(answer)

    def _call(self, run: Run, spec: TaskPlan, action: Dispatch, nonce: str) -> Answer:
        name, plan = (spec.lookup if action.lookup else spec.run) or "", run.state.plan
        command = Command(
            action.task, plan.name_of(action.task), name, action.attempt, action.token, nonce,
            msgspec.Raw(action.input), timeout=spec.timeout, exclusive=spec.exclusive,
            inline=spec.is_read or action.lookup, lookup=action.lookup, round=action.round,
            effect_name=spec.was and plan.effect_name_of(action.task), workflow=plan.name, version=plan.version,
        )  # fmt: skip
        attempt = _VirtualAttempt(run.run_id.encode(), command, self._clock.at)
        body = attempt.body = self._bodies[name]
        if not body.is_async:
            return self._execution.attend_in_thread(attempt)
        return self._apart(lambda: self._loop().run(self._execution.attend(attempt)))

    def value(self, run: Run, raw: bytes) -> Any:
        """A result as the body returned it, also one that is too large for a message."""
        return msgspec.json.decode(raw if self._objects is None else self._objects.fill(run.run_id, raw))

    def _loop(self) -> asyncio.Runner:
        self._runner = self._runner or asyncio.Runner()
        return self._runner

    def _apart(self, act: Callable[[], _T]) -> _T:
        """Do it here; or in another thread, where an event loop runs here already: that of an async test."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return act()
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(act).result()


def _objects() -> ObjectStore | None:
    try:
        return ObjectStore("memory:///", above=PAYLOAD_BYTES_MAX)
    except ConfigurationError:  # without `headrace[objects]` large results are refused, as by a worker without a store
        return None


def _check_bodies(plan: Plan, bodies: Mapping[str, object]) -> None:
    specs = [*plan.tasks, *(spec.compensation for spec in plan.tasks if spec.compensation is not None)]
    named = {name: spec.name for spec in specs for name in (spec.run, spec.lookup) if name is not None}
    if missing := sorted(named.keys() - bodies.keys()):
        tasks = ", ".join(f"{name} (task {named[name]})" for name in missing)
        raise ConfigurationError(f"no body is registered for {tasks}; known are {', '.join(sorted(bodies)) or 'none'}")
