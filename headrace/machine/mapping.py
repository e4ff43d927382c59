"""Maps: a task that waits for its items, each of which is a task with a place of its own."""

from collections.abc import Collection

import msgspec

from headrace.errors import PayloadError
from headrace.machine.actions import Abort, CloseLetter, EndAttempt, KeepOutput, Transition
from headrace.machine.draft import at_rest, bury, clear_timer, count_items, item_counts, put, render_input, withhold
from headrace.machine.effect import ask_policy, is_in_doubt, may_have_had
from headrace.machine.handout import hand_out
from headrace.machine.join import unskip, untouched_again
from headrace.machine.pause import is_held
from headrace.machine.place import ITEMS_MAX, items_of, place_of, task_of
from headrace.machine.plan import Failures, Plan, TaskPlan, read_list
from headrace.machine.reason import LOST, RERUN
from headrace.machine.run_state import UNTOUCHED, ItemCounts, RunState, TaskState
from headrace.machine.status import CANCELLED, COMPLETED, FAILED, HOLDS, PENDING, QUEUED, RUNNING, TERMINAL, WAITING
from headrace.machine.waiting import ask_no_more
from headrace.messages import PAYLOAD_BYTES_MAX, Error


def cancel_task(plan: Plan, run: RunState, draft: Transition, index: int, error: Error, reason: str) -> None:
    """End it where it stands, unless it has ended."""
    task = draft.tasks.get(index) or run.task(index)
    if task.status in TERMINAL:
        return
    if index < ITEMS_MAX and plan.tasks[index].compensation is not None:
        error = doubt_cancelled(plan.tasks[index], task, error)
    if task.status is RUNNING and not task.lookups:
        draft.actions.append(EndAttempt(index, task.attempt, task.token, "cancelled", error))
    if task.status is RUNNING or task.status is QUEUED:
        draft.actions.append(Abort(index, task.token, reason))
    if task.status is WAITING and not task.is_mapping:
        ask_no_more(plan, draft, index, task)
    clear_timer(draft, index, task)
    put(run, draft, index, at_rest(task, CANCELLED, error))


def doubt_cancelled(spec: TaskPlan, task: TaskState, error: Error) -> Error:
    """Why a task that has a compensation is cancelled, or ended by its deadline, which says whether a body of it may
    have begun: that of a hand-out without a claim may have, though nobody has heard of it."""
    is_out = task.status is RUNNING or (task.status is QUEUED and not spec.claims)
    return msgspec.structs.replace(error, ambiguous=True) if is_out or task.attempt else error


def begin_map(plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, ended: list[int]) -> None:
    """WAITING for its items under the next token. A list that cannot be read fails it, and uses the token up."""
    if draft.control & HOLDS and is_held(run, draft, index):
        return withhold(run, draft, index, task, "body")
    token = run.next_token(task)
    try:
        given = render_input(plan, run, draft, index, task)
        items = read_list(given)
    except PayloadError as e:
        unread = msgspec.structs.replace(task, token=token)
        return bury(run, draft, index, unread, Error(e.reason, e.message, retryable=False), ended)
    put(run, draft, index, TaskState(WAITING, token=token, input=given, items=len(items)))
    count_items(draft, index, ItemCounts(items))
    go_on(plan, run, draft, index, ended)


def item_ended(plan: Plan, run: RunState, draft: Transition, place: int, ended: list[int]) -> None:
    index = task_of(place)
    spec, task = plan.tasks[index].map, draft.tasks.get(index) or run.task(index)
    if spec is None or not task.is_mapping:
        return None
    item, counts = draft.tasks[place], item_counts(run, draft, index)
    if item.status is FAILED and spec.failures == "fail_fast":
        why = item.error or LOST
        message = f"{plan.name_of(place)} failed: {why.code}: {why.message}"
        return stop_map(plan, run, draft, index, task, Error("ITEM_FAILED", message, retryable=False), ended)
    if counts.output_bytes > PAYLOAD_BYTES_MAX and plan.tasks[index].is_referenced:
        return stop_map(plan, run, draft, index, task, _too_large(counts.output_bytes), ended)
    go_on(plan, run, draft, index, ended)


