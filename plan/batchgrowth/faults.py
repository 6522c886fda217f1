"""Pydantic's errors as faults that a person can act on: the field, what was given, and what would do."""

from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from typing import Any

from pydantic import BaseModel, ValidationError

from batchgrowth.documents import Document, Path, dotted, printable
from batchgrowth.errors import Fault
from batchgrowth.redaction import redacted
from batchgrowth.schema.model import RULES_BROKEN
from batchgrowth.schema.patterns import DECIMAL, WORDS
from batchgrowth.schema.structural import Schema, structural_schema
from batchgrowth.spec import BatchGrowthJob


@cache
def job_schema() -> Schema:
    """The structural schema of the whole manifest."""
    return structural_schema(BatchGrowthJob)


def schema_at(path: Path) -> Schema:
    """The part of the schema that describes the value at a path of the manifest; empty if none does."""
    node = job_schema()
    for part in path:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return node


def faults_of(error: ValidationError, document: Document) -> Iterator[Fault]:
    """One fault for each of pydantic's errors, in the order of the fields."""
    for found in error.errors(include_url=False):
        path: Path = found["loc"]
        if found["type"] == "too_short" and len(found["input"]) >= found["ctx"]["min_length"]:
            continue  # pydantic counts only the valid entries, and has already reported the others
        if found["type"] == RULES_BROKEN:
            for field, value, remedy in found["ctx"]["broken"]:
                at = (*path, *field.split("."))
                yield Fault(dotted(at), _given(at, value, document), remedy)
        elif found["type"] == "missing":
            yield Fault(dotted(path), "missing", "give " + wanted(schema_at(path)))
        elif found["type"] == "extra_forbidden":
            yield Fault(dotted(path), "no such field", _near(str(path[-1]), schema_at(path[:-1])))
        else:
            given, node = _given(path, found["input"], document), schema_at(path)
            yield Fault(dotted(path) or "manifest", given, _remedy(path, found["input"], document, node))


def _given(path: Path, value: Any, document: Document) -> str:
    """The value as the manifest spells it, shortened if it is long, without what looks like a password."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list | tuple):
        kind = "a map" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, BaseModel):
        return "a block"
    text = redacted(document.written.get(path, str(value)))
    return printable(f'"{text}"' if isinstance(value, str) else text)


def _remedy(path: Path, value: Any, document: Document, node: Schema) -> str:
    text = document.written.get(path)
    if node.get("type") == "string" and text is not None and not isinstance(value, str) and value is not None:
        also = f": {wanted(node)}" if node.get("pattern") == DECIMAL else ""
        return f'put it in quotes, "{printable(text)}", so that YAML keeps it as written{also}'
    if node.get("type") == "integer" and isinstance(value, str):
        return f"give {wanted(node)}, without quotes"
    close = get_close_matches(str(value), map(str, node.get("enum", ())), n=1)
    return f"did you mean {close[0]}? Give {wanted(node)}" if close else f"give {wanted(node)}"


def _near(name: str, parent: Schema) -> str:
    names = sorted(parent.get("properties", ()))
    folded = {known.lower(): known for known in names}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    return f"did you mean {folded[close[0]]}?" if close else f"give one of {', '.join(names)}, or leave it out"


def wanted(node: Schema) -> str:
    """What a value must be, in words, derived from the schema that enforces it."""
    kind = node.get("type")
    if "enum" in node:
        return ("one of " if len(node["enum"]) > 1 else "") + ", ".join(map(str, node["enum"]))
    if kind == "integer":
        return f"a whole number from {node['minimum']} to {node['maximum']}"
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        return f"a list of {node.get('minItems', 0)} to {node['maxItems']} entries"
    if kind == "object":
        return _wanted_block(node)
    words = WORDS.get(node.get("pattern", ""), "a string")
    return words if node.get("pattern") == DECIMAL else f"{words}, at most {node['maxLength']} characters"


def _wanted_block(node: Schema) -> str:
    if "properties" in node:
        return "a block with " + ", ".join(node.get("required") or node["properties"])
    return f"a map of at most {node['maxProperties']} entries"
