"""The peers' environments: one virtual environment each, and a folder of npm where the server comes from there."""

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from benchmarks.peers.settings import NPM, PIP

TAIL_LINES = 3


def install(home: Path, peers: Iterable[str]) -> dict[str, str]:
    """Install those that are not there yet, pinned. Answers why not, for those that cannot be."""
    return {peer: why for peer in peers if (why := _install(home, peer)) is not None}


def python_of(home: Path, peer: str) -> Path:
    return home / "venv" / peer / "bin" / "python"


def _install(home: Path, peer: str) -> str | None:
    mark = home / "venv" / peer / ".pins"
    pins = "\n".join([*PIP[peer], *NPM.get(peer, ())])
    if mark.exists() and mark.read_text() == pins:
        return None
    log = home / "logs" / f"install-{peer}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    print(f"peers: installing {peer}", flush=True)
    with log.open("w") as output:
        for command in _commands(home, peer):
            try:
                done = subprocess.run(command, stdout=output, stderr=output, check=False)
            except OSError as error:
                return str(error)
            if done.returncode:
                return " ".join(log.read_text(errors="replace").strip().splitlines()[-TAIL_LINES:])
    mark.write_text(pins)
    return None


def _commands(home: Path, peer: str) -> list[list[str | Path]]:
    python, npm = python_of(home, peer), home / "npm" / peer
    commands: list[list[str | Path]] = [
        [sys.executable, "-m", "venv", python.parent.parent],
        [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PIP[peer]],
    ]
    if peer in NPM:
        npm.mkdir(parents=True, exist_ok=True)
        (npm / "package.json").write_text("{}\n")
        commands.append(["npm", "install", "--no-audit", "--no-fund", "--prefix", npm, *NPM[peer]])
    return commands
