"""The world outside: a bank, a warehouse and a mail service, played by one SQLite file.

Each of them does what a good service does with an idempotency key: the first call changes something, a repeated one
gets the first one's answer. `call` keeps every call, so that one can see how often they were asked.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

BUSY_SECONDS = 30.0
"""A call waits so long for its turn: workers are several processes."""

TABLES = """
CREATE TABLE IF NOT EXISTS reservation (effect_key TEXT PRIMARY KEY, order_id TEXT, sku TEXT, quantity INTEGER);
CREATE TABLE IF NOT EXISTS charge (effect_key TEXT PRIMARY KEY, order_id TEXT, amount_cents INTEGER);
CREATE TABLE IF NOT EXISTS parcel (effect_key TEXT PRIMARY KEY, order_id TEXT, receipt TEXT);
CREATE TABLE IF NOT EXISTS mail (effect_key TEXT PRIMARY KEY, recipient TEXT, text TEXT);
CREATE TABLE IF NOT EXISTS call (service TEXT, effect_key TEXT);
"""


class Account(NamedTuple):
    """What happened outside."""

    calls: int
    """Calls to the bank."""
    charges: int
    orders_charged_twice: int
    cents: int
    parcels: int
    mails: int


class Outside:
    def __init__(self, folder: Path) -> None:
        self._path = folder / "outside.sqlite"

    def reserve(self, effect_key: str, order_id: str, sku: str, quantity: int) -> None:
        self._call("warehouse", effect_key, "INSERT INTO reservation VALUES (?, ?, ?, ?)", order_id, sku, quantity)

    def charge(self, effect_key: str, order_id: str, amount_cents: int) -> str:
        """Book the amount, and return the receipt."""
        self._call("bank", effect_key, "INSERT INTO charge VALUES (?, ?, ?)", order_id, amount_cents)
        return f"receipt-{effect_key[-12:]}"

    def ship(self, effect_key: str, order_id: str, receipt: str) -> str:
        """Hand a parcel over, and return its number."""
        self._call("carrier", effect_key, "INSERT INTO parcel VALUES (?, ?, ?)", order_id, receipt)
        return f"parcel-{order_id}"

    def send_mail(self, effect_key: str, recipient: str, text: str) -> None:
        self._call("mail", effect_key, "INSERT INTO mail VALUES (?, ?, ?)", recipient, text)

    def account(self) -> Account:
        with self._transaction() as world:
            (calls,) = world.execute("SELECT count(*) FROM call WHERE service = 'bank'").fetchone()
            charges, cents = world.execute("SELECT count(*), coalesce(sum(amount_cents), 0) FROM charge").fetchone()
            per_order = "SELECT order_id FROM charge GROUP BY order_id HAVING count(*) > 1"
            (twice,) = world.execute(f"SELECT count(*) FROM ({per_order})").fetchone()  # noqa: S608  # a constant
            (parcels,) = world.execute("SELECT count(*) FROM parcel").fetchone()
            (mails,) = world.execute("SELECT count(*) FROM mail").fetchone()
        return Account(calls, charges, twice, cents, parcels, mails)

    def _call(self, service: str, effect_key: str, insert: str, *values: object) -> None:
        with self._transaction() as world:
            world.execute("INSERT INTO call VALUES (?, ?)", (service, effect_key))
            world.execute(f"{insert} ON CONFLICT (effect_key) DO NOTHING", (effect_key, *values))

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with closing(sqlite3.connect(self._path, timeout=BUSY_SECONDS, isolation_level=None)) as world:
            world.execute("PRAGMA synchronous = OFF")  # it plays another system; its disk is not what is shown
            world.execute("BEGIN IMMEDIATE")
            with world:
                for statement in TABLES.split(";"):
                    world.execute(statement)
                yield world
