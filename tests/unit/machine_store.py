"""What Postgres would hold of a run's actions, and what nobody can know: for the model of sequences.

Every method refuses what a constraint would refuse, and what no decision may ask for.
"""

import msgspec

from headrace.machine import (
    Ask,
    AwaitPermit,
    AwaitSlot,
    BuryTask,
    CancelChild,
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
    KeepOutput,
    KeepSignal,
    Listen,
    MachineEvent,
    NoteRound,
    Park,
    Plan,
    Replayed,
    Resolved,
    ReturnPermit,
    RunState,
    RunStatus,
    SetDeadline,
    SetPriority,
    SetTimer,
    StartChild,
    StopListening,
    Supplied,
    TakeSignal,
    TakeSlot,
    TaskState,
    TaskStatus,
    Transition,
    Unpark,
)
from headrace.machine.place import RUN, compensation_of, is_compensation, items_of, task_of
from headrace.machine.status import TERMINAL, WITHHOLDS
from headrace.messages import Due, Error, Failed, Lost, Returned, Succeeded

HAPPENED = b'{"happened":true,"output":{"ok":true,"n":1}}'
DID_NOT_HAPPEN = b'{"happened":false}'
LOOKED_UP = b'{"ok":true,"n":1}'
"""The output that stands in HAPPENED."""


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


def is_held(run: RunState, transition: Transition, place: int) -> bool:
    """Whether a pause of the run, or of this task, is on when that is decided; told again in other words."""
    paused = run.paused if transition.paused is None else transition.paused
    return transition.control & WITHHOLDS > 0 or (not is_compensation(place) and task_of(place) in paused)


