"""Turns the machine's decisions into rows and records.

`Store` knows the settings; `Rows` collects the columns of one transaction, however many runs and events are in it, and
gives them as one call per statement. The run agent sends those calls through a `Pipe`; the API, the sweeps and the
trigger agent run the same calls on an ordinary connection (`execute`, `execute_sync`). So there is one writer, and one
set of statements to trust.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b, sha256
from math import gcd
from typing import Any, Final, NamedTuple
from uuid import UUID

import msgspec
import psycopg
from confluent_kafka import murmur2
from uuid_utils import uuid7

from headrace.errors import InvariantError
from headrace.machine import (
    Abort,
    Ask,
    AwaitPermit,
    AwaitSlot,
    BuryTask,
    CancelChild,
    Cancelled,
    ChildTold,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    CountRounds,
    Decided,
    Dispatch,
    EndAttempt,
    Finish,
    FreeSlot,
    Grant,
    HoldTasks,
    Isolated,
    KeepOutput,
    KeepSignal,
    KeepUndo,
    Listen,
    MachineEvent,
    Migrated,
    NoteRound,
    Park,
    Paused,
    Plan,
    Prioritised,
    RefuseMove,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    ReturnPermit,
    RunState,
    SetDeadline,
    SetPriority,
    SetTimer,
    Signalled,
    StartChild,
    StopListening,
    Supplied,
    TakeSignal,
    TakeSlot,
    TaskState,
    TaskStatus,
    Terminated,
    Transition,
    Unpark,
)
from headrace.machine.limit import key_of_run
from headrace.machine.place import ITEMS_MAX, RUN, is_item
from headrace.machine.status import AWAITS_PERMIT, TASKS_PAUSED, WORKFLOW_PAUSED
from headrace.messages import Abort as AbortMessage
from headrace.messages import (
    Admitted,
    Command,
    ControlMessage,
    Due,
    Error,
    Failed,
    Granted,
    Lost,
    Requested,
    Returned,
    Started,
    Succeeded,
    encode,
    make_nonce,
)
from headrace.object_store import references
from state.binary import TYPES, Array
from state.fingerprint import Headers, encode_headers, label_record, label_task
from state.outbox import OutboxMode, Record, bundles, table_columns
from state.pipe import Call
from state.settings import EngineSettings
from state.sql import Statement, load

BATCH: Final = load("batch")
_STAYS_IN_ITS_RUN: Final = Error(
    "RESULT_TOO_LARGE", "its output refers to a large result, which only its own run can read", retryable=False
)
_ANSWERS: Final = (Succeeded, Failed, Returned)
_decode_error: Final = msgspec.json.Decoder(Error).decode
RUN_COLUMNS: Final = 11
"""Of a row of `load_runs`; behind them stands a task."""


class Key(NamedTuple):
    """What a posted signal is for, and what a task waits for; and, by the workflow's name, which runs count together
    under its limit."""

    namespace: str
    name: str
    key: str


class BegunPaused(NamedTuple):
    """The pause of its workflow that a run begins with."""

    by: str
    reason: str


class StoredRun(RunState):
    """A run as the store knows it."""

    __slots__ = (
        "base",
        "counted",
        "namespace",
        "outputs",
        "parent",
        "run_id",
        "saved_version",
        "touched",
        "traceparent",
    )

    def __init__(
        self,
        key: bytes,
        plan: Plan,
        input: bytes,
        *,
        row_version: int = 0,
        attention: bool = False,
        control: int = 0,
        tasks: dict[int, TaskState] | None = None,
        token_floor: int = 0,
        namespace: str = "default",
        traceparent: str | None = None,
        signals: Iterable[Signalled] = (),
        deadline_at: int | None = None,
        parent: bytes | None = None,
        paused: Iterable[int] = (),
        undo: Mapping[int, bytes] | None = None,
    ) -> None:
        """parent: the key of the run of which a task waits for this one."""
        super().__init__(
            key, plan, input, row_version=row_version, attention=attention, control=control, tasks=tasks,
            token_floor=token_floor, signals=signals, deadline_at=deadline_at, paused=paused, undo=undo,
        )  # fmt: skip
        self.run_id = bytes.fromhex(key.decode().replace("-", ""))
        self.namespace, self.traceparent, self.parent = namespace, traceparent, parent
        self.base = -1
        self.saved_version = row_version
        """The row_version that Postgres has."""
        self.touched: dict[int, TaskState] = {}
        """Tasks changed since then."""
        self.outputs: dict[int, bytes] = {}
        """Outputs of touched tasks that stand with no attempt."""
        self.counted: dict[int, None] = {}
        """Maps whose counters have changed."""


class Store:
    """What turning decisions into rows needs to know; no connection."""

    def __init__(self, settings: EngineSettings) -> None:
        self.settings = settings
        self.secret = settings.nonce_key()
        self.mode = OutboxMode(settings.outbox)
        self._topics: dict[str, str] = {}
        count = settings.partitions
        self.stride = next(step for step in range(count // 2, count + 2) if step > 0 and gcd(step, count) == 1)
        """From one hand-out of a task to the next: to the other half of the partitions, and in time to all of them. A
        worker has neighbours, so the next partition is likely to be its own, too."""
        self.paused_queues: frozenset[str] = frozenset()
        """As far as this process knows: commands to them are kept back. A sweep looks again and again."""

    def commands_topic(self, queue: str) -> str:
        topic = self._topics.get(queue)
        if topic is None:
            topic = self._topics[queue] = self.settings.commands_topic(queue)
        return topic

    def statements(self) -> list[Statement]:
        """What a Pipe has to prepare."""
        return list(BATCH.values())


class Rows:
    """The rows and records of one transaction."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.rows: dict[str, list[tuple[Any, ...]]] = {}
        """By statement."""
        self.records: list[Record] = []
        self.runs: dict[bytes, StoredRun] = {}
        self.signals: dict[str, tuple[Any, ...]] = {}
        """Signal -> its last row of `settle_signals`: what a run keeps, a task may take in the same transaction."""
        self.keys: set[Key] = set()
        """Keys for which a task began to wait here, or an offer was refused: something may be posted for them."""
        self.has_slots_to_give = False
        """A task began to wait for a slot here, or gave one back."""
        self.deadlines: dict[tuple[bytes, int], int | None] = {}
        """(run, task) -> the last thing that was decided about its deadline."""
        self.rounds: dict[tuple[bytes, int], int] = {}
        """The same for how many rounds have ended."""
        self.undo: dict[tuple[bytes, int], bytes | None] = {}
        """The same for what undoes it as it was before a rerun."""
        self.ended: dict[bytes, tuple[Any, ...]] = {}
        """Child -> its row of `end_children`; of one that ends twice in this transaction, the last."""
        self.permits: dict[bytes, tuple[Any, ...] | None] = {}
        """Run -> the last thing that was decided about its permit: its row of `await_permits`, or that it has none."""
        self.permit_keys: set[Key] = set()
        """Keys of limits of which permits were given back here, or are waited for."""
        self.asks_for_runs = False
        """A child is to start."""
        self.held: dict[tuple[bytes, int], tuple[Any, ...]] = {}
        """Task -> the last command to it that is kept back, as its queue is paused."""
        self.paused_queues = store.paused_queues
        self.soonest: int | None = None
        """The earliest timer set here, for the timer sweep in the same process."""

    # -- collecting
    def add(self, statement: str, *values: Any) -> None:
        rows = self.rows.get(statement)
        if rows is None:
            rows = self.rows[statement] = []
        rows.append(values)

    def begin(
        self,
        run: StoredRun,
        transition: Transition,
        *,
        source: str,
        actor: str = "",
        detail: dict[str, Any] | None = None,
        pause: BegunPaused | None = None,
    ) -> None:
        """A new run and its first advance; pause: it was decided under that."""
        run.apply(transition)
        self._history(run, "started", None, None, actor, detail)
        if pause is not None:
            run.row_version += 1
            said = {"reason": pause.reason, "scope": WORKFLOW_PAUSED}
            self._history(run, "paused", None, None, pause.by, said)
        self.add(
            "insert_runs",
            run.run_id,
            run.namespace,
            run.plan.version_id,
            run.status,
            run.row_version,
            run.input,
            run.traceparent,
            source,
            run.control,
        )
        self._act(run, transition, None)
        _touch(run, transition)
        run.saved_version = run.row_version
        self._save_tasks(run)

    def move(self, run: StoredRun, event: MachineEvent, transition: Transition) -> None:
        """One event that changed a run. Applies the transition."""
        if isinstance(event, Reran):
            self._rerun(run, event, run.row_version + 1)
        elif isinstance(event, Migrated) and transition.plan is not None:
            self._migrate(run, event, transition.plan, run.row_version + 1)
        run.apply(transition)
        self.runs.setdefault(run.key, run)
        ended = self._act(run, transition, event)
        # What ended an attempt of its task stands with that attempt; an operator's output has a line of its own.
        if isinstance(event, Supplied) or getattr(event, "task", None) not in ended:
            self._event_history(run, event, transition)
        _touch(run, transition)

    def set_priority(self, run: StoredRun, priority: int) -> None:
        others = [row for row in self.rows.get("set_priorities", ()) if row[0] != run.run_id]
        self.rows["set_priorities"] = [*others, (run.run_id, priority)]

    def label_run(self, run: StoredRun, labels: Mapping[str, str]) -> None:
        """What a run that begins is called."""
        for name, value in labels.items():
            self.add("label_runs", run.run_id, run.namespace, name, value)

    def hold(self, run: StoredRun, tasks: Sequence[int]) -> None:
        """They are paused by themselves, and no others of the run: the last that is said of it holds."""
        others = [row for row in self.rows.get("hold_tasks", ()) if row[0] != run.run_id]
        self.rows["hold_tasks"] = [*others, (run.run_id, f"{{{','.join(map(str, tasks))}}}" if tasks else None)]

    def await_permit(self, run: StoredRun, key: str, *, is_granted: bool) -> None:
        """The run counts under the limit of its workflow."""
        self.permits[run.run_id] = (run.run_id, run.namespace, run.plan.name, key, is_granted)
        if not is_granted:
            self.permit_keys.add(Key(run.namespace, run.plan.name, key))

    def replace_run(self, run_id: UUID, by: UUID) -> None:
        """Ask a run to end for another, under the limit of their workflow."""
        inbox_id = UUID(bytes=uuid7().bytes)
        self.add("replace_runs", run_id.bytes, inbox_id.bytes, by.bytes)
        record = Record(self.store.settings.events_topic, str(run_id).encode(), encode(Requested(str(inbox_id))))
        self.records.append(record)

    def bury_record(
        self, namespace: str, run_id: bytes | None, topic: str, partition: int, offset: int, key: bytes | None, value:
        bytes | None,
        reason: str, trace: str = "", headers: Headers = None,
    ) -> None:  # fmt: skip
        """Set an undecodable record, or one whose handling raised, aside with its original bytes."""
        error = Error(code="BAD_RECORD", message=reason, trace=trace, retryable=False)
        label = label_record(error, topic)
        self.add(
            "bury_records", uuid7().bytes, namespace, run_id, topic, partition, offset, key, value,
            encode_headers(headers), reason, encode(error), *label,
        )  # fmt: skip

    def refuse_signal(self, run: StoredRun, signal: Signalled, reason: str) -> None:
        """It came to a run that does not take it any more."""
        self.signals[signal.signal_id] = (_bytes_of(signal.signal_id), "refused", None, None, None, reason)
        if signal.task is not None and signal.key is not None:
            self.keys.add(Key(run.namespace, signal.name, signal.key))

    def control(self, key: bytes, message: ControlMessage) -> None:
        self.records.append(Record(self.store.settings.control_topic, key, encode(message)))

    # -- one decision
    def _act(self, run: StoredRun, transition: Transition, event: MachineEvent | None) -> list[int]:
        """Write the actions of one transition; answers of which tasks an attempt ended."""
        ended: list[int] = []
        for action in transition.actions:
            match action:
                case Dispatch():
                    self._dispatch(run, action)
                case EndAttempt():
                    ended.append(action.task)
                    self._end_attempt(run, action, event)
                case Grant():
                    granted = Granted(run.key.decode(), action.task, action.token, action.session)
                    self.control(run.key, granted)
                case KeepOutput():
                    run.outputs[action.task] = action.output
                case KeepUndo():
                    self.undo[run.run_id, action.task] = action.input
                case Park():
                    error = encode(action.error)
                    self.add("park_tasks", run.run_id, action.task, action.token, run.namespace, error)
                case Unpark():
                    self.add("unpark_tasks", run.run_id, action.task)
                case SetTimer():
                    self.add("set_timers", run.run_id, action.task, action.token, action.kind, action.due_at)
                    if self.soonest is None or action.due_at < self.soonest:
                        self.soonest = action.due_at
                case ClearTimer():
                    self._drop("set_timers", "delete_timers", run, action.task)
                case SetDeadline():
                    self.deadlines[run.run_id, action.task] = action.due_at
                case CountRounds():
                    self.rounds[run.run_id, action.task] = action.rounds
                case NoteRound():
                    self.add("note_rounds", run.run_id, action.task, action.token, action.round)
                case Ask():
                    self._ask(run, action)
                case CloseQuestion():
                    self.add("close_approvals", run.run_id, action.task, action.token)
                case Listen():
                    self._listen(run, action)
                case StopListening():
                    self._drop("listen", "stop_listening", run, action.task)
                case KeepSignal():
                    self.signals[action.signal_id] = (_bytes_of(action.signal_id), "kept", None, None, None, None)
                case TakeSignal():
                    hand_out = (action.task, action.token, run.row_version)
                    self.signals[action.signal_id] = (_bytes_of(action.signal_id), "taken", *hand_out, None)
                case AwaitSlot():
                    self.add(
                        "await_slots",
                        run.run_id,
                        action.task,
                        action.token,
                        run.namespace,
                        action.pool,
                        action.fairness_key,
                    )
                    self.has_slots_to_give = True
                case TakeSlot():
                    self.add("leave_queues", run.run_id, action.task)
                case FreeSlot():
                    self._drop("await_slots", "leave_queues", run, action.task)
                    self.add("free_slots", run.run_id, action.task)
                    self.has_slots_to_give = True
                case HoldTasks():
                    self.hold(run, action.tasks)
                case SetPriority():
                    self.set_priority(run, action.priority)
                case StartChild():
                    self._start_child(run, action)
                case CancelChild():
                    self.add("cancel_children", run.run_id, action.task, action.token, uuid7().bytes)
                case Abort():
                    self.control(run.key, AbortMessage(run.key.decode(), action.task, action.token, action.reason))
                case BuryTask():
                    label = label_task(action.error, run.plan, action.task)
                    self.add(
                        "bury_tasks", uuid7().bytes, run.namespace, run.run_id, action.task, action.token,
                        action.error.code, encode(action.error), label.message, run.plan.at(action.task).name,
                        run.plan.name, run.plan.version, label.fingerprint,
                    )  # fmt: skip
                case CloseLetter():
                    by, reason = (event.by, event.reason) if isinstance(event, Reran | Supplied) else ("", "")
                    self.add("close_letters", run.run_id, action.task, action.token, action.status, by, reason or None)
                case RefuseMove():
                    by, reason = (event.by, event.reason) if isinstance(event, Migrated) else ("", "")
                    told = {"from": run.plan.version, "to": action.version, "why": action.why, "reason": reason}
                    told |= _resumes(event)
                    self._history(run, "migration_refused", None, None, by, told)
                case AwaitPermit():
                    self.await_permit(run, action.key, is_granted=action.is_granted)
                case ReturnPermit():
                    self.permits[run.run_id] = None
                    self.permit_keys.add(Key(run.namespace, run.plan.name, key_of_run(run.plan, run)))
                case Finish():
                    if action.output is not None or action.error is not None:
                        why = None if action.error is None else encode(action.error)
                        self.add("save_outputs", run.run_id, action.output, why)
                    if run.parent is not None:
                        self._tell_parent(run, run.parent, action)
        return ended

    def _dispatch(self, run: StoredRun, action: Dispatch) -> None:
        spec, name = run.plan.at(action.task), None
        if run.base < 0:
            run.base = murmur2(run.key, self.store.settings.partitions)
        spread = (action.task if run.plan.is_wide else 0) + (action.token - 1) * self.store.stride
        if is_item(action.task):
            name, spread = run.plan.name_of(action.task), action.task + (action.token - 1) * self.store.stride
        command = Command(
            task=action.task,
            name=name or spec.name,
            run=(spec.lookup if action.lookup else spec.run) or "",
            attempt=action.attempt,
            token=action.token,
            nonce=make_nonce(self.store.secret, run.key, action.task, action.token),
            input=msgspec.Raw(action.input),
            lease=self.store.settings.lease_seconds,
            timeout=spec.timeout,
            claim=spec.claims and not action.lookup,
            exclusive=spec.exclusive and not action.lookup,
            inline=spec.is_read or action.lookup,
            lookup=action.lookup,
            round=action.round,
            effect_name=spec.was and run.plan.effect_name_of(action.task),
            workflow=run.plan.name,
            version=run.plan.version,
        )
        partition = (run.base + spread) % self.store.settings.partitions
        if spec.queue in self.paused_queues:
            kept = (action.token, spec.queue, partition, encode(command), run.traceparent)
            self.held[run.run_id, action.task] = (run.run_id, action.task, *kept)
            return
        topic = self.store.commands_topic(spec.queue)
        self.records.append(Record(topic, run.key, encode(command), partition, run.traceparent))

    def _end_attempt(self, run: StoredRun, action: EndAttempt, event: MachineEvent | None) -> None:
        worker, started, finished, output = "", None, None, None
        if isinstance(event, _ANSWERS):
            worker, started, finished = event.worker, event.started or None, event.finished or None
        if isinstance(event, Succeeded):
            output = bytes(event.output)
        error = None if action.error is None else encode(action.error)
        self.add(
            "insert_attempts", run.run_id, action.task, action.token, action.attempt, action.outcome, run.row_version,
            worker, started, finished, output, error,
        )  # fmt: skip

    def _drop(self, made: str, dropped: str, run: StoredRun, task: int) -> None:
        """Take a task's row away, also one made earlier in this batch: what a batch makes and drops was never there."""
        self.add(dropped, run.run_id, task)
        if rows := self.rows.get(made):
            self.rows[made] = [row for row in rows if row[:2] != (run.run_id, task)]

    def _listen(self, run: StoredRun, action: Listen) -> None:
        spec = run.plan.tasks[action.task].signal
        if spec is None:
            raise InvariantError("a task listens that has no signal", run_id=run.key.decode(), task=action.task)
        wait = (run.run_id, action.task, action.token, run.namespace, action.name, action.key, spec.delivery)
        self.add("listen", *wait)
        if action.key is not None:
            self.keys.add(Key(run.namespace, action.name, action.key))

    def _start_child(self, run: StoredRun, action: StartChild) -> None:
        child = run.plan.tasks[action.task].child
        if child is None:
            raise InvariantError("a task starts a run that has none", run_id=run.key.decode(), task=action.task)
        self.asks_for_runs = True
        self.add(
            "start_children", run.run_id, action.task, action.token, uuid7().bytes, run.namespace, child.workflow,
            child.version, action.input, run.traceparent, child.is_awaited,
        )  # fmt: skip

    def _tell_parent(self, run: StoredRun, parent: bytes, action: Finish) -> None:
        """The wake-up only names the row that `end_children` makes; lost, it is said again like that of any request."""
        output, error = action.output, action.error
        if output is not None and any(references(output)):
            error, output = _STAYS_IN_ITS_RUN, None
        why = None if error is None else encode(error)
        known = self.ended.get(run.run_id)
        inbox_id = UUID(bytes=uuid7().bytes if known is None else known[1])
        if known is None:
            self.records.append(Record(self.store.settings.events_topic, parent, encode(Requested(str(inbox_id)))))
        self.ended[run.run_id] = (run.run_id, inbox_id.bytes, str(action.status), output, why)

    def _ask(self, run: StoredRun, action: Ask) -> None:
        spec = run.plan.tasks[action.task].approval
        if spec is None:
            raise InvariantError("asked for a task without an approval", run_id=run.key.decode(), task=action.task)
        approval_id = blake2b(b"approval/%b/%d/%d" % (run.key, action.task, action.token), digest_size=16).digest()
        title = spec.title if action.title is None else action.title
        self.add(
            "ask_approvals", approval_id, run.namespace, run.run_id, action.task, action.token, title,
            msgspec.json.encode(spec.approvers), spec.on_expiry, _seconds(spec.expires), action.context, spec.form,
            spec.needed, spec.no_self_approval, digest_of(title, action.context, spec.form),
        )  # fmt: skip
        for position, after in enumerate(spec.remind):
            self.add("set_approval_timers", approval_id, "remind", position, _seconds(after), None)
        for position, step in enumerate(spec.steps):
            targets = msgspec.json.encode(step.to)
            self.add("set_approval_timers", approval_id, "escalate", position, _seconds(step.after), targets)

    # -- history
    def _history(
        self,
        run: StoredRun,
        kind: str,
        task: int | None,
        token: int | None,
        actor: str = "",
        detail: dict[str, Any] | None = None,
    ) -> None:
        raw = None if detail is None else msgspec.json.encode(detail)
        self.add("insert_history", run.run_id, run.row_version, kind, task, token, actor or None, raw)

    def _event_history(self, run: StoredRun, event: MachineEvent, transition: Transition) -> None:
        match event:
            case Signalled():
                taker = next((a for a in transition.actions if isinstance(a, TakeSignal)), None)
                task, token = (None, None) if taker is None else (taker.task, taker.token)
                detail = {"signal_id": event.signal_id, "name": event.name}
                self._history(run, "signalled", task, token, event.by, detail)
            case ChildTold():
                why = None if event.error is None else msgspec.to_builtins(event.error)
                told = {"child": event.child, "outcome": event.outcome, "error": why}
                self._history(run, "child_told", event.task, event.token, "", told)
            case Cancelled():
                self._history(run, "cancelled", None, None, event.by, {"reason": event.reason})
            case Terminated():
                self._history(run, "terminated", None, None, event.by, {"reason": event.reason})
            case Resumed() if event.scope == AWAITS_PERMIT:
                self._history(run, "permitted", None, None)
            case Paused() | Resumed():
                kind = "paused" if isinstance(event, Paused) else "resumed"
                task = event.task if event.scope == TASKS_PAUSED else None
                self._history(run, kind, task, None, event.by, {"reason": event.reason, "scope": event.scope})
            case Prioritised():
                given: dict[str, Any] = {"priority": event.priority, "reason": event.reason}
                self._history(run, "prioritised", None, None, event.by, given)
            case Admitted():
                self._history(run, "admitted", event.task, event.token)
            case Decided():
                self._history(
                    run,
                    "decided",
                    event.task,
                    event.token,
                    event.by,
                    {"outcome": event.outcome, "comment": event.comment},
                )
            case Replayed():
                edited = {"input": msgspec.Raw(event.input)} if event.input is not None else None
                self._history(run, "replayed", event.task, event.token, event.by, edited)
            case Supplied():
                given = {"reason": event.reason, "output": msgspec.Raw(event.output)}
                self._history(run, "supplied", event.task, event.token, event.by, given)
            case Reran() | Migrated():
                pass  # told before it was applied, or with what stood in the way
            case Isolated():
                self._history(run, "isolated", None, None, "", {"error": msgspec.to_builtins(event.error)})
            case Released():
                self._history(run, "released", None, None, event.by)
            case Due():
                task = None if event.task == RUN else event.task
                self._history(run, "due", task, event.token, "", {"timer": event.timer})
            case Lost():
                self._history(run, "lost", event.task, event.token, "", {"reason": event.reason})
            case Started() if run.task(event.task).withheld:
                self._history(run, "claim_withheld", event.task, event.token, event.worker)
            case Started() if not transition.tasks:  # a claim was answered once more
                self._history(run, "granted_again", event.task, event.token)
            case Started():
                kind = "lookup_started" if run.task(event.task).lookups else "attempt_started"
                self._history(run, kind, event.task, event.token, event.worker, {"session_id": event.session})
            case Resolved():
                detail = {"outcome": event.outcome, "comment": event.comment}
                self._history(run, "resolved", event.task, event.token, event.by, detail)
            case Returned():
                self._history(run, "returned", event.task, event.token, event.worker, {"reason": event.reason})
            case Succeeded():  # of no attempt, so of a lookup
                self._history(
                    run, "looked_up", event.task, event.token, event.worker, {"answer": msgspec.Raw(event.output)}
                )
            case Failed():
                error = msgspec.to_builtins(event.error)
                self._history(run, "lookup_failed", event.task, event.token, event.worker, {"error": error})

    def _rerun(self, run: StoredRun, event: Reran, row_version: int) -> None:
        """Before the run is moved. Its row of history is like a replay's when a task is given another input: under the
        token that the task had."""
        names = [run.plan.name_of(place) for place in event.tasks]
        detail: dict[str, Any] = {"reason": event.reason, "from": names or "failed"}
        task = token = None
        if event.input is not None:
            detail["input"] = msgspec.Raw(event.input)
            (task,) = event.tasks
            token = run.task(task).token
        if event.plan is not None and event.plan.version_id != run.plan.version_id:
            detail["version"] = {"from": run.plan.version, "to": event.plan.version}
            self._move_to(run, event.plan)
        raw = msgspec.json.encode(detail)
        self.add("insert_history", run.run_id, row_version, "reran", task, token, event.by or None, raw)
        self.add("clear_outputs", run.run_id)
        if outputs := self.rows.get("save_outputs"):  # also one kept earlier in this batch
            self.rows["save_outputs"] = [row for row in outputs if row[0] != run.run_id]

    def _migrate(self, run: StoredRun, event: Migrated, plan: Plan, row_version: int) -> None:
        """Before the run is moved, while its plan is still the older one."""
        detail = {"from": run.plan.version, "to": plan.version, "reason": event.reason, **_resumes(event)}
        raw = msgspec.json.encode(detail)
        self.add("insert_history", run.run_id, row_version, "migrated", None, None, event.by or None, raw)
        self._move_to(run, plan)

    def _move_to(self, run: StoredRun, plan: Plan) -> None:
        moves = self.rows.setdefault("move_runs", [])
        moves[:] = [move for move in moves if move[0] != run.run_id]  # of two in a batch the later one holds
        moves.append((run.run_id, plan.version_id, len(plan.tasks)))
        for index in [index for index in run.touched if len(plan.tasks) <= index < ITEMS_MAX]:
            del run.touched[index]  # put back to how all begin, in this batch

    # -- giving ----------------------------------------------------------------------
    def _save_tasks(self, run: StoredRun) -> None:
        """The final state of every task that this transaction touched, once each, by the cheapest statement that
        fits."""
        is_lasting = run.plan.has_deadlines  # there a first hand-out may have a timer
        first = run.token_floor + 1
        for index, task in run.touched.items():
            status = task.status
            if (
                status is TaskStatus.QUEUED and task.token == first and not task.attempt and not task.vanished
                and task.input is None and not task.pool and not is_lasting
            ):  # fmt: skip
                self.add("hand_out_tasks", run.run_id, index, task.token)
            elif status is TaskStatus.COMPLETED and index not in run.outputs and run.plan.at(index).is_answered:
                # Its output stands with an attempt of its body.
                self.add("complete_tasks", run.run_id, index, task.attempt, task.token)
            else:
                self._save_task(run, index, task)
        for index in run.counted:
            counts = run.maps[index]
            self.add("count_items", run.run_id, index, counts.begun, counts.completed, counts.failed)
        run.touched.clear()
        run.counted.clear()
        run.outputs.clear()

    def _save_task(self, run: StoredRun, index: int, task: TaskState) -> None:
        session = task.session if task.status is TaskStatus.RUNNING else ""
        holder = bytes.fromhex(session.replace("-", "")) if session else None
        output = run.outputs.get(index)
        spec = run.plan.at(index)
        goes_round = spec.repeat is not None and task.status is not TaskStatus.COMPLETED
        if output is None and (spec.run is None or goes_round):
            output = task.output
        error = None if task.error is None else encode(task.error)
        self.add(
            "save_tasks", run.run_id, index, task.status, task.attempt, task.token, task.retries_from, holder,
            task.lookups, task.vanished, task.withheld or None, task.due_at, task.input, output, error, task.items,
            task.pool or None,
        )  # fmt: skip

    def _publish(self) -> None:
        if self.store.mode is OutboxMode.MESSAGES:
            for content in bundles(self.records):
                self.add("publish_messages", content)
            return
        rows = table_columns(self.records)
        ids = [uuid.bytes for uuid in rows.pop("id")]
        self.rows["publish_rows"] = list(zip(ids, *rows.values(), strict=True))
        self.rows["delete_rows"] = [(one,) for one in ids]

    def calls(self) -> list[Call]:
        """Everything as one call per statement, in the order in which they must run; parameters are binary arrays."""
        for run in self.runs.values():
            self.add("save_runs", run.run_id, run.saved_version, run.row_version, run.status, run.control)
            self._save_tasks(run)
            run.saved_version = run.row_version
        self.runs.clear()
        if self.signals:
            self.rows["settle_signals"] = list(self.signals.values())
            self.signals = {}
        if self.deadlines:
            self.rows["save_deadlines"] = [(*place, due_at) for place, due_at in self.deadlines.items()]
            self.deadlines = {}
        if self.rounds:
            self.rows["count_rounds"] = [(*place, rounds) for place, rounds in self.rounds.items()]
            self.rounds = {}
        if self.undo:
            self.rows["keep_undo"] = [(*place, given) for place, given in self.undo.items()]
            self.undo = {}
        if self.permits:
            self.rows["return_permits"] = [(run_id,) for run_id, row in self.permits.items() if row is None]
            self.rows["await_permits"] = [row for row in self.permits.values() if row is not None]
            self.permits = {}
        if self.ended:
            self.rows["end_children"] = list(self.ended.values())
            self.ended = {}
        if self.held:
            self.rows["hold_commands"] = list(self.held.values())
            self.held = {}
        if self.records:
            self._publish()
            self.records = []
        given = self.rows
        return [(name, _encode(statement, given[name])) for name, statement in BATCH.items() if given.get(name)]


