"""The outer optimizer of LocalSGD: the mean change of the replicas' weights is its gradient, with the sign reversed.

With a learning rate of 1 and no momentum the change is made as it is. Douillard et al., 2023 (DiLoCo).
"""

import torch
from batchgrowth.exchanges.local_sgd import LocalSGD, Outer
from batchgrowth.schema.model import exact
from batchgrowth.spec import JobSpec
from torch import Tensor


class OuterOptimizer:
    """SGD with momentum on `vector`, shape (length,); `momentum` has the same shape and begins at 0."""

    def __init__(self, settings: Outer, vector: Tensor) -> None:
        self._learning_rate, self._keep = float(exact(settings.learning_rate)), float(exact(settings.momentum))
        self._nesterov, self._vector = settings.nesterov, vector
        self.momentum = torch.zeros_like(vector)

    @torch.no_grad()
    def step(self, change: Tensor) -> None:
        """Move the vector by the mean change of a round, shape (length,)."""
        self.momentum.mul_(self._keep).add_(change)
        moved = change.add(self.momentum, alpha=self._keep) if self._nesterov else self.momentum
        self._vector.add_(moved, alpha=self._learning_rate)


def outer_of(spec: JobSpec, vector: Tensor) -> OuterOptimizer | None:
    """The outer optimizer that a job asks for."""
    settings = spec.exchange.settings
    asked = settings.outer if isinstance(settings, LocalSGD) else None
    return None if asked is None else OuterOptimizer(asked, vector)
