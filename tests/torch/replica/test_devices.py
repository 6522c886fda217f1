"""The device that a manifest asks for, on machines with and without a GPU."""

from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.replica.devices import make_device


@pytest.mark.fault("A22")
@pytest.mark.parametrize(("wanted", "has_gpu", "device"), [("Auto", False, "cpu"), ("Auto", True, "cuda"),
                                                           ("CPU", True, "cpu"), ("CUDA", True, "cuda")])  # fmt: skip
def test_a_device_that_is_there(
    small_job: Any, monkeypatch: pytest.MonkeyPatch, wanted: str, has_gpu: bool, device: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    assert device == make_device(small_job(f"workload.device={wanted}").spec).type


@pytest.mark.fault("A22")
def test_a_gpu_that_is_not_there(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image or a node without one: nothing is computed elsewhere without the user's knowledge."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(WorkloadError, match=r"workload\.device: CUDA was requested .* use Auto or CPU"):
        make_device(small_job("workload.device=CUDA").spec)
