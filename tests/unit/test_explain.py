"""Every state that can be stored has a cause, and the nearest one comes first."""

import itertools
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from typer.testing import CliRunner

from headrace.cli import MODULES, app, command, load_commands
from headrace.cli.api import Api
from headrace.client import Client
from headrace.machine import Plan, RunStatus, TaskStatus
from headrace.machine.place import compensation_of, is_compensation
from headrace.machine.plan import ApprovalPlan, ChildPlan, Join, SignalPlan, TaskPlan
from headrace.machine.status import RUN_TERMINAL, TERMINAL
from state.explain import (
    CAUSES_MAX,
    Ballot,
    Cause,
    Child,
    Code,
    Engine,
    Facts,
    Failure,
    Holder,
    InLine,
    Items,
    Letter,
    Listening,
    NextStep,
    Parked,
    Pause,
    PermitFacts,
    PoolFacts,
    Question,
    Queue,
    Relay,
    Request,
    Session,
    Stop,
    TaskFacts,
    Timer,
    explain_run,
    explain_task,
)

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
RUN_ID = UUID(int=7)
ID = UUID(int=9)
LEASE = timedelta(seconds=10)
FUTURE = NOW + LEASE


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


UNDO = TaskPlan(1, "task.compensate", run="t.undo", queue="mail")
PLAN = Plan(
    "w",
    [
        TaskPlan(0, "first", run="t.first"),
        TaskPlan(
            1, "task", run="t.task", needs=(0,), queue="mail", effect="reconcile", lookup="t.look", compensation=UNDO
        ),
        TaskPlan(2, "plain", run="t.plain", queue="mail", approval=ApprovalPlan("ok?", ("lead",), None, "fail")),
        TaskPlan(3, "last", run="t.last", needs=(1, 2), compensation=UNDO),
        TaskPlan(4, "news", run=None, needs=(0,), signal=SignalPlan("paid")),
        TaskPlan(5, "kid", run=None, needs=(0,), child=ChildPlan("other")),
        TaskPlan(6, "free", run=None, needs=(0,), child=ChildPlan("other", None, False, False)),
    ],
)
CLAIMS, PLAIN, NEWS, KID, FREE = 1, 2, 4, 5, 6

OPEN = Child(ID, "other", "running", ago(5))
ENDED = OPEN._replace(status="failed", ended_at=ago(1))
LIVE = Session(ID, "box/1", ago(1), NOW + LEASE, slots=4)
SESSIONS = {
    "none": None,
    "live": LIVE,
    "full": LIVE._replace(held=5),
    "draining": LIVE._replace(draining=True),
    "expired": LIVE._replace(expires_at=ago(3)),
    "ended": LIVE._replace(ended_at=ago(3)),
}
RELAY = Relay("box/2", ago(1), "headrace", slot_is_there=True, wal_status="reserved", lag_bytes=0)
FINE: dict[str, datetime] = dict.fromkeys(("timers", "sessions", "lost", "requests", "approvals", "topics"), ago(1))
WELL = Engine(3, RELAY, ago(2), FINE, "box/3", ago(600), {"mail": ago(10_000), "default": ago(10_000)})
ENGINES = {
    "well": WELL,
    "never was": Engine(3),
    "relay away": WELL._replace(relay=RELAY._replace(renewed_at=ago(60)), ticked_at=ago(60)),
    "relay stopped": WELL._replace(relay=RELAY._replace(renewed_at=datetime(1970, 1, 1, tzinfo=UTC))),
    "relay behind": WELL._replace(relay=RELAY._replace(lag_bytes=10**9), ticked_at=ago(300)),
    "slot missing": WELL._replace(relay=RELAY._replace(slot_is_there=False)),
    "slot lost": WELL._replace(relay=RELAY._replace(wal_status="lost", gap_at=ago(20))),
    "streams away": WELL._replace(passes=dict.fromkeys(FINE, ago(100))),
    "kafka away": WELL._replace(passes=FINE | {"lost": ago(60), "topics": ago(60)}),
    "sweep late": WELL._replace(passes=FINE | {"timers": ago(60)}),
    "log made anew": WELL._replace(logs={"mail": ago(20)}),
}
QUEUES: dict[str, dict[str, Queue]] = {
    "none": {},
    "draining": {"mail": Queue(2, draining=2, slots=8, held=1)},
    "full": {"mail": Queue(2, draining=1, full=1, slots=8, held=9)},
    "room": {"mail": Queue(2, full=1, slots=8, held=5)},
}
REQUESTS = {
    "none": [],
    "cancel": [Request(ID, "cancelled", None, "ana", ago(1))],
    "decision": [Request(ID, "decided", CLAIMS, "ana", ago(60))],
    "resolution": [Request(ID, "resolved", CLAIMS, "ana", ago(60))],
}


def facts(task: TaskFacts | None, status: RunStatus = RunStatus.RUNNING, **given: Any) -> Facts:
    """A run whose task `first` has completed and whose task under test is as given."""
    tasks = {} if task is None else {task.task: task}
    ended = frozenset({0, *(index for index, each in tasks.items() if each.status in TERMINAL)})
    made = Facts(NOW, RUN_ID, PLAN, status, ago(50), WELL, LEASE, ended, tasks, len(tasks), queues=QUEUES["room"])
    return made._replace(**given)


def task(status: TaskStatus, **given: Any) -> TaskFacts:
    made = TaskFacts(CLAIMS, status, ago(5), attempt=1, token=2, owner=None)
    return made._replace(**given)


# == totality ==========================================================================================================
def pending() -> Iterator[TaskFacts]:
    timers = (None, Timer(ago(30)), Timer(ago(30), ago(20)))
    dues = (None, ago(30), NOW + LEASE)
    for due_at, timer, error, lookups in itertools.product(dues, timers, (None, "ERROR", "UNKNOWN_TASK"), (0, 1)):
        yield task(TaskStatus.PENDING, due_at=due_at, timer=timer, last_error=error, lookups=lookups)
    yield task(TaskStatus.PENDING, token=0, attempt=0)
    yield task(TaskStatus.PENDING, token=0, attempt=0, withheld=True)
    yield task(TaskStatus.PENDING, withheld=True)
    yield from limited(TaskStatus.PENDING)
    for due_at, timer in itertools.product((FUTURE, ago(3)), (None, Timer(ago(3)))):  # between two rounds
        yield task(TaskStatus.PENDING, due_at=due_at, timer=timer, rounds=1, retries_from=1)


