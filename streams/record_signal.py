"""What a subscription says with a record instead of starting a run: a signal, for a run or for whoever waits."""

from typing import NamedTuple
from uuid import UUID

import msgspec

from headrace.duration import parse_duration
from headrace.errors import PayloadError
from headrace.expressions import Template, compile_template
from headrace.machine.plan import SignalPlan
from state.record_signals import Saying


class SignalOfRecord(msgspec.Struct):
    """As it is stored with its subscription; the API has checked it."""

    name: str
    key: str | None = None
    run: str | None = None
    keep: str | float = "1d"


class SignalTarget(NamedTuple):
    """The same, ready to be applied."""

    plan: SignalPlan
    """Its name, and its key."""
    run: Template | None
    keep_seconds: float

    def saying(self, seen: bytes, data: bytes, sender_id: str, actor: str) -> Saying:
        """What a record says. seen: what expressions see of it. Raises PayloadError."""
        key = self.plan.key_of(seen, _no_output, None)
        run_id = None if self.run is None else _run_id(self.run.render(seen, _no_output))
        return Saying(self.plan.name, data, sender_id, actor, key, run_id, self.keep_seconds)


def compile_target(signal: SignalOfRecord) -> SignalTarget:
    """Raises what its expressions raise."""
    key = None if signal.key is None else compile_template(signal.key)
    run = None if signal.run is None else compile_template(signal.run)
    return SignalTarget(SignalPlan(signal.name, key), run, parse_duration(signal.keep).total_seconds())


def _run_id(raw: bytes) -> UUID:
    found = msgspec.json.decode(raw)
    try:
        return UUID(found)
    except (AttributeError, TypeError, ValueError):
        raise PayloadError(f"{found!r:.80} is no id of a run", reason="BAD_INPUT") from None


def _no_output(name: str) -> bytes | None:
    return None
