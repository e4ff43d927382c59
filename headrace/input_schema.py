"""The JSON Schema of a run's input, or of the answer to an approval: checked when it is published, applied when a run
starts or somebody answers. Nothing is ever fetched.

jsonschema is imported where it is used: it takes longer to import than all the rest, and workers never need it.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from headrace.document import Path, format_path
from headrace.errors import Fault

INPUT_FAULTS_MAX: Final = 100
"""More are left out: a large input of another shape is wrong everywhere."""
_MESSAGE_CHARS_MAX: Final = 300
_VERBATIM: Final = frozenset({"const", "default", "enum", "examples"})


def check_answer(schema: str | bytes, answer: bytes) -> list[Fault]:
    """What is wrong with the answer to an approval by the schema of its form, both JSON; paths begin with `form`."""
    faults = InputSchema(msgspec.json.decode(schema)).check(msgspec.json.decode(answer))
    return [Fault(f"form.{fault.path}" if fault.path[:1] not in ("", "[") else f"form{fault.path}", fault.message)
            for fault in faults]  # fmt: skip


class InputSchema:
    """A schema ready to be applied, again and again."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._validator = _make_validator(_dialect(schema), schema)

    def check(self, data: Any) -> list[Fault]:
        """What is wrong with an input, by path; empty when nothing is."""
        from referencing.exceptions import Unresolvable

        try:
            errors = list(islice(self._validator.iter_errors(data), INPUT_FAULTS_MAX))
        except RecursionError:
            return [Fault("", "the schema refers to itself without an end")]
        except Unresolvable as error:
            return [Fault("", f"the schema refers to what is not there: {error.ref[:100]}")]
        errors.sort(key=lambda error: [str(key) for key in error.absolute_path])
        return [Fault(format_path(tuple(error.absolute_path)), error.message[:_MESSAGE_CHARS_MAX]) for error in errors]


def find_schema_faults(schema: dict[str, Any]) -> list[tuple[Path, str]]:
    """What is wrong with a schema. Patterns and references are tried here, so that no run meets them first."""
    from referencing.exceptions import Unresolvable

    dialect = _dialect(schema)
    if dialect is None:
        return [(("$schema",), "an unknown dialect; leave it out for JSON Schema 2020-12")]
    errors = _make_validator(dialect, dialect.META_SCHEMA).iter_errors(schema)
    faults: list[tuple[Path, str]] = [
        (tuple(error.absolute_path), error.message[:_MESSAGE_CHARS_MAX]) for error in islice(errors, INPUT_FAULTS_MAX)
    ]
    resolver = _make_validator(dialect, schema)._resolver
    for path, key, text in _keywords(schema, ()):
        try:
            if key == "pattern":
                re.compile(text)
            elif not text.startswith("#"):
                faults.append((path, "only references inside the schema are followed: write #/…"))
            else:
                resolver.lookup(text)
        except re.error as error:
            faults.append((path, f"no regular expression: {error}"))
        except Unresolvable:
            faults.append((path, f"nothing stands at {text[:100]}"))
    return faults


def _keywords(schema: Any, path: Path) -> Iterator[tuple[Path, str, str]]:
    """Every (path, `pattern` or `$ref`, text) of a schema; recursion is bounded by the depth of a document."""
    if isinstance(schema, list):
        for position, item in enumerate(schema):
            yield from _keywords(item, (*path, position))
    for key, item in schema.items() if isinstance(schema, dict) else ():
        if isinstance(item, str) and key in ("pattern", "$ref", "$dynamicRef"):
            yield (*path, key), key, item
        elif key == "patternProperties" and isinstance(item, dict):
            yield from (((*path, key, pattern), "pattern", pattern) for pattern in item)
        if key not in _VERBATIM:
            yield from _keywords(item, (*path, key))


def _dialect(schema: dict[str, Any]) -> Any:
    """The validator class of the schema's dialect; None when there is none of that name."""
    from jsonschema.validators import Draft202012Validator, validator_for

    unknown: Any = None
    return validator_for(schema, default=unknown) if "$schema" in schema else Draft202012Validator


def _make_validator(dialect: Any, schema: Any) -> Any:
    """With a registry that holds the dialects themselves and has no way to fetch anything else."""
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]  # it ships no types

    return dialect(schema, registry=REGISTRY)
