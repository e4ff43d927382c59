"""What is wrong with a request."""

import msgspec


class Fault(msgspec.Struct, omit_defaults=True):
    """One thing that is wrong with a request."""

    path: str
    message: str
    line: int | None = None
    """Line in the text of a workflow, from 1."""


class Problem(msgspec.Struct, omit_defaults=True):
    """RFC 9457 problem details; `code` is stable and has a section in docs/errors.md."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    request_id: str
    errors: list[Fault] = []
    run_id: str | None = None
    """The run that is in the way of this, where one is: under a limit, one that goes already."""
