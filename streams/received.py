"""How far each queue's commands have certainly reached workers: what "lost" may be said about.

A command is lost when it was published, was received, and a lease later no live session lists its task. Published and
received are facts of two logs, read in this order: the session agent's watermark (a tick went through outbox and relay,
so all that was committed before it is in Kafka), then the ends of the command topics, then, at later passes, how far
the workers' group has come. A backlog of a million waiting commands, or a relay that is behind, is therefore never
taken for a loss.

Several such readings are under way at once: what a fault lost while a backlog is worked off is found when the group has
passed its own place and a lease is over, not when it has passed everything that came after it too.
"""

from collections import deque
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from streams.topics import Log

PROBES_MAX: Final = 64
"""Readings of one topic under way. Of more every other one is dropped, and they are made twice as far apart."""


class Probe(NamedTuple):
    """A queue's log at one moment: every command decided before `mark` lies before `ends`."""

    mark: datetime
    ends: dict[int, int]


class Received:
    def __init__(self, lease: timedelta) -> None:
        self._lease = lease
        self._topics: dict[str, _Topic] = {}

    def observe(self, topic: str, log: Log, committed: dict[int, int], mark: datetime) -> None:
        """Take in one reading of a topic; `mark` was read before it."""
        known = self._topics.get(topic)
        if known is None or known.topic_id != log.topic_id:
            # What was known about another log says nothing.
            known = self._topics[topic] = _Topic(log.topic_id, self._lease)
        known.observe(log.ends, committed, mark)

    def before(self, topic: str) -> datetime | None:
        """Commands of this topic decided before this were received more than a lease ago, so a live holder has listed
        them by now."""
        known = self._topics.get(topic)
        return known.ripe if known else None


class _Topic:
    """What is known of one log: a probe waits until the group has passed it, then a lease, then it is ripe."""

    def __init__(self, topic_id: str, lease: timedelta) -> None:
        self.topic_id = topic_id
        self._lease = lease
        self._apart = lease / 2
        self.ripe: datetime | None = None
        self._probes: deque[Probe] = deque()
        self._ripening: deque[tuple[datetime, datetime]] = deque()
        """(mark of a probe, mark at which it was seen to be passed), oldest first."""

    def observe(self, ends: dict[int, int], committed: dict[int, int], mark: datetime) -> None:
        while self._probes and _is_cut(self._probes[-1], ends):
            self._probes.pop()  # the log was cut at its end: nobody will ever commit as far as that
        passed = None
        while self._probes and _is_passed(self._probes[0], committed):
            passed = self._probes.popleft()
        if passed:
            self._ripening.append((passed.mark, mark))
        while self._ripening and self._ripening[0][1] + self._lease <= mark:
            self.ripe = self._ripening.popleft()[0]
        if not self._probes:
            self._apart = self._lease / 2
        if not self._probes or self._probes[-1].mark + self._apart <= mark:
            self._probes.append(Probe(mark, ends))
        if len(self._probes) > PROBES_MAX:
            self._probes = deque(list(self._probes)[::2])
            self._apart *= 2


def _is_passed(probe: Probe, committed: dict[int, int]) -> bool:
    return all(committed.get(partition, -1) >= end for partition, end in probe.ends.items() if end > 0)


def _is_cut(probe: Probe, ends: dict[int, int]) -> bool:
    return any(ends.get(partition, 0) < end for partition, end in probe.ends.items())
