"""The bodies of `release`: build → test → three checks in parallel → a person approves → deploy → smoke test.

What is released is the `greeter` beside this file, as one executable archive. All of it is real, and nothing needs a
network. Every body may be run again at any point: an archive is named after its content, and files and links change
by one rename.
"""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from headrace import Context, NonRetryable, task

SOURCE = Path(__file__).parent / "greeter"
PROCESS_SECONDS = 30
LONG_AGO = (2020, 1, 1, 0, 0, 0)
"""Every file's time in the archive, so that the same source makes the same archive."""
SECRETS = {
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "an AWS access key": re.compile(rb"\bAKIA[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(rb"\bgh[pousr]_[A-Za-z0-9]{36}\b"),
    "a password": re.compile(rb"""(?i)\b(?:password|passwd|secret|token)\s*=\s*["'][^"'\s]{8,}["']"""),
}
UNSAFE_CALLS = {"eval", "exec", "os.system", "pickle.load", "pickle.loads", "marshal.loads"}
PERMITTED = re.compile(r"(?i)\b(mit|bsd|apache|isc|mpl|mozilla public|psf|python software|unlicense|zlib|cc0)\b|BSD-\d")


class Build(BaseModel):
    archive: str
    """Path."""
    digest: str
    """First twelve digits of the SHA-256 of the archive."""


# == build and test ====================================================================================================
@task("release.build")
def build(version: str, folder: Path) -> Build:
    """Make the archive. The same source and version give the same bytes, so a second build changes nothing."""
    builds = folder / "builds"
    builds.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=builds) as scratch:
        made = Path(scratch) / "greeter.pyz"
        _write_archive(made, version)
        digest = sha256(made.read_bytes()).hexdigest()[:12]
        archive = builds / f"greeter-{version}-{digest}.pyz"
        made.replace(archive)
    return Build(archive=str(archive), digest=digest)


def _write_archive(path: Path, version: str) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(SOURCE.glob("*.py")):
            text = file.read_text(encoding="utf-8").replace('VERSION = "0.0.0"', f'VERSION = "{version}"')
            compile(text, file.name, "exec")
            archive.writestr(zipfile.ZipInfo(file.name, LONG_AGO), text)


@task("release.test")
def test(archive: Path) -> dict[str, int]:
    """Run the greeter's tests on the archive itself: what is tested is what will be deployed."""
    done = _run([sys.executable, "-m", "unittest", "-v", "test_greeting"], PYTHONPATH=str(archive))
    if done.returncode:
        raise NonRetryable(f"the tests failed:\n{done.stderr[-2000:]}")
    found = re.search(r"^Ran (\d+) tests?", done.stderr, re.MULTILINE)
    return {"tests": int(found[1]) if found else 0}


def _run(command: list[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
    return subprocess.run(
        command, env={**kept, **environment}, capture_output=True, text=True, timeout=PROCESS_SECONDS, check=False
    )


# == security checks ===================================================================================================
@task("release.find_secrets")
def find_secrets(archive: Path) -> dict[str, int]:
    files = dict(_read_files(archive))
    found = [f"{name}: {what}" for name, raw in files.items() for what, shape in SECRETS.items() if shape.search(raw)]
    if found:
        raise NonRetryable(f"there are secrets in the archive: {', '.join(found)}")
    return {"files": len(files)}


@task("release.find_unsafe_calls")
def find_unsafe_calls(archive: Path) -> dict[str, int]:
    """Calls that run what they are given."""
    calls = [
        (name, call)
        for name, raw in _read_files(archive)
        for call in ast.walk(ast.parse(raw, name))
        if isinstance(call, ast.Call)
    ]
    found = [f"{name}:{call.lineno}: {ast.unparse(call.func)}" for name, call in calls if _is_unsafe(call)]
    if found:
        raise NonRetryable(f"unsafe calls: {', '.join(found)}")
    return {"calls": len(calls)}


def _is_unsafe(call: ast.Call) -> bool:
    has_shell = any(given.arg == "shell" and ast.unparse(given.value) != "False" for given in call.keywords)
    return has_shell or ast.unparse(call.func) in UNSAFE_CALLS


@task("release.check_licences")
def check_licences(distribution: str) -> dict[str, Any]:
    """The licences of an installed distribution and of all that it needs."""
    licences = {name: _licence(name) for name in _needed_by(distribution)}
    refused = {name: licence for name, licence in licences.items() if not PERMITTED.search(licence)}
    if refused:
        raise NonRetryable(f"licences that nobody has permitted: {refused}")
    return {"distributions": len(licences), "licences": sorted(set(licences.values()))}


def _needed_by(distribution: str) -> list[str]:
    """Names of what is installed here because of it, itself included."""
    found: dict[str, None] = {}
    waiting = [distribution]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found or not (requires := _requires(name)):
            continue
        found[name] = None
        waiting += requires[1:]
    return list(found)


def _requires(name: str) -> list[str]:
    """Its own name and those of its requirements, extras left out; empty when it is not installed."""
    try:
        needs = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return []
    return [name, *(re.split(r"[^A-Za-z0-9._-]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need)]


def _licence(name: str) -> str:
    """As the distribution says it: in one of three ways, by its age."""
    about = metadata.metadata(name)
    classifiers = [line.rpartition(" :: ")[2] for line in about.get_all("Classifier") or [] if "License" in line]
    said = [*(about.get_all("License-Expression") or []), ", ".join(classifiers), *(about.get_all("License") or [])]
    return next((licence[:80] for licence in said if licence), "unknown")


def _read_files(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as opened:
        for name in opened.namelist():
            yield name, opened.read(name)


# == deploy ============================================================================================================
@task("release.deploy")
def deploy(ctx: Context, archive: Path, release: str, folder: Path) -> dict[str, str]:
    """Put the archive in place, then switch `current` to it. A reader sees the old release or the new one."""
    place = folder / "releases" / release
    place.mkdir(parents=True, exist_ok=True)
    # The token keeps an attempt that was given up on, and may still be running, away from this one's files.
    shutil.copyfile(archive, place / f"app.{ctx.token}.new")
    (place / f"app.{ctx.token}.new").replace(place / "app.pyz")
    link = folder / f"current.{ctx.token}.new"
    link.unlink(missing_ok=True)
    link.symlink_to(Path("releases") / release)
    link.replace(folder / "current")
    return {"release": release, "path": str(folder / "current" / "app.pyz")}


@task("release.smoke")
def smoke(folder: Path, version: str) -> dict[str, str]:
    """Run what was deployed, as a user would."""
    done = _run([sys.executable, "-I", str(folder / "current" / "app.pyz"), "--health"])
    if done.returncode:
        raise RuntimeError(f"it does not start: {done.stderr[-2000:]}")
    answer: dict[str, str] = json.loads(done.stdout)
    if answer != {"status": "ok", "version": version}:
        raise RuntimeError(f"it answers {answer}, and {version} was deployed")
    return answer
