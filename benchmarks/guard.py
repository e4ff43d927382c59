"""`python -m benchmarks.guard [--against COMMIT] [--limit 1.10]`: did the Python of a step get more expensive?

Runs `benchmarks.hot_path` of this checkout against the engine of this checkout and of another commit, alternating, and
compares the least CPU per step of each: no other process, no disk and no network is in it, so a busy machine changes it
little. Exit status 1 when this checkout is worse by more than the limit. A commit that cannot be had (a clone without
its history) or whose engine the loop does not fit is said, and is no failure.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
TURNS: Final = 4
LOOKS: Final = 3
"""A look that finds this checkout worse is repeated; the least of all looks counts."""
ENGINE: Final = ("headrace", "state")


class CannotCompare(Exception):
    pass


def main() -> int:
    options = _parse()
    with tempfile.TemporaryDirectory(prefix="headrace-guard-") as folder:
        try:
            base = _check_out(options.against, Path(folder))
            before = now = float("inf")
            for _ in range(LOOKS):
                before, now = _measure(base, before, now)
                if now / before <= options.limit:
                    break
        except CannotCompare as e:
            print(f"guard: nothing to compare with: {e}")
            return 0
    ratio = now / before
    print(f"guard: {now:.1f} us of Python a step, {before:.1f} at {options.against}: ratio {ratio:.3f}")
    return int(ratio > options.limit)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.guard")
    parser.add_argument("--against", default="HEAD^")
    parser.add_argument("--limit", type=float, default=1.10)
    return parser.parse_args()


def _check_out(commit: str, folder: Path) -> Path:
    """The engine of a commit with the benchmarks of this checkout beside it."""
    if shutil.which("git") is None:
        raise CannotCompare("there is no git")
    archive = subprocess.run(["git", "archive", commit, *ENGINE], cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        raise CannotCompare(archive.stderr.decode(errors="replace").strip())
    subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
    shutil.copytree(ROOT / "benchmarks", folder / "benchmarks")
    return folder


def _measure(base: Path, before: float, now: float) -> tuple[float, float]:
    """The least CPU per step in microseconds, with what was known already: of the base, and of this checkout."""
    best = {base: before, ROOT: now}
    for _ in range(TURNS):
        for tree in best:
            best[tree] = min(best[tree], _run(tree))
    return best[base], best[ROOT]


def _run(tree: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.hot_path"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        if tree == ROOT:
            raise SystemExit(done.stderr)
        raise CannotCompare(f"its engine does not fit the loop: {done.stderr.strip().splitlines()[-1]}")
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
