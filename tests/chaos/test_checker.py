"""The oracle finds what it is there for: a good history passes, and every way of spoiling it is found by its own
invariant.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.checker import RULES, approvals, cancel, check, no_false_death, terminal_is_final
from tests.chaos.cleanup_rules import clean_ups
from tests.chaos.facts import Facts
from tests.chaos.operator_rules import pauses
from tests.chaos.report import KindLine, firing

Evidence = tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, list[dict[str, Any]]]]
LINEAR, ASKED, FAILED, STOPPED, CLAIMED = "run-linear", "run-asked", "run-failed", "run-stopped", "run-claimed"
TOLD, PARENT, CHILD, UNDONE = "run-told", "run-parent", "run-child", "run-undone"
POOLED, ROUNDS, OVERDUE, MOVED, HELD = "run-pooled", "run-rounds", "run-overdue", "run-moved", "run-held"
FIRST, SECOND, OLDEST, NEWER = "run-first", "run-second", "run-oldest", "run-newer"
KEPT, GOING, CLEANED, HALTED = "run-kept", "run-going", "run-cleaned", "run-halted"
T0 = 1_000_000.0
UNDO = 200_000_000
RETRY = {"attempts": 2, "delay": "200ms", "jitter": 0.2}
DEFINITIONS: dict[str, dict[str, Any]] = {
    LINEAR: {"a": {"run": "chaos.effect", "retry": RETRY}, "b": {"run": "chaos.effect", "retry": RETRY}},
    ASKED: {"ask": {"approval": {"title": "?"}}, "then": {"run": "chaos.effect", "retry": RETRY}},
    FAILED: {"a": {"run": "chaos.odd", "retry": RETRY}},
    STOPPED: {"a": {"run": "chaos.effect", "retry": RETRY}},
    CLAIMED: {"a": {"run": "chaos.outside", "exclusive": True, "effect": "manual", "retry": RETRY}},
    UNDONE: {
        "a": {"run": "chaos.effect", "compensate": {"run": "chaos.effect"}},
        "b": {"run": "chaos.effect", "needs": ["a"], "compensate": {"run": "chaos.effect"}},
        "c": {"run": "chaos.odd", "needs": ["b"]},
    },
    TOLD: {"told": {"signal": "news"}, "or_not": {"signal": {"name": "olds", "timeout": "1s"}}},
    PARENT: {"kid": {"workflow": {"name": "c"}}},
    CHILD: {"a": {"run": "chaos.effect", "if": "false"}},
    POOLED: {name: {"run": "chaos.pooled", "pool": {"name": "strict"}} for name in "abcd"},
    ROUNDS: {"poll": {"run": "chaos.round", "repeat": {"until": "output.done", "max": 3}}},
    OVERDUE: {"a": {"run": "chaos.effect", "deadline": "3s", "retry": RETRY}},
    MOVED: {"a": {"run": "chaos.effect", "if": "false"}},
    HELD: {"a": {"run": "chaos.effect"}},
    **{run_id: {"a": {"run": "chaos.effect"}} for run_id in (FIRST, SECOND, OLDEST, NEWER)},
    **{run_id: {"a": {"run": "chaos.effect", "if": "false"}} for run_id in (KEPT, GOING)},
    CLEANED: {
        "take": {"run": "chaos.effect"},
        "work": {"run": "chaos.effect", "needs": ["take"]},
        "release": {"run": "chaos.effect", "needs": ["take", "work"], "join": "finally"},
    },
    HALTED: {"a": {"run": "chaos.effect", "retry": RETRY}},
}
LIMITS: dict[str, str] = {
    FIRST: "queue", SECOND: "queue", OLDEST: "replace_oldest", NEWER: "replace_oldest", KEPT: "drop", GOING: "reject",
}  # fmt: skip
"""One run of a customer at a time; the workflow has the name of what becomes of one more."""


def _definition(run_id: str) -> dict[str, Any]:
    given: dict[str, Any] = {"tasks": DEFINITIONS[run_id]}
    if run_id in LIMITS:
        given |= {"name": LIMITS[run_id], "limit": {"key": "c", "over": LIMITS[run_id]}}
        if LIMITS[run_id] == "queue":
            del given["limit"]["over"]  # as it is stored
    return given


def _input(run_id: str) -> dict[str, Any]:
    return {"n": 1, **({"customer": "ada"} if run_id in LIMITS else {})}


def _run(run_id: str, status: str, row_version: int, finished: float) -> dict[str, Any]:
    return {
        "run_id": run_id, "version_id": list(DEFINITIONS).index(run_id), "status": status, "attention": False,
        "row_version": row_version, "input": _input(run_id), "finished_at": finished,
    }  # fmt: skip


def _task(run_id: str, task: int, status: str, attempt: int, token: int) -> dict[str, Any]:
    return {"run_id": run_id, "task": task, "status": status, "attempt": attempt, "token": token}


def _attempt(run_id: str, task: int, n: int, outcome: str, row_version: int, at: float, **more: Any) -> dict[str, Any]:
    row = {"token": n, "attempt": n, "outcome": outcome, "row_version": row_version, "ended_at": at, "finished_at": at}
    return {"run_id": run_id, "task": task, "error": None, "output": None, "worker": "worker-1", **row, **more}


def _history(run_id: str, row_version: int, kind: str, at: float, **more: Any) -> dict[str, Any]:
    row = {"run_id": run_id, "row_version": row_version, "kind": kind, "at": at}
    return {**row, "task": None, "token": None, "actor": None, "detail": None, **more}


def _call(
    key: str, token: int, at: float, outcome: str, receipt: int | None, *, after: float = 0.01, **more: Any
) -> dict[str, Any]:
    """after: seconds from the body's beginning to this call."""
    run = key.split("/")[0]
    line = {"op": "call", "key": key, "token": token, "begun_at": at, "at": at + after, "run": run, "pid": 1}
    return {**line, "outcome": outcome, "receipt": receipt, **more}


