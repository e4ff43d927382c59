"""What is so: the rows and marks that causes are told from. `state.queries.explain` reads them."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.machine import Plan, RunStatus, TaskStatus
from headrace.machine.place import is_compensation, task_of


class Failure(NamedTuple):
    code: str
    message: str = ""


class Session(NamedTuple):
    session_id: UUID
    worker: str
    renewed_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None
    draining: bool = False
    slots: int = 1
    held: int = 1


class Timer(NamedTuple):
    due_at: datetime
    said_at: datetime | None = None


class Ballot(msgspec.Struct, frozen=True):
    """A vote that did not decide."""

    by: str
    decision: str
    role: str | None = None
    in_place_of: str | None = None


class NextStep(msgspec.Struct, frozen=True):
    """What happens to an open question before anybody answers."""

    kind: str
    """remind or escalate"""
    at: datetime
    to: list[str] | None = None


class Question(NamedTuple):
    approval_id: UUID
    status: str
    approvers: Sequence[str]
    asked_at: datetime
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None
    needed: int = 1
    votes: Sequence[Ballot] = ()
    on_expiry: str = "fail"
    steps_left: int = 0
    """Of the escalation chain."""
    next: NextStep | None = None


class Parked(NamedTuple):
    """The row of a task that waits for a person to say what became of its effect."""

    parked_at: datetime
    resolved_at: datetime | None = None
    resolved_by: str | None = None


class Listening(NamedTuple):
    """The row of a task that waits for a signal."""

    name: str
    key: str | None
    began_at: datetime


class Holder(NamedTuple):
    """A task, perhaps of another run, that holds a slot."""

    run_id: UUID
    task: str
    since: datetime


class PoolFacts(NamedTuple):
    slots: int | None
    """None: as many as are asked for."""
    rate: tuple[int, float] | None
    """So many hand-outs in so many seconds."""
    held: int
    waiting: int
    holders: Sequence[Holder] = ()
    """Those who have had theirs for longest."""


class InLine(NamedTuple):
    """The row of a task that waits for a slot."""

    position: int
    """1: it is the next of its fairness key."""
    began_at: datetime
    granted_at: datetime | None = None
    fairness_key: str = ""
    """Empty: with all others that have none."""
    keys_before: int = 0
    """Those whose turn comes first."""
    is_shared: bool = False
    """Others wait for other keys, or it has one."""


class PermitFacts(NamedTuple):
    """Of a run that waits for its permit under the limit of its workflow."""

    key: str = ""
    """Empty: all runs of the workflow."""
    runs: int | None = None
    """How many of the key go at once; None: as many as are started."""
    held: int = 0
    holders: Sequence[UUID] = ()
    """Those who have had theirs for longest."""
    position: int = 1
    """1: it is next."""
    waiting: int = 1
    since: datetime | None = None
    """None: it is not in line."""
    granted_at: datetime | None = None


class Child(NamedTuple):
    """The run that this hand-out has asked for."""

    run_id: UUID
    workflow: str
    status: str
    """Of that run; asked or refused, when there is none."""
    asked_at: datetime
    ended_at: datetime | None = None


class Letter(NamedTuple):
    dead_letter_id: UUID
    status: str


class Items(NamedTuple):
    """How far a map has come."""

    total: int
    begun: int
    completed: int
    failed: int


class TaskFacts(NamedTuple):
    """A task, or an item of a map, that has a row."""

    task: int
    status: TaskStatus
    changed_at: datetime
    attempt: int = 0
    token: int = 1
    retries_from: int = 0
    due_at: datetime | None = None
    session_id: UUID | None = None
    error: Failure | None = None
    timer: Timer | None = None
    """The timer of this hand-out."""
    owner: Session | None = None
    """The session that said it runs the body; None also when that session is not known any more."""
    lister: Session | None = None
    """The session whose last heartbeat listed this hand-out; a live one if there is one."""
    progress: str | None = None
    question: Question | None = None
    """The approval of this hand-out."""
    letter: Letter | None = None
    lookups: int = 0
    parked: Parked | None = None
    listening: Listening | None = None
    last_error: str | None = None
    """The code of the last attempt that ended."""
    withheld: bool = False
    """It may begin, and does when the pause of its run ends."""
    items: Items | None = None
    """Of a map whose list is known."""
    pool: str | None = None
    """Whose slot it waits for, or holds."""
    deadline_at: datetime | None = None
    """When it has to have ended."""
    deadline_timer: Timer | None = None
    rounds: int = 0
    """Of a repeat: how many have ended."""
    child: Child | None = None

    @property
    def is_untouched(self) -> bool:
        """Its join is undecided: it was never handed out, or not since its run was rerun."""
        has_failed = self.attempt > self.retries_from or self.lookups > 0
        return self.status is TaskStatus.PENDING and not (self.withheld or self.due_at or self.timer or has_failed)


class Request(NamedTuple):
    inbox_id: UUID
    kind: str
    task: int | None
    actor: str
    created_at: datetime


class Queue(NamedTuple):
    """Live sessions that serve a queue."""

    sessions: int = 0
    draining: int = 0
    full: int = 0
    slots: int = 0
    held: int = 0


class Relay(NamedTuple):
    owner: str
    renewed_at: datetime
    slot: str
    slot_is_there: bool
    wal_status: str
    lag_bytes: int
    gap_at: datetime | None = None
    """When the slot was last found lost."""


class Engine(NamedTuple):
    partition: int
    """Of the events topic: where everything about this run is said."""
    relay: Relay | None = None
    """None: no relay has ever worked here."""
    ticked_at: datetime | None = None
    """All that was committed before has gone through relay and Kafka, and all heartbeats before have been read."""
    passes: Mapping[str, datetime] = {}
    """Every sweep's last pass."""
    owner: str | None = None
    """Who took the partition last; None: nobody ever did."""
    taken_at: datetime | None = None
    logs: Mapping[str, datetime] = {}
    """Queue -> since when the log of its commands is the one it is."""