def go_on(plan: Plan, run: RunState, draft: Transition, index: int, ended: list[int]) -> None:
    """Hand items out for as long as there are some and it may have more under way; end the map behind the last."""
    spec, counts = plan.tasks[index].map, item_counts(run, draft, index)
    assert spec is not None
    while counts.open < spec.max_parallel:
        if counts.again_from < len(counts.again):
            place = counts.again[counts.again_from]
            count_items(draft, index, msgspec.structs.replace(counts, again_from=counts.again_from + 1))
        elif counts.begun < len(counts.items):
            place = place_of(index, counts.begun)
        else:
            break
        _begin_item(plan, run, draft, place, ended)
        if draft.tasks[place].status is FAILED and spec.failures == "fail_fast":
            return None  # the walk comes to it
        counts = item_counts(run, draft, index)
    if not counts.open and counts.begun == len(counts.items) and counts.again_from == len(counts.again):
        _end_map(plan, run, draft, index, counts, ended)


def _begin_item(plan: Plan, run: RunState, draft: Transition, place: int, ended: list[int]) -> None:
    """Hand an item out. One that a rerun makes begin again, and whose body began before, goes by its policy, as a task
    does."""
    item = draft.tasks.get(place) or run.tasks.get(place, UNTOUCHED)
    if item.withheld:
        item, doubt = msgspec.structs.replace(item, withheld="", error=None), item.error
    else:
        doubt = RERUN if may_have_had(plan.at(place), item) else None
    if doubt is None:
        return hand_out(plan, run, draft, place, item, ended)
    ask_policy(plan, run, draft, place, item)


def stop_map(
    plan: Plan, run: RunState, draft: Transition, index: int, task: TaskState, why: Error, ended: list[int]
) -> None:
    """Its items are not to go on. One whose effect may have happened is told from the others, should they come back."""
    each = plan.tasks[index].each
    stopped = Error("CANCELLED", f"{plan.tasks[index].name} failed", retryable=False)
    for place in items_of(index, item_counts(run, draft, index).begun):
        item = draft.tasks.get(place) or run.task(place)
        has_begun = item.status is RUNNING or item.lookups > 0 or item.is_parked
        has_begun = has_begun or (item.withheld == "room" and item.error is not None)
        is_doubtful = has_begun and each is not None and each.effect != "idempotent"
        cancel_task(plan, run, draft, place, msgspec.structs.replace(stopped, ambiguous=is_doubtful), "cancelled")
    put(run, draft, index, at_rest(task, FAILED, why))
    ended.append(index)


def _end_map(plan: Plan, run: RunState, draft: Transition, index: int, counts: ItemCounts, ended: list[int]) -> None:
    spec, task = plan.tasks[index], draft.tasks.get(index) or run.task(index)
    assert spec.map is not None
    ended.append(index)
    if counts.failed and spec.map.failures != "collect":
        message = f"{counts.failed} of {len(counts.items)} items failed"
        return put(run, draft, index, at_rest(task, FAILED, Error("ITEM_FAILED", message, retryable=False)))
    output = _gathered(run, draft, index, counts, spec.map.failures)
    if output is None and spec.is_referenced:
        return put(run, draft, index, at_rest(task, FAILED, _too_large(counts.output_bytes)))
    if output is not None:
        draft.actions.append(KeepOutput(index, output))
    kept = output if spec.is_referenced else None
    put(run, draft, index, msgspec.structs.replace(task, status=COMPLETED, output=kept))


def _too_large(size: int) -> Error:
    message = f"the outputs of its items are {size:,} bytes or more, and {PAYLOAD_BYTES_MAX:,} are allowed in one list"
    return Error("RESULT_TOO_LARGE", message, retryable=False)


def _gathered(run: RunState, draft: Transition, index: int, counts: ItemCounts, failures: Failures) -> bytes | None:
    """What its items gave, in the order of the list; None where that is too much for one output."""
    if counts.output_bytes > PAYLOAD_BYTES_MAX:
        return None
    items = [draft.tasks.get(place) or run.task(place) for place in items_of(index, counts.begun)]
    output = b"[%b]" % b",".join([item.output or b"null" for item in items])
    if failures == "collect":
        output = b'{"results":%b,"failures":%b}' % (output, _failures(items))
    return output if len(output) <= PAYLOAD_BYTES_MAX else None


def _failures(items: list[TaskState]) -> bytes:
    failures = [
        {"index": index, "code": item.error.code, "message": item.error.message}
        for index, item in enumerate(items)
        if item.status is FAILED and item.error is not None
    ]
    return msgspec.json.encode(failures)


