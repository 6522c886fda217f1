"""What tests of the trial, and of what is looked at after it, share."""

from collections.abc import Callable
from typing import Any

import pytest
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.workload_trial import try_out
from batchgrowth_trainer.workload import Workload


@pytest.fixture
def tried(small_job: Any, make_replica: Callable[..., Replica]) -> Callable[..., Replica]:
    """A function: the replica of a workload, tried out."""

    def made(workload: Workload, *overrides: str) -> Replica:
        replica = make_replica(small_job(*overrides), workload)
        try_out(replica)
        return replica

    return made
