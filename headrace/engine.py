"""Where the engine's code is, and how one of its processes is started.

The engine (`state`, `streams`, `connectors`, `api`) is an application directory, not packages: users use those words
too. It is put on the path of child processes only, and `-P` keeps the working directory off it, so that a user's own
`state.py` and ours never meet.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import headrace
from headrace.errors import ConfigurationError


def engine_directory() -> Path:
    """The checkout when this is one, otherwise `_engine` inside the installed package.

    A checkout wins because an editable install may have left a stale `_engine` in it.
    Raises ConfigurationError when there is neither.
    """
    package = Path(headrace.__file__).resolve().parent
    checkout = package.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "state" / "migrations").is_dir():
        return checkout
    inside = package / "_engine"
    if inside.is_dir():
        return inside
    raise ConfigurationError("this installation of Headrace has no engine; install the package anew")


def engine_command(module: str, *arguments: str) -> list[str]:
    """What starts one of the engine's modules, such as `streams`; to be run in `engine_environment`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def engine_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours, with the engine alone on PYTHONPATH, and `settings` (whole names, `HEADRACE_KAFKA`) over what is there."""
    return {**child_environment(settings), "PYTHONPATH": str(engine_directory())}


def child_environment(settings: Mapping[str, str]) -> dict[str, str]:
    """Ours and `settings`, for a process that runs the user's code and whose output is read line by line."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **settings}
