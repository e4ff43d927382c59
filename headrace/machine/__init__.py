"""The pure state machine: what one event does to one run.

A run is one published version carried out once. It is nothing but the states of its tasks, one control flag, and its
input; its own status is a function of those and is never decided separately. `advance(plan, run, event, at)` reads the
run and answers with a `Transition`: new values of the tasks it touches and the actions that must be persisted with
them. It touches nothing, and reads no clock, no socket, no randomness: the instant is an argument, jitter and nonces
are hashes of what is already fixed.

States of a task, and who causes each edge
    PENDING    its join is undecided, it waits out a backoff or for   the graph; a failed attempt; a round that ended;
               its next round, or its run is paused and it would      a pause
               begin
    QUEUED     handed out: a command with this token is on its way    its join; backoff due; lost; approved; replayed;
                                                                      Admitted to its pool
    RUNNING    a worker said that its body began                      Started
    WAITING    a person is asked; an instant, a signal, the end of a  a task with an approval, a wait, a signal, a
               child or of the items of a map has to come; or its     child, a map or a pool became ready; an ambiguous
               pool has no slot for it                                end of a `manual` task
    COMPLETED  it has its result                                      Succeeded; Decided, by declaration also
                                                                      rejected; Due; Signalled; ChildTold; Supplied
    FAILED     no try is left, or none can help                       Failed, Lost, Due; Decided rejected or expired;
                                                                      ChildTold
    SKIPPED    it will never run                                      condition false; its join
    CANCELLED  the run was cancelled or terminated before it ended,   Cancelled, Terminated; ChildTold
               or its child was
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
    finally        all have ended                      never; and a cancel leaves it, see below
    on_failure     all have ended, and one has failed  skipped when all have ended
To have failed is to be FAILED, CANCELLED with its child, or SKIPPED because of either further back: such a skip says
UPSTREAM_FAILED; any other says why it came (CONDITION_FALSE, UPSTREAM_SKIPPED, NOTHING_FAILED) and goes on as a skip.
So a failure reaches whoever asked for it, and a false condition does not look like one. A replay takes back the skips
that only this failure caused; what has begun stays as it is. A condition is looked at when the join allows the task to
run. A run ends when all its tasks have: FAILED if one did, also where a task `on_failure` came after it; otherwise
CANCELLED if one was. A cancel of the run is no end of a need: it ends all tasks at once, those that were to run always
too, but for clean-ups.

A rerun takes the tasks it names and all behind them, or what failed or was cancelled and what was skipped because of
that; the ends of the others stand. What it takes is as before its join was decided, but that no token and no attempt
number is used again. It names the row_version of the run that the operator saw, so that it happens once, to that. A
task whose body began before may have had its effect: at its turn its policy is asked, as after an ambiguous end.

A run stays on the version it began with, until an operator moves it while it is paused and nothing of it runs. What has
ended stands. A task that was touched keeps its position, its kind and the name that its effect keys say, so every row,
timer and nonce keeps its meaning; all other joins are counted anew by the new graph, and what may begin is withheld. A
move that meets an obstacle changes nothing but the history, which says what it was. Where the run was paused for its
move only, that pause ends with it, whether it was moved or not. A rerun may bring another version along: what has ended
keeps its place, name and kind there, what runs again goes by the new graph, and what that adds runs as well.

A signal is told to a run from outside, at any time, and is an event of that run like any other. The first task of the
graph that waits for its name, and for its key if it has one, takes it and has completed. While none does, the run keeps
it, and the first task that begins to wait for it takes it at once: of several, the one that was stored first. So it
makes no difference which of the two comes first. One signal completes one task, and whatever comes second is stale: the
signal again, or the time-out of a wait that has ended. A signal that comes after the time-out is kept. What a run has
kept when it ends stays with it, for a replay; a run that has ended takes nothing more. A signal that was posted for
whoever waits for its key is offered to one wait, of this hand-out of this task; when that is over it is stale here, and
the engine offers it to another.

A question is asked of people with what they are shown, written from the run as it is then; one that cannot be written
fails its task. Who may answer, how many have to, reminders and escalation are no affair of the machine: it hears of the
outcome, once. A rejection fails the task, or completes it without its body, with the answer as its output.

A pause is a flag of the run and no state of a task: while it is set, nothing of the run begins, be it a body, a lookup,
a question or a wait. What would begin is PENDING and `withheld`, together with where it goes on, and does so in the
order of the graph when nobody pauses the run any more. What was handed out before goes on to its end, and counts: a
result may be on its way already. Only a claim is not granted, since its body has not begun. What waits goes on to wait,
for its timer, its backoff, a signal or a person, and an answer to it is kept. A run that ends is paused no more. What a
termination does at once is what a cancel does, and is told apart: it will not do what a cancel will to clean up. One
task can be paused by itself: the same holds for it and for the items of a map, and the rest of the run goes on; its
joins do not ask. Only what undoes it is not paused with it.

A map is WAITING while its items work, and an item is a task (`headrace.machine.place` numbers it): all that is said
above holds for it, except that nothing comes before or after it. When an item ends, the map's counters change by one
and the next item is handed out, so an item costs the same however long the list is. What an item that failed leads to,
the map says: it stops and fails (`fail_fast`), fails once all have ended (`finish`), or completes (`collect`). A replay
of an item takes a map that failed back to WAITING, but not one that has completed. Open items count in the run's
status; of those that have ended only their map does. A rerun of what failed takes of a map its items that failed or
were cancelled: they are PENDING, `withheld` until the map has room, and go on as the others. A map that starts over has
a list of its own again; an item of it goes on with the token and the attempts that the item of that number had.

A task of a pool waits for a slot before each hand-out of its body, whatever led there, and is handed out under the
token under which it waited. A slot belongs to that hand-out and ends with it, in whatever way it ends: who is tried
again, lost, withheld or replayed waits again. So no slot is held by what does not work, and a task that leaves the
queue gives nothing back that it did not have. Who gets a slot is decided where all runs are seen: here it is an event.
A lookup needs none.

A deadline is of a task and not of a hand-out: it counts from the task's turn, over all that it does, and at its
end the task fails, whatever its state is; an effect that may have happened is cleared up first. It names token 0, which
no hand-out has, and is due by the task's own `deadline_at`. That of a run ends all that is open, as a cancel does, and
the run has failed. A repeat is one task in rounds: a body that ended well is asked whether its output will do, and
otherwise the task is handed out again, with all its tries. What makes new states knows of neither: at the end of a
decision `deadline` and `repeat` carry over what a task keeps.

A workflow may limit how many runs of one key go at once. A run of it needs a permit, which it keeps from when it
begins until it ends, whatever it does meanwhile. Who gets one is decided where all runs are seen; here it is a flag of
the run, which withholds what would begin as a pause does, until `Resumed` takes it away: the run is WAITING. A run that
has ended and runs again has given its permit back, so it waits for another, whatever led there.

A child is a run of its own, of another workflow, that a task asks for at its turn and waits for under the token of that
hand-out. It has a machine of its own, and neither reads or moves the other: what was asked for, and what became of it,
are told (`StartChild`, `CancelChild`; `ChildTold`). One token asks for one child. Its end is the end of the task:
COMPLETED with what came out of it, or FAILED, a dead letter that names it; or CANCELLED, if somebody ended it by hand:
that is no failure, so a run is not FAILED because of it. A task that does not wait for it completes as soon as it has
begun. Whatever is told of a child that the task does not wait for any more is stale: so a replay of the task asks for
another child, under another token, and one that is repaired and completes after its task has failed changes nothing
there. When the task ends before its child (a cancel, a termination, its time-out, an output that a person gives), the
child is asked to end as well, or left alone, as the task says. A pause is of one run: children of a run that is paused
go on, and what they end with counts.

A clean-up is a task whose join is `finally`: it runs as one that joins `always` does, and behind a cancel, too. A
cancel, or the deadline of the run, ends all tasks but clean-ups. One that has begun goes on as it was. One that has not
begins once its needs have ended, if anything before it had begun, however far back; otherwise there is nothing to clean
up, and it is CANCELLED with the others. The run is CANCELLING until they have ended, which is a bit of its `control`:
its deadline counts no more, and no cancel says anything new. A pause withholds clean-ups as it does all else; a
termination ends them. One that failed is a dead letter, and the run has failed; a replay of it, or an output given by
hand, reaches it there, but none of the other tasks. A rerun ends all that, and takes the clean-ups right behind what it
takes. A clean-up is a task of the graph, so what is undone comes after it.

A task may have a compensation, which undoes it. When a run would end FAILED or CANCELLED, and some of its tasks that
have one completed, or ended so that nobody knows whether they had their effect, it undoes those before it ends. What a
termination ends stays as it is. A plain failure says that there was no effect of the attempts since the last rerun;
what had completed before that stands, and is undone as of then, unless a lookup or a person has said since that it did
not happen. A compensation is a task with a place of
its own (`headrace.machine.place`): its retries, its hand-outs and its dead letter are those of any task. It is handed
out once those of all tasks that need its task, directly or not, have ended, however they did; so what was done last is
undone first, and branches go on side by side. The run is COMPENSATING meanwhile, then COMPENSATED, or
COMPENSATION_FAILED if one of them failed; a replay of that takes the run back. The tasks that are undone do not come
back: no replay, rerun or output given by hand reaches them from the moment the first compensation is handed out, and no
cancel says anything new. A pause withholds compensations as it does all else; a termination ends them.

`advance` and `apply` cost O(tasks the event touches); only a cancel, a termination, the end of a pause and a rerun
touch all, and the end of a map its items; as does the beginning of what is undone. Recursion is nowhere.

Not modelled here: whether a holder still lives (the sweeps read sessions), offsets and ownership (the run agent).
"""

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
from headrace.machine.plan import Plan, TaskPlan, compile_plan
from headrace.machine.run_state import RunState, TaskState
from headrace.machine.status import RunStatus, TaskStatus, derive_status

__all__ = [
    "Abort",
    "Action",
    "Ask",
    "AwaitPermit",
    "AwaitSlot",
    "BuryTask",
    "CancelChild",
    "Cancelled",
    "ChildTold",
    "ClearTimer",
    "CloseLetter",
    "CloseQuestion",
    "CountRounds",
    "Decided",
    "Dispatch",
    "EndAttempt",
    "Finish",
    "FreeSlot",
    "Grant",
    "HoldTasks",
    "Isolated",
    "KeepOutput",
    "KeepSignal",
    "KeepUndo",
    "Listen",
    "MachineEvent",
    "Migrated",
    "NoteRound",
    "Park",
    "Paused",
    "Plan",
    "Prioritised",
    "RefuseMove",
    "Released",
    "Replayed",
    "Reran",
    "Resolved",
    "Resumed",
    "ReturnPermit",
    "RunState",
    "RunStatus",
    "SetDeadline",
    "SetPriority",
    "SetTimer",
    "Signalled",
    "StartChild",
    "StopListening",
    "Supplied",
    "TakeSignal",
    "TakeSlot",
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
