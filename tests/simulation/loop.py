"""An asyncio event loop on virtual time: one for each simulated process, all driven by one scheduler.

Within a process callbacks keep asyncio's own order, as they do in production; between any two of them every other
process may go first. The loop belongs to the lane that runs it.
"""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any

from tests.simulation.primitives import Future
from tests.simulation.scheduler import Killed, Lane, Sim, sim


class SimLoop(asyncio.BaseEventLoop):
    def __init__(self, world: Sim) -> None:
        super().__init__()
        self._sim = world
        self._lane: Lane = world.current
        self.graveyard: list[Any] = []

    def time(self) -> float:
        return self._sim.now

    def _run_once(self) -> None:
        """What asyncio does in one turn, with `park` for the selector and a yield point behind every callback."""
        world, scheduled, ready = self._sim, self._scheduled, self._ready  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)._scheduled = False
        if not ready and not self._stopping:  # type: ignore[attr-defined]
            world.park(None if not scheduled else max(0.0, scheduled[0]._when - world.now))
        while scheduled and scheduled[0]._when <= world.now + 1e-9:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            if not handle._cancelled:
                ready.append(handle)
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle._cancelled:
                continue
            handle._run()
            if not self._lane.process.is_alive:
                raise Killed
            world.pause()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        return None

    def _write_to_self(self) -> None:
        self._sim.wake(self._lane)

    def _process_events(self, event_list: object) -> None:
        return None

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is not None and not isinstance(error, Killed) and self._lane.process.is_alive:
            self._sim.crashed(self._lane, error)

    def run_in_executor(  # type: ignore[override]  # typeshed ties the arguments to the function
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> "asyncio.Future[Any]":
        """A thread of the pool is a lane of its own."""
        answer = self.create_future()

        def work() -> None:
            try:
                result = func(*args)
            except Exception as error:
                self.call_soon_threadsafe(_fail, answer, error)
            else:
                self.call_soon_threadsafe(_succeed, answer, result)

        self._sim.spawn(self._lane.process, "pool", work)
        return answer


def _succeed(answer: "asyncio.Future[Any]", result: Any) -> None:
    if not answer.done():
        answer.set_result(result)


def _fail(answer: "asyncio.Future[Any]", error: BaseException) -> None:
    if not answer.done():
        answer.set_exception(error)


def run_main(make: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Be the main thread of a process whose program is a coroutine."""
    loop = SimLoop(sim())
    loop.run_until_complete(make())


def run_coroutine_threadsafe(coroutine: Coroutine[Any, Any, Any], loop: asyncio.AbstractEventLoop) -> Future:
    """`asyncio.run_coroutine_threadsafe`, whose future lanes can wait for."""
    answer = Future()

    def start() -> None:
        task = loop.create_task(coroutine)
        answer.cancel = task.cancel

        def settle(done: "asyncio.Task[Any]") -> None:
            if done.cancelled():
                answer.set_exception(asyncio.CancelledError())
            elif (error := done.exception()) is not None:
                answer.set_exception(error)
            else:
                answer.set_result(done.result())

        task.add_done_callback(settle)

    loop.call_soon_threadsafe(start)
    return answer


class Asyncio:
    """In place of module `asyncio`, where a thread waits for the loop."""

    run_coroutine_threadsafe = staticmethod(run_coroutine_threadsafe)

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)
