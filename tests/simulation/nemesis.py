"""What goes wrong. Each seed draws a few kinds of faults and how hard they come, so that no kind hides another."""

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tests.simulation.kafka import CALM, Chaos
from tests.simulation.postgres import Row

if TYPE_CHECKING:
    from tests.simulation.scene import Scene

KILL_STEPS: Final = 150
"""A process is killed at one of so many yield points from now."""


class Nemesis:
    def __init__(self, scene: "Scene") -> None:
        self._scene, self._sim = scene, scene.sim
        self.faults: Counter[str] = Counter()
        self._dead_since: dict[str, float] = {}
        self._is_raging = True
        self._kinds: dict[str, Callable[[], None]] = {
            "kill": self._kill, "pause": self._pause, "kill-all": self._kill_all, "kafka-down": self._kafka_down,
            "kafka-wiped": self._wipe, "topic-recreated": self._recreate, "tail-lost": self._lose_tail,
            "postgres-down": self._postgres_down, "slot-lost": self._lose_slot, "stop": self._stop,
            "timer-lost": self._lose_timer, "parked-lost": self._lose_parked,
            "waiter-lost": self._lose_waiter, "permit-lost": self._lose_permit,
        }  # fmt: skip
        random = self._sim.random
        self._chosen = random.sample(sorted(self._kinds), random.randint(1, 4))
        for kind in ("kill", "pause"):
            if random.random() < 0.5 and kind not in self._chosen:
                self._chosen.append(kind)
        self._pause_between = 0.3 + random.random() * 1.5
        self._is_skewed = random.random() < 0.2

    def skew(self) -> float:
        return self._sim.random.uniform(-3600, 3600) if self._is_skewed else 0.0

    # -- phases
    def rage(self) -> None:
        self._begin()
        over_at = self._sim.now + self._scene.fault_seconds
        while self._sim.now < over_at:
            self._sim.sleep(self._pause_between * (0.5 + self._sim.random.random()))
            kind = self._sim.random.choice(self._chosen)
            self.faults[kind] += 1
            self._kinds[kind]()
            self.restart_dead()

    def _begin(self) -> None:
        random, kafka, postgres = self._sim.random, self._scene.kafka, self._scene.postgres
        if random.random() < 0.4:
            rate = random.choice([0.01, 0.05, 0.2])
            kafka.chaos = Chaos(rate * random.random(), rate * random.random(), rate * random.random(), 15.0)
        if random.random() < 0.3:
            postgres.cut_chance = random.choice([0.002, 0.02])
        if random.random() < 0.6:
            postgres.visibility_lag = random.choice([0.005, 0.05, 0.3])
        self._sim.note("nemesis", f"{self._chosen} {kafka.chaos} {postgres.cut_chance} {postgres.visibility_lag}")

    def heal(self) -> None:
        """Everything is there again, and nothing goes wrong any more."""
        scene = self._scene
        self._is_raging = False
        scene.kafka.chaos = CALM
        scene.postgres.cut_chance = 0.0
        if not scene.kafka.is_up:
            scene.kafka.come_up()
        if not scene.postgres.is_up:
            scene.postgres.come_up()
        for process in scene.processes.values():
            process.dies_after = None  # one that is frozen comes back in its own time
        self._sim.note("nemesis", "healed")
        self.restart_dead()

    def restart_dead(self) -> None:
        """The supervisor: what ended begins again, after a while."""
        for name, process in list(self._scene.processes.items()):
            if process.is_alive:
                self._dead_since.pop(name, None)
                continue
            since = self._dead_since.setdefault(name, self._sim.now)
            if not self._is_raging or self._sim.now - since > self._sim.random.random() * 2:
                del self._dead_since[name]
                self._scene.start(name)

    # -- kinds
    def _any_process(self) -> str:
        return self._sim.random.choice(sorted(self._scene.processes))

    def _kill(self) -> None:
        process = self._scene.processes[self._any_process()]
        process.resume()
        process.dies_after = self._sim.random.randint(1, KILL_STEPS)

    def _kill_all(self) -> None:
        for process in list(self._scene.processes.values()):
            process.kill()

    def _pause(self) -> None:
        """Mostly one that is in the middle of something."""
        busy = self._scene.ledger.busy() if self._sim.random.random() < 0.6 else []
        process = self._sim.random.choice(busy) if busy else self._scene.processes[self._any_process()]
        if process.is_alive and not process.is_paused:
            process.pause()
            seconds = self._sim.random.choice([0.5, 2.2, 6.0, 6.0]) * (0.5 + self._sim.random.random())
            self._sim.at(seconds, process.resume)

    def _stop(self) -> None:
        """In order, as SIGTERM does; the supervisor starts it again."""
        name = self._sim.random.choice(sorted(self._scene.programs) or ["none"])
        program, process = self._scene.programs.get(name), self._scene.processes.get(name)
        if program is not None and process is not None and process.is_alive:
            self._sim.note(name, "asked to stop")
            program.stop()

    def _kafka_down(self) -> None:
        kafka = self._scene.kafka
        if kafka.is_up:
            kafka.go_down()
            self._sim.at(0.2 + self._sim.random.random() * 4, lambda: None if kafka.is_up else kafka.come_up())

    def _wipe(self) -> None:
        self._scene.kafka.wipe()

    def _recreate(self) -> None:
        topics = sorted(self._scene.kafka.topics)
        if topics:
            self._scene.kafka.recreate(self._sim.random.choice(topics))

    def _lose_tail(self) -> None:
        topics = sorted(self._scene.kafka.topics)
        if topics:
            self._scene.kafka.lose_tail(self._sim.random.choice(topics))

    def _postgres_down(self) -> None:
        postgres = self._scene.postgres
        if postgres.is_up:
            postgres.go_down()
            self._sim.at(0.1 + self._sim.random.random() * 3, lambda: None if postgres.is_up else postgres.come_up())

    def _lose_slot(self) -> None:
        self._scene.postgres.lose_slots()

    def _lose_timer(self) -> None:
        self._delete_one("timer")

    def _lose_parked(self) -> None:
        self._delete_one("parked_task")

    def _lose_waiter(self) -> None:
        self._delete_one("pool_waiter")

    def _lose_permit(self) -> None:
        """Of a run in line: what holds one would make room for another with it."""
        self._delete_one("run_permit", lambda row: row["granted_at"] is None)

    def _delete_one(self, table: str, wanted: Callable[[Row], bool] = lambda row: True) -> None:
        """A row deleted by hand."""
        postgres = self._scene.postgres
        free = [
            key for key, row in postgres.tables[table].items() if (table, key) not in postgres.locks and wanted(row)
        ]
        if free:
            key = self._sim.random.choice(free)
            del postgres.tables[table][key]
            self._sim.note("postgres", f"{table} of {key[0].hex()[-6:]} {key[1:]} deleted")
