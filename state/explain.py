"""Why a run or a task does not move: facts in, ordered causes out. Pure; `state.queries.explain` reads the facts.

A task waits for exactly one thing, which its status and the rows beside it name: that is the nearest cause. Behind it
stands what that thing waits for: a task that needs others waits for the nearest open one of them, a command for a
worker, everything for the engine. So the causes of a task are a chain, nearest first; the causes of a run are the
chains of its open tasks, first those that nothing but a person can move. Total: every state that can be stored has a
cause, also those that must not be.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, NamedTuple, assert_never
from uuid import UUID

from headrace.machine import Plan, RunStatus, TaskStatus
from headrace.machine.status import RUN_TERMINAL

CAUSES_MAX: Final = 50
"""In one answer; a run of thousands of tasks repeats itself long before."""
NAMES_MAX: Final = 5
"""Tasks that one cause names; its `tasks_total` says how many there are."""
RELAY_SECONDS: Final = 10.0
"""The relay renews its row every second."""
LAG_BYTES: Final = 64 * 1024 * 1024
"""About a second of a saturated engine."""
LATE_SECONDS: Final = 10.0
"""What is said to the run agent is said again every five seconds."""
SWEEP_SECONDS: Final = 15.0
"""In which every sweep, except the retention, has made several passes."""
KAFKA_SWEEPS: Final = frozenset({"lost", "topics"})
"""The sweeps that ask Kafka; the others only need Postgres."""
SLOW_SWEEPS: Final = frozenset({"retention"})


class Code(StrEnum):
    """Stable words for programs; docs/explain.md has a line for each."""

    # a run
    RUN_COMPLETED = "RUN_COMPLETED"
    RUN_FAILED = "RUN_FAILED"
    RUN_CANCELLED = "RUN_CANCELLED"
    NEEDS_ATTENTION = "NEEDS_ATTENTION"
    REQUEST_NOT_APPLIED = "REQUEST_NOT_APPLIED"
    NOTHING_OPEN = "NOTHING_OPEN"
    # a task that is PENDING
    NEEDS_UNFINISHED = "NEEDS_UNFINISHED"
    JOIN_MISSED = "JOIN_MISSED"
    BACKOFF = "BACKOFF"
    TIMER_OVERDUE = "TIMER_OVERDUE"
    TIMER_MISSING = "TIMER_MISSING"
    # QUEUED
    NOT_PUBLISHED = "NOT_PUBLISHED"
    NO_WORKER = "NO_WORKER"
    WORKERS_DRAINING = "WORKERS_DRAINING"
    WORKERS_FULL = "WORKERS_FULL"
    NOT_RECEIVED = "NOT_RECEIVED"
    COMMAND_LOST = "COMMAND_LOST"
    BACKLOG = "BACKLOG"
    IN_PREFETCH = "IN_PREFETCH"
    CLAIM_NOT_GRANTED = "CLAIM_NOT_GRANTED"
    RECEIVED = "RECEIVED"
    BODY_UNKNOWN = "BODY_UNKNOWN"
    # RUNNING, or QUEUED and listed by a session
    RUNNING = "RUNNING"
    TIMEOUT_OVERDUE = "TIMEOUT_OVERDUE"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    SESSION_ENDED = "SESSION_ENDED"
    SESSION_UNKNOWN = "SESSION_UNKNOWN"
    NOT_LISTED = "NOT_LISTED"
    WORKER_DRAINING = "WORKER_DRAINING"
    LOOKING_UP = "LOOKING_UP"
    # WAITING
    APPROVAL_OPEN = "APPROVAL_OPEN"
    APPROVAL_EXPIRED = "APPROVAL_EXPIRED"
    APPROVAL_MISSING = "APPROVAL_MISSING"
    DECISION_NOT_APPLIED = "DECISION_NOT_APPLIED"
    PARKED = "PARKED"
    PARKED_MISSING = "PARKED_MISSING"
    # a task that has ended
    TASK_COMPLETED = "TASK_COMPLETED"
    TASK_FAILED = "TASK_FAILED"
    TASK_SKIPPED = "TASK_SKIPPED"
    TASK_CANCELLED = "TASK_CANCELLED"
    STILL_HELD = "STILL_HELD"
    # the engine
    STREAMS_AWAY = "STREAMS_AWAY"
    KAFKA_AWAY = "KAFKA_AWAY"
    SWEEP_LATE = "SWEEP_LATE"
    RELAY_AWAY = "RELAY_AWAY"
    SLOT_LOST = "SLOT_LOST"
    RELAY_BEHIND = "RELAY_BEHIND"
    TICKS_LATE = "TICKS_LATE"
    PARTITION_UNOWNED = "PARTITION_UNOWNED"
    PARTITION_SILENT = "PARTITION_SILENT"


# == facts =============================================================================================================
class Failure(NamedTuple):
    code: str
    message: str = ""


class Session(NamedTuple):
    session_id: UUID
    worker: str
    renewed_at: datetime
    expires_at: datetime
    ended_at: datetime | None = None
    draining: bool = False
    slots: int = 1
    held: int = 1


class Timer(NamedTuple):
    due_at: datetime
    said_at: datetime | None = None


class Question(NamedTuple):
    approval_id: UUID
    status: str
    approvers: Sequence[str]
    asked_at: datetime
    expires_at: datetime | None = None
    decided_at: datetime | None = None
    decided_by: str | None = None


class Parked(NamedTuple):
    """The row of a task that waits for a person to say what became of its effect."""

    parked_at: datetime
    resolved_at: datetime | None = None
    resolved_by: str | None = None


class Letter(NamedTuple):
    dead_letter_id: UUID
    status: str


class TaskFacts(NamedTuple):
    """A task that has a row."""

    task: int
    status: TaskStatus
    changed_at: datetime
    attempt: int = 0
    token: int = 1
    retries_from: int = 0
    due_at: datetime | None = None
    session_id: UUID | None = None
    error: Failure | None = None
    timer: Timer | None = None
    """The timer of this hand-out."""
    owner: Session | None = None
    """The session that said it runs the body; None also when that session is not known any more."""
    lister: Session | None = None
    """The session whose last heartbeat listed this hand-out; a live one if there is one."""
    progress: str | None = None
    question: Question | None = None
    """The approval of this hand-out."""
    letter: Letter | None = None
    lookups: int = 0
    parked: Parked | None = None
    last_error: str | None = None
    """The code of the last attempt that ended."""


class Request(NamedTuple):
    inbox_id: UUID
    kind: str
    task: int | None
    actor: str
    created_at: datetime


class Queue(NamedTuple):
    """Live sessions that serve a queue."""

    sessions: int = 0
    draining: int = 0
    full: int = 0
    slots: int = 0
    held: int = 0


class Relay(NamedTuple):
    owner: str
    renewed_at: datetime
    slot: str
    slot_is_there: bool
    wal_status: str
    lag_bytes: int
    gap_at: datetime | None = None
    """When the slot was last found lost."""


class Engine(NamedTuple):
    partition: int
    """Of the events topic: where everything about this run is said."""
    relay: Relay | None = None
    """None: no relay has ever worked here."""
    ticked_at: datetime | None = None
    """All that was committed before has gone through relay and Kafka, and all heartbeats before have been read."""
    passes: Mapping[str, datetime] = {}
    """Every sweep's last pass."""
    owner: str | None = None
    """Who took the partition last; None: nobody ever did."""
    taken_at: datetime | None = None
    logs: Mapping[str, datetime] = {}
    """Queue -> since when the log of its commands is the one it is."""


