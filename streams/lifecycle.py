"""What other services are told: CloudEvents in the topic `lifecycle`, with the run's id as their key.

Each is left in the outbox by the transaction that makes it so. It has one id however often it is published, and nothing
in the engine reads it.
"""

from typing import Any, Literal
from uuid import UUID

import msgspec

from state.outbox import Record
from state.settings import EngineSettings


def approval_event(
    settings: EngineSettings,
    kind: Literal["remind", "escalate"],
    approval_id: UUID,
    run_id: UUID,
    position: int,
    targets: str | None,
) -> Record:
    """A reminder, or a step of the escalation, has fired. targets: JSON list of who is asked besides."""
    name = {"remind": "reminded", "escalate": "escalated"}[kind]
    data: dict[str, Any] = {"approval_id": str(approval_id), "run_id": str(run_id), "number": position + 1}
    if targets is not None:
        data["to"] = msgspec.json.decode(targets)
    event = {
        "specversion": "1.0",
        "id": f"{approval_id}/{name}/{position + 1}",
        "source": f"/approvals/{approval_id}",
        "type": f"headrace.approval.{name}",
        "subject": str(run_id),
        "datacontenttype": "application/json",
        "data": data,
    }
    return Record(settings.lifecycle_topic, str(run_id).encode(), msgspec.json.encode(event))
