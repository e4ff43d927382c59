"""`headrace new`: a small project to start from."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final

import typer

from headrace.cli.command import command
from headrace.cli.terminal import Terminal
from headrace.errors import ConflictError

TEMPLATE: Final = files("headrace.cli") / "template"
FILES: Final = ("app.py", "workflow.yaml", "README.md")


@command("new", epilog="Exit codes: 0 made, 4 the folder is not empty.")
def new_project(
    terminal: Terminal,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a folder that is empty or not there yet")],
) -> None:
    """Make a small project: three tasks, a workflow, and a README that takes five minutes."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConflictError(f"{directory} is not an empty folder; nothing was written")
    directory.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        text = (TEMPLATE / name).read_text(encoding="utf-8")
        text = text.format(name=directory.resolve().name) if name == "README.md" else text
        (directory / name).write_text(text, encoding="utf-8")
    terminal.show({"directory": str(directory.resolve()), "files": list(FILES)}, lambda: _welcome(directory))


def _welcome(directory: Path) -> str:
    lines = [f"made {directory / name}" for name in FILES]
    return "\n".join([*lines, "", "next:", f"  cd {directory}", "  headrace dev"])