class Stop(NamedTuple):
    """What ended or stopped a run as a whole: an accepted cancel, or an event that could not be decided."""

    kind: str
    at: datetime
    actor: str = ""
    reason: str = ""
    letter: UUID | None = None


class Facts(NamedTuple):
    now: datetime
    run_id: UUID
    plan: Plan
    status: RunStatus
    changed_at: datetime
    engine: Engine
    lease: timedelta
    ended: frozenset[int] = frozenset()
    """Tasks in a terminal state."""
    tasks: Mapping[int, TaskFacts] = {}
    """Those that were looked at, in order."""
    open_tasks: int = 0
    """How many are open and have a row, looked at or not."""
    requests: Sequence[Request] = ()
    """Accepted for this run and not applied, oldest first."""
    queues: Mapping[str, Queue] = {}
    ahead: Mapping[str, int] = {}
    """Queue -> commands of older runs that wait in it; at least so many."""
    stop: Stop | None = None


# == causes ============================================================================================================
Kind = Literal["run", "task", "timer", "session", "queue", "approval", "parked_task", "request", "dead_letter",
               "partition", "relay", "slot", "sweep", "kafka"]  # fmt: skip


class Object(NamedTuple):
    kind: Kind
    id: str
    link: str | None = None
    """Path of the API that shows it."""


class Act(NamedTuple):
    """What a person can do."""

    cli: str
    api: str


class Cause(NamedTuple):
    code: Code
    text: str
    points_to: Object
    moves: str
    """The event that moves it."""
    since: datetime | None = None
    until: datetime | None = None
    """When that comes by itself, where that is known."""
    acts: Sequence[Act] = ()
    tasks: Sequence[str] = ()
    """Names of the tasks it holds up; the first NAMES_MAX."""
    tasks_total: int = 0
    """How many there are."""


_PERSON: Final = frozenset({
    Code.NEEDS_ATTENTION, Code.PARKED, Code.APPROVAL_OPEN, Code.NO_WORKER, Code.TIMER_MISSING, Code.APPROVAL_MISSING,
    Code.PARKED_MISSING, Code.JOIN_MISSED,
})  # fmt: skip
"""Nothing but a person, or a sweep that finds what must not be, moves these."""
_ON_ITS_WAY: Final = frozenset({
    Code.NEEDS_UNFINISHED, Code.BACKOFF, Code.RUNNING, Code.RECEIVED, Code.IN_PREFETCH, Code.NOT_RECEIVED,
    Code.NOT_PUBLISHED,
})  # fmt: skip


def explain_run(facts: Facts) -> list[Cause]:
    """Why the run does not move, nearest cause first; for one that has ended: how and why. Never empty."""
    if facts.status in RUN_TERMINAL:
        return [*_requests(facts), *_run_ended(facts)]
    chains = [_task(facts, index) for index in facts.tasks if index not in facts.ended]
    chains = [chain for chain in chains if chain]
    chains.sort(key=lambda chain: _rank(chain[0].code))
    causes = [*_attention(facts), *_requests(facts), *_merged(cause for chain in chains for cause in chain)]
    if not causes:
        causes.append(_nothing_open(facts))
    return _limited(causes, _engine(facts))


def explain_task(facts: Facts, index: int) -> list[Cause]:
    """Why the task does not move, nearest cause first; for one that has ended: how and why. Never empty."""
    if index in facts.ended:
        return [*_requests(facts, index), *_task_ended(facts, index)]
    causes = [*_attention(facts), *_requests(facts, index), *_task(facts, index)]
    return _limited(causes, _engine(facts))


def _limited(causes: list[Cause], engine: list[Cause]) -> list[Cause]:
    """The engine's part is never cut off."""
    return [*causes[: CAUSES_MAX - len(engine)], *engine]


