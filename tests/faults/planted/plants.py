"""Bugs put back on purpose: what a case of CASES.md reports, done to our code from outside.

A suite that stays green with one of them in is not finished. Each is a switch, `{"plant": "B08"}` in HEADRACE_INJECT
for a child process, or `planted("B08")` of `test_planted.py` in this one. Like the crash points, this is read before
anything of the product is imported.
"""

import importlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

Change = Callable[[Any], Any]


@dataclass(frozen=True)
class Plant:
    bug: str
    changes: list[tuple[str, Change]]
    """(target, what takes what stands there and gives the buggy one)"""


def instead(value: Any) -> Change:
    return lambda _: value


def _now(module: str, name: str) -> Any:
    """A name of the product, looked up when the bug acts."""
    return getattr(importlib.import_module(module), name)


# == two owners, one task =============================================================================================
def _under_the_current_token(arm: Callable[..., Any]) -> Callable[..., Any]:
    """An arm of the machine that takes an event for the current hand-out, whichever it names."""

    def unchecked(plan: Any, run: Any, event: Any, at: int) -> Any:
        task = run.tasks.get(event.task)
        if task is not None:
            event = _now("msgspec.structs", "replace")(event, token=task.token)
        return arm(plan, run, event, at)

    return unchecked


def _no_fence(_: Any) -> Callable[..., None]:
    def fence(ownership: Any, rows: Any, moves: Any) -> None:
        """Writes without asking whose the partition is by now."""

    return fence


def _terminal_as_well(held: Callable[..., Any]) -> Callable[..., Any]:
    """A result counts again for a task that has one."""

    def any_status(plan: Any, run: Any, index: int, token: int) -> Any:
        task = run.tasks.get(index)
        return task if task is not None and task.token == token else held(plan, run, index, token)

    return any_status


# == time and effects =================================================================================================
def _by_its_own_word(due: Callable[..., Any]) -> Callable[..., Any]:
    """A timer is due because somebody says so."""

    def early(plan: Any, run: Any, event: Any, at: int) -> Any:
        task = run.tasks.get(event.task)
        return due(plan, run, event, max(at, (task.due_at if task is not None else None) or at))

    return early


def _try_again(_: Any) -> Callable[..., Any]:
    """An attempt that may have had its effect is followed by the next, whatever the task's policy."""

    def doubt(plan: Any, run: Any, draft: Any, index: int, task: Any, error: Any) -> None:
        _now("headrace.machine.handout", "hand_out")(plan, run, draft, index, task, [])

    return doubt


# == stuck or lost ====================================================================================================
def _two_transactions(run: Callable[..., None]) -> Callable[..., None]:
    """The next commands are published after the result that led to them was committed."""

    def split(pipe: Any, calls: Any) -> None:
        late = [call for call in calls if call[0].startswith("publish_")]
        run(pipe, [call for call in calls if call not in late])
        if late:
            run(pipe, late)

    return split


def _finds_nothing(_: Any) -> Callable[..., Any]:
    async def find(sweeps: Any, connection: Any) -> int:
        return 0

    return find


def _one_connection_for_ever(_: Any) -> Any:
    """A connection that broke is kept, and every use of it fails from then on."""

    @contextmanager
    def connection(database: Any) -> Generator[Any]:
        psycopg = importlib.import_module("psycopg")
        try:
            if database._connection is None:
                database._connection = psycopg.connect(database._dsn, autocommit=True)
            yield database._connection
        except psycopg.Error as error:
            raise _now("headrace.errors", "UnavailableError")(str(error)) from error

    return connection


# == joins ============================================================================================================
def _only_success_is_looked_behind(close: Callable[..., Any]) -> Callable[..., Any]:
    """A join hears of the needs that completed, never of one that failed or was skipped."""

    def forgetful(plan: Any, run: Any, draft: Any, ended: list[int], at: int) -> Any:
        return close(plan, run, draft, [index for index in ended if draft.tasks[index].status == "completed"], at)

    return forgetful


# == odd data =========================================================================================================
def _as_it_came(_: Any) -> Callable[..., Any]:
    """A result that Postgres refused is offered again as it is."""
    return lambda event, why: event


