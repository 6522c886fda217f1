"""LARS: SGD with a learning rate for each parameter."""

from collections.abc import Mapping

import torch
from batchgrowth.optimizers.lars import LARS
from batchgrowth.optimizers.sgd import SGD
from torch import Tensor

from batchgrowth_trainer.replica.optimizer import Stepper
from batchgrowth_trainer.replica.optimizers import sgd


def stepper(settings: LARS) -> Stepper:
    """LARS with these settings: You et al., 2017, with the learning rate outside of the momentum, as torch's SGD."""
    plain = sgd.stepper(SGD(momentum=settings.momentum))
    trust, decay = float(settings.trust_coefficient), float(settings.weight_decay)

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        weights, slope = torch.linalg.vector_norm(vector), torch.linalg.vector_norm(gradient)
        ratio = trust * weights / (slope + decay * weights)
        ratio = torch.where((weights > 0) & (slope > 0), ratio, 1.0)
        plain.step(vector, torch.add(gradient, vector, alpha=decay).mul_(ratio), state, learning_rate, done)

    return Stepper(plain.state, step, by_parameter=True, spared=plain)
