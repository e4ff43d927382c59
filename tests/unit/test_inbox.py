"""The inbox: records of the same leases grow into one batch, a reader is told once, and full means full."""

import threading
from typing import Any

from streams.batch import Batch
from streams.inbox import Inbox


def _batch(epochs: dict[int, int], topic: str = "events", **records: Any) -> Batch:
    return Batch(topic, "log", {int(name[1:]): list(of) for name, of in records.items()}, epochs)


def test_what_was_read_under_the_same_leases_is_one_batch_in_order():
    inbox, epochs = Inbox(), {0: 7, 1: 7}
    inbox.put([_batch(epochs, p0=["a", "b"])])
    inbox.put([_batch(epochs, p1=["x"], p0=["c"])])
    batch = inbox.take("events")
    assert batch is not None
    assert batch.records == {0: ["a", "b", "c"], 1: ["x"]}
    assert inbox.take("events") is None


def test_records_stay_with_the_leases_they_were_read_under():
    inbox = Inbox()
    inbox.put([_batch({0: 7}, p0=["old"])])
    inbox.put([_batch({0: 8}, p0=["new"])])
    old, new = inbox.take("events"), inbox.take("events")
    assert old is not None
    assert new is not None
    assert (old.records, old.epochs) == ({0: ["old"]}, {0: 7})
    assert (new.records, new.epochs) == ({0: ["new"]}, {0: 8})


def test_a_reader_is_told_once_until_it_has_found_nothing():
    inbox, epochs = Inbox(), {0: 1}
    assert inbox.put([_batch(epochs, p0=["a"])]) == ["events"]
    assert inbox.put([_batch(epochs, p0=["b"])]) == []
    inbox.take("events")
    assert inbox.put([_batch(epochs, p0=["c"])]) == []  # it will look again by itself
    inbox.take("events")
    assert inbox.take("events") is None
    assert inbox.put([_batch(epochs, p0=["d"])]) == ["events"]


def test_topics_do_not_wait_for_each_other():
    inbox, epochs = Inbox(), {0: 1}
    assert inbox.put([_batch(epochs, "events", p0=["a"]), _batch(epochs, "workers", p0=["b"])]) == ["events", "workers"]
    assert inbox.take("workers") is not None
    assert inbox.take("workers") is None
    assert inbox.take("events") is not None


def test_a_full_inbox_has_room_once_something_was_taken():
    inbox = Inbox(records_max=2)
    inbox.put([_batch({0: 1}, p0=["a", "b", "c"])])
    assert inbox.room == -1
    assert not inbox.wait(0.01)
    threading.Timer(0.05, inbox.take, ["events"]).start()
    assert inbox.wait(10)
    assert inbox.room == 2
