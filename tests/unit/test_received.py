"""What may be called lost: commands that were published, received, and not listed a lease later."""

from datetime import UTC, datetime, timedelta

from streams.received import PROBES_MAX, Received
from streams.topics import Log

LEASE = timedelta(seconds=10)
TOPIC = "headrace.commands.default"


def at(seconds: float) -> datetime:
    return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def log(end: int, topic_id: str = "a") -> Log:
    return Log(topic_id, {0: end, 1: 0})


def test_a_backlog_is_never_called_received():
    received = Received(LEASE)
    for second in range(0, 100, 5):
        received.observe(TOPIC, log(1000), {0: 999, 1: -1}, at(second))
    assert received.before(TOPIC) is None


def test_what_was_published_before_the_probe_is_received_a_lease_after_the_group_passed_it():
    received = Received(LEASE)
    received.observe(TOPIC, log(10), {0: 0, 1: -1}, at(0))
    received.observe(TOPIC, log(20), {0: 10, 1: -1}, at(5))
    assert received.before(TOPIC) is None
    received.observe(TOPIC, log(20), {0: 10, 1: -1}, at(14))
    assert received.before(TOPIC) is None
    received.observe(TOPIC, log(20), {0: 10, 1: -1}, at(15))
    assert received.before(TOPIC) == at(0)


def test_a_steady_flow_ripens_although_the_group_is_always_a_little_behind():
    received = Received(LEASE)
    for second in range(60):
        received.observe(TOPIC, log(100 * second + 100), {0: 100 * second, 1: 0}, at(second))
    before = received.before(TOPIC)
    assert before is not None
    assert before >= at(35)


def test_another_log_forgets_what_was_known_about_the_old_one():
    received = Received(LEASE)
    received.observe(TOPIC, log(10), {0: 10, 1: 0}, at(0))
    received.observe(TOPIC, log(10), {0: 10, 1: 0}, at(1))
    received.observe(TOPIC, log(10), {0: 10, 1: 0}, at(20))
    assert received.before(TOPIC) == at(0)
    received.observe(TOPIC, log(10, topic_id="b"), {0: 10, 1: 0}, at(21))
    assert received.before(TOPIC) is None


def test_an_empty_partition_that_nobody_committed_holds_nothing_up():
    received = Received(LEASE)
    received.observe(TOPIC, Log("a", {0: 0, 1: 0}), {}, at(0))
    received.observe(TOPIC, Log("a", {0: 0, 1: 0}), {}, at(1))
    received.observe(TOPIC, Log("a", {0: 0, 1: 0}), {}, at(11))
    assert received.before(TOPIC) == at(0)


def test_f17_a_log_that_was_cut_at_its_end_is_probed_anew():
    received = Received(LEASE)
    received.observe(TOPIC, log(4), {0: 0, 1: -1}, at(0))
    received.observe(TOPIC, log(1), {0: 1, 1: -1}, at(5))  # offset 4 will never be committed
    received.observe(TOPIC, log(1), {0: 1, 1: -1}, at(6))
    received.observe(TOPIC, log(1), {0: 1, 1: -1}, at(16))
    assert received.before(TOPIC) == at(5)


def test_what_came_behind_a_reading_does_not_hold_it_up():
    received = Received(LEASE)
    for second in range(60):  # the group works off ten a second of a log that grows by twenty
        received.observe(TOPIC, log(20 * second + 20), {0: 10 * second, 1: 0}, at(second))
    before = received.before(TOPIC)
    assert before is not None
    assert before >= at(20)  # passed at 42, listed by 52; one reading at a time knew 14 of them


def test_readings_of_an_endless_backlog_are_bounded():
    received = Received(LEASE)
    for second in range(0, 10_000, 5):
        received.observe(TOPIC, log(second + 100), {0: 0, 1: -1}, at(second))
    assert sum(len(known._probes) for known in received._topics.values()) <= PROBES_MAX
    for second in range(10_000, 10_100, 5):
        received.observe(TOPIC, log(second + 100), {0: 9_000, 1: -1}, at(second))
    before = received.before(TOPIC)
    assert before is not None
    assert before >= at(7_000)
