"""A question to people, as a definition writes it: what they are shown, who they are, and what becomes of it.

`Approval` looks at each field alone, and at what fits together within one question; its templates and its form are
checked with the graph.
"""

from datetime import timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    StrictInt,
    StrictStr,
    field_serializer,
    model_validator,
)

from headrace.duration import PositiveDuration, format_duration

TITLE_CHARS_MAX: Final = 200
APPROVERS_MAX: Final = 100
APPROVER_CHARS_MAX: Final = 200
NEEDED_MAX: Final = 20
"""Yeses for one question; their votes travel with the outcome."""
REMINDERS_MAX: Final = 20
STEPS_MAX: Final = 20
"""Of an escalation chain."""
ROLE: Final = "role:"
"""In front of an approver that is a role, and not a name."""


def _one_or_more(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _durations(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


Approvers = Annotated[
    tuple[Annotated[StrictStr, Field(min_length=1, max_length=APPROVER_CHARS_MAX)], ...],
    BeforeValidator(_one_or_more),
    Field(max_length=APPROVERS_MAX),
]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Escalation(_Frozen):
    """A step of the chain: who is asked besides, and when."""

    to: Annotated[Approvers, Field(min_length=1)]
    """Names and roles, one or a list."""
    after: PositiveDuration | None = None
    """From the moment the question is asked; None: only when it expires."""


class Approval(_Frozen):
    """A question to people that must be answered before the task goes on."""

    title: Annotated[StrictStr, Field(max_length=TITLE_CHARS_MAX)] = ""
    """Text, with expressions if need be."""
    context: Any = None
    """Template of what they are shown besides; None: nothing."""
    form: dict[str, Any] | None = None
    """JSON Schema of the answer that comes with a yes; None: there is none to give."""
    approvers: Approvers = ()
    """Names, and roles written `role:finance`; empty: whoever may approve at all."""
    needed: Annotated[StrictInt, Field(ge=1, le=NEEDED_MAX)] = 1
    """So many have to say yes; the first no is enough."""
    no_self_approval: StrictBool = False
    """Who started the run has no vote."""
    expires: PositiveDuration | None = None
    """From the moment it is asked, and after an escalation by expiry again; None: never."""
    on_expiry: Literal["fail", "approve", "reject", "escalate"] = "fail"
    """escalate: the next step of the chain is asked, too, and the time begins again; without one left it fails."""
    remind: Annotated[tuple[PositiveDuration, ...], BeforeValidator(_durations), Field(max_length=REMINDERS_MAX)] = ()
    """When to remind, from the moment it is asked."""
    escalate: Annotated[tuple[Escalation, ...], Field(max_length=STEPS_MAX)] = ()
    """The chain of those who are asked besides, in order."""
    on_reject: Literal["fail", "complete"] = "fail"
    """complete: the task is done with the rejection as its output, for a branch to look at."""

    @field_serializer("remind")
    def _write_remind(self, remind: tuple[timedelta, ...]) -> list[str]:
        return [format_duration(length) for length in remind]

    @model_validator(mode="after")
    def _fits_together(self) -> "Approval":
        if self.on_expiry == "escalate" and self.expires is None:
            raise ValueError("`on_expiry: escalate` needs `expires`")
        if self.on_expiry == "escalate" and not self.escalate:
            raise ValueError("`on_expiry: escalate` needs `escalate`, the chain of those who are asked next")
        if self.escalate and not self.approvers:
            raise ValueError("`escalate` needs `approvers`: without them everybody is asked from the beginning")
        if self.on_expiry != "escalate" and any(step.after is None for step in self.escalate):
            raise ValueError("a step of `escalate` needs `after`, unless `on_expiry: escalate` leads to it")
        everybody = {*self.approvers, *(name for step in self.escalate for name in step.to)}
        if everybody and self.needed > len(everybody) and not any(name.startswith(ROLE) for name in everybody):
            raise ValueError(f"{self.needed} are needed, and only {len(everybody)} may approve")
        return self
