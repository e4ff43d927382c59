"""Looks into the agents from outside: what a commit cannot show, because nothing was written."""

from typing import Any

from state.store import StoredRun
from streams.ownership import Ownership
from streams.run_agent import RunAgent
from streams.run_cache import RunCache
from tests.simulation.postgres import Transaction
from tests.simulation.postgres_clients import FakePipe, Server
from tests.simulation.scheduler import sim
from tests.simulation.seams import put


class Witness:
    """Where the probes say what they saw: the checker of the running simulation."""

    say: Any = None


def install() -> None:
    """Last of all, so that what is planted is seen."""
    _watch_offsets()
    _watch_absent_runs()
    _watch_copies()


def _watch_offsets() -> None:
    take = Ownership.take

    def watched(self: Ownership, batch: Any, **options: Any) -> Any:
        records, moves = take(self, batch, **options)
        for move in moves:
            offsets = [record.offset() for record in records if record.partition() == move.partition]
            if offsets != list(range(move.old or 0, move.new)):
                Witness.say(
                    f"I2 {move.topic}/{move.partition} would go from {move.old} to {move.new} with {offsets} read"
                )
        return records, moves

    put(Ownership, take=watched)


def _watch_absent_runs() -> None:
    """A record may come before its own transaction can be seen. That run is not unknown."""
    get = RunCache.get

    def watched(self: RunCache, key: bytes) -> StoredRun | None:
        run, postgres = get(self, key), Server.postgres
        if run is None and len(key) == 36:
            place = ("run", (bytes.fromhex(key.decode().replace("-", "")),))
            is_there = place[1] in postgres.tables["run"] or any(place in one.writes for one in postgres.in_doubt)
            if is_there:
                Witness.say(f"I2 an event of run {key[-6:].decode()} is dropped, as if that run were not there")
        return run

    put(RunCache, get=watched)


def _watch_copies() -> None:
    """An event that changes nothing writes nothing, so no row_version guards that judgement: it must be of now."""
    commit, fold, run_pipe = RunAgent._commit, RunAgent._fold, FakePipe.run

    async def watched_commit(self: RunAgent, *given: Any, **options: Any) -> None:
        sim().current.process.folded.clear()
        await commit(self, *given, **options)

    def watched_fold(self: RunAgent, run: StoredRun, *given: Any) -> bool:
        sim().current.process.folded.setdefault(run.run_id, run.saved_version)
        return fold(self, run, *given)

    def watched_run(self: FakePipe, calls: Any) -> None:
        folded = dict(sim().current.process.folded)
        stale: list[str] = []

        def look(transaction: Transaction) -> None:
            for run_id, version in folded.items():
                row = transaction.get("run", run_id)
                if row is not None and row["row_version"] != version:
                    stale.append(
                        f"I2 run {run_id.hex()[-6:]} is at {row['row_version']}, an event was judged at {version}"
                    )

        self.before = look
        run_pipe(self, calls)
        for sentence in stale:
            Witness.say(sentence)

    put(RunAgent, _commit=watched_commit, _fold=watched_fold)
    put(FakePipe, run=watched_run)
