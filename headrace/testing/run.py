"""One run: its state, and what Postgres would hold beside that."""

from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from headrace.errors import NotFoundError
from headrace.machine import (
    Action,
    Dispatch,
    EndAttempt,
    Finish,
    MachineEvent,
    Plan,
    Reran,
    RunState,
    StartChild,
    TaskStatus,
    Transition,
    advance,
    begin,
)
from headrace.messages import RunId, Succeeded, make_nonce
from headrace.question import Question
from headrace.testing.clock import Clock
from headrace.testing.history import History

_MINUTE: Final = 60_000_000
_SECRET: Final = b"not secret: nobody but the harness speaks to its machine"


class Parent(NamedTuple):
    """Who asked for a run."""

    run: "Run"
    action: StartChild
    is_waiting: bool


class Run:
    """It asks the machine about every event, and hands on, one by one, the actions that are not its own."""

    def __init__(
        self, run_id: RunId, plan: Plan, input: bytes, clock: Clock, carry_out: Callable[["Run", Action], None], *,
        by: str, priority: int, parent: Parent | None, control: int,
    ) -> None:  # fmt: skip
        self.run_id, self.started_by, self.priority, self.parent = run_id, by, priority, parent
        self._clock, self._carry_out = clock, carry_out
        self.depth: int = 0 if parent is None else parent.run.depth + 1
        self.children: Final[dict[int, Run]] = {}
        """By the task that asked for it: the last of each."""
        self.state: Final = RunState(run_id.encode(), plan, input, control=control)
        self.outputs: Final[dict[int, bytes]] = {}
        self.questions: Final[dict[int, Question]] = {}
        """By task: those that are open."""
        self.finish: Finish | None = None
        self.history: Final = History(self.state, clock)
        self.history.note("started")

    def begin(self) -> None:
        self._accept(begin(self.state.plan, self.state, self._clock.at), None)

    def place(self, task: str) -> int:
        """Raises NotFoundError."""
        return find_place(self.state.plan, task)

    def nonce(self, task: int, token: int) -> str:
        return make_nonce(_SECRET, self.state.key, task, token)

    def read_anew(self) -> None:
        """As the engine does before a move: also the outputs that no task of this version reads."""
        for index, task in self.state.tasks.items():
            if task.status is TaskStatus.COMPLETED and task.output is None and index in self.outputs:
                self.state.tasks[index] = msgspec.structs.replace(task, output=self.outputs[index])

    def is_handed_out(self, action: Dispatch) -> bool:
        """Whether that hand-out is the current one: a command that was overtaken is dropped."""
        task = self.state.task(action.task)
        return task.status is TaskStatus.QUEUED and task.token == action.token

    def stands_in_line(self, since: int) -> int:
        """As if it had come then: a point of priority is worth a minute of waiting."""
        return since - self.priority * _MINUTE

    def tell(self, event: MachineEvent) -> None:
        """Let the machine decide about an event, and have carried out what it asks for."""
        transition = advance(self.state.plan, self.state, event, self._clock.at)
        if transition is not None:
            self._accept(transition, event)

    def _accept(self, transition: Transition, event: MachineEvent | None) -> None:
        self.state.apply(transition)
        self.history.tell(event, transition)
        if isinstance(event, Reran):
            self.finish = None
        for index, task in transition.tasks.items():
            if task.status is TaskStatus.COMPLETED and task.output is not None:
                self.outputs[index] = task.output
        if isinstance(event, Succeeded) and any(isinstance(action, EndAttempt) for action in transition.actions):
            self.outputs[event.task] = bytes(event.output)
        for action in transition.actions:
            self._carry_out(self, action)


def find_place(plan: Plan, task: str) -> int:
    """Of a task, or of an item. Raises NotFoundError."""
    place = plan.find(task)
    if place is None:
        raise NotFoundError(f"workflow {plan.name} has no task {task}", task=task)
    return place
