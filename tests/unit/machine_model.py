"""Small plans for the tests of the machine, and one run that is told events.

    trial = Trial(task("a"), task("b", "a"))      # b needs a
    trial.succeed("a")                            # the current hand-out of a ends well
    assert trial.states == {"a": "completed", "b": "queued"}

Whatever a trial tells its run, it asks twice: `advance` must answer the same, and must leave the run as it was.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from headrace.expressions import OF_AN_ITEM, compile_condition, compile_template
from headrace.machine import (
    Action,
    Cancelled,
    Decided,
    Isolated,
    MachineEvent,
    Paused,
    Plan,
    Released,
    Replayed,
    Resolved,
    Resumed,
    RunState,
    RunStatus,
    Signalled,
    TaskPlan,
    TaskState,
    Terminated,
    Transition,
    advance,
    begin,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.plan import ApprovalPlan, Effect, Failures, Join, MapPlan, SignalPlan, WaitPlan
from headrace.machine.status import PAUSED, TERMINAL
from headrace.messages import Due, Error, Failed, Lost, Returned, Started, Succeeded

KEY = b"01890a5d-ac96-774b-bcce-b302099a8057"
INPUT = b'{"n":1}'
START = 1_800_000_000_000_000
SECOND = 1_000_000
NONCE = "of no interest to the machine"
SESSION, ELSEWHERE = "session-1", "session-2"
BROKEN = Error("ERROR", "it broke")
DOUBTFUL = Error("ERROR", "it broke in the middle of its effect", ambiguous=True)
HOPELESS = Error("ERROR", "it can never work", retryable=False)
STEADY = RetryPlan(attempts=3, backoff="fixed", delay=SECOND, jitter=0.0)
"""Three attempts, exactly a second apart."""
QUESTION = ApprovalPlan("May it go on?", ("lead",), None, "fail")


class Spec(NamedTuple):
    name: str
    needs: tuple[str, ...]
    options: dict[str, Any]


def task(
    name: str,
    *needs: str,
    run: str | None = "body",
    retry: RetryPlan = STEADY,
    timeout: float | None = None,
    asks: bool = False,
    condition: str | None = None,
    template: object = None,
    exclusive: bool = False,
    effect: Effect = "idempotent",
    join: Join = "all",
    wait: WaitPlan | None = None,
    signal: SignalPlan | None = None,
    over: object = None,
    failures: Failures = "fail_fast",
    max_parallel: int = 1_000,
) -> Spec:
    """One task of a plan. asks: it has an approval; with `run=None` it is nothing else. timeout: seconds. Under
    `effect="reconcile"` it has a lookup. over: it is a map."""
    options = {
        "run": run,
        "retry": retry,
        "timeout": timeout,
        "approval": QUESTION if asks else None,
        "condition": None if condition is None else compile_condition(condition),
        "template": None if template is None else compile_template(template, OF_AN_ITEM if over else ()),
        "exclusive": exclusive,
        "effect": effect,
        "lookup": "lookup" if effect == "reconcile" else None,
        "join": join,
        "wait": wait,
        "signal": signal,
        "map": None if over is None else MapPlan(compile_template(over), max_parallel, failures),
    }
    return Spec(name, needs, options)


def plan_of(*specs: Spec, output: object = None) -> Plan:
    index = {spec.name: position for position, spec in enumerate(specs)}
    return Plan(
        "trial",
        [
            TaskPlan(index[name], name, needs=tuple(index[need] for need in needs), **options)
            for name, needs, options in specs
        ],
        output=None if output is None else compile_template(output),
    )


def picture(run: RunState) -> tuple[Any, ...]:
    """All of a run, as a value that shares nothing mutable with it."""
    return (
        run.key, run.plan, run.input, run.row_version, run.attention, run.control, run.status,
        dict(run.tasks), dict(run.counts), dict(run.missing), dict(run.wanted), dict(run.signals),
        dict(run.maps),
    )  # fmt: skip


def content(transition: Transition | None) -> tuple[Any, ...] | None:
    """All of a transition, as a value."""
    if transition is None:
        return None
    counts = {status: count for status, count in transition.counts.items() if count}
    return (
        transition.tasks, transition.missing, transition.wanted, counts, transition.attention, transition.control,
        transition.status, transition.actions, transition.kept, list(transition.taken), transition.maps,
    )  # fmt: skip


def reload(run: RunState) -> RunState:
    """The run as a process finds it that has only what Postgres holds."""
    return RunState(
        run.key, run.plan, run.input, row_version=run.row_version, attention=run.attention, control=run.control,
        tasks=dict(run.tasks), signals=sorted(run.signals.values(), key=lambda signal: signal.order),
    )  # fmt: skip


def essence(run: RunState) -> tuple[Any, ...]:
    """What two memories of one run must agree on. What a task misses counts only until it is decided."""
    missing = {
        spec.index: (run.missing.get(spec.index, len(spec.needs)), run.wanted.get(spec.index, spec.quorum))
        for spec in run.plan.tasks
        if run.task(spec.index).is_untouched and not spec.is_chained
    }
    counts = {status: count for status, count in run.counts.items() if count}
    maps = {index: counts for index, counts in run.maps.items() if run.tasks[index].status not in TERMINAL}
    return run.status, run.attention, run.control, run.tasks, counts, missing, run.signals, maps


class Trial:
    """One run, and the instant at which it stands. `told` are the actions of its last transition, `actions` of all."""

    def __init__(self, *specs: Spec, input: bytes = INPUT, output: object = None) -> None:
        self.plan = plan_of(*specs, output=output)
        self.run = RunState(KEY, self.plan, input)
        self.at = START
        self.actions: list[Action] = []
        self.told: list[Action] = []
        self.changed: set[str] = set()
        before = picture(self.run)
        self._apply(begin(self.plan, self.run, self.at))
        assert before == picture(RunState(KEY, self.plan, input))

    # -- what it is ----------------------------------------------------------------------------------------------------
    @property
    def states(self) -> dict[str, str]:
        return {spec.name: self.run.task(spec.index).status.value for spec in self.plan.tasks}

    @property
    def status(self) -> RunStatus:
        return self.run.status

    def state(self, name: str) -> TaskState:
        return self.run.task(self.place(name))

    def place(self, name: str) -> int:
        """Of a task, or of an item: `pages.17`."""
        place = self.plan.find(name)
        assert place is not None, name
        return place

    def items(self, name: str) -> list[str]:
        """The states of a map's items that have begun."""
        first = self.place(f"{name}.0")
        return [
            self.run.tasks[place].status.value for place in sorted(self.run.tasks) if first <= place < first + 10_000
        ]

    def token(self, name: str) -> int:
        return self.state(name).token

    # -- what it is told -----------------------------------------------------------------------------------------------
    def tell(self, event: MachineEvent) -> bool:
        """Tell the run an event at `at`; answers whether it changed anything."""
        before = picture(self.run)
        transition = advance(self.plan, self.run, event, self.at)
        assert picture(self.run) == before, "advance changed the run"
        assert content(advance(self.plan, self.run, event, self.at)) == content(transition), "advance is not a function"
        if transition is None:
            return False
        self._apply(transition)
        return True

    def _apply(self, transition: Transition) -> None:
        self.told = transition.actions
        self.changed = {self.plan.name_of(index) for index in transition.tasks}
        self.actions += transition.actions
        self.run.apply(transition)

    def start(self, name: str) -> bool:
        return self.tell(Started(self.place(name), self.token(name), NONCE, SESSION))

    def claim(self, name: str, session: str = SESSION) -> bool:
        return self.tell(Started(self.place(name), self.token(name), NONCE, session, claim=True))

    def succeed(self, name: str, output: bytes = b"null") -> bool:
        return self.tell(Succeeded(self.place(name), self.token(name), NONCE, output=msgspec.Raw(output)))

    def fail(self, name: str, error: Error = BROKEN) -> bool:
        return self.tell(Failed(self.place(name), self.token(name), NONCE, error))

    def give_back(self, name: str, *, begun: bool, session: str = "") -> bool:
        return self.tell(Returned(self.place(name), self.token(name), NONCE, begun, session=session))

    def lose(self, name: str, *, begun: bool | None = None, session: str = "") -> bool:
        """begun: as the parent of its worker knows; None: as a sweep finds it."""
        return self.tell(Lost(self.place(name), self.token(name), NONCE, begun=begun, session=session))

    def look_up(self, name: str, happened: bool | None, output: object = None) -> bool:
        """Let the task's lookup answer."""
        return self.succeed(name, msgspec.json.encode({"happened": happened, "output": output}))

    def resolve(
        self, name: str, outcome: Literal["happened", "did_not_happen", "fail"], output: bytes = b"null"
    ) -> bool:
        return self.tell(Resolved(self.place(name), self.token(name), outcome, output, "ada", "I looked"))

    def wait_for(self, name: str, timer: str = "backoff") -> bool:
        """Let time pass until the task's timer is due, and say so."""
        self.at = max(self.at, self.state(name).due_at or 0)
        return self.tell(Due(self.place(name), self.token(name), NONCE, timer))

    def decide(self, name: str, outcome: str, by: str = "", comment: str = "") -> bool:
        return self.tell(Decided(self.place(name), self.token(name), outcome, by, comment))

    def replay(self, name: str, input: bytes | None = None) -> bool:
        return self.tell(Replayed(self.place(name), self.token(name), input=input))

    def signal(self, name: str, number: int = 1, data: bytes = b"null", key: str | None = None) -> bool:
        """Tell it the signal of that number; the numbers are the order in which they were sent."""
        return self.tell(Signalled(f"signal-{number}", name, data, key, "ada", START + number))

    def cancel(self, reason: str = "") -> bool:
        return self.tell(Cancelled(reason))

    def terminate(self, reason: str = "") -> bool:
        return self.tell(Terminated(reason))

    def pause(self, scope: int = PAUSED) -> bool:
        return self.tell(Paused(scope, "to look", "ada"))

    def resume(self, scope: int = PAUSED) -> bool:
        return self.tell(Resumed(scope, "looked", "ada"))

    def isolate(self) -> bool:
        return self.tell(Isolated(BROKEN))

    def release(self) -> bool:
        return self.tell(Released())

    def restart(self) -> None:
        """Forget all but what Postgres holds."""
        before = essence(self.run)
        self.run = reload(self.run)
        assert essence(self.run) == before
