"""Leave a consumer group for a member that died, so that its partitions move at once and not after a session time-out.

Two requests of the Kafka protocol, written by hand because no client lets one process speak for another's membership:
FindCoordinator v4, and ConsumerGroupHeartbeat v0 with the member epoch -1, which says good-bye (KIP-848). Only where
Kafka is reached without TLS or SASL; elsewhere, and in groups of the classic protocol, the session time-out does it.
"""

import socket
from struct import Struct, pack, unpack_from
from typing import Final

from headrace.errors import UnavailableError

FIND_COORDINATOR: Final = (10, 4)
CONSUMER_GROUP_HEARTBEAT: Final = (68, 0)
"""(API key, version)"""
LEAVING: Final = -1
SECONDS_MAX: Final = 2.0
_HEADER: Final = Struct(">hhi")
_UNKNOWN_MEMBER: Final = 25
"""It is gone already."""


def leave(servers: str, group: str, member: str) -> None:
    """Take a member out of its group. Raises UnavailableError."""
    problem: Exception | None = None
    for server in servers.split(","):
        try:
            coordinator = _find_coordinator(_address(server), group)
            return _say_goodbye(coordinator, group, member)
        except (OSError, ValueError, IndexError) as error:
            problem = error
    raise UnavailableError(f"the group {group} could not be left: {problem!r}")


def _find_coordinator(address: tuple[str, int], group: str) -> tuple[str, int]:
    body = _ask(address, FIND_COORDINATOR, b"\0" + _array([_text(group)]) + _NO_TAGS)
    reader = _Reader(body, skip=4)  # throttle time
    reader.count()
    reader.text()  # the group
    reader.skip(4)  # the node's id
    host, port = reader.text(), reader.number(">i")
    if code := reader.number(">h"):
        raise ValueError(f"no coordinator: error {code}")
    return host, port


def _say_goodbye(address: tuple[str, int], group: str, member: str) -> None:
    request = _text(group) + _text(member) + pack(">i", LEAVING)
    request += _NULL + _NULL + pack(">i", -1) + _NULL + _NULL + _NULL + _NO_TAGS
    body = _ask(address, CONSUMER_GROUP_HEARTBEAT, request)
    code = _Reader(body, skip=4).number(">h")
    if code not in (0, _UNKNOWN_MEMBER):
        raise ValueError(f"not let go: error {code}")


# == the wire ==========================================================================================================
_NO_TAGS: Final = b"\0"
_NULL: Final = b"\0"
"""A compact string or array that is null; a compact length counts from one."""


def _ask(address: tuple[str, int], api: tuple[int, int], body: bytes) -> bytes:
    """One request on a connection of its own; the body of the answer."""
    request = _HEADER.pack(*api, 1) + pack(">h", 8) + b"headrace" + _NO_TAGS + body
    with socket.create_connection(address, timeout=SECONDS_MAX) as connection:
        connection.settimeout(SECONDS_MAX)
        connection.sendall(pack(">i", len(request)) + request)
        (length,) = unpack_from(">i", _receive(connection, 4))
        return _receive(connection, length)[5:]  # behind the correlation id and its tags


def _receive(connection: socket.socket, length: int) -> bytes:
    received = b""
    while len(received) < length:
        if not (some := connection.recv(length - len(received))):
            raise OSError("the broker hung up")
        received += some
    return received


def _address(server: str) -> tuple[str, int]:
    host, _, port = server.strip().rpartition(":")
    return host.strip("[]"), int(port)


def _length(number: int) -> bytes:
    """An unsigned varint."""
    written = b""
    while number > 127:
        written += bytes([number & 127 | 128])
        number >>= 7
    return written + bytes([number])


def _text(text: str) -> bytes:
    raw = text.encode()
    return _length(len(raw) + 1) + raw


def _array(items: list[bytes]) -> bytes:
    return _length(len(items) + 1) + b"".join(items)


class _Reader:
    def __init__(self, content: bytes, skip: int = 0) -> None:
        self._content, self._at = content, skip

    def skip(self, length: int) -> None:
        self._at += length

    def number(self, layout: str) -> int:
        found: int = unpack_from(layout, self._content, self._at)[0]
        self._at += {">h": 2, ">i": 4}[layout]
        return found

    def count(self) -> int:
        """A compact length, as what it counts."""
        number = shift = 0
        while True:
            byte = self._content[self._at]
            self._at += 1
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number - 1

    def text(self) -> str:
        length = self.count()
        self._at += length
        return self._content[self._at - length : self._at].decode()
