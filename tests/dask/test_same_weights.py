"""The same weights, bit for bit, for every number of workers, exchange and schedule of workers."""

import csv
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.api import load
from batchgrowth_trainer.record.history import GROWTH_FILE, HISTORY_FILE
from batchgrowth_trainer.record.runs import declared_manifest, read_run
from batchgrowth_trainer.record.snapshot import weights_sha256
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.training import Options, train

ROOT = Path(__file__).parents[2]

# Six stages of one epoch, batch 32 -> 243 in shards of at most 32: 123 updates, each epoch with a short last one.
GROWING = "growth: {type: Geometric, geometric: {factor: '1.5', everyEpochs: 1}}"
SHORT = (
    "epochs=6",
    f"batch={{initial: 32, maximum: 256, shard: 32, {GROWING}}}",
    "workers.waitSeconds=240",
    "workers.maximum=4",
)
SCHEDULES = {
    "growing": [1, 2, 2, 3, 4, 4],
    "shrinking": [4, 4, 3, 2, 1, 1],
    "up and down": random.Random(8).choices([1, 2, 3, 4], k=6),
}

Reference = Callable[[BatchGrowthJob], str]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[BatchGrowthJob], Path]:
    """The folder of a run of one process, by the mathematics of the job."""
    known: dict[str, Path] = {}

    def run(job: BatchGrowthJob) -> Path:
        spec = job.spec.model_copy(update={"exchange": type(job.spec.exchange)(type="SingleProcess")})
        key = f"{spec.batch}{spec.optimizer}{spec.precision}{spec.learning_rate}{spec.workload}{spec.epochs}"
        if key not in known:
            known[key] = tmp_path_factory.mktemp("alone")
            train(job.model_copy(update={"spec": spec}), Options(output_dir=known[key]))
        return known[key]

    return run


@pytest.fixture(scope="module")
def reference(alone: Callable[[BatchGrowthJob], Path]) -> Reference:
    """The weights of one process, by the mathematics of the job."""
    return lambda job: str(json.loads((alone(job) / "summary.json").read_text())["weightsSha256"])


def by_epoch(counts: list[int]) -> Callable[[Plan, Position], int]:
    return lambda _plan, position: counts[min(position.epoch, len(counts) - 1)]


def followed(summary: dict[str, Any]) -> list[int]:
    """The numbers of workers of a run, in order."""
    resizes = summary["resizes"]
    return [resizes[0]["from"], *(resize["to"] for resize in resizes)] if resizes else []


def steps(counts: list[int]) -> list[int]:
    return [count for index, count in enumerate(counts) if index == 0 or count != counts[index - 1]]


@pytest.mark.smoke
@pytest.mark.fault("C17", "D06")
@pytest.mark.sampled(2)
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_any_schedule_of_workers(
    digits_job: Any, tmp_path: Path, reference: Reference, exchange: str, schedule: str
) -> None:
    job = digits_job(*SHORT, f"exchange.type={exchange}")
    summary = train(job, Options(output_dir=tmp_path, desired_workers=by_epoch(SCHEDULES[schedule])))
    assert reference(job) == summary["weightsSha256"]
    assert steps(SCHEDULES[schedule]) == followed(summary)
    assert summary["recoveries"] == 0


class Errors:
    """A sink that keeps the errors of rounding."""

    def __init__(self) -> None:
        self.found = list[float]()

    def handle(self, event: Event) -> None:
        if isinstance(event, ExchangeFigures) and event.compression_error is not None:
            self.found.append(event.compression_error)


def test_compressed_gradients(digits_job: Any, tmp_path: Path) -> None:
    """One process rounds them as members do that send them."""
    job = digits_job(*SHORT, "exchange={type: AllReduce, compression: Int8}")
    alone = digits_job(*SHORT, "exchange={type: SingleProcess, compression: Int8}")
    errors = Errors()
    summary = train(
        job, Options(output_dir=tmp_path / "shared", desired_workers=by_epoch([2, 3, 1, 4, 4, 2])), [errors]
    )
    assert train(alone, Options(output_dir=tmp_path / "alone"))["weightsSha256"] == summary["weightsSha256"]
    assert followed(summary) == [2, 3, 1, 4, 2]
    assert errors.found
    assert all(0 < error < 0.05 for error in errors.found)


def test_lbfgs_on_whole_batches(tmp_path: Path, reference: Reference) -> None:
    """The example of docs/training.md: forty updates, of the whole data set each."""
    job = load_manifest(ROOT / "tests" / "corpus" / "good" / "lbfgs.yaml")
    for workers in (1, 2):
        summary = train(job, Options(output_dir=tmp_path / str(workers), desired_workers=by_epoch([workers])))
        assert reference(job) == summary["weightsSha256"]
        assert summary["updates"] == 40
        assert summary["accuracy"] >= 0.95


