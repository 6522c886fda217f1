"""On a GPU, too, the weights do not depend on how many members there are, nor on the exchange."""

from pathlib import Path

import pytest
from batchgrowth.manifest import load_manifest
from batchgrowth_trainer.training import Options, train

ROOT = Path(__file__).parents[2]
SHORT = ("epochs=4", "batch.growth.geometric.everyEpochs=1", "workload.device=CUDA", "workers.waitSeconds=120")


def digest(directory: Path, exchange: str, workers: int, *changes: str) -> str:
    """The weights' SHA-256 after a short digits job; several members share a device and exchange through the CPU."""
    job = load_manifest(ROOT / "examples" / "digits.yaml", (*SHORT, f"exchange.type={exchange}", *changes))
    told = train(job, Options(output_dir=directory, workers=workers))
    return str(told["weightsSha256"])


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What one process comes to."""
    return digest(tmp_path_factory.mktemp("alone"), "SingleProcess", 1)


def test_one_process_repeats_itself(tmp_path: Path, alone: str) -> None:
    """The kernels are deterministic."""
    assert alone == digest(tmp_path, "SingleProcess", 1)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_members_on_one_device(tmp_path: Path, alone: str, exchange: str, workers: int) -> None:
    """Any exchange, any number of members."""
    assert alone == digest(tmp_path, exchange, workers)


def test_adam(tmp_path: Path) -> None:
    """Adam, whose state has two vectors, resumes and exchanges the same way."""
    adam = ("optimizer.type=Adam", "learningRate.initial=0.001", "optimizer.sgd=null")

    assert digest(tmp_path / "one", "SingleProcess", 1, *adam) == digest(tmp_path / "two", "AllReduce", 2, *adam)
