"""What the statements of pools do, on the model."""

from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction
from tests.simulation.statements.registry import OPEN_RUN, claimable, given, model, unique


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


def _lost(t: Transaction, table: str, other: str, most: int, wants: Callable[[Any, Row, Row | None], bool]) -> Any:
    """Settled tasks of pools in open runs without their row in a table; with the key that the other table says."""
    found: list[tuple[Any, ...]] = []
    for key, task in t.rows("task"):
        run, row = t.get("run", key[0]), t.get(other, *key)
        says = row if row is not None and row["token"] == task["token"] and row["granted_at"] is not None else None
        is_open = run is not None and run["status"] in OPEN_RUN and task["changed_at"] < t.now - 1_000_000
        if run is None or not is_open or task["pool"] is None or t.get(table, *key) is not None or len(found) == most:
            continue
        if wants(key, task, says) and t.is_free("task", key):
            t.lock("task", key)
            found.append((UUID(bytes=key[0]), key[1], run["version_id"], says and says["fairness_key"]))
    return found


@model
def find_lost_waiters(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return _lost(t, "pool_waiter", "pool_slot", most, lambda _, task, __: task["status"] == "waiting")


@model
def find_lost_slots(t: Transaction, most: int) -> list[tuple[Any, ...]]:
    return _lost(t, "pool_slot", "pool_waiter", most, lambda _, task, says: task["status"] != "waiting" or bool(says))


@model
def restore_pool_waiters(
    t: Transaction, run_ids: list[UUID], tasks: list[int], keys: list[str]
) -> list[tuple[Any, ...]]:
    for run_id, task, fairness_key in zip(run_ids, tasks, keys, strict=True):
        key = (run_id.bytes, task)
        of, run, slot = t.get("task", *key) or {}, t.get("run", run_id.bytes) or {}, t.get("pool_slot", *key)
        at = slot["granted_at"] if slot is not None and slot["token"] == of["token"] else None
        row = {"token": of["token"], "pool": of["pool"], "began_at": of["changed_at"], "granted_at": at, "said_at": at}
        ranked_at = of["changed_at"] - run["priority"] * 60_000_000
        t.put("pool_waiter", key, {**row, "ranked_at": ranked_at, "fairness_key": fairness_key})
    return []


@model
def restore_pool_slots(t: Transaction, run_ids: list[UUID], tasks: list[int], keys: list[str]) -> list[tuple[Any, ...]]:
    for run_id, task, fairness_key in zip(run_ids, tasks, keys, strict=True):
        of = t.get("task", run_id.bytes, task) or {}
        row = {"token": of["token"], "pool": of["pool"], "granted_at": t.now, "fairness_key": fairness_key}
        t.put("pool_slot", (run_id.bytes, task), row)
    return []


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


@model
def has_waiters(t: Transaction) -> list[tuple[Any, ...]]:
    return [(any(True for _ in t.rows("pool_waiter")),)]


@model
def pin_plans(t: Transaction) -> list[tuple[Any, ...]]:
    return []


@model
def lock_pools(t: Transaction) -> list[tuple[Any, ...]]:
    wanted = {row["pool"] for _, row in t.rows("pool_waiter") if row["granted_at"] is None}
    found = sorted(key for key, pool in t.rows("pool") if pool["name"] in wanted and _slots_left(t, pool) > 0)
    for key in found:
        t.lock("pool", key)
    return [(*key, (t.get("pool", *key) or {})["rate_count"] is not None) for key in found]


@model
def read_keys(t: Transaction, namespaces: list[str], names: list[str], most: int) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for place in zip(namespaces, names, strict=True):
        pool = t.get("pool", *place) or {}
        slots = int(min(most, _slots_left(t, pool), _allowance(t, pool)))
        if slots > 0:
            found += [(slots, *place, *line) for line in _keys(t, place)]
    return found


def _keys(t: Transaction, place: Any) -> list[tuple[Any, ...]]:
    """The keys that are waited for in the order of their turns: key, held, turned_at, is_known, is_shared."""
    heads: dict[str, Row] = {}
    for key, row in t.rows("pool_waiter"):
        if row["pool"] == place[1] and row["granted_at"] is None:
            head = heads.get(row["fairness_key"])
            if head is None or (row["ranked_at"], key) < (head["ranked_at"], head["key"]):
                heads[row["fairness_key"]] = {**row, "key": key}
    for stale in [key for key, _ in t.rows("pool_turn") if key[:2] == place and key[2] not in heads]:
        t.put("pool_turn", stale, None)
    held = Counter(row["fairness_key"] for _, row in t.rows("pool_slot") if row["pool"] == place[1])
    lines = []
    for name, head in heads.items():
        known = t.get("pool_turn", *place, name)
        is_known = known is not None and known["turned_at"] <= t.now + 10_000_000
        turned_at = known["turned_at"] if known is not None and is_known else min(head["began_at"], t.now)
        is_shared = bool(name) or len(heads) > 1
        lines.append((held[name], turned_at, head["ranked_at"], name, is_known, is_shared))
    return [(name, count, at, is_known, is_shared) for count, at, _, name, is_known, is_shared in sorted(lines)]


@model
def claim_waiters(t: Transaction, *columns: list[Any]) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for number, (_, pool, name, most, *behind) in enumerate(zip(*columns, strict=True), 1):
        line = sorted(
            (row["ranked_at"], UUID(bytes=key[0]), key[1], row["token"])
            for key, row in t.rows("pool_waiter")
            if row["pool"] == pool and row["fairness_key"] == name and row["granted_at"] is None
        )
        taken = 0
        for ranked_at, run_id, task, token in line:
            is_behind = behind[0] is None or (ranked_at, run_id, task) > tuple(behind)
            if taken < most and is_behind and t.is_free("pool_waiter", (run_id.bytes, task)):
                t.lock("pool_waiter", (run_id.bytes, task))
                taken += 1
                found.append((number, run_id, task, token, ranked_at))
    return found


@model
def give_slots(t: Transaction, *columns: list[Any]) -> list[tuple[Any, ...]]:
    for run_id, task, token, _, pool, name in zip(*columns, strict=True):
        key = (run_id.bytes, task)
        t.put("pool_waiter", key, {**(t.get("pool_waiter", *key) or {}), "granted_at": t.now, "said_at": t.now})
        t.put("pool_slot", key, {"token": token, "pool": pool, "granted_at": t.now, "fairness_key": name})
    return []


@model
def note_turns(t: Transaction, *columns: list[Any]) -> list[tuple[Any, ...]]:
    for *key, turn, turned_at in zip(*columns, strict=True):
        t.put("pool_turn", tuple(key), {"turned_at": turned_at if turn is None else t.now + turn})
    return []


@model
def pay_rates(t: Transaction, *columns: list[Any]) -> list[tuple[Any, ...]]:
    for *key, granted in zip(*columns, strict=True):
        pool = t.get("pool", *key) or {}
        is_ahead = pool["allowed_at"] > t.now + 10_000_000
        if pool["rate_count"] is not None and (granted or is_ahead):
            allowed_at = t.now if is_ahead else max(pool["allowed_at"], t.now)
            t.put("pool", tuple(key), {**pool, "allowance": _allowance(t, pool) - granted, "allowed_at": allowed_at})
    return []


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
