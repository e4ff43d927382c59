"""User data at its two edges: what a body returns on the way out, what a caller sends on the way in.

Strict JSON, so that every store, language and browser on its way reads the same value:

- no NaN or Infinity; integers fit 64 bits, signed;
- no U+0000 (Postgres cannot store it) and no lone surrogate (UTF-8 cannot carry it), neither in strings nor in keys;
- keys are strings and occur once; at most DEPTH_MAX levels; at most PAYLOAD_BYTES_MAX bytes of UTF-8.

A result is plain JSON data, a pydantic model or a dataclass, at any depth. Anything else (datetime, date, UUID, Enum,
Decimal, set, bytes …) is accepted only where the body's declared return annotation covers it, and then in pydantic's
JSON form; guessing a text form for an undeclared type would make a contract nobody wrote.
"""

import dataclasses
import json
import math
from collections.abc import Callable
from enum import Enum
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError

from headrace.errors import PayloadError
from headrace.messages import PAYLOAD_BYTES_MAX
from headrace.object_store import refuse_references

DEPTH_MAX: Final = 64
INTEGER_MAX: Final = 2**63 - 1
INTEGER_MIN: Final = -(2**63)

_LEAVES: Final = frozenset({str, int, float, bool, NoneType, Any, object, dict, list})
_PROBLEMS_MAX: Final = 5
_PATH_MAX: Final = 120

_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


def encode(value: object, *, annotation: Any = None) -> bytes:
    """Encode what a body returned.

    annotation: the declared return type; the value is validated against it first. None when nothing is declared.
    Raises PayloadError and nothing else, whatever the value is or does (reason BAD_RESULT or RESULT_TOO_LARGE);
    its message names the Python type and the path.
    """
    return encoder(annotation)(value)


def encoder(annotation: Any = None, bytes_max: int = PAYLOAD_BYTES_MAX) -> Callable[[object], bytes]:
    """Prepare `encode` for one annotation; raises what pydantic raises for a type it has no schema for."""
    convert = _converter(annotation, bytes_max)

    def run(value: object) -> bytes:
        if value is None and convert is None:
            return b"null"
        try:
            plain = _Walk(bytes_max).copy(convert(value) if convert is not None else value, 0)
            raw = _encode(plain)
        except _Refusal as e:
            raise _refused(e, value) from None
        except BaseException as e:  # whatever a user's object raises while it is looked at
            raise PayloadError(f"the result of type {type_name(value)} cannot be stored: {_explain(e)}") from None
        if len(raw) > bytes_max:
            raise _refused(_Refusal(f"is {len(raw)} bytes of JSON, more than {bytes_max}", too_large=True), value)
        return raw

    return run


def encode_input(value: object) -> bytes:
    """`encode` for what a caller sends: PayloadError with reason BAD_INPUT or INPUT_TOO_LARGE.

    A KeyboardInterrupt goes on as it came: here it is the caller's Ctrl-C, not what its data did.
    """
    try:
        return encode(value)
    except PayloadError as e:
        if isinstance(e.__context__, KeyboardInterrupt):
            raise e.__context__ from None
        reason = "INPUT_TOO_LARGE" if e.reason == "RESULT_TOO_LARGE" else "BAD_INPUT"
        raise PayloadError(e.message.replace("the result", "the input", 1), reason=reason, **e.fields) from None


