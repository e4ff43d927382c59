"""Signals on a real Postgres: stored by the API's own code, applied by the run agent.

No broker is involved: a wake-up is what a test says, so it may come late, twice, in another order, or not at all.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from headrace.errors import ConflictError, KeyReusedError, NotFoundError
from headrace.messages import Due, Requested
from state import signals
from state.doctor import examine
from state.posted_signals import offer_signals, post_signal
from state.queries.posted_signal import PostedRow, get_posted
from state.queries.signal import SignalRow, list_signals
from state.requests import request
from state.signals import Message, send_signal
from state.store import Key
from streams.sweeps import KEYS_MAX, Sweeps
from tests.integration.test_run_agent import Engine

PAID: dict[str, Any] = {
    "name": "order",
    "tasks": {
        "ask": {"run": "t.ask"},
        "paid": {"needs": "ask", "signal": {"name": "paid", "key": "${{ input.id }}", "timeout": "3d"}},
        "ship": {"run": "t.ship", "needs": "paid", "with": "${{ tasks.paid.output.data }}"},
    },
}
OF_A_RUN = {
    "statuses", "attempts", "tokens", "history", "ended", "waits", "joins", "signals", "approvals", "orphan_timers",
    "orphan_approvals",
}  # fmt: skip


class Post(Engine):
    """An engine, and somebody who sends signals to its runs."""

    async def send(self, run_id: str, name: str = "paid", data: bytes = b"1", **given: Any) -> SignalRow:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            row, _ = await send_signal(connection, self.store, UUID(run_id), Message(name, data, **given), actor="ada")
        return row

    async def say(self, run_id: str, *signals: SignalRow) -> None:
        """Wake the run, in one batch."""
        await self.apply(*((run_id, Requested(str(signal.signal_id))) for signal in signals))

    async def order(self, id: str = "o-1") -> str:
        return await self.start(PAID, {"id": id})

    async def signals(self, run_id: str) -> list[SignalRow]:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await list_signals(connection, UUID(run_id), limit=100)

    async def wrong(self) -> list[str]:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            checks = await examine(connection)
        assert {check.name for check in checks} >= OF_A_RUN
        return [check.detail for check in checks if check.name in OF_A_RUN and not check.ok]

    async def post(self, key: str = "o-1", data: bytes = b"1", *, keep: float = 60.0, **given: Any) -> PostedRow:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            message = Message("paid", data, key, **given)
            row, _ = await post_signal(connection, self.store, message, keep_seconds=keep, actor="bank")
        return row

    async def offer(self, *keys: str) -> int:
        """What the sweep does."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await offer_signals(connection, self.store, [Key("default", "paid", key) for key in keys])

    async def say_all(self) -> None:
        rows = self.query("SELECT run_id, inbox_id FROM inbox WHERE applied_at IS NULL ORDER BY created_at, inbox_id")
        await self.apply(*((str(run_id), Requested(str(inbox_id))) for run_id, inbox_id in rows))

    async def posted(self, row: PostedRow) -> str:
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            found = await get_posted(connection, "default", row.posted_id)
        assert found is not None
        return found.status

    async def waits(self, id: str = "o-1", definition: dict[str, Any] = PAID) -> str:
        run_id = await self.start(definition, {"id": id})
        await self.apply(self.succeeded(run_id))
        return run_id


@pytest.fixture
async def post(database: str) -> AsyncIterator[Post]:
    made = Post(database)
    await made.lease()
    yield made
    made.close()


def states(post: Post, run_id: str) -> list[str]:
    return [status for status, _, _ in post.tasks(run_id)]


