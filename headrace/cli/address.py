"""Where the API and Kafka are: as given, in the environment, of a running `headrace dev`, or the default."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

API: Final = "http://127.0.0.1:8400"
KAFKA: Final = "127.0.0.1:9092"
"""As in `headrace.settings`; not read from there, since that costs every command a third of a second."""
DATA: Final = Path(".headrace")
"""Where `headrace dev` keeps everything, below the working directory."""
ADDRESSES: Final = "dev.json"
"""In the data folder while `dev` runs: its addresses, local token and process id; readable for its owner alone."""


def find_api(given: str | None) -> str:
    """The base URL of the API."""
    return given or os.environ.get("HEADRACE_API") or running_dev().get("api") or API


def find_token(given: str | None, api: str) -> str | None:
    """The token for the API at a URL: that of a running dev is for its own API and goes nowhere else."""
    dev = running_dev()
    return given or os.environ.get("HEADRACE_API_TOKEN") or (dev.get("token") if dev.get("api") == api else None)


def find_kafka(given: str | None) -> str:
    """Bootstrap servers."""
    return given or os.environ.get("HEADRACE_KAFKA") or running_dev().get("kafka") or KAFKA


def running_dev(start: Path | None = None) -> dict[str, str]:
    """The addresses of a `headrace dev` that runs for this folder or one above it; empty when there is none."""
    here = (start or Path.cwd()).absolute()
    for folder in (here, *here.parents):
        addresses = _read(folder / DATA / ADDRESSES)
        if addresses and _is_alive(int(addresses.get("pid", "0"))):
            return addresses
    return {}


def write_addresses(data: Path, addresses: Mapping[str, str]) -> None:
    """Say where things are, for commands in other terminals."""
    scratch = data / f"{ADDRESSES}.new"
    scratch.unlink(missing_ok=True)
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps({**addresses, "pid": str(os.getpid())}))
    scratch.replace(data / ADDRESSES)


def forget_addresses(data: Path) -> None:
    (data / ADDRESSES).unlink(missing_ok=True)


def _read(path: Path) -> dict[str, str]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in content.items()} if isinstance(content, dict) else {}


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0
