"""A TCP fault proxy: one listener in front of one server, for one group of clients.

Everything runs on one event loop in a thread of its own, so that a busy test does not delay what it measures.
"""

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeVar

from headrace.embedded.process import free_port

CHUNK_BYTES: Final = 65_536
RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER of zero: closing sends RST."""
SYNC: Final = b"S\x00\x00\x00\x04"
"""Postgres' Sync message: the end of a pipeline, where its implicit transaction commits."""
BATCH: Final = b"save_runs"
"""A statement that every batch of the run agent names."""
T = TypeVar("T")
Direction = Literal["up", "down"]


@dataclass
class Weather:
    """What the proxy does to bytes; changed while it runs."""

    latency_seconds: float = 0.0
    bytes_per_second: float = 0.0
    """0: no limit."""
    is_cut_up: bool = False
    """Bytes to the server wait."""
    is_cut_down: bool = False
    """Bytes from the server wait."""
    refuses: bool = False
    cut_at_commit: Literal["", "unknown", "committed"] = ""
    """Cut one connection: right after a COMMIT was sent on, or when its answer came back, which is then lost."""


class _Pipe:
    """One connection through the proxy."""

    def __init__(self, proxy: "Proxy", client: asyncio.StreamWriter, server: asyncio.StreamWriter) -> None:
        self._proxy, self.client, self.server = proxy, client, server
        self.loses_answer = False

    async def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while data := await reader.read(CHUNK_BYTES):
                await self._proxy.delay(len(data), direction)
                if direction == "down" and self.loses_answer:
                    break
                writer.write(data)
                await writer.drain()
                if direction == "up" and self._proxy.cuts(self, data):
                    await asyncio.sleep(0.02)
                    break
        self.close()

    def close(self, *, reset: bool = False) -> None:
        for writer in (self.client, self.server):
            if reset and (sock := writer.get_extra_info("socket")) is not None:
                with contextlib.suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            writer.close()


class Proxy:
    """Made and used from any thread; its connections live on the loop of `Proxies`."""

    def __init__(self, group: str, target_port: int, port: int) -> None:
        self.group, self.target_port, self.port = group, target_port, port
        self.weather = Weather()
        self.pipes: set[_Pipe] = set()
        self.cuts_made = 0
        self.bytes_carried = 0
        self._clear = asyncio.Event()
        self._clear.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.weather.refuses:
            writer.close()
            return
        try:
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.close()
            return
        pipe = _Pipe(self, writer, server_writer)
        self.pipes.add(pipe)
        try:
            await asyncio.gather(pipe.carry(reader, server_writer, "up"), pipe.carry(server_reader, writer, "down"))
        finally:
            self.pipes.discard(pipe)

    async def delay(self, count: int, direction: Direction) -> None:
        self.bytes_carried += count
        while self.weather.is_cut_up if direction == "up" else self.weather.is_cut_down:
            await self._clear.wait()
            await asyncio.sleep(0.01)
        if self.weather.latency_seconds:
            await asyncio.sleep(self.weather.latency_seconds)
        if self.weather.bytes_per_second:
            await asyncio.sleep(count / self.weather.bytes_per_second)

    def cuts(self, pipe: _Pipe, data: bytes) -> bool:
        """Whether this chunk to the server is where the connection is cut now."""
        if not self.weather.cut_at_commit or not (b"COMMIT" in data or (BATCH in data and data.endswith(SYNC))):
            return False
        kind, self.weather.cut_at_commit = self.weather.cut_at_commit, ""
        self.cuts_made += 1
        if kind == "committed":
            pipe.loses_answer = True
            return False
        return True

    def drop_all(self, *, reset: bool = True) -> int:
        """End every connection now; on the loop only."""
        pipes = list(self.pipes)
        for pipe in pipes:
            pipe.close(reset=reset)
        return len(pipes)

    def set_weather(self, weather: Weather) -> None:
        """On the loop only."""
        self.weather = weather
        if weather.is_cut_up or weather.is_cut_down:
            self._clear.clear()
        else:
            self._clear.set()


async def _end_tasks() -> None:
    """Those of the connections, so that none is left when the loop ends."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


class Proxies:
    """All proxies of a system, and the thread they run in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._servers: list[asyncio.Server] = []
        self.by_group: dict[str, Proxy] = {}

    def start(self) -> None:
        self._thread.start()

    def add(self, group: str, target_port: int, port: int | None = None) -> Proxy:
        proxy = Proxy(group, target_port, port or free_port())
        server = self._run(asyncio.start_server(proxy.serve, "127.0.0.1", proxy.port))
        self._servers.append(server)
        self.by_group[group] = proxy
        return proxy

    def set(self, group: str, weather: Weather) -> None:
        self._call(lambda: self.by_group[group].set_weather(weather))

    def clear(self, group: str) -> None:
        self.set(group, Weather())

    def drop(self, group: str, *, reset: bool = True) -> int:
        """End all connections of a group; answers how many there were."""
        return self._call(lambda: self.by_group[group].drop_all(reset=reset))

    def close(self) -> None:
        if not self._thread.is_alive():
            return
        for server in self._servers:
            self._loop.call_soon_threadsafe(server.close)
        for group in self.by_group:
            self.drop(group)
        asyncio.run_coroutine_threadsafe(_end_tasks(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()

    def _run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(10)

    def _call(self, act: Callable[[], T]) -> T:
        done: Future[T] = Future()

        def run() -> None:
            try:
                done.set_result(act())
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return done.result(10)
