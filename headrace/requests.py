"""Every request to the API, written once and without any I/O.

A request is a *flow*: a generator that yields what it wants done, `Send` or `Pause`, is sent the `Reply`, and returns
the typed answer or raises from the error tree. The two clients only carry flows out, one blocking and one on an event
loop. Retries and waiting are part of the flow, so both clients do them alike.
"""

import random
import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from headrace import errors, payload
from headrace.views import (
    Approval,
    Attempt,
    Bulk,
    BulkItem,
    BulkPreview,
    BulkReplay,
    ChildRun,
    DeadLetter,
    DeadLetterGroup,
    DeadLetterSelection,
    Delegation,
    Explanation,
    HistoryItem,
    Link,
    LogLine,
    LogPage,
    Migration,
    Page,
    ParentRun,
    ParkedTask,
    Pool,
    PostedSignal,
    PublishCheck,
    Published,
    Relations,
    Rerun,
    Run,
    RunCount,
    Signal,
    Task,
    VersionRuns,
    Worker,
    Workflow,
    WorkflowPause,
)

TRIES_MAX: Final = 6
"""A request that finds the API away is tried so often, over about 8 seconds; then the caller decides."""
DELAY_SECONDS: Final = 0.25
DELAY_SECONDS_MAX: Final = 5.0
WAIT_FIRST_SECONDS: Final = 0.05
WAIT_MAX_SECONDS: Final = 1.0
PAGE_ITEMS: Final = 200
LOG_LINES: Final = 1_000
_AWAY: Final = frozenset({429, 502, 503, 504})
_JSON: Final = "application/json"

T = TypeVar("T")


@dataclass(frozen=True)
class Send:
    """Send this to the API. Writes carry an idempotency key, so that sending again is the same request."""

    method: str
    path: str
    params: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class Reply:
    status: int
    """0: there was none; `content` says why."""
    content: bytes = b""
    retry_after: str | None = None


Flow = Generator[Send | Pause, Reply | None, T]


class Definition(Protocol):
    """A workflow built in Python (`headrace.graph.Workflow`)."""

    def canonical(self) -> bytes: ...


# == workflows and runs ================================================================================================
def publish(workflow: str | bytes | Mapping[str, Any] | Definition, *, migrate: bool = False) -> Flow[Published]:
    """Publish a workflow: YAML or JSON text, a mapping, or one built in Python. The same content is the same version.
    migrate: runs in flight on older versions are moved to it, those of which nothing stands in the way, by a bulk.

    Raises DefinitionError with every fault.
    """
    content, content_type = _definition(workflow)
    path = "/workflows?migrate=true" if migrate else "/workflows"
    return (yield from _write(path, content, Published, content_type=content_type))


def check(workflow: str | bytes | Mapping[str, Any] | Definition) -> Flow[PublishCheck]:
    """What publishing that would lead to: which version, what is different, and the runs in flight. Publishes nothing.

    Raises DefinitionError with every fault.
    """
    content, content_type = _definition(workflow)
    return (yield from _write("/workflows/check", content, PublishCheck, content_type=content_type))


def versions(workflow: str) -> Flow[list[VersionRuns]]:
    """The latest version, and older ones that still have runs in flight, newest first; raises NotFoundError."""
    answer = yield from _read(f"/workflows/{_part(workflow)}/versions", Page[VersionRuns])
    return answer.items


def _definition(workflow: str | bytes | Mapping[str, Any] | Definition) -> tuple[bytes, str]:
    if isinstance(workflow, str | bytes):
        return workflow.encode() if isinstance(workflow, str) else workflow, "application/yaml"
    content = payload.encode_input(workflow) if isinstance(workflow, Mapping) else workflow.canonical()
    return content, _JSON


def workflows(*, limit: int | None = None) -> Flow[list[Workflow]]:
    """Published workflows by name."""
    return (yield from _list("/workflows", Workflow, limit=limit))


