"""What a worker lists for its parent: read from the same memory, as the parent does it."""

import asyncio
import os
import uuid
from typing import Any

import pytest

from headrace import listing as listing_module
from headrace.attempt import Attempt
from headrace.listing import DESCRIPTOR, NOTES_BYTES_MAX, PLACES, HeldTask, Listing
from headrace.messages import Abort, Command, make_nonce
from headrace.registry import Registry
from tests.unit.test_worker import Bench, bodies, gate

__all__ = ["gate"]  # a fixture

RUN = "01890a5d-ac96-774b-bcce-b302099a8057"
NONCE = make_nonce(b"secret", RUN.encode(), 3, 7)


class Pair:
    """The two sides, each with a mapping of its own."""

    def __init__(self) -> None:
        self.parent = Listing.make()
        self.worker = Listing(os.dup(self.parent.descriptor))

    @property
    def held(self) -> list[HeldTask]:
        return list(self.parent.held())


@pytest.fixture
def pair() -> Pair:
    return Pair()


def attempt_of(run_id: str = RUN, task: int = 3, token: int = 7, nonce: str = NONCE) -> Attempt:
    return Attempt(run_id.encode(), Command(task, "t", "b", 1, token, nonce))


# == what is held ======================================================================================================
def test_a_task_is_listed_from_its_receipt_until_it_is_settled(pair: Pair) -> None:
    attempt = attempt_of()
    pair.worker.put(attempt)
    assert pair.held == [HeldTask(RUN, 3, 7, NONCE, begun=False)]
    attempt.begin()
    assert pair.held == [HeldTask(RUN, 3, 7, NONCE, begun=True)]
    pair.worker.remove(attempt)
    assert pair.held == []


def test_the_largest_numbers_and_an_empty_nonce_survive(pair: Pair) -> None:
    pair.worker.put(attempt_of(task=2**31 - 1, token=2**31 - 1, nonce=""))
    assert pair.held == [HeldTask(RUN, 2**31 - 1, 2**31 - 1, "", begun=False)]


def test_a_place_is_used_again_and_says_nothing_of_whom_it_held_before(pair: Pair) -> None:
    first, second = attempt_of(), attempt_of(task=4)
    pair.worker.put(first)
    first.begin()
    pair.worker.remove(first)
    pair.worker.put(second)
    assert second.place == first.place
    assert [(task.task, task.begun) for task in pair.held] == [(4, False)]


def test_what_is_removed_twice_frees_one_place(pair: Pair) -> None:
    attempts = [attempt_of(task=n) for n in range(3)]
    for attempt in attempts:
        pair.worker.put(attempt)
    for _ in range(2):
        pair.worker.remove(attempts[0])
    for n in (10, 11):
        pair.worker.put(attempt_of(task=n))
    assert sorted(task.task for task in pair.held) == [1, 2, 10, 11]


def test_what_was_settled_before_its_body_begins_is_not_listed_again(pair: Pair) -> None:
    attempt = attempt_of()
    pair.worker.put(attempt)
    pair.worker.remove(attempt)
    attempt.begin()  # its thread was on the way
    assert pair.held == []


def test_more_than_there_are_places_are_left_out_and_cost_nothing(pair: Pair) -> None:
    attempts = [attempt_of(task=n) for n in range(PLACES + 50)]
    for attempt in attempts:
        pair.worker.put(attempt)
    assert len(pair.held) == PLACES
    assert {task.task for task in pair.held} == set(range(PLACES))
    for attempt in attempts[PLACES:]:
        attempt.begin()
        pair.worker.remove(attempt)
    assert not any(task.begun for task in pair.held)
    for attempt in attempts[:PLACES]:
        pair.worker.remove(attempt)
    assert pair.held == []
    for attempt in attempts[PLACES:]:
        pair.worker.put(attempt)
    assert len(pair.held) == 50


@pytest.mark.parametrize(
    "odd",
    [
        {"task": 2**31},
        {"token": 2**31},
        {"task": -(2**31) - 1},
        {"token": 2**200},
        {"run_id": "short"},
        {"run_id": RUN + "0"},
        {"run_id": "é" * 18},
        {"nonce": "0" * 25},
        {"nonce": "aé"},
        {"nonce": "\ud800"},
    ],
)
def test_what_no_engine_hands_out_is_left_out(pair: Pair, odd: dict[str, Any]) -> None:
    """A forged command must break neither the worker nor, later, its parent."""
    attempt = attempt_of(**odd)
    pair.worker.put(attempt)
    assert pair.held == []
    attempt.begin()
    pair.worker.remove(attempt)
    for n in range(PLACES):
        pair.worker.put(attempt_of(task=n))
    assert len(pair.held) == PLACES, "no place was lost"


