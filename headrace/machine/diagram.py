"""Draw `docs/state_machine.md` by asking `advance` about every pair of a state and an event.

    python -m headrace.machine.diagram > docs/state_machine.md

Nothing in the page is written by hand but its sentences, and a test fails when the page and the machine differ.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import combinations_with_replacement
from typing import Final, NamedTuple

import msgspec
from msgspec import Raw

from headrace.expressions import compile_condition, compile_template
from headrace.machine.actions import (
    Abort,
    Action,
    Ask,
    AwaitPermit,
    AwaitSlot,
    BuryTask,
    CancelChild,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    CountRounds,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Grant,
    HoldTasks,
    KeepOutput,
    KeepSignal,
    KeepUndo,
    Listen,
    NoteRound,
    Park,
    RefuseMove,
    ReturnPermit,
    SetDeadline,
    SetPriority,
    SetTimer,
    StartChild,
    StopListening,
    TakeSignal,
    TakeSlot,
    Transition,
    Unpark,
)
from headrace.machine.advance import advance, begin
from headrace.machine.backoff import RetryPlan
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
from headrace.machine.place import RUN, compensation_of, items_of
from headrace.machine.plan import (
    ApprovalPlan,
    ChildPlan,
    Failures,
    Join,
    MapPlan,
    Plan,
    PoolPlan,
    RepeatPlan,
    SignalPlan,
    TaskPlan,
    WaitPlan,
)
from headrace.machine.reason import HANDOUTS_LOST_MAX
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import AWAITS_PERMIT, CANCELLING, PAUSED, TERMINAL, RunStatus, TaskStatus, derive_status
from headrace.messages import Admitted, Due, Error, Failed, Lost, Returned, Started, Succeeded

BEFORE, SUBJECT, AFTER, BESIDE, LAST = range(5)
_NONCE: Final = ""
_NEXT: Final = Plan("scene", [], version=2, version_id=2)
"""Stands for the next version of a scene, which has one more task."""
_BROKEN: Final = Error("ERROR", "it broke")
_DOUBTFUL: Final = Error("ERROR", "it broke in the middle of its effect", ambiguous=True)
_HOPELESS: Final = Error("ERROR", "it can never work", retryable=False)
_TWICE: Final = RepeatPlan(compile_condition("false"), 2, 1_000_000)
_DAY: Final = 86_400_000_000
_LIMITED: Final = {"deadline": WaitPlan(length=60_000_000), "start_within": 1_000_000}
_SHORT: Final = RetryPlan(attempts=1)
_QUESTION: Final = ApprovalPlan("May it go on?", (), None, "fail")
_EITHER: Final = ApprovalPlan("May it go on?", (), None, "fail", on_reject="complete")

Edges = dict[tuple[str, str], dict[str, None]]
"""(state, next state) -> what may cause the step, in the order in which it was met."""
Say = Callable[[int, int], MachineEvent]
"""The event of a task and a token."""

EVENTS: Final[dict[str, Say]] = {
    "Started": lambda task, token: Started(task, token, _NONCE),
    "Started, a claim": lambda task, token: Started(task, token, _NONCE, "session", claim=True),
    "Succeeded": lambda task, token: Succeeded(task, token, _NONCE),
    "Succeeded: happened": lambda task, token: Succeeded(task, token, _NONCE, output=Raw(b'{"happened":true}')),
    "Succeeded: did not happen": lambda task, token: Succeeded(task, token, _NONCE, output=Raw(b'{"happened":false}')),
    "Failed": lambda task, token: Failed(task, token, _NONCE, _BROKEN),
    "Failed, ambiguous": lambda task, token: Failed(task, token, _NONCE, _DOUBTFUL),
    "Failed, not retryable": lambda task, token: Failed(task, token, _NONCE, _HOPELESS),
    "Returned": lambda task, token: Returned(task, token, _NONCE),
    "Returned, begun": lambda task, token: Returned(task, token, _NONCE, begun=True),
    "Lost": lambda task, token: Lost(task, token, _NONCE),
    "Lost, begun": lambda task, token: Lost(task, token, _NONCE, begun=True),
    "Lost, not begun": lambda task, token: Lost(task, token, _NONCE, begun=False),
    "Due backoff": lambda task, token: Due(task, token, _NONCE, "backoff"),
    "Due backoff, early": lambda task, token: Due(task, token, _NONCE, "backoff"),
    "Due time-out": lambda task, token: Due(task, token, _NONCE, "timeout"),
    "Due time-out, early": lambda task, token: Due(task, token, _NONCE, "timeout"),
    "Due wait": lambda task, token: Due(task, token, _NONCE, "wait"),
    "Due wait, early": lambda task, token: Due(task, token, _NONCE, "wait"),
    "Admitted": lambda task, token: Admitted(task, token, _NONCE),
    "Due repeat": lambda task, token: Due(task, token, _NONCE, "repeat"),
    "Due repeat, early": lambda task, token: Due(task, token, _NONCE, "repeat"),
    "Due start": lambda task, token: Due(task, token, _NONCE, "start"),
    "Due start, early": lambda task, token: Due(task, token, _NONCE, "start"),
    "Due deadline": lambda task, _token: Due(task, 0, _NONCE, "deadline"),
    "Due deadline, early": lambda task, _token: Due(task, 0, _NONCE, "deadline"),
    "Due deadline of the run": lambda _task, _token: Due(RUN, 0, _NONCE, "deadline"),
    "Decided approved": lambda task, token: Decided(task, token, "approved"),
    "Decided rejected": lambda task, token: Decided(task, token, "rejected"),
    "Decided expired": lambda task, token: Decided(task, token, "expired"),
    "Replayed": Replayed,
    "Resolved: happened": lambda task, token: Resolved(task, token, "happened"),
    "Resolved: did not happen": lambda task, token: Resolved(task, token, "did_not_happen"),
    "Resolved: fail": lambda task, token: Resolved(task, token, "fail"),
    "Supplied": Supplied,
    "Reran": lambda task, _token: Reran(0, (task,)),
    "Migrated": lambda _task, _token: Migrated(_NEXT),
    "Signalled": lambda _task, _token: Signalled("signal", "news"),
    "Signalled, offered": lambda task, token: Signalled("signal", "news", task=task, token=token),
    "Signalled, another name": lambda _task, _token: Signalled("signal", "olds"),
    "ChildTold: started": lambda task, token: ChildTold(task, token, "child", "started"),
    "ChildTold: refused": lambda task, token: ChildTold(task, token, "child", "refused", error=_HOPELESS),
    "ChildTold: completed": lambda task, token: ChildTold(task, token, "child", "completed"),
    "ChildTold: cancelled": lambda task, token: ChildTold(task, token, "child", "cancelled"),
    "ChildTold: failed": lambda task, token: ChildTold(task, token, "child", "failed"),
    "Cancelled": lambda _task, _token: Cancelled(),
    "Terminated": lambda _task, _token: Terminated(),
    "Paused": lambda _task, _token: Paused(),
    "Resumed": lambda _task, _token: Resumed(),
    "Prioritised": lambda _task, _token: Prioritised(1),
    "Isolated": lambda _task, _token: Isolated(_BROKEN),
    "Released": lambda _task, _token: Released(),
}
OF_A_RUN: Final = (
    "Due deadline",  # of no hand-out, as these
    "Due deadline, early",
    "Due deadline of the run",
    "Reran",
    "Migrated",
    "Signalled",
    "Signalled, another name",
    "Cancelled",
    "Terminated",
    "Paused",
    "Resumed",
    "Prioritised",
    "Isolated",
    "Released",
)


class Scene:
    """One run: `before`, then the subject, then `after`; `beside` keeps it open."""

    def __init__(self, edges: Edges, **options: object) -> None:
        self.plan, self.edges, self.at = Plan("scene", self._tasks(options), deadline=_DAY), edges, 0
        last = TaskPlan(LAST, "last", run="body", needs=(SUBJECT,))
        self.next = Plan("scene", [*self._tasks(options), last], version=2, version_id=2, deadline=_DAY)
        self.run = RunState(b"scene", self.plan, b"{}")
        self.run.apply(begin(self.plan, self.run, self.at))

    @staticmethod
    def _tasks(options: dict[str, object]) -> list[TaskPlan]:
        return [
            TaskPlan(BEFORE, "before", run="body"),
            TaskPlan(SUBJECT, "subject", needs=(BEFORE,), **{"run": "body", "timeout": 10.0, **options}),  # type: ignore[arg-type]
            TaskPlan(AFTER, "after", run="body", needs=(SUBJECT,)),
            TaskPlan(BESIDE, "beside", run="body"),
        ]

    @property
    def subject(self) -> TaskState:
        return self.run.task(SUBJECT)

    def tell(self, name: str, *, task: int = SUBJECT, distance: int = 0) -> Transition | None:
        """Tell the run an event of a task, when it would be said. distance: from the task's token."""
        state = self.run.task(task) if 0 <= task < len(self.plan.tasks) else self.subject
        if name.startswith("Due deadline"):
            due_at = (self.run if name.endswith("run") else state).deadline_at or self.at
        else:
            due_at = state.due_at or self.at
        self.at = max(self.at, due_at - 1) if name.endswith("early") else max(self.at, due_at)
        event = EVENTS[name](task, state.token + distance)
        if isinstance(event, Reran):
            event = Reran(self.run.row_version, event.tasks)
        elif isinstance(event, Migrated):
            event = Migrated(self.next)
        transition = advance(self.run.plan, self.run, event, self.at)
        if transition is not None:
            self._draw(name, task, transition)
            self.run.apply(transition)
        return transition

    def _draw(self, name: str, task: int, transition: Transition) -> None:
        for index in transition.tasks.keys() & {SUBJECT, AFTER}:
            before, after = self.run.task(index).status, transition.tasks[index].status
            if before is not after:
                is_told = index == task or name in OF_A_RUN
                self.edges.setdefault((before, after), {})[name if is_told else self._cause(index, transition)] = None

    def _cause(self, index: int, transition: Transition) -> str:
        """Why a task moved that the event did not name: by what it needs."""
        need = transition.tasks[self.plan.tasks[index].needs[0]].status
        if need is not TaskStatus.COMPLETED:
            return "a need stopped" if need in TERMINAL else "a need was replayed"
        match transition.tasks[index].status:
            case TaskStatus.SKIPPED:
                return "its condition is false"
            case TaskStatus.FAILED:
                return "its condition or input cannot be evaluated"
            case _:
                return "its needs completed"


