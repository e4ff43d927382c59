"""The harness: the machine's own decisions, real bodies, and time that passes when it is told to."""

import asyncio
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import Context, NonRetryable, Registry, RetryAfter, did_not_happen, happened, unknown
from headrace.errors import ConfigurationError, ConflictError, DefinitionError, NotFoundError
from headrace.testing import Harness

PAGE = Path(__file__).parents[2] / "docs" / "testing.md"
STEADY = "{ attempts: 3, backoff: fixed, delay: 10s, jitter: 0.0 }"


def harness(tasks: str, at: str = "2026-01-01T00:00:00Z", **bodies: Callable[..., Any]) -> Harness:
    return Harness(f"name: w\ntasks:\n{tasks}", bodies, at=at)


def kinds(run: Any) -> list[str]:
    return [item.kind for item in run.history]


class Broken:
    """A body that fails so many times, then returns its attempt."""

    def __init__(self, times: int, error: Exception | None = None) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self, ctx: Context) -> int:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error or RuntimeError("it broke")
        return ctx.attempt


# == bodies ============================================================================================================
def test_a_chain_runs_at_once_and_hands_its_outputs_on():
    made = harness("  a: { run: one }\n  b: { run: two, needs: a, with: '${{ tasks.a.output }}' }",
                   one=lambda n: {"n": n + 1}, two=lambda n: n * 10)  # fmt: skip
    run = made.start({"n": 1})
    assert (run.status, run.outputs) == ("completed", {"a": {"n": 2}, "b": 20})
    assert kinds(run) == ["started", "attempt_completed", "attempt_completed", "finished"]
    assert str(run.history[1]) == "2026-01-01T00:00:00Z  attempt_completed  a  attempt 1"


def test_a_body_has_the_context_of_its_attempt():
    seen: list[Context] = []

    def body(ctx: Context) -> None:
        ctx.heartbeat({"half": "way"})
        seen.append(ctx)

    run = harness("  a: { run: body, timeout: 1m }", body=body).start()
    (ctx,) = seen
    assert (ctx.run_id, ctx.task, ctx.attempt, ctx.token, ctx.workflow) == (run.run_id, "a", 1, 1, "w")
    assert ctx.effect_key == f"{run.run_id}/a"
    assert ctx.deadline == datetime.fromisoformat("2026-01-01T00:01:00Z")


def test_async_bodies_share_one_event_loop():
    loops: list[object] = []

    async def body() -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    with harness("  a: { run: body }\n  b: { run: body, needs: a }", body=body) as made:
        assert made.start().status == "completed"
    assert len(loops) == 2
    assert loops[0] is loops[1]


async def test_async_bodies_run_in_an_async_test_too():
    async def body() -> bool:
        return asyncio.get_running_loop() is not here

    here = asyncio.get_running_loop()
    with harness("  a: { run: body }\n  b: { run: body, needs: a }", body=body) as made:
        assert made.start().outputs == {"a": True, "b": True}


def test_what_a_body_may_not_return_fails_as_in_a_worker():
    run = harness("  a: { run: body }", body=lambda: object()).start()
    assert run.status == "failed"
    assert (run.task("a").error or "").startswith("BAD_RESULT: ")


# == time ==============================================================================================================
def test_a_body_is_tried_again_after_its_backoff_and_not_before():
    body = Broken(2)
    made = harness(f"  a: {{ run: body, retry: {STEADY} }}", body=body)
    run = made.start()
    assert (body.calls, run.tasks) == (1, {"a": "pending"})
    made.advance(seconds=9.999)
    assert body.calls == 1
    made.advance(milliseconds=1)
    assert body.calls == 2
    made.run_until_idle()
    assert (run.status, run.outputs) == ("completed", {"a": 3})
    assert made.now == datetime.fromisoformat("2026-01-01T00:00:20Z")


