"""The oracle: one pure function over ledger, client log and final dump; it returns what must not be.

It uses none of the product's code: what it knows of the rules stands here a second time, written from the promise. Each
invariant (RELIABILITY.md, section 5) is one function over `Facts`; they run in order and share nothing.
"""

from bisect import bisect, bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import groupby, pairwise
from typing import Final

from tests.chaos.cleanup_rules import clean_ups
from tests.chaos.facts import (
    CLOCK_SECONDS,
    PAUSE_MOVES,
    RUN_TERMINAL,
    STOPS,
    TERMINAL,
    Facts,
    Found,
    Key,
    Row,
    Violation,
    is_compensation,
    is_item,
    seconds_of,
    task_of,
)
from tests.chaos.limit_rules import limits
from tests.chaos.operator_rules import bulks, pauses, task_pauses, versions
from tests.chaos.pool_rules import pools
from tests.chaos.run_rules import children, deadlines, repeats, sagas
from tests.control_bits import AWAITS_PERMIT, CANCELLING, OVERDUE, PAUSES, TERMINATED, WITHHOLDS

LEASE_SECONDS: Final = 2.0
NEWS: Final = "chaos.news"
SETTLE_SECONDS: Final = 15.0
"""After a heal: session timeout, lease, sweep and a slow machine. Losses in this time are the fault's."""
LOST_SECONDS: Final = 30.0
"""A record may wait so long for its reader, and be lost before."""
ABORT_SECONDS: Final = LEASE_SECONDS + 8.0
"""A body may begin this long after the cancel was applied: its command was out already."""
EXAMINED: Final = (
    "statuses", "attempts", "tokens", "history", "ended", "pools", "maps", "children", "waits", "joins", "approvals",
    "orphan_approvals", "pauses", "parked", "unparked", "orphan_timers", "dead_letters", "triggers",
)  # fmt: skip
"""Checks of the doctor that are of runs; the others are of processes, which have just been hurt."""
REQUESTS: Final = {
    "cancel": "cancelled", "terminate": "terminated", "pause": "paused", "resume": "resumed", "migrate": "migrated",
    "rerun": "reran", "skip": "supplied", "prioritise": "prioritised",
}  # fmt: skip
COMMAND_GONE: Final = "its command is gone"
DECIDED: Final = {"approve": "approved", "reject": "rejected"}
EFFECT_BODIES: Final = frozenset(
    {
        "chaos.effect", "chaos.effect_in_thread", "chaos.flaky", "chaos.outside", "chaos.alone", "chaos.saga",
        "chaos.undo", "chaos.pooled",
    }
)  # fmt: skip
"""Bodies that return the ledger's receipt."""


def check(ledger: list[Row], client_log: list[Row], dump: dict[str, list[Row]]) -> list[Violation]:
    """Judge one finished run of the harness; an empty list is the promise kept."""
    facts = Facts(ledger, client_log, dump)
    return [Violation(name, *found) for name, rule in RULES for found in rule(facts)]


# == starts and requests ===============================================================================================
def start_uniqueness(facts: Facts) -> Found:
    """I1: one run per key; every OK start has its run; a key with another input is never OK; no run that nobody asked
    for."""
    keys = {row["key"].removeprefix("api:"): row["run_id"] for row in facts.dump["trigger_key"]}
    asked = {entry["key"] for entry in facts.calls("start")}
    for entry in facts.calls("start", "OK"):
        run_id = entry["answer"]["run_id"]
        if run_id not in facts.runs:
            yield "an accepted start has no run", f"{entry['key']} {run_id}"
        elif keys.get(entry["key"]) != run_id:
            yield "one key was answered with two runs", f"{entry['key']} {run_id} {keys.get(entry['key'])}"
        elif facts.runs[run_id]["input"] != entry["input"] and not _is_dropped(entry, facts, run_id):
            yield "a key was accepted with another input", f"{entry['key']} {run_id}"
    owned = {run_id: key for key, run_id in keys.items()}
    children = {row["run_id"] for row in facts.dump.get("child_run", [])}
    for run_id in facts.runs:
        if owned.get(run_id) not in asked and run_id not in children:
            yield "a run that no client started", run_id


def _is_dropped(entry: Row, facts: Facts, run_id: str) -> bool:
    """A start that was answered with the run that goes already: of another start, with another key."""
    mine = {row["key"] for row in facts.dump["trigger_key"] if row["run_id"] == run_id}
    is_reuse = entry["input"]["n"] == -1
    return facts.over(entry.get("workflow", "")) == "drop" and len(mine) > 1 and not is_reuse