def start(
    workflow: str,
    input: object = None,
    *,
    key: str | None = None,
    version: int | None = None,
    run_id: str | None = None,
    priority: int | None = None,
    labels: Mapping[str, str] | None = None,
) -> Flow[Run]:
    """Start a run.

    input: any JSON, a pydantic model or a dataclass; `{}` when left out. key: one key makes one run, for ever: a second
    start returns that run. run_id: a UUIDv7, when the caller wants to know it beforehand. priority: in the queues of
    pools, from -100 to 100. labels: what it is found by again, such as `{"customer": "acme"}` by the filter
    `label.customer:acme`; they change nothing that it does.
    Raises NotFoundError, or PayloadError for an input that the workflow's schema refuses.
    """
    body = {"input": msgspec.Raw(b"{}" if input is None else payload.encode_input(input))}
    given = {"key": key, "version": version, "run_id": run_id, "priority": priority, "labels": labels}
    body_given = {**body, **{name: value for name, value in given.items() if value is not None}}
    return (yield from _write(f"/workflows/{_part(workflow)}/runs", msgspec.json.encode(body_given), Run))


def run(run_id: str) -> Flow[Run]:
    """Read a run; raises NotFoundError."""
    return (yield from _read(f"/runs/{_part(run_id)}", Run))


def runs(
    filter: str = "",
    *,
    workflow: str | None = None,
    status: str | None = None,
    limit: int = 50,
    page: str | None = None,
) -> Flow[Page[Run]]:
    """One page of runs, newest first. filter: such as `status:failed started:>-2h`; see docs/filters.md. A search that
    had to end somewhere has `searched_until`, and `next` goes on from there.

    Raises FilterError with the column.
    """
    params = _params(filter=filter or None, workflow=workflow, status=status, limit=str(limit), page=page)
    return (yield from _read("/runs", Page[Run], params))


def count_runs(filter: str = "") -> Flow[RunCount]:
    """How many runs match: exact up to a bound, then `has_more`. Raises FilterError."""
    return (yield from _read("/runs/count", RunCount, _params(filter=filter or None)))


def wait(run_id: str, timeout: float | None = None) -> Flow[Run]:
    """Wait until a run is over, or needs a person's attention, and return it.

    timeout: seconds; raises TimeoutError when they are over. The run itself goes on.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pause = WAIT_FIRST_SECONDS
    while True:
        found = yield from run(run_id)
        if found.is_over or found.status == "needs_attention":
            return found
        left = pause if deadline is None else deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"run {run_id} is still {found.status} after {timeout:g} s")
        yield Pause(min(pause, left))
        pause = min(pause * 1.5, WAIT_MAX_SECONDS)


def tasks(run_id: str) -> Flow[list[Task]]:
    """All tasks of a run, in the order of the graph."""
    return (yield from _list(f"/runs/{_part(run_id)}/tasks", Task))


def task(task_id: str) -> Flow[Task]:
    """One task by `<run id>.<task name>`, with its input."""
    return (yield from _read(f"/tasks/{_part(task_id)}", Task))


def items(run_id: str, task: str, *, status: str | None = None, limit: int | None = None) -> Flow[list[Task]]:
    """Items of a map that have begun, in the order of its list. Raises ConflictError when the task is no map."""
    path = f"/runs/{_part(run_id)}/tasks/{_part(task)}/items"
    return (yield from _list(path, Task, {"status": status} if status else {}, limit=limit))


def attempts(task_id: str) -> Flow[list[Attempt]]:
    """Every attempt of a task that ended, in order."""
    return (yield from _list(f"/tasks/{_part(task_id)}/attempts", Attempt))


def history(run_id: str, *, limit: int | None = None) -> Flow[list[HistoryItem]]:
    """All that moved a run, in order, without a gap in `row_version`."""
    return (yield from _list(f"/runs/{_part(run_id)}/history", HistoryItem, limit=limit))


def children(run_id: str, *, limit: int | None = None) -> Flow[list[ChildRun]]:
    """The runs that tasks of a run have asked for, in the order of the graph; of one task the latest is the last."""
    return (yield from _list(f"/runs/{_part(run_id)}/relations", ChildRun, limit=limit))


def parent(run_id: str) -> Flow[ParentRun | None]:
    """The run of which a task has asked for this one; None when nobody's has, or that has been removed."""
    return (yield from _read(f"/runs/{_part(run_id)}/relations", Relations)).parent