def test_a_death_in_the_middle_of_listing_lists_nothing(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is written last is what counts."""

    class Memory:
        """Dies at the second write, which is the state."""

        writes = 0

        def __setitem__(self, at: Any, value: Any) -> None:
            self.writes += 1
            if self.writes == 2:
                raise SystemExit
            pair.worker._memory[at] = value

    worker = Listing(os.dup(pair.parent.descriptor))
    monkeypatch.setattr(worker, "_memory", Memory())
    with pytest.raises(SystemExit):
        worker.put(attempt_of())
    assert bytes(pair.parent._memory).find(RUN.encode()) > 0, "it was on its way"
    assert pair.held == []


# == notes =============================================================================================================
def test_notes_are_none_until_they_are_written_and_the_last_ones_count(pair: Pair) -> None:
    assert pair.parent.notes() is None
    pair.worker.note({"session": "a", "producer": {"bootstrap.servers": "k:1", "password": "ä" * 50}})
    pair.worker.note({"session": "b"})
    assert pair.parent.notes() == {"session": "b"}
    assert not pair.parent.has_ended


def test_notes_that_do_not_fit_are_not_written(pair: Pair) -> None:
    pair.worker.note({"text": "x" * (NOTES_BYTES_MAX - len('{"text": ""}'))})
    fits = pair.parent.notes()
    assert fits is not None
    pair.worker.note({"text": "x" * NOTES_BYTES_MAX})
    assert pair.parent.notes() == fits
    pair.worker.put(attempt_of())
    assert pair.held == [HeldTask(RUN, 3, 7, NONCE, begun=False)], "the notes do not reach into the places"


def test_torn_notes_are_no_notes(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.worker.note({"session": "a"})
    written = 0

    class Dies:
        size = listing_module._LENGTH.size

        def pack_into(self, memory: bytearray, at: int, *values: object) -> None:
            nonlocal written
            written += 1
            if written == 2:
                raise SystemExit
            listing_module.Struct("<?i").pack_into(memory, at, *values)

    with monkeypatch.context() as patched:
        patched.setattr(listing_module, "_LENGTH", Dies())
        with pytest.raises(SystemExit):
            pair.worker.note({"session": "b", "more": 1})
    assert pair.parent.notes() is None


def test_an_end_in_order_is_seen_and_a_clear_is_for_the_next_worker(pair: Pair) -> None:
    pair.worker.note({"session": "a"})
    pair.worker.put(attempt_of())
    pair.worker.end()
    assert pair.parent.has_ended
    pair.parent.clear()
    assert (pair.parent.has_ended, pair.parent.notes(), pair.held) == (False, None, [])
    following = Listing(os.dup(pair.parent.descriptor))
    following.note({"session": "b"})
    following.put(attempt_of(task=9))
    assert pair.parent.notes() == {"session": "b"}
    assert [task.task for task in pair.held] == [9]


# == handed down =======================================================================================================
def test_a_listing_comes_from_the_environment_or_not_at_all(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DESCRIPTOR, raising=False)
    assert Listing.from_environment() is None
    monkeypatch.setenv(DESCRIPTOR, str(os.dup(pair.parent.descriptor)))
    worker = Listing.from_environment()
    assert worker is not None
    worker.note({"session": "a"})
    assert pair.parent.notes() == {"session": "a"}


def test_without_anonymous_memory_a_file_without_a_name_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create", raising=False)
    listing = Listing.make()
    listing.note({"session": "a"})
    assert Listing(os.dup(listing.descriptor)).notes() == {"session": "a"}


# == with a worker =====================================================================================================
async def test_a_hold_lists_what_it_holds_and_which_bodies_began(pair: Pair, gate: "asyncio.Event") -> None:
    bench = Bench(bodies(gate), slots=3, listing=pair.worker)  # type: ignore[arg-type]
    ids = [str(uuid.uuid4()) for _ in range(5)]
    running = [bench.take(body, run=run) for run, body in zip(ids, ("wait", "wait_sync"), strict=False)]
    bench.take("quick", run=ids[2], claim=True)
    bench.take("quick", run=ids[3])
    await bench.until(lambda: all(attempt.began_at for attempt in running) and bench.claims(ids[2]))
    assert {task.run_id: task.begun for task in pair.held} == dict(
        zip(ids[:4], (True, True, False, False), strict=True)
    )
    bench.hold.abort(Abort(ids[2], 0, 1))
    await bench.until(lambda: bench.stats.succeeded == 1)
    assert {task.run_id for task in pair.held} == set(ids[:2])
    gate.set()
    await bench.until(lambda: bench.stats.succeeded == 3)
    assert pair.held == []


async def test_an_unknown_body_and_a_refused_command_leave_nothing_listed(pair: Pair) -> None:
    registry = Registry()
    registry.task("other")(lambda: None)
    bench = Bench(registry, listing=pair.worker)
    for _ in range(2):
        bench.take("nobody", run=RUN)
    await bench.until(lambda: bench.outbox.sent)
    assert pair.held == []
