"""Exchanges whose weights differ from run to run learn as the others do, though workers come, go and die."""

import csv
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.plan import Plan, make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.training import Options, train
from dask_workers import workers

SOONER = ("epochs=10", "batch.growth.geometric.everyEpochs=2")


def test_digits_by_hogwild(digits_job: Any, tmp_path: Path) -> None:
    """From batch 32 to 512, with dropout and batch norm."""
    exchange = "exchange={type: Hogwild, hogwild: {threads: 2}}"
    job = digits_job(exchange, "epochs=20", "batch.growth.geometric.everyEpochs=3")
    assert train(job, Options(output_dir=tmp_path))["accuracy"] >= 0.95


class Watch:
    """A sink that keeps how stale gradients were, and how many workers made the last update."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.workers = 0

    def handle(self, event: Event) -> None:
        if isinstance(event, ExchangeFigures) and event.largest_staleness is not None:
            self.seen.append(event.largest_staleness)
        elif isinstance(event, HistoryRow):
            self.workers = event.workers


@pytest.mark.fault("C01")
def test_digits_by_downpour(digits_job: Any, tmp_path: Path) -> None:
    """With one worker, then two, of which one is killed."""
    job = digits_job("exchange={type: Downpour, downpour: {maximumStaleness: 3}}", "workers.waitSeconds=60", *SOONER)
    watch, killed = Watch(), list[int]()

    def desired_workers(_plan: Plan, position: Position) -> int:
        if position.epoch >= 4 and watch.workers == 2 and not killed:
            killed.append(workers()[position.update % 2].pid)
            os.kill(killed[0], signal.SIGKILL)
        return 1 if position.epoch < 2 else 2

    summary = train(job, Options(output_dir=tmp_path, desired_workers=desired_workers), [watch])
    assert summary["accuracy"] >= 0.95
    assert killed
    assert summary["recoveries"]
    assert 1 <= max(watch.seen) <= 3
    with (tmp_path / "history.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(range(1, make_plan(job.spec).updates + 1)) == [int(row["update"]) for row in table]
    assert {row["workers"] for row in table} == {"1", "2"}
    with (tmp_path / "evaluations.csv").open() as file:
        assert [int(float(row["epoch"])) for row in csv.DictReader(file)] == list(range(1, 11))