# == Kafka and the outbox =============================================================================================
def _position_first(_: Any) -> Callable[..., Any]:
    """An agent that met trouble has passed the batch all the same."""

    async def call(agent: Any, batch: Any) -> None:
        _, moves = agent._ownership.take(batch)
        try:
            await agent._apply(batch)
        except Exception:
            agent._forget()
            rows = _now("state.store", "Rows")(agent._store)
            agent._ownership.fence(rows, moves)
            pipe = _now("state.pipe", "Pipe")(agent._store.settings.postgres, agent._store.statements())
            pipe.run(rows.calls())
            pipe.close()
            agent._ownership.moved(moves)

    return call


def _one_log_for_ever(lease: Callable[..., Any]) -> Callable[..., Any]:
    """The identity of the log behind a topic is not looked at."""

    async def take(ownership: Any, topic: str, topic_id: str, partitions: list[int]) -> Any:
        return await lease(ownership, topic, "the log", partitions)

    return take


def _by_rising_id(read: Callable[..., Any]) -> Callable[..., Any]:
    """Reads the outbox behind the highest id seen, and so never a row that got its id early and committed late."""
    highest = b""

    def read_records(transaction: Any, refusals: Any) -> Any:
        nonlocal highest
        rows = [change for change in transaction.changes if not hasattr(change, "row") or change.row["id"] > highest]
        highest = max([highest, *(change.row["id"] for change in rows if hasattr(change, "row"))])
        return read(transaction._replace(changes=rows), refusals)

    return read_records


def _no_gap(_: Any) -> Callable[..., None]:
    """Goes on with whatever slot there is."""
    return lambda *_: None


PLANTS: Final[dict[str, Plant]] = {
    "B01": Plant(
        "a sweep that lost the race acts on its old read",
        [("headrace.machine.advance:_lost", _under_the_current_token)],
    ),
    "B08": Plant(
        "a failure is written without a look at whose the task is",
        [("headrace.machine.advance:_failed", _under_the_current_token)],
    ),
    "B12": Plant(
        "a process whose ownership lapsed goes on writing",
        [("streams.ownership:Ownership.fence", _no_fence)],
    ),
    "B22": Plant(
        "a result and the command that follows from it are two transactions, and no sweep looks for the second",
        [
            ("state.pipe:Pipe.run", _two_transactions),
            ("streams.sweeps:Sweeps._lost_commands", _finds_nothing),
        ],
    ),
    "B27": Plant(
        "a timer whose wake-up was dropped is never said again",
        [("streams.sweeps:SAY_AGAIN_SECONDS", instead(1e9))],
    ),
    "B31": Plant(
        "a connection that Postgres ended is not made again",
        [("streams.database:Database.connection", _one_connection_for_ever)],
    ),
    "B48": Plant(
        "a join with a failed need stays undecided",
        [("headrace.machine.advance:close_decision", _only_success_is_looked_behind)],
    ),
    "B83": Plant(
        "a result that holds U+0000 keeps its run running",
        [("streams.run_agent:_unstorable", _as_it_came)],
    ),
    "B92": Plant(
        "the stored position passes records whose application failed",
        [("streams.run_agent:RunAgent.__call__", _position_first)],
    ),
    "B95": Plant(
        "a topic that was made anew is read from the old one's offset",
        [("streams.ownership:Ownership.lease", _one_log_for_ever)],
    ),
    "B96": Plant(
        "the outbox is read by increasing id",
        [("connectors.outbox_source:read_records", _by_rising_id)],
    ),
    "B97": Plant(
        "a replication slot that was made anew is read as if nothing had happened",
        [("connectors.slot:find_gap", _no_gap)],
    ),
    "X01": Plant(
        "an ambiguous end of a task that must not be repeated leads to another attempt",
        [
            (f"headrace.machine.{module}:doubt_effect", _try_again)
            for module in ("advance", "deadline", "effect", "handout")
        ],
    ),
    "X02": Plant(
        "a result that comes twice counts twice",
        [("headrace.machine.advance:_held", _terminal_as_well)],
    ),
    "X03": Plant(
        "a timer fires before its time",
        [("headrace.machine.advance:_due", _by_its_own_word)],
    ),
}
"""By the id of their case; X: of the same kinds, and not on the list."""

ABSENT: Final[dict[str, str]] = {
    "B21": "there are no pools yet",
    "B36": "there are no run keys with a policy (cancel-running) yet",
    "B46": "there are no pools yet",
    "B77": "there are no signals yet",
    "B100": "there are no durable functions yet",
}
