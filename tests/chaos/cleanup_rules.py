"""The oracle's rule of clean-ups (I28): tasks whose join is `finally`."""

from tests.chaos.facts import CLOCK_SECONDS, PAUSE_MOVES, RUN_TERMINAL, Facts, Found, Key, is_compensation


def clean_ups(facts: Facts) -> Found:
    """I28: of a run that has ended, and was not terminated, each clean-up behind something that had begun has run to
    its end, once; it began behind the end of what it needs; and what a cancel or the deadline ended stays so."""
    for run_id, run in facts.runs.items():
        tasks = facts.specs[run["version_id"]]
        found = [number for number in range(len(tasks)) if facts.cleans_up((run_id, number))]
        is_ended = run["status"] in RUN_TERMINAL and not facts.of_run(run_id, "terminated")
        for number in found:
            key = (run_id, number)
            status = facts.tasks[key]["status"] if key in facts.tasks else "untouched"
            if is_ended and status not in ("completed", "failed") and _has_begun(facts, key):
                yield f"a clean-up is {status} at the end of its run", facts.name(key)
            completed = sum(row["outcome"] == "completed" for row in facts.attempts.get(key, []))
            if completed > 1 + len(facts.of_run(run_id, "reran")):  # each of which may need it again
                yield "a clean-up completed twice", facts.name(key)
            yield from _early(facts, key)
        if found:
            yield from _behind_the_end(facts, run_id)


def _needs(facts: Facts, key: Key) -> list[Key]:
    spec = facts.spec(key)
    needs = [spec["needs"]] if isinstance(spec.get("needs"), str) else spec.get("needs", [])
    names = [name for name, _ in facts.specs[facts.runs[key[0]]["version_id"]]]
    return [(key[0], names.index(need)) for need in needs]


def _has_begun(facts: Facts, key: Key) -> bool:
    """It, or what is before it, however far back."""
    task = facts.tasks.get(key)
    is_begun = task is not None and (task["token"] > 0 or task["status"] == "completed")
    return is_begun or any(_has_begun(facts, need) for need in _needs(facts, key))


def _early(facts: Facts, key: Key) -> Found:
    begun = [line["begun_at"] for line in facts.bodies(key) if "begun_at" in line]
    for need in _needs(facts, key):
        ended = [row["ended_at"] for row in facts.attempts.get(need, [])]
        if begun and ended and not facts.again(need) and min(begun) < max(ended) - CLOCK_SECONDS:
            yield f"a clean-up began before {facts.name(need)} had ended", facts.name(key)


def _behind_the_end(facts: Facts, run_id: str) -> Found:
    """Nothing but clean-ups moves behind the cancel, or the deadline, of a run that nobody took up again."""
    ends = [row for row in facts.history[run_id] if row["kind"] == "cancelled" or facts.is_deadline_of_run(row)]
    if not ends or facts.of_run(run_id, "reran"):
        return
    moved = [(row["task"], row["row_version"]) for row in facts.history[run_id] if row["kind"] not in PAUSE_MOVES]
    moved += [(n, row["row_version"]) for (of, n), rows in facts.attempts.items() if of == run_id for row in rows]
    for task, move in moved:
        if task is None:
            continue
        is_other = not is_compensation(task) and not facts.cleans_up((run_id, task))
        if is_other and move > ends[0]["row_version"]:
            yield "a task that is no clean-up went on behind the end", facts.name((run_id, task))
