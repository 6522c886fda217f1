"""Reads back the files of a run: its manifest, the plan that was decided, its history."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgrowth.errors import CheckpointError, DataError, Fault, SpecError
from batchgrowth.growth_decisions import Course
from batchgrowth.manifest.documents import as_yaml
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth.plan import BatchDecision, make_plan
from batchgrowth.spec import BatchGrowthJob, differences, mathematics

from batchgrowth_trainer.record.history import (
    EVALUATION_HEADER,
    EVALUATIONS_FILE,
    GROWTH_FILE,
    HISTORY_FILE,
    HISTORY_HEADER,
    LEAST_HEADER,
    EvaluationRow,
    GrowthRow,
    HistoryRow,
    whole_lines,
)
from batchgrowth_trainer.record.storage import CHECKPOINTS
from batchgrowth_trainer.record.summary import read_summary

JOB_FILE = "job.yaml"


def manifest_text(job: BatchGrowthJob) -> str:
    """Return the job as YAML, with every default; its metadata is reduced to the name."""
    return as_yaml(_document(job))


def declared_manifest(directory: Path) -> str:
    """Return a manifest, as YAML, that repeats the run in `directory` with the same weights.

    The decisions of a measured growth become milestones; a declared growth stays unchanged.
    Raises DataError if there is no run, SpecError if its manifest is damaged.
    """
    job = recorded_job(directory)
    document = _document(job)
    if job.spec.batch.growth.entry.quantity:
        growth: dict[str, Any] = {"type": "Constant"}
        if decisions := decisions_of(directory, job):
            steps = [{"update": decision.update, "batchSize": decision.wanted} for decision in decisions]
            growth = {"type": "Milestones", "milestones": {"steps": steps}}
        document["spec"]["batch"]["growth"] = growth
    text = as_yaml(document)
    # Only for its errors: a manifest that cannot be read back must not be handed out.
    read_manifest(text, source=str(_job_file(directory)))
    return text


def recorded_job(directory: Path) -> BatchGrowthJob:
    """Return the job of the run in `directory`.

    Raises DataError if there is no run, SpecError if its manifest is damaged.
    """
    return load_manifest(_job_file(directory))


def recorded_course(directory: Path, manifest: Path | None = None, overrides: Sequence[str] = ()) -> Course:
    """Return the course that the run in `directory` took.

    The settings of `manifest` and the overrides replace those of the run if they determine the same weights.
    Raises DataError if there is no run, SpecError if the settings have faults or are those of another job.
    """
    path = _job_file(directory)
    recorded = load_manifest(path)
    asked = load_manifest(manifest or path, overrides)
    changes = differences(mathematics(recorded.spec), mathematics(asked.spec))
    if changes:
        fault = Fault(str(manifest or "--set"), f"another job than that of {directory} ({changes})", "undo the change")
        raise SpecError([fault])
    return Course(asked.spec, decisions_of(directory, recorded), _early_end(directory, recorded))


def _early_end(directory: Path, job: BatchGrowthJob) -> int | None:
    """Return the epoch after which stopEarly ended the run, from the summary, else from the newest checkpoint.

    None if it has not.
    """
    if job.spec.evaluation.stop_early is None:
        return None
    # Here for the reason given in `_kept_decisions`.
    from batchgrowth_trainer.record.checkpoint import newest_whole
    from batchgrowth_trainer.record.decided import early_end_in

    summary = None
    with suppress(CheckpointError):  # as for the decisions
        summary = read_summary(directory)
    if summary is not None:
        stopped = summary.get("stoppedEarly")
        return stopped["afterEpoch"] if stopped else None
    saved = newest_whole(directory / CHECKPOINTS)
    return None if saved is None else early_end_in(job.spec, saved.snapshot.tensors)


def decisions_of(directory: Path, job: BatchGrowthJob) -> list[BatchDecision]:
    """Return a run's decisions by which the wanted batch size changed; none if its growth is declared.

    They come from the summary of a finished run, or else from the newest checkpoint; growth.csv adds later ones.
    Raises DataError if the history shows that one is missing.
    """
    if not job.spec.batch.growth.entry.quantity:
        return []
    until, decisions = _kept_decisions(directory)
    wanted = decisions[-1].wanted if decisions else job.spec.batch.initial
    for look in read_looks(directory):
        if look.update > until and look.wanted != wanted:
            wanted = look.wanted
            decisions.append(BatchDecision(look.update, wanted, look.value))
    _check_decisions(directory, job, decisions)
    return decisions


def _kept_decisions(directory: Path) -> tuple[int, list[BatchDecision]]:
    """Return the decisions in the summary, else in the newest checkpoint, and the update until which they count."""
    # Here, because checkpoints need torch, whose import takes longer than reading a run with a declared growth.
    from batchgrowth_trainer.record.checkpoint import newest_whole
    from batchgrowth_trainer.record.decided import decisions_in

    summary = None
    with suppress(CheckpointError):  # a damaged summary says nothing, and the checkpoint says the same
        summary = read_summary(directory)
    if summary is not None and summary.get("decisions") is not None:
        rows = summary["decisions"]
        values = (math.nan if row["value"] is None else row["value"] for row in rows)
        kept = [BatchDecision(r["update"], r["batchSize"], value) for r, value in zip(rows, values, strict=True)]
        return summary["updates"], kept
    saved = newest_whole(directory / CHECKPOINTS)
    if saved is None:
        return 0, []
    return saved.snapshot.position.update, list(decisions_in(saved.snapshot.tensors))


def _check_decisions(directory: Path, job: BatchGrowthJob, decisions: Sequence[BatchDecision]) -> None:
    """Raise DataError if the history has a batch that does not follow from these decisions."""
    plan = make_plan(job.spec, decisions)
    for row in read_history(directory):
        expected = plan.stage_at(row.update - 1).batch_size
        if row.batch_size != expected:
            raise DataError(
                f"{directory}: update {row.update:,} had a batch of {row.batch_size:,}, and the decisions that are "
                f"left make {expected:,}: a row of {GROWTH_FILE} is missing. Copy the whole folder of the run again, "
                f"with {GROWTH_FILE} and its {CHECKPOINTS}"
            )


def read_looks(directory: Path) -> tuple[GrowthRow, ...]:
    """Return the looks of a run, from growth.csv without a torn last line; none if there is no such file."""
    path = directory / GROWTH_FILE
    if not path.exists():
        return ()
    rows = (line.split(",") for line in whole_lines(path)[1:])
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
    """Return the name of the quantity that the run's growth measures; "" if the growth is declared or job.yaml is
    missing.
    """
    path = directory / JOB_FILE
    if not path.is_file():
        return ""
    return str(load_manifest(path).spec.batch.growth.entry.quantity)


def _document(job: BatchGrowthJob) -> dict[str, Any]:
    document: dict[str, Any] = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    return document | {"metadata": {"name": job.metadata.name}}


_COUNTS = [HISTORY_HEADER.index(name) for name in ("update", "stage", "batchSize", "workers")]


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A run's rows, one per update, per evaluation and per look, and its summary.

    `summary` is None until the run is finished. `quantity` names what the looks measured; "" if growth is declared.
    """

    directory: Path
    history: tuple[HistoryRow, ...]
    evaluations: tuple[EvaluationRow, ...]
    summary: Mapping[str, Any] | None
    looks: tuple[GrowthRow, ...] = ()
    quantity: str = ""