def _story(*events: str, **options: object) -> Callable[[Edges], Scene]:
    """How a run comes to stand in a state: `before` completes, then these events of the subject."""

    def tell(edges: Edges) -> Scene:
        scene = Scene(edges, **options)
        scene.tell("Succeeded", task=BEFORE)
        for event in events:
            scene.tell(event)
        return scene

    return tell


def _to_its_end(*events: str, **options: object) -> Callable[[Edges], Scene]:
    """The same, and the others have ended too."""

    def tell(edges: Edges) -> Scene:
        scene = _story(*events, **options)(edges)
        for task in (AFTER, BESIDE):
            if scene.run.task(task).status is TaskStatus.QUEUED:
                scene.tell("Succeeded", task=task)
        return scene

    return tell


class Row(NamedTuple):
    state: str
    detail: str
    tell: Callable[[Edges], Scene]


_NEWS: Final = SignalPlan("news", timeout=WaitPlan(length=10_000_000))
_NEWS_OR_NONE: Final = msgspec.structs.replace(_NEWS, on_timeout="complete")
_LOOKED_UP: Final = {"effect": "reconcile", "lookup": "lookup"}
ROWS: Final = [
    Row("PENDING", "needs unmet", Scene),
    Row("PENDING", "in backoff", _story("Failed")),
    Row("PENDING", "withheld", _story("Failed", "Paused", "Due backoff")),
    Row("QUEUED", "attempts left", _story()),
    Row("QUEUED", "last attempt", _story(retry=_SHORT)),
    Row("QUEUED", "last hand-out", _story(*["Lost"] * (HANDOUTS_LOST_MAX - 1))),
    Row("QUEUED", "holds a slot", _story("Admitted", pool=PoolPlan("pool"))),
    Row("RUNNING", "attempts left", _story("Started")),
    Row("RUNNING", "last attempt", _story("Started", retry=_SHORT)),
    Row("RUNNING", "effect: manual", _story("Started, a claim", effect="manual")),
    Row("RUNNING", "effect: reconcile", _story("Started, a claim", **_LOOKED_UP)),
    Row("QUEUED", "looked up", _story("Started, a claim", "Lost", **_LOOKED_UP)),
    Row("RUNNING", "looked up", _story("Started, a claim", "Lost", "Started", **_LOOKED_UP)),
    Row("PENDING", "to be looked up again", _story("Started, a claim", "Lost", "Failed", **_LOOKED_UP)),
    Row("WAITING", "parked", _story("Started, a claim", "Lost", effect="manual")),
    Row("WAITING", "for a slot", _story(pool=PoolPlan("pool"))),
    Row("WAITING", "then its body", _story(approval=_QUESTION)),
    Row("WAITING", "only a question", _story(approval=_QUESTION, run=None)),
    Row("WAITING", "a no is an answer", _story(approval=_EITHER)),
    Row("WAITING", "for its items", _story(map=MapPlan(compile_template([1, 2]), 2, "finish"))),
    Row("WAITING", "for an instant", _story(wait=WaitPlan(length=10_000_000), run=None, timeout=None)),
    Row("WAITING", "for a signal", _story(signal=_NEWS, run=None, timeout=None)),
    Row("WAITING", "or that none comes", _story(signal=_NEWS_OR_NONE, run=None, timeout=None)),
    Row("QUEUED", "limited", _story(**_LIMITED)),
    Row("RUNNING", "limited", _story("Started", **_LIMITED)),
    Row("PENDING", "in backoff, limited", _story("Failed", **_LIMITED)),
    Row("WAITING", "then its body, limited", _story(approval=_QUESTION, **_LIMITED)),
    Row("RUNNING", "effect: reconcile, limited", _story("Started, a claim", **_LOOKED_UP, **_LIMITED)),
    Row("QUEUED", "first of two rounds", _story(repeat=_TWICE)),
    Row("PENDING", "between rounds", _story("Succeeded", repeat=_TWICE)),
    Row("RUNNING", "last round", _story("Succeeded", "Due repeat", "Started", repeat=_TWICE)),
    Row("WAITING", "for a child", _story(child=ChildPlan("other"), run=None)),
    Row("WAITING", "for its beginning", _story(child=ChildPlan("other", None, False, False), run=None)),
    Row("COMPLETED", "", _story("Succeeded")),
    Row("FAILED", "a dead letter", _story("Failed, not retryable")),
    Row("FAILED", "rejected", _story("Decided rejected", approval=_QUESTION)),
    Row("FAILED", "cannot be evaluated", _story(condition=compile_condition("tasks.before.output.missing"))),
    Row("COMPLETED", "the run has ended", _to_its_end("Succeeded")),
    Row("COMPLETED", "effect: reconcile, the run has ended", _to_its_end("Succeeded", **_LOOKED_UP)),
    Row("COMPLETED", "effect: manual, the run has ended", _to_its_end("Succeeded", effect="manual")),
    Row("FAILED", "the run has ended", _to_its_end("Failed, not retryable")),
    Row("SKIPPED", "", _story(condition=compile_condition("false"))),
    Row("CANCELLED", "", _story("Cancelled")),
    Row("PENDING", "cleans up, needs unmet", partial(Scene, join="finally")),
    Row("QUEUED", "cleans up", _story(join="finally")),
    Row("QUEUED", "cleans up behind a cancel", _story("Cancelled", join="finally")),
    Row("RUNNING", "cleans up behind a cancel", _story("Cancelled", "Started", join="finally")),
    Row("PENDING", "cleans up behind a cancel, in backoff", _story("Cancelled", "Failed", join="finally")),
    Row("FAILED", "cleaned up behind a cancel", _story("Cancelled", "Failed, not retryable", join="finally")),
]


