"""Two spirals that wind around each other: to which one does a point belong?"""

import torch
from batchgrowth_trainer.workload import Workload
from torch import nn
from torch.utils.data import TensorDataset


def spirals(number: int, turns: float, noise: float) -> TensorDataset:
    spiral = torch.arange(number) % 2
    angle = torch.rand(number).sqrt() * turns * 2 * torch.pi
    direction = angle + torch.pi * spiral
    points = torch.stack([direction.cos(), direction.sin()], dim=1) * angle.unsqueeze(1) / angle.max()
    return TensorDataset(points + noise * torch.randn(number, 2), spiral.float())


def right_side(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return ((output.squeeze(1) > 0) == (target > 0.5)).float()


def workload(width: str = "64", turns: str = "1.5") -> Workload:
    size = int(width)
    return Workload(
        model=nn.Sequential(nn.Linear(2, size), nn.Tanh(), nn.Linear(size, size), nn.Tanh(), nn.Linear(size, 1)),
        loss=lambda output, target: nn.functional.binary_cross_entropy_with_logits(
            output.squeeze(1), target, reduction="none"
        ),
        train=spirals(2000, float(turns), noise=0.02),
        test=spirals(500, float(turns), noise=0.02),
        metrics={"accuracy": right_side},
    )
