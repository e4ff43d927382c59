"""A filter as conditions of SQL: fragments of `sql/filter_*.sql`, one a field, put together. Values are parameters,
always; of a user's text nothing ever stands in a statement.

Two kinds of conditions come out. What an index finds *narrows*: those the database walks. The others are *looked at*,
and of those only so many rows at a time: `looks` says how many rows a list may look at, by what one look costs.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final, LiteralString
from uuid import UUID

from psycopg import sql

from headrace.errors import Fault, FilterError
from headrace.filter import (
    Clause,
    Filter,
    bounds,
    has_wildcard,
    like,
    literal,
    read_id,
    read_number,
)
from headrace.filter_field import Field, Kind, Noun, find_field
from headrace.machine import RunStatus
from headrace.machine.status import RUN_TERMINAL, TaskStatus
from state.queries.rows import AT_MAX, Connection, fetch, fetch_filtered, fetch_one
from state.sql import Statements, load

LOOKS_CHEAP: Final = 20_000
"""Rows that one list looks at by their own columns. W7 measures what these bounds lead to: a page is to take 300 ms at
most."""
LOOKS_DEAR: Final = 5_000
"""Rows whose documents are read, or their tasks."""
LOOKS_WITHIN: Final = 2_000
"""Runs whose tasks, attempts or history a list goes through."""
PATIENCE: Final = 10
"""So many times as far looks who acts on many: that is asked for rarely, and what was not looked at is left out."""
STUCK_SECONDS: Final = 60.0
"""For so long nobody serves its queue, or what is due does not move it, before a run is called stuck, unless the API is
set otherwise: what the sweeps set right by themselves has happened by then."""
IDS_MAX: Final = 10_000
SPOTS_MAX: Final = 100_000
"""Tasks of all graphs that a name may stand for."""

CANDIDATES: Final = load("candidates")
_SEARCH: Final = load("search")
_VERSIONS: Final = load("filter_versions")
_RUNS: Final = load("filter_runs")
_OWN: Final[dict[Noun, Statements]] = {
    "runs": _RUNS,
    "tasks": load("filter_tasks"),
    "attempts": load("filter_attempts"),
    "history": load("filter_history"),
    "dead_letters": load("filter_dead_letters"),
}
_OPEN: Final = frozenset(RunStatus) - RUN_TERMINAL
_ENDED_BADLY: Final = RUN_TERMINAL - {RunStatus.COMPLETED}
_OPEN_TASKS: Final = frozenset({TaskStatus.PENDING, TaskStatus.QUEUED, TaskStatus.RUNNING, TaskStatus.WAITING})
_OF_VERSIONS: Final = ("workflow", "version", "task", "queue")
"""What a version says of all its runs."""
_DEAR: Final = frozenset({"label", "failed", "code", "error", "waits", "pool", "by", "input", "output"})
_WHILE_OPEN: Final = ("waits", "pool")
"""What only open runs do."""
TRUE: Final = sql.SQL("true")


@dataclass
class Conditions:
    """Of one filter, over runs or what they consist of, or over dead letters."""

    of: Noun
    narrow: list[sql.Composable] = field(default_factory=list)
    look: list[sql.Composable] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    versions: list[int] | None = None
    """Walk the runs of each of these. None: walk all."""
    label: Clause | None = None
    """Walk the runs with this label."""
    statuses: tuple[str, ...] = ()
    """Of dead letters: walk each of these."""
    looks: int = LOOKS_CHEAP
    is_nothing: bool = False
    """Nothing can match: a workflow of that name is not there."""

    @property
    def has_looks(self) -> bool:
        return bool(self.look)

    def candidates(self) -> sql.Composed:
        """The rows that an index finds, as a table."""
        if self.of == "dead_letters":
            name = "walk_letters"
        elif self.label is not None:
            name = "walk_labels"
        else:
            name = "walk" if self.versions is None else "walk_versions"
        return sql.SQL(CANDIDATES.text(name)).format(narrow=both(self.narrow))

    def statement(self, name: str) -> sql.Composed:
        """A statement of `search.sql` with these conditions."""
        return sql.SQL(_SEARCH.text(name)).format(candidates=self.candidates(), look=both(self.look))

    def given(self, **parameters: Any) -> dict[str, Any]:
        walked: dict[str, Any] = {"versions": self.versions, "statuses": list(self.statuses)}
        if self.label is not None:
            walked |= {"label": _label_of(self.label), "values": sorted(set(map(literal, self.label.values)))}
        return {**self.parameters, **walked, **parameters}

    def only(self, ids: Collection[UUID]) -> None:
        """Of these rows only, whatever else an index would find."""
        self.is_nothing |= not ids
        fragment = _OWN["dead_letters"].text("letter") if self.of == "dead_letters" else _RUNS.text("run")
        self.narrow.append(self.add(fragment, values=sorted(ids)))
        if self.versions is not None:
            self.look.append(self.add(_RUNS.text("of_versions"), versions=self.versions))
            self.versions = None

    def add(self, fragment: LiteralString, **parameters: Any) -> sql.Composed:
        """A fragment with its parameters under names of their own."""
        names = {key: f"p{len(self.parameters) + place}" for place, key in enumerate(parameters)}
        self.parameters |= {names[key]: value for key, value in parameters.items()}
        return sql.SQL(fragment).format(**{key: sql.Placeholder(name) for key, name in names.items()})


def both(conditions: Sequence[sql.Composable]) -> sql.Composable:
    """All of them hold."""
    if not conditions:
        return TRUE
    return sql.SQL(" AND ").join([sql.SQL("({})").format(each) for each in conditions])


def _any(conditions: Sequence[sql.Composable]) -> sql.Composable:
    return sql.SQL(" OR ").join([sql.SQL("({})").format(each) for each in conditions])


def _not(condition: sql.Composable) -> sql.Composable:
    """Also what is unknown is not so."""
    return sql.SQL("NOT coalesce(({}), false)").format(condition)


async def conditions_of(
    connection: Connection, namespace: str, filter: Filter, *, stuck_seconds: float = STUCK_SECONDS
) -> Conditions:
    """Look up what names stand for, and put the conditions together. In the caller's snapshot.

    stuck_seconds: for so long nothing moves a run before it is stuck.

    Raises FilterError when a name stands for too much.
    """
    made = Conditions(filter.of, looks=LOOKS_CHEAP if filter.of in ("runs", "dead_letters") else LOOKS_WITHIN)
    now = await _now(connection, filter)
    if filter.of == "dead_letters":
        _add_letters(made, filter, now)
        return made
    await _add_versions(connection, namespace, made, filter, now)
    await _add_ids(connection, namespace, made, filter)
    _add_statuses(made, filter)
    _walk_label(made, filter)
    looked_at = [clause for clause in filter.clauses if clause is not made.label]
    for clause in looked_at:
        if made.of == "runs" and _asks_for_stuck(clause):
            await _add_stuck(connection, namespace, made, clause, stuck_seconds)
        else:
            await _add_own(connection, namespace, made, clause, now)
    if filter.of == "runs" and any(
        clause.field.partition(".")[0] in _DEAR or _asks_for_stuck(clause) for clause in looked_at
    ):
        made.looks = LOOKS_DEAR
    return made


async def freeze(connection: Connection, filter: Filter) -> Filter:
    """The filter with instants instead of ages, by the database's clock."""
    return filter.at(await _now(connection, filter))


