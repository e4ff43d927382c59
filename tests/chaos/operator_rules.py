"""The oracle's rules of what operators do: pauses, bulks, and moves to another version."""

from collections import Counter, defaultdict
from math import inf
from typing import Any, Final

from tests.chaos.facts import CLOCK_SECONDS, Facts, Found, Key, Row, is_compensation, task_of
from tests.control_bits import MOVING, TASKS_PAUSED, WORKFLOW_PAUSED

LATE_SECONDS: Final = 60.0
"""An unanswered request may be carried out so much later, by a process that was frozen."""
KINDS: Final = {
    "cancel": "cancelled", "terminate": "terminated", "pause": "paused", "resume": "resumed", "release": "released",
    "rerun": "reran", "migrate": "migrated", "move": "migrated",
}  # fmt: skip
"""What a bulk asks of a run, and the request that it becomes."""


# == pauses ============================================================================================================
def pauses(facts: Facts) -> Found:
    """I25: what a pause withheld was handed out by its end, a run that is paused was not paused for nothing, and one
    that was started while its workflow was paused began nothing before that was over."""
    for key, task in facts.tasks.items():
        if task.get("withheld"):
            yield "a task is withheld after every pause has ended", facts.name(key)
    for row in facts.dump.get("held_command", []):
        if row["released_at"] is None:
            yield "a command is kept back after every pause has ended", f"{row['run_id']} task {row['task']}"
    for row in (*facts.dump.get("workflow_pause", []), *facts.dump.get("queue_pause", [])):
        if row.get("resumed_at") is None:
            yield "a pause has not ended", str(row.get("workflow") or row.get("queue"))
    for run_id, rows in facts.history.items():
        yield from _alternating(run_id, rows)
    yield from _begun_paused(facts)


def _alternating(run_id: str, rows: list[Row]) -> Found:
    """One that ended is paused no more, and may be again once it was taken up. A pause is of the run, or of one task;
    that of a move ends with it."""
    last: dict[tuple[int, int | None], str] = {}
    for row in rows:
        if row["kind"] in ("replayed", "reran"):
            last = {what: f"{kind}, maybe" for what, kind in last.items()}
        elif row["kind"] in ("migrated", "migration_refused"):
            last[row["detail"].get("resumes", 0), None] = "resumed"
        elif row["kind"] in ("paused", "resumed"):
            what = (row["detail"]["scope"], row.get("task"))
            before = last.get(what, "resumed")
            if before == row["kind"]:
                yield f"{row['kind']} follows {before}, of scope {what[0]}", run_id
            last[what] = row["kind"]


def _begun_paused(facts: Facts) -> Found:
    """Between the answer to the pause of its workflow and the request for its end, a start begins paused: decided in
    the transaction that starts it. (A child is told within seconds.)"""
    spans = _spans(facts)
    if not spans:
        return
    started = {entry["answer"]["run_id"]: entry for entry in facts.calls("start", "OK")}
    for run_id, entry in started.items():
        rows = facts.history.get(run_id, [])
        # A start that was answered later may have waited for the end of the pause.
        told = spans.get(entry.get("workflow", ""), [])
        if not rows or not any(begin < rows[0]["at"] and entry["done_at"] < end for begin, end in told):
            continue
        if len(rows) < 2 or rows[1]["kind"] != "paused" or rows[1]["detail"]["scope"] != WORKFLOW_PAUSED:
            yield "a run was started while its workflow was paused, and is not", run_id
            continue
        over = [  # a run that had ended meanwhile is not told
            row["at"]
            for row in rows
            if row["kind"] == "reran" or (row["kind"] == "resumed" and row["detail"]["scope"] == WORKFLOW_PAUSED)
        ]
        begun = [line["begun_at"] for line in facts.by_run.get(run_id, []) if "begun_at" in line]
        if begun and (not over or min(begun) < over[0] - CLOCK_SECONDS):
            yield "a body began while the workflow of its run was paused", run_id


def _spans(facts: Facts) -> dict[str, list[tuple[float, float]]]:
    """When each workflow was surely paused: an end that was asked for before, and not answered, may come later."""
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    asked = sorted(
        (entry for op in ("pause_all", "resume_all") for entry in facts.calls(op)), key=lambda entry: entry["at"]
    )
    since: dict[str, float] = {}
    unsure: dict[str, float] = {}
    for entry in asked:
        target = entry["target"]
        if entry["op"] == "resume_all" and entry["outcome"] == "UNKNOWN":
            unsure[target] = entry["at"] + LATE_SECONDS
        if entry["op"] == "pause_all" and entry["outcome"] == "OK" and unsure.get(target, 0.0) < entry["at"]:
            since[target] = entry["done_at"]
        elif entry["op"] == "resume_all" and target in since:
            spans[target.rpartition("/")[2]].append((since.pop(target) + CLOCK_SECONDS, entry["at"] - CLOCK_SECONDS))
    return spans


