"""What can move a run: the events of the wire, and those an operator's row in `inbox` becomes once it has been read."""

from typing import Final

import msgspec

from headrace.machine.plan import Plan
from headrace.machine.status import PAUSED
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded

PRIORITY_MAX: Final = 100
"""A run's priority is from minus this to this; each point is worth a minute of waiting, see decision 27."""


class Cancelled(msgspec.Struct, frozen=True):
    """Somebody asked that the run end now."""

    reason: str = ""
    by: str = ""


class Terminated(msgspec.Struct, frozen=True):
    """Somebody ends the run by force: as a cancel, and what it did is not undone either."""

    reason: str = ""
    by: str = ""


class Paused(msgspec.Struct, frozen=True):
    """Nothing new of the run is to begin, or of one task of it; what runs goes on to its end. `scope`: what is paused,
    a bit of `control`."""

    scope: int = PAUSED
    reason: str = ""
    by: str = ""
    task: int = -1
    """With `TASKS_PAUSED`: which."""


class Resumed(msgspec.Struct, frozen=True):
    """A pause is over. The run goes on once none is left."""

    scope: int = PAUSED
    reason: str = ""
    by: str = ""
    task: int = -1


class Prioritised(msgspec.Struct, frozen=True):
    """Somebody changes the place of the run's tasks in the queues of their pools."""

    priority: int
    """Higher goes first; see `PRIORITY_MAX`."""
    reason: str = ""
    by: str = ""


class Decided(msgspec.Struct, frozen=True):
    """A question has its answer. The row `approval` is the arbiter between people and the expiry; this only reports
    it."""

    task: int
    token: int
    outcome: str
    """approved, rejected or expired"""
    by: str = ""
    comment: str = ""
    votes: bytes = b"[]"
    """JSON: who said what, in order; none when nobody but the expiry decided."""
    form: bytes = b"null"
    """JSON: what the last of them filled in."""


class Replayed(msgspec.Struct, frozen=True):
    """An operator sends a dead letter's task out again; `input` replaces its rendered input from now on."""

    task: int
    token: int
    by: str = ""
    input: bytes | None = None


class Resolved(msgspec.Struct, frozen=True):
    """A person says what became of the effect of a parked task."""

    task: int
    token: int
    outcome: str
    """happened, did_not_happen or fail"""
    output: bytes = b"null"
    """JSON; the task's output, when it happened."""
    by: str = ""
    comment: str = ""


class Supplied(msgspec.Struct, frozen=True):
    """A person gives a task its output: it is done, without its body."""

    task: int
    token: int
    output: bytes = b"null"
    """JSON"""
    reason: str = ""
    by: str = ""


class Reran(msgspec.Struct, frozen=True):
    """An operator lets part of a run that has ended run again; the results of the rest stand."""

    row_version: int
    """Of the run when this was decided. One that has moved since is not what the operator saw."""
    tasks: tuple[int, ...] = ()
    """These and all that depends on them; items of a map stand for no others of it. None: what failed or was cancelled
    (of a map, its items), and what was skipped because of that."""
    input: bytes | None = None
    """JSON, in place of the rendered input of the only task named."""
    reason: str = ""
    by: str = ""
    plan: Plan | None = None
    """Of another version of its workflow, on which the run goes on from here; what that adds runs as well. None: it
    stays on its own."""


class Migrated(msgspec.Struct, frozen=True):
    """An operator moves a paused run to another version of its workflow."""

    plan: Plan | None
    """Of that version, compiled by whoever applies this; None: there is none."""
    reason: str = ""
    by: str = ""
    resumes: int = 0
    """The pause that ends with it, a bit of `control`, whether the run is moved or not: it was paused for this only."""


class Signalled(msgspec.Struct, frozen=True):
    """Something was told to the run from outside. While no task waits for it, the run keeps it as it is."""

    signal_id: str
    """Made by the engine when it was stored; one signal counts once."""
    name: str
    data: bytes = b"null"
    """JSON."""
    key: str | None = None
    """Only for a task that waits for this key; None: for any that waits for the name."""
    by: str = ""
    sent_at: int = 0
    """When it was stored: the database's clock, microseconds UTC."""
    task: int | None = None
    """The only task it is for: it was posted for whoever waits, and is offered to this wait. Another may have it when
    that is over."""
    token: int = 0
    """Of that wait."""

    @property
    def order(self) -> tuple[int, str]:
        """Signals are taken in the order in which they were stored, which is that of each sender."""
        return self.sent_at, self.signal_id


class ChildTold(msgspec.Struct, frozen=True):
    """What became of the run that a task asked for: its child."""

    task: int
    token: int
    """Of the hand-out that asked for it."""
    child: str
    """The id of that run."""
    outcome: str
    """started; refused: it never began; or how it ended: completed, failed, cancelled or terminated"""
    output: bytes = b"null"
    """JSON; what came out of one that completed."""
    error: Error | None = None
    """Why it was refused, or why nothing came out of one that completed."""


class Isolated(msgspec.Struct, frozen=True):
    """Deciding one of this run's events raised: the run stands aside until a person has looked."""

    error: Error


class Released(msgspec.Struct, frozen=True):
    """A person lets an isolated run go on."""

    by: str = ""


MachineEvent = (
    Succeeded
    | Started
    | Failed
    | Returned
    | Lost
    | Due
    | Admitted
    | Cancelled
    | Terminated
    | Paused
    | Resumed
    | Prioritised
    | Decided
    | Replayed
    | Resolved
    | Supplied
    | Reran
    | Migrated
    | Signalled
    | ChildTold
    | Isolated
    | Released
)