def explain(run_id: str, task: str | None = None) -> Flow[Explanation]:
    """Why a run, or one of its tasks, does not move: the nearest cause first. Raises NotFoundError."""
    path = f"/runs/{_part(run_id)}/explain" if task is None else f"/tasks/{_part(f'{run_id}.{task}')}/explain"
    return (yield from _read(path, Explanation))


def cancel(run_id: str, reason: str = "") -> Flow[None]:
    """Ask that a run end now. Once this returns, it will, whatever crashes. Raises ConflictError when it is over."""
    yield from _write(f"/runs/{_part(run_id)}/cancel", msgspec.json.encode({"reason": reason}), object)


def pause(run_id: str, reason: str = "") -> Flow[None]:
    """Let nothing new of a run begin; what runs goes on to its end. Raises ConflictError when it has ended, or is
    paused."""
    yield from _write(f"/runs/{_part(run_id)}/pause", msgspec.json.encode({"reason": reason}), object)


def resume(run_id: str, reason: str = "") -> Flow[None]:
    """End a pause of a run. Raises ConflictError when it is not paused."""
    yield from _write(f"/runs/{_part(run_id)}/resume", msgspec.json.encode({"reason": reason}), object)


def pause_task(run_id: str, task: str, reason: str = "") -> Flow[None]:
    """Let nothing new of a task begin; what was handed out of it goes on. Raises ConflictError when it has ended, or is
    paused."""
    path = f"/tasks/{_part(f'{run_id}.{task}')}/pause"
    yield from _write(path, msgspec.json.encode({"reason": reason}), object)


def resume_task(run_id: str, task: str, reason: str = "") -> Flow[None]:
    """End the pause of a task. Raises ConflictError when it is not paused by itself."""
    path = f"/tasks/{_part(f'{run_id}.{task}')}/resume"
    yield from _write(path, msgspec.json.encode({"reason": reason}), object)


def pause_workflow(workflow: str, reason: str = "") -> Flow[None]:
    """Pause all runs of a workflow, those that are started from now on, too. Raises ConflictError when it is paused."""
    yield from _write(f"/workflows/{_part(workflow)}/pause", msgspec.json.encode({"reason": reason}), object)


def resume_workflow(workflow: str, reason: str = "") -> Flow[None]:
    """End the pause of a workflow. Raises ConflictError when it is not paused."""
    yield from _write(f"/workflows/{_part(workflow)}/resume", msgspec.json.encode({"reason": reason}), object)


def pauses(*, limit: int | None = None) -> Flow[list[WorkflowPause]]:
    """Paused workflows by name, with how far their runs are."""
    return (yield from _list("/pauses", WorkflowPause, limit=limit))


def terminate(run_id: str, reason: str = "") -> Flow[None]:
    """End a run by force, without any clean-up. Raises ConflictError when it is over."""
    yield from _write(f"/runs/{_part(run_id)}/terminate", msgspec.json.encode({"reason": reason}), object)


def prioritise(run_id: str, priority: int, reason: str = "") -> Flow[None]:
    """Change the place of a run's tasks in the queues of pools, from -100 to 100; each point is worth a minute of
    waiting. Raises ConflictError when it is over."""
    body = msgspec.json.encode({"priority": priority, "reason": reason})
    yield from _write(f"/runs/{_part(run_id)}/priority", body, object)


