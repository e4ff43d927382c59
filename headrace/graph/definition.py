"""A definition as text or as data."""

from typing import Any

from headrace.document import Document, copy_plain, format_path
from headrace.errors import DefinitionError, Fault
from headrace.graph.check import check
from headrace.graph.workflow import Workflow


def parse(text: str | bytes, *, source: str | None = None) -> Workflow:
    """Read a definition in YAML or JSON (a text that begins with `{` is JSON).

    source: a name for people, such as the file's; it comes back as `error.fields["source"]`.
    Raises DefinitionError with every fault, each with its path and 1-based line.

    >>> parse("name: hello\\ntasks: { greet: { run: hello.greet } }").tasks["greet"].run
    'hello.greet'
    """
    document = Document(text)
    try:
        if document.is_broken:
            raise DefinitionError(document.faults)
        return check(document.data, document.faults, document.line)
    except DefinitionError as error:
        error.fields["source"] = source
        raise


def from_data(data: Any) -> Workflow:
    """Read a definition that was parsed already, such as a request's body. Faults as for `parse`, without lines."""
    faults: list[Fault] = []
    plain = copy_plain(data, lambda path, message: faults.append(Fault(format_path(path), message)))
    return check(plain, faults, lambda path: None)
