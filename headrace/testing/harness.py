"""The harness: what a test holds."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Final

import msgspec

from headrace import payload
from headrace.errors import DefinitionError
from headrace.testing.approval import Delegation
from headrace.testing.argument import Bodies, Published, read_bodies, read_instant, read_priority, read_workflow
from headrace.testing.engine import Engine
from headrace.testing.harness_run import HarnessRun

BEGINNING: Final = "2026-01-01T00:00:00Z"
"""When a harness begins that is not told otherwise: always the same, so that a test is, too."""
FOREVER: Final = 2**62


class Harness:
    """Some workflow, its bodies, and a clock that moves only when it is told to.

    workflow: published in any way: a `Workflow`, YAML or JSON text, or parsed data. Raises DefinitionError.
    bodies: a registry, or functions by the names that `run:` says; without them, those of `@headrace.task`. Raises
    ConfigurationError when the workflow names one that is not there.
    pools: what limits each pool: slots, as a number, or a rate, as `10/s`; one that is not named has no limit.
    at: when the clock begins; raises ValueError for an instant without an offset.
    workflows: others, which tasks with `workflow` start. Each is there in one version, whichever is asked for.
    Use it in a `with` statement when bodies are async: they share an event loop, which ends with it.

    >>> harness = Harness("name: hello\\ntasks: { greet: { run: greet } }", {"greet": lambda name: f"Hello, {name}!"})
    >>> harness.start({"name": "Ada"}).outputs
    {'greet': 'Hello, Ada!'}
    """

    def __init__(
        self,
        workflow: Published,
        bodies: Bodies | None = None,
        *,
        pools: Mapping[str, int | str] | None = None,
        at: datetime | str = BEGINNING,
        workflows: Sequence[Published] = (),
    ) -> None:
        published = [read_workflow(each) for each in (workflow, *workflows)]
        self._engine = Engine(published, read_bodies(bodies), read_instant(at))
        for name, limit in (pools or {}).items():
            slots, rate = (None, limit) if isinstance(limit, str) else (limit, None)
            self._engine.pools.set_limits(name, slots, rate)

    def __enter__(self) -> "Harness":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the event loop of the async bodies, if there is one. Safe to repeat."""
        self._engine.worker.close()

    # -- the clock -----------------------------------------------------------------------------------------------------
    @property
    def now(self) -> datetime:
        """What the clock shows, in UTC."""
        return self._engine.clock.now

    def advance(
        self, *, days: float = 0, hours: float = 0, minutes: float = 0, seconds: float = 0, milliseconds: float = 0
    ) -> None:
        """Let so much time pass: everything that is due meanwhile happens, in order and on time."""
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
        self.advance_to(self.now + length)

    def advance_to(self, instant: datetime | str) -> None:
        """Let time pass until then. Raises ValueError for an instant that has passed, or has no offset."""
        self._engine.advance_to(read_instant(instant))

    def run_until_idle(self) -> None:
        """Let time pass for as long as timers move something: until every run has ended, or waits for a person or a
        signal.

        Neither is waited out, nor is a deadline: an approval expires, and the time-out of a signal or a child, or a
        deadline comes, when the clock is advanced to it or comes to it for another reason.
        """
        while (instant := self._engine.next_instant(without_expiry=True)) is not None:
            self._engine.advance_to(instant)

    # -- runs ----------------------------------------------------------------------------------------------------------
    def start(self, input: Any = None, *, by: str = "", priority: int = 0) -> HarnessRun:
        """Start a run, and let everything happen that needs no time. by: who starts it, for `no_self_approval`.

        priority: its place in the queues of pools, from -100 to 100. input: JSON data, or what a body may return; an
        empty object when left out. Raises DefinitionError when the workflow's schema refuses it. When no more may go at
        once, it raises ConflictError under a limit with `over: reject`, and answers the run that goes under `drop`.
        """
        raw = payload.encode_input({} if input is None else input)
        if faults := self._engine.workflow.check_input(msgspec.json.decode(raw)):
            raise DefinitionError(faults)
        return HarnessRun(self._engine, self._engine.start(raw, by, read_priority(priority)))

    def set_pool(self, name: str, slots: int | None = None, rate: str | None = None) -> None:
        """Give a pool other limits: so many slots, so many hand-outs in some time (`10/s`, `5/30s`), both, or none.

        With fewer slots, what holds one goes on, and nothing is admitted until so many are free. A new rate begins with
        all that it allows at once. Raises ValueError for what is no rate.
        """
        self._engine.pools.set_limits(name, slots, rate)
        self._engine.settle()

    def post(self, name: str, key: str, data: Any = None, *, by: str = "") -> None:
        """Tell something to whoever waits for this name and key, in any run of the harness, now or later: one task
        with `delivery: first` takes it, all with `delivery: all` hear it. It is kept for ever."""
        self._engine.postbox.post(name, key, payload.encode_input(data), by)
        self._engine.settle()

    def delegate(
        self, from_name: str, to: str, *, starts: datetime | str | None = None, ends: datetime | str | None = None,
        by: str = "",
    ) -> None:  # fmt: skip
        """Let `to` decide in place of `from_name`, a name or a role, between two instants: from now on, and for ever,
        when left out. by: who gives a role of theirs."""
        since = self._engine.clock.at if starts is None else read_instant(starts)
        until = FOREVER if ends is None else read_instant(ends)
        self._engine.approvals.delegations.append(Delegation(from_name, to, since, until, by or from_name))

    def crash_next(self, task: str, *, after_its_effect: bool = False, workflow: str | None = None) -> None:
        """Let the worker die with the next body of this task: before the body does anything, or once it has returned
        and before anybody hears of it. Of a map: with the next of its items. May be said several times, for the
        attempts to come. workflow: of the task, where it is one of the other `workflows`."""
        self._engine.plan_end(task, "after" if after_its_effect else "before", workflow)

    def hang_next(self, task: str, *, workflow: str | None = None) -> None:
        """Let the next body of this task never answer, so that only its `timeout` ends it."""
        self._engine.plan_end(task, "hang", workflow)

    def leave_next(self, task: str, *, workflow: str | None = None) -> None:
        """Let the next command of this task lie in its queue, where no worker takes it: only its `start_within` ends
        that, a deadline, or a person."""
        self._engine.plan_end(task, "leave", workflow)