def check(raw: bytes, *, may_refer: bool = False) -> None:
    """Refuse bytes from outside that are not strict JSON: PayloadError with reason BAD_INPUT or INPUT_TOO_LARGE.

    may_refer: whether they may hold references to large values, as what a run's own input is edited from does.
    """
    if len(raw) > PAYLOAD_BYTES_MAX:
        raise PayloadError(f"{len(raw)} bytes of JSON, more than {PAYLOAD_BYTES_MAX}", reason="INPUT_TOO_LARGE")
    try:
        value = _decode(raw)
        walk = _Walk(PAYLOAD_BYTES_MAX)
        walk.copy(value, 0)
        if raw.count(b":") != walk.keys:  # a colon inside a string, or a key that stands twice
            json.loads(raw, object_pairs_hook=_refuse_repeated_keys)
        if not may_refer and (b"$object" in raw or b"\\u" in raw):
            refuse_references(_encode(value), "BAD_INPUT")
    except _Refusal as e:
        raise PayloadError(f"{_cut(e.path) or 'the value'} {e.problem}", reason="BAD_INPUT", path=e.path) from None
    except RecursionError:
        raise PayloadError(f"nested deeper than {DEPTH_MAX} levels", reason="BAD_INPUT") from None
    except (ValueError, msgspec.MsgspecError) as e:
        raise PayloadError(f"not strict JSON: {e}", reason="BAD_INPUT") from None


def type_name(value: object) -> str:
    """Name the type of any object at all; never raises."""
    try:
        kind = type(value)
        module = type.__getattribute__(kind, "__module__")
        name = str(type.__getattribute__(kind, "__qualname__"))
        return name if module in ("builtins", "__main__") else f"{module}.{name}"
    except BaseException:  # a metaclass may do anything
        return "object"


class _Refusal(Exception):
    """A value that is not allowed; the path is put together while the walk unwinds."""

    def __init__(self, problem: str, path: str = "", *, too_large: bool = False) -> None:
        super().__init__(problem)
        self.problem, self.path, self.too_large = problem, path, too_large


def _refused(e: _Refusal, value: object) -> PayloadError:
    where = f" at {_cut(e.path)}" if e.path else ""
    reason = "RESULT_TOO_LARGE" if e.too_large else "BAD_RESULT"
    return PayloadError(f"the result of type {type_name(value)}{where} {e.problem}", reason=reason, path=e.path)


class _Walk:
    """One look over a value, which is copied into exact dict, list, str, int, float, bool and None.

    A copy costs hardly more than a look, and what is encoded afterwards is what was checked, even if a subclass
    overrides its methods. `room` falls by at least one for each value, so that an object which refers to the same list
    a million times over ends as too large instead of filling the memory.
    """

    __slots__ = ("bytes_max", "keys", "room")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = self.room = bytes_max
        self.keys = 0

    def copy(self, value: Any, depth: int) -> Any:
        kind = type(value)
        self.room -= 1
        if kind is str:
            return self._text(value)
        if value is None or kind is bool:
            return value
        if kind is int:
            return _integer(value)
        if kind is float:
            return _finite(value)
        if self.room < 0:
            raise _too_large(self.bytes_max)
        if depth >= DEPTH_MAX:
            raise _Refusal(f"is nested deeper than {DEPTH_MAX} levels (does it contain itself?)")
        if kind is dict:
            return self._object(value, depth)
        if kind is list or kind is tuple:
            return self._array(value, depth)
        return self._odd(value, depth)

    def _text(self, value: str) -> str:
        self.room -= len(value)
        if self.room < 0:
            raise _too_large(self.bytes_max)
        if "\0" in value:
            raise _Refusal("holds the character U+0000")
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError:
                raise _Refusal("holds a lone surrogate, which UTF-8 cannot carry") from None
        return value

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        out: dict[str, Any] = {}
        for key, item in dict.items(value):
            if type(key) is not str:
                key = _key(key)
            self.keys += 1
            try:
                out[self._text(key)] = self.copy(item, depth + 1)
            except _Refusal as e:
                e.path = f"{_shown(key)}{_joint(e.path)}{e.path}"
                raise
        return out

    def _array(self, value: Any, depth: int) -> list[Any]:
        out: list[Any] = []
        for item in tuple.__iter__(value) if isinstance(value, tuple) else list.__iter__(value):
            try:
                out.append(self.copy(item, depth + 1))
            except _Refusal as e:
                e.path = f"[{len(out)}]{_joint(e.path)}{e.path}"
                raise
        return out

    def _odd(self, value: Any, depth: int) -> Any:
        """Anything that is not exactly JSON's own types: models and dataclasses, then harmless subclasses."""
        if isinstance(value, Enum):
            raise _not_json(value)
        if isinstance(value, BaseModel) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
            return self.copy(_dump(_adapter(type(value)), value, self.bytes_max), depth + 1)
        if isinstance(value, str):
            return self._text(str.__str__(value))
        if isinstance(value, int):
            return _integer(int.__int__(value))
        if isinstance(value, float):
            return _finite(float.__float__(value))
        if isinstance(value, dict):
            return self._object(value, depth)
        if isinstance(value, (list, tuple)):
            return self._array(value, depth)
        raise _not_json(value)