class Stop(NamedTuple):
    """What ended or stopped a run as a whole: a cancel, a termination, or an event that could not be decided."""

    kind: str
    at: datetime
    actor: str = ""
    reason: str = ""
    letter: UUID | None = None


class Pause(NamedTuple):
    """Why nothing new of a run begins."""

    at: datetime
    actor: str = ""
    reason: str = ""
    of_workflow: bool = False
    """It is not this run that was paused, but all of its workflow."""
    task: int | None = None
    """It is this task that was paused, and not its run."""
    is_moving: bool = False
    """The run is paused so that it can be moved to another version, and goes on by itself."""


class Facts(NamedTuple):
    now: datetime
    run_id: UUID
    plan: Plan
    status: RunStatus
    changed_at: datetime
    engine: Engine
    lease: timedelta
    ended: frozenset[int] = frozenset()
    """Tasks of the graph, and compensations, in a terminal state."""
    tasks: Mapping[int, TaskFacts] = {}
    """Those that were looked at, in order."""
    open_tasks: int = 0
    """How many are open and have a row, looked at or not."""
    requests: Sequence[Request] = ()
    """Accepted for this run and not applied, oldest first."""
    queues: Mapping[str, Queue] = {}
    ahead: Mapping[str, int] = {}
    """Queue -> commands of older runs that wait in it; at least so many."""
    held: Mapping[int, Pause] = {}
    """Tasks whose command is kept back, and the pause of their queue; it is about to go when that has no actor."""
    stop: Stop | None = None
    pools: Mapping[str, PoolFacts] = {}
    """Those that tasks here wait for and somebody has set."""
    in_line: Mapping[int, InLine] = {}
    """Tasks that wait for a slot."""
    pauses: Sequence[Pause] = ()
    """Those that have not ended, oldest first."""
    deadline_at: datetime | None = None
    """When it has to have ended."""
    permit: PermitFacts | None = None
    """Only while the run waits for it."""
    is_cancelled: bool = False
    """A cancel, or its deadline, has ended all of it but its clean-ups."""

    def pauses_of(self, place: int) -> list[Pause]:
        """What keeps this task from going on: pauses of its run, and its own."""
        index = None if is_compensation(place) else task_of(place)
        return [pause for pause in self.pauses if pause.task is None or pause.task == index]

    @property
    def is_undone(self) -> bool:
        """Whether the run has begun to undo what it did."""
        return any(map(is_compensation, self.ended)) or any(map(is_compensation, self.tasks))
