"""`advance`: decide what one event does to one run. See the package's docstring for the theory."""

from collections.abc import Callable, Sequence
from typing import Final, assert_never

import msgspec

from headrace.machine.actions import (
    Abort,
    ClearTimer,
    CloseLetter,
    EndAttempt,
    Grant,
    KeepSignal,
    SetPriority,
    SetTimer,
    StopListening,
    Transition,
    Unpark,
)
from headrace.machine.child import child_timed_out, hear_of_child, is_news
from headrace.machine.cleanup import find_clean_ups, is_ended_by_cancel
from headrace.machine.close import close_decision, finish_run
from headrace.machine.compensation import forget_undo, keep_undo, wait_for_it_again
from headrace.machine.deadline import end_by_deadline, renew_deadline
from headrace.machine.draft import bury, clear_timer, put, skip, withhold
from headrace.machine.effect import (
    doubt_effect,
    doubt_what_was_idempotent,
    is_in_doubt,
    look_up,
    look_up_again,
    lookup_failed,
    park,
    take_as_done,
)
from headrace.machine.event import (
    Cancelled,
    ChildTold,
    Decided,
    Isolated,
    MachineEvent,
    Migrated,
    Paused,
    Prioritised,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    Signalled,
    Supplied,
    Terminated,
)
from headrace.machine.handout import (
    admit,
    as_begun,
    fail_attempt,
    hand_out,
    hand_out_again,
    lose_attempt,
    retry_or_bury,
)
from headrace.machine.join import count_needs, is_skipped_in_vain, unskip, untouched_again
from headrace.machine.limit import reopen
from headrace.machine.mapping import (
    cancel_task,
    forget_items,
    go_on,
    is_reopened,
    reopen_map,
    replay_item,
    rerun_items,
)
from headrace.machine.migration import find_lasting_obstacles, migrate
from headrace.machine.pause import begin_pause, end_pause, is_held
from headrace.machine.place import ITEMS_MAX, RUN, is_compensation, is_item, task_of
from headrace.machine.plan import Plan
from headrace.machine.reason import CONDITION_FALSE, DRAINED, LOST, RUN_DEADLINE, START_DEADLINE, SUPPLIED
from headrace.machine.repeat import count_rounds, end_round, take_up
from headrace.machine.run_state import UNTOUCHED, RunState, TaskState
from headrace.machine.status import (
    CANCELLED,
    CANCELLING,
    COMPLETED,
    FAILED,
    HOLDS,
    OVERDUE,
    PENDING,
    QUEUED,
    RUN_TERMINAL,
    RUNNING,
    SKIPPED,
    TERMINAL,
    TERMINATED,
    WAITING,
)
from headrace.machine.turn import begin_again, begin_all_withheld, begin_body, ready
from headrace.machine.waiting import (
    ask_no_more,
    has_heard,
    hear,
    hear_nothing,
    is_meant,
    is_offered,
    take_answer,
    wait_no_more,
)
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded

TIMEOUT_GRACE: Final = 5_000_000
"""Microseconds. The worker enforces a task's time-out; this much later the engine does, for a worker that cannot."""


class Verdict(msgspec.Struct):
    """What a lookup answers with."""

    happened: bool | None
    output: msgspec.Raw = msgspec.Raw(b"null")


_decode_verdict: Final[Callable[[bytes], Verdict]] = msgspec.json.Decoder(Verdict).decode


def begin(plan: Plan, run: RunState, at: int) -> Transition:
    """Decide the first step of a new run, within the transaction that creates it: what needs nothing is handed out."""
    draft = Transition(run)
    ended: list[int] = []
    for index in plan.roots:
        ready(plan, run, draft, index, UNTOUCHED, ended, at)
    return close_decision(plan, run, draft, ended, at)


