"""The manifest of a run, and the declared manifest and the plan that follow from what a measured growth decided."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from batchgrowth.course import Course
from batchgrowth.decisions import Decision
from batchgrowth.errors import DataError, Fault, SpecError
from batchgrowth.manifest import load_manifest, read_manifest
from batchgrowth.spec import BatchGrowthJob, differences, mathematics

from batchgrowth_trainer.record.history import GROWTH_FILE, GrowthRow
from batchgrowth_trainer.record.rows import whole_lines

JOB_FILE = "job.yaml"


def manifest_text(job: BatchGrowthJob) -> str:
    """The job as YAML, with every default filled in; of its metadata only the name."""
    return _text(_document(job))


def declared_manifest(directory: Path) -> str:
    """The manifest, as YAML, that repeats the run in `directory` with the same weights: its decisions are milestones.

    The run's own manifest if its growth is declared. Raises DataError if there is no run, SpecError if its manifest is
    damaged.
    """
    job = recorded_job(directory)
    document = _document(job)
    if job.spec.batch.growth.entry.quantity:
        document["spec"]["batch"]["growth"] = _declared(decisions_of(directory, job))
    text = _text(document)
    read_manifest(text, source=str(_job_file(directory)))
    return text


def recorded_job(directory: Path) -> BatchGrowthJob:
    """The job of the run in `directory`. Raises DataError if there is no run, SpecError if its manifest is damaged."""
    return load_manifest(_job_file(directory))


def recorded_course(directory: Path, manifest: Path | None = None, overrides: Sequence[str] = ()) -> Course:
    """The course that the run in `directory` took, with the settings of a manifest and the overrides in place of its
    own if they determine the same weights.

    Raises DataError if there is no run, SpecError if the settings have faults or are those of another job.
    """
    path = _job_file(directory)
    recorded, asked = load_manifest(path), load_manifest(manifest or path, overrides)
    changes = differences(mathematics(recorded.spec), mathematics(asked.spec))
    if changes:
        fault = Fault(str(manifest or "--set"), f"another job than that of {directory} ({changes})", "undo the change")
        raise SpecError([fault])
    return Course(asked.spec, decisions_of(directory, recorded))


def decisions_of(directory: Path, job: BatchGrowthJob) -> list[Decision]:
    """The decisions of a run that changed the wanted batch size."""
    wanted, changes = job.spec.batch.initial, []
    for look in read_looks(directory):
        if look.wanted != wanted:
            wanted = look.wanted
            changes.append(Decision(look.update, wanted, look.value))
    return changes


def read_looks(directory: Path) -> tuple[GrowthRow, ...]:
    """The looks of a run, from its growth.csv without a torn last line; none if there is no such file."""
    path = directory / GROWTH_FILE
    rows = (line.split(",") for line in (whole_lines(path)[1:] if path.exists() else ()))
    return tuple(
        GrowthRow(int(update), float(epoch), float(value), int(wanted), int(batch))
        for update, epoch, value, wanted, batch in rows
    )


def _job_file(directory: Path) -> Path:
    path = directory / JOB_FILE
    if not path.is_file():
        raise DataError(f"{directory}: there is no {JOB_FILE} here; name the --output-dir of a run")
    return path


def measured_quantity(directory: Path) -> str:
    """What the growth of the run in `directory` measures; empty if it is declared, or if the run has no job.yaml."""
    path = directory / JOB_FILE
    return str(load_manifest(path).spec.batch.growth.entry.quantity) if path.is_file() else ""


def _declared(decisions: list[Decision]) -> dict[str, Any]:
    if not decisions:
        return {"type": "Constant"}
    steps = [{"update": decision.update, "batchSize": decision.wanted} for decision in decisions]
    return {"type": "Milestones", "milestones": {"steps": steps}}


def _document(job: BatchGrowthJob) -> dict[str, Any]:
    document: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    return document | {"metadata": {"name": job.metadata.name}}


def _text(document: dict[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
