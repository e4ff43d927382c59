"""Test a workflow in one process, on a virtual clock: no Kafka, no Postgres, and the very machine the engine runs.

    with Harness(workflow, bodies, at="2026-11-27T16:30:00+01:00") as harness:
        run = harness.start({"email": "ada@example.org"})
        harness.advance(days=3)
        run.approve("review", by="owner")
        harness.run_until_idle()
        assert run.status == "completed"

A harness carries out what `headrace.machine` asks for, and decides nothing itself. It does at once what the engine does
by and by: a command is a call of the body, which is bound, validated and encoded as in a worker, and takes no virtual
time; a timer is due when the clock comes to it. So a week of retries, waits and approvals passes in milliseconds, and
the same test gives the same history each time. What it leaves out is everything that Kafka, Postgres and other
processes do to a run; `crash_next` and `hang_next` bring back the two ends of that which a workflow can feel.

    harness       what a test holds: start, let time pass, crash, post
    harness_run   one of its runs: how it stands, and what people do to it
    engine        in place of the engine: carries out what the machine asks for, and lets time pass
    run           one run: its state, and what Postgres would hold beside that; every event goes through its `tell`
    history       what moved it
    clock, timer  the instant it is, and what is due by it
    worker        in place of a worker and its queues: commands, bodies, crashes
    start, child  how runs begin, from outside and for a task of another run
    permit, pool  limits: how many runs, and how many tasks, go at once
    approval      questions, their reminders and escalations, who decides in whose place
    postbox       signals
    argument      what a harness is given, in the ways a test may write it
"""

from headrace.testing.harness import Harness
from headrace.testing.harness_run import HarnessRun, HarnessTask
from headrace.testing.history import HistoryItem

__all__ = ["Harness", "HarnessRun", "HarnessTask", "HistoryItem"]