def _rank(code: Code) -> int:
    return 0 if code in _PERSON else 2 if code in _ON_ITS_WAY else 1


def _merged(causes: Iterable[Cause]) -> list[Cause]:
    """One cause for all tasks that the same thing holds up, where the first of them stood."""
    found: dict[tuple[Code, Kind, str], Cause] = {}
    for cause in causes:
        key = (cause.code, cause.points_to.kind, "" if cause.points_to.kind == "task" else cause.points_to.id)
        known = found.get(key)
        if known is None:
            found[key] = cause
        elif cause.tasks[:1] and cause.tasks[0] not in known.tasks:
            names = (*known.tasks, *cause.tasks)[:NAMES_MAX]
            found[key] = known._replace(tasks=names, tasks_total=known.tasks_total + 1)
    return list(found.values())


# == the run as a whole ================================================================================================
def _run_ended(facts: Facts) -> Iterator[Cause]:
    run = _run(facts)
    never = "nothing: it has ended"
    if facts.status is RunStatus.COMPLETED:
        yield Cause(Code.RUN_COMPLETED, "The run has completed.", run, never, facts.changed_at)
    elif facts.status is RunStatus.CANCELLED:
        yield Cause(Code.RUN_CANCELLED, f"The run was cancelled{_by(facts.stop)}.", run, never, facts.changed_at)
    else:
        failed = next((i for i, task in facts.tasks.items() if task.status is TaskStatus.FAILED), None)
        name = f": task {facts.plan.tasks[failed].name} failed first" if failed is not None else ""
        yield Cause(Code.RUN_FAILED, f"The run has failed{name}.", run, "a replay of what failed", facts.changed_at)
        if failed is not None:
            yield from _task_ended(facts, failed)
        if facts.stop is not None and facts.stop.kind == "cancelled":
            text = f"The run was also cancelled{_by(facts.stop)}, so no replay can take it up again."
            yield Cause(Code.RUN_CANCELLED, text, run, never, facts.stop.at)


def _attention(facts: Facts) -> Iterator[Cause]:
    if facts.status is not RunStatus.NEEDS_ATTENTION:
        return
    stop, run = facts.stop, _run(facts)
    why = f": {stop.reason}" if stop is not None and stop.reason else ""
    acts = [
        Act(f"headrace release {facts.run_id}", f"POST /runs/{facts.run_id}/release"),
        Act(f"headrace cancel {facts.run_id}", f"POST /runs/{facts.run_id}/cancel"),
    ]
    points_to = run
    if stop is not None and stop.letter is not None:
        points_to = Object("dead_letter", str(stop.letter), f"/dead-letters/{stop.letter}")
        acts.insert(0, Act(f"headrace dead-letters {stop.letter}", f"GET /dead-letters/{stop.letter}"))
    text = f"The run stands aside until a person has looked: one of its events could not be decided{why}."
    since = stop.at if stop is not None else facts.changed_at
    yield Cause(Code.NEEDS_ATTENTION, text, points_to, "a person releases the run or cancels it", since, acts=acts)


def _requests(facts: Facts, index: int | None = None) -> Iterator[Cause]:
    """What was accepted and not applied: of the whole run, or what concerns one task."""
    held_back = facts.status is RunStatus.NEEDS_ATTENTION
    for request in facts.requests:
        if index is not None and request.task not in (None, index):
            continue
        tasks = () if request.task is None else (_name(facts, request.task),)
        what = _REQUEST.get(request.kind, f"a request ({request.kind})")
        at = f" of task {tasks[0]}" if tasks else ""
        who = f" by {request.actor}" if request.actor else ""
        waits = held_back and request.kind not in ("cancelled", "released")
        text = f"{what}{at}{who} was accepted {_ago(facts, request.created_at)} and is not applied yet"
        text += ", and stays so until the run is released." if waits else "."
        moves = "Released, then the request" if waits else "Requested: the run agent applies it; said again every 5 s"
        yield Cause(
            Code.REQUEST_NOT_APPLIED, text[0].upper() + text[1:], Object("request", str(request.inbox_id)), moves,
            request.created_at, tasks=tasks, tasks_total=len(tasks),
        )  # fmt: skip


_REQUEST: Final = {
    "cancelled": "the cancellation",
    "decided": "the decision",
    "replayed": "the replay",
    "released": "the release",
    "resolved": "the resolution",
}


def _nothing_open(facts: Facts) -> Cause:
    return Cause(
        Code.NOTHING_OPEN,
        f"The run is {facts.status}, but none of its tasks is open: what should move it is missing.",
        _run(facts), _MUST_NOT_BE, facts.changed_at,
        acts=[_DOCTOR, Act(f"headrace cancel {facts.run_id}", f"POST /runs/{facts.run_id}/cancel")],
    )  # fmt: skip


# == a task, by its status =============================================================================================
def _task(facts: Facts, index: int) -> list[Cause]:
    """The chain of one open task, without the engine."""
    task = facts.tasks.get(index)
    if task is None or (task.status is TaskStatus.PENDING and task.token == 0):
        return _untouched(facts, index)
    causes: list[Cause]
    match task.status:
        case TaskStatus.PENDING:
            causes = _backing_off(facts, task)
        case TaskStatus.QUEUED:
            causes = _listed(facts, task) if task.lister is not None else _on_the_way(facts, task)
            causes += _unknown_body(facts, task)
        case TaskStatus.RUNNING:
            causes = _running(facts, task)
        case TaskStatus.WAITING:
            return _waiting(facts, task)
        case TaskStatus.COMPLETED | TaskStatus.FAILED | TaskStatus.SKIPPED | TaskStatus.CANCELLED:
            return list(_task_ended(facts, index))
        case _:
            assert_never(task.status)
    return [*_looking_up(facts, task), *causes]


