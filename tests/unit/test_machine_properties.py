"""Random graphs, random events: repeated, reordered, stale and forged ones, with a crash between any two of them.

Each sequence keeps a model of what Postgres would hold of the actions (timers, questions, hand-outs, attempts, grants,
parked tasks, dead letters) and of what nobody can know (whose effect may have happened), and compares it with the run
after every event. A failure prints a short sequence that shows it; where `CI` is
set the sequences are the same every time, elsewhere the failure prints what reproduces it.
"""

import os
from itertools import count
from typing import Any

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.expressions import OF_ITS_END, compile_condition, compile_template, compile_value
from headrace.machine import (
    Ask,
    AwaitSlot,
    BuryTask,
    CancelChild,
    Cancelled,
    ChildTold,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    CountRounds,
    Decided,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Grant,
    Isolated,
    KeepOutput,
    KeepSignal,
    Listen,
    MachineEvent,
    Migrated,
    NoteRound,
    Park,
    Paused,
    Plan,
    Prioritised,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    RunState,
    RunStatus,
    SetDeadline,
    SetTimer,
    Signalled,
    StartChild,
    StopListening,
    Supplied,
    TakeSignal,
    TakeSlot,
    TaskPlan,
    TaskState,
    TaskStatus,
    Terminated,
    Transition,
    Unpark,
    advance,
    begin,
    derive_status,
)
from headrace.machine.backoff import RetryPlan
from headrace.machine.plan import ChildPlan, Effect, Join, RepeatPlan, SignalPlan, WaitPlan
from headrace.machine.reason import NOTHING_FAILED, UPSTREAM_FAILED
from headrace.machine.status import PAUSED, PAUSES, RUN_TERMINAL, TERMINAL, TERMINATED, WORKFLOW_PAUSED
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded
from tests.unit.machine_model import (
    BRANCHING,
    BROKEN,
    DOUBTFUL,
    ELSEWHERE,
    HOPELESS,
    INPUT,
    KEY,
    NONCE,
    QUESTION,
    SECOND,
    SESSION,
    START,
    content,
    essence,
    picture,
    reload,
)
from tests.unit.machine_model import task as spec_of

SEQUENCES = 2_000
STEPS = 30
TASKS_MAX = 8
STEPS_TO_END_MAX = 200

NAMES = [f"t{index}" for index in range(TASKS_MAX)]
RETRIES = [
    RetryPlan(1),
    RetryPlan(2, "exponential", SECOND),
    RetryPlan(3, "linear", 3 * SECOND, jitter=1.0),
    RetryPlan(3, "fixed", 0),
]
ERRORS = [
    BROKEN,
    HOPELESS,
    Error("BUSY", "later", retry_after=60.0),
    Error("BUSY", "now", retry_after=0.0),
    DOUBTFUL,
    Error("TIMEOUT", "too slow"),
    Error("BAD_RESULT", "what is this", retryable=False, ambiguous=True),
]
OUTPUTS = [b'{"ok":true,"n":1}', b'{"ok":false,"n":2}', b"null"]
HAPPENED = b'{"happened":true,"output":{"ok":true,"n":1}}'
DID_NOT_HAPPEN = b'{"happened":false}'
VERDICTS = [HAPPENED, DID_NOT_HAPPEN, DID_NOT_HAPPEN, b'{"happened":null}', b"null", b"[1,2]"]
EFFECTS: list[Effect] = ["idempotent", "idempotent", "manual", "reconcile"]
# How a task that needs t<n> may depend on it; the third and the sixth cannot be evaluated when the output is null.
CONDITIONS: dict[str, list[Any]] = {
    name: [spec_of("x", condition=text).options["condition"] for text in ("true", "false", f"tasks.{name}.output.ok")]
    for name in NAMES
}
TEMPLATES: dict[str, list[Any]] = {
    name: [
        spec_of("x", template=value).options["template"]
        for value in ("${{ input }}", f"${{{{ tasks.{name}.output.n }}}}")
    ]
    for name in NAMES
}

WAITS = [
    *[None] * 5,
    SignalPlan("news"),
    SignalPlan("news", timeout=WaitPlan(length=5 * SECOND)),
    SignalPlan("olds", compile_template("${{ input.n }}"), WaitPlan(length=5 * SECOND), "complete"),
    WaitPlan(length=5 * SECOND),
    WaitPlan(until=START + 60 * SECOND),
    WaitPlan(value=compile_value("${{ now + duration('1m') }}")),
    ChildPlan("other"),
    ChildPlan("other", is_cancelled_with_task=False),
    ChildPlan("other", is_awaited=False, is_cancelled_with_task=False),
    WaitPlan(value=compile_value("${{ input.n }}")),  # which fails, also with the input of a replay
]
SIGNALS = [("news", None), ("news", None), ("news", "1"), ("olds", "1"), ("olds", None), ("olds", "2")]
LIMITS: list[dict[str, Any]] = [
    *[{}] * 5,
    {"deadline": WaitPlan(length=20 * SECOND, is_for=True)},
    {"start_within": 2 * SECOND},
    {"deadline": WaitPlan(length=20 * SECOND, is_for=True), "start_within": 2 * SECOND},
    {"repeat": RepeatPlan(compile_condition("output.ok", OF_ITS_END), 3, delay=SECOND)},  # null cannot be evaluated
    {"repeat": RepeatPlan(compile_condition("false"), 2, on_max="complete"), "start_within": 2 * SECOND},
]
JOINS: list[Join] = ["all", "all", "all", "all", "any", 2, "always", "on_failure"]

