"""The words both sides use: progress, status, names, metrics, and the public names of the package."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any, get_args

import batchgrowth
import pytest
from batchgrowth import JobStatus, Progress, names
from batchgrowth.contract import status
from batchgrowth.contract.metrics import BY_NAME, METRICS, ExchangeFigures
from batchgrowth.contract.progress import WentBack
from batchgrowth.contract.status import CONDITIONS, REASONS
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.looks import LARGEST_BATCH
from batchgrowth.plan import BatchDecision
from batchgrowth.schema import structural_schema
from batchgrowth.spec.job import LONGEST_JOB_NAME
from pydantic import BaseModel

ROOT = Path(__file__).parents[3]
PROGRESS = Progress(
    update=10, updates=40, epoch=0.5, epochs=2, stage=1, batch_size=64, learning_rate=0.1, workers=2, loss=1.5,
    metrics={"accuracy": 0.9}, seconds_per_update=0.01, eta_seconds=0.3, checkpoint_update=8,
    crews={"1": 2}, pauses={"1": 0.07}, weights_sha256="ab" * 32,
    decisions=(BatchDecision(4, 64, 61.5), BatchDecision(8, 128, -2.0)),
    forecast=ExpectedBatch(update=12, batch_size=256, workers=4, due_seconds=0.02),
    differing={"w-1": "AVX2 rather than AVX512"},
    went_back=WentBack(times=1, workers=("w-1",), cause="worker w-1 differs", reached=12, update=8),
    exchanged=ExchangeFigures(
        bytes_sent=10**12, replica_distance=0.5, compression_error=0.004, largest_staleness=3, mean_staleness=1.5,
        backups=5, backups_first=4,
    ),
)  # fmt: skip


REFUSED_DECISIONS = [
    ("8", r"progress\.decisions\.1: 8; give a valid array"),
    ("[]", r"progress\.decisions\.1\.0: missing; give every field of a report"),
    ("[8,128]", r"progress\.decisions\.1\.2: missing; give every field of a report"),
    ("[8,128,1,1]", r"progress\.decisions\.1: \[8, 128, 1, 1\]; Tuple should have at most 3 items"),
    ('"abc"', r"progress\.decisions\.1: 'abc'; give a valid array"),
    ("[null,128,1]", r"progress\.decisions\.1\.0: None; give a valid integer"),
    ("[8,128.0,1]", r"progress\.decisions\.1\.1: 128\.0; give a valid integer"),
    ("[true,128,1]", r"progress\.decisions\.1\.0: True; give a valid integer"),
    ('[8,128,"1"]', r"progress\.decisions\.1\.2: '1'; give a valid number"),
    ("[8,128,Infinity]", r"progress\.decisions\.1\.2: inf; give a finite number"),
]
"""Rows of decisions that are no decision, and how they are refused."""


def test_public_names_are_sorted_and_there() -> None:
    assert sorted(batchgrowth.__all__, key=lambda name: (name.islower(), name)) == batchgrowth.__all__
    assert all(hasattr(batchgrowth, name) for name in batchgrowth.__all__)


def test_progress_survives_the_journey() -> None:
    assert Progress.from_json(PROGRESS.to_json()) == PROGRESS
    assert 0.25 == PROGRESS.fraction
    assert "\n" not in PROGRESS.to_json()


def test_a_report_after_training_went_back_is_the_newer_one() -> None:
    before = dataclasses.replace(PROGRESS, went_back=None, update=39)
    restarted = dataclasses.replace(before, start=1, update=0)
    assert sorted([restarted, PROGRESS, before], key=lambda report: report.age) == [before, PROGRESS, restarted]


def test_progress_of_nothing_is_done() -> None:
    empty = Progress(update=0, updates=0, epoch=0, epochs=0, stage=0, batch_size=1, learning_rate=0.1, workers=1)
    assert empty.fraction == 1


def test_progress_has_no_nan() -> None:
    bad = Progress(
        update=1, updates=2, epoch=1, epochs=2, stage=0, batch_size=1, learning_rate=0.1, workers=1,
        loss=math.nan, metrics={"a": math.inf, "b": 1},
    )  # fmt: skip
    read = Progress.from_json(bad.to_json())
    assert (read.loss, read.metrics) == (None, {"b": 1})


@pytest.mark.parametrize("value", [math.inf, math.nan, -math.inf])
def test_a_value_too_large_to_measure_is_null(value: float) -> None:
    """JSON has no infinity; without a number the value is infinite again."""
    report = dataclasses.replace(PROGRESS, decisions=(BatchDecision(4, 64, value),))
    assert json.loads(report.to_json())["decisions"] == [[4, 64, None]]
    assert (BatchDecision(4, 64, math.inf),) == Progress.from_json(report.to_json()).decisions


def test_a_report_of_an_earlier_version_has_no_decisions_and_no_forecast() -> None:
    later = {"decisions", "forecast"}
    text = json.dumps({key: value for key, value in json.loads(PROGRESS.to_json()).items() if key not in later})
    read = Progress.from_json(text)
    assert (read.decisions, read.forecast) == ((), None)


@pytest.mark.parametrize(
    "forecast",
    [
        "soon",
        [12, 256, 4, 0.02],
        {},
        {"update": 12, "batch_size": 256},
        *({"update": update} for update in (10, 40, -1, 10**30, 12.5, math.nan, True, "12", None)),
        *({"batch_size": size} for size in (0, -256, LARGEST_BATCH + 1, math.inf, "256")),
        *({"workers": workers} for workers in (0, -4, 10**6, math.nan)),
        *({"due_seconds": seconds} for seconds in (-1, 1e300, math.nan, math.inf, -math.inf, "0.02")),
    ],
)
def test_an_impossible_forecast_is_ignored(forecast: Any) -> None:
    """And the rest of the report is read, since a user's code may have written it."""
    given = json.loads(PROGRESS.to_json())
    changed = given["forecast"] | forecast if isinstance(forecast, dict) and len(forecast) == 1 else forecast
    assert dataclasses.replace(PROGRESS, forecast=None) == Progress.from_json(json.dumps(given | {"forecast": changed}))


