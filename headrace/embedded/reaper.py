"""Run one server, and end it when the process that asked for it is gone.

Started as a script by `headrace.embedded.process`, so it imports the standard library only and is up in 20 ms.

Its owner holds the other end of a socket. The kernel closes that end when the owner ends, also by SIGKILL, and this
process reads the end of file at once: no signal to set up in the child, nothing lost when the server changes its user
or forks. A process forked by the owner may hold a copy of the socket, so the parent's id is looked at as well.

    reaper -> owner   one line, the server's process id
    owner -> reaper   one line, STOP, and then the end of file; the end of file alone means that the owner died
"""

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from typing import Literal

Reason = Literal["server ended", "asked", "owner died"]

STOP = b"stop\n"

PARENT_CHECK_SECONDS = 2.0
"""How late an owner's end is noticed when something else holds its socket open."""


def main() -> int:
    options = _parse()
    channel = socket.socket(fileno=options.channel)
    # The owner decides when to stop: a Ctrl-C in its terminal is its own business.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = _start(options)
    with contextlib.suppress(OSError):
        channel.sendall(f"{server.pid}\n".encode())
    reason = _wait(server, channel, options.owner)
    _stop(server, signal.Signals[options.stop_signal], options.grace_seconds)
    if reason == "owner died":
        for path in options.remove:
            shutil.rmtree(path, ignore_errors=True)
    return _exit_status(server)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="reaper")
    parser.add_argument("--channel", type=int, required=True, help="descriptor of the owner's socket")
    parser.add_argument("--owner", type=int, required=True, help="the owner's process id")
    parser.add_argument("--stop-signal", default="SIGTERM", help="how the server is asked to stop")
    parser.add_argument("--grace-seconds", type=float, default=10.0, help="then it is killed")
    parser.add_argument("--user", type=int, help="user id of the server")
    parser.add_argument("--group", type=int, help="group id of the server")
    parser.add_argument("--remove", action="append", default=[], help="folder to remove when the owner died")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    return parser.parse_args()


def _start(options: argparse.Namespace) -> "subprocess.Popen[bytes]":
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.user is None:
        return subprocess.Popen(command, start_new_session=True)
    return subprocess.Popen(
        command, start_new_session=True, user=options.user, group=options.group, extra_groups=[], umask=0o077
    )


def _wait(server: "subprocess.Popen[bytes]", channel: socket.socket, owner: int) -> Reason:
    """Wait for whichever comes first: the server's end, a request to stop it, or the owner's end."""
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Whoever asks us to end means the server.
    signal.signal(signal.SIGTERM, lambda *_: channel.shutdown(socket.SHUT_RDWR))
    sources: list[socket.socket | int] = [channel, woken]
    while server.poll() is None:
        if os.getppid() != owner:
            return "owner died"
        readable, _, _ = select.select(sources, [], [], PARENT_CHECK_SECONDS)
        if woken in readable:
            os.read(woken, 4096)
        if channel in readable:
            return "asked" if _receive(channel) == STOP else "owner died"
    return "server ended"


def _receive(channel: socket.socket) -> bytes:
    try:
        return channel.recv(len(STOP))
    except OSError:
        return b""


def _stop(server: "subprocess.Popen[bytes]", stop_signal: signal.Signals, grace_seconds: float) -> None:
    if server.poll() is not None:
        return
    server.send_signal(stop_signal)
    try:
        server.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _exit_status(server: "subprocess.Popen[bytes]") -> int:
    """A shell's convention: 128 + n for an end by signal n."""
    status = server.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
