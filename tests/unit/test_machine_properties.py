"""Random graphs, random events: repeated, reordered, stale and forged ones, with a crash between any two of them.

Each sequence keeps a model of what Postgres would hold of the actions (timers, questions, hand-outs, attempts, grants,
parked tasks, dead letters) and of what nobody can know (whose effect may have happened), and compares it with the run
after every event. A failure prints a short sequence that shows it; where `CI` is
set the sequences are the same every time, elsewhere the failure prints what reproduces it. `HEADRACE_TEST_SEQUENCES`
is how many there are.
"""

import os
from itertools import count

import msgspec
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from headrace.machine import (
    Cancelled,
    ChildTold,
    CountRounds,
    Decided,
    Finish,
    Grant,
    Isolated,
    MachineEvent,
    Migrated,
    Paused,
    Prioritised,
    RefuseMove,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    RunState,
    RunStatus,
    Signalled,
    Supplied,
    TaskState,
    TaskStatus,
    Terminated,
    Transition,
    advance,
    begin,
    derive_status,
)
from headrace.machine.place import (
    ITEMS_MAX,
    RUN,
    compensation_of,
    is_compensation,
    is_item,
    items_of,
    place_of,
    task_of,
)
from headrace.machine.plan import LimitPlan, Plan
from headrace.machine.reason import NOTHING_FAILED, ROUNDS_OVER, UPSTREAM_FAILED
from headrace.machine.run_state import UNTOUCHED
from headrace.machine.status import (
    AWAITS_PERMIT,
    CANCELLING,
    PAUSED,
    RUN_TERMINAL,
    TASKS_PAUSED,
    TERMINAL,
    TERMINATED,
    WITHHOLDS,
    WORKFLOW_PAUSED,
    CompensationCounts,
)
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded
from tests.unit.machine_model import (
    BROKEN,
    DOUBTFUL,
    ELSEWHERE,
    HOPELESS,
    INPUT,
    KEY,
    NONCE,
    SECOND,
    SESSION,
    START,
    content,
    essence,
    picture,
    reload,
)
from tests.unit.machine_sketches import SIGNALS, SKETCHES, TASKS_MAX, WORKFLOWS, Sketch, plan_of
from tests.unit.machine_store import DID_NOT_HAPPEN, HAPPENED, Store

SEQUENCES = int(os.environ.get("HEADRACE_TEST_SEQUENCES", "2000"))
STEPS = 30
STEPS_TO_END_MAX = 1_000

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
VERDICTS = [HAPPENED, DID_NOT_HAPPEN, DID_NOT_HAPPEN, b'{"happened":null}', b"null", b"[1,2]"]
CHILD_OUTCOMES = [
    "completed", "completed", "failed", "cancelled", "refused", "started", "terminated", "compensated",
    "compensation_failed",
]  # fmt: skip
which = st.integers(0, 2**16)
ENDS_ANYHOW = ("always", "on_failure", "finally")
HELD_UP = (RunStatus.PAUSING, RunStatus.PAUSED, RunStatus.NEEDS_ATTENTION, RunStatus.COMPENSATING)
OF_A_RUN = (Reran, Migrated, Cancelled, Terminated, Isolated, Released, Paused, Resumed, Signalled, Prioritised)


def may_run(plan: Plan, run: RunState, index: int) -> bool | None:
    """What a task's join says now, told again in other words; None: it waits."""
    join, needs = plan.tasks[index].join, [run.task(need) for need in plan.tasks[index].needs]
    completed = sum(need.status is TaskStatus.COMPLETED for need in needs)
    failed = sum(
        need.status in (TaskStatus.FAILED, TaskStatus.CANCELLED) or need.error == UPSTREAM_FAILED for need in needs
    )
    are_over = all(need.status in TERMINAL for need in needs)
    if join == "all":
        return True if completed == len(needs) else False if failed or are_over else None
    if join in ("always", "finally"):
        return True if are_over else None
    if join == "on_failure":
        return bool(failed) if are_over else None
    quorum = join if isinstance(join, int) else 1
    return True if completed >= quorum else False if are_over else None


def is_failed_still(before: TaskState, after: TaskState) -> bool:
    has_failed = before.attempt > 0 and before.status in (TaskStatus.FAILED, TaskStatus.CANCELLED)
    return has_failed and msgspec.structs.replace(before, error=after.error) == after