def advance(plan: Plan, run: RunState, event: MachineEvent, at: int) -> Transition | None:
    """Decide what one event does to one run; None when it is stale or repeated: nothing changes.

    Total over every (state, event) pair. Reads the run and touches nothing: `run.apply(transition)` makes it so. Both
    cost O(tasks the event touches).

    at: the database's clock when the batch is decided, microseconds UTC.
    Transition.actions: in the order in which they must be persisted. Raises nothing.
    """
    if run.attention and not isinstance(event, Cancelled | Terminated | Released):
        return None
    match event:
        case Succeeded():
            return _succeeded(plan, run, event, at)
        case Failed():
            return _failed(plan, run, event, at)
        case Started():
            return _started(plan, run, event, at)
        case Returned():
            return _returned(plan, run, event, at)
        case Lost():
            return _lost(plan, run, event, at)
        case Due():
            return _due(plan, run, event, at)
        case Admitted():
            return _admitted(plan, run, event, at)
        case Decided():
            return _decided(plan, run, event, at)
        case Replayed():
            return _replayed(plan, run, event, at)
        case Resolved():
            return _resolved(plan, run, event, at)
        case Supplied():
            return _supplied(plan, run, event, at)
        case Reran():
            return _reran(plan, run, event, at)
        case Migrated():
            return migrate(plan, run, event, at)
        case Signalled():
            return _signalled(plan, run, event, at)
        case ChildTold():
            return _child_told(plan, run, event, at)
        case Cancelled():
            return _cancelled(plan, run, event, at)
        case Terminated():
            return _terminated(plan, run, event, at)
        case Paused():
            return _paused(plan, run, event, at)
        case Resumed():
            return _resumed(plan, run, event, at)
        case Prioritised():
            return _prioritised(plan, run, event, at)
        case Isolated():
            return None if run.status in RUN_TERMINAL else _attend(plan, run, at, attention=True)
        case Released():
            return _attend(plan, run, at, attention=False) if run.attention else None
        case _:
            assert_never(event)


