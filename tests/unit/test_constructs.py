"""Every construct of the language has an example that runs, in one process and on a virtual clock."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from headrace.document import Document
from headrace.graph import Workflow, parse
from headrace.registry import default
from headrace.testing import Harness, HarnessRun

FOLDER: Final = Path(__file__).parents[2] / "examples" / "constructs"
FILES: Final = sorted(FOLDER.glob("*.yaml"))


@pytest.fixture(scope="session", autouse=True)
def bodies() -> ModuleType:
    """Those of the examples, registered once, as in a worker that is given their file."""
    spec = importlib.util.spec_from_file_location("constructs_app", FOLDER / "app.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def harness(request: pytest.FixtureRequest) -> Iterator[Harness]:
    """Of the file that the test is named after; the others are there to be started by it."""
    others = [file.read_text() for file in FILES if file.stem != request.param]
    with Harness((FOLDER / f"{request.param}.yaml").read_text(), default, workflows=others) as harness:
        yield harness


def example(name: str) -> Callable[..., Any]:
    return pytest.mark.parametrize("harness", [name], indirect=True)


def ended(harness: Harness, given: dict[str, Any]) -> HarnessRun:
    run = harness.start(given)
    harness.run_until_idle()
    return run


# == each of them ======================================================================================================
@example("sequence")
def test_sequence(harness: Harness) -> None:
    assert ended(harness, {"name": "Ada"}).output == {"text": "HELLO, ADA!!!"}


@example("condition")
@pytest.mark.parametrize(("total", "skipped"), [(99, "large"), (100, "small")])
def test_condition(harness: Harness, total: int, skipped: str) -> None:
    run = ended(harness, {"total": total})
    others = {name: "completed" for name in ("small", "large", "book")}
    assert run.tasks == {**others, skipped: "skipped"}


@example("joins")
def test_joins(harness: Harness) -> None:
    run = ended(harness, {"broken": ["east"]})
    assert {name for name, status in run.tasks.items() if status == "completed"} == {
        "west", "north", "first", "quorum", "alarm", "close",
    }  # fmt: skip
    run = ended(harness, {"broken": ["east", "west"]})
    assert (run.tasks["first"], run.tasks["quorum"], run.tasks["close"]) == ("completed", "skipped", "completed")


@example("retry")
def test_retry(harness: Harness) -> None:
    assert ended(harness, {"failures": 2}).outputs == {"call": 3}
    assert ended(harness, {"failures": 5}).status == "failed"


@example("approval")
def test_approval(harness: Harness) -> None:
    run = harness.start({"order": "A-7"})
    assert run.question("ship").title == "Ship A-7?"
    run.approve("ship", by="ada", form={"parcels": 2})
    assert run.tasks["ship"] == "waiting", "two have to agree"
    run.approve("ship", by="grace", form={"parcels": 2})
    assert run.outputs == {"ship": "shipped"}
    harness.advance(days=7)
    assert run.status == "completed", "praise expires, and that approves it"


@example("renamed")
def test_renamed(harness: Harness, bodies: ModuleType) -> None:
    run = ended(harness, {"order": "A-7"})
    assert run.tasks == {"collect": "completed"}
    assert f"{run.run_id}/charge" in bodies.done


@example("wait")
def test_wait(harness: Harness) -> None:
    run = ended(harness, {"pause": "30h", "zone": "Europe/Berlin"})
    assert (run.status, f"{harness.now:%a %H:%M}") == ("completed", "Fri 08:00"), (
        "nine in Berlin, the day after tomorrow"
    )


@example("signal")
def test_signal(harness: Harness) -> None:
    run = harness.start({"order": "A-7"})
    run.signal("payment.received", {"cents": 4900}, key="A-7")
    assert (run.tasks["ship"], run.tasks["remind"]) == ("completed", "skipped")
    run = harness.start({"order": "A-8"})
    harness.advance(days=14)
    assert (run.tasks["ship"], run.tasks["remind"]) == ("skipped", "completed")


@example("map")
def test_map(harness: Harness) -> None:
    assert ended(harness, {"words": ["a", "list", "of", "words"]}).output == {"longest": "words"}
    run = ended(harness, {"words": ["a", "", "list"]})
    assert [item.status for item in run.items("measure")] == ["completed", "failed", "completed"]
    run.replay("measure.1", input={"text": "repaired", "place": 1})
    assert run.output == {"longest": "repaired"}


@example("compensate")
def test_compensate(harness: Harness) -> None:
    run = ended(harness, {"order": "A-7", "failures": 9})
    assert (run.status, run.tasks["call"]) == ("compensated", "failed")
    undone = [item.task for item in run.history if item.task and item.task.endswith(".compensate")]
    assert undone == ["charge.compensate", "reserve.compensate"]
    assert run.task("charge.compensate").output == "receipt for A-7 is paid back"
    assert run.task("reserve.compensate").output == "a parcel for A-7 is back"
    assert ended(harness, {"order": "A-8", "failures": 1}).status == "completed"


@example("cleanup")
def test_cleanup(harness: Harness) -> None:
    run = harness.start({"order": "A-7", "failures": 9})
    assert (run.tasks["call"], run.tasks["back"]) == ("pending", "pending")
    run.cancel("no longer wanted")
    harness.run_until_idle()
    assert (run.status, run.tasks["call"]) == ("cancelled", "cancelled")
    assert run.task("back").output == "a parcel for A-7 is back"
    assert ended(harness, {"order": "A-8", "failures": 9}).tasks == {
        "reserve": "completed", "call": "failed", "back": "completed",
    }  # fmt: skip
    assert ended(harness, {"order": "A-9", "failures": 0}).status == "completed"


@example("pool")
def test_pool(harness: Harness) -> None:
    harness.set_pool("service", 0)
    run = harness.start({"failures": [0, 0, 1]})
    assert [item.status for item in run.items("call")] == ["waiting"] * 3
    harness.set_pool("service", 2)
    harness.run_until_idle()
    assert run.outputs == {"call": [1, 1, 2]}


@example("fair_pool")
def test_fair_pool(harness: Harness) -> None:
    harness.set_pool("service", 0)
    busy = [harness.start({"customer": "ada", "failures": 0}) for _ in range(20)]
    quiet = harness.start({"customer": "grace", "failures": 0})
    harness.set_pool("service", rate="3/1h")
    assert (quiet.status, sum(run.status == "completed" for run in busy)) == ("completed", 2)
    harness.run_until_idle()
    assert {run.status for run in busy} == {"completed"}


@example("limit")
def test_limit(harness: Harness) -> None:
    first, second, other = (harness.start({"customer": name}) for name in ("ada", "ada", "grace"))
    assert (first.tasks["settle"], second.tasks["settle"], other.tasks["settle"]) == ("waiting", "pending", "waiting")
    harness.advance(minutes=1)
    assert (first.status, second.tasks["settle"], other.status) == ("completed", "waiting", "completed")
    harness.advance(minutes=1)
    assert second.status == "completed"


@example("repeat")
def test_repeat(harness: Harness) -> None:
    run = ended(harness, {"rounds": 3})
    assert (run.output, run.task("poll").rounds) == ({"state": "done", "seen": 3}, 3)
    assert ended(harness, {"rounds": 99}).output == {"state": "busy", "seen": 10}


@example("deadline")
def test_deadline(harness: Harness) -> None:
    assert ended(harness, {"failures": 1}).outputs == {"fetch": 2, "book": "booked"}
    run = ended(harness, {"failures": 99})
    assert run.task("fetch").error == "DEADLINE: it had not ended by its deadline"
    assert run.outputs == {"alarm": "too late"}
    harness.leave_next("fetch")
    run = harness.start({"failures": 0})
    harness.advance(minutes=6)
    assert run.task("fetch").error == "START_DEADLINE: its body did not begin in time"


@example("children")
def test_children(harness: Harness) -> None:
    run = ended(harness, {"name": "Ada"})
    assert run.outputs["say"] == run.child("greet").output["text"] == "HELLO, ADA!!!"
    assert run.outputs["apart"] == {"run_id": run.child("apart").run_id}


@example("effects")
def test_effects(harness: Harness, bodies: ModuleType) -> None:
    bodies.done.clear()
    harness.crash_next("charge", after_its_effect=True)
    harness.crash_next("mail", after_its_effect=True)
    harness.crash_next("print", after_its_effect=True)
    run = ended(harness, {"order": "A-7"})
    assert run.outputs == {"charge": "receipt for A-7", "mail": "mail to A-7"}
    assert (run.tasks["print"], len(bodies.done)) == ("waiting", 3), "a person has to say whether it was printed"
    run.resolve("print", "happened")
    assert run.status == "completed"


# == all of them =======================================================================================================
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_example_is_named_as_its_file_and_has_a_test(file: Path) -> None:
    assert parse(file.read_text()).name == file.stem
    assert f"test_{file.stem.replace('-', '_')}" in globals()


def test_every_field_of_the_language_is_in_an_example() -> None:
    used: dict[type[BaseModel], set[str]] = {}
    for file in FILES:
        _note(Workflow, Document(file.read_text()).data, used)
    wanted = {f"{kind.__name__}.{name}" for kind in _models(Workflow) for name in _fields(kind)}
    assert wanted - {f"{kind.__name__}.{name}" for kind, names in used.items() for name in names} == set()


def _models(kind: type[BaseModel]) -> set[type[BaseModel]]:
    """It, and those of its fields."""
    found, waiting = {kind}, [kind]
    for current in waiting:  # grows while it is walked
        for field in current.model_fields.values():
            if (inner := _model_of(field.annotation)) is not None and inner not in found:
                found.add(inner)
                waiting.append(inner)
    return found


def _fields(kind: type[BaseModel]) -> dict[str, Any]:
    """By the names in a definition."""
    return {str(field.validation_alias or name): field.annotation for name, field in kind.model_fields.items()}


def _model_of(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, itself or as the values of a map or the items of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, dict, list, tuple) or hasattr(annotation, "__metadata__"):
        return next(filter(None, map(_model_of, get_args(annotation))), None)
    return None


def _note(kind: type[BaseModel], given: Any, used: dict[type[BaseModel], set[str]]) -> None:
    """Which fields of which models this document has."""
    if not isinstance(given, dict):
        return
    fields = _fields(kind)
    used.setdefault(kind, set()).update(given.keys() & fields.keys())
    for name, value in given.items():
        inner = _model_of(fields.get(name))
        if inner is not None:
            each = value.values() if get_origin(fields[name]) is dict else value if isinstance(value, list) else [value]
            for one in each:
                _note(inner, one, used)