def durability(facts: Facts) -> Found:
    """I24: what was answered with 2xx is there."""
    approvals = {row["approval_id"]: row for row in facts.dump["approval"]}
    votes = {(row["approval_id"], row["actor"], row["decision"]) for row in facts.dump.get("approval_vote", [])}
    for entry in facts.calls("decide", "OK"):
        row = approvals.get(entry["approval_id"])
        is_last = row is not None and (row["needed"] == 1 or entry["decision"] == "reject")
        if row is None or (is_last and row["status"] != DECIDED[entry["decision"]]):
            yield "an accepted decision is not there", entry["approval_id"]
        elif (entry["approval_id"], entry["actor"], entry["decision"]) not in votes:
            yield "an accepted vote is not there", entry["approval_id"]
    for op, status in (("replay", "replayed"), ("discard", "discarded")):
        for entry in facts.calls(op, "OK"):
            row = facts.letters.get(entry["dead_letter_id"])
            if row is None or row["status"] != status:
                yield f"an accepted {op} is not there", entry["dead_letter_id"]
    asked = {(row["run_id"], row["kind"]) for row in facts.dump["inbox"]}
    for op, kind in REQUESTS.items():
        for entry in facts.calls(op, "OK"):
            if (entry["run_id"], kind) not in asked:
                yield f"an accepted {op} is not there", entry["run_id"]
    resolved = {row["run_id"] for row in facts.dump["inbox"] if row["kind"] == "resolved"}
    for entry in facts.calls("resolve", "OK"):
        if entry["task_id"].split(".")[0] not in resolved:
            yield "an accepted resolution is not there", entry["task_id"]
    stored = {row["signal_id"]: row for row in facts.dump.get("signal", [])}
    for entry in facts.calls("signal", "OK"):
        row = stored.get(entry["answer"]["signal_id"])
        if row is None or (row["run_id"], row["data"]) != (entry["run_id"], {"count": entry["count"]}):
            yield "an accepted signal is not there", f"{entry['run_id']} {entry['id']}"
    posted = {row["posted_id"]: row for row in facts.dump.get("posted_signal", [])}
    for entry in facts.calls("post", "OK"):
        row = posted.get(entry["answer"]["signal_id"])
        if row is None or (row["sender_id"], row["data"]) != (entry["id"], {"count": entry["count"]}):
            yield "an accepted post is not there", entry["id"]
    for row in facts.dump["inbox"]:
        if row["applied_at"] is None and facts.runs[row["run_id"]]["status"] not in RUN_TERMINAL:
            yield "an accepted request was never applied", f"{row['inbox_id']} {row['kind']} {row['run_id']}"


# == ends ==============================================================================================================
def no_lost_run(facts: Facts) -> Found:
    """I8: after the heal every run came to its end. Nothing here waits for ever: approvals expire, people answer."""
    for run_id, run in facts.runs.items():
        if run["status"] not in RUN_TERMINAL:
            yield f"a run is {run['status']} after the heal", f"{run_id} {dict(facts.counts(run_id))}"


def no_lost_hand_off(facts: Facts) -> Found:
    """I2: no open task is left, and no position stands behind the end of its log."""
    for key, task in facts.tasks.items():
        if task["status"] in ("queued", "running"):
            yield f"a task is {task['status']} after the heal", f"{facts.name(key)} token {task['token']}"
    ends = {(row["topic"], row["partition"]): row for row in facts.dump.get("log_end", [])}
    for row in facts.dump.get("partition_owner", []):
        end = ends.get((row["topic"], row["partition"]))
        if end and end["topic_id"] == row["topic_id"] and (row["next_offset"] or 0) > end["end"]:
            yield "a position is ahead of its log", f"{row['topic']}[{row['partition']}] {row['next_offset']}"


def no_orphan_wait(facts: Facts) -> Found:
    """I13: a run that is not at its end has something that will move it."""
    wakers = {row["run_id"] for row in facts.dump["timer"]}
    wakers |= {row["run_id"] for row in facts.dump["approval"] if row["status"] == "waiting"}
    wakers |= {row["run_id"] for row in facts.dump["inbox"] if row["applied_at"] is None}
    wakers |= {row["run_id"] for row in facts.dump.get("parked_task", [])}
    wakers |= {row["run_id"] for row in facts.dump.get("signal_wait", [])}
    wakers |= {row["run_id"] for row in facts.dump.get("pool_waiter", [])}
    wakers |= {row["run_id"] for row in facts.dump.get("run_permit", []) if row["granted_at"] is None}
    wakers |= {r["parent_run_id"] for r in facts.dump.get("child_run", []) if r["status"] in ("asked", "started")}
    wakers |= {run_id for (run_id, _), task in facts.tasks.items() if task["status"] in ("queued", "running")}
    for run_id, run in facts.runs.items():
        if run["status"] in ("running", "waiting", "cancelling", "compensating") and run_id not in wakers:
            yield "nothing will ever move this run", run_id


def pure_status(facts: Facts) -> Found:
    """I9: a run's status follows from its tasks."""
    for run_id, run in facts.runs.items():
        counts = facts.counts(run_id)
        expected = (
            "needs_attention" if run["attention"] else _status(counts, run.get("control", 0), facts.undone(run_id))
        )
        if run["status"] != expected:
            yield f"status {run['status']}, its tasks say {expected}", f"{run_id} {dict(counts)}"


def _status(counts: Counter[str], control: int, undone: dict[int, str]) -> str:
    if all(status in TERMINAL for status in counts):
        if control & TERMINATED:
            return "terminated"
        if undone and all(status in TERMINAL for status in undone.values()):
            return "compensation_failed" if "failed" in undone.values() else "compensated"
        if undone and not control & WITHHOLDS:
            return "compensating"
        if undone and control & PAUSES:
            return "pausing" if {"queued", "running"} & set(undone.values()) else "paused"
        if undone:
            return "cancelling" if control & CANCELLING else "waiting"
        if control & OVERDUE:
            return "failed"
        if control & CANCELLING and not counts["failed"]:
            return "cancelled"
        return next((status for status in ("failed", "cancelled") if counts[status]), "completed")
    if control & PAUSES:
        return "pausing" if counts["queued"] + counts["running"] else "paused"
    if control & CANCELLING:
        return "cancelling"
    if control & AWAITS_PERMIT:
        return "waiting"
    busy = counts["queued"] + counts["running"] + counts["pending"]
    return "waiting" if counts["waiting"] and not busy else "running"