# -- PENDING
def _untouched(facts: Facts, index: int) -> list[Cause]:
    """It was never handed out: something that it needs has not ended."""
    unfinished = [need for need in facts.plan.tasks[index].needs if need not in facts.ended]
    if not unfinished:
        return [_join_missed(facts, index)]
    nearest, between = _nearest_open(facts, index)
    names = [_name(facts, need) for need in unfinished]
    more = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    text = f"Task {_name(facts, index)} needs {', '.join(names[:NAMES_MAX])}{more}, not completed yet"
    if between:
        text += f"; the nearest that is open is {_name(facts, nearest)}, through {_path(facts, between)}"
    first = unfinished[0] if between else nearest
    moves = f"{_name(facts, first)} completes" if len(names) == 1 else f"all {len(names)} complete"
    cause = Cause(Code.NEEDS_UNFINISHED, f"{text}.", _task_object(facts, first), moves, facts.changed_at)
    return [
        _of(facts, index, cause),
        *(_task(facts, nearest) if nearest in facts.tasks else _untouched(facts, nearest)),
    ]


def _nearest_open(facts: Facts, index: int) -> tuple[int, list[int]]:
    """The nearest task it waits for that has been handed out, or that should have been; and those in between."""
    came_from: dict[int, int] = {index: index}
    waiting = deque([index])
    while waiting:
        current = waiting.popleft()
        unfinished = [need for need in facts.plan.tasks[current].needs if need not in facts.ended]
        task = facts.tasks.get(current)
        if current != index and (not unfinished or (task is not None and task.token > 0)):
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
    text = f"All that task {_name(facts, index)} needs has ended, but it was neither handed out nor skipped."
    moves = _MUST_NOT_BE
    return _of(facts, index, Cause(Code.JOIN_MISSED, text, _run(facts), moves, facts.changed_at, acts=[_DOCTOR]))


def _backing_off(facts: Facts, task: TaskFacts) -> list[Cause]:
    name = _name(facts, task.task)
    if task.timer is None or task.due_at is None:
        return [_timer_missing(facts, task, "its next attempt"), *_unknown_body(facts, task)]
    tries = f"attempt {task.attempt} of {_tries_max(facts, task)} failed{_code(task.last_error)}"
    timer = Object("timer", _task_id(facts, task.task), f"/tasks/{_task_id(facts, task.task)}")
    if task.due_at > facts.now:
        text = f"Task {name} waits until its next attempt, {_in(facts, task.due_at)}: {tries}."
        cause = Cause(Code.BACKOFF, text, timer, "Due: the timer sweep says so", task.changed_at, task.due_at)
    else:
        said = f", said {_ago(facts, task.timer.said_at)}" if task.timer.said_at else ", and nobody has said so"
        text = f"The next attempt of task {name} was due {_ago(facts, task.due_at)}{said}: {tries}."
        moves = "Due: said by the timer sweep, applied by the run agent"
        cause = Cause(Code.TIMER_OVERDUE, text, timer, moves, task.due_at)
    return [_of(facts, task.task, cause), *_unknown_body(facts, task)]


def _timer_missing(facts: Facts, task: TaskFacts, what: str) -> Cause:
    text = f"Task {_name(facts, task.task)} counts on a timer for {what}, and there is none."
    cause = Cause(
        Code.TIMER_MISSING, text, _task_object(facts, task.task), "a sweep sets it again from the state",
        task.changed_at, acts=[_DOCTOR],
    )  # fmt: skip
    return _of(facts, task.task, cause)


# -- QUEUED
def _on_the_way(facts: Facts, task: TaskFacts) -> list[Cause]:
    """Handed out, and no session lists it."""
    engine, name = facts.engine, _name(facts, task.task)
    causes = []
    is_published = engine.ticked_at is not None and task.changed_at < engine.ticked_at
    gone_at = _log_gone_at(facts, task)
    if is_published and gone_at is not None:
        causes.append(_lost_command(facts, task, f"the log that it lay in was lost {_ago(facts, gone_at)}", gone_at))
    if is_published:
        return causes + (_no_taker(facts, task) or ([] if causes else [_not_received(facts, task)]))
    text = f"Task {name} was handed out {_ago(facts, task.changed_at)}, and its command is not known to be published: "
    text += f"the relay has not proved to have got so far{_for(facts, engine.ticked_at)}."
    relay = Object("relay", engine.relay.slot if engine.relay else "", "/health")
    cause = Cause(Code.NOT_PUBLISHED, text, relay, "the relay publishes the command", task.changed_at)
    is_stale = engine.ticked_at is None or _seconds(facts, engine.ticked_at) > LATE_SECONDS
    taker = _no_taker(facts, task)
    return [_of(facts, task.task, cause), *taker] if is_stale or not taker else [*taker, _of(facts, task.task, cause)]


def _log_gone_at(facts: Facts, task: TaskFacts) -> datetime | None:
    """When the log that the command was in was lost, if that was after it was handed out."""
    gap_at = facts.engine.relay.gap_at if facts.engine.relay else None
    since = facts.engine.logs.get(facts.plan.tasks[task.task].queue)
    return max((at for at in (gap_at, since) if at is not None and at > task.changed_at), default=None)