@pytest.mark.parametrize(
    "exchanged",
    [
        "much",
        [10**12],
        *({"bytes_sent": count} for count in (-1, 10**30, 1.5, math.nan, None)),
        *({"replica_distance": distance} for distance in (-0.5, 1e300, math.inf, "0.5", True)),
        *({"largest_staleness": updates} for updates in (-1, 0.5)),
        *({"backups_first": count} for count in (-1, 6)),
    ],
)
def test_an_impossible_exchange_is_ignored(exchanged: Any) -> None:
    given = json.loads(PROGRESS.to_json())
    changed = given["exchanged"] | exchanged if isinstance(exchanged, dict) else exchanged
    read = Progress.from_json(json.dumps(given | {"exchanged": changed}))
    assert dataclasses.replace(PROGRESS, exchanged=None) == read


@pytest.mark.fault("E07")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "progress: not JSON"),
        ("[]", r"progress: \[\]; give an object"),
        ("{}", "progress.update: missing; give every field of a report"),
        (PROGRESS.to_json().replace('"update":10', '"update":"10"'), r"progress\.update: '10'; give a valid integer"),
        (PROGRESS.to_json().replace('"update":10', '"update":true'), r"progress\.update: True; give a valid integer"),
        (PROGRESS.to_json().replace("0.9", '"x"'), r"progress\.metrics\.accuracy: 'x'; give a valid number"),
        (PROGRESS.to_json().replace("0.9", "true"), r"progress\.metrics\.accuracy: True; give a valid number"),
        (PROGRESS.to_json().replace("0.9", "NaN"), r"progress\.metrics\.accuracy: nan; give a finite number"),
        (PROGRESS.to_json().replace("1.5", "1e999"), r"progress\.loss: inf; give a finite number"),
        (PROGRESS.to_json().replace('"update":10', f'"update":{10**309}'), r"progress\.update: 1000+.*; give a finite"),
        (PROGRESS.to_json().replace('"update":10', f'"update":{"1" * 5000}'), "progress: not JSON"),
        ("[" * 100_000, "progress: not JSON"),
        *((PROGRESS.to_json().replace("[8,128,-2.0]", rows), message) for rows, message in REFUSED_DECISIONS),
        (
            PROGRESS.to_json().replace("[[4,64,61.5],[8,128,-2.0]]", "null"),
            r"progress\.decisions: None; give a valid array",
        ),
    ],
)
def test_progress_that_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Progress.from_json(text)


