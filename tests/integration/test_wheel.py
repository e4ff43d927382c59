"""The built wheel: what is in it, and that it works beside a user's own `state.py` and `api/`."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import zipfile
from pathlib import Path

import httpx
import pytest

from headrace.embedded.process import free_port

ROOT = Path(__file__).parents[2]
ENGINE = ("api", "connectors", "state", "streams")


def run(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> str:
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built without the network: the build backend is in the lock."""
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", out, ROOT, cwd=out)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel in it; its dependencies are those of this environment."""
    home = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", home, cwd=home)
    python = home / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=home)
    # A folder that stands in a `.pth` line is searched, but its own `.pth` lines are not read: the editable
    # install of this checkout stays out.
    site_packages(python).joinpath("dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def site_packages(python: Path) -> Path:
    return next(python.parents[1].glob("lib/python*/site-packages"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A user's folder, whose modules have the names of ours."""
    (tmp_path / "state.py").write_text("OWNER = 'user'\n")
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "__init__.py").write_text("OWNER = 'user'\n")
    return tmp_path


def clean_environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    return {**kept, **more}


def test_wheel_has_one_import_name(names: list[str]) -> None:
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"headrace"}


def test_wheel_carries_the_engine_and_its_data(names: list[str]) -> None:
    for folder in ENGINE:
        assert f"headrace/_engine/{folder}/__init__.py" in names
    for pattern in ("*.sql",):
        for path in (ROOT / "state").rglob(pattern):
            assert f"headrace/_engine/{path.relative_to(ROOT).as_posix()}" in names
    assert "headrace/py.typed" in names
    assert "headrace/embedded/kafka-pom.xml" in names


def test_wheel_leaves_sources_of_the_console_and_tests_out(names: list[str]) -> None:
    unwanted = (
        "node_modules/",
        "__pycache__/",
        "/dashboard/src/",
        "package.json",
        "package-lock",
        "/dashboard/vite",
        "tests/",
        "benchmarks/",
        "ruff.toml",
    )
    assert [name for name in names if any(part in name for part in unwanted)] == []


def test_wheel_carries_the_built_console(names: list[str]) -> None:
    bundle = [path for path in (ROOT / "api" / "dashboard" / "dist").rglob("*") if path.is_file()]
    assert any(path.name == "index.html" for path in bundle)
    for path in bundle:
        assert f"headrace/_engine/{path.relative_to(ROOT).as_posix()}" in names


def test_license_travels(names: list[str]) -> None:
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_command_runs_beside_modules_of_the_same_names(python: Path, project: Path) -> None:
    output = run(python.parent / "headrace", "--help", cwd=project, env=clean_environment())
    assert "dev" in output
    assert "worker" in output


def test_installed_engine_is_no_package_of_the_user(python: Path, project: Path) -> None:
    installed = site_packages(python)
    assert [name for name in ENGINE if (installed / name).exists() or (installed / f"{name}.py").exists()] == []
    script = (
        "import importlib.util as u, headrace;"
        "print(headrace.__file__);"
        "print([n for n in ('state', 'streams', 'connectors', 'api') if u.find_spec(n)])"
    )
    # `-P`: nothing of the working directory, so all that is found comes from the environment.
    where, found = run(python, "-P", "-c", script, cwd=project, env=clean_environment()).splitlines()
    assert Path(where).is_relative_to(installed)
    assert found == "[]"


def test_user_module_is_the_one_that_a_user_imports(python: Path, project: Path) -> None:
    script = "import headrace, headrace.worker, headrace.client, state, api; print(state.OWNER, api.OWNER)"
    assert run(python, "-c", script, cwd=project, env=clean_environment()).split() == ["user", "user"]


def test_child_process_finds_the_engine_and_not_the_user_modules(python: Path, project: Path) -> None:
    """As the command starts its children: the application directory alone on the path."""
    engine = site_packages(python) / "headrace" / "_engine"
    script = "import state, streams, connectors, api; print(*(m.__file__ for m in (state, streams, connectors, api)))"
    files = run(python, "-P", "-c", script, cwd=project, env=clean_environment(PYTHONPATH=str(engine))).split()
    assert len(files) == len(ENGINE)
    assert all(Path(file).is_relative_to(engine) for file in files)


def test_source_distribution_builds_the_same_wheel(wheel: Path, names: list[str], tmp_path: Path) -> None:
    run(sys.executable, "-m", "build", "--no-isolation", "--sdist", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    archive = next(tmp_path.glob("*.tar.gz"))
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    source = next((tmp_path / "unpacked").iterdir())
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", tmp_path, source, cwd=tmp_path)
    with zipfile.ZipFile(tmp_path / wheel.name) as again:
        assert sorted(again.namelist()) == sorted(names)


def test_dev_runs_from_the_installed_wheel_beside_the_users_modules(python: Path, project: Path) -> None:
    (project / "app.py").write_text("import headrace\n\n@headrace.task('mine.a')\ndef a(input): return input\n")
    command = [str(python.parent / "headrace"), "dev", "app.py", "--json", "--port", str(free_port())]
    dev = subprocess.Popen(
        command, cwd=project, env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert dev.stdout is not None
    try:
        lines = (json.loads(line) for line in dev.stdout if line.startswith("{"))
        api = next(line["api"] for line in lines if "api" in line)
        token = json.loads((project / ".headrace" / "dev.json").read_text())["token"]
        headers = {"Authorization": f"Bearer {token}"}
        definition = {"name": "mine", "tasks": {"a": {"run": "mine.a"}}}
        assert httpx.post(f"{api}/workflows", json=definition, headers=headers).status_code == 201
        run_id = httpx.post(f"{api}/workflows/mine/runs", json={"input": {"n": 1}}, headers=headers).json()["run_id"]
        give_up_at = time.monotonic() + 60
        while (told := httpx.get(f"{api}/runs/{run_id}", headers=headers).json())["status"] != "completed":
            assert time.monotonic() < give_up_at, told
            time.sleep(0.1)
        assert told["outputs"] == {"a": {"n": 1}}
    finally:
        dev.send_signal(signal.SIGINT)
        dev.communicate(timeout=30)
    assert dev.returncode == 130
