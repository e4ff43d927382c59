"""A run in memory: a cache of what Postgres holds, valid at `row_version`."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from headrace.machine.event import Signalled
from headrace.machine.place import (
    ITEMS_MAX,
    RUN,
    compensation_of,
    is_compensation,
    is_item,
    items_of,
    task_of,
)
from headrace.machine.plan import Plan, read_list
from headrace.machine.reason import CHILD_CANCELLED
from headrace.machine.status import TERMINAL, CompensationCounts, RunStatus, TaskStatus, derive_status
from headrace.messages import Error

if TYPE_CHECKING:
    from headrace.machine.actions import Transition


class TaskState(msgspec.Struct, frozen=True):
    """One task of one run, as far as the machine needs it."""

    status: TaskStatus
    attempt: int = 0
    """Bodies that began, over the life of the task."""
    token: int = 0
    """Of the latest hand-out; 0 until the first. Rises by one, or to above the run's `token_floor`."""
    due_at: int | None = None
    """When its timer is due (backoff while PENDING, its time in the queue while QUEUED, time-out while RUNNING, the end
    of a wait, also of one for a signal, while WAITING); microseconds UTC."""
    retries_from: int = 0
    """Attempts that the retry policy does not count: those before the last replay, and those handed back."""
    input: bytes | None = None
    """JSON given by an operator at a replay, instead of the rendered input. Of a task that waits for a signal: the key
    of that signal, once the wait has begun."""
    output: bytes | None = None
    """JSON; kept in memory only while some template may still read it."""
    error: Error | None = None
    """Why it is FAILED, SKIPPED or CANCELLED; what is not known, while it is looked up or WAITING for a person."""
    session: str = ""
    """Who holds it, once RUNNING."""
    lookups: int = 0
    """Which lookup this is since the ambiguous end; 0 when none is under way."""
    vanished: int = 0
    """Hand-outs in a row, of its body or of its lookup, of which nothing was heard; only while it is open."""
    withheld: str = ""
    """From where a PENDING task goes on when the pause of its run ends: `turn`, its join has allowed it to run;
    `again`, an operator has sent it out again; `body`, past its condition and its approval, or its lookup while
    `lookups` counts. `room`: an item that runs again once its map has room for it, pause or no pause."""
    items: int | None = None
    """How many items a map has, once its list is known; that is then its `input`."""
    pool: str = ""
    """Whose slot it waits for, while WAITING, or holds, while QUEUED or RUNNING."""
    deadline_at: int | None = None
    """When it has to have ended, from its turn on and until it has; microseconds UTC. Over all hand-outs: what makes a
    new state leaves it out, and `headrace.machine.deadline` keeps it."""
    rounds: int = 0
    """Of a repeat: how many rounds have ended. Until it has completed, `output` is what came out of the last one, where
    its input reads that; `headrace.machine.repeat` keeps both."""

    @property
    def is_parked(self) -> bool:
        """WAITING for a person to say what became of its effect, and neither for an approval nor for an instant."""
        return self.status is TaskStatus.WAITING and self.error is not None

    @property
    def is_without_child(self) -> bool:
        """CANCELLED because its child was, and not with its run."""
        return self.error is not None and self.error.code == CHILD_CANCELLED

    @property
    def awaits_slot(self) -> bool:
        """WAITING for a slot of its pool, and for nothing else."""
        return self.status is TaskStatus.WAITING and self.pool != ""

    @property
    def is_untouched(self) -> bool:
        """Its join is undecided: nothing but the graph makes it begin."""
        return self.status is TaskStatus.PENDING and self.due_at is None and not self.withheld

    @property
    def is_between_rounds(self) -> bool:
        """Of a repeat: its last round has ended, and the next one is due later. A backoff is behind an attempt that
        counts."""
        return self.due_at is not None and self.rounds > 0 and self.attempt == self.retries_from and not self.lookups

    @property
    def is_mapping(self) -> bool:
        """WAITING for the items of its map."""
        return self.status is TaskStatus.WAITING and self.items is not None


