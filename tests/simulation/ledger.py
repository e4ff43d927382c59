"""The world outside: effects with their keys, and what bodies did, told by themselves. Nothing here can be killed."""

from collections import Counter
from typing import NamedTuple

from tests.simulation.scheduler import Process, Sim

Hand = tuple[str, str, int]
"""Run, name of the task, token."""


class Call(NamedTuple):
    key: str
    run_id: str
    task: str
    token: int
    attempt: int
    at: float


class Ledger:
    def __init__(self, sim: Sim) -> None:
        self._sim = sim
        self.calls: list[Call] = []
        self.effects: dict[str, Call] = {}
        """Effect key -> the call that made it so; a sink that honours keys."""
        self.begun: Counter[Hand] = Counter()
        self.ended: dict[Hand, set[str]] = {}
        self.wrong: list[str] = []
        self.exclusive: set[str] = set()
        """Names of tasks whose bodies must not overlap."""
        self._running: dict[tuple[str, str], dict[int, Process]] = {}
        self._newest: dict[tuple[str, str], int] = {}
        self._refused: dict[tuple[str, str], int] = {}

    def begin(self, run_id: str, task: str, token: int, *, is_exclusive: bool) -> None:
        self.begun[run_id, task, token] += 1
        self._sim.note("body", f"{run_id[-6:]} {task}#{token} begins")
        running = self._running.setdefault((run_id, task), {})
        if is_exclusive:
            self.exclusive.add(task)
            for other, process in running.items():
                if process.is_alive and not process.is_paused:
                    self.wrong.append(f"I3 {run_id[-6:]} {task}: body #{token} began while #{other} ran")
        running[token] = self._sim.current.process
        self._newest[run_id, task] = max(token, self._newest.get((run_id, task), 0))

    def busy(self) -> list[Process]:
        """Those that run a body now; if there are any, those whose body must not overlap with another."""
        found = {task: process for (_, task), running in self._running.items() for process in running.values()}
        awake = {task: process for task, process in found.items() if process.is_alive and not process.is_paused}
        return [awake[task] for task in awake if task in self.exclusive] or list(awake.values())

    def end(self, run_id: str, task: str, token: int, outcome: str) -> None:
        self.ended.setdefault((run_id, task, token), set()).add(outcome)
        self._running.get((run_id, task), {}).pop(token, None)
        self._sim.note("body", f"{run_id[-6:]} {task}#{token} {outcome}")

    def ask(self, key: str, run_id: str, task: str) -> bool:
        """Whether this effect was made. If not, what had begun until now is refused from here on: who asks is about to
        say that it did not happen, and a body that is frozen may not make it so afterwards."""
        if key not in self.effects:
            self._refused[run_id, task] = self._newest.get((run_id, task), 0)
        return key in self.effects

    def call(self, key: str, run_id: str, task: str, token: int, attempt: int, *, is_guarded: bool) -> None:
        """Make an effect so; once, however often it is called with this key. is_guarded: right behind `ctx.effect`.
        Raises RuntimeError for a hand-out that is refused."""
        if token <= self._refused.get((run_id, task), -1):
            raise RuntimeError("refused: a person was told that it did not happen")
        call = Call(key, run_id, task, token, attempt, self._sim.now)
        self.calls.append(call)
        self.effects.setdefault(key, call)
        self._sim.note("ledger", f"{run_id[-6:]} {task}#{token}")
        if is_guarded and token < self._newest.get((run_id, task), 0):
            newest = self._newest[run_id, task]
            self.wrong.append(f"I4 {run_id[-6:]} {task}: an effect under #{token} when #{newest} had begun")