def doctor(facts: Facts) -> Found:
    """What the product's doctor says of the runs: where it finds something that we do not, one of us is wrong."""
    for row in facts.dump.get("doctor", []):
        if not row["ok"] and row["name"] in EXAMINED:
            yield f"the doctor says that {row['name']} are wrong", row["detail"]


def terminal_is_final(facts: Facts) -> Found:
    """I6: nothing happens to a run after its end, nor to a task after it completed; and it ends once."""
    for run_id, run in facts.runs.items():
        end = run["finished_at"]
        if (end is None) != (run["status"] not in RUN_TERMINAL):
            yield "finished_at does not agree with the status", run_id
        for row in facts.history[run_id] if end else ():
            if row["at"] > end:
                yield f"{row['kind']} after the run's end", run_id
    for key, attempts in facts.attempts.items():
        again = [row["row_version"] for row in facts.of_run(key[0], "reran")]  # which takes what had completed, too
        for _, tried in groupby(attempts, lambda row, moves=again: bisect(moves, row["row_version"])):
            rows = list(tried)
            done = [row for row in rows if row["outcome"] == "completed" and row.get("round") is None]
            if len(done) > 1:
                yield "two results of one task were accepted", facts.name(key)
            if done and rows[-1] is not done[0]:
                yield "an attempt after the task had completed", facts.name(key)
        end = facts.runs[key[0]]["finished_at"]
        if end and attempts[-1]["ended_at"] > end:
            yield "an attempt ended after its run", facts.name(key)


# == history ===========================================================================================================
def gap_free_history(facts: Facts) -> Found:
    """I7: 1..n without a gap, each once, and the tasks are what their history makes of them."""
    for stray in facts.strays:
        yield "a row without its run", stray
    moves: dict[str, Counter[int]] = defaultdict(Counter)
    for run_id, rows in facts.history.items():
        moves[run_id].update(row["row_version"] for row in rows)
    for (run_id, _), attempts in facts.attempts.items():
        moves[run_id].update(row["row_version"] for row in attempts)
    for run_id, run in facts.runs.items():
        if sorted(moves[run_id]) != list(range(1, run["row_version"] + 1)):
            missing = set(range(1, run["row_version"] + 1)) ^ set(moves[run_id])
            yield f"history has gaps or strangers at {sorted(missing)[:5]} of {run['row_version']}", run_id
        shared = {row["row_version"] for row in facts.history[run_id] if _ends_attempts(row)}
        for version, times in moves[run_id].items():
            if times > 1 and version not in shared:
                yield f"row_version {version} stands for {times} moves", run_id
    for key in facts.tasks:
        if (why := _differs(facts, key)) is not None:
            yield why, facts.name(key)


def _ends_attempts(row: Row) -> bool:
    """One move that ended what was under way, with its attempts."""
    is_deadline = row["kind"] == "due" and (row["detail"] or {}).get("timer") == "deadline"
    return row["kind"] in (*STOPS, "supplied") or is_deadline


def _differs(facts: Facts, key: Key) -> str | None:
    """Why a task's row is not what its attempts and history fold to; None when it is."""
    task, attempts = facts.tasks[key], facts.attempts.get(key, [])
    last = attempts[-1] if attempts else None
    opened = [row for row in facts.of_task(key, "attempt_started") if last is None or row["token"] > last["token"]]
    if task["attempt"] != len(attempts) + bool(opened and task["status"] == "running"):
        return f"attempt {task['attempt']}, and {len(attempts)} attempts ended"
    match task["status"]:
        case "completed":
            approved = any(row["kind"] == "decided" for row in facts.of_task(key))
            has_none = not facts.spec(key).keys().isdisjoint(("signal", "map", "workflow"))
            resolved = bool(facts.of_task(key, "resolved", "looked_up", "supplied")) or has_none
            if last is None or last["outcome"] != "completed":
                return None if approved or resolved else "completed without a result"
            return None if last["token"] == task["token"] else "completed under a token that is not its last"
        case "failed":
            buried = {(row["run_id"], row["task"], row["token"]) for row in facts.dump["dead_letter"]}
            said_no = any(row["kind"] == "decided" for row in facts.of_task(key))
            return None if said_no or (*key, task["token"]) in buried else "failed without a dead letter"
        case "cancelled":
            asked = any(row["kind"] in STOPS or facts.is_deadline_of_run(row) for row in facts.history[key[0]])
            asked |= any((row["detail"] or {}).get("outcome") in STOPS for row in facts.of_task(key, "child_told"))
            return None if asked else "cancelled, and nobody asked for it"
        case _:
            return None


