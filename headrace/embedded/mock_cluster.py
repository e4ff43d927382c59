"""librdkafka's mock cluster, driven through ctypes from the library inside the `confluent-kafka` wheel.

The header calls this interface experimental, so each call is declared here and nowhere else, and one test drives them.
"""

import ctypes
import os
import socket
from pathlib import Path

from headrace.errors import ConfigurationError, UnavailableError

BROKER_ID = 1
ERROR_BYTES = 512
BACKLOG = 128


class MockCluster:
    """One broker in this process's memory, on 127.0.0.1 at a port of our choosing."""

    def __init__(self, port: int) -> None:
        """Raises UnavailableError when the port is taken, ConfigurationError when the library is not there."""
        listener = _listen(port)
        self._library = _load_library()
        self._client = self._make_client()
        self._cluster = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        if not self._cluster:
            raise UnavailableError("librdkafka made no mock cluster")
        self._take_listener(listener, port)
        self.port = port

    def create_topic(self, name: str, partitions: int) -> None:
        """Raises UnavailableError, also when the topic exists."""
        code = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, 1)
        if code != 0:
            raise UnavailableError(f"librdkafka did not create the topic {name}: error {code}", topic=name)

    def set_group_timing(self, *, rebalance_delay_ms: int, session_timeout_ms: int, heartbeat_ms: int) -> None:
        """The first is the classic protocol's; the others are KIP-848's, where the broker decides them."""
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, rebalance_delay_ms)
        self._library.rd_kafka_mock_set_group_consumer_session_timeout_ms(self._cluster, session_timeout_ms)
        self._library.rd_kafka_mock_set_group_consumer_heartbeat_interval_ms(self._cluster, heartbeat_ms)

    def close(self) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def _make_client(self) -> int:
        """The mock cluster lives inside a client, which needs no broker."""
        error = ctypes.create_string_buffer(ERROR_BYTES)
        settings = self._library.rd_kafka_conf_new()
        self._library.rd_kafka_conf_set(settings, b"log_level", b"3", error, ERROR_BYTES)
        client: int | None = self._library.rd_kafka_new(0, settings, error, ERROR_BYTES)
        if not client:
            raise UnavailableError(f"librdkafka made no client: {error.value.decode(errors='replace')}")
        return client

    def _take_listener(self, listener: socket.socket, port: int) -> None:
        """Put our listening socket in the place of the cluster's own.

        The cluster binds a random port and has no setting for it. Its descriptor is made to mean our socket, and the
        address that it hands to clients is changed to match, so that clients find a restarted log where it was.
        """
        os.dup2(listener.fileno(), _find_listener(except_for=listener.fileno()))
        listener.close()
        self._library.rd_kafka_mock_broker_set_host_port(self._cluster, BROKER_ID, b"127.0.0.1", port)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise UnavailableError(f"port {port} of 127.0.0.1 is taken") from error
    listener.listen(BACKLOG)
    listener.setblocking(False)
    return listener


def _find_listener(except_for: int) -> int:
    """The descriptor of the only other listening TCP socket of this process."""
    found = [fd for fd in map(int, os.listdir("/proc/self/fd")) if fd != except_for and _is_listener(fd)]
    if len(found) != 1:
        raise UnavailableError(f"expected one listener of the mock cluster, found {len(found)}")
    return found[0]


def _is_listener(fd: int) -> bool:
    try:
        copy = socket.socket(fileno=os.dup(fd))
    except OSError:
        return False  # no socket, or gone since the folder was listed
    with copy:
        return copy.family == socket.AF_INET and bool(copy.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def _load_library() -> ctypes.CDLL:
    import confluent_kafka

    package = Path(confluent_kafka.__file__).parent
    libraries = sorted((package.parent / "confluent_kafka.libs").glob("librdkafka*.so*"))
    if not libraries:
        raise ConfigurationError("the embedded log needs confluent-kafka as a wheel, which carries librdkafka")
    return _declare(ctypes.CDLL(str(libraries[0])))


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give each call the types of rdkafka.h and rdkafka_mock.h; ctypes would cut pointers to 32 bits."""
    pointer, text, number, small = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int32
    calls: dict[str, tuple[type | None, list[type]]] = {
        "rd_kafka_conf_new": (pointer, []),
        "rd_kafka_conf_set": (number, [pointer, text, text, text, ctypes.c_size_t]),
        "rd_kafka_new": (pointer, [number, pointer, text, ctypes.c_size_t]),
        "rd_kafka_destroy": (None, [pointer]),
        "rd_kafka_mock_cluster_new": (pointer, [pointer, number]),
        "rd_kafka_mock_cluster_destroy": (None, [pointer]),
        "rd_kafka_mock_topic_create": (number, [pointer, text, number, number]),
        "rd_kafka_mock_broker_set_host_port": (None, [pointer, small, text, number]),
        "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [pointer, small]),
        "rd_kafka_mock_set_group_consumer_session_timeout_ms": (None, [pointer, number]),
        "rd_kafka_mock_set_group_consumer_heartbeat_interval_ms": (None, [pointer, number]),
    }
    for name, (result, arguments) in calls.items():
        call = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    return library
