"""Reads a file, with `--set` overrides, into a BatchGrowthJob, or reports all its faults at once.

A user's file may have no unknown field. What an API server or an operator stored may, since it can be of another
version.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from batchgrowth.errors import Fault, SpecError, redacted
from batchgrowth.manifest.documents import (
    LARGEST_BYTES,
    Document,
    KeyPath,
    build,
    dotted,
    printable,
    read_document,
)
from batchgrowth.schema import DECIMAL, RULES_BROKEN, WORDS, Schema, structural_schema
from batchgrowth.spec import MATHEMATICS, BatchGrowthJob

VERSION = version("batchgrowth")
VERSION_ANNOTATION = "batchgrowth.dev/version"
"""Annotation with the version of the operator that wrote a job document."""


@dataclass(frozen=True, slots=True)
class StoredJob:
    """A job from an API server or an operator, and the paths of its fields that this version does not know.

    `short` is its spec as plain data, with the unknown fields and without values that are defaults. A CRD writes the
    defaults of its new fields into every stored job; a trainer of an older version can read the short spec.
    """

    job: BatchGrowthJob
    unknown: tuple[str, ...]
    short: dict[str, Any]


def load_manifest(path: Path, overrides: Sequence[str] = ()) -> BatchGrowthJob:
    """Return the job in a file. Raises SpecError if the file cannot be read or has faults."""
    return read_manifest(_bytes_of(path), overrides, str(path))


def read_manifest(text: str | bytes, overrides: Sequence[str] = (), source: str = "") -> BatchGrowthJob:
    """Return the job that the YAML in `text` describes, after the overrides: "path=value" with the path below spec.

    `source` is the file's name in messages. Raises SpecError with every fault of the YAML, the overrides and the
    fields. A rule about several fields is checked only if each of them is valid by itself.
    """
    document = _map_in(text, source)
    override(document, overrides)
    return _job_in(document)


def read_stored(text: str | bytes, source: str = "") -> StoredJob:
    """Return the job that was stored. Raises SpecError for every fault but unknown fields."""
    document = _map_in(text, source)
    paths: list[KeyPath] = []
    try:
        BatchGrowthJob.model_validate(document.tree)
    except ValidationError as error:
        paths = [found["loc"] for found in error.errors(include_url=False) if found["type"] == "extra_forbidden"]
    # They are taken out of the document, so that the job can be read and all its other faults still count.
    unknown: list[tuple[KeyPath, Any]] = []
    for path in paths:
        parent = document.tree
        for key in path[:-1]:
            parent = parent[key]
        unknown.append((path, parent.pop(path[-1])))
    job = _job_in(document)
    short: dict[str, Any] = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    for path, value in unknown:
        if path[0] == "spec" and all(isinstance(key, str) for key in path):
            parent = short
            for key in path[1:-1]:
                parent = parent.setdefault(str(key), {})
            parent[str(path[-1])] = value
    return StoredJob(job, tuple(dotted(path) for path, _ in unknown), short)


def load_stored(path: Path) -> BatchGrowthJob:
    """Return the job in a file that an operator wrote, without unknown fields that only affect speed.

    Raises SpecError if the file cannot be read or has faults, or an unknown field that the weights may depend on.
    """
    stored = read_stored(_bytes_of(path), str(path))
    author = stored.job.metadata.annotations.get(VERSION_ANNOTATION, "an older version")
    given = f"not known to this trainer, {VERSION}"
    remedy = f"set spec.image to one of the operator's version, {author}"
    mathematical = {name.partition(".")[0] for name in MATHEMATICS} - {"workers"}
    faults = []
    for name in stored.unknown:
        _, block, *below = name.split(".")
        # A field in a block that determines nothing of the weights affects speed only; a new block may be anything.
        if not below or block in mathematical:
            faults.append(Fault(name, given, remedy))
    if faults:
        raise SpecError(faults)
    return stored.job


def _bytes_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise SpecError([Fault(str(path), f"cannot be read ({reason})", "give the path of a manifest")]) from error


def _map_in(text: str | bytes, source: str) -> Document:
    document = read_document(text, source)
    if not isinstance(document.tree, dict):
        raise SpecError(
            [Fault(source or "manifest", "not a map of fields", "begin with apiVersion, kind and metadata")]
        )
    return document


def _job_in(document: Document) -> BatchGrowthJob:
    try:
        job = BatchGrowthJob.model_validate(document.tree)
    except ValidationError as error:
        document.faults.extend(fault for fault in faults_of(error, document))
    if document.faults:
        raise SpecError(document.faults)
    return job


_EXAMPLE = "give path=value with the path below spec, such as batch.maximum=640"


def override(document: Document, overrides: Sequence[str]) -> None:
    """Apply each "path=value" to the document's spec, and add the faults of the overrides to the document's faults."""
    for text in overrides:
        fault = _apply(document, text)
        if fault is not None:
            document.faults.append(fault)


def _apply(document: Document, text: str) -> Fault | None:
    """Change the document as one override says; return the fault of an override that cannot be applied."""
    name = f"--set {text}"
    dotted_path, separator, written = text.partition("=")
    parts = dotted_path.split(".")
    if not separator or not all(parts):
        return Fault(name, "no path and value", _EXAMPLE)
    path: KeyPath = ("spec", *(int(part) if part.isdecimal() else part for part in parts))
    try:
        value = _value(written, path, name)
    except (yaml.YAMLError, RecursionError, SpecError):
        return Fault(name, "a value that is not YAML", _EXAMPLE)
    if not _replace(document.tree, path, value.tree):
        return Fault(name, f"no block at {dotted_path.rpartition('.')[0] or 'spec'}", _EXAMPLE)
    # The texts move with the values, so that a message quotes what was typed here and not what the file says.
    replaced = [old for old in document.written if old[: len(path)] == path]
    for old in replaced:
        del document.written[old]
    for below, kept in value.written.items():
        document.written[*path, *below] = kept
    document.faults.extend(value.faults)
    return None


def _value(written: str, path: KeyPath, name: str) -> Document:
    """Return the value as YAML reads it; for a string field the text itself, since the shell has removed the quotes."""
    node = yaml.compose(written, Loader=yaml.SafeLoader)
    value = Document(None) if node is None else build(node, name)
    if schema_at(path).get("type") == "string" and not isinstance(value.tree, str | dict | list):
        return Document(written, {(): written}, value.faults)
    return value


def _replace(tree: Any, path: KeyPath, value: Any) -> bool:
    """Set the value, and create missing blocks on the way. Return False if there is no place for it."""
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


@cache
def job_schema() -> Schema:
    """Return the structural schema of the whole manifest."""
    return structural_schema(BatchGrowthJob)


def schema_at(path: KeyPath) -> Schema:
    """Return the part of the schema that describes the value at a path of the manifest; empty if none does."""
    node = job_schema()
    for part in path:
        if isinstance(part, int):
            node = node.get("items", {})
        else:
            node = node.get("properties", {}).get(part) or node.get("additionalProperties") or {}
    return node


def faults_of(error: ValidationError, document: Document) -> Iterator[Fault]:
    """Yield one fault for each of pydantic's errors, in the order of the fields."""
    for found in error.errors(include_url=False):
        path: KeyPath = found["loc"]
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
            given = _given(path, found["input"], document)
            yield Fault(dotted(path) or "manifest", given, _remedy(path, found["input"], document))


