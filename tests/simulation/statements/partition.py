"""What the statements of partitions and their owners do, on the model."""

from typing import Any

from tests.simulation.postgres import Transaction
from tests.simulation.statements.registry import given, model, must


@model
def fence(t: Transaction, *columns: Any) -> list[tuple[Any, ...]]:
    for row in given("fence", list(columns)):
        key = (row["topics"], row["partitions"])
        t.lock("partition_owner", key)
        owner = t.get("partition_owner", *key)
        stored = -1 if owner is None or owner["next_offset"] is None else owner["next_offset"]
        ok = owner is not None and owner["epoch"] == row["epochs"] and stored == row["old"]
        must(ok, "not the owner of a partition, or its offset has moved")
        t.put("partition_owner", key, {**(owner or {}), "next_offset": row["new"]})
    return []


@model
def take_partitions(
    t: Transaction, topic: str, topic_id: str, owner: str, partitions: list[int]
) -> list[tuple[Any, ...]]:
    answers = []
    for partition in sorted(partitions):
        t.lock("partition_owner", (topic, partition))
        known = t.get("partition_owner", topic, partition)
        epoch = 1 if known is None else known["epoch"] + 1
        following = known["next_offset"] if known is not None and known["topic_id"] == topic_id else None
        row = {"epoch": epoch, "owner": owner, "topic_id": topic_id, "next_offset": following}
        t.put("partition_owner", (topic, partition), row)
        answers.append((partition, epoch, following))
    return answers


@model
def read_partitions(t: Transaction, topic: str, partitions: list[int]) -> list[tuple[Any, ...]]:
    rows = [(partition, t.get("partition_owner", topic, partition)) for partition in partitions]
    return [(partition, row["epoch"], row["next_offset"]) for partition, row in rows if row is not None]
