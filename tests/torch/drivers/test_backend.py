"""Which members exchange by NCCL."""

import pytest
from batchgrowth_trainer.drivers.generations import backend_of
from batchgrowth_trainer.record.arithmetic import Arithmetic
from batchgrowth_trainer.worker.messages import Prepared


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [(["GPU-1", "GPU-2"], "nccl"), (["GPU-1", "GPU-1"], "tcp"), (["GPU-1", ""], "tcp"), (["", ""], "tcp")],
)
def test_only_members_with_a_gpu_each_use_nccl(gpus: list[str], backend: str) -> None:
    """Pods that share a GPU, sliced by time, do not: NCCL cannot connect them."""
    members = [
        Prepared(f"w{number}", "host", gpu, ("127.0.0.1", number), Arithmetic()) for number, gpu in enumerate(gpus)
    ]

    assert backend == backend_of(members)
