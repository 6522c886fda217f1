"""Which faults are one worker's, and which are the job's."""

import pickle

import pytest
import torch
from batchgrowth.errors import DataError, WorkloadError
from batchgrowth_trainer.pool.worker_pool import MOST_FAULTS, Suspects
from batchgrowth_trainer.user_errors import (
    DeviceFault,
    ReadFault,
    is_of_the_device,
    reported_as_device_fault,
    reported_as_workload_error,
)

ECC, OTHER = DeviceFault("update 3, shard 1: ECC", "AcceleratorError"), ReadFault("example 7: stale", "example 7")


def test_the_same_on_another_worker_is_raised() -> None:
    suspects = Suspects()
    suspects.accuse("0", ECC, alone=False)
    suspects.accuse("1", OTHER, alone=False)
    with pytest.raises(DeviceFault, match="ECC"):
        suspects.accuse("1", ECC, alone=False)


def test_the_same_again_on_the_only_worker_is_raised() -> None:
    suspects = Suspects()
    suspects.accuse("0", OTHER, alone=True)
    with pytest.raises(ReadFault, match="example 7"):
        suspects.accuse("0", OTHER, alone=True)


def test_the_same_again_is_not_raised_while_another_worker_restarts() -> None:
    """All workers of a store that is away fail, each with examples of its own."""
    suspects = Suspects()
    for _ in range(5):
        suspects.accuse("0", OTHER, alone=True)
        suspects.accuse("1", ECC, alone=True)


def test_workers_that_cannot_even_start_are_given_a_few_tries() -> None:
    """Those of one machine have one name until they are ready."""
    suspects = Suspects()
    for _ in range(MOST_FAULTS):
        suspects.accuse("127.0.0.1", ECC, alone=False, last=True)
    suspects.accuse("127.0.0.1", ECC, alone=False, last=False)
    with pytest.raises(DeviceFault):
        suspects.accuse("127.0.0.1", ECC, alone=False, last=True)


def test_a_later_update_clears_a_worker_until_it_has_failed_too_often() -> None:
    suspects = Suspects()
    for update in range(MOST_FAULTS):
        suspects.forget_before(update)
        assert not suspects.is_suspect("0")
        suspects.accuse("0", ECC, alone=False)
        assert suspects.is_suspect("0")
        assert not suspects.is_suspect("1")
    suspects.forget_before(MOST_FAULTS)
    assert suspects.is_suspect("0")
    suspects.accuse("1", ECC, alone=False)  # at another update: no common cause


@pytest.mark.parametrize(
    ("error", "devices"),
    [
        (torch.OutOfMemoryError("CUDA out of memory."), True),
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered"), True),
        (RuntimeError("CUDA error: uncorrectable ECC error encountered"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (TypeError("CUDA error"), False),
        (None, False),
    ],
)
@pytest.mark.fault("C07")
def test_errors_of_the_device(error: BaseException | None, devices: bool) -> None:
    assert devices == is_of_the_device(error)


def test_a_device_fault_is_a_workload_error_that_names_its_place() -> None:
    with pytest.raises(WorkloadError, match="shard 3 raised MemoryError: no room") as raised, \
            reported_as_workload_error("shard 3"):  # fmt: skip
        raise MemoryError("no room")
    assert isinstance(raised.value, DeviceFault)
    with pytest.raises(DeviceFault, match="update 3 raised"), reported_as_device_fault("update 3"):
        raise torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(ValueError, match="a bug"), reported_as_device_fault("update 3"):
        raise ValueError("a bug")


def test_a_fault_travels_between_processes() -> None:
    copy = pickle.loads(pickle.dumps(OTHER))
    assert (str(OTHER), OTHER.what, DataError.exit_code) == (str(copy), copy.what, copy.exit_code)
