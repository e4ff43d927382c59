"""What the statements of approvals do, on the model."""

import json
from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction, instant, microseconds
from tests.simulation.statements.registry import claimable, given, model, refuse, text, unique


@model
def ask_approvals(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("ask_approvals", list(columns)):
        unique(t, "approval", (row["approval_ids"],))
        expires = row["expires_seconds"]
        new = {
            "namespace": row["namespaces"], "run_id": row["run_ids"], "task": row["tasks"], "token": row["tokens"],
            "on_expiry": row["on_expiry"], "status": "waiting", "decided_by": None, "approvers": text(row["approvers"]),
            "needed": row["needed"], "no_self_approval": row["no_self_approvals"], "form": text(row["forms"]),
            "digest": row["digests"], "expires_seconds": expires,
            "expires_at": None if expires is None else t.now + expires * 1_000_000,
        }  # fmt: skip
        t.put("approval", (row["approval_ids"],), new)
    return []


@model
def set_approval_timers(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("set_approval_timers", list(columns)):
        key = (row["approval_ids"], row["kinds"], row["positions"])
        unique(t, "approval_timer", key)
        after = row["after_seconds"]
        due_at = None if after is None else t.now + after * 1_000_000
        t.put("approval_timer", key, {"targets": text(row["targets"]), "due_at": due_at, "fired_at": None})
    return []


@model
def close_approvals(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    wanted = {(row["run_ids"], row["tasks"], row["tokens"]) for row in given("close_approvals", list(columns))}
    for key, row in t.rows("approval"):
        if (row["run_id"], row["task"], row["token"]) in wanted and row["status"] == "waiting":
            t.put("approval", key, {**row, "status": "cancelled"})
    return []


def _steps_left(t: Transaction, approval_id: bytes) -> list[tuple[Any, Row]]:
    return sorted(
        (key, row)
        for key, row in t.rows("approval_timer")
        if key[:2] == (approval_id, "escalate") and row["fired_at"] is None
    )


def _votes(t: Transaction, approval_id: bytes) -> str:
    return json.dumps([{"by": key[1], "decision": row["decision"]} for key, row in t.rows("approval_vote")
                       if key[0] == approval_id])  # fmt: skip


@model
def lock_approval(t: Transaction, *, approval_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    key = (approval_id.bytes,)
    t.lock("approval", key)
    row = t.get("approval", *key)
    if row is None:
        return []
    is_over = row["expires_at"] is not None and row["expires_at"] <= t.database.clock()
    if row["on_expiry"] == "escalate" and _steps_left(t, approval_id.bytes):
        is_over = False
    place = (UUID(bytes=row["run_id"]), row["task"], row["token"])
    rules = (row["approvers"], row["needed"], row["no_self_approval"], row["form"], row["digest"])
    return [(*place, row["status"], *rules, is_over, row["decided_by"])]


@model
def read_electorate(t: Transaction, *, run_id: UUID, namespace: str, actor: str) -> list[tuple[Any, ...]]:
    """Nobody starts a run by name here."""
    now = t.database.clock()
    found = sorted(
        (row["starts_at"], key, row["from_name"], row["actor"])
        for key, row in t.rows("delegation")
        if row["to_name"] == actor and row["starts_at"] <= now < row["ends_at"] and row["ended_by"] is None
    )
    return [(None, [one[2] for one in found], [one[3] for one in found])]


@model
def insert_vote(
    t: Transaction, *, approval_id: UUID, actor: str, voter: str, role: str | None, in_place_of: str | None,
    decision: str, comment: str | None, form: str | None, digest: str, source: str, address: str,
) -> list[tuple[Any, ...]]:  # fmt: skip
    key = (approval_id.bytes, actor)
    votes = [row for of, row in t.rows("approval_vote") if of[0] == approval_id.bytes]
    if t.get("approval_vote", *key) is not None or any(vote["voter"] == voter for vote in votes):
        return []
    new = {"decision": decision, "voter": voter, "in_place_of": in_place_of, "at": t.database.clock()}
    t.put("approval_vote", key, new)
    return [(instant(t.now),)]


@model
def insert_delegation(
    t: Transaction, *, delegation_id: UUID, from_name: str, to_name: str, starts_at: Any, ends_at: Any, **row: Any
) -> list[tuple[Any, ...]]:
    begins, ends = t.now if starts_at is None else microseconds(starts_at), microseconds(ends_at)
    refuse(ends > begins, "delegation_of_some_length")
    new = {"from_name": from_name, "to_name": to_name, "starts_at": begins, "ends_at": ends, "ended_by": None}
    t.put("delegation", (delegation_id.bytes,), {**new, **row, "made_at": t.now})
    return _told(t, delegation_id)


def _told(t: Transaction, delegation_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("delegation", delegation_id.bytes)
    if row is None:
        return []
    length = (instant(row["starts_at"]), instant(row["ends_at"]))
    said = (row["reason"], row["actor"], instant(row["made_at"]), row["ended_by"])
    return [(delegation_id, row["from_name"], row["to_name"], *length, *said)]


@model
def get_delegation(t: Transaction, *, namespace: str, delegation_id: UUID) -> list[tuple[Any, ...]]:
    t.lock("delegation", (delegation_id.bytes,))
    return _told(t, delegation_id)


@model
def end_delegation(t: Transaction, *, delegation_id: UUID, actor: str, **_: Any) -> list[tuple[Any, ...]]:
    row = t.get("delegation", delegation_id.bytes) or {}
    ends_at = min(row["ends_at"], t.database.clock())
    t.put("delegation", (delegation_id.bytes,), {**row, "ends_at": ends_at, "ended_by": actor})
    return []


@model
def count_votes(t: Transaction, *, approval_id: UUID) -> list[tuple[Any, ...]]:
    votes = _votes(t, approval_id.bytes)
    return [(sum(vote["decision"] == "approve" for vote in json.loads(votes)), votes)]


@model
def settle_approval(
    t: Transaction, *, approval_id: UUID, status: str, actor: str, comment: str | None, form: str | None
) -> list[tuple[Any, ...]]:
    key = (approval_id.bytes,)
    row = t.get("approval", *key)
    if row is None or row["status"] != "waiting":
        return []
    t.put("approval", key, {**row, "status": status, "decided_by": actor})
    return [(UUID(bytes=row["run_id"]),)]


@model
def get_approval(t: Transaction, *, namespace: str, approval_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("approval", approval_id.bytes)
    if row is None:
        return []
    expires_at = instant(row["expires_at"])
    asked = (approval_id, UUID(bytes=row["run_id"]), 0, "", row["task"], row["token"], "", "[]", row["status"])
    shown = (None, row["form"], row["digest"], row["needed"], row["no_self_approval"], row["on_expiry"], None)
    return [(*asked, instant(t.now), expires_at, None, row["decided_by"], None, *shown, _votes(t, approval_id.bytes))]


@model
def escalate_expired(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    found = []
    for key, row in claimable(t, "approval", lambda row: _is_over(t, row) and row["on_expiry"] == "escalate", most):
        if steps := _steps_left(t, key[0]):
            place, step = steps[0]
            t.put("approval_timer", place, {**step, "fired_at": t.now})
            _ask_besides(t, key, step["targets"], t.now + row["expires_seconds"] * 1_000_000)
            found.append((UUID(bytes=key[0]), UUID(bytes=row["run_id"]), "escalate", place[2], step["targets"]))
    return found


def _is_over(t: Transaction, row: Row) -> bool:
    return bool(row["status"] == "waiting" and row["expires_at"] is not None and row["expires_at"] <= t.now)


def _ask_besides(t: Transaction, key: Any, targets: str, expires_at: int | None) -> None:
    row = t.get("approval", *key)
    assert row is not None
    approvers = json.dumps([*json.loads(row["approvers"]), *json.loads(targets)])
    t.put("approval", key, {**row, "approvers": approvers, "expires_at": expires_at})


@model
def expire_approvals(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    found = []
    for key, row in claimable(t, "approval", lambda row: _is_over(t, row), most):
        if row["on_expiry"] == "escalate" and _steps_left(t, key[0]):
            continue
        status = {"approve": "approved", "reject": "rejected"}.get(row["on_expiry"], "expired")
        t.put("approval", key, {**row, "status": status, "decided_by": "expiry"})
        found.append((UUID(bytes=row["run_id"]), row["task"], row["token"], status, _votes(t, key[0])))
    return found


@model
def fire_approval_timers(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def is_due(row: Row) -> bool:
        return row["fired_at"] is None and row["due_at"] is not None and row["due_at"] <= t.now

    found = []
    for key, row in claimable(t, "approval_timer", is_due, most):
        question = t.get("approval", key[0])
        if question is None or not t.is_free("approval", (key[0],)):
            continue
        if question["status"] != "waiting":
            t.put("approval_timer", key, None)
            continue
        t.lock("approval", (key[0],))
        t.put("approval_timer", key, {**row, "fired_at": t.now})
        if key[1] == "escalate":
            _ask_besides(t, (key[0],), row["targets"], question["expires_at"])
        found.append((UUID(bytes=key[0]), UUID(bytes=question["run_id"]), key[1], key[2], row["targets"]))
    return found
