"""A worker session: one life of one worker process, and the lease it holds its tasks under.

    heartbeat sent ──▶ engine records it ──▶ Renewed(seq) ──▶ the lease counts from when heartbeat `seq` was SENT

All by the monotonic clock of this process, given as an argument. Until the first renewal the engine may simply not be
there, so the lease then counts from the moment something was held; holding nothing, a session waits for ever.
"""

import uuid
from typing import Final

from headrace.messages import SessionId

_PENDING_MAX: Final = 64


class Session:
    """Lease arithmetic of one session; owned by the thread that sends its heartbeats."""

    def __init__(self, lease_seconds: float) -> None:
        self.id: Final = SessionId(uuid.uuid4().hex)
        """Random, so that a restart under the same host name is somebody else."""
        self.lease_seconds = lease_seconds
        self._seq = 0
        self._sent_at: dict[int, float] = {}
        self._renewed_until: float | None = None
        self._seen_idle_at: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether the engine has answered at least once."""
        return self._renewed_until is not None

    @property
    def interval_seconds(self) -> float:
        return self.lease_seconds / 3

    def beat(self, now: float) -> int:
        """Number the heartbeat that is sent now."""
        self._seq += 1
        self._sent_at[self._seq] = now
        if len(self._sent_at) > _PENDING_MAX:
            del self._sent_at[next(iter(self._sent_at))]
        return self._seq

    def renewed(self, seq: int, lease_seconds: float) -> None:
        """Take the engine's answer to heartbeat `seq`; answers that come late or twice never shorten the lease."""
        sent_at = self._sent_at.get(seq)
        if sent_at is None:
            return
        self._renewed_until = max(self._renewed_until or 0.0, sent_at + lease_seconds)
        self._sent_at = {n: at for n, at in self._sent_at.items() if n > seq}

    def has_expired(self, now: float) -> bool:
        """Whether the lease is over, by the same rule; asked right before acting on the world outside."""
        if self._renewed_until is not None:
            return now >= self._renewed_until
        return self._seen_idle_at is not None and now >= self._seen_idle_at + self.lease_seconds

    def is_lapsed(self, now: float, *, holds: bool) -> bool:
        """Whether what is held may be somebody else's by now. Ask several times in a lease."""
        if not holds or self._seen_idle_at is None:
            self._seen_idle_at = now
        if self._renewed_until is not None:
            return now >= self._renewed_until
        return holds and now >= self._seen_idle_at + self.lease_seconds
