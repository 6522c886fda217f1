"""The result of a finished run, summary.json: its keys, reading it, and the facts that a person wants to see.

docs/summary.md is generated from the descriptions here.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from batchgrowth.errors import CheckpointError
from batchgrowth.manifest.files import read_regular
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from batchgrowth_trainer.record.storage import storage_error

SUMMARY_FILE = "summary.json"


class _SummaryPart(BaseModel):
    """A part of the summary. A later version may add keys, which this one keeps and does not check."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="allow")


class Summary(_SummaryPart):
    """The keys of summary.json. A number that is not finite is null, because JSON has no NaN."""

    name: str = Field(description="The job's name.")
    exchange: str = Field(description="The type of the exchange.")
    updates: int = Field(description="Updates done.")
    examples: int = Field(description="Training examples used: those of the training set, times the epochs.")
    epochs: int = Field(description="Epochs done; fewer than `spec.epochs` if `evaluation.stopEarly` ended the run.")
    seconds: float = Field(description="Seconds of training, with the time before each resume.")
    final_loss: float | None = Field(
        description="Mean training loss per example over the last epoch, while the weights changed; null if it is "
        "not finite or rows of that epoch are missing.",
    )
    test_loss: float | None = Field(
        None, description="Mean loss of the last evaluation, on the first test set; null without a test set."
    )
    metrics: dict[str, float | None] = Field(
        default_factory=dict,
        description="Every metric of the last evaluation by name; those of a further test set, and its loss, are "
        "`NAME.METRIC` and `NAME.loss`.",
    )
    accuracy: float | None = Field(None, description="The metric `accuracy`, if there is one, else null.")
    weights_sha256: str = Field(
        alias="weightsSha256",
        description="SHA-256 of the weights in `model.safetensors`: of each tensor's name, dtype, shape and bytes.",
    )
    resizes: list[dict[str, Any]] = Field(
        default_factory=list,
        description="Each change of the number of workers: `update`, `from`, `to`, `pauseSeconds`.",
    )
    recoveries: int = Field(0, description="How often a worker was lost and training went on.")
    arithmetic: dict[str, Any] | None = Field(
        None, description="How the processes add, and which differed: [arithmetic](arithmetic.md)."
    )
    best: dict[str, Any] | None = Field(
        None,
        description="With `evaluation.keepBest`: `metric`, `mode`, `value`, `update`, `epoch` and `weightsSha256` of "
        "the best evaluation; null if no value was finite.",
    )
    stopped_early: dict[str, Any] | None = Field(
        None,
        description="With `evaluation.stopEarly`: the same of the best evaluation, and `afterEpoch`; null if training "
        "reached its last epoch.",
    )
    decisions: list[dict[str, Any]] | None = Field(
        None,
        description="With a measured growth: each `update` after which the batch changed, the `batchSize` that was "
        "wanted from then on, and the measured `value`.",
    )
    missing_updates: list[dict[str, int]] | None = Field(
        None, description="Updates that `history.csv` lacks, because a crash lost their rows: `from` and `to`."
    )


def read_summary(directory: Path, *, whole: bool = True) -> dict[str, Any] | None:
    """Return the content of summary.json, or None if it is missing.

    Raises CheckpointError if it is damaged or unreadable; if `whole`, also if a key is missing or has an invalid value.
    """
    path = directory / SUMMARY_FILE
    remedy = "run the job again with --resume, which writes it again, or delete it"
    try:
        summary = json.loads(read_regular(path))
        if not isinstance(summary, dict):
            raise CheckpointError(f"{path}: a {type(summary).__name__}, not an object; {remedy}")
        if whole:
            Summary.model_validate(summary)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(f"{path} cannot be read ({error.strerror}); try again", error) from error
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise CheckpointError(f"{path}: {field}: {first['msg'].lower()}; {remedy}") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON ({error}); {remedy}") from error
    return summary


def facts_of(summary: Mapping[str, Any], metric: str = "") -> list[tuple[str, str]]:
    """Return the names and values of a summary that a person wants to see, in order.

    Losses and metrics have four significant digits; `metric` is put in front of each metric's name.
    """
    facts = [("updates", f"{summary['updates']:,}"), ("seconds", f"{summary['seconds']:.1f}")]
    found = {f"{metric}{name}": value for name, value in _metrics(summary).items()}
    facts += _numbers({"test loss": summary.get("testLoss"), **found})
    facts += _numbers({"training loss": summary["finalLoss"]})
    if early := summary.get("stoppedEarly"):
        facts.append(("ended early", f"after epoch {early['afterEpoch']}"))
    if best := summary.get("best"):
        facts.append((f"best {best['metric']}", f"{significant(best['value'])} of epoch {best['epoch']}"))
    return facts


def _metrics(summary: Mapping[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = dict(summary.get("metrics") or {})
    if summary.get("accuracy") is not None:
        metrics.setdefault("accuracy", summary["accuracy"])
    return metrics


def _numbers(values: Mapping[str, float | None]) -> Iterable[tuple[str, str]]:
    return [(name, significant(value)) for name, value in values.items() if value is not None]


def significant(value: float) -> str:
    """Return the number with four significant digits, and without an exponent unless it is tiny or huge."""
    if not math.isfinite(value) or value == 0:
        return f"{value:g}"
    digits = max(0, 3 - math.floor(math.log10(abs(value))))
    if digits > 8 or abs(value) >= 1e9:
        return f"{value:.3e}"
    return f"{value:.{digits}f}"