def _integer(value: int) -> int:
    if INTEGER_MIN <= value <= INTEGER_MAX:
        return value
    raise _Refusal("is an integer outside 64 bits")


def _finite(value: float) -> float:
    if math.isfinite(value):
        return value
    raise _Refusal(f"is {value!r}, which JSON cannot carry")


def _key(key: object) -> str:
    if isinstance(key, str) and not isinstance(key, Enum):
        return str.__str__(key)
    raise _Refusal(f"has a key of type {type_name(key)}; keys must be strings")


def _not_json(value: object) -> _Refusal:
    return _Refusal(f"holds {type_name(value)}, which is not JSON; declare it in the return annotation or convert it")


def _too_large(bytes_max: int) -> _Refusal:
    return _Refusal(f"is more than {bytes_max} bytes of JSON", too_large=True)


def _shown(key: str) -> str:
    return key[:80].encode("ascii", "backslashreplace").decode().replace("\0", "\\u0000")


def _cut(path: str) -> str:
    return path if len(path) <= _PATH_MAX else path[: _PATH_MAX - 4] + " ..."


def _joint(rest: str) -> str:
    return "" if not rest or rest.startswith("[") else "."


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            raise _Refusal("stands twice in one object", _shown(key))
        seen.add(key)


# == declared results ==================================================================================================
@lru_cache(maxsize=512)
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _converter(annotation: Any, bytes_max: int) -> Callable[[object], Any] | None:
    """How a value becomes what the walk looks at; None when there is nothing to do."""
    if annotation is None or annotation is Any or annotation is object:
        return None
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    if _is_plain(annotation):
        return adapter.validate_python
    return lambda value: _dump(adapter, adapter.validate_python(value), bytes_max)


def _is_plain(annotation: Any) -> bool:
    """Nothing in the type can have a JSON form of its own, so pydantic need not write it out."""
    if annotation in _LEAVES:
        return True
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return parts[0] is str and _is_plain(parts[1])
    return origin in (list, Union, UnionType) and all(map(_is_plain, parts))


def _dump(adapter: TypeAdapter[Any], value: object, bytes_max: int) -> Any:
    """Write a declared value in pydantic's JSON form; that would silently turn NaN into null, hence the look before."""
    _refuse_nonfinite(adapter.dump_python(value, warnings="error"), bytes_max)
    return adapter.dump_python(value, mode="json", warnings="error")


def _refuse_nonfinite(value: Any, bytes_max: int) -> None:
    """Iterative, so that it needs no depth limit; pydantic has already refused whatever contains itself."""
    waiting, room = [value], bytes_max
    while waiting:
        item = waiting.pop()
        room -= 1
        if room < 0:
            raise _too_large(bytes_max)
        if isinstance(item, float):
            _finite(item)
        elif isinstance(item, dict):
            waiting.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            waiting.extend(item)


def _explain(error: BaseException) -> str:
    try:
        if isinstance(error, ValidationError):
            return describe_validation(error)
        return f"{type_name(error)}: {error}"
    except BaseException:  # str() of a user's exception may fail too
        return type_name(error)


def describe_validation(error: ValidationError) -> str:
    """The problems pydantic found, as `path: what is wrong`; without the values, which may be secret or huge."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = [f"{'.'.join(map(str, p['loc'])) or 'value'}: {p['msg']}" for p in problems[:_PROBLEMS_MAX]]
    more = len(problems) - _PROBLEMS_MAX
    return "; ".join(lines) + (f"; and {more} more" if more > 0 else "")