def good() -> Evidence:
    """A retry that was lost and answered late, an approval, a failure replayed, a cancel by a bulk, a claimed task, one
    that undid what it did, signals, a parent with its child, four tasks of a pool, rounds, a deadline, a move to
    another version by a publish, a start while its workflow was paused, runs of one customer by each policy of a limit,
    a clean-up behind a cancel, and a pause of a task."""
    error = {"code": "ERROR", "message": "no"}
    ledger = [
        _call(f"{LINEAR}/a", 1, T0 + 1, "timed_out", 1),
        _call(f"{LINEAR}/a", 2, T0 + 2, "repeated", 1),
        _call(f"{LINEAR}/b", 1, T0 + 3, "done", 2),
        _call(f"{ASKED}/then", 1, T0 + 3, "done", 3),
        _call(f"{UNDONE}/a", 1, T0 + 0.5, "done", 5),
        _call(f"{UNDONE}/b", 1, T0 + 1.5, "done", 6),
        _call(f"{UNDONE}/b.compensate", 1, T0 + 13.5, "done", 7),
        _call(f"{UNDONE}/a.compensate", 1, T0 + 24.5, "done", 8),
        _call(f"{CLAIMED}/a", 1, T0 + 1, "noted", None, op="note", mark="enter"),
        _call(f"{CLAIMED}/a", 1, T0 + 1, "done", 4),
        _call(f"{CLAIMED}/a", 1, T0 + 1, "noted", None, op="note", mark="leave", after=0.9),
        *(line for number, at in enumerate((1.0, 1.1, 1.2, 2.0)) for line in _pooled("abcd"[number], at, 20 + number)),
        _call(f"{ROUNDS}/poll/0", 1, T0 + 1, "done", 10),
        _call(f"{ROUNDS}/poll/1", 2, T0 + 2, "done", 11),
        _call(f"{HELD}/a", 1, T0 + 43, "done", 12),
        _call(f"{FIRST}/a", 1, T0 + 1, "done", 30),
        _call(f"{SECOND}/a", 1, T0 + 2.2, "done", 31),
        _call(f"{OLDEST}/a", 1, T0 + 1, "refused", None),
        _call(f"{NEWER}/a", 1, T0 + 2.7, "done", 32),
        _call(f"{CLEANED}/take", 1, T0 + 0.5, "done", 33),
        _call(f"{CLEANED}/work", 1, T0 + 1.5, "refused", None),
        _call(f"{CLEANED}/release", 1, T0 + 2.5, "done", 34),
        _call(f"{HALTED}/a", 1, T0 + 0.9, "refused", None),
        _call(f"{HALTED}/a", 2, T0 + 3.2, "done", 35),
    ]
    log: list[dict[str, Any]] = [
        {
            "op": "start",
            "at": T0,
            "done_at": T0 + 0.1,
            "key": run_id,
            "input": _input(run_id),
            "outcome": "OK",
            "answer": {"run_id": run_id, **({"version": 1} if run_id == MOVED else {})},
            "workflow": LIMITS.get(run_id, run_id.removeprefix("run-")),
        }
        for run_id in DEFINITIONS
        if run_id != CHILD
    ]
    said = {"at": T0 + 2, "done_at": T0 + 2.1, "outcome": "OK"}
    log += [
        {**_start("dropped", "drop"), "answer": {"run_id": KEPT}},
        {**_start("rejected", "reject"), "outcome": "FAIL", "status": 409, "answer": {"run_id": GOING}},
        {"op": "pause_task", "task_id": f"{HALTED}.a", **said},
        {"op": "resume_task", "task_id": f"{HALTED}.a", **said},
        {"op": "publish", "workflow": "moved", "answer": {"bulk_id": "b2"}, **said},
        {"op": "decide", "approval_id": "q", "decision": "approve", "actor": "ada", **said},
        {"op": "replay", "dead_letter_id": "d1", **said},
        {"op": "discard", "dead_letter_id": "d2", **said},
        {"op": "cancel", "run_id": STOPPED, **said},
        {"op": "bulk", "reason": "bulk 1", "act": "cancel", "answer": {"bulk_id": "b1"}, **said},
        {"op": "pause_all", "target": "/workflows/held", "outcome": "OK", "at": T0 + 38, "done_at": T0 + 39},
        {"op": "resume_all", "target": "/workflows/held", "outcome": "OK", "at": T0 + 42, "done_at": T0 + 42.1},
        {"op": "record", "id": "record-1-0", "count": 0, "number": 1, "place": [0, 0], **said},
        *(_slots("strict", at, 2, held) for at, held in ((1.0, [1.1, 1.2]), (2.0, [1.2, 1.9]))),
        *(_slots("rated", at, None, [at - 0.1]) for at in (1.0, 1.2, 1.4, 12.0)),
        {"op": "post", "id": "post", "count": 1, "answer": {"signal_id": "p1"}, **said},
        *(_sent(f"s{count + 1}", count) for count in (0, 1, 2, 0)),
        {"op": "fault", "kind": "F01", "at": T0 + 1, "healed_at": T0 + 1.5, "fired": 1},
        {
            "op": "fault",
            "kind": "F33",
            "at": T0 + 50,
            "healed_at": T0 + 51,
            "fired": 1,
            "sent_at": T0 + 50.5,
            "topic": "headrace.events",
            "places": [(0, 7)],
        },
    ]
    dump: dict[str, list[dict[str, Any]]] = {
        "workflow_version": [
            {"version_id": n, "definition": _definition(run_id), "version": 2 if run_id == MOVED else 1}
            for n, run_id in enumerate(DEFINITIONS)
        ],
        "run": [
            _run(LINEAR, "completed", 6, T0 + 3.5), _run(ASKED, "completed", 3, T0 + 3.5),
            _run(FAILED, "failed", 8, T0 + 9),
            _run(STOPPED, "cancelled", 3, T0 + 2.5), _run(CLAIMED, "completed", 2, T0 + 2),
            _run(TOLD, "completed", 4, T0 + 2), _run(PARENT, "completed", 2, T0 + 2),
            _run(CHILD, "completed", 1, T0 + 1), _run(UNDONE, "compensated", 6, T0 + 25),
            _run(POOLED, "completed", 5, T0 + 3), _run(ROUNDS, "completed", 3, T0 + 3),
            _run(OVERDUE, "failed", 2, T0 + 3.1), _run(MOVED, "completed", 4, T0 + 4),
            _run(HELD, "completed", 4, T0 + 44),
            _run(FIRST, "completed", 2, T0 + 2), _run(SECOND, "completed", 3, T0 + 3),
            _run(OLDEST, "cancelled", 2, T0 + 2.5), _run(NEWER, "completed", 3, T0 + 3),
            _run(KEPT, "completed", 1, T0 + 3), _run(GOING, "completed", 1, T0 + 3),
            {**_run(CLEANED, "cancelled", 4, T0 + 3), "control": 64}, _run(HALTED, "completed", 6, T0 + 4),
        ],
        "trigger_key": [
            *({"key": f"api:{run_id}", "run_id": run_id, "digest": ""} for run_id in DEFINITIONS if run_id != CHILD),
            {"key": "api:dropped", "run_id": KEPT, "digest": ""},
        ],
        "run_permit": [],
        "child_run": [
            {"parent_run_id": PARENT, "task": 0, "token": 1, "run_id": CHILD, "status": "completed", "is_awaited": True,
             "cancel_asked_at": None}
        ],
        "task": [
            _task(LINEAR, 0, "completed", 2, 2), _task(LINEAR, 1, "completed", 1, 1),
            _task(ASKED, 0, "completed", 0, 1),
            _task(ASKED, 1, "completed", 1, 1), _task(FAILED, 0, "failed", 4, 4), _task(STOPPED, 0, "cancelled", 1, 1),
            _task(CLAIMED, 0, "completed", 1, 1), _task(UNDONE, 0, "completed", 1, 1),
            _task(UNDONE, 1, "completed", 1, 1), _task(UNDONE, 2, "failed", 1, 1),
            _task(UNDONE, UNDO, "completed", 1, 1), _task(UNDONE, UNDO + 1, "completed", 1, 1),
            {**_task(TOLD, 0, "completed", 0, 1), "output": {"outcome": "received", "signal_id": "s1"}},
            {**_task(TOLD, 1, "completed", 0, 1), "output": {"outcome": "timed_out"}},
            _task(PARENT, 0, "completed", 0, 1), _task(CHILD, 0, "skipped", 0, 0),
            *(_task(POOLED, number, "completed", 1, 1) for number in range(4)),
            _task(ROUNDS, 0, "completed", 2, 2), _task(OVERDUE, 0, "failed", 0, 1),
            _task(MOVED, 0, "skipped", 0, 0), _task(HELD, 0, "completed", 1, 1),
            *(_task(run_id, 0, "completed", 1, 1) for run_id in (FIRST, SECOND, NEWER)),
            _task(OLDEST, 0, "cancelled", 1, 1), _task(KEPT, 0, "skipped", 0, 0), _task(GOING, 0, "skipped", 0, 0),
            _task(CLEANED, 0, "completed", 1, 1), _task(CLEANED, 1, "cancelled", 1, 1),
            _task(CLEANED, 2, "completed", 1, 1), _task(HALTED, 0, "completed", 2, 2),
        ],
        "bulk": [
            {"bulk_id": "b1", "act": "cancel", "reason": "bulk 1", "selected": 1, "finished_at": T0 + 3,
             "stopped_by": None},
            {"bulk_id": "b2", "act": "move", "reason": "version 2 was published", "selected": 1,
             "finished_at": T0 + 3, "stopped_by": None},
        ],
        "bulk_item": [
            {"bulk_id": "b1", "item_id": STOPPED, "outcome": "done", "reason": None, "inbox_id": "i"},
            {"bulk_id": "b2", "item_id": MOVED, "outcome": "done", "reason": None, "inbox_id": "m"},
        ],
        "doctor": [{"name": "statuses", "ok": True, "detail": ""}, {"name": "relay", "ok": False, "detail": "away"}],
        "pool_slot": [],
        "pool_waiter": [],
        "workflow_pause": [{"workflow": "held", "resumed_at": T0 + 42}],
        "queue_pause": [],
        "held_command": [],
        "signal": [
            {**_signal("s5", 1, "refused", reason="over"), "posted_id": "p1", "is_exclusive": True},
            {**_signal("s1", 0, "taken", task=0), "posted_id": "p1", "is_exclusive": True},
            _signal("s2", 1, "kept"), _signal("s3", 2, "refused", reason="ended"),
        ],
        "signal_wait": [],
        "posted_signal": [
            {"posted_id": "p1", "sender_id": "post", "data": {"count": 1}, "name": "n", "key": "k", "taken_as": "s5"},
            {"posted_id": "p2", "sender_id": "subscription:news:chaos record-1-0", "data": {"count": 0}, "name": "n",
             "key": "1", "taken_as": None},
        ],
        "attempt": [
            _attempt(LINEAR, 0, 1, "lost", 3, T0 + 1.5, error={"code": "WORKER_LOST"}),
            _attempt(LINEAR, 0, 2, "completed", 5, T0 + 2.5, output={"receipt": 1}),
            _attempt(LINEAR, 1, 1, "completed", 6, T0 + 3.5, output={"receipt": 2}),
            _attempt(ASKED, 1, 1, "completed", 3, T0 + 3.5, output={"receipt": 3}),
            _attempt(FAILED, 0, 1, "failed", 2, T0 + 1, error=error),
            _attempt(FAILED, 0, 2, "failed", 4, T0 + 2, error=error),
            _attempt(FAILED, 0, 3, "failed", 6, T0 + 4, error=error),
            _attempt(FAILED, 0, 4, "failed", 8, T0 + 9, error=error),
            _attempt(STOPPED, 0, 1, "cancelled", 3, T0 + 2.5),
            _attempt(CLAIMED, 0, 1, "completed", 2, T0 + 2, output={"receipt": 4}),
            _attempt(UNDONE, 0, 1, "completed", 2, T0 + 1, output={"receipt": 5}),
            _attempt(UNDONE, 1, 1, "completed", 3, T0 + 2, output={"receipt": 6}),
            _attempt(UNDONE, 2, 1, "failed", 4, T0 + 3, error={**error, "retryable": False}),
            _attempt(UNDONE, UNDO + 1, 1, "completed", 5, T0 + 14, output={"receipt": 7}),
            _attempt(UNDONE, UNDO, 1, "completed", 6, T0 + 25, output={"receipt": 8}),
            *(_attempt(POOLED, n, 1, "completed", n + 2, T0 + 2.9, output={"receipt": 20 + n}) for n in range(4)),
            _attempt(ROUNDS, 0, 1, "completed", 2, T0 + 1.5, output={"receipt": 10, "done": False}, round=0),
            _attempt(ROUNDS, 0, 2, "completed", 3, T0 + 2.5, output={"receipt": 11, "done": True}, round=1),
            _attempt(HELD, 0, 1, "completed", 4, T0 + 44, output={"receipt": 12}),
            _attempt(FIRST, 0, 1, "completed", 2, T0 + 2, output={"receipt": 30}),
            _attempt(SECOND, 0, 1, "completed", 3, T0 + 3, output={"receipt": 31}),
            _attempt(OLDEST, 0, 1, "cancelled", 2, T0 + 2.5),
            _attempt(NEWER, 0, 1, "completed", 3, T0 + 3, output={"receipt": 32}),
            _attempt(CLEANED, 0, 1, "completed", 2, T0 + 1, output={"receipt": 33}),
            _attempt(CLEANED, 1, 1, "cancelled", 3, T0 + 2),
            _attempt(CLEANED, 2, 1, "completed", 4, T0 + 3, output={"receipt": 34}),
            _attempt(HALTED, 0, 1, "failed", 3, T0 + 1.5, error=error),
            _attempt(HALTED, 0, 2, "completed", 6, T0 + 4, output={"receipt": 35}),
        ],
        "history": [
            *(_history(run_id, 1, "started", T0 + 40 * (run_id == HELD)) for run_id in DEFINITIONS),
            _history(OVERDUE, 2, "due", T0 + 3.1, task=0, token=0, detail={"timer": "deadline"}),
            _history(MOVED, 2, "paused", T0 + 1, detail={"scope": 1}),
            _history(MOVED, 3, "migrated", T0 + 2, detail={"from": 1, "to": 2, "reason": "version 2 was published"}),
            _history(MOVED, 4, "resumed", T0 + 3, detail={"scope": 1}),
            _history(HELD, 2, "paused", T0 + 40, detail={"scope": 2}),
            _history(HELD, 3, "resumed", T0 + 42.5, detail={"scope": 2}),
            _history(SECOND, 2, "permitted", T0 + 2.1), _history(NEWER, 2, "permitted", T0 + 2.6),
            _history(OLDEST, 2, "cancelled", T0 + 2.5, detail={"reason": f"run {NEWER} takes its place"}),
            _history(CLEANED, 3, "cancelled", T0 + 2, detail={"reason": ""}),
            _history(HALTED, 2, "paused", T0 + 1, task=0, detail={"scope": 16}),
            _history(HALTED, 4, "due", T0 + 2, task=0, token=1, detail={"timer": "backoff"}),
            _history(HALTED, 5, "resumed", T0 + 3, task=0, detail={"scope": 16}),
            _history(LINEAR, 2, "attempt_started", T0 + 1.1, task=0, token=1, actor="worker-1"),
            _history(LINEAR, 4, "attempt_started", T0 + 2.1, task=0, token=2, actor="worker-2"),
            _history(ASKED, 2, "decided", T0 + 2.2, task=0, token=1, actor="ada", detail={"outcome": "approved"}),
            _history(FAILED, 3, "due", T0 + 1.2, task=0, token=1, detail={"timer": "backoff"}),
            _history(FAILED, 5, "replayed", T0 + 3, task=0, token=2),
            _history(FAILED, 7, "due", T0 + 4.3, task=0, token=3, detail={"timer": "backoff"}),
            _history(STOPPED, 2, "attempt_started", T0 + 1, task=0, token=1, actor="worker-1"),
            _history(STOPPED, 3, "cancelled", T0 + 2.5, detail={"reason": "bulk 1"}),
            _history(TOLD, 2, "signalled", T0 + 1, task=0, token=1),
            _history(TOLD, 3, "signalled", T0 + 1.1),
            _history(PARENT, 2, "child_told", T0 + 2, task=0, token=1),
            _history(TOLD, 4, "due", T0 + 2, task=1, token=1, detail={"timer": "wait"}),
        ],
        "timer": [],
        "held_task": [],
        "parked_task": [],
        "inbox": [{"inbox_id": "i", "run_id": STOPPED, "kind": "cancelled", "applied_at": T0 + 2.5,
                   "body": {"reason": "bulk 1"}, "actor": "chaos"},
                  {"inbox_id": "m", "run_id": MOVED, "kind": "migrated", "applied_at": T0 + 2,
                   "body": {"reason": "version 2 was published"}, "actor": "chaos"},
                  {"inbox_id": "l", "run_id": OLDEST, "kind": "cancelled", "applied_at": T0 + 2.5,
                   "body": {"reason": f"run {NEWER} takes its place"}, "actor": "limit"},
                  *({"inbox_id": f"{HALTED}-{kind}", "run_id": HALTED, "kind": kind, "applied_at": T0 + 2,
                     "body": {"scope": 16, "task": 0, "reason": "chaos"}, "actor": "chaos"}
                    for kind in ("paused", "resumed"))],
        "approval": [
            {"approval_id": "q", "run_id": ASKED, "task": 0, "token": 1, "status": "approved", "decided_by": "ada",
             "needed": 1}
        ],
        "approval_vote": [{"approval_id": "q", "actor": "ada", "decision": "approve"}],
        "dead_letter": [
            _letter("d1", "task", "replayed", run_id=FAILED, task=0, token=2),
            _letter("d2", "task", "discarded", run_id=FAILED, task=0, token=4),
            _letter("d4", "task", "parked", run_id=UNDONE, task=2, token=1),
            _letter("d5", "task", "parked", run_id=OVERDUE, task=0, token=1),
            _letter("d3", "record", "parked", topic="headrace.events", partition=0, offset=7),
        ],
        "partition_owner": [{"topic": "headrace.events", "partition": 0, "topic_id": "x", "next_offset": 8}],
        "log_end": [{"topic": "headrace.events", "partition": 0, "topic_id": "x", "end": 8}],
    }  # fmt: skip
    return ledger, log, dump


