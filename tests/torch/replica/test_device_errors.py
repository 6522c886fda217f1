"""Errors that a GPU reports late, in the words of torch: one paragraph, also where the process cannot use the GPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from batchgrowth.errors import WorkloadError
from batchgrowth_trainer.replica.flat import FlatBuffers
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.seeds import untouched_randomness
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.user_errors import DeviceFault, reported_as_device_fault
from torch import nn

ASSERTED = torch.AcceleratorError(
    "CUDA error: device-side assert triggered\nSearch for `cudaErrorAssert' in https://docs.nvidia.com for more "
    "information.\nCompile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
)
UNCORRECTABLE = torch.AcceleratorError("CUDA error: uncorrectable ECC error encountered")
NOT_DETERMINISTIC = RuntimeError(
    "adaptive_avg_pool2d_backward_cuda does not have a deterministic implementation, but you set "
    "'torch.use_deterministic_algorithms(True)'. You can turn off determinism just for this operation."
)


def fails(error: Exception) -> Any:
    def call(*_: Any, **__: Any) -> None:
        raise error

    return call


@pytest.mark.fault("C07")
def test_what_a_kernel_refuses_is_the_workloads_fault() -> None:
    """Another GPU would refuse it too, so the job does not wait for one."""
    with pytest.raises(WorkloadError) as caught, reported_as_device_fault("a worker at update 3"):
        raise ASSERTED

    assert not isinstance(caught.value, DeviceFault)
    text = str(caught.value)
    assert text.startswith("a worker at update 3 raised AcceleratorError: CUDA error: device-side assert triggered (")
    assert "number classes from 0" in text
    assert "TORCH_USE_CUDA_DSA" not in text
    assert "workload.device: CPU names the line" in text


@pytest.mark.fault("C07")
def test_what_a_gpu_suffers_may_pass() -> None:
    with pytest.raises(DeviceFault, match="uncorrectable ECC error"), reported_as_device_fault("a worker"):
        raise UNCORRECTABLE


def test_an_operation_without_a_deterministic_kernel(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nn.Module, "__call__", fails(NOT_DETERMINISTIC))
    with pytest.raises(WorkloadError, match=r"deterministic implementation \(.*\); use another operation there, or se"):
        train(small_job(), Options(output_dir=tmp_path))


@pytest.mark.parametrize(("error", "kind"), [(ASSERTED, WorkloadError), (UNCORRECTABLE, DeviceFault)])
def test_an_error_that_comes_with_the_first_results(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: type[Exception]
) -> None:
    monkeypatch.setattr(Replica, "partials", fails(error))
    with pytest.raises(kind, match="update 1, shard 0 raised AcceleratorError"):
        train(small_job(), Options(output_dir=tmp_path))


def test_an_error_that_comes_with_a_later_step(small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = Replica.commit
    monkeypatch.setattr(
        Replica,
        "commit",
        lambda replica, *call: (fails(ASSERTED) if replica.position.update == 2 else commit)(replica, *call),
    )
    with pytest.raises(WorkloadError, match="training at update 2 raised AcceleratorError"):
        train(small_job(), Options(output_dir=tmp_path))


def test_a_gpu_that_cannot_reset_buffers_hides_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that fails without another error is reported."""
    buffers = FlatBuffers(nn.BatchNorm1d(2), torch.device("cpu"))
    monkeypatch.setattr(buffers, "restore", fails(UNCORRECTABLE))
    with pytest.raises(WorkloadError, match="first"), buffers.kept():
        raise WorkloadError("first")
    with pytest.raises(torch.AcceleratorError, match="ECC"), buffers.kept():
        pass


def test_nor_one_that_cannot_reset_its_random_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "set_rng_state_all", fails(UNCORRECTABLE))
    before = torch.get_rng_state()
    with pytest.raises(WorkloadError, match="first"), untouched_randomness():
        raise WorkloadError(f"first {torch.rand(1)}")
    assert torch.equal(before, torch.get_rng_state())
