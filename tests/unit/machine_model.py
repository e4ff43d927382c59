"""Small plans for the tests of the machine, and one run that is told events.

    trial = Trial(task("a"), task("b", "a"))      # b needs a
    trial.succeed("a")                            # the current hand-out of a ends well
    assert trial.states == {"a": "completed", "b": "queued"}

Whatever a trial tells its run, it asks twice: `advance` must answer the same, and must leave the run as it was.
"""

from typing import Any, Literal, NamedTuple

import msgspec

from headrace.expressions import OF_A_COMPENSATION, OF_A_ROUND, OF_AN_ITEM, compile_condition, compile_template
from headrace.machine import (
    Action,
    Cancelled,
    ChildTold,
    Decided,
    Isolated,
    MachineEvent,
    Migrated,
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
from headrace.machine.place import RUN, compensation_of
from headrace.machine.plan import (
    ApprovalPlan,
    ChildPlan,
    Effect,
    Failures,
    Join,
    LimitPlan,
    MapPlan,
    PoolPlan,
    RepeatPlan,
    SignalPlan,
    WaitPlan,
)
from headrace.machine.run_state import ItemCounts
from headrace.machine.status import AWAITS_PERMIT, PAUSED, RUN_TERMINAL, TASKS_PAUSED, TERMINAL
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded

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
BRANCHING = ApprovalPlan("May it go on?", ("lead",), None, "fail", on_reject="complete")


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
    asks: bool | ApprovalPlan = False,
    condition: str | None = None,
    template: object = None,
    exclusive: bool = False,
    effect: Effect = "idempotent",
    join: Join = "all",
    wait: WaitPlan | None = None,
    signal: SignalPlan | None = None,
    child: ChildPlan | None = None,
    over: object = None,
    failures: Failures = "fail_fast",
    max_parallel: int = 1_000,
    pool: str | None = None,
    fairness_key: str | None = None,
    deadline: int | None = None,
    start_within: int | None = None,
    repeat: RepeatPlan | None = None,
    undo: str | None = None,
    undo_with: object = None,
    was: str = "",
) -> Spec:
    """One task of a plan. asks: it has an approval, or this one; with `run=None` it is nothing else. timeout: seconds.
    Under `effect="reconcile"` it has a lookup. over: it is a map.
    deadline, start_within: microseconds. undo: the body of its compensation, and undo_with what
    it is given."""
    variables = OF_AN_ITEM if over else OF_A_ROUND if repeat else ()
    options = {
        "was": was,
        "run": run,
        "retry": retry,
        "timeout": timeout,
        "approval": asks if isinstance(asks, ApprovalPlan) else QUESTION if asks else None,
        "condition": None if condition is None else compile_condition(condition),
        "template": None if template is None else compile_template(template, variables),
        "exclusive": exclusive,
        "effect": effect,
        "lookup": "lookup" if effect == "reconcile" else None,
        "join": join,
        "wait": wait,
        "signal": signal,
        "deadline": None if deadline is None else WaitPlan(length=deadline, is_for=True),
        "start_within": start_within,
        "repeat": repeat,
        "child": child,
        "map": None if over is None else MapPlan(compile_template(over), max_parallel, failures),
        "pool": None
        if pool is None
        else PoolPlan(
            pool, None if fairness_key is None else compile_template(fairness_key, OF_AN_ITEM if over else ())
        ),
        "compensation": None
        if undo is None
        else TaskPlan(
            0,
            name,
            run=undo,
            retry=retry,
            timeout=timeout,
            template=None if undo_with is None else compile_template(undo_with, OF_A_COMPENSATION),
        ),
    }
    return Spec(name, needs, options)


def plan_of(
    *specs: Spec,
    output: object = None,
    deadline: int | None = None,
    version_id: int = 0,
    limit: LimitPlan | None = None,
) -> Plan:
    index = {spec.name: position for position, spec in enumerate(specs)}
    return Plan(
        "trial",
        [
            TaskPlan(index[name], name, needs=tuple(index[need] for need in needs), **options)
            for name, needs, options in specs
        ],
        version=version_id + 1,
        version_id=version_id,
        output=None if output is None else compile_template(output),
        deadline=deadline,
        limit=limit,
    )


def picture(run: RunState) -> tuple[Any, ...]:
    """All of a run, as a value that shares nothing mutable with it."""
    return (
        run.key, run.plan, run.input, run.row_version, run.attention, run.control, run.status,
        dict(run.tasks), dict(run.counts), dict(run.missing), dict(run.wanted), dict(run.signals),
        dict(run.maps), run.deadline_at, run.compensations, run.paused, dict(run.undo),
    )  # fmt: skip


def content(transition: Transition | None) -> tuple[Any, ...] | None:
    """All of a transition, as a value."""
    if transition is None:
        return None
    counts = {status: count for status, count in transition.counts.items() if count}
    maps = {index: still_to_come(counts) for index, counts in (transition.maps or {}).items()}
    return (
        transition.tasks, transition.missing, transition.wanted, counts, transition.attention, transition.control,
        transition.status, transition.actions, transition.kept, list(transition.taken), maps, transition.plan,
        transition.deadlines, transition.rounds, transition.compensations, transition.paused,
        transition.undo,
    )  # fmt: skip


def still_to_come(counts: ItemCounts) -> ItemCounts:
    """How far a map has come, without what memory alone knows: which of the items that ran again had begun before."""
    return msgspec.structs.replace(counts, again=counts.again[counts.again_from :], again_from=0)


