"""Which partitions this process owns, under which epoch, and where each goes on: the truth is in Postgres, this is its
memory."""

from collections.abc import Iterable
from typing import NamedTuple

import structlog
from confluent_kafka import Message

from state.sql import load
from state.store import Rows
from streams.batch import Batch
from streams.database import Database

log = structlog.get_logger(__name__)
_SQL = load("partition")


class Position(NamedTuple):
    epoch: int
    next_offset: int | None
    """None: from the log's beginning, wherever retention has left it."""


class Move(NamedTuple):
    """What a batch does to a partition's offset, if its transaction commits."""

    topic: str
    partition: int
    epoch: int
    old: int | None
    new: int


class Ownership:
    def __init__(self, database: Database, owner: str) -> None:
        self._database, self._owner = database, owner
        self._positions: dict[tuple[str, int], Position] = {}
        self.fenced = 0
        """Records dropped because another process owns their partition by now."""

    async def lease(self, topic: str, topic_id: str, partitions: list[int]) -> dict[int, tuple[int, int | None]]:
        """Take partitions that the group assigned; what the transport asks for (`streams.batch.Lease`)."""
        rows = self._database.fetch(_SQL.text("take_partitions"), (topic, topic_id, self._owner, partitions))
        for partition, epoch, next_offset in rows:
            self._positions[topic, partition] = Position(epoch, next_offset)
        return {partition: (epoch, next_offset) for partition, epoch, next_offset in rows}

    def refresh(self, topic: str) -> None:
        """Read again what is stored, after a write was refused. A partition whose epoch rose has another owner: let it
        go."""
        mine = [partition for known, partition in self._positions if known == topic]
        for partition, epoch, next_offset in self._database.fetch(_SQL.text("read_partitions"), (topic, mine)):
            if epoch == self._positions[topic, partition].epoch:
                self._positions[topic, partition] = Position(epoch, next_offset)
            else:
                del self._positions[topic, partition]

    def holds(self, batch: Batch) -> bool:
        """Whether any of its partitions is still ours."""
        held = (self._positions.get((batch.topic, partition)) for partition in batch.records)
        return any(
            position is not None and position.epoch == batch.epochs.get(partition)
            for partition, position in zip(batch.records, held, strict=True)
        )

    def take(self, batch: Batch, *, is_gapless: bool = True) -> tuple[list[Message], list[Move]]:
        """The records of a batch that are still to be applied, and what applying them does to the offsets.

        Drops partitions that are no longer ours and records applied already. Stops at a hole and has the transport
        start over: an offset is never skipped. is_gapless: False for a user's topic, where compaction and transactions
        leave offsets without a record.
        """
        records, moves = list[Message](), list[Move]()
        for partition, messages in batch.records.items():
            position = self._positions.get((batch.topic, partition))
            if position is None or position.epoch != batch.epochs.get(partition):
                self.fenced += len(messages)
                batch.fenced(partition)
                continue
            before = following = position.next_offset
            for message in messages:
                offset = message.offset()
                if offset is None or (following is not None and offset < following):
                    continue
                if is_gapless and following is not None and offset > following:
                    batch.rebuild(f"hole in {batch.topic}/{partition}: expected {following}, got {offset}")
                    break
                records.append(message)
                following = offset + 1
            if following is not None and following != before:
                moves.append(Move(batch.topic, partition, position.epoch, before, following))
        return records, moves

    def fence(self, rows: Rows, moves: Iterable[Move]) -> None:
        """Make a transaction conditional on the ownership, and move the offsets in it."""
        for topic, partition, epoch, old, new in moves:
            rows.add("fence", topic, partition, epoch, -1 if old is None else old, new)

    def moved(self, moves: Iterable[Move]) -> None:
        """The transaction has committed."""
        for move in moves:
            if (move.topic, move.partition) in self._positions:
                self._positions[move.topic, move.partition] = Position(move.epoch, move.new)