class Store:
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
        self.permit: str | None = None
        """Under a limit: `waits`, or `held`."""
        self.refused: set[int] = set()
        """Those that were rejected, which some take for their end."""
        self.told_not_done: set[int] = set()
        """Those whose lookup said last that the effect of their last body did not happen."""
        self.outputs: dict[int, bytes] = {}
        """What bodies, lookups and people answered with, last."""
        self.undone: set[int] = set()
        """Compensations that have succeeded."""
        self.moved: set[int] = set()
        """What had been touched when the run was moved to another version: it stands as it stood by the older one."""
        self.finished: RunStatus | None = None
        """How the run ended last, as others are told."""

    def hear(self, plan: Plan, before: TaskState, event: MachineEvent) -> None:
        """What an event that moves its run says of an effect. before: the task that it names."""
        match event:
            case Replayed():
                pass  # who sends it out again does not say what became of its effect
            case Decided() if event.outcome == "rejected":
                approval = plan.tasks[event.task].approval
                if approval is not None and approval.on_reject == "complete":
                    self.told_done.add(event.task)
                    self.refused.add(event.task)
            case Resolved() | Supplied():
                if isinstance(event, Supplied) or event.outcome != "fail":  # who lets it fail does not know
                    self.in_doubt.discard(event.task)
                if isinstance(event, Supplied):
                    self.told_done.add(event.task)
                    self.outputs[event.task] = event.output
                if isinstance(event, Resolved) and event.outcome == "happened":
                    self.told_done.add(event.task)
                    self.outputs[event.task] = event.output
            case Succeeded() if before.lookups:
                if bytes(event.output) in (HAPPENED, DID_NOT_HAPPEN):
                    self.in_doubt.discard(event.task)
                if bytes(event.output) == DID_NOT_HAPPEN:
                    self.told_not_done.add(event.task)
                if bytes(event.output) == HAPPENED:
                    self.told_done.add(event.task)
                    self.outputs[event.task] = LOOKED_UP
            case Succeeded():
                self.outputs[event.task] = bytes(event.output)
            case ChildTold():
                pass
            case Lost() | Failed() | Returned() | Due() if event.task != RUN:
                if plan.at(event.task).effect != "idempotent" and not before.lookups and is_doubtful(before, event):
                    self.in_doubt.add(event.task)
            case _:
                pass

    def write(self, plan: Plan, run: RunState, transition: Transition) -> None:
        """plan: the one that decided, which a move to another version brings along."""
        opened: set[int] = set()
        for action in transition.actions:
            match action:
                case Dispatch():
                    is_paused = is_held(run, transition, action.task)
                    self._hand_out(plan, run, transition, action, is_paused=is_paused)
                    opened.add(action.task)
                case Grant():
                    state = transition.tasks.get(action.task) or run.task(action.task)
                    assert (state.status, state.token) == (TaskStatus.RUNNING, action.token)
                    assert state.session == action.session, "granted to another than is recorded"
                    known = self.grants.setdefault((action.task, action.token), action.session)
                    assert known == action.session, "granted to two sessions"
                case EndAttempt():
                    self._end_attempt(action, opened)
                case KeepOutput():
                    self._keep_output(plan, run, transition, action)
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
                    assert not is_held(run, transition, action.task), "asked in a pause"
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
                    assert not is_held(run, transition, action.task), "what is paused waits for a slot"
                    assert action.task not in self.in_line | self.slots
                    pool = plan.at(action.task).pool
                    assert pool is not None
                    assert action.pool == pool.name
                    assert bool(action.fairness_key) is (pool.fairness_key is not None), "it stands in the wrong line"
                    self.in_line[action.task] = action.token
                case TakeSlot():
                    self.slots[action.task] = self.in_line.pop(action.task)
                case FreeSlot():
                    assert action.task in self.in_line | self.slots, "gave back what it did not have"
                    self.in_line.pop(action.task, None)
                    self.slots.pop(action.task, None)
                case SetPriority():
                    assert not transition.tasks, "a priority moves no task"
                case StartChild():
                    self._start_child(run, transition, action)
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
                    self.parked[action.task] = action.error
                    state = transition.tasks[action.task]
                    assert (state.token, action.error.code) == (action.token, "AMBIGUOUS")
                case Unpark():
                    del self.parked[action.task]
                case BuryTask():
                    assert (action.task, action.token) not in self.dead_letters, "one hand-out, two dead letters"
                    assert transition.tasks[action.task].error == action.error
                    self.dead_letters.add((action.task, action.token))
                case CloseLetter():
                    assert run.task(action.task).status is TaskStatus.FAILED
                    assert run.task(action.task).token == action.token
                case AwaitPermit():
                    assert self.permit is None, "a run waits for a second permit"
                    self.permit = "held" if action.is_granted else "waits"
                case ReturnPermit():
                    self.permit = None
                case Finish():
                    after = transition.actions[transition.actions.index(action) + 1 :]
                    assert all(isinstance(each, SetDeadline | CountRounds | NoteRound) for each in after)
                    assert action.status is transition.status
                    has_output = action.output is not None or action.error is not None
                    assert has_output == (plan.output is not None and action.status is RunStatus.COMPLETED)
                    self.finished = action.status
                case _:
                    pass

    def _end_attempt(self, action: EndAttempt, opened: set[int]) -> None:
        assert action.task not in opened, "the next attempt was handed out before the last was closed"
        assert (action.task, action.token) in self.bodies, "no body was handed out under this token"
        numbers = self.attempts.setdefault(action.task, [])
        numbers.append(action.attempt)
        assert numbers[-1] == len(numbers), "a gap in the attempts"
        assert action.attempt <= action.token
        if is_compensation(action.task) and action.outcome == "completed":
            assert action.task not in self.undone, "undone twice"
            self.undone.add(action.task)

    def _keep_output(self, plan: Plan, run: RunState, transition: Transition, action: KeepOutput) -> None:
        state = transition.tasks[action.task]
        assert state.status is TaskStatus.COMPLETED
        assert state.output == (action.output if plan.at(action.task).is_referenced else None)
        mapped = plan.at(action.task).map
        if mapped is None or state.items is None:  # of a map, too, people may take their rejection for the end
            assert action.task in self.told_done, "done without an attempt, and nobody said so"
            return
        places = items_of(action.task, state.items or 0)
        items = {place: transition.tasks.get(place) or run.task(place) for place in places}
        have = {place for place, item in items.items() if item.status is TaskStatus.COMPLETED}
        gathered = [msgspec.json.decode(self.outputs[place]) if place in have else None for place in places]
        answer = msgspec.json.decode(action.output)
        if mapped.failures == "collect":
            assert [each["index"] for each in answer["failures"]] == [
                number for number, place in enumerate(places) if place not in have
            ]
            answer = answer["results"]
        assert answer == gathered, "a map gives not what its items gave, in their order"

    def _start_child(self, run: RunState, transition: Transition, action: StartChild) -> None:
        assert not is_held(run, transition, action.task), "what is paused asks for a run"
        assert action.token > self.children.get(action.task, 0), "one hand-out asks for two runs"
        state = transition.tasks[action.task]
        assert (state.status, state.token) == (TaskStatus.WAITING, action.token)
        assert action.input == self.edited.get(action.task, action.input), "an edited input was lost"
        self.children[action.task] = action.token

    def _hand_out(
        self, plan: Plan, run: RunState, transition: Transition, action: Dispatch, *, is_paused: bool
    ) -> None:
        spec, hand_out, state = plan.at(action.task), (action.task, action.token), transition.tasks[action.task]
        assert hand_out not in self.bodies | self.lookups, "handed out twice under one token"
        assert not is_paused, "handed out by a run that is paused"
        assert (state.status, state.token) == (TaskStatus.QUEUED, action.token)
        assert (spec.lookup if action.lookup else spec.run) is not None, "there is no body to hand out"
        asked = None if is_compensation(action.task) else plan.tasks[task_of(action.task)].approval
        is_moved = task_of(action.task) in self.moved
        assert asked is None or task_of(action.task) in self.approved or is_moved, "handed out without its approval"
        assert action.input == self.edited.get(action.task, action.input), "an edited input was lost"
        assert action.lookup is (state.lookups > 0)
        assert action.round == (None if spec.repeat is None else state.rounds)
        if is_compensation(action.task):
            self._check_order(plan, run, transition, action.task)
        else:
            assert transition.compensations is None, "the run undoes what it did, and does more of it"
        if action.lookup:
            assert action.task in self.in_doubt, "looked up, and nothing is in doubt"
            assert action.attempt == state.attempt
            self.lookups.add(hand_out)
        else:
            assert self.slots.get(action.task) == (action.token if state.pool else None), (
                "it has no slot, or an old one"
            )
            assert bool(state.pool) is bool(spec.pool) or is_moved, "it goes round its pool"
            assert action.task not in self.in_doubt, "its effect may have happened, and it is tried again"
            assert action.attempt == state.attempt + 1
            self.bodies.add(hand_out)
            self.told_not_done.discard(action.task)
            self.refused.discard(task_of(action.task))

    def _check_order(self, plan: Plan, run: RunState, transition: Transition, place: int) -> None:
        """A compensation begins once those of all tasks that need its task, directly or not, have ended. What had
        begun goes on, also when one of those is replayed."""
        assert place not in self.undone, "undone again"
        before = run.task(place)
        if before.status not in TERMINAL and not before.is_untouched:
            return
        behind = list(plan.tasks[task_of(place)].dependants)
        for index in behind:  # grows while it is walked
            behind += [after for after in plan.tasks[index].dependants if after not in behind]
            other = transition.tasks.get(compensation_of(index)) or run.tasks.get(compensation_of(index))
            assert other is None or other.status in TERMINAL, "undone before what came after it"
