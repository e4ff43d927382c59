"""The fields of a definition, told by the models that read it: for the page `docs/reference.md` and for editors.

    python -m headrace.reference > docs/reference.md

What a field means is the text that stands below it in `headrace.graph`; its type and default are the model's own. So a
field that is added is on the page, or a test fails.
"""

import ast
import inspect
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from itertools import pairwise
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from headrace.duration import format_duration

_IN_WORDS: Final[Mapping[Any, str]] = {
    str: "text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    timedelta: "a duration",
    Any: "any JSON",
}


class Field(NamedTuple):
    name: str
    """As in a definition."""
    kind: str
    """What it takes, in words."""
    default: str
    note: str
    """What it means; the text below it in its model."""


def models_of(root: type[BaseModel]) -> list[type[BaseModel]]:
    """It and those of its fields, each once and before those of its own fields."""
    found = [root]
    for model in found:  # grows while it is walked
        for field in model.model_fields.values():
            found += [inner for inner in _models_in(field.annotation) if inner not in found]
    return found


def fields_of(model: type[BaseModel]) -> list[Field]:
    """In the order of the model."""
    notes = notes_of(model)
    return [
        Field(str(field.alias or field.validation_alias or name), _kind(field.annotation), _default(field), notes[name])
        for name, field in model.model_fields.items()
    ]


def notes_of(model: type[BaseModel]) -> dict[str, str]:
    """By the name that the model has for the field; empty text for one about which nothing is said."""
    known: dict[str, str] = {}
    for kind in reversed(model.__mro__):  # what a model says itself comes last
        module = inspect.getmodule(kind)
        if issubclass(kind, BaseModel) and module is not None:
            known |= _notes(module).get(kind.__name__, {})
    return {name: known.get(name, "") for name in model.model_fields}


def describe_schema(schema: dict[str, Any], root: type[BaseModel]) -> None:
    """Put the notes into a JSON Schema made of these models, where editors show them. `schema` is changed."""
    for model in models_of(root):
        properties = schema["properties"] if model is root else schema["$defs"][model.__name__]["properties"]
        for field in fields_of(model):
            if field.note and isinstance(properties.get(field.name), dict):
                properties[field.name]["description"] = field.note


# == one field =========================================================================================================
def _kind(annotation: Any) -> str:
    origin, given = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(given[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_kind(each) for each in given if each is not NoneType))
    if origin is Literal:
        return ", ".join(f"`{each}`" for each in given)
    if origin in (list, tuple):
        return f"a list of {_kind(given[0])}"
    if origin is dict:
        return "a map" if given[1] is Any else f"a map of {_kind(given[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return f"[{annotation.__name__}](#{annotation.__name__.lower()})"
    return _IN_WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", ()):
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    if isinstance(value, timedelta):
        return f"`{format_duration(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for given in get_args(annotation):
        yield from _models_in(given)


@cache
def _notes(module: ModuleType) -> dict[str, dict[str, str]]:
    """By class and field: the text that stands alone below each field. Read from the source, and only when somebody
    asks for it."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = dict(_notes_in(node.body))
    return found


def _notes_in(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split()).replace("None:", "without it:")
            case _:
                pass


# == the page ==========================================================================================================
def draw() -> str:
    """The whole page, as Markdown."""
    from headrace.graph import Workflow

    lines = [
        "# All fields of a definition",
        "",
        "<!-- Drawn by `python -m headrace.reference` from the models of `headrace.graph`. Do not edit. -->",
        "",
        "What they mean together is told in [the format of a workflow](graph.md), and shown by",
        "[one example for each construct](../examples/constructs/README.md). `headrace schema` prints the same as JSON",
        "Schema, for editors. A test compares this page with the code.",
    ]
    for model in models_of(Workflow):
        lines += ["", f"## {model.__name__}", "", " ".join((inspect.getdoc(model) or "").split()), ""]
        lines += ["| field | takes | default | means |", "|---|---|---|---|"]
        lines += [
            f"| `{field.name}` | {_cell(field.kind)} | {field.default} | {_cell(field.note)} |"
            for field in fields_of(model)
        ]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(draw(), end="")