def rerun(
    run_id: str,
    *tasks: str,
    input: Any = None,
    version: int | None = None,
    reason: str = "",
    row_version: int | None = None,
    dry_run: bool = False,
) -> Flow[Rerun]:
    """Let these tasks of a run that has ended, and all that depends on them, run again; without any, what failed or was
    cancelled. The answer says which effects repeat, and what protects them; with `dry_run` nothing else happens.

    input: of the only task named. version: of the workflow, to go on with; its own when left out. row_version: of a dry
    run; raises ConflictError when the run has moved since, has not ended, has nothing to run again, or cannot go on
    with that version.
    """
    body: dict[str, Any] = {"tasks": list(tasks), "reason": reason, "dry_run": dry_run}
    if version is not None:
        body["version"] = version
    if input is not None:
        body["input"] = msgspec.Raw(payload.encode(input))
    if row_version is not None:
        body["row_version"] = row_version
    return (yield from _write(f"/runs/{_part(run_id)}/rerun", msgspec.json.encode(body), Rerun))


def migrate(run_id: str, version: int | None = None, *, reason: str = "", dry_run: bool = False) -> Flow[Migration]:
    """Move a paused run to another version of its workflow, the latest when left out. With `dry_run` the answer says
    what stands in the way, and nothing else happens.

    Raises ConflictError when something does, or the run has ended or is on that version.
    """
    body: dict[str, Any] = {"reason": reason, "dry_run": dry_run}
    if version is not None:
        body["version"] = version
    return (yield from _write(f"/runs/{_part(run_id)}/migrate", msgspec.json.encode(body), Migration))


def skip(run_id: str, task: str, output: Any = None, *, reason: str = "") -> Flow[None]:
    """Give a task that is open or has failed its output, so that it is done without its body. Raises ConflictError when
    it has ended otherwise, or is to be approved."""
    body = {"output": msgspec.Raw(payload.encode(output)), "reason": reason}
    yield from _write(f"/tasks/{_part(f'{run_id}.{task}')}/skip", msgspec.json.encode(body), object)


def signal(
    run_id: str, name: str, data: object = None, *, key: str | None = None, id: str | None = None
) -> Flow[Signal]:
    """Tell a run something. Once this returns, a task that waits for it will take it, now or when it begins to wait.

    data: any JSON, a pydantic model or a dataclass. key: only for a task that waits for this key. id: the sender's own
    name for it: sent twice, it is one signal. Raises ConflictError when the run is over, PayloadError when no task of
    its workflow waits for that name.
    """
    content = {"name": name, "data": msgspec.Raw(payload.encode_input(data)), **_params(key=key, id=id)}
    return (yield from _write(f"/runs/{_part(run_id)}/signals", msgspec.json.encode(content), Signal))


def signals(run_id: str, *, limit: int | None = None) -> Flow[list[Signal]]:
    """What a run was told, in the order in which it was stored, and what became of each."""
    return (yield from _list(f"/runs/{_part(run_id)}/signals", Signal, limit=limit))


def logs(
    run_id: str,
    *,
    task: str | None = None,
    attempt: int | None = None,
    level: str = "debug",
    text: str | None = None,
    limit: int | None = None,
) -> Flow[list[LogLine]]:
    """What the bodies of a run logged, in the order in which it came.

    task: of this task or item only. level: debug, info, warning or error, and above. text: somewhere in a line.
    """
    path, lines, after = f"/runs/{_part(run_id)}/logs", list[LogLine](), 0
    given = {"task": task, "attempt": attempt, "level": level, "q": text}
    asked = {name: str(value) for name, value in given.items() if value is not None}
    while True:
        size = min(LOG_LINES, LOG_LINES if limit is None else limit - len(lines))
        page: LogPage = yield from _read(path, LogPage, {**asked, "after": str(after), "limit": str(size)})
        lines += page.items
        after = page.last
        if len(page.items) < size or (limit is not None and len(lines) >= limit):
            return lines


