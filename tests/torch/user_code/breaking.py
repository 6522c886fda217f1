"""A workload in which each place that runs the user's code raises an error once it is told to.

`BROKEN` is the name of that place. A test sets it in the middle of a training, so that no trial can find it.
"""

from dataclasses import replace
from typing import Any

import small
import torch
from batchgrowth.looks import Look
from batchgrowth_trainer.workload import Workload, correct
from optimizers_of_ones_own import Plain
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset, default_collate

BROKEN = ""
PLACES = (
    "read", "collate", "augment", "forward", "backward", "loss", "step", "optimizer", "growth", "read of the test set",
    "metric", "whole-set metric", "state_dict",
)  # fmt: skip


class Broken(Exception):
    """What a place raises."""


def at(place: str) -> None:
    if place == BROKEN:
        raise Broken(place)


class Rows(Dataset[Any]):
    def __init__(self, rows: TensorDataset, place: str) -> None:
        self.rows = rows
        self.place = place

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        at(self.place)
        return self.rows[index]


class Back(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, inputs: Tensor) -> Tensor:  # type: ignore[override]
        return inputs.clone()

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        at("backward")
        return gradient


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(small.FEATURES, 8), nn.BatchNorm1d(8), nn.Linear(8, small.CLASSES))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            at("forward")
        return Back.apply(self.layers(inputs))  # type: ignore[no-any-return, no-untyped-call]

    def state_dict(self, *arguments: Any, **more: Any) -> Any:
        at("state_dict")
        return super().state_dict(*arguments, **more)


class Optimizer(Plain):
    """Raises after the first parameter has moved."""

    def keep(self, state: dict[str, Any], parameter: Any) -> None:
        at("optimizer")


def growth(look: Look) -> float:
    at("growth")
    return small.by_loss(look)


def collate(examples: list[Any]) -> Any:
    at("collate")
    return default_collate(examples)


def augment(inputs: Tensor) -> Tensor:
    at("augment")
    return small.noise(inputs)


def loss(output: Tensor, target: Tensor) -> Tensor:
    if torch.is_grad_enabled():
        at("loss")
    return nn.functional.cross_entropy(output, target, reduction="none")


def metric(output: Tensor, target: Tensor) -> Tensor:
    at("metric")
    return correct(output, target)


def whole(output: Tensor, target: Tensor) -> float:
    at("whole-set metric")
    return small.most(output, target)


def step(model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
    at("step")
    return loss(model(inputs), target)


def workload() -> Workload:
    return Workload(
        model=Net(), loss=loss, train=Rows(small.data(), "read"), augment=augment, collate=collate, step=step,
        test=Rows(small.data(20), "read of the test set"), metrics={"accuracy": metric},
        whole_set_metrics={"most": whole},
    )  # fmt: skip


def not_a_number() -> Workload:
    return replace(small.plain(), metrics={"accuracy": lambda output, target: torch.full((len(target),), torch.nan)})
