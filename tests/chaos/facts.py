"""What the oracle knows of one run of the harness: ledger, client log and final dump, indexed."""

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

Row = dict[str, Any]
Key = tuple[str, int]
"""(run id, task)"""

RUN_TERMINAL: Final = frozenset(
    {"completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed"}
)
STOPS: Final = ("cancelled", "terminated")
PAUSE_MOVES: Final = ("paused", "resumed")
TERMINAL: Final = RUN_TERMINAL | {"skipped"}
CLOCK_SECONDS: Final = 0.005
"""Two clocks of one machine, read one after the other."""
ITEMS_MAX: Final = 10_000
COMPENSATIONS_FROM: Final = 200_000_000
"""An item of a map has the number (task + 1) * ITEMS_MAX + item."""


def is_item(place: int) -> bool:
    return ITEMS_MAX <= place < COMPENSATIONS_FROM


def is_compensation(place: int) -> bool:
    return place >= COMPENSATIONS_FROM


def task_of(place: int) -> int:
    if is_compensation(place):
        return place - COMPENSATIONS_FROM
    return place // ITEMS_MAX - 1 if is_item(place) else place


def seconds_of(text: Any) -> float:
    if isinstance(text, int | float):
        return float(text)
    return float(text.removesuffix("ms")) / 1000 if text.endswith("ms") else float(text.removesuffix("s"))


class Violation(NamedTuple):
    invariant: str
    what: str
    where: str
    """Run, task, key or row that shows it."""


