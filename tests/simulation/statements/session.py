"""What the statements of worker sessions do, of what they hold and of what is lost, on the model."""

from collections import Counter
from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction, instant, microseconds
from tests.simulation.statements.registry import OPEN_RUN, model


@model
def renew_sessions(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    ids, workers, _queues, slots, _held, _libraries, seqs, _draining, ended, lease = columns
    renewed = []
    for session, worker, seq, is_over, count in sorted(zip(ids, workers, seqs, ended, slots, strict=True)):
        t.lock("worker_session", (session,))
        known = t.get("worker_session", session)
        if known is not None and not is_renewable(known, seq):
            continue
        row = {
            "worker": worker,
            "seq": seq,
            "ended_at": t.now if is_over else None,
            "renewed_at": t.now,
            "slots": count,
        }
        t.put("worker_session", (session,), {**row, "expires_at": t.now + round(lease * 1_000_000)})
        renewed.append((session,))
    return renewed


def is_renewable(known: Row, seq: int) -> bool:
    return known["ended_at"] is None and known["seq"] < seq


@model
def drop_held(
    t: Transaction, sessions: list[UUID], runs: Any, tasks: Any, tokens: Any, holders: Any
) -> list[tuple[Any, ...]]:
    kept = {(run.bytes, task, token, by) for run, task, token, by in zip(runs, tasks, tokens, holders, strict=True)}
    for key, _ in t.rows("held_task"):
        if key[3] in sessions and key not in kept:
            t.put("held_task", key, None)
    return []


@model
def list_held(t: Transaction, runs: Any, tasks: Any, tokens: Any, holders: Any, details: Any) -> list[tuple[Any, ...]]:
    for run, task, token, by in zip(runs, tasks, tokens, holders, strict=True):
        key = (run.bytes, task, token, by)
        if t.get("held_task", *key) is None:
            t.put("held_task", key, {})
    return []


@model
def raise_watermark(t: Transaction, name: str, at: int) -> list[tuple[Any, ...]]:
    t.lock("watermark", (name,))
    known = t.get("watermark", name)
    follows = known is None or known["at"] > t.now
    t.put("watermark", (name,), {"at": at if known is None or follows else max(at, known["at"])})
    return []


def _watermark(t: Transaction) -> int | None:
    row = t.get("watermark", "sessions")
    return None if row is None else row["at"]


@model
def expire_sessions(t: Transaction) -> list[tuple[Any, ...]]:
    mark, found = _watermark(t), []
    if mark is None or mark > t.now:
        return []
    for key, row in t.rows("worker_session"):
        lease = row["expires_at"] - row["renewed_at"]
        if row["ended_at"] is None and (row["expires_at"] < mark or row["renewed_at"] > t.now + lease):
            t.put("worker_session", key, {**row, "ended_at": t.now})
            found.append((key[0], row["worker"]))
    return found


def _live(t: Transaction) -> set[UUID]:
    return {key[0] for key, row in t.rows("worker_session") if row["ended_at"] is None}


def _is_listed(t: Transaction, live: set[UUID], hand: tuple[Any, ...]) -> bool:
    """hand: run, task, token as in `held_task`."""
    return any(key[:3] == hand and key[3] in live for key, _ in t.rows("held_task"))


@model
def release_ended(t: Transaction) -> list[tuple[Any, ...]]:
    live, known = _live(t), {key[0] for key, _ in t.rows("worker_session")}
    dropped = [key for key, _ in t.rows("held_task") if key[3] in known and key[3] not in live]
    found = []
    for key in dropped:
        t.put("held_task", key, None)
    for run_id, index, token, session in dropped:
        task = t.get("task", run_id, index)
        is_open = task is not None and task["token"] == token and task["status"] in ("queued", "running")
        if is_open and not _is_listed(t, live, (run_id, index, token)):
            found.append((UUID(bytes=run_id), index, token, session))
    return found


def _forgotten(t: Transaction, status: str, before: int, most: int) -> list[tuple[Any, ...]]:
    live = _live(t)
    held = {key[:3] for key, _ in t.rows("held_task") if key[3] in live}
    found = []
    for (run_id, index), task in t.rows("task"):
        run = t.get("run", run_id)
        if run is None or run["status"] not in OPEN_RUN or task["status"] != status or task["changed_at"] >= before:
            continue
        kept = t.get("held_command", run_id, index)
        since = task["changed_at"]
        if status == "queued" and kept is not None and kept["token"] == task["token"]:
            if kept["released_at"] is None or kept["released_at"] >= before:
                continue  # its command was kept back, and counts from its release
            since = max(since, kept["released_at"])
        if (run_id, index, task["token"]) not in held:
            found.append((UUID(bytes=run_id), index, task["token"], instant(since), run["version_id"]))
    return found[:most]


@model
def find_lost_running(t: Transaction, lease: float, most: int) -> list[tuple[Any, ...]]:
    mark = _watermark(t)
    if mark is None:
        return []
    return [row[:3] for row in _forgotten(t, "running", mark - round(lease * 1_000_000), most)]


@model
def find_lost_queued(t: Transaction, before: Any, most: int) -> list[tuple[Any, ...]]:
    return _forgotten(t, "queued", microseconds(before), most)


@model
def find_stuck(t: Transaction, seconds: float, lease: float, most: int) -> list[tuple[Any, ...]]:
    """All workers of the simulation serve one queue."""
    live = {key[0]: row for key, row in t.rows("worker_session") if row["ended_at"] is None}
    held = Counter(key[3] for key, _ in t.rows("held_task"))
    free = sum(
        max(0, row["slots"] - held[session])
        for session, row in live.items()
        if row["renewed_at"] > t.now - lease * 1_000_000
    )
    found = []
    for key, _ in t.rows("held_task"):
        task = t.get("task", *key[:2])
        is_waiting = task is not None and (task["status"], task["token"]) == ("queued", key[2])
        if is_waiting and task and key[3] in live and held[key[3]] > live[key[3]]["slots"]:
            found.append((task["changed_at"], key[:3]))
    old = sorted(one for one in found if one[0] < t.now - seconds * 1_000_000)
    return [(UUID(bytes=run_id), task, token) for _, (run_id, task, token) in old[: min(free, most)]]


@model
def read_marks(t: Transaction) -> list[tuple[Any, ...]]:
    gaps = [row["gap_at"] for _, row in t.rows("relay_owner") if row["gap_at"] is not None]
    return [(instant(_watermark(t)), instant(max(gaps, default=None)))]


@model
def note_logs(t: Transaction, topics: list[str], ids: list[str]) -> list[tuple[Any, ...]]:
    answers = []
    for topic, topic_id in sorted(zip(topics, ids, strict=True)):
        t.lock("topic_log", (topic,))
        known = t.get("topic_log", topic)
        since = 0 if known is None else known["since"] if known["topic_id"] == topic_id else t.now
        t.put("topic_log", (topic,), {"topic_id": topic_id, "since": since})
        answers.append((topic, instant(since)))
    return answers
