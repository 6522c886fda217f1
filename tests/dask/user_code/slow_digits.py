"""The digits net, slowed down, so that there is time to kill a worker."""

import time
from dataclasses import replace
from pathlib import Path

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits
from torch import Tensor
from torch.utils.data import Subset


def workload(seconds: str = "0.01", mark: str = "/") -> Workload:
    """A shard takes this long, while there is a file of that name."""
    net = digits.workload(hidden="8")

    def slow(inputs: Tensor) -> Tensor:
        if Path(mark).exists():
            time.sleep(float(seconds))  # stands for a large model, whose updates take this long
        return inputs

    return Workload(model=net.model, loss=net.loss, train=net.train, test=net.test, metrics=net.metrics, augment=slow)


def by_item() -> Workload:
    """The same examples, read one by one."""
    made = workload()
    return replace(made, train=Subset(made.train, range(len(made.train))))
