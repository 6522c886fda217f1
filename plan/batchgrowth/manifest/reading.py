"""Reads a file, with `--set` overrides, into a BatchGrowthJob, or reports all its faults at once.

A user's file may have no unknown field. A job that an API server or an operator stored may have some, since they can
be of another version.

An override or a keyword that chooses another type also removes the block of the type before, and says so:
`--set optimizer.type=Adam` turns `optimizer: {type: SGD, sgd: {…}}` into Adam with its defaults, with which `sgd` would
be refused.
"""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from batchgrowth.choices import CHOICES, GROWTH
from batchgrowth.errors import Fault, SpecError
from batchgrowth.manifest.documents import (
    LARGEST_BYTES,
    Document,
    KeyPath,
    ManifestLoader,
    build,
    dotted,
    printable,
    read_document,
    schema_at,
)
from batchgrowth.manifest.faults import faults_of, validated
from batchgrowth.manifest.files import open_given
from batchgrowth.registry import Registry
from batchgrowth.spec import MATHEMATICS, BatchGrowthJob

Say = Callable[[str], None]
"""A function that receives a line for the user."""


def nobody(line: str) -> None:
    """Drop a line that nobody asked for."""


def replace_blocks(tree: Any, chosen_at: KeyPath, typed: Collection[KeyPath], say: Say) -> None:
    """Remove the blocks that do not go with the choice at `chosen_at`, if that path is a choice.

    `typed` are the paths that were given together with the choice: contradictions among them are the user's, and stay.
    """
    registry = _REGISTRIES.get(chosen_at)
    if registry is None:
        return
    *parents, chooser = chosen_at
    block: Any = tree
    for part in parents:
        block = block[part]
    chosen = block[chooser]
    if not isinstance(chosen, str) or chosen not in registry:
        return  # the message about the name comes later
    for name in _others(registry, chosen):
        path = (*parents, name)
        if any(given[: len(path)] == path for given in typed):
            continue
        if block.pop(name, None):
            left_out = dotted(path).removeprefix("spec.")
            say(f"note: {left_out} of the manifest is left out: {registry.field_path} is now {chosen}")


def _others(registry: Registry[Any], chosen: str) -> list[str]:
    """Return the blocks that only other entries have."""
    own = registry[chosen].block_name
    names = [entry.block_name for entry in registry.values() if entry.block is not None and entry.block_name != own]
    if registry is GROWTH and not registry[chosen].quantity:
        names.append("looks")
    return names


_REGISTRIES: dict[KeyPath, Registry[Any]] = {("spec", *each.field_path.split(".")): each for each in CHOICES}
"""The choices by the path of the field that chooses."""


def choices_in(given: Any) -> list[KeyPath]:
    """Return the paths of the choosing fields that plain data gives."""
    return [path for path in _REGISTRIES if _has(given, path)]


def _has(tree: Any, path: KeyPath) -> bool:
    for part in path:
        if not isinstance(tree, dict) or part not in tree:
            return False
        tree = tree[part]
    return True


def leaves(given: Any, path: KeyPath = ()) -> list[KeyPath]:
    """Return the path of every value in maps within maps."""
    if not isinstance(given, dict):
        return [path]
    return [leaf for name, each in given.items() for leaf in leaves(each, (*path, name))]


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


STANDARD_INPUT = Path("-")
"""The path that stands for standard input."""


def load_manifest(path: Path, overrides: Sequence[str] = (), say: Say = nobody) -> BatchGrowthJob:
    """Return the job in a file, or on standard input if the path is `-`.

    Raises SpecError if it cannot be read or has faults.
    """
    if path == STANDARD_INPUT:
        # One byte more than a document may have is enough to refuse a larger one.
        return read_manifest(sys.stdin.buffer.read(LARGEST_BYTES + 1), overrides, "standard input", say)
    return read_manifest(_bytes_of(path), overrides, str(path), say)


def read_manifest(
    text: str | bytes, overrides: Sequence[str] = (), source: str = "", say: Say = nobody
) -> BatchGrowthJob:
    """Return the job that the YAML in `text` describes, after the overrides: "path=value" with the path below spec.

    `source` is the file's name in messages. `say` receives a line for each block that an override's choice of another
    type replaces. Raises SpecError with every fault of the YAML, the overrides and the fields. A rule about several
    fields is checked only if each of them is valid by itself.
    """
    document = _map_in(text, source)
    override(document, overrides, say)
    return _job_in(document)