@pytest.mark.parametrize(
    ("error", "calls", "seconds"), [(NonRetryable("never"), 1, 0), (RetryAfter(3600), 3, 7200), (None, 3, 20)]
)
def test_an_exhausted_task_is_a_dead_letter_and_can_be_replayed(error: Exception | None, calls: int, seconds: int):
    body = Broken(calls, error)
    made = harness(f"  a: {{ run: body, retry: {STEADY} }}\n  b: {{ run: body, needs: a }}", body=body)
    run = made.start()
    made.run_until_idle()
    assert (run.status, run.tasks, body.calls) == ("failed", {"a": "failed", "b": "skipped"}, calls)
    assert (made.now - datetime.fromisoformat("2026-01-01T00:00:00Z")).total_seconds() == seconds
    assert "dead_letter" in kinds(run)
    run.replay("a", by="ada")
    assert (run.status, run.outputs) == ("completed", {"a": calls + 1, "b": 1})
    with pytest.raises(ConflictError):
        run.replay("a")


def test_waits_and_timers_of_several_runs_come_in_order():
    calls: list[tuple[str, str]] = []

    def body(ctx: Context, name: str) -> None:
        calls.append((name, str(made.now.time())))

    made = harness("  pause: { wait: { for: '${{ input.delay }}' } }\n  a: { run: body, needs: pause }", body=body)
    slow, fast = made.start({"name": "slow", "delay": "2h"}), made.start({"name": "fast", "delay": 3600})
    assert {slow.status, fast.status} == {"waiting"}
    assert slow.task("pause").due_at == datetime.fromisoformat("2026-01-01T02:00:00Z")
    made.advance(hours=1, minutes=30)
    assert (calls, fast.status, slow.status) == ([("fast", "01:00:00")], "completed", "waiting")
    made.advance_to("2026-01-01T05:00:00+01:00")
    assert calls[1] == ("slow", "02:00:00")
    assert str(made.now) == "2026-01-01 04:00:00+00:00"
    with pytest.raises(ValueError, match="does not go back"):
        made.advance_to("2026-01-01T00:00:00Z")
    with pytest.raises(ValueError, match="says no offset"):
        made.advance_to("2027-01-01T00:00:00")
    with pytest.raises(ValueError, match="has no offset"):
        made.advance_to(datetime(2027, 1, 1))


def test_a_body_that_hangs_is_ended_by_its_timeout():
    body = Broken(0)
    made = harness(f"  a: {{ run: body, timeout: 1m, retry: {STEADY} }}", body=body)
    made.hang_next("a")
    run = made.start()
    assert (run.tasks, body.calls) == ({"a": "running"}, 0)
    made.run_until_idle()
    assert (run.status, run.outputs) == ("completed", {"a": 2})
    assert [str(item) for item in run.history if item.kind == "attempt_failed"] == [
        "2026-01-01T00:01:05Z  attempt_failed  a  attempt 1  TIMEOUT: no result within 60.0 s"
    ]


def test_a_body_that_hangs_without_a_timeout_hangs_for_ever():
    made = harness("  a: { run: body }", body=Broken(0))
    made.hang_next("a")
    run = made.start()
    made.run_until_idle()
    made.advance(days=3650)
    assert run.tasks == {"a": "running"}
    run.cancel("enough", by="ada")
    assert run.status == "cancelled"


# == people ============================================================================================================
ASKING = "  ask: {{ approval: {{ title: ok?, expires: 2d, on_expiry: {} }} }}\n  a: {{ run: body, needs: ask }}"


def test_an_approval_waits_for_a_person_and_is_not_waited_out():
    made = harness(ASKING.format("fail"), body=Broken(0))
    run = made.start()
    made.run_until_idle()
    assert (run.status, str(made.now.date())) == ("waiting", "2026-01-01")
    made.advance(hours=47)
    run.approve("ask", by="ada", comment="fine")
    assert run.status == "completed"
    answer = run.task("ask").output
    assert {**answer, "votes": len(answer["votes"])} == {
        "outcome": "approved", "by": "ada", "comment": "fine", "form": None, "votes": 1
    }  # fmt: skip
    with pytest.raises(ConflictError, match="asks nobody"):
        run.approve("ask")