def read_task(
    status: str, attempt: int, token: int, retries_from: int, due_at: datetime | None, input: str | None, output: str |
    None, error: str | None, session_id: UUID | None, lookups: int,
    vanished: int = 0, withheld: str | None = None, items: int | None = None, pool: str | None = None,
    deadline_at: datetime | None = None, rounds: int | None = None,
) -> TaskState:  # fmt: skip
    """A task as `load_runs` gives it, behind its position."""
    return TaskState(
        TaskStatus(status),
        attempt,
        token,
        microseconds_of(due_at),
        retries_from,
        None if input is None else input.encode(),
        None if output is None else output.encode(),
        None if error is None else _decode_error(error),
        "" if session_id is None else session_id.hex,
        lookups,
        vanished,
        withheld or "",
        items,
        pool or "",
        microseconds_of(deadline_at),
        rounds or 0,
    )


def read_tasks(
    rows: Iterable[tuple[Any, ...]],
) -> tuple[dict[int, TaskState], dict[int, bytes]]:
    """The tasks of one run, and what is kept to undo some of them, by their positions. rows: of `load_runs`."""
    tasks, undo = dict[int, TaskState](), dict[int, bytes]()
    for row in rows:
        index, *state, kept = row[RUN_COLUMNS:]
        if index is None:
            continue
        tasks[index] = read_task(*state)
        if kept is not None:
            undo[index] = kept.encode()
    return tasks, undo