def limited(status: TaskStatus, **given: Any) -> Iterator[TaskFacts]:
    """With a deadline, and with what a timer of its hand-out is for in this state."""
    timers = (None, Timer(ago(3)), Timer(ago(3), ago(2)))
    for at, timer in itertools.product((FUTURE, ago(3)), timers):
        yield task(status, deadline_at=at, deadline_timer=timer, **given)
        yield task(status, due_at=at, timer=timer, **given)


def queued() -> Iterator[TaskFacts]:
    for lister, seconds, error, lookups, index in itertools.product(
        SESSIONS.values(), (1, 30), (None, "UNKNOWN_TASK"), (0, 1), (CLAIMS, PLAIN)
    ):
        yield task(
            TaskStatus.QUEUED, task=index, lister=lister, changed_at=ago(seconds), last_error=error, lookups=lookups
        )
    yield from limited(TaskStatus.QUEUED, lookups=1)  # which leaves it out of what is told with every surrounding


def running() -> Iterator[TaskFacts]:
    yield from limited(TaskStatus.RUNNING, owner=LIVE, session_id=ID)
    for owner, lister, due_at, timer, seconds in itertools.product(
        SESSIONS.values(), SESSIONS.values(), (None, ago(30), NOW + LEASE), (None, Timer(ago(30), ago(20))), (1, 30)
    ):
        yield task(
            TaskStatus.RUNNING, owner=owner, lister=lister, session_id=ID, due_at=due_at, timer=timer,
            changed_at=ago(seconds), progress='{"done": 3}',
        )  # fmt: skip
    yield task(TaskStatus.RUNNING, session_id=None)


def waiting() -> Iterator[TaskFacts]:
    yield from limited(TaskStatus.WAITING)
    questions = [
        None,
        Question(ID, "waiting", ["lead"], ago(9)),
        Question(ID, "waiting", [], ago(9), expires_at=NOW + LEASE),
        Question(ID, "waiting", ["lead"], ago(9), expires_at=ago(1)),
        *(
            Question(ID, s, ["lead"], ago(9), decided_at=ago(1))
            for s in ("approved", "rejected", "expired", "cancelled")
        ),
    ]
    parked = (None, Parked(ago(5)), Parked(ago(5), ago(1), "ana"))
    for question, row, error in itertools.product(questions, parked, (None, Failure("AMBIGUOUS"))):
        yield task(TaskStatus.WAITING, question=question, parked=row, error=error)
    for due_at, timer in itertools.product((FUTURE, ago(3)), (None, Timer(ago(3)), Timer(ago(3), ago(2)))):
        yield task(TaskStatus.WAITING, due_at=due_at, timer=timer)
    timers = ((None, None), (FUTURE, None), (FUTURE, Timer(FUTURE)), (ago(3), None), (ago(3), Timer(ago(3))))
    for (due_at, timer), key, row in itertools.product(timers, (None, "a"), (False, True)):
        listening = Listening("paid", key, ago(5)) if row else None
        yield task(TaskStatus.WAITING, task=NEWS, due_at=due_at, timer=timer, listening=listening)
    statuses = ("asked", "running", "paused", "refused")
    children = [None, *(Child(ID, "other", status, ago(5)) for status in statuses), ENDED]
    for (due_at, timer), index, child in itertools.product(timers, (KID, FREE), children):
        yield task(TaskStatus.WAITING, task=index, due_at=due_at, timer=timer, child=child)
    yield task(TaskStatus.WAITING, items=Items(400, 320, 300, 3))
    yield task(TaskStatus.WAITING, items=Items(3, 3, 3, 0))
    yield task(TaskStatus.WAITING, pool="db")


def ended() -> Iterator[TaskFacts]:
    errors = (None, Failure("CONDITION_FALSE", "no"), Failure("UPSTREAM_FAILED", "no"), Failure("ERROR", "it broke"))
    letters = (None, *(Letter(ID, status) for status in ("parked", "replayed", "discarded")))
    for status, error, letter, lister in itertools.product(TERMINAL, errors, letters, SESSIONS.values()):
        yield task(status, error=error, letter=letter, lister=lister)


STATES = {
    TaskStatus.PENDING: pending,
    TaskStatus.QUEUED: queued,
    TaskStatus.RUNNING: running,
    TaskStatus.WAITING: waiting,
    **dict.fromkeys(TERMINAL, ended),
}
"""A status without its states fails the walk."""
OF_STATUS = {
    TaskStatus.PENDING: {"BACKOFF", "TIMER_OVERDUE", "TIMER_MISSING", "JOIN_MISSED", "NEEDS_UNFINISHED", "WITHHELD",
                         "BETWEEN_ROUNDS"},
    TaskStatus.QUEUED: {
        "QUEUE_PAUSED",
        "NOT_PUBLISHED", "NO_WORKER", "WORKERS_DRAINING", "WORKERS_FULL", "NOT_RECEIVED", "COMMAND_LOST", "IN_PREFETCH",
        "CLAIM_NOT_GRANTED", "RECEIVED", "SESSION_EXPIRED", "SESSION_ENDED",
    },
    TaskStatus.RUNNING: {
        "RUNNING", "TIMEOUT_OVERDUE", "TIMER_MISSING", "SESSION_EXPIRED", "SESSION_ENDED", "SESSION_UNKNOWN",
        "NOT_LISTED",
    },
    TaskStatus.WAITING: {
        "APPROVAL_OPEN", "APPROVAL_EXPIRED", "APPROVAL_MISSING", "DECISION_NOT_APPLIED", "PARKED", "PARKED_MISSING",
        "WAIT", "TIMER_OVERDUE", "TIMER_MISSING", "SIGNAL_AWAITED", "SIGNAL_WAIT_MISSING", "ITEMS_OPEN", "ITEMS_MISSED",
        "SLOT_AWAITED", "RATE_AWAITED", "SLOT_GRANTED", "POOL_NOT_SET", "SLOT_WAIT_MISSING",
        "CHILD_OPEN", "CHILD_NOT_STARTED", "CHILD_NOT_TOLD", "CHILD_MISSING",
    },
    TaskStatus.COMPLETED: {"TASK_COMPLETED"},
    TaskStatus.FAILED: {"TASK_FAILED"},
    TaskStatus.SKIPPED: {"TASK_SKIPPED"},
    TaskStatus.CANCELLED: {"TASK_CANCELLED"},
}  # fmt: skip
"""What the nearest cause of a task may be, once what concerns the whole run is set aside."""
OF_UNDONE = {Code.RUN_COMPENSATING, Code.COMPENSATION_LATER, Code.RUN_CANCELLING}
"""Of runs that undo what they did or clean up, which have walks of their own."""
OF_PERMITS = {"PERMIT_AWAITED", "PERMIT_GRANTED", "PERMIT_MISSING"}
WHOLE_RUN = {"NEEDS_ATTENTION", "REQUEST_NOT_APPLIED", "LOOKING_UP", "PAUSED", "TASK_PAUSED", *OF_PERMITS}
STOPS = (None, Stop("cancelled", ago(4), "ana", "enough"), Stop("isolated", ago(4), "", "KeyError", ID))
PERMITS = (
    PermitFacts(),
    PermitFacts("ada", 1, 1, [ID], 3, 4, ago(9)),
    PermitFacts("", 2, 5, [ID, RUN_ID], 1, 1, ago(9)),
    PermitFacts("ada", 1, 0, (), 1, 1, ago(9)),
    PermitFacts("ada", None, 7, [ID], 1, 1, ago(9)),
    PermitFacts("ada", 1, 1, [RUN_ID], 1, 0, ago(9), ago(1)),
)
PAUSES = (Pause(ago(30), "ana", "to look"), Pause(ago(20), of_workflow=True), Pause(ago(5), "ana", is_moving=True))


