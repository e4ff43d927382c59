"""One simulation: the processes, their edges, the faults of its seed, and what came of it."""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Final

from pydantic import SecretStr

from connectors.relay import Relay
from connectors.settings import RelaySettings
from headrace.errors import UnavailableError
from headrace.listing import HeldTask, Listing
from headrace.machine import Plan
from headrace.parent import _report as report_death
from headrace.worker import Worker
from state.store import Store
from streams.__main__ import serve
from streams.settings import StreamsSettings
from tests.simulation.checker import Checker
from tests.simulation.kafka import Kafka
from tests.simulation.kafka_clients import Cluster
from tests.simulation.ledger import Ledger
from tests.simulation.loop import run_main
from tests.simulation.nemesis import Nemesis
from tests.simulation.postgres import Postgres
from tests.simulation.postgres_clients import Server
from tests.simulation.probes import Witness
from tests.simulation.scheduler import Process, Sim, World
from tests.simulation.workloads import WORKFLOWS, Client, make_registry, publish

LEASE_SECONDS: Final = 2.0
PARTITIONS: Final = 3
HEAL_SECONDS: Final = 90.0
"""Within so much virtual time after the last fault every run has ended."""
_SETTINGS: Final[dict[str, Any]] = {
    "secret": SecretStr("simulated-secret-simulated"),
    "lease_seconds": LEASE_SECONDS,
    "partitions": PARTITIONS,
    "host": "plain",
    "metrics_port": None,
}
_STREAMS: Final = StreamsSettings(**_SETTINGS)
_RELAY: Final = RelaySettings(**_SETTINGS, relay_lease=2.0, relay_takeover=1.0)


class Scene:
    def __init__(
        self, seed: int, on_note: Callable[[str], None] | None = None, workflows: Collection[str] = ()
    ) -> None:
        """workflows: those to draw from; all without any."""
        self.seed = seed
        self.sim = World.sim = Sim(seed, on_note)
        random = self.sim.random
        self.runs = random.randint(3, 7)
        names = sorted(workflows or WORKFLOWS)
        self.workflows = random.sample(names, min(random.randint(1, 4), len(names)))
        self.fault_seconds = 4.0 + 8.0 * random.random()
        self.postgres = Server.postgres = Postgres(self.sim)
        self.kafka = Cluster.kafka = Kafka(self.sim)
        self.ledger = Ledger(self.sim)
        self.registry = make_registry(self.ledger)
        self.versions = publish(self)
        self.processes: dict[str, Process] = {}
        self.programs: dict[str, Any] = {}
        self.listings: list[Listing] = []
        self.mains: dict[str, Callable[[], None]] = {
            "streams-1": self._streams, "streams-2": self._streams, "relay-1": self._relay, "relay-2": self._relay,
            "worker-1": self._worker, "worker-2": self._worker,
        }  # fmt: skip
        self.client = Client(self, Store(_STREAMS))
        self.checker = Checker(self)
        Witness.say = self.checker.say
        self.nemesis = Nemesis(self)

    # -- processes
    def start(self, name: str) -> None:
        """A new incarnation, with nothing in memory."""
        process = Process(self.sim, name)
        self.processes[name] = process
        process.skew = self.nemesis.skew()
        self.sim.note(name, "starts")
        self.sim.spawn(process, "main", self.mains[name])

    def _streams(self) -> None:
        run_main(lambda: serve(_STREAMS))

    def _relay(self) -> None:
        relay = Relay(_RELAY, lambda record, reason: None)
        self.programs[self.sim.current.process.name] = relay
        relay.run()

    def _worker(self) -> None:
        process = self.sim.current.process
        listing = Listing.make()
        self.listings.append(listing)
        process.on_death.append(lambda: self._speak_for(process, listing))
        worker = Worker(
            self.registry, kafka="simulated", queues=["default"], slots=3, lease=LEASE_SECONDS, name=process.name,
            drain_seconds=1.0, listing=listing,
        )  # fmt: skip
        self.programs[process.name] = worker
        run_main(worker.run)

    def _speak_for(self, process: Process, listing: Listing) -> None:
        """The worker's parent finds it dead, unless the whole host is lost."""
        notes = None if listing.has_ended else listing.notes()
        if notes is None or self.sim.random.random() < 0.4:
            return
        held = list(listing.held())
        self.sim.note(process.name, f"its parent reports {[(one.task, one.token, one.begun) for one in held]}")
        parent = Process(self.sim, f"{process.name}/parent")
        self.sim.spawn(parent, "main", lambda: self._report(notes, held))

    def _report(self, notes: dict[str, Any], held: list[HeldTask]) -> None:
        with suppress(TimeoutError, UnavailableError):
            report_death(notes, held, "it was killed")

    def task_name(self, run_id: bytes, index: int) -> str:
        return self.plan_of(run_id).name_of(index)

    def plan_of(self, run_id: bytes) -> Plan:
        return self.versions[self.postgres.tables["run"][run_id,]["version_id"]]

    # -- the whole
    def play(self) -> list[str]:
        """Faults, then calm, then the verdict: what was violated."""
        try:
            for name in self.mains:
                self.start(name)
            client = Process(self.sim, "client")
            self.sim.spawn(client, "main", lambda: run_main(self.client.run))
            self.nemesis.rage()
            self.nemesis.heal()
            self._wait_for_the_end()
            return self.checker.verdict()
        except Exception as error:
            return [*self.checker.violations, f"the simulation broke: {error!r}"]
        finally:
            self.sim.end()
            World.sim = None
            for listing in self.listings:
                os.close(listing.descriptor)

    def _wait_for_the_end(self) -> None:
        give_up_at = self.sim.now + HEAL_SECONDS
        while self.sim.now < give_up_at and not self.checker.is_quiet():
            self.sim.sleep(0.25)
            self.nemesis.restart_dead()
        self.sim.note("driver", f"waited {HEAL_SECONDS - (give_up_at - self.sim.now):.2f} s after heal")