def read_stored(text: str | bytes, source: str = "") -> StoredJob:
    """Return the job that was stored. Raises SpecError for every fault but unknown fields."""
    document = _map_in(text, source)
    paths: list[KeyPath] = []
    try:
        validated(document.tree)
    except ValidationError as error:
        paths = [found["loc"] for found in error.errors(include_url=False) if found["type"] == "extra_forbidden"]
    # Unknown fields are taken out of the document, so that the job can be read and all its other faults still count.
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


_NOT_IN_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Characters of JSON that YAML refuses, or takes for the end of a line."""


def stored_text(job: Mapping[str, Any]) -> str:
    """Return a job as JSON that `read_stored` and `load_stored` read; the same text for equal jobs."""
    text = json.dumps(job, ensure_ascii=False, sort_keys=True)
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


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
        with open_given(path) as file:
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
        job = validated(document.tree)
    except ValidationError as error:
        known = {fault.path for fault in document.faults}  # an unreadable value needs no second fault
        document.faults.extend(fault for fault in faults_of(error, document) if fault.path not in known)
    document.faults.extend(_endless(document))
    if document.faults:  # there are some if there is no job
        raise SpecError(document.faults)
    return job


def _endless(document: Document) -> Iterator[Fault]:
    """Yield a fault for each infinity or NaN in a part of a pod, where no schema refuses it: JSON has neither."""
    parts: list[tuple[KeyPath, Any]] = [((), document.tree)]
    while parts:
        path, value = parts.pop()
        if isinstance(value, dict):
            parts.extend(((*path, name), each) for name, each in value.items())
        elif isinstance(value, list):
            parts.extend(((*path, index), each) for index, each in enumerate(value))
        elif isinstance(value, float) and not isfinite(value) and not schema_at(path):
            yield Fault(dotted(path), printable(document.written[path]), "give a finite number, or put it in quotes")


_EXAMPLE = "give path=value with the path below spec, such as batch.maximum=640"
_INDEX = re.compile(r"[0-9]{1,6}")
"""A part of a path that counts the entries of a list."""


def override(document: Document, overrides: Sequence[str], say: Say = nobody) -> None:
    """Apply each "path=value" to the document's spec, and add the faults of the overrides to the document's faults."""
    typed: list[KeyPath] = []
    for text in overrides:
        fault = _apply(document, text, typed)
        if fault is not None:
            document.faults.append(fault)
        else:
            replace_blocks(document.tree, typed[-1], typed, say)


def _apply(document: Document, text: str, typed: list[KeyPath]) -> Fault | None:
    """Change the document as one override says, and add its path to `typed`; return the fault of an override that
    cannot be applied.
    """
    name = f"--set {text}"
    dotted_path, separator, written = text.partition("=")
    parts = dotted_path.split(".")
    if not separator or not all(parts):
        return Fault(name, "no path and value", _EXAMPLE)
    path: KeyPath = ("spec", *(int(part) if _INDEX.fullmatch(part) else part for part in parts))
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
    typed.append(path)
    return None


def _value(written: str, path: KeyPath, name: str) -> Document:
    """Return the value as YAML reads it; for a string field the text itself, without quotes around the whole of it.

    Raises YAMLError or RecursionError if the text is not YAML and the field is no string, or if the text has characters
    that YAML forbids; SpecError if it is too large or too deep.
    """
    is_text = schema_at(path).get("type") == "string"
    try:
        node = yaml.compose(written, Loader=ManifestLoader)
    except (yaml.MarkedYAMLError, RecursionError):
        if not is_text:
            raise
        node = None
    # Only quotes around the whole text are YAML's. In `"a" # b` they belong to the text, and so does the rest.
    is_quoted = (
        isinstance(node, yaml.ScalarNode)
        and node.style in ("'", '"')
        and (node.start_mark.index, node.end_mark.index) == (0, len(written))
    )
    if is_text and not is_quoted:
        return Document(written, {(): written})
    return Document(None) if node is None else build(node, name)


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