def post(
    name: str, key: str, data: object = None, *, id: str | None = None, keep: str | float | None = None
) -> Flow[PostedSignal]:
    """Tell something to whoever waits for this name and key, in any run, now or before it expires.

    data: any JSON, a pydantic model or a dataclass. id: the sender's own name for it: posted twice, it is one signal.
    keep: how long it waits for somebody, text such as `12h` or seconds; a day when left out.
    """
    given: dict[str, object] = {"id": id, "keep": keep}
    content: dict[str, object] = {"name": name, "key": key, "data": msgspec.Raw(payload.encode_input(data))}
    content |= {field: value for field, value in given.items() if value is not None}
    return (yield from _write("/signals", msgspec.json.encode(content), PostedSignal))


def posted_signal(signal_id: str) -> Flow[PostedSignal]:
    """Read a posted signal, and what came of it; raises NotFoundError."""
    return (yield from _read(f"/signals/{_part(signal_id)}", PostedSignal))


def release(run_id: str) -> Flow[None]:
    """Let a run go on that stands aside. Raises ConflictError when it does not."""
    yield from _write(f"/runs/{_part(run_id)}/release", b"{}", object)


# == pools =============================================================================================================
def pools(*, limit: int | None = None) -> Flow[list[Pool]]:
    """Pools by name; also those that some task waits for and nobody has set."""
    return (yield from _list("/pools", Pool, limit=limit))


def pool(name: str) -> Flow[Pool]:
    """One pool, with those who hold its slots and those who wait; raises NotFoundError."""
    return (yield from _read(f"/pools/{_part(name)}", Pool))


def set_pool(name: str, *, limit: int | None = None, rate: str | None = None) -> Flow[Pool]:
    """Make a pool, or give it other limits. limit: how many tasks hold a slot at once. rate: how many begin in how
    long, such as `10/s`. With fewer slots nothing is stopped."""
    given: dict[str, object] = {"limit": limit, "rate": rate}
    content = {field: value for field, value in given.items() if value is not None}
    return (yield from _write(f"/pools/{_part(name)}", msgspec.json.encode(content), Pool, method="PUT"))


# == people ============================================================================================================
def approvals(*, status: str = "waiting", for_me: bool = False, limit: int | None = None) -> Flow[list[Approval]]:
    """Approvals, newest first. status: waiting, approved, rejected, expired, cancelled or all. for_me: only those that
    wait for whoever asks, who is the client's `actor` with its `roles`."""
    params = {"for": "me"} if for_me else {"status": status}
    return (yield from _list("/approvals", Approval, params, limit=limit))


def approval(approval_id: str) -> Flow[Approval]:
    """One approval, with the record of its decisions; raises NotFoundError."""
    return (yield from _read(f"/approvals/{_part(approval_id)}", Approval))


def approve(approval_id: str, comment: str = "", *, form: object = None) -> Flow[Approval]:
    """Say yes; it is approved once as many as are needed have. form: what is filled in, where it has one.

    Raises ConflictError when it was decided before, or this person has voted; ForbiddenError when it is for others;
    PayloadError when what is filled in is refused.
    """
    return (yield from _decide(approval_id, "approve", comment, form))


def reject(approval_id: str, comment: str = "", *, form: object = None) -> Flow[Approval]:
    """Say no, which decides. Raises as `approve`."""
    return (yield from _decide(approval_id, "reject", comment, form))


def _decide(approval_id: str, decision: str, comment: str, form: object) -> Flow[Approval]:
    given: dict[str, object] = {"comment": comment}
    if form is not None:
        given["form"] = msgspec.Raw(payload.encode_input(form))
    body = msgspec.json.encode(given)
    return (yield from _write(f"/approvals/{_part(approval_id)}/{decision}", body, Approval))


def comment_approval(approval_id: str, comment: str) -> Flow[Approval]:
    """Say something without deciding. Raises ConflictError when it is not open."""
    body = msgspec.json.encode({"comment": comment})
    return (yield from _write(f"/approvals/{_part(approval_id)}/comments", body, Approval))


def link_approval(
    approval_id: str, name: str, *, role: str | None = None, expires_in: float | None = None
) -> Flow[Link]:
    """Make an address at which this person decides, once. expires_in: seconds; three days when left out.

    Raises ForbiddenError when they may not decide.
    """
    given = {"for": name, "role": role, "expires_in": expires_in}
    body = msgspec.json.encode({key: value for key, value in given.items() if value is not None})
    return (yield from _write(f"/approvals/{_part(approval_id)}/links", body, Link))