async def test_a_signal_moves_the_task_that_waits_for_it_and_says_what_it_moved(post: Post):
    run_id = await post.order()
    await post.apply(post.succeeded(run_id))
    assert post.query("SELECT task, token, name, key FROM signal_wait") == [(1, 1, "paid", "o-1")]
    assert post.query("SELECT task, kind FROM timer") == [(1, "wait")]
    sent = await post.send(run_id, data=b'{"sum": 3}', key="o-1")
    assert (sent.status, await post.wrong()) == ("sent", [])
    await post.say(run_id, sent)
    assert states(post, run_id) == ["completed", "completed", "queued"]
    (taken,) = await post.signals(run_id)
    assert (taken.status, taken.task, taken.token, taken.row_version) == ("taken", 1, 1, 3)
    history = "SELECT kind, task, token, actor, detail ->> 'signal_id' FROM history WHERE row_version = 3"
    assert post.query(history) == [("signalled", 1, 1, "ada", str(sent.signal_id))]
    ((output,),) = post.query("SELECT output FROM task WHERE task = 1")
    assert (output["outcome"], output["data"], output["signal_id"]) == ("received", {"sum": 3}, str(sent.signal_id))
    assert post.query("SELECT count(*) FROM signal_wait") == post.query("SELECT count(*) FROM timer") == [(0,)]
    assert await post.wrong() == []


@pytest.mark.parametrize("together", [False, True], ids=["two batches", "one batch"])
async def test_b77_a_signal_that_comes_before_the_wait_is_kept_over_a_restart(
    post: Post, database: str, together: bool
):
    run_id = await post.order()
    sent = await post.send(run_id)
    if together:
        await post.apply((run_id, Requested(str(sent.signal_id))), post.succeeded(run_id))
    else:
        await post.say(run_id, sent)
        (kept,) = await post.signals(run_id)
        assert (kept.status, kept.task, kept.settled_at) == ("kept", None, None)
        assert await post.wrong() == []
        other = Post(database, "two")
        await other.lease()
        await other.apply(other.succeeded(run_id))
        other.close()
    (taken,) = await post.signals(run_id)
    assert (taken.status, taken.task, taken.row_version) == ("taken", 1, 3)
    assert states(post, run_id) == ["completed", "completed", "queued"]
    assert await post.wrong() == []


@pytest.mark.parametrize("wait_first", [False, True])
async def test_a_signal_and_the_beginning_of_the_wait_at_the_same_moment_miss_neither(post: Post, wait_first: bool):
    """Committed between what the agent reads for one batch and its commit: only its wake-up tells of it."""
    run_id = await post.order()
    if wait_first:
        await post.apply(post.succeeded(run_id))
        await post.say(run_id, await post.send(run_id))
    else:
        sent, _ = await asyncio.gather(post.send(run_id), post.apply(post.succeeded(run_id)))
        await post.say(run_id, sent)
    assert states(post, run_id) == ["completed", "completed", "queued"]


async def test_a_wake_up_that_comes_twice_counts_once(post: Post):
    run_id = await post.order()
    sent = await post.send(run_id)
    await post.say(run_id, sent, sent)
    await post.say(run_id, sent)
    await post.apply(post.succeeded(run_id))
    await post.say(run_id, sent)
    assert [signal.status for signal in await post.signals(run_id)] == ["taken"]
    assert post.query("SELECT row_version FROM run") == [(3,)]


async def test_what_a_sender_sent_first_comes_first_though_its_wake_up_was_lost(post: Post):
    run_id = await post.order()
    first, second = await post.send(run_id, data=b"1"), await post.send(run_id, data=b"2")
    await post.say(run_id, second)
    await post.say(run_id, first)
    await post.apply(post.succeeded(run_id))
    assert [(signal.data, signal.status) for signal in await post.signals(run_id)] == [("1", "taken"), ("2", "kept")]
    assert await post.wrong() == []


async def test_a_wake_up_under_the_key_of_another_run_tells_it_nothing(post: Post):
    one, other = await post.order(), await post.order()
    sent = await post.send(one)
    await post.say(other, sent)
    assert [signal.status for signal in await post.signals(one)] == ["sent"]
    await post.say(one, sent)
    assert [signal.status for signal in await post.signals(one)] == ["kept"]


async def test_a_signal_of_another_key_is_kept_beside_the_task_that_waits(post: Post):
    run_id = await post.order()
    await post.apply(post.succeeded(run_id))
    await post.say(run_id, await post.send(run_id, key="o-2"))
    assert states(post, run_id) == ["completed", "waiting"]
    assert [signal.status for signal in await post.signals(run_id)] == ["kept"]
    assert await post.wrong() == []


