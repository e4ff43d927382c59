"""The command line against an API that is made up here: what it prints, and the code it ends with."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from headrace.cli import MODULES, address, app, command, load_commands
from headrace.cli.api import Api
from headrace.cli.doctor import address_of
from headrace.cli.drawing import draw_tasks
from headrace.cli.record import cloudevent_headers
from headrace.cli.terminal import Terminal
from headrace.cli.watch import Watch
from headrace.cli.workflow import find_workflows, sample_input
from headrace.engine import engine_directory
from headrace.errors import ConfigurationError, HeadraceError
from headrace.supervisor import Supervisor, describe_end

load_commands()
RUN_ID = "0199c3f4-5a6b-7c8d-9e0f-a1b2c3d4e5f6"
OTHER_ID = "0199c3f4-5a6b-7c8d-9e0f-a1b2c3d4ffff"
Answer = httpx.Response | Callable[[httpx.Request], httpx.Response]


def run_document(status: str = "completed", **changes: Any) -> dict[str, Any]:
    ended = status in ("completed", "failed", "cancelled")
    return {
        "run_id": RUN_ID,
        "workflow": "greet",
        "version": 2,
        "status": status,
        "input": {"name": "Ada"},
        "outputs": {"send": {"sent": "Hello"}} if status == "completed" else {},
        "row_version": 5,
        "created_at": "2026-11-29T10:00:00Z",
        "updated_at": "2026-11-29T10:00:02Z",
        "finished_at": "2026-11-29T10:00:02Z" if ended else None,
        "counts": {"completed": 2, "failed": 1} if status == "failed" else {"completed": 3},
    } | changes


def task_document(name: str, *needs: str, status: str = "completed", **changes: Any) -> dict[str, Any]:
    return {
        "task_id": f"{RUN_ID}.{name}",
        "run_id": RUN_ID,
        "name": name,
        "run": f"hello.{name}",
        "queue": "default",
        "needs": list(needs),
        "status": status,
        "attempt": 1,
        "attempts_max": 3,
        "due_at": None,
        "output": None,
        "error": None,
        "approval_id": None,
    } | changes


def problem(status: int, code: str, detail: str, errors: list[dict[str, Any]] | None = None) -> httpx.Response:
    return httpx.Response(
        status, json={"title": detail, "status": status, "detail": detail, "code": code, "errors": errors}
    )


def items(*documents: Any, following: str | None = None) -> httpx.Response:
    return httpx.Response(200, json={"items": list(documents), "next": following})


class FakeApi:
    """Answers `METHOD path` from a table, and keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Answer | list[Answer]] = {}
        self.asked: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.get(f"{request.method} {request.url.path}")
        if isinstance(answer, list):
            answer = answer.pop(0) if len(answer) > 1 else answer[0]
        if answer is None:
            return problem(404, "HR-1004", f"no {request.url.path}")
        return answer if isinstance(answer, httpx.Response) else answer(request)

    def body(self, place: int = -1) -> Any:
        return json.loads(self.asked[place].content)


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> FakeApi:
    fake = FakeApi()

    def connect(url: str | None, token: str | None) -> Api:
        return Api("http://api.test", token, actor="tester", transport=httpx.MockTransport(fake))

    monkeypatch.setattr(command, "connect", connect)
    return fake


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No dev of this checkout, no setting and no width of this shell, is found."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("HEADRACE_") or name == "COLUMNS"]:
        monkeypatch.delenv(name)  # xdist says how wide a terminal would be


def headrace(*arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


# == every command =====================================================================================================
ASKING = [
    ["runs"],
    ["run", "greet"],
    ["show", RUN_ID],
    ["cancel", RUN_ID],
    ["pause", RUN_ID],
    ["resume", RUN_ID],
    ["terminate", RUN_ID],
    ["rerun", RUN_ID, "--yes"],
    ["skip", RUN_ID, "greet"],
    ["signal", RUN_ID, "paid"],
    ["signals", RUN_ID],
    ["post", "paid", "--key", "o-1"],
    ["approvals"],
    ["approve", RUN_ID],
    ["reject", RUN_ID],
    ["dead-letters"],
    ["replay", "1"],
    ["discard", "1", "--reason", "old"],
    ["workers"],
    ["workflows"],
]


@pytest.mark.parametrize("arguments", ASKING, ids=lambda arguments: arguments[0])
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (problem(404, "HR-1004", "no such thing"), 3),
        (problem(409, "HR-1005", "decided already"), 4),
        (problem(422, "HR-1010", "the key was used with another body"), 4),
        (problem(422, "HR-1009", "the input is wrong"), 1),
        (problem(503, "HR-1007", "the database is away"), 5),
        (httpx.Response(502, text="<html>"), 5),
        (httpx.Response(200, text="<html>"), 5),
    ],
    ids=["404", "409", "key reused", "422", "503", "a proxy's error", "not our API"],
)
def test_every_error_of_the_api_has_its_exit_code(
    api: FakeApi, monkeypatch: pytest.MonkeyPatch, arguments: list[str], answer: httpx.Response, code: int
) -> None:
    monkeypatch.setattr(FakeApi, "__call__", lambda self, request: answer)
    result = headrace(*arguments)
    assert result.exit_code == code
    assert result.stderr.startswith("error ")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("arguments", [*ASKING, ["publish", "w.yaml"]], ids=lambda arguments: arguments[0])
