"""The causes of one task, by its status."""

from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import assert_never

from headrace.instant import format_instant
from headrace.machine import RunStatus, TaskStatus
from headrace.machine.place import compensation_of, is_compensation, is_item, task_of
from headrace.machine.reason import CHILD_CANCELLED
from state.explain.cause import NAMES_MAX, Act, Cause, Code, Object
from state.explain.facts import Facts, Failure, Items, Pause, Question, Queue, Session, TaskFacts
from state.explain.pool import awaits_slot
from state.explain.words import (
    DECIDED,
    DOCTOR,
    LATE_SECONDS,
    MUST_NOT_BE,
    WILL_SAY_LOST,
    ago,
    approval_object,
    by_whom,
    for_how_long,
    holding_up,
    in_brackets,
    in_how_long,
    name_of,
    path_of,
    queue_object,
    run_object,
    seconds_since,
    session_object,
    short_id,
    task_id,
    task_object,
    tries_max,
)


def causes_of_open_task(facts: Facts, index: int) -> list[Cause]:
    """The chain of one open task, without the engine."""
    task = facts.tasks.get(index)
    if task is None:
        return _untouched(facts, index)
    return [*_causes_of_state(facts, task), *causes_of_deadline(facts, task)]


def _causes_of_state(facts: Facts, task: TaskFacts) -> list[Cause]:
    index = task.task
    if task.withheld:
        return [_withheld(facts, task)]
    if task.is_untouched:
        return _untouched(facts, index)
    causes: list[Cause]
    match task.status:
        case TaskStatus.PENDING if task.rounds and task.attempt == task.retries_from and not task.lookups:
            causes = _between_rounds(facts, task)
        case TaskStatus.PENDING:
            causes = _backing_off(facts, task)
        case TaskStatus.QUEUED:
            causes = _listed(facts, task) if task.lister is not None else _on_the_way(facts, task)
            causes += [*_unknown_body(facts, task), *_start_limit(facts, task)]
        case TaskStatus.RUNNING:
            causes = _running(facts, task)
        case TaskStatus.WAITING:
            return _waiting(facts, task)
        case TaskStatus.COMPLETED | TaskStatus.FAILED | TaskStatus.SKIPPED | TaskStatus.CANCELLED:
            return list(causes_of_ended_task(facts, index))
        case _:
            assert_never(task.status)
    return [*_looking_up(facts, task), *causes]


# -- PENDING
def _untouched(facts: Facts, index: int) -> list[Cause]:
    """It was never handed out: its join is undecided, because something that it needs has not ended."""
    if is_compensation(index):
        return _undone_later(facts, index)
    unfinished = [need for need in facts.plan.tasks[index].needs if need not in facts.ended]
    if not unfinished:
        return [_join_missed(facts, index)]
    nearest, between = _nearest_open(facts, index)
    names = [name_of(facts, need) for need in unfinished]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    asks, end, moves = _asked_of_needs(facts, index, names)
    text = f"Task {name_of(facts, index)} {asks} {', '.join(names[:NAMES_MAX])}{more}, not {end} yet"
    if between:
        text += f"; the nearest that is open is {name_of(facts, nearest)}, through {path_of(facts, between)}"
    first = unfinished[0] if between else nearest
    cause = Cause(Code.NEEDS_UNFINISHED, f"{text}.", task_object(facts, first), moves, facts.changed_at)
    return [
        holding_up(facts, index, cause),
        *(causes_of_open_task(facts, nearest) if nearest in facts.tasks else _untouched(facts, nearest)),
    ]


def _undone_later(facts: Facts, index: int) -> list[Cause]:
    """Something that needs its task is still to be undone."""
    first = list[int]()
    seen = {task_of(index)}
    for task in (walk := list(seen)):
        for after in facts.plan.tasks[task].dependants:
            if after in seen:
                continue
            seen.add(after)
            place = compensation_of(after)
            (first if place in facts.tasks and place not in facts.ended else walk).append(
                place if place in facts.tasks and place not in facts.ended else after
            )
    if not first:
        return [_join_missed(facts, index)]
    names = [name_of(facts, place) for place in first]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    text = f"Task {name_of(facts, index)} comes after {', '.join(names[:NAMES_MAX])}{more}"
    text += ": what was done last is undone first."
    moves = f"{names[0]} ends" if len(names) == 1 else f"all {len(names)} end"
    cause = Cause(Code.COMPENSATION_LATER, text, task_object(facts, first[0]), moves, facts.changed_at)
    return [holding_up(facts, index, cause), *causes_of_open_task(facts, first[0])]


def _asked_of_needs(facts: Facts, index: int, open_needs: Sequence[str]) -> tuple[str, str, str]:
    """What a task's join asks of its needs: in words, how they have to end, and what would move it."""
    spec, count = facts.plan.tasks[index], len(open_needs)
    if spec.join == "all":
        return "needs", "completed", f"{open_needs[0]} completes" if count == 1 else f"all {count} complete"
    if spec.quorum is not None:
        asks = "needs any of" if spec.quorum == 1 else f"needs {spec.quorum} of {len(spec.needs)} to complete; open are"
        enough = "one of them completes" if spec.quorum == 1 else f"{spec.quorum} in all have completed"
        return asks, "completed", f"{open_needs[0]} ends" if count == 1 else f"{enough}, or all have ended"
    asks = (
        "waits for the end of"
        if spec.join == "always" or spec.cleans_up
        else "runs if a need fails; it waits for the end of"
    )
    return asks, "ended", f"{open_needs[0]} ends" if count == 1 else f"all {count} end"