@pytest.mark.parametrize(("on_expiry", "status"), [("fail", "failed"), ("reject", "failed"), ("approve", "completed")])
def test_an_approval_expires_on_time(on_expiry: str, status: str):
    made = harness(ASKING.format(on_expiry), body=Broken(0))
    run = made.start()
    made.advance(days=3)
    assert run.status == status
    assert str(next(item for item in run.history if item.kind == "decided").at.date()) == "2026-01-03"


def test_a_rejected_task_that_is_replayed_asks_again():
    made = harness("  a: { run: body, approval: {} }", body=Broken(0))
    run = made.start()
    run.reject("a", by="ada")
    assert run.task("a").error == "REJECTED: rejected by ada"
    run.replay("a")
    run.approve("a")
    assert run.status == "completed"


# == crashes ===========================================================================================================
@pytest.mark.parametrize("after", [False, True])
def test_a_worker_that_dies_is_followed_by_the_next_attempt_with_the_same_effect_key(after: bool):
    keys: list[str] = []

    def body(ctx: Context) -> int:
        keys.append(ctx.effect_key)
        return ctx.attempt

    made = harness("  a: { run: body }", body=body)
    made.crash_next("a", after_its_effect=after)
    run = made.start()
    assert (run.status, run.outputs) == ("completed", {"a": 2})
    assert len(keys) == 1 + after
    assert len(set(keys)) == 1
    assert kinds(run) == ["started", "lost", "attempt_lost", "attempt_completed", "finished"]


@pytest.mark.parametrize(
    ("answer", "status", "calls"),
    [(happened({"id": 7}), "completed", 1), (did_not_happen(), "completed", 2), (unknown(), "waiting", 1)],
)
def test_an_effect_in_doubt_is_looked_up(answer: dict[str, Any], status: str, calls: int):
    body = Broken(0)
    made = harness("  a: { run: body, effect: reconcile, lookup: look, retry: { attempts: 3, delay: 1s } }",
                   body=body, look=lambda: answer)  # fmt: skip
    made.crash_next("a", after_its_effect=True)
    run = made.start()
    made.run_until_idle()
    assert (run.status, body.calls) == (status, calls)
    if status == "waiting":
        assert (run.task("a").error or "").startswith("AMBIGUOUS: ")
        run.resolve("a", "happened", output={"id": 8}, by="ada")
    assert run.outputs["a"] == {"completed": {1: {"id": 7}, 2: 2}, "waiting": {1: {"id": 8}}}[status][calls]


def test_a_parked_task_waits_for_a_person():
    made = harness("  a: { run: body, effect: manual }", body=Broken(0))
    made.crash_next("a")
    run = made.start()
    assert run.status == "waiting"
    with pytest.raises(ConflictError):
        run.approve("a")
    run.resolve("a", "did_not_happen")
    assert (run.status, run.outputs) == ("completed", {"a": 2})
    with pytest.raises(ConflictError):
        run.resolve("a", "happened")


# == flow ==============================================================================================================
def test_joins_skips_and_the_output_are_the_machines():
    made = Harness(
        {
            "name": "flow",
            "tasks": {
                "a": {"run": "fail", "retry": 1},
                "b": {"run": "ok", "needs": ["a"]},
                "rescue": {"run": "ok", "needs": ["b"], "join": "on_failure"},
                "no": {"run": "ok", "if": "input.never"},
                "last": {"run": "ok", "needs": ["no", "rescue"], "join": "any"},
            },
        },
        {"fail": Broken(99), "ok": lambda: "ok"},
    )
    run = made.start({"never": False})
    assert run.tasks == {"a": "failed", "b": "skipped", "rescue": "completed", "no": "skipped", "last": "completed"}
    assert run.task("b").error == "UPSTREAM_FAILED: a task that this one needs did not complete"
    assert (run.status, run.output) == ("failed", None)


