"""What `advance` asks the engine to persist: data, in the order in which it must be written."""

import msgspec

from headrace.machine.event import Signalled
from headrace.machine.plan import Plan
from headrace.machine.run_state import ItemCounts, RunState, TaskState
from headrace.machine.status import CompensationCounts, RunStatus, TaskStatus
from headrace.messages import Error


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """Publish a command for the task's current token."""

    task: int
    attempt: int
    """The number this try will have if its body begins."""
    token: int
    input: bytes
    lookup: bool = False
    """Ask the task's lookup instead of running its body."""
    round: int | None = None
    """Of a repeat, from 0."""


class Grant(msgspec.Struct, frozen=True):
    """Tell the session that claimed this hand-out that its body may start."""

    task: int
    token: int
    session: str


class EndAttempt(msgspec.Struct, frozen=True):
    """Record an attempt that ended. `outcome`: completed, failed, lost, cancelled or returned."""

    task: int
    attempt: int
    token: int
    outcome: str
    error: Error | None = None


class KeepUndo(msgspec.Struct, frozen=True):
    """What the compensation of a task is given, should the task not complete again; None: nothing is to be undone of
    what it did before."""

    task: int
    input: bytes | None


class SetTimer(msgspec.Struct, frozen=True):
    """Make a `Due(timer=kind)` event at `due_at`. One timer per task, beside its deadline: a second
    replaces the first."""

    task: int
    token: int
    kind: str
    due_at: int


class ClearTimer(msgspec.Struct, frozen=True):
    task: int


class SetDeadline(msgspec.Struct, frozen=True):
    """Make a `Due(timer="deadline")` event of token 0 at `due_at`: beside its timer, and whatever its token is then.
    None: not any more. task: `RUN` for the run itself."""

    task: int
    due_at: int | None


class CountRounds(msgspec.Struct, frozen=True):
    """So many rounds of a repeat have ended."""

    task: int
    rounds: int


class NoteRound(msgspec.Struct, frozen=True):
    """The attempt that ended under this token was one of this round, from 0."""

    task: int
    token: int
    round: int


class Ask(msgspec.Struct, frozen=True):
    """Open the task's approval; its expiry, reminders and escalations count from now."""

    task: int
    token: int
    title: str | None = None
    """In place of the one in the graph, where that has expressions."""
    context: bytes | None = None
    """JSON that people are shown besides."""


class CloseQuestion(msgspec.Struct, frozen=True):
    """The task no longer waits for its approval."""

    task: int
    token: int


class Listen(msgspec.Struct, frozen=True):
    """The task waits for a signal."""

    task: int
    token: int
    name: str
    key: str | None


class StopListening(msgspec.Struct, frozen=True):
    task: int


class KeepSignal(msgspec.Struct, frozen=True):
    """No task waits for this signal yet: the run keeps it."""

    signal_id: str


class TakeSignal(msgspec.Struct, frozen=True):
    """This hand-out has taken the signal, which was kept or has just come."""

    signal_id: str
    task: int
    token: int


class AwaitSlot(msgspec.Struct, frozen=True):
    """The task waits for a slot of its pool."""

    task: int
    token: int
    pool: str
    fairness_key: str = ""
    """Between whom the slots go in turns; empty: with all others that have none."""


class TakeSlot(msgspec.Struct, frozen=True):
    """The slot that the task was given is in use from here on: it waits for none any more."""

    task: int


class FreeSlot(msgspec.Struct, frozen=True):
    """The task waits for no slot, and holds none."""

    task: int
    pool: str


class SetPriority(msgspec.Struct, frozen=True):
    """Of the run, in the queues of pools."""

    priority: int


class HoldTasks(msgspec.Struct, frozen=True):
    """These tasks of the run, and no others, are paused by themselves from here on."""

    tasks: tuple[int, ...]


class StartChild(msgspec.Struct, frozen=True):
    """Start the run that the task waits for; one for each token."""

    task: int
    token: int
    input: bytes


class CancelChild(msgspec.Struct, frozen=True):
    """Ask that the run end which this hand-out has asked for; one that has not begun never does."""

    task: int
    token: int