def maps(facts: Facts) -> Found:
    """I9 for maps: the counters are those of the items; one that completed has an output for each item of its list."""
    items: dict[Key, Counter[str]] = defaultdict(Counter)
    for (run_id, place), task in facts.tasks.items():
        if is_item(place):
            items[run_id, task_of(place)][task["status"]] += 1
    for key, task in facts.tasks.items():
        states = items[key]
        if task.get("items") is None:
            if states:
                yield "items of what is no map", facts.name(key)
            continue
        if (task["items_completed"], task["items_failed"]) != (states["completed"], states["failed"]):
            yield f"a map counts {task['items_completed']}, its items are {dict(states)}", facts.name(key)
        if task["status"] == "completed" and not len(task.get("output") or ()) == task["items"] == sum(states.values()):
            yield f"a map of {task['items']} items gave {task.get('output')}", facts.name(key)


def monotonic_tokens(facts: Facts) -> Found:
    """I4: in the order of history a task's tokens never fall, and each ends one attempt at most."""
    moves: dict[Key, list[tuple[int, int]]] = defaultdict(list)
    for run_id, rows in facts.history.items():
        for row in rows:
            is_of_none = (row["detail"] or {}).get("timer") == "deadline"  # over all hand-outs
            if row["task"] is not None and row["token"] is not None and not is_of_none:
                moves[run_id, row["task"]].append((row["row_version"], row["token"]))
    for key, attempts in facts.attempts.items():
        moves[key] += [(row["row_version"], row["token"]) for row in attempts]
        if len({row["token"] for row in attempts}) < len(attempts):
            yield "two attempts under one token", facts.name(key)
    for key, order in moves.items():
        tokens = [token for _, token in sorted(order)]
        if tokens != sorted(tokens):
            yield f"a write under an older token was accepted: {tokens}", facts.name(key)
        if max(tokens) > facts.tasks[key]["token"]:
            yield "the task's token is behind its history", facts.name(key)


def one_owner(facts: Facts) -> Found:
    """I3: the next attempt begins, as the ledger saw it, only after the one before had ended in Postgres; and what is
    exclusive or claimed never runs twice at a time.
    """
    for key in facts.tasks:
        calls = [line for line in facts.bodies(key) if "begun_at" in line]
        for line in calls:
            before = [row["ended_at"] for row in facts.attempts.get(key, []) if row["token"] < line["token"]]
            if before and line["begun_at"] < max(before) - CLOCK_SECONDS:
                yield f"token {line['token']} ran before an earlier attempt had ended", facts.name(key)
        if facts.spec(key).get("exclusive") or facts.spec(key).get("effect", "idempotent") != "idempotent":
            yield from _ran_once(facts, key, calls)


def _ran_once(facts: Facts, key: Key, calls: list[Row]) -> Found:
    """A claimed hand-out has one body; the bodies of two hand-outs, those that lived to leave, do not overlap."""
    bodies: dict[int, set[float]] = defaultdict(set)
    for line in calls:
        if line["op"] != "lookup":
            bodies[line["token"]].add(line["begun_at"])
    for token, begun in bodies.items():
        if len(begun) > 1:
            yield f"{len(begun)} bodies under claimed token {token}", facts.name(key)
    if not facts.spec(key).get("exclusive"):
        return
    spans = []
    for token in bodies:
        inside = [line for line in calls if line["token"] == token and line["outcome"] == "noted"]
        marks = {line.get("mark"): line["at"] for line in inside}
        if "enter" in marks and "leave" in marks:
            spans.append((marks["enter"], marks["leave"]))
    spans.sort()
    for (_, leave), (enter, _) in pairwise(spans):
        if enter < leave:
            yield "two bodies of an exclusive task overlapped", facts.name(key)


# == effects ===========================================================================================================
def effect_once(facts: Facts) -> Found:
    """I5: a completed effect is in the ledger with the receipt that was stored; it happened once; and it was called no
    oftener than it was handed out, faults apart."""
    faults = len(facts.faults) + sum(line.get("mark") == "kills_worker" for line in facts.ledger)
    for key, task in facts.tasks.items():
        if facts.spec(key).get("run") not in EFFECT_BODIES:
            continue
        lines = [line for line in facts.effects.get(facts.effect_key(key), []) if line["op"] == "call"]
        happened = [line for line in lines if line["outcome"] in ("done", "timed_out")]
        if task["status"] == "completed" and not facts.of_task(key, "supplied"):
            yield from _receipt(facts, key, happened)
        if len({line["receipt"] for line in happened}) > 1:
            policy = facts.spec(key).get("effect", "idempotent")
            yield f"{len(happened)} effects under one key ({policy})", facts.name(key)
        if len(lines) > task["token"] + faults:
            yield f"{len(lines)} calls for {task['token']} hand-outs", facts.name(key)


def _receipt(facts: Facts, key: Key, happened: list[Row]) -> Found:
    outputs = [row["output"] for row in facts.attempts.get(key, []) if row["outcome"] == "completed"]
    resolved = facts.of_task(key, "resolved", "looked_up")
    if not happened:
        yield "completed, and its effect never happened", facts.name(key)
    elif outputs and not resolved and (outputs[0] or {}).get("receipt") != happened[0]["receipt"]:
        yield f"a result that no body returned: {str(outputs[0])[:80]}", facts.name(key)


