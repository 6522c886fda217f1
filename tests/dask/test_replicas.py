"""Exchanges whose weights are not those of one process: the same weights for any workers, which come, go and die."""

import csv
import os
import random
import signal
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.choices import REPEATABLE
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.record.runs import read_run
from batchgrowth_trainer.training import Options, train
from dask_workers import workers

USER_CODE = str(Path(__file__).parent / "user_code")
sys.path.append(USER_CODE)


@pytest.mark.sampled(3)  # of the exchanges, those that the sample of the next test lacks
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.smoke) if name == "LocalSGD" else name for name in REPEATABLE[::-1]]
)
def test_digits_with_only_the_exchange_changed(digits_job: Any, tmp_path: Path, name: str) -> None:
    """From batch 32 to 512, with dropout and batch norm: every weight that one worker gets, and .95."""
    sooner = () if name == "Delayed" else ("epochs=10", "batch.growth.geometric.everyEpochs=2")  # which takes longer
    job = digits_job(f"exchange.type={name}", "workers.waitSeconds=60", *sooner)

    def coming_and_going(_plan: Plan, position: Position) -> int:
        """1, 2 and 4 workers, again and again, each for a tenth of the epochs."""
        return (1, 2, 4)[10 * position.epoch // job.spec.epochs % 3]

    alone = train(job, Options(output_dir=tmp_path / "alone", workers=1))
    shared = train(job, Options(output_dir=tmp_path / "shared", desired_workers=coming_and_going))
    history = read_run(tmp_path / "alone").history
    assert alone["weightsSha256"] == shared["weightsSha256"]
    assert alone["accuracy"] >= 0.95
    assert len(shared["resizes"]) >= 2
    began = [row.seconds - row.compute_seconds - row.exchange_seconds - row.wait_seconds for row in history]
    assert pytest.approx(began[0], abs=1e-3) == 0, "the first update begins when training does"
    assert all(before.seconds < after.seconds for before, after in pairwise(history)), "also within a round"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REPEATABLE)
def test_kill_9_between_exchanges(digits_job: Any, tmp_path: Path, name: str) -> None:
    """Of one worker, of two, of all: training goes back to the last point that all share, or to a checkpoint."""
    job = digits_job(
        "workload.entrypoint=slow_digits:by_item", "workers.loaders=1", "epochs=6", "checkpoint.everySeconds=1",
        "batch={initial: 64, maximum: 256, shard: 32, "
        "growth: {type: Geometric, geometric: {factor: '2', everyEpochs: 3}}}",
        f"exchange.type={name}",
    )  # fmt: skip
    options = {"paths": (USER_CODE,)}
    alone = train(job, Options(output_dir=tmp_path / "alone", workers=1, **options))
    # After so many updates, so many; one that has not begun to train is no loss, and may be chosen.
    moments, chosen = [(15, 1), (40, 2), (75, sys.maxsize)], random.Random(3)

    def desired_workers(_plan: Plan, position: Position) -> int:
        if moments and position.update >= moments[0][0]:
            _, most = moments.pop(0)
            there = workers()
            for worker in chosen.sample(there, min(most, len(there))):
                os.kill(worker.pid, signal.SIGKILL)
        return 3

    shared = train(job, Options(output_dir=tmp_path / "shared", desired_workers=desired_workers, **options))
    assert not moments
    assert shared["recoveries"]
    assert alone["weightsSha256"] == shared["weightsSha256"]
    with (tmp_path / "shared" / "history.csv").open() as file:
        assert list(range(1, make_plan(job.spec).updates + 1)) == [int(row["update"]) for row in csv.DictReader(file)]
    with (tmp_path / "shared" / "evaluations.csv").open() as file:
        assert [int(float(row["epoch"])) for row in csv.DictReader(file)] == [1, 2, 3, 4, 5, 6]
