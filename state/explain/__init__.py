"""Why a run or a task does not move: facts in, ordered causes out. Pure; `state.queries.explain` reads the facts."""

from state.explain.cause import NAMES_MAX, Act, Cause, Code, Kind, Object
from state.explain.explanation import CAUSES_MAX, explain_run, explain_task
from state.explain.facts import (
    Engine,
    Facts,
    Failure,
    Letter,
    Listening,
    Parked,
    Pause,
    Question,
    Queue,
    Relay,
    Request,
    Session,
    Stop,
    TaskFacts,
    Timer,
)

__all__ = [
    "CAUSES_MAX",
    "NAMES_MAX",
    "Act",
    "Cause",
    "Code",
    "Engine",
    "Facts",
    "Failure",
    "Kind",
    "Letter",
    "Listening",
    "Object",
    "Parked",
    "Pause",
    "Question",
    "Queue",
    "Relay",
    "Request",
    "Session",
    "Stop",
    "TaskFacts",
    "Timer",
    "explain_run",
    "explain_task",
]
