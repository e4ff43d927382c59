"""A model of Kafka: logs with offsets and topic ids, groups, and the ways in which records go wrong.

Modelled: append in order per producer and partition, delivery after a while, consumer groups whose partitions move
only after they were let go (KIP-848), members that are dead or frozen beyond the session time-out, committed offsets,
a broker that is away, a wiped broker (new topic ids, no groups), a topic made anew, a tail lost after it was
acknowledged. Chaos at the append stands for whatever happens to a record on its way: it is lost, doubled, or late.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulation.scheduler import Sim

if TYPE_CHECKING:
    from tests.simulation.kafka_clients import FakeConsumer

SESSION_SECONDS: Final = 1.5
"""After which a member that is not heard of is out of its group."""
Place = tuple[str, int]


class Stored(NamedTuple):
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]] | None


class Topic:
    def __init__(self, topic_id: str, partitions: int) -> None:
        self.topic_id = topic_id
        self.logs: list[list[Stored]] = [[] for _ in range(partitions)]


class Group:
    """Who reads what. A partition has a new owner only when the old one has let it go, or is out."""

    def __init__(self) -> None:
        self.members: list[FakeConsumer] = []
        self.owners: dict[Place, FakeConsumer] = {}
        self.committed: dict[Place, int] = {}
        self.target: dict[Place, FakeConsumer] = {}

    def plan(self, topics: dict[str, Topic]) -> None:
        """Spread the partitions evenly; those that can stay do."""
        self.target = {}
        for name in sorted(topics):
            members = [member for member in self.members if name in member.topics]
            if not members:
                continue
            places = [(name, p) for p in range(len(topics[name].logs))]
            most = -(-len(places) // len(members))
            counts: dict[int, int] = {}
            for place in places:
                owner = self.owners.get(place)
                if owner in members and counts.get(id(owner), 0) < most:
                    self.target[place] = owner
                    counts[id(owner)] = counts.get(id(owner), 0) + 1
            for place in places:
                if place not in self.target:
                    member = min(members, key=lambda one: counts.get(id(one), 0))
                    self.target[place] = member
                    counts[id(member)] = counts.get(id(member), 0) + 1

    def drop(self, member: "FakeConsumer", topics: dict[str, Topic]) -> None:
        if member in self.members:
            self.members.remove(member)
        self.owners = {place: owner for place, owner in self.owners.items() if owner is not member}
        self.plan(topics)


class Chaos(NamedTuple):
    """Chances for each record, while faults are on."""

    lost: float = 0.0
    doubled: float = 0.0
    late: float = 0.0
    late_seconds: float = 10.0


CALM: Final = Chaos()


class Kafka:
    def __init__(self, sim: Sim) -> None:
        self.sim = sim
        self.is_up = True
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, Group] = {}
        self.consumers: list[FakeConsumer] = []
        self.chaos = CALM
        self.lost, self.doubled, self.late = 0, 0, 0
        self._ids = 0
        self._waiting: list[Callable[[], None]] = []
        self.on_record: list[Callable[[str, Stored], None]] = []

    # -- topics
    def create(self, name: str, partitions: int) -> bool:
        if name in self.topics:
            return False
        self._ids += 1
        self.topics[name] = Topic(f"topic-{self._ids}", partitions)
        self.sim.note("kafka", f"topic {name} made as topic-{self._ids}")
        self._plan_all()
        self.came_back()
        return True

    def wipe(self) -> None:
        """The data directory is gone: no topics, no groups, other ids."""
        self.sim.note("kafka", "wiped")
        self.topics.clear()
        self._forget_groups()

    def recreate(self, name: str) -> None:
        """Deleted and made again; the group's offsets stay, and lie ahead of the end."""
        topic = self.topics.pop(name, None)
        if topic is not None:
            self.create(name, len(topic.logs))

    def lose_tail(self, name: str) -> None:
        """Records that were acknowledged are gone, as after a power cut."""
        topic = self.topics.get(name)
        for partition, log in enumerate(topic.logs if topic is not None else []):
            count = self.sim.random.randrange(0, min(5, len(log)) + 1)
            if count:
                del log[-count:]
                self.sim.note("kafka", f"{name}/{partition} lost its last {count}")

    def _forget_groups(self) -> None:
        for group in self.groups.values():
            for member in list(group.members):
                member.is_out = True
                group.members.remove(member)
            group.owners.clear()
            group.committed.clear()
            group.target.clear()
        for consumer in self.consumers:
            consumer.poke()

    # -- up and down
    def go_down(self) -> None:
        self.sim.note("kafka", "down")
        self.is_up = False

    def come_up(self) -> None:
        self.sim.note("kafka", "up")
        self.is_up = True
        self.came_back()

    def wait(self, then: Callable[[], None]) -> None:
        """Call when something may have changed: the broker is up, or a topic exists."""
        self._waiting.append(then)

    def came_back(self) -> None:
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            self.sim.at(self.sim.latency(0.001, 0.3), then)
        for consumer in self.consumers:
            self.sim.at(self.sim.latency(0.001, 0.3), consumer.poke)

    # -- records
    def append(self, name: str, partition: int, stored: Stored) -> bool:
        """Take one record, through whatever chaos there is; False when the topic is not there."""
        topic = self.topics.get(name)
        if topic is None or partition >= len(topic.logs):
            return False
        chaos, draw = self.chaos, self.sim.random.random
        if chaos is not CALM:
            if draw() < chaos.lost:
                self.lost += 1
                self.sim.note("kafka", f"lost on its way to {name}/{partition}: {_short(stored)}")
                return True
            if draw() < chaos.doubled:
                self.doubled += 1
                self._later(name, partition, stored, chaos.late_seconds)
            if draw() < chaos.late:
                self.late += 1
                self._later(name, partition, stored, chaos.late_seconds)
                return True
        self._put(name, topic, partition, stored)
        return True

    def _later(self, name: str, partition: int, stored: Stored, seconds: float) -> None:
        def come() -> None:
            topic = self.topics.get(name)
            if topic is not None and partition < len(topic.logs):
                self._put(name, topic, partition, stored)

        self.sim.at(seconds * self.sim.random.random() ** 2, come)

    def _put(self, name: str, topic: Topic, partition: int, stored: Stored) -> None:
        topic.logs[partition].append(stored)
        for told in self.on_record:
            told(name, stored)
        self.sim.note("kafka", f"{name}/{partition}@{len(topic.logs[partition]) - 1} {_short(stored)}")
        for consumer in self.consumers:
            if (name, partition) in consumer.positions:
                self.sim.at(self.sim.latency(), consumer.poke)

    # -- groups
    def join(self, name: str, member: "FakeConsumer") -> None:
        group = self.groups.setdefault(name, Group())
        if member not in group.members:
            group.members.append(member)
        self._plan(group)

    def leave(self, name: str, member: "FakeConsumer") -> None:
        group = self.groups.get(name)
        if group is not None:
            group.drop(member, self.topics)
            self._tell(group)

    def _plan(self, group: Group) -> None:
        group.plan(self.topics)
        self._tell(group)

    def _plan_all(self) -> None:
        for group in self.groups.values():
            self._plan(group)

    def _tell(self, group: Group) -> None:
        for member in group.members:
            self.sim.at(self.sim.latency(0.01, 0.3), member.poke)

    def release(self, name: str, member: "FakeConsumer", places: Iterable[Place]) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        for place in places:
            if group.owners.get(place) is member:
                del group.owners[place]
        self._tell(group)

    def ends(self, name: str) -> dict[int, int]:
        topic = self.topics.get(name)
        return {} if topic is None else {p: len(log) for p, log in enumerate(topic.logs)}


def _short(stored: Stored) -> str:
    key: Any = (stored.key or b"")[-6:].decode("ascii", "replace")
    return f"{key} {(stored.value or b'')[:90].decode('utf-8', 'replace')}"
