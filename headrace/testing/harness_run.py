"""One run, as a test holds it: how it stands, and what people can do to it."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any, Literal, NamedTuple

from headrace import payload
from headrace.errors import ConflictError, NotFoundError
from headrace.instant import from_microseconds
from headrace.machine import (
    Cancelled,
    MachineEvent,
    Migrated,
    Paused,
    Plan,
    Prioritised,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    RunStatus,
    Supplied,
    TaskState,
    TaskStatus,
    Terminated,
)
from headrace.machine.advance import can_be_supplied, choose_rerun
from headrace.machine.cleanup import is_ended_by_cancel
from headrace.machine.migration import find_obstacles
from headrace.machine.place import compensation_of, is_compensation, items_of
from headrace.machine.status import CANCELLING, PAUSED, RUN_TERMINAL, TASKS_PAUSED, TERMINAL
from headrace.messages import RunId
from headrace.question import Question
from headrace.standing import Person
from headrace.testing.argument import Published, read_priority, read_workflow
from headrace.testing.engine import Engine
from headrace.testing.history import HistoryItem, in_words
from headrace.testing.run import Run


class HarnessTask(NamedTuple):
    """A task as it stands."""

    status: TaskStatus
    attempt: int
    """Bodies that began."""
    output: Any
    """None until it has completed."""
    error: str | None
    """`CODE: message` of why it failed, was skipped or is before a person."""
    due_at: datetime | None
    """When its backoff, its time-out, its time in the queue or its wait ends."""
    deadline_at: datetime | None = None
    """When it has to have ended."""
    rounds: int = 0
    """Of a repeat: how many rounds have ended."""


class HarnessRun:
    """One run of a harness: how it stands, and what people can do to it."""

    def __init__(self, engine: Engine, run: Run) -> None:
        self._engine, self._run = engine, run

    @property
    def run_id(self) -> RunId:
        return self._run.run_id

    @property
    def _plan(self) -> Plan:
        return self._run.state.plan

    # -- how it stands -------------------------------------------------------------------------------------------------
    @property
    def status(self) -> RunStatus:
        return self._run.state.status

    @property
    def tasks(self) -> dict[str, str]:
        """The status of every task."""
        return {spec.name: self._run.state.task(spec.index).status.value for spec in self._plan.tasks}

    @property
    def outputs(self) -> dict[str, Any]:
        """What its tasks returned, as far as they have completed."""
        tasks = {spec.name: self._task(spec.index) for spec in self._plan.tasks}
        return {name: task.output for name, task in tasks.items() if task.status is TaskStatus.COMPLETED}

    @property
    def output(self) -> Any:
        """What came out of it, by the `output` of the workflow; None before its end, and without one."""
        finish = self._run.finish
        return None if finish is None or finish.output is None else self._engine.worker.value(self._run, finish.output)

    @property
    def output_error(self) -> str | None:
        """Why nothing came out of it although it completed: `CODE: message`."""
        return in_words(self._run.finish.error if self._run.finish else None)

    @property
    def history(self) -> list[HistoryItem]:
        """All that moved it, in order."""
        return list(self._run.history.items)

    def task(self, name: str) -> HarnessTask:
        """One task as it stands, one item of a map: `pages.17`, or what undoes a task: `charge.compensate`. Raises
        NotFoundError."""
        return self._task(self._run.place(name))

    def items(self, name: str) -> list[HarnessTask]:
        """The items of a map that have begun, in the order of its list. Raises NotFoundError."""
        counts = self._run.state.maps.get(self._run.place(name))
        begun = 0 if counts is None else counts.begun
        return [self._task(place) for place in items_of(self._run.place(name), begun)]

    def child(self, task: str) -> "HarnessRun":
        """The run that this task has started last, to be looked at and acted on like any other. Raises
        NotFoundError."""
        child = self._run.children.get(self._run.place(task))
        if child is None:
            raise NotFoundError(f"task {task} has started no run", task=task)
        return HarnessRun(self._engine, child)

    @property
    def compensations(self) -> dict[str, str]:
        """What undoes it, by task; empty while it has nothing to undo."""
        state = self._run.state
        places = [(spec.name, compensation_of(spec.index)) for spec in state.plan.tasks]
        return {name: state.tasks[place].status.value for name, place in places if place in state.tasks}

    def _task(self, index: int) -> HarnessTask:
        state = self._run.state.task(index)
        is_done = state.status is TaskStatus.COMPLETED
        output = self._engine.worker.value(self._run, self._run.outputs.get(index, b"null")) if is_done else None
        due_at = None if state.due_at is None else from_microseconds(state.due_at)
        deadline_at = None if state.deadline_at is None else from_microseconds(state.deadline_at)
        return HarnessTask(
            state.status, state.attempt, output, in_words(state.error), due_at, deadline_at, state.rounds
        )

    # -- what people do ------------------------------------------------------------------------------------------------
    def approve(
        self, task: str, *, by: str = "", roles: Iterable[str] = (), comment: str = "", form: Any = None
    ) -> None:
        """Answer the task's question. form: what is filled in, where it has a form. roles: of whoever answers.

        Raises ConflictError when it asks nobody now, or they have voted; ForbiddenError when it is for others;
        DefinitionError when the form's schema refuses what is filled in.
        """
        self._decide(task, "approved", Person(by, frozenset(roles)), comment, form)

    def reject(
        self, task: str, *, by: str = "", roles: Iterable[str] = (), comment: str = "", form: Any = None
    ) -> None:
        """As `approve`."""
        self._decide(task, "rejected", Person(by, frozenset(roles)), comment, form)

    def question(self, task: str) -> Question:
        """What the task asks now: its title, context, approvers and votes. Raises ConflictError when it asks nobody."""
        index = self._run.place(task)
        if index not in self._run.questions:
            raise ConflictError(f"task {task} asks nobody: it is {self._run.state.task(index).status}", task=task)
        return self._run.questions[index]

    def signal(self, name: str, data: Any = None, *, key: str | None = None, by: str = "") -> None:
        """Tell it something: a task that waits for it takes it, now or once it begins to wait.

        Raises NotFoundError when no task of the workflow waits for that name, ConflictError when the run has ended.
        """
        if name not in self._plan.listeners:
            raise NotFoundError(self._plan.why_deaf(name), signal=name)
        if self.status in RUN_TERMINAL:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(self._engine.postbox.signal(name, payload.encode_input(data), key, by))

    @property
    def signals(self) -> list[str]:
        """The names of the signals that it was told and that no task has taken."""
        return [signal.name for signal in sorted(self._run.state.signals.values(), key=lambda signal: signal.order)]

    def cancel(self, reason: str = "", *, by: str = "") -> None:
        """End it now, but for its clean-ups, and undo what it did. Raises ConflictError when it has ended, or does only
        that already."""
        state = self._run.state
        if self.status in RUN_TERMINAL or state.compensations is not None or state.control & CANCELLING:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Cancelled(reason, by))

    def terminate(self, reason: str = "", *, by: str = "") -> None:
        """End it by force: as a cancel, and without any clean-up. Raises ConflictError when it has ended."""
        if self.status in RUN_TERMINAL:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Terminated(reason, by))

    def pause(self, reason: str = "", *, by: str = "", task: str | None = None) -> None:
        """Let nothing new begin; what runs and what waits goes on. task: of this one only. Raises ConflictError when it
        is paused, or has ended."""
        if task is not None:
            index, state = self._run.place(task), self._run.state
            if state.task(index).status in TERMINAL or index in state.paused:
                raise ConflictError(f"task {task} is {state.task(index).status}, or paused already", task=task)
            return self._act(Paused(TASKS_PAUSED, reason, by, index))
        if self.status in RUN_TERMINAL or self._run.state.control & PAUSED:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Paused(PAUSED, reason, by))

    def resume(self, reason: str = "", *, by: str = "", task: str | None = None) -> None:
        """End a pause, or that of a task: what it withheld begins. Raises ConflictError when it is not paused."""
        if task is not None:
            index = self._run.place(task)
            if index not in self._run.state.paused:
                raise ConflictError(f"task {task} is not paused by itself", task=task)
            return self._act(Resumed(TASKS_PAUSED, reason, by, index))
        if not self._run.state.control & PAUSED:
            raise ConflictError(f"the run is {self.status}, and not paused", run_id=self.run_id)
        self._act(Resumed(PAUSED, reason, by))

    def migrate(self, workflow: Published, reason: str = "", *, by: str = "") -> None:
        """Move it to another version of its workflow. Runs that are started later begin with the first one still.

        Raises DefinitionError; ConfigurationError when a body is not there; ConflictError when it is not paused,
        something of it runs, or what has begun is another thing in that version.
        """
        published = read_workflow(workflow)
        self._run.read_anew()
        move = self._engine.compile_next(published, self._run)
        if obstacles := find_obstacles(move, self._run.state):
            told = "; ".join(why if task is None else f"task {task}: {why}" for task, why in obstacles)
            raise ConflictError(f"the run cannot be moved: {told}", run_id=self.run_id)
        self._act(Migrated(move, reason, by))

    def prioritise(self, priority: int, reason: str = "", *, by: str = "") -> None:
        """Change its place in the queues of pools. Raises ConflictError when it has ended."""
        if self.status in RUN_TERMINAL:
            raise ConflictError(f"the run is {self.status} already", run_id=self.run_id)
        self._act(Prioritised(read_priority(priority), reason, by))

    def rerun(self, *tasks: str, input: Any = None, reason: str = "", by: str = "") -> None:
        """Let these tasks of a run that has ended, and all that depends on them, run again; without any, what failed or
        was cancelled. input: of the only task named. Raises ConflictError when the run has not ended, or nothing would
        run again."""
        chosen = tuple(self._run.place(task) for task in tasks)
        if not choose_rerun(self._plan, self._run.state, chosen):
            raise ConflictError(f"the run is {self.status}: nothing of it runs again", run_id=self.run_id)
        given = None if input is None else payload.encode_input(input)
        self._act(Reran(self._run.state.row_version, chosen, given, reason, by))

    def skip(self, task: str, output: Any = None, *, reason: str = "", by: str = "") -> None:
        """Give a task its output, so that it is done without its body. Raises ConflictError when it is not open and has
        not failed, or when its approval would be gone round."""
        index = self._run.place(task)
        if is_ended_by_cancel(self._run.state, index) or not can_be_supplied(self._plan, self._run.state, index):
            raise ConflictError(f"task {task} is {self._run.state.task(index).status}", task=task)
        state = self._run.state.task(index)
        self._act(Supplied(index, state.token, payload.encode_input(output), reason, by))

    def replay(self, task: str, *, input: Any = None, by: str = "") -> None:
        """Send a failed task, a failed item of a map, or a failed compensation out again. input: in place of what it
        was given. Raises ConflictError when it has not failed, or cannot come back."""
        index, state = self._stands(task, TaskStatus.FAILED)
        if self._run.state.compensations is not None and not is_compensation(index):
            raise ConflictError(f"the run is {self.status}: of it only compensations are replayed", task=task)
        if not is_compensation(index) and is_ended_by_cancel(self._run.state, index):
            raise ConflictError("the run was cancelled; its tasks cannot be replayed", task=task)
        given = None if input is None else payload.encode_input(input)
        if state.items is not None:
            raise ConflictError(f"of map {task} the items that failed are replayed", task=task)
        if self._run.state.has_put_away(index):
            raise ConflictError(f"the map of {task} has completed with this failure in its output", task=task)
        self._act(Replayed(index, state.token, by, given))

    def resolve(
        self, task: str, outcome: Literal["happened", "did_not_happen", "fail"], *, output: Any = None, by: str = ""
    ) -> None:
        """Say what became of the effect of a parked task. Raises ConflictError when it is not parked."""
        index, state = self._stands(task, TaskStatus.WAITING)
        if not state.is_parked:
            raise ConflictError(f"task {task} is not parked", task=task)
        self._act(Resolved(index, state.token, outcome, payload.encode_input(output), by))

    def _decide(self, task: str, outcome: str, person: Person, comment: str, form: Any) -> None:
        self.question(task)  # raises when there is none
        given = None if form is None else payload.encode_input(form)
        index = self._run.place(task)
        decided = self._engine.approvals.vote(self._run, index, outcome, person, comment, given)
        if decided is not None:
            self._act(decided)

    def _stands(self, task: str, status: TaskStatus) -> tuple[int, TaskState]:
        index = self._run.place(task)
        state = self._run.state.task(index)
        if state.status is not status:
            raise ConflictError(f"task {task} is {state.status} and not {status}", task=task)
        return index, state

    def _act(self, event: MachineEvent) -> None:
        self._run.tell(event)
        self._engine.settle()
