"""What a task's body was given: not stored, since the machine renders it from what does not change any more."""

from uuid import UUID

from headrace.machine import Plan
from headrace.machine.place import compensation_of, is_compensation, is_item, item_of, task_of
from headrace.machine.plan import read_list
from state.queries.rows import Connection
from state.queries.run import list_outputs
from state.queries.task import list_tasks


async def derive_input(connection: Connection, plan: Plan, run_id: UUID, run_input: bytes, place: int) -> bytes:
    """The input of a task or of an item, as the machine renders it. Raises PayloadError where it cannot."""
    spec = plan.at(place)
    asked = [(run_id, plan.index[name]) for name in (spec.template.references if spec.template is not None else ())]
    outputs = {
        plan.tasks[found.task].name: (found.output or "null").encode()
        for found in (await list_outputs(connection, asked) if asked else ())
    }
    if is_compensation(place):
        return await _derive_compensation_input(connection, plan, run_id, run_input, task_of(place), outputs)
    if not is_item(place):
        return run_input if spec.template is None else spec.template.render(run_input, outputs.get)
    (row,) = await list_tasks(connection, run_id, first=task_of(place), end=task_of(place) + 1)
    items = read_list((row.input or "[]").encode())
    return spec.render_item(run_input, outputs.get, items, item_of(place) or 0)


async def _derive_compensation_input(
    connection: Connection, plan: Plan, run_id: UUID, run_input: bytes, task: int, outputs: dict[str, bytes]
) -> bytes:
    (row,) = await list_tasks(connection, run_id, first=task, end=task + 1)
    given = row.input.encode() if row.input is not None else None
    given = given or await derive_input(connection, plan, run_id, run_input, task)
    answer = None if row.output is None else row.output.encode()
    spec = plan.at(compensation_of(task))
    return spec.render_compensation(run_input, outputs.get, given, answer)