class Runs(RuleBasedStateMachine):
    has_replayed = False
    supplied: set[int]
    replayed: set[int]
    floor = 0
    is_sound = False  # until it was started; and again when a check has failed

    @initialize(workflow=WORKFLOWS, permit=st.sampled_from([None, None, "held", "waits"]))
    def publish_and_start(self, workflow: tuple[list[Sketch], int | None, bool], permit: str | None) -> None:
        self.workflows = [workflow]
        """By the id of the version."""
        self.plan = plan_of(*workflow, limit=None if permit is None else LimitPlan())
        self.run = RunState(KEY, self.plan, INPUT, control=AWAITS_PERMIT if permit == "waits" else 0)
        self.at = START
        self.stands: set[int] = set()
        self.left: set[int] = set()
        """Behind a clean-up that was mended, and not taken by a rerun from elsewhere."""
        """Tasks that had completed when they were rerun, and of which nobody has said since that they had no effect."""
        self.store = Store()
        self.store.permit = permit
        self.said: list[MachineEvent] = []
        self.supplied: set[int] = set()
        self.sent = count()
        self._accept(None, begin(self.plan, self.run, self.at))
        self.is_sound = True

    # -- what may happen -----------------------------------------------------------------------------------------------
    @rule(task=which, kind=which, choice=which)
    def the_next_thing_happens(self, task: int, kind: int, choice: int) -> None:
        """What a worker, a timer or a person would do now."""
        waiting = self._waiting()
        if waiting:
            self._say(self._answer(waiting[task % len(waiting)], kind, choice))

    @rule(task=which, kind=which, distance=st.sampled_from([0, 0, 0, -1, 1, 5]), choice=which)
    def anything_is_said(self, task: int, kind: int, distance: int, choice: int) -> None:
        number = len(self.plan.tasks)
        nowhere = [
            -2,
            RUN,
            number,
            place_of(0, 0),
            place_of(number - 1, 7),
            compensation_of(0),
            compensation_of(number),
        ]
        places = [*range(number), *(place for place in self.run.tasks if place >= ITEMS_MAX), *nowhere]
        place = places[task % len(places)]
        self._say(self._any_event(place, self.run.task(place).token + distance, kind, choice))

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

    @rule(lost=st.sampled_from([0, 0, 0, 1, 100]))
    def the_process_dies(self, lost: int) -> None:
        """And now and then the database goes back in time with it: what was lost may have used so many tokens."""
        if lost:
            self.floor = max([self.floor, *(state.token for state in self.run.tasks.values())]) + lost
        self.run = self._reload()

    @precondition(lambda self: self.run.attention)
    @rule()
    def a_person_releases_the_run(self) -> None:
        self._say(Released("ada"))

    @precondition(lambda self: self.run.status in RUN_TERMINAL)
    @rule(
        task=which, is_of_what_failed=st.booleans(), is_old=st.sampled_from([False, False, True]),
        edited=st.sampled_from([None, None, b'{"n":9}']),
    )  # fmt: skip
    def what_has_ended_runs_again(self, task: int, is_of_what_failed: bool, is_old: bool, edited: bytes | None) -> None:
        items = [place for place in self.run.tasks if is_item(place)]
        places = [*range(len(self.plan.tasks)), *items]
        tasks = () if is_of_what_failed else (places[task % len(places)],)
        self._say(Reran(self.run.row_version - is_old, tasks, edited if tasks else None, by="ada"))

    @rule(
        kinds=st.lists(st.tuples(which, which), min_size=1, max_size=5), task=which,
        how=st.sampled_from(["what failed", "what failed", "from", "from", "from", "replayed", "supplied", "moved"]),
        sketches=st.lists(SKETCHES, max_size=2),
    )  # fmt: skip
    def it_ends_and_runs_again(self, kinds: list[tuple[int, int]], task: int, how: str, sketches: list[Sketch]) -> None:
        """Everybody does their part until it has ended, in some way; then a person acts on it."""
        self._end(kinds)
        if how == "moved":
            return self._run_again_on_another_version(task, sketches)
        if how == "replayed":
            self.a_dead_letter_is_replayed(task, None)
        elif how == "supplied":
            self.a_task_is_given_its_output(task, 0)
        else:
            self.what_has_ended_runs_again(task, how == "what failed", False, None)

    def _run_again_on_another_version(self, task: int, sketches: list[Sketch]) -> None:
        """In which a task has other needs and another policy, and others stand behind all that there were."""
        tasks, deadline, has_output = self.workflows[self.plan.version_id]
        changed, index = list(tasks), task % len(tasks)
        if sketches:
            names = ("needs", "condition", "template", "retry", "effect", "exclusive", "join", "undo")
            changed[index] = tasks[index]._replace(**{name: getattr(sketches[0], name) for name in names})
        self.workflows.append(([*changed, *sketches[1:]][:TASKS_MAX], deadline, has_output))
        limit = LimitPlan() if task % 3 == 0 else None
        plan = plan_of(*self.workflows[-1], version_id=len(self.workflows) - 1, limit=limit)
        chosen = () if task % 2 else (index,)
        self._say(Reran(self.run.row_version, chosen, by="ada", plan=plan))

    @rule(task=which, distance=st.sampled_from([0, 0, 0, 1, -1]))
    def a_task_is_given_its_output(self, task: int, distance: int) -> None:
        places = [*range(len(self.plan.tasks)), *(place for place in self.run.tasks if place >= ITEMS_MAX)]
        index = places[task % len(places)]
        self._say(Supplied(index, self.run.task(index).token + distance, OUTPUTS[task % len(OUTPUTS)], by="ada"))

    @rule()
    def its_permit_comes(self) -> None:
        self._say(Resumed(AWAITS_PERMIT))

    @rule(scope=st.sampled_from([PAUSED, PAUSED, WORKFLOW_PAUSED]), is_over=st.booleans())
    def the_run_is_paused_or_resumed(self, scope: int, is_over: bool) -> None:
        self._say(Resumed(scope, by="ada") if is_over else Paused(scope, by="ada"))

    @rule(task=which, is_over=st.booleans())
    def a_task_is_paused_or_resumed(self, task: int, is_over: bool) -> None:
        index = task % (len(self.plan.tasks) + 1)
        self._say((Resumed if is_over else Paused)(TASKS_PAUSED, by="ada", task=index))

    @rule(at=which, sketches=st.lists(SKETCHES, max_size=2), kind=which, choice=which)
    def the_run_is_moved(self, at: int, sketches: list[Sketch], kind: int, choice: int) -> None:
        """To a version in which some tasks are others: somebody pauses it, waits until nothing of it runs, and asks."""
        self._say(Paused(PAUSED, by="ada"))
        for index in [*self.run.tasks]:
            if self.run.task(index).status in (TaskStatus.QUEUED, TaskStatus.RUNNING):
                self._say(self._from_a_worker(index, self.run.task(index).token, kind % 5, choice))
        tasks, deadline, has_output = self.workflows[self.plan.version_id]
        begin_at = at % (len(tasks) + 1)
        changed = [*tasks[:begin_at], *sketches, *tasks[begin_at + len(sketches) :]][:TASKS_MAX]
        self.workflows.append((changed, deadline, has_output))
        self._say(Migrated(plan_of(*self.workflows[-1], version_id=len(self.workflows) - 1), by="ada"))

    @rule(priority=st.integers(-100, 100))
    def its_priority_is_changed(self, priority: int) -> None:
        self._say(Prioritised(priority, by="ada"))

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
        if self.is_sound:
            self._end([(0, 0)])

    def _end(self, kinds: list[tuple[int, int]]) -> None:
        """Let it end. kinds: what those who have it say, in turn; nothing but good news after so many steps."""
        if self.run.attention:
            self._say(Released("ada"))
        for scope in (WORKFLOW_PAUSED, PAUSED, AWAITS_PERMIT):
            self._say(Resumed(scope, by="ada"))
        for index in sorted(self.run.paused):
            self._say(Resumed(TASKS_PAUSED, by="ada", task=index))
        for step in count():
            if self.run.status in RUN_TERMINAL:
                return
            assert step < STEPS_TO_END_MAX
            kind, choice = kinds[step % len(kinds)] if step < STEPS else (0, 0)
            self._say(self._answer(self._waiting()[0], kind, choice))

    # -- events --------------------------------------------------------------------------------------------------------
    def _is_open(self, index: int) -> bool:
        state = self.run.task(index)
        return state.status not in TERMINAL and not state.is_untouched

    def _waiting(self) -> list[int]:
        """What somebody can answer for, in order; a map waits for its items, and some of those for others."""
        found = [index for index in sorted(self.run.tasks) if self._is_open(index)]
        return [i for i in found if not self.run.tasks[i].is_mapping and self.run.tasks[i].withheld != "room"]

    def _answer(self, index: int, kind: int, choice: int) -> MachineEvent:
        state, spec = self.run.task(index), self.plan.at(index)
        if state.is_parked:
            return Resolved(index, state.token, ("happened", "did_not_happen", "fail")[kind % 3], OUTPUTS[0], "ada")
        if state.awaits_slot:
            return Admitted(index, state.token, NONCE)
        if spec.signal is not None and state.status is TaskStatus.WAITING and (state.due_at is None or kind % 2):
            return self._signal(spec.signal.name, (None, "1")[choice % 2], choice % 10)
        is_asking = spec.child is not None and state.status is TaskStatus.WAITING
        if is_asking and (state.due_at is None or kind % 2):
            return self._of_a_child(index, state.token, choice)
        if state.status is TaskStatus.WAITING and state.due_at is not None:
            if kind % 4 < 3:
                self.at = max(self.at, state.due_at)
            return Due(index, state.token, NONCE, "wait")
        if state.status is TaskStatus.WAITING:
            return Decided(index, state.token, ("approved", "approved", "rejected", "expired")[kind % 4])
        if state.withheld:
            scope = (PAUSED, WORKFLOW_PAUSED, TASKS_PAUSED)[kind % 3]
            return Resumed(scope, task=task_of(index) if scope == TASKS_PAUSED else -1)
        if state.status is TaskStatus.PENDING:
            if kind % 4 < 3:  # otherwise a sweep says it too early
                self.at = max(self.at, state.due_at or 0)
            return Due(index, state.token, NONCE, ("backoff", "repeat")[choice % 2])
        return self._from_a_worker(index, state.token, kind, choice)

    def _of_a_child(self, task: int, token: int, choice: int) -> ChildTold:
        outcome = CHILD_OUTCOMES[choice % len(CHILD_OUTCOMES)]
        error = HOPELESS if outcome == "refused" or choice % 11 == 1 else None
        return ChildTold(task, token, "run-2", outcome, OUTPUTS[choice % len(OUTPUTS)], error)

    def _from_a_worker(self, task: int, token: int, kind: int, choice: int) -> MachineEvent:
        """Or from who speaks for it: its parent, a sweep."""
        is_lookup = self.run.task(task).lookups > 0
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
            case 19:
                return Migrated(self.plan, by="ada")
            case _:
                return self._from_a_worker(task, token, choice, kind)

    # -- what must hold ------------------------------------------------------------------------------------------------
    def _reload(self) -> RunState:
        """What a new process finds."""
        run = reload(self.run)
        run.token_floor = self.floor
        return run

    def _say(self, event: MachineEvent) -> None:
        self.is_sound = False
        self.said.append(event)
        before = picture(self.run)
        transition = advance(self.plan, self.run, event, self.at)
        assert picture(self.run) == before, "advance changed the run"
        assert content(advance(self.plan, self._reload(), event, self.at)) == content(transition), "memory matters"
        if transition is not None:
            self._check_current(event)
            self._accept(event, transition)
            self._check_said_again(event)
        self.is_sound = True

    def _check_said_again(self, event: MachineEvent) -> None:
        again = advance(self.run.plan, self.run, event, self.at)
        if isinstance(event, Started) and event.claim and not self.run.task(event.task).withheld:
            # An answer may get lost, so it is given each time.
            assert again is not None
            assert not again.tasks
            assert [type(action) for action in again.actions] == [Grant]
        elif isinstance(event, Prioritised):
            assert again is not None
            assert not again.tasks
        elif isinstance(event, Migrated) and again is not None:
            assert [type(action) for action in again.actions] == [RefuseMove], "what stood in the way does so still"
            assert not again.tasks
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
        if isinstance(event, Due) and event.timer == "deadline":
            assert self.store.deadlines[event.task] <= self.at, "a deadline passed early"
            return
        assert event.task in self.run.tasks or event.task in range(len(self.plan.tasks))
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
        was_terminal, was_undoing = self.run.status in RUN_TERMINAL, self.run.compensations is not None
        if isinstance(event, Decided):
            assert self.store.questions.pop(event.task) == event.token
            if event.outcome == "approved":
                self.store.approved.add(event.task)
                if self.plan.at(event.task).effect != "idempotent" and self.run.task(event.task).attempt:
                    self.store.in_doubt.add(event.task)  # its body began before this question
            elif event.outcome == "rejected":  # which some take for an answer
                self.store.told_done.add(event.task)
        self.has_replayed |= isinstance(event, Replayed | Reran | Supplied)
        if transition.plan is not None:
            self._doubt_what_was_idempotent(transition.plan)
            self._trust_what_is_idempotent(transition.plan)
        if isinstance(event, Reran):
            self._run_again(event, transition)
        if isinstance(event, Resumed) and event.scope == AWAITS_PERMIT:
            self.store.permit = "held"
        if isinstance(event, Supplied):
            self.supplied.add(event.task)
        if isinstance(event, Replayed) and event.input is not None:
            self.store.edited[event.task] = event.input
        if isinstance(event, Migrated) and transition.plan is not None:
            self.store.moved.update(task_of(place) for place in self.run.tasks)
        if event is not None and not isinstance(event, OF_A_RUN):
            self.store.hear(self.plan, self.run.task(event.task), event)
            self._doubt_next_round(event.task, transition)
        self._doubt_stopped(before, transition)
        for action in transition.actions:
            if isinstance(action, CountRounds):  # what an operator gave it was for one round
                self.store.edited.pop(action.task, None)
        if isinstance(event, Resolved) and event.outcome == "did_not_happen":
            self.stands.discard(event.task)
        if isinstance(event, Succeeded) and self.run.task(event.task).lookups and bytes(event.output) == DID_NOT_HAPPEN:
            self.stands.discard(event.task)
        plan = self.plan if transition.plan is None else transition.plan
        self.store.write(plan, self.run, transition)
        if not was_undoing and transition.compensations is not None:
            self._check_undone(plan, transition)
        stood = dict(self.run.tasks)
        self.run.apply(transition)
        for index, state in transition.tasks.items():
            assert not was_undoing or is_compensation(index), "what is undone goes on"
            self._check_step(event, index, before[index], state, transition)
            if isinstance(event, Cancelled) and self.plan.tasks[task_of(index)].cleans_up:
                self._check_spared(index, stood, state)
            is_unjudged = state.error is not None and state.error.message.startswith("its `until`")
            if (
                is_unjudged and plan.at(index).effect != "idempotent"
            ):  # its round had its effect, and failed all the same
                self.store.in_doubt.add(index)
            if state.status in (TaskStatus.COMPLETED, TaskStatus.SKIPPED):  # its input is rendered anew, should it run
                self.store.edited.pop(index, None)
        is_told = any(isinstance(action, Finish) for action in transition.actions)
        assert is_told <= (transition.status in RUN_TERMINAL), "the end is told, and it has not ended"
        assert not was_terminal or isinstance(event, Replayed | Reran | Supplied)
        self._check_run(plan)
        self.plan = plan

    def _doubt_what_was_idempotent(self, new: Plan) -> None:
        """Nobody was asked what became of it, and from here on it is not to be repeated blindly."""
        for place, state in self.run.tasks.items():
            is_over = state.status in (TaskStatus.COMPLETED, TaskStatus.SKIPPED)  # and asked about, should it run again
            if is_over or not state.attempt or state.is_untouched or self.run.has_put_away(place):
                continue
            is_strict = self.plan.at(place).effect == "idempotent" != new.at(place).effect
            if is_strict and not state.is_between_rounds and not self._is_asked_about(place):
                self.store.in_doubt.add(place)

    def _trust_what_is_idempotent(self, new: Plan) -> None:
        """From here on it may be repeated, whatever became of it; a question that was asked of it stays."""
        for place in [*self.store.in_doubt]:
            state = self.run.task(place)
            if new.at(place).effect == "idempotent" and not state.lookups and not state.is_parked:
                self.store.in_doubt.discard(place)

    def _is_asked_about(self, place: int) -> bool:
        return place in self.store.in_doubt or place in self.store.questions or self.run.task(place).lookups > 0

    def _doubt_next_round(self, index: int, transition: Transition) -> None:
        """Somebody said of a round that it happened before an operator sent it out, and so may the next one have."""
        before, after = self.run.task(index), transition.tasks.get(index, UNTOUCHED)
        is_by_others = before.lookups > 0 or before.is_parked
        is_next = after.rounds > before.rounds and after.status not in TERMINAL
        is_old = before.attempt == before.retries_from and self.plan.at(index).effect != "idempotent"
        if is_by_others and is_next and is_old:
            self.store.in_doubt.add(index)

    def _doubt_stopped(self, before: dict[int, TaskState], transition: Transition) -> None:
        """Whose body ran when its map was ended: nobody says any more what became of it."""
        for place, state in before.items():
            after = transition.tasks[place]
            is_stopped = after.status is TaskStatus.CANCELLED or (
                after.error is not None and after.error.code == "DEADLINE"
            )
            was_running = is_item(place) and state.status is TaskStatus.RUNNING and not state.lookups
            if was_running and is_stopped and self.plan.at(place).effect != "idempotent":
                self.store.in_doubt.add(place)

    def _check_undone(self, plan: Plan, transition: Transition) -> None:
        """All that completed is undone, and nothing of which no body was ever handed out."""
        had_a_body = {task_of(place) for place, _ in self.store.bodies}
        for spec in plan.tasks:
            state, index = transition.tasks.get(spec.index) or self.run.task(spec.index), spec.index
            is_undone, is_done = compensation_of(index) in transition.tasks, state.status is TaskStatus.COMPLETED
            is_refused = is_done and index in self.store.refused - had_a_body
            assert is_undone <= (spec.compensation is not None)
            stands = index in self.stands
            assert is_undone or not stands or spec.compensation is None, "it had completed before a rerun, and stands"
            assert not is_undone or not is_refused or stands, "it was rejected, and is undone"
            assert is_undone or not is_done or is_refused or spec.compensation is None, "it is done, and not undone"
            if is_undone and not is_done and not stands and spec.map is None:
                assert index in had_a_body, "it never began, and is undone"
                is_known = state.status is TaskStatus.FAILED and index in self.store.told_not_done
                is_late = state.error is not None and state.error.code == "DEADLINE"
                assert not is_known or is_late, "its lookup said that it had no effect, and it is undone"

    def _run_again(self, event: Reran, transition: Transition) -> None:
        """What may have had its effect is in doubt from here on, and what was approved is not approved any more."""
        plan = self.plan if transition.plan is None else transition.plan
        skipped = {i for i, task in self.run.tasks.items() if i < ITEMS_MAX and task.status is TaskStatus.SKIPPED}
        in_vain = {i for i in skipped if may_run(self.plan, self.run, i)} if event.tasks else set[int]()
        self.left = in_vain - transition.tasks.keys()
        if transition.plan is not None:
            self.store.moved.update(task_of(place) for place in self.run.tasks)
        for index, after in transition.tasks.items():
            if is_compensation(index):
                continue  # what runs again has failed at once, and the run undoes what it did
            before, spec = self.run.task(index), plan.at(index)
            if is_failed_still(before, after):
                continue  # it does not run again, and what is in doubt of it is said
            over = self.run.task(task_of(index))
            now = transition.tasks[task_of(index)]
            is_reopened = over.items is not None and now.items is not None and now.token == over.token
            has_told = before.status is TaskStatus.FAILED and index not in self.store.in_doubt
            is_sent = after.awaits_slot or (after.status is TaskStatus.QUEUED and not after.lookups)
            is_sent |= after.withheld == "again"  # once its run has its permit
            if before.status is TaskStatus.COMPLETED and spec.compensation is not None:
                self.stands |= {index} - self.store.refused
            self.store.refused.discard(index)  # it is asked about anew
            is_past_policy = after.withheld == "body" and not after.lookups  # and waits for the permit of its run
            is_kept = is_item(index) and is_reopened and (after.withheld == "room" or is_past_policy)
            is_tried_again = has_told and (is_sent or is_kept or after.status in TERMINAL)
            if is_item(index):
                is_tried_again = is_tried_again and is_reopened
            self.store.in_doubt.discard(index)
            self.supplied.discard(index)
            self.store.moved.discard(index)
            if spec.effect != "idempotent" and before.attempt and not is_tried_again:
                self.store.in_doubt.add(index)
            if index not in event.tasks and event.tasks:
                self.store.edited.pop(index, None)
            if index in event.tasks and event.input is not None:
                self.store.edited[index] = event.input
            is_asked_about = after.is_parked or after.lookups > 0  # by its policy, and not for an approval again
            goes_on = is_tried_again or is_sent or is_reopened or is_asked_about
            if spec.approval is not None and not goes_on:
                self.store.approved.discard(index)

    def _check_step(
        self, event: MachineEvent | None, index: int, before: TaskState, after: TaskState, transition: Transition
    ) -> None:
        assert after.token >= before.token, "a token fell"
        assert after.token == before.token or after.token > self.floor, "a token may have been used in a lost future"
        assert after.attempt >= before.attempt
        if before.status not in TERMINAL:
            return
        assert isinstance(event, Replayed | Reran | Supplied | Migrated), "a terminal state was left"
        if isinstance(event, Migrated):
            assert is_failed_still(before, after), "a move changed more than the doubt of what had failed"
        elif isinstance(event, Reran):
            assert after.status not in TERMINAL or after.token >= before.token
        elif isinstance(event, Supplied) and index == event.task:
            assert (before.status, after.status) == (TaskStatus.FAILED, TaskStatus.COMPLETED)
        elif index == event.task:
            assert before.status is TaskStatus.FAILED
            waits_for_others = is_compensation(index) and after.is_untouched  # of what came after it, replayed, too
            assert after.token > before.token or after.withheld or waits_for_others
        elif is_item(index):
            assert task_of(index) == task_of(event.task)
            assert before.status is TaskStatus.CANCELLED, "an item that ended of itself came back"
        elif is_item(event.task) and index == task_of(event.task):
            assert before.status is TaskStatus.FAILED
            assert after.token == before.token, "a map that goes on has begun anew"
        else:
            assert before.status is TaskStatus.SKIPPED
            assert before.error == UPSTREAM_FAILED
            has_ended = transition.tasks[task_of(event.task)].status in TERMINAL
            assert has_ended or after.is_untouched, "what came back went on before its need had ended"

    def _check_spared(self, index: int, stood: dict[int, TaskState], after: TaskState) -> None:
        """A cancel touches a clean-up only to let it begin, or to end it where there is nothing to clean up."""
        if is_compensation(index):
            return
        assert stood.get(index, UNTOUCHED).is_untouched or stood[index].withheld, "what cleans up was touched"
        upstream = [task_of(index)]
        for at in upstream:  # grows while it is walked
            upstream += [need for need in self.plan.tasks[at].needs if need not in upstream]
        was = [stood.get(at, UNTOUCHED) for at in upstream]
        has_begun = any(state.token or state.status is TaskStatus.COMPLETED for state in was)
        assert (after.status is TaskStatus.CANCELLED) is not has_begun

    def _check_run(self, plan: Plan) -> None:
        run = self.run
        if run.control & CANCELLING:
            left = [spec for spec in plan.tasks if run.task(spec.index).status not in TERMINAL]
            assert all(spec.cleans_up for spec in left), "a cancel left something that does not clean up"
            assert run.status in {*RUN_TERMINAL, *HELD_UP, RunStatus.CANCELLING}
        assert essence(self._reload()) == essence(run)
        self._check_status(plan)
        for index in {*range(len(plan.tasks)), *run.tasks}:
            self._check_task(plan, index, run.task(index))
        in_line = {index: state.token for index, state in run.tasks.items() if state.awaits_slot}
        holders = {index: state.token for index, state in run.tasks.items() if state.pool and not state.awaits_slot}
        assert (self.store.in_line, self.store.slots) == (in_line, holders), "a slot was lost, or kept"
        assert self.store.timers.keys() == {index for index, state in run.tasks.items() if state.due_at is not None}
        deadlines = {index: state.deadline_at for index, state in run.tasks.items() if state.deadline_at is not None}
        assert self.store.deadlines == deadlines | ({} if run.deadline_at is None else {RUN: run.deadline_at})
        waiting = {index: state for index, state in run.tasks.items() if state.status is TaskStatus.WAITING}
        waiting = {index: state for index, state in waiting.items() if not state.awaits_slot and not state.is_mapping}
        asked = {i: s for i, s in waiting.items() if s.error is None and plan.at(i).approval is not None}
        assert self.store.questions == {i: state.token for i, state in asked.items()}
        assert self.store.parked == {i: state.error for i, state in waiting.items() if state.error is not None}
        assert all(self.store.children[i] == s.token for i, s in waiting.items() if plan.at(i).child is not None)
        self._check_signals({i: state for i, state in waiting.items() if plan.at(i).signal is not None})
        for index, state in run.tasks.items():
            if state.items is not None and not is_item(index):
                self._check_items(plan, index, state)
        assert run.status in RUN_TERMINAL or self._waiting(), "nothing will wake it"

    def _check_status(self, plan: Plan) -> None:
        """It is a function of the tasks; of items and compensations, only those that are open count among them."""
        run, counts = self.run, dict[TaskStatus, int]()
        for place, state in run.tasks.items():
            if not state.is_untouched and (place < ITEMS_MAX or state.status not in TERMINAL):
                counts[state.status] = counts.get(state.status, 0) + 1
        undone = [state.status for place, state in run.tasks.items() if is_compensation(place)]
        ends = (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED)
        known = CompensationCounts(len(undone), *(undone.count(end) for end in ends)) if undone else None
        assert run.compensations == known
        assert run.status is derive_status(
            len(plan.tasks), counts, attention=run.attention, control=run.control, compensations=known
        )
        assert run.attention is (run.status is RunStatus.NEEDS_ATTENTION)
        is_limited = run.plan.limit is not None and run.status not in RUN_TERMINAL
        waits = "waits" if run.control & AWAITS_PERMIT else "held"
        assert self.store.permit == (waits if is_limited else None), "a permit was lost, or kept"
        assert (run.status is RunStatus.TERMINATED) == (run.control & TERMINATED > 0)
        assert not ((run.control & WITHHOLDS or run.paused) and run.status in RUN_TERMINAL), "paused, and it has ended"
        assert bool(run.paused) is (run.control & TASKS_PAUSED > 0)
        assert run.status not in RUN_TERMINAL or self.store.finished is run.status, "its end was not told"

    def _check_signals(self, listening: dict[int, TaskState]) -> None:
        assert self.run.signals.keys() == self.store.kept
        assert self.store.listening.keys() == listening.keys()
        for index, state in listening.items():
            waits = self.store.listening[index]
            assert waits.token == state.token
            for signal in self.run.signals.values():
                is_meant = signal.name == waits.name and signal.key in (None, waits.key)
                assert not is_meant, "a task waits beside the signal that is kept for it"

    def _check_items(self, plan: Plan, index: int, state: TaskState) -> None:
        """A map has as many items under way as it may, and none once it has ended."""
        mapped, items = plan.tasks[index].map, state.items or 0
        assert mapped is not None
        found = [self.run.task(place) for place in items_of(index, items)]
        assert all(place in items_of(index, items) for place in self.run.tasks if task_of(place) == index != place
                   and is_item(place) and not self.run.tasks[place].is_untouched)  # fmt: skip
        left = [item for item in found if item.is_untouched or item.withheld == "room"]
        under_way = [item for item in found if item.status not in TERMINAL and item not in left]
        if state.status in TERMINAL:
            assert not under_way, "an item of a map that has ended goes on"
            has_all = all(item.status in (TaskStatus.COMPLETED, TaskStatus.FAILED) for item in found)
            assert has_all or state.status is not TaskStatus.COMPLETED, "a map is done before its items"
        elif state.is_mapping:
            assert under_way, "a map waits for nothing"
            if index not in self.store.moved:
                assert not left or len(under_way) >= mapped.max_parallel, "it has room"
                assert len(under_way) <= mapped.max_parallel, "it has more under way than it may"

    def _check_task(self, plan: Plan, index: int, state: TaskState) -> None:
        spec, is_moved = plan.at(index), task_of(index) in self.store.moved
        ended = len(self.store.attempts.get(index, ()))
        is_running = state.status is TaskStatus.RUNNING and not state.lookups  # a lookup is no attempt
        assert state.attempt == ended + is_running, "an attempt is not accounted for"
        assert is_moved or state.lookups <= spec.retry.attempts, "looked up more often than the policy says"
        if state.lookups:
            assert index in self.store.in_doubt
            assert state.error is not None, "what is not known was forgotten"
        if state.status is not TaskStatus.RUNNING:
            assert not state.session, "held by somebody although nobody runs it"
        if index in self.store.in_doubt:
            is_asked = state.status is TaskStatus.WAITING and spec.approval is not None
            is_to_come = state.is_untouched or state.withheld or is_asked
            is_kept = state.lookups or state.is_parked or state.status in TERMINAL
            assert is_kept or is_to_come, "an ambiguous end was forgotten"
        assert state.attempt <= state.token
        assert state.rounds == self.store.rounds.get(index, 0)
        assert not state.rounds or spec.repeat is not None or is_moved
        self._check_bound(plan, index, state)
        tries = state.attempt - state.retries_from
        assert 0 <= tries <= spec.retry.attempts or is_moved, "more than the policy"
        match state.status:
            case TaskStatus.PENDING if state.withheld == "room":
                assert self.run.task(task_of(index)).is_mapping, "it waits for room in a map that has ended"
            case TaskStatus.PENDING if state.withheld:
                is_held = not is_compensation(index) and task_of(index) in self.run.paused
                assert self.run.control & WITHHOLDS or is_held, "withheld, and nothing pauses it"
            case TaskStatus.PENDING if state.due_at is None:
                assert state.is_untouched
            case TaskStatus.PENDING:
                assert self.store.timers[index][1] in ("backoff", "repeat")
                assert self.store.timers[index] == (state.token, self.store.timers[index][1], state.due_at)
            case TaskStatus.QUEUED if state.due_at is not None:
                assert self.store.timers[index] == (state.token, "start", state.due_at)
                assert (index, state.token) in self.store.bodies
            case TaskStatus.WAITING if state.due_at is not None:
                assert any(what is not None for what in (spec.wait, spec.signal, spec.child))
                assert self.store.timers[index] == (state.token, "wait", state.due_at)
            case TaskStatus.RUNNING if state.due_at is not None:
                assert self.store.timers[index] == (state.token, "timeout", state.due_at)
            case TaskStatus.WAITING if state.awaits_slot:
                assert spec.pool is not None or is_moved
            case TaskStatus.QUEUED | TaskStatus.RUNNING:
                assert bool(state.pool) is (spec.pool is not None and not state.lookups) or is_moved
                assert (index, state.token) in (self.store.lookups if state.lookups else self.store.bodies)
            case _:
                pass
        if index < ITEMS_MAX and index not in self.store.moved:
            self._check_join(plan, index, state)

    def _check_bound(self, plan: Plan, index: int, state: TaskState) -> None:
        """No more rounds than it may have, and as many again by each replay or rerun."""
        repeat = None if index >= ITEMS_MAX else plan.tasks[index].repeat
        if repeat is None or index in self.store.moved:
            return
        assert state.rounds <= repeat.max or self.has_replayed
        if state.error is not None and state.error.code == ROUNDS_OVER:
            assert state.rounds > 0
            assert state.rounds % repeat.max == 0

    def _check_join(self, plan: Plan, index: int, state: TaskState) -> None:
        may_it = may_run(plan, self.run, index)
        match state.status:
            case TaskStatus.PENDING if state.is_untouched:
                assert may_it is None, "a join is stuck"
            case TaskStatus.SKIPPED:
                assert state.error is not None
                # In a run that was cancelled nothing comes back behind a clean-up that is mended.
                is_left = (self.run.control & CANCELLING and self.has_replayed) or index in self.left
                assert state.error.code == "CONDITION_FALSE" or may_it is False or is_left
                assert (state.error == NOTHING_FAILED) <= (plan.tasks[index].join == "on_failure")
            case _:
                pass
        if not state.is_untouched and state.status not in (TaskStatus.SKIPPED, TaskStatus.CANCELLED):
            # What has begun stays, also when a replay took back what it began because of.
            is_given = state.status is TaskStatus.COMPLETED and index in self.supplied  # whatever its needs are
            # A clean-up runs again behind what failed, also when it had completed, and what is behind it does not.
            is_behind = any(plan.tasks[need].cleans_up for need in plan.tasks[index].needs)
            is_left = self.has_replayed and (plan.tasks[index].join in ENDS_ANYHOW or is_behind)
            assert may_it or is_given or is_left


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