def _given(path: KeyPath, value: Any, document: Document) -> str:
    """Return the value as the manifest spells it, shortened if long; text that looks like a password is removed."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list | tuple):
        kind = "a map" if isinstance(value, dict) else "a list"
        return f"{kind} of {len(value)}"
    if isinstance(value, BaseModel):
        return "a block"
    text = redacted(document.written.get(path, str(value)))
    if isinstance(value, str):
        text = f'"{text}"'
    return printable(text)


def _remedy(path: KeyPath, value: Any, document: Document) -> str:
    node = schema_at(path)
    text = document.written.get(path)
    if node.get("type") == "string" and text is not None and not isinstance(value, str) and value is not None:
        also = f": {wanted(node)}" if node.get("pattern") == DECIMAL else ""
        return f'put it in quotes, "{printable(text)}", so that YAML keeps it as written{also}'
    if node.get("type") == "integer" and isinstance(value, str):
        return f"give {wanted(node)}, without quotes"
    close = get_close_matches(str(value), map(str, node.get("enum", ())), n=1)
    if close:
        return f"did you mean {close[0]}? Give {wanted(node)}"
    return f"give {wanted(node)}"


def _near(name: str, parent: Schema) -> str:
    names = sorted(parent.get("properties", ()))
    folded = {known.lower(): known for known in names}
    close = get_close_matches(name.lower(), folded, n=1, cutoff=0.6)
    if close:
        return f"did you mean {folded[close[0]]}?"
    return f"give one of {', '.join(names)}, or leave it out"


def wanted(node: Schema) -> str:
    """Say what a value must be, derived from the schema that enforces it."""
    kind = node.get("type")
    if "enum" in node:
        names = ", ".join(map(str, node["enum"]))
        if len(node["enum"]) == 1:
            return names
        return f"one of {names}"
    if kind == "integer":
        return f"a whole number from {node['minimum']} to {node['maximum']}"
    if kind == "boolean":
        return "true or false"
    if kind == "array":
        return f"a list of {node.get('minItems', 0)} to {node['maxItems']} entries"
    if kind == "object" and "properties" in node:
        return "a block with " + ", ".join(node.get("required") or node["properties"])
    if kind == "object":
        return f"a map of at most {node['maxProperties']} entries"
    words = WORDS.get(node.get("pattern", ""), "a string")
    if node.get("pattern") == DECIMAL:
        return words
    return f"{words}, at most {node['maxLength']} characters"
