"""Worker slots for sync bodies: threads that take the next body themselves.

A hand-over between threads costs more than a short body. So a thread that has finished one takes the next that is ready
without asking the event loop, and the loop collects whatever was done meanwhile in one turn.
"""

import asyncio
import queue
import threading
from collections import deque
from collections.abc import Callable

from headrace.attempt import Answer, Attempt


class Threads:
    """At most `slots` threads, started when they are first needed."""

    def __init__(
        self,
        slots: int,
        *,
        loop: asyncio.AbstractEventLoop,
        attend: Callable[[Attempt], Answer],
        following: Callable[[], Attempt | None],
        finish: Callable[[Attempt, Answer | None], object],
        free_slot: Callable[[], object],
    ) -> None:
        self._slots, self._loop = slots, loop
        self._attend, self._following = attend, following
        self._finish, self._free_slot = finish, free_slot
        self._jobs: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._done: deque[tuple[Attempt, Answer | None, bool]] = deque()
        self._is_signalled = False
        self._busy = 0
        self._threads: list[threading.Thread] = []

    def run(self, attempt: Attempt) -> None:
        """Give a thread its first attempt; the caller has reserved the slot."""
        self._busy += 1
        if self._busy > len(self._threads) and len(self._threads) < self._slots:
            thread = threading.Thread(target=self._work, name=f"headrace-slot-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put(attempt)

    def stop(self) -> None:
        """Let idle threads end. One whose body never returns is left behind: nothing can interrupt it."""
        for _ in self._threads:
            self._jobs.put(None)

    def _work(self) -> None:
        while (attempt := self._jobs.get()) is not None:
            following: Attempt | None = attempt
            while following is not None:
                attempt = following
                answer = self._attend(attempt) if attempt.stop is None else None
                following = self._following()
                self._done.append((attempt, answer, following is None))
                if not self._is_signalled:
                    self._is_signalled = True
                    try:
                        self._loop.call_soon_threadsafe(self._collect)
                    except RuntimeError:
                        return  # the loop is closed: the worker ended without this body

    def _collect(self) -> None:
        """On the loop: take over all that was done. What is appended from here on signals again."""
        self._is_signalled = False
        while self._done:
            attempt, answer, is_slot_free = self._done.popleft()
            self._finish(attempt, answer)
            if is_slot_free:
                self._busy -= 1
                self._free_slot()