def exact_attempts(facts: Facts) -> Found:
    """I12: attempts are 1..k; k is within the policy; and a task failed only when no try was left."""
    for key, attempts in facts.attempts.items():
        numbers = [row["attempt"] for row in attempts]
        if numbers != list(range(1, len(numbers) + 1)):
            yield f"attempts are {numbers}", facts.name(key)
        limit, again = _attempts_max(facts.spec(key)), facts.again(key)
        returned = sum(row["outcome"] == "returned" for row in attempts)
        if len(attempts) > limit * (1 + len(again)) + returned:
            yield f"{len(attempts)} attempts where {limit} are allowed", facts.name(key)
        last = attempts[-1]
        given_up = any((row["detail"] or {}).get("outcome") == "fail" for row in facts.of_task(key, "resolved"))
        given_up = given_up or any((row["detail"] or {}).get("timer") in LATE for row in facts.of_task(key, "due"))
        if facts.tasks[key]["status"] == "failed" and last["outcome"] in ("failed", "lost") and not given_up:
            rounds = [row["row_version"] for row in attempts if row["outcome"] == "completed"]
            since = max((move for move in (*again, *rounds) if move < last["row_version"]), default=0)
            tries = sum(row["row_version"] > since and row["outcome"] != "returned" for row in attempts)
            if (
                (last["error"] or {}).get("retryable", True)
                and tries < limit
                and last["token"] == facts.tasks[key]["token"]
            ):
                yield f"failed after {tries} of {limit} tries: {(last['error'] or {}).get('code')}", facts.name(key)


LATE: Final = ("deadline", "start")
"""Timers that end a task, whatever tries it has left."""


def _attempts_max(spec: Row) -> int:
    """Of a repeat, of all its rounds."""
    retry, rounds = spec.get("retry", 3), spec.get("repeat", {}).get("max", 1)
    return int(retry if isinstance(retry, int) else retry.get("attempts", 3)) * int(rounds)


def timers(facts: Facts) -> Found:
    """I10: none is left, and none fired before its time: a backoff counts from when its attempt was judged, so never
    from before the body had ended.
    """
    skewed = {name for fault in facts.faults if fault.get("skew") for name in fault["targets"]}
    for row in facts.dump["timer"]:
        if facts.runs[row["run_id"]]["status"] in RUN_TERMINAL:
            yield "a timer outlived its run", f"{row['run_id']} task {row['task']}"
    for key, attempts in facts.attempts.items():
        due = {
            row["token"]: row["at"]
            for row in facts.of_task(key, "due")
            if (row["detail"] or {}).get("timer") == "backoff"
        }
        for row in attempts:
            fired, finished = due.get(row["token"]), row["finished_at"]
            if fired is None or finished is None or row["worker"] in skewed:
                continue
            if fired < finished + _delay_min(facts.spec(key), row) - CLOCK_SECONDS:
                yield f"a backoff fired {fired - finished:.3f} s after its attempt", facts.name(key)


def _delay_min(spec: Row, attempt: Row) -> float:
    """The least a backoff may be."""
    asked = (attempt["error"] or {}).get("retry_after")
    if asked is not None:
        return float(asked)
    retry = spec.get("retry")
    if not isinstance(retry, dict):
        retry = {}
    return seconds_of(retry.get("delay", "1s")) * (1 - float(retry.get("jitter", 0.2)))


# == people ============================================================================================================
def no_false_death(facts: Facts) -> Found:
    """I11: nobody was taken for dead whose heartbeats were healthy. They are not while something is broken, and not for
    a worker that fenced itself because its renewal did not come: on a starved machine that may be all that is wrong.
    """
    broken = [
        (e["at"], 2 * e["healed_at"] - e["at"] + SETTLE_SECONDS) for e in facts.faults
    ]  # a backlog grew meanwhile
    broken += [(e["at"] - LEASE_SECONDS, e["at"] + SETTLE_SECONDS) for e in facts.calls("fenced")]
    broken += [(line["at"], line["at"] + SETTLE_SECONDS) for line in facts.ledger if line.get("mark") == "kills_worker"]
    merged: list[list[float]] = []
    for begin, end in sorted(broken):
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    begins = [begin for begin, _ in merged]
    lost = [
        (r["ended_at"], (r["run_id"], r["task"]), 0.0)
        for rows in facts.attempts.values()
        for r in rows
        if r["outcome"] == "lost"
    ]
    for rows in facts.history.values():
        for r in rows:
            if r["kind"] == "lost":
                key = (r["run_id"], r["task"])
                lost.append((r["at"], key, _waited(facts, key, r) if r["detail"]["reason"] == COMMAND_GONE else 0.0))
    for at, key, waited in lost:
        place = bisect_left(begins, at) - 1
        if place < 0 or at - waited > merged[place][1]:
            yield "taken over while nothing was broken", f"{facts.name(key)} at {at:.3f}"


def _waited(facts: Facts, key: Key, lost: Row) -> float:
    """Seconds that a lost hand-out may have been out without a word of it.

    What a fault took, a command or the result of a body, is not missed before the backlog of that moment is worked off,
    however long that takes. But what came out when nothing was broken any more cannot have been taken, and a body that
    is heard of behind its loss was there.
    """
    heard = [line["at"] for line in facts.bodies(key) if line.get("token") == lost["token"]]
    if heard and max(heard) > lost["at"]:
        return 0.0
    if heard:
        return float(lost["at"] - min(heard))
    needs = facts.spec(key).get("needs", [])
    of_version = [name for name, _ in facts.specs[facts.runs[key[0]]["version_id"]]]
    ended = [r["ended_at"] for need in needs for r in facts.attempts.get((key[0], of_version.index(need)), [])]
    told = [r["at"] for r in facts.of_task(key)] + [r["at"] for r in facts.of_run(key[0], "started")]
    return float(lost["at"] - max(at for at in [*told, *ended] if at is not None and at < lost["at"]))


