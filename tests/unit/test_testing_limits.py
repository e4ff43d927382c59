"""Deadlines and repeats in a harness, on its virtual clock."""

from typing import Any

import headrace
from headrace.testing import Harness


def test_attempts_go_on_until_the_deadline_of_their_task() -> None:
    workflow = """
    name: w
    tasks:
      a: { run: fail, deadline: 1h, retry: { attempts: 100, backoff: fixed, delay: 25m, cap: 25m, jitter: 0.0 } }
      b: { run: clean, needs: a, join: on_failure }
    """
    with Harness(workflow, {"fail": lambda: 1 / 0, "clean": lambda: "clean"}) as harness:
        run = harness.start()
        harness.advance(minutes=59)
        assert (run.task("a").attempt, run.status) == (3, "running")
        harness.advance(minutes=1)
        assert run.task("a").error == "DEADLINE: it had not ended by its deadline"
        assert run.outputs == {"b": "clean"}


def test_a_command_that_nobody_takes_in_time_fails_its_task() -> None:
    workflow = "name: w\ntasks: { a: { run: a, start_within: 5m } }"
    with Harness(workflow, {"a": lambda: 1}) as harness:
        harness.leave_next("a")
        run = harness.start()
        harness.advance(minutes=5)
        assert run.tasks == {"a": "queued"}
        harness.advance(seconds=1)  # what a worker may take to say that it has begun
        assert run.task("a").error == "START_DEADLINE: its body did not begin in time"
        run.replay("a")
        assert run.status == "completed"


def test_a_run_ends_by_its_deadline_and_not_before() -> None:
    with Harness("name: w\ndeadline: 10d\ntasks: { a: { signal: news } }", {}) as harness:
        run = harness.start()
        harness.run_until_idle()
        assert (run.status, run.task("a").due_at) == ("waiting", None)
        harness.advance(days=10)
        assert (run.status, run.task("a").error) == ("failed", "RUN_DEADLINE: the run had not ended by its deadline")
        run.rerun()
        run.signal("news")
        assert run.status == "completed"


def test_a_repeat_asks_until_the_answer_will_do() -> None:
    workflow = """
    name: w
    tasks:
      poll:
        run: poll
        with: { id: "${{ input.id }}", cursor: "${{ last }}" }
        repeat: { until: output.state == "done", max: 10, delay: 1m }
    """
    seen: list[Any] = []

    def poll(id: str, cursor: dict[str, Any] | None) -> dict[str, Any]:
        context = headrace.current()
        seen.append((id, cursor, context.round, context.effect_key.split("/")[1:]))
        return {"state": "done" if len(seen) == 3 else "busy", "at": len(seen)}

    with Harness(workflow, {"poll": poll}) as harness:
        run = harness.start({"id": "o-1"})
        harness.run_until_idle()
        assert (run.status, run.task("poll").rounds) == ("completed", 3)
        assert run.outputs == {"poll": {"state": "done", "at": 3}}
        assert seen == [
            ("o-1", None, 0, ["poll", "0"]),
            ("o-1", {"state": "busy", "at": 1}, 1, ["poll", "1"]),
            ("o-1", {"state": "busy", "at": 2}, 2, ["poll", "2"]),
        ]
        assert (harness.now - run.history[0].at).total_seconds() == 120
