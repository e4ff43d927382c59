"""The bodies a worker can run: plain functions under the names that graphs use.

How a body gets its input (a JSON value), by the names of its parameters:

- `ctx`, or any parameter annotated `Context`: the context of the attempt;
- `input`: the whole input value;
- every other one: the key of that name in the input object. A default applies when the key is missing; without one the
  attempt fails with BAD_INPUT and is not tried again. Keys that no parameter names are ignored.

Values are validated by pydantic against the annotations; so is the result, against the return annotation.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NotRequired, Required, TypeVar, overload

from pydantic import PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from headrace import payload
from headrace.context import Context
from headrace.errors import ConfigurationError, PayloadError
from headrace.messages import PAYLOAD_BYTES_MAX

F = TypeVar("F", bound=Callable[..., Any])
Arguments = tuple[tuple[Any, ...], Mapping[str, Any]]
"""Positional and keyword arguments of one call."""
Binder = Callable[[Context, bytes], Arguments]

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
_QUEUE: Final = re.compile(r"[a-z][a-z0-9-]{0,49}")
_NO_ARGUMENTS: Final[Arguments] = ((), {})


class Body:
    """One registered function, with what it takes and returns worked out once."""

    __slots__ = ("bind", "encode", "function", "is_async", "name", "queue")

    def __init__(self, name: str, function: Callable[..., Any], queue: str | None) -> None:
        self.name = name
        self.function = function
        self.queue = queue
        self.is_async = _is_async(function)
        # Annotations may name what stands further down in the user's module, so they are read when the worker starts.
        self.bind: Binder = _not_prepared
        self.encode: Callable[[object], bytes] = payload.encoder()

    def prepare(self, bytes_max: int) -> None:
        """Read the annotations; raises ConfigurationError naming the function and what is wrong. Safe to repeat.

        bytes_max: most that its result may be, as JSON."""
        try:
            signature = inspect.signature(self.function, eval_str=True)
            self.encode = payload.encoder(_declared(signature.return_annotation), bytes_max)
            self.bind = _binder(self.name, signature)
        except (NameError, PydanticUserError, TypeError, ValueError) as e:
            raise ConfigurationError(f"task {self.name!r}: its annotations cannot be used: {e}", task=self.name) from e


class Registry:
    """A set of bodies by name.

    >>> registry = Registry()
    >>> @registry.task("payments.charge")
    ... async def charge(order_id: str, total: int) -> dict[str, str]:
    ...     return {"receipt": f"{order_id}-{total}"}
    >>> list(registry)
    ['payments.charge']
    """

    def __init__(self) -> None:
        self._bodies: dict[str, Body] = {}

    @overload
    def task(self, name: F, /) -> F: ...
    @overload
    def task(self, name: str | None = None, /, *, queue: str | None = None) -> Callable[[F], F]: ...
    def task(self, name: Any = None, /, *, queue: str | None = None) -> Any:
        """Register a sync or async function as a body; the function itself stays what it was.

        name: what graphs say after `run:`; without one, the function's own name.
        queue: where this body is meant to run; a worker that is not told its queues serves those of its bodies.
        Raises ConfigurationError for a name that is taken or not allowed.
        """
        if callable(name):
            self._add(name, None, None)
            return name

        def register(function: F) -> F:
            self._add(function, name, queue)
            return function

        return register

    def _add(self, function: Callable[..., Any], name: str | None, queue: str | None) -> None:
        name = name if name is not None else getattr(function, "__name__", "")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is not a name for a task: it must match {_NAME.pattern}", task=str(name)
            )
        if queue is not None and not _QUEUE.fullmatch(queue):
            raise ConfigurationError(f"task {name!r}: {queue!r} is not a name for a queue", task=name)
        if name in self._bodies:
            raise ConfigurationError(f"two functions are registered as task {name!r}", task=name)
        self._bodies[name] = Body(name, function, queue)

    def prepare(self, bytes_max: int = PAYLOAD_BYTES_MAX) -> Mapping[str, Body]:
        """Make every body ready to run; raises ConfigurationError for the first that cannot be.

        bytes_max: most that a result may be, as JSON."""
        for body in self._bodies.values():
            body.prepare(bytes_max)
        return dict(self._bodies)

    def queues(self) -> tuple[str, ...]:
        """The queues its bodies name, sorted; `default` stands for those that name none."""
        return tuple(sorted({body.queue or "default" for body in self._bodies.values()})) or ("default",)

    def __getitem__(self, name: str) -> Body:
        return self._bodies[name]

    def __contains__(self, name: object) -> bool:
        return name in self._bodies

    def __iter__(self) -> Iterator[str]:
        return iter(self._bodies)

    def __len__(self) -> int:
        return len(self._bodies)


default: Final = Registry()
"""Where the module-level `task` registers."""
task: Final = default.task


# == binding ===========================================================================================================
def _binder(name: str, signature: inspect.Signature) -> Binder:
    positional: list[str] = []
    contexts: set[str] = set()
    whole: TypeAdapter[Any] | None = None
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for parameter in signature.parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(f"task {name!r}: *{parameter.name} has no key to be read from", task=name)
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter.name)
        annotation = Any if parameter.annotation is parameter.empty else parameter.annotation
        if parameter.name == "ctx" or annotation is Context:
            contexts.add(parameter.name)
        elif parameter.name == "input":
            whole = TypeAdapter(annotation)
        else:
            has_default = parameter.default is not parameter.empty
            fields[parameter.name] = NotRequired[annotation] if has_default else Required[annotation]
            if has_default:
                defaults[parameter.name] = parameter.default
    if not signature.parameters:
        return lambda ctx, raw: _NO_ARGUMENTS
    return _assemble(positional, contexts, whole, _fields_adapter(fields), defaults)


def _assemble(
    positional: list[str],
    contexts: Iterable[str],
    whole: TypeAdapter[Any] | None,
    fields: TypeAdapter[dict[str, Any]] | None,
    defaults: Mapping[str, Any],
) -> Binder:
    contexts = tuple(contexts)
    # The adapters' own validators: the wrapper around them costs as much as a small validation.
    read_fields = fields.validator.validate_json if fields is not None else None
    read_whole = whole.validator.validate_json if whole is not None else None

    def bind(ctx: Context, raw: bytes) -> Arguments:
        try:
            # Both readings come from the bytes, so that pydantic applies its JSON rules ("2026-01-01" is a date).
            named = read_fields(raw) if read_fields is not None else {}
            if read_whole is not None:
                named["input"] = read_whole(raw)
        except ValidationError as e:
            raise PayloadError(payload.describe_validation(e), reason="BAD_INPUT") from None
        except Exception as e:  # a validator of the user's that raises something of its own
            raise PayloadError(f"the input was refused by {payload.type_name(e)}: {e}", reason="BAD_INPUT") from e
        for context in contexts:
            named[context] = ctx
        if not positional:
            return (), named
        return tuple(named.pop(p) if p in named else defaults[p] for p in positional), named

    return bind


def _fields_adapter(fields: dict[str, Any]) -> TypeAdapter[dict[str, Any]] | None:
    """A TypedDict rather than a model: any name is allowed, and what is missing is left to Python's own defaults."""
    if not fields:
        return None
    make: Any = TypedDict  # to a type checker its fields must be literal; here they are known only now
    return TypeAdapter(make("Input", fields))


def _not_prepared(ctx: Context, raw: bytes) -> Arguments:
    raise ConfigurationError("this task was not prepared; hand its registry to a Worker")


def _declared(annotation: Any) -> Any:
    if annotation is None:
        return type(None)  # `-> None` is a declaration, unlike no annotation at all
    return None if annotation is inspect.Signature.empty else annotation


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
