"""In place of the engine: it carries out what the machine asks for, and lets time pass."""

from collections.abc import Sequence
from typing import Final, assert_never

from headrace.graph import Workflow
from headrace.instant import format_instant
from headrace.machine import (
    Abort,
    Action,
    Ask,
    AwaitPermit,
    AwaitSlot,
    BuryTask,
    CancelChild,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    CountRounds,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Grant,
    HoldTasks,
    KeepOutput,
    KeepSignal,
    KeepUndo,
    Listen,
    NoteRound,
    Park,
    Plan,
    RefuseMove,
    ReturnPermit,
    SetDeadline,
    SetPriority,
    SetTimer,
    StartChild,
    StopListening,
    TakeSignal,
    TakeSlot,
    Unpark,
    compile_plan,
)
from headrace.messages import Due
from headrace.registry import Registry
from headrace.testing.approval import Approvals
from headrace.testing.child import Children
from headrace.testing.clock import Clock
from headrace.testing.history import in_words
from headrace.testing.permit import Permits
from headrace.testing.pool import Pools
from headrace.testing.postbox import Postbox
from headrace.testing.run import Run, find_place
from headrace.testing.start import Starts
from headrace.testing.timer import Timer, Timers
from headrace.testing.worker import End, Worker


class Engine:
    """All runs of a harness, and everything beside them."""

    def __init__(self, workflows: Sequence[Workflow], registry: Registry, at: int) -> None:
        """workflows: the first is the one that is tested. Raises ConfigurationError."""
        self.workflow: Final = workflows[0]
        self.clock: Final = Clock(at)
        self._timers: Final = Timers()
        self._permits: Final = Permits(self.clock)
        self._starts: Final = Starts(workflows, self.clock, self._permits, self._carry_out)
        self._children: Final = Children(self._starts, self._permits)
        self.approvals: Final = Approvals(self.clock, self._timers)
        self.pools: Final = Pools(self.clock)
        self.postbox: Final = Postbox(self.clock)
        self.worker: Final = Worker(registry, self._starts.plans, self.clock)

    def start(self, input: bytes, by: str, priority: int) -> Run:
        """Raises ConflictError."""
        run = self._starts.start(self.workflow.name, input, by, priority)
        self.settle()
        return run

    def plan_end(self, task: str, how: End, workflow: str | None) -> None:
        """Raises NotFoundError."""
        plan = self._starts.find_plan(self.workflow.name if workflow is None else workflow)
        self.worker.plan_end(plan.name, find_place(plan, task), how)

    def compile_next(self, workflow: Workflow, run: Run) -> Plan:
        """A version that comes after that of a run. Raises ConfigurationError."""
        plan = run.state.plan
        later = compile_plan(workflow, version=plan.version + 1, version_id=plan.version_id + 1)
        self.worker.check_bodies(later)
        return later

    def settle(self) -> None:
        """Carry out every command there is, and those that come of it; start children, tell their ends, give
        slots, and offer what is posted."""
        while self._go_on():
            pass

    def _go_on(self) -> bool:
        """Do one thing of those; whether there was one."""
        return (
            self._children.go_on()
            or self.worker.work()
            or self._permits.grant()
            or self.pools.admit()
            or self.postbox.offer()
        )

    # -- time ----------------------------------------------------------------------------------------------------------
    def advance_to(self, until: int) -> None:
        if until < self.clock.at:
            raise ValueError(f"the clock shows {format_instant(self.clock.now)} already, and does not go back")
        while (instant := self.next_instant()) is not None and instant <= until:
            timer = self._timers.find_next()
            if timer is not None and timer.due_at == instant:
                self._fire(timer)
            else:  # a pool admits one more
                self.clock.at = instant
                self.settle()
        self.clock.at = until

    def next_instant(self, *, without_expiry: bool = False) -> int | None:
        """When something happens next: a timer is due, or the rate of a pool allows one more."""
        timer = self._timers.find_next(without_expiry=without_expiry)
        instants = [] if timer is None else [timer.due_at]
        return min([*instants, *self.pools.next_instants()], default=None)

    def _fire(self, timer: Timer) -> None:
        self._timers.remove(timer)
        self.clock.at = timer.due_at
        if timer.kind == "expiry":
            self.approvals.expire(timer.run, timer.task)
        elif timer.is_of_a_question:
            self.approvals.look_after(timer)
        else:
            timer.run.tell(Due(timer.task, timer.token, timer.run.nonce(timer.task, timer.token), timer.kind))
        self.settle()

    # -- what the machine asks for -------------------------------------------------------------------------------------
    def _carry_out(self, run: Run, action: Action) -> None:
        match action:
            case Dispatch():
                self.worker.hand_out(run, action)
            case SetTimer():
                self._timers.set(run, action.task, action.token, action.kind, action.due_at)
            case SetDeadline():
                if action.due_at is not None:
                    self._timers.set(run, action.task, 0, "deadline", action.due_at)
            case Ask():
                self.approvals.ask(run, action)
            case CloseQuestion():
                run.questions.pop(action.task, None)
            case KeepOutput():
                run.outputs[action.task] = action.output
            case Park():
                run.history.note("parked", action.task, detail=action.error.message)
            case BuryTask():
                run.history.note("dead_letter", action.task, action.attempt or None, in_words(action.error) or "")
            case Finish():
                run.finish = action
                run.history.note("finished", detail=action.status)
                self._children.tell_end(run, action)
            case StartChild():
                self._children.ask(run, action)
            case CancelChild():
                self._children.cancel(run, action)
            case Listen():
                self.postbox.listen(run, action)
                run.history.note("listens", action.task, detail=action.name + (f" {action.key}" if action.key else ""))
            case TakeSignal():
                run.history.note("took_signal", action.task)
            case AwaitSlot():
                self.pools.await_slot(run, action)
                run.history.note("awaits_slot", action.task, detail=action.pool)
            case FreeSlot():
                self.pools.free_slot(run, action.task)
            case RefuseMove():
                run.history.note("migration_refused", detail=action.why)
            case SetPriority():
                run.priority = action.priority
            case AwaitPermit():
                self._permits.ask(run, action.key, is_granted=action.is_granted)
            case ReturnPermit():
                self._permits.give_back(run)
            case (
                EndAttempt()
                | ClearTimer()
                | CloseLetter()
                | Unpark()
                | Grant()
                | Abort()
                | StopListening()
                | KeepUndo()
                | CountRounds()
                | NoteRound()
                | KeepSignal()
                | TakeSlot()
                | HoldTasks()
            ):
                pass  # in the history already, or true of the run as it stands
            case _:
                assert_never(action)