def test_an_api_that_is_away_ends_with_5_and_says_where_it_should_be(arguments: list[str]) -> None:
    Path("w.yaml").write_text("name: a\ntasks: {}\n")
    result = headrace(*arguments, "--api", "http://127.0.0.1:9")
    assert result.exit_code == 5
    assert "http://127.0.0.1:9 does not answer" in result.stderr
    assert "headrace dev" in result.stderr


def test_errors_are_json_too(api: FakeApi) -> None:
    api.answers["GET /runs"] = problem(503, "HR-1007", "the database is away")
    result = headrace("runs", "--json")
    assert result.stdout == ""
    assert json.loads(result.stderr) == {"error": {"code": "HR-1007", "message": "the database is away"}}


def test_a_fault_of_ours_is_one_line_without_a_traceback(api: FakeApi) -> None:
    api.answers["GET /runs"] = items({"run_id": "odd"})
    result = headrace("runs")
    assert result.exit_code == 1
    assert "HEADRACE_DEBUG=1" in result.stderr
    assert "Traceback" not in result.output


def test_an_address_that_is_none_is_a_wrong_setting() -> None:
    assert headrace("runs", "--api", "nowhere").exit_code == 2


@pytest.mark.parametrize("arguments", [["nonsense"], ["run"], ["runs", "--status", "odd"], ["runs", "--limit", "0"]])
def test_wrong_usage_ends_with_2(api: FakeApi, arguments: list[str]) -> None:
    assert headrace(*arguments).exit_code == 2


def test_every_command_names_its_exit_codes_and_takes_json() -> None:
    names = [registered.name for registered in app.registered_commands]
    assert sorted(map(str, names)) == sorted(name for module in MODULES.values() for name in module)
    for name in names:
        shown = headrace(str(name), "--help").output
        assert "Exit codes:" in shown, name
        assert "--json" in shown, name


def test_version_is_printed() -> None:
    assert headrace("--version").output.startswith("headrace 0.")


def test_the_token_and_the_actor_travel_with_each_request() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return items()

    with Api("http://api.test/", "s3cret", actor="Zoë", transport=httpx.MockTransport(answer)) as api:
        api.get("/runs")
    assert seen[0].headers["authorization"] == "Bearer s3cret"
    assert seen[0].headers["headrace-actor"] == "Zo?"


# == publish ===========================================================================================================
def test_publish_sends_the_text_and_tells_the_version(api: FakeApi) -> None:
    Path("greet.yaml").write_text("name: greet\ntasks: { a: { run: x }, b: { run: y } }\n")
    api.answers["POST /workflows"] = httpx.Response(201, json={"name": "greet", "version": 3, "created": True})
    result = headrace("publish", "greet.yaml")
    assert (result.exit_code, result.stdout) == (0, "greet v3 (2 tasks)\n")
    assert api.asked[0].headers["content-type"] == "application/yaml"
    assert b"run: x" in api.asked[0].content


def test_publish_shows_every_fault_and_still_publishes_the_other_files(api: FakeApi) -> None:
    for name in ("bad", "good"):
        Path(f"{name}.yaml").write_text(f"name: {name}\ntasks: {{}}\n")
    faults = [
        {"path": "tasks.a.needs[0]", "message": "no task named b", "line": 4},
        {"path": "", "message": "no tasks", "line": None},
    ]
    api.answers["POST /workflows"] = [
        problem(422, "HR-1002", "refused", faults),
        httpx.Response(200, json={"name": "good", "version": 1, "created": False}),
    ]
    result = headrace("publish", "bad.yaml", "good.yaml")
    assert result.exit_code == 1
    assert "good v1 (0 tasks, unchanged)" in result.stdout
    assert "line 4: tasks.a.needs[0]: no task named b" in result.stderr
    assert "document: no tasks" in result.stderr


def test_publish_of_a_missing_file_is_wrong_usage(api: FakeApi) -> None:
    assert headrace("publish", "nowhere.yaml").exit_code == 2
    assert api.asked == []


def test_files_that_look_like_workflows_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\ntasks: { t: { run: x, approval: { title: Go? } } }\n")
    (tmp_path / "b.json").write_text('{"name": "b", "tasks": {"t": {"run": "x"}}}')
    (tmp_path / "compose.yaml").write_text("services: {}\n")
    (tmp_path / "broken.yaml").write_text("a: [\n")
    (tmp_path / "package.json").write_text('{"name": "p"}')
    assert [path.name for path in find_workflows(tmp_path)] == ["a.yaml", "b.json"]


@pytest.mark.parametrize(
    ("schema", "sample"),
    [
        (None, ""),
        ({"type": "object"}, ""),
        ({"properties": {"name": {"type": "string"}}, "required": ["name"]}, """ --input '{"name": "Ada"}'"""),
        (
            {"properties": {"n": {"type": "integer", "examples": [7]}, "m": {}}, "required": ["n"]},
            """ --input '{"n": 7}'""",
        ),
        ({"properties": [], "required": ["n"]}, ""),
    ],
)
def test_the_hint_for_a_first_run_carries_what_the_schema_requires(schema: Any, sample: str) -> None:
    assert sample_input(schema) == sample


