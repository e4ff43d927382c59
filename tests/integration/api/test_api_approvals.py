"""Approvals as objects: who may decide, how many, what they were shown, and the record that is left."""

import asyncio
import re
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import psycopg
import pytest

DECIDED_BY_TWO = "title: Ship it?, approvers: [ada, grace, alan], needed: 2"
FORM = "form: { type: object, required: [amount], properties: { amount: { type: number, maximum: 100 } } }"


class People:
    """One approval, and those who have to do with it."""

    def __init__(self, api: Any, engine: Any) -> None:
        self.api, self.engine = api, engine
        self.run_id = self.approval_id = ""

    async def ask(self, approval: str, *, by: str = "starter", input: Any = None) -> str:
        text = f"name: asking\ntasks:\n  ask: {{ approval: {{ {approval} }} }}\n  after: {{ run: b, needs: ask }}"
        await self.api.publish(text)
        body = {"input": {} if input is None else input}
        answer = await self.api.post("/workflows/asking/runs", json=body, headers={"Headrace-Actor": by})
        self.run_id = answer.json()["run_id"]
        self.approval_id = (await self.api.read(f"/tasks/{self.run_id}.ask"))["approval_id"]
        return self.approval_id

    async def say(self, verb: str, by: str, roles: str = "", **body: Any) -> httpx.Response:
        headers = {"Headrace-Actor": by, "Headrace-Roles": roles}
        return await self.api.post(f"/approvals/{self.approval_id}/{verb}", json=body, headers=headers)

    async def read(self) -> dict[str, Any]:
        return dict(await self.api.read(f"/approvals/{self.approval_id}"))

    async def output(self) -> dict[str, Any]:
        return dict((await self.api.read(f"/tasks/{self.run_id}.ask"))["output"])

    def sql(self, text: str, *parameters: Any) -> list[tuple[Any, ...]]:
        cursor = self.engine.connection.execute(text, parameters)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture
def people(api: Any, engine: Any) -> People:
    return People(api, engine)


# == votes =============================================================================================================
async def test_it_is_approved_once_as_many_as_are_needed_have_said_yes(people: People):
    await people.ask(DECIDED_BY_TWO)
    first = await people.say("approve", "ada", comment="fine")
    assert (first.status_code, first.json()["status"]) == (200, "waiting")
    assert people.engine.apply_requests() == [], "the run hears nothing of a vote that decides nothing"
    second = await people.say("approve", "alan")
    assert (second.json()["status"], second.json()["decided_by"]) == ("approved", "alan")
    assert people.engine.apply_requests() == ["decided"]
    output = await people.output()
    assert (output["outcome"], output["by"]) == ("approved", "alan")
    assert [(vote["by"], vote["comment"]) for vote in output["votes"]] == [("ada", "fine"), ("alan", None)]


async def test_the_first_no_decides(people: People):
    await people.ask(DECIDED_BY_TWO)
    await people.say("approve", "ada")
    rejected = await people.say("reject", "grace", comment="no")
    assert (rejected.json()["status"], rejected.json()["decided_by"]) == ("rejected", "grace")
    assert (await people.say("approve", "alan")).status_code == 409


async def test_of_votes_at_once_exactly_one_decides(people: People):
    await people.ask("approvers: [a, b, c, d, e, f], needed: 3")
    answers = await asyncio.gather(*(people.say("approve", name) for name in "abcdef"))
    assert sorted(answer.status_code for answer in answers) == [200] * 3 + [409] * 3
    assert [answer.json()["status"] for answer in answers if answer.status_code == 200].count("approved") == 1
    assert people.engine.apply_requests() == ["decided"]
    assert len((await people.read())["record"]) == 3