async def _now(connection: Connection, filter: Filter) -> datetime:
    """By the database's clock, where the filter asks for instants."""
    fields = [find_field(filter.of, clause.field) for clause in filter.clauses]
    if not any(found and found.kind is Kind.INSTANT for found in fields):
        return AT_MAX
    now = await fetch_one(connection, _at, _SEARCH.text("read_now"))
    assert now is not None
    return now


def _at(at: datetime) -> datetime:
    return at


# == what names stand for ==============================================================================================
async def _add_versions(
    connection: Connection, namespace: str, made: Conditions, filter: Filter, now: datetime
) -> None:
    """The versions of which a run may be. Where the filter says only which not, nearly all are left: then those are
    looked at.
    """
    clauses = [clause for clause in filter.clauses if clause.field in _OF_VERSIONS]
    if filter.of != "runs":  # a task that is not of this name is there in most runs
        clauses = [clause for clause in clauses if clause.field in ("workflow", "version") or not clause.is_negated]
    if not clauses:
        return
    asked = Conditions("runs")
    asked.look = [_condition(asked, _VERSIONS, clause, now) for clause in clauses]
    found = await fetch_filtered(connection, int, asked.statement("find_versions"), **asked.given(namespace=namespace))
    made.is_nothing |= not found
    if all(clause.is_negated for clause in clauses):
        made.look.append(made.add(_RUNS.text("of_versions"), versions=found))
    else:
        made.versions = found


