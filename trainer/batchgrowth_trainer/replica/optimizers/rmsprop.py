"""RMSprop, with momentum and centred if asked for."""

from collections.abc import Mapping

import torch
from batchgrowth.optimizers.rmsprop import RMSprop
from torch import Tensor
from torch.optim.rmsprop import rmsprop

from batchgrowth_trainer.replica.optimizer import Stepper

_SQUARES, _MEAN, _MOMENTUM = "square_avg", "grad_avg", "momentum_buffer"


def stepper(settings: RMSprop) -> Stepper:
    """Torch's RMSprop with these settings; it keeps only the vectors that they need."""
    kept = (_SQUARES, *([_MEAN] if settings.centered else []), *([_MOMENTUM] if float(settings.momentum) else []))

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, done: int) -> None:
        rmsprop(
            [vector],
            [gradient],
            [state[_SQUARES]],
            [state[_MEAN]] if settings.centered else [],
            [state[_MOMENTUM]] if float(settings.momentum) else [],
            [torch.tensor(float(done))],
            foreach=False,
            lr=learning_rate,
            alpha=float(settings.alpha),
            eps=float(settings.epsilon),
            weight_decay=float(settings.weight_decay),
            momentum=float(settings.momentum),
            centered=settings.centered,
        )

    return Stepper(kept, step)
