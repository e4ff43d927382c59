"""Both checks, on one way in: fields by themselves, and the graph as a whole."""

from collections.abc import Callable
from typing import Any

from pydantic import ValidationError

from headrace.document import Path
from headrace.errors import DefinitionError, Fault
from headrace.graph.fault import Found, field_faults, in_order
from headrace.graph.field import DEFINITION_BYTES_MAX
from headrace.graph.graph_check import GraphCheck
from headrace.graph.workflow import Workflow


def check(data: Any, known: list[Fault], line: Callable[[Path], int | None]) -> Workflow:
    """Check everything. `known`: faults met on the way here. Raises DefinitionError unless there are none at all."""
    found: list[Found] = []
    workflow = None
    try:
        workflow = Workflow.model_validate(data, by_alias=True, by_name=False)  # `if_` is for Python only
    except ValidationError as error:
        found.extend(field_faults(error))
    found.extend(GraphCheck(data).faults())
    if workflow is not None and not known and not found and len(workflow.canonical()) > DEFINITION_BYTES_MAX:
        found.append(((), f"its canonical form may have {DEFINITION_BYTES_MAX} bytes"))
    if workflow is None or known or found:
        raise DefinitionError(in_order(data, known, found, line))
    return workflow
