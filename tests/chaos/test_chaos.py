"""A minute of chaos: the harness as CI runs it, on a Kafka and a Postgres of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LAST_LINE = re.compile(r"chaos: seed (\d+), (\d+) faults of (\d+) kinds, (\d+) runs, (\d+) violations")
GIVE_UP_SECONDS = 285.0
"""Before pytest's own limit, so that its end can still clean up."""


def _chaos(*arguments: str) -> tuple[int, str]:
    """Exit status and output; an interrupted run stops all it started."""
    command = [sys.executable, "-m", "tests.chaos", *arguments]
    process = subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        output, _ = process.communicate(timeout=GIVE_UP_SECONDS)
    except BaseException:
        process.terminate()
        process.communicate(timeout=30)
        raise
    return process.returncode, output


@pytest.mark.slow
def test_a_minute_of_random_faults_loses_nothing() -> None:
    status, output = _chaos("--seconds", "60", "--seed", "1")
    found = LAST_LINE.fullmatch(output.splitlines()[-1])
    assert found is not None, output
    assert (status, found[5]) == (0, "0"), output
    assert int(found[2]) >= 5, output
    assert int(found[4]) >= 60, output
