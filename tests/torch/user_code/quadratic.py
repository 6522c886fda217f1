"""A quadratic whose gradients have known noise: the distance to examples, in a space of a few dimensions."""

import torch
from batchgrowth_trainer.workload import Workload
from torch import Tensor, nn
from torch.utils.data import TensorDataset

EXAMPLES, DIMENSIONS = 4096, 8


def examples() -> Tensor:
    """Shape (EXAMPLES, DIMENSIONS), of unit variance and mean 0."""
    drawn = torch.randn(EXAMPLES, DIMENSIONS, generator=torch.Generator().manual_seed(7))
    return (drawn - drawn.mean(dim=0)) / drawn.std(dim=0, correction=0)


class Place(nn.Module):
    def __init__(self, start: float) -> None:
        super().__init__()
        self.place = nn.Parameter(torch.full((DIMENSIONS,), start))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.place - inputs


def half_square(output: Tensor, _target: Tensor) -> Tensor:
    return output.square().sum(dim=1) / 2


def workload(start: str = "1.2") -> Workload:
    data = TensorDataset(examples(), torch.zeros(EXAMPLES))
    return Workload(model=Place(float(start)), loss=half_square, train=data)
