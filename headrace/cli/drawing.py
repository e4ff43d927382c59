"""A run's graph as text.

A task is drawn below the last task that all its paths come through (its immediate dominator). What only branches off is
indented; where the branches meet again, the drawing goes on in the column where they left:

    ✓ validate
    ├─ ✓ reserve
    └─ ✓ charge
    ✓ ship       after reserve, charge

So a chain stays in one column however long it is, and a fan of thirty tasks has their join below it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rich.text import Text

from headrace.cli.terminal import Terminal, ago

FAN_MAX: Final = 12
"""Of more branches side by side than this, the finished ones are counted instead of drawn, unless all are asked for."""
FAN_SHOWN: Final = 3
NEEDS_SHOWN: Final = 4
ERROR_CHARS: Final = 400

Task = Mapping[str, Any]
"""A task as the API gives it."""


@dataclass
class Node:
    task: Task
    depth: int
    is_join: bool
    """It needs more than the task it is drawn below."""
    below: list["Node"] = field(default_factory=list)
    """In an order in which every task comes after those it needs."""


@dataclass(frozen=True)
class Row:
    lines: str
    """What leads to the task from above: `│  ├─ `."""
    under: str
    """What leads on past it: stands before its error."""
    node: Node | None
    note: str = ""
    """Instead of a task."""


def draw_tasks(tasks: Sequence[Task], terminal: Terminal, *, everything: bool = False) -> list[Text]:
    """The whole graph, a line a task, errors below theirs. everything: draw also each finished branch of a wide fan."""
    strokes = ("├─ ", "└─ ", "│  ") if terminal.can_draw else ("|- ", "`- ", "|  ")
    rows = list(_rows(dominator_tree(tasks), strokes, "", everything=everything))
    width = max((len(row.lines) + len(row.node.task["name"]) for row in rows if row.node), default=0)
    return [line for row in rows for line in _draw_row(row, terminal, width)]


def dominator_tree(tasks: Sequence[Task]) -> list[Node]:
    """The tasks below the run itself, each with its own below it. Needs that are not among `tasks` are ignored."""
    top: list[Node] = []
    nodes: dict[str, Node] = {}
    above: dict[str, Node | None] = {}
    for task in _topological(tasks):
        needs = [nodes[need] for need in task["needs"] if need in nodes]
        parent = _meet(needs, above)
        node = Node(task, parent.depth + 1 if parent else 1, is_join=len(needs) > 1)
        nodes[task["name"]], above[task["name"]] = node, parent
        (parent.below if parent else top).append(node)
    return top


def _topological(tasks: Sequence[Task]) -> Iterator[Task]:
    """Tasks after those they need, otherwise as given. Repeats nothing, and ends, whatever `tasks` is."""
    waiting = {task["name"]: task for task in tasks}
    while waiting:
        free = [task for task in waiting.values() if not any(need in waiting for need in task["needs"])]
        for task in free or list(waiting.values()):
            del waiting[task["name"]]
            yield task


def _meet(needs: Sequence[Node], above: Mapping[str, Node | None]) -> Node | None:
    """The lowest node that all of these are below of, or one of them; None for the run itself."""
    meeting: Node | None = needs[0] if needs else None
    for need in needs[1:]:
        other: Node | None = need
        while meeting is not other and meeting and other:
            if meeting.depth >= other.depth:
                meeting = above[meeting.task["name"]]
            else:
                other = above[other.task["name"]]
        meeting = meeting if meeting is other else None
    return meeting


def _rows(below: Sequence[Node], strokes: tuple[str, str, str], lines: str, *, everything: bool) -> Iterator[Row]:
    """Branches first, then where they meet, which goes on in the same column."""
    tee, corner, bar = strokes
    onward = below[0] if len(below) == 1 else next((node for node in reversed(below) if node.is_join), None)
    branches = [node for node in below if node is not onward]
    shown = branches if everything else _without_finished(branches)
    folded = len(branches) - len(shown)
    for number, branch in enumerate(shown, 1 + bool(not folded)):
        is_last = number > len(shown)
        deeper = lines + (" " * len(bar) if is_last else bar)
        yield Row(lines + (corner if is_last else tee), deeper, branch)
        yield from _rows(branch.below, strokes, deeper, everything=everything)
    if folded:
        yield Row(lines + corner, lines, None, f"{folded} more, all completed")
    if onward:
        yield Row(lines, lines, onward)
        yield from _rows(onward.below, strokes, lines, everything=everything)


def _without_finished(branches: list[Node]) -> list[Node]:
    """Leave out most of the branches that are done and lead nowhere else, when there are many of them."""
    if len(branches) <= FAN_MAX:
        return branches
    plain = [node for node in branches if not node.below and node.task["status"] == "completed"]
    hidden = {id(node) for node in plain[FAN_SHOWN:]}
    return [node for node in branches if id(node) not in hidden]


def _draw_row(row: Row, terminal: Terminal, width: int) -> Iterator[Text]:
    if row.node is None:
        yield Text(row.lines + row.note, style="dim")
        return
    task = row.node.task
    line = Text().append(row.lines, style="dim")
    line.append_text(terminal.sign(task["status"])).append(" ").append(task["name"], style="bold")
    line.append(" " * (width - len(row.lines) - len(task["name"]) + 2))
    line.append(describe_task(task))
    if task.get("is_paused"):
        line.append("  paused", style="yellow")
    if task.get("compensation"):
        line.append(
            f"  compensation {task['compensation']}", style="red" if task["compensation"] == "failed" else "dim"
        )
    if row.node.is_join:
        needs = task["needs"]
        more = f" and {len(needs) - NEEDS_SHOWN} more" if len(needs) > NEEDS_SHOWN else ""
        line.append(f"  after {', '.join(needs[:NEEDS_SHOWN])}{more}", style="dim")
    yield line
    if error := describe_error(task):
        yield Text.assemble((row.under, "dim"), "  ", (error, "red"))


def describe_task(task: Task) -> str:
    """What people ask of a task: `completed`, `running, attempt 2 of 3`, `waiting for approval`, `retries in 4 s`."""
    status, attempt, most = task["status"], task["attempt"] or 0, task.get("attempts_max") or 0
    if task.get("items"):
        return f"{status}, {describe_items(task['items'])}"
    if status == "waiting" and task.get("approval_id"):
        return "waiting for approval"
    if status == "waiting" and task.get("signal"):
        until = f" until {task['due_at']}, {ago(task['due_at'])}" if task.get("due_at") else ""
        return f"waiting for signal {task['signal']}{until}"
    if status == "waiting" and task.get("workflow"):
        until = f" until {task['due_at']}, {ago(task['due_at'])}" if task.get("due_at") else ""
        return f"waiting for a run of {task['workflow']}{until}"
    if status == "waiting" and task.get("due_at"):
        return f"waiting until {task['due_at']}, {ago(task['due_at'])}"
    if status == "pending" and task.get("due_at") and task.get("rounds"):
        return f"{count_of(task['rounds'], 'round')} so far, next {ago(task['due_at'])}"
    if status == "pending" and task.get("due_at") and attempt:
        return f"attempt {attempt} of {most} failed, next {ago(task['due_at'])}"
    if status == "running" or (status == "failed" and most > 1) or (status == "queued" and attempt):
        return f"{status}, attempt {max(attempt, 1)} of {most}" if most else status
    return f"{status}, attempt {attempt}" if attempt > 1 else str(status).replace("_", " ")


def count_of(number: int, what: str) -> str:
    return f"{number} {what}" + ("" if number == 1 else "s")


def describe_items(counts: Mapping[str, int]) -> str:
    """How far a map has come: `312/400 ok, 3 failed`."""
    failed = f", {counts['failed']} failed" if counts["failed"] else ""
    return f"{counts['completed']}/{counts['total']} ok{failed}"


def describe_labels(labels: Mapping[str, str]) -> str:
    """As they are given to `--label`."""
    return " ".join(f"{name}={value}" for name, value in labels.items())


def describe_error(task: Task) -> str:
    """`CODE: message` in one line; empty without an error."""
    error = task.get("error")
    if not error:
        return ""
    text = " ".join(f"{error.get('code', '')}: {error.get('message', '')}".split()).strip(": ")
    return text if len(text) <= ERROR_CHARS else f"{text[: ERROR_CHARS - 1]}…"