def every_facts() -> Iterator[Facts]:
    """All states of a task in runs of every status, each with two of the surroundings; a command with all of them."""
    around = [*itertools.product(ENGINES.values(), QUEUES.values(), REQUESTS.values(), ({}, {"mail": 3}), STOPS)]
    states = itertools.chain(pending(), queued(), running(), waiting(), ended(), (None,))
    for number, (state, status) in enumerate(itertools.product(states, RunStatus)):
        for step in range(2):
            engine, queues, requests, ahead, stop = around[(number * 31 + step * 509) % len(around)]
            pauses = PAUSES[number % 2 :] if status in (RunStatus.PAUSING, RunStatus.PAUSED) else ()
            yield facts(
                state,
                status,
                engine=engine,
                queues=queues,
                requests=requests,
                ahead=ahead,
                stop=stop,
                pauses=pauses,
                deadline_at=(None, FUTURE, ago(3))[number % 3],
            )
    for permit, pauses in itertools.product(PERMITS, ((), PAUSES[:1])):
        yield facts(
            task(TaskStatus.PENDING, token=0, withheld=True),
            RunStatus.PAUSED if pauses else RunStatus.WAITING,
            permit=permit,
            pauses=pauses,
        )
    for line, pools in itertools.product(LINES, POOLS):
        yield facts(task(TaskStatus.WAITING, pool="db"), in_line=line, pools=pools)
    plain = [state for state in queued() if not state.lookups and state.last_error is None]
    for state, engine, queues, ahead in itertools.product(plain, ENGINES.values(), QUEUES.values(), ({}, {"mail": 3})):
        yield facts(state, engine=engine, queues=queues, ahead=ahead)
    for state, status in itertools.product([*pending(), *queued(), *running(), *waiting(), None], OPEN_STATUSES):
        yield facts(state, status, pauses=(Pause(ago(60), "ana", "to look", task=CLAIMS),))
    for pause in (Pause(ago(60), "ana", "to look"), Pause(ago(60))):
        yield facts(task(TaskStatus.QUEUED), held={CLAIMS: pause})


OPEN_STATUSES = (RunStatus.RUNNING, RunStatus.WAITING)
LINES: tuple[dict[int, InLine], ...] = (
    {},
    {1: InLine(1, ago(9))},
    {1: InLine(4, ago(9))},
    {1: InLine(1, ago(9), ago(1))},
    {1: InLine(2, ago(9), None, "ada", 1, is_shared=True)},
    {1: InLine(3, ago(9), None, "", 0, is_shared=True)},
)
HOLDERS = [Holder(RUN_ID, "task", ago(30))]
POOLS: tuple[dict[str, PoolFacts], ...] = (
    {},
    *({"db": one} for one in (
        PoolFacts(1, None, 1, 4, HOLDERS), PoolFacts(9, None, 9, 4, HOLDERS), PoolFacts(0, None, 0, 4),
        PoolFacts(9, None, 1, 4, HOLDERS), PoolFacts(None, (10, 1.0), 1, 4, HOLDERS),
    )),
)  # fmt: skip


def every_undone() -> Iterator[Facts]:
    """Runs that undo what they did: that of `last`, then that of `task`."""
    first, second = compensation_of(3), compensation_of(CLAIMS)
    untouched = TaskFacts(second, TaskStatus.PENDING, ago(5), token=0)
    letters = [Letter(ID, status) for status in ("parked", "replayed", "discarded")]
    laters = [task(status, task=second, letter=letter) for status in TERMINAL for letter in (None, *letters)]
    now = [*queued(), *running(), task(TaskStatus.PENDING, due_at=FUTURE, timer=Timer(FUTURE)), *ended()]
    broken = task(TaskStatus.FAILED, letter=letters[0])
    for number, (one, status) in enumerate(itertools.product(now, RunStatus)):
        one = one._replace(task=first, lookups=0)
        other = laters[number % len(laters)] if one.status in TERMINAL else untouched
        shown = {CLAIMS: broken} if number % 2 else {}
        tasks = {**shown, first: one, second: other}
        over = {place for place, each in tasks.items() if each.status in TERMINAL}
        yield facts(None, status, tasks=tasks, ended=frozenset({0, 1, 2, 3, 4, *over}), stop=STOPS[number % 3])


def test_every_state_of_what_is_undone_has_causes():
    places = (CLAIMS, compensation_of(CLAIMS), compensation_of(3))
    seen: set[Code] = set()
    for of in every_undone():
        for index in places:
            check(explain_task(of, index), of)
        causes = explain_run(of)
        check(causes, of)
        seen |= {cause.code for cause in causes}
        acts = [act.cli for cause in causes for act in cause.acts]
        assert f"headrace cancel {RUN_ID}" not in acts
        assert f"headrace replay {ID}" not in acts or any(is_compensation(p) for p in of.ended)
    assert {"RUN_COMPENSATING", "COMPENSATION_LATER", "RUN_COMPENSATED", "RUN_COMPENSATION_FAILED"} <= seen


TIDY = Plan(
    "tidy",
    [
        TaskPlan(0, "a", run="t.a"),
        TaskPlan(1, "one", run="t.one", needs=(0,), queue="mail", join="finally"),
        TaskPlan(2, "two", run="t.two", needs=(1,), queue="mail", join="finally"),
    ],
)


