"""Loads the named statements of `sql/*.sql`.

A statement stands under `-- name: verb_noun`. A line `-- columns: run_ids uuid, tasks int …` makes it a set-based
statement of the hot path: its parameters $1, $2 … are arrays of those types, one element a row, encoded by
`state.binary`.
"""

import re
from functools import cache
from pathlib import Path
from typing import Final, LiteralString, NamedTuple, cast

FOLDER: Final = Path(__file__).parent / "sql"
_NAME: Final = re.compile(r"^-- name: ([a-z][a-z0-9_]*)\s*$", re.MULTILINE)
_COLUMNS: Final = re.compile(r"^-- columns: (.+)$", re.MULTILINE)


class Statement(NamedTuple):
    name: str
    sql: LiteralString
    columns: tuple[tuple[str, str], ...] = ()
    """(column, type) of each array parameter, in order; empty for an ordinary statement."""


class Statements(dict[str, Statement]):
    """The statements of one file. `SQL["load_runs"]` gives the text, as what the type checker knows to be written by
    us."""

    def text(self, name: str) -> LiteralString:
        return self[name].sql


@cache
def load(file: str) -> Statements:
    """Read `sql/<file>.sql`. Raises KeyError later, on a name that is not there; a test loads them all."""
    parts = _NAME.split((FOLDER / f"{file}.sql").read_text(encoding="utf-8"))
    statements = Statements()
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        if name in statements:
            raise ValueError(f"{file}.sql has two statements named {name}")
        columns = [column.strip() for line in _COLUMNS.findall(body) for column in line.split(",") if column.strip()]
        pairs = tuple((column.split()[0], column.split()[1]) for column in columns)
        statements[name] = Statement(name, cast("LiteralString", body.strip()), pairs)
    return statements
