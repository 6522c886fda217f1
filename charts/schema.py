"""values.schema.json, which refuses unknown keys."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from charts import dask_operator
from charts.definitions import DEFINITIONS
from charts.values import Value

Schema = dict[str, Any]

_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array"}
_OF_PARENTS: Schema = {
    "global": {"type": "object"},
    "enabled": {"description": "For the `condition` of a chart that has this one as a dependency.", "const": True},
}
"""What Helm hands to every dependency, whether it uses it or not."""
_TAG = "^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}(@sha256:[0-9a-f]{64})?$"
"""The Dask operator's chart has no value for a digest; one can follow the tag."""


def values_schema(values: Sequence[Value]) -> str:
    """Return the text of values.schema.json, in the draft that every Helm 3 and most editors know."""
    schema: Schema = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart batchgrowth"}
    schema |= _with_sections(values)
    schema["properties"] |= _OF_PARENTS
    schema["definitions"] = DEFINITIONS
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _schema(value: Value) -> Schema:
    described = {"description": value.sentence}
    if "$ref" in value.hint:
        return described | value.hint
    if not value.children:
        return described | {"type": _TYPES[type(value.default)]} | value.hint
    section = _with_sections(value.children)
    if value.path == (dask_operator.NAME,):
        properties = _of_defaults(dask_operator.chart_values())["properties"] | section["properties"]
        properties["image"]["properties"]["tag"]["pattern"] = _TAG
        properties["global"] = {"type": "object"}
        section["properties"] = properties
    return described | section


def _with_sections(values: Sequence[Value]) -> Schema:
    """Return the schema of these keys; Helm drops a section that a user leaves empty, which no template expects."""
    schema = _closed({value.key: _schema(value) for value in values})
    sections = [value.key for value in values if value.children and value.path != (dask_operator.NAME,)]
    if sections:
        schema["required"] = sections
    return schema


def _closed(properties: dict[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _of_defaults(default: Any) -> Schema:
    """Return the keys and types of a third-party chart's defaults."""
    if default is None:
        return {}
    if isinstance(default, dict) and default:
        return _closed({key: _of_defaults(value) for key, value in default.items()})
    return {"type": _TYPES[type(default)]}
