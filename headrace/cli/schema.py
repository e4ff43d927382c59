"""`headrace schema`: the language, for editors."""

from headrace.cli.command import command
from headrace.cli.terminal import Terminal
from headrace.graph import json_schema


@command("schema", panel="Workflows", epilog="Exit codes: 0 printed.")
def schema(terminal: Terminal) -> None:
    """Print the JSON Schema of a workflow, with which an editor completes and checks it."""
    terminal.print_json(json_schema())
