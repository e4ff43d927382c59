"""`${{ CEL }}` in a task's `with` and `if`: compiled once, then evaluated for every task that starts.

A template is any JSON value. A string that is exactly one `${{ … }}` becomes the value of the expression, with its
type; in mixed text the values are written into the text (a string as it is, anything else as JSON). `$${{` stands for a
literal `${{`. An expression sees `input` (the run's input) and `tasks.NAME.output` (or `tasks["NAME"].output`). That
of a `wait` also sees `now`, the instant at which the wait begins; it is the only one that does, so that all others give
the same answer whenever they are asked. The `with` of a `map` also sees `item` and `index`, and that of a `compensate`
sees `task`, the one that is undone.

Rendering is on the hot path, so work is done by the cheapest means that gives the same answer:

    ${{ input }}, ${{ tasks.a.output }}     the payload's own bytes, never parsed
    ${{ tasks.a.output.total }}             one pass over each object on the way; the value keeps its bytes
    anything else                           CEL, over those parts of the payloads that it names

Payloads come in as strict JSON: the edge that accepted them has checked that. Nothing here keeps state between calls.

    language    what an expression may say, and how much of it
    analysis    what it refers to, and what it costs
    expression  one expression, compiled; text cut into expressions
    evaluation  its value, from payloads as they lie
    template    any JSON value with expressions in it
    condition   an expression by itself: an `if`, an `until`, the length of a wait
"""

from headrace.expressions.condition import (
    Condition,
    Value,
    compile_condition,
    compile_value,
    unwrap,
)
from headrace.expressions.evaluation import Outputs
from headrace.expressions.language import (
    DEPTH_MAX,
    EXPRESSION_CHARS_MAX,
    EXPRESSION_NESTING_MAX,
    EXPRESSION_SYMBOLS_MAX,
    GROWTH_BYTES_MAX,
    MACRO_NESTING_MAX,
    OF_A_COMPENSATION,
    OF_A_ROUND,
    OF_AN_ITEM,
    OF_ITS_END,
    STEPS_MAX,
    ExpressionError,
    Variables,
)
from headrace.expressions.template import Finding, Template, compile_template, inspect_template

__all__ = [
    "DEPTH_MAX",
    "EXPRESSION_CHARS_MAX",
    "EXPRESSION_NESTING_MAX",
    "EXPRESSION_SYMBOLS_MAX",
    "GROWTH_BYTES_MAX",
    "MACRO_NESTING_MAX",
    "OF_AN_ITEM",
    "OF_A_COMPENSATION",
    "OF_A_ROUND",
    "OF_ITS_END",
    "STEPS_MAX",
    "Condition",
    "ExpressionError",
    "Finding",
    "Outputs",
    "Template",
    "Value",
    "Variables",
    "compile_condition",
    "compile_template",
    "compile_value",
    "inspect_template",
    "unwrap",
]
