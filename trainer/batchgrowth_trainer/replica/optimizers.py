"""torch's own steps, over one flat vector; what they remember is made of flat vectors too.

A step depends on nothing but (vector, gradient, state, learning rate, updates done), so a state can be carried to
another process, or read from a checkpoint, and go on with the same bits.  The steps are torch's functions and not its
classes: making one of those loads torch's compiler, a second in which a new worker has better things to do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch
from batchgrowth.spec import SGD, Adam, JobSpec
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd

_SGD_STATE = ("momentum_buffer",)
_ADAM_STATE = ("exp_avg", "exp_avg_sq")

Step = Callable[[Tensor, Tensor, Mapping[str, Tensor], float, int], None]


class FlatOptimizer:
    """SGD (momentum, Nesterov, weight decay), Adam or AdamW over `vector`, shape (length,), float32."""

    def __init__(self, spec: JobSpec, vector: nn.Parameter) -> None:
        self._vector = vector
        self._step, names = _step_of(spec)
        self.state: dict[str, Tensor] = {name: torch.zeros_like(vector.data) for name in names}

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: float, updates_done: int) -> None:
        """Move the vector by one update; `gradient` is the mean over the batch, shape (length,)."""
        self._step(self._vector, gradient, self.state, learning_rate, updates_done)


def _step_of(spec: JobSpec) -> tuple[Step, tuple[str, ...]]:
    """The step of the spec's rule, and the names of what it remembers."""
    settings = spec.optimizer.settings
    if isinstance(settings, SGD):
        return partial(_sgd, settings), _SGD_STATE if float(settings.momentum) else ()
    return partial(_adam, settings, spec.optimizer.type == "AdamW"), _ADAM_STATE


def _sgd(
    settings: SGD, vector: Tensor, gradient: Tensor, state: Mapping[str, Tensor], learning_rate: float, _done: int
) -> None:
    sgd(
        [vector],
        [gradient],
        [state.get("momentum_buffer")],
        foreach=False,
        lr=learning_rate,
        momentum=float(settings.momentum),
        nesterov=settings.nesterov,
        weight_decay=float(settings.weight_decay),
        dampening=0.0,
        maximize=False,
    )


def _adam(
    settings: Adam,
    decoupled: bool,
    vector: Tensor,
    gradient: Tensor,
    state: Mapping[str, Tensor],
    learning_rate: float,
    done: int,
) -> None:
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
