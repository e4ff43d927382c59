"""The limit of a workflow: how many runs of one key go at once, and what becomes of one more. A permit is a run's from
when it begins until it ends; decision 32 has the reasons."""

from typing import Literal, NamedTuple

from headrace.errors import PayloadError
from headrace.machine.actions import AwaitPermit, ReturnPermit, Transition
from headrace.machine.plan import Over, Plan
from headrace.machine.run_state import RunState
from headrace.machine.status import AWAITS_PERMIT, RUN_TERMINAL


class Verdict(NamedTuple):
    """What becomes of one start."""

    how: Literal["begins", "waits", "rejected", "dropped"]
    holder: str | None = None
    """The run that stands in its way, where nothing is started."""
    replaced: tuple[str, ...] = ()
    """Runs that have to end for it."""


class Line:
    """How the permits of one key stand, while nobody else gives any of them away."""

    def __init__(
        self, runs: int | None, granted: int = 0, *, is_waited: bool = False, holder: str | None = None,
        staying: list[str] | None = None,
    ) -> None:  # fmt: skip
        """runs: how many may go at once; None: as many as are started. holder: who has had a permit for longest, or
        is the next to have one. staying: open runs that nothing has asked to end for another, oldest first."""
        self._runs, self._granted, self._is_waited, self._holder = runs, granted, is_waited, holder
        self._staying = staying or []

    def admit(self, run_id: str, over: Over) -> Verdict:
        """Decide about one more start, in its turn. Nobody begins before those who wait."""
        if self._runs is None or (self._granted < self._runs and not self._is_waited):
            self._granted += 1
            self._holder = self._holder or run_id
            self._staying.append(run_id)
            return Verdict("begins")
        if over == "reject" or over == "drop":
            return Verdict("rejected" if over == "reject" else "dropped", self._holder)
        self._is_waited = True
        self._staying.append(run_id)
        if over == "queue":
            return Verdict("waits", self._holder)
        surplus = max(0, len(self._staying) - self._runs)
        replaced, self._staying = tuple(self._staying[:surplus]), self._staying[surplus:]
        return Verdict("waits", self._holder, replaced)


def reopen(plan: Plan, run: RunState) -> Transition:
    """A draft in which a run that has ended may run again: under a limit it waits for another permit first."""
    draft = Transition(run)
    if plan.limit is not None and run.status in RUN_TERMINAL:
        draft.control |= AWAITS_PERMIT
        draft.actions.append(AwaitPermit(key_of_run(plan, run)))
    return draft


def move_permit(new: Plan, run: RunState, draft: Transition) -> None:
    """A run in flight comes under a limit, or gets out of one, with its version. It has begun, so it is not stopped: it
    has its permit at once, as under a limit that was lowered. Between two limits it keeps the key it has."""
    if run.plan.limit is None and new.limit is not None:
        draft.actions.append(AwaitPermit(key_of_run(new, run), is_granted=True))
    elif run.plan.limit is not None and new.limit is None:
        draft.control &= ~AWAITS_PERMIT
        draft.actions.append(ReturnPermit())


def key_of_run(plan: Plan, run: RunState) -> str:
    """Of a run that is there already. One that was moved to a version which asks its input for another key may have
    none: then it counts with those without a key."""
    try:
        return "" if plan.limit is None else plan.limit.key_of(run.input)
    except PayloadError:
        return ""
