"""The plans of the versions that runs are pinned to, and how a run's tasks are counted with their help."""

from collections import Counter
from collections.abc import Iterable, Mapping

from headrace.errors import InvariantError
from headrace.machine import Plan, TaskStatus
from state.plans import Plans
from state.queries.rows import Connection


async def load_plans(plans: Plans, connection: Connection, version_ids: Iterable[int]) -> dict[int, Plan]:
    """Plans of versions that rows name, by version id. Raises UnreadableError."""
    wanted = set(version_ids)
    await plans.load(connection, wanted)
    found = {version_id: plan for version_id in wanted if (plan := plans.get(version_id)) is not None}
    for version_id in wanted - found.keys():
        if (error := plans.unreadable(version_id)) is not None:
            raise error
    if missing := wanted - found.keys():
        raise InvariantError("rows name versions that do not exist", version_ids=sorted(missing))
    return found


def full_counts(plan: Plan, counted: Mapping[str, int]) -> dict[str, int]:
    """Tasks by status, every status named. counted: those that have a row; all others are PENDING."""
    counts = Counter(counted)
    counts[TaskStatus.PENDING] += len(plan.tasks) - sum(counted.values())
    return {status.value: counts[status.value] for status in TaskStatus}


def last_tasks(plan: Plan) -> list[int]:
    """Positions of the tasks that no other task needs: their outputs are the run's."""
    return [task.index for task in plan.tasks if not task.dependants]
