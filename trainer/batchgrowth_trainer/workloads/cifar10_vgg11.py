"""CIFAR-10 with VGG-11, the model of the four-node comparison (one node, gather/scatter, all-reduce, DDP)."""

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads.cifar10 import cifar10_workload
from batchgrowth_trainer.workloads.networks import vgg11


def workload(data: str = "data/cifar-10-batches-bin") -> Workload:
    """Train VGG-11 on the images in folder `data`. Raises DataError if they are missing or damaged."""
    return cifar10_workload(vgg11(), data)