# == the page ==========================================================================================================
def draw() -> str:
    """The whole page, as Markdown."""
    edges: Edges = {}
    pairs = "\n".join(_pairs(edges))
    return "\n".join(
        [
            "# The state machine",
            "",
            "<!-- Drawn by `python -m headrace.machine.diagram`, which asks `advance`. Do not edit. -->",
            "",
            "The theory stands at the top of `headrace/machine/__init__.py`. Every cell of this page is an",
            "answer of `advance`. A test compares the page with the code.",
            "",
            "## States of a task",
            "",
            *_mermaid(edges),
            "",
            "## Every state and event",
            "",
            "What a task becomes. `·` is stale: nothing changes, nothing is written. `=` moves the run, not this task.",
            "A task that is limited has a deadline, and a time within which its body has to begin.",
            "",
            *_matrix(),
            "",
            *_stale(),
            "",
            "## What each step asks for",
            "",
            "Actions stand in the order in which they are persisted; those for other tasks are left out. `after` is a",
            "task that needs this one and nothing else.",
            "",
            pairs,
            "",
            "## Joins",
            "",
            "What a task becomes that needs two others, once they have ended like this, in either order. `unreached`",
            "is SKIPPED because something before it failed; `open` has not ended.",
            "",
            *_joins(),
            "",
            "## Maps",
            "",
            "An item of a map is a task like any other: the tables above are its own. What the map becomes, and its",
            "items, when two of three items have ended like this one after the other, the third goes on, and a fourth",
            "has not begun.",
            "",
            *_maps(),
            "",
            "## Clean-ups",
            "",
            "A clean-up is a task whose join is `finally`. Of a run in which each task needs the one before, and the",
            "last two are clean-ups: what the run becomes, and its tasks.",
            "",
            *_cleaned_up(),
            "",
            "## Compensations",
            "",
            "A compensation is a task like any other: the tables above are its own. Of a run whose `left` and `right`",
            "need `first`, and `last` needs both: what the run becomes, and what undoes its tasks.",
            "",
            *_undone(),
            "",
            "## Status of a run",
            "",
            "A function of its tasks and of one flag, decided by `derive_status` and never separately. For a run whose",
            "tasks are in these two states (the rule looks only at which states are present):",
            "",
            *_statuses(),
            "",
        ]
    )


