"""`headrace publish` and `headrace workflows`: what can be run."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import RenderableType

from headrace.cli.api import Api, Document
from headrace.cli.command import Exit, command
from headrace.cli.terminal import Terminal, ago, table
from headrace.cli.value import reason
from headrace.cli.version import draw_check
from headrace.document import Document as Parsed
from headrace.errors import DefinitionError, Fault

SUFFIXES: Final = (".yaml", ".yml", ".json")
_SAMPLES: Final[Mapping[str, Any]] = {
    "string": "Ada",
    "integer": 3,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "object": {},
}


@dataclass(frozen=True)
class Published:
    """A workflow that the API took."""

    file: Path
    name: str
    version: int
    is_new: bool
    """False when this very content was published before."""
    tasks: int
    sample: str
    """` --input '…'` with an input that its schema may accept; empty when none is needed."""
    bulk_id: str | None = None
    """That moves runs in flight to it."""

    @property
    def document(self) -> dict[str, Any]:
        moves = {} if self.bulk_id is None else {"bulk_id": self.bulk_id}
        return {"file": str(self.file), "name": self.name, "version": self.version, "created": self.is_new, **moves}


@command(
    "publish",
    panel="Workflows",
    epilog="Exit codes: 0 all published, or fit to be, 1 a file was refused, 2 a file cannot be read, 5 API away.",
)
def publish(
    terminal: Terminal,
    api: Api,
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="workflows as YAML or JSON")],
    check: Annotated[
        bool, typer.Option("--check", help="only show what it would lead to, and for which runs in flight")
    ] = False,
    migrate: Annotated[
        bool, typer.Option("--migrate", help="move runs in flight on older versions, where nothing stands in the way")
    ] = False,
) -> None:
    """Publish workflows. The same content again is the same version; other content is the next one."""
    query = "?migrate=true" if migrate else ""
    published: list[Published] = []
    checked: dict[Path, Document] = {}
    refused: dict[Path, list[Fault]] = {}
    for file in files:
        try:
            if check:
                checked[file] = api.post_text(f"/workflows/check{query}", *_read(file))
            else:
                published.append(publish_file(api, file, migrate=migrate))
        except DefinitionError as refusal:
            refused[file] = refusal.faults
    if terminal.is_json:
        done = (
            {"checked": [{"file": str(file), **found} for file, found in checked.items()]}
            if check
            else {"published": [each.document for each in published]}
        )
        said = [{"file": str(file), "errors": [vars(fault) for fault in faults]} for file, faults in refused.items()]
        terminal.print_json({**done, "refused": said})
    else:
        for each in published:
            terminal.say(describe_published(each))
        for file, found in checked.items():
            terminal.console.print(draw_check(file, found, each_run=migrate))
        for file, faults in refused.items():
            terminal.fail(f"{file} was refused", code=DefinitionError.code, details=[vars(fault) for fault in faults])
    if refused:
        raise typer.Exit(Exit.FAILED)


@command("workflows", panel="Workflows", epilog="Exit codes: 0 listed, 5 API away.")
def list_workflows(
    terminal: Terminal, api: Api, limit: Annotated[int, typer.Option(min=1, help="how many at most")] = 50
) -> None:
    """List the published workflows."""
    answer = api.page("/workflows", limit=limit)
    if not answer["items"]:
        terminal.say("no workflows yet; publish one: headrace publish workflow.yaml")
    if answer["items"] or terminal.is_json:
        terminal.show(answer, lambda: _draw_workflows(answer["items"]))


def publish_file(api: Api, file: Path, *, migrate: bool = False) -> Published:
    """Publish one file. Raises typer.BadParameter when it cannot be read, DefinitionError when the API refuses it."""
    answer = api.post_text("/workflows?migrate=true" if migrate else "/workflows", *_read(file))
    definition = read_definition(file) or {}
    return Published(
        file=file,
        name=answer["name"],
        version=answer["version"],
        is_new=answer["created"],
        tasks=len(definition.get("tasks") or ()),
        sample=sample_input(definition.get("input")),
        bulk_id=answer.get("bulk_id"),
    )


def _read(file: Path) -> tuple[str, str]:
    """Its text and media type. Raises typer.BadParameter when it cannot be read."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"cannot read {file}: {reason(error)}") from None
    return text, "application/json" if file.suffix == ".json" else "application/yaml"


def describe_published(published: Published) -> str:
    tasks = f"{published.tasks} task{'s' if published.tasks != 1 else ''}"
    told = f"{published.name} v{published.version} ({tasks}{'' if published.is_new else ', unchanged'})"
    if published.bulk_id is None:
        return told
    return f"{told}\n  runs on older versions are being moved to it: headrace bulk --progress {published.bulk_id}"


def find_workflows(folder: Path) -> list[Path]:
    """The files in a folder (not below it) that look like workflows: they have a name and tasks."""
    candidates = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES and path.is_file())
    return [path for path in candidates if _looks_like_workflow(read_definition(path))]


def read_definition(file: Path) -> dict[str, Any] | None:
    """What is in the file, None when it cannot be read as a mapping. The API alone judges whether it is a workflow."""
    try:
        content = Parsed(file.read_bytes()).data
    except OSError:
        return None
    return content if isinstance(content, dict) else None


def sample_input(schema: object) -> str:
    """` --input '…'` for the required properties of a JSON Schema; empty when there are none."""
    if not isinstance(schema, dict) or not isinstance(schema.get("properties"), dict):
        return ""
    required = [name for name in schema.get("required") or () if name in schema["properties"]]
    value = {name: _sample(schema["properties"][name]) for name in required}
    return f" --input '{json.dumps(value)}'" if value else ""


def _sample(schema: object) -> Any:
    if not isinstance(schema, dict):
        return None
    for key in ("examples", "enum"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("default", "const", "minimum"):
        if key in schema:
            return schema[key]
    return _SAMPLES.get(str(schema.get("type")))


def _looks_like_workflow(content: dict[str, Any] | None) -> bool:
    return bool(content) and isinstance(content, dict) and "name" in content and isinstance(content.get("tasks"), dict)


def _draw_workflows(items: list[dict[str, Any]]) -> RenderableType:
    rows = table("workflow", "version", "tasks", "published")
    for item in items:
        rows.add_row(
            item["name"], f"v{item['latest_version']}", str(item.get("tasks", "")), ago(item.get("updated_at"))
        )
    return rows
