"""The structural schema of the whole manifest, and reading plain data by it as the API server does."""

from functools import cache
from typing import Any

from batchgrowth.manifest.documents import KeyPath
from batchgrowth.schema import Schema, structural_schema
from batchgrowth.spec import BatchGrowthJob


@cache
def job_schema() -> Schema:
    """Return the structural schema of the whole manifest."""
    return structural_schema(BatchGrowthJob)


def schema_at(path: KeyPath) -> Schema:
    """Return the part of the schema that describes the value at a path of the manifest; empty if none does."""
    node = job_schema()
    for part in path:
        node = below(node, part)
    return node


def below(node: Schema, part: str | int) -> Schema:
    """Return the part of a schema that describes an entry of its list, or a field of its map; empty if none does."""
    if isinstance(part, int):
        found: Schema = node.get("items", {})
    else:
        found = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return found


def without_nulls(tree: Any, node: Schema) -> Any:
    """Return the data without fields that are null, if the schema knows them: null means that a field is absent.

    In a list, null stays, and so it does in the parts of pods that the schema does not know.
    """
    if isinstance(tree, list):
        return [without_nulls(item, below(node, 0)) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for name, value in tree.items():
        known = name in node.get("properties", {}) or "additionalProperties" in node
        if value is not None or not known:
            kept[name] = without_nulls(value, below(node, name))
    return kept
