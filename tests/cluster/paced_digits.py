"""The digits net with one hidden layer, whose shards last for some time and take no processor in it."""

import time
from dataclasses import replace

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits
from torch import Tensor


def workload(seconds: str = "0") -> Workload:
    """`seconds` of pause before each shard; it changes no bit of the gradients."""

    def paused(inputs: Tensor) -> Tensor:
        time.sleep(float(seconds))
        return inputs

    return replace(digits.mlp(), augment=paused)
