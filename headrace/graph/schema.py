"""JSON Schema of a definition, for editors and other languages."""

from typing import Any

from headrace.graph.field import ATTEMPTS_MAX, DOTTED_NAME, JOINS, NEEDS_MAX, TASK_NAME, text_schema
from headrace.graph.workflow import Workflow
from headrace.machine.place import ITEMS_MAX
from headrace.reference import describe_schema


def json_schema() -> dict[str, Any]:
    """JSON Schema of a definition. It cannot say all that `parse` checks."""
    schema = Workflow.model_json_schema(by_alias=True)
    task = schema["$defs"]["Task"]
    properties = task["properties"]
    names = text_schema(TASK_NAME)
    properties["needs"] = {
        "anyOf": [names, {"type": "array", "items": names, "uniqueItems": True, "maxItems": NEEDS_MAX}],
        "default": [],
    }
    properties["retry"] = {
        "anyOf": [{"type": "integer", "minimum": 1, "maximum": ATTEMPTS_MAX}, {"$ref": "#/$defs/Retry"}],
        "default": {},
    }
    properties["join"] = {
        "anyOf": [{"enum": list(JOINS)}, {"type": "integer", "minimum": 1, "maximum": NEEDS_MAX}],
        "default": "all",
    }
    properties["if"] = {"type": ["string", "boolean", "null"], "default": None}
    properties["with"] = {"not": {"type": "null"}}
    for model, field in (("Approval", "approvers"), ("Approval", "remind"), ("Escalation", "to")):
        many = schema["$defs"][model]["properties"][field]
        schema["$defs"][model]["properties"][field] = {"anyOf": [many["items"], many]}
    task["anyOf"] = [{"required": [name]} for name in ("run", "approval", "wait", "signal", "workflow")]
    lists = {"anyOf": [{"type": "array", "maxItems": ITEMS_MAX}, {"type": "string"}]}
    properties["map"] = {"anyOf": [*lists["anyOf"], {"$ref": "#/$defs/Map"}, {"type": "null"}], "default": None}
    schema["$defs"]["Map"]["properties"]["over"] = lists
    length = {"type": ["string", "number"], "exclusiveMinimum": 0}
    for name in ("Wait", "Deadline"):
        schema["$defs"][name]["properties"]["for"] = {**length}
        schema["$defs"][name]["properties"]["until"] = {"type": "string"}
        schema["$defs"][name]["oneOf"] = [{"required": ["for"]}, {"required": ["until"]}]
    properties["deadline"] = {"anyOf": [length, {"$ref": "#/$defs/Deadline"}, {"type": "null"}], "default": None}
    properties["signal"] = {
        "anyOf": [text_schema(DOTTED_NAME), {"$ref": "#/$defs/Signal"}, {"type": "null"}],
        "default": None,
    }
    properties["pool"] = {
        "anyOf": [text_schema(DOTTED_NAME), {"$ref": "#/$defs/Pool"}, {"type": "null"}],
        "default": None,
    }
    properties["workflow"] = {
        "anyOf": [text_schema(DOTTED_NAME), {"$ref": "#/$defs/Child"}, {"type": "null"}],
        "default": None,
    }
    properties["compensate"] = {
        "anyOf": [text_schema(DOTTED_NAME), {"$ref": "#/$defs/Compensate"}, {"type": "null"}],
        "default": None,
    }
    undo = schema["$defs"]["Compensate"]["properties"]
    undo["with"], undo["retry"] = {"not": {"type": "null"}}, dict(properties["retry"])
    schema["$defs"]["Signal"]["properties"]["timeout"] = {"type": ["string", "number", "null"], "exclusiveMinimum": 0}
    schema["properties"]["tasks"]["propertyNames"] = names
    describe_schema(schema, Workflow)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