def _no_taker(facts: Facts, task: TaskFacts) -> list[Cause]:
    """Why no worker of the queue can take it now; empty when one could."""
    queue = facts.plan.tasks[task.task].queue
    workers = facts.queues.get(queue, Queue())
    ahead = facts.ahead.get(queue, 0)
    if not workers.sessions:
        text = f"No live worker serves queue {queue}."
        acts = [Act(f"HEADRACE_QUEUES={queue} headrace worker APP", "GET /workers")]
        cause = Cause(Code.NO_WORKER, text, _queue(queue), "a worker of the queue starts", task.changed_at, acts=acts)
    elif workers.draining == workers.sessions:
        text = f"All {workers.sessions} worker sessions of queue {queue} are draining: they take nothing new."
        moves = "another worker of the queue starts"
        cause = Cause(Code.WORKERS_DRAINING, text, _queue(queue), moves, task.changed_at)
    elif workers.draining + workers.full == workers.sessions:
        text = f"All workers of queue {queue} are full: {workers.held} commands at {workers.slots} worker slots."
        moves = "a body ends, or another worker of the queue starts"
        cause = Cause(Code.WORKERS_FULL, text, _queue(queue), moves, task.changed_at)
    else:
        return [_not_received(facts, task), _backlog(facts, task, ahead)] if ahead else []
    return [_of(facts, task.task, cause), *([_backlog(facts, task, ahead)] if ahead else [])]


def _backlog(facts: Facts, task: TaskFacts, ahead: int) -> Cause:
    queue = facts.plan.tasks[task.task].queue
    text = f"At least {ahead} older commands wait in queue {queue}."
    cause = Cause(Code.BACKLOG, text, _queue(queue), "the workers get to it", task.changed_at)
    return _of(facts, task.task, cause)


def _not_received(facts: Facts, task: TaskFacts) -> Cause:
    """Published, a worker has room, and none lists it."""
    queue = facts.plan.tasks[task.task].queue
    if facts.now - task.changed_at > 2 * facts.lease and not facts.ahead.get(queue):
        return _lost_command(facts, task, "workers with room do not list it", task.changed_at)
    text = f"The command of task {_name(facts, task.task)} was published {_ago(facts, task.changed_at)}; no session "
    text += f"of queue {queue} has listed it yet."
    moves = "a worker receives it, and lists it with its next heartbeat or answers"
    return _of(facts, task.task, Cause(Code.NOT_RECEIVED, text, _queue(queue), moves, task.changed_at))


def _lost_command(facts: Facts, task: TaskFacts, why: str, since: datetime) -> Cause:
    looked_at = facts.engine.passes.get("lost")
    looked = f"; looked for last {_ago(facts, looked_at)}" if looked_at else "; nobody has looked for it yet"
    pause = timedelta(seconds=max(0.5, facts.lease.total_seconds() / 6))
    next_look = max(looked_at + pause, facts.now) if looked_at else None
    text = f"The command of task {_name(facts, task.task)} is probably lost: {why}{looked}."
    moves = "Lost: the sweep says so once every worker has had a lease to list it; then it is handed out again"
    lost = Object("sweep", "lost", "/health")
    return _of(facts, task.task, Cause(Code.COMMAND_LOST, text, lost, moves, since, next_look))


def _listed(facts: Facts, task: TaskFacts) -> list[Cause]:
    """A session has received it, and has not said that its body began."""
    lister, spec = task.lister, facts.plan.tasks[task.task]
    assert lister is not None
    if gone := _gone(facts, task, lister):
        return [gone]
    where = f"session {_short(lister.session_id)} of worker {lister.worker}"
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
    cause = Cause(code, text, _session(lister), moves, task.changed_at, lister.expires_at)
    return [_of(facts, task.task, cause), *_drain(facts, task, lister)]


