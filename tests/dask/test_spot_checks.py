"""A worker that begins to compute wrongly is found, named and replaced, and what it touched is undone."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.errors import WorkloadError
from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth_trainer.sinks.events import Event, Undone
from batchgrowth_trainer.training import Options, train

USER_CODE = str(Path(__file__).parent / "user_code")
sys.path.append(USER_CODE)
SHARDS = 4 * -(-1437 // 32)
"""Shards of the whole training."""
FIRST_GOOD = 20
"""More shards than a trial computes before training."""
JOB = (
    "epochs=4",
    "batch={initial: 64, maximum: 256, shard: 32, growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 2}}}",
    "workers={maximum: 4, waitSeconds: 60}",
    "checkpoint.everySeconds=1",
)


class Findings:
    """A sink that keeps what was undone, and the figures of the checks."""

    def __init__(self) -> None:
        self.undone: list[Undone] = []
        self.figures = ExchangeFigures()

    def handle(self, event: Event) -> None:
        if isinstance(event, Undone):
            self.undone.append(event)
        if isinstance(event, ExchangeFigures):
            self.figures = self.figures.then(event)


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of an undisturbed run."""
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB, "workload.entrypoint=slow_digits:workload")


def trained(
    make_job: Any, folder: Path, workers: int, *settings: str, first: int | None = None
) -> tuple[Any, Findings]:
    """Train with so many workers; in the first epoch with `first`, if it is given."""
    job = make_job(*JOB, *settings)

    def desired(_plan: Plan, position: Position) -> int:
        return workers if first is None or position.epoch else first

    options = Options(output_dir=folder / "run", paths=(USER_CODE,), desired_workers=desired)
    sink = Findings()
    return train(job, options, [sink]), sink


@pytest.mark.sampled(2)
@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.parametrize("exact", ["AllReduce", "ParameterServer", "GatherScatter"])
@pytest.mark.fault("C26")
def test_a_worker_that_computes_wrongly_changes_nothing(
    digits_job: Any, tmp_path: Path, expected: str, exact: str, workers: int
) -> None:
    """It is wrong from its 25th shard on; two workers need a third as their judge."""
    arguments = f"workload.arguments={{folder: '{tmp_path}', times: '1', good: '25'}}"
    settings = ("workload.entrypoint=wrong_bit:workload", arguments, f"exchange.type={exact}")
    summary, found = trained(digits_job, tmp_path, workers, *settings)
    assert summary["weightsSha256"] == expected
    [undone] = found.undone
    assert undone.cause.startswith("worker ")
    assert "the gradient of model." in undone.cause
    assert undone.cause.endswith("; it is replaced")
    assert undone.updates > 0
    assert summary["recoveries"] == 1
    assert found.figures.differences == 1 < found.figures.checks


@pytest.mark.fault("C26")
def test_a_worker_that_was_wrong_while_it_trained_alone_changes_nothing(
    digits_job: Any, tmp_path: Path, expected: str
) -> None:
    """Alone, it finds no difference between its answers; so all that it has trained alone is undone."""
    arguments = f"workload.arguments={{folder: '{tmp_path}', times: '1', good: '25'}}"
    settings = ("workload.entrypoint=wrong_bit:workload", arguments)
    summary, found = trained(digits_job, tmp_path, 3, *settings, first=1)
    assert summary["weightsSha256"] == expected
    [undone] = found.undone
    assert undone.position == Position()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("exact", ["AllReduce", "ParameterServer", "GatherScatter"])
@pytest.mark.fault("C26")
def test_a_worker_that_computes_wrongly_at_a_random_moment_changes_nothing(
    digits_job: Any, tmp_path: Path, expected: str, exact: str, seed: int
) -> None:
    """Of two to four workers one errs, from a random shard on, the last of its shards among them."""
    draw = random.Random(f"{exact} {seed}")
    workers = draw.randint(2, 4)
    good = draw.randint(FIRST_GOOD, SHARDS // workers - 1)
    arguments = f"workload.arguments={{folder: '{tmp_path}', times: '1', good: '{good}'}}"
    settings = ("workload.entrypoint=wrong_bit:workload", arguments, f"exchange.type={exact}")
    summary, found = trained(digits_job, tmp_path, workers, *settings)
    assert summary["weightsSha256"] == expected
    [undone] = found.undone
    assert "the gradient of model." in undone.cause
    assert undone.updates > 0


@pytest.mark.parametrize("exact", ["AllReduce", "GatherScatter", "SingleProcess"])
@pytest.mark.fault("C27")
def test_code_with_several_answers_ends_the_run(digits_job: Any, tmp_path: Path, exact: str) -> None:
    with pytest.raises(WorkloadError, match=r"update \d+, shard \d: the gradient of model\.\S+ has other bits"):
        trained(digits_job, tmp_path, 2, "workload.entrypoint=wrong_bit:fickle", f"exchange.type={exact}")
