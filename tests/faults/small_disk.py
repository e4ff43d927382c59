"""A disk that can be full: a file system of its own with a few hundred MiB, in memory, and ballast to fill it with.

It is mounted by a keeper that takes it away again at the end of its own input, so also when this process is killed.
Root mounts it where everybody sees it; without root it exists in a name space of the keeper's, and is reached through
the keeper's root.
"""

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

MIB: Final = 1 << 20
BLOCK: Final = 4096
KEEPER: Final = """
mount -t tmpfs -o "size=$2m,mode=0755" headrace-small-disk "$1" && echo mounted && read -r _
umount -l "$1"; rmdir "$1"
"""
OWN_NAMESPACE: Final = ("unshare", "--user", "--map-root-user", "--mount")


class CannotMount(Exception):
    """This machine lets nobody like us mount anything; the text says what it answered."""


class SmallDisk:
    """One file system of `mib` MiB.

        with SmallDisk(64) as disk:
            disk.fill()        # from here on a write to `disk.path` that needs a block is refused: ENOSPC
            disk.free()

    Raises CannotMount.
    """

    def __init__(self, mib: int) -> None:
        self._mount_point = Path(tempfile.mkdtemp(prefix="headrace-disk-"))
        keeper = [*(() if os.geteuid() == 0 else OWN_NAMESPACE), "/bin/sh", "-c", KEEPER, "sh"]
        try:
            self._keeper = subprocess.Popen(
                [*keeper, self._mount_point, str(mib)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is for us, and we close its input
            )
        except OSError as error:
            self._mount_point.rmdir()
            raise CannotMount(str(error)) from None
        assert self._keeper.stdout is not None
        if not self._keeper.stdout.readline():
            raise CannotMount(self._end())
        self.path = (
            self._mount_point if os.geteuid() == 0 else Path(f"/proc/{self._keeper.pid}/root{self._mount_point}")
        )
        self._ballast = self.path / "ballast"

    def fill(self) -> None:
        """Leave no block free, whatever was given back since the last time."""
        with self._ballast.open("ab", buffering=0) as file:
            for size in (MIB, BLOCK):
                _append_until_full(file.fileno(), size)

    def free(self) -> None:
        """Take the ballast away, as an operator does who finds something to delete."""
        self._ballast.unlink(missing_ok=True)

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.path)
        return found.f_bavail * found.f_frsize

    def close(self) -> None:
        """Nothing stays mounted; what still has a file open on it keeps that until it ends."""
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self) -> str:
        """Let the keeper unmount; answers what it had to say."""
        _, said = self._keeper.communicate(b"\n", timeout=30)
        return said.decode(errors="replace").strip()


def _append_until_full(descriptor: int, size: int) -> None:
    block = bytes(size)
    try:
        while True:
            os.write(descriptor, block)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