def test_an_output_that_cannot_be_evaluated_is_said():
    workflow = {"name": "w", "output": {"x": "${{ input.x }}"}, "tasks": {"a": {"run": "ok"}}}
    run = Harness(workflow, {"ok": lambda: None}).start()
    assert (run.status, run.output) == ("completed", None)
    assert run.output_error == "BAD_INPUT: input.x: there is no field 'x'"


# == signals ===========================================================================================================
ASKED = """
  ask: { run: body }
  reply: { needs: ask, signal: { name: mail.replied, key: "${{ input.id }}", timeout: 3d, on_timeout: complete } }
  remind: { run: body, needs: reply, if: 'tasks.reply.output.outcome == "timed_out"' }
  book: { run: body, needs: reply, if: 'tasks.reply.output.outcome == "received"' }
"""


def test_a_signal_is_waited_for_and_not_waited_out():
    made = harness(ASKED, body=lambda: None)
    run = made.start({"id": "m-7"})
    made.run_until_idle()
    assert run.tasks["reply"] == "waiting"
    made.advance(days=2)
    run.signal("mail.replied", {"text": "no"}, key="m-8")
    assert (run.tasks["reply"], run.signals) == ("waiting", ["mail.replied"])
    run.signal("mail.replied", {"text": "yes"}, key="m-7", by="ada")
    answer = run.outputs["reply"]
    assert (answer["outcome"], answer["data"], answer["by"]) == ("received", {"text": "yes"}, "ada")
    assert answer["sent_at"] == "2026-01-03T00:00:00Z"
    assert (run.tasks["remind"], run.tasks["book"], run.status) == ("skipped", "completed", "completed")
    with pytest.raises(ConflictError, match="completed already"):
        run.signal("mail.replied")


def test_a_signal_that_does_not_come_is_an_outcome_after_its_time():
    made = harness(ASKED, body=lambda: None)
    run = made.start({"id": "m-7"})
    made.advance(days=3)
    assert (run.tasks["remind"], run.tasks["book"], run.status) == ("completed", "skipped", "completed")


def test_a_signal_that_comes_early_is_kept_until_somebody_waits():
    made = harness("  a: { wait: { for: 1h } }\n  b: { needs: a, signal: paid }")
    run = made.start()
    run.signal("paid", 7)
    assert run.signals == ["paid"]
    made.run_until_idle()
    assert (run.outputs["b"]["data"], run.signals, run.status) == (7, [], "completed")
    assert [item.kind for item in run.history if item.kind.endswith(("signal", "signalled"))] == [
        "signalled", "took_signal",
    ]  # fmt: skip


def test_a_posted_signal_is_taken_by_the_first_that_waits_and_heard_by_all_that_listen():
    made = harness(
        """
  start: { wait: { for: 1h } }
  take: { needs: start, signal: { name: paid, key: "${{ input.id }}" } }
  hear: { needs: start, signal: { name: paid, key: "${{ input.id }}", delivery: all } }
"""
    )
    first, second, other = (made.start({"id": id}) for id in ("o-1", "o-1", "o-2"))
    made.post("paid", "o-1", {"sum": 3}, by="bank")
    made.run_until_idle()
    assert [run.tasks["take"] for run in (first, second, other)] == ["completed", "waiting", "waiting"]
    assert [run.tasks["hear"] for run in (first, second, other)] == ["completed", "completed", "waiting"]
    assert (first.outputs["take"]["data"], first.outputs["take"]["by"]) == ({"sum": 3}, "bank")
    made.post("paid", "o-2")
    assert [run.status for run in (first, second, other)] == ["completed", "waiting", "completed"]
    made.post("paid", "o-1")
    assert second.status == "completed"


def test_a_signal_that_no_task_waits_for_is_refused():
    run = harness("  a: { signal: paid }").start()
    with pytest.raises(NotFoundError, match=r"no task of workflow w waits for signal 'payed'; its tasks wait for paid"):
        run.signal("payed")


