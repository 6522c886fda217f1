"""Replicas and runs in this process, without Dask."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.workload import Workload

USER_CODE = Path(__file__).parent / "user_code"
sys.path.append(str(USER_CODE))  # so that an entrypoint can name small:net, and the tests can import it

MakeReplica = Callable[[BatchGrowthJob, Workload], Replica]


@pytest.fixture(autouse=True)
def _one_thread(nothing_left_behind: None) -> Iterator[None]:
    """The number of threads belongs to the bits."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def make_replica() -> MakeReplica:
    """A replica of a job and a workload, on the CPU, at the first update."""
    return lambda job, workload: Replica(job.spec, workload, torch.device("cpu"))
