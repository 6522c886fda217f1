"""What has no deterministic kernel is refused before the first update, unless the job gives up equal weights."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from batchgrowth.errors import WorkloadError

Digest = Callable[..., str]

POOLED = """
from dataclasses import replace

from batchgrowth_trainer.workloads.digits import workload as digits
from torch import nn


def workload():
    pooling = nn.Conv2d(1, 8, 3, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, 10)
    return replace(digits(), model=nn.Sequential(*pooling))
"""


@pytest.fixture
def pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """The changes that train digits by a net whose pooling no deterministic kernel differentiates."""
    (tmp_path / "pooled.py").write_text(POOLED)
    monkeypatch.syspath_prepend(tmp_path)
    return "workload.entrypoint=pooled:workload", "workload.arguments={}"


def test_it_is_refused(digest: Digest, pooled: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"adaptive_avg_pool2d_backward\w* does not have a deterministic.*set dete"):
        digest(1, *pooled, paths=(str(tmp_path),))


def test_or_trained_without_the_promise(digest: Digest, pooled: tuple[str, ...], tmp_path: Path) -> None:
    """Two workers, of which none counts as another kind of machine."""
    assert digest(2, *pooled, "deterministic=false", paths=(str(tmp_path),))
    assert not torch.are_deterministic_algorithms_enabled()
