"""A bank's ledger, played by one SQLite file: entries that sum up to nothing, each booked once under its effect key.

A booking moves cents from one account to another. One under a key that was booked already changes nothing and gets the
first one's answer, which is what a good bank does with an idempotency key.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

BUSY_SECONDS = 30.0
CLOSED = frozenset({"closed-account"})
"""Payees that cannot be paid: the receiving bank says so only when it is asked to confirm."""
HELD = "held"
"""Where money is between payer and payee."""

TABLES = """
CREATE TABLE IF NOT EXISTS booking (
  effect_key TEXT PRIMARY KEY, what TEXT, payment TEXT, payer TEXT, payee TEXT, cents INTEGER
);
CREATE TABLE IF NOT EXISTS audit (effect_key TEXT PRIMARY KEY, payment TEXT, text TEXT);
"""


class Ledger:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "ledger.sqlite"

    def book(self, effect_key: str, what: str, payment: str, payer: str, payee: str, cents: int) -> str:
        """Move cents, or find that it was done; answers the receipt."""
        with self._transaction() as ledger:
            ledger.execute(
                "INSERT INTO booking VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                (effect_key, what, payment, payer, payee, cents),
            )
        return f"{what}-{payment}"

    def find(self, effect_key: str) -> str | None:
        """The receipt of what was booked under that key; None: nothing was."""
        with self._transaction() as ledger:
            row = ledger.execute("SELECT what, payment FROM booking WHERE effect_key = ?", (effect_key,)).fetchone()
        return None if row is None else "-".join(row)

    def record(self, effect_key: str, payment: str, text: str) -> None:
        with self._transaction() as ledger:
            ledger.execute("INSERT INTO audit VALUES (?, ?, ?) ON CONFLICT DO NOTHING", (effect_key, payment, text))

    def balances(self) -> dict[str, int]:
        """Cents by account; those with nothing are left out."""
        found: dict[str, int] = {}
        with self._transaction() as ledger:
            for payer, payee, cents in ledger.execute("SELECT payer, payee, cents FROM booking"):
                found[payer] = found.get(payer, 0) - cents
                found[payee] = found.get(payee, 0) + cents
        return {account: cents for account, cents in found.items() if cents}

    def booked(self, payment: str) -> list[str]:
        """What was done for a payment, in the order in which it was."""
        with self._transaction() as ledger:
            rows = ledger.execute("SELECT what FROM booking WHERE payment = ? ORDER BY rowid", (payment,))
            return [what for (what,) in rows]

    def audited(self) -> list[str]:
        with self._transaction() as ledger:
            return [payment for (payment,) in ledger.execute("SELECT payment FROM audit ORDER BY payment")]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as ledger:
            ledger.execute("PRAGMA synchronous = OFF")  # it plays another system; its disk is not what is shown
            ledger.execute("BEGIN IMMEDIATE")
            with ledger:
                for statement in TABLES.split(";"):
                    ledger.execute(statement)
                yield ledger
