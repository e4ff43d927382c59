"""Signals: told to one run, or posted for whoever waits for their key."""

from typing import NamedTuple

import msgspec

from headrace.machine import Listen, Signalled, TaskStatus
from headrace.messages import RunId
from headrace.testing.clock import Clock
from headrace.testing.run import Run


class _Posted:
    """A signal for whoever waits for its key."""

    def __init__(self, name: str, key: str, data: bytes, by: str, sent_at: int) -> None:
        self.name, self.key, self.data, self.by, self.sent_at = name, key, data, by, sent_at
        self.is_taken = False
        self.heard: set[tuple[RunId, int, int]] = set()
        """Waits of `delivery: all` that it came to."""


class _Wait(NamedTuple):
    """A task that waits for a signal with a key."""

    run: Run
    task: int
    token: int
    key: str

    @property
    def is_over(self) -> bool:
        state = self.run.state.task(self.task)
        return (state.status, state.token) != (TaskStatus.WAITING, self.token)


class Postbox:
    """What was posted, which is kept for ever, and who waits."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._signals = 0
        self._posted: list[_Posted] = []
        self._waits: list[_Wait] = []
        """For signals with a key, oldest first."""

    def signal(self, name: str, data: bytes, key: str | None, by: str) -> Signalled:
        """Store a signal, as it were: it has an identity and an instant."""
        self._signals += 1
        return Signalled(f"00000000-0000-7000-9000-{self._signals:012}", name, data, key, by, self._clock.at)

    def post(self, name: str, key: str, data: bytes, by: str) -> None:
        self._posted.append(_Posted(name, key, data, by, self._clock.at))

    def listen(self, run: Run, action: Listen) -> None:
        if action.key is not None:
            self._waits.append(_Wait(run, action.task, action.token, action.key))

    def offer(self) -> bool:
        """Bring one posted signal to one wait; whether there was one."""
        self._waits = [wait for wait in self._waits if not wait.is_over]
        for wait in self._waits:
            spec, place = wait.run.state.plan.tasks[wait.task].signal, (wait.run.run_id, wait.task, wait.token)
            assert spec is not None
            for posted in self._posted:
                is_free = place not in posted.heard if spec.delivery == "all" else not posted.is_taken
                if is_free and (posted.name, posted.key) == (spec.name, wait.key):
                    posted.is_taken |= spec.delivery == "first"
                    posted.heard.add(place)
                    signal = self.signal(posted.name, posted.data, posted.key, posted.by)
                    offer = {"sent_at": posted.sent_at, "task": wait.task, "token": wait.token}
                    wait.run.tell(msgspec.structs.replace(signal, **offer))
                    return True
        return False