def _nearest_open(facts: Facts, index: int) -> tuple[int, list[int]]:
    """The nearest task it waits for that has been handed out, or that should have been; and those in between."""
    came_from: dict[int, int] = {index: index}
    waiting = deque([index])
    while waiting:
        current = waiting.popleft()
        unfinished = [need for need in facts.plan.tasks[current].needs if need not in facts.ended]
        task = facts.tasks.get(current)
        if current != index and (not unfinished or (task is not None and not task.is_untouched)):
            between = []
            step = came_from[current]
            while step != index:
                between.append(step)
                step = came_from[step]
            return current, between[::-1]
        for need in unfinished:
            if need not in came_from:
                came_from[need] = current
                waiting.append(need)
    raise AssertionError("a graph has no cycles")  # so a walk along unfinished needs ends at one that has none


def _join_missed(facts: Facts, index: int) -> Cause:
    text = f"All that task {name_of(facts, index)} needs has ended, but it was neither handed out nor skipped."
    moves = MUST_NOT_BE
    return holding_up(
        facts, index, Cause(Code.JOIN_MISSED, text, run_object(facts), moves, facts.changed_at, acts=[DOCTOR])
    )


def _withheld(facts: Facts, task: TaskFacts) -> Cause:
    name = name_of(facts, task.task)
    pauses = facts.pauses_of(task.task)
    if is_item(task.task) and not pauses and facts.permit is None:
        mapping = facts.plan.tasks[task_of(task.task)]
        room = 0 if mapping.map is None else mapping.map.max_parallel
        text = f"Item {name} runs again once map {mapping.name} has room: no more than {room} are under way at once."
        moves = "an item of the map ends"
        return holding_up(facts, task.task, Cause(Code.WITHHELD, text, run_object(facts), moves, task.changed_at))
    text = f"Task {name} would have begun {ago(facts, task.changed_at)}, and is withheld until "
    text += "it is resumed." if pauses and pauses[-1].task is not None else "the run goes on."
    moves = "Resumed: then it begins" if pauses or facts.permit is not None or facts.requests else MUST_NOT_BE
    return holding_up(facts, task.task, Cause(Code.WITHHELD, text, run_object(facts), moves, task.changed_at))


def _backing_off(facts: Facts, task: TaskFacts) -> list[Cause]:
    name = name_of(facts, task.task)
    if task.timer is None or task.due_at is None:
        return [_timer_missing(facts, task, "its next attempt"), *_unknown_body(facts, task)]
    tries = f"attempt {task.attempt} of {tries_max(facts, task)} failed{in_brackets(task.last_error)}"
    timer = _timer_object(facts, task)
    if task.due_at > facts.now:
        text = f"Task {name} waits until its next attempt, {in_how_long(facts, task.due_at)}: {tries}."
        cause = Cause(Code.BACKOFF, text, timer, "Due: the timer sweep says so", task.changed_at, task.due_at)
        cause = holding_up(facts, task.task, cause)
    else:
        cause = _timer_overdue(facts, task, task.due_at, f"The next attempt of task {name} was due", f": {tries}")
    return [cause, *_unknown_body(facts, task)]


def _between_rounds(facts: Facts, task: TaskFacts) -> list[Cause]:
    repeat, name = facts.plan.at(task.task).repeat, name_of(facts, task.task)
    if task.timer is None or task.due_at is None:
        return [_timer_missing(facts, task, "its next round")]
    most = f" of at most {repeat.bound(task.rounds)}" if repeat is not None else ""
    rounds = f"round {task.rounds}{most} did not make its `until` true"
    if task.due_at <= facts.now:
        return [_timer_overdue(facts, task, task.due_at, f"The next round of task {name} was due", f": {rounds}")]
    text = f"Task {name} waits until its next round, {in_how_long(facts, task.due_at)}: {rounds}."
    timer, moves = _timer_object(facts, task), "Due: the timer sweep says so"
    cause = Cause(Code.BETWEEN_ROUNDS, text, timer, moves, task.changed_at, task.due_at)
    return [holding_up(facts, task.task, cause)]


def _start_limit(facts: Facts, task: TaskFacts) -> list[Cause]:
    """How long its command may wait for a worker to begin."""
    if task.due_at is None:
        return []
    name = name_of(facts, task.task)
    if task.timer is None:
        return [_timer_missing(facts, task, "the end of its time in the queue")]
    if task.due_at <= facts.now:
        return [_timer_overdue(facts, task, task.due_at, f"The body of task {name} had to have begun", "")]
    text = f"Task {name} fails unless its body has begun by {format_instant(task.due_at)}, "
    text += f"{in_how_long(facts, task.due_at)}."
    moves = "Started: a worker begins it; or Due: the timer sweep says that it did not"
    timer = _timer_object(facts, task)
    cause = Cause(Code.START_DEADLINE, text, timer, moves, task.changed_at, task.due_at)
    return [holding_up(facts, task.task, cause)]


