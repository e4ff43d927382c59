"""Filters of lists: their fields, and what a text means."""

import msgspec


class FilterField(msgspec.Struct):
    name: str
    """Of a document, what stands before the path: `input` is asked as `input.customer.id`, and `label` as
    `label.customer`."""
    kind: str
    """word, text, choice, id, integer, instant, length, json or label"""
    about: str
    choices: list[str]
    """All values of a choice."""
    is_indexed: bool
    """Found by an index; otherwise a list looks at the newest so many rows at once, and its page may end early."""
    is_wild: bool
    """`*` stands for any text."""
    is_ordered: bool
    """Takes >, >=, < and <=."""


class FilterClause(msgspec.Struct):
    """A chip."""

    text: str
    """As it stands in the filter."""
    field: str
    comparison: str
    """Empty, or >, >=, < or <=."""
    values: list[str]
    """Any of which will do."""
    is_negated: bool


class FilterReading(msgspec.Struct):
    """What a filter says, and what it could."""

    of: str
    text: str
    """The same filter, written as it always is."""
    clauses: list[FilterClause]
    fields: list[FilterField]
    """The most used first."""
