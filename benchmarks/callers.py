"""Callers of the API: an open loop of starts over HTTP, in a process of its own.

    python -m benchmarks.callers HOST:PORT WORKFLOW PER_SECOND SECONDS [--connections 256]

A start is due at its time, whatever became of those before. When all connections wait for answers it is sent late, and
its answer's time counts from when it was due; what was not sent by the end is left out and counted. The client speaks
just enough HTTP/1.1, with the token in HEADRACE_API_TOKEN: a full one would take the cores from what is measured.

Prints one JSON line: {"starting": seconds, "asked", "sent", "answers": {status: how many}, "retry_after": {status:
how many said so}, "broken", "answer_ms": {status: percentiles}}.
"""

import argparse
import asyncio
import json
import os
import time
from collections import Counter, defaultdict
from typing import Any, Final

from benchmarks.table import percentiles

CONNECT_SECONDS: Final = 1.0
ANSWER_SECONDS: Final = 30.0
"""For an answer that was under way when the time was over."""


class Callers:
    def __init__(self, address: str, workflow: str, per_second: float, seconds: float) -> None:
        self._host, port = address.split(":")
        self._port, self._workflow = int(port), workflow
        self._token = os.environ["HEADRACE_API_TOKEN"]
        self._per_second, self._seconds = per_second, seconds
        self._number, self._total = 0, round(per_second * seconds)
        self._first = time.time() + CONNECT_SECONDS
        self.answers: Counter[str] = Counter()
        self.retry_after: Counter[str] = Counter()
        self.broken = 0
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    async def call(self, connections: int) -> dict[str, Any]:
        async with asyncio.timeout(CONNECT_SECONDS + self._seconds + ANSWER_SECONDS):
            await asyncio.gather(*[self._connection() for _ in range(connections)])
        return {
            "starting": self._seconds,
            "asked": self._total,
            "sent": self._number,
            "answers": dict(self.answers),
            "retry_after": dict(self.retry_after),
            "broken": self.broken,
            "answer_ms": {status: percentiles(times) for status, times in self.times.items()},
        }

    async def _connection(self) -> None:
        """Send what is due next, wait for its answer, and so on; over a new connection when one breaks."""
        while (due := self._next()) is not None:
            try:
                reader, writer = await asyncio.open_connection(self._host, self._port)
            except OSError:
                self.broken += 1
                continue
            try:
                while due is not None:
                    await asyncio.sleep(max(0.0, due - time.time()))
                    await self._start(reader, writer, due)
                    due = self._next()
            except (OSError, EOFError, ValueError):
                self.broken += 1
            finally:
                writer.close()

    def _next(self) -> float | None:
        if self._number >= self._total or time.time() > self._first + self._seconds:
            return None
        self._number += 1
        return self._first + (self._number - 1) / self._per_second

    async def _start(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, due: float) -> None:
        body = json.dumps({"input": {"due": round(due * 1_000_000)}}).encode()
        head = (
            f"POST /workflows/{self._workflow}/runs HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Authorization: Bearer {self._token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if ": " in line)
        await reader.readexactly(int(headers["content-length"]))
        status = lines[0].split()[1]
        self.answers[status] += 1
        self.retry_after[status] += "retry-after" in headers
        self.times[status].append((time.time() - due) * 1000)
        if headers.get("connection") == "close":
            raise EOFError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.callers")
    parser.add_argument("address")
    parser.add_argument("workflow")
    parser.add_argument("per_second", type=float)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--connections", type=int, default=256)
    options = parser.parse_args()
    callers = Callers(options.address, options.workflow, options.per_second, options.seconds)
    print(json.dumps(asyncio.run(callers.call(options.connections))))


if __name__ == "__main__":
    main()
