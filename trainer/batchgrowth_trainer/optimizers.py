"""torch's own optimizers, each stepping one flat vector; their state is made of flat vectors too.

A step depends on nothing but (vector, gradient, state, learning rate, updates done), so a state can be carried to
another process, or read from a checkpoint, and go on with the same bits.
"""

from __future__ import annotations

from typing import Any

import torch
from batchgrowth.spec import SGD, JobSpec
from torch import Tensor, nn

_SGD_STATE = ("momentum_buffer",)
_ADAM_STATE = ("exp_avg", "exp_avg_sq")


class FlatOptimizer:
    """SGD (momentum, Nesterov, weight decay), Adam or AdamW over `vector`, shape (length,), float32."""

    def __init__(self, spec: JobSpec, vector: nn.Parameter) -> None:
        self._vector = vector
        self._torch, names = _build(spec, vector)
        self.state: dict[str, Tensor] = {name: torch.zeros_like(vector.data) for name in names}
        self._counts_steps = names == _ADAM_STATE
        self._torch.state[vector] = {**self.state}

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int) -> None:
        """Move the vector by one update; `gradient` is the mean over the batch, shape (length,)."""
        self._vector.grad = gradient
        self._torch.param_groups[0]["lr"] = learning_rate
        if self._counts_steps:
            self._torch.state[self._vector]["step"] = torch.tensor(float(updates_done))
        self._torch.step()
        self._vector.grad = None


def _build(spec: JobSpec, vector: nn.Parameter) -> tuple[torch.optim.Optimizer, tuple[str, ...]]:
    plain: dict[str, Any] = {"lr": 0.0, "foreach": False}
    settings = spec.optimizer.settings
    if isinstance(settings, SGD):
        momentum = float(settings.momentum)
        decay = float(settings.weight_decay)
        sgd = torch.optim.SGD([vector], momentum=momentum, nesterov=settings.nesterov, weight_decay=decay, **plain)
        return sgd, _SGD_STATE if momentum else ()
    kind = torch.optim.AdamW if spec.optimizer.type == "AdamW" else torch.optim.Adam
    betas, epsilon, decay = (
        (float(settings.beta1), float(settings.beta2)),
        float(settings.epsilon),
        float(settings.weight_decay),
    )
    return kind([vector], betas=betas, eps=epsilon, weight_decay=decay, **plain), _ADAM_STATE