# == run ===============================================================================================================
def test_run_follows_to_the_end_and_prints_each_change_once(api: FakeApi) -> None:
    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document("running", row_version=1))
    api.answers[f"GET /runs/{RUN_ID}"] = [
        httpx.Response(200, json=run_document("running", row_version=1)),
        httpx.Response(200, json=run_document("running", row_version=1)),
        httpx.Response(200, json=run_document("running", row_version=2)),
        httpx.Response(200, json=run_document("completed", row_version=3)),
    ]
    failed = {"code": "ERROR", "message": "no answer"}
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = [
        items(
            task_document("look_up", status="running"), task_document("send", "look_up", status="pending", attempt=0)
        ),
        items(task_document("look_up", status="pending", due_at="2026-11-29T10:00:01Z", error=failed)),
        items(task_document("look_up", attempt=2), task_document("send", "look_up")),
    ]
    result = headrace("run", "greet", "--input", '{"name": "Ada"}')
    assert result.exit_code == 0
    assert api.body(0) == {"input": {"name": "Ada"}}
    lines = result.stdout.splitlines()
    assert lines[0] == f"run {RUN_ID}"
    assert sum("look_up" in line for line in lines) == 3
    assert any("attempt 1 of 3 failed" in line and "ERROR: no answer" in line for line in lines)
    assert f"✓ greet v2  {RUN_ID}  completed in 2.0 s" in result.stdout
    assert '"sent": "Hello"' in result.stdout


@pytest.mark.parametrize("status", ["failed", "cancelled", "needs_attention"])
def test_a_run_that_ends_badly_ends_the_command_with_1(api: FakeApi, status: str) -> None:
    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document("running"))
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document(status))
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("send", status="failed"))
    assert headrace("run", "greet").exit_code == 1
    result = headrace("run", "greet", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["status"] == status


def test_detach_returns_at_once_with_key_and_version(api: FakeApi) -> None:
    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document("running"))
    result = headrace("run", "greet", "--detach", "--key", "order-7", "--version", "2")
    assert result.exit_code == 0
    assert api.body() == {"key": "order-7", "version": 2}
    assert len(api.asked) == 1
    assert "headrace show c3d4e5f6" in result.stdout


def test_input_comes_from_a_file_or_standard_input(api: FakeApi) -> None:
    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document("running"))
    Path("in.json").write_text("[1]")
    assert headrace("run", "greet", "-d", "-i", "@in.json").exit_code == 0
    assert api.body() == {"input": [1]}
    assert headrace("run", "greet", "-d", "-i", "-", stdin='{"a": 2}').exit_code == 0
    assert api.body() == {"input": {"a": 2}}


@pytest.mark.parametrize("text", ["{", "Ada", "NaN", '{"a": 1, "a": 2}', '"\\ud800"', "@missing.json", ""])
def test_input_that_is_not_strict_json_is_wrong_usage_and_starts_nothing(api: FakeApi, text: str) -> None:
    assert headrace("run", "greet", "--input", text).exit_code == 2
    assert api.asked == []


def test_an_api_that_goes_away_while_following_is_asked_again(api: FakeApi) -> None:
    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document("running"))
    api.answers[f"GET /runs/{RUN_ID}"] = [
        problem(503, "HR-1007", "the database is away"),
        problem(503, "HR-1007", "the database is away"),
        httpx.Response(200, json=run_document("completed")),
    ]
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("send"))
    result = headrace("run", "greet")
    assert result.exit_code == 0
    assert result.stderr.count("still trying") == 1


def test_ctrl_c_while_following_leaves_the_run_and_ends_with_130(api: FakeApi) -> None:
    def interrupt(request: httpx.Request) -> httpx.Response:
        raise KeyboardInterrupt

    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document("running"))
    api.answers[f"GET /runs/{RUN_ID}"] = interrupt
    result = headrace("run", "greet")
    assert result.exit_code == 130
    assert "the run goes on" in result.stdout


# == runs and show =====================================================================================================
def test_a_run_is_started_with_labels(api: FakeApi) -> None:
    api.answers["POST /workflows/greet/runs"] = httpx.Response(201, json=run_document())
    given = ("--label", "customer=acme", "--label", "note=a=b, c", "-l", "empty=")
    assert headrace("run", "greet", "-d", *given).exit_code == 0
    assert api.body() == {"labels": {"customer": "acme", "note": "a=b, c", "empty": ""}}


@pytest.mark.parametrize(
    ("given", "said"),
    [(["customer"], "write NAME=VALUE"), (["=acme"], "write NAME=VALUE"), (["a=1", "a=2"], "label a is given twice")],
)
def test_what_is_no_label_is_refused_before_anything_is_asked(api: FakeApi, given: list[str], said: str) -> None:
    result = headrace("run", "greet", *(part for label in given for part in ("--label", label)))
    assert result.exit_code == 2
    assert said in " ".join(result.output.replace("│", " ").split())
    assert not api.asked


def test_labels_are_shown_with_a_run_and_in_the_list_where_there_are_any(api: FakeApi) -> None:
    labelled = run_document(labels={"customer": "acme", "region": "eu"})
    api.answers["GET /runs"] = items(labelled, run_document(labels={}))
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=labelled)
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("send"))
    assert "customer=acme region=eu" in headrace("show", RUN_ID).output
    assert "customer=acme" in headrace("runs").output
    api.answers["GET /runs"] = items(run_document(labels={}))
    assert "labels" not in headrace("runs").output


def test_runs_are_listed_with_whole_ids(api: FakeApi) -> None:
    api.answers["GET /runs"] = items(run_document(), run_document("failed", run_id=OTHER_ID))
    result = headrace("runs", "--status", "failed", "--workflow", "greet")
    assert RUN_ID in result.stdout
    assert "greet v2" in result.stdout
    assert "3/3" in result.stdout
    assert "2/3" in result.stdout
    assert dict(api.asked[0].url.params) == {"limit": "20", "workflow": "greet", "status": "failed"}


