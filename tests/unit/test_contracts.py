"""Boundaries that a tool checks: imports, calls, and what may not stand in a tracked file.

Each rule is broken once in a copy of the checkout, to see that it bites.
"""

import ast
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("headrace", "state", "streams", "connectors", "api")
BIN = Path(sys.executable).parent


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def lint_imports(checkout: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return run(BIN / "lint-imports", "--no-cache", *options, cwd=checkout)


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkout's Python files and settings."""
    checkout = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "pyproject.toml", checkout)
    for package in PACKAGES:
        shutil.copytree(
            ROOT / package,
            checkout / package,
            ignore=shutil.ignore_patterns("__pycache__", "node_modules", "dashboard"),
        )
    return checkout


@pytest.fixture
def checkout(copied: Path) -> Iterator[Path]:
    """The copy, without what an earlier test broke in it."""
    yield copied
    for broken in copied.rglob("broken.py"):
        broken.unlink()


# --- imports -------------------------------------------------------------------------------------------------------


def test_every_import_contract_is_kept() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("contract", "package", "imported"),
    [
        ("layers", "api", "streams"),
        ("layers", "connectors", "api"),
        ("layers", "streams", "connectors"),
        ("layers", "state", "streams"),
        ("layers", "headrace", "state"),
        ("machine", "headrace/machine", "psycopg"),
        ("machine", "headrace/machine", "time"),
        ("machine", "headrace/machine", "os"),
        ("library", "headrace", "fastapi"),
        ("library", "headrace/embedded", "psycopg"),
    ],
)
def test_broken_import_contract_is_found(checkout: Path, contract: str, package: str, imported: str) -> None:
    (checkout / package / "broken.py").write_text(f"import {imported}\n")

    result = lint_imports(checkout, "--contract", contract)

    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{package.replace('/', '.')}.broken -> {imported}" in result.stdout


# --- calls ---------------------------------------------------------------------------------------------------------


def ruff(checkout: Path, path: str) -> subprocess.CompletedProcess[str]:
    return run(BIN / "ruff", "check", "--no-cache", "--select", "TID251", path, cwd=checkout)


def test_the_machine_calls_nothing_banned() -> None:
    result = ruff(ROOT, "headrace/machine")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    "body",
    [
        "from datetime import UTC, datetime\n\nNOW = datetime.now(UTC)\n",
        "import datetime\n\nNOW = datetime.datetime.utcnow()\n",
        "import datetime\n\nTODAY = datetime.date.today()\n",
        "import time\n\nNOW = time.monotonic()\n",
        "from time import time\n\nNOW = time()\n",
        "import random\n\nJITTER = random.random()\n",
        "from secrets import token_bytes\n\nNONCE = token_bytes(16)\n",
        "from uuid import uuid4\n\nID = uuid4()\n",
        "import os\n\nHOME = os.environ['HOME']\n",
    ],
)
def test_call_that_the_machine_may_not_make_is_found(checkout: Path, body: str) -> None:
    (checkout / "headrace/machine/broken.py").write_text(body)

    result = ruff(checkout, "headrace/machine/broken.py")

    assert result.returncode == 1, result.stdout + result.stderr
    assert "TID251" in result.stdout


# --- tracked files -------------------------------------------------------------------------------------------------

REGISTRIES = re.compile(
    r"pypi\.(?:org|python)|pythonhosted\.|registry\.npmjs|registry\.yarnpkg|repo1?\.maven|maven\.org"
    r"|deb\.debian|static\.crates|proxy\.golang",
    re.IGNORECASE,
)
MACHINE_PATHS = re.compile(r"(?<![\w.~*])/(?:work|root)/")
BINARY = {".gif", ".gz", ".ico", ".jpg", ".png", ".woff", ".woff2", ".zip"}


def tracked_files() -> list[Path]:
    """What git has or would add; in an unpacked source distribution, there is no git to ask."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", "-z", cwd=ROOT)
    assert listed.returncode == 0, listed.stderr
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in paths if path.is_file() and path.suffix not in BINARY]


def lines_with(pattern: re.Pattern[str]) -> list[str]:
    found: list[str] = []
    for path in tracked_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            if match := pattern.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    return found


def test_no_tracked_file_names_a_registry() -> None:
    assert lines_with(REGISTRIES) == []


def test_no_tracked_file_names_a_path_of_one_machine() -> None:
    assert lines_with(MACHINE_PATHS) == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (REGISTRIES, "--index-url https://pypi" + ".org/simple"),
        (REGISTRIES, '"resolved": "https://registry.npm' + 'js.org/react"'),
        (MACHINE_PATHS, "cd /wo" + "rk/main"),
        (MACHINE_PATHS, "HOME=/ro" + "ot/x"),
    ],
)
def test_forbidden_text_is_found(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


def test_no_tracked_module_turns_data_into_code() -> None:
    modules = [path for path in tracked_files() if path.suffix == ".py"]
    found = [f"{path.relative_to(ROOT)}: {use}" for path in modules for use in dangerous(path.read_text())]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml\nyaml.load('')",
        "import yaml\nyaml.unsafe_load('')",
        "ev" + "al('1')",
        "ex" + "ec('1')",
    ],
)
def test_data_turned_into_code_is_found(source: str) -> None:
    assert list(dangerous(source))


def dangerous(source: str) -> Iterator[str]:
    """Uses of pickle and its kin, of eval and exec, and of YAML loaders that build any object."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if is_pickle(name.name))
            case ast.ImportFrom(module=str(module)) if is_pickle(module):
                yield module
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                yield name
            case ast.Attribute(value=ast.Name(id="yaml"), attr="load" | "full_load" | "unsafe_load" as name):
                yield f"yaml.{name}"
            case _:
                pass


def is_pickle(module: str) -> bool:
    return module.partition(".")[0] in {"cloudpickle", "dill", "marshal", "pickle", "shelve"}


# --- locks ---------------------------------------------------------------------------------------------------------

LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_pins_and_hashes_every_package(lock: Path) -> None:
    entries = re.split(r"\n(?=[a-zA-Z0-9])", "\n" + re.sub(r"^ *#.*\n", "", lock.read_text(), flags=re.MULTILINE))
    unpinned = [entry.split()[0] for entry in entries if entry.strip() and not re.match(r"[\w.\-\[\]]+==\S", entry)]
    unhashed = [entry.split()[0] for entry in entries if entry.strip() and "--hash=sha256:" not in entry]

    assert (unpinned, unhashed) == ([], [])
    assert "://" not in lock.read_text()


def test_lock_has_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [
        *project["project"]["dependencies"],
        *project["project"]["optional-dependencies"]["engine"],
        *(entry for entry in project["dependency-groups"]["dev"] if isinstance(entry, str)),
        *project["dependency-groups"]["build"],
    ]
    locked = {line.partition("==")[0].lower() for line in (ROOT / "requirements/dev.txt").read_text().splitlines()}

    missing = [name for name in wanted if re.split(r"[\[<>=; ]", name)[0].lower() not in locked]

    assert missing == [], "run `make lock`"
