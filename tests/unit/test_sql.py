"""Rules that every named statement keeps."""

import re

import pytest

from state.sql import FOLDER, load

STATEMENTS = {
    f"{path.stem}.{name}": re.sub(r"--.*", "", statement.sql)
    for path in sorted(FOLDER.glob("*.sql"))
    for name, statement in load(path.stem).items()
}
LOCKED = re.compile(r"(?:FROM|USING)\s*\(\s*SELECT(?:(?!;).)*?FOR (?:NO KEY )?UPDATE", re.DOTALL)


def changes_what_it_looks_for_again(sql: str) -> bool:
    """An UPDATE or DELETE that joins a subquery which locks rows: a nested loop may run that once for each row, and it
    passes over what the statement has just changed, so that more are taken than it says. It has to be `WITH …`."""
    for change in re.finditer(r"\bUPDATE\s+\w+(?:\s+\w+)?\s+SET\b|\bDELETE\s+FROM\b", sql):
        depth, end = 0, change.start()
        for end in range(change.start(), len(sql)):
            depth += {"(": 1, ")": -1}.get(sql[end], 0)
            if depth < 0:
                break
        if LOCKED.search(sql[change.start() : end + 1]):
            return True
    return False


@pytest.mark.parametrize("name", STATEMENTS)
def test_what_a_statement_locks_and_changes_it_looks_for_once(name: str):
    assert not changes_what_it_looks_for_again(STATEMENTS[name])


@pytest.mark.parametrize(
    ("sql", "is_found"),
    [
        ("UPDATE a SET b = 1 FROM (SELECT id FROM a LIMIT 1 FOR UPDATE SKIP LOCKED) n WHERE a.id = n.id", True),
        (
            "WITH x AS (SELECT 1) UPDATE a z SET b = 1 FROM (SELECT id FROM a FOR NO KEY UPDATE) n WHERE z.id = n.id",
            True,
        ),
        ("DELETE FROM a USING (SELECT id FROM a LIMIT 1 FOR UPDATE) n WHERE a.id = n.id", True),
        ("WITH n AS (SELECT id FROM a LIMIT 1 FOR UPDATE) UPDATE a SET b = 1 FROM n WHERE a.id = n.id", False),
        ("WITH u AS (UPDATE a SET b = 1 RETURNING id) SELECT 1 FROM (SELECT id FROM c FOR UPDATE) n, u", False),
    ],
)
def test_the_rule_itself(sql: str, is_found: bool):
    assert changes_what_it_looks_for_again(sql) == is_found
