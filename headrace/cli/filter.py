"""Filters on the command line: `--filter 'status:failed started:>-2h'`, and options that are short for a clause."""

from typing import Annotated

import typer

FilterText = Annotated[
    str,
    typer.Option(
        "--filter",
        "-f",
        metavar="FILTER",
        help="which ones, such as 'status:failed started:>-2h -queue:slow error:\"time out\"'; docs/filters.md",
    ),
]


def with_clauses(text: str, **clauses: object) -> str:
    """A filter and what other options say, as one text. clauses: a value, or several, by field; those that are None say
    nothing."""
    from headrace.filter import Clause, escape  # costs a third of a second, which most commands need not pay

    parts = [text.strip()]
    for field, value in clauses.items():
        values = [str(each) for each in value] if isinstance(value, list) else [] if value is None else [str(value)]
        if values:
            parts.append(str(Clause(field, tuple(map(escape, values)))))
    return " ".join(filter(None, parts))