class ItemCounts(msgspec.Struct, frozen=True):
    """How far a map has come. Changed by one for each item that begins or ends, and never counted while it runs."""

    items: list[msgspec.Raw]
    """The list; never changed."""
    begun: int = 0
    """Items that were handed out since the map began: the first so many of the list."""
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    output_bytes: int = 0
    """Of what the completed ones gave."""
    again: tuple[int, ...] = ()
    """Places of items that are to run again, in order; never changed."""
    again_from: int = 0
    """How many of them have been handed out."""

    @property
    def open(self) -> int:
        """Items under way: neither ended nor waiting for room."""
        waiting = len(self.again) - self.again_from
        return self.begun - self.completed - self.failed - self.cancelled - waiting

    def after(self, before: TaskState | None, task: TaskState) -> "ItemCounts":
        """With one item as it is now. before: None, or untouched again by a rerun, when it had not begun."""
        change = {TaskStatus.COMPLETED: 0, TaskStatus.FAILED: 0, TaskStatus.CANCELLED: 0}
        if before is not None and before.status in change:
            change[before.status] -= 1
        if task.status in change:
            change[task.status] += 1
        size = len(task.output or b"null") if task.status is TaskStatus.COMPLETED else 0
        if before is not None and before.status is TaskStatus.COMPLETED:
            size -= len(before.output or b"null")
        return ItemCounts(
            self.items,
            self.begun + (before is None or before.is_untouched),
            self.completed + change[TaskStatus.COMPLETED],
            self.failed + change[TaskStatus.FAILED],
            self.cancelled + change[TaskStatus.CANCELLED],
            self.output_bytes + size,
            self.again,
            self.again_from,
        )


UNTOUCHED: Final = TaskState(TaskStatus.PENDING)


def count_undone(plan: Plan, compensations: Mapping[int, TaskState]) -> dict[int, int]:
    """Of each task of the graph, by the place of its compensation: behind how many of the tasks that need it something
    is still to be undone. It is passed by once that is none, and its own compensation, if it has one, has ended.

    compensations: all that the run has, by place.
    """
    missing = {compensation_of(spec.index): len(spec.dependants) for spec in plan.tasks}
    passed = [spec.index for spec in plan.tasks if not spec.dependants]
    for index in passed:  # grows while it is walked
        own = compensations.get(compensation_of(index))
        if own is not None and own.status not in TERMINAL:
            continue
        for need in plan.tasks[index].needs:
            place = compensation_of(need)
            missing[place] -= 1
            if not missing[place]:
                passed.append(need)
    return missing