# == what is refused ===================================================================================================
def test_what_cannot_be_run_is_refused_at_once():
    with pytest.raises(ConfigurationError, match=r"no body is registered for two \(task b\); known are one"):
        harness("  a: { run: one }\n  b: { run: two }", one=lambda: None)
    with pytest.raises(DefinitionError, match="cannot need itself"):
        harness("  a: { run: one, needs: a }", one=lambda: None)
    with pytest.raises(ValueError, match="has no offset"):
        Harness("name: w\ntasks: { a: { run: r } }", {"r": lambda: None}, at=datetime(2026, 1, 1))
    made = Harness("name: w\ninput: { required: [id] }\ntasks: { a: { run: r } }", {"r": lambda: None})
    with pytest.raises(DefinitionError, match="'id' is a required property"):
        made.start({})
    with pytest.raises(NotFoundError, match="has no task b"):
        made.crash_next("b")


def test_a_registry_and_the_names_of_decorators_are_bodies():
    registry = Registry()

    @registry.task("greet")
    def greet(name: str) -> str:
        return f"Hello, {name}!"

    run = Harness("name: w\ntasks: { a: { run: greet } }", registry).start({"name": "Ada"})
    assert run.outputs == {"a": "Hello, Ada!"}


# == maps ==============================================================================================================
def read_page(page: str, ctx: Context) -> str:
    if page == "torn":
        raise NonRetryable("it is torn")
    return f"{ctx.item}:{page}:{ctx.effect_key[-7:]}"


def test_a_map_calls_its_body_for_each_item_and_gives_the_list():
    made = harness("  pages: { run: body, map: '${{ input.pages }}', with: { page: '${{ item }}' } }", body=read_page)
    run = made.start({"pages": ["a", "b"]})
    assert run.outputs == {"pages": ["0:a:pages.0", "1:b:pages.1"]}
    assert [item.status for item in run.items("pages")] == ["completed", "completed"]
    assert run.task("pages.1").output == "1:b:pages.1"
    assert [item.task for item in run.history if item.kind == "attempt_completed"] == ["pages.0", "pages.1"]


def test_a_failed_page_is_replayed_alone():
    text = (
        "  pages: { run: body, map: { over: '${{ input.pages }}', failures: finish }, with: { page: '${{ item }}' } }"
    )
    run = harness(text, body=read_page).start({"pages": ["a", "torn", "c"]})
    assert (run.status, run.tasks) == ("failed", {"pages": "failed"})
    with pytest.raises(ConflictError, match="the items that failed are replayed"):
        run.replay("pages")
    run.replay("pages.1", input={"page": "mended"})
    assert run.outputs == {"pages": ["0:a:pages.0", "1:mended:pages.1", "2:c:pages.2"]}


def test_what_failed_of_a_map_is_rerun_an_item_is_skipped_and_chosen_ones_run_again():
    text = (
        "  pages: { run: body, map: { over: '${{ input.pages }}', failures: finish }, with: { page: '${{ item }}' } }"
    )
    run = harness(text, body=read_page).start({"pages": ["a", "torn", "c"]})
    run.rerun()
    assert [(item.status, item.attempt) for item in run.items("pages")] == [
        ("completed", 1), ("failed", 2), ("completed", 1),
    ]  # fmt: skip
    run.skip("pages.1", "by hand")
    assert run.outputs == {"pages": ["0:a:pages.0", "by hand", "2:c:pages.2"]}
    run.rerun("pages.1", input={"page": "mended"})
    assert run.outputs == {"pages": ["0:a:pages.0", "1:mended:pages.1", "2:c:pages.2"]}
    run.rerun("pages")
    assert [item.attempt for item in run.items("pages")] == [2, 4, 2]
    assert run.status == "failed"


def test_a_map_that_has_collected_a_failure_keeps_it():
    text = "  pages: { run: body, map: { over: [{ page: torn }, { page: b }], failures: collect } }"
    run = harness(text, body=read_page).start()
    assert run.task("pages").output["results"] == [None, "1:b:pages.1"]
    (failure,) = run.task("pages").output["failures"]
    assert (failure["index"], failure["message"]) == (0, "it is torn")
    with pytest.raises(ConflictError, match="has completed with this failure"):
        run.replay("pages.0")