def delegate(
    to: str, *, from_name: str, ends_at: datetime, starts_at: datetime | None = None, reason: str = ""
) -> Flow[Delegation]:
    """Let another decide in one's place. from_name: the client's `actor`, or a role of theirs as `role:finance`.

    Raises ForbiddenError when it is not theirs to give.
    """
    given = {"from": from_name, "to": to, "ends_at": ends_at, "starts_at": starts_at, "reason": reason}
    return (yield from _write("/delegations", msgspec.json.encode(given), Delegation))


def parked_tasks(*, limit: int | None = None) -> Flow[list[ParkedTask]]:
    """Tasks that wait for a person to say whether their effect happened, newest first."""
    return (yield from _list("/parked-tasks", ParkedTask, {}, limit=limit))


def resolve(
    run_id: str,
    task: str,
    outcome: Literal["happened", "did_not_happen", "fail"],
    *,
    output: Any = None,
    comment: str = "",
) -> Flow[None]:
    """Say what became of a parked task's effect: done with this output, tried again, or given up.

    Raises ConflictError when it is not parked, or somebody has said so.
    """
    body: dict[str, Any] = {"outcome": outcome, "comment": comment}
    if outcome == "happened":
        body["output"] = msgspec.Raw(payload.encode(output))
    yield from _write(f"/tasks/{_part(f'{run_id}.{task}')}/resolve", msgspec.json.encode(body), object)


# == operations ========================================================================================================
def dead_letters(filter: str = "", *, status: str | None = None, limit: int | None = None) -> Flow[list[DeadLetter]]:
    """What was set aside, newest first. filter: such as `workflow:orders code:TIMEOUT`; see docs/filters.md. status:
    parked when neither says one.
    """
    return (yield from _list("/dead-letters", DeadLetter, _params(filter=filter or None, status=status), limit=limit))


def dead_letter(dead_letter_id: str) -> Flow[DeadLetter]:
    """One dead letter with its context: every attempt, the input, the record's bytes."""
    return (yield from _read(f"/dead-letters/{_part(dead_letter_id)}", DeadLetter))


def dead_letter_groups(
    filter: str = "", *, status: str | None = None, limit: int | None = None
) -> Flow[list[DeadLetterGroup]]:
    """Dead letters by cause, the group with the newest first. filter: as of `dead_letters`."""
    params = _params(filter=filter or None, status=status)
    return (yield from _list("/dead-letters/groups", DeadLetterGroup, params, limit=limit))


def replay(dead_letter_id: str, **given: object) -> Flow[None]:
    """Send a dead letter out again, once; `input=…` takes the place of what failed. Raises ConflictError if it was."""
    if unknown := set(given) - {"input"}:
        raise TypeError(f"replay takes no {', '.join(sorted(unknown))}")
    body = {name: msgspec.Raw(payload.encode_input(value)) for name, value in given.items()}
    yield from _write(f"/dead-letters/{_part(dead_letter_id)}/replay", msgspec.json.encode(body), object)


def discard(dead_letter_id: str, reason: str) -> Flow[None]:
    """Close a dead letter without repairing it."""
    yield from _write(f"/dead-letters/{_part(dead_letter_id)}/discard", msgspec.json.encode({"reason": reason}), object)


def select_dead_letters(filter: str = "", *, dead_letter_ids: Sequence[str] | None = None) -> Flow[DeadLetterSelection]:
    """What `replay_many` or `discard_many` would take, without taking it. filter: as of `dead_letters`; it or the ids
    must say which.
    """
    body = _selection(filter, dead_letter_ids=dead_letter_ids, dry_run=True)
    return (yield from _write("/dead-letters/replay", body, DeadLetterSelection))


