"""The effect ledger: the world outside, as a service of its own that nobody may kill.

    python -m tests.chaos.ledger --port 0 --file ledger.jsonl --seed 7      prints its port

One JSON object a line in, one a line out. Every call is appended and flushed to disk before it is answered. A sink that
honours effect keys does an effect once; a *plain* one does it at every call, so that only the engine stands between a
retry and a second charge. By seed, and never by chance, a call

- is refused before anything is done,
- is done, and its answer never comes (the caller sees a time-out),
- is refused because a later token was seen, at sinks that compare tokens. A lookup that answers "did not happen"
  refuses all earlier tokens from then on: what was looked up stays true.

`{"op": "arm", "when": "before"}` (or `after`) has the next caller's process killed right before its effect, or right
after it and before the answer.
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, Final

TIMED_OUT_SHARE: Final = 0.03
REFUSED_SHARE: Final = 0.03
LINE_BYTES_MAX: Final = 1 << 20


class Effect:
    """What the ledger knows of one effect key."""

    __slots__ = ("calls", "fence", "receipt")

    def __init__(self) -> None:
        self.receipt: int | None = None
        self.fence = 0
        """The highest token seen; a lower one is an earlier owner's."""
        self.calls = 0


class Ledger:
    """Answers calls; the file is the oracle's copy, one line a call."""

    def __init__(self, file: Path, seed: int) -> None:
        self._file = file.open("ab", buffering=0)
        self._seed = seed
        self._effects: dict[str, Effect] = {}
        self._receipts = 0
        self._armed = ""
        self._killed = 0

    def call(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Do, or do not, one effect; answers (answer, whether the caller hears it)."""
        effect = self._effects.setdefault(asked["key"], Effect())
        if self._armed == "before":
            self._kill(asked)
            return {}, False
        effect.calls += 1
        outcome = self._outcome(asked, effect)
        if outcome in ("done", "timed_out") and (effect.receipt is None or asked.get("plain")):
            self._receipts += 1
            effect.receipt = self._receipts
        elif outcome in ("done", "timed_out"):
            outcome = "repeated" if outcome == "done" else "repeated_timed_out"
        self._note({**asked, "outcome": outcome, "receipt": effect.receipt, "call": effect.calls})
        if self._armed == "after" and outcome == "done":
            self._kill(asked)
            return {}, False
        return {"outcome": outcome, "receipt": effect.receipt}, not outcome.endswith("timed_out")

    def _outcome(self, asked: dict[str, Any], effect: Effect) -> str:
        token = int(asked["token"])
        if token < effect.fence and (asked.get("plain") or self._compares_tokens(asked["key"])):
            return "stale"
        effect.fence = max(effect.fence, token)
        draw = self._draw(f"{asked['key']}/{effect.calls}")
        if draw < REFUSED_SHARE:
            return "refused"
        return "timed_out" if draw > 1 - TIMED_OUT_SHARE else "done"

    def arm(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Arm, or with an empty `when` disarm; answers how many callers were killed so far."""
        self._armed = asked["when"]
        return {"killed": self._killed}, True

    def _kill(self, asked: dict[str, Any]) -> None:
        """The caller's process, and with it its connection to us."""
        self._armed = ""
        self._killed += 1
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(asked["pid"]), signal.SIGKILL)
        self._note({**asked, "op": "note", "outcome": "killed", "mark": "kills_worker"})

    def lookup(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """Whether the effect happened. `token` is the asker's: earlier ones are refused from here on."""
        effect = self._effects.setdefault(asked["key"], Effect())
        effect.fence = max(effect.fence, int(asked["token"]))
        happened = effect.receipt is not None
        self._note({**asked, "outcome": "happened" if happened else "did_not_happen", "receipt": effect.receipt})
        return {"happened": happened, "receipt": effect.receipt}, True

    def note(self, asked: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        """A mark of a body: that it entered or left what must not overlap."""
        effect = self._effects.setdefault(asked["key"], Effect())
        is_stale = int(asked["token"]) < effect.fence
        effect.fence = max(effect.fence, int(asked["token"]))
        self._note({**asked, "outcome": "stale" if is_stale else "noted"})
        return {"outcome": "stale" if is_stale else "noted"}, True

    def _compares_tokens(self, key: str) -> bool:
        return self._draw(f"sink/{key}") < 0.5

    def _draw(self, text: str) -> float:
        digest = hashlib.blake2b(f"{self._seed}/{text}".encode(), digest_size=4).digest()
        return int.from_bytes(digest) / 2**32

    def _note(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps({**line, "at": time.time()}).encode() + b"\n")
        os.fdatasync(self._file.fileno())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                asked = json.loads(line)
                answer, is_heard = getattr(self, asked["op"])(asked)
                if not is_heard:
                    await reader.read()  # until the caller gives up
                    break
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        writer.close()


def read_ledger(file: Path) -> list[dict[str, Any]]:
    """Every call, in the order in which they were noted."""
    return [json.loads(line) for line in file.read_bytes().splitlines()]


async def _main(port: int, file: Path, seed: int) -> None:
    ledger = Ledger(file, seed)
    server = await asyncio.start_server(ledger.serve, "127.0.0.1", port, limit=LINE_BYTES_MAX)
    print(server.sockets[0].getsockname()[1], flush=True)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    async with server:
        await stopping.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.ledger", description="The effect ledger.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(_main(options.port, options.file, options.seed))
    sys.exit(0)