def test_items_are_retried_on_the_clock_and_may_crash():
    flaky = Broken(1)
    made = harness("  pages: { run: body, map: [{}, {}], retry: { attempts: 3, delay: 1h, cap: 1h } }", body=flaky)
    made.crash_next("pages.1")
    run = made.start()
    assert [item.status for item in run.items("pages")] == ["pending", "completed"]
    made.advance(hours=2)
    assert [(item.status, item.attempt) for item in run.items("pages")] == [("completed", 2), ("completed", 2)]
    assert run.status == "completed"


def test_ten_thousand_items_end_within_seconds():
    made = harness("  many: { run: body, map: '${{ input.items }}' }", body=lambda n: n)
    began = time.process_time()
    run = made.start({"items": [{"n": n} for n in range(10_000)]})
    assert run.task("many").output == list(range(10_000))
    assert time.process_time() - began < 10


# == as a whole ========================================================================================================
def test_the_same_test_is_the_same_history():
    def history() -> list[str]:
        made = harness("  a: { run: body, retry: { attempts: 5, jitter: 1.0 } }", body=Broken(4))
        run = made.start()
        made.run_until_idle()
        return [str(item) for item in run.history]

    assert history() == history()
    assert len(history()) > 8


def test_a_year_of_retries_and_waits_passes_within_a_second():
    retry = "{ attempts: 500, backoff: fixed, delay: 12h, cap: 12h }"
    made = harness(
        f"  a: {{ wait: {{ for: 100d }} }}\n  b: {{ run: body, needs: a, retry: {retry} }}", body=Broken(499)
    )
    began = time.process_time()
    run = made.start()
    made.run_until_idle()
    assert run.status == "completed"
    assert (made.now - datetime.fromisoformat("2026-01-01T00:00:00Z")).days > 300
    assert time.process_time() - began < 1


def test_the_example_of_the_page_runs(tmp_path: Path):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = tmp_path / "test_example.py"
    script.write_text(example)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)  # our own page
    assert done.returncode == 0, done.stderr


# == control of a run ==================================================================================================
def test_a_paused_run_lets_a_wait_end_and_begins_nothing():
    calls: list[str] = []
    made = harness("  a: { wait: { for: 1d } }\n  b: { run: one, needs: a }", one=lambda: calls.append("b"))
    run = made.start()
    run.pause("to look", by="ada")
    made.advance(days=3)
    assert (run.status, run.tasks, calls) == ("paused", {"a": "completed", "b": "pending"}, [])
    made.run_until_idle()  # nothing but a person moves it
    assert run.status == "paused"
    run.resume(by="ada")
    assert (run.status, calls) == ("completed", ["b"])
    assert kinds(run) == ["started", "waits", "paused", "due", "resumed", "attempt_completed", "finished"]


def test_what_a_pause_and_a_termination_cannot_do_is_refused():
    made = harness("  a: { approval: { title: ok? } }")
    run = made.start()
    with pytest.raises(ConflictError, match="not paused"):
        run.resume()
    run.pause()
    with pytest.raises(ConflictError, match="paused already"):
        run.pause()
    run.terminate("enough")
    assert (run.status, run.tasks) == ("terminated", {"a": "cancelled"})
    for act in (run.pause, run.terminate, run.cancel):
        with pytest.raises(ConflictError, match="terminated already"):
            act()


def test_a_run_that_failed_is_rerun_and_reuses_what_had_completed():
    broken, calls = Broken(1, NonRetryable("no")), list[str]()
    made = harness("  a: { run: one }\n  b: { run: two, needs: a }\n  c: { run: one, needs: b }",
                   one=lambda: calls.append("one"), two=broken)  # fmt: skip
    run = made.start()
    assert run.status == "failed"
    run.rerun(reason="mended", by="ada")
    assert (run.status, run.outputs["b"], calls) == ("completed", 2, ["one", "one"])
    run.rerun("c")
    assert (run.status, run.task("c").attempt, calls) == ("completed", 2, ["one", "one", "one"])
    with pytest.raises(ConflictError, match="nothing of it runs again"):
        run.rerun()