def replay_many(
    filter: str = "", *, dead_letter_ids: Sequence[str] | None = None, rate: float = 10.0
) -> Flow[BulkReplay]:
    """Replay all parked dead letters that match, `rate` a second, in the background. Raises ConflictError when there
    is none that is not being replayed already.
    """
    body = _selection(filter, dead_letter_ids=dead_letter_ids, rate=rate)
    return (yield from _write("/dead-letters/replay", body, BulkReplay))


def discard_many(reason: str, filter: str = "", *, dead_letter_ids: Sequence[str] | None = None) -> Flow[int]:
    """Close all parked dead letters that match; answers how many those were, at most 10,000."""
    body = _selection(filter, dead_letter_ids=dead_letter_ids, reason=reason)
    answer: dict[str, Any] = yield from _write("/dead-letters/discard", body, dict)
    return int(answer["discarded"])


def bulk_replay(replay_id: str) -> Flow[BulkReplay]:
    """How far a bulk replay has come."""
    return (yield from _read(f"/dead-letters/replays/{_part(replay_id)}", BulkReplay))


def stop_bulk_replay(replay_id: str) -> Flow[BulkReplay]:
    """End a bulk replay: what has not gone out stays parked. Raises ConflictError when it is over."""
    return (yield from _write(f"/dead-letters/replays/{_part(replay_id)}/stop", b"{}", BulkReplay))


def foresee_bulk(act: str, filter: str = "", *, run_ids: Sequence[str] | None = None) -> Flow[BulkPreview]:
    """What `bulk` would do."""
    return (yield from _write("/bulk", _selection(filter, act=act, run_ids=run_ids, dry_run=True), BulkPreview))


def bulk(
    act: str, filter: str = "", *, run_ids: Sequence[str] | None = None, rate: float = 10.0, reason: str = ""
) -> Flow[Bulk]:
    """Ask the same of all runs that match, `rate` a second, in the background. act: cancel, terminate, pause, resume,
    release, rerun, migrate or move. filter: as of `runs`, and run_ids: of these only; one of them must say which.

    Raises ConflictError when there is none of which an open bulk does not ask it already.
    """
    return (yield from _write("/bulk", _selection(filter, act=act, run_ids=run_ids, rate=rate, reason=reason), Bulk))


def bulk_progress(bulk_id: str) -> Flow[Bulk]:
    """How far a bulk has come, and what became of what it asked for."""
    return (yield from _read(f"/bulk/{_part(bulk_id)}", Bulk))


def bulk_items(bulk_id: str, *, limit: int | None = None) -> Flow[list[BulkItem]]:
    """What came of each item, in the order of their turns."""
    return (yield from _list(f"/bulk/{_part(bulk_id)}/items", BulkItem, limit=limit))


def stop_bulk(bulk_id: str) -> Flow[Bulk]:
    """End a bulk: of what has not had its turn nothing is asked. Raises ConflictError when it is over."""
    return (yield from _write(f"/bulk/{_part(bulk_id)}/stop", b"{}", Bulk))


def workers(*, limit: int | None = None) -> Flow[list[Worker]]:
    """Worker sessions, newest first, with those that ended lately."""
    return (yield from _list("/workers", Worker, limit=limit))


# == inside ============================================================================================================
def _read(path: str, kind: type[T], params: Mapping[str, str] | None = None) -> Flow[T]:
    return (yield from _exchange(Send("GET", path, params or {}), kind))


def _write(path: str, body: bytes, kind: type[T], *, content_type: str = _JSON, method: str = "POST") -> Flow[T]:
    headers = {"Content-Type": content_type, "Idempotency-Key": uuid.uuid4().hex}
    return (yield from _exchange(Send(method, path, body=body, headers=headers), kind))


def _list(
    path: str, kind: type[T], params: Mapping[str, str] | None = None, *, limit: int | None = None
) -> Flow[list[T]]:
    """All pages of a list, up to `limit` items."""
    items: list[T] = []
    params = {**(params or {}), "limit": str(min(limit or PAGE_ITEMS, PAGE_ITEMS))}
    while True:
        page: Page[T] = yield from _read(path, Page[kind], params)  # type: ignore[valid-type]  # a type known at run time
        items += page.items
        if page.next is None or (limit is not None and len(items) >= limit):
            return items[:limit]
        params = {**params, "page": page.next}


