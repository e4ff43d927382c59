"""What each named statement does, on the model: `state/sql/*.sql` and the relay's own, told again in Python.

One module for each noun of the SQL. A statement whose text changes keeps its name, so a change of meaning has to be
made here too. Columns of set-based statements are taken by their names in the SQL file. A statement that is in none of
the modules raises, with its name.
"""

import pkgutil
from importlib import import_module
from typing import Final

import connectors.ownership as relay_ownership
import connectors.slot as relay_slot
from state import outbox
from state.sql import FOLDER, load
from tests.simulation.statements.registry import MODELS, Model

_OWN_TEXTS: Final = {
    outbox.EMIT_MESSAGE: "emit_message",
    outbox.INSERT_ROWS: "publish_rows",
    outbox.DELETE_ROWS: "delete_rows",
    "SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))": "try_lock",
    "SELECT pg_try_advisory_xact_lock(hashtextextended('headrace.sweep.pauses', 0))": "try_lock_pauses",
    "SELECT now()": "read_now",
    "SELECT set_config('statement_timeout', %s, false)": "set_config",
    relay_ownership._CLAIM: "claim_relay",
    relay_ownership._RENEW: "renew_relay",
    relay_ownership._RELEASE: "release_relay",
    relay_slot._LOOK: "look_at_slot",
    relay_slot._CREATE: "create_slot",
    relay_slot._DROP: "drop_slot",
    relay_slot._MARK_GAP: "mark_gap",
    relay_slot._END_READER: "end_reader",
}
_texts: Final[dict[str, str]] = {}
"""SQL text -> name."""

for _module in pkgutil.iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")


def find(sql: str) -> tuple[str, Model]:
    """The name and the model of a statement."""
    if not _texts:
        _texts.update(_OWN_TEXTS)
        for file in sorted(FOLDER.glob("*.sql")):
            _texts.update({statement.sql: name for name, statement in load(file.stem).items()})
    name = _texts.get(sql)
    if name is None or name not in MODELS:
        raise NotImplementedError(f"the simulation has no model of this statement: {name or sql!r}")
    return name, MODELS[name]
