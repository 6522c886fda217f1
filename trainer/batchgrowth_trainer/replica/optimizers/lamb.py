"""LAMB: AdamW with a step for each parameter that has the norm of its weights."""

from collections.abc import Mapping

import torch
from batchgrowth.optimizers.lamb import LAMB
from torch import Tensor

from batchgrowth_trainer.replica.optimizer import Stepper
from batchgrowth_trainer.replica.optimizers import adam


def stepper(settings: LAMB) -> Stepper:
    """LAMB with these settings: You et al., 2020, algorithm 2, with corrected moments and the identity as phi."""
    plain = adam.stepper(settings.model_copy(update={"weight_decay": "0"}))
    decay = float(settings.weight_decay)

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        down = torch.zeros_like(vector)
        plain.step(down, gradient, state, 1.0, done)  # Adam's step, from 0 at learning rate 1
        move = down.sub_(vector, alpha=decay)
        weights, length = torch.linalg.vector_norm(vector), torch.linalg.vector_norm(move)
        ratio = torch.where((weights > 0) & (length > 0), weights / length, 1.0)
        vector.add_(move.mul_(ratio), alpha=learning_rate)

    return Stepper(plain.state, step, by_parameter=True, spared=plain)