def _exchange(send: Send, kind: type[T]) -> Flow[T]:
    """Send, and send again while the API is away: a repeated write is the same write, by its idempotency key."""
    tries = 0
    while True:
        reply = yield send
        assert reply is not None
        if 200 <= reply.status < 300:
            return _decoded(reply, kind)
        tries += 1
        if reply.status != 0 and reply.status not in _AWAY:
            raise error_of(reply)
        if tries >= TRIES_MAX:
            raise error_of(reply)
        yield Pause(_delay(tries, reply))


def _delay(tries: int, reply: Reply) -> float:
    """What the API asks for, else exponential; spread, so that many callers do not come back at once."""
    asked = float(reply.retry_after) if reply.retry_after and reply.retry_after.isdecimal() else 0.0
    delay = max(asked, DELAY_SECONDS * 2 ** (tries - 1))
    return float(min(delay, DELAY_SECONDS_MAX) * random.uniform(0.8, 1.2))  # noqa: S311  # a delay, not a secret


def _decoded(reply: Reply, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(reply.content, type=kind)
    except msgspec.MsgspecError as e:
        raise errors.MessageError(f"the API's answer is not what this client knows: {e}", status=reply.status) from e


def _params(**given: str | None) -> dict[str, str]:
    return {name: value for name, value in given.items() if value is not None}


def _selection(filter: str, **given: object) -> bytes:
    """The body of an act on many; None says nothing."""
    return payload.encode_input(
        {"filter": filter, **{name: value for name, value in given.items() if value is not None}}
    )


def _part(text: str) -> str:
    return quote(text, safe="")


class _Fault(msgspec.Struct):
    path: str = ""
    message: str = ""
    line: int | None = None


class _Problem(msgspec.Struct):
    detail: str = ""
    code: str = ""
    title: str = ""
    request_id: str = ""
    errors: list[_Fault] = []


_BY_CODE: Final[Mapping[str, type[errors.HeadraceError]]] = {
    kind.code: kind
    for kind in (
        errors.MessageError,
        errors.NotFoundError,
        errors.ConflictError,
        errors.FencedError,
        errors.UnavailableError,
        errors.InvariantError,
        errors.KeyReusedError,
    )
}
_BY_STATUS: Final[Mapping[int, type[errors.HeadraceError]]] = {
    0: errors.UnavailableError,
    404: errors.NotFoundError,
    409: errors.ConflictError,
    422: errors.PayloadError,
    **dict.fromkeys(_AWAY, errors.UnavailableError),
}


def error_of(reply: Reply) -> errors.HeadraceError:
    """The error an answer stands for: by its code, else by its status."""
    problem = _problem(reply)
    message = problem.detail or problem.title or reply.content[:500].decode("utf-8", "replace") or "no answer"
    if problem.code == errors.DefinitionError.code:
        return errors.DefinitionError([errors.Fault(f.path, f.message, f.line) for f in problem.errors])
    fields: dict[str, Any] = {"status": reply.status, "request_id": problem.request_id}
    if problem.code == errors.FilterError.code:
        return errors.FilterError(message, [errors.Fault(f.path, f.message, f.line) for f in problem.errors], **fields)
    if problem.code == errors.PayloadError.code:
        faults = [errors.Fault(f.path, f.message, f.line) for f in problem.errors]
        return errors.PayloadError(message, reason="BAD_INPUT", faults=faults, **fields)
    kind = _BY_CODE.get(problem.code) or _BY_STATUS.get(reply.status, errors.HeadraceError)
    return kind(message, **fields)


def _problem(reply: Reply) -> _Problem:
    try:
        return msgspec.json.decode(reply.content, type=_Problem)
    except msgspec.MsgspecError:
        return _Problem()  # a proxy's page, or no answer at all
