"""What a worker has done so far: plain counters, for tests and for who embeds a worker."""

from dataclasses import dataclass


@dataclass(slots=True)
class Stats:
    received: int = 0
    """Commands taken from Kafka, the refused ones included."""
    refused: int = 0
    """Commands with a token that was seen already, or older than one that was."""
    undecodable: int = 0
    """Records that are no command of a wire version this library knows."""
    begun: int = 0
    """Bodies started."""
    succeeded: int = 0
    failed: int = 0
    """Answers `Failed`, the timed-out ones included."""
    timed_out: int = 0
    returned: int = 0
    dropped: int = 0
    """Attempts given up without an answer: aborted, superseded, fenced."""
    fences: int = 0
    """Times that a lease ran out while something was held."""
    overdue: int = 0
    """Bodies answered for (or dropped) that still occupy a slot: a thread cannot be interrupted. A gauge."""
    rebuilds: int = 0
    """Kafka clients thrown away and built anew."""
