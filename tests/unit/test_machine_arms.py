"""The type checker proves `advance` total, and that every action is persisted: an event or an action without an arm
does not get through `make check`."""

import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

from headrace.machine import Action, MachineEvent

ROOT = Path(__file__).parents[2]
ADVANCE = ROOT / "headrace" / "machine" / "advance.py"
STORE = ROOT / "state" / "store.py"
ARM = re.compile(r"^        case (\w+)\(\):\n            return .*\n", re.MULTILINE)
ACT = re.compile(r"^    def _act\(.*?(?=^    (?:def|# --) )", re.MULTILINE | re.DOTALL)
ACT_ARM = re.compile(r"^                case (\w+)\(\):\n(?: {20}.*\n)+", re.MULTILINE)
OPTIONS = "[mypy]\nwarn_unreachable = true\nenable_error_code = exhaustive-match\n"


def _mypy(directory: Path, *files: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--follow-imports", "silent"]
    command += ["--config-file", str(directory / "none.ini"), "--cache-dir", str(directory / "cache")]
    return subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False).stdout


def _without_each(directory: Path, text: str, arms: list[re.Match[str]], offset: int = 0) -> list[Path]:
    """The whole file, and one copy for each arm that lacks it."""
    (directory / "none.ini").write_text(OPTIONS)
    files = [directory / "whole.py"]
    files[0].write_text(text)
    for arm in arms:
        files.append(directory / f"without_{arm[1].lower()}.py")
        files[-1].write_text(text[: offset + arm.start()] + text[offset + arm.end() :])
    return files


def test_leaving_out_any_arm_of_advance_is_a_type_error(tmp_path: Path):
    text = ADVANCE.read_text()
    arms = list(ARM.finditer(text))
    names = [arm[1] for arm in arms]
    assert sorted(names) == sorted(event.__name__ for event in get_args(MachineEvent))
    found = _mypy(tmp_path, *_without_each(tmp_path, text, arms))
    faults = {name: re.search(rf"without_{name.lower()}\.py:.*\"assert_never\"", found) for name in names}
    assert [name for name, fault in faults.items() if fault is None] == [], found
    assert "whole.py" not in found, found


def test_an_action_that_is_not_persisted_is_a_type_error(tmp_path: Path):
    text = STORE.read_text()
    act = ACT.search(text)
    assert act is not None
    arms = list(ACT_ARM.finditer(act[0]))
    names = [arm[1] for arm in arms]
    assert sorted(names) == sorted(action.__name__ for action in get_args(Action))
    found = _mypy(tmp_path, *_without_each(tmp_path, text, arms, act.start()))
    faults = {name: re.search(rf"without_{name.lower()}\.py:.*\[exhaustive-match\]", found) for name in names}
    assert [name for name, fault in faults.items() if fault is None] == [], found
    assert "whole.py" not in found, found
