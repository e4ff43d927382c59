"""The answers of a lookup: a body that tells what became of the effect of an attempt which ended without a word.

    @task("bank.find_charge")
    def find_charge(order_id: str, ctx: Context) -> dict[str, Any]:
        charge = bank.find(ctx.effect_key)
        return happened({"receipt": charge.id}) if charge else did_not_happen()

A task with `effect: reconcile` and `lookup: bank.find_charge` asks it before any other attempt. It gets the input of
the task's own body, and the same effect key.
"""

from typing import Any


def happened(output: Any = None) -> dict[str, Any]:
    """It did. output: what the task's body would have returned; the task completes with it."""
    return {"happened": True, "output": output}


def did_not_happen() -> dict[str, Any]:
    """It did not, and will not any more: the task is tried again."""
    return {"happened": False}


def unknown() -> dict[str, Any]:
    """Nobody can tell yet: the task waits for a person."""
    return {"happened": None}