def test_progress_of_another_version_is_read() -> None:
    text = json.dumps(json.loads(PROGRESS.to_json()) | {"later": 1})
    assert Progress.from_json(text) == PROGRESS


def test_every_condition_has_its_words() -> None:
    field = status.Condition.model_fields["type"]
    assert tuple(CONDITIONS) == tuple(REASONS) == get_args(field.annotation)
    assert status.PHASES == get_args(JobStatus.model_fields["phase"].annotation)
    for reasons in REASONS.values():
        assert all(re.fullmatch("[A-Z][A-Za-z]+", reason) and text.endswith(".") for reason, text in reasons.items())


def test_status_leaves_out_what_is_not_known() -> None:
    made = JobStatus(
        phase="Training",
        conditions=(
            status.Condition(
                type="Training", status="True", reason="UpdatesCommitted", last_transition_time="2026-11-20T10:00:00Z"
            ),
        ),
    ).to_json()
    assert "stage" not in made
    assert made["conditions"][0]["lastTransitionTime"] == "2026-11-20T10:00:00Z"
    assert made == JobStatus.model_validate(made).to_json()


@pytest.mark.fault("A11")
def test_names_fit_and_differ() -> None:
    """The longest job still has children whose names are DNS labels, and no two of a kind are alike."""
    job = "j" * LONGEST_JOB_NAME
    kinds = {
        "ConfigMap": [names.of(job).plan, names.of(job).progress],
        "Secret": [names.of(job).authority, names.of(job).tls],
        "Service": [names.of(job).scheduler],
        "Role": [names.of(job).progress],
        "Deployment": [names.of(job).workers],
        "Job": [names.of(job).trainer],
        "DaskCluster": [names.of(job).cluster],
        "NetworkPolicy": [names.of(job).network_policy],
    }
    for made in kinds.values():
        assert len(made) == len(set(made))
        assert all(len(name) <= 63 and name.startswith(job) for name in made)


@pytest.mark.fault("E04")
def test_labels_select() -> None:
    labels = names.labels("digits", "worker")
    assert names.selector("digits") == "batchgrowth.dev/job=digits"
    chosen = dict(part.split("=") for part in names.selector("digits", "worker").split(","))
    assert chosen.items() <= labels.items()


@pytest.mark.fault("F05")
def test_metrics_keep_the_conventions() -> None:
    assert len(METRICS) == len(BY_NAME)
    for metric in METRICS:
        assert re.fullmatch("batchgrowth_[a-z_]+", metric.name)
        assert metric.help.endswith(".")
        assert (metric.kind == "counter") == metric.name.endswith("_total")
        assert (metric.kind == "histogram") == bool(metric.buckets)
        assert sorted(metric.buckets) == list(metric.buckets)
        assert metric.unit in ("", "examples") or metric.unit in metric.name
        assert not {"update", "epoch", "loss", "uid"} & set(metric.labels)


def test_every_figure_of_an_exchange_is_in_a_metric_and_in_the_status() -> None:
    declared = {field.name for field in dataclasses.fields(ExchangeFigures)}
    shown = {figure for metric in METRICS for figure in metric.figures.values()}
    # Of these sums, a metric shows the two parts by its labels.
    assert shown - {"backups_second", "checks_passed"} == declared - {"backups", "checks"}
    assert status.ExchangeStatus.model_fields.keys() == declared
    for metric in METRICS:
        assert bool(metric.labels) == ("" not in metric.figures) or not metric.figures


def test_totals_of_an_exchange_are_added_and_newer_values_replace_older() -> None:
    first = ExchangeFigures(bytes_sent=1000, replica_distance=0.5, compression_error=0.004)
    second = ExchangeFigures(bytes_sent=500, replica_distance=0.25, mean_staleness=0.0)
    both = ExchangeFigures(bytes_sent=1500, replica_distance=0.25, compression_error=0.004, mean_staleness=0.0)
    assert first.then(second) == both
    assert ExchangeFigures(backups=3, backups_first=1).backups_second == 2


def test_unions_have_no_structural_schema() -> None:
    class Union(BaseModel):
        either: int | str

    with pytest.raises(TypeError, match="no unions"):
        structural_schema(Union)