def is_reopened(run: RunState, index: int) -> bool:
    """Whether a rerun of what failed of the run takes only items of this map: those that failed or were cancelled."""
    task = run.task(index)
    if task.items is None or task.status is COMPLETED:
        return False
    counts = run.maps[index]
    return counts.completed < len(counts.items)


def forget_items(run: RunState, draft: Transition, index: int) -> None:
    """A map starts over: its items are as if none had begun, but that no token and no attempt number is used again."""
    for place in items_of(index):
        item = run.tasks.get(place)
        if item is None:
            break
        if item.status is FAILED:
            draft.actions.append(CloseLetter(place, item.token, "replayed"))
        draft.tasks[place] = untouched_again(item, None)  # of a run that has ended: it counts nowhere


def rerun_items(
    plan: Plan, run: RunState, draft: Transition, index: int, chosen: Collection[int], given: bytes | None
) -> None:
    """The map waits for its items again: for those chosen, or without any for those that failed; for what was
    cancelled, and for what had not begun. What else has ended stays. None begins before `go_on`, which may end the map
    at once: what is behind it is to be counted first. given: JSON, in place of the input of the chosen."""
    task, each, again = run.task(index), plan.tasks[index].each, list[int]()
    assert each is not None
    put(run, draft, index, TaskState(WAITING, token=task.token, input=task.input, items=task.items))
    count_items(draft, index, run.count_items(index, task))
    for place in items_of(index, item_counts(run, draft, index).begun):
        item, doubt = draft.tasks.get(place) or run.task(place), None
        if not (item.status is CANCELLED or place in chosen or (item.status is FAILED and not chosen)):
            continue
        if item.status is FAILED:
            draft.actions.append(CloseLetter(place, item.token, "replayed"))
        if may_have_had(each, item) and (item.status is not FAILED or is_in_doubt(each, item)):
            doubt = RERUN  # of one that failed otherwise nothing is in doubt
        edited = given if place in chosen and given is not None else item.input
        item = msgspec.structs.replace(item, retries_from=item.attempt, input=edited, error=doubt)
        _await_room(run, draft, place, item)
        again.append(place)
    counts = item_counts(run, draft, index)
    count_items(draft, index, msgspec.structs.replace(counts, again=tuple(again)))


def reopen_map(plan: Plan, run: RunState, draft: Transition, index: int, ended: list[int]) -> None:
    """An item is replayed, or a person has given it its output: a map that had failed waits for its items again. What
    the failure had cancelled runs again, what had not begun begins, as many at once as ever, and what has completed
    stays."""
    task = run.task(index)
    if task.status is not FAILED:
        return
    put(run, draft, index, msgspec.structs.replace(task, status=WAITING, error=None))
    unskip(plan, run, draft, index)
    again = list[int]()
    for place in items_of(index, item_counts(run, draft, index).begun):
        item = draft.tasks.get(place) or run.task(place)
        if item.status is CANCELLED:
            doubt = RERUN if is_in_doubt(plan.at(place), item) else None
            item = msgspec.structs.replace(item, retries_from=item.attempt, error=doubt)
            _await_room(run, draft, place, item)
        if draft.tasks.get(place, UNTOUCHED).withheld == "room":
            again.append(place)
    count_items(draft, index, msgspec.structs.replace(item_counts(run, draft, index), again=tuple(again), again_from=0))
    go_on(plan, run, draft, index, ended)


def replay_item(plan: Plan, run: RunState, draft: Transition, place: int, item: TaskState, ended: list[int]) -> None:
    """It takes its turn like any other item: of its map no more are under way at once than ever."""
    index = task_of(place)
    _await_room(run, draft, place, item)
    if run.task(index).status is FAILED:
        return reopen_map(plan, run, draft, index, ended)
    counts = item_counts(run, draft, index)
    again = tuple(sorted((*counts.again[counts.again_from :], place)))
    count_items(draft, index, msgspec.structs.replace(counts, again=again, again_from=0))
    go_on(plan, run, draft, index, ended)


def _await_room(run: RunState, draft: Transition, place: int, item: TaskState) -> None:
    """It runs again once its map has room. Its error: what is in doubt of it until then."""
    waiting = TaskState(
        PENDING, item.attempt, item.token, None, item.retries_from, item.input, error=item.error, withheld="room"
    )
    put(run, draft, place, waiting)
