"""The seeded scheduler: one virtual clock, and lanes of which exactly one runs at a time.

A lane is one thread of one simulated process: its main thread (which may run an event loop) or one it started. Lanes
are real threads that pass a baton, so product code that blocks needs no change; every blocking call ends in `park` or
`pause`, where the scheduler draws the next lane by the seed. Time stands still while any lane can run, and jumps to
the next timer when none can. So one seed is one order of events, and the same seed is the same order.

Kill: at a yield point the process is gone. Its lanes end by an exception that nothing outside can observe, because
every edge refuses a dead process: no cleanup of its own reaches Postgres or Kafka.
"""

import hashlib
import heapq
import random
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

EPOCH: Final = 1_800_000_000.0
"""What the virtual wall clock shows when a simulation begins."""
STEPS_MAX: Final = 600_000
"""Turns of the baton in one seed: more is a livelock."""


class Killed(BaseException):
    """The process of the lane that meets it is dead."""


class Stuck(Exception):
    """Nothing can run and no timer is set, or nothing but turns happens."""


class Process:
    """One incarnation of one process: killed for good, or paused for a while."""

    def __init__(self, sim: "Sim", name: str) -> None:
        self.sim, self.name = sim, name
        self.is_alive, self.is_paused = True, False
        self.dies_after: int | None = None
        """Yield points left until it is killed, when the nemesis has chosen one."""
        self.skew = 0.0
        """Seconds that its wall clock is off."""
        self.lanes: list[Lane] = []
        self.frozen: list[Lane] = []
        self.folded: dict[bytes, int] = {}
        """A probe's notes: run -> the version at which its events are judged in the batch under way."""
        self.on_death: list[Callable[[], None]] = []
        self.on_pause: list[Callable[[], None]] = []
        self.on_resume: list[Callable[[], None]] = []

    def kill(self) -> None:
        if not self.is_alive:
            return
        self.is_alive = False
        self.sim.note(self.name, "killed")
        for told in self.on_death:
            told()
        for lane in [*self.frozen, *(lane for lane in self.lanes if lane.is_parked)]:
            lane.is_parked = False
            self.sim.make_runnable(lane)
        self.frozen.clear()

    def pause(self) -> None:
        if self.is_alive and not self.is_paused:
            self.is_paused = True
            self.sim.note(self.name, "paused")
            for told in self.on_pause:
                told()

    def resume(self) -> None:
        if self.is_alive and self.is_paused:
            self.is_paused = False
            self.sim.note(self.name, "resumed")
            for told in self.on_resume:
                told()
            frozen, self.frozen = self.frozen, []
            for lane in frozen:
                self.sim.make_runnable(lane)


class Lane:
    """One thread of a process."""

    def __init__(self, sim: "Sim", process: Process, name: str, function: Callable[[], Any]) -> None:
        self.sim, self.process, self.name, self.function = sim, process, name, function
        self.baton = threading.Lock()
        self.baton.acquire()
        self.is_parked, self.is_woken, self.is_over = False, False, False
        self.ticket = 0
        self.joiners: list[Lane] = []
        self.is_begun = False

    def hand(self) -> None:
        """Give it the baton; its thread begins when it first gets it."""
        if not self.is_begun:
            self.is_begun = True
            threading.Thread(target=self._run, name=f"{self.process.name}/{self.name}", daemon=True).start()
        self.baton.release()

    def _run(self) -> None:
        self.baton.acquire()
        try:
            if self.process.is_alive:
                self.function()
        except Killed:
            pass
        except BaseException as error:
            self.sim.crashed(self, error)
        self.is_over = True
        for joiner in self.joiners:
            self.sim.wake(joiner)
        self.sim.leave(self)


