"""How causes are worded, and what they point to."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

from headrace.machine.place import task_of
from state.explain.cause import NAMES_MAX, Act, Cause, Object
from state.explain.facts import Facts, Question, Session, Stop, TaskFacts

LATE_SECONDS: Final = 10.0
"""What is said to the run agent is said again every five seconds."""


MUST_NOT_BE: Final = "nothing: this must not be; `headrace doctor` has more"
DOCTOR: Final = Act("headrace doctor", "GET /doctor")
START_RELAY: Final = Act("python -m connectors", "GET /health")
DECIDED: Final = "Decided, or Resolved: the run agent applies what was said"
WILL_SAY_LOST: Final = "Lost: a sweep says so, and the task is handed out again, retried or looked up"


def holding_up(facts: Facts, index: int, cause: Cause) -> Cause:
    """The cause, as one that holds up this task."""
    return cause._replace(tasks=(name_of(facts, index),), tasks_total=1)


def name_of(facts: Facts, index: int) -> str:
    return facts.plan.name_of(index) if 0 <= task_of(index) < len(facts.plan.tasks) else f"#{index}"


def in_line_as(position: int, waiting: int) -> str:
    return "as the next" if position == 1 else f"as number {position} of {waiting}"


def path_of(facts: Facts, between: Sequence[int]) -> str:
    names = [name_of(facts, index) for index in between]
    return ", ".join(names if len(names) <= NAMES_MAX else [*names[:2], f"{len(names) - 3} more", names[-1]])


def task_id(facts: Facts, index: int) -> str:
    return f"{facts.run_id}.{name_of(facts, index)}"


def task_object(facts: Facts, index: int) -> Object:
    return Object("task", task_id(facts, index), f"/tasks/{task_id(facts, index)}")


def run_object(facts: Facts) -> Object:
    return Object("run", str(facts.run_id), f"/runs/{facts.run_id}")


def session_object(session: Session) -> Object:
    return Object("session", str(session.session_id), "/workers")


def queue_object(queue: str) -> Object:
    return Object("queue", queue, "/workers")


def approval_object(question: Question) -> Object:
    return Object("approval", str(question.approval_id), f"/approvals/{question.approval_id}")


def short_id(session_id: UUID | None) -> str:
    return str(session_id)[-8:]


def tries_max(facts: Facts, task: TaskFacts) -> int:
    return facts.plan.at(task.task).retry.attempts + task.retries_from


def in_brackets(code: str | None) -> str:
    return f" ({code})" if code else ""


def by_whom(stop: Stop | None) -> str:
    if stop is None:
        return ""
    return (f" by {stop.actor}" if stop.actor else "") + (f": {stop.reason}" if stop.reason else "")


def seconds_since(facts: Facts, at: datetime) -> float:
    return (facts.now - at).total_seconds()


def ago(facts: Facts, at: datetime | None) -> str:
    return "ever" if at is None else f"{_span(max(0.0, seconds_since(facts, at)))} ago"


def for_how_long(facts: Facts, at: datetime | None) -> str:
    return " as long as anybody remembers" if at is None else f" for {_span(max(0.0, seconds_since(facts, at)))}"


def in_how_long(facts: Facts, at: datetime) -> str:
    return f"in {_span((at - facts.now).total_seconds())}" if at > facts.now else ago(facts, at)


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
