"""How far each queue's commands have certainly reached workers: what "lost" may be said about.

A command is lost when it was published, was received, and a lease later no live session lists its task. Published and
received are facts of two logs, read in this order: the session agent's watermark (a tick went through outbox and relay,
so all that was committed before it is in Kafka), then the ends of the command topics, then, at later passes, how far
the workers' group has come. A backlog of a million waiting commands, or a relay that is behind, is therefore never
taken for a loss.
"""

from datetime import datetime, timedelta
from typing import NamedTuple

from streams.topics import Log


class Probe(NamedTuple):
    """A queue's log at one moment: every command decided before `mark` lies before `ends`."""

    mark: datetime
    topic_id: str
    ends: dict[int, int]


class Received:
    def __init__(self, lease: timedelta) -> None:
        self._lease = lease
        self._probes: dict[str, Probe] = {}
        self._ripening: dict[str, tuple[datetime, datetime]] = {}
        self._ripe: dict[str, datetime] = {}

    def observe(self, topic: str, log: Log, committed: dict[int, int], mark: datetime) -> None:
        """Take in one reading of a topic; `mark` was read before it."""
        probe = self._probes.get(topic)
        if probe is not None and probe.topic_id != log.topic_id:
            probe = None  # another log: what was known about the old one says nothing
            self._ripening.pop(topic, None)
            self._ripe.pop(topic, None)
        if probe is not None and any(log.ends.get(p, 0) < end for p, end in probe.ends.items()):
            probe = None  # the log was cut at its end: nobody will ever commit as far as that
        if probe is not None and all(committed.get(p, -1) >= end for p, end in probe.ends.items() if end > 0):
            self._ripening.setdefault(topic, (probe.mark, mark))
            probe = None
        self._probes[topic] = probe or Probe(mark, log.topic_id, log.ends)
        if topic in self._ripening and self._ripening[topic][1] + self._lease <= mark:
            self._ripe[topic] = self._ripening.pop(topic)[0]

    def before(self, topic: str) -> datetime | None:
        """Commands of this topic decided before this were received more than a lease ago, so a live holder has listed
        them by now."""
        return self._ripe.get(topic)