@pytest.mark.parametrize("first", ["signal", "time-out"])
async def test_of_signal_and_time_out_in_one_batch_one_wins_and_the_other_is_recorded_or_stale(post: Post, first: str):
    run_id = await post.order()
    await post.apply(post.succeeded(run_id))
    post.query("UPDATE task SET due_at = now() WHERE task = 1 RETURNING 1")
    post.query("UPDATE timer SET due_at = now() WHERE task = 1 RETURNING 1")
    await post.lease()  # another term: what is in memory is read again
    sent = await post.send(run_id)
    said = [(run_id, Requested(str(sent.signal_id))), (run_id, Due(1, 1, post.nonce(run_id, 1, 1), "wait"))]
    await post.apply(*(said if first == "signal" else said[::-1]))
    (signal,) = await post.signals(run_id)
    if first == "signal":
        assert states(post, run_id) == ["completed", "completed", "queued"]
        assert signal.status == "taken"
    else:
        assert post.status(run_id) == "failed"
        assert (signal.status, signal.reason) == ("refused", "the run was failed when it came")
        assert post.query("SELECT reason FROM dead_letter") == [("SIGNAL_TIMEOUT",)]
    assert await post.wrong() == []


async def test_a_signal_that_comes_when_its_run_has_just_ended_is_refused_with_the_reason(post: Post):
    run_id = await post.order()
    sent = await post.send(run_id)
    async with await psycopg.AsyncConnection.connect(post.dsn) as connection:
        cancelled = await request(connection, post.store, run_id, "cancelled", {}, "ann")
    await post.apply((run_id, Requested(cancelled)), (run_id, Requested(str(sent.signal_id))))
    (signal,) = await post.signals(run_id)
    assert (signal.status, signal.reason) == ("refused", "the run was cancelled when it came")
    assert signal.settled_at is not None
    assert await post.wrong() == []


async def test_a_cancel_takes_the_wait_away(post: Post):
    run_id = await post.order()
    async with await psycopg.AsyncConnection.connect(post.dsn) as connection:
        cancelled = await request(connection, post.store, run_id, "cancelled", {}, "ann")
    await post.apply(post.succeeded(run_id), (run_id, Requested(cancelled)))
    assert post.query("SELECT count(*) FROM signal_wait") == [(0,)]
    assert await post.wrong() == []


async def test_a_run_that_stands_aside_takes_note_of_its_signals_once_it_is_released(post: Post):
    run_id = await post.order()
    await post.apply(post.succeeded(run_id))
    async with await psycopg.AsyncConnection.connect(post.dsn) as connection:
        broken = await request(connection, post.store, run_id, "decided", {"task": "no number"}, "ann")
        released = await request(connection, post.store, run_id, "released", {}, "ann")
    sent = await post.send(run_id)
    await post.apply((run_id, Requested(broken)), (run_id, Requested(str(sent.signal_id))))
    assert (post.status(run_id), [s.status for s in await post.signals(run_id)]) == ("needs_attention", ["sent"])
    await post.apply((run_id, Requested(released)), (run_id, Requested(str(sent.signal_id))))
    assert [signal.status for signal in await post.signals(run_id)] == ["taken"]


# == sending ===========================================================================================================
async def test_a_signal_sent_twice_under_its_id_is_one(post: Post):
    run_id = await post.order()
    first = await post.send(run_id, data=b'{"a": 1, "b": 2}', sender_id="evt-1")
    again = await post.send(run_id, data=b'{"b": 2, "a": 1}', sender_id="evt-1")
    assert again.signal_id == first.signal_id
    for other in ({"data": b"2"}, {"data": first.data.encode(), "key": "o-1"}):
        with pytest.raises(KeyReusedError):
            await post.send(run_id, sender_id="evt-1", **other)  # type: ignore[arg-type]
    assert (await post.send(await post.order(), sender_id="evt-1")).signal_id != first.signal_id
    await post.say(run_id, first)
    await post.apply(post.succeeded(run_id))
    await post.apply(post.succeeded(run_id, task=2))
    assert post.status(run_id) == "completed"
    assert (await post.send(run_id, data=first.data.encode(), sender_id="evt-1")).status == "taken", "ended meanwhile"


