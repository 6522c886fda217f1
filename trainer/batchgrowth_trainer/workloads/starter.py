"""A net that recognizes handwritten digits. Replace the model, the loss and the data with your own."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from batchgrowth_trainer.workload import Workload, correct
from batchgrowth_trainer.workloads.digits import split


class Shifted(Dataset[tuple[Tensor, Tensor]]):
    """A data set whose images are shifted by at most a pixel; any class with these two methods will do.

    Draw random numbers from torch, numpy or `random`: they are seeded, so that every run gets the same.
    """

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images = images
        self.labels = labels

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return self.images[index].roll((down, right), dims=(1, 2)), self.labels[index]


def workload(hidden: str = "64") -> Workload:
    """Return the workload to train; the arguments are the strings of spec.workload.arguments."""
    train, test = split()
    width = int(hidden)
    return Workload(
        model=nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10)),
        loss=nn.CrossEntropyLoss(reduction="none"),  # one loss per example
        train=Shifted(*train.tensors),
        test=test,
        metrics={"accuracy": correct},
    )
