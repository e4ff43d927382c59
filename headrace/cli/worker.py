"""`headrace worker`: run the bodies of the user's file until told to stop."""

import importlib
import importlib.util
import logging
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated

import structlog
import typer

from headrace.cli.command import command
from headrace.cli.worker_settings import read_settings
from headrace.errors import ConfigurationError
from headrace.listing import Listing
from headrace.parent import follow_parent
from headrace.registry import Registry, default
from headrace.tracing import export_traces
from headrace.worker import Worker


@command(
    "worker",
    epilog="Exit codes: 0 stopped by SIGTERM or Ctrl-C, 1 the worker broke, 2 the file cannot be used.",
)
def run_worker(
    app: Annotated[str, typer.Argument(help="your file, or a module: app.py, app.py:registry, shop.tasks")],
    queue: Annotated[
        list[str] | None, typer.Option(help="a queue to serve; repeat it; default those your tasks name")
    ] = None,
    slots: Annotated[int | None, typer.Option(min=1, help="bodies that run at once; default 16")] = None,
    name: Annotated[str | None, typer.Option(help="a name for people; default host and process id")] = None,
    kafka: Annotated[str | None, typer.Option(help="bootstrap servers; default HEADRACE_KAFKA")] = None,
) -> None:
    """Run your tasks until SIGTERM or Ctrl-C; running bodies get time to finish, the rest is handed back."""
    given = {"queues": tuple(queue) if queue else None, "slots": slots, "worker_name": name, "kafka": kafka}
    settings = read_settings({key: value for key, value in given.items() if value is not None})
    configure_logs(settings.log_level)
    export_traces(settings.traces)
    follow_parent()
    Worker.from_settings(settings, load_registry(app), listing=Listing.from_environment()).run_forever()


def configure_logs(level: str) -> None:
    """Raises ConfigurationError for a level that is none."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigurationError(f"HEADRACE_LOG_LEVEL: {level!r} is not a level; use debug, info, warning or error")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))


def load_registry(app: str) -> Registry:
    """Import the user's code and return its bodies.

    app: a path to a file or the dotted name of a module, and after a colon a registry other than the default one.
    Raises ConfigurationError, with the user's own frames when their code raised.
    """
    target, _, attribute = app.partition(":")
    module = _import_file(Path(target)) if _is_path(target) else _import_module(target)
    if not attribute:
        return default
    registry = getattr(module, attribute, None)
    if not isinstance(registry, Registry):
        raise ConfigurationError(f"{target} has no Registry named {attribute!r}")
    return registry


def _is_path(target: str) -> bool:
    return target.endswith(".py") or "/" in target or Path(target).is_file()


def _import_file(path: Path) -> ModuleType:
    """As `python app.py` sees it: its folder first on the path, under its own name, so that others can import it."""
    path = path.resolve()
    if not path.is_file():
        raise ConfigurationError(f"there is no file {path}")
    sys.path[:0] = [str(path.parent), str(Path.cwd())]
    name = path.stem if path.stem.isidentifier() and path.stem not in sys.modules else f"headrace_app_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{path.name} cannot be imported\n{_own_frames(error)}") from None
    return module


def _import_module(name: str) -> ModuleType:
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigurationError(f"{name} cannot be imported\n{_own_frames(error)}") from None


def _own_frames(error: BaseException) -> str:
    """The error with the frames of the user's code alone: ours and the import system's say nothing to them."""
    hidden = (__file__, "<frozen importlib")
    shown = traceback.TracebackException.from_exception(error)
    shown.stack = traceback.StackSummary.from_list(
        [frame for frame in shown.stack if not frame.filename.startswith(hidden)]
    )
    return "".join(shown.format(chain=False)).rstrip()