def cancel(facts: Facts) -> Found:
    """I16: after an accepted cancel no attempt begins, but for clean-ups, and for commands that were out already,
    within a lease; and after a termination no clean-up either."""
    applied = {
        r["run_id"]: r
        for rows in facts.history.values()
        for r in rows
        if r["kind"] in STOPS
        and not any(o["row_version"] > r["row_version"] for o in facts.of_run(r["run_id"], "reran"))
    }
    for run_id, row in applied.items():
        for other in facts.history[run_id]:
            task: int | None = (
                None if other["kind"] in PAUSE_MOVES else other["task"]
            )  # pauses come and go till the end
            is_undone = bool(facts.undone(run_id)) and (task is None or is_compensation(task))
            is_allowed = is_undone or (row["kind"] == "cancelled" and _is_clean_up(facts, other))
            if other["row_version"] > row["row_version"] and not is_allowed:
                yield f"{other['kind']} after the cancel", run_id
    clean_ups_ = {
        facts.effect_key((run_id, number))
        for run_id in applied
        for number in range(len(facts.specs[facts.runs[run_id]["version_id"]]))
        if facts.cleans_up((run_id, number))
    }
    seen: dict[int, float] = {}  # process -> when the ledger first met it
    for line in facts.ledger:
        if "begun_at" not in line:
            continue
        first = seen.setdefault(line["pid"], line["at"])
        if line["key"].endswith(".compensate"):
            continue  # which a cancel makes begin
        if line["run"] in applied and applied[line["run"]]["kind"] == "cancelled" and line["key"] in clean_ups_:
            continue
        at = applied[line["run"]]["at"] if line["run"] in applied else None
        if at and first < at and _is_told(facts, at, line["begun_at"]):
            yield (
                f"a body began {line['begun_at'] - at:.1f} s after the cancel",
                f"{line['key']} token {line['token']}",
            )


def _is_clean_up(facts: Facts, row: Row) -> bool:
    """What happens to a clean-up, or to a run that has any: a pause, another deadline."""
    run_id = row["run_id"]
    if row["task"] is not None and row["kind"] not in PAUSE_MOVES:
        return facts.cleans_up((run_id, row["task"]))
    return any(facts.cleans_up((run_id, n)) for n in range(len(facts.specs[facts.runs[run_id]["version_id"]])))


def _is_told(facts: Facts, cancelled_at: float, begun_at: float) -> bool:
    """Whether a worker that was there at the cancel must have heard of it before it began a body.

    Word of it is one record on the control topic: it may be lost with Kafka's, or wait as long as Kafka is out of
    reach. (A worker that came later cannot know; its result is refused.)
    """
    if begun_at < cancelled_at + ABORT_SECONDS:
        return False
    for fault in facts.faults:
        before, after = fault["at"], fault["healed_at"] + SETTLE_SECONDS
        if before < begun_at and (begun_at < after or (fault.get("loses_records") and cancelled_at < after)):
            return False
    return True


def _was_lost(facts: Facts, sent_at: float, topic: str, partition: int, offset: int) -> bool:
    """Whether a fault took a record away before it was read, or before anybody had to read it. `read` of a fault is how
    far its readers had come: a reader may lag by more than LOST_SECONDS, where Kafka keeps it from its group."""
    for fault in facts.faults:
        if fault.get("loses_records") and fault["at"] - LOST_SECONDS < sent_at < fault["healed_at"]:
            return True
        position = fault.get("read", {}).get(f"{topic}[{partition}]")
        if position is not None and sent_at < fault["healed_at"] and offset >= position:
            return True
    return False


def poison(facts: Facts) -> Found:
    """I18: every record nobody can read was set aside, with its place; forged results count for nothing; what no run
    can be started with is refused as such.
    """
    for entry in facts.faults:
        for what, status in entry.get("answers", []):
            if not 400 <= status < 500 and status != 503:
                yield f"a start that is {what} was answered with {status}", entry["kind"]
    set_aside = {(r["topic"], r["partition"], r["offset"]) for r in facts.dump["dead_letter"] if r["kind"] == "record"}
    for entry in facts.faults:
        for partition, offset in entry.get("places", []):
            place = (entry["topic"], partition, offset)
            if place not in set_aside and not _was_lost(facts, entry["sent_at"], *place):
                yield "a poison record was not set aside", f"{entry['topic']}[{partition}]@{offset}"
    for key, attempts in facts.attempts.items():
        for row in attempts:
            if isinstance(row["output"], dict) and row["output"].get("forged"):
                yield "a forged result was accepted", facts.name(key)