def every_cancelled() -> Iterator[Facts]:
    """Runs that were cancelled, and clean up."""
    now = [*queued(), *running(), task(TaskStatus.PENDING, due_at=FUTURE, timer=Timer(FUTURE)), *ended()]
    stops = (*STOPS, Stop("due", ago(4)))
    for number, (one, status) in enumerate(itertools.product(now, RunStatus)):
        one = one._replace(task=1, lookups=0)
        over = {0, 1} if one.status in TERMINAL else {0}
        pauses = PAUSES[:1] if status in (RunStatus.PAUSING, RunStatus.PAUSED) else ()
        yield facts(None, status, plan=TIDY, tasks={1: one}, ended=frozenset(over), pauses=pauses,
                    stop=stops[number % 4], is_cancelled=True)  # fmt: skip


def test_every_state_of_what_cleans_up_has_causes():
    seen: set[Code] = set()
    for of in every_cancelled():
        for index in (1, 2):
            check(explain_task(of, index), of)
        causes = explain_run(of)
        check(causes, of)
        seen |= {cause.code for cause in causes}
        assert f"headrace cancel {RUN_ID}" not in [act.cli for cause in causes for act in cause.acts]
    assert {"RUN_CANCELLING", "RUN_CANCELLED", "RUN_FAILED"} <= seen


@pytest.mark.parametrize(
    ("stop", "why"),
    [
        (Stop("cancelled", ago(4), "ana", "enough"), "The run was cancelled by ana: enough"),
        (Stop("due", ago(4)), "The run had not ended by its deadline"),
    ],
)
def test_a_run_that_cleans_up_says_why_and_how_far_it_has_come(stop: Stop, why: str):
    tasks = {1: task(TaskStatus.RUNNING, task=1, owner=LIVE, lister=LIVE)}
    of = facts(None, RunStatus.CANCELLING, plan=TIDY, tasks=tasks, ended=frozenset({0}), stop=stop, is_cancelled=True)
    cause, *others = explain_run(of)
    assert (cause.code, cause.text) == ("RUN_CANCELLING", f"{why}; it cleans up, and 0 of 2 clean-ups have ended.")
    assert [act.cli for act in cause.acts] == [f"headrace terminate {RUN_ID}"]
    assert others[0].code == "RUNNING"
    assert explain_task(of, 2)[0].text == "Task two waits for the end of one, not ended yet."


@pytest.mark.parametrize("kind", ["cancelled", "terminated"])
def test_no_replay_is_offered_of_what_an_end_by_hand_has_closed(kind: str):
    """A clean-up comes back after a cancel; all else does not."""
    broken = {1: task(TaskStatus.FAILED, task=1, error=Failure("ERROR", "no"), letter=Letter(ID, "parked"))}
    ended = facts(None, RunStatus(kind), tasks=broken, ended=frozenset(range(7)), stop=Stop(kind, ago(4), "ana"))
    cleaned = facts(None, RunStatus.FAILED, plan=TIDY, tasks=broken, ended=frozenset(range(3)),
                    stop=Stop("cancelled", ago(4), "ana"), is_cancelled=True)  # fmt: skip
    for of, verbs in ((ended, ["discard"]), (cleaned, ["replay", "discard"])):
        (cause,) = [each for each in explain_task(of, 1) if each.code == "TASK_FAILED"]
        assert [act.api for act in cause.acts] == [f"POST /dead-letters/{ID}/{verb}" for verb in verbs]
        assert (f"its run was {kind}" in cause.moves) == (of is ended)


def test_what_is_undone_is_told_with_why_and_what_is_left():
    first, second = compensation_of(3), compensation_of(CLAIMS)
    tasks = {
        CLAIMS: task(TaskStatus.FAILED, error=Failure("ERROR", "no"), letter=Letter(ID, "parked")),
        first: task(TaskStatus.RUNNING, task=first, owner=LIVE, lister=LIVE),
        second: TaskFacts(second, TaskStatus.PENDING, ago(5), token=0),
    }
    of = facts(None, RunStatus.COMPENSATING, tasks=tasks, ended=frozenset({0, 1, 2, 3, 4}))
    cause, *others = explain_run(of)
    assert cause.text == (
        "The run has failed: task task failed first; what it did is being undone, and 0 of 2 compensations have ended."
    )
    assert [other.code for other in others[:2]] == ["RUNNING", "COMPENSATION_LATER"]
    later, *_ = explain_task(of, second)
    assert later.text == "Task task.compensate comes after last.compensate: what was done last is undone first."


COMMANDS = {name for names in MODULES.values() for name in names}


def check(causes: list[Cause], of: Facts) -> None:
    assert causes
    assert len(causes) <= CAUSES_MAX
    for cause in causes:
        assert cause.text[0].isupper() or not cause.text[0].isalpha(), cause
        assert cause.text.endswith("."), cause
        assert "unknown" not in cause.text.lower().replace("unknown_task", ""), cause
        assert cause.moves, cause
        assert len(cause.tasks) <= cause.tasks_total or not cause.tasks, cause
        if cause.points_to.kind not in ("request", "relay", "sweep", "kafka"):
            assert cause.points_to.link, cause
        for act in cause.acts:
            words = act.cli.split()
            assert "python" in words or words[words.index("headrace") + 1] in COMMANDS, cause
            assert act.api.split()[0] in ("GET", "POST", "PUT"), cause


def test_every_state_of_every_run_has_causes_and_the_first_fits_the_state():
    seen: set[Code] = set()
    walked = 0
    for of in every_facts():
        walked += 1
        for index in (CLAIMS, PLAIN, 3):
            causes = explain_task(of, index)
            check(causes, of)
            seen |= {cause.code for cause in causes}
            if index in of.tasks and of.tasks[index].token:
                nearest = next(cause.code for cause in causes if cause.code not in WHOLE_RUN)
                assert nearest in OF_STATUS[of.tasks[index].status], (of.tasks[index], causes)
        causes = explain_run(of)
        check(causes, of)
        seen |= {cause.code for cause in causes}
        if of.status in RUN_TERMINAL:
            assert f"RUN_{of.status.upper()}" in {cause.code for cause in causes}
        if of.status is RunStatus.NEEDS_ATTENTION:
            assert causes[0].code is Code.NEEDS_ATTENTION
        codes = {cause.code for cause in causes}
        assert (Code.PAUSED in codes) is any(pause.task is None for pause in of.pauses)
        assert (Code.TASK_PAUSED in codes) is any(pause.task is not None for pause in of.pauses)
    assert walked > 10_000
    assert seen | OF_UNDONE == set(Code), f"never said: {set(Code) - seen}"


def test_the_walk_knows_every_status():
    assert STATES.keys() == OF_STATUS.keys() == set(TaskStatus)


def test_every_code_is_documented():
    words = (Path(__file__).parents[2] / "docs" / "explain.md").read_text()
    assert [code for code in Code if f"`{code}`" not in words] == []


