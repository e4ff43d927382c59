"""The Python of a step, without Kafka and Postgres: CPU of what every step passes through, in microseconds.

    python -m benchmarks.hot_path [ROUNDS]

1,000 runs of 10 steps in transactions of 1,000 records: starts, commands unbundled as the relay does it, decoded and
answered as a worker does it, decided and turned into rows as the run agent does it. Prints the least CPU per step over
the rounds (`time.process_time`, garbage collection as it comes): what the code costs when nothing disturbs it.
"""

import sys
import time
from typing import Final

import msgspec

from benchmarks.workflows import linear
from headrace.graph import from_data
from headrace.machine import advance, compile_plan
from headrace.machine.status import RUN_TERMINAL
from headrace.messages import Succeeded, decode_command, decode_event, encode, make_nonce
from state.outbox import Record, unbundle
from state.settings import EngineSettings
from state.starts import Start, begin_run, new_run_id
from state.store import Rows, Store, StoredRun

RUNS: Final = 1_000
STEPS: Final = 10
ROUNDS: Final = 5
AT: Final = 1_790_000_000_000_000
OUTPUT: Final = msgspec.Raw(b'{"note":"' + b"x" * 60 + b'","n":17}')


class Loop:
    def __init__(self) -> None:
        self._store = Store(EngineSettings(secret="x" * 32))  # type: ignore[arg-type]
        self._plan = compile_plan(from_data(linear(STEPS)), version=1, version_id=1)
        self._runs: dict[bytes, StoredRun] = {}

    def turn(self) -> int:
        """Run everything to its end; answers the steps."""
        self._runs.clear()
        rows, steps = Rows(self._store), 0
        for _ in range(RUNS):
            start = Start(self._plan, b'{"due":1790000000000000}', run_id=new_run_id(), source="bench")
            run = begin_run(rows, start, "default", AT)
            self._runs[run.key] = run
        while commands := self._commit(rows):
            steps += len(commands)
            rows = self._decide([self._work(command) for command in commands])
        if any(run.status not in RUN_TERMINAL for run in self._runs.values()):
            raise SystemExit("hot path: a run did not end")
        return steps

    def _commit(self, rows: Rows) -> list[Record]:
        """What the transaction writes, and what the relay reads of it."""
        rows.calls()
        return [record for (content,) in rows.rows.get("publish_messages", []) for record in unbundle(content)]

    def _work(self, record: Record) -> tuple[bytes, bytes]:
        command = decode_command(record.value)
        answer = Succeeded(
            command.task, command.token, command.nonce, "5" * 32, "bench/1", AT, AT + 900, OUTPUT
        )  # fmt: skip
        return record.key, encode(answer)

    def _decide(self, answers: list[tuple[bytes, bytes]]) -> Rows:
        rows = Rows(self._store)
        for key, value in answers:
            event, run = decode_event(value), self._runs[key]
            if not isinstance(event, Succeeded) or event.nonce != make_nonce(
                self._store.secret, key, event.task, event.token
            ):
                raise SystemExit("hot path: an answer is not what was sent")
            transition = advance(run.plan, run, event, AT)
            if transition is not None:
                rows.move(run, event, transition)
        return rows


def main() -> None:
    loop, best = Loop(), float("inf")
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS):
        begun = time.process_time()
        steps = loop.turn()
        best = min(best, (time.process_time() - begun) / steps * 1e6)
    print(f"{best:.3f}")


if __name__ == "__main__":
    main()