def _mermaid(edges: Edges) -> Iterator[str]:
    yield from ("```mermaid", "stateDiagram-v2", "    [*] --> PENDING")
    order = list(TaskStatus)
    for before, after in sorted(
        edges, key=lambda edge: (order.index(TaskStatus(edge[0])), order.index(TaskStatus(edge[1])))
    ):
        causes = "<br/>".join(edges[before, after])
        yield f"    {before.upper()} --> {after.upper()}: {causes}"
    yield from (f"    {status.upper()} --> [*]" for status in TaskStatus if status in TERMINAL)
    yield "```"


def _matrix() -> Iterator[str]:
    yield "| event | " + " | ".join(f"{row.state}<br/>{row.detail}".removesuffix("<br/>") for row in ROWS) + " |"
    yield "|---|" + "---|" * len(ROWS)
    for name in EVENTS:
        cells = []
        for row in ROWS:
            scene = row.tell({})
            transition = scene.tell(name)
            is_moved = transition is not None and SUBJECT in transition.tasks
            cells.append("·" if transition is None else scene.subject.status.upper() if is_moved else "=")
        yield f"| {name} | " + " | ".join(cells) + " |"


def _stale() -> Iterator[str]:
    """Tell everything that must be stale, and say what came of it."""
    told, moved = 0, 0
    for row in ROWS:
        scene = row.tell({})
        for name in (name for name in EVENTS if name not in OF_A_RUN):
            for task, distance in ((SUBJECT, -1), (SUBJECT, 1), (-1, 0), (-3, 0), (4, 0)):
                told, moved = told + 1, moved + (scene.tell(name, task=task, distance=distance) is not None)
    yield "Each event was also told of each state with an older token, a newer token, and a task that is not in the"
    yield f"graph: {moved} of {told} changed anything."
    yield ""
    taken = {name for row in ROWS for name in EVENTS if _is_taken_in_isolation(row, name)}
    yield f"A run that needs attention takes only these: {', '.join(name for name in EVENTS if name in taken)}."