Sketch = tuple[
    int, int, int, bool, bool, int, bool, Effect, bool, Join, WaitPlan | SignalPlan | ChildPlan | None, bool,
    dict[str, Any],
]  # fmt: skip
# needs (a bit for each task before), condition (3: none), template (2: none), approval, body, retry, timeout, effect,
# exclusive, join, wait, signal or child (instead of all that concerns a body), pool, limits of that body
sketch = st.tuples(
    st.integers(0, 2**TASKS_MAX - 1),
    st.sampled_from([3, 3, 3, 3, 0, 1, 2, 2]),
    st.sampled_from([2, 2, 2, 0, 1]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([True, True, False]),
    st.integers(0, len(RETRIES) - 1),
    st.booleans(),
    st.sampled_from(EFFECTS),
    st.booleans(),
    st.sampled_from(JOINS),
    st.sampled_from(WAITS),
    st.sampled_from([False, False, True]),
    st.sampled_from(LIMITS),
)
which = st.integers(0, 2**16)
OF_A_RUN = (Reran, Migrated, Cancelled, Terminated, Isolated, Released, Paused, Resumed, Signalled, Prioritised)


def plan_of(sketches: list[Sketch]) -> Plan:
    tasks = []
    for index, sketched in enumerate(sketches):
        mask, condition, template, asks, has_body, retry, has_timeout, effect, exclusive, join, wait = sketched[:11]
        pooled, limits = sketched[11:]
        needs = tuple(need for need in range(index) if mask >> need & 1)
        source = NAMES[needs[-1]] if needs else ""
        asks = asks and wait is None
        runs = wait is None and (has_body or not asks)
        tasks.append(
            TaskPlan(
                index,
                NAMES[index],
                run="body" if runs else None,
                needs=needs,
                retry=RETRIES[retry],
                timeout=10.0 if has_timeout else None,
                approval=None if not asks else BRANCHING if has_timeout else QUESTION,
                condition=CONDITIONS[source][condition] if source and condition < 3 else None,
                template=TEMPLATES[source][template] if source and template < 2 else None,
                exclusive=exclusive and runs,
                effect=effect if runs else "idempotent",
                lookup="lookup" if runs and effect == "reconcile" else None,
                join="all" if not needs or (isinstance(join, int) and join > len(needs)) else join,
                wait=wait if isinstance(wait, WaitPlan) else None,
                signal=wait if isinstance(wait, SignalPlan) else None,
                pool="pool" if runs and pooled else None,
                **(limits if runs else {}),
                child=wait if isinstance(wait, ChildPlan) else None,
            )
        )
    return Plan("random", tasks)


def is_doubtful(before: TaskState, event: MachineEvent) -> bool:
    """Whether this ends an attempt that may have had its effect, without word of what became of it."""
    match event:
        case Lost():
            return event.begun is True or (before.status is TaskStatus.RUNNING and event.begun is not False)
        case Failed():
            return event.error.ambiguous or event.error.code == "TIMEOUT"
        case Returned():
            return event.begun
        case Due():
            return event.timer in ("timeout", "deadline") and before.status is TaskStatus.RUNNING
        case _:
            return False


def may_run(plan: Plan, run: RunState, index: int) -> bool | None:
    """What a task's join says now, told again in other words; None: it waits."""
    join, needs = plan.tasks[index].join, [run.task(need) for need in plan.tasks[index].needs]
    completed = sum(need.status is TaskStatus.COMPLETED for need in needs)
    failed = sum(need.status is TaskStatus.FAILED or need.error == UPSTREAM_FAILED for need in needs)
    are_over = all(need.status in TERMINAL for need in needs)
    if join == "all":
        return True if completed == len(needs) else False if failed or are_over else None
    if join == "always":
        return True if are_over else None
    if join == "on_failure":
        return bool(failed) if are_over else None
    quorum = join if isinstance(join, int) else 1
    return True if completed >= quorum else False if are_over else None


class Store:
    """What Postgres would hold of the actions. Every method refuses what a constraint would refuse."""

    def __init__(self) -> None:
        self.timers: dict[int, tuple[int, str, int]] = {}
        self.deadlines: dict[int, int] = {}
        self.rounds: dict[int, int] = {}
        self.questions: dict[int, int] = {}
        self.parked: dict[int, Error] = {}
        self.listening: dict[int, Listen] = {}
        self.in_line: dict[int, int] = {}
        """Tasks that wait for a slot, and under which token."""
        self.slots: dict[int, int] = {}
        """Those that have one: what the sweep has granted is here as soon as it is said."""
        self.children: dict[int, int] = {}
        """Task -> the token under which it has asked for a run last."""
        self.kept: set[str] = set()
        self.taken: set[str] = set()
        self.bodies: set[tuple[int, int]] = set()
        self.lookups: set[tuple[int, int]] = set()
        self.grants: dict[tuple[int, int], str] = {}
        self.attempts: dict[int, list[int]] = {}
        self.dead_letters: set[tuple[int, int]] = set()
        self.approved: set[int] = set()
        self.edited: dict[int, bytes] = {}
        self.in_doubt: set[int] = set()
        """Tasks with a policy whose effect may have happened, until somebody says what became of it."""
        self.told_done: set[int] = set()
        """Those of which a lookup or a person said that it happened."""

    def hear(self, plan: Plan, before: TaskState, event: MachineEvent) -> None:
        """What an event that moves its run says of an effect. before: the task that it names."""
        match event:
            case Replayed() if before.error is not None and before.error.code in ("REJECTED", "EXPIRED"):
                pass  # it is asked again, and its policy after that: a rejection says nothing of an effect
            case Decided() if event.outcome == "rejected":
                approval = plan.tasks[event.task].approval
                if approval is not None and approval.on_reject == "complete":
                    self.told_done.add(event.task)
            case Resolved() | Replayed() | Supplied():
                self.in_doubt.discard(event.task)
                if isinstance(event, Supplied):
                    self.told_done.add(event.task)
                if isinstance(event, Resolved) and event.outcome == "happened":
                    self.told_done.add(event.task)
            case Succeeded() if before.lookups and bytes(event.output) in (HAPPENED, DID_NOT_HAPPEN):
                self.in_doubt.discard(event.task)
                if bytes(event.output) == HAPPENED:
                    self.told_done.add(event.task)
            case Lost() | Failed() | Returned() | Due():
                if plan.tasks[event.task].effect != "idempotent" and not before.lookups and is_doubtful(before, event):
                    self.in_doubt.add(event.task)
            case _:
                pass

    def write(self, plan: Plan, run: RunState, transition: Transition) -> None:
        opened: set[int] = set()
        for action in transition.actions:
            match action:
                case Dispatch():
                    is_paused = transition.control & PAUSES > 0
                    self._hand_out(plan, transition.tasks[action.task], action, is_paused=is_paused)
                    opened.add(action.task)
                case Grant():
                    state = transition.tasks.get(action.task) or run.task(action.task)
                    assert (state.status, state.token) == (TaskStatus.RUNNING, action.token)
                    assert state.session == action.session, "granted to another than is recorded"
                    known = self.grants.setdefault((action.task, action.token), action.session)
                    assert known == action.session, "granted to two sessions"
                case EndAttempt():
                    assert action.task not in opened, "the next attempt was handed out before the last was closed"
                    assert (action.task, action.token) in self.bodies, "no body was handed out under this token"
                    numbers = self.attempts.setdefault(action.task, [])
                    numbers.append(action.attempt)
                    assert numbers[-1] == len(numbers), "a gap in the attempts"
                    assert action.attempt <= action.token
                case KeepOutput():
                    state = transition.tasks[action.task]
                    assert state.status is TaskStatus.COMPLETED
                    assert action.task in self.told_done, "done without an attempt, and nobody said so"
                    assert state.output == (action.output if plan.tasks[action.task].is_referenced else None)
                case SetTimer():
                    self.timers[action.task] = (action.token, action.kind, action.due_at)
                case ClearTimer():
                    assert action.task in self.timers
                    del self.timers[action.task]
                case SetDeadline():
                    self.deadlines.pop(action.task, None)
                    if action.due_at is not None:
                        self.deadlines[action.task] = action.due_at
                case CountRounds():
                    self.rounds[action.task] = action.rounds
                case NoteRound():
                    assert action.round == run.task(action.task).rounds
                    assert (action.task, action.token) in self.bodies
                case Ask():
                    assert not transition.control & PAUSES, "asked by a run that is paused"
                    assert action.task not in self.questions
                    self.questions[action.task] = action.token
                case CloseQuestion():
                    assert self.questions.pop(action.task) == action.token
                case Listen():
                    assert action.task not in self.listening
                    self.listening[action.task] = action
                case StopListening():
                    del self.listening[action.task]
                case AwaitSlot():
                    assert not transition.control & PAUSES, "a run that is paused waits for a slot"
                    assert action.task not in self.in_line | self.slots
                    self.in_line[action.task] = action.token
                case TakeSlot():
                    self.slots[action.task] = self.in_line.pop(action.task)
                case FreeSlot():
                    assert action.task in self.in_line | self.slots, "gave back what it did not have"
                    self.in_line.pop(action.task, None)
                    self.slots.pop(action.task, None)
                case StartChild():
                    assert not transition.control & PAUSES, "a run that is paused asks for another"
                    assert action.token > self.children.get(action.task, 0), "one hand-out asks for two runs"
                    state = transition.tasks[action.task]
                    assert (state.status, state.token) == (TaskStatus.WAITING, action.token)
                    assert action.input == self.edited.get(action.task, action.input), "an edited input was lost"
                    self.children[action.task] = action.token
                case CancelChild():
                    before = run.task(action.task)
                    assert (before.status, before.token) == (TaskStatus.WAITING, action.token), "it did not wait for it"
                    assert self.children[action.task] == action.token
                    assert transition.tasks[action.task].status in TERMINAL
                case KeepSignal():
                    assert action.signal_id not in self.kept | self.taken
                    self.kept.add(action.signal_id)
                case TakeSignal():
                    assert action.signal_id not in self.taken, "one signal completed two tasks"
                    state = transition.tasks[action.task]
                    assert (state.status, state.token) == (TaskStatus.COMPLETED, action.token)
                    self.kept.discard(action.signal_id)
                    self.taken.add(action.signal_id)
                case Park():
                    assert action.task not in self.parked
                    assert action.task in self.in_doubt, "parked, and nothing is in doubt"
                    assert (transition.tasks[action.task].token, action.error.code) == (action.token, "AMBIGUOUS")
                    self.parked[action.task] = action.error
                case Unpark():
                    del self.parked[action.task]
                case BuryTask():
                    assert (action.task, action.token) not in self.dead_letters, "one hand-out, two dead letters"
                    assert transition.tasks[action.task].error == action.error
                    self.dead_letters.add((action.task, action.token))
                case CloseLetter():
                    assert run.task(action.task).status is TaskStatus.FAILED
                    assert run.task(action.task).token == action.token
                case Finish():
                    after = transition.actions[transition.actions.index(action) + 1 :]
                    assert all(isinstance(each, SetDeadline | CountRounds | NoteRound) for each in after)
                    assert action.status is transition.status
                case _:
                    pass

    def _hand_out(self, plan: Plan, state: TaskState, action: Dispatch, *, is_paused: bool) -> None:
        spec, hand_out = plan.tasks[action.task], (action.task, action.token)
        assert hand_out not in self.bodies | self.lookups, "handed out twice under one token"
        assert not is_paused, "handed out by a run that is paused"
        assert (state.status, state.token) == (TaskStatus.QUEUED, action.token)
        assert spec.run is not None, "a question was handed out"
        assert spec.approval is None or action.task in self.approved, "handed out without its approval"
        assert action.input == self.edited.get(action.task, action.input), "an edited input was lost"
        assert action.lookup is (state.lookups > 0)
        assert action.round == (None if spec.repeat is None else state.rounds)
        if action.lookup:
            assert spec.effect == "reconcile"
            assert action.task in self.in_doubt, "looked up, and nothing is in doubt"
            assert action.attempt == state.attempt
            self.lookups.add(hand_out)
        else:
            assert self.slots.get(action.task) == (action.token if spec.pool else None), "it has no slot, or an old one"
            assert action.task not in self.in_doubt, "its effect may have happened, and it is tried again"
            assert action.attempt == state.attempt + 1
            self.bodies.add(hand_out)


class Runs(RuleBasedStateMachine):
    has_replayed = False
    supplied: set[int]
    is_sound = False  # until it was started; and again when a check has failed

    @initialize(sketches=st.lists(sketch, min_size=1, max_size=TASKS_MAX))
    def publish_and_start(self, sketches: list[Sketch]) -> None:
        self.plan = plan_of(sketches)
        self.run = RunState(KEY, self.plan, INPUT)
        self.at = START
        self.store = Store()
        self.said: list[MachineEvent] = []
        self.supplied = set()
        self.sent = count()
        self._accept(None, begin(self.plan, self.run, self.at))
        self.is_sound = True

    # -- what may happen -----------------------------------------------------------------------------------------------
    @rule(task=which, kind=which, choice=which)
    def the_next_thing_happens(self, task: int, kind: int, choice: int) -> None:
        """What a worker, a timer or a person would do now."""
        open_tasks = [index for index in range(len(self.plan.tasks)) if self._is_open(index)]
        if open_tasks:
            self._say(self._answer(open_tasks[task % len(open_tasks)], kind, choice))

    @rule(task=st.integers(-2, TASKS_MAX), kind=which, distance=st.sampled_from([0, 0, 0, -1, 1, 5]), choice=which)
    def anything_is_said(self, task: int, kind: int, distance: int, choice: int) -> None:
        token = (self.run.task(task).token if 0 <= task < len(self.plan.tasks) else 1) + distance
        self._say(self._any_event(task, token, kind, choice))

    @rule(index=which)
    def something_is_said_again(self, index: int) -> None:
        """A record comes twice, late, or in another order."""
        if self.said:
            event = self.said[index % len(self.said)]
            if isinstance(event, Signalled) and event.signal_id in self.store.taken:
                return  # its row says that it was applied; a rerun waits for another one
            self._say(event)

    @rule(task=which, is_early=st.sampled_from([False, False, True]), is_of_the_queue=st.booleans())
    def a_limit_is_over(self, task: int, is_early: bool, is_of_the_queue: bool) -> None:
        """A deadline, whatever is under way; or the time in the queue."""
        limited = sorted(self.store.deadlines)
        queued = [i for i, state in self.run.tasks.items() if state.status is TaskStatus.QUEUED and state.due_at]
        if is_of_the_queue and queued:
            index = queued[task % len(queued)]
            self._reach(self.run.task(index).due_at or 0, is_early=is_early)
            self._say(Due(index, self.run.task(index).token, NONCE, "start"))
        elif limited:
            index = limited[task % len(limited)]
            self._reach(self.store.deadlines[index], is_early=is_early)
            self._say(Due(index, 0, NONCE, "deadline"))

    def _reach(self, instant: int, *, is_early: bool) -> None:
        if not is_early:
            self.at = max(self.at, instant)

    @rule(which=st.sampled_from(SIGNALS), sent_at=st.integers(0, 9))
    def a_signal_is_sent(self, which: tuple[str, str | None], sent_at: int) -> None:
        self._say(self._signal(*which, sent_at))

    def _signal(self, name: str, key: str | None, sent_at: int) -> Signalled:
        return Signalled(f"signal-{next(self.sent)}", name, b"7", key, "ada", START + sent_at)

    @rule(seconds=st.sampled_from([1, 20, 4000]))
    def time_passes(self, seconds: int) -> None:
        self.at += seconds * SECOND

    @rule()
    def the_process_dies(self) -> None:
        self.run = reload(self.run)

    @precondition(lambda self: self.run.attention)
    @rule()
    def a_person_releases_the_run(self) -> None:
        self._say(Released("ada"))

    @precondition(lambda self: self.run.status in RUN_TERMINAL)
    @rule(task=which, is_of_what_failed=st.booleans(), is_old=st.sampled_from([False, False, True]))
    def what_has_ended_runs_again(self, task: int, is_of_what_failed: bool, is_old: bool) -> None:
        tasks = () if is_of_what_failed else (task % len(self.plan.tasks),)
        self._say(Reran(self.run.row_version - is_old, tasks, by="ada"))

    @rule(task=which, distance=st.sampled_from([0, 0, 0, 1, -1]))
    def a_task_is_given_its_output(self, task: int, distance: int) -> None:
        index = task % len(self.plan.tasks)
        self._say(Supplied(index, self.run.task(index).token + distance, OUTPUTS[task % len(OUTPUTS)], by="ada"))

    @rule(scope=st.sampled_from([PAUSED, PAUSED, WORKFLOW_PAUSED]), is_over=st.booleans())
    def the_run_is_paused_or_resumed(self, scope: int, is_over: bool) -> None:
        self._say(Resumed(scope, by="ada") if is_over else Paused(scope, by="ada"))

    @rule(task=which, edited=st.sampled_from([None, None, b'{"n":9}']))
    def a_dead_letter_is_replayed(self, task: int, edited: bytes | None) -> None:
        failed = [index for index, state in self.run.tasks.items() if state.status is TaskStatus.FAILED]
        if failed:
            index = failed[task % len(failed)]
            self._say(Replayed(index, self.run.task(index).token, "ada", edited))

    @rule(task=which, outcome=st.sampled_from(["happened", "did_not_happen", "did_not_happen", "fail", "approved"]))
    def a_person_resolves_a_parked_task(self, task: int, outcome: str) -> None:
        parked = [index for index, state in self.run.tasks.items() if state.is_parked]
        if parked:
            index = parked[task % len(parked)]
            token = self.run.task(index).token
            if outcome == "approved":  # which answers another question
                self._say(Decided(index, token, outcome))
            else:
                self._say(Resolved(index, token, outcome, OUTPUTS[task % len(OUTPUTS)], "ada"))

    def teardown(self) -> None:
        """However it stands, the run ends when everybody does their part."""
        if not self.is_sound:
            return
        if self.run.attention:
            self._say(Released("ada"))
        for scope in (WORKFLOW_PAUSED, PAUSED):
            self._say(Resumed(scope, by="ada"))
        for step in count():
            if self.run.status in RUN_TERMINAL:
                return
            assert step < STEPS_TO_END_MAX
            index = next(index for index in range(len(self.plan.tasks)) if self._is_open(index))
            self._say(self._answer(index, 0, 0))

    # -- events --------------------------------------------------------------------------------------------------------
    def _is_open(self, index: int) -> bool:
        state = self.run.task(index)
        return state.status not in TERMINAL and not state.is_untouched

    def _answer(self, index: int, kind: int, choice: int) -> MachineEvent:
        state = self.run.task(index)
        if state.is_parked:
            return Resolved(index, state.token, ("happened", "did_not_happen", "fail")[kind % 3], OUTPUTS[0], "ada")
        if state.awaits_slot:
            return Admitted(index, state.token, NONCE)
        signal = self.plan.tasks[index].signal
        if signal is not None and (state.due_at is None or kind % 2):
            return self._signal(signal.name, (None, "1")[choice % 2], choice % 10)
        is_asking = self.plan.tasks[index].child is not None and state.status is TaskStatus.WAITING
        if is_asking and (state.due_at is None or kind % 2):
            return self._of_a_child(index, state.token, choice)
        if state.status is TaskStatus.WAITING and state.due_at is not None:
            if kind % 4 < 3:
                self.at = max(self.at, state.due_at)
            return Due(index, state.token, NONCE, "wait")
        if state.status is TaskStatus.WAITING:
            return Decided(index, state.token, ("approved", "approved", "rejected", "expired")[kind % 4])
        if state.withheld:
            return Resumed((PAUSED, WORKFLOW_PAUSED)[kind % 2])
        if state.status is TaskStatus.PENDING:
            if kind % 4 < 3:  # otherwise a sweep says it too early
                self.at = max(self.at, state.due_at or 0)
            return Due(index, state.token, NONCE, ("backoff", "repeat")[choice % 2])
        return self._from_a_worker(index, state.token, kind, choice)

    def _of_a_child(self, task: int, token: int, choice: int) -> ChildTold:
        outcome = ("completed", "completed", "failed", "cancelled", "refused", "started")[choice % 6]
        error = HOPELESS if outcome == "refused" or choice % 11 == 1 else None
        return ChildTold(task, token, "run-2", outcome, OUTPUTS[choice % len(OUTPUTS)], error)

    def _from_a_worker(self, task: int, token: int, kind: int, choice: int) -> MachineEvent:
        """Or from who speaks for it: its parent, a sweep."""
        is_lookup = 0 <= task < len(self.plan.tasks) and self.run.task(task).lookups > 0
        match kind % 10:
            case 0 | 1 | 2:
                outputs = VERDICTS if is_lookup else OUTPUTS
                return Succeeded(task, token, NONCE, output=msgspec.Raw(outputs[choice % len(outputs)]))
            case 3 | 4:
                return Failed(task, token, NONCE, ERRORS[choice % len(ERRORS)])
            case 5:
                return Started(task, token, NONCE, (SESSION, ELSEWHERE)[choice % 2])
            case 6 | 7:
                return Started(task, token, NONCE, (SESSION, ELSEWHERE)[choice % 2], claim=True)
            case 8:
                begun, session = (None, True, False)[choice % 3], ("", SESSION, ELSEWHERE)[choice // 3 % 3]
                return Lost(task, token, NONCE, begun=begun, session=session)
            case _:
                begun, session = choice % 2 == 0, ("", SESSION, ELSEWHERE)[choice // 2 % 3]
                return Returned(task, token, NONCE, begun=begun, session=session)

    def _any_event(self, task: int, token: int, kind: int, choice: int) -> MachineEvent:
        match kind % 30:
            case 0:
                return (Cancelled, Terminated)[choice % 2]("enough", "ada")
            case 1:
                return Isolated(BROKEN)
            case 2:
                return Released("ada")
            case 3 | 4 | 5:
                return Replayed(task, token, "ada")
            case 6 | 7:
                return Decided(task, token, ("approved", "rejected", "expired")[choice % 3])
            case 8 | 9 | 10:
                return Due(task, token, NONCE, "backoff")
            case 11 | 12:
                return Due(task, token, NONCE, ("timeout", "wait")[choice % 2])
            case 15:
                return Signalled(f"signal-{choice}", SIGNALS[choice % 6][0], b"7", None, "ada", START, task, token)
            case 18:
                return self._of_a_child(task, token, choice)
            case 13 | 14:
                return Resolved(task, token, ("happened", "did_not_happen", "fail")[choice % 3], OUTPUTS[0])
            case 16:
                return Admitted(task, token, NONCE)
            case 17:
                return Paused((PAUSED, WORKFLOW_PAUSED)[choice % 2], by="ada")
            case _:
                return self._from_a_worker(task, token, choice, kind)

    # -- what must hold ------------------------------------------------------------------------------------------------
    def _say(self, event: MachineEvent) -> None:
        self.is_sound = False
        self.said.append(event)
        before = picture(self.run)
        transition = advance(self.plan, self.run, event, self.at)
        assert picture(self.run) == before, "advance changed the run"
        assert content(advance(self.plan, reload(self.run), event, self.at)) == content(transition), "memory matters"
        if transition is not None:
            self._check_current(event)
            self._accept(event, transition)
            self._check_said_again(event)
        self.is_sound = True

    def _check_said_again(self, event: MachineEvent) -> None:
        again = advance(self.plan, self.run, event, self.at)
        if isinstance(event, Started) and event.claim and not self.run.task(event.task).withheld:
            # An answer may get lost, so it is given each time.
            assert again is not None
            assert not again.tasks
            assert [type(action) for action in again.actions] == [Grant]
        else:
            assert again is None, "twice is not once"

    def _check_current(self, event: MachineEvent) -> None:
        """Only what the run waits for may move it."""
        if isinstance(event, Cancelled | Terminated):
            return
        assert self.run.attention is isinstance(event, Released)
        if isinstance(event, Isolated | Released | Signalled | Paused | Resumed | Migrated | Prioritised):
            return
        if isinstance(event, Reran):
            assert self.run.status in RUN_TERMINAL
            assert event.row_version == self.run.row_version
            return
        assert event.task in range(len(self.plan.tasks))
        if isinstance(event, Due) and event.timer == "deadline":
            assert self.store.deadlines[event.task] <= self.at, "a deadline passed early"
            return
        assert event.token == self.run.task(event.task).token, "a stale token moved the run"
        state = self.run.task(event.task)
        if isinstance(event, Lost | Returned) and state.session and not event.begun:
            assert event.session in ("", state.session), "one worker ended what another runs"
        if isinstance(event, Due):
            token, kind, due_at = self.store.timers[event.task]
            going_on = ("backoff", "repeat")
            assert token == event.token
            assert kind == event.timer or (kind in going_on and event.timer in going_on)
            assert due_at <= self.at, "a timer fired early"

    def _accept(self, event: MachineEvent | None, transition: Transition) -> None:
        before = {index: self.run.task(index) for index in transition.tasks}
        was_terminal = self.run.status in RUN_TERMINAL
        if isinstance(event, Decided):
            assert self.store.questions.pop(event.task) == event.token
            if event.outcome == "approved":
                self.store.approved.add(event.task)
            elif event.outcome == "rejected":  # which some take for an answer
                self.store.told_done.add(event.task)
        self.has_replayed |= isinstance(event, Replayed | Reran | Supplied)
        if isinstance(event, Reran):
            self._run_again(event, transition)
        if isinstance(event, Supplied):
            self.supplied.add(event.task)
        if isinstance(event, Replayed) and event.input is not None:
            self.store.edited[event.task] = event.input
        if event is not None and not isinstance(event, OF_A_RUN):
            self.store.hear(self.plan, self.run.task(event.task), event)
        for action in transition.actions:
            if isinstance(action, CountRounds):  # what an operator gave it was for one round
                self.store.edited.pop(action.task, None)
        self.store.write(self.plan, self.run, transition)
        self.run.apply(transition)
        for index, state in transition.tasks.items():
            self._check_step(event, index, before[index], state, transition)
            if state.status is TaskStatus.COMPLETED:  # should it run again, its input is rendered anew
                self.store.edited.pop(index, None)
        assert (transition.status in RUN_TERMINAL and (not was_terminal or isinstance(event, Reran))) == any(
            isinstance(action, Finish) for action in transition.actions
        )
        assert not was_terminal or isinstance(event, Replayed | Reran | Supplied)
        self._check_run()

    def _run_again(self, event: Reran, transition: Transition) -> None:
        """What may have had its effect is in doubt from here on, and what was approved is not approved any more."""
        for index, after in transition.tasks.items():
            before, spec = self.run.task(index), self.plan.tasks[index]
            is_tried_again = before.status is TaskStatus.FAILED and (
                after.awaits_slot or (after.status is TaskStatus.QUEUED and not after.lookups)
            )
            self.store.in_doubt.discard(index)
            self.supplied.discard(index)
            if spec.effect != "idempotent" and before.attempt and not is_tried_again:
                self.store.in_doubt.add(index)
            if index not in event.tasks and event.tasks:
                self.store.edited.pop(index, None)
            if (
                not is_tried_again
                and after.status is not TaskStatus.QUEUED
                and not after.awaits_slot
                and spec.approval is not None
            ):
                self.store.approved.discard(index)

    def _check_step(
        self, event: MachineEvent | None, index: int, before: TaskState, after: TaskState, transition: Transition
    ) -> None:
        assert after.token >= before.token, "a token fell"
        assert after.attempt >= before.attempt
        if before.status in TERMINAL:
            assert isinstance(event, Replayed | Reran | Supplied), "a terminal state was left"
            if isinstance(event, Reran):
                assert after.status not in TERMINAL or after.token >= before.token
            elif isinstance(event, Supplied) and index == event.task:
                assert (before.status, after.status) == (TaskStatus.FAILED, TaskStatus.COMPLETED)
            elif index == event.task:
                assert before.status is TaskStatus.FAILED
                assert after.token > before.token or after.withheld
            else:
                assert before.status is TaskStatus.SKIPPED
                assert before.error == UPSTREAM_FAILED
                has_ended = transition.tasks[event.task].status in TERMINAL
                assert has_ended or after.is_untouched, "what came back went on before its need had ended"

    def _check_run(self) -> None:
        run, plan = self.run, self.plan
        assert essence(reload(run)) == essence(run)
        counts: dict[TaskStatus, int] = {}
        for state in run.tasks.values():
            if state.is_untouched:
                continue
            counts[state.status] = counts.get(state.status, 0) + 1
        assert run.status is derive_status(len(plan.tasks), counts, attention=run.attention, control=run.control)
        for index in range(len(plan.tasks)):
            self._check_task(index, run.task(index))
        in_line = {index: state.token for index, state in run.tasks.items() if state.awaits_slot}
        holders = {index: state.token for index, state in run.tasks.items() if state.pool and not state.awaits_slot}
        assert (self.store.in_line, self.store.slots) == (in_line, holders), "a slot was lost, or kept"
        assert self.store.timers.keys() == {index for index, state in run.tasks.items() if state.due_at is not None}
        deadlines = {index: state.deadline_at for index, state in run.tasks.items() if state.deadline_at is not None}
        assert self.store.deadlines == deadlines
        waiting = {index: state for index, state in run.tasks.items() if state.status is TaskStatus.WAITING}
        waiting = {index: state for index, state in waiting.items() if not state.awaits_slot}
        asked = {i: s for i, s in waiting.items() if s.error is None and plan.tasks[i].approval is not None}
        assert self.store.questions == {i: state.token for i, state in asked.items()}
        assert self.store.parked == {i: state.error for i, state in waiting.items() if state.error is not None}
        assert all(self.store.children[i] == s.token for i, s in waiting.items() if plan.tasks[i].child is not None)
        self._check_signals({i: state for i, state in waiting.items() if plan.tasks[i].signal is not None})
        assert run.status in RUN_TERMINAL or any(self._is_open(index) for index in run.tasks), "nothing will wake it"
        assert run.attention is (run.status is RunStatus.NEEDS_ATTENTION)
        assert (run.status is RunStatus.TERMINATED) == (run.control & TERMINATED > 0)
        assert not (run.control & PAUSES and run.status in RUN_TERMINAL), "paused, and it has ended"

    def _check_signals(self, listening: dict[int, TaskState]) -> None:
        assert self.run.signals.keys() == self.store.kept
        assert self.store.listening.keys() == listening.keys()
        for index, state in listening.items():
            waits = self.store.listening[index]
            assert waits.token == state.token
            for signal in self.run.signals.values():
                is_meant = signal.name == waits.name and signal.key in (None, waits.key)
                assert not is_meant, "a task waits beside the signal that is kept for it"

    def _check_task(self, index: int, state: TaskState) -> None:
        ended = len(self.store.attempts.get(index, ()))
        is_running = state.status is TaskStatus.RUNNING and not state.lookups  # a lookup is no attempt
        assert state.attempt == ended + is_running, "an attempt is not accounted for"
        assert state.lookups <= self.plan.tasks[index].retry.attempts, "looked up more often than the policy says"
        if state.lookups:
            assert index in self.store.in_doubt
            assert state.error is not None, "what is not known was forgotten"
        if state.status is not TaskStatus.RUNNING:
            assert not state.session, "held by somebody although nobody runs it"
        if index in self.store.in_doubt:
            is_asked = state.status is TaskStatus.WAITING and self.plan.tasks[index].approval is not None
            is_to_come = state.is_untouched or state.withheld or is_asked
            is_kept = state.lookups or state.is_parked or state.status in TERMINAL
            assert is_kept or is_to_come, "an ambiguous end was forgotten"
        assert state.attempt <= state.token
        repeat = self.plan.tasks[index].repeat
        assert state.rounds == self.store.rounds.get(index, 0) <= (0 if repeat is None else repeat.max)
        assert 0 <= state.attempt - state.retries_from <= self.plan.tasks[index].retry.attempts, "more than the policy"
        may_it = may_run(self.plan, self.run, index)
        match state.status:
            case TaskStatus.PENDING if state.withheld:
                assert self.run.control & PAUSES, "withheld, and nothing pauses the run"
            case TaskStatus.PENDING if state.due_at is None:
                assert state.is_untouched
                assert may_it is None, "a join is stuck"
            case TaskStatus.PENDING:
                assert self.store.timers[index][1] in ("backoff", "repeat")
                assert self.store.timers[index] == (state.token, self.store.timers[index][1], state.due_at)
            case TaskStatus.QUEUED if state.due_at is not None:
                assert self.store.timers[index] == (state.token, "start", state.due_at)
                assert (index, state.token) in self.store.bodies
            case TaskStatus.WAITING if state.due_at is not None:
                spec = self.plan.tasks[index]
                assert any(what is not None for what in (spec.wait, spec.signal, spec.child))
                assert self.store.timers[index] == (state.token, "wait", state.due_at)
            case TaskStatus.RUNNING if state.due_at is not None:
                assert self.store.timers[index] == (state.token, "timeout", state.due_at)
            case TaskStatus.WAITING if state.awaits_slot:
                assert self.plan.tasks[index].pool is not None
            case TaskStatus.QUEUED | TaskStatus.RUNNING:
                assert bool(state.pool) is (self.plan.tasks[index].pool is not None and not state.lookups)
                assert (index, state.token) in (self.store.lookups if state.lookups else self.store.bodies)
            case TaskStatus.SKIPPED:
                assert state.error is not None
                assert state.error.code == "CONDITION_FALSE" or may_it is False
                assert (state.error == NOTHING_FAILED) <= (self.plan.tasks[index].join == "on_failure")
            case _:
                pass
        if state.withheld or state.status not in (TaskStatus.PENDING, TaskStatus.SKIPPED, TaskStatus.CANCELLED):
            # What has begun stays, also when a replay took back what it began because of.
            is_given = state.status is TaskStatus.COMPLETED and index in self.supplied  # whatever its needs are
            assert may_it or is_given or (self.has_replayed and self.plan.tasks[index].join in ("always", "on_failure"))


TestRandomRuns = Runs.TestCase
TestRandomRuns.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize="CI" in os.environ,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # to explain takes minutes
    suppress_health_check=[HealthCheck.too_slow],
)
