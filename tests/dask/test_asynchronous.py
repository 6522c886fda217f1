"""Exchanges whose weights differ from run to run learn as the others do."""

from pathlib import Path
from typing import Any

from batchgrowth_trainer.training import Options, train


def test_digits_by_hogwild(digits_job: Any, tmp_path: Path) -> None:
    """From batch 32 to 512, with dropout and batch norm."""
    job = digits_job("exchange.type=Hogwild", "epochs=10", "batch.growth.geometric.everyEpochs=2")
    assert train(job, Options(output_dir=tmp_path))["accuracy"] >= 0.95
