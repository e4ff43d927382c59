"""What product code waits with, on the scheduler: `time`, `threading`, `select` and `socket` as far as it uses them."""

from collections.abc import Callable
from typing import Any

from tests.simulation.scheduler import EPOCH, Killed, Lane, sim


class Time:
    """In place of module `time`."""

    @staticmethod
    def monotonic() -> float:
        return sim().now

    @staticmethod
    def perf_counter() -> float:
        return sim().now

    @staticmethod
    def monotonic_ns() -> int:
        return round(sim().now * 1_000_000_000)

    @staticmethod
    def time() -> float:
        return EPOCH + sim().now + sim().current.process.skew

    @staticmethod
    def time_ns() -> int:
        return round(Time.time() * 1_000_000_000)

    @staticmethod
    def sleep(seconds: float) -> None:
        sim().sleep(seconds)


class Waiters:
    """Lanes that wait for something to become true."""

    def __init__(self) -> None:
        self._lanes: list[Lane] = []

    def wait(self, ready: Callable[[], bool], seconds: float | None) -> bool:
        world = sim()
        deadline = None if seconds is None else world.now + seconds
        while not ready():
            left = None if deadline is None else deadline - world.now
            if left is not None and left <= 0:
                return False
            lane = world.current
            self._lanes.append(lane)
            try:
                world.park(left)
            finally:
                if lane in self._lanes:
                    self._lanes.remove(lane)
        return True

    def wake(self) -> None:
        world = sim()
        for lane in self._lanes:
            world.wake(lane)
        self._lanes = []


class Event:
    def __init__(self) -> None:
        self._is_set, self._waiters = False, Waiters()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._waiters.wake()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if timeout is not None and timeout <= 0:
            sim().pause()
        return self._waiters.wait(lambda: self._is_set, timeout)


class Semaphore:
    def __init__(self, value: int = 1) -> None:
        self._value, self._waiters = value, Waiters()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not self._waiters.wait(lambda: self._value > 0, timeout if blocking else 0.0):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        self._waiters.wake()


class NoLock:
    """Lanes take turns only where they wait, so a short critical section is one already."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


class Thread:
    """Starts as a lane of the process that starts it."""

    def __init__(
        self,
        target: Callable[..., Any] | None = None,
        args: tuple[Any, ...] = (),
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        self._target, self._args, self.name = target, args, name
        self._lane: Lane | None = None

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args)

    def start(self) -> None:
        world = sim()
        self._lane = world.spawn(world.current.process, self.name, self.run)

    def is_alive(self) -> bool:
        return self._lane is not None and not self._lane.is_over

    def join(self, timeout: float | None = None) -> None:
        join(self._lane, timeout)


def join(lane: Lane | None, timeout: float | None) -> None:
    world = sim()
    if lane is None or lane.is_over:
        return
    deadline = None if timeout is None else world.now + timeout
    while not lane.is_over:
        left = None if deadline is None else deadline - world.now
        if left is not None and left <= 0:
            return
        lane.joiners.append(world.current)
        world.park(left)


class Threading:
    """In place of module `threading`."""

    Event, Semaphore, Thread, Lock = Event, Semaphore, Thread, NoLock

    @staticmethod
    def current_thread() -> object:
        return sim().current

    @staticmethod
    def main_thread() -> object:
        return None  # so that nothing installs a signal handler


class Bell:
    """One end of a `socketpair` that only ever carries a byte to wake the other end."""

    def __init__(self) -> None:
        self.rings, self.other, self.waiters = 0, self, Waiters()

    def send(self, data: bytes) -> int:
        self.other.rings += len(data)
        self.other.waiters.wake()
        return len(data)

    def recv(self, size: int) -> bytes:
        rung, self.rings = min(size, self.rings), max(0, self.rings - size)
        return b"!" * rung

    def close(self) -> None:
        return None


class Socket:
    """In place of module `socket`."""

    @staticmethod
    def socketpair() -> tuple[Bell, Bell]:
        one, other = Bell(), Bell()
        one.other, other.other = other, one
        return one, other

    @staticmethod
    def gethostname() -> str:
        return "host"


class Select:
    """In place of module `select`: waits for bells; another descriptor is never ready, so its owner finds out later."""

    @staticmethod
    def select(
        readable: list[Any], writable: list[Any], special: list[Any], timeout: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        bells = [one for one in readable if isinstance(one, Bell)]
        if not bells:
            sim().sleep(timeout or 0.0)
            return [], [], []
        bells[0].waiters.wait(lambda: bells[0].rings > 0, timeout)
        return [bell for bell in bells if bell.rings], [], []


class Future:
    """A `concurrent.futures.Future` for lanes."""

    def __init__(self) -> None:
        self._is_done, self._result, self._error = False, None, None
        self._waiters = Waiters()
        self.cancel: Callable[[], object] = lambda: None

    def set_result(self, result: Any) -> None:
        self._is_done, self._result = True, result
        self._waiters.wake()

    def set_exception(self, error: Any) -> None:
        self._is_done, self._error = True, error
        self._waiters.wake()

    def done(self) -> bool:
        return self._is_done

    def exception(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        return self._error

    def result(self, timeout: float | None = None) -> Any:
        self._wait(timeout)
        if self._error is not None:
            raise self._error
        return self._result

    def _wait(self, timeout: float | None) -> None:
        if not self._waiters.wait(lambda: self._is_done, timeout):
            raise TimeoutError


__all__ = ["Bell", "Event", "Future", "Killed", "Select", "Semaphore", "Socket", "Thread", "Threading", "Time", "join"]
