"""The pure state machine: what one event does to one run.

A run is one published version carried out once. It is nothing but the states of its tasks, one control flag, and its
input; its own status is a function of those and is never decided separately. `advance(plan, run, event, at)` reads the
run and answers with a `Transition`: new values of the tasks it touches and the actions that must be persisted with
them. It touches nothing, and reads no clock, no socket, no randomness: the instant is an argument, jitter and nonces
are hashes of what is already fixed.

States of a task, and who causes each edge
    PENDING    its join is undecided, it waits out a backoff, or      the graph; a failed attempt; a pause
               its run is paused and it would begin
    QUEUED     handed out: a command with this token is on its way    its join; backoff due; lost; approved; replayed
    RUNNING    a worker said that its body began                      Started
    WAITING    a person is asked, an instant has to come, a signal,   a task with an approval, a wait, a signal or a map
               or the items of a map have to end                      became ready; an ambiguous end of a `manual` task
    COMPLETED  it has its result                                      Succeeded; Decided approved; Due; Signalled;
                                                                      Supplied
    FAILED     no try is left, or none can help                       Failed, Lost, Due; Decided rejected or expired
    SKIPPED    it will never run                                      condition false; its join
    CANCELLED  the run was cancelled or terminated before it ended    Cancelled, Terminated
The last four are terminal. Only an operator's act leads out of one: `Replayed` takes a FAILED task of a dead letter
back to QUEUED, and the tasks that were skipped because of it back to PENDING; `Supplied` completes a FAILED task (or
one that is open) with an output that a person gives; `Reran` takes part of a run that has ended back to where its joins
decide about it. None goes round an approval: a task that never ran is asked about (again) first.

The token counts hand-outs, questions and waits of a task: it rises by one with each, and never falls, over restarts,
failovers and replays. An event that names another token than the task's is stale: it changes nothing. So a late,
repeated or forged answer is an ordinary input. The attempt counts bodies that began; a hand-out that was lost before
its body began uses none up.

A task whose effect must not be repeated blindly (`effect: reconcile` or `manual`), or whose bodies must not overlap
(`exclusive`), is claimed first: its body starts after RUNNING and its holder are recorded. So a QUEUED hand-out of it
that is lost never began. When it was RUNNING and its end is ambiguous (lost, timed out, failed or handed back in the
middle), `manual` parks it: WAITING for a person, with what is not known as its error. `reconcile` hands out its lookup
first, under tokens of their own, as often as its retry policy says; a lookup that cannot tell parks it as well. While
`lookups` counts, the answers of QUEUED and RUNNING are those of the lookup, which is no attempt.

A join decides about a task by how what it needs has ended, and by nothing else: in whatever order they end, the answer
is the same. It runs as soon as its join allows that, and is skipped once it can never run:
    all            all completed                       skipped at the first that failed; by another skip, at the end
    any, or N      1 or N of them completed            skipped when all have ended
    always         all have ended                      never
    on_failure     all have ended, and one has failed  skipped when all have ended
To have failed is to be FAILED, or SKIPPED because of a failure further back: such a skip says UPSTREAM_FAILED; any
other says why it came (CONDITION_FALSE, UPSTREAM_SKIPPED, NOTHING_FAILED) and goes on as a skip. So a failure reaches
whoever asked for it, and a false condition does not look like one. A replay takes back the skips that only this failure
caused; what has begun stays as it is. A condition is looked at when the join allows the task to run. A run ends when
all its tasks have: FAILED if one did, also where a task `on_failure` came after it. A cancel is no end of a need: it
ends all tasks at once, those that were to run always too.

A rerun takes the tasks it names and all behind them, or what failed or was cancelled and what was skipped because of
that; the ends of the others stand. What it takes is as before its join was decided, but that no token and no attempt
number is used again. It names the row_version of the run that the operator saw, so that it happens once, to that. A
task whose body began before may have had its effect: at its turn its policy is asked, as after an ambiguous end.

A signal is told to a run from outside, at any time, and is an event of that run like any other. The first task of the
graph that waits for its name, and for its key if it has one, takes it and has completed. While none does, the run keeps
it, and the first task that begins to wait for it takes it at once: of several, the one that was stored first. So it
makes no difference which of the two comes first. One signal completes one task, and whatever comes second is stale: the
signal again, or the time-out of a wait that has ended. A signal that comes after the time-out is kept. What a run has
kept when it ends stays with it, for a replay; a run that has ended takes nothing more. A signal that was posted for
whoever waits for its key is offered to one wait, of this hand-out of this task; when that is over it is stale here, and
the engine offers it to another.

A pause is a flag of the run and no state of a task: while it is set, nothing of the run begins, be it a body, a lookup,
a question or a wait. What would begin is PENDING and `withheld`, together with where it goes on, and does so in the
order of the graph when nobody pauses the run any more. What was handed out before goes on to its end, and counts: a
result may be on its way already. Only a claim is not granted, since its body has not begun. What waits goes on to wait,
for its timer, its backoff, a signal or a person, and an answer to it is kept. A run that ends is paused no more. What a
termination does at once is what a cancel does, and is told apart: it will not do what a cancel will to clean up.

A map is WAITING while its items work, and an item is a task (`headrace.machine.place` numbers it): all that is said
above holds for it, except that nothing comes before or after it. When an item ends, the map's counters change by one
and the next item is handed out, so an item costs the same however long the list is. What an item that failed leads to,
the map says: it stops and fails (`fail_fast`), fails once all have ended (`finish`), or completes (`collect`). A replay
of an item takes a map that failed back to WAITING, but not one that has completed. Open items count in the run's
status; of those that have ended only their map does.

`advance` and `apply` cost O(tasks the event touches); only a cancel, a termination, the end of a pause and a rerun
touch all, and the end of a map its items. Recursion is nowhere.

Not modelled here: whether a holder still lives (the sweeps read sessions), offsets and ownership (the run agent).
"""

from headrace.machine.actions import (
    Abort,
    Action,
    Ask,
    BuryTask,
    ClearTimer,
    CloseLetter,
    CloseQuestion,
    Dispatch,
    EndAttempt,
    Finish,
    Grant,
    KeepOutput,
    KeepSignal,
    Listen,
    Park,
    SetTimer,
    StopListening,
    TakeSignal,
    Transition,
    Unpark,
)
from headrace.machine.advance import advance, begin
from headrace.machine.event import (
    Cancelled,
    Decided,
    Isolated,
    MachineEvent,
    Paused,
    Released,
    Replayed,
    Reran,
    Resolved,
    Resumed,
    Signalled,
    Supplied,
    Terminated,
)
from headrace.machine.plan import Plan, TaskPlan, compile_plan
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import RunStatus, TaskStatus, derive_status

__all__ = [
    "Abort",
    "Action",
    "Ask",
    "BuryTask",
    "Cancelled",
    "ClearTimer",
    "CloseLetter",
    "CloseQuestion",
    "Decided",
    "Dispatch",
    "EndAttempt",
    "Finish",
    "Grant",
    "Isolated",
    "KeepOutput",
    "KeepSignal",
    "Listen",
    "MachineEvent",
    "Park",
    "Paused",
    "Plan",
    "Released",
    "Replayed",
    "Reran",
    "Resolved",
    "Resumed",
    "RunState",
    "RunStatus",
    "SetTimer",
    "Signalled",
    "StopListening",
    "Supplied",
    "TakeSignal",
    "TaskPlan",
    "TaskState",
    "TaskStatus",
    "Terminated",
    "Transition",
    "Unpark",
    "advance",
    "begin",
    "compile_plan",
    "derive_status",
]
