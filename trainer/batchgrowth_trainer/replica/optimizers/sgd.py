"""SGD with momentum, Nesterov's momentum and weight decay."""

from collections.abc import Mapping

from batchgrowth.optimizers.sgd import SGD
from torch import Tensor
from torch.optim.sgd import sgd

from batchgrowth_trainer.replica.optimizer import Stepper

_MOMENTUM = "momentum_buffer"


def stepper(settings: SGD) -> Stepper:
    """Torch's SGD with these settings; it keeps a momentum buffer if there is momentum."""

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, _done: int) -> None:
        sgd(
            [vector],
            [gradient],
            [state.get(_MOMENTUM)],
            foreach=False,
            lr=learning_rate,
            momentum=float(settings.momentum),
            nesterov=settings.nesterov,
            weight_decay=float(settings.weight_decay),
            dampening=0.0,
            maximize=False,
        )

    return Stepper((_MOMENTUM,) if float(settings.momentum) else (), step)
