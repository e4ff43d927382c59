"""What the statements of signals do, on the model."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from tests.simulation.postgres import Row, Transaction, instant
from tests.simulation.scheduler import sim
from tests.simulation.statements.inbox import new_request
from tests.simulation.statements.registry import given, model, must, unique


@model
def stop_listening(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("stop_listening", list(columns)):
        key = (row["run_ids"], row["tasks"])
        if t.get("signal_wait", *key) is not None:
            t.put("signal_wait", key, None)
    return []


@model
def listen(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("listen", list(columns)):
        key = (row["run_ids"], row["tasks"])
        unique(t, "signal_wait", key)
        new = {"token": row["tokens"], "name": row["names"], "key": row["keys"], "delivery": row["deliveries"]}
        t.put("signal_wait", key, {**new, "began_at": t.now})
    return []


@model
def settle_signals(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("settle_signals", list(columns)):
        key = (row["signal_ids"],)
        t.lock("signal", key)
        signal = t.get("signal", *key)
        must(signal is not None and signal["status"] in ("sent", "kept"), "a signal was taken already")
        settled = {"status": row["statuses"], "task": row["tasks"], "token": row["tokens"], "reason": row["reasons"]}
        t.put("signal", key, {**(signal or {}), **settled})
        posted = t.get("posted_signal", signal["posted_id"]) if signal and signal.get("posted_id") else None
        if posted is not None and signal and signal["is_exclusive"] and settled["status"] == "taken":
            t.put("posted_signal", (signal["posted_id"],), {**posted, "taken_as": row["signal_ids"]})
    return []


def _signals(t: Transaction, wanted: Callable[[Row], bool]) -> list[tuple[UUID, Row]]:
    found = [(UUID(bytes=key[0]), row) for key, row in t.rows("signal") if wanted(row)]
    return sorted(found, key=lambda one: (one[1]["sent_at"], one[0]))


def _loaded_signal(signal_id: UUID, row: Row) -> tuple[Any, ...]:
    content = (row["name"], row["key"], row["data"], row["actor"], row["sent_at"])
    return (UUID(bytes=row["run_id"]), signal_id, *content)


@model
def insert_posted(t: Transaction, *, posted_id: UUID, sender_id: str | None, keep_seconds: float, **row: Any) -> Any:
    if sender_id is not None:
        t.lock("posted_signal", (row["namespace"], sender_id))  # stands for the unique index
        if find_posted_of_sender(t, namespace=row["namespace"], sender_id=sender_id):
            return []
    new = {"sender_id": sender_id, "sent_at": t.now, "expires_at": t.now + round(keep_seconds * 1e6), "taken_as": None}
    t.put("posted_signal", (posted_id.bytes,), {**row, **new})
    return [(posted_id,)]


@model
def find_posted_of_sender(t: Transaction, *, namespace: str, sender_id: str) -> list[tuple[Any, ...]]:
    found = [(key, row) for key, row in t.rows("posted_signal") if row["sender_id"] == sender_id]
    return [(UUID(bytes=key[0]), row["name"], row["key"], row["data"]) for key, row in found]


@model
def get_posted(t: Transaction, *, namespace: str, posted_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("posted_signal", posted_id.bytes)
    if row is None:
        return []
    content = (row["name"], row["key"], row["data"], row["sender_id"], row["actor"], instant(row["sent_at"]))
    return [(posted_id, *content, instant(row["expires_at"]), "taken" if row["taken_as"] else "open")]


@model
def next_keys(t: Transaction, namespace: str, name: str, key: str, most: int) -> list[tuple[Any, ...]]:
    keys = {(r["namespace"], r["name"], r["key"]) for _, r in t.rows("posted_signal") if r["expires_at"] > t.now}
    return sorted(found for found in keys if found > (namespace, name, key))[:most]


@model
def offer_posted(
    t: Transaction, namespaces: list[str], names: list[str], keys: list[str], most: int
) -> list[tuple[Any, ...]]:
    """The two unique indexes, told as a lock on the posted signal; whoever waited for it looks again."""
    offers: list[tuple[bytes, tuple[Any, ...], bool]] = []
    signals = [row for _, row in t.rows("signal") if row.get("posted_id")]
    for namespace, name, key in sorted(set(zip(namespaces, names, keys, strict=True))):
        posted = sorted(
            (row["sent_at"], id_, row) for (id_,), row in t.rows("posted_signal")
            if (row["namespace"], row["name"], row["key"]) == (namespace, name, key) and row["expires_at"] > t.now
        )  # fmt: skip
        waits = sorted(
            (row["began_at"], place, row) for place, row in t.rows("signal_wait")
            if (row["name"], row["key"]) == (name, key) and not any(
                (s["run_id"], s["offered_task"], s["offered_token"], s["status"]) == (*place, row["token"], "sent")
                for s in signals)
        )  # fmt: skip
        free = [
            id_ for _, id_, row in posted if row["taken_as"] is None and not any(
                s["posted_id"] == id_ and s["is_exclusive"] and s["status"] in ("sent", "taken") for s in signals)
        ]  # fmt: skip
        firsts = [(*place, row["token"]) for _, place, row in waits if row["delivery"] == "first"]
        offers += [(id_, wait, True) for id_, wait in zip(free, firsts, strict=False)]
        for wait in ((*place, row["token"]) for _, place, row in waits if row["delivery"] == "all"):
            heard = {s["posted_id"] for s in signals if (s["run_id"], s["offered_task"], s["offered_token"]) == wait}
            offers += [(id_, wait, False) for _, id_, _ in posted if id_ not in heard][:1]
    return [_offer(t, *offer) for offer in sorted(offers)[:most]]


def _offer(t: Transaction, posted_id: bytes, wait: tuple[Any, ...], is_exclusive: bool) -> tuple[Any, ...]:
    t.lock("posted_signal", (posted_id,))
    run_id, task, token = wait
    posted, signal_id = t.get("posted_signal", posted_id), UUID(int=sim().random.getrandbits(128), version=4)
    content = {name: (posted or {})[name] for name in ("name", "key", "data", "actor", "sent_at")}
    offered = {"posted_id": posted_id, "is_exclusive": is_exclusive, "offered_task": task, "offered_token": token}
    new = {"sender_id": None, "status": "sent", "task": None, "token": None, "reason": None}
    t.put("signal", (signal_id.bytes,), {**content, **offered, **new, "run_id": run_id})
    new_request(t, signal_id, UUID(bytes=run_id), "signalled", "{}", content["actor"])
    return signal_id, UUID(bytes=run_id)


@model
def load_unapplied_signals(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    named = [t.get("signal", signal_id.bytes) for signal_id in ids]
    runs = {row["run_id"] for row in named if row is not None}
    waiting = {UUID(bytes=key[0]) for key, row in t.rows("inbox") if row["applied_at"] is None}
    found = _signals(t, lambda row: row["run_id"] in runs)
    return [
        (*_loaded_signal(id_, row), row.get("offered_task"), row.get("offered_token") or 0)
        for id_, row in found
        if id_ in waiting
    ]


@model
def load_kept_signals(t: Transaction, ids: list[UUID]) -> list[tuple[Any, ...]]:
    runs = {run_id.bytes for run_id in ids}
    found = _signals(t, lambda row: row["run_id"] in runs and row["status"] == "kept")
    return [_loaded_signal(*one) for one in found]


@model
def find_signal_target(t: Transaction, *, run_id: UUID, namespace: str) -> list[tuple[Any, ...]]:
    run = t.get("run", run_id.bytes)
    if run is None:
        return []
    kept = _signals(t, lambda row: row["run_id"] == run_id.bytes and row["status"] in ("sent", "kept"))
    return [(run["status"], run["version_id"], len(kept), sum(len(row["data"]) for _, row in kept))]


@model
def insert_signal(t: Transaction, *, signal_id: UUID, run_id: UUID, sender_id: str | None, **row: Any) -> list[Any]:
    if sender_id is not None:
        t.lock("signal", (run_id.bytes, sender_id))  # stands for the unique index
        if find_signal_of_sender(t, run_id=run_id, sender_id=sender_id):
            return []
    content = {name: row[name] for name in ("name", "key", "data", "actor")}
    new = {**content, "run_id": run_id.bytes, "sender_id": sender_id, "sent_at": t.now, "status": "sent"}
    t.put("signal", (signal_id.bytes,), {**new, "task": None, "token": None, "reason": None})
    return [(signal_id,)]


@model
def find_signal_of_sender(t: Transaction, *, run_id: UUID, sender_id: str) -> list[tuple[Any, ...]]:
    found = _signals(t, lambda row: row["run_id"] == run_id.bytes and row["sender_id"] == sender_id)
    return [(id_, row["name"], row["key"], row["data"]) for id_, row in found]


@model
def get_signal(t: Transaction, *, signal_id: UUID) -> list[tuple[Any, ...]]:
    row = t.get("signal", signal_id.bytes)
    if row is None:
        return []
    head = (signal_id, UUID(bytes=row["run_id"]), row["name"], row["key"], row["data"], row["sender_id"], row["actor"])
    return [(*head, instant(row["sent_at"]), row["status"], row["task"], row["token"], None, None, row["reason"])]