def test_a_task_is_skipped_with_an_output():
    made = harness("  a: { run: one }\n  b: { run: two, needs: a, with: '${{ tasks.a.output }}' }",
                   one=Broken(1, NonRetryable("no")), two=lambda n: n + 1)  # fmt: skip
    run = made.start()
    assert (run.status, run.tasks) == ("failed", {"a": "failed", "b": "skipped"})
    run.skip("a", {"n": 41})
    assert (run.status, run.outputs) == ("completed", {"a": {"n": 41}, "b": 42})
    with pytest.raises(ConflictError, match="task a is completed"):
        run.skip("a", 1)


# == pools =============================================================================================================
def test_a_pool_admits_as_many_as_it_has_slots_and_a_holder_that_dies_gives_its_own_back():
    made = Harness("name: w\ntasks: { load: { run: one, pool: db, timeout: 1m } }", {"one": lambda: 1}, pools={"db": 1})
    made.hang_next("load")
    first, second = made.start(), made.start()
    assert (first.tasks["load"], second.tasks["load"], second.status) == ("running", "waiting", "waiting")
    made.advance(minutes=2)
    assert (first.status, second.status) == ("completed", "completed")
    assert kinds(second) == ["started", "awaits_slot", "admitted", "attempt_completed", "finished"]
    assert kinds(first).count("awaits_slot") == 2, "whoever is tried again waits again"


def test_a_priority_goes_first_and_an_hour_of_waiting_goes_before_it():
    order: list[str] = []
    made = Harness("name: w\ntasks: { load: { run: one, pool: db } }", {"one": lambda name: order.append(name)},
                   pools={"db": 0})  # fmt: skip
    made.start({"name": "old"})
    made.advance(hours=1)
    made.start({"name": "plain"})
    late = made.start({"name": "late"})
    made.start({"name": "urgent"}, priority=50)
    late.prioritise(70, by="ada")
    made.set_pool("db", 1)
    assert order == ["late", "old", "urgent", "plain"]
    with pytest.raises(ConflictError, match="completed already"):
        late.prioritise(1)
    with pytest.raises(ValueError, match="from -100 to 100"):
        made.start(priority=101)


def test_a_pool_without_a_limit_in_the_harness_holds_nobody_up():
    made = harness("  a: { run: one, pool: db }\n  b: { run: one, pool: db, map: [1, 2] }", one=lambda: 1)
    assert made.start().status == "completed"


FAIR = """
name: w
tasks:
  load: { run: one, pool: { name: db, fairness_key: "${{ input.who }}" }, with: { who: "${{ input.who }}" } }
"""


def test_slots_go_in_turns_between_fairness_keys_and_by_priority_within_one():
    order: list[str] = []
    made = Harness(FAIR, {"one": lambda who: order.append(who)}, pools={"db": 0})
    for number in range(50):
        made.start({"who": "busy"}, priority=100 if number % 2 else 0)
    for _ in range(3):
        made.start({"who": "quiet"})
    made.set_pool("db", 1)
    assert order[:6] == ["busy", "quiet"] * 3
    assert order[6:] == ["busy"] * 47


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([0, 0, 5])), max_size=30), st.integers(1, 3))
def test_no_key_that_waits_is_passed_over_twice_by_another(starts: list[tuple[str, int]], slots: int):
    """All wait from the beginning, and bodies end at once, so no key holds more slots than another."""
    order: list[str] = []
    made = Harness(FAIR, {"one": lambda who: order.append(who)}, pools={"db": 0})
    for who, priority in starts:
        made.start({"who": who}, priority=priority)
    made.set_pool("db", slots)
    assert sorted(order) == sorted(who for who, _ in starts)
    left = Counter(order)
    for turn, who in enumerate(order):
        waiting = {other for other in left if left[other] and other != who}
        previous = order[:turn][::-1]
        since = previous[: previous.index(who)] if who in previous else previous
        assert who not in previous or waiting <= set(since), "it had its turn again before one that waits had one"
        left[who] -= 1