# == the nearest cause comes first =====================================================================================
HEARS = Listening("paid", "a", ago(5))
DUE = {"due_at": ago(30), "changed_at": ago(40)}
FIRST: list[tuple[str, TaskFacts, dict[str, Any], list[str]]] = [
    ("due later", task(TaskStatus.PENDING, due_at=FUTURE, timer=Timer(FUTURE)), {}, ["BACKOFF"]),
    ("due", task(TaskStatus.PENDING, timer=Timer(ago(3)), due_at=ago(3)), {}, ["TIMER_OVERDUE"]),
    ("said and not heard", task(TaskStatus.PENDING, timer=Timer(ago(30), ago(4)), **DUE), {},
     ["TIMER_OVERDUE", "PARTITION_SILENT"]),
    ("no timer", task(TaskStatus.PENDING, **DUE), {}, ["TIMER_MISSING"]),
    ("waits", task(TaskStatus.WAITING, due_at=FUTURE, timer=Timer(FUTURE)), {}, ["WAIT"]),
    ("wait over", task(TaskStatus.WAITING, due_at=ago(3), timer=Timer(ago(3))), {}, ["TIMER_OVERDUE"]),
    ("wait without timer", task(TaskStatus.WAITING, due_at=FUTURE), {}, ["TIMER_MISSING"]),
    ("listens", task(TaskStatus.WAITING, task=NEWS, listening=HEARS), {}, ["SIGNAL_AWAITED"]),
    ("listens for a time", task(TaskStatus.WAITING, task=NEWS, listening=HEARS, due_at=FUTURE, timer=Timer(FUTURE)), {},
     ["SIGNAL_AWAITED"]),
    ("listens in vain", task(TaskStatus.WAITING, task=NEWS, listening=HEARS, due_at=ago(3), timer=Timer(ago(3))), {},
     ["TIMER_OVERDUE", "SIGNAL_AWAITED"]),
    ("listens without timer", task(TaskStatus.WAITING, task=NEWS, listening=HEARS, due_at=FUTURE), {},
     ["TIMER_MISSING", "SIGNAL_AWAITED"]),
    ("listens without a row", task(TaskStatus.WAITING, task=NEWS), {}, ["SIGNAL_WAIT_MISSING"]),
    ("waits for a run", task(TaskStatus.WAITING, task=KID, child=OPEN._replace(status="paused")), {},
     ["CHILD_OPEN"]),
    ("waits for a run in vain", task(TaskStatus.WAITING, task=KID, child=OPEN,
                                     due_at=ago(3), timer=Timer(ago(3))), {}, ["TIMER_OVERDUE", "CHILD_OPEN"]),
    ("waits for a run that did not start", task(TaskStatus.WAITING, task=KID,
                                                child=OPEN._replace(status="asked")), {},
     ["CHILD_NOT_STARTED"]),
    ("waits for a run that has ended", task(TaskStatus.WAITING, task=KID, child=ENDED), {}, ["CHILD_NOT_TOLD"]),
    ("waits for a run that has begun", task(TaskStatus.WAITING, task=FREE,
                                            child=OPEN), {},
     ["CHILD_NOT_TOLD"]),
    ("waits for no run", task(TaskStatus.WAITING, task=KID), {}, ["CHILD_MISSING"]),
    ("unknown body", task(TaskStatus.PENDING, due_at=FUTURE, timer=Timer(FUTURE), last_error="UNKNOWN_TASK"), {},
     ["BACKOFF", "BODY_UNKNOWN"]),
    ("just handed out", task(TaskStatus.QUEUED, changed_at=ago(1)), {}, ["NOT_PUBLISHED"]),
    ("just handed out, no worker", task(TaskStatus.QUEUED, changed_at=ago(1)), {"queues": {}},
     ["NO_WORKER", "NOT_PUBLISHED"]),
    ("relay away", task(TaskStatus.QUEUED), {"engine": ENGINES["relay away"], "queues": {}},
     ["NOT_PUBLISHED", "NO_WORKER", "RELAY_AWAY", "TICKS_LATE"]),
    ("published", task(TaskStatus.QUEUED), {}, ["NOT_RECEIVED"]),
    ("kept back", task(TaskStatus.QUEUED), {"held": {CLAIMS: Pause(ago(60), "ana", "to look")}}, ["QUEUE_PAUSED"]),
    ("about to be let go", task(TaskStatus.QUEUED), {"held": {CLAIMS: Pause(ago(60))}}, ["QUEUE_PAUSED"]),
    ("published, no worker", task(TaskStatus.QUEUED), {"queues": {}}, ["NO_WORKER"]),
    ("published, all full", task(TaskStatus.QUEUED), {"queues": QUEUES["full"], "ahead": {"mail": 2}},
     ["WORKERS_FULL", "BACKLOG"]),
    ("published, backlog", task(TaskStatus.QUEUED, changed_at=ago(500)), {"ahead": {"mail": 2}},
     ["NOT_RECEIVED", "BACKLOG"]),
    ("published long ago", task(TaskStatus.QUEUED, changed_at=ago(500)), {}, ["COMMAND_LOST"]),
    ("log made anew", task(TaskStatus.QUEUED, changed_at=ago(25)), {"engine": ENGINES["log made anew"]},
     ["COMMAND_LOST"]),
    ("slot was lost", task(TaskStatus.QUEUED, changed_at=ago(25)), {"engine": ENGINES["slot lost"]},
     ["COMMAND_LOST", "SLOT_LOST"]),
    ("slot was lost before", task(TaskStatus.QUEUED, changed_at=ago(15)), {"engine": ENGINES["slot lost"]},
     ["NOT_RECEIVED", "SLOT_LOST"]),
    ("claimed", task(TaskStatus.QUEUED, lister=LIVE), {}, ["CLAIM_NOT_GRANTED"]),
    ("prefetched", task(TaskStatus.QUEUED, lister=SESSIONS["full"]), {}, ["IN_PREFETCH"]),
    ("prefetched by a dead one", task(TaskStatus.QUEUED, lister=SESSIONS["expired"]), {}, ["SESSION_EXPIRED"]),
    ("runs", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), {}, ["RUNNING"]),
    ("runs on a draining worker", task(TaskStatus.RUNNING, owner=LIVE, lister=SESSIONS["draining"]), {},
     ["RUNNING", "WORKER_DRAINING"]),
    ("just begun", task(TaskStatus.RUNNING, owner=LIVE), {}, ["RUNNING"]),
    ("not listed", task(TaskStatus.RUNNING, owner=LIVE, changed_at=ago(30)), {}, ["NOT_LISTED"]),
    ("lease over", task(TaskStatus.RUNNING, owner=SESSIONS["expired"], lister=SESSIONS["expired"]), {},
     ["SESSION_EXPIRED"]),
    ("session ended", task(TaskStatus.RUNNING, owner=SESSIONS["ended"]), {}, ["SESSION_ENDED"]),
    ("session forgotten", task(TaskStatus.RUNNING, session_id=ID), {}, ["SESSION_UNKNOWN"]),
    ("another session lists it", task(TaskStatus.RUNNING, owner=SESSIONS["ended"], lister=LIVE), {}, ["RUNNING"]),
    ("time-out over", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE, timer=Timer(ago(3)), due_at=ago(3)), {},
     ["TIMEOUT_OVERDUE", "RUNNING"]),
    ("time-out without timer", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE, due_at=FUTURE), {},
     ["RUNNING", "TIMER_MISSING"]),
    ("time-out over without timer", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE, due_at=ago(3)), {},
     ["TIMER_MISSING", "RUNNING"]),
    ("looked up", task(TaskStatus.QUEUED, lookups=1, error=Failure("TIMEOUT")), {}, ["LOOKING_UP", "NOT_RECEIVED"]),
    ("asked", task(TaskStatus.WAITING, question=Question(ID, "waiting", ["lead"], ago(9))), {}, ["APPROVAL_OPEN"]),
    ("nobody answered", task(TaskStatus.WAITING, question=Question(ID, "waiting", [], ago(9), ago(1))), {},
     ["APPROVAL_EXPIRED"]),
    ("decided", task(TaskStatus.WAITING, question=Question(ID, "approved", [], ago(9), None, ago(1))),
     {"requests": REQUESTS["decision"]}, ["REQUEST_NOT_APPLIED", "DECISION_NOT_APPLIED", "PARTITION_SILENT"]),
    ("works through a list", task(TaskStatus.WAITING, items=Items(400, 320, 300, 3)), {}, ["ITEMS_OPEN"]),
    ("no item is open", task(TaskStatus.WAITING, items=Items(3, 3, 3, 0)), {}, ["ITEMS_MISSED"]),
    ("in line", task(TaskStatus.WAITING, pool="db"), {"in_line": LINES[2], "pools": POOLS[1]}, ["SLOT_AWAITED"]),
    ("held back by a rate", task(TaskStatus.WAITING, pool="db"), {"in_line": LINES[1], "pools": POOLS[5]},
     ["RATE_AWAITED"]),
    ("granted", task(TaskStatus.WAITING, pool="db"), {"in_line": LINES[3], "pools": POOLS[1]}, ["SLOT_GRANTED"]),
    ("no pool", task(TaskStatus.WAITING, pool="db"), {"in_line": LINES[1]}, ["POOL_NOT_SET"]),
    ("not in line", task(TaskStatus.WAITING, pool="db"), {}, ["SLOT_WAIT_MISSING"]),
    ("nobody asked", task(TaskStatus.WAITING), {}, ["APPROVAL_MISSING"]),
    ("parked", task(TaskStatus.WAITING, error=Failure("AMBIGUOUS"), parked=Parked(ago(5))), {}, ["PARKED"]),
    ("resolved", task(TaskStatus.WAITING, error=Failure("AMBIGUOUS"), parked=Parked(ago(5), ago(1), "ana")),
     {"requests": REQUESTS["resolution"]}, ["REQUEST_NOT_APPLIED", "DECISION_NOT_APPLIED", "PARTITION_SILENT"]),
    ("parked without a row", task(TaskStatus.WAITING, error=Failure("AMBIGUOUS")), {}, ["PARKED_MISSING"]),
    ("cancelling", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), {"requests": REQUESTS["cancel"]},
     ["REQUEST_NOT_APPLIED", "RUNNING"]),
    ("kafka away", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), {"engine": ENGINES["kafka away"]},
     ["RUNNING", "KAFKA_AWAY"]),
    ("streams away", task(TaskStatus.PENDING, timer=Timer(ago(3)), due_at=ago(3)), {"engine": ENGINES["streams away"]},
     ["TIMER_OVERDUE", "STREAMS_AWAY"]),
    ("nobody reads", task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), {"engine": WELL._replace(owner=None)},
     ["RUNNING", "PARTITION_UNOWNED"]),
]  # fmt: skip