def read_run(directory: Path) -> RecordedRun:
    """Return the run in `directory`, without torn last lines.

    Raises DataError if there is no history, CheckpointError if summary.json is damaged, SpecError if job.yaml is.
    """
    path = directory / HISTORY_FILE
    if not path.is_file():
        raise DataError(f"{directory}: there is no {HISTORY_FILE} here; name the --output-dir of a run")
    history = read_history(directory)
    if not history:
        raise DataError(f"{path}: no update is recorded yet; wait for the run's first updates")
    return RecordedRun(
        directory,
        history,
        _read_evaluations(directory / EVALUATIONS_FILE),
        read_summary(directory, whole=False),
        read_looks(directory),
        measured_quantity(directory),
    )


def read_history(directory: Path) -> tuple[HistoryRow, ...]:
    """Return the rows of history.csv, without a torn last line; none if there is no such file.

    Raises DataError if it has other columns.
    """
    path = directory / HISTORY_FILE
    if not path.is_file():
        return ()
    header, *lines = whole_lines(path) or [""]
    names = tuple(header.rstrip("\n").split(","))
    if lines and names[: len(LEAST_HEADER)] != LEAST_HEADER:
        raise DataError(f"{path}: columns are {header.strip()!r}; expected {','.join(HISTORY_HEADER)}")
    known = [names.index(name) for name in HISTORY_HEADER if name in names]
    rows = []
    for line in lines:
        texts = line.rstrip("\n").split(",")
        cells: list[Any] = [float(texts[column]) if texts[column] else None for column in known]
        for column in _COUNTS:
            cells[column] = int(cells[column])
        rows.append(HistoryRow(*cells))
    return tuple(rows)


def _read_evaluations(path: Path) -> tuple[EvaluationRow, ...]:
    if not path.exists():
        return ()
    header, *lines = whole_lines(path) or [""]
    metrics = header.rstrip("\n").split(",")[len(EVALUATION_HEADER) :]
    rows = []
    for line in lines:
        update, *cells = line.rstrip("\n").split(",")
        epoch, seconds, loss, *values = (float(cell or "nan") for cell in cells)
        rows.append(EvaluationRow(int(update), epoch, seconds, loss, dict(zip(metrics, values, strict=True))))
    return tuple(rows)
