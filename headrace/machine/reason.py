"""Why: the errors that the machine itself gives a task."""

from typing import Final

from headrace.messages import Error

HANDOUTS_LOST_MAX: Final = 50
"""Hand-outs of one task that vanish in a row before a body began until it is a dead letter; a replay gives it as many
again. A body that kills its worker at once would otherwise go round for ever; rolling restarts that hand waiting work
back stay far below it. Of a lookup likewise, until a person is asked."""
LOST: Final = Error("WORKER_LOST", "the worker that ran this attempt is gone")
DRAINED: Final = Error("WORKER_DRAINED", "the worker shut down before the attempt ended")
NEVER_BEGAN: Final = Error(
    "WORKER_LOST", f"{HANDOUTS_LOST_MAX} hand-outs vanished before a body began", retryable=False
)
UPSTREAM_FAILED: Final = Error("UPSTREAM_FAILED", "a task that this one needs did not complete", retryable=False)
UPSTREAM_SKIPPED: Final = Error("UPSTREAM_SKIPPED", "a task that this one needs was skipped", retryable=False)
CONDITION_FALSE: Final = Error("CONDITION_FALSE", "its condition was false", retryable=False)
RERUN: Final = Error("RERUN", "the task is to run again", retry_after=0.0)
NEVER_ASKED: Final = Error("NEVER_ASKED", "while it was idempotent nobody asked what became of its attempts")
"""Of a task that has begun and is not idempotent by the version that its run goes on by."""
SUPPLIED: Final = Error("SUPPLIED", "a person gave the task its output", retryable=False)
DEADLINE: Final = Error("DEADLINE", "it had not ended by its deadline", retryable=False)
START_DEADLINE: Final = Error("START_DEADLINE", "its body did not begin in time", retryable=False)
RUN_DEADLINE: Final = Error("RUN_DEADLINE", "the run had not ended by its deadline", retryable=False)
ROUNDS_OVER: Final = "ROUNDS_OVER"
"""Of a repeat whose condition did not hold after the last of its rounds."""
NOTHING_FAILED: Final = Error("NOTHING_FAILED", "none of the tasks that this one needs failed", retryable=False)
CHILD_CANCELLED: Final = "CHILD_CANCELLED"
"""Of a task whose child somebody ended: it is cancelled, and its run goes on with the rest."""
LIMIT_REACHED: Final = "LIMIT_REACHED"
"""Of a task whose child was not started: as many runs of its workflow and key go as go at once."""
DEPTH_MAX: Final = 10
"""Runs, each started by the one before. More is a workflow that goes round by way of versions which nobody saw
together when they were published."""
TOO_DEEP: Final = Error("CHILD_TOO_DEEP", f"{DEPTH_MAX} runs stand above it, and more are not allowed", retryable=False)
