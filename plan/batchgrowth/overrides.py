"""`--set path=value`: a change to the spec before it is validated."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import yaml

from batchgrowth.documents import Document, Path, build
from batchgrowth.errors import Fault, SpecError
from batchgrowth.faults import schema_at

EXAMPLE = "give path=value with the path below spec, such as batch.maximum=640"


def override(document: Document, overrides: Sequence[str]) -> None:
    """Applies each "path=value" to the document's spec, and adds the overrides' faults to the document's."""
    for text in overrides:
        fault = _apply(document, text)
        if fault is not None:
            document.faults.append(fault)


def _apply(document: Document, text: str) -> Fault | None:
    name = f"--set {text}"
    dotted, separator, written = text.partition("=")
    parts = dotted.split(".")
    if not separator or not all(parts):
        return Fault(name, "no path and value", EXAMPLE)
    path: Path = ("spec", *(int(part) if part.isdecimal() else part for part in parts))
    try:
        value = _value(written, path, name)
    except (yaml.YAMLError, RecursionError, SpecError):
        return Fault(name, "a value that is not YAML", EXAMPLE)
    if not _put(document.tree, path, value.tree):
        return Fault(name, f"no block at {dotted.rpartition('.')[0] or 'spec'}", EXAMPLE)
    for old in [old for old in document.written if old[: len(path)] == path]:
        del document.written[old]
    document.written.update({(*path, *below): kept for below, kept in value.written.items()})
    document.faults.extend(value.faults)
    return None


def _value(written: str, path: Path, name: str) -> Document:
    """The value as YAML reads it, or as typed if the field is a string: the shell has removed the quotes."""
    node = yaml.compose(written, Loader=yaml.SafeLoader)
    value = Document(None) if node is None else build(node, name)
    if schema_at(path).get("type") == "string" and not isinstance(value.tree, str | dict | list):
        return Document(written, {(): written}, value.faults)
    return value


def _put(tree: Any, path: Path, value: Any) -> bool:
    """True if the value was set; missing blocks are created on the way."""
    for part, following in pairwise(path):
        if isinstance(tree, dict) and tree.get(part) is None and isinstance(following, str):
            tree[part] = {}
        if not _holds(tree, part):
            return False
        tree = tree[part]
    if not _holds(tree, path[-1]) and not (isinstance(tree, dict) and isinstance(path[-1], str)):
        return False
    tree[path[-1]] = value
    return True


def _holds(tree: Any, part: str | int) -> bool:
    if isinstance(tree, list):
        return isinstance(part, int) and part < len(tree)
    return isinstance(tree, dict) and part in tree
