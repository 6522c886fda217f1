"""Fits of five epochs over Dask: each of them finishes with the same weights, and Dask has next to nothing to carry.

AdaDamp ended 60 to 100 % of such fits with FutureCancelledError, sent the data set again in each epoch, and needed two
Dask tasks and more for each update.
"""

from pathlib import Path
from typing import Any

import pytest
from batchgrowth_trainer.pool.calls import Calls
from batchgrowth_trainer.training import Options, train
from distributed import Future
from distributed.protocol.pickle import dumps

FIT = ("epochs=5", "batch.initial=256", "batch.growth.geometric.everyEpochs=2", "evaluation.everyEpochs=5",
       "workload.entrypoint=batchgrowth_trainer.workloads.digits:mlp")  # fmt: skip


@pytest.mark.long
def test_ten_of_ten_short_fits_finish(digits_job: Any, tmp_path: Path, exchange: str) -> None:
    job = digits_job(*FIT, f"exchange.type={exchange}")
    fits = [train(job, Options(output_dir=tmp_path / str(number))) for number in range(10)]
    assert len({fit["weightsSha256"] for fit in fits}) == 1
    assert sum(fit["recoveries"] for fit in fits) == 0


def test_dask_carries_neither_updates_nor_data(
    digits_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each worker gets a task when it is prepared and one for each generation, all of them small."""
    sizes: dict[str, list[int]] = {}
    submit = Calls.submit

    def counted(calls: Calls, address: str, function: Any, *arguments: Any) -> Future:
        sizes.setdefault(function.__name__, []).append(len(dumps(arguments)))
        return submit(calls, address, function, *arguments)

    monkeypatch.setattr(Calls, "submit", counted)
    workers = ("workers={examplesPerWorker: 128, minimum: 2, maximum: 2}", "batch.growth={type: Constant}")
    summary = train(digits_job(*FIT, *workers, "verify=false"), Options(output_dir=tmp_path))

    assert summary["updates"] == 30
    assert sizes.keys() == {"prepare_member", "train_generation"}
    assert len(sizes["prepare_member"]) == 2
    assert len(sizes["train_generation"]) <= 4  # one worker may be ready before the other
    assert sum(map(sum, sizes.values())) < 50_000  # the digits are 370 kB
