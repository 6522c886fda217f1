"""SGD with momentum, Nesterov's momentum and weight decay."""

from collections.abc import Mapping

from batchgrowth.optimizers.sgd import SGD
from torch import Tensor

from batchgrowth_trainer.replica.optimizer import Stepper

_MOMENTUM = "momentum_buffer"


def stepper(settings: SGD) -> Stepper:
    """Torch's SGD with these settings, operation by operation; it keeps a momentum buffer if there is momentum.

    Torch's own function takes twice as long for a small net.
    """
    momentum, decay, nesterov = float(settings.momentum), float(settings.weight_decay), settings.nesterov

    def step(vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, _done: int) -> None:
        if decay:
            gradient = gradient.add(vector, alpha=decay)
        if momentum:
            buffer = state[_MOMENTUM].mul_(momentum).add_(gradient)
            gradient = gradient.add(buffer, alpha=momentum) if nesterov else buffer
        vector.add_(gradient, alpha=-learning_rate)

    return Stepper((_MOMENTUM,) if momentum else (), step)