def approvals(facts: Facts) -> Found:
    """I20: one outcome, by who said so; a second decision was refused; the task went the way that was decided."""
    said: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for entry in facts.calls("decide", "OK"):
        said[entry["approval_id"]].add((entry["decision"], entry["actor"]))
    rows = {row["approval_id"]: row for row in facts.dump["approval"]}
    unsure = {(entry["approval_id"], entry["actor"]) for entry in facts.calls("decide", "UNKNOWN")}
    for approval_id, decisions in said.items():
        row = rows.get(approval_id)
        if len(decisions) > (row["needed"] if row else 1):
            yield "more decisions were accepted than it takes", f"{approval_id} {decisions}"
        if len([each for each in decisions if each[0] == "reject"]) > 1:
            yield "two decisions were accepted", f"{approval_id} {decisions}"
        is_decided = row is not None and row["status"] in DECIDED.values() and row["decided_by"] != "expiry"
        by = row and row["decided_by"]
        may_be = (
            row and row["needed"] > 1 and (approval_id, by) in unsure
        )  # the vote that was missing, and not answered
        if row and (is_decided or row["needed"] == 1) and by not in {actor for _, actor in decisions} and not may_be:
            yield f"decided by {by}, accepted from {decisions}", approval_id
    for row in rows.values():
        key = (row["run_id"], row["task"])
        told = [r for r in facts.of_task(key, "decided") if r["token"] == row["token"]]
        if len(told) > 1:
            yield "one question was applied twice", row["approval_id"]
        if told and (told[0]["detail"] or {}).get("outcome") != row["status"]:
            yield f"applied as {told[0]['detail']}, decided {row['status']}", row["approval_id"]
        if row["status"] == "waiting" and facts.runs[row["run_id"]]["status"] in RUN_TERMINAL:
            yield "a question outlived its run", row["approval_id"]
        votes = [vote for vote in facts.dump.get("approval_vote", []) if vote["approval_id"] == row["approval_id"]]
        if row["decided_by"] not in (None, "expiry") and row["decided_by"] not in {vote["actor"] for vote in votes}:
            yield f"decided by {row['decided_by']}, who has no vote", row["approval_id"]
        yield from _votes(row, Counter(vote["decision"] for vote in votes))


def _votes(row: Row, votes: Counter[str]) -> Found:
    """The yes that completes them approves, the first no rejects; an expiry and a cancel find it open."""
    if votes["approve"] > row["needed"] or votes["reject"] > 1:
        yield "more voted than were needed", row["approval_id"]
    said = "approved" if votes["approve"] == row["needed"] else "rejected" if votes["reject"] else None
    if votes["reject"] and votes["approve"] == row["needed"]:
        yield "a question was approved and rejected", row["approval_id"]
    elif said and row["status"] != said:
        yield f"people have {said} it, and it is {row['status']}", row["approval_id"]
    elif not said and row["decided_by"] not in (None, "expiry") and row["status"] in DECIDED.values():
        yield f"it is {row['status']} with {dict(votes)} of {row['needed']} votes", row["approval_id"]


def signals(facts: Facts) -> Found:
    """I10b: every accepted signal was taken by one task, is kept, or was refused with a reason; one sent twice is one;
    of one sender's, none is kept while a later one was taken; and none is kept beside a task that waits for it."""
    rows = facts.dump.get("signal", [])
    sent: dict[tuple[str, str], set[str]] = defaultdict(set)
    for entry in facts.calls("signal", "OK"):
        sent[entry["run_id"], entry["id"]].add(entry["answer"]["signal_id"])
    for place, ids in sent.items():
        if len(ids) > 1:
            yield f"one signal was stored as {len(ids)}", str(place)
    taken = Counter((row["run_id"], row["task"]) for row in rows if row["status"] == "taken")
    for row in rows:
        where = f"{row['signal_id']} of {row['run_id']}"
        if row["status"] == "sent":
            yield "nobody took note of a signal", where
        elif row["status"] == "refused" and not row["reason"]:
            yield "a signal was refused for no reason", where
        elif row["status"] == "taken":
            key = (row["run_id"], row["task"])
            output = facts.tasks[key]["output"] or {}
            if facts.tasks[key]["status"] != "completed" or output.get("signal_id") != row["signal_id"]:
                yield "a signal was taken by a task that does not say so", where
            if taken[key] > 1:
                yield f"a task took {taken[key]} signals", facts.name(key)
    yield from _posted(facts, rows)
    yield from _said_by_records(facts)
    for key, task in facts.tasks.items():
        if task["status"] == "completed" and "signal" in facts.spec(key):
            yield from _heard(facts, key, task["output"] or {})
    yield from _signal_order(facts, {row["signal_id"]: row for row in rows})
    waiting = {row["run_id"]: row for row in facts.dump.get("signal_wait", [])}
    for run_id in waiting:
        if facts.runs[run_id]["status"] in RUN_TERMINAL:
            yield "a wait for a signal outlived its run", run_id
    for row in rows:
        waits = waiting.get(row["run_id"])
        if waits and row["status"] == "kept" and row["name"] == waits["name"] and row["key"] in (None, waits["key"]):
            yield "a task waits beside a signal that is kept for it", str(row["signal_id"])


def _heard(facts: Facts, key: Key, output: Row) -> Found:
    """A task that waited for a signal says which one it took, or that its time was over, for which a timer was due."""
    known = {row["signal_id"]: row for row in facts.dump.get("signal", [])}
    if output.get("outcome") == "timed_out":
        if not facts.of_task(key, "due"):
            yield "a wait for a signal timed out, and no timer was due", facts.name(key)
    elif known.get(output.get("signal_id"), {}).get("task") != key[1]:
        yield "a task says that it took a signal, and that does not say so", facts.name(key)


