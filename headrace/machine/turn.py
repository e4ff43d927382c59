"""A task's turn: what stands between its join and its body, and where it goes on after a pause or by a person."""

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import Transition
from headrace.machine.child import start_child
from headrace.machine.deadline import begin_deadline
from headrace.machine.draft import bury, outputs_of, skip, withhold
from headrace.machine.effect import ask_policy, is_in_doubt, keep_doubt, look_up, may_have_had
from headrace.machine.handout import hand_out
from headrace.machine.mapping import begin_map
from headrace.machine.pause import is_held
from headrace.machine.plan import Plan
from headrace.machine.reason import CONDITION_FALSE
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState
from headrace.machine.status import HOLDS, WITHHOLDS
from headrace.machine.waiting import ask, begin_wait, listen
from headrace.messages import Error


def ready(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int) -> None:
    """Its join allows the task to run: skip it, ask, wait, start its child, or hand it out."""
    spec = plan.tasks[index]
    if draft.control & HOLDS and is_held(run, draft, index):
        return withhold(run, draft, index, task, "turn")
    if spec.is_plain and task is UNTOUCHED:
        return hand_out(plan, run, draft, index, task, ended)
    if spec.condition is not None:
        try:
            holds = spec.condition.evaluate(run.input, outputs_of(plan, run, draft))
        except PayloadError as e:
            undecided = msgspec.structs.replace(task, token=run.next_token(task))  # every dead letter has its own
            error = keep_doubt(Error(e.reason, e.message, retryable=False), is_doubtful=may_have_had(spec, task))
            return bury(run, draft, index, undecided, error, ended)
        if not holds:
            return skip(run, draft, index, task, CONDITION_FALSE, ended)
    is_doubtful = may_have_had(spec, task)
    if spec.deadline is not None and not begin_deadline(plan, run, draft, index, task, ended, at, is_doubtful):
        return None
    if spec.wait is not None:
        return begin_wait(plan, run, draft, index, task, ended, at)
    if spec.signal is not None:
        return listen(plan, run, draft, index, task, ended, at)
    if spec.child is not None:
        return start_child(plan, run, draft, index, task, ended, at)
    if spec.approval is None:
        return begin_body(plan, run, draft, index, task, ended)
    ask(plan, run, draft, index, task, ended)


def begin_body(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """Hand its body out. A rerun may find that it had its effect already: then its policy is asked first, as after an
    end that is ambiguous."""
    if may_have_had(plan.tasks[index], task):
        return ask_policy(plan, run, draft, index, task)
    _set_going(plan, run, draft, index, task, ended)


def begin_again(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    """An operator sends it out again: nothing asks its join or its condition, but neither its approval nor its policy
    is gone round. task: with why it had failed as its error, while its effect is in doubt because of that."""
    is_refused = plan.at(index).approval is not None and _was_refused(run.task(index))
    if draft.control & HOLDS and is_held(run, draft, index):
        return withhold(run, draft, index, task, "turn" if is_refused else "again")
    is_doubtful, task = is_in_doubt(plan.at(index), task), msgspec.structs.replace(task, error=None)
    if plan.at(index).deadline is not None and not begin_deadline(
        plan, run, draft, index, task, ended, at, is_doubtful
    ):
        return
    if plan.at(index).approval is not None and (is_refused or not task.attempt):
        ask(plan, run, draft, index, task, ended)
    elif plan.at(index).wait is not None:
        begin_wait(plan, run, draft, index, task, ended, at)
    elif plan.at(index).signal is not None:
        listen(plan, run, draft, index, task, ended, at)
    elif plan.at(index).child is not None:
        start_child(plan, run, draft, index, task, ended, at)
    elif is_doubtful:
        ask_policy(plan, run, draft, index, task)
    else:
        _set_going(plan, run, draft, index, task, ended)


def _set_going(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """Its body, or those of its items."""
    begin_it = hand_out if plan.at(index).map is None else begin_map
    begin_it(plan, run, draft, index, task, ended)


def begin_all_withheld(plan: Plan, run: RunState, draft: Transition, ended: list[int], at: int) -> None:
    """What nobody holds back any more begins, in the order of the graph. Whoever ends a pause tells the draft first."""
    if draft.control & WITHHOLDS:
        return
    for index in sorted(run.tasks):
        task = draft.tasks.get(index) or run.tasks[index]  # a move has decided about some of them already
        if task.withheld not in ("", "room") and not is_held(run, draft, index):
            begin_withheld(plan, run, draft, index, task, ended, at)


def begin_withheld(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int], at: int
) -> None:
    how, task = task.withheld, msgspec.structs.replace(task, withheld="")
    if how == "turn":
        task = msgspec.structs.replace(task, error=None)  # its policy is asked in any case, behind its question
        ready(plan, run, draft, index, task, ended, at)
    elif how == "again":
        begin_again(plan, run, draft, index, task, ended, at)
    elif task.lookups:
        look_up(plan, run, draft, index, task, task.lookups)
    else:
        _set_going(plan, run, draft, index, task, ended)


def _was_refused(task: TaskState) -> bool:
    """By its approval, or it failed before that was given, since a rerun asks anew: it is asked again, also when bodies
    of it began before. Of attempts that count none has begun since."""
    is_rerun = task.attempt > 0 and task.attempt == task.retries_from and not task.withheld
    return is_rerun or (task.error is not None and task.error.code in ("REJECTED", "EXPIRED"))