def _unknown_body(facts: Facts, task: TaskFacts) -> list[Cause]:
    if task.last_error != "UNKNOWN_TASK":
        return []
    spec = facts.plan.tasks[task.task]
    text = f"The last worker of queue {spec.queue} that got task {spec.name} does not know the body {spec.run}."
    moves = f"a worker that has {spec.run} takes it"
    acts = [Act("headrace worker APP", "GET /workers")]
    return [
        _of(facts, task.task, Cause(Code.BODY_UNKNOWN, text, _queue(spec.queue), moves, task.changed_at, acts=acts))
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
    text = f"The time-out of task {_name(facts, task.task)} was over {_ago(facts, due_at)}, and its attempt has not "
    text += "ended."
    timer = Object("timer", _task_id(facts, task.task), f"/tasks/{_task_id(facts, task.task)}")
    moves = "Due: said by the timer sweep, applied by the run agent; the holder is told to stop"
    return _of(facts, task.task, Cause(Code.TIMEOUT_OVERDUE, text, timer, moves, due_at))


def _held(facts: Facts, task: TaskFacts) -> list[Cause]:
    """By whom; or by nobody that lives."""
    name, lister, owner = _name(facts, task.task), task.lister, task.owner
    lost = None if lister is None else _gone(facts, task, lister)
    if lister is not None and lost is None:
        return [_runs(facts, task, lister), *_drain(facts, task, lister)]
    if owner is None and lost is not None:
        return [lost]
    if owner is None:
        who = f"session {_short(task.session_id)}, which is not known" if task.session_id else "nobody"
        text = f"Task {name} is said to run with {who}."
        unknown = Object("session", str(task.session_id or ""), "/workers")
        return [_of(facts, task.task, Cause(Code.SESSION_UNKNOWN, text, unknown, _WILL_SAY_LOST, task.changed_at))]
    if gone := _gone(facts, task, owner):
        return [gone]
    if facts.now - task.changed_at <= facts.lease:
        return [_runs(facts, task, owner), *_drain(facts, task, owner)]
    text = f"Session {_short(owner.session_id)} of worker {owner.worker} lives, but no longer lists task {name}."
    return [_of(facts, task.task, Cause(Code.NOT_LISTED, text, _session(owner), _WILL_SAY_LOST, owner.renewed_at))]


def _runs(facts: Facts, task: TaskFacts, session: Session) -> Cause:
    what = "its lookup" if task.lookups else f"attempt {task.attempt} of {_tries_max(facts, task)}"
    text = f"Task {_name(facts, task.task)} runs: {what}, begun "
    text += f"{_ago(facts, task.changed_at)}, in session {_short(session.session_id)} of worker {session.worker}"
    text += f", whose lease ends {_in(facts, session.expires_at)}"
    text += f", the time-out {_in(facts, task.due_at)}" if task.due_at else ""
    text += f"; it says {task.progress[:200]}" if task.progress else ""
    moves = "Succeeded, Failed or Returned of that worker"
    until = task.due_at if task.due_at and task.due_at > facts.now else None
    return _of(facts, task.task, Cause(Code.RUNNING, f"{text}.", _session(session), moves, task.changed_at, until))


def _gone(facts: Facts, task: TaskFacts, session: Session) -> Cause | None:
    """None while the session's lease runs."""
    name, who = _name(facts, task.task), f"Session {_short(session.session_id)} of worker {session.worker}"
    if session.ended_at is not None:
        text = f"{who} ended {_ago(facts, session.ended_at)} with task {name} in its hands."
        cause = Cause(Code.SESSION_ENDED, text, _session(session), _WILL_SAY_LOST, session.ended_at)
    elif session.expires_at <= facts.now:
        text = f"The lease of {who[0].lower()}{who[1:]}, which has task {name}, ran out "
        text += f"{_ago(facts, session.expires_at)}; its last heartbeat is from {_ago(facts, session.renewed_at)}."
        cause = Cause(Code.SESSION_EXPIRED, text, _session(session), _WILL_SAY_LOST, session.expires_at)
    else:
        return None
    return _of(facts, task.task, cause)


def _drain(facts: Facts, task: TaskFacts, session: Session) -> list[Cause]:
    if not session.draining:
        return []
    text = f"Worker {session.worker} is draining: what does not end in time, it hands back."
    cause = Cause(Code.WORKER_DRAINING, text, _session(session), "Succeeded or Returned of that worker", None)
    return [_of(facts, task.task, cause)]


def _looking_up(facts: Facts, task: TaskFacts) -> list[Cause]:
    """An attempt ended without anybody knowing whether its effect happened; what it was is kept as the error."""
    spec = facts.plan.tasks[task.task]
    if not task.lookups:
        return []
    why = task.error.message or task.error.code if task.error else "nobody knows why"
    text = f"Task {spec.name} ended without a known outcome ({why}); {spec.lookup} is asked what became of its effect."
    moves = f"{spec.lookup} answers: it happened, it did not, or unknown"
    return [_of(facts, task.task, Cause(Code.LOOKING_UP, text, _task_object(facts, task.task), moves, task.changed_at))]


# -- WAITING
def _waiting(facts: Facts, task: TaskFacts) -> list[Cause]:
    if task.error is not None:
        return [_of(facts, task.task, _parked(facts, task, task.error))]
    question = task.question
    name = _name(facts, task.task)
    if question is None or question.status == "cancelled":
        text = f"Task {name} waits for an approval, and nobody is asked."
        this = _task_object(facts, task.task)
        cause = Cause(Code.APPROVAL_MISSING, text, this, _MUST_NOT_BE, task.changed_at, acts=[_DOCTOR])
    elif question.status != "waiting":
        who = f" by {question.decided_by}" if question.decided_by else ""
        text = f"Task {name} was {question.status}{who} {_ago(facts, question.decided_at)}; the run has not moved yet."
        cause = _decision(facts, task, "decided", text, _approval(question), question.decided_at)
    elif question.expires_at is not None and question.expires_at <= facts.now:
        text = f"Nobody answered the approval of task {name}; it expired {_ago(facts, question.expires_at)}."
        moves = "Decided: the approval sweep decides as `on_expiry` says"
        cause = Cause(Code.APPROVAL_EXPIRED, text, _approval(question), moves, question.expires_at)
    else:
        cause = _asked(facts, name, question)
    return [_of(facts, task.task, cause)]


def _asked(facts: Facts, name: str, question: Question) -> Cause:
    who = ", ".join(question.approvers) or "anybody"
    until = f" and expires {_in(facts, question.expires_at)}" if question.expires_at else ""
    text = f"Task {name} waits for a decision: it was asked of {who} {_ago(facts, question.asked_at)}{until}."
    acts = [
        Act(f"headrace {verb} {facts.run_id} --task {name}", f"POST /approvals/{question.approval_id}/{verb}")
        for verb in ("approve", "reject")
    ]
    moves = "Decided: one of them approves or rejects"
    return Cause(Code.APPROVAL_OPEN, text, _approval(question), moves, question.asked_at, question.expires_at, acts)


def _decision(facts: Facts, task: TaskFacts, kind: str, text: str, points_to: Object, at: datetime | None) -> Cause:
    """A person has decided; a request carries that to the run."""
    if any(request.kind == kind and request.task in (None, task.task) for request in facts.requests):
        return Cause(Code.DECISION_NOT_APPLIED, text, points_to, _DECIDED, at)
    text = f"{text[:-1]}, and no request carries it there."
    return Cause(Code.DECISION_NOT_APPLIED, text, points_to, _MUST_NOT_BE, at, acts=[_DOCTOR])


def _parked(facts: Facts, task: TaskFacts, error: Failure) -> Cause:
    name, task_id, row = _name(facts, task.task), _task_id(facts, task.task), task.parked
    this = Object("parked_task", task_id, "/parked-tasks")
    text = f"Attempt {task.attempt} of task {name} ended without a known outcome: a person must say what became of its "
    text += f"effect ({error.message or error.code})."
    if row is None:
        text = f"{text[:-1]}, but it is not among the parked tasks."
        return Cause(Code.PARKED_MISSING, text, this, _MUST_NOT_BE, task.changed_at, acts=[_DOCTOR])
    if row.resolved_at is not None:
        text = f"What became of the effect of task {name} was said by {row.resolved_by or 'somebody'} "
        text += f"{_ago(facts, row.resolved_at)}; the run has not moved yet."
        return _decision(facts, task, "resolved", text, this, row.resolved_at)
    acts = [
        Act(
            f"headrace resolve {facts.run_id} {name} --{flag}",
            f'POST /tasks/{task_id}/resolve {{"outcome": "{outcome}"}}',
        )
        for flag, outcome in (("happened", "happened"), ("did-not", "did_not_happen"), ("fail", "fail"))
    ]
    moves = "Resolved: it happened, it did not happen, or it fails"
    return Cause(Code.PARKED, text, this, moves, row.parked_at, acts=acts)


# -- ended
def _task_ended(facts: Facts, index: int) -> Iterator[Cause]:
    task, name, this = facts.tasks.get(index), _name(facts, index), _task_object(facts, index)
    at = task.changed_at if task else facts.changed_at
    status = task.status if task else None
    never = "nothing: it has ended"
    if status is TaskStatus.FAILED and task is not None:
        yield _failed(facts, task)
    elif status is TaskStatus.SKIPPED and task is not None:
        code = task.error.code if task.error else ""
        why = f": {task.error.message}" if task.error and task.error.message else ""
        yield _of(facts, index, Cause(Code.TASK_SKIPPED, f"Task {name} was skipped{why}.", this, never, at))
        if code.startswith("UPSTREAM"):
            failed = [t for i, t in facts.tasks.items() if i != index and t.status is TaskStatus.FAILED]
            yield from (_failed(facts, each) for each in failed[:1])
    elif status is TaskStatus.CANCELLED:
        text = f"Task {name} was cancelled with its run{_by(facts.stop)}."
        yield _of(facts, index, Cause(Code.TASK_CANCELLED, text, this, never, at))
    else:
        yield _of(facts, index, Cause(Code.TASK_COMPLETED, f"Task {name} has completed.", this, never, at))
    if task is not None and task.lister is not None and _gone(facts, task, task.lister) is None:
        text = (
            f"Session {_short(task.lister.session_id)} of worker {task.lister.worker} still lists it; it was told to "
        )
        yield _of(facts, index, Cause(
            Code.STILL_HELD, f"{text}stop.", _session(task.lister), "its next heartbeat", task.lister.renewed_at
        ))  # fmt: skip


def _failed(facts: Facts, task: TaskFacts) -> Cause:
    why = f": {task.error.code} {task.error.message}".rstrip() if task.error else ""
    text = f"Task {_name(facts, task.task)} failed at attempt {task.attempt} of {_tries_max(facts, task)}{why}."
    points_to, acts, moves = _task_object(facts, task.task), [], "nothing: it has ended"
    if task.letter is not None:
        letter = task.letter.dead_letter_id
        points_to = Object("dead_letter", str(letter), f"/dead-letters/{letter}")
        text = f"{text[:-1]}; its dead letter is {task.letter.status}."
        if task.letter.status == "parked":
            moves = "Replayed: a person replays its dead letter"
            acts = [Act(f"headrace replay {letter}", f"POST /dead-letters/{letter}/replay")]
            acts.append(Act(f"headrace discard {letter} --reason WHY", f"POST /dead-letters/{letter}/discard"))
    return _of(facts, task.task, Cause(Code.TASK_FAILED, text, points_to, moves, task.changed_at, acts=acts))


# == the engine ========================================================================================================
def _engine(facts: Facts) -> list[Cause]:
    """What is wrong with the parts that carry events and commands, as far as Postgres shows it."""
    return [*_streams(facts), *_relay(facts), *_partition(facts)]


def _streams(facts: Facts) -> Iterator[Cause]:
    passes = {name: at for name, at in facts.engine.passes.items() if name not in SLOW_SWEEPS}
    late = {name for name, at in passes.items() if _seconds(facts, at) > SWEEP_SECONDS}
    if len(late) == len(passes):
        at = max(passes.values(), default=None)
        text = f"No sweep has passed{_for(facts, at)}: no streams process works."
        moves = "a streams process starts"
        acts = [Act("headrace doctor", "GET /health"), Act("python -m streams", "GET /doctor")]
        yield Cause(Code.STREAMS_AWAY, text, Object("sweep", "", "/health"), moves, at, acts=acts)
        return
    if late and late == KAFKA_SWEEPS & passes.keys():
        at = min(passes[name] for name in late)
        text = f"Kafka has not answered the sweeps{_for(facts, at)}."
        yield Cause(Code.KAFKA_AWAY, text, Object("kafka", "", "/health"), "Kafka answers again", at, acts=[_DOCTOR])
        return
    for name in sorted(late):
        text = f"The sweep of {name} last passed {_ago(facts, passes[name])}."
        yield Cause(Code.SWEEP_LATE, text, Object("sweep", name, "/health"), "the sweep passes again", passes[name])


def _relay(facts: Facts) -> Iterator[Cause]:
    engine, relay = facts.engine, facts.engine.relay
    if relay is None:
        text = "No relay has ever worked here: nothing that is decided reaches Kafka."
        yield Cause(Code.RELAY_AWAY, text, Object("relay", "", "/health"), "a relay starts", acts=[_START_RELAY])
        return
    this, slot = Object("relay", relay.owner, "/health"), Object("slot", relay.slot, "/health")
    if not relay.slot_is_there or relay.wal_status == "lost":
        text = f"The relay's replication slot {relay.slot} is {'lost' if relay.slot_is_there else 'missing'}."
        yield Cause(Code.SLOT_LOST, text, slot, "the relay makes it anew, and a sweep hands out again what is open")
    if _seconds(facts, relay.renewed_at) > RELAY_SECONDS:
        at = None if relay.renewed_at.year <= 1970 else relay.renewed_at
        text = f"No relay works: {relay.owner} was last heard of {_ago(facts, at)}." if at else (
            f"No relay works: {relay.owner} has stopped in order, and no other one has taken over.")  # fmt: skip
        yield Cause(Code.RELAY_AWAY, text, this, "a relay starts", at, acts=[_START_RELAY])
    elif relay.lag_bytes > LAG_BYTES:
        text = f"The relay is {relay.lag_bytes / 1_000_000:.0f} MB of the database's log behind."
        yield Cause(Code.RELAY_BEHIND, text, slot, "it catches up", relay.renewed_at)
    if engine.ticked_at is None or _seconds(facts, engine.ticked_at) > LATE_SECONDS + facts.lease.total_seconds() / 10:
        text = f"Nothing is known to have gone through relay, Kafka and session agent{_for(facts, engine.ticked_at)}: "
        text += "sessions and lost commands are not judged meanwhile."
        yield Cause(Code.TICKS_LATE, text, this, "a tick arrives at the session agent", engine.ticked_at)


def _partition(facts: Facts) -> Iterator[Cause]:
    """A run agent shows that it works only by what it applies."""
    engine = facts.engine
    this = Object("partition", str(engine.partition), "/health")
    if engine.owner is None:
        text = f"Nobody has ever read partition {engine.partition} of the events, where this run's are."
        yield Cause(Code.PARTITION_UNOWNED, text, this, "a streams process takes it", acts=[_DOCTOR])
        return
    said = [request.created_at for request in facts.requests if facts.status is not RunStatus.NEEDS_ATTENTION]
    overdue = [t.timer.due_at for t in facts.tasks.values() if t.timer is not None and t.timer.said_at is not None]
    unheard = min((at for at in (*said, *overdue) if _seconds(facts, at) > LATE_SECONDS), default=None)
    if unheard is not None:
        text = f"Process {engine.owner} reads partition {engine.partition} of the events, and has not applied what was "
        text += f"said {_ago(facts, unheard)}."
        moves = "it goes on, or another streams process takes the partition"
        yield Cause(Code.PARTITION_SILENT, text, this, moves, unheard, acts=[_DOCTOR])


# == words =============================================================================================================
_MUST_NOT_BE: Final = "nothing: this must not be; `headrace doctor` has more"
_DOCTOR: Final = Act("headrace doctor", "GET /doctor")
_START_RELAY: Final = Act("python -m connectors", "GET /health")
_DECIDED: Final = "Decided, or Resolved: the run agent applies what was said"
_WILL_SAY_LOST: Final = "Lost: a sweep says so, and the task is handed out again, retried or looked up"


def _of(facts: Facts, index: int, cause: Cause) -> Cause:
    """The cause, as one that holds up this task."""
    return cause._replace(tasks=(_name(facts, index),), tasks_total=1)


def _name(facts: Facts, index: int) -> str:
    return facts.plan.tasks[index].name if 0 <= index < len(facts.plan.tasks) else f"#{index}"


def _path(facts: Facts, between: Sequence[int]) -> str:
    names = [_name(facts, index) for index in between]
    return ", ".join(names if len(names) <= NAMES_MAX else [*names[:2], f"{len(names) - 3} more", names[-1]])


def _task_id(facts: Facts, index: int) -> str:
    return f"{facts.run_id}.{_name(facts, index)}"


def _task_object(facts: Facts, index: int) -> Object:
    return Object("task", _task_id(facts, index), f"/tasks/{_task_id(facts, index)}")


def _run(facts: Facts) -> Object:
    return Object("run", str(facts.run_id), f"/runs/{facts.run_id}")


def _session(session: Session) -> Object:
    return Object("session", str(session.session_id), "/workers")


def _queue(queue: str) -> Object:
    return Object("queue", queue, "/workers")


def _approval(question: Question) -> Object:
    return Object("approval", str(question.approval_id), f"/approvals/{question.approval_id}")


def _short(session_id: UUID | None) -> str:
    return str(session_id)[-8:]


def _tries_max(facts: Facts, task: TaskFacts) -> int:
    return facts.plan.tasks[task.task].retry.attempts + task.retries_from


def _code(code: str | None) -> str:
    return f" ({code})" if code else ""


def _by(stop: Stop | None) -> str:
    if stop is None:
        return ""
    return (f" by {stop.actor}" if stop.actor else "") + (f": {stop.reason}" if stop.reason else "")


def _seconds(facts: Facts, at: datetime) -> float:
    return (facts.now - at).total_seconds()


def _ago(facts: Facts, at: datetime | None) -> str:
    return "ever" if at is None else f"{_span(max(0.0, _seconds(facts, at)))} ago"


def _for(facts: Facts, at: datetime | None) -> str:
    return " as long as anybody remembers" if at is None else f" for {_span(max(0.0, _seconds(facts, at)))}"


def _in(facts: Facts, at: datetime) -> str:
    return f"in {_span((at - facts.now).total_seconds())}" if at > facts.now else _ago(facts, at)


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3_600, "hours"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s"
