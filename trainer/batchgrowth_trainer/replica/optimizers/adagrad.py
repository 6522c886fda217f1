"""Adagrad."""

from collections.abc import Mapping

import torch
from batchgrowth.optimizers.adagrad import Adagrad
from torch import Tensor
from torch.optim.adagrad import adagrad

from batchgrowth_trainer.replica.optimizer import Stepper


def stepper(settings: Adagrad) -> Stepper:
    """Torch's Adagrad with these settings."""

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        adagrad(
            [vector],
            [gradient],
            [state["sum"]],
            [torch.tensor(float(done))],
            foreach=False,
            lr=learning_rate,
            weight_decay=float(settings.weight_decay),
            lr_decay=0.0,
            eps=float(settings.epsilon),
            maximize=False,
        )

    return Stepper(("sum",), step)