@pytest.mark.sampled
@pytest.mark.parametrize("more", [(), ("optimizer.averaging={decay: '0.9'}",)], ids=["as they are", "averaged"])
def test_an_early_end_and_the_best_weights(
    digits_job: Any, tmp_path: Path, exchange: str, more: tuple[str, ...]
) -> None:
    """One process and each exchange end after the same evaluation, and keep the same weights of the same other one."""
    accuracy = "metric: accuracy, mode: Maximize"
    judged = (f"evaluation={{keepBest: {{{accuracy}}}, stopEarly: {{{accuracy}, patience: 1}}}}", "epochs=20")
    found = []
    for each, desired_workers in (("SingleProcess", None), (exchange, by_epoch([2, 3, 1, 4, 4, 2]))):
        job = digits_job(*SHORT, *more, *judged, f"exchange.type={each}")
        summary = train(job, Options(output_dir=tmp_path / each, desired_workers=desired_workers))
        found.append({key: summary[key] for key in ("updates", "weightsSha256", "best", "stoppedEarly")})
    alone, together = found
    assert alone == together
    assert alone["best"]["epoch"] + 1 == alone["stoppedEarly"]["afterEpoch"] < 20
    assert alone["best"]["weightsSha256"] != alone["weightsSha256"]
    for each in ("SingleProcess", exchange):
        assert alone["best"]["weightsSha256"] == weights_sha256(load(tmp_path / each).best_model.state_dict())
        evaluations = read_run(tmp_path / each).evaluations
        assert alone["updates"] == evaluations[-1].update
        assert alone["best"]["value"] == max(row.metrics["accuracy"] for row in evaluations)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("exchange", "rule"),
    [("AllReduce", "LossAndGradient"), ("GatherScatter", "NoiseScale"), ("AllReduce", "NoiseScale")],
)
def test_measured_growth(
    digits_job: Any,
    tmp_path: Path,
    reference: Reference,
    alone: Callable[[BatchGrowthJob], Path],
    exchange: str,
    rule: str,
) -> None:
    """The same decisions too, whatever workers measure: two from the first update, more when they are ready.

    With NoiseScale the learning rate is measured as well.
    """
    growth = f"growth: {{type: {rule}, looks: {{everyUpdates: 15}}}}"
    rate = ("learningRate.rule=AdaScale",) if rule == "NoiseScale" else ()
    job = digits_job(
        "epochs=4", f"batch={{initial: 32, maximum: 256, shard: 16, {growth}}}", f"exchange.type={exchange}",
        "workers={examplesPerWorker: 16, maximum: 4, waitSeconds: 60}", *rate,
    )  # fmt: skip
    summary = train(job, Options(output_dir=tmp_path))
    assert reference(job) == summary["weightsSha256"]
    assert (alone(job) / GROWTH_FILE).read_text() == (tmp_path / GROWTH_FILE).read_text()
    with (tmp_path / HISTORY_FILE).open() as history:
        rows = list(csv.DictReader(history))
    assert len({row["batchSize"] for row in rows}) > 1
    assert min(int(row["workers"]) for row in rows) >= 2
    assert summary["recoveries"] == 0


@pytest.mark.long
def test_goodput_is_repeated_by_replay(digits_job: Any, tmp_path: Path, reference: Reference, exchange: str) -> None:
    """All members decide by one clock; their decisions as milestones give the same weights in one process."""
    growth = "growth: {type: Goodput, looks: {everyUpdates: 15, mostChange: '4'}}"
    job = digits_job(
        "epochs=4", f"batch={{initial: 32, maximum: 256, shard: 16, {growth}}}", f"exchange.type={exchange}",
        "workers={examplesPerWorker: 64, maximum: 4, waitSeconds: 60}",
    )  # fmt: skip
    summary = train(job, Options(output_dir=tmp_path, desired_workers=by_epoch([2])))
    declared = read_manifest(declared_manifest(tmp_path))
    assert declared.spec.batch.growth.type == "Milestones", "the batch did not grow, so this test shows nothing"
    assert reference(declared) == summary["weightsSha256"]
    assert summary["recoveries"] == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [3, 2, 1, 4])
def test_a_cap_on_the_workers(
    digits_job: Any, tmp_path: Path, reference: Reference, exchange: str, workers: int
) -> None:
    """The plan goes 1, 2, 4; the weights are the same with every cap."""
    job = digits_job("epochs=3", "batch.initial=128", "batch.growth.geometric.everyEpochs=1", "workers.waitSeconds=60",
                     f"exchange.type={exchange}")  # fmt: skip
    assert [stage.workers for stage in make_plan(job.spec).stages] == [1, 2, 4]
    summary = train(job, Options(output_dir=tmp_path, workers=workers))
    assert reference(job) == summary["weightsSha256"]
    assert (followed(summary) or [1]) == steps([min(count, workers) for count in (1, 2, 4)])


@pytest.mark.smoke
def test_the_digits_job_still_ends_with_the_same_loss(digits_job: Any, tmp_path: Path) -> None:
    """A change of this number changes the results of every user. Its last bits depend on the processor."""
    job = digits_job("epochs=10", "batch.growth.geometric.everyEpochs=2", "workload.device=CPU")
    summary = train(job, Options(output_dir=tmp_path))
    assert summary["finalLoss"] == pytest.approx(0.0137627, rel=0.02)
    assert summary["accuracy"] >= 0.97