def _is_taken_in_isolation(row: Row, name: str) -> bool:
    scene = row.tell({})
    return scene.tell("Isolated") is not None and scene.tell(name) is not None


def _pairs(edges: Edges) -> Iterator[str]:
    yield "| state | event | becomes | attempt | token | actions | `after` |"
    yield "|---|---|---|---|---|---|---|"
    for row in ROWS:
        for name in EVENTS:
            scene = row.tell(edges)
            before = scene.subject
            transition = scene.tell(name)
            if transition is None or SUBJECT not in transition.tasks:
                continue
            yield "| " + " | ".join([
                f"{row.state} {row.detail}".strip(), name, scene.subject.status.upper(),
                _step(before.attempt, scene.subject.attempt), _step(before.token, scene.subject.token),
                "<br/>".join(_words(transition)), _after(transition),
            ]) + " |"  # fmt: skip


def _step(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} → {after}"


def _after(transition: Transition) -> str:
    after = transition.tasks.get(AFTER)
    return "" if after is None else after.status.upper()


def _words(transition: Transition) -> Iterator[str]:
    for action in transition.actions:
        if isinstance(action, KeepSignal | SetPriority | RefuseMove | HoldTasks) or (
            not isinstance(action, _OF_THE_RUN) and action.task == SUBJECT
        ):
            yield f"{type(action).__name__}{_detail(action)}"


