"""Limits on runs: a workflow says how many of one key go at once."""

from itertools import count

from headrace.machine import Cancelled, Plan, Resumed
from headrace.machine.limit import Line, Verdict
from headrace.machine.status import AWAITS_PERMIT, PAUSED
from headrace.messages import RunId
from headrace.testing.clock import Clock
from headrace.testing.run import Run


class _Permit:
    """A run under the limit of its workflow: it waits for its permit, or has it."""

    def __init__(self, run: Run, key: str, asked_at: int, order: int, *, is_granted: bool) -> None:
        self.run, self.key, self._asked_at, self.order, self.is_granted = run, key, asked_at, order, is_granted
        self.is_replaced = False

    @property
    def rank(self) -> tuple[int, int]:
        return self.run.stands_in_line(self._asked_at), self.order

    @property
    def line(self) -> tuple[str, str]:
        return self.run.state.plan.name, self.key


class Permits:
    """Of all runs under a limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._permits: dict[Run, _Permit] = {}
        self._order = count()

    def admit(self, plan: Plan, run_id: RunId, input: bytes) -> Verdict:
        """As `state.starts` does. Raises PayloadError when the input gives no key."""
        if plan.limit is None:
            return Verdict("begins")
        line = (plan.name, plan.limit.key_of(input))
        found = sorted((one for one in self._permits.values() if one.line == line), key=lambda one: one.order)
        granted = [one for one in found if one.is_granted]
        waiting = sorted((one for one in found if not one.is_granted), key=lambda one: one.rank)
        holder = next((one.run.run_id for one in (*granted, *waiting)), None)
        staying: list[str] = [one.run.run_id for one in found if not one.is_replaced]
        stands = Line(plan.limit.runs, len(granted), is_waited=bool(waiting), holder=holder, staying=staying)
        return stands.admit(run_id, plan.limit.over)

    def replace(self, verdict: Verdict, by: Run) -> None:
        for permit in [one for one in self._permits.values() if one.run.run_id in verdict.replaced]:
            permit.is_replaced = True
            permit.run.tell(Cancelled(f"run {by.run_id} takes its place", "limit"))

    def ask(self, run: Run, key: str, *, is_granted: bool) -> None:
        self._permits[run] = _Permit(run, key, self._clock.at, next(self._order), is_granted=is_granted)

    def give_back(self, run: Run) -> None:
        self._permits.pop(run, None)

    def grant(self) -> bool:
        """Give one permit to the run that is next for it; whether there was one."""
        held = [one.line for one in self._permits.values() if one.is_granted]
        for permit in sorted(self._permits.values(), key=lambda one: one.rank):
            limit = permit.run.state.plan.limit
            is_full = limit is not None and held.count(permit.line) >= limit.runs
            if not permit.is_granted and not is_full and not permit.run.state.control & PAUSED:
                permit.is_granted = True
                permit.run.tell(Resumed(AWAITS_PERMIT))
                return True
        return False

    def find_run(self, run_id: str | None) -> Run:
        """One that has a permit, or waits for it."""
        return next(run for run in self._permits if run.run_id == run_id)
