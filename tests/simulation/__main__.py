"""`python -m tests.simulation --seeds N --from S`: simulate seeds, print each outcome, keep those that fail.

    --seeds N --from S   how many, from which; those kept in `failing_seeds.txt` come first
    --trace              print everything that happens, in order; for one seed
    --plant NAME         with one of the bugs of `planted.py` put in; such failures are not kept
    --until-failed       stop at the first that fails
    --jobs J             processes; each takes every J-th seed

Exit code 1 when a seed failed.
"""

import argparse
import gc
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Final

KEPT: Final = Path(__file__).with_name("failing_seeds.txt")
_FIXED_HASHES: Final = {"PYTHONHASHSEED": "0"}
"""The order of a set is part of a seed."""


def main() -> int:
    options = _parse()
    if os.environ.get("PYTHONHASHSEED") != "0":
        command = [sys.executable, "-m", "tests.simulation", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, **_FIXED_HASHES}, check=False).returncode
    began = time.monotonic()
    seeds = _seeds(options)
    failed = _share(options) if options.jobs > 1 else _simulate(options, seeds)
    if options.job is None:
        took = time.monotonic() - began
        print(f"simulation: {len(seeds)} seeds from {options.first}, {failed} failed, {took:.0f} s", flush=True)
    return 1 if failed else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--trace", action="store_true")
    parser.add_argument("--plant", default="")
    parser.add_argument("--workflows", default="", help="draw of these only, separated by commas")
    parser.add_argument("--until-failed", action="store_true")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--job", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--of", type=int, default=1, help=argparse.SUPPRESS)
    return parser.parse_args()


def _seeds(options: argparse.Namespace) -> list[int]:
    seeds = list(range(options.first, options.first + options.seeds))
    if not options.trace and not options.plant:
        seeds = list(dict.fromkeys([*kept_seeds(), *seeds]))
    return seeds


def kept_seeds() -> list[int]:
    lines = KEPT.read_text().splitlines() if KEPT.exists() else []
    return [int(line.split()[0]) for line in lines if line.strip() and not line.startswith("#")]


def _share(options: argparse.Namespace) -> int:
    """Run the seeds in several processes of ours; they print for themselves. Answers how many found a failure."""
    arguments = [argument for argument in sys.argv[1:] if not argument.startswith("--jobs")]
    if "--jobs" in sys.argv:
        del arguments[sys.argv.index("--jobs") - 1]
    jobs = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.simulation", *arguments, "--job", str(job), "--of", str(options.jobs)]
        )
        for job in range(options.jobs)
    ]
    return sum(job.wait() != 0 for job in jobs)


def _simulate(options: argparse.Namespace, seeds: list[int]) -> int:
    job = options.job or 0
    # One lane runs at a time, so a second core only makes handing the baton on slow.
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[(job if options.of > 1 else os.getpid()) % len(cores)]})
    from tests.simulation import seams

    seams.install()
    if options.trace:
        seams.trace_logs()
    from tests.simulation import planted, probes
    from tests.simulation.scene import Scene

    if options.plant:
        planted.PLANTED[options.plant]()
    probes.install()
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")  # those of killed processes
    gc.collect()
    gc.freeze()
    gc.disable()  # between seeds only, so that no seed depends on when it comes
    failed = 0
    for seed in seeds[job :: options.of]:
        began = time.perf_counter()
        scene = Scene(seed, print if options.trace else None, options.workflows.split(",") if options.workflows else ())
        violations = scene.play()
        _tell(scene, violations, time.perf_counter() - began)
        del scene
        gc.collect()
        if violations:
            failed += 1
            if not options.plant:
                _keep(seed, violations[0])
            if options.until_failed:
                break
    return failed


def _tell(scene: "object", violations: list[str], took: float) -> None:
    from tests.simulation.scene import Scene

    assert isinstance(scene, Scene)
    world, faults, reruns = scene.sim, sum(scene.nemesis.faults.values()), scene.client.repairer.reruns
    print(
        f"seed {scene.seed}: {'FAILED' if violations else 'ok'} {world.digest}"
        f" {len(scene.postgres.tables['run'])} runs, {reruns} reruns, {faults} faults,"
        f" {world.now - 1_000:.1f} s in {took:.2f} s",
        *(f"\n    {violation}" for violation in violations),
        sep="",
        flush=True,
    )


def _keep(seed: int, violation: str) -> None:
    """A seed that failed once is tried first from now on."""
    if seed not in kept_seeds():
        with KEPT.open("a") as file:
            file.write(f"{seed}  # {violation}\n")


if __name__ == "__main__":
    sys.exit(main())
