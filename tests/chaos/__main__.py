"""`python -m tests.chaos`: see the package's docstring."""

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.chaos import Chaos, Evidence, Settings, read_evidence
from tests.chaos.checker import check
from tests.chaos.facts import Facts, Violation
from tests.chaos.fault import KINDS, Fault
from tests.chaos.nemesis import chosen_kinds
from tests.chaos.report import firing, last_line, outcomes, summarise, table


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    if options.list:
        print("\n".join(KINDS))
        return 0
    if options.check:
        return _judge(read_evidence(options.check), options, options.check)
    kinds = _kinds(options)
    folder = options.folder or Path(tempfile.mkdtemp(prefix="headrace-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "seed").write_text(f"{options.seed}\npython -m tests.chaos {' '.join(arguments or sys.argv[1:])}\n")
    chaos = Chaos(Settings(folder, options.seed, options.seconds, options.rate, kinds, options.plant))
    try:
        evidence = asyncio.run(_interruptible(chaos))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print(f"interrupted; the logs are in {folder}", file=sys.stderr)
        return 130
    return _judge(evidence, options, folder)


def _judge(evidence: Evidence, options: argparse.Namespace, folder: Path) -> int:
    """Print what was found; the evidence of something found is kept. Answers the exit status."""
    facts = Facts(*evidence)
    violations = [] if options.no_checker else check(*evidence)
    _print(facts, violations)
    lines = summarise(facts) if options.no_checker else []
    if options.no_checker:
        print(firing(lines, [kind.kind for kind in _kinds(options)]))
    if options.json:
        options.json.write_text(json.dumps(_summary(facts, violations, options.seed), indent=1))
    if violations or options.keep or folder in (options.folder, options.check):
        print(f"evidence: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    print(last_line(options.seed, facts, violations))
    return int(bool(violations) or any(not line.fired for line in lines))


def _kinds(options: argparse.Namespace) -> list[type[Fault]]:
    return [] if options.calm else chosen_kinds([name for name in options.kinds.split(",") if name])


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description="Break everything, lose nothing.")
    parser.add_argument("--seconds", type=float, default=600, help="how long faults are made; healing comes on top")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kinds", default="", help="only kinds whose names begin so, separated by commas: F01,F20")
    parser.add_argument("--calm", action="store_true", help="no faults: what is lost now is lost by us")
    parser.add_argument("--rate", type=float, default=2.2, help="runs to start in a second")
    parser.add_argument("--plant", default="", help="a planted bug, such as B08: the checker must find it")
    parser.add_argument("--no-checker", action="store_true", help="only show that every fault fired")
    parser.add_argument("--json", type=Path, help="write the counts here")
    parser.add_argument("--folder", type=Path, help="where data, logs and evidence go; kept")
    parser.add_argument("--keep", action="store_true", help="keep the evidence when nothing was found, too")
    parser.add_argument("--check", type=Path, metavar="FOLDER", help="judge kept evidence again")
    parser.add_argument("--list", action="store_true", help="list the fault kinds")
    return parser.parse_args(arguments)


async def _interruptible(chaos: Chaos) -> Evidence:
    work = asyncio.ensure_future(chaos.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    return await work


def _print(facts: Facts, violations: list[Violation]) -> None:
    print(table(summarise(facts)))
    print(outcomes(facts))
    for violation in violations[:50]:
        print(f"VIOLATION {violation.invariant}: {violation.what} ({violation.where})")
    if len(violations) > 50:
        print(f"... and {len(violations) - 50} more")


def _summary(facts: Facts, violations: list[Violation], seed: int) -> dict[str, Any]:
    return {
        "seed": seed,
        "at": time.time(),
        "runs": len(facts.runs),
        "faults": [line._asdict() for line in summarise(facts)],
        "violations": [violation._asdict() for violation in violations],
    }


if __name__ == "__main__":
    sys.exit(main())
