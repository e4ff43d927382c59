"""Where an unprivileged server keeps its files when we are root: Postgres refuses to run as root.

The server runs as another user, who must be able to reach its data and its binaries. A path below `/root`, or a
virtual environment there, is closed to that user; then a folder of ours below `/var/tmp` takes its place.
"""

import hashlib
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from headrace.embedded.binaries import Binaries
from headrace.embedded.process import Account
from headrace.errors import ConfigurationError

ACCOUNTS = ("postgres", "pg", "nobody")
"""Tried in this order; `nobody` exists on every Debian."""

MOVED = "moved-to"
"""The file left in a data folder that the server cannot reach; its text is the folder used instead."""


def find_account(name: str | None = None) -> Account | None:
    """The user to run a server as; None when we are not root and run it as ourselves."""
    if os.geteuid() != 0:
        return None
    for candidate in [name] if name else ACCOUNTS:
        try:
            entry = pwd.getpwnam(candidate)
        except KeyError:
            continue
        return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    raise ConfigurationError(f"no such user: {name or ' or '.join(ACCOUNTS)}; root cannot run Postgres itself")


def reachable_data_dir(wanted: Path, account: Account | None) -> Path:
    """`wanted`, or the folder that stands in for it; made, and owned by the account.

    Removing `wanted` removes what it stood for: the stand-in is emptied at the next start.
    """
    wanted.mkdir(mode=0o700, parents=True, exist_ok=True)
    if account is None:
        return wanted
    if _can_pass(wanted.parent, account):
        os.chown(wanted, account.user_id, account.group_id)
        return wanted
    stand_in = _shared_folder() / f"data-{_digest(wanted)}"
    marker = wanted / MOVED
    if not marker.exists():
        shutil.rmtree(stand_in, ignore_errors=True)
        marker.write_text(f"{stand_in}\n")
    stand_in.mkdir(mode=0o700, exist_ok=True)
    os.chown(stand_in, account.user_id, account.group_id)
    return stand_in


def reachable_binaries(binaries: Binaries, account: Account | None) -> Binaries:
    """`binaries`, or a copy of them that the account can run."""
    if account is None or _can_run(binaries, account):
        return binaries
    if binaries.package is None:
        raise ConfigurationError(f"user {account.name} cannot run {binaries.postgres}")
    copy = _copy_package(binaries.package, binaries.folder.parent)
    return Binaries(copy / binaries.folder.relative_to(binaries.package), binaries.major, copy)


def _can_run(binaries: Binaries, account: Account) -> bool:
    """Ask the kernel rather than read permission bits: `noexec`, access lists and the like count too."""
    try:
        result = subprocess.run(
            [binaries.initdb, "--version"],
            user=account.user_id,
            group=account.group_id,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            timeout=10,
            check=False,
        )
    except PermissionError:
        return False
    return result.returncode == 0


def _can_pass(folder: Path, account: Account) -> bool:
    result = subprocess.run(
        ["/bin/sh", "-c", 'cd "$1"', "sh", folder.resolve()],
        user=account.user_id,
        group=account.group_id,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        timeout=10,
        check=False,
    )
    return result.returncode == 0


def _copy_package(package: Path, install: Path) -> Path:
    """Copy one major and the libraries beside it, laid out as in the package: the binaries find them by that."""
    changed = (install / "bin" / "postgres").stat().st_mtime_ns
    copy = _shared_folder() / f"postgres-{_digest(install, str(changed))}"
    if copy.exists():
        return copy
    with tempfile.TemporaryDirectory(dir=_shared_folder()) as scratch:
        made = Path(scratch) / "copy"
        name = install.relative_to(package)
        # Not the permission bits of the source: an unreadable mode may be why we copy.
        shutil.copytree(install, made / name, ignore=shutil.ignore_patterns("include"), copy_function=shutil.copy)
        libraries = package / f"{name.parts[0]}.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, made / libraries.name)
        _open_to_all(made)
        try:
            made.rename(copy)
        except OSError:
            if not copy.exists():  # otherwise another process was faster, with the same content
                raise
    return copy


def _open_to_all(top: Path) -> None:
    for folder, _, files in os.walk(top):
        Path(folder).chmod(0o755)
        for file in files:
            path = Path(folder) / file
            path.chmod(0o755 if path.stat().st_mode & stat.S_IXUSR else 0o644)


def _shared_folder() -> Path:
    """A folder that all may pass and only we may write; `/var/tmp` is everyone's, so whose it is gets checked."""
    folder = Path("/var/tmp") / f"headrace-{os.geteuid()}"  # noqa: S108 - made safely, and checked below
    folder.mkdir(mode=0o711, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise ConfigurationError(f"{folder} is not a folder of ours alone; remove it")
    folder.chmod(0o711)
    return folder


def _digest(path: Path, *more: str) -> str:
    return hashlib.sha256("\0".join([str(path.resolve()), *more]).encode()).hexdigest()[:16]
