"""An optimizer over one flat vector; its state is made of flat vectors too.

A step depends on nothing but (vector, gradient, state, learning rate, updates done), so the state can move to another
process or through a checkpoint and continue with the same bits.  The steps are torch's functions, not its classes:
constructing one of those loads torch's compiler, a second that a new worker should not spend.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from batchgrowth.spec import JobSpec
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class Stepper:
    """`step(vector, gradient, state, learning rate, updates done)` moves the vector in place.

    `state` names the flat vectors that the optimizer keeps between steps; each begins at 0.
    """

    state: tuple[str, ...]
    step: Callable[[Tensor, Tensor, Mapping[str, Tensor], float, int], None]


class FlatOptimizer:
    """The optimizer of a spec over `vector`, shape (length,), float32.

    Elements from `decayed` on are not decayed; by default, all are.
    """

    def __init__(self, spec: JobSpec, vector: nn.Parameter, decayed: int | None = None) -> None:
        make, settings = spec.optimizer.entry.load(), spec.optimizer.settings
        stepper: Stepper = make(settings)
        self.state: dict[str, Tensor] = {name: torch.zeros_like(vector.data) for name in stepper.state}
        cut = vector.numel() if decayed is None else decayed
        whole = cut == vector.numel()
        self._parts = [(vector if whole else vector.data[:cut], slice(0, cut), stepper)]
        if not whole:
            plain = make(settings.model_copy(update={"weight_decay": "0"}))
            self._parts.append((vector.data[cut:], slice(cut, None), plain))

    @torch.no_grad()
    def step(self, gradient: Tensor, learning_rate: float, updates_done: int) -> None:
        """Move the vector by one update; `gradient` is the mean over the batch, shape (length,)."""
        for vector, place, stepper in self._parts:
            state = {name: whole[place] for name, whole in self.state.items()}
            stepper.step(vector, gradient[place], state, learning_rate, updates_done)