def test_runs_say_what_to_do_when_there_are_none(api: FakeApi) -> None:
    api.answers["GET /runs"] = items()
    assert headrace("runs").stdout == "no runs yet; start one: headrace run WORKFLOW\n"
    assert json.loads(headrace("runs", "--json").stdout) == {"items": [], "next": None}


VIEWS = [
    {"view_id": None, "name": "Failing", "of": "runs", "filter": "waits:retry", "owner": "", "is_shared": True},
    {
        "view_id": "v1",
        "name": "late",
        "of": "runs",
        "filter": "is:open started:<-1d",
        "owner": "ana",
        "is_shared": False,
    },
]


def test_runs_are_listed_by_a_filter_by_a_view_or_by_both(api: FakeApi) -> None:
    api.answers["GET /runs"], api.answers["GET /views"] = items(run_document()), items(*VIEWS)
    assert headrace("runs", "-f", 'is:open error:"time out"', "-w", "a b").exit_code == 0
    assert api.asked[-1].url.params["filter"] == 'is:open error:"time out" workflow:"a b"'
    assert headrace("runs", "--view", "LATE", "--filter", "-queue:slow").exit_code == 0
    assert api.asked[-1].url.params["filter"] == "is:open started:<-1d -queue:slow"
    assert headrace("runs", "--view", "nope").exit_code == 3


def test_a_wrong_filter_is_told_with_its_column(api: FakeApi) -> None:
    said = "column 1 of the filter: runs have no field 'stats'; did you mean status?"
    api.answers["GET /runs"] = problem(422, "HR-1033", said)
    result = headrace("runs", "--filter", "stats:failed")
    assert result.exit_code == 2
    assert "did you mean status?" in result.stderr


def test_a_refusal_with_one_fault_says_it_once(api: FakeApi) -> None:
    said = "input.name: 3 is not a string"
    fault = {"path": "input.name", "message": "3 is not a string", "line": None}
    api.answers["POST /workflows/greet/runs"] = problem(422, "HR-1009", said, [fault])
    result = headrace("run", "greet", "--input", '{"name": 3}')
    assert result.exit_code == 1
    assert result.stderr.count("is not a string") == 1


def test_runs_are_counted_by_their_kinds(api: FakeApi) -> None:
    facets = [{"field": "status", "values": [{"value": "failed", "count": 7, "clause": "status:failed"}]}]
    answer = {"filter": "status:failed", "count": 20_000, "has_more": True, "facets": facets}
    api.answers["GET /runs/facets"] = httpx.Response(200, json=answer)
    result = headrace("runs", "--count", "--status", "failed")
    assert "more than 20000 runs" in result.stdout
    assert api.asked[-1].url.params["filter"] == "status:failed"


def test_views_are_listed_kept_and_removed(api: FakeApi) -> None:
    api.answers["GET /views"] = items(*VIEWS)
    assert "is:open started:<-1d" in headrace("views").stdout
    api.answers["POST /views"] = httpx.Response(201, json={**VIEWS[1], "name": "mine", "filter": "is:open"})
    assert "kept as mine" in headrace("views", "--save", "mine", "--filter", "is:open", "--shared").stdout
    assert api.body() == {"name": "mine", "of": "runs", "filter": "is:open", "is_shared": True}
    api.answers["DELETE /views/v1"] = httpx.Response(200, json=VIEWS[1])
    assert headrace("views", "--remove", "late").exit_code == 0
    assert headrace("views", "--remove", "failing").exit_code == 2


def test_a_long_list_is_read_over_several_pages(api: FakeApi) -> None:
    api.answers["GET /runs"] = [
        items(*[run_document()] * 200, following="t1"),
        items(*[run_document()] * 50, following="t2"),
    ]
    answer = json.loads(headrace("runs", "--limit", "250", "--json").stdout)
    assert (len(answer["items"]), answer["next"]) == (250, "t2")
    assert [request.url.params.get("page") for request in api.asked] == [None, "t1"]
    assert api.asked[1].url.params["limit"] == "50"


def test_show_draws_the_graph_with_states_attempts_and_errors(api: FakeApi) -> None:
    failed = task_document(
        "send", "sign", "pack", status="failed", attempt=3, error={"code": "ERROR", "message": "no stamp"}
    )
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document("failed"))
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(
        task_document("write"), task_document("sign", "write"), task_document("pack", "write", attempt=2), failed
    )
    assert headrace("show", RUN_ID).stdout.splitlines()[1:] == [
        "✓ write    completed",
        "├─ ✓ sign  completed",
        "└─ ✓ pack  completed, attempt 2",
        "✗ send     failed, attempt 3 of 3  after sign, pack",
        "  ERROR: no stamp",
        "what to repair: headrace dead-letters --run c3d4e5f6",
    ]
    document = json.loads(headrace("show", RUN_ID, "--json").stdout)
    assert [task["name"] for task in document["tasks"]] == ["write", "sign", "pack", "send"]


def test_show_tells_a_deadline_a_priority_and_a_paused_task(api: FakeApi) -> None:
    run = {**run_document("running"), "deadline_at": "2030-01-01T00:00:00Z", "priority": 5}
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run)
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("write", status="running", is_paused=True))
    lines = headrace("show", RUN_ID).stdout.splitlines()
    assert lines[1].startswith("fails unless it has ended by 2030-01-01T00:00:00Z, in ")
    assert lines[2:] == ["priority +5 in the queues of pools", "● write  running, attempt 1 of 3  paused"]