async def _add_ids(connection: Connection, namespace: str, made: Conditions, filter: Filter) -> None:
    """Runs that are named one by one, by their own ids, their keys or their parents."""
    wanted: set[UUID] | None = None
    for clause in filter.clauses:
        if clause.field not in ("run", "key", "parent"):
            continue
        found = await _ids(connection, namespace, clause)
        if clause.is_negated:
            made.look.append(_not(made.add(_RUNS.text("run"), values=sorted(found))))
        else:
            wanted = found if wanted is None else wanted & found
    if wanted is not None:
        made.only(wanted)


async def _ids(connection: Connection, namespace: str, clause: Clause) -> set[UUID]:
    match clause.field:
        case "run":
            return {read_id(value) for value in clause.values}
        case "key":
            keys = [f"api:{literal(value)}" for value in clause.values]
            return set(
                await fetch(connection, _only, _SEARCH.text("find_runs_of_keys"), namespace=namespace, values=keys)
            )
        case _:
            parents = [read_id(value) for value in clause.values]
            statement = _SEARCH.text("find_runs_of_parents")
            given = {"namespace": namespace, "values": parents, "limit": IDS_MAX}
            return set(await fetch(connection, _only, statement, **given))


def _only(run_id: UUID) -> UUID:
    return run_id


def _look_at_versions(made: Conditions) -> None:
    """Another index finds fewer: the version is looked at."""
    if made.versions is not None:
        made.look.append(made.add(_RUNS.text("of_versions"), versions=made.versions))
        made.versions = None


# == how runs stand ====================================================================================================
def _add_statuses(made: Conditions, filter: Filter) -> None:
    """All that is said of the status of a run, as one set: open runs, and those that ended badly, have an index."""
    field_name = "status" if filter.of == "runs" else "run_status"
    wanted = frozenset(RunStatus)
    for clause in filter.clauses:
        if clause.field == field_name:
            said = frozenset(map(RunStatus, clause.values))
        elif clause.field == "is" and filter.of == "runs":
            said = frozenset().union(*(_standing(clause, value) for value in clause.values))
        else:
            continue
        wanted &= frozenset(RunStatus) - said if clause.is_negated else said
    if _is_of_open_runs(filter):
        wanted &= _OPEN
    if wanted == frozenset(RunStatus):
        return
    made.is_nothing |= not wanted
    of_status = made.add(_RUNS.text("status"), values=sorted(status.value for status in wanted))
    for part, name in ((_OPEN, "is_open"), (_ENDED_BADLY, "ended_badly")):
        if wanted <= part:
            made.narrow += [sql.SQL(_RUNS.text(name)), of_status]
            _look_at_versions(made)
            return
    made.look.append(of_status)


def _standing(clause: Clause, value: str) -> frozenset[RunStatus]:
    """Among which statuses all runs are that are so; negated: all of which are. Which of the open ones are stuck is
    looked at."""
    if value == "stuck":
        return frozenset() if clause.is_negated else _OPEN
    return _OPEN if value == "open" else RUN_TERMINAL


