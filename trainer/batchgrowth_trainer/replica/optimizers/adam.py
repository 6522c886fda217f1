"""Adam, and AdamW, which decouples the weight decay from the gradient."""

from collections.abc import Mapping

import torch
from batchgrowth.optimizers.adam import Adam
from torch import Tensor
from torch.optim.adam import adam

from batchgrowth_trainer.replica.optimizer import Stepper


def stepper(settings: Adam, *, decoupled: bool = False) -> Stepper:
    """Torch's Adam with these settings."""

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        adam(
            [vector],
            [gradient],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [torch.tensor(float(done))],
            foreach=False,
            lr=learning_rate,
            beta1=float(settings.beta1),
            beta2=float(settings.beta2),
            eps=float(settings.epsilon),
            weight_decay=float(settings.weight_decay),
            decoupled_weight_decay=decoupled,
            amsgrad=False,
            maximize=False,
        )

    return Stepper(("exp_avg", "exp_avg_sq"), step)


def decoupled_stepper(settings: Adam) -> Stepper:
    """Torch's AdamW with these settings."""
    return stepper(settings, decoupled=True)