def causes_of_deadline(facts: Facts, task: TaskFacts) -> list[Cause]:
    """What ends it whatever it does, if nothing has ended it before."""
    if task.deadline_at is None:
        return []
    name, at = name_of(facts, task.task), task.deadline_at
    if task.deadline_timer is None:
        return [_timer_missing(facts, task, "its deadline")]
    if at <= facts.now:
        by_deadline = task._replace(timer=task.deadline_timer)
        return [_timer_overdue(facts, by_deadline, at, f"The deadline of task {name} passed", "")]
    text = f"Task {name} fails unless it has ended by {format_instant(at)}, {in_how_long(facts, at)}."
    moves = "Due: the timer sweep says so"
    cause = Cause(Code.DEADLINE, text, _timer_object(facts, task), moves, task.changed_at, at)
    return [holding_up(facts, task.task, cause)]


def _timer_object(facts: Facts, task: TaskFacts) -> Object:
    return Object("timer", task_id(facts, task.task), f"/tasks/{task_id(facts, task.task)}")


def _timer_overdue(facts: Facts, task: TaskFacts, due_at: datetime, what: str, more: str) -> Cause:
    said_at = task.timer.said_at if task.timer else None
    said = f", said {ago(facts, said_at)}" if said_at else ", and nobody has said so"
    text = f"{what} {ago(facts, due_at)}{said}{more}."
    moves = "Due: said by the timer sweep, applied by the run agent"
    return holding_up(facts, task.task, Cause(Code.TIMER_OVERDUE, text, _timer_object(facts, task), moves, due_at))


def _timer_missing(facts: Facts, task: TaskFacts, what: str) -> Cause:
    text = f"Task {name_of(facts, task.task)} counts on a timer for {what}, and there is none."
    cause = Cause(
        Code.TIMER_MISSING, text, task_object(facts, task.task), "a sweep sets it again from the state",
        task.changed_at, acts=[DOCTOR],
    )  # fmt: skip
    return holding_up(facts, task.task, cause)


# -- QUEUED
def _on_the_way(facts: Facts, task: TaskFacts) -> list[Cause]:
    """Handed out, and no session lists it."""
    if task.task in facts.held:
        return [_kept_back(facts, task, facts.held[task.task])]
    engine, name = facts.engine, name_of(facts, task.task)
    causes = []
    is_published = engine.ticked_at is not None and task.changed_at < engine.ticked_at
    gone_at = _log_gone_at(facts, task)
    if is_published and gone_at is not None:
        causes.append(_lost_command(facts, task, f"the log that it lay in was lost {ago(facts, gone_at)}", gone_at))
    if is_published:
        return causes + (_no_taker(facts, task) or ([] if causes else [_not_received(facts, task)]))
    text = f"Task {name} was handed out {ago(facts, task.changed_at)}, and its command is not known to be published: "
    text += f"the relay has not proved to have got so far{for_how_long(facts, engine.ticked_at)}."
    relay = Object("relay", engine.relay.slot if engine.relay else "", "/health")
    cause = Cause(Code.NOT_PUBLISHED, text, relay, "the relay publishes the command", task.changed_at)
    is_stale = engine.ticked_at is None or seconds_since(facts, engine.ticked_at) > LATE_SECONDS
    taker = _no_taker(facts, task)
    return (
        [holding_up(facts, task.task, cause), *taker]
        if is_stale or not taker
        else [*taker, holding_up(facts, task.task, cause)]
    )


def _kept_back(facts: Facts, task: TaskFacts, pause: Pause) -> Cause:
    """Its queue is paused."""
    queue = facts.plan.at(task.task).queue
    why = f" by {pause.actor}" + (f": {pause.reason}" if pause.reason else "") if pause.actor else ", and no more"
    text = f"Queue {queue} is paused{for_how_long(facts, pause.at)}{why}; what is handed out to it is kept back."
    acts = [Act(f"headrace resume queue {queue}", f"POST /queues/{queue}/resume")] if pause.actor else []
    moves = "somebody resumes the queue" if pause.actor else "a sweep lets it go"
    cause = Cause(Code.QUEUE_PAUSED, text, queue_object(queue), moves, pause.at, acts=acts)
    return holding_up(facts, task.task, cause)


def _log_gone_at(facts: Facts, task: TaskFacts) -> datetime | None:
    """When the log that the command was in was lost, if that was after it was handed out."""
    gap_at = facts.engine.relay.gap_at if facts.engine.relay else None
    since = facts.engine.logs.get(facts.plan.at(task.task).queue)
    return max((at for at in (gap_at, since) if at is not None and at > task.changed_at), default=None)


