"""Small workloads for the tests of the training loop."""

from dataclasses import replace

import torch
from batchgrowth.looks import Look
from batchgrowth_trainer.workload import Workload, correct
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

EXAMPLES, TESTS, FEATURES, CLASSES = 90, 300, 6, 3


def data(examples: int = EXAMPLES) -> TensorDataset:
    draw = torch.Generator().manual_seed(11)
    inputs = torch.randn(examples, FEATURES, generator=draw)
    return TensorDataset(inputs, (inputs @ torch.randn(FEATURES, CLASSES, generator=draw)).argmax(dim=1))


def of(model: nn.Module, examples: int = EXAMPLES) -> Workload:
    """A workload around any model of 6 inputs and 3 classes."""
    loss = nn.CrossEntropyLoss(reduction="none")
    return Workload(
        model=model, loss=loss, train=data(examples), test=data(TESTS), metrics={"accuracy": correct}, augment=noise
    )


def noise(inputs: Tensor) -> Tensor:
    return inputs + 0.01 * torch.randn_like(inputs)


def net() -> Workload:
    """Batch norm, dropout and noise on the inputs: everything that could depend on who computes what."""
    return of(
        nn.Sequential(
            nn.Linear(FEATURES, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.25), nn.Linear(8, CLASSES)
        )
    )


def plain() -> Workload:
    """Neither batch norm nor anything random."""
    torch.manual_seed(5)
    workload = of(nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, CLASSES)))
    return Workload(model=workload.model, loss=workload.loss, train=workload.train, test=workload.test,
                    metrics=workload.metrics)  # fmt: skip


def untested() -> Workload:
    """Without a test set."""
    return replace(plain(), test=None)


def two_tests() -> Workload:
    """A second test set, and a metric of the whole set."""
    odd = Subset(data(TESTS), range(1, TESTS, 2))
    return replace(plain(), test={"all": data(TESTS), "odd": odd}, whole_set_metrics={"most": most})


def most(output: Tensor, _target: Tensor) -> float:
    return output.max().item()


def by_loss(look: Look) -> float:
    """Grows as the loss falls below the least that it has seen, with a memory of that and of how often it was asked."""
    look.memory[0] = min(look.memory[0] or look.start.loss, look.now.loss)
    look.memory[1] += 1
    return look.initial * look.start.loss / look.memory[0] + look.memory[1]


def failing_growth(_: Look) -> float:
    return float({}["loss"])


def forgetful_growth(look: Look) -> float:
    look.memory.clear()
    return 8.0


def silent_growth(_: Look) -> None:
    """Returns nothing."""


def diverging() -> Workload:
    """A loss so steep that the weights run away within a few updates."""
    return Workload(model=nn.Linear(FEATURES, CLASSES), loss=_steep, train=data())


def _steep(output: Tensor, target: Tensor) -> Tensor:
    return 1000 * output.square().sum(dim=1)
