"""A table that is larger than the memory of a worker; test_a_life.py has the weights of the examples with data."""

import csv
import sys
from pathlib import Path

import pytest
from batchgrowth_trainer.training import Options, train
from example_jobs import MEMMAP

USER_CODE = str(Path(__file__).parent / "user_code")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the private memory of a process")
def test_a_table_that_is_larger_than_the_memory_of_a_worker(tmp_path: Path) -> None:
    """256 MiB, of which each of two workers may hold 96 at most, private to it; pages of the file are the kernel's."""
    from make_table import make

    table, rows = tmp_path / "table.f32", 256 << 8
    make(table, rows)
    assert table.stat().st_size == 256 << 20
    job = MEMMAP.job(
        tmp_path, "workload.entrypoint=little_memory:workload", f"workload.examples={rows - 512}", "epochs=1",
        f"workload.arguments={{table: {table}, test: '512', hidden: '16'}}", "batch.initial=512",
        "workers.waitSeconds=60",
    )  # fmt: skip
    paths = (USER_CODE, str(MEMMAP.folder))
    summary = train(job, Options(output_dir=tmp_path / "run", paths=paths, desired_workers=lambda _plan, _position: 2))
    with (tmp_path / "run" / "history.csv").open() as history:
        assert {row["workers"] for row in csv.DictReader(history)} == {"2"}
    assert summary["recoveries"] == 0
    assert summary["accuracy"] > MEMMAP.reached
