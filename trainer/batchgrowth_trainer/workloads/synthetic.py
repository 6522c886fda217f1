"""Random images for measuring speed: ten classes, each a fixed pattern plus noise, so that a net can learn them."""

from collections.abc import Callable

import torch
from batchgrowth.errors import WorkloadError
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from batchgrowth_trainer.workload import Workload, correct
from batchgrowth_trainer.workloads import whole
from batchgrowth_trainer.workloads.networks import vgg11, wide_resnet

CLASSES = 10
IMAGE = (3, 32, 32)
MLP_INPUT = (1, 8, 8)
MLP_HIDDEN = 128


def workload(model: str = "wrn", examples: str = "2048", test: str = "256", seed: str = "0") -> Workload:
    """Train `model` (wrn, vgg11 on 3×32×32; mlp on 1×8×8) with `examples` training and `test` test images.

    The argument `seed` determines the images, the job's seed the initial weights.
    """
    builders: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
        "wrn": (lambda: wide_resnet(16, 4, 0.3), IMAGE),
        "vgg11": (vgg11, IMAGE),
        "mlp": (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, MLP_HIDDEN), nn.ReLU(), nn.Linear(MLP_HIDDEN, CLASSES)),
            MLP_INPUT,
        ),
    }
    if model not in builders:
        raise WorkloadError(f"workload.arguments.model: {model!r} was given; write {', '.join(builders)}")
    build, shape = builders[model]
    # One generator draws everything, so the order of the draws is part of what a seed stands for.
    generator = torch.Generator().manual_seed(whole("seed", seed, least=0))
    patterns = torch.randn(CLASSES, *shape, generator=generator)
    return Workload(
        model=build(),
        loss=nn.CrossEntropyLoss(reduction="none"),
        train=_images(patterns, whole("examples", examples), generator),
        test=_images(patterns, whole("test", test), generator),
        metrics={"accuracy": correct},
    )


def _images(patterns: Tensor, number: int, generator: torch.Generator) -> TensorDataset:
    labels = torch.randint(0, CLASSES, (number,), generator=generator)
    noise = torch.randn(number, *patterns.shape[1:], generator=generator)
    return TensorDataset(0.5 * patterns[labels] + noise, labels)