async def test_two_that_send_the_same_signal_at_once_send_one(post: Post):
    run_id = await post.order()
    sent = await asyncio.gather(*(post.send(run_id, sender_id="evt-1") for _ in range(8)))
    assert len({signal.signal_id for signal in sent}) == 1
    assert post.query("SELECT count(*) FROM inbox") == [(1,)]


async def test_a_run_that_is_not_there_or_has_ended_takes_nothing(post: Post, monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(NotFoundError):
        await post.send("01a2289f-ec84-73e0-907f-576654f809f9")
    run_id = await post.order()
    await post.apply(post.failed(run_id, retryable=False))
    with pytest.raises(ConflictError, match="failed already"):
        await post.send(run_id)
    run_id = await post.order()
    monkeypatch.setattr(signals, "KEPT_MAX", 2)
    await post.say(run_id, await post.send(run_id), await post.send(run_id))
    with pytest.raises(ConflictError, match="keeps 2 signals"):
        await post.send(run_id)


# == posted for whoever waits ==========================================================================================
HEARD: dict[str, Any] = {
    "name": "listener",
    "tasks": {
        "ask": {"run": "t.ask"},
        "paid": {"needs": "ask", "signal": {"name": "paid", "key": "${{ input.id }}", "delivery": "all"}},
    },
}


async def test_a_posted_signal_is_taken_by_whoever_waits_longest_and_by_nobody_else(post: Post):
    first, other, last = await post.waits(), await post.waits("o-2"), await post.waits()
    posted = await post.post(data=b'{"sum": 3}')
    await post.say_all()
    assert [states(post, run_id)[1] for run_id in (first, other, last)] == ["completed", "waiting", "waiting"]
    assert await post.posted(posted) == "taken"
    (taken,) = await post.signals(first)
    assert (taken.status, taken.data, taken.actor, taken.sent_at) == ("taken", '{"sum": 3}', "bank", posted.sent_at)
    assert await post.offer("o-1", "o-2") == 0
    again = await post.post(data=b"2")
    await post.say_all()
    assert (states(post, last)[1], await post.posted(again)) == ("completed", "taken")
    assert await post.wrong() == []


async def test_a_signal_posted_before_anybody_waits_is_there_for_whoever_will(post: Post):
    keys: list[Any] = []
    post.agent._on_keys = keys.append
    one, two = await post.post(data=b"1"), await post.post(data=b"2")
    gone = await post.post(data=b"3", keep=0.0)
    runs = [await post.waits() for _ in range(3)]
    assert keys == [{Key("default", "paid", "o-1")}] * 3
    assert await post.offer("o-1") == 2
    await post.say_all()
    heard = [[(signal.data, signal.status) for signal in await post.signals(run_id)] for run_id in runs]
    assert heard == [[("1", "taken")], [("2", "taken")], []]
    assert [await post.posted(row) for row in (one, two, gone)] == ["taken", "taken", "expired"]
    assert await post.wrong() == []


async def test_everybody_who_waits_for_all_hears_a_posted_signal_and_one_of_first_takes_it(post: Post):
    listeners = [await post.waits(definition=HEARD) for _ in range(3)]
    takers = [await post.waits() for _ in range(2)]
    posted = await post.post()
    await post.say_all()
    assert [states(post, run_id)[1] for run_id in (*listeners, *takers)] == ["completed"] * 4 + ["waiting"]
    late = await post.waits(definition=HEARD)
    assert await post.offer("o-1") == 1
    await post.say_all()
    assert (states(post, late)[1], await post.posted(posted)) == ("completed", "taken")
    assert await post.wrong() == []


async def test_what_the_first_did_not_take_is_offered_to_the_next(post: Post):
    """Its wait is over when the offer comes: it was cancelled meanwhile."""
    first, second = await post.waits(), await post.waits()
    posted = await post.post()
    keys: list[Any] = []
    post.agent._on_keys = keys.append
    async with await psycopg.AsyncConnection.connect(post.dsn) as connection:
        cancelled = await request(connection, post.store, first, "cancelled", {}, "ann")
    await post.apply((first, Requested(cancelled)))
    assert await post.offer("o-1") == 0, "it is still with the first"
    await post.say_all()
    (refused,) = await post.signals(first)
    assert (refused.status, refused.reason) == ("refused", "the run was cancelled when it came")
    assert (await post.posted(posted), keys) == ("open", [{Key("default", "paid", "o-1")}])
    assert await post.offer("o-1") == 1
    await post.say_all()
    assert (states(post, second)[1], await post.posted(posted)) == ("completed", "taken")
    assert await post.wrong() == []


async def test_an_offer_is_for_its_wait_and_not_kept_for_another_of_the_run(post: Post):
    run_id = await post.waits()
    await post.post()
    await post.say(run_id, await post.send(run_id))  # takes note of both, in the order in which they were stored
    assert [signal.status for signal in await post.signals(run_id)] == ["taken", "kept"]
    run_id = await post.waits("o-2")
    own = await post.send(run_id)
    posted = await post.post("o-2")
    await post.say(run_id, own)
    statuses = [(signal.status, signal.reason) for signal in await post.signals(run_id)]
    assert statuses == [("taken", None), ("refused", "the task to which it was offered no longer waited")]
    assert await post.posted(posted) == "open"
    assert await post.wrong() == []


async def test_a_sweep_finds_a_post_and_a_wait_that_did_not_see_each_other(post: Post):
    """Both were committed at the same moment; and more is posted for others than one pass looks at."""
    run_id = await post.waits()
    missed = (
        "INSERT INTO posted_signal (posted_id, name, key, data, expires_at) "
        "SELECT gen_random_uuid(), 'paid', key, '1', now() + interval '1 h' FROM unnest(%s::text[]) AS key RETURNING 1"
    )
    post.query(missed, ["o-1", *(f"a-{number}" for number in range(KEYS_MAX))])
    sweeps = Sweeps(post.store, post.plans, None, post.metrics)  # type: ignore[arg-type]
    async with await psycopg.AsyncConnection.connect(post.dsn, autocommit=True) as connection:
        assert [await sweeps._signals(connection) for _ in range(3)] == [0, 1, 0]
        other = await post.waits("a-7")
        sweeps.expect_signals({Key("default", "paid", "a-7")})
        assert await sweeps._signals(connection) == 1, "whoever begins to wait need not wait for its turn"
    await post.say_all()
    assert [states(post, one)[1] for one in (run_id, other)] == ["completed", "completed"]
    assert await post.wrong() == []


async def test_two_who_offer_at_once_offer_once(post: Post):
    await post.post()
    run_ids = [await post.waits() for _ in range(4)]
    await asyncio.gather(*(post.offer("o-1") for _ in range(6)))
    assert post.query("SELECT count(*) FROM signal") == post.query("SELECT count(*) FROM inbox") == [(1,)]
    await post.say_all()
    assert sorted(states(post, run_id)[1] for run_id in run_ids) == ["completed", "waiting", "waiting", "waiting"]


async def test_a_signal_posted_twice_under_its_id_is_one(post: Post):
    posted = await asyncio.gather(*(post.post(sender_id="evt-1") for _ in range(4)))
    assert len({row.posted_id for row in posted}) == 1
    with pytest.raises(KeyReusedError):
        await post.post("o-2", sender_id="evt-1")


async def test_what_was_taken_stays_taken_when_its_run_is_removed(post: Post):
    run_id = await post.waits()
    posted = await post.post()
    await post.say_all()
    gone = "WITH t AS (DELETE FROM task), s AS (DELETE FROM signal) DELETE FROM run RETURNING run_id"
    assert [str(id_) for (id_,) in post.query(gone)] == [run_id]
    await post.waits()
    assert await post.offer("o-1") == 0
    assert await post.posted(posted) == "taken"
