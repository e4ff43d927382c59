"""The parent of a worker: it runs the worker in a child process, and speaks for it when that dies.

A worker killed by a body that crashes the interpreter, by the kernel for its memory, or by hand cannot report what it
held, and its lease would have to run out first. Its parent knows from shared memory (`headrace.listing`) and says so at
once: `Lost` for every task, and the end of the session. Then it starts the worker again. Only when the whole host is
lost does anybody have to wait for the lease.

The child dies with its parent: it watches a pipe whose other end only the parent has. Nothing of Kafka is loaded here
before it is needed, so that the worker itself starts first.
"""

import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any, Final

from headrace.listing import DESCRIPTOR, HeldTask, Listing

SWITCH: Final = "HEADRACE_WORKER_PARENT"
"""Environment variable: 0 runs the worker in this very process, for a debugger, say."""
LIFELINE: Final = "HEADRACE_WORKER_LIFELINE"
"""Environment variable: the reading end of the pipe that breaks when the parent is gone."""
EXIT_ORPHANED: Final = 76
REPORT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.05
PAUSE_SECONDS_MAX: Final = 1.0
"""Between two workers that die at once. What killed them uses up its attempts, so this need not grow for ever."""
SETTLED_SECONDS: Final = 10.0


def is_wanted() -> bool:
    """Whether this process should be a parent: not if it has one, and not if it was told."""
    return DESCRIPTOR not in os.environ and os.environ.get(SWITCH, "1") != "0"


class Parent:
    """Runs this very command again as a child, with the same arguments, until it ends by itself or is told to stop."""

    def __init__(self) -> None:
        self._listing = Listing.make()
        self._reading, self._writing = os.pipe()
        self._child: subprocess.Popen[bytes] | None = None
        self._is_asked = False

    def run(self) -> int:
        """The exit code of the last child."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        pause = PAUSE_SECONDS
        while True:
            started = time.monotonic()
            code = self._attend()
            notes = None if self._listing.has_ended else self._listing.notes()
            if notes is None:  # it ended in order, or never came so far as to hold anything
                return code if code >= 0 else 128 - code
            self._speak_for(notes, code)
            pause = PAUSE_SECONDS if time.monotonic() - started > SETTLED_SECONDS else min(2 * pause, PAUSE_SECONDS_MAX)
            self._rest(pause)
            if self._is_asked:
                return code if code >= 0 else 128 - code
            self._listing.clear()

    def _attend(self) -> int:
        """Start a child and wait for its end. It has a process group of its own: Ctrl-C reaches it through us, once."""
        descriptors = {DESCRIPTOR: self._listing.descriptor, LIFELINE: self._reading}
        self._child = subprocess.Popen(
            [sys.executable, *sys.orig_argv[1:]],
            env={**os.environ, **{name: str(number) for name, number in descriptors.items()}},
            pass_fds=tuple(descriptors.values()),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
        if self._is_asked:  # told while it was being started
            self._child.send_signal(signal.SIGTERM)
        loading = threading.Timer(1.0, _load_kafka)
        loading.start()
        code = self._child.wait()
        loading.cancel()  # or a worker that ends at once would be waited for
        return code

    def _rest(self, seconds: float) -> None:
        """Less when it is asked to end meanwhile."""
        until = time.monotonic() + seconds
        while not self._is_asked and (left := until - time.monotonic()) > 0:
            time.sleep(min(0.05, left))

    def _pass_on(self, number: int, frame: object) -> None:
        self._is_asked = True
        if self._child is not None:
            self._child.send_signal(signal.SIGTERM)

    def _speak_for(self, notes: dict[str, Any], code: int) -> None:
        held = list(self._listing.held())
        why = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        try:
            _report(notes, held, f"its worker was {why}" if code < 0 else f"its worker {why}")
        except Exception as error:
            _say("the worker died and its tasks could not be reported; they wait for its lease", error=repr(error))
        else:
            _say("the worker died; its tasks are reported as lost", why=why, tasks=len(held))


def _load_kafka() -> None:
    """While there is time: it takes a tenth of a second."""
    for module in ("confluent_kafka", "headrace.messages"):
        importlib.import_module(module)


def _report(notes: dict[str, Any], held: list[HeldTask], reason: str) -> None:
    """Raises what Kafka's client raises, or TimeoutError."""
    from confluent_kafka import Producer

    from headrace.messages import Heartbeat, Lost, encode

    producer = Producer(notes["producer"])
    for task in held:
        lost = Lost(task.task, task.token, task.nonce, reason, task.begun, notes["worker"], notes["session"])
        producer.produce(notes["events"], encode(lost), task.run_id)
    # Above any heartbeat of its own that may still be on its way.
    last = Heartbeat(notes["session"], notes["worker"], 2**62, [], [], notes["lease"], ended=True)
    producer.produce(notes["workers"], encode(last), notes["session"])
    if left := producer.flush(REPORT_SECONDS):
        raise TimeoutError(f"{left} records were not taken within {REPORT_SECONDS:g} s")
    if notes.get("member"):  # its partitions move now, and not after Kafka's session time-out
        from headrace.leave import leave

        leave(notes["servers"], notes["group"], notes["member"])


def _say(event: str, **fields: object) -> None:
    import structlog

    structlog.get_logger("headrace.worker").warning(event, **fields)


def follow_parent() -> None:
    """In the child: end when the parent is gone. Nobody could speak for this process any more."""
    number = os.environ.pop(LIFELINE, None)  # not for the processes that bodies start
    if number is not None:
        threading.Thread(target=_watch, args=(int(number),), name="headrace-lifeline", daemon=True).start()


def _watch(descriptor: int) -> None:
    os.read(descriptor, 1)
    os._exit(EXIT_ORPHANED)