def test_show_says_how_far_a_run_is_undone(api: FakeApi) -> None:
    failed = task_document("send", "write", status="failed", attempts_max=1, error={"code": "ERROR", "message": "no"})
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document("compensation_failed"))
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("write", compensation="failed"), failed)
    lines = headrace("show", RUN_ID).stdout.splitlines()
    assert "compensation failed" in lines[0]
    assert lines[1:] == [
        "✓ write  completed  compensation failed",
        "✗ send   failed",
        "  ERROR: no",
        "what to repair: headrace dead-letters --run c3d4e5f6",
    ]


def test_show_takes_the_last_digits_or_last(api: FakeApi) -> None:
    api.answers["GET /runs"] = items(run_document(run_id=OTHER_ID), run_document())
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document())
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items()
    assert headrace("show", "e5f6").exit_code == 0
    assert headrace("show", "greet-c3d4e5f6").exit_code == 0
    assert headrace("show", "0000").exit_code == 3
    api.answers["GET /runs"] = items(
        run_document(), run_document(run_id=OTHER_ID.replace("ffff", "e5f6")[:-5] + "0e5f6")
    )
    assert headrace("show", "e5f6").exit_code == 4
    assert headrace("show", "last").exit_code == 0


def test_show_history_and_a_task(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document())
    api.answers[f"GET /runs/{RUN_ID}/history"] = items(
        {
            "row_version": 1,
            "at": "2026-11-29T10:00:00Z",
            "kind": "started",
            "task": None,
            "actor": "ann",
            "detail": {"a": 1},
        }
    )
    api.answers[f"GET /tasks/{RUN_ID}.send"] = httpx.Response(200, json=task_document("send", output={"sent": 1}))
    attempt = {
        "attempt": 1,
        "outcome": "failed",
        "worker": "w",
        "started_at": None,
        "error": {"code": "E", "message": "m"},
    }
    api.answers[f"GET /tasks/{RUN_ID}.send/attempts"] = items(attempt)
    assert "started" in headrace("show", RUN_ID, "--history").stdout
    shown = headrace("show", RUN_ID, "--task", "send").stdout
    assert '{"sent": 1}' in shown
    assert "E: m" in shown


def test_a_chain_stays_in_one_column_and_a_wide_fan_is_folded() -> None:
    terminal = Terminal()
    chain = [task_document("t0"), *[task_document(f"t{n}", f"t{n - 1}") for n in range(1, 30)]]
    assert all(not line.plain.startswith((" ", "├", "└")) for line in draw_tasks(chain, terminal))
    fan = [task_document("a"), *[task_document(f"b{n}", "a") for n in range(30)]]
    fan[5]["status"] = "running"
    join = task_document("c", *[f"b{n}" for n in range(30)], status="pending", attempt=0)
    drawn = [line.plain for line in draw_tasks([*fan, join], terminal)]
    assert len(drawn) == 7
    assert any("26 more, all completed" in line for line in drawn)
    assert any("b4" in line and "running" in line for line in drawn)
    assert drawn[-1].startswith("○ c") or drawn[-1].startswith(". c")
    assert len(draw_tasks([*fan, join], terminal, everything=True)) == 32


def test_names_are_never_read_as_markup(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document())
    error = {"code": "ERROR", "message": "[red]x[/nope] [link=a]"}
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("send", status="failed", error=error))
    assert "[red]x[/nope] [link=a]" in headrace("show", RUN_ID).stdout