_OF_THE_RUN: Final = (Finish, AwaitPermit, ReturnPermit)


def _detail(action: Action) -> str:
    match action:
        case Dispatch():
            what = "lookup of attempt" if action.lookup else "attempt"
            of_round = "" if action.round is None else f", round {action.round}"
            return f" {what} {action.attempt}, token {action.token}{of_round}"
        case EndAttempt():
            return f" {action.attempt} {action.outcome}"
        case SetTimer():
            return f" {action.kind}"
        case CountRounds():
            return f" {action.rounds}"
        case NoteRound():
            return f" token {action.token}, round {action.round}"
        case SetDeadline():
            return "" if action.due_at is not None else " none"
        case Abort():
            return f" token {action.token}, {action.reason}"
        case CloseLetter():
            return f" {action.status}"
        case BuryTask() | Park():
            return f" {action.error.code}"
        case Ask() | CloseQuestion() | Grant() | Listen() | TakeSignal() | StartChild() | CancelChild():
            return f" token {action.token}"
        case AwaitSlot():
            return f" {action.pool}, token {action.token}"
        case (
            ClearTimer() | KeepOutput() | KeepUndo() | Unpark() | StopListening() | KeepSignal() | TakeSlot()
            | FreeSlot() | SetPriority() | RefuseMove() | HoldTasks() | AwaitPermit() | ReturnPermit()
        ):  # fmt: skip
            return ""
        case Finish():
            return f" {action.status}"


_JOINS: Final[tuple[Join, ...]] = ("all", "any", 2, "always", "on_failure", "finally")


def _joins() -> Iterator[str]:
    yield "| needs | " + " | ".join(f"`{join}`" for join in _JOINS) + " |"
    yield "|---|" + "---|" * len(_JOINS)
    for ends in combinations_with_replacement(_NEED_ENDS, 2):
        yield f"| {', '.join(ends)} | " + " | ".join(_joined(join, ends) for join in _JOINS) + " |"


_NEED_ENDS: Final = ("completed", "failed", "skipped", "unreached", "open")


def _joined(join: Join, ends: tuple[str, ...]) -> str:
    """Each need has a gate before it that completes; that of an unreached one fails."""
    tasks, false = [], compile_condition("false")
    for index, end in enumerate(ends):
        gate = TaskPlan(2 * index, f"gate{index}", run="body")
        need = TaskPlan(2 * index + 1, f"n{index}", run="body", needs=(gate.index,),
                        condition=false if end == "skipped" else None)  # fmt: skip
        tasks += [gate, need]
    plan = Plan("joined", [*tasks, TaskPlan(4, "join", run="body", needs=(1, 3), join=join)])
    run = RunState(b"joined", plan, b"{}")
    run.apply(begin(plan, run, 0))
    for index, end in enumerate(ends):
        story = {"completed": "cc", "failed": "cf", "skipped": "c", "unreached": "f", "open": "c"}[end]
        for task, step in enumerate(story, 2 * index):
            event = Succeeded(task, 1, _NONCE) if step == "c" else Failed(task, 1, _NONCE, _HOPELESS)
            transition = advance(plan, run, event, 0)
            if transition is not None:
                run.apply(transition)
    state = run.task(4)
    return state.status.upper() + (f"<br/>{state.error.code}" if state.error else "")


_FAILURES: Final[tuple[Failures, ...]] = ("fail_fast", "finish", "collect")


