"""How long to wait before the next attempt: pure, with jitter from hashing what is already fixed."""

import hashlib
from typing import Final, Literal

import msgspec

DOUBLINGS_MAX: Final = 62
"""2**62 microseconds is past any cap; beyond it only the cap counts, and the shift must not grow a bignum."""


class RetryPlan(msgspec.Struct, frozen=True):
    """A task's retry policy; times in microseconds."""

    attempts: int = 3
    backoff: Literal["exponential", "linear", "fixed"] = "exponential"
    delay: int = 1_000_000
    cap: int = 60_000_000
    jitter: float = 0.2
    """Up to this share is taken off or put on, so that tasks that failed together do not come back together."""


def backoff(retry: RetryPlan, tries: int, seed: bytes) -> int:
    """Microseconds to wait after `tries` failed tries (from 1). The same seed gives the same delay.

    >>> backoff(RetryPlan(delay=1_000_000, jitter=0.0), 3, b"")
    4000000
    >>> backoff(RetryPlan(delay=1_000_000, jitter=0.0, backoff="linear"), 3, b"")
    3000000
    """
    match retry.backoff:
        case "exponential":
            delay = retry.delay << min(tries - 1, DOUBLINGS_MAX)
        case "linear":
            delay = retry.delay * tries
        case "fixed":
            delay = retry.delay
    delay = min(delay, retry.cap)
    share = int.from_bytes(hashlib.blake2b(seed, digest_size=4).digest(), "big") / 0xFFFFFFFF
    return min(max(0, int(delay * (1 + retry.jitter * (2 * share - 1)))), retry.cap)