# == pauses of one task ================================================================================================
def task_pauses(facts: Facts) -> Found:
    """I29: what is handed out of a task while it is paused is handed out by the end of the pause; and what was accepted
    was asked of the run."""
    for op, kind in (("pause_task", "paused"), ("resume_task", "resumed")):
        asked = {
            row["run_id"]
            for row in facts.dump["inbox"]
            if row["kind"] == kind and (row.get("body") or {}).get("scope") == TASKS_PAUSED
        }
        for entry in facts.calls(op, "OK"):
            if entry["task_id"].split(".")[0] not in asked:
                yield f"an accepted {op} is not there", entry["task_id"]
    for run_id in facts.runs:
        told = [r for r in facts.of_run(run_id, "paused", "resumed") if r["detail"]["scope"] == TASKS_PAUSED]
        for row in told:
            if row["kind"] == "paused":
                ends = [r for r in told if r["task"] == row["task"]] + facts.of_run(run_id, "replayed", "reran")
                ends = sorted(
                    (r for r in ends if r["row_version"] > row["row_version"]), key=lambda r: r["row_version"]
                )
                end = ends[0] if ends else {"row_version": inf, "at": facts.runs[run_id]["finished_at"] or inf}
                yield from _handed_out(facts, run_id, row, end)


def _handed_out(facts: Facts, run_id: str, begin: Row, end: Row) -> Found:
    """Of each place of the task: the last hand-out that the pause may have found is the one before a move within it
    that asks for another. Of the graph, what it needs has to have ended first."""

    def is_within(row: Row) -> bool:
        return bool(begin["row_version"] < row["row_version"] < end["row_version"])

    spec = facts.spec((run_id, begin["task"]))
    names = [name for name, _ in facts.specs[facts.runs[run_id]["version_id"]]]
    needs = [spec["needs"]] if isinstance(spec.get("needs"), str) else spec.get("needs", [])
    needed = [row for need in needs for row in facts.attempts.get((run_id, names.index(need)), [])]
    is_late = spec.get("join", "all") == "all" and any(is_within(row) for row in needed)
    for key in facts.tasks:
        if key[0] != run_id or is_compensation(key[1]) or task_of(key[1]) != begin["task"]:
            continue
        moves = [*facts.attempts.get(key, []), *facts.of_task(key, "lost")]
        moves += [row for row in facts.of_task(key, "due") if (row["detail"] or {}).get("timer") == "backoff"]
        found = [row["token"] for row in moves if is_within(row)]
        last = 0 if is_late and not facts.again(key) else min(found, default=None)
        yield from _begun_beyond(facts, key, last, end["at"])


def _begun_beyond(facts: Facts, key: Key, last: int | None, until: float) -> Found:
    if last is None:
        return
    for line in facts.bodies(key):
        if "begun_at" in line and line["token"] > last and line["begun_at"] < until - CLOCK_SECONDS:
            yield f"token {line['token']} was handed out while its task was paused", facts.name(key)
            return


# == bulks =============================================================================================================
def bulks(facts: Facts) -> Found:
    """I26: a bulk that was accepted is there, once, and comes to its end; each of its runs has one turn, at which it is
    asked once what one person would ask, or is not, with a reason; and nobody else is asked."""
    known = [row for row in facts.dump.get("bulk", []) if row["act"] in KINDS and not is_of_publish(row)]
    rows = {row["reason"]: row for row in known}
    for reason, count in Counter(row["reason"] for row in known).items():
        if count > 1:
            yield f"one request made {count} bulks", reason
    for entry in facts.calls("bulk", "OK"):
        if entry["reason"] not in rows or rows[entry["reason"]]["bulk_id"] != entry["answer"]["bulk_id"]:
            yield "an accepted bulk is not there", entry["reason"]
    items: dict[str, list[Row]] = defaultdict(list)
    for item in facts.dump.get("bulk_item", []):
        items[item["bulk_id"]].append(item)
    asked: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in facts.dump["inbox"]:
        why: str = (row.get("body") or {}).get("reason") or ""
        if why in rows:
            asked[why][row["run_id"]].append(row)
    for reason, bulk in rows.items():
        if bulk["finished_at"] is None:
            yield "a bulk never came to its end", reason
        if len(items[bulk["bulk_id"]]) != bulk["selected"]:
            yield f"a bulk of {bulk['selected']} has {len(items[bulk['bulk_id']])} items", reason
        yield from _turns(facts, bulk, items[bulk["bulk_id"]], asked[reason])


def is_of_publish(bulk: Row) -> bool:
    """Its reason says which version, and not of which workflow."""
    return bulk["act"] == "move" and bulk["reason"].startswith("version ")


