"""What the statements of pools do, on the model."""

from collections import Counter
from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import claimable, given, model, unique
from tests.simulation.statements.restore import restore


@model
def leave_queues(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("leave_queues", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("pool_waiter", *key) is not None:
            t.put("pool_waiter", key, None)
    return []


@model
def free_slots(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("free_slots", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("pool_slot", *key) is not None:
            t.put("pool_slot", key, None)
    return []


@model
def hold_tasks(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("hold_tasks", list(columns)):
        tasks = row["tasks"] and [int(task) for task in row["tasks"].strip("{}").split(",")]
        t.put("run", (row["run_ids"],), {**(t.get("run", row["run_ids"]) or {}), "paused_tasks": tasks})
    return []


@model
def set_priorities(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("set_priorities", list(columns)):
        run_id, priority = row["run_ids"], row["priorities"]
        t.put("run", (run_id,), {**(t.get("run", run_id) or {}), "priority": priority})
        for key, waiter in list(t.rows("pool_waiter")):
            if key[0] == run_id:
                t.put("pool_waiter", key, {**waiter, "ranked_at": waiter["began_at"] - priority * 60_000_000})
        permit = t.get("run_permit", run_id)
        if permit is not None and permit["granted_at"] is None:
            t.put("run_permit", (run_id,), {**permit, "ranked_at": permit["asked_at"] - priority * 60_000_000})
    return []


@model
def await_slots(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("await_slots", list(columns)):
        key = (row["run_ids"], row["tasks"])
        unique(t, "pool_waiter", key)
        run = t.get("run", row["run_ids"]) or {}
        new = {"token": row["tokens"], "pool": row["pools"], "began_at": t.now, "granted_at": None, "said_at": None}
        new["fairness_key"] = row["keys"]
        t.put("pool_waiter", key, {**new, "ranked_at": t.now - run["priority"] * 60_000_000})
    return []


@model
def restore_pool_waiters(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    def lost(task: Row) -> Row | None:
        if task["status"] != "waiting" or task["pool"] is None:
            return None
        row = {"token": task["token"], "pool": task["pool"], "began_at": task["changed_at"], "granted_at": None}
        return {**row, "ranked_at": task["changed_at"], "said_at": None, "fairness_key": ""}

    restored = list(restore(t, "pool_waiter", most, lost))
    for key, _ in restored:
        if (slot := t.get("pool_slot", *key)) is not None:
            told = {
                "granted_at": slot["granted_at"],
                "said_at": slot["granted_at"],
                "fairness_key": slot["fairness_key"],
            }
            t.put("pool_waiter", key, {**(t.get("pool_waiter", *key) or {}), **told})
    return [(UUID(bytes=key[0]), key[1]) for key, _ in restored]


@model
def restore_pool_slots(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    granted = {key: row["token"] for key, row in t.rows("pool_waiter") if row["granted_at"] is not None}
    fairness_keys = {key: row["fairness_key"] for key, row in t.rows("pool_waiter") if key in granted}

    def lost(task: Row) -> Row | None:
        if task["pool"] is None:
            return None
        return {"token": task["token"], "pool": task["pool"], "granted_at": t.now, "fairness_key": ""}

    keys = {key for key, task in t.rows("task") if task["status"] != "waiting" or granted.get(key) == task["token"]}
    restored = [key for key, _ in restore(t, "pool_slot", most, lost, keys)]
    for key in restored:
        slot = t.get("pool_slot", *key) or {}
        known = granted.get(key) == slot["token"]
        t.put("pool_slot", key, {**slot, "fairness_key": fairness_keys[key] if known else ""})
    return [(UUID(bytes=key[0]), key[1]) for key in restored]


def _slots_left(t: Transaction, pool: Row) -> int:
    if pool["slots_max"] is None:
        return 2**31
    slots: int = pool["slots_max"]
    return slots - sum(slot["pool"] == pool["name"] for _, slot in t.rows("pool_slot"))


def _allowance(t: Transaction, pool: Row) -> float:
    """Hand-outs that its rate allows now."""
    if pool["rate_count"] is None:
        return float("inf")
    seconds = max(0, t.now - pool["allowed_at"]) / 1e6
    more = pool["rate_count"] / pool["rate_seconds"] * seconds
    return float(min(pool["rate_count"], pool["allowance"] + more))


def _pay(t: Transaction, key: Any, granted: int) -> None:
    pool = t.get("pool", *key) or {}
    allowance, is_ahead = _allowance(t, pool), pool["allowed_at"] > t.now + 10_000_000
    if pool["rate_count"] is not None and (allowance >= 1 or is_ahead):
        allowed_at = t.now if is_ahead else max(pool["allowed_at"], t.now)
        t.put("pool", key, {**pool, "allowance": allowance - granted, "allowed_at": allowed_at})


@model
def has_waiters(t: Transaction) -> list[tuple[Any, ...]]:
    return [(any(True for _ in t.rows("pool_waiter")),)]


@model
def lock_pools(t: Transaction) -> list[tuple[Any, ...]]:
    wanted = {row["pool"] for _, row in t.rows("pool_waiter") if row["granted_at"] is None}
    found = sorted(key for key, pool in t.rows("pool") if pool["name"] in wanted and _slots_left(t, pool) > 0)
    for key in found:
        t.lock("pool", key)
    return found


def _choose(t: Transaction, place: Any, most: int) -> list[Any]:
    """Whom the next slots are granted to, one after another, and the turns of the keys as they are then."""
    waiting = sorted(
        (row["fairness_key"], row["ranked_at"], key, row["began_at"])
        for key, row in t.rows("pool_waiter")
        if row["pool"] == place[1] and row["granted_at"] is None
    )
    queues: dict[str, list[Any]] = {}
    turns: dict[str, tuple[int, int, int]] = {}
    for name, ranked_at, key, began_at in waiting:
        if name not in queues:
            known = t.get("pool_turn", *place, name)
            is_known = known is not None and known["turned_at"] <= t.now + 10_000_000
            turns[name] = (known["turned_at"] if is_known and known else min(began_at, t.now), ranked_at, 0)
            if (name or len({one[0] for one in waiting}) > 1) and not is_known:
                t.put("pool_turn", (*place, name), {"turned_at": turns[name][0]})
        queues.setdefault(name, []).append(key)
    for stale in [key for key, _ in t.rows("pool_turn") if key[:2] == place and key[2] not in queues]:
        t.put("pool_turn", stale, None)
    is_shared = len(queues) > 1 or "" not in queues
    held = Counter(row["fairness_key"] for _, row in t.rows("pool_slot") if row["pool"] == place[1])
    first = sorted(queues, key=lambda name: (held[name], turns[name], name))[:most]
    free = {name: [key for key in queues[name] if t.is_free("pool_waiter", key)] for name in first}
    chosen: list[Any] = []
    while len(chosen) < most and any(free.values()):
        name = min((name for name in free if free[name]), key=lambda name: (held[name], turns[name], name))
        chosen.append(free[name].pop(0))
        held[name] += 1
        turns[name] = (t.now + 1, 0, len(chosen))
        if is_shared:
            t.put("pool_turn", (*place, name), {"turned_at": t.now + len(chosen)})
    return chosen


@model
def grant_slots(t: Transaction, namespaces: list[str], names: list[str], most: int) -> list[tuple[Any, ...]]:
    granted = []
    for place in zip(namespaces, names, strict=True):
        pool = t.get("pool", *place) or {}
        left = int(min(most, _slots_left(t, pool), _allowance(t, pool)))
        chosen = _choose(t, place, left) if left > 0 else []
        for key in chosen:
            row = t.get("pool_waiter", *key) or {}
            t.put("pool_waiter", key, {**row, "granted_at": t.now, "said_at": t.now})
            slot = {"token": row["token"], "pool": row["pool"], "granted_at": t.now}
            t.put("pool_slot", key, {**slot, "fairness_key": row["fairness_key"]})
            granted.append((UUID(bytes=key[0]), key[1], row["token"]))
        _pay(t, place, len(chosen))
    return granted


@model
def set_pool(
    t: Transaction,
    *,
    namespace: str,
    name: str,
    slots: int | None,
    count: int | None,
    seconds: float | None,
    actor: str,
) -> list[tuple[Any, ...]]:
    known = t.get("pool", namespace, name)
    limits = {"name": name, "slots_max": slots, "rate_count": count, "rate_seconds": seconds}
    if known is None or known["rate_count"] is None:
        bucket = {"allowance": count or 0, "allowed_at": t.now}
    else:
        bucket = {"allowance": min(known["allowance"], count or 0), "allowed_at": known["allowed_at"]}
    t.put("pool", (namespace, name), limits | bucket)
    return []


@model
def list_pools(t: Transaction, *, namespace: str, name: str | None, **_: Any) -> list[tuple[Any, ...]]:
    """Only of one that is set, and not who waits: nobody reads that here."""
    pool = t.get("pool", namespace, name)
    assert pool is not None
    return [(name, True, pool["slots_max"], pool["rate_count"], pool["rate_seconds"], 0, 0, None, None, "")]


@model
def say_granted(t: Transaction, seconds: float, most: int) -> list[tuple[Any, ...]]:
    def is_late(row: Row) -> bool:
        return row["granted_at"] is not None and row["said_at"] < t.now - seconds * 1_000_000

    found = []
    for key, row in claimable(t, "pool_waiter", is_late, most):
        t.put("pool_waiter", key, {**row, "said_at": t.now})
        found.append((UUID(bytes=key[0]), key[1], row["token"]))
    return found