@pytest.mark.parametrize(("state", "given", "codes"), [row[1:] for row in FIRST], ids=[row[0] for row in FIRST])
def test_the_causes_of_a_task_stand_in_order(state: TaskFacts, given: dict[str, Any], codes: list[str]):
    assert [cause.code for cause in explain_task(facts(state, **given), state.task)] == codes


@pytest.mark.parametrize(("state", "given", "codes"), [row[1:] for row in FIRST], ids=[row[0] for row in FIRST])
def test_a_run_with_one_open_task_has_the_causes_of_that_task(
    state: TaskFacts, given: dict[str, Any], codes: list[str]
):
    assert [cause.code for cause in explain_run(facts(state, **given))] == codes


def test_a_task_that_needs_others_names_them_and_leads_to_the_nearest_open_one():
    of = facts(task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), ended=frozenset({0, PLAIN}))
    first, second = explain_task(of, 3)
    assert (first.code, first.points_to.id, first.tasks) == ("NEEDS_UNFINISHED", f"{RUN_ID}.task", ("last",))
    assert (second.code, second.tasks) == ("RUNNING", ("task",))


@pytest.mark.parametrize(
    ("join", "text", "moves"),
    [
        ("all", "Task last needs task, not completed yet.", "task completes"),
        ("any", "Task last needs any of task, not completed yet.", "task ends"),
        (2, "Task last needs 2 of 2 to complete; open are task, not completed yet.", "task ends"),
        ("always", "Task last waits for the end of task, not ended yet.", "task ends"),
        ("on_failure", "Task last runs if a need fails; it waits for the end of task, not ended yet.", "task ends"),
    ],
)
def test_a_task_says_what_its_join_asks(join: Join, text: str, moves: str):
    plan = Plan("w", [*PLAN.tasks[:3], TaskPlan(3, "last", run="t.last", needs=(1, 2), join=join)])
    of = facts(task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), ended=frozenset({0, PLAIN}))._replace(plan=plan)
    (first, *_) = explain_task(of, 3)
    assert (first.code, first.text, first.moves) == ("NEEDS_UNFINISHED", text, moves)


def test_a_chain_of_untouched_tasks_leads_to_its_open_end():
    chain = Plan("w", [TaskPlan(i, f"t{i}", run="x", needs=(i - 1,) if i else ()) for i in range(50)])
    end = TaskFacts(0, TaskStatus.WAITING, ago(5), question=Question(ID, "waiting", ["lead"], ago(9)))
    of = facts(None)._replace(plan=chain, ended=frozenset(), tasks={0: end})
    first, second = explain_task(of, 49)
    assert "needs t48" in first.text
    assert "t0, through t48, t47, 45 more, t1" in first.text
    assert second.code is Code.APPROVAL_OPEN