def _said_by_records(facts: Facts) -> Found:
    """A record that Kafka acknowledged, and has not lost since, says one signal, however often it was sent."""
    said: dict[str, list[Row]] = defaultdict(list)
    for row in facts.dump.get("posted_signal", []):
        if (row["sender_id"] or "").startswith("subscription:"):
            said[row["sender_id"].rpartition(" ")[2]].append(row)
    sent = {entry["id"] for entry in facts.calls("record")}
    for id_, rows in said.items():
        if len(rows) > 1:
            yield f"one record said {len(rows)} signals", id_
        if id_ not in sent:
            yield "a signal of a record that nobody sent", id_
    for entry in facts.calls("record", "OK"):
        rows = said[entry["id"]]
        if not rows and _was_lost(facts, entry["done_at"], NEWS, *entry["place"]):
            continue
        if not rows:
            yield "an acknowledged record said nothing", f"{entry['id']} at {entry['place']}"
        elif (rows[0]["data"], rows[0]["key"]) != ({"count": entry["count"]}, str(entry["number"])):
            yield f"a record said {rows[0]['data']} for {rows[0]['key']}", entry["id"]


def _posted(facts: Facts, rows: list[Row]) -> Found:
    """A posted signal is taken by one, and says so; and nothing is posted for a task that waits for it."""
    taken = Counter(row["posted_id"] for row in rows if row.get("is_exclusive") and row["status"] == "taken")
    for posted in facts.dump.get("posted_signal", []):
        if taken[posted["posted_id"]] != (posted["taken_as"] is not None):
            yield f"a posted signal was taken {taken[posted['posted_id']]} times", posted["posted_id"]
        for waits in facts.dump.get("signal_wait", []):
            if posted["taken_as"] is None and (waits["name"], waits["key"]) == (posted["name"], posted["key"]):
                yield "a task waits for what is posted and nobody has taken", f"{waits['run_id']} {waits['task']}"


def _signal_order(facts: Facts, rows: dict[str, Row]) -> Found:
    """A driver sends the signals of a run one behind the other, the next once the one before was answered."""
    sent: dict[str, dict[int, Row]] = defaultdict(dict)
    for entry in facts.calls("signal", "OK"):
        if entry["key"] is None and entry["answer"]["signal_id"] in rows:
            sent[entry["run_id"]][entry["count"]] = rows[entry["answer"]["signal_id"]]
    for run_id, of_run in sent.items():
        statuses = [of_run[count]["status"] for count in sorted(of_run)]
        if "kept" in statuses and "taken" in statuses[statuses.index("kept") :]:
            yield f"a later signal was taken before an earlier one: {statuses}", run_id


def dead_letters(facts: Facts) -> Found:
    """I22: each is closed once, and a replay was applied."""
    closed: dict[str, list[str]] = defaultdict(list)
    for op in ("replay", "discard"):
        for entry in facts.calls(op, "OK"):
            closed[entry["dead_letter_id"]].append(op)
    for id_, ops in closed.items():
        if len(ops) > 1:
            yield f"closed {len(ops)} times: {ops}", id_
    resolved = Counter((entry["task_id"], entry["token"]) for entry in facts.calls("resolve", "OK"))
    for place, times in resolved.items():
        if times > 1:
            yield f"a parked task resolved {times} times", str(place)
    for id_, row in facts.letters.items():
        if (row["closed_at"] is None) != (row["status"] == "parked"):
            yield "closed_at does not agree with the status", id_
        if row["status"] == "replayed" and row["kind"] == "task":
            key = (row["run_id"], row["task"])
            # What ends the run at the same moment wins, a cancel or its deadline; the run may be failed all the same.
            ended = any(r["kind"] in STOPS or facts.is_deadline_of_run(r) for r in facts.history[row["run_id"]])
            ended = ended or (bool(facts.undone(row["run_id"])) and not is_compensation(row["task"]))
            told = any(r["token"] == row["token"] for r in facts.of_task(key, "replayed"))
            # A rerun closes what it runs again; a person who gave the task its output may have come first.
            told = told or bool(facts.of_run(row["run_id"], "reran") or facts.of_task(key, "supplied"))
            if not told and not ended:
                yield "replayed, and its run never heard of it", id_


RULES: Final[list[tuple[str, Callable[[Facts], Found]]]] = [
    ("I1", start_uniqueness),
    ("I2", no_lost_hand_off),
    ("I3", one_owner),
    ("I4", monotonic_tokens),
    ("I5", effect_once),
    ("I6", terminal_is_final),
    ("I7", gap_free_history),
    ("I8", no_lost_run),
    ("I9", pure_status),
    ("I9", maps),
    ("I9", doctor),
    ("I10", timers),
    ("I10", deadlines),
    ("I10b", signals),
    ("I11", no_false_death),
    ("I12", exact_attempts),
    ("I12", repeats),
    ("I13", no_orphan_wait),
    ("I15", pools),
    ("I16", cancel),
    ("I16b", children),
    ("I21", sagas),
    ("I25", pauses),
    ("I26", bulks),
    ("I27", limits),
    ("I28", clean_ups),
    ("I29", task_pauses),
    ("I18", poison),
    ("I19", versions),
    ("I20", approvals),
    ("I22", dead_letters),
    ("I24", durability),
]
