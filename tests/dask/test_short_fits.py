"""Ten five-epoch fits over Dask, one after another: each of them finishes, with the same weights.

AdaDamp ended 60 to 100 % of such fits with FutureCancelledError.
"""

from pathlib import Path
from typing import Any

import pytest
from batchgrowth_trainer.training import Options, train

FIT = ("epochs=5", "batch.initial=256", "batch.growth.geometric.everyEpochs=2", "evaluation.everyEpochs=5",
       "workload.entrypoint=batchgrowth_trainer.workloads.digits:mlp")  # fmt: skip


@pytest.mark.long
def test_ten_of_ten_short_fits_finish(digits_job: Any, tmp_path: Path, exchange: str) -> None:
    job = digits_job(*FIT, f"exchange.type={exchange}")
    fits = [train(job, Options(output_dir=tmp_path / str(number))) for number in range(10)]
    assert len({fit["weightsSha256"] for fit in fits}) == 1
    assert sum(fit["recoveries"] for fit in fits) == 0
