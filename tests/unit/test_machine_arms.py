"""The type checker proves `advance` total: an event without an arm does not get through `make check`."""

import re
import subprocess
import sys
from pathlib import Path

from headrace.machine import MachineEvent

ROOT = Path(__file__).parents[2]
ADVANCE = ROOT / "headrace" / "machine" / "advance.py"
ARM = re.compile(r"^        case (\w+)\(\):\n            return .*\n", re.MULTILINE)


def _mypy(directory: Path, *files: Path) -> str:
    command = [sys.executable, "-m", "mypy", "--strict", "--python-version", "3.11", "--follow-imports", "silent"]
    command += ["--config-file", str(directory / "none.ini"), "--cache-dir", str(directory / "cache")]
    return subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False).stdout


def test_leaving_out_any_arm_of_advance_is_a_type_error(tmp_path: Path):
    (tmp_path / "none.ini").write_text("[mypy]\nwarn_unreachable = true\n")
    text = ADVANCE.read_text()
    arms = list(ARM.finditer(text))
    names = [arm[1] for arm in arms]
    assert sorted(names) == sorted(event.__name__ for event in MachineEvent.__args__)
    files = [tmp_path / "whole.py"]
    files[0].write_text(text)
    for arm in arms:
        files.append(tmp_path / f"without_{arm[1].lower()}.py")
        files[-1].write_text(text[: arm.start()] + text[arm.end() :])
    found = _mypy(tmp_path, *files)
    faults = {name: re.search(rf"without_{name.lower()}\.py:.*\"assert_never\"", found) for name in names}
    assert [name for name, fault in faults.items() if fault is None] == [], found
    assert "whole.py" not in found, found
