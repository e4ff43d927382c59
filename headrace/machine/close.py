"""The end of a decision: the joins behind all that ended, then the status of the run."""

from headrace.errors import PayloadError
from headrace.machine.actions import Finish, ReturnPermit, Transition
from headrace.machine.compensation import UNDONE, begin_compensations, compensation_ended
from headrace.machine.deadline import keep_deadlines
from headrace.machine.draft import outputs_of, skip
from headrace.machine.join import answer_of, has_failed, want_one_less
from headrace.machine.mapping import item_ended
from headrace.machine.pause import drop_pauses
from headrace.machine.place import COMPENSATIONS_FROM, ITEMS_MAX
from headrace.machine.plan import Plan
from headrace.machine.reason import UPSTREAM_FAILED, UPSTREAM_SKIPPED
from headrace.machine.repeat import keep_rounds
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState
from headrace.machine.status import COMPLETED, RUN_TERMINAL, RunStatus, derive_status
from headrace.machine.turn import ready
from headrace.messages import Error


def close_decision(plan: Plan, run: RunState, draft: Transition, ended: list[int], at: int) -> Transition:
    """Look at the joins behind every task that ended, then derive the run's status. Depth does not matter."""
    for index in ended:  # grows while it is walked
        if index >= ITEMS_MAX:
            end = item_ended if index < COMPENSATIONS_FROM else compensation_ended
            end(plan, run, draft, index, ended)
            continue
        for after in plan.tasks[index].dependants:
            task = draft.tasks.get(after) or run.tasks.get(after, UNTOUCHED)
            if task is not UNTOUCHED and not task.is_untouched:
                continue
            need = draft.tasks[index]
            if not plan.tasks[after].is_chained:
                _join(plan, run, draft, after, task, need, ended, at)
            elif need.status is COMPLETED:
                ready(plan, run, draft, after, task, ended, at)
            else:
                skip(run, draft, after, task, UPSTREAM_FAILED if has_failed(need) else UPSTREAM_SKIPPED, ended)
    draft.status = _derive(plan, draft)
    if plan.compensates and draft.compensations is None and draft.status in UNDONE:
        begin_compensations(plan, run, draft)
        draft.status = _derive(plan, draft)
    if draft.status in RUN_TERMINAL:
        drop_pauses(run, draft)
        if plan.limit is not None:
            draft.actions.append(ReturnPermit())
    if draft.status in RUN_TERMINAL and draft.status is not run.status:  # also of one that had ended otherwise
        draft.actions.append(finish_run(plan, run, draft))
    if plan.has_repeats:
        keep_rounds(plan, run, draft)
    if plan.has_deadlines:
        keep_deadlines(plan, run, draft, at)
    return draft


def _derive(plan: Plan, draft: Transition) -> RunStatus:
    return derive_status(
        len(plan.tasks), draft.counts, attention=draft.attention, control=draft.control,
        compensations=draft.compensations,
    )  # fmt: skip


def _join(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, need: TaskState, ended: list[int],
    at: int,
) -> None:  # fmt: skip
    """One of several needs has ended: decide about the task as soon as its join allows, see the package."""
    spec = plan.tasks[index]
    missing = draft.missing.get(index)
    if missing is None:
        missing = run.missing.get(index, len(spec.needs))
    draft.missing[index] = missing = missing - 1
    if spec.quorum is not None and need.status is COMPLETED and not want_one_less(run, draft, index, spec.quorum):
        return ready(plan, run, draft, index, task, ended, at)
    if spec.join == "all" and has_failed(need):
        return skip(run, draft, index, task, UPSTREAM_FAILED, ended)
    if missing:
        return None
    why = answer_of(spec, [draft.tasks.get(need) or run.tasks.get(need, UNTOUCHED) for need in spec.needs])
    if why is None:
        return ready(plan, run, draft, index, task, ended, at)
    skip(run, draft, index, task, why, ended)


def finish_run(plan: Plan, run: RunState, draft: Transition) -> Finish:
    if plan.output is None or draft.status is not RunStatus.COMPLETED:
        return Finish(draft.status)
    try:
        return Finish(draft.status, plan.output.render(run.input, outputs_of(plan, run, draft)))
    except PayloadError as e:
        return Finish(draft.status, error=Error(e.reason, e.message, retryable=False))
