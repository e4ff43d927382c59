"""A workflow as a graph: what is published, from YAML, JSON or Python to one frozen model.

    parse(text)             YAML or JSON text   ─┐
    from_data(body)         parsed JSON          ├─> Workflow, or DefinitionError with every fault, its path and line
    build(name).task(...)   Python              ─┘

Two checks make the faults. The models (`task`, `workflow`) look at each field alone: types, names, limits. `GraphCheck`
looks at the whole: needs, cycles, expressions and what they refer to. It works on the raw data, so that a wrong field
hides no wrong edge. Both are iterative where a graph can be long. A `Workflow` made in any other way had only the first
check.

    field        what one field takes: names, limits, and the short forms of a definition
    task         a task, and what it may be made of
    workflow     a workflow, and its canonical form
    definition   text or data to a workflow
    builder      Python to a workflow
    check        both checks, on one way in
    fault        what is wrong, in words and in the order of the document
    graph_check  the graph as a whole
    schema       JSON Schema, for editors
"""

from headrace.approval import Approval
from headrace.graph.builder import Builder, build
from headrace.graph.definition import from_data, parse
from headrace.graph.fault import FAULTS_MAX
from headrace.graph.field import (
    ATTEMPTS_MAX,
    DEFINITION_BYTES_MAX,
    DESCRIPTION_CHARS_MAX,
    KEY_CHARS_MAX,
    LIMIT_RUNS_MAX,
    NEEDS_MAX,
    PARALLEL,
    ROUNDS_MAX,
    TASKS_MAX,
)
from headrace.graph.schema import json_schema
from headrace.graph.task import Child, Compensate, Deadline, Map, Pool, Repeat, Retry, Signal, Task, Wait
from headrace.graph.workflow import Limit, Workflow

__all__ = [
    "ATTEMPTS_MAX",
    "DEFINITION_BYTES_MAX",
    "DESCRIPTION_CHARS_MAX",
    "FAULTS_MAX",
    "KEY_CHARS_MAX",
    "LIMIT_RUNS_MAX",
    "NEEDS_MAX",
    "PARALLEL",
    "ROUNDS_MAX",
    "TASKS_MAX",
    "Approval",
    "Builder",
    "Child",
    "Compensate",
    "Deadline",
    "Limit",
    "Map",
    "Pool",
    "Repeat",
    "Retry",
    "Signal",
    "Task",
    "Wait",
    "Workflow",
    "build",
    "from_data",
    "json_schema",
    "parse",
]