def _asks_for_stuck(clause: Clause) -> bool:
    return clause.field == "is" and "stuck" in clause.values


def _is_of_open_runs(filter: Filter) -> bool:
    """Whether what is asked for is only found in runs that have not ended."""
    for clause in filter.clauses:
        if clause.is_negated:
            continue
        if filter.of == "runs" and clause.field in _WHILE_OPEN:
            return True
        if filter.of == "tasks" and clause.field == "status" and _OPEN_TASKS.issuperset(map(TaskStatus, clause.values)):
            return True
        if filter.of == "tasks" and clause.field in ("pool", "due"):
            return True
    return False


# == labels ============================================================================================================
def _walk_label(made: Conditions, filter: Filter) -> None:
    """The runs with a label are found by its values, in their order, unless something that finds fewer is walked
    already. Whatever else is said of labels is looked at."""
    if made.narrow:
        return
    for clause in filter.clauses:
        is_of_values = not clause.is_negated and not any(map(has_wildcard, clause.values))
        if is_of_values and _is_of_label(filter.of, clause):
            made.label = clause
            _look_at_versions(made)
            return


def _is_of_label(of: Noun, clause: Clause) -> bool:
    found = find_field(of, clause.field)
    return found is not None and found.kind is Kind.LABEL


def _label_of(clause: Clause) -> str:
    return clause.field.partition(".")[2]


# == one by one ========================================================================================================
async def _add_own(connection: Connection, namespace: str, made: Conditions, clause: Clause, now: datetime) -> None:
    name = clause.field
    if name in ("run", "key", "parent", "workflow", "version", "is", "run_status"):
        return
    if made.of == "runs" and name in ("status", "task", "queue"):
        return
    if name == ("started" if made.of == "runs" else "began"):
        _add_start(made, clause, now)
        return
    own = _RUNS if _is_of_label(made.of, clause) else _OWN[made.of]
    if name in ("task", "queue") or (name == "failed" and clause.values != ("*",)):
        spots = await _spots(connection, namespace, clause)
        made.look.append(_turned(made.add(own.text(name), spots=spots), clause))
    elif name == "failed":
        made.look.append(_turned(sql.SQL(own.text("failed_any")), clause))
    else:
        made.look.append(_condition(made, own, clause, now))


async def _add_stuck(connection: Connection, namespace: str, made: Conditions, clause: Clause, seconds: float) -> None:
    """Besides the statuses, which stand among the others already."""
    given = {"namespace": namespace, "seconds": seconds, "scanned": LOOKS_CHEAP, "limit": SPOTS_MAX}
    unserved = await fetch(connection, int, _SEARCH.text("find_spots_unserved"), **given)
    others = frozenset().union(*(_standing(clause, value) for value in clause.values if value != "stuck"))
    is_other = made.add(_RUNS.text("status"), values=sorted(status.value for status in others))
    is_stuck = made.add(_RUNS.text("is_stuck"), unserved=unserved, seconds=seconds)
    made.look.append(
        _turned(_any([is_other, sql.SQL("({} AND ({}))").format(sql.SQL(_RUNS.text("is_open")), is_stuck)]), clause)
    )


async def _spots(connection: Connection, namespace: str, clause: Clause) -> list[int]:
    """Where in the graphs the tasks stand that a name means."""
    statement = "find_spots_of_queues" if clause.field == "queue" else "find_spots_of_tasks"
    found = await fetch(
        connection,
        int,
        _SEARCH.text(statement),
        namespace=namespace,
        patterns=[like(value) for value in clause.values],
        limit=SPOTS_MAX + 1,
    )
    if len(found) > SPOTS_MAX:
        why = f"{clause} stands for more than {SPOTS_MAX} tasks of all versions; say it more closely"
        raise FilterError(why, [Fault("filter", why)])
    return found