def reload(run: RunState) -> RunState:
    """The run as a process finds it that has only what Postgres holds."""
    return RunState(
        run.key, run.plan, run.input, row_version=run.row_version, attention=run.attention, control=run.control,
        tasks=dict(run.tasks), signals=sorted(run.signals.values(), key=lambda signal: signal.order),
        deadline_at=run.deadline_at, paused=run.paused, undo=run.undo,
    )  # fmt: skip


def essence(run: RunState) -> tuple[Any, ...]:
    """What two memories of one run must agree on. What a task misses counts only until it is decided."""
    missing = {
        spec.index: (
            run.missing.get(spec.index, len(spec.needs)),
            None if spec.quorum is None else run.wanted.get(spec.index, spec.quorum),  # of another version, maybe
        )
        for spec in run.plan.tasks
        if run.task(spec.index).is_untouched and not spec.is_chained
    }
    if run.compensations is not None and run.status not in RUN_TERMINAL:
        missing |= {place: (run.missing[place], None) for place in map(compensation_of, range(len(run.plan.tasks)))}
    counts = {status: count for status, count in run.counts.items() if count}
    maps = {
        index: still_to_come(counts) for index, counts in run.maps.items() if run.tasks[index].status not in TERMINAL
    }
    flags = (run.status, run.attention, run.control, run.deadline_at, run.paused, run.undo)
    return *flags, run.tasks, counts, missing, run.signals, maps, run.compensations


class Trial:
    """One run, and the instant at which it stands. `told` are the actions of its last transition, `actions` of all."""

    def __init__(
        self, *specs: Spec, input: bytes = INPUT, output: object = None, deadline: int | None = None,
        limit: LimitPlan | None = None, control: int = 0,
    ) -> None:  # fmt: skip
        """control: with which it begins."""
        self.plan = plan_of(*specs, output=output, deadline=deadline, limit=limit)
        self.run = RunState(KEY, self.plan, input, control=control)
        self.at = START
        self.actions: list[Action] = []
        self.told: list[Action] = []
        self.changed: set[str] = set()
        before = picture(self.run)
        self._apply(begin(self.plan, self.run, self.at))
        assert before == picture(RunState(KEY, self.plan, input, control=control))

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
        self.actions += transition.actions
        self.run.apply(transition)
        self.plan = self.run.plan  # another version, once it was migrated
        self.changed = {self.plan.name_of(index) for index in transition.tasks}

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

    def pass_deadline(self, name: str | None = None) -> bool:
        """Let time pass until the deadline of the task, or of the run, and say so."""
        place = RUN if name is None else self.place(name)
        deadline_at = self.run.deadline_at if name is None else self.state(name).deadline_at
        self.at = max(self.at, deadline_at or 0)
        return self.tell(Due(place, 0, NONCE, "deadline"))

    def decide(self, name: str, outcome: str, by: str = "", comment: str = "") -> bool:
        return self.tell(Decided(self.place(name), self.token(name), outcome, by, comment))

    def admit(self, name: str) -> bool:
        """Give it the slot of its pool that it waits for."""
        return self.tell(Admitted(self.place(name), self.token(name), NONCE))

    def replay(self, name: str, input: bytes | None = None) -> bool:
        return self.tell(Replayed(self.place(name), self.token(name), input=input))

    def signal(self, name: str, number: int = 1, data: bytes = b"null", key: str | None = None) -> bool:
        """Tell it the signal of that number; the numbers are the order in which they were sent."""
        return self.tell(Signalled(f"signal-{number}", name, data, key, "ada", START + number))

    def tell_child(self, name: str, outcome: str, output: bytes = b"null", error: Error | None = None) -> bool:
        """Tell it what became of the child that the task waits for."""
        return self.tell(ChildTold(self.place(name), self.token(name), "run-2", outcome, output, error))

    def cancel(self, reason: str = "") -> bool:
        return self.tell(Cancelled(reason))

    def terminate(self, reason: str = "") -> bool:
        return self.tell(Terminated(reason))

    def pause(self, scope: int = PAUSED) -> bool:
        return self.tell(Paused(scope, "to look", "ada"))

    def resume(self, scope: int = PAUSED) -> bool:
        return self.tell(Resumed(scope, "looked", "ada"))

    def permit(self) -> bool:
        """Give it the permit that it waits for under the limit of its workflow."""
        return self.tell(Resumed(AWAITS_PERMIT))

    def pause_task(self, name: str) -> bool:
        return self.tell(Paused(TASKS_PAUSED, "to look", "ada", self.place(name)))

    def resume_task(self, name: str) -> bool:
        return self.tell(Resumed(TASKS_PAUSED, "looked", "ada", self.place(name)))

    def migrate(self, *specs: Spec, version_id: int = 1, limit: LimitPlan | None = None) -> bool:
        """To a version with these tasks; answers whether it is on that now, and was not."""
        new = plan_of(*specs, version_id=version_id, limit=limit)
        is_told = self.tell(Migrated(new, "a better one", "ada"))
        return is_told and self.plan.version_id == version_id

    def isolate(self) -> bool:
        return self.tell(Isolated(BROKEN))

    def release(self) -> bool:
        return self.tell(Released())

    def restart(self) -> None:
        """Forget all but what Postgres holds."""
        before = essence(self.run)
        self.run = reload(self.run)
        assert essence(self.run) == before
