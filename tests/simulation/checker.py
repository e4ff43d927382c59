"""What must hold: some of it at every commit, the rest when all is quiet. Violations are sentences, in order."""

from collections import Counter, defaultdict
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from headrace.machine.place import ITEMS_MAX, compensation_of, is_compensation, is_item, item_of, task_of
from headrace.messages import Lost, decode_event
from headrace.messages import effect_key as name_effect
from tests.control_bits import (
    AWAITS_PERMIT,
    CANCELLING,
    OVERDUE,
    PAUSES,
    TERMINATED,
    WITHHOLDS,
    WORKFLOW_PAUSED,
)
from tests.simulation.kafka import Stored
from tests.simulation.postgres import Row, Transaction

if TYPE_CHECKING:
    from tests.simulation.scene import Scene

ENDS: Final = frozenset({"completed", "failed", "skipped", "cancelled"})
RUN_ENDS: Final = frozenset({"completed", "failed", "cancelled", "terminated", "compensated", "compensation_failed"})
VIOLATIONS_MAX: Final = 20
SLACK: Final = 1_000_000
"""Microseconds between two looks of one transaction at something that others change."""


class Checker:
    def __init__(self, scene: "Scene") -> None:
        self._scene = scene
        self.violations: list[str] = []
        self._lost_said: set[tuple[bytes, int, int]] = set()
        self._paused_since: dict[Any, int] = {}
        """Workflows that are paused -> since when everybody sees it."""
        self._granted: defaultdict[str, list[int]] = defaultdict(list)
        """By pool: when slots were granted, since its rate is what it is."""
        self._went_again: set[bytes] = set()
        """Runs that were rerun after an end."""
        scene.postgres.on_commit.append(self._see_commit)
        scene.kafka.on_record.append(self._see_record)

    def say(self, violation: str) -> None:
        if len(self.violations) < VIOLATIONS_MAX and violation not in self.violations:
            self.violations.append(violation)
            self._scene.sim.note("checker", violation)

    # -- at every commit
    def _see_record(self, topic: str, stored: Stored) -> None:
        if topic.endswith(".events") and isinstance(event := decode_event(stored.value), Lost):
            self._lost_said.add((UUID((stored.key or b"").decode()).bytes, event.task, event.token))

    def _see_commit(self, transaction: Transaction) -> None:
        tables = self._scene.postgres.tables
        for (table, key), after in transaction.writes.items():
            before = tables[table].get(key)
            match table:
                case "run":
                    self._see_run(key, before, after, transaction)
                case "task":
                    self._see_task(key, before, after, transaction)
                case "pool_waiter":
                    self._see_line(key, after, transaction)
                case "pool_slot":
                    self._see_line(key, after, transaction)
                    self._see_slot(key, after, transaction)
                case "pool":
                    self._see_pool(key, before, after)
                case "workflow_pause":
                    self._see_pause(key, after)
                case "bulk_item":
                    if before is not None and before["outcome"] is not None:
                        self.say(f"I26 item {_name(key)} of a bulk had its turn twice")
                case "run_permit":
                    self._see_permits(transaction)
                case "worker_session":
                    self._see_session(key, before, after)
                case "history" | "attempt":
                    if before is not None:
                        self.say(f"I7 {table} {_name(key)} was written twice")
                case _:
                    pass

    def _see_run(self, key: Any, before: Row | None, after: Row | None, transaction: Transaction) -> None:
        if after is not None and before is None:
            version = self._scene.versions[after["version_id"]]
            since = self._paused_since.get((after["namespace"], version.name))
            if since is not None and since <= transaction.now and not after["control"] & WORKFLOW_PAUSED:
                self.say(f"I25 run {_name(key)} began as if its workflow were not paused")
        if before is None or after is None:
            return
        kinds = self._told_of(key[0], transaction)
        if "reran" in kinds:
            self._went_again.add(key[0])
        elif before["status"] in RUN_ENDS:
            self.say(f"I6 run {_name(key)} changed after its end: {before['status']} to {after['status']}")
        if after["row_version"] <= before["row_version"]:
            self.say(f"I7 run {_name(key)} went back to version {after['row_version']}")
        if after["version_id"] != before["version_id"] and not kinds & {"migrated", "reran"}:
            self.say(f"I19 run {_name(key)} is on another version, and nobody has moved it")
        due_at = before.get("deadline_at")
        if after["control"] & ~before["control"] & OVERDUE and (
            due_at is None or due_at > self._scene.postgres.clock()
        ):
            self.say(f"I10 run {_name(key)} ended by its deadline, which is at {due_at}")

    def _told_of(self, run_id: bytes, transaction: Transaction) -> set[str]:
        """What history a transaction writes of a run."""
        told = [row for (table, of), row in transaction.writes.items() if table == "history" and of[0] == run_id]
        return {row["kind"] for row in told if row is not None}

    def _see_pause(self, key: Any, after: Row | None) -> None:
        """A start that began before everybody saw the pause may have missed it, and is told by a sweep."""
        self._paused_since.pop(key, None)
        if after is not None and after["resumed_at"] is None:
            self._paused_since[key] = self._scene.postgres.clock()

    def _see_task(self, key: Any, before: Row | None, after: Row | None, transaction: Transaction) -> None:
        self._see_hand_out(key, before, after, transaction)
        if after is not None and after["status"] in ENDS and self._after(transaction, "pool_slot", key) is not None:
            self.say(f"I15 task {_name(key)} has ended, and keeps its slot")
        if before is None or after is None:
            return
        if after["status"] == "failed" and msgspec.json.decode(after["error"] or b"{}").get("code") == "DEADLINE":
            due_at = before.get("deadline_at")
            is_item_of_one = is_item(key[1])  # which fails when its map's time is over
            if not is_item_of_one and (due_at is None or due_at > self._scene.postgres.clock()):
                self.say(f"I10 task {_name(key)} failed by its deadline, which is at {due_at}")
        if after["token"] < before["token"]:
            self.say(f"I4 task {_name(key)}: token fell from {before['token']} to {after['token']}")
        if before["status"] in ENDS and "reran" not in self._told_of(key[0], transaction):
            self.say(f"I6 task {_name(key)} changed after its end: {before['status']} to {after['status']}")
        if after["attempt"] < before["attempt"]:
            self.say(f"I12 task {_name(key)}: attempts fell from {before['attempt']} to {after['attempt']}")

    def _after(self, transaction: Transaction, table: str, key: Any) -> Row | None:
        """A row as it is once the transaction is seen."""
        if (table, key) in transaction.writes:
            return transaction.writes[table, key]
        return self._scene.postgres.tables[table].get(key)

    def _see_hand_out(self, key: Any, before: Row | None, after: Row | None, transaction: Transaction) -> None:
        """A run that is paused, and was not resumed in the same batch, hands nothing out; and one that undoes what it
        did undoes what came last first."""
        if after is None or after["token"] <= (0 if before is None else before["token"]):
            return
        run = transaction.writes.get(("run", key[:1])) or {}
        kinds = self._told_of(key[0], transaction)
        is_out = after["status"] not in ENDS  # what failed while it was withheld went to nobody
        if is_out and run.get("control", 0) & WITHHOLDS and not kinds & {"resumed", "permitted"}:
            before_it = self._scene.postgres.tables["run"].get(key[:1])
            if before_it is None or before_it["control"] & WITHHOLDS:
                self.say(f"I25 task {_name(key)} was handed out, and its run is paused, or waits for its permit")
        goes_on = before is not None and before["status"] not in ENDS and not _is_untouched(before)
        if is_compensation(key[1]) and not goes_on:
            self._see_undone(key, transaction)

    def _see_undone(self, key: Any, transaction: Transaction) -> None:
        plan = self._scene.plan_of(key[0])
        behind = list(plan.tasks[task_of(key[1])].dependants)
        for index in behind:  # grows while it is walked
            behind += [after for after in plan.tasks[index].dependants if after not in behind]
            other = self._after(transaction, "task", (key[0], compensation_of(index)))
            if other is not None and other["status"] not in ENDS:
                self.say(f"I21 {_name(key)} is undone before what came after it: {plan.tasks[index].name}")

    def _see_slot(self, key: Any, after: Row | None, transaction: Transaction) -> None:
        """What is granted keeps to the limits; what works and had lost its row has it again, also above them."""
        tables = self._scene.postgres.tables
        if after is None or ("pool_waiter", key) not in transaction.writes:
            return
        pool = tables["pool"]["default", after["pool"]]
        keys = tables["pool_slot"].keys() | {of for table, of in transaction.writes if table == "pool_slot"}
        rows = [self._after(transaction, "pool_slot", of) for of in keys]
        held = sum(row is not None and row["pool"] == after["pool"] for row in rows)
        if pool["slots_max"] is not None and held > pool["slots_max"]:
            self.say(f"I15 {held} slots of {pool['slots_max']} of {after['pool']} are held")
        if pool["rate_count"] is not None:
            self._see_rate(pool, after["granted_at"])

    def _see_line(self, key: Any, after: Row | None, transaction: Transaction) -> None:
        """Also a row that was deleted comes back with the fairness key that it had. A map has six items."""
        run = self._after(transaction, "run", key[:1])
        if after is None or run is None:
            return
        plan = self._scene.versions[run["version_id"]]

        def output(name: str) -> bytes:
            task = self._after(transaction, "task", (key[0], plan.index[name])) or {}
            if task["output"] is None:
                task = self._after(transaction, "attempt", (key[0], plan.index[name], task["token"])) or {}
            return str(task["output"]).encode()

        items = [msgspec.Raw(b"null")] * 6
        due = plan.at(key[1]).render_fairness_key(run["input"].encode(), output, items, item_of(key[1]))
        if after["fairness_key"] != due:
            self.say(f"I15 task {_name(key)} of key {due!r} stands in line with {after['fairness_key']!r}")

    def _see_rate(self, pool: Row, at: int) -> None:
        granted, count, seconds = self._granted[pool["name"]], pool["rate_count"], pool["rate_seconds"]
        granted.append(at)
        granted.sort()
        for first, since in enumerate(granted):
            allowed = count + count / seconds * (granted[-1] - since) / 1e6
            if len(granted) - first > allowed + 1e-3:
                self.say(
                    f"I15 {len(granted) - first} slots of {pool['name']} were granted, and its rate allows {allowed}"
                )

    def _see_pool(self, key: Any, before: Row | None, after: Row | None) -> None:
        limits = [None if row is None else (row["rate_count"], row["rate_seconds"]) for row in (before, after)]
        if limits[0] != limits[1]:
            self._granted.pop(key[1], None)

    def _see_permits(self, transaction: Transaction) -> None:
        """As the row says, and as the runs themselves do."""
        tables = self._scene.postgres.tables
        permits = tables["run_permit"] | {k: row for (of, k), row in transaction.writes.items() if of == "run_permit"}
        runs = tables["run"] | {k: row for (of, k), row in transaction.writes.items() if of == "run"}
        held = Counter(row["line"] for row in permits.values() if row is not None and row["granted_at"] is not None)
        begun = Counter(
            self._scene.versions[run["version_id"]].name
            for run in runs.values()
            if run is not None and run["status"] not in RUN_ENDS and not run["control"] & AWAITS_PERMIT
        )
        for line, count in held.items():
            limit = next(plan.limit for plan in self._scene.versions.values() if plan.name == line[1])
            if limit is not None and count > limit.runs:
                self.say(f"I31 {count} permits of {line[1]} are held, and it lets {limit.runs} runs go at once")
            if limit is not None and begun[line[1]] > limit.runs:
                self.say(f"I31 {begun[line[1]]} runs of {line[1]} go, and it lets {limit.runs} go at once")

    def _see_session(self, key: Any, before: Row | None, after: Row | None) -> None:
        if before is not None and after is not None and before["ended_at"] is not None:
            self.say(f"I3 session {str(key[0])[-6:]} was renewed after its end")

    # -- when all is quiet
    def is_quiet(self) -> bool:
        tables = self._scene.postgres.tables
        return (
            not self._scene.client.busy
            and not self._scene.client.operator.busy
            and not self._scene.client.repairer.busy
            and all(row["finished_at"] is not None for row in tables["bulk"].values())
            and all(run["status"] in RUN_ENDS for run in tables["run"].values())
            and all(row["applied_at"] is not None for row in tables["inbox"].values())
            and all(row["status"] != "asked" for row in tables["child_run"].values())
        )

    def verdict(self) -> list[str]:
        for process, lane, error in self._scene.sim.crashes:
            self.say(f"crash of {process.name}/{lane}: {error!r}")
        self._check_starts()
        self._check_progress()
        self._check_histories()
        self._check_attempts()
        self._check_status()
        self._check_maps()
        self._check_effects()
        self._check_waits()
        self._check_approvals()
        self._check_signals()
        self._check_slots()
        self._check_children()
        self._check_policies()
        self._check_delegates()
        self._check_bulks()
        self._check_rounds()
        self._check_letters()
        return self.violations

    def _check_slots(self) -> None:
        for table in ("pool_waiter", "pool_slot", "run_permit"):
            for key in self._scene.postgres.tables[table]:
                self.say(f"I15 {table} {_name(key)} is there after all runs have ended")

    def _check_starts(self) -> None:
        client, runs = self._scene.client, self._scene.postgres.tables["run"]
        for sentence in client.conflicts:
            self.say(f"I1 {sentence}")
        for key, run_id in client.started.items():
            if (UUID(run_id).bytes,) not in runs:
                self.say(f"I24 the start {key} was answered, and run {run_id[-6:]} is not there")
        started = [run for run in runs.values() if run["trigger_source"] != "child"]
        if len(started) > len(client.asked):
            self.say(f"I1 {len(client.asked)} starts made {len(started)} runs")

    def _check_progress(self) -> None:
        tables = self._scene.postgres.tables
        if self._scene.client.busy:
            self.say(f"I8 {self._scene.client.busy} requests of the client never ended")
        for key, run in tables["run"].items():
            if run["status"] not in RUN_ENDS:
                open_tasks = {
                    index: f"{task['status']}#{task['token']}"
                    for (run_id, index), task in tables["task"].items()
                    if run_id == key[0] and task["status"] not in ENDS
                }
                self.say(f"I8 run {_name(key)} is {run['status']} long after heal; open: {open_tasks}")
        for key, row in tables["inbox"].items():
            if row["applied_at"] is None:
                self.say(f"I2 request {key[0].hex()[-6:]} ({row['kind']}) was never applied")

    def _check_histories(self) -> None:
        tables = self._scene.postgres.tables
        versions: defaultdict[bytes, set[int]] = defaultdict(set)
        for run_id, version in tables["history"]:
            versions[run_id].add(version)
        for (run_id, _, _), attempt in tables["attempt"].items():
            versions[run_id].add(attempt["row_version"])
        for (run_id,), run in tables["run"].items():
            wanted = set(range(1, run["row_version"] + 1))
            if versions[run_id] != wanted:
                missing, more = sorted(wanted - versions[run_id]), sorted(versions[run_id] - wanted)
                self.say(f"I7 history of run {_name((run_id,))} lacks {missing} and has {more} too many")
        for run_id in versions:
            self._check_tokens(run_id)

    def _check_tokens(self, run_id: bytes) -> None:
        """Fold the history by itself: each hand-out ends once, and later ones end later."""
        tables = self._scene.postgres.tables
        ends: list[tuple[int, int, int, str]] = []
        for (of, version), row in tables["history"].items():
            if of == run_id and row["kind"] in ("lost", "returned") and row.get("task") is not None:
                ends.append((version, row["task"], row["token"], row["kind"]))
        for (of, task, token), attempt in tables["attempt"].items():
            if of == run_id:
                ends.append((attempt["row_version"], task, token, attempt["outcome"]))
        latest: dict[int, int] = {}
        for version, task, token, how in sorted(ends):
            if token <= latest.get(task, 0):
                self.say(f"I4 run {_name((run_id,))} task {task}: {how} at version {version} names token {token} again")
            latest[task] = max(token, latest.get(task, 0))
        for (of, task), row in tables["task"].items():
            if of == run_id and latest.get(task, 0) > row["token"]:
                self.say(f"I4 run {_name((run_id,))} task {task} is at token {row['token']}, behind its history")

    def _check_attempts(self) -> None:
        tables = self._scene.postgres.tables
        numbers: defaultdict[tuple[bytes, int], list[int]] = defaultdict(list)
        for (run_id, task, token), attempt in sorted(tables["attempt"].items()):
            numbers[run_id, task].append(attempt["attempt"])
            self._check_outcome(run_id, task, token, attempt)
        for place, found in numbers.items():
            if found != list(range(1, len(found) + 1)):
                self.say(f"I12 attempts of {_name(place)} are numbered {found}")
            state = tables["task"].get(place)
            if state is not None and state["status"] in ("completed", "failed") and state["attempt"] != len(found):
                self.say(f"I12 task {_name(place)} counts {state['attempt']} attempts and has {len(found)}")

    def _check_outcome(self, run_id: bytes, task: int, token: int, attempt: Row) -> None:
        """An outcome that a worker reported was reached by a body under that very token."""
        name = self._scene.task_name(run_id, task)
        ended = self._scene.ledger.ended.get((str(UUID(bytes=run_id)), name, token), set())
        where = f"{_name((run_id, task))}#{token}"
        if attempt["outcome"] == "completed" and "completed" not in ended:
            self.say(f"I5 attempt {where} is completed, and no body of it was")
        if attempt["outcome"] == "failed" and _code(attempt) == "ERROR" and "failed" not in ended:
            self.say(f"I4 attempt {where} failed by a body's error, and no body of it did")
        if attempt["outcome"] == "lost" and (run_id, task, token) not in self._lost_said:
            self.say(f"I4 attempt {where} was lost, and nobody said so")

    def _check_status(self) -> None:
        tables = self._scene.postgres.tables
        states: defaultdict[bytes, Counter[str]] = defaultdict(Counter)
        undone: defaultdict[bytes, list[str]] = defaultdict(list)
        for (run_id, index), task in tables["task"].items():
            if is_compensation(index):
                undone[run_id].append(task["status"])
            is_later = is_compensation(index) and _is_untouched(task)
            if index < ITEMS_MAX or (task["status"] not in ENDS and not is_later):
                states[run_id][task["status"]] += 1
        for (run_id,), run in tables["run"].items():
            total = len(self._scene.plan_of(run_id).tasks)
            self._check_cancel(run_id, run)
            if (derived := derive(total, states[run_id], run["attention"], run["control"], undone[run_id])) != run[
                "status"
            ]:
                self.say(f"I9 run {_name((run_id,))} is {run['status']}, its tasks say {derived}")

    def _check_cancel(self, run_id: bytes, run: Row) -> None:
        """What was cancelled and goes on cleans up, and behind something that had begun."""
        if not run["control"] & CANCELLING:
            return
        tasks, plan = self._scene.postgres.tables["task"], self._scene.plan_of(run_id)
        for spec in plan.tasks:
            task = tasks.get((run_id, spec.index), {"status": "pending", "token": 0})
            if spec.join != "finally" and task["status"] not in ENDS:
                self.say(f"I16 run {_name((run_id,))} was cancelled, and its task {spec.name} is {task['status']}")
            upstream = list(spec.needs)
            for need in upstream:  # grows while it is walked
                upstream += [each for each in plan.tasks[need].needs if each not in upstream]
            found = [tasks.get((run_id, need), {"token": 0})["token"] for need in upstream]
            if spec.join == "finally" and task["status"] == "cancelled" and any(found):
                self.say(f"I16 run {_name((run_id,))} was cancelled, and {spec.name} did not clean up")

    def _check_maps(self) -> None:
        """A map has counted the items that there are, each once, and its output has one place for each."""
        tables = self._scene.postgres.tables
        items: defaultdict[tuple[bytes, int], Counter[str]] = defaultdict(Counter)
        begun = Counter[tuple[bytes, int]]()
        """Without those that a rerun put back, as of a map that never came to start over."""
        for (run_id, index), task in tables["task"].items():
            if is_item(index):
                place = run_id, index // ITEMS_MAX - 1
                items[place][task["status"]] += 1
                begun[place] += not _is_untouched(task)
        for place, number in begun.items():
            if number and tables["task"].get(place, {}).get("items") is None:
                self.say(f"I9 task {_name(place)} is no map and has {number} items")
        for place, task in tables["task"].items():
            if task["items"] is None:
                continue
            states = items[place]
            counted = (sum(states.values()), states["completed"], states["failed"])
            if task["items_counted"] != counted:
                self.say(f"I9 map {_name(place)} counts {task['items_counted']}, its items are {counted}")
            if task["status"] == "completed" and len(msgspec.json.decode(task["output"])) != task["items"]:
                self.say(f"I5 map {_name(place)} of {task['items']} items gave {task['output']}")

    def _check_effects(self) -> None:
        tables, ledger = self._scene.postgres.tables, self._scene.ledger
        for sentence in ledger.wrong:
            self.say(sentence)
        calls = Counter((call.run_id, call.task) for call in ledger.calls)
        for (run_id, index), task in tables["task"].items():
            plan = self._scene.plan_of(run_id)
            spec, task_name = plan.at(index), plan.name_of(index)
            if spec.run is None or spec.map is not None:
                continue
            where, text = _name((run_id, index)), str(UUID(bytes=run_id))
            number = None if spec.repeat is None else task["rounds"] - 1
            if task["status"] == "completed" and name_effect(text, task_name, number) not in ledger.effects:
                self.say(f"I5 task {where} is completed, and its effect is not in the ledger")
            called = calls[text, task_name]
            begun = sum(count for (run, name, _), count in ledger.begun.items() if (run, name) == (text, task_name))
            if called > begun:
                self.say(f"I5 task {where} had {called} effects in {begun} bodies")
            if spec.effect != "idempotent" and called > 1:
                self.say(f"I5 the effect of task {where} ({spec.effect}) was called {called} times")
            late = [hand for hand in ledger.begun if hand[:2] == (text, task_name) and hand[2] > task["token"]]
            if late:
                self.say(f"I4 task {where} is at token {task['token']}, and {late} began")

    def _check_waits(self) -> None:
        """A run that has ended waits for nothing."""
        tables = self._scene.postgres.tables
        for run_id, task, *_ in tables["timer"]:
            if tables["run"][run_id,]["status"] in RUN_ENDS:
                self.say(f"I13 run {_name((run_id,))} has ended, and task {task} still has a timer")
        for row in tables["approval"].values():
            if row["status"] == "waiting" and tables["run"][row["run_id"],]["status"] in RUN_ENDS:
                self.say(f"I13 run {_name((row['run_id'],))} has ended, and somebody is still asked")
        for (run_id, task), _ in tables["parked_task"].items():
            if tables["run"][run_id,]["status"] in RUN_ENDS:
                self.say(f"I13 run {_name((run_id,))} has ended, and task {task} is still before a person")

    def _check_approvals(self) -> None:
        """I20: what people decided is what their votes say, and each reminder and each step fired once at most."""
        tables = self._scene.postgres.tables
        for (approval_id,), row in tables["approval"].items():
            said = [vote["decision"] for (of, _), vote in tables["approval_vote"].items() if of == approval_id]
            is_by_people = row["decided_by"] not in (None, "expiry")
            wanted = "rejected" if "reject" in said else "approved" if len(said) >= row["needed"] else None
            if is_by_people and row["status"] != wanted:
                self.say(f"I20 an approval is {row['status']}, and the votes are {said}")
            elif not is_by_people and wanted is not None:
                self.say(f"I20 the votes {said} decide an approval, and it is {row['status']}")

    def _check_signals(self) -> None:
        """I10b: what was answered is there; it was taken by one task, is kept, or was refused for a reason; and of one
        sender's the first comes first."""
        tables = self._scene.postgres.tables
        for run_id, ids in self._scene.client.signals.items():
            for signal_id in ids:
                if (UUID(signal_id).bytes,) not in tables["signal"]:
                    self.say(f"I24 the signal {signal_id[-6:]} was answered, and is not there")
            if UUID(run_id).bytes not in self._went_again:
                self._check_order(run_id, [UUID(signal_id).bytes for signal_id in ids])
        takers = Counter((row["run_id"], row["task"]) for row in tables["signal"].values() if row["status"] == "taken")
        for place, count in takers.items():
            if count > 1 and place[0] not in self._went_again:  # which waited for another each time
                self.say(f"I10b task {_name(place)} took {count} signals")
        for (signal_id,), row in tables["signal"].items():
            where = f"signal {signal_id.hex()[-6:]} of run {_name((row['run_id'],))}"
            if row["status"] == "sent":
                self.say(f"I10b {where}: nobody took note of it")
            if row["status"] == "refused" and not row["reason"]:
                self.say(f"I10b {where} was refused for no reason")
            if row["status"] == "taken" and row["run_id"] not in self._went_again:
                task = tables["task"][row["run_id"], row["task"]]
                output = msgspec.json.decode(task["output"] or b"{}")
                if task["status"] != "completed" or output.get("signal_id") != str(UUID(bytes=signal_id)):
                    self.say(f"I10b {where}: task {row['task']} took it, and does not say so")
        heard = Counter(
            msgspec.json.decode(task["output"]).get("signal_id")
            for (run_id, index), task in tables["task"].items()
            if task["status"] == "completed" and self._scene.plan_of(run_id).at(index).signal is not None
        )
        for signal_id, times in heard.items():
            if signal_id is not None and times > 1:
                self.say(f"I10b signal {signal_id[-6:]} completed {times} tasks")
        takers = Counter(
            row["posted_id"]
            for row in tables["signal"].values()
            if row.get("is_exclusive") and row["status"] == "taken"
        )
        for posted_id, count in takers.items():
            if count > 1:
                self.say(f"I10b posted signal {posted_id.hex()[-6:]} was taken {count} times")
            if tables["posted_signal"][posted_id,]["taken_as"] is None:
                self.say(f"I10b posted signal {posted_id.hex()[-6:]} was taken, and does not say so")
        for (run_id, task), _ in tables["signal_wait"].items():
            if tables["run"][run_id,]["status"] in RUN_ENDS:
                self.say(f"I13 run {_name((run_id,))} has ended, and task {task} still waits for a signal")

    def _check_children(self) -> None:
        """What was asked for is one run or was refused, its end is noted where it is awaited, and the task that waited
        says the same."""
        tables = self._scene.postgres.tables
        known = {row["run_id"] for row in tables["child_run"].values()}
        # What was terminated and rerun in part has ended as cancelled.
        asked = ("cancelled", "terminated")
        cancelled = {row["run_id"] for row in tables["inbox"].values() if row["kind"] in asked}
        if len(known) < len(tables["child_run"]):
            self.say("I1 two requests have one run")
        for (run_id,), run in tables["run"].items():
            if run["trigger_source"] == "child" and run_id not in known:
                self.say(f"I1 run {_name((run_id,))} is a child, and nobody asked for it")
        for key, row in tables["child_run"].items():
            run, task, where = tables["run"].get((row["run_id"],)), tables["task"][key[:2]], f"child {_name(key)}"
            if row["status"] == "asked":
                self.say(f"I13 {where} was never started")
            if run is None and row["status"] not in ("refused", "cancelled"):
                self.say(f"I1 {where} is {row['status']}, and there is no run")
            is_as_told = run is None or run["status"] == row["status"] or row["run_id"] in self._went_again
            if run is not None and row["is_awaited"] and not is_as_told:
                self.say(f"I13 {where} is {row['status']}, its run is {run['status']}")
            is_asked = row["cancel_asked_at"] is not None or row["run_id"] in cancelled
            if run is not None and run["status"] == "cancelled" and not is_asked:
                self.say(f"I16 {where} was cancelled, and nobody asked for that")
            if task["token"] != key[2] or not row["is_awaited"] or task["status"] not in ENDS:
                continue
            code = msgspec.json.decode(task["error"] or b"{}").get("code")
            if code == "CHILD_CANCELLED" and row["status"] not in ("cancelled", "terminated"):
                self.say(f"I9 {where} is {row['status']}, its task {task['status']} ({code})")
            if task["status"] not in ("completed", "failed"):
                continue
            is_other = (task["status"] == "completed") != (row["status"] == "completed")
            # A child that was rerun by itself ends again, and its task keeps what it was told first (decision 22).
            if is_other and code != "TIMEOUT" and row["run_id"] not in self._went_again:
                self.say(f"I5 {where} is {row['status']}, its task {task['status']} ({code})")

    def _check_policies(self) -> None:
        """I16: a child whose task was ended before it was asked to end as well, or left alone, as the task says."""
        tables = self._scene.postgres.tables
        for key, row in tables["child_run"].items():
            task, run = tables["task"][key[:2]], tables["run"].get((row["run_id"],))
            spec = self._scene.plan_of(key[0]).tasks[key[1]].child
            if spec is None or task["status"] != "cancelled" or task["token"] != key[2]:
                continue
            if not spec.is_cancelled_with_task and row["cancel_asked_at"] is not None:
                self.say(f"I16 child {_name(key)} was to be left alone, and is asked to end")
            ended_later = run is not None and run["finished_at"] > task["changed_at"] + SLACK
            if spec.is_cancelled_with_task and row["cancel_asked_at"] is None and ended_later:
                self.say(f"I16 child {_name(key)} was not asked to end with its task")

    def _check_delegates(self) -> None:
        """I20: everybody has one vote, of their own or of whoever let them decide in their place then."""
        tables = self._scene.postgres.tables
        voters = Counter((key[0], row["voter"]) for key, row in tables["approval_vote"].items())
        for (approval_id, voter), votes in voters.items():
            if votes > 1:
                self.say(f"I20 {voter} has {votes} votes about one question")
            if voter not in msgspec.json.decode(tables["approval"][approval_id,]["approvers"]):
                self.say(f"I20 {voter} has voted, and was not asked")
        for (_, actor), row in tables["approval_vote"].items():
            given = [
                one
                for one in tables["delegation"].values()
                if (one["from_name"], one["to_name"]) == (row["in_place_of"], actor)
                and one["starts_at"] <= row["at"] < one["ends_at"] + SLACK
            ]
            if row["in_place_of"] is not None and not given:
                self.say(f"I20 {actor} has voted in place of {row['in_place_of']}, who had not asked for that")

    def _check_bulks(self) -> None:
        """I26: of what a bulk did, each run was asked once; of what it did not do, none."""
        tables = self._scene.postgres.tables
        actors = {key[0]: row["created_by"] for key, row in tables["bulk"].items()}
        moves = {row["created_by"] for row in tables["bulk"].values() if row["act"] == "move"}
        asked = Counter((row["actor"], row["run_id"]) for row in tables["inbox"].values())
        kinds = Counter((row["actor"], row["run_id"], row["kind"]) for row in tables["inbox"].values())
        items = Counter((actors[key[0]], row["item_id"]) for key, row in tables["bulk_item"].items())
        done = Counter(
            (actors[bulk_id], row["item_id"])
            for (bulk_id, _), row in tables["bulk_item"].items()
            if row["outcome"] == "done"
        )
        for place in {place for place in asked.keys() | done.keys() if place[0] in set(actors.values()) - moves}:
            if asked[place] != done[place]:
                self.say(f"I26 {place[0]} asked run {_name(place[1:])} {asked[place]} times for {done[place]} turns")
        for (actor, run_id, kind), times in kinds.items():
            if actor in moves and times > items[actor, run_id]:
                self.say(f"I26 {actor} asked run {_name((run_id,))} {times} times that it be {kind}")
        for key, row in tables["bulk"].items():
            if row["finished_at"] is None:
                self.say(f"I8 bulk {_name(key)} never ended")
        for key, row in tables["held_command"].items():
            if row["released_at"] is None:
                self.say(f"I13 a command of task {_name(key)} is still kept back")

    def _check_rounds(self) -> None:
        """A repeat counts the rounds that ended well, and has no more than it may."""
        tables = self._scene.postgres.tables
        ended = Counter(key[:2] for key, row in tables["attempt"].items() if row["outcome"] == "completed")
        for (run_id, index), task in tables["task"].items():
            repeat = self._scene.plan_of(run_id).at(index).repeat
            if repeat is None:
                continue
            has_other = task["rounds"] != ended[run_id, index] or task["rounds"] > repeat.max
            if has_other and run_id not in self._went_again:  # which began with the first, or went on behind the last
                self.say(f"I12 task {_name((run_id, index))} counts {task['rounds']} rounds of {ended[run_id, index]}")

    def _check_letters(self) -> None:
        """I22: a letter of a task is parked for as long as the task has failed under its token, and no longer."""
        tables = self._scene.postgres.tables
        for (kind, *of), letter in tables["dead_letter"].items():
            if kind != "task" or letter["status"] != "parked":
                continue
            run_id, index, token = of
            task = tables["task"][run_id, index]
            if (task["status"], task["token"]) != ("failed", token):
                now = f"{task['status']}#{task['token']}"
                self.say(f"I22 a letter of task {_name((run_id, index))}#{token} is parked, and the task is {now}")

    def _check_order(self, run_id: str, ids: list[bytes]) -> None:
        """Those of no key are for whoever waits: none is taken by a task while an earlier one of them is only kept."""
        rows = [self._scene.postgres.tables["signal"].get((signal_id,)) for signal_id in ids]
        statuses = [row["status"] for row in rows if row is not None and row["key"] is None]
        if statuses != sorted(statuses, key=["taken", "kept", "refused"].index):
            self.say(f"I10b signals of run {run_id[-6:]}, as they were sent, are {statuses}")