def _add_start(made: Conditions, clause: Clause, now: datetime) -> None:
    """Runs are found by when they were started: their ids rise with it."""
    value, *more = clause.values
    if clause.is_negated or more:
        made.look.append(_condition(made, _RUNS, replace(clause, field="started"), now, "runs"))
        return
    found = find_field("runs", "started")
    assert found is not None
    low, high = bounds(found, clause.comparison, value, now)
    at = made.narrow if made.label is None else made.look  # where labels are walked, only the id of a run is known
    if low is not None:
        made.narrow.append(made.add(_RUNS.text("id_since"), low=low))
        at.append(made.add(_RUNS.text("since"), low=low))
    if high is not None:
        made.narrow.append(made.add(_RUNS.text("id_until"), high=high))
        at.append(made.add(_RUNS.text("until"), high=high))


def _add_letters(made: Conditions, filter: Filter, now: datetime) -> None:
    statuses = frozenset({"parked", "replayed", "discarded"})
    if not filter.named("status"):
        statuses = frozenset({"parked"})
    for clause in filter.clauses:
        if clause.field == "status":
            said = frozenset(clause.values)
            statuses = statuses - said if clause.is_negated else statuses & said
            continue
        condition = _condition(made, _OWN["dead_letters"], clause, now)
        is_narrow = clause.field in ("fingerprint", "run", "letter", "at") and not clause.is_negated
        (made.narrow if is_narrow else made.look).append(condition)
    made.statuses = tuple(sorted(statuses))
    made.is_nothing = not statuses


def _condition(
    made: Conditions, fragments: Statements, clause: Clause, now: datetime, of: Noun | None = None
) -> sql.Composable:
    """One clause as it stands in a statement. of: whose field it is, where not of what is listed."""
    name = clause.field.partition(".")[0]
    found = find_field(of or made.of, clause.field)
    assert found is not None, clause
    return _turned(_any(list(_parts(made, fragments, name, found, clause, now))), clause)


def _turned(condition: sql.Composable, clause: Clause) -> sql.Composable:
    return _not(condition) if clause.is_negated else condition


def _parts(
    made: Conditions, fragments: Statements, name: str, found: Field, clause: Clause, now: datetime
) -> Iterable[sql.Composable]:
    """Conditions any of which will do: most fields take all values at once."""
    values = clause.values
    match found.kind:
        case Kind.WORD if found.is_wild:
            yield made.add(fragments.text(name), patterns=[like(value) for value in values])
        case Kind.WORD:
            yield made.add(fragments.text(name), values=[literal(value) for value in values])
        case Kind.CHOICE:
            yield made.add(fragments.text(name), values=list(values))
        case Kind.ID:
            yield made.add(fragments.text(name), values=[read_id(value) for value in values])
        case Kind.TEXT:
            yield made.add(fragments.text(name), patterns=[f"%{like(value.lower())}%" for value in values])
        case Kind.LABEL:
            patterns = [like(value) for value in values]
            yield made.add(fragments.text(name), name=_label_of(clause), patterns=patterns)
        case Kind.JSON:
            path = clause.field.split(".")[1:]
            if clause.comparison:
                yield made.add(fragments.text(f"{name}_number"), path=path, range=_range(clause))
            else:
                yield made.add(fragments.text(name), path=path, patterns=[like(value) for value in values])
        case Kind.INTEGER | Kind.LENGTH | Kind.INSTANT:
            for value in values:
                low, high = bounds(found, clause.comparison, value, now)
                is_instant = found.kind is Kind.INSTANT
                yield made.add(
                    fragments.text(name),
                    low=("-infinity" if is_instant else -(2**62)) if low is None else low,
                    high=("infinity" if is_instant else 2**62) if high is None else high,
                )


def _range(clause: Clause) -> str:
    """As Postgres writes ranges of numbers."""
    number = f"{read_number(clause.values[0]):f}"
    match clause.comparison:
        case ">":
            return f"({number},)"
        case ">=":
            return f"[{number},)"
        case "<":
            return f"(,{number})"
        case _:
            return f"(,{number}]"