class Facts:
    """The three inputs, indexed."""

    def __init__(self, ledger: list[Row], client_log: list[Row], dump: dict[str, list[Row]]) -> None:
        self.ledger, self.log, self.dump = ledger, client_log, dump
        self.runs = {row["run_id"]: row for row in dump["run"]}
        self.attempts: dict[Key, list[Row]] = defaultdict(list)
        self.history: dict[str, list[Row]] = defaultdict(list)
        self.strays = [
            f"{table} {row['run_id']}"
            for table in (
                "task",
                "attempt",
                "history",
                "timer",
                "inbox",
                "approval",
                "signal",
                "signal_wait",
                "pool_slot",
                "pool_waiter",
                "held_command",
                "run_permit",
            )
            for row in dump.get(table, [])
            if row["run_id"] not in self.runs
        ]
        """Rows of runs that are not there; nothing else looks at them."""
        dump = self.dump = {table: [row for row in rows if self._is_known(row)] for table, rows in dump.items()}
        self.specs = {row["version_id"]: list(row["definition"]["tasks"].items()) for row in dump["workflow_version"]}
        sizes = {run_id: len(self.specs[row["version_id"]]) for run_id, row in self.runs.items()}
        self.astray: list[Key] = [
            (row["run_id"], row["task"]) for row in dump["task"] if task_of(row["task"]) >= sizes[row["run_id"]]
        ]
        """Tasks that the version of their run does not have; nothing else looks at them."""
        dump["task"] = [row for row in dump["task"] if (row["run_id"], row["task"]) not in self.astray]
        self.tasks: dict[Key, Row] = {(row["run_id"], row["task"]): row for row in dump["task"]}
        for row in sorted(dump["attempt"], key=lambda row: (row["token"], row["row_version"])):
            self.attempts[row["run_id"], row["task"]].append(row)
        for row in sorted(dump["history"], key=lambda row: row["row_version"]):
            self.history[row["run_id"]].append(row)
        self._versions = {row["version_id"]: row for row in dump["workflow_version"]}
        self._over = {
            row["definition"]["name"]: row["definition"]["limit"].get("over", "queue")
            for row in dump["workflow_version"]
            if "limit" in row["definition"]
        }
        self.effects: dict[str, list[Row]] = defaultdict(list)
        self.by_run: dict[str, list[Row]] = defaultdict(list)
        for line in ledger:
            self.effects[line["key"]].append(line)
            if "run" in line:
                self.by_run[line["run"]].append(line)
        self.faults = [entry for entry in client_log if entry["op"] == "fault"]
        self.open_items = [
            (run_id, task["status"])
            for (run_id, place), task in self.tasks.items()
            if is_item(place) and task["status"] not in TERMINAL
        ]
        self.letters = {row["dead_letter_id"]: row for row in dump["dead_letter"]}
        self._undone: dict[str, dict[int, str]] = defaultdict(dict)
        for (run_id, place), task in self.tasks.items():
            if is_compensation(place):
                self._undone[run_id][place] = task["status"]

    def _is_known(self, row: Row) -> bool:
        is_of_no_run = "digest" in row or "parent_run_id" in row  # a child has one only once it starts
        return is_of_no_run or row.get("run_id") is None or row["run_id"] in self.runs

    def calls(self, op: str, outcome: str | None = None) -> Iterator[Row]:
        return (e for e in self.log if e["op"] == op and (outcome is None or e["outcome"] == outcome))

    def spec(self, key: Key) -> Row:
        """What the graph says about a task. Of a map the items have the body."""
        spec: Row = self.specs[self.runs[key[0]]["version_id"]][task_of(key[1])][1]
        if is_compensation(key[1]):
            undo: Row = spec["compensate"]
            return undo
        if "map" not in spec:
            return spec
        return {name: given for name, given in spec.items() if name != ("map" if is_item(key[1]) else "run")}

    def _task_name(self, key: Key) -> str:
        name: str = self.specs[self.runs[key[0]]["version_id"]][task_of(key[1])][0]
        if is_compensation(key[1]):
            return f"{name}.compensate"
        return f"{name}.{key[1] % ITEMS_MAX}" if is_item(key[1]) else name

    def name(self, key: Key) -> str:
        return f"{key[0]}.{self._task_name(key)}"

    def effect_key(self, key: Key) -> str:
        return f"{key[0]}/{self._task_name(key)}"

    def counts(self, run_id: str) -> Counter[str]:
        """The tasks of a run by state, and the open items of its maps. Those that nobody has touched are `untouched`,
        and keep no run busy, as in the machine."""
        total = len(self.specs[self.runs[run_id]["version_id"]])
        counts = Counter(
            self.tasks[run_id, task]["status"] if (run_id, task) in self.tasks else "untouched" for task in range(total)
        )
        counts.update(status for of, status in self.open_items if of == run_id)
        return counts

    def undone(self, run_id: str) -> dict[int, str]:
        """Its compensations by state."""
        return self._undone.get(run_id, {})

    def bodies(self, key: Key) -> list[Row]:
        """What bodies of a task told the ledger; of a repeat those of all its rounds."""
        name = self.effect_key(key)
        return self.effects.get(name, []) + [line for each in self.rounds(key) for line in self.effects.get(each, [])]

    def rounds(self, key: Key) -> list[str]:
        """Effect keys of the rounds of a repeat, with those that it may have had since it was taken up again; none of
        what is none."""
        repeat = self.spec(key).get("repeat")
        most = repeat["max"] * (1 + len(self.again(key))) if repeat else 0
        return [f"{self.effect_key(key)}/{number}" for number in range(most)]

    def again(self, key: Key) -> list[int]:
        """The moves of its run from which on a task that had failed was tried anew."""
        told = [*self.of_task(key, "replayed", "resolved"), *self.of_run(key[0], "reran")]
        return sorted({row["row_version"] for row in told})

    def of_run(self, run_id: str, *kinds: str) -> list[Row]:
        return [row for row in self.history[run_id] if row["kind"] in kinds]

    def version(self, run_id: str) -> Row:
        return self._versions[self.runs[run_id]["version_id"]]

    def limit(self, run_id: str) -> Row | None:
        """How many runs of a key may go at once beside it, with the name of its workflow."""
        definition = self.version(run_id)["definition"]
        if "limit" not in definition:
            return None
        return {"name": definition["name"], "runs": 1, "over": "queue", **definition["limit"]}

    def over(self, workflow: str) -> str | None:
        """What becomes of one start more, where there is a limit."""
        return self._over.get(workflow)

    def cleans_up(self, key: Key) -> bool:
        return not is_compensation(key[1]) and self.spec(key).get("join") == "finally"

    def is_deadline_of_run(self, row: Row) -> bool:
        return row["kind"] == "due" and row["task"] is None and (row["detail"] or {}).get("timer") == "deadline"

    def of_task(self, key: Key, *kinds: str) -> list[Row]:
        return [r for r in self.history[key[0]] if r["task"] == key[1] and (not kinds or r["kind"] in kinds)]


Found = Iterator[tuple[str, str]]
"""What must not be, and where."""
