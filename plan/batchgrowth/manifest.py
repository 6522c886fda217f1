"""Reads a file into a BatchGrowthJob, or reports all its faults at once."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from batchgrowth.documents import LARGEST_BYTES, read_document
from batchgrowth.errors import Fault, SpecError
from batchgrowth.faults import faults_of
from batchgrowth.overrides import override
from batchgrowth.spec import BatchGrowthJob


def load_manifest(path: Path, overrides: Sequence[str] = ()) -> BatchGrowthJob:
    """The job in a file. Raises SpecError if the file cannot be read or has faults."""
    try:
        with path.open("rb") as file:
            text = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        reason = (error.strerror or "unreadable").lower()
        raise SpecError([Fault(str(path), f"cannot be read ({reason})", "give the path of a manifest")]) from error
    return read_manifest(text, overrides, str(path))


def read_manifest(text: str | bytes, overrides: Sequence[str] = (), source: str = "") -> BatchGrowthJob:
    """The job that the YAML in `text` describes, after the overrides: "path=value" with the path below spec.

    Raises SpecError with every fault of the YAML, the overrides and the fields. A rule about several fields is checked
    only if each of them is valid by itself. `source` is the file's name in messages.
    """
    document = read_document(text, source)
    if not isinstance(document.tree, dict):
        raise SpecError(
            [Fault(source or "manifest", "not a map of fields", "begin with apiVersion, kind and metadata")]
        )
    override(document, overrides)
    try:
        job = BatchGrowthJob.model_validate(document.tree)
    except ValidationError as error:
        document.faults.extend(fault for fault in faults_of(error, document))
    if document.faults:
        raise SpecError(document.faults)
    return job