def _pooled(task: str, at: float, receipt: int) -> list[dict[str, Any]]:
    """A body that is in its pool for six tenths of a second."""
    marks = (("enter", 0.0), ("leave", 0.6))
    notes = [
        _call(f"{POOLED}/{task}", 1, T0 + at, "noted", None, op="note", mark=mark, after=after) for mark, after in marks
    ]
    return [*notes, _call(f"{POOLED}/{task}", 1, T0 + at, "done", receipt)]


def _start(key: str, workflow: str) -> dict[str, Any]:
    given = {"n": 2, "customer": "ada"}
    return {"op": "start", "at": T0, "done_at": T0, "key": key, "input": given, "outcome": "OK", "workflow": workflow}


def _slots(pool: str, at: float, limit: int | None, granted: list[float]) -> dict[str, Any]:
    held = [[f"{pool}-{when}", 0, 1, T0 + when] for when in granted]
    return {"op": "slots", "at": T0 + at, "pool": pool, "limit": limit, "set_at": T0, "held": held}


def _signal(id_: str, count: int, status: str, **more: Any) -> dict[str, Any]:
    row = {"signal_id": id_, "run_id": TOLD, "name": "news", "key": None, "data": {"count": count}, "status": status}
    return {**row, "task": None, "reason": None, **more}


