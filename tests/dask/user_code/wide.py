"""A net of 647,000 parameters, whose gradient AllReduce sends in more than one bucket."""

from dataclasses import replace

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits
from torch import nn


def workload() -> Workload:
    return replace(
        digits.mlp(),
        model=nn.Sequential(
            nn.Flatten(), nn.Linear(64, 768), nn.Tanh(), nn.Linear(768, 768), nn.Tanh(), nn.Linear(768, 10)
        ),
    )