def _no_taker(facts: Facts, task: TaskFacts) -> list[Cause]:
    """Why no worker of the queue can take it now; empty when one could."""
    queue = facts.plan.at(task.task).queue
    workers = facts.queues.get(queue, Queue())
    ahead = facts.ahead.get(queue, 0)
    if not workers.sessions:
        text = f"No live worker serves queue {queue}."
        acts = [Act(f"HEADRACE_QUEUES={queue} headrace worker APP", "GET /workers")]
        cause = Cause(
            Code.NO_WORKER, text, queue_object(queue), "a worker of the queue starts", task.changed_at, acts=acts
        )
    elif workers.draining == workers.sessions:
        text = f"All {workers.sessions} worker sessions of queue {queue} are draining: they take nothing new."
        moves = "another worker of the queue starts"
        cause = Cause(Code.WORKERS_DRAINING, text, queue_object(queue), moves, task.changed_at)
    elif workers.draining + workers.full == workers.sessions:
        text = f"All workers of queue {queue} are full: {workers.held} commands at {workers.slots} worker slots."
        moves = "a body ends, or another worker of the queue starts"
        cause = Cause(Code.WORKERS_FULL, text, queue_object(queue), moves, task.changed_at)
    else:
        return [_not_received(facts, task), _backlog(facts, task, ahead)] if ahead else []
    return [holding_up(facts, task.task, cause), *([_backlog(facts, task, ahead)] if ahead else [])]


def _backlog(facts: Facts, task: TaskFacts, ahead: int) -> Cause:
    queue = facts.plan.at(task.task).queue
    text = f"At least {ahead} older commands wait in queue {queue}."
    cause = Cause(Code.BACKLOG, text, queue_object(queue), "the workers get to it", task.changed_at)
    return holding_up(facts, task.task, cause)


def _not_received(facts: Facts, task: TaskFacts) -> Cause:
    """Published, a worker has room, and none lists it."""
    queue = facts.plan.at(task.task).queue
    if facts.now - task.changed_at > 2 * facts.lease and not facts.ahead.get(queue):
        return _lost_command(facts, task, "workers with room do not list it", task.changed_at)
    text = f"The command of task {name_of(facts, task.task)} was published {ago(facts, task.changed_at)}; no session "
    text += f"of queue {queue} has listed it yet."
    moves = "a worker receives it, and lists it with its next heartbeat or answers"
    return holding_up(facts, task.task, Cause(Code.NOT_RECEIVED, text, queue_object(queue), moves, task.changed_at))


def _lost_command(facts: Facts, task: TaskFacts, why: str, since: datetime) -> Cause:
    looked_at = facts.engine.passes.get("lost")
    looked = f"; looked for last {ago(facts, looked_at)}" if looked_at else "; nobody has looked for it yet"
    pause = timedelta(seconds=max(0.5, facts.lease.total_seconds() / 6))
    next_look = max(looked_at + pause, facts.now) if looked_at else None
    text = f"The command of task {name_of(facts, task.task)} is probably lost: {why}{looked}."
    moves = "Lost: the sweep says so once every worker has had a lease to list it; then it is handed out again"
    lost = Object("sweep", "lost", "/health")
    return holding_up(facts, task.task, Cause(Code.COMMAND_LOST, text, lost, moves, since, next_look))


def _listed(facts: Facts, task: TaskFacts) -> list[Cause]:
    """A session has received it, and has not said that its body began."""
    lister, spec = task.lister, facts.plan.at(task.task)
    assert lister is not None
    if gone := _gone(facts, task, lister):
        return [gone]
    where = f"session {short_id(lister.session_id)} of worker {lister.worker}"
    if lister.held > lister.slots:
        text = f"Task {spec.name} waits in {where} for a worker slot: it has {lister.held} commands and "
        text += f"{lister.slots} slots."
        code, moves = Code.IN_PREFETCH, "a body of that worker ends"
    elif spec.claims:
        text = f"Task {spec.name} is with {where}, which may start its body only when the engine has granted its claim."
        code, moves = Code.CLAIM_NOT_GRANTED, "Started(claim), then Granted: the run agent records the session as owner"
    else:
        text = f"Task {spec.name} is with {where}; a short body reports only its result."
        code, moves = Code.RECEIVED, "Started, Succeeded or Failed of that worker"
    cause = Cause(code, text, session_object(lister), moves, task.changed_at, lister.expires_at)
    return [holding_up(facts, task.task, cause), *_drain(facts, task, lister)]


def _unknown_body(facts: Facts, task: TaskFacts) -> list[Cause]:
    if task.last_error != "UNKNOWN_TASK":
        return []
    spec = facts.plan.at(task.task)
    text = f"The last worker of queue {spec.queue} that got task {spec.name} does not know the body {spec.run}."
    moves = f"a worker that has {spec.run} takes it"
    acts = [Act("headrace worker APP", "GET /workers")]
    return [
        holding_up(
            facts,
            task.task,
            Cause(Code.BODY_UNKNOWN, text, queue_object(spec.queue), moves, task.changed_at, acts=acts),
        )
    ]


# -- RUNNING
def _running(facts: Facts, task: TaskFacts) -> list[Cause]:
    """The timers of a time-out come first: they overtake a holder that says nothing."""
    causes, missing = [], None
    if task.due_at is not None and task.timer is None:
        missing = _timer_missing(facts, task, "its time-out")
    if task.due_at is not None and task.due_at <= facts.now:
        causes.append(missing or _time_is_over(facts, task, task.due_at))
        missing = None
    causes += _held(facts, task)
    return causes + ([missing] if missing else [])


