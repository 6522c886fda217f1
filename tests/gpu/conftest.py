"""This tier needs a CUDA device; it is the one tier that CI does without."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.manifest.reading import load_manifest
from batchgrowth_trainer.training import Options, train

ROOT = Path(__file__).parents[2]
SHORT = ("batch.shard=32", "batch.growth.geometric.everyEpochs=1", "workload.device=CUDA", "workers.waitSeconds=120")
USER_CODE = ROOT / "tests" / "dask" / "user_code"
sys.path.append(str(USER_CODE))  # so that an entrypoint can name slow_digits:by_item

Digest = Callable[..., str]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what lies here where there is no device."""
    if torch.cuda.is_available():
        return
    for item in items:
        if "/tests/gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.skip(reason="no CUDA device is visible"))


@pytest.fixture
def digest(tmp_path: Path, nothing_left_behind: None) -> Digest:
    """A function: the weights' SHA-256 after a short job, with so many workers and with `path=value` overrides.

    Several workers share the device and exchange through the CPU.
    """

    def trained(workers: int, *changes: str, manifest: str = "digits.yaml", **options: Any) -> str:
        job = load_manifest(ROOT / "examples" / manifest, ["epochs=4", *SHORT, *changes])
        name = f"run-{len([*tmp_path.iterdir()])}"
        where = {"paths": (str(USER_CODE),)} | options
        told = train(job, Options(output_dir=tmp_path / name, workers=workers, **where))
        return str(told["weightsSha256"])

    return trained
