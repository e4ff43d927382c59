"""How a command becomes part of `headrace`: its common options, its errors as exit codes.

code  means
0     done; the run completed; all checks are fine
1     failed, or a negative outcome: the run failed or was cancelled, a check is not fine, the input was refused
2     the command was used wrongly, or a setting is wrong
3     there is no such workflow, run, task, approval or dead letter
4     it cannot be done in this state, or the key was used for something else
5     the API, Kafka or the database is away
6     the API does not know who calls, or they may not do this
130   interrupted by Ctrl-C
"""

import functools
import getpass
import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from enum import IntEnum
from typing import Annotated, Any, Final, NoReturn, TypeVar, get_type_hints

import typer

from headrace.cli.address import find_api, find_token
from headrace.cli.api import Api
from headrace.cli.terminal import Terminal
from headrace.errors import (
    AccessError,
    ConfigurationError,
    ConflictError,
    DefinitionError,
    FilterError,
    HeadraceError,
    KeyReusedError,
    NotFoundError,
    UnavailableError,
)

DEBUG: Final = "HEADRACE_DEBUG"
"""Set in the environment, an unexpected error shows its traceback."""


class Exit(IntEnum):
    """Exit codes; the module's head says what each means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    CONFLICT = 4
    UNAVAILABLE = 5
    DENIED = 6
    INTERRUPTED = 130


CODES: Final[Mapping[type[HeadraceError], Exit]] = {
    ConfigurationError: Exit.USAGE,
    NotFoundError: Exit.NOT_FOUND,
    ConflictError: Exit.CONFLICT,
    KeyReusedError: Exit.CONFLICT,
    FilterError: Exit.USAGE,
    UnavailableError: Exit.UNAVAILABLE,
    AccessError: Exit.DENIED,
}
F = TypeVar("F", bound=Callable[..., None])

app: Final = typer.Typer(
    name="headrace",
    help="Durable workflows: Kafka wakes workers, Postgres decides.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)

_JSON = Annotated[bool, typer.Option("--json", help="print one JSON document instead of text")]
_API = Annotated[str | None, typer.Option("--api", help="base URL of the API; default HEADRACE_API, or a running dev")]
_TOKEN = Annotated[
    str | None, typer.Option("--token", help="API token; default HEADRACE_API_TOKEN, or that of a running dev")
]


def command(name: str, *, epilog: str = "", panel: str | None = None) -> Callable[[F], F]:
    """Register a function as a command.

    Each gets `--json`. A parameter `terminal: Terminal` is where to print; `api: Api` is a connection to the API and
    adds `--api` and `--token`. One whose type is a NamedTuple stands for an option for each of its fields, so that
    several commands can have the same. All others are the command's own.
    """

    def register(function: F) -> F:
        app.command(name, epilog=epilog or None, rich_help_panel=panel)(_guarded(function))
        return function

    return register


def _guarded(function: Callable[..., None]) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    wants_api, wants_terminal = "api" in signature.parameters, "terminal" in signature.parameters
    bundles = {each.name: each.annotation for each in signature.parameters.values() if _is_bundle(each.annotation)}

    @functools.wraps(function)
    def run(**given: Any) -> None:
        terminal = Terminal(is_json=given.pop("as_json"))
        url, token = given.pop("api_url", None), given.pop("token", None)
        if wants_terminal:
            given["terminal"] = terminal
        for name, bundle in bundles.items():
            given[name] = bundle(**{field: given.pop(field) for field in bundle._fields})
        with _exit_codes(terminal), ExitStack() as parts:
            if wants_api:
                given["api"] = parts.enter_context(connect(url, token))
            function(**given)

    own = [each for each in signature.parameters.values() if each.name not in ("api", "terminal")]
    kept = [option for each in own for option in (_unbundled(bundles[each.name]) if each.name in bundles else [each])]
    added = [_option("as_json", _JSON, False)]
    added += [_option("api_url", _API, None), _option("token", _TOKEN, None)] if wants_api else []
    # Typer reads the signature. Keyword-only, so that one with a default may stand before one without.
    parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*kept, *added]]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    return run


def _is_bundle(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields")


def _unbundled(bundle: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(bundle, include_extras=True)
    return [_option(field, hints[field], bundle._field_defaults[field]) for field in bundle._fields]


def _option(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def connect(url: str | None, token: str | None) -> Api:
    """A connection to the API that was named, or that is found; writes carry the user's name as their actor."""
    found = find_api(url)
    return Api(found, find_token(token, found), actor=user_name())


def user_name() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user may have no name
        return None


@contextmanager
def _exit_codes(terminal: Terminal) -> Generator[None]:
    """Turn every error into one message and its exit code; a user never sees a traceback of ours."""
    try:
        yield
    except HeadraceError as error:
        _fail(terminal, error)
    except BrokenPipeError:  # `headrace runs | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.OK) from None
    except KeyboardInterrupt:
        raise typer.Exit(Exit.INTERRUPTED) from None
    except (typer.Exit, typer.Abort, typer.BadParameter):
        raise
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        hint = f"this is a fault of headrace; {DEBUG}=1 shows where"
        terminal.fail(f"{type(error).__name__}: {error}\n{hint}", code=HeadraceError.code)
        raise typer.Exit(Exit.FAILED) from None


def _fail(terminal: Terminal, error: HeadraceError) -> NoReturn:
    details = error.fields.get("errors") or []
    if isinstance(error, DefinitionError):
        details = [{"path": each.path, "message": each.message, "line": each.line} for each in error.faults]
    message = "the workflow was refused" if isinstance(error, DefinitionError) else error.message
    terminal.fail(message, code=error.code, details=details)
    codes = [code for kind, code in CODES.items() if isinstance(error, kind)]
    raise typer.Exit(codes[0] if codes else Exit.FAILED) from None