def _sent(signal_id: str, count: int) -> dict[str, Any]:
    call = {"op": "signal", "run_id": TOLD, "id": f"signal-{count}", "count": count, "key": None, "outcome": "OK"}
    return {**call, "at": T0, "done_at": T0, "answer": {"signal_id": signal_id}}


def _letter(id_: str, kind: str, status: str, **more: Any) -> dict[str, Any]:
    row = {"dead_letter_id": id_, "kind": kind, "status": status, "closed_at": None if status == "parked" else T0 + 3}
    place = dict.fromkeys(("run_id", "task", "token", "topic", "partition", "offset"))
    return {**place, **row, **more}


Spoil = Callable[[list[Any], list[Any], dict[str, list[Any]]], object]


def _row(dump: dict[str, list[Any]], table: str, **where: Any) -> Any:
    return next(row for row in dump[table] if all(row[name] == value for name, value in where.items()))


def _set(table: str, where: dict[str, Any], **values: Any) -> Spoil:
    return lambda ledger, log, dump: _row(dump, table, **where).update(values)


def _drop(table: str, **where: Any) -> Spoil:
    return lambda ledger, log, dump: dump[table].remove(_row(dump, table, **where))


def _add(table: str, row: dict[str, Any]) -> Spoil:
    return lambda ledger, log, dump: dump[table].append(row)


