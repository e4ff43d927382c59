"""Approvals: who is asked, when somebody is reminded or else asked, and who may answer in whose place."""

from typing import Final, NamedTuple

from headrace.machine import Ask, Decided
from headrace.question import Question
from headrace.standing import Delegated, Person
from headrace.testing.clock import Clock
from headrace.testing.run import Run
from headrace.testing.timer import Timer, Timers


class Delegation(NamedTuple):
    from_name: str
    to: str
    starts: int
    ends: int
    made_by: str


class Approvals:
    """Of all runs."""

    def __init__(self, clock: Clock, timers: Timers) -> None:
        self._clock, self._timers = clock, timers
        self.delegations: Final[list[Delegation]] = []

    def ask(self, run: Run, action: Ask) -> None:
        approval = run.state.plan.tasks[action.task].approval
        assert approval is not None
        at, timer = self._clock.at, self._timers.set
        question = run.questions[action.task] = Question(approval, action, at, run.started_by)
        run.history.note("asked", action.task, detail=", ".join(approval.approvers))
        if question.expires_at is not None:
            timer(run, action.task, action.token, "expiry", question.expires_at)
        for position, after in enumerate(approval.remind):
            timer(run, action.task, action.token, f"remind {position}", at + after)
        for position, step in enumerate(approval.steps):
            if step.after is not None:
                timer(run, action.task, action.token, f"escalate {position}", at + step.after)

    def vote(
        self, run: Run, task: int, outcome: str, person: Person, comment: str, form: bytes | None
    ) -> Decided | None:
        """One answer to an open question; None while that decides nothing yet. Raises what `Question.vote` does."""
        delegated = self._delegations_to(person.name)
        decided = run.questions[task].vote(outcome, person, delegated, comment, form, self._clock.at)
        if decided is None:
            by = f" by {person.name}" if person.name else ""
            run.history.note("voted", task, detail=f"{outcome}{by}")
        else:
            del run.questions[task]
        return decided

    def expire(self, run: Run, task: int) -> None:
        """Nobody answered in time: the answer is what the approval says, or somebody else is asked."""
        question = run.questions[task]
        decided = question.expire(self._clock.at)
        if decided is not None:
            del run.questions[task]
            run.tell(decided)
            return
        run.history.note("escalated", task, detail=", ".join(question.approvers))
        self._timers.set(run, task, question.token, "expiry", question.expires_at or 0)

    def look_after(self, timer: Timer) -> None:
        """A reminder, or a step of escalation, of a question that is still open."""
        run = timer.run
        question, (kind, _, step) = run.questions[timer.task], timer.kind.partition(" ")
        if kind == "remind":
            run.history.note("reminded", timer.task, detail=", ".join(question.approvers))
        elif question.escalate(int(step)):
            run.history.note("escalated", timer.task, detail=", ".join(question.approvers))

    def _delegations_to(self, name: str) -> list[Delegated]:
        """What has been delegated to them, now."""
        return [
            Delegated(each.from_name, each.made_by)
            for each in self.delegations
            if each.to == name and each.starts <= self._clock.at < each.ends
        ]
