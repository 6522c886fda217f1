"""CIFAR-10 with WRN 16-4, the paper's model: 2.75 million weights, dropout 0.3."""

from batchgrowth.errors import WorkloadError

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import share, whole
from batchgrowth_trainer.workloads.cifar10 import cifar10_workload
from batchgrowth_trainer.workloads.networks import wide_resnet


def workload(
    data: str = "data/cifar-10-batches-bin", depth: str = "16", width: str = "4", dropout: str = "0.3"
) -> Workload:
    """Train a wide residual net on the images in folder `data`.

    Raises DataError if they are missing or damaged, WorkloadError for an unsuitable argument.
    """
    layers = whole("depth", depth, least=10)
    if layers % 6 != 4:
        raise WorkloadError(f"workload.arguments.depth: {depth!r} was given; write 10, 16, 22, 28, 34, 40, … (6·n + 4)")
    return cifar10_workload(wide_resnet(layers, whole("width", width), share("dropout", dropout)), data)