def test_a_join_that_nobody_acted_on_is_said():
    of = facts(None, ended=frozenset({0, CLAIMS, PLAIN}))
    assert [cause.code for cause in explain_task(of, 3)] == ["JOIN_MISSED"]
    assert [cause.code for cause in explain_run(of)] == ["NOTHING_OPEN"]


def test_what_waits_for_a_person_comes_before_what_moves_by_itself():
    runs = task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE)
    asked = task(TaskStatus.WAITING, task=PLAIN, question=Question(ID, "waiting", ["lead"], ago(9)))
    of = facts(None, tasks={CLAIMS: runs, PLAIN: asked})
    assert [cause.code for cause in explain_run(of)] == ["APPROVAL_OPEN", "RUNNING"]


def test_a_thousand_tasks_without_a_worker_are_one_cause():
    wide = Plan("w", [TaskPlan(i, f"t{i}", run="x", queue="mail") for i in range(1000)])
    of = facts(None, queues={})._replace(
        plan=wide, ended=frozenset(), tasks={i: TaskFacts(i, TaskStatus.QUEUED, ago(5)) for i in range(1000)}
    )
    (cause,) = explain_run(of)
    assert (cause.code, cause.tasks_total, cause.tasks) == ("NO_WORKER", 1000, ("t0", "t1", "t2", "t3", "t4"))


def test_a_failed_run_names_its_first_failed_task_and_its_dead_letter():
    failed = task(TaskStatus.FAILED, error=Failure("ERROR", "it broke"), letter=Letter(ID, "parked"))
    first, second = explain_run(facts(failed, RunStatus.FAILED))
    assert (first.code, first.text) == ("RUN_FAILED", "The run has failed: task task failed first.")
    assert (second.code, second.points_to.id) == ("TASK_FAILED", str(ID))
    assert [act.cli for act in second.acts] == [f"headrace replay {ID}", f"headrace discard {ID} --reason WHY"]


def test_a_skipped_task_leads_to_what_failed():
    failed = task(TaskStatus.FAILED, letter=Letter(ID, "parked"))
    skipped = TaskFacts(3, TaskStatus.SKIPPED, ago(5), token=0, error=Failure("UPSTREAM_FAILED", "no"))
    of = facts(None, RunStatus.FAILED, tasks={3: skipped, CLAIMS: failed}, ended=frozenset({0, 1, 2, 3}))
    assert [cause.code for cause in explain_task(of, 3)] == ["TASK_SKIPPED", "TASK_FAILED"]


def test_who_cancelled_a_run_and_why_is_said():
    of = facts(task(TaskStatus.CANCELLED), RunStatus.CANCELLED, stop=STOPS[1])
    assert explain_run(of)[0].text == "The run was cancelled by ana: enough."
    assert explain_task(of, CLAIMS)[0].text == "Task task was cancelled with its run by ana: enough."


def test_a_request_of_another_task_is_not_a_cause():
    of = facts(task(TaskStatus.RUNNING, task=PLAIN, owner=LIVE, lister=LIVE), requests=REQUESTS["resolution"])
    assert "REQUEST_NOT_APPLIED" not in {cause.code for cause in explain_task(of, PLAIN)}
    assert explain_run(of)[0].code is Code.REQUEST_NOT_APPLIED


def test_a_parked_task_offers_its_three_choices():
    (cause,) = explain_task(facts(task(TaskStatus.WAITING, error=Failure("AMBIGUOUS"), parked=Parked(ago(5)))), CLAIMS)
    assert [act.cli.split()[-1] for act in cause.acts] == ["--happened", "--did-not", "--fail"]


# == for people and programs ===========================================================================================
ANSWER = {
    "run_id": str(RUN_ID),
    "task": "task",
    "status": "queued",
    "at": "2026-05-01T12:00:00Z",
    "open_tasks": 300,
    "looked_at": 200,
    "causes": [
        {
            "code": "NO_WORKER", "text": "No live worker serves queue mail.", "since": "2026-05-01T11:59:00Z",
            "until": None, "points_to": {"kind": "queue", "id": "mail", "link": "/workers"},
            "moves": "a worker of the queue starts", "acts": [{"cli": "headrace worker APP", "api": "GET /workers"}],
            "tasks": ["task", "other"], "tasks_total": 7,
        },
    ],
}  # fmt: skip


def answer(seen: list[str]) -> httpx.MockTransport:
    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(200, json=ANSWER)

    return httpx.MockTransport(handle)


def test_the_client_gives_causes():
    seen: list[str] = []
    with Client("http://api", transport=answer(seen)) as client:
        assert client.explain("r1").causes[0].code == "NO_WORKER"
        assert client.explain("r1", "task").causes[0].points_to.id == "mail"
    assert seen == ["/runs/r1/explain", "/tasks/r1.task/explain"]


def test_the_command_shows_what_holds_a_task_up_and_what_to_do(monkeypatch: pytest.MonkeyPatch):
    seen: list[str] = []
    monkeypatch.setattr(command, "connect", lambda url, token: Api("http://api", transport=answer(seen)))
    load_commands()
    shown = CliRunner().invoke(app, ["explain", str(RUN_ID), "task"])
    assert shown.exit_code == 0, shown.output
    assert seen == [f"/tasks/{RUN_ID}.task/explain"]
    for words in (
        "1. NO_WORKER", "No live worker serves queue mail.", "moves: a worker of the queue starts", "see: queue mail",
        "7 tasks: task, other, …", "try: headrace worker APP", "100 more open tasks",
    ):  # fmt: skip
        assert words in shown.output
    assert json.loads(CliRunner().invoke(app, ["explain", str(RUN_ID), "--json"]).stdout) == ANSWER
    assert seen[-1] == f"/runs/{RUN_ID}/explain"


def test_a_pause_says_who_paused_since_when_and_what_still_runs():
    runs = TaskFacts(CLAIMS, TaskStatus.RUNNING, ago(5), attempt=1, token=2, owner=LIVE, lister=LIVE)
    waits = TaskFacts(PLAIN, TaskStatus.WAITING, ago(5), question=Question(ID, "waiting", ["lead"], ago(9)))
    withheld = TaskFacts(3, TaskStatus.PENDING, ago(5), token=0, withheld=True)
    given = facts(
        None, RunStatus.PAUSING, tasks={1: runs, 2: waits, 3: withheld}, pauses=[Pause(ago(30), "ana", "why?")]
    )
    first = explain_run(given)[0]
    assert (first.code, first.since, first.tasks) == (Code.PAUSED, ago(30), ["last"])
    assert first.text == (
        "The run is paused for 30.0 s by ana: why?; task still runs, plain waits on, and last begins when it goes on."
    )
    assert [act.cli for act in first.acts] == [f"headrace resume {RUN_ID}"]
    assert [cause.code for cause in explain_task(given, 3)] == [Code.PAUSED, Code.WITHHELD]