def _time_is_over(facts: Facts, task: TaskFacts, due_at: datetime) -> Cause:
    text = f"The time-out of task {name_of(facts, task.task)} was over {ago(facts, due_at)}, and its attempt has not "
    text += "ended."
    moves = "Due: said by the timer sweep, applied by the run agent; the holder is told to stop"
    return holding_up(facts, task.task, Cause(Code.TIMEOUT_OVERDUE, text, _timer_object(facts, task), moves, due_at))


def _held(facts: Facts, task: TaskFacts) -> list[Cause]:
    """By whom; or by nobody that lives."""
    name, lister, owner = name_of(facts, task.task), task.lister, task.owner
    lost = None if lister is None else _gone(facts, task, lister)
    if lister is not None and lost is None:
        return [_runs(facts, task, lister), *_drain(facts, task, lister)]
    if owner is None and lost is not None:
        return [lost]
    if owner is None:
        who = f"session {short_id(task.session_id)}, which is not known" if task.session_id else "nobody"
        text = f"Task {name} is said to run with {who}."
        unknown = Object("session", str(task.session_id or ""), "/workers")
        return [
            holding_up(facts, task.task, Cause(Code.SESSION_UNKNOWN, text, unknown, WILL_SAY_LOST, task.changed_at))
        ]
    if gone := _gone(facts, task, owner):
        return [gone]
    if facts.now - task.changed_at <= facts.lease:
        return [_runs(facts, task, owner), *_drain(facts, task, owner)]
    text = f"Session {short_id(owner.session_id)} of worker {owner.worker} lives, but no longer lists task {name}."
    return [
        holding_up(
            facts, task.task, Cause(Code.NOT_LISTED, text, session_object(owner), WILL_SAY_LOST, owner.renewed_at)
        )
    ]


def _runs(facts: Facts, task: TaskFacts, session: Session) -> Cause:
    what = "its lookup" if task.lookups else f"attempt {task.attempt} of {tries_max(facts, task)}"
    text = f"Task {name_of(facts, task.task)} runs: {what}, begun "
    text += f"{ago(facts, task.changed_at)}, in session {short_id(session.session_id)} of worker {session.worker}"
    text += f", whose lease ends {in_how_long(facts, session.expires_at)}"
    text += f", the time-out {in_how_long(facts, task.due_at)}" if task.due_at else ""
    text += f"; it says {task.progress[:200]}" if task.progress else ""
    moves = "Succeeded, Failed or Returned of that worker"
    until = task.due_at if task.due_at and task.due_at > facts.now else None
    return holding_up(
        facts, task.task, Cause(Code.RUNNING, f"{text}.", session_object(session), moves, task.changed_at, until)
    )


def _gone(facts: Facts, task: TaskFacts, session: Session) -> Cause | None:
    """None while the session's lease runs."""
    name, who = name_of(facts, task.task), f"Session {short_id(session.session_id)} of worker {session.worker}"
    if session.ended_at is not None:
        text = f"{who} ended {ago(facts, session.ended_at)} with task {name} in its hands."
        cause = Cause(Code.SESSION_ENDED, text, session_object(session), WILL_SAY_LOST, session.ended_at)
    elif session.expires_at <= facts.now:
        text = f"The lease of {who[0].lower()}{who[1:]}, which has task {name}, ran out "
        text += f"{ago(facts, session.expires_at)}; its last heartbeat is from {ago(facts, session.renewed_at)}."
        cause = Cause(Code.SESSION_EXPIRED, text, session_object(session), WILL_SAY_LOST, session.expires_at)
    else:
        return None
    return holding_up(facts, task.task, cause)


def _drain(facts: Facts, task: TaskFacts, session: Session) -> list[Cause]:
    if not session.draining:
        return []
    text = f"Worker {session.worker} is draining: what does not end in time, it hands back."
    cause = Cause(Code.WORKER_DRAINING, text, session_object(session), "Succeeded or Returned of that worker", None)
    return [holding_up(facts, task.task, cause)]


def _looking_up(facts: Facts, task: TaskFacts) -> list[Cause]:
    """An attempt ended without anybody knowing whether its effect happened; what it was is kept as the error."""
    spec = facts.plan.at(task.task)
    if not task.lookups:
        return []
    why = task.error.message or task.error.code if task.error else "nobody knows why"
    text = f"Task {name_of(facts, task.task)} ended without a known outcome ({why}); "
    text += f"{spec.lookup} is asked what became of its effect."
    moves = f"{spec.lookup} answers: it happened, it did not, or unknown"
    return [
        holding_up(
            facts, task.task, Cause(Code.LOOKING_UP, text, task_object(facts, task.task), moves, task.changed_at)
        )
    ]


