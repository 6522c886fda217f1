"""Pydantic's JSON schema as a Kubernetes structural schema.

A structural schema has no `$ref`, no unions with null, no titles, no `additionalProperties: false` and no `const`.
"""

from typing import Any

from pydantic import BaseModel

KEPT = (
    "description",
    "type",
    "enum",
    "format",
    "pattern",
    "minLength",
    "maxLength",
    "minimum",
    "maximum",
    "minItems",
    "maxItems",
    "maxProperties",
)
LARGEST_INT32 = 2**31 - 1

Schema = dict[str, Any]


def structural_schema(model: type[BaseModel]) -> Schema:
    """The model as a structural schema with every reference inlined. Raises TypeError if the model has unions."""
    schema = model.model_json_schema(by_alias=True)
    return _convert(schema, schema.get("$defs", {}))


def _convert(node: Schema, defs: Schema) -> Schema:
    node = _without_null(_written_out(node, defs), defs)
    if "anyOf" in node or "oneOf" in node:
        raise TypeError(f"a structural schema has no unions: {node}")
    result = {key: node[key] for key in KEPT if key in node}
    result |= {key: value for key, value in node.items() if key.startswith("x-kubernetes-")}
    if "const" in node:
        result |= {"enum": [node["const"]]}
    if node.get("type") == "integer":
        result["format"] = "int32" if node["maximum"] <= LARGEST_INT32 else "int64"
    if node.get("default") is not None:
        # Written in full: an API server checks a default's rules before it fills in the defaults inside it.
        result["default"] = _without_nothing(node["default"])
    elif node.get("type") == "object" and "properties" not in node and "default" not in node:
        result["default"] = {}
    if "items" in node:
        result["items"] = _convert(node["items"], defs)
    if isinstance(node.get("additionalProperties"), dict):
        result["additionalProperties"] = _convert(node["additionalProperties"], defs)
    return result | _fields(node, defs)


def _without_nothing(default: Any) -> Any:
    if not isinstance(default, dict):
        return default
    return {name: _without_nothing(value) for name, value in default.items() if value is not None}


def _fields(node: Schema, defs: Schema) -> Schema:
    if "properties" not in node:
        return {}
    fields: Schema = {"properties": {name: _convert(child, defs) for name, child in node["properties"].items()}}
    if node.get("required"):
        fields["required"] = sorted(node["required"])
    return fields


def _written_out(node: Schema, defs: Schema) -> Schema:
    """The node with its reference inlined; keys beside the reference win."""
    if "$ref" not in node:
        return node
    target: Schema = defs[node["$ref"].removeprefix("#/$defs/")]
    return target | {key: value for key, value in node.items() if key != "$ref"}


def _without_null(node: Schema, defs: Schema) -> Schema:
    """`X or null` as X: an absent field is how Kubernetes says null."""
    branches = [branch for branch in node.get("anyOf", ()) if branch != {"type": "null"}]
    if len(branches) != 1:
        return node
    return _written_out(branches[0], defs) | {key: value for key, value in node.items() if key != "anyOf"}