# == one event, one arm ==============================================================================================
def _succeeded(plan: Plan, run: RunState, event: Succeeded, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None:
        return None
    if task.lookups:
        return _looked_up(plan, run, event, task, at)
    spec, draft = plan.at(event.task), Transition(run)
    begun = as_begun(task)
    draft.actions.append(EndAttempt(event.task, begun.attempt, task.token, "completed"))
    clear_timer(draft, event.task, task)
    if spec.repeat is not None:
        ended = list[int]()
        end_round(plan, run, draft, event.task, begun, bytes(event.output), ended, at)
        return close_decision(plan, run, draft, ended, at)
    output = bytes(event.output) if spec.is_referenced else None
    given = None if spec.compensation is None else task.input
    done = TaskState(COMPLETED, begun.attempt, task.token, None, task.retries_from, given, output)
    put(run, draft, event.task, done)
    return close_decision(plan, run, draft, [event.task], at)


def _failed(plan: Plan, run: RunState, event: Failed, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None or (event.error.code == "UNKNOWN_TASK" and _is_of_another(task, event.session)):
        return None
    draft, ended = Transition(run), list[int]()
    if task.lookups:
        lookup_failed(plan, run, draft, event.task, task, event.error, at)
    else:
        is_ambiguous = event.error.ambiguous or event.error.code == "TIMEOUT"
        fail_attempt(plan, run, draft, event.task, as_begun(task), event.error, ended, at, is_ambiguous=is_ambiguous)
    return close_decision(plan, run, draft, ended, at)


def _started(plan: Plan, run: RunState, event: Started, at: int) -> Transition | None:
    """A claim is answered each time it is made, with the owner that was recorded: an answer may get lost."""
    task = _held(plan, run, event.task, event.token)
    if task is None or (task.status is RUNNING and not event.claim):
        return None
    spec, draft, due_at = plan.at(event.task), Transition(run), task.due_at
    if (
        task.status is QUEUED and event.claim and draft.control & HOLDS and is_held(run, draft, event.task)
    ):  # its body has not begun, and need not
        draft.actions.append(Abort(event.task, task.token, "paused"))
        clear_timer(draft, event.task, task)
        withhold(run, draft, event.task, task, "body")
        return close_decision(plan, run, draft, [], at)
    if task.status is QUEUED:
        if spec.timeout is None:
            clear_timer(draft, event.task, task)  # that of its time in the queue; a time-out would replace it
            due_at = None
        else:
            due_at = at + int(spec.timeout * 1_000_000) + TIMEOUT_GRACE
            draft.actions.append(SetTimer(event.task, task.token, "timeout", due_at))
        task = msgspec.structs.replace(as_begun(task), due_at=due_at, session=event.session)
        put(run, draft, event.task, task)
    if event.claim:
        draft.actions.append(Grant(event.task, task.token, task.session))
    return close_decision(plan, run, draft, [], at)


def _returned(plan: Plan, run: RunState, event: Returned, at: int) -> Transition | None:
    """A drain is nobody's fault: a body that had begun keeps its attempt number, but the retry policy does not count
    it."""
    task = _held(plan, run, event.task, event.token)
    if task is None or (not event.begun and _is_of_another(task, event.session)):
        return None
    draft, ended = Transition(run), list[int]()
    if task.lookups:
        look_up_again(plan, run, draft, event.task, task)
    elif event.begun or task.status is RUNNING:
        task = as_begun(task)
        draft.actions.append(EndAttempt(event.task, task.attempt, task.token, "returned"))
        clear_timer(draft, event.task, task)
        task = msgspec.structs.replace(task, retries_from=task.retries_from + 1)
        if event.begun and plan.at(event.task).effect != "idempotent":
            doubt_effect(plan, run, draft, event.task, task, DRAINED)
        else:
            hand_out(plan, run, draft, event.task, task, ended)
    else:
        hand_out_again(plan, run, draft, event.task, task, ended)
    return close_decision(plan, run, draft, ended, at)


def _lost(plan: Plan, run: RunState, event: Lost, at: int) -> Transition | None:
    task = _held(plan, run, event.task, event.token)
    if task is None or _is_of_another(task, event.session):
        return None
    draft, ended = Transition(run), list[int]()
    if task.lookups:
        look_up_again(plan, run, draft, event.task, task)
    elif task.status is QUEUED and not event.begun:  # no body began, as far as anybody knows: no attempt
        hand_out_again(plan, run, draft, event.task, task, ended)
    else:
        lose_attempt(plan, run, draft, event.task, as_begun(task), ended, has_begun=event.begun is not False)
    return close_decision(plan, run, draft, ended, at)


def _due(plan: Plan, run: RunState, event: Due, at: int) -> Transition | None:
    """A timer names the token it was set under, and only the database's clock decides that it is due."""
    if event.timer == "deadline":
        return _deadline_passed(plan, run, event, at)
    task = run.task(event.task)
    if task.token != event.token or task.due_at is None or at < task.due_at:
        return None
    draft, ended = Transition(run), list[int]()
    if event.timer in ("backoff", "repeat") and task.status is PENDING:
        draft.actions.append(ClearTimer(event.task))
        if task.lookups:
            look_up(plan, run, draft, event.task, task, task.lookups)
        else:
            hand_out(plan, run, draft, event.task, task, ended)
    elif event.timer == "wait" and task.status is WAITING:
        draft.actions.append(ClearTimer(event.task))
        if plan.at(event.task).child is not None:
            child_timed_out(plan, run, draft, event.task, task, ended)
        elif plan.at(event.task).signal is None:
            wait_no_more(run, draft, event.task, task, ended)
        else:
            draft.actions.append(StopListening(event.task))
            hear_nothing(plan, run, draft, event.task, task, ended)
    elif event.timer == "start" and task.status is QUEUED:
        draft.actions.append(ClearTimer(event.task))
        draft.actions.append(Abort(event.task, task.token, "start"))
        bury(run, draft, event.task, task, START_DEADLINE, ended)
    elif event.timer == "timeout" and task.status is RUNNING:
        draft.actions.append(Abort(event.task, task.token, "timeout"))
        error = Error("TIMEOUT", f"no result within {plan.at(event.task).timeout} s")
        if task.lookups:
            lookup_failed(plan, run, draft, event.task, task, error, at)
        else:
            fail_attempt(plan, run, draft, event.task, task, error, ended, at, is_ambiguous=True)
    else:
        return None
    return close_decision(plan, run, draft, ended, at)


def _admitted(plan: Plan, run: RunState, event: Admitted, at: int) -> Transition | None:
    task = run.task(event.task)
    if not task.awaits_slot or task.token != event.token:
        return None
    draft, ended = Transition(run), list[int]()
    admit(plan, run, draft, event.task, task, ended)
    return close_decision(plan, run, draft, ended, at)


def _deadline_passed(plan: Plan, run: RunState, event: Due, at: int) -> Transition | None:
    """Of a task, or of the run. It names no hand-out: whichever is under way then is ended."""
    if event.task == RUN:
        if run.status in RUN_TERMINAL or run.deadline_at is None or at < run.deadline_at:
            return None
        draft = Transition(run)
        draft.control |= OVERDUE
        return _end_all(plan, run, draft, RUN_DEADLINE, "deadline", at)
    task = run.task(event.task)
    if task.deadline_at is None or at < task.deadline_at:
        return None
    draft, ended = Transition(run), list[int]()
    end_by_deadline(plan, run, draft, event.task, task, ended)
    return close_decision(plan, run, draft, ended, at)


def _decided(plan: Plan, run: RunState, event: Decided, at: int) -> Transition | None:
    task = run.task(event.task)
    is_asked = task.status is WAITING and not task.is_parked and not task.is_mapping and not task.awaits_slot
    if not is_asked or task.token != event.token:
        return None
    spec, question = plan.at(event.task), plan.at(event.task).approval
    if question is None:
        return None
    draft, ended = Transition(run), list[int]()
    if event.outcome == "approved" and spec.run is not None:
        begin_body(plan, run, draft, event.task, task, ended)
    elif event.outcome == "approved" or (event.outcome == "rejected" and question.on_reject == "complete"):
        take_answer(plan, run, draft, event.task, task, event, ended)
    else:
        who = f" by {event.by}" if event.by else ""
        error = Error(event.outcome.upper(), f"{event.outcome}{who}: {event.comment}".rstrip(": "), retryable=False)
        put(run, draft, event.task, msgspec.structs.replace(task, status=FAILED, error=error))
        ended.append(event.task)
    return close_decision(plan, run, draft, ended, at)


def _replayed(plan: Plan, run: RunState, event: Replayed, at: int) -> Transition | None:
    """The one edge out of a terminal state, and only by an operator's act; it does not go round an approval."""
    task = run.task(event.task)
    if task.status is not FAILED or task.token != event.token:
        return None
    if is_compensation(event.task):
        return _replayed_compensation(plan, run, event, task, at)
    if is_ended_by_cancel(run, event.task) or run.compensations is not None:
        return None
    if task.items is not None or (is_item(event.task) and run.task(task_of(event.task)).status is COMPLETED):
        return None  # of a map that failed, its items are replayed; of one that has completed, none any more
    draft, ended = reopen(plan, run), list[int]()
    given = event.input if event.input is not None else task.input
    doubt = task.error if is_in_doubt(plan.at(event.task), task) else None
    task = msgspec.structs.replace(task, retries_from=task.attempt, error=doubt, input=given)
    if is_item(event.task):
        replay_item(plan, run, draft, event.task, task, ended)
        renew_deadline(plan, run, draft, task_of(event.task), at)
    else:
        put(run, draft, event.task, task)
        unskip(plan, run, draft, event.task)
        begin_again(plan, run, draft, event.task, task, ended, at)
    return close_decision(plan, run, draft, ended, at)


def _replayed_compensation(plan: Plan, run: RunState, event: Replayed, task: TaskState, at: int) -> Transition | None:
    """It brings a run back that had ended without it; not one that was terminated. While what came after its task is
    being undone, also again, it waits for that."""
    if run.control & TERMINATED:
        return None
    draft, ended = reopen(plan, run), list[int]()
    task = untouched_again(task, event.input if event.input is not None else task.input)
    put(run, draft, event.task, task)
    wait_for_it_again(plan, run, draft)
    if not draft.missing[event.task]:
        begin_again(plan, run, draft, event.task, task, ended, at)
    return close_decision(plan, run, draft, ended, at)


def _signalled(plan: Plan, run: RunState, event: Signalled, at: int) -> Transition | None:
    """The first task of the graph that waits for it takes it; while none does, the run keeps it. One that is offered to
    a certain wait is for that, or for nobody here."""
    if run.status in RUN_TERMINAL or event.signal_id in run.signals:
        return None
    waiting = None
    for index in plan.listeners.get(event.name, ()):
        task = run.task(index)
        if has_heard(task, event):
            return None
        if waiting is None and task.status is WAITING and is_meant(task, event) and is_offered(task, index, event):
            waiting = index
    if waiting is None and event.task is not None:
        return None
    draft, ended = Transition(run), list[int]()
    if waiting is None:
        draft.kept = event
        draft.actions.append(KeepSignal(event.signal_id))
    else:
        task = run.task(waiting)
        clear_timer(draft, waiting, task)
        draft.actions.append(StopListening(waiting))
        hear(run, draft, waiting, task, event, ended)
    return close_decision(plan, run, draft, ended, at)


def _child_told(plan: Plan, run: RunState, event: ChildTold, at: int) -> Transition | None:
    """Only the child of this hand-out counts, and only while the task waits for it."""
    task = run.task(event.task)
    if task.status is not WAITING or task.token != event.token or not is_news(plan, event):
        return None
    draft, ended = Transition(run), list[int]()
    clear_timer(draft, event.task, task)
    hear_of_child(plan, run, draft, event, task, ended)
    return close_decision(plan, run, draft, ended, at)


def _resolved(plan: Plan, run: RunState, event: Resolved, at: int) -> Transition | None:
    """A person knows what nobody else could tell. A hand-out after it has all its tries again."""
    task = run.task(event.task)
    if not task.is_parked or task.token != event.token:
        return None
    draft, ended = Transition(run), list[int]()
    draft.actions.append(Unpark(event.task))
    if event.outcome == "happened" and plan.at(event.task).repeat is not None:
        end_round(plan, run, draft, event.task, task, event.output, ended, at, is_answered=False)
    elif event.outcome == "happened":
        take_as_done(plan, run, draft, event.task, task, event.output, ended)
    elif event.outcome == "did_not_happen":
        forget_undo(run, draft, event.task)
        hand_out(
            plan, run, draft, event.task, msgspec.structs.replace(task, retries_from=task.attempt, error=None), ended
        )
    else:
        bury(run, draft, event.task, task, task.error or LOST, ended)
    return close_decision(plan, run, draft, ended, at)


def _supplied(plan: Plan, run: RunState, event: Supplied, at: int) -> Transition | None:
    """What runs of it is told to stop, and what waits is let go. It does not go round an approval."""
    if not 0 <= task_of(event.task) < len(plan.tasks) or is_ended_by_cancel(run, event.task):
        return None
    index, task = event.task, run.task(event.task)
    if task.token != event.token or not can_be_supplied(plan, run, index):
        return None
    draft, ended = reopen(plan, run), list[int]()
    if task.status is FAILED:
        draft.actions.append(CloseLetter(index, task.token, "discarded"))
        if not is_item(index):
            unskip(plan, run, draft, index)
    if task.status is RUNNING and not task.lookups:
        draft.actions.append(EndAttempt(index, task.attempt, task.token, "cancelled", SUPPLIED))
    if task.status is RUNNING or task.status is QUEUED:
        draft.actions.append(Abort(index, task.token, "supplied"))
    if task.status is WAITING:
        ask_no_more(plan, draft, index, task)
    clear_timer(draft, index, task)
    take_as_done(plan, run, draft, index, task, event.output, ended)
    if is_item(index):
        reopen_map(plan, run, draft, task_of(index), ended)
    return close_decision(plan, run, draft, ended, at)


def can_be_supplied(plan: Plan, run: RunState, index: int) -> bool:
    """Whether a person may give the task its output now: it is open, or has failed, and nobody is to approve it. A map
    has its output from its items; an item may be given one once it has begun, until its map has completed."""
    task = run.task(index)
    if run.compensations is not None or task.status in (COMPLETED, SKIPPED, CANCELLED):
        return False
    if is_item(index):
        its = run.task(task_of(index))
        is_going = its.items is not None and its.status in (WAITING, FAILED)
        return is_going and bool(task.token) and not task.is_untouched and task.withheld != "room"
    if index >= len(plan.tasks) or plan.tasks[index].map is not None:
        return False
    return plan.tasks[index].approval is None or task.attempt > 0 or task.status is QUEUED or task.awaits_slot


def _reran(plan: Plan, run: RunState, event: Reran, at: int) -> Transition | None:
    """All that runs again is untouched first, with what it has counted. Then those begin whose joins the results that
    stand decide; the others follow by the graph, as ever."""
    if event.plan is not None and event.plan.version_id != plan.version_id:
        if find_lasting_obstacles(event.plan, run):
            return None
        plan = event.plan
    chosen = choose_rerun(plan, run, event.tasks)
    if run.row_version != event.row_version or not chosen:
        return None
    draft, ended = reopen(plan, run), list[int]()
    if plan is not run.plan:
        draft.plan = plan
        doubt_what_was_idempotent(plan, run, draft)
    draft.control &= ~(TERMINATED | OVERDUE | CANCELLING)
    reopened = items_chosen(plan, run, event.tasks, chosen)
    if plan.compensates:
        keep_undo(plan, run, draft, chosen)
    stood = {index: draft.tasks.get(index) or run.task(index) for index in chosen if index not in reopened}
    for index, task in stood.items():
        if task.status is FAILED and task.items is None:
            draft.actions.append(CloseLetter(index, task.token, "replayed"))
        if task.items is not None:
            forget_items(run, draft, index)
        is_named = not event.tasks or index in event.tasks  # what follows another result has its input rendered anew
        known = task.input if is_named and task.items is None else None  # a list is worked out anew
        given = event.input if is_named and event.input is not None else known
        put(run, draft, index, untouched_again(task, given))
        if plan.tasks[index].repeat is not None:
            count_rounds(draft, index, 0, None)
    for index, places in reopened.items():
        rerun_items(plan, run, draft, index, places, event.input)
    answers = {index: count_needs(plan, run, draft, index) for index in stood}
    for index in reopened:
        go_on(plan, run, draft, index, ended)
    for index, answer in answers.items():
        if answer is None:
            continue
        task = draft.tasks[index]
        if plan.tasks[index].repeat is not None:
            task = take_up(draft, index, stood[index], task)
        if isinstance(answer, Error):
            skip(run, draft, index, task, answer, ended)
        elif stood[index].status is FAILED:
            doubt = stood[index].error if is_in_doubt(plan.tasks[index], stood[index]) else None
            begin_again(plan, run, draft, index, msgspec.structs.replace(task, error=doubt), ended, at)
        else:
            ready(plan, run, draft, index, task, ended, at)
    close_decision(plan, run, draft, ended, at)
    if draft.status in RUN_TERMINAL and draft.status is run.status:  # it ends again, as it had ended before
        draft.actions.append(finish_run(plan, run, draft))
    return draft


def choose_rerun(plan: Plan, run: RunState, tasks: Sequence[int]) -> list[int]:
    """The tasks that a rerun takes, in the order of the graph; none when the run has not ended, or has begun to undo
    what it did. An item stands for its map and what is behind that. What the run does not have, since its version did
    not, is taken in any case. tasks: as in `Reran`; one that is not in the graph, or an item that never began, is none
    of them.
    """
    if run.status not in RUN_TERMINAL or run.compensations is not None:
        return []
    indices = range(len(plan.tasks))
    if tasks:
        found = [task_of(place) for place in tasks if not is_item(place) or _has_ended_item(run, place)]
    else:
        ended = (FAILED, CANCELLED)
        found = [i for i in indices if run.task(i).status in ended or is_skipped_in_vain(plan, run, i)]
    chosen: set[int] = set()
    for index in found:  # grows while it is walked
        if index in indices and index not in chosen:
            chosen.add(index)
            after = plan.tasks[index].dependants
            found += after if tasks else [each for each in after if _runs_again_behind(plan, run, each)]
    return sorted(chosen.union(index for index in indices if index not in run.tasks))


def _has_ended_item(run: RunState, place: int) -> bool:
    return run.task(task_of(place)).items is not None and run.task(place).status in TERMINAL


def items_chosen(plan: Plan, run: RunState, tasks: Sequence[int], chosen: Sequence[int]) -> dict[int, frozenset[int]]:
    """Maps of which a rerun takes items only, and which of them; none where those are meant that failed. A map that is
    named itself, that is behind something that runs again, or that another version puts elsewhere, starts over."""
    behind = {after for index in chosen for after in plan.tasks[index].dependants}
    behind.update(index for index in chosen if _is_elsewhere(plan, run, index))
    if not tasks:
        return {index: frozenset() for index in chosen if index not in behind and is_reopened(run, index)}
    over = behind.union(place for place in tasks if not is_item(place))
    named: dict[int, set[int]] = {}
    for place in tasks:
        if is_item(place) and task_of(place) not in over and _has_ended_item(run, place):
            named.setdefault(task_of(place), set()).add(place)
    return {index: frozenset(places) for index, places in named.items()}


def _is_elsewhere(plan: Plan, run: RunState, index: int) -> bool:
    """In a version with other needs of it: whether it may run goes by those."""
    if plan is run.plan or index >= len(run.plan.tasks):
        return False
    now, before = plan.tasks[index], run.plan.tasks[index]
    return (now.needs, now.join) != (before.needs, before.join)


def _runs_again_behind(plan: Plan, run: RunState, index: int) -> bool:
    """It was skipped because of what runs again, or cleans up behind it."""
    task = run.task(index)
    return plan.tasks[index].cleans_up or (task.status is SKIPPED and task.error != CONDITION_FALSE)


def _cancelled(plan: Plan, run: RunState, event: Cancelled, at: int) -> Transition | None:
    if run.status in RUN_TERMINAL or run.compensations is not None or run.control & CANCELLING:
        return None  # it has ended, but for what is undone or cleaned up
    error = Error("CANCELLED", event.reason or "the run was cancelled", retryable=False)
    return _end_all(plan, run, Transition(run), error, "cancelled", at)


def _terminated(plan: Plan, run: RunState, event: Terminated, at: int) -> Transition | None:
    if run.status in RUN_TERMINAL:
        return None
    draft = Transition(run)
    draft.control = draft.control & ~CANCELLING | TERMINATED
    error = Error("TERMINATED", event.reason or "the run was terminated", retryable=False)
    return _end_all(plan, run, draft, error, "terminated", at)


def _end_all(plan: Plan, run: RunState, draft: Transition, error: Error, reason: str, at: int) -> Transition:
    """Every task that has not ended is CANCELLED, and whoever has it is told to stop: its answer is stale now. But for
    clean-ups, which go on or, as soon as their needs have ended, begin; a termination ends those, too."""
    draft.attention = False
    # But for items of a map that is to start over: they are as if none had begun, and nothing counts them.
    others = [p for p, task in run.tasks.items() if p >= ITEMS_MAX and not (is_item(p) and task.is_untouched)]
    left, ended = frozenset[int](), list[int]()
    if plan.clean_ups and not draft.control & TERMINATED:
        draft.control |= CANCELLING
        left = find_clean_ups(plan, run)
    for index in (*range(len(plan.tasks)), *others):
        if left and task_of(index) in left:
            continue
        if left and index < ITEMS_MAX and run.task(index).status not in TERMINAL:
            ended.append(index)
        cancel_task(plan, run, draft, index, error, reason)
    return close_decision(plan, run, draft, ended, at)


def _paused(plan: Plan, run: RunState, event: Paused, at: int) -> Transition | None:
    """From here on what would begin is withheld. What was handed out goes on, and what waits goes on to wait."""
    draft = Transition(run)
    return close_decision(plan, run, draft, [], at) if begin_pause(plan, run, draft, event) else None


def _resumed(plan: Plan, run: RunState, event: Resumed, at: int) -> Transition | None:
    """What nobody pauses any more and was withheld begins, in the order of the graph, once its run has its permit."""
    draft, ended = Transition(run), list[int]()
    if not end_pause(run, draft, event):
        return None
    begin_all_withheld(plan, run, draft, ended, at)
    return close_decision(plan, run, draft, ended, at)


def _prioritised(plan: Plan, run: RunState, event: Prioritised, at: int) -> Transition | None:
    """Nothing here depends on it: who is admitted first is decided where all runs are seen."""
    if run.status in RUN_TERMINAL:
        return None
    draft = Transition(run)
    draft.actions.append(SetPriority(event.priority))
    return close_decision(plan, run, draft, [], at)


def _attend(plan: Plan, run: RunState, at: int, *, attention: bool) -> Transition:
    draft = Transition(run)
    draft.attention = attention
    return close_decision(plan, run, draft, [], at)


# == what several arms share =========================================================================================
def _held(plan: Plan, run: RunState, index: int, token: int) -> TaskState | None:
    """The task, if this hand-out of it is the current one and open; None makes the event stale."""
    task = run.tasks.get(index)
    if task is None or task.token != token or not (task.status is QUEUED or task.status is RUNNING):
        return None
    return task


def _is_of_another(task: TaskState, session: str) -> bool:
    """Whether somebody else than its recorded holder says it. A record can reach two workers: what becomes of it in
    the one where it waits ends nothing in the one where it runs."""
    return task.status is RUNNING and bool(task.session) and session not in ("", task.session)


def _looked_up(plan: Plan, run: RunState, event: Succeeded, task: TaskState, at: int) -> Transition:
    draft, ended, doubt = Transition(run), list[int](), task.error or LOST
    clear_timer(draft, event.task, task)
    try:
        verdict = _decode_verdict(event.output)
    except msgspec.DecodeError:
        verdict = Verdict(None)
    if verdict.happened and plan.at(event.task).repeat is not None:
        end_round(plan, run, draft, event.task, task, bytes(verdict.output), ended, at, is_answered=False)
    elif verdict.happened:
        take_as_done(plan, run, draft, event.task, task, bytes(verdict.output), ended)
    elif verdict.happened is None:
        park(run, draft, event.task, task, doubt, "; its lookup cannot tell either")
    else:  # and so nothing is in doubt any more
        forget_undo(run, draft, event.task)
        known = msgspec.structs.replace(doubt, ambiguous=False)
        retry_or_bury(plan, run, draft, event.task, task, known, ended, at)
    return close_decision(plan, run, draft, ended, at)