# -- WAITING
def _waiting(facts: Facts, task: TaskFacts) -> list[Cause]:
    if task.pool is not None:
        return [holding_up(facts, task.task, awaits_slot(facts, task, task.pool))]
    if task.error is not None:
        return [holding_up(facts, task.task, _parked(facts, task, task.error))]
    if facts.plan.at(task.task).signal is not None:
        return _listening(facts, task)
    if facts.plan.at(task.task).child is not None:
        return _with_child(facts, task)
    if task.due_at is not None:
        return [_until(facts, task, task.due_at)]
    if task.items is not None:
        return [_mapping(facts, task, task.items)]
    question = task.question
    name = name_of(facts, task.task)
    if question is None or question.status == "cancelled":
        text = f"Task {name} waits for an approval, and nobody is asked."
        this = task_object(facts, task.task)
        cause = Cause(Code.APPROVAL_MISSING, text, this, MUST_NOT_BE, task.changed_at, acts=[DOCTOR])
    elif question.status != "waiting":
        who = f" by {question.decided_by}" if question.decided_by else ""
        text = f"Task {name} was {question.status}{who} {ago(facts, question.decided_at)}; the run has not moved yet."
        cause = _decision(facts, task, "decided", text, approval_object(question), question.decided_at)
    elif question.expires_at is not None and question.expires_at <= facts.now and not _is_escalated(question):
        text = f"Nobody answered the approval of task {name}; it expired {ago(facts, question.expires_at)}."
        moves = "Decided: the approval sweep decides as `on_expiry` says"
        cause = Cause(Code.APPROVAL_EXPIRED, text, approval_object(question), moves, question.expires_at)
    else:
        cause = _asked(facts, name, question)
    return [holding_up(facts, task.task, cause)]


def _mapping(facts: Facts, task: TaskFacts, items: Items) -> Cause:
    """It waits for its items, which have causes of their own."""
    name, under_way = name_of(facts, task.task), items.begun - items.completed - items.failed
    text = f"Task {name} works through its list: of {items.total} items {items.completed} have completed"
    text += f", {items.failed} have failed" if items.failed else ""
    text += f", {items.total - items.begun} have not begun" if items.total > items.begun else ""
    if under_way:
        this = task_object(facts, task.task)._replace(link=f"/runs/{facts.run_id}/tasks/{name}/items")
        text, moves = f"{text}, and {under_way} are under way.", "an item ends"
        return holding_up(facts, task.task, Cause(Code.ITEMS_OPEN, text, this, moves, task.changed_at))
    text, this = f"{text}, and none is under way.", task_object(facts, task.task)
    cause = Cause(Code.ITEMS_MISSED, text, this, MUST_NOT_BE, task.changed_at, acts=[DOCTOR])
    return holding_up(facts, task.task, cause)


def _until(facts: Facts, task: TaskFacts, due_at: datetime) -> Cause:
    """It waits for an instant, and for nobody."""
    name = name_of(facts, task.task)
    if task.timer is None:
        return _timer_missing(facts, task, "the end of its wait")
    if due_at > facts.now:
        text = f"Task {name} waits until {format_instant(due_at)}, {in_how_long(facts, due_at)}."
        timer, moves = _timer_object(facts, task), "Due: the timer sweep says so"
        return holding_up(facts, task.task, Cause(Code.WAIT, text, timer, moves, task.changed_at, due_at))
    return _timer_overdue(facts, task, due_at, f"The wait of task {name} was over", "")


def _limit(facts: Facts, task: TaskFacts) -> list[Cause]:
    """What is wrong with the time-out of a wait, where there is one."""
    if task.due_at is not None and task.timer is None:
        return [_timer_missing(facts, task, "the time-out of its wait")]
    if task.due_at is not None and task.due_at <= facts.now:
        text = f"The time-out of task {name_of(facts, task.task)} was"
        return [_timer_overdue(facts, task, task.due_at, text, "")]
    return []


def _with_child(facts: Facts, task: TaskFacts) -> list[Cause]:
    """It waits for a run that it has asked for, and, where it has one, for its time-out."""
    name, child, due_at = name_of(facts, task.task), task.child, task.due_at
    if child is None:
        text = f"Task {name} waits for a run, and has asked for none."
        this = task_object(facts, task.task)
        cause = Cause(Code.CHILD_MISSING, text, this, MUST_NOT_BE, task.changed_at, acts=[DOCTOR])
        return [*_limit(facts, task), holding_up(facts, task.task, cause)]
    what = f"run {child.run_id} of workflow {child.workflow}"
    there = Object("run", str(child.run_id), f"/runs/{child.run_id}")
    until = f", until {format_instant(due_at)}, {in_how_long(facts, due_at)}" if due_at and due_at > facts.now else ""
    if child.status == "asked":
        text = f"Task {name} has asked for {what} {ago(facts, child.asked_at)}, and it has not started yet{until}."
        sweep, moves = Object("sweep", "children", "/health"), "the sweep of children starts it, or refuses to"
        cause = Cause(Code.CHILD_NOT_STARTED, text, sweep, moves, child.asked_at, due_at)
    elif child.ended_at is not None or not _waits_for_its_end(facts, task):
        when = child.ended_at or child.asked_at
        text = (
            f"Task {name} waits for {what}, which is {child.status} since {ago(facts, when)}; nobody has said so yet."
        )
        moves = "ChildTold: said again by the sweep of requests, applied by the run agent"
        cause = Cause(Code.CHILD_NOT_TOLD, text, there, moves, when)
    else:
        text = f"Task {name} waits for {what}, which is {child.status}, since {ago(facts, child.asked_at)}{until}."
        acts = [Act(f"headrace explain {child.run_id}", f"GET /runs/{child.run_id}/explain")]
        cause = Cause(Code.CHILD_OPEN, text, there, "ChildTold: that run ends", child.asked_at, due_at, acts)
    return [*_limit(facts, task), holding_up(facts, task.task, cause)]


