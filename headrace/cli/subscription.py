"""`headrace subscribe`, `subscriptions`, `unsubscribe`: which records of your topics start runs or say signals."""

from typing import Annotated, Any

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import command
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import read_json, read_labels
from headrace.errors import ConfigurationError

Name = Annotated[str, typer.Argument(metavar="NAME", help="your name for the subscription")]
CODES = (
    "Exit codes: 0 subscribed, 2 wrong options, 3 no such workflow, 4 the name is another subscription's, 5 API away."
)


@command("subscribe", panel="Topics", epilog=CODES)
def subscribe(
    terminal: Terminal,
    api: Api,
    name: Name,
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="whose records, from now on")],
    workflow: Annotated[str | None, typer.Option("--workflow", "-w", help="every record starts a run of it")] = None,
    signal: Annotated[str | None, typer.Option("--signal", "-s", help="every record says this signal")] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="of the signal: text with ${{ input… }}")] = None,
    run: Annotated[str | None, typer.Option("--run", help="the run it is for: ${{ input… }}; else who waits")] = None,
    keep: Annotated[str, typer.Option("--keep", help="how long it waits for somebody, such as 12h")] = "1d",
    filter_: Annotated[str | None, typer.Option("--filter", "-f", help="CEL over `input`, the record")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME=VALUE", help="of the runs: text with ${{ input… }}; several times"),
    ] = None,
    input_: Annotated[
        str | None, typer.Option("--input", "-i", help="input of the run or data of the signal: JSON, @file or -")
    ] = None,
) -> None:
    """Let the records of a topic start runs, or say signals, each once."""
    if (workflow is None) == (signal is None):
        raise ConfigurationError("choose one of --workflow and --signal")
    body: dict[str, Any] = {"name": name, "topic": topic, "filter": filter_}
    if input_ is not None:
        body["input"] = read_json(input_)
    if label:
        body["labels"] = read_labels(label)
    if signal is None:
        body["workflow"] = workflow
    else:
        body["signal"] = {"name": signal, "key": key, "run": run, "keep": keep}
    answer = api.post("/subscriptions", body)
    terminal.show(answer, lambda: f"subscription {answer['name']}: each record of {answer['topic']} {_what(answer)}")


@command("subscriptions", panel="Topics", epilog="Exit codes: 0 listed (also when there are none), 5 API away.")
def list_subscriptions(
    terminal: Terminal,
    api: Api,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="how many at most")] = 50,
) -> None:
    """List the subscriptions, by name."""
    answer = api.page("/subscriptions", limit=limit)
    if not answer["items"]:
        terminal.say("no topic starts runs or says signals")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw(answer["items"]))


@command("unsubscribe", panel="Topics", epilog="Exit codes: 0 deleted, 3 no such subscription, 5 API away.")
def unsubscribe(terminal: Terminal, api: Api, name: Name) -> None:
    """Delete a subscription; what its records started or said stays."""
    api.delete(f"/subscriptions/{name}")
    terminal.show({"name": name, "deleted": True}, lambda: f"subscription {name} is deleted")


def _what(subscription: Document) -> str:
    signal = subscription.get("signal")
    if signal is None:
        return f"starts {subscription['workflow']}"
    whom = f"to {signal['run']}" if signal.get("run") else f"for {signal.get('key')}"
    return f"says {signal['name']} {whom}"


def _draw(items: list[Document]) -> RenderableType:
    rows = table("subscription", "topic", "each record", "filter", "")
    for item in items:
        waits = f"waits since {ago(item['waits_since'])}" if item.get("waits_since") else ""
        rows.add_row(item["name"], item["topic"], _what(item), item.get("filter") or "every record", waits)
    return rows