def _say(entry: dict[str, Any]) -> Spoil:
    return lambda ledger, log, dump: log.append({"at": T0, "done_at": T0, "outcome": "OK", **entry})


def _tell(line: dict[str, Any]) -> Spoil:
    return lambda ledger, log, dump: ledger.append(line)


def _silence(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    """No fault was ever made."""
    log[:] = [entry for entry in log if entry["op"] != "fault"]


def _overlap(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    """A second hand-out of the exclusive task is inside while the first still is."""
    for mark, after in (("enter", 0.1), ("leave", 0.2)):
        ledger.append(_call(f"{CLAIMED}/a", 2, T0 + 1.2, "noted", None, op="note", mark=mark, after=after))


def _call_often(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    ledger += [_call(f"{LINEAR}/b", 1, T0 + 3, "repeated", 2)] * 5


def _resolve_twice(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    log += [{"op": "resolve", "at": T0, "done_at": T0, "outcome": "OK", "task_id": f"{CLAIMED}.a", "token": 1}] * 2


def _wait_for_posted(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    dump["posted_signal"].append({**dump["posted_signal"][0], "posted_id": "p4", "taken_as": None})
    dump["signal_wait"].append({"run_id": TOLD, "task": 1, "name": "n", "key": "k"})


def _reorder(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    _row(dump, "signal", signal_id="s1")["data"], _row(dump, "signal", signal_id="s2")["data"] = (
        {"count": 1},
        {"count": 0},
    )
    for entry in (entry for entry in log if entry["op"] == "signal" and entry["count"] < 2):
        entry["count"] = 1 - entry["count"]


def _crowd(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    """The fourth body enters while three are in."""
    ledger[:] = [line for line in ledger if line["key"] != f"{POOLED}/d"] + _pooled("d", 1.3, 23)


def _repeat_a_round(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    """Of a run that was taken up again in its second round."""
    _row(dump, "attempt", run_id=ROUNDS, round=1).update(round=0, output={"receipt": 10, "done": True})
    dump["history"].append(_history(ROUNDS, 3, "reran", T0 + 2, detail={}))
    _row(dump, "attempt", run_id=ROUNDS, token=2)["row_version"] = 4


def _ask_again(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    dump["inbox"].append({**dump["inbox"][0], "inbox_id": "j"})


def _terminate_cleaned(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    _row(dump, "history", run_id=CLEANED, kind="cancelled").update(kind="terminated")
    ledger.append(_call(f"{CLEANED}/release", 1, T0 + 90, "repeated", 34))


def _leave_as_it_is(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    for table in ("task", "attempt"):
        dump[table].remove(_row(dump, table, run_id=UNDONE, task=UNDO))


def _leave_unclear(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    _leave_as_it_is(ledger, log, dump)
    _row(dump, "task", run_id=UNDONE, task=0).update(status="failed")


def _begin_unpaused(ledger: list[Any], log: list[Any], dump: dict[str, list[Any]]) -> None:
    """The start knew nothing of the pause, which was told later."""
    for row in dump["history"]:
        if row["run_id"] == HELD and row["row_version"] == 2:
            row["kind"], row["detail"] = "attempt_started", None


START = {"op": "start", "key": LINEAR, "answer": {"run_id": LINEAR}}
DECIDE = {"op": "decide", "approval_id": "q"}
SPOILED: list[tuple[str, str, Spoil]] = [
    ("I1", "an accepted start without a run", _drop("run", run_id=LINEAR)),
    ("I1", "a key answered with another run", _set("trigger_key", {"run_id": LINEAR}, run_id="other")),
    ("I1", "a key accepted with another input", _say({**START, "input": {"n": 2}})),
    ("I1", "a run that nobody started", lambda ledger, log, dump: log.pop(0)),
    ("I2", "a task left queued", _set("task", {"run_id": LINEAR, "task": 1}, status="queued")),
    ("I2", "a position ahead of its log", _set("partition_owner", {}, next_offset=9)),
    ("I3", "a body before the one before had ended", _tell(_call(f"{LINEAR}/a", 2, T0 + 1.2, "repeated", 1))),
    ("I3", "two bodies under one claimed token", _tell(_call(f"{CLAIMED}/a", 1, T0 + 1.3, "repeated", 4))),
    ("I3", "two bodies of an exclusive task at once", _overlap),
    ("I4", "a write under an older token", _set("attempt", {"run_id": LINEAR, "token": 2}, token=0)),
    ("I4", "a task behind its history", _set("task", {"run_id": FAILED}, token=3)),
    ("I5", "a success that never happened", lambda ledger, log, dump: ledger.pop(2)),
    ("I5", "a receipt that the ledger did not give", _set("attempt", {"run_id": ASKED}, output={"receipt": 9})),
    ("I5", "two effects under one key", _tell(_call(f"{CLAIMED}/a", 2, T0 + 1.3, "done", 5))),
    ("I5", "more calls than hand-outs", _call_often),
    ("I6", "two results of one task", _set("attempt", {"run_id": LINEAR, "outcome": "lost"}, outcome="completed")),
    ("I6", "an event after the end", _set("history", {"run_id": ASKED, "kind": "decided"}, at=T0 + 4)),
    ("I6", "an attempt after the end", _set("attempt", {"run_id": ASKED}, ended_at=T0 + 4)),
    ("I7", "a hole in the history", _drop("history", run_id=LINEAR, row_version=2)),
    ("I7", "one row_version for two moves", _add("history", _history(LINEAR, 2, "due", T0 + 1.2, task=0, token=1))),
    ("I7", "completed without a result", _set("attempt", {"run_id": LINEAR, "task": 1}, outcome="failed")),
    ("I7", "failed without a dead letter", _drop("dead_letter", dead_letter_id="d2")),
    ("I7", "an attempt that was not counted", _set("task", {"run_id": LINEAR, "task": 0}, attempt=1)),
    ("I8", "a run left open", _set("run", {"run_id": LINEAR}, status="running", finished_at=None)),
    ("I9", "a status its tasks do not give", _set("run", {"run_id": STOPPED}, status="completed")),
    ("I9", "a map that counts items it has not", _set("task", {"run_id": LINEAR, "task": 0}, items=2, items_completed=1,
                                                      items_failed=0)),
    ("I9", "what only the doctor sees", _add("doctor", {"name": "joins", "ok": False, "detail": "run x"})),
    ("I9", "an item of no map", _add("task", {"run_id": LINEAR, "task": 10_000, "status": "completed", "token": 0,
                                              "attempt": 0})),
    ("I10", "a timer that outlived its run", _add("timer", {"run_id": LINEAR, "task": 0})),
    ("I10", "a backoff before its time", _set("history", {"run_id": FAILED, "row_version": 3}, at=T0 + 1.1)),
    ("I10b", "a signal stored twice", _say(_sent("s4", 0))),
    ("I10b", "a signal that nobody took note of", _set("signal", {"signal_id": "s2"}, status="sent")),
    ("I10b", "a signal refused for no reason", _set("signal", {"signal_id": "s3"}, reason=None)),
    ("I10b", "a signal that completed nothing", _set("signal", {"signal_id": "s2"}, status="taken", task=1)),
    ("I10b", "a task that took what it did not take", _set("signal", {"signal_id": "s1"}, status="kept", task=None)),
    ("I10b", "a time-out without a timer", _drop("history", run_id=TOLD, kind="due")),
    ("I10b", "a later signal first", _reorder),
    ("I10b", "a posted signal taken twice", _set("signal", {"signal_id": "s5"}, status="taken", task=1)),
    ("I10b", "a posted signal beside its waiter", _wait_for_posted),
    ("I24", "an accepted post that is not there", _set("posted_signal", {}, sender_id="other")),
    ("I10b", "an acknowledged record that said nothing", _drop("posted_signal", posted_id="p2")),
    ("I10b", "a record that said something else", _set("posted_signal", {"posted_id": "p2"}, data={"count": 7})),
    ("I10b", "one record, two signals", lambda ledger, log, dump: dump["posted_signal"].append(
        {**dump["posted_signal"][1], "posted_id": "p3"})),
    ("I10b", "a signal of no record", _set("posted_signal", {"posted_id": "p2"}, sender_id="subscription:x y")),
    ("I10b", "a wait that outlived its run", _add("signal_wait", {"run_id": TOLD, "name": "x", "key": None})),
    ("I11", "a takeover without a fault", _silence),
    ("I12", "a gap in the attempts", _set("attempt", {"run_id": FAILED, "attempt": 2}, attempt=5)),
    ("I12", "more attempts than allowed", _drop("history", run_id=FAILED, kind="replayed")),
    ("I12", "failed with a try left", _drop("attempt", run_id=FAILED, attempt=3)),
    ("I13", "a run that nothing will move", _set("run", {"run_id": STOPPED}, status="waiting", finished_at=None)),
    ("I21", "a run that undid what it did, and failed", _set("run", {"run_id": UNDONE}, status="failed")),
    ("I21", "what was done first, undone first",
     _set("attempt", {"run_id": UNDONE, "task": UNDO + 1}, ended_at=T0 + 24.9)),
    ("I21", "what had completed and was not undone", _leave_as_it_is),
    ("I21", "an effect that nothing undid", _leave_unclear),
    ("I9", "a run that is undone only in part", _set("task", {"run_id": UNDONE, "task": UNDO}, status="failed")),
    ("I25", "an end of no pause", _add("history", _history(LINEAR, 7, "resumed", T0, detail={"scope": 1}))),
    ("I25", "what is withheld for ever", _set("task", {"run_id": LINEAR, "task": 0}, withheld="turn")),
    ("I25", "a command that is kept back for ever", _add("held_command", {"run_id": LINEAR, "task": 0,
                                                                         "released_at": None})),
    ("I25", "a pause without an end", _set("workflow_pause", {}, resumed_at=None)),
    ("I25", "a start that did not see the pause", _begin_unpaused),
    ("I25", "a body that began in the pause", _tell(_call(f"{HELD}/a", 1, T0 + 41, "repeated", 12))),
    ("I15", "more slots than the limit", _say(_slots("strict", 3.0, 2, [1.9, 2.5, 2.6]))),
    ("I15", "more begun than the rate allows", _say(_slots("rated", 1.6, None, [1.3, 1.35, 1.4, 1.5, 1.55]))),
    ("I15", "more bodies than slots", _crowd),
    ("I15", "a slot without a holder", _add("pool_slot", {"run_id": POOLED, "task": 0, "token": 1, "pool": "strict"})),
    ("I15", "a waiter of a run that has ended", _add("pool_waiter", {"run_id": POOLED, "task": 0, "pool": "strict"})),
    ("I12", "a round that is missing", _drop("attempt", run_id=ROUNDS, round=0)),
    ("I12", "a round too many", _set("attempt", {"run_id": ROUNDS, "round": 0}, output={"receipt": 10, "done": True})),
    ("I12", "a round that came again though it had been done", _repeat_a_round),
    ("I12", "a repeat that ended too early",
     _set("attempt", {"run_id": ROUNDS, "round": 1}, output={"receipt": 11, "done": False})),
    ("I12", "a round with two effects", _tell(_call(f"{ROUNDS}/poll/1", 2, T0 + 2.1, "done", 19))),
    ("I10", "a deadline before its time", _set("history", {"run_id": OVERDUE, "kind": "due"}, at=T0 + 2.9)),
    ("I19", "a run on another version", _set("workflow_version", {"version": 2}, version=3)),
    ("I19", "a move that nobody had paused for", _drop("history", run_id=MOVED, kind="paused")),
    ("I19", "a start on another version", _set("history", {"kind": "migrated"}, detail={"from": 3, "to": 2})),
    ("I26", "a run asked twice by a bulk", _ask_again),
    ("I26", "a run paused twice for one move", lambda ledger, log, dump: (
        dump["bulk"][0].update(act="move"),
        dump["inbox"].extend({**dump["inbox"][0], "kind": kind} for kind in ("migrated", "paused", "paused")),
        dump["inbox"].pop(0))),
    ("I26", "a run asked that had no turn", _drop("bulk_item")),
    ("I26", "a turn that asked nothing", _set("bulk_item", {}, inbox_id="k")),
    ("I26", "a turn that never came", _set("bulk_item", {}, outcome=None)),
    ("I26", "a bulk without an end", _set("bulk", {}, finished_at=None)),
    ("I26", "an accepted bulk that is not there", _drop("bulk")),
    ("I26", "one request, two bulks", lambda ledger, log, dump: dump["bulk"].append(dict(dump["bulk"][0]))),
    ("I27", "two runs of a customer at once", _set("history", {"run_id": SECOND, "kind": "permitted"}, at=T0 + 1.5)),
    ("I27", "a body of a run in line", _tell(_call(f"{SECOND}/a", 1, T0 + 2, "repeated", 31))),
    ("I27", "an attempt behind a replay without a permit", _set("history", {"run_id": NEWER, "kind": "permitted"},
                                                                kind="replayed")),
    ("I27", "a start that was refused, and is there", _add("trigger_key", {"key": "api:rejected", "run_id": GOING})),
    ("I27", "a start that was refused, and was to wait", _say({**_start("x", "queue"), "outcome": "FAIL",
                                                               "status": 409})),
    ("I27", "a start that was dropped for another workflow",
     _say({**_start("x", "drop"), "answer": {"run_id": FIRST}})),
    ("I27", "a run that was replaced twice", lambda ledger, log, dump: dump["inbox"].append(
        {**_row(dump, "inbox", inbox_id="l"), "inbox_id": "l2"})),
    ("I27", "a run that was replaced, and completed", _set("run", {"run_id": OLDEST}, status="completed")),
    ("I27", "a run that was to be replaced, and went on", lambda ledger, log, dump: (
        dump["history"].remove(_row(dump, "history", run_id=OLDEST, kind="cancelled")),
        _row(dump, "run", run_id=OLDEST).update(finished_at=T0 + 60))),
    ("I27", "a run that was replaced under another policy", _set("inbox", {"inbox_id": "l"}, run_id=FIRST)),
    ("I27", "a permit that outlived its run", _add("run_permit", {"run_id": FIRST, "granted_at": T0})),
    ("I28", "a clean-up that was cancelled", _set("task", {"run_id": CLEANED, "task": 2}, status="cancelled")),
    ("I28", "a clean-up that completed twice", _set("attempt", {"run_id": CLEANED, "task": 1}, task=2, token=2,
                                                    outcome="completed")),
    ("I28", "a clean-up before its time", _tell(_call(f"{CLEANED}/release", 1, T0 + 1.8, "repeated", 34))),
    ("I28", "what was cancelled, and went on", _set("attempt", {"run_id": CLEANED, "task": 1}, row_version=4)),
    ("I16", "a clean-up behind a termination", _terminate_cleaned),
    ("I29", "a hand-out in the pause of its task", _tell(_call(f"{HALTED}/a", 2, T0 + 2.2, "repeated", 35))),
    ("I29", "an accepted pause of a task that is not there", _drop("inbox", inbox_id=f"{HALTED}-paused")),
    ("I19", "moves of a publish that are not there", _drop("bulk", bulk_id="b2")),
    ("I19", "moves of a publish without an end", _set("bulk", {"bulk_id": "b2"}, finished_at=None)),
    ("I19", "a turn of a publish that asked nothing", _drop("inbox", inbox_id="m")),
    ("I19", "a turn of a publish that never came", _set("bulk_item", {"bulk_id": "b2"}, outcome=None)),
    ("I19", "a publish that moved a run to an older version", lambda ledger, log, dump: (
        _row(dump, "bulk", bulk_id="b2").update(reason="version 3 was published"),
        _row(dump, "history", kind="migrated")["detail"].update(reason="version 3 was published"))),
    ("I19", "a task of no version", _add("task", {"run_id": MOVED, "task": 77, "status": "pending", "token": 0})),
    ("I19", "a move that left its pause", _set("run", {"run_id": MOVED}, control=32)),
    ("I16", "a body long after the cancel", _tell(_call(f"{STOPPED}/a", 1, T0 + 90, "done", 9))),
    ("I16", "history after the cancel", _add("history", _history(STOPPED, 4, "due", T0 + 2.5, task=0, token=1))),
    ("I18", "a poison record nobody set aside", _drop("dead_letter", dead_letter_id="d3")),
    ("I18", "an odd start accepted", _say({"op": "fault", "kind": "F35", "healed_at": T0, "answers": [("NaN", 201)]})),
    ("I18", "a forged result that counted", _set("attempt", {"run_id": ASKED}, output={"forged": True})),
    ("I20", "two decisions accepted", _say({**DECIDE, "decision": "reject", "actor": "grace"})),
    ("I16b", "a child that was never started", _set("child_run", {}, status="asked")),
    ("I16b", "a child that was asked to end and not told", _set("child_run", {}, cancel_asked_at=T0 + 1)),
    ("I16b", "a child whose parent is gone", _set("child_run", {}, parent_run_id="nobody")),
    ("I16b", "a child that outlived its parent", lambda ledger, log, dump: (
        _row(dump, "task", run_id=PARENT).update(status="cancelled"),
        _row(dump, "run", run_id=CHILD).update(finished_at=T0 + 60),
        _row(dump, "history", run_id=PARENT, row_version=2).update(kind="cancelled"))),
    ("I16b", "a child without a run", _drop("run", run_id=CHILD)),
    ("I16b", "a child that was cancelled for no reason", _set("run", {"run_id": CHILD}, status="cancelled")),
    ("I16b", "a child whose end was not noted", _set("child_run", {}, status="started")),
    ("I1", "a run that no task asked for", _drop("child_run")),
    ("I20", "decided by somebody else", _set("approval", {}, decided_by="grace")),
    ("I20", "applied other than decided", _set("history", {"kind": "decided"}, detail={"outcome": "rejected"})),
    ("I20", "decided without a vote", _drop("approval_vote")),
    ("I20", "an approval with too few votes", _set("approval", {}, needed=2)),
    ("I20", "a question that people decided and that expired", _set("approval", {}, status="expired")),
    ("I20", "a vote too many", _add("approval_vote", {"approval_id": "q", "actor": "eve", "decision": "approve"})),
    ("I20", "a question that outlived its run", _set("approval", {}, status="waiting")),
    ("I22", "a dead letter closed twice", _say({"op": "replay", "dead_letter_id": "d1"})),
    ("I22", "a parked task resolved twice", _resolve_twice),
    ("I22", "a replay that its run never heard of", _drop("history", run_id=FAILED, kind="replayed")),
    ("I24", "an accepted signal that is not there", _drop("signal", signal_id="s2")),
    ("I24", "an accepted decision that is not there", _set("approval", {}, status="rejected")),
    ("I24", "an accepted replay that is not there", _set("dead_letter", {"dead_letter_id": "d1"}, status="parked")),
    ("I24", "an accepted resolution that is not there", _say({"op": "resolve", "task_id": "x.a", "token": 1})),
    ("I24", "an accepted cancel that is not there", _drop("inbox")),
    ("I24", "an accepted pause that is not there", _say({"op": "pause", "run_id": LINEAR})),
]  # fmt: skip


def test_a_kept_promise_has_no_violations() -> None:
    assert check(*good()) == []


@pytest.mark.parametrize(("invariant", "what", "spoil"), SPOILED, ids=[f"{i} {what}" for i, what, _ in SPOILED])
def test_a_broken_promise_is_found(invariant: str, what: str, spoil: Spoil) -> None:
    ledger, log, dump = copy.deepcopy(good())
    spoil(ledger, log, dump)
    assert invariant in {violation.invariant for violation in check(ledger, log, dump)}, what


def test_what_never_fired_and_what_never_came_are_told_apart() -> None:
    lines = [KindLine("F01 a", 2, 3, 0, [], []), KindLine("F02 b", 1, 0, 0, [], [])]
    assert firing(lines, ["F01 a", "F02 b"]) == "never fired: F02 b"
    assert firing(lines[:1], ["F01 a", "F02 b"]) == "every fault fired, of 1 kinds\nnot drawn in this time: F02 b"


def test_every_invariant_is_spoiled_at_least_once() -> None:
    assert {name for name, _ in RULES} == {invariant for invariant, _, _ in SPOILED}


def test_a_worker_that_came_after_the_cancel_cannot_know_of_it() -> None:
    ledger, log, dump = copy.deepcopy(good())
    ledger.append(_call(f"{STOPPED}/a", 1, T0 + 90, "done", 9, pid=2))
    assert check(ledger, log, dump) == []


@pytest.mark.parametrize("kind", ["resumed", "due"])
def test_the_pause_of_a_task_may_be_lifted_behind_the_end(kind: str) -> None:
    ledger, log, dump = copy.deepcopy(good())
    dump["history"].append(_history(CLEANED, 9, kind, T0 + 2.5, task=1, detail={"scope": 16}))
    facts = Facts(ledger, log, dump)
    assert bool([*cancel(facts), *clean_ups(facts)]) == (kind != "resumed")


def test_a_command_that_was_read_twice_takes_no_slot_behind_the_end() -> None:
    ledger, log, dump = copy.deepcopy(good())
    for number, task in enumerate("abcd"):
        ledger += _pooled(task, 3.0, 20 + number)
    assert not [each for each in check(ledger, log, dump) if each.invariant == "I15"]


def test_a_vote_that_was_not_answered_may_be_the_one_that_decided() -> None:
    ledger, log, dump = copy.deepcopy(good())
    (row,) = dump["approval"]
    row.update(needed=2, decided_by="eve")
    assert [each for each in approvals(Facts(ledger, log, dump)) if "decided by eve, accepted" in each[0]]
    log.append({**DECIDE, "actor": "eve", "outcome": "UNKNOWN"})
    assert not [each for each in approvals(Facts(ledger, log, dump)) if "decided by eve, accepted" in each[0]]


def test_what_completed_may_run_again_behind_a_rerun_and_only_there() -> None:
    ledger, log, dump = copy.deepcopy(good())
    dump["attempt"].append(_attempt(HELD, 0, 2, "completed", 6, T0 + 44))
    assert len([*terminal_is_final(Facts(ledger, log, dump))]) == 2
    dump["history"].append(_history(HELD, 5, "reran", T0 + 44))
    assert not [*terminal_is_final(Facts(ledger, log, dump))]


@pytest.mark.parametrize(
    ("topic", "offset", "spoil"),
    [
        ("chaos.news", 0, _drop("posted_signal", posted_id="p2")),
        ("headrace.events", 7, _drop("dead_letter", dead_letter_id="d3")),
    ],
)
def test_what_went_away_with_kafka_before_it_was_read_is_lost(topic: str, offset: int, spoil: Spoil) -> None:
    ledger, log, dump = copy.deepcopy(good())
    spoil(ledger, log, dump)
    late: dict[str, Any] = {
        "op": "fault",
        "kind": "F18",
        "at": T0 + 300,
        "healed_at": T0 + 301,
        "fired": 1,
        "loses_records": True,
    }
    log.append(late)
    known = {each.invariant for each in check(ledger, log, dump)}
    assert known & {"I10b", "I18"}, "it had time enough to be read"
    late["read"] = {f"{topic}[0]": offset + 1}
    assert {each.invariant for each in check(ledger, log, dump)} == known
    late["read"] = {f"{topic}[0]": offset}
    assert not {each.invariant for each in check(ledger, log, dump)} & {"I10b", "I18"}


def test_a_start_that_waited_for_the_end_of_a_pause_is_of_no_pause() -> None:
    ledger, log, dump = copy.deepcopy(good())
    _begin_unpaused(ledger, log, dump)
    assert [each for each in pauses(Facts(ledger, log, dump)) if "a run was started" in each[0]]
    for entry in log:
        if (entry.get("answer") or {}).get("run_id") == HELD:
            entry["done_at"] += 60
    assert not [each for each in pauses(Facts(ledger, log, dump)) if "a run was started" in each[0]]


def test_a_run_that_ended_in_the_pause_of_its_workflow_begins_by_its_rerun() -> None:
    ledger, log, dump = copy.deepcopy(good())
    for row in dump["history"]:
        if row["run_id"] == HELD and row["kind"] == "resumed":
            row["kind"], row["detail"] = "due", {"timer": "deadline"}
    assert [each for each in pauses(Facts(ledger, log, dump)) if "a body began" in each[0]]
    dump["history"].append(_history(HELD, 4, "reran", T0 + 42.8))
    assert not [each for each in pauses(Facts(ledger, log, dump)) if "a body began" in each[0]]


def test_a_call_that_may_have_happened_promises_nothing() -> None:
    ledger, log, dump = copy.deepcopy(good())
    log.append({"op": "start", "at": T0, "done_at": T0, "key": "x", "input": {}, "outcome": "UNKNOWN", "answer": None})
    log.append({"op": "cancel", "at": T0, "done_at": T0, "run_id": LINEAR, "outcome": "UNKNOWN"})
    assert check(ledger, log, dump) == []


def _lost(token: int, at: float, reason: str = "its command is gone") -> dict[str, Any]:
    return _history(LINEAR, 9, "lost", T0 + at, task=0, token=token, detail={"reason": reason})


@pytest.mark.parametrize(
    ("is_found", "lost"),
    [
        pytest.param(False, [_lost(3, 10)], id="while a fault heals"),
        pytest.param(False, [_lost(3, 30)], id="missed late"),
        pytest.param(False, [_lost(2, 30)], id="missed late, and its result was taken"),
        pytest.param(True, [_lost(3, 30, "its worker session has ended")], id="late, and not for its command"),
        pytest.param(True, [_lost(3, 20), _lost(4, 30)], id="late, and it came out when nothing was broken"),
    ],
)
def test_a_command_that_a_fault_took_may_be_missed_late(is_found: bool, lost: list[dict[str, Any]]) -> None:
    ledger, log, dump = good()
    dump["history"] += lost
    assert bool(list(no_false_death(Facts(ledger, log, dump)))) == is_found


def test_a_hand_out_whose_body_is_heard_of_behind_its_loss_was_not_lost() -> None:
    ledger, log, dump = good()
    ledger.append(_call(f"{LINEAR}/a", 2, T0 + 31, "repeated", 1))
    dump["history"] += [_lost(2, 30)]
    assert list(no_false_death(Facts(ledger, log, dump)))
