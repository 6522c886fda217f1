"""Reads a file into a BatchGrowthJob, or reports all its faults at once.

A user's file may have no unknown field. What an API server or an operator stored may: its version can be another one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from batchgrowth.documents import LARGEST_BYTES, Document, dotted, read_document
from batchgrowth.documents import Path as Keys
from batchgrowth.errors import Fault, SpecError
from batchgrowth.faults import faults_of
from batchgrowth.overrides import override
from batchgrowth.spec import MATHEMATICS, BatchGrowthJob

VERSION = version("batchgrowth")
VERSION_ANNOTATION = "batchgrowth.dev/version"
"""Annotation with the version of the operator that wrote a job document."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A job from an API server or an operator, and the paths of its fields that this version does not know.

    `short` is its spec as plain data, with these fields and without values that are defaults: a CRD writes the defaults
    of its new fields into every stored job, and a trainer of an older version can read what is left.
    """

    job: BatchGrowthJob
    unknown: tuple[str, ...]
    short: dict[str, Any]


def load_manifest(path: Path, overrides: Sequence[str] = ()) -> BatchGrowthJob:
    """The job in a file. Raises SpecError if the file cannot be read or has faults."""
    return read_manifest(_bytes_of(path), overrides, str(path))


def read_manifest(text: str | bytes, overrides: Sequence[str] = (), source: str = "") -> BatchGrowthJob:
    """The job that the YAML in `text` describes, after the overrides: "path=value" with the path below spec.

    Raises SpecError with every fault of the YAML, the overrides and the fields. A rule about several fields is checked
    only if each of them is valid by itself. `source` is the file's name in messages.
    """
    document = _map_in(text, source)
    override(document, overrides)
    return _job_in(document)


def read_stored(text: str | bytes, source: str = "") -> Stored:
    """The job that was stored. Raises SpecError for every fault but unknown fields."""
    document = _map_in(text, source)
    unknown = _unknown_in(document.tree)
    kept = [(keys, _node_at(document.tree, keys[:-1]).pop(keys[-1])) for keys in unknown]
    job = _job_in(document)
    short: dict[str, Any] = job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True, exclude_none=True)
    for keys, value in kept:
        if keys[0] == "spec" and all(isinstance(key, str) for key in keys):
            _put(short, keys[1:], value)
    return Stored(job, tuple(map(dotted, unknown)), short)


def load_stored(path: Path) -> BatchGrowthJob:
    """The job in a file that an operator wrote, without unknown fields that only affect speed.

    Raises SpecError if the file cannot be read or has faults, or an unknown field that the weights may depend on.
    """
    stored = read_stored(_bytes_of(path), str(path))
    author = stored.job.metadata.annotations.get(VERSION_ANNOTATION, "an older version")
    faults = [
        Fault(
            name, f"not known to this trainer, {VERSION}", f"set spec.image to one of the operator's version, {author}"
        )
        for name in stored.unknown
        if not _affects_speed_only(name)
    ]
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


def _unknown_in(tree: dict[str, Any]) -> list[Keys]:
    """The keys that lead to each unknown field."""
    try:
        BatchGrowthJob.model_validate(tree)
    except ValidationError as error:
        return [found["loc"] for found in error.errors(include_url=False) if found["type"] == "extra_forbidden"]
    return []


def _put(tree: dict[str, Any], keys: Keys, value: Any) -> None:
    for key in keys[:-1]:
        tree = tree.setdefault(str(key), {})
    tree[str(keys[-1])] = value


def _node_at(tree: Any, keys: Sequence[str | int]) -> Any:
    for key in keys:
        tree = tree[key]
    return tree


def _affects_speed_only(path: str) -> bool:
    """Whether an unknown field lies in a block whose other fields do not determine the weights."""
    _, block, *below = path.split(".")
    mathematical = {name.partition(".")[0] for name in MATHEMATICS} - {"workers"}
    return bool(below) and block not in mathematical


def _job_in(document: Document) -> BatchGrowthJob:
    try:
        job = BatchGrowthJob.model_validate(document.tree)
    except ValidationError as error:
        document.faults.extend(fault for fault in faults_of(error, document))
    if document.faults:
        raise SpecError(document.faults)
    return job