def _waits_for_its_end(facts: Facts, task: TaskFacts) -> bool:
    child = facts.plan.at(task.task).child
    return child is not None and child.is_awaited


def _listening(facts: Facts, task: TaskFacts) -> list[Cause]:
    """It waits for a signal, and, where that has one, for its time-out."""
    name, row, due_at = name_of(facts, task.task), task.listening, task.due_at
    causes = _limit(facts, task)
    if row is None:
        text = f"Task {name} waits for a signal, and is not among those that do."
        this = task_object(facts, task.task)
        missing = Cause(Code.SIGNAL_WAIT_MISSING, text, this, MUST_NOT_BE, task.changed_at, acts=[DOCTOR])
        return [*causes, holding_up(facts, task.task, missing)]
    key = f" with key {row.key!r}" if row.key is not None else ""
    until = f", until {format_instant(due_at)}, {in_how_long(facts, due_at)}" if due_at and due_at > facts.now else ""
    text = f"Task {name} waits for signal {row.name}{key}, since {ago(facts, row.began_at)}{until}."
    option = f" --key {row.key}" if row.key is not None else ""
    acts = [Act(f"headrace signal {facts.run_id} {row.name}{option}", f"POST /runs/{facts.run_id}/signals")]
    if row.key is not None:
        acts.append(Act(f"headrace post {row.name}{option}", "POST /signals"))
    moves = "Signalled: somebody sends it"
    awaited = Cause(Code.SIGNAL_AWAITED, text, task_object(facts, task.task), moves, row.began_at, due_at, acts)
    return [*causes, holding_up(facts, task.task, awaited)]


def _asked(facts: Facts, name: str, question: Question) -> Cause:
    who = ", ".join(question.approvers) or "anybody"
    text = f"Task {name} waits for a decision: it was asked of {who} {ago(facts, question.asked_at)}"
    if question.expires_at is not None and _is_escalated(question):
        text += f", and the next of its escalation is asked {in_how_long(facts, question.expires_at)}"
    elif question.expires_at is not None:
        text += f" and expires {in_how_long(facts, question.expires_at)}"
    text += f".{_said(question)}{_next(facts, question)}"
    acts = [
        Act(f"headrace {verb} {facts.run_id} --task {name}", f"POST /approvals/{question.approval_id}/{verb}")
        for verb in ("approve", "reject")
    ]
    moves = "Decided: one of them approves or rejects"
    return Cause(
        Code.APPROVAL_OPEN, text, approval_object(question), moves, question.asked_at, question.expires_at, acts
    )


def _is_escalated(question: Question) -> bool:
    """Its expiry is no end: somebody else is asked then."""
    return question.on_expiry == "escalate" and question.steps_left > 0


def _said(question: Question) -> str:
    """Who has voted, and who is missing."""
    if question.needed == 1:
        return ""
    voters = [vote.by + (f" in place of {vote.in_place_of}" if vote.in_place_of else "") for vote in question.votes]
    voted = {name for vote in question.votes for name in (vote.by, vote.in_place_of)}
    missing = [name for name in question.approvers if name not in voted]
    text = f" {len(voters)} of {question.needed} have said yes"
    text += f": {', '.join(voters)}" if voters else ""
    return f"{text}; it waits for {', '.join(missing)}." if missing else f"{text}."


def _next(facts: Facts, question: Question) -> str:
    step = question.next
    if step is None:
        return ""
    what = "They are reminded" if step.kind == "remind" else f"{', '.join(step.to or [])} is asked, too,"
    return f" {what} {in_how_long(facts, step.at)}."


def _decision(facts: Facts, task: TaskFacts, kind: str, text: str, points_to: Object, at: datetime | None) -> Cause:
    """A person has decided; a request carries that to the run."""
    if any(request.kind == kind and request.task in (None, task.task) for request in facts.requests):
        return Cause(Code.DECISION_NOT_APPLIED, text, points_to, DECIDED, at)
    text = f"{text[:-1]}, and no request carries it there."
    return Cause(Code.DECISION_NOT_APPLIED, text, points_to, MUST_NOT_BE, at, acts=[DOCTOR])


def _parked(facts: Facts, task: TaskFacts, error: Failure) -> Cause:
    name, id_, row = name_of(facts, task.task), task_id(facts, task.task), task.parked
    this = Object("parked_task", id_, "/parked-tasks")
    text = f"Attempt {task.attempt} of task {name} ended without a known outcome: a person must say what became of its "
    text += f"effect ({error.message or error.code})."
    if row is None:
        text = f"{text[:-1]}, but it is not among the parked tasks."
        return Cause(Code.PARKED_MISSING, text, this, MUST_NOT_BE, task.changed_at, acts=[DOCTOR])
    if row.resolved_at is not None:
        text = f"What became of the effect of task {name} was said by {row.resolved_by or 'somebody'} "
        text += f"{ago(facts, row.resolved_at)}; the run has not moved yet."
        return _decision(facts, task, "resolved", text, this, row.resolved_at)
    acts = [
        Act(
            f"headrace resolve {facts.run_id} {name} --{flag}",
            f'POST /tasks/{id_}/resolve {{"outcome": "{outcome}"}}',
        )
        for flag, outcome in (("happened", "happened"), ("did-not", "did_not_happen"), ("fail", "fail"))
    ]
    moves = "Resolved: it happened, it did not happen, or it fails"
    return Cause(Code.PARKED, text, this, moves, row.parked_at, acts=acts)