class Sim:
    """One simulation of one seed. The lane that made it is the driver; it belongs to no process that can die."""

    def __init__(self, seed: int, on_note: Callable[[str], None] | None = None) -> None:
        self.random = random.Random(seed)
        self.now = 1_000.0
        self.steps = 0
        self._heap: list[tuple[float, int, Any, int]] = []
        self._count = 0
        self._runnable: list[Lane] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._on_note = on_note
        self.crashes: list[tuple[Process, str, BaseException]] = []
        self.lanes: list[Lane] = []
        self._failure: BaseException | None = None
        self._is_ending = False
        self._steps_at, self._steps_since = self.now, 0
        self.driver = Lane(self, Process(self, "driver"), "main", lambda: None)
        self.driver.is_begun = True
        self.current = self.driver

    # -- what happened
    def note(self, who: str, what: str) -> None:
        """One line of the trace, in order."""
        line = f"{self.now - 1_000.0:10.6f} {who:<12} {what}"
        self._digest.update(line.encode())
        if self._on_note is not None:
            self._on_note(line)

    def tell(self, who: str, what: str) -> None:
        """A line that is only shown: what a process logs does not tell one order of events from another."""
        if self._on_note is not None:
            self._on_note(f"{self.now - 1_000.0:10.6f} {who:<12} {what}")

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()

    def crashed(self, lane: Lane, error: BaseException) -> None:
        if lane.process.is_alive:
            self.note(lane.process.name, f"{lane.name} raised {error!r}")
            self.crashes.append((lane.process, lane.name, error))

    # -- lanes
    def spawn(self, process: Process, name: str, function: Callable[[], Any]) -> Lane:
        lane = Lane(self, process, name, function)
        process.lanes.append(lane)
        self.lanes.append(lane)
        self.make_runnable(lane)
        return lane

    def make_runnable(self, lane: Lane) -> None:
        self._runnable.append(lane)

    def wake(self, lane: Lane) -> None:
        """End its wait; nothing when it is not waiting."""
        if lane.is_parked:
            lane.is_parked, lane.is_woken = False, True
            self.make_runnable(lane)

    def park(self, seconds: float | None = None) -> bool:
        """Wait to be woken, at most so long; whether that happened. Raises Killed."""
        lane = self.current
        self._step(lane)
        lane.is_parked, lane.is_woken = True, False
        lane.ticket += 1
        if seconds is not None:
            self._push(max(seconds, 0.0), lane, lane.ticket)
        self._switch(lane)
        return lane.is_woken

    def sleep(self, seconds: float) -> None:
        until = self.now + seconds
        while True:
            self.park(max(until - self.now, 0.0))
            if self.now >= until:
                return

    def pause(self) -> None:
        """A yield point without a wait: another lane may go first."""
        lane = self.current
        self._step(lane)
        if self._runnable and self.random.random() < 0.5:
            self.make_runnable(lane)
            self._switch(lane)

    def check(self) -> None:
        """Refuse a dead process."""
        if not self.current.process.is_alive:
            raise Killed

    def at(self, seconds: float, function: Callable[[], None]) -> None:
        """Call something of the world outside, later; it must not block."""
        self._push(seconds, function, 0)

    def latency(self, low: float = 0.0002, high: float = 0.002) -> float:
        return low + (high - low) * self.random.random()

    # -- inside
    def _push(self, seconds: float, what: Any, ticket: int) -> None:
        self._count += 1
        heapq.heappush(self._heap, (self.now + seconds, self._count, what, ticket))

    def _step(self, lane: Lane) -> None:
        process = lane.process
        if process.dies_after is not None and process.is_alive:
            process.dies_after -= 1
            if process.dies_after <= 0:
                process.kill()
        if not process.is_alive:
            raise Killed

    def _pick(self) -> Lane:
        while True:
            while self._runnable:
                chosen = self.random.randrange(len(self._runnable))
                lane = self._runnable[chosen]
                self._runnable[chosen] = self._runnable[-1]
                self._runnable.pop()
                if lane.is_over:
                    continue
                if lane.process.is_paused and lane.process.is_alive:
                    lane.process.frozen.append(lane)
                    continue
                return lane
            if self._failure is not None or not self._heap:
                self._failure = self._failure or Stuck("no lane can run and no timer is set")
                return self.driver
            self._next_timer()

    def _next_timer(self) -> None:
        when, _, what, ticket = heapq.heappop(self._heap)
        self.now = max(self.now, when)
        if not isinstance(what, Lane):
            try:
                what()
            except BaseException as error:
                self._failure = error
        elif what.is_parked and what.ticket == ticket:
            what.is_parked = False
            self.make_runnable(what)

    def _switch(self, lane: Lane) -> None:
        self.steps += 1
        if self.steps > STEPS_MAX and self._failure is None:
            self._failure = Stuck(f"{self.steps} turns by {self.now - 1_000.0:.1f} s: a livelock")
        following = self.driver if self._failure is not None else self._pick()
        if following is not lane:
            self.current = following
            following.hand()
            lane.baton.acquire()
        if lane is self.driver and self._failure is not None and not self._is_ending:
            raise self._failure
        if not lane.process.is_alive:
            raise Killed

    def leave(self, lane: Lane) -> None:
        """A lane is over: the baton goes on, and its thread ends."""
        if lane.name == "main" and lane.process.is_alive:
            lane.process.kill()
        following = self.driver if self._is_ending or self._failure is not None else self._pick()
        self.current = following
        following.hand()

    def end(self) -> None:
        """Let every thread of this simulation end."""
        self._is_ending = True
        for process in {lane.process.name + str(id(lane.process)): lane.process for lane in self.lanes}.values():
            process.is_alive = False
        for lane in self.lanes:
            while not lane.is_over:
                if not lane.is_begun:
                    lane.is_over = True
                    break
                self.current = lane
                lane.hand()
                self.driver.baton.acquire()
        self.current = self.driver

    def fail(self, error: BaseException) -> None:
        """Stop at the next switch, with this error for the driver."""
        self._failure = self._failure or error


class World:
    """What the seams look up: the simulation that runs in this interpreter."""

    sim: Sim | None = None


def sim() -> Sim:
    """The running simulation. Raises when there is none."""
    if World.sim is None:
        _no_simulation()
    return World.sim


def _no_simulation() -> NoReturn:
    raise RuntimeError("no simulation runs")
