"""What is due by the clock."""

from itertools import count
from typing import NamedTuple

from headrace.machine.place import RUN
from headrace.testing.run import Run


class Timer(NamedTuple):
    due_at: int
    order: int
    """Of two that are due at once, the first that was set comes first."""
    run: Run
    task: int
    token: int
    kind: str

    @property
    def is_of_a_question(self) -> bool:
        """Its expiry, a reminder (`remind 0`) or a step of its escalation (`escalate 0`)."""
        return self.kind.partition(" ")[0] in ("expiry", "remind", "escalate")

    @property
    def is_an_end(self) -> bool:
        """Whether it ends what somebody may come before: an approval, a wait for a signal or a child, a deadline."""
        spec = None if self.kind != "wait" else self.run.state.plan.tasks[self.task]
        is_a_limit = spec is not None and (spec.signal is not None or spec.child is not None)
        return is_a_limit or self.is_of_a_question or self.kind == "deadline"

    @property
    def is_set(self) -> bool:
        """Whether it is still there: one that was replaced or cleared is not."""
        if self.is_of_a_question:
            question = self.run.questions.get(self.task)
            if question is None or question.token != self.token:
                return False
            return self.kind != "expiry" or question.expires_at == self.due_at
        run = self.run.state
        if self.kind == "deadline":
            state = run if self.task == RUN else run.task(self.task)
            return state.deadline_at == self.due_at
        task = run.task(self.task)
        return task.token == self.token and task.due_at == self.due_at


class Timers:
    """Of all runs."""

    def __init__(self) -> None:
        self._timers: list[Timer] = []
        self._order = count()

    def set(self, run: Run, task: int, token: int, kind: str, due_at: int) -> None:
        self._timers.append(Timer(due_at, next(self._order), run, task, token, kind))

    def find_next(self, *, without_expiry: bool = False) -> Timer | None:
        self._timers = [timer for timer in self._timers if timer.is_set]
        timers = self._timers
        if without_expiry:
            timers = [timer for timer in timers if not timer.is_an_end]
        return min(timers, default=None)

    def remove(self, timer: Timer) -> None:
        self._timers.remove(timer)
