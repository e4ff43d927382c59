"""What a dead letter meant: the attempts of its task, what its body was given, the headers of its record.

The input is not stored with a letter: it is derived as the machine does, from the run's input and outputs, which do not
change any more, and from what an operator gave the task before.
"""

from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

import msgspec

from headrace.errors import PayloadError
from headrace.machine import Plan
from headrace.messages import TRACEPARENT
from state.fingerprint import Header, decode_headers
from state.queries.dead_letter import DeadLetterRow, LetterRunRow, list_letter_attempts, read_letter_run
from state.queries.rows import Connection
from state.queries.task import AttemptRow
from state.task_input import derive_input

ATTEMPTS_MAX: Final = 100


@dataclass
class LetterContext:
    attempts: list[AttemptRow] = field(default_factory=list)
    """Of its task, up to the letter, the newest ATTEMPTS_MAX, in order."""
    input: bytes | None = None
    input_missing: str | None = None
    """Why there is no input."""
    run_input: str | None = None
    headers: list[Header] = field(default_factory=list)
    traceparent: str | None = None


class _Detail(msgspec.Struct):
    input: msgspec.Raw = msgspec.Raw()


async def read_context(connection: Connection, plan: Plan | None, letter: DeadLetterRow) -> LetterContext:
    """plan: of the letter's run, if it has one."""
    context = LetterContext(headers=decode_headers(letter.headers))
    context.traceparent = next((h.value for h in context.headers if h.name == TRACEPARENT), None)
    if letter.run_id is None:
        context.input_missing = "it is a record, and no task"
        return context
    task, token = (-1, -1) if letter.task is None or letter.token is None else (letter.task, letter.token)
    run = await read_letter_run(connection, letter.run_id, task, token)
    if run is None or plan is None:
        context.input_missing = "its run is gone"
        return context
    context.run_input, context.traceparent = run.input, context.traceparent or run.traceparent
    if letter.task is None:
        context.input_missing = "it is a record, and no task"
        return context
    context.attempts = await list_letter_attempts(connection, letter.run_id, task, token, limit=ATTEMPTS_MAX)
    await _add_input(connection, context, plan, task, token, letter.run_id, run)
    return context


async def _add_input(
    connection: Connection,
    context: LetterContext,
    plan: Plan,
    task: int,
    token: int,
    run_id: UUID,
    run: LetterRunRow,
) -> None:
    edited = b"" if run.replayed is None else bytes(msgspec.json.decode(run.replayed, type=_Detail).input)
    spec = plan.at(task)
    if spec.run is None:
        context.input_missing = "the task has no body"
    elif edited:
        context.input = edited
    elif token == 0:
        context.input_missing = "it was never handed out: its condition could not be evaluated"
    elif spec.map is not None:
        context.input_missing = "it is a map, and its list could not be read: a replay may give another"
    else:
        try:
            context.input = await derive_input(connection, plan, run_id, run.input.encode(), task)
        except PayloadError as e:
            context.input_missing = f"it cannot be rendered: {e.message}"