async def test_two_approvals_of_one_person_at_once_are_one(people: People):
    await people.ask(DECIDED_BY_TWO)
    answers = await asyncio.gather(*(people.say("approve", "ada") for _ in range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert (await people.read())["status"] == "waiting"


async def test_only_those_who_are_named_may_decide(people: People):
    await people.ask("approvers: [ada, 'role:finance']")
    for verb in ("approve", "reject"):
        refused = await people.say(verb, "eve", "sales,legal")
        assert (refused.status_code, refused.json()["code"]) == (403, "HR-1017")
    assert (await people.say("approve", "finance")).status_code == 403, "a role is no name"
    assert (await people.say("approve", "anonymous")).status_code == 403
    assert people.engine.count("approval_vote") == 0
    assert (await people.say("approve", "eve", "sales, finance")).status_code == 200
    (vote,) = (await people.read())["record"]
    assert (vote["by"], vote["role"], vote["in_place_of"]) == ("eve", "finance", None)


async def test_who_started_the_run_may_not_decide(people: People):
    await people.ask("no_self_approval: true", by="ada")
    refused = await people.say("approve", "ada")
    assert (refused.status_code, "ada started the run" in refused.json()["detail"]) == (403, True)
    assert (await people.say("approve", "grace")).status_code == 200


async def test_a_form_is_held_against_its_schema(people: People):
    await people.ask(FORM)
    assert (await people.read())["form"]["required"] == ["amount"]
    for form, path in (({"amount": 101}, "form.amount"), ({}, "form"), ("x", "form")):
        refused = await people.say("approve", "ada", form=form)
        assert (refused.status_code, refused.json()["errors"][0]["path"]) == (422, path)
    assert (await people.say("approve", "ada")).status_code == 422
    assert (await people.say("approve", "ada", form={"amount": 7})).json()["answer"] == {"amount": 7}
    people.engine.apply_requests()
    assert (await people.output())["form"] == {"amount": 7}


async def test_what_has_no_form_takes_none(people: People):
    await people.ask("title: ok?")
    assert (await people.say("approve", "ada", form={})).status_code == 409


async def test_a_rejection_that_completes_goes_on(people: People):
    await people.ask("on_reject: complete")
    await people.say("reject", "ada", comment="not today")
    people.engine.apply_requests()
    output = await people.output()
    assert (output["outcome"], output["by"], output["comment"]) == ("rejected", "ada", "not today")
    assert (await people.api.read(f"/tasks/{people.run_id}.after"))["status"] == "queued"


# == what was shown, and the record ====================================================================================
async def test_people_are_shown_what_the_run_made_of_it(people: People):
    await people.ask("title: 'Pay ${{ input.sum }}?', context: { sum: '${{ input.sum }}' }", input={"sum": 7})
    approval = await people.read()
    assert (approval["title"], approval["context"]) == ("Pay 7?", {"sum": 7})


async def test_the_record_says_who_when_from_where_and_what_was_shown(people: People):
    await people.ask(f"title: Pay?, context: {{ sum: 7 }}, {FORM}")
    headers = {"Headrace-Actor": "ada", "Headrace-Source": "cli"}
    body = {"form": {"amount": 7}, "comment": "fine"}
    await people.api.post(f"/approvals/{people.approval_id}/approve", json=body, headers=headers)
    approval = await people.read()
    (vote,) = approval["record"]
    assert (vote["by"], vote["voter"], vote["decision"], vote["comment"]) == ("ada", "ada", "approve", "fine")
    assert (vote["source"], vote["address"], vote["form"]) == ("cli", "127.0.0.1", {"amount": 7})
    shown = {key: approval[key] for key in ("title", "context", "form")}
    digest = sha256(msgspec.json.encode(shown)).hexdigest()
    assert vote["digest"] == approval["digest"] == digest
    assert vote["at"] <= approval["decided_at"]


async def test_another_content_has_another_digest(people: People):
    digests = set()
    for shown in ("title: a", "title: b", "title: a, context: 1", "title: a, form: {}", "title: a, context: 2"):
        await people.ask(shown)
        digests.add((await people.read())["digest"])
    assert len(digests) == 5


async def test_a_comment_decides_nothing(people: People):
    await people.ask(DECIDED_BY_TWO)
    said = await people.say("comments", "eve", comment="is the price right?")
    assert (said.status_code, said.json()["status"]) == (200, "waiting")
    (entry,) = (await people.read())["history"]
    assert (entry["kind"], entry["actor"], entry["detail"]) == ("commented", "eve", {"comment": "is the price right?"})
    assert (await people.say("comments", "eve", comment="")).status_code == 422
    for name in ("ada", "grace"):
        await people.say("approve", name)
    assert (await people.say("comments", "eve", comment="too late")).status_code == 409


# == the inbox =========================================================================================================
async def inbox(people: People, name: str, roles: str = "") -> list[str]:
    headers = {"Headrace-Actor": name, "Headrace-Roles": roles}
    answer = await people.api.get("/approvals", params={"for": "me"}, headers=headers)
    return [item["title"] for item in answer.json()["items"]]


async def test_the_inbox_has_what_waits_for_whoever_looks(people: People):
    for title, more in (
        ("anybody", "no_self_approval: true"),
        ("by name", "approvers: [ada, grace], needed: 2"),
        ("by role", "approvers: ['role:finance']"),
    ):
        await people.ask(f"title: {title}, {more}", by="grace")
        if title == "by name":
            await people.say("approve", "grace")
    assert await inbox(people, "eve") == ["anybody"]
    assert await inbox(people, "eve", "finance") == ["by role", "anybody"]
    assert await inbox(people, "ada") == ["by name", "anybody"]
    assert await inbox(people, "grace") == [], "she has voted for one, and started the run of the other"
    await delegate(people, "ada", "eve")
    assert await inbox(people, "eve") == ["by name", "anybody"]
    wrong = await people.api.get("/approvals", params={"for": "me", "status": "all"})
    assert wrong.status_code == 422


# == delegations =======================================================================================================
async def delegate(people: People, from_: str, to: str, *, by: str = "", **more: Any) -> httpx.Response:
    body = {"from": from_, "to": to, "ends_at": "2099-01-01T00:00:00Z", **more}
    return await people.api.post("/delegations", json=body, headers={"Headrace-Actor": by or from_})


async def test_a_delegate_decides_in_ones_place_while_that_lasts(people: People):
    await people.ask("approvers: [ada]")
    made = await delegate(people, "ada", "grace", starts_at="2098-01-01T00:00:00Z")
    assert made.status_code == 201
    assert (await people.say("approve", "grace")).status_code == 403, "it has not begun"
    people.sql("UPDATE delegation SET starts_at = now() - interval '2 days', ends_at = now() - interval '1 day'")
    assert (await people.say("approve", "grace")).status_code == 403, "it is over"
    people.sql("UPDATE delegation SET ends_at = now() + interval '1 day'")
    assert (await people.say("approve", "grace")).status_code == 200
    (vote,) = (await people.read())["record"]
    assert (vote["by"], vote["voter"], vote["in_place_of"]) == ("grace", "ada", "ada")


async def test_a_delegation_that_was_ended_gives_no_right(people: People):
    await people.ask("approvers: [ada]")
    made = (await delegate(people, "ada", "grace")).json()
    assert [item["to"] for item in (await people.api.read("/delegations"))["items"]] == ["grace"]
    path = f"/delegations/{made['delegation_id']}/end"
    assert (await people.api.post(path, headers={"Headrace-Actor": "grace"})).status_code == 403
    ended = await people.api.post(path, headers={"Headrace-Actor": "ada"})
    assert (ended.status_code, ended.json()["ended_by"]) == (200, "ada")
    assert (await people.api.post(path, headers={"Headrace-Actor": "ada"})).status_code == 409
    assert (await people.say("approve", "grace")).status_code == 403
    assert (await people.api.read("/delegations"))["items"] == []


@pytest.mark.parametrize(
    ("from_", "by", "more", "status"),
    [
        ("ada", "eve", {}, 403),
        ("role:finance", "eve", {}, 403),
        ("ada", "ada", {"ends_at": "2001-01-01T00:00:00Z"}, 409),
        ("grace", "grace", {}, 409),
        ("ada", "ada", {"ends_at": "soon"}, 422),
    ],
)
async def test_nobody_gives_what_is_not_theirs(people: People, from_: str, by: str, more: dict[str, Any], status: int):
    assert (await delegate(people, from_, "grace", by=by, **more)).status_code == status
    assert people.engine.count("delegation") == 0


async def test_no_delegation_leads_round_self_approval(people: People):
    await people.ask("approvers: [ada, 'role:finance'], no_self_approval: true", by="grace")
    await delegate(people, "ada", "grace")
    assert (await people.say("approve", "grace")).status_code == 403, "also in the place of somebody else"
    given = {"Headrace-Actor": "grace", "Headrace-Roles": "finance"}
    body = {"from": "role:finance", "to": "eve", "ends_at": "2099-01-01T00:00:00Z"}
    assert (await people.api.post("/delegations", json=body, headers=given)).status_code == 201
    refused = await people.say("approve", "eve")
    assert (refused.status_code, "in place of grace" in refused.json()["detail"]) == (403, True)
    assert await inbox(people, "eve") == []
    await people.api.post("/delegations", json=body, headers={**given, "Headrace-Actor": "ada"})
    assert len(await inbox(people, "eve")) == 1
    assert (await people.say("approve", "eve")).status_code == 200


async def test_one_who_is_stood_in_for_has_one_vote(people: People):
    await people.ask("approvers: [ada, alan], needed: 2")
    await delegate(people, "ada", "grace")
    assert (await people.say("approve", "grace")).status_code == 200
    assert (await people.say("approve", "ada")).status_code == 409
    assert (await people.read())["status"] == "waiting"


# == links =============================================================================================================
async def link(people: People, name: str, by: str = "mailer", **more: Any) -> httpx.Response:
    body = {"for": name, **more}
    headers = {"Headrace-Actor": by}
    return await people.api.post(f"/approvals/{people.approval_id}/links", json=body, headers=headers)


async def path_of(people: People, name: str, **more: Any) -> str:
    made = await link(people, name, **more)
    assert made.status_code == 201, made.text
    return urlsplit(made.json()["url"]).path


async def test_a_link_shows_by_get_and_decides_by_post_once(people: People):
    await people.ask(f"title: Pay?, approvers: [ada], {FORM}")
    path = await path_of(people, "ada")
    for _ in range(3):  # a mail program looks at it before the person does
        page = await people.api.get(path)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert "<h1>Pay?</h1>" in page.text
        assert 'name="form.amount"' in page.text
    assert (await people.read())["status"] == "waiting"
    wrong = await people.api.post(path, data={"decision": "approve", "form.amount": "101"})
    assert (wrong.status_code, (await people.read())["status"]) == (422, "waiting")
    done = await people.api.post(path, data={"decision": "approve", "form.amount": "7", "comment": "fine"})
    assert (done.status_code, "Thank you" in done.text) == (200, True)
    (vote,) = (await people.read())["record"]
    assert (vote["by"], vote["source"], vote["comment"], vote["form"]) == ("ada", "link", "fine", {"amount": 7})
    assert people.engine.apply_requests() == ["decided"]
    for again in (people.api.get(path), people.api.post(path, data={"decision": "reject"})):
        assert (await again).status_code == 410


async def test_of_two_posts_at_once_one_counts(people: People):
    await people.ask("approvers: [ada]")
    path = await path_of(people, "ada")
    answers = await asyncio.gather(*(people.api.post(path, data={"decision": "approve"}) for _ in range(6)))
    assert sorted(answer.status_code for answer in answers) == [200] + [410] * 5


async def test_a_link_that_is_over_or_whose_question_is_decided_is_gone(people: People):
    await people.ask("approvers: [ada, grace]")
    path, other = await path_of(people, "ada"), await path_of(people, "grace")
    people.sql("UPDATE approval_link SET expires_at = now() - interval '1 s' WHERE name = 'ada'")
    assert (await people.api.get(path)).status_code == 410
    assert (await people.api.post(path, data={"decision": "approve"})).status_code == 410
    await people.say("approve", "ada")
    assert (await people.api.get(other)).status_code == 410
    assert (await people.api.post(other, data={"decision": "approve"})).status_code == 410


async def test_a_link_that_was_forged_is_not_found(people: People):
    await people.ask("approvers: [ada]")
    path = await path_of(people, "ada")
    forged = path[:-2] + ("AA" if path[-2:] != "AA" else "BB")
    for wrong in (forged, path[:-5], "/decide/x", "/decide/" + "A" * 64):
        assert (await people.api.get(wrong)).status_code == 404
        assert (await people.api.post(wrong, data={"decision": "approve"})).status_code == 404


async def test_a_link_is_made_only_for_those_who_may_decide(people: People):
    await people.ask("approvers: [ada, 'role:finance'], no_self_approval: true", by="starter")
    assert (await link(people, "eve")).status_code == 403
    assert (await link(people, "ada", by="starter")).status_code == 403, "no way round that either"
    path = await path_of(people, "eve", role="finance")
    await people.api.post(path, data={"decision": "approve"})
    (vote,) = (await people.read())["record"]
    assert (vote["by"], vote["role"]) == ("eve", "finance")


async def test_a_link_gives_no_right_that_was_taken_back(people: People):
    await people.ask("approvers: [ada]")
    made = (await delegate(people, "ada", "grace")).json()
    path = await path_of(people, "grace")
    await people.api.post(f"/delegations/{made['delegation_id']}/end", headers={"Headrace-Actor": "ada"})
    refused = await people.api.post(path, data={"decision": "approve"})
    assert (refused.status_code, "not among those" in refused.text) == (403, True)
    assert (await people.read())["status"] == "waiting"


async def test_what_people_wrote_is_text_on_the_page_of_a_link(people: People):
    evil = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
    context = msgspec.json.encode({"x": evil}).decode()
    form = msgspec.json.encode({"properties": {evil: {"type": "string", "enum": [evil]}}}).decode()
    quoted = msgspec.json.encode(evil).decode()
    await people.ask(f"title: {quoted}, context: {context}, form: {form}, approvers: [{quoted}]")
    page = await people.api.get(await path_of(people, evil))
    assert page.status_code == 200
    assert not re.search(r"<(script|img)", page.text)
    assert page.text.count("&lt;script&gt;") >= 5
    assert "default-src 'none'" in page.headers["content-security-policy"]


async def test_the_key_of_the_links_is_made_once(people: People):
    await people.ask("approvers: [ada, grace]")
    await asyncio.gather(*(link(people, "ada") for _ in range(4)))
    assert people.engine.count("engine_key") == 1


# == what Postgres refuses by itself ===================================================================================
@pytest.mark.parametrize(
    ("statement", "constraint"),
    [
        ("INSERT INTO approval_vote (approval_id, actor, voter, decision, digest, source) "
         "SELECT approval_id, 'ada', 'other', decision, digest, source FROM approval_vote", "approval_vote_key"),
        ("INSERT INTO approval_vote (approval_id, actor, voter, decision, digest, source) "
         "SELECT approval_id, 'other', voter, decision, digest, source FROM approval_vote",
         "approval_vote_counts_once"),
        ("UPDATE approval_vote SET decision = 'maybe'", "approval_vote_decision_known"),
        ("UPDATE approval_vote SET source = 'dream'", "approval_vote_source_known"),
        ("UPDATE approval SET needed = 0", "approval_needed_positive"),
        ("INSERT INTO approval_timer (approval_id, kind, position) SELECT approval_id, 'remind', 9 FROM approval",
         "approval_timer_reminds_on_time"),
        ("INSERT INTO delegation (delegation_id, from_name, to_name, starts_at, ends_at) "
         "VALUES (gen_random_uuid(), 'a', 'a', now(), now() + interval '1 day')", "delegation_to_another"),
    ],
)  # fmt: skip
async def test_postgres_keeps_the_rules_too(people: People, statement: str, constraint: str):
    await people.ask(DECIDED_BY_TWO)
    await people.say("approve", "ada")
    with pytest.raises(psycopg.errors.IntegrityError) as refused:
        people.sql(statement)
    assert refused.value.diag.constraint_name == constraint