def test_cancel_sends_the_reason(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/cancel"] = httpx.Response(202, json={"run_id": RUN_ID, "accepted": True})
    assert headrace("cancel", RUN_ID, "--reason", "wrong order").exit_code == 0
    assert api.body() == {"reason": "wrong order"}


def signal_document(**given: Any) -> dict[str, Any]:
    made = {
        "name": "paid",
        "run_id": RUN_ID,
        "key": None,
        "sent_at": "2026-11-29T10:00:00Z",
        "actor": "bank",
        "status": "kept",
    }
    return {**made, "task": None, "reason": None, **given}


def test_signal_sends_its_data_and_only_what_was_given(api: FakeApi) -> None:
    api.answers[f"POST /runs/{RUN_ID}/signals"] = httpx.Response(201, json=signal_document(status="sent"))
    result = headrace("signal", RUN_ID, "paid", "--data", '{"sum": 3}', "--key", "o-1")
    assert (result.exit_code, result.stdout) == (0, f"signal paid of run {RUN_ID} is stored\n")
    assert api.body() == {"name": "paid", "key": "o-1", "data": {"sum": 3}}
    assert headrace("signal", RUN_ID, "paid", "--id", "evt-1").exit_code == 0
    assert api.body() == {"name": "paid", "id": "evt-1", "data": None}


def test_show_names_the_signal_that_a_task_waits_for(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document("waiting"))
    waits = task_document("paid", run=None, status="waiting", attempt=0, signal="payment.received")
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(waits)
    assert "waiting for signal payment.received" in headrace("show", RUN_ID).stdout
    waits["due_at"] = "2026-11-29T10:00:00Z"
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(waits)
    assert "waiting for signal payment.received until 2026-11-29T10:00:00Z" in headrace("show", RUN_ID).stdout


def test_show_names_the_parent_and_the_children_of_a_run(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}"] = httpx.Response(200, json=run_document("waiting", trigger="child"))
    waits = task_document("bill", run=None, status="waiting", attempt=0, workflow="invoice")
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(waits)
    parent = {"run_id": OTHER_ID, "task": "go", "workflow": "order", "status": "waiting", "waits": True}
    child = {
        "run_id": OTHER_ID, "task": "bill", "token": 1, "workflow": "invoice", "version": 3, "status": "running",
        "started_at": "2026-11-29T10:00:00Z", "ended_at": None, "reason": None,
    }  # fmt: skip
    relations = {"items": [child], "next": None, "parent": parent}
    api.answers[f"GET /runs/{RUN_ID}/relations"] = httpx.Response(200, json=relations)
    shown = " ".join(headrace("show", RUN_ID).stdout.split())
    assert "waiting for a run of invoice" in shown
    assert f"started by task go of run {OTHER_ID} (order), which waits for it" in shown
    assert f"bill {OTHER_ID} invoice v3" in shown
    document = json.loads(headrace("show", RUN_ID, "--json").stdout)
    assert (document["parent"], document["children"]) == (parent, [child])


def test_post_says_to_whom_a_signal_was_offered(api: FakeApi) -> None:
    posted = {"signal_id": "s", "name": "paid", "key": "o-1", "status": "open", "offers": []}
    api.answers["POST /signals"] = httpx.Response(201, json=posted)
    result = headrace("post", "paid", "--key", "o-1", "--data", "3", "--keep", "2h")
    assert (result.exit_code, result.stdout) == (0, "signal paid for o-1 is stored: nobody waits for it yet\n")
    assert api.body() == {"name": "paid", "key": "o-1", "keep": "2h", "data": 3}
    posted["offers"] = [{"run_id": RUN_ID, "task": "wait", "status": "sent"}]
    api.answers["POST /signals"] = httpx.Response(200, json=posted)
    result = headrace("post", "paid", "--key", "o-1", "--id", "evt-1")
    assert "offered to " in result.stdout
    assert "wait" in result.stdout
    assert headrace("post", "paid").exit_code == 2


def test_signals_say_what_became_of_them(api: FakeApi) -> None:
    refused = signal_document(status="refused", reason="the run was failed when it came")
    api.answers[f"GET /runs/{RUN_ID}/signals"] = items(signal_document(status="taken", task="wait"), refused)
    result = headrace("signals", RUN_ID)
    assert result.exit_code == 0
    assert "taken" in result.stdout
    assert "wait" in result.stdout
    assert "refused: the run was failed when it came" in " ".join(result.stdout.split())


# == decisions and repair ==============================================================================================
def waiting(name: str) -> dict[str, Any]:
    return task_document(name, status="waiting", attempt=0, approval_id=f"ap-{name}")


def test_approve_finds_the_one_task_that_waits(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("build"), waiting("deploy"))
    api.answers["POST /approvals/ap-deploy/approve"] = httpx.Response(
        200, json={"status": "approved", "title": "Deploy?", "task": "deploy", "run_id": RUN_ID}
    )
    result = headrace("approve", RUN_ID, "--comment", "go")
    assert (result.exit_code, result.stdout) == (0, f"approved: Deploy? of {RUN_ID}\n")
    assert api.body() == {"comment": "go"}


def test_approve_asks_which_when_several_wait(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(waiting("deploy"), waiting("pay"))
    api.answers["POST /approvals/ap-pay/reject"] = httpx.Response(
        200, json={"status": "rejected", "title": None, "task": "pay", "run_id": RUN_ID}
    )
    assert headrace("reject", RUN_ID).exit_code == 4
    assert headrace("reject", RUN_ID, "--task", "pay").exit_code == 0


def test_approve_without_a_question_is_not_found(api: FakeApi) -> None:
    api.answers[f"GET /runs/{RUN_ID}/tasks"] = items(task_document("build"))
    assert headrace("approve", RUN_ID).exit_code == 3


def test_approve_takes_the_id_of_an_approval(api: FakeApi) -> None:
    api.answers[f"GET /approvals/{OTHER_ID}"] = httpx.Response(200, json={"approval_id": OTHER_ID})
    api.answers[f"POST /approvals/{OTHER_ID}/approve"] = httpx.Response(
        200, json={"status": "approved", "title": "x", "task": "t", "run_id": RUN_ID}
    )
    assert headrace("approve", OTHER_ID).exit_code == 0


def test_dead_letters_are_listed_shown_replayed_and_discarded(api: FakeApi) -> None:
    letter = {
        "dead_letter_id": "7",
        "kind": "task",
        "status": "parked",
        "run_id": RUN_ID,
        "workflow": "greet",
        "task": "send",
        "reason": "exhausted",
        "error": {"code": "ERROR", "message": "no stamp"},
        "created_at": "2026-11-29T10:00:00Z",
    }
    record = {**letter, "dead_letter_id": "8", "run_id": None, "topic": "orders", "partition": 1, "offset": 42}
    api.answers["GET /dead-letters"] = items(letter, record)
    api.answers["GET /dead-letters/7"] = httpx.Response(200, json=letter)
    api.answers["POST /dead-letters/7/replay"] = httpx.Response(202, json={"dead_letter_id": "7", "status": "replayed"})
    api.answers["POST /dead-letters/7/discard"] = httpx.Response(
        200, json={"dead_letter_id": "7", "status": "discarded"}
    )
    listed = headrace("dead-letters").stdout
    assert "send of greet c3d4e5f6" in listed
    assert "orders partition 1 offset 42" in listed
    assert "headrace replay 7" in headrace("dead-letters", "7").stdout
    assert headrace("dead-letters", "--run", RUN_ID, "--json").exit_code == 0
    assert dict(api.asked[-1].url.params) == {"limit": "50", "filter": f"run:{RUN_ID}"}
    assert headrace("replay", "7", "--input", '{"total": 3}').exit_code == 0
    assert api.body() == {"input": {"total": 3}}
    assert headrace("discard", "7", "--reason", "a test").exit_code == 0


@pytest.mark.parametrize(
    ("name", "path", "hint"),
    [
        ("approvals", "/approvals", "nothing waits for a decision"),
        ("dead-letters", "/dead-letters", "nothing is set aside"),
        ("workers", "/workers", "no workers; start one: headrace worker app.py"),
        ("workflows", "/workflows", "no workflows yet; publish one: headrace publish workflow.yaml"),
    ],
)
def test_empty_lists_say_so_and_end_with_0(api: FakeApi, name: str, path: str, hint: str) -> None:
    api.answers[f"GET {path}"] = items()
    result = headrace(name)
    assert (result.exit_code, result.stdout) == (0, f"{hint}\n")


def test_workers_are_listed_with_their_state(api: FakeApi) -> None:
    worker = {"session_id": "s", "worker": "box:1", "queues": ["default"], "slots": 16, "held": 2, "draining": False}
    more = {"library": "0.1.0", "started_at": None, "renewed_at": None, "live": True}
    api.answers["GET /workers"] = items(worker | more, worker | more | {"live": False})
    shown = headrace("workers").stdout
    assert "live" in shown
    assert "lost" in shown


def test_doctor_ends_with_1_when_a_check_is_not_fine(api: FakeApi) -> None:
    checks = [
        {"name": "clock", "ok": True, "detail": "1 ms", "count": 0},
        {"name": "slot", "ok": False, "detail": "lost", "count": 1},
    ]
    api.answers["GET /doctor"] = httpx.Response(200, json={"ok": False, "checks": checks})
    result = headrace("doctor")
    assert result.exit_code == 1
    assert "slot" in result.stdout
    api.answers["GET /doctor"] = httpx.Response(200, json={"ok": True, "checks": checks[:1]})
    assert headrace("doctor").exit_code == 0


def test_doctor_says_which_part_is_down_when_the_api_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.doctor.CONNECT_SECONDS", 0.3)
    monkeypatch.setenv("HEADRACE_KAFKA", "127.0.0.1:9")
    monkeypatch.setenv("HEADRACE_POSTGRES", "postgresql://127.0.0.1:9/headrace")
    result = headrace("doctor", "--api", "http://127.0.0.1:9", "--json")
    assert result.exit_code == 1
    assert [(check["name"], check["ok"]) for check in json.loads(result.stdout)["checks"]] == [
        ("api", False),
        ("kafka", False),
        ("postgres", False),
    ]


@pytest.mark.parametrize(
    ("dsn", "address"),
    [
        ("postgresql://u:p@db.example:6000/x", ("db.example", 6000)),
        ("postgresql:///x", ("127.0.0.1", 5432)),
        ("host=db port=7000 dbname=x", ("db", 7000)),
    ],
)
def test_a_postgres_address_is_read_from_both_forms(dsn: str, address: tuple[str, int]) -> None:
    assert address_of(dsn) == address


# == send, new, worker =================================================================================================
def test_send_to_a_kafka_that_is_away_ends_with_5(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.record.DELIVERY_SECONDS", 0.5)
    assert headrace("send", "orders", "--data", "{}", "--kafka", "127.0.0.1:9").exit_code == 5


def test_a_cloud_event_travels_in_binary_mode() -> None:
    headers = cloudevent_headers("order.created", "shop", "17")
    assert headers["ce_specversion"] == "1.0"
    assert (headers["ce_id"], headers["ce_source"], headers["ce_type"]) == ("17", "shop", "order.created")


def test_new_makes_a_project_and_refuses_a_folder_with_something_in_it() -> None:
    assert headrace("new", "hello").exit_code == 0
    assert sorted(path.name for path in Path("hello").iterdir()) == ["README.md", "app.py", "workflow.yaml"]
    assert Path("hello/README.md").read_text().startswith("# hello\n")
    before = Path("hello/app.py").read_text()
    Path("hello/app.py").write_text("# mine\n")
    assert headrace("new", "hello").exit_code == 4
    assert Path("hello/app.py").read_text() == "# mine\n"
    assert "@task" in before
    assert headrace("new", "hello/app.py").exit_code == 4


def test_the_workflow_of_a_new_project_is_found() -> None:
    headrace("new", "hello")
    assert [path.name for path in find_workflows(Path("hello"))] == ["workflow.yaml"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import nowhere_at_all\n", "No module named 'nowhere_at_all'"),
        ("def f(:\n", "SyntaxError"),
        ("x = 1\n", "nothing to run"),
        ("raise SystemExit(0)\n", "cannot be imported"),
    ],
)
def test_a_worker_says_what_is_wrong_with_the_file(content: str, said: str) -> None:
    Path("broken_app.py").write_text(content)
    result = subprocess.run(
        [sys.executable, "-m", "headrace", "worker", "broken_app.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 2
    assert said in result.stderr
    assert "importlib" not in result.stderr


def test_a_worker_without_its_file_is_wrong_usage() -> None:
    assert headrace("worker", "nowhere.py").exit_code == 2


def test_dev_refuses_a_missing_file_before_it_starts_anything() -> None:
    result = headrace("dev", "nowhere.py")
    assert result.exit_code == 2
    assert "headrace new" in result.stderr
    assert not Path(".headrace").exists()


# == where things are ==================================================================================================
def test_a_running_dev_is_found_from_below_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    Path(".headrace").mkdir()
    address.write_addresses(Path(".headrace"), {"api": "http://127.0.0.1:8401", "kafka": "127.0.0.1:7"})
    Path("deep/er").mkdir(parents=True)
    monkeypatch.chdir("deep/er")
    assert address.find_api(None) == "http://127.0.0.1:8401"
    assert address.find_kafka(None) == "127.0.0.1:7"
    assert address.find_api("http://given") == "http://given"
    monkeypatch.setenv("HEADRACE_API", "http://environment")
    assert address.find_api(None) == "http://environment"


def test_a_dev_that_died_is_not_found() -> None:
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    Path(".headrace").mkdir()
    Path(".headrace/dev.json").write_text(json.dumps({"api": "http://gone", "pid": str(ended.pid)}))
    assert address.find_api(None) == "http://127.0.0.1:8400"


def test_a_checkout_wins_over_an_engine_folder_in_the_package() -> None:
    assert (engine_directory() / "state" / "migrations").is_dir()


def test_watch_sees_written_added_and_removed_files_once(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("a")
    (tmp_path / ".venv").mkdir()
    watch = Watch([tmp_path])
    assert watch.changed() == set()
    (tmp_path / "app.py").write_text("ab")
    (tmp_path / "more.py").write_text("")
    (tmp_path / ".venv" / "x.py").write_text("")
    assert {path.name for path in watch.changed()} == {"app.py", "more.py"}
    assert watch.changed() == set()
    (tmp_path / "more.py").unlink()
    assert {path.name for path in watch.changed()} == {"more.py"}


# == the supervisor ====================================================================================================
class Lines:
    """Collects what a supervisor says."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def __call__(self, name: str, line: str) -> None:
        self.all.append((name, line))

    def has(self, text: str, times: int = 1) -> bool:
        return sum(text in line for _, line in self.all) >= times


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def supervisor(lines: Lines) -> Iterator[Supervisor]:
    with Supervisor(os.environ, lines, grace_seconds=2) as made:
        yield made


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def wait_for(supervisor: Supervisor, fact: Callable[[], bool]) -> None:
    supervisor.wait_ready(fact, seconds=20, what="a fact")


SLEEPER = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]


def test_a_killed_child_comes_back_under_another_id(supervisor: Supervisor, lines: Lines) -> None:
    supervisor.add("sleeper", SLEEPER)
    wait_for(supervisor, lambda: lines.has("up"))
    first = supervisor.pids()["sleeper"]
    assert supervisor.kill("sleeper", signal.SIGKILL) == first
    wait_for(supervisor, lambda: lines.has("up", 2))
    assert supervisor.pids()["sleeper"] != first
    assert lines.has("died (SIGKILL); starting it again")


def test_a_child_that_refuses_its_configuration_waits_for_a_restart(
    supervisor: Supervisor, lines: Lines, tmp_path: Path
) -> None:
    refuse_once = f"test -e {tmp_path}/mended && echo up && exec sleep 60; exit 2"
    child = supervisor.add("picky", ["/bin/sh", "-c", refuse_once])
    with pytest.raises(HeadraceError, match="picky refused to start"):
        wait_for(supervisor, lambda: False)
    assert child.starts == 1
    (tmp_path / "mended").touch()
    supervisor.restart("picky")
    wait_for(supervisor, lambda: lines.has("up"))
    assert child.starts == 2


def test_an_ended_child_stays_away_until_restart(supervisor: Supervisor, lines: Lines) -> None:
    supervisor.add("sleeper", SLEEPER)
    wait_for(supervisor, lambda: lines.has("up"))
    supervisor.end("sleeper")
    assert supervisor.pids() == {}
    supervisor.restart("sleeper")
    wait_for(supervisor, lambda: lines.has("up", 2))


def test_a_child_that_ignores_sigterm_is_killed_after_the_grace(lines: Lines) -> None:
    stubborn = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    )
    with Supervisor(os.environ, lines, grace_seconds=0.3) as supervisor:
        supervisor.add("stubborn", [sys.executable, "-c", stubborn])
        wait_for(supervisor, lambda: lines.has("up"))
    assert supervisor.pids() == {}
    assert lines.has("killed")


def test_children_end_when_the_supervisor_is_killed(tmp_path: Path) -> None:
    program = f"""
import os, sys, time
from headrace.supervisor import Supervisor
supervisor = Supervisor(os.environ, lambda name, line: print(line, flush=True))
supervisor.add("sleeper", {SLEEPER!r})
print("pid", supervisor.pids()["sleeper"], flush=True)
time.sleep(60)
"""
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    said = [owner.stdout.readline(), owner.stdout.readline()]
    child = next(int(line.split()[1]) for line in said if line.startswith("pid"))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    with Supervisor({}, lambda name, line: None) as waiting:
        wait_for(waiting, lambda: not is_alive(child))


def test_a_name_is_used_once_and_an_unknown_one_is_refused(supervisor: Supervisor) -> None:
    supervisor.add("sleeper", SLEEPER)
    with pytest.raises(ConfigurationError):
        supervisor.add("sleeper", SLEEPER)
    with pytest.raises(ConfigurationError):
        supervisor.kill("nobody")
    with pytest.raises(ConfigurationError):
        supervisor.add("ghost", ["/nowhere/at/all"])


@pytest.mark.parametrize(
    ("status", "words"), [(0, "ended with status 0"), (137, "died (SIGKILL)"), (255, "died (signal 127)")]
)
def test_an_end_is_said_in_words(status: int, words: str) -> None:
    assert describe_end(status) == words
