"""Values on the command line: `--input '{"total": 3}'`, `--input @order.json`, `--input -`; rates."""

import json
import sys
from pathlib import Path
from typing import Any

import typer

from headrace.errors import PayloadError


def read_text(text: str) -> str:
    """The text itself, of a file (`@path`), or of standard input (`-`). Raises typer.BadParameter."""
    if text == "-":
        return sys.stdin.read()
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {text[1:]}: {reason(error)}") from None


def read_json(text: str | None) -> Any:
    """The JSON value that `read_text` finds; None without a text. Raises typer.BadParameter that names the place."""
    if text is None:
        return None
    from headrace import payload  # costs a third of a second, which most commands need not pay

    content = read_text(text)
    try:
        value = json.loads(content)
        payload.check(content.encode(), may_refer=True)  # whether it may refer to large values, the API knows
    except json.JSONDecodeError as error:
        hint = " (a text needs quotes of its own: '\"text\"')" if content and content[0].isalpha() else ""
        raise typer.BadParameter(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}{hint}") from None
    except (PayloadError, UnicodeEncodeError) as error:
        raise typer.BadParameter(str(error)) from None
    return value


def read_labels(given: list[str]) -> dict[str, str]:
    """`--label customer=acme --label region=eu`, by name. Raises typer.BadParameter."""
    labels: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise typer.BadParameter(f"{text!r} is no label; write NAME=VALUE, such as customer=acme")
        if name in labels:
            raise typer.BadParameter(f"label {name} is given twice; a run has one value of each")
        labels[name] = value
    return labels


def reason(error: Exception) -> str:
    """What the system says, without its number."""
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def read_rate(text: str) -> float:
    """How many a second: `50`, `50/s` or `600/m`. Raises typer.BadParameter."""
    number, _, unit = text.partition("/")
    try:
        rate = float(number) / {"": 1, "s": 1, "m": 60}[unit.strip()]
    except (KeyError, ValueError):
        raise typer.BadParameter(f"{text!r} is no rate such as 50/s or 600/m") from None
    return rate