def test_a_run_in_line_for_its_permit_says_its_place_and_who_has_one():
    withheld = TaskFacts(0, TaskStatus.PENDING, ago(5), token=0, withheld=True)
    given = facts(None, RunStatus.WAITING, tasks={0: withheld}, ended=frozenset(), permit=PERMITS[1])
    first, second = explain_run(given)
    assert (first.code, first.since, first.tasks) == (Code.PERMIT_AWAITED, ago(9), ["first"])
    assert first.text == (
        f"The run waits for a permit of workflow w and key 'ada', as number 3 of 4: 1 of 1 are held, by {ID}."
    )
    assert (first.points_to.link, first.acts[0].cli) == (f"/runs/{ID}", f"headrace explain {ID}")
    assert (second.code, second.moves) == (Code.WITHHELD, "Resumed: then it begins")
    free = explain_run(given._replace(permit=PERMITS[3]))[0]
    assert free.text == "The run waits for a permit of workflow w and key 'ada', as the next: one is free."
    assert explain_run(given._replace(permit=PERMITS[5]))[0].code is Code.PERMIT_GRANTED
    assert explain_run(given._replace(permit=PERMITS[0]))[0].code is Code.PERMIT_MISSING


def test_a_pause_of_the_workflow_is_told_apart_from_one_of_the_run():
    given = facts(None, RunStatus.PAUSED, pauses=[Pause(ago(30), "ana", of_workflow=True)])
    first = explain_run(given)[0]
    assert first.text == "The run is paused with its workflow w for 30.0 s by ana; nothing of it runs."
    assert [act.cli for act in first.acts] == ["headrace resume workflow w"]  # a resume of the run would not end it


def asked(**more: Any) -> str:
    question = Question(ID, "waiting", ["ada", "grace", "role:board"], ago(9), **more)
    (cause,) = explain_task(facts(task(TaskStatus.WAITING, question=question)), CLAIMS)
    assert cause.code is Code.APPROVAL_OPEN
    return cause.text


def test_a_question_says_who_has_voted_and_who_is_missing():
    assert "said yes" not in asked(), "nobody has to be told that one is enough"
    assert "0 of 2 have said yes; it waits for ada, grace, role:board." in asked(needed=2)
    votes = [Ballot("eve", "approve", in_place_of="ada"), Ballot("alan", "approve", role="board")]
    text = asked(needed=3, votes=votes)
    assert "2 of 3 have said yes: eve in place of ada, alan; it waits for grace, role:board." in text


def test_a_question_says_when_it_expires_and_when_somebody_else_is_asked():
    assert "and expires in 10.0 s." in asked(expires_at=NOW + LEASE)
    escalated = {"expires_at": NOW + LEASE, "on_expiry": "escalate"}
    assert "and the next of its escalation is asked in 10.0 s." in asked(**escalated, steps_left=1)
    assert "and expires in 10.0 s." in asked(**escalated, steps_left=0)
    assert "They are reminded in 10.0 s." in asked(next=NextStep("remind", NOW + LEASE))
    assert "alan is asked, too, in 10.0 s." in asked(next=NextStep("escalate", NOW + LEASE, ["alan"]))


def test_a_question_that_is_about_to_be_escalated_is_open():
    assert "is asked" in asked(expires_at=ago(1), on_expiry="escalate", steps_left=1)


def test_a_task_in_line_says_its_place_and_who_holds_what_it_waits_for():
    of = facts(task(TaskStatus.WAITING, pool="db"), in_line=LINES[2], pools=POOLS[2])
    cause = explain_task(of, CLAIMS)[0]
    assert cause.text == (
        f"Task task waits for a slot of pool db, as number 4 of 4: 9 of 9 are held, by {RUN_ID}.task and 8 more."
    )
    assert (cause.points_to.link, cause.acts[0].cli) == ("/pools/db", "headrace pools db")


@pytest.mark.parametrize(
    ("line", "place"),
    [
        (4, "as number 2 of fairness key 'ada', and 1 key has its turn before"),
        (5, "as number 3 of those without a fairness key, and no keys have their turn before"),
    ],
)
def test_a_task_in_line_of_a_fairness_key_says_its_place_there_and_how_many_keys_come_before(line: int, place: str):
    of = facts(task(TaskStatus.WAITING, pool="db"), in_line=LINES[line], pools=POOLS[2])
    text = explain_task(of, CLAIMS)[0].text
    assert text == f"Task task waits for a slot of pool db, {place}: 9 of 9 are held, by {RUN_ID}.task and 8 more."


def test_a_paused_task_is_told_with_what_of_it_still_runs():
    pause = Pause(ago(60), "ana", "to look", task=CLAIMS)
    of = facts(task(TaskStatus.RUNNING, owner=LIVE, lister=LIVE), pauses=(pause,))
    (cause, *_) = explain_run(of)
    assert (cause.code, cause.text) == (
        Code.TASK_PAUSED, "Task task is paused for 60.0 s by ana: to look; task still runs."
    )  # fmt: skip
    assert cause.acts[0].cli == f"headrace resume {RUN_ID} --task task"
    withheld = facts(task(TaskStatus.PENDING, withheld=True), pauses=(pause,))
    (cause, after, *_) = explain_task(withheld, CLAIMS)
    assert cause.text.endswith("; nothing of it runs, and task begins when it is resumed.")
    assert (after.code, after.text.endswith("is withheld until it is resumed.")) == (Code.WITHHELD, True)
    assert next(cause.code for cause in explain_task(of, PLAIN)) is not Code.TASK_PAUSED, "another is not"


def test_a_run_that_was_cancelled_by_its_child_says_which():
    error = Failure("CHILD_CANCELLED", "run x of workflow other was cancelled")
    gone = task(TaskStatus.CANCELLED, task=KID, error=error)
    of = facts(None, RunStatus.CANCELLED, tasks={KID: gone}, ended=frozenset({0, 1, 2, 3, 4, 5, 6}))
    first, second = explain_run(of)
    assert (first.code, first.text) == (Code.RUN_CANCELLED, "The run was cancelled: task kid was, with its child.")
    assert second.text == "Task kid was cancelled: run x of workflow other was cancelled."
