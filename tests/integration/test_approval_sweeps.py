"""Reminders, escalation and expiry of approvals, on a real Postgres: each fires once, whoever sweeps."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import psycopg
import pytest

from headrace.errors import ConflictError
from headrace.standing import Person
from state.approvals import Voter, decide_approval
from tests.integration.test_sweeps import Yard

CHAIN = [{"after": "1h", "to": ["grace"]}, {"after": "2h", "to": ["role:board", "alan"]}]
Asked = dict[str, Any]


@pytest.fixture
async def yard(database: str) -> AsyncIterator[Yard]:
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        made = Yard(database, connection)
        await made.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", made.slot)
        yield made


async def ask(yard: Yard, **approval: Any) -> tuple[str, UUID]:
    run_id = await yard.start(approval={"title": "ok?", "approvers": ["ada"], **approval})
    ((approval_id,),) = await yard.query("SELECT approval_id FROM approval")
    return run_id, approval_id


async def pass_(yard: Yard, hours: int) -> None:
    """Let so much time pass, as far as the question knows."""
    await yard.query("UPDATE approval_timer SET due_at = due_at - make_interval(hours => %s)", hours)
    await yard.query("UPDATE approval SET expires_at = expires_at - make_interval(hours => %s)", hours)


async def sweep(yard: Yard) -> int:
    return await yard.sweeps._approvals(yard.connection)


async def happened(yard: Yard) -> list[tuple[str, Any]]:
    return [tuple(row) for row in await yard.query("SELECT kind, detail FROM approval_history ORDER BY entry")]


async def approvers(yard: Yard) -> list[str]:
    ((found,),) = await yard.query("SELECT approvers FROM approval")
    return list(found)


async def vote(yard: Yard, approval_id: UUID, name: str = "ada", outcome: Any = "approved") -> str:
    async with yard.connection.transaction():
        voter = Voter(Person(name))
        row = await decide_approval(yard.connection, yard.store, approval_id, outcome, comment="", voter=voter)
    return row.status


async def test_a_reminder_fires_once_also_for_another_process(yard: Yard):
    run_id, _ = await ask(yard, remind=["1h", "2h"])
    assert await sweep(yard) == 0
    await pass_(yard, 1)
    assert await sweep(yard) == 1
    assert await sweep(yard) == 0
    restarted = Yard(yard.dsn, yard.connection)
    assert await sweep(restarted) == 0
    await pass_(yard, 1)
    assert await sweep(restarted) == 1
    assert await happened(yard) == [("reminded", {"reminder": 1}), ("reminded", {"reminder": 2})]
    told = await yard.said("lifecycle")
    assert [(key, event["type"], event["data"]["number"]) for key, event in told] == [
        (run_id, "headrace.approval.reminded", 1), (run_id, "headrace.approval.reminded", 2)
    ]  # fmt: skip
    assert len({event["id"] for _, event in told}) == 2


async def test_of_sweeps_at_once_one_reminds(yard: Yard):
    await ask(yard, remind=["1h"])
    await pass_(yard, 1)
    connections = [await psycopg.AsyncConnection.connect(yard.dsn, autocommit=True) for _ in range(4)]
    try:
        found = await asyncio.gather(*(yard.sweeps._approvals(connection) for connection in connections))
    finally:
        for connection in connections:
            await connection.close()
    assert sum(found) == 1
    assert len(await happened(yard)) == 1


async def test_a_pass_that_was_undone_reminds_again(yard: Yard):
    await ask(yard, remind=["1h"])
    await pass_(yard, 1)
    async with yard.connection.transaction() as undone:
        assert await sweep(yard) == 1
        raise psycopg.Rollback(undone)
    assert await happened(yard) == []
    assert await sweep(yard) == 1


async def test_a_question_that_is_decided_reminds_nobody(yard: Yard):
    _, approval_id = await ask(yard, remind=["1h"], escalate=CHAIN)
    assert await vote(yard, approval_id) == "approved"
    await pass_(yard, 5)
    await sweep(yard)
    assert await happened(yard) == []
    assert await yard.query("SELECT kind FROM approval_timer") == [], "what can never fire is not looked at again"


async def test_a_step_asks_more_people(yard: Yard):
    await ask(yard, escalate=CHAIN)
    await pass_(yard, 1)
    assert await sweep(yard) == 1
    assert await approvers(yard) == ["ada", "grace"]
    await pass_(yard, 1)
    await sweep(yard)
    assert await approvers(yard) == ["ada", "grace", "role:board", "alan"]
    step = {"step": 2, "to": ["role:board", "alan"], "because": "due"}
    assert (await happened(yard))[-1] == ("escalated", step)


async def test_steps_that_are_due_together_are_reached_in_their_order(yard: Yard):
    await ask(yard, escalate=CHAIN)
    await pass_(yard, 5)
    assert await sweep(yard) == 2
    assert await approvers(yard) == ["ada", "grace", "role:board", "alan"]


ESCALATES: Asked = {"expires": "1h", "on_expiry": "escalate", "escalate": [{"to": ["grace"]}, {"to": ["alan"]}]}


async def test_an_expiry_escalates_until_nobody_is_left(yard: Yard):
    await ask(yard, **ESCALATES)
    for asked in (["ada", "grace"], ["ada", "grace", "alan"]):
        await pass_(yard, 1)
        assert await sweep(yard) == 1
        assert await approvers(yard) == asked
        ((status, is_later),) = await yard.query("SELECT status, expires_at > now() + interval '59 min' FROM approval")
        assert (status, is_later) == ("waiting", True), "the time begins again"
        assert await sweep(yard) == 0
    await pass_(yard, 1)
    assert await sweep(yard) == 1
    assert await yard.query("SELECT status, decided_by FROM approval") == [("expired", "expiry")]
    assert [detail["because"] for _, detail in await happened(yard)] == ["expired", "expired"]


async def test_while_somebody_is_left_to_ask_an_answer_is_never_too_late(yard: Yard):
    _, approval_id = await ask(yard, **ESCALATES)
    await pass_(yard, 1)
    assert await vote(yard, approval_id) == "approved"
    assert await sweep(yard) == 0


async def test_an_answer_after_the_last_step_is_too_late_also_before_the_sweep_saw_it(yard: Yard):
    _, approval_id = await ask(yard, **ESCALATES)
    for _ in range(2):
        await pass_(yard, 1)
        await sweep(yard)
    await pass_(yard, 1)
    with pytest.raises(ConflictError, match="expired"):
        await vote(yard, approval_id)


async def test_a_vote_and_the_expiry_at_once_have_one_outcome(yard: Yard):
    """A person has voted and not committed when the time is over: the sweep passes over the question, and later finds
    it decided."""
    run_id, approval_id = await ask(yard, expires="1h")
    await yard.query("UPDATE approval SET expires_at = clock_timestamp() + interval '1 s'")
    async with await psycopg.AsyncConnection.connect(yard.dsn) as person:
        await decide_approval(person, yard.store, approval_id, "approved", comment="", voter=Voter(Person("ada")))
        await yard.query("SELECT pg_sleep_until(expires_at + interval '1 ms') FROM approval")
        assert await sweep(yard) == 0
        await person.commit()
    assert await sweep(yard) == 0
    assert await yard.query("SELECT status, decided_by FROM approval") == [("approved", "ada")]
    assert await yard.query("SELECT run_id::text, kind FROM inbox WHERE kind = 'decided'") == [(run_id, "decided")]


async def test_an_expiry_tells_who_had_voted(yard: Yard):
    _, approval_id = await ask(yard, approvers=["ada", "grace"], needed=2, expires="1h", on_expiry="reject")
    assert await vote(yard, approval_id) == "waiting"
    await pass_(yard, 1)
    await sweep(yard)
    ((body,),) = await yard.query("SELECT body FROM inbox WHERE kind = 'decided'")
    assert (body["outcome"], [each["by"] for each in body["votes"]]) == ("rejected", ["ada"])
