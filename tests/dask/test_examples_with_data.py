"""The examples that bring their own code and data: the same weights for any workers, loaders and deaths."""

import csv
import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.plan import Plan, Position
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event
from batchgrowth_trainer.training import Options, train
from dask_workers import workers
from example_jobs import EXAMPLE_JOBS, MEMMAP

USER_CODE = str(Path(__file__).parent / "user_code")
WORKERS_BY_EPOCH = [1, 4, 3, 2]


class Killer:
    """A sink that kills a worker once four of them have committed an update; `sizes` are the groups that did so."""

    def __init__(self) -> None:
        self.sizes: set[int] = set()

    def handle(self, event: Event) -> None:
        if isinstance(event, HistoryRow):
            if event.workers == 4 and 4 not in self.sizes:
                os.kill(random.Random(1).choice(workers()).pid, signal.SIGKILL)
            self.sizes.add(event.workers)


def wanted(_plan: Plan, position: Position) -> int:
    return WORKERS_BY_EPOCH[min(position.epoch, 3)]


@pytest.fixture(scope="module")
def alone(example_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """A function: the weights that one process without loaders gets."""
    known: dict[str, str] = {}

    def weights(name: str) -> str:
        if name not in known:
            example = EXAMPLE_JOBS[name]
            job = example.job(example_data, *example.few, "exchange.type=SingleProcess", "workers.loaders=0")
            known[name] = train(job, Options(output_dir=tmp_path_factory.mktemp("alone")))["weightsSha256"]
        return known[name]

    return weights


@pytest.mark.fault("C01")
@pytest.mark.sampled
@pytest.mark.parametrize("loaders", [3, 1, 0])
@pytest.mark.parametrize("name", EXAMPLE_JOBS)
def test_one_to_four_workers_of_which_one_is_killed(
    name: str, loaders: int, exchange: str, example_data: Path, tmp_path: Path, alone: Any
) -> None:
    example, killer = EXAMPLE_JOBS[name], Killer()
    job = example.job(
        example_data, *example.few, f"exchange.type={exchange}",
        f"workers={{waitSeconds: 60, maximum: 4, loaders: {loaders}}}",
    )  # fmt: skip
    options = Options(output_dir=tmp_path, paths=(str(example.folder),), wanted=wanted)
    summary = train(job, options, [killer])
    assert alone(name) == summary["weightsSha256"]
    assert {1, 4} < killer.sizes


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the private memory of a process")
def test_a_table_that_is_larger_than_the_memory_of_a_worker(tmp_path: Path) -> None:
    """256 MiB, of which each of two workers may hold 96 at most, private to it; pages of the file are the kernel's."""
    from make_table import make

    table, rows = tmp_path / "table.f32", 256 << 8
    make(table, rows)
    assert 256 << 20 == table.stat().st_size
    job = MEMMAP.job(
        tmp_path, "workload.entrypoint=little_memory:workload", f"workload.examples={rows - 512}", "epochs=1",
        f"workload.arguments={{table: {table}, test: '512', hidden: '16'}}", "batch.initial=512",
        "workers.waitSeconds=60",
    )  # fmt: skip
    paths = (USER_CODE, str(MEMMAP.folder))
    summary = train(job, Options(output_dir=tmp_path / "run", paths=paths, wanted=lambda _plan, _position: 2))
    with (tmp_path / "run" / "history.csv").open() as history:
        assert {"2"} == {row["workers"] for row in csv.DictReader(history)}
    assert 0 == summary["recoveries"]
    assert summary["accuracy"] > MEMMAP.reached