class RunState:
    """What `advance` reads. Only `apply` changes it."""

    __slots__ = (
        "attention",
        "compensations",
        "control",
        "counts",
        "deadline_at",
        "input",
        "key",
        "maps",
        "missing",
        "paused",
        "plan",
        "row_version",
        "signals",
        "status",
        "tasks",
        "token_floor",
        "undo",
        "wanted",
    )

    def __init__(
        self,
        key: bytes,
        plan: Plan,
        input: bytes,
        *,
        row_version: int = 0,
        attention: bool = False,
        control: int = 0,
        tasks: dict[int, TaskState] | None = None,
        token_floor: int = 0,
        signals: Iterable[Signalled] = (),
        deadline_at: int | None = None,
        paused: Iterable[int] = (),
        undo: Mapping[int, bytes] | None = None,
    ) -> None:
        """key: the run id's text form as bytes. tasks: those that were ever touched. token_floor: every hand-out from
        here on has a higher token than this, so that none is used again that a lost future may have used. signals:
        those it keeps. deadline_at: when it has to have ended, microseconds UTC. paused: tasks that are so by
        themselves. undo: see there."""
        self.key, self.plan, self.input = key, plan, input
        self.row_version, self.attention, self.token_floor = row_version, attention, token_floor
        self.control, self.deadline_at, self.paused = control, deadline_at, frozenset(paused)
        # A task that was put back to how all begin says nothing by its row; a compensation says that it is to come.
        self.tasks: dict[int, TaskState] = {
            index: task for index, task in (tasks or {}).items() if index >= ITEMS_MAX or task != UNTOUCHED
        }
        self.counts: dict[TaskStatus, int] = {}
        self.missing: dict[int, int] = {}
        """Of tasks that are not decided yet: how many of their needs have not ended. Not of chained ones."""
        self.wanted: dict[int, int] = {}
        """Of those with a quorum: how many needs have yet to complete."""
        self.signals: dict[str, Signalled] = {signal.signal_id: signal for signal in signals}
        """By id: those that no task has taken yet."""
        self.undo: dict[int, bytes] = dict(undo or ())
        """Of tasks that had completed and were rerun: what their compensations are given, as the tasks stood then. It
        counts unless they complete again. JSON; null where it could not be told."""
        self.maps: dict[int, ItemCounts] = {}
        """Of maps whose items are known, until they have completed."""
        for index, task in self.tasks.items():
            if not task.is_untouched and (index < ITEMS_MAX or task.status not in TERMINAL):
                self.counts[task.status] = self.counts.get(task.status, 0) + 1
            if index < ITEMS_MAX and task.status in TERMINAL:
                self._count_ended(index, is_completed=task.status is TaskStatus.COMPLETED)
            if task.items is not None and task.status is not TaskStatus.COMPLETED:
                self.maps[index] = self.count_items(index, task)
        self.compensations: CompensationCounts | None = self._count_compensations() if plan.compensates else None
        """Of a run that has begun to undo what it did; it never goes back behind that."""
        self.status: RunStatus = derive_status(
            len(plan.tasks), self.counts, attention=attention, control=control, compensations=self.compensations
        )

    def _count_ended(self, index: int, *, is_completed: bool) -> None:
        for after in self.plan.tasks[index].dependants:
            spec = self.plan.tasks[after]
            if not spec.is_chained:
                self.missing[after] = self.missing.get(after, len(spec.needs)) - 1
                if is_completed and spec.quorum is not None:
                    self.wanted[after] = self.wanted.get(after, spec.quorum) - 1

    def _count_compensations(self) -> CompensationCounts | None:
        found = {place: task for place, task in self.tasks.items() if is_compensation(place)}
        if not found:
            return None
        counts = CompensationCounts(len(found))
        for task in found.values():
            counts = counts.after(None, task.status)
        self.missing.update(count_undone(self.plan, found))
        return counts

    def count_items(self, index: int, task: TaskState) -> ItemCounts:
        """How far a map has come whose list is known, from its items' own states."""
        counts, again = ItemCounts(read_list(task.input or b"[]")), list[int]()
        for place in items_of(index, len(counts.items)):
            item = self.tasks.get(place)
            if item is None or item.is_untouched:
                break
            counts = counts.after(None, item)
            if item.withheld == "room":
                again.append(place)
        return msgspec.structs.replace(counts, again=tuple(again)) if again else counts

    def task(self, index: int) -> TaskState:
        return self.tasks.get(index, UNTOUCHED)

    @property
    def was_cancelled(self) -> bool:
        """Whether the run as a whole was, and not only a task with its child. Looks at all tasks if any was."""
        return bool(self.counts.get(TaskStatus.CANCELLED)) and any(
            task.status is TaskStatus.CANCELLED and index < ITEMS_MAX and not task.is_without_child
            for index, task in self.tasks.items()
        )

    def has_put_away(self, index: int) -> bool:
        """Whether it may be an item of a map that has completed: those are not loaded again."""
        return is_item(index) and self.task(task_of(index)).status is TaskStatus.COMPLETED

    def next_token(self, task: TaskState) -> int:
        return max(task.token, self.token_floor) + 1

    def apply(self, transition: "Transition") -> None:
        """Make a transition so, in memory. `row_version` rises by one: every event that changes a run has its own row
        of history."""
        if transition.missing:
            self.missing.update(transition.missing)
        if transition.wanted is not None:
            self.wanted.update(transition.wanted)
        if transition.kept is not None:
            self.signals[transition.kept.signal_id] = transition.kept
        for signal_id in transition.taken:
            del self.signals[signal_id]
        if transition.plan is not None:
            self.plan = transition.plan
        if transition.paused is not None:
            self.paused = transition.paused
        if transition.maps is not None:
            self.maps.update(transition.maps)
        if transition.undo is not None:
            self.undo = {place: given for place, given in (self.undo | transition.undo).items() if given is not None}
        if transition.deadlines is not None:
            self.deadline_at = transition.deadlines.get(RUN, self.deadline_at)
        self.counts, self.attention, self.status = transition.counts, transition.attention, transition.status
        self.compensations = transition.compensations
        self.control = transition.control
        self.row_version += 1
        for index, task in transition.tasks.items():
            if task is UNTOUCHED:
                self.tasks.pop(index, None)
            else:
                self.tasks[index] = task
        if self.maps:  # of one that is to start over nothing is counted until it begins
            for index in [index for index in self.maps if self.task(index).items is None]:
                del self.maps[index]