def digest_of(title: str, context: bytes | None, form: bytes | None) -> str:
    """SHA-256, in hex, of what people are shown: the JSON `{"title":…,"context":…,"form":…}` without spaces."""
    shown = {"title": title, "context": msgspec.Raw(context or b"null"), "form": msgspec.Raw(form or b"null")}
    return sha256(msgspec.json.encode(shown)).hexdigest()


def _resumes(event: MachineEvent | None) -> dict[str, Any]:
    """The pause that a move ends, for the history."""
    return {"resumes": event.resumes} if isinstance(event, Migrated) and event.resumes else {}


def _seconds(microseconds: int | None) -> int | None:
    return None if microseconds is None else microseconds // 1_000_000


def microseconds_of(at: datetime | None) -> int | None:
    return None if at is None else round(at.timestamp() * 1_000_000)


def _touch(run: StoredRun, transition: Transition) -> None:
    run.touched.update(transition.tasks)
    if transition.maps is not None:
        run.counted.update(dict.fromkeys(transition.maps))


def _bytes_of(id_: str) -> bytes:
    """A UUID in its 36 characters, as a binary column wants it."""
    return bytes.fromhex(id_.replace("-", ""))


def _encode(statement: Statement, rows: list[tuple[Any, ...]]) -> list[bytes]:
    columns = zip(*rows, strict=True)
    return [TYPES[kind][1](values) for (_, kind), values in zip(statement.columns, columns, strict=True)]


async def execute(connection: psycopg.AsyncConnection[Any], calls: Sequence[Call]) -> None:
    """Run a batch's calls in the caller's open transaction, on an ordinary connection, in one round trip."""
    async with connection.pipeline(), psycopg.AsyncRawCursor(connection) as cursor:
        for name, parameters in calls:
            await cursor.execute(BATCH[name].sql, [Array.encoded(raw) for raw in parameters])


def execute_sync(connection: psycopg.Connection[Any], calls: Sequence[Call]) -> None:
    """The same, for a thread of its own."""
    with psycopg.RawCursor(connection) as cursor:
        for name, parameters in calls:
            cursor.execute(BATCH[name].sql, [Array.encoded(raw) for raw in parameters])
