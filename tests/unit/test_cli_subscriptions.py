"""Subscriptions from the command line: what is asked of the API, and how they are shown."""

from typing import Any

import httpx

from tests.unit.test_cli import FakeApi, _elsewhere, api, headrace

__all__ = ["_elsewhere", "api"]
SHOWN: dict[str, Any] = {
    "name": "payments", "topic": "bank.payments", "workflow": None, "filter": None, "input": None, "enabled": True,
    "created_at": "2026-11-30T09:00:00Z", "waits_since": None,
    "signal": {"name": "paid", "key": "${{ input.data.order }}", "run": None, "keep": "1d"},
}  # fmt: skip


def test_a_topic_says_a_signal(api: FakeApi) -> None:
    api.answers["POST /subscriptions"] = httpx.Response(201, json=SHOWN)
    options = ("--signal", "paid", "--key", "${{ input.data.order }}", "--input", '{"sum": 1}')
    made = headrace("subscribe", "payments", "bank.payments", *options)
    assert made.exit_code == 0, made.output
    assert "each record of bank.payments says paid for ${{ input.data.order }}" in made.output.replace("\n", " ")
    assert api.body() == {
        "name": "payments", "topic": "bank.payments", "filter": None, "input": {"sum": 1}, "signal": SHOWN["signal"],
    }  # fmt: skip


def test_a_topic_starts_a_workflow(api: FakeApi) -> None:
    api.answers["POST /subscriptions"] = httpx.Response(201, json={**SHOWN, "workflow": "orders", "signal": None})
    assert headrace("subscribe", "shop", "shop.orders", "-w", "orders", "-f", "input.data.n > 1").exit_code == 0
    assert api.body() == {
        "name": "shop", "topic": "shop.orders", "filter": "input.data.n > 1", "workflow": "orders",
    }  # fmt: skip


def test_records_label_the_runs_that_they_start(api: FakeApi) -> None:
    api.answers["POST /subscriptions"] = httpx.Response(201, json={**SHOWN, "workflow": "orders", "signal": None})
    given = ("-l", "customer=${{ input.data.customer }}", "--label", "from=kafka")
    assert headrace("subscribe", "shop", "shop.orders", "-w", "orders", *given).exit_code == 0
    assert api.body()["labels"] == {"customer": "${{ input.data.customer }}", "from": "kafka"}


def test_it_is_one_or_the_other(api: FakeApi) -> None:
    assert headrace("subscribe", "shop", "shop.orders").exit_code == 2
    assert headrace("subscribe", "shop", "shop.orders", "-w", "orders", "-s", "paid").exit_code == 2
    assert not api.asked


def test_they_are_listed_with_what_a_record_does(api: FakeApi) -> None:
    listed = [SHOWN, {**SHOWN, "name": "shop", "workflow": "orders", "signal": None}]
    api.answers["GET /subscriptions"] = httpx.Response(200, json={"items": listed, "next": None})
    shown = headrace("subscriptions")
    assert shown.exit_code == 0
    assert "starts orders" in shown.output


def test_one_is_deleted(api: FakeApi) -> None:
    api.answers["DELETE /subscriptions/payments"] = httpx.Response(204)
    assert headrace("unsubscribe", "payments").exit_code == 0
    assert [f"{request.method} {request.url.path}" for request in api.asked] == ["DELETE /subscriptions/payments"]
