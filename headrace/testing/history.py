"""What moved a run, as a test reads it."""

from datetime import datetime
from typing import Final, NamedTuple

from headrace.instant import format_instant, from_microseconds
from headrace.machine import (
    Cancelled,
    ChildTold,
    Decided,
    EndAttempt,
    MachineEvent,
    Migrated,
    Paused,
    Prioritised,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    RunState,
    SetTimer,
    Signalled,
    Supplied,
    Terminated,
    Transition,
)
from headrace.machine.place import RUN
from headrace.machine.status import AWAITS_PERMIT, TASKS_PAUSED
from headrace.messages import Admitted, Due, Error, Failed, Lost, Succeeded
from headrace.testing.clock import Clock


class HistoryItem(NamedTuple):
    """One thing that moved a run. `kind` is what the API's history calls it: started, attempt_completed, due …"""

    at: datetime
    kind: str
    task: str | None = None
    attempt: int | None = None
    detail: str = ""

    def __str__(self) -> str:
        parts = [format_instant(self.at), self.kind, self.task or "", f"attempt {self.attempt}" if self.attempt else ""]
        return "  ".join(part for part in (*parts, self.detail) if part)


class History:
    """Of one run."""

    def __init__(self, state: RunState, clock: Clock) -> None:
        self._state, self._clock = state, clock
        self.items: Final[list[HistoryItem]] = []

    def note(self, kind: str, task: int | None = None, attempt: int | None = None, detail: str = "") -> None:
        name = None if task is None else self._state.plan.name_of(task)
        self.items.append(HistoryItem(self._clock.now, kind, name, attempt, detail))

    def tell(self, event: MachineEvent | None, transition: Transition) -> None:
        """What an event did: once its transition has been applied."""
        ended = [action for action in transition.actions if isinstance(action, EndAttempt)]
        match event:
            case Due():
                self.note("due", None if event.task == RUN else event.task, detail=event.timer)
            case Decided():
                by = f" by {event.by}" if event.by else ""
                self.note("decided", event.task, detail=f"{event.outcome}{by}")
            case Cancelled():
                self.note("cancelled", detail=event.reason)
            case Terminated():
                self.note("terminated", detail=event.reason)
            case Resumed() if event.scope == AWAITS_PERMIT:
                self.note("permitted")
            case Paused() | Resumed():
                kind = "paused" if isinstance(event, Paused) else "resumed"
                self.note(kind, event.task if event.scope == TASKS_PAUSED else None, detail=event.reason)
            case Prioritised():
                self.note("prioritised", detail=str(event.priority))
            case Admitted():
                self.note("admitted", event.task)
            case Supplied():
                self.note("supplied", event.task, detail=event.reason)
            case Reran():
                names = ", ".join(self._state.plan.name_of(place) for place in event.tasks)
                self.note("reran", detail=f"from {names}" if names else "what failed")
            case Migrated():
                if transition.plan is not None:  # otherwise noted with what stood in the way
                    self.note("migrated", detail=f"to version {transition.plan.version}")
            case Replayed():
                self.note("replayed", event.task)
            case Resolved():
                self.note("resolved", event.task, detail=event.outcome)
            case Signalled():
                by = f" by {event.by}" if event.by else ""
                kept = ", kept" if transition.kept is not None else ""
                self.note("signalled", detail=f"{event.name}{by}{kept}")
            case ChildTold():
                self.note("child_told", event.task, detail=f"run {event.child}: {event.outcome}")
            case Lost():
                self.note("lost", event.task)
            case Succeeded() | Failed() if all(end.task != event.task for end in ended):
                self.note("looked_up" if isinstance(event, Succeeded) else "lookup_failed", event.task)
            case _:
                pass
        for end in ended:
            self.note(f"attempt_{end.outcome}", end.task, end.attempt, in_words(end.error) or "")
        for action in transition.actions:
            if isinstance(action, SetTimer) and action.kind not in ("timeout", "start"):
                until = f"until {format_instant(from_microseconds(action.due_at))}"
                self.note("waits" if action.kind == "wait" else action.kind, action.task, detail=until)


def in_words(error: Error | None) -> str | None:
    return None if error is None else f"{error.code}: {error.message}"
