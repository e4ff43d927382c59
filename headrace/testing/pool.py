"""Pools: who holds a slot, who waits for one, and what a rate allows."""

from collections import Counter
from itertools import count
from math import ceil
from typing import Final, NamedTuple

from headrace.machine import AwaitSlot
from headrace.messages import Admitted
from headrace.rate import Rate, parse_rate
from headrace.testing.clock import Clock
from headrace.testing.run import Run


class _Waiter(NamedTuple):
    """A task that waits for a slot."""

    run: Run
    task: int
    token: int
    pool: str
    fairness_key: str
    began_at: int
    order: int

    @property
    def rank(self) -> tuple[int, int]:
        return self.run.stands_in_line(self.began_at), self.order

    @property
    def key(self) -> tuple[str, str]:
        return self.pool, self.fairness_key


class _Pool:
    """The limits of a pool: a token bucket for its rate, as in the engine."""

    def __init__(self, slots: int | None, rate: Rate | None, at: int) -> None:
        self.slots, self._rate, self._at = slots, rate, at
        self._allowance: float = 0 if rate is None else rate.hand_outs

    def change(self, slots: int | None, rate: Rate | None, at: int) -> None:
        """A rate that changes keeps what it has."""
        self._fill(at)
        if rate is not None:
            self._allowance = rate.hand_outs if self._rate is None else min(self._allowance, rate.hand_outs)
        self.slots, self._rate = slots, rate

    def allows_at(self) -> int:
        """When it allows one more."""
        if self._rate is None or self._allowance >= 1:
            return self._at
        return self._at + ceil((1 - self._allowance) * self._rate.seconds / self._rate.hand_outs * 1_000_000)

    def pay(self, at: int) -> None:
        """For one that is admitted."""
        self._fill(at)
        self._allowance = max(0.0, self._allowance - 1)

    def _fill(self, at: int) -> None:
        if self._rate is not None:
            more = (at - self._at) / 1_000_000 * self._rate.hand_outs / self._rate.seconds
            self._allowance = min(self._rate.hand_outs, self._allowance + more)
        self._at = at


class Pools:
    """Of all workflows; one that is not named has no limit."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: Final[dict[str, _Pool]] = {}
        self._slots: dict[tuple[Run, int], tuple[str, str]] = {}
        """Who holds a slot -> of which pool, and for which fairness key."""
        self._turns: dict[tuple[str, str], tuple[int, int]] = {}
        """Since when each key that is waited for has had no turn."""
        self._waiters: list[_Waiter] = []
        self._order = count()

    def set_limits(self, name: str, slots: int | None, rate: str | None) -> None:
        parsed = None if rate is None else parse_rate(rate)
        if (known := self._pools.get(name)) is None:
            self._pools[name] = _Pool(slots, parsed, self._clock.at)
        else:
            known.change(slots, parsed, self._clock.at)

    def await_slot(self, run: Run, action: AwaitSlot) -> None:
        place = self._clock.at, next(self._order)
        self._waiters.append(_Waiter(run, action.task, action.token, action.pool, action.fairness_key, *place))

    def free_slot(self, run: Run, task: int) -> None:
        self._waiters = [waiter for waiter in self._waiters if (waiter.run, waiter.task) != (run, task)]
        self._slots.pop((run, task), None)

    def admit(self) -> bool:
        """Give one slot to who is next for it; whether there was one."""
        free = [
            one for one in self._waiters if self._has_slot(one.pool) and self._admitted_at(one.pool) <= self._clock.at
        ]
        if not free:
            return False
        waiter = self._next_of(free)
        if waiter.pool in self._pools:
            self._pools[waiter.pool].pay(self._clock.at)
        self._waiters.remove(waiter)
        self._slots[waiter.run, waiter.task] = waiter.key
        self._turns[waiter.key] = self._clock.at, next(self._order)
        nonce = waiter.run.nonce(waiter.task, waiter.token)
        waiter.run.tell(Admitted(waiter.task, waiter.token, nonce))
        return True

    def _next_of(self, waiters: list[_Waiter]) -> _Waiter:
        """Who is next: of the key that holds fewest slots, then whose turn was longest ago; of its own by rank."""
        heads: dict[tuple[str, str], _Waiter] = {}
        for one in sorted(waiters, key=lambda one: one.rank):
            heads.setdefault(one.key, one)
        awaited = {one.key for one in self._waiters}
        self._turns = {key: turn for key, turn in self._turns.items() if key in awaited}
        for key, head in heads.items():
            self._turns.setdefault(key, (head.began_at, head.order))
        # Pools have nothing to do with each other: whoever is next in one is as good as whoever is in another.
        pool = min(heads.values(), key=lambda one: one.rank).pool
        held = Counter(self._slots.values())
        return min(
            (head for head in heads.values() if head.pool == pool),
            key=lambda head: (held[head.key], self._turns[head.key], head.rank),
        )

    def next_instants(self) -> list[int]:
        """When the rate of a pool with a free slot allows the next who waits for it."""
        return [self._admitted_at(one.pool) for one in self._waiters if self._has_slot(one.pool)]

    def _has_slot(self, pool: str) -> bool:
        slots = self._pools[pool].slots if pool in self._pools else None
        return slots is None or sum(each == pool for each, _ in self._slots.values()) < slots

    def _admitted_at(self, pool: str) -> int:
        """When its rate allows one more."""
        return self._pools[pool].allows_at() if pool in self._pools else self._clock.at