# -- ended
def causes_of_ended_task(facts: Facts, index: int) -> Iterator[Cause]:
    task, name, this = facts.tasks.get(index), name_of(facts, index), task_object(facts, index)
    at = task.changed_at if task else facts.changed_at
    status = task.status if task else None
    never = "nothing: it has ended"
    if status is TaskStatus.FAILED and task is not None:
        yield _failed(facts, task)
    elif status is TaskStatus.SKIPPED and task is not None:
        code = task.error.code if task.error else ""
        why = f": {task.error.message}" if task.error and task.error.message else ""
        yield holding_up(facts, index, Cause(Code.TASK_SKIPPED, f"Task {name} was skipped{why}.", this, never, at))
        if code.startswith("UPSTREAM"):
            failed = [t for i, t in facts.tasks.items() if i != index and t.status is TaskStatus.FAILED]
            yield from (_failed(facts, each) for each in failed[:1])
            without = [i for i, t in facts.tasks.items() if i != index and t.error and t.error.code == CHILD_CANCELLED]
            for each in without[:1] if not failed else ():
                yield from causes_of_ended_task(facts, each)
    elif status is TaskStatus.CANCELLED:
        how = "terminated" if facts.status is RunStatus.TERMINATED else "cancelled"
        text = f"Task {name} was {how} with its run{by_whom(facts.stop)}."
        if task is not None and task.error is not None and task.error.code == "RUN_DEADLINE":
            text = f"Task {name} was cancelled at the deadline of its run."
        if task is not None and task.error is not None and task.error.code == CHILD_CANCELLED:
            text, never = f"Task {name} was cancelled: {task.error.message}.", "a rerun, once its run has ended"
        if task is not None and is_item(index) and facts.stop is None and task.error is not None:
            text = f"Item {name} was cancelled: {task.error.message}."
        yield holding_up(facts, index, Cause(Code.TASK_CANCELLED, text, this, never, at))
    else:
        yield holding_up(facts, index, Cause(Code.TASK_COMPLETED, f"Task {name} has completed.", this, never, at))
    if task is not None and task.lister is not None and _gone(facts, task, task.lister) is None:
        text = (
            f"Session {short_id(task.lister.session_id)} of worker {task.lister.worker} still lists it; it was told to "
        )
        yield holding_up(facts, index, Cause(
            Code.STILL_HELD, f"{text}stop.", session_object(task.lister), "its next heartbeat", task.lister.renewed_at
        ))  # fmt: skip


def _why_no_replay(facts: Facts, place: int) -> str:
    """Why nothing takes a failed task up again, as the machine decides it; empty when a replay does."""
    was = "" if facts.stop is None else facts.stop.kind
    if is_compensation(place):
        return "was terminated" if was == "terminated" else ""
    if facts.is_undone:
        return "is undone"
    if facts.is_cancelled:
        return "" if facts.plan.tasks[task_of(place)].cleans_up else "was cancelled"
    return f"was {was}" if was in ("cancelled", "terminated") else ""


def _failed(facts: Facts, task: TaskFacts) -> Cause:
    why = f": {task.error.code} {task.error.message}".rstrip() if task.error else ""
    text = f"Task {name_of(facts, task.task)} failed at attempt {task.attempt} of {tries_max(facts, task)}{why}."
    points_to, acts, moves = task_object(facts, task.task), [], "nothing: it has ended"
    if task.items is not None:
        text = f"Task {name_of(facts, task.task)} failed, with {task.items.completed} of {task.items.total} items"
        text, moves = f"{text} completed{why}.", "a replay of the dead letters of its items"
        items = f"/runs/{facts.run_id}/tasks/{name_of(facts, task.task)}/items?status=failed"
        acts = [Act(f"headrace show {facts.run_id} --task {name_of(facts, task.task)} --status failed", f"GET {items}")]
    over = _why_no_replay(facts, task.task)
    if task.letter is not None and over:
        letter = task.letter.dead_letter_id
        points_to = Object("dead_letter", str(letter), f"/dead-letters/{letter}")
        moves = f"nothing: its run {over}, so no replay can take it up again"
        if task.letter.status == "parked":
            acts = [Act(f"headrace discard {letter} --reason WHY", f"POST /dead-letters/{letter}/discard")]
    elif task.letter is not None:
        letter = task.letter.dead_letter_id
        points_to = Object("dead_letter", str(letter), f"/dead-letters/{letter}")
        text = f"{text[:-1]}; its dead letter is {task.letter.status}."
        if task.letter.status == "parked":
            moves = "Replayed: a person replays its dead letter"
            acts = [Act(f"headrace replay {letter}", f"POST /dead-letters/{letter}/replay")]
            acts.append(Act(f"headrace discard {letter} --reason WHY", f"POST /dead-letters/{letter}/discard"))
    return holding_up(facts, task.task, Cause(Code.TASK_FAILED, text, points_to, moves, task.changed_at, acts=acts))