def _turns(facts: Facts, bulk: Row, items: list[Row], asked: dict[str, list[Row]]) -> Found:
    reason, kind = bulk["reason"], KINDS[bulk["act"]]
    done = {item["item_id"]: item for item in items if item["outcome"] == "done"}
    if len({item["item_id"] for item in items}) < len(items):
        yield "a run is in one bulk twice", reason
    for item in items:
        where = f"{reason}: {item['item_id']}"
        if item["outcome"] is None:
            yield "a run never had its turn", where
        elif item["outcome"] == "refused" and not item["reason"]:
            yield "a turn was refused for no reason", where
        elif item["outcome"] == "stopped" and bulk["stopped_by"] is None:
            yield "a turn was left out, and nobody stopped its bulk", where
    for run_id in done.keys() | asked.keys():
        told = asked.get(run_id, [])
        if bulk["act"] == "move":  # which pauses a run first, and lets go those that it does not move
            beside = Counter(row["kind"] for row in told if row["kind"] != kind)
            # One that ended meanwhile is paused no more, and was asked again when it went on after all.
            times_max = 1 + len(facts.of_run(run_id, "replayed", "resolved", "reran"))
            if any(times > times_max for times in beside.values()) or not beside.keys() <= {"paused", "resumed"}:
                yield f"a run was asked {dict(beside)} for its move", f"{reason}: {run_id}"
            told = [row for row in told if row["kind"] == kind]
        if len(told) != (run_id in done) or any(row["kind"] != kind for row in told):
            yield f"a run was asked {len(told)} times by a bulk", f"{reason}: {run_id}"
        elif told and told[0]["inbox_id"] != done[run_id]["inbox_id"]:
            yield "a turn names another request", f"{reason}: {run_id}"
        moved = [row for row in facts.of_run(run_id, kind) if (row["detail"] or {}).get("reason") == reason]
        if len(moved) > len(told):
            yield f"a run was moved {len(moved)} times by a bulk", f"{reason}: {run_id}"


# == versions ==========================================================================================================
def versions(facts: Facts) -> Found:
    """I19: a run is on the version on which it was started, or on the one to which it was moved last, while it was
    paused; moves follow each other; a publish that moves runs does so, and no move leaves a run paused."""
    yield from _published(facts)
    for run_id, task in facts.astray:
        yield "a task that its version does not have", f"{run_id} task {task}"
    answered: dict[str, int] = {
        entry["answer"]["run_id"]: entry["answer"]["version"]
        for entry in facts.calls("start", "OK")
        if "version" in entry["answer"]
    }
    for run_id in facts.runs:
        now: Any = facts.version(run_id).get("version")
        moves = facts.of_run(run_id, "migrated")
        reruns = [row for row in facts.of_run(run_id, "reran") if "version" in row["detail"]]
        steps = [(row["row_version"], row["detail"].get("version") or row["detail"]) for row in (*moves, *reruns)]
        steps.sort(key=lambda step: step[0])
        path = [steps[0][1]["from"], *(step["to"] for _, step in steps)] if steps else [now]
        if path[-1] != now or any(step["from"] != before for (_, step), before in zip(steps, path, strict=False)):
            yield f"a run is on version {now}, and was moved by {path}", run_id
        if run_id in answered and answered[run_id] not in path:
            yield f"a run was started on version {answered[run_id]}, and was on {path}", run_id
        for move in moves:
            before = [r for r in facts.history[run_id] if r["row_version"] < move["row_version"]]
            scopes = {
                r["detail"]["scope"]: r["kind"]
                for r in before
                if r["kind"] in ("paused", "resumed") and r["task"] is None
            }
            if "paused" not in scopes.values():
                yield "a run was moved while nobody paused it", run_id


def _published(facts: Facts) -> Found:
    """The moves of a publish: a bulk for each that said so, which comes to its end, and a turn that is done is a move
    to the version that was the latest then, or a later one."""
    for run_id, run in facts.runs.items():
        if run.get("control", 0) & MOVING:
            yield "a move left a run paused", run_id
    known = {row["bulk_id"]: row for row in facts.dump.get("bulk", []) if is_of_publish(row)}
    for entry in facts.calls("publish", "OK"):
        bulk_id = (entry.get("answer") or {}).get("bulk_id")
        if bulk_id is not None and bulk_id not in known:
            yield "the moves of a publish are not there", bulk_id
    for bulk in known.values():
        if bulk["finished_at"] is None:
            yield "the moves of a publish never came to their end", bulk["bulk_id"]
    asked = {row["inbox_id"]: row for row in facts.dump["inbox"]}
    for item in facts.dump.get("bulk_item", []):
        bulk, where = known.get(item["bulk_id"]), f"{item['bulk_id']}: {item['item_id']}"
        if bulk is None or item["item_id"] not in facts.runs:
            continue
        if item["outcome"] is None or (item["outcome"] == "refused" and not item["reason"]):
            yield "a run had no turn at the moves of a publish", where
        if item["outcome"] != "done":
            continue
        told = asked.get(item["inbox_id"])
        if told is None or (told["run_id"], told["kind"]) != (item["item_id"], "migrated"):
            yield "a turn of a publish asked nothing", where
        moves = facts.of_run(item["item_id"], "migrated")
        wanted = int(bulk["reason"].split()[1])
        for move in moves:
            if (move["detail"] or {}).get("reason") == bulk["reason"] and move["detail"]["to"] < wanted:
                yield f"a publish of version {wanted} moved a run to {move['detail']['to']}", where