class KeepOutput(msgspec.Struct, frozen=True):
    """The task has an output that no attempt of its body answered with."""

    task: int
    output: bytes


class Park(msgspec.Struct, frozen=True):
    """Set the task before a person: its effect may have happened, and nothing but a person can tell."""

    task: int
    token: int
    error: Error


class Unpark(msgspec.Struct, frozen=True):
    task: int


class Abort(msgspec.Struct, frozen=True):
    """Tell whoever holds this hand-out to stop."""

    task: int
    token: int
    reason: str


class BuryTask(msgspec.Struct, frozen=True):
    """Set the task aside as a dead letter: no try is left."""

    task: int
    token: int
    attempt: int
    error: Error


class CloseLetter(msgspec.Struct, frozen=True):
    """The dead letter of this hand-out, if it is still parked, has been dealt with. `status`: replayed or discarded."""

    task: int
    token: int
    status: str


class RefuseMove(msgspec.Struct, frozen=True):
    """The run stays on its version: something stood in the way when its turn came."""

    version: int | None
    """That it was to be moved to; None: it does not exist."""
    why: str


class Finish(msgspec.Struct, frozen=True):
    status: RunStatus
    output: bytes | None = None
    """JSON; of a run that completed and whose workflow says what comes out of it."""
    error: Error | None = None
    """Why there is none although it should."""


class AwaitPermit(msgspec.Struct, frozen=True):
    """The run counts under the limit of its workflow, with others of this key: it waits for its permit, or has it."""

    key: str
    """Empty: all runs of the workflow."""
    is_granted: bool = False


class ReturnPermit(msgspec.Struct, frozen=True):
    """The run holds no permit any more, and waits for none."""


Action = (
    Dispatch
    | Grant
    | EndAttempt
    | KeepOutput
    | KeepUndo
    | SetTimer
    | ClearTimer
    | SetDeadline
    | CountRounds
    | NoteRound
    | Ask
    | CloseQuestion
    | Listen
    | StopListening
    | KeepSignal
    | TakeSignal
    | AwaitSlot
    | TakeSlot
    | FreeSlot
    | SetPriority
    | HoldTasks
    | StartChild
    | CancelChild
    | Park
    | Unpark
    | Abort
    | BuryTask
    | CloseLetter
    | RefuseMove
    | AwaitPermit
    | ReturnPermit
    | Finish
)


class Transition:
    """One decision: the new values of what it touches, and the actions to persist with them.

    Built by `advance` over the run it reads; `run.apply(transition)` makes it so in memory.
    """

    __slots__ = (
        "actions", "attention", "compensations", "control", "counts", "deadlines", "kept", "maps", "missing", "paused",
        "plan", "rounds", "status", "taken", "tasks", "undo",
        "wanted",
    )  # fmt: skip

    def __init__(self, run: RunState) -> None:
        self.tasks: dict[int, TaskState] = {}
        self.missing: dict[int, int] = {}
        self.wanted: dict[int, int] | None = None
        """None for most: few graphs have a quorum."""
        self.kept: Signalled | None = None
        """The signal that the run has from here on."""
        self.taken: list[str] = []
        """Ids of signals that it had until here."""
        self.plan: Plan | None = None
        """None for most: the version that the run is on from here on."""
        self.paused: frozenset[int] | None = None
        """None for most: the tasks that are paused by themselves from here on."""
        self.maps: dict[int, ItemCounts] | None = None
        """None for most: few events are of an item."""
        self.deadlines: dict[int, int | None] | None = None
        """Those that this decides about. None for most: few tasks have one."""
        self.rounds: dict[int, tuple[int, bytes | None]] | None = None
        """Of repeats that this decides about: rounds that have ended, and what came out of the last. None for most."""
        self.undo: dict[int, bytes | None] | None = None
        """None for most: what undoes tasks as they had completed before a rerun, see `RunState.undo`."""
        self.counts: dict[TaskStatus, int] = run.counts.copy()
        self.attention: bool = run.attention
        self.control: int = run.control
        self.compensations: CompensationCounts | None = run.compensations
        self.status: RunStatus = run.status
        self.actions: list[Action] = []