def derive(total: int, states: Counter[str], attention: bool, control: int, undone: Collection[str] = ()) -> str:
    """A run's status told again, not with the product's words."""
    if attention:
        return "needs_attention"
    if sum(states[end] for end in ENDS) == total:
        if control & TERMINATED:
            return "terminated"
        if undone:
            is_done = all(status in ENDS for status in undone)
            if is_done:
                return "compensation_failed" if "failed" in undone else "compensated"
            if not control & PAUSES:
                return "compensating"
            return "pausing" if states["queued"] or states["running"] else "paused"
        is_cancelled = states["cancelled"] or control & CANCELLING
        return "failed" if states["failed"] or control & OVERDUE else "cancelled" if is_cancelled else "completed"
    if control & PAUSES:
        return "pausing" if states["queued"] or states["running"] else "paused"
    if control & CANCELLING:
        return "cancelling"
    is_busy = states["queued"] or states["running"] or states["pending"]
    return "waiting" if states["waiting"] and not is_busy else "running"


def _name(key: Any) -> str:
    return "/".join(one.hex()[-6:] if isinstance(one, bytes) else str(one) for one in key)


def _is_untouched(task: Row) -> bool:
    """Nothing but the graph makes it begin: it has not begun yet, or is as if it had not."""
    return task["status"] == "pending" and not task["due_at"] and not task["withheld"]


def _code(attempt: Row) -> str:
    return str(msgspec.json.decode(attempt["error"] or b"{}").get("code", ""))
