"""What a worker holds, in memory that its parent shares: read when the worker dies, which then can say nothing itself.

    notes     where Kafka is and which session this is, as JSON
    places    one for each task held: (state, task, token, run id, nonce)

The worker writes on its event loop; a body's thread writes only the state of its own place. A place is marked taken
last and freed first, so that a death between two writes lists nothing wrong. A worker that holds more than PLACES lists
only so many: the rest is found by its lease.
"""

import json
import mmap
import os
from collections.abc import Iterator, Mapping
from struct import Struct
from struct import error as StructError
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from headrace.attempt import Attempt

DESCRIPTOR: Final = "HEADRACE_WORKER_LISTING"
"""Environment variable: the file descriptor that the parent hands down."""
PLACES: Final = 4_096
NOTES_BYTES_MAX: Final = 65_536
_LENGTH: Final = Struct("<?i")  # ended in order; bytes of the notes
_KEY_BYTES, _NONCE_BYTES = 36, 24
_PLACE: Final = Struct(f"<ii{_KEY_BYTES}s{_NONCE_BYTES}s")  # behind its state: task, token, run id, nonce
_STRIDE: Final = _PLACE.size + 1
_FIRST: Final = _LENGTH.size + NOTES_BYTES_MAX
_FREE, _WAITING, _BEGUN = 0, 1, 2


class HeldTask(NamedTuple):
    run_id: str
    task: int
    token: int
    nonce: str
    begun: bool
    """Its body had begun."""


class Listing:
    """One side's view of the shared memory."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, _FIRST + PLACES * _STRIDE)
        self._free = list(range(PLACES - 1, -1, -1))

    @classmethod
    def make(cls) -> "Listing":
        """A new one, all zeros. It has no name: the memory goes with the last process that has it open."""
        descriptor = _anonymous_file()
        os.ftruncate(descriptor, _FIRST + PLACES * _STRIDE)
        return cls(descriptor)

    @classmethod
    def from_environment(cls) -> "Listing | None":
        """The one that a parent handed down. Once: a worker that a body starts has a parent of its own."""
        number = os.environ.pop(DESCRIPTOR, None)
        return None if number is None else cls(int(number))

    # == the worker ====================================================================================================
    def note(self, notes: Mapping[str, Any]) -> None:
        """Say how Kafka is reached and in whose name, before anything is held."""
        raw = json.dumps(notes).encode()
        if len(raw) > NOTES_BYTES_MAX:
            return
        _LENGTH.pack_into(self._memory, 0, False, 0)
        self._memory[_LENGTH.size : _LENGTH.size + len(raw)] = raw
        _LENGTH.pack_into(self._memory, 0, False, len(raw))

    def put(self, attempt: "Attempt") -> None:
        row = _row(attempt)
        if row is None or not self._free:
            return
        attempt.place, attempt.listing = self._free.pop(), self
        at = _FIRST + attempt.place * _STRIDE
        self._memory[at + 1 : at + _STRIDE] = row
        self._memory[at] = _WAITING

    def begin(self, place: int) -> None:
        """Safe from the body's own thread."""
        self._memory[_FIRST + place * _STRIDE] = _BEGUN

    def remove(self, attempt: "Attempt") -> None:
        if attempt.listing is None:
            return
        attempt.listing = None
        self._memory[_FIRST + attempt.place * _STRIDE] = _FREE
        self._free.append(attempt.place)

    def end(self) -> None:
        """The worker stopped in order, and everything it had to say has been said."""
        _LENGTH.pack_into(self._memory, 0, True, 0)

    # == the parent ====================================================================================================
    @property
    def has_ended(self) -> bool:
        return bool(_LENGTH.unpack_from(self._memory, 0)[0])

    def notes(self) -> dict[str, Any] | None:
        """What the worker noted; None when it never came so far."""
        length = _LENGTH.unpack_from(self._memory, 0)[1]
        if not length:
            return None
        found: dict[str, Any] = json.loads(self._memory[_LENGTH.size : _LENGTH.size + length])
        return found

    def held(self) -> Iterator[HeldTask]:
        for place in range(PLACES):
            at = _FIRST + place * _STRIDE
            if (state := self._memory[at]) != _FREE:
                task, token, run_id, nonce = _PLACE.unpack_from(self._memory, at + 1)
                yield HeldTask(run_id.decode(), task, token, nonce.rstrip(b"\0").decode(), state == _BEGUN)

    def clear(self) -> None:
        """For the next worker."""
        self._memory[:] = bytes(len(self._memory))


def _row(attempt: "Attempt") -> bytes | None:
    """None for what no engine hands out: a command can be forged, and nobody would believe what is said of it."""
    command, key = attempt.command, attempt.name[0]
    if len(key) != _KEY_BYTES or len(command.nonce) > _NONCE_BYTES or not (key.isascii() and command.nonce.isascii()):
        return None
    try:
        return _PLACE.pack(command.task, command.token, key, command.nonce.encode())
    except StructError:
        return None


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("headrace-listing", 0)
    import tempfile  # other systems

    descriptor, path = tempfile.mkstemp(prefix="headrace-listing-")
    os.unlink(path)
    return descriptor