def _maps() -> Iterator[str]:
    yield "| items | " + " | ".join(f"`{failures}`" for failures in _FAILURES) + " |"
    yield "|---|" + "---|" * len(_FAILURES)
    for ends in ("completed, completed", "completed, failed", "failed, completed", "failed, failed"):
        for then in ("", "completed", "failed"):
            story = ends.split(", ") + ([then] * 2 if then else [])
            what = ends + (f"; then both others {then}" if then else "")
            yield f"| {what} | " + " | ".join(_mapped(failures, story) for failures in _FAILURES) + " |"


def _mapped(failures: Failures, ends: list[str]) -> str:
    plan = Plan("mapped", [TaskPlan(0, "map", run="body", map=MapPlan(compile_template([1, 2, 3, 4]), 3, failures))])
    run = RunState(b"mapped", plan, b"{}")
    run.apply(begin(plan, run, 0))
    for place, end in zip(items_of(0), ends, strict=False):
        event = Succeeded(place, 1, _NONCE) if end == "completed" else Failed(place, 1, _NONCE, _HOPELESS)
        transition = advance(plan, run, event, 0)
        if transition is not None:
            run.apply(transition)
    items = [run.task(place).status for place in items_of(0, 4) if place in run.tasks]
    return f"{run.task(0).status.upper()}<br/>{', '.join(items)}"


_CLEANED_UP: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("cancelled before anything began", ("cancel",)),
    ("`first` was handed out; cancelled", ("resume", "cancel")),
    ("… and `clean` completed", ("resume", "cancel", "clean")),
    ("… and `clean` failed", ("resume", "cancel", "clean fails")),
    ("… and `clean` and `last` completed", ("resume", "cancel", "clean", "last")),
    ("… and `clean` failed, `last` completed", ("resume", "cancel", "clean fails", "last")),
    ("… and `clean` was replayed", ("resume", "cancel", "clean fails", "last", "replay")),
    ("`first` failed; `clean` was handed out; cancelled", ("resume", "first fails", "cancel")),
    ("cancelled, then paused; `clean` completed", ("resume", "cancel", "pause", "clean")),
    ("cancelled, then terminated", ("resume", "cancel", "terminate")),
)


def _cleaned_up() -> Iterator[str]:
    names = ("first", "work", "clean", "last")
    yield "| what happened | the run | " + " | ".join(f"`{name}`" for name in names) + " |"
    yield "|---|---|" + "---|" * len(names)
    for what, story in _CLEANED_UP:
        run = _clean_up(names, story)
        states = [run.task(index).status.upper() for index in range(len(names))]
        yield f"| {what} | {run.status.upper()} | " + " | ".join(states) + " |"


def _clean_up(names: Sequence[str], story: tuple[str, ...]) -> RunState:
    joins: tuple[Join, ...] = ("all", "all", "finally", "finally")
    plan = Plan(
        "cleaned_up",
        [
            TaskPlan(index, name, run="body", needs=(index - 1,) if index else (), retry=_SHORT, join=joins[index])
            for index, name in enumerate(names)
        ],
    )
    run = RunState(b"cleaned_up", plan, b"{}", control=PAUSED)
    run.apply(begin(plan, run, 0))
    of_the_run: dict[str, MachineEvent] = {
        "cancel": Cancelled(),
        "terminate": Terminated(),
        "pause": Paused(),
        "resume": Resumed(),
    }
    for step in story:
        name, _, fails = step.partition(" ")
        index = names.index(name) if name in names else names.index("clean")
        token = run.task(index).token
        event: MachineEvent = of_the_run.get(step) or (
            Replayed(index, token)
            if step == "replay"
            else Failed(index, token, _NONCE, _HOPELESS)
            if fails
            else Succeeded(index, token, _NONCE)
        )
        transition = advance(plan, run, event, 0)
        if transition is not None:
            run.apply(transition)
    return run


_UNDONE: Final[tuple[tuple[str, tuple[tuple[str, str], ...]], ...]] = (
    ("`last` failed", (("last", "failed"),)),
    ("`last` timed out", (("last", "timed out"),)),
    ("cancelled while `last` was handed out", (("", "cancelled"),)),
    ("terminated", (("", "terminated"),)),
    ("`last` failed; that of `right` completed", (("last", "failed"), ("right", "completed"))),
    ("… and that of `left` completed", (("last", "failed"), ("right", "completed"), ("left", "completed"))),
    ("… and that of `left` failed", (("last", "failed"), ("right", "completed"), ("left", "failed"))),
    (
        "… and that of `left` failed, and of `first` completed",
        (("last", "failed"), ("right", "completed"), ("left", "failed"), ("first", "completed")),
    ),
    (
        "… and all completed",
        (("last", "failed"), ("right", "completed"), ("left", "completed"), ("first", "completed")),
    ),
)


def _undone() -> Iterator[str]:
    yield "| what happened | the run | " + " | ".join(f"`{name}.compensate`" for name in _UNDONE_TASKS) + " |"
    yield "|---|---|" + "---|" * len(_UNDONE_TASKS)
    for what, story in _UNDONE:
        run = _undo(story)
        places = [compensation_of(index) for index in range(len(_UNDONE_TASKS))]
        states = [run.tasks[place].status.upper() if place in run.tasks else "·" for place in places]
        yield f"| {what} | {run.status.upper()} | " + " | ".join(states) + " |"


_UNDONE_TASKS: Final = ("first", "left", "right", "last")


def _undo(story: tuple[tuple[str, str], ...]) -> RunState:
    """Everything completes but `last`, then comes the story: of `last` or of the run, then of compensations."""
    plan = Plan(
        "undone",
        [
            TaskPlan(index, name, run="body", needs=needs, retry=_SHORT, compensation=TaskPlan(index, name, run="undo"))
            for index, (name, needs) in enumerate(zip(_UNDONE_TASKS, ((), (0,), (0,), (1, 2)), strict=True))
        ],
    )
    run = RunState(b"undone", plan, b"{}")
    run.apply(begin(plan, run, 0))
    events: list[MachineEvent] = [Succeeded(index, 1, _NONCE) for index in range(3)]
    is_undone = False
    for name, how in story:
        index = _UNDONE_TASKS.index(name) if name else 0
        place = compensation_of(index) if is_undone else index
        match how:
            case "completed":
                events.append(Succeeded(place, 1, _NONCE))
            case "failed":
                events.append(Failed(place, 1, _NONCE, _HOPELESS))
            case "timed out":
                events.append(Failed(place, 1, _NONCE, Error("TIMEOUT", "late")))
            case _:
                events.append(Cancelled() if how == "cancelled" else Terminated())
        is_undone = True
    for event in events:
        transition = advance(plan, run, event, 0)
        if transition is not None:
            run.apply(transition)
    return run


def _statuses() -> Iterator[str]:
    names = ["untouched", *TaskStatus]
    yield "| | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for one in names:
        yield f"| **{one}** | " + " | ".join(_status_of(one, other) for other in names) + " |"
    yield ""
    yield "`untouched` is PENDING before a task's needs are met; `pending` is PENDING in a backoff."
    attended = {derive_status(1, {status: 1}, attention=True) for status in TaskStatus if status not in TERMINAL}
    paused = [
        derive_status(1, {status: 1}, attention=False, control=PAUSED)
        for status in (TaskStatus.QUEUED, TaskStatus.WAITING)
    ]
    yield f"While a run is paused it is {paused[0]} if one of its tasks is QUEUED or RUNNING, {paused[1]} otherwise,"
    yield "until all have ended. One that was terminated is terminated, whatever its tasks are. Where a task failed or"
    yield "was cancelled, and there is something to undo, it is compensating instead, then compensated or"
    yield "compensation_failed."
    in_line = derive_status(1, {TaskStatus.PENDING: 1}, attention=False, control=AWAITS_PERMIT)
    yield f"While it waits for its permit under the limit of its workflow, and nobody pauses it, it is {in_line}."
    cancelling = derive_status(1, {TaskStatus.QUEUED: 1}, attention=False, control=CANCELLING)
    yield f"One that was cancelled and cleans up is {cancelling} until all have ended, unless it is paused."
    yield f"While a person's attention is asked for: {', '.join(sorted(attended))}, whatever the tasks are."


def _status_of(*names: str) -> RunStatus:
    counts: dict[TaskStatus, int] = {}
    for name in names:
        if name != "untouched":
            counts[TaskStatus(name)] = counts.get(TaskStatus(name), 0) + 1
    return derive_status(len(names), counts, attention=False)


if __name__ == "__main__":
    print(draw(), end="")
