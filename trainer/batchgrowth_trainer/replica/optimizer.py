"""An optimizer over one flat vector; its state is made of flat vectors too.

A step depends on nothing but (vector, gradient, state, learning rate, updates done), so the state can move to another
process or through a checkpoint and continue with the same bits.  The steps are torch's functions, not its classes:
constructing one of those loads torch's compiler, a second that a new worker should not spend.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Protocol

import torch
from batchgrowth.errors import WorkloadError
from batchgrowth.spec import JobSpec
from torch import Tensor

from batchgrowth_trainer.replica.flat import FlatParameters

Take = Callable[[Tensor, Tensor, Mapping[str, Tensor], float, int], None]
BLOCK = 1 << 17
"""The elements of a vector that each thread of a CPU steps on at once: of four or five vectors, 2 MiB in its caches."""
_Bound = tuple[Take, slice, Tensor, Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Stepper:
    """`step(vector, gradient, state, learning rate, updates done)` moves the vector in place.

    `state` names the flat vectors that the optimizer keeps between steps; each begins at 0.
    If `by_parameter`, the vector is that of one parameter of the model; else it has several, and the step moves each
    element by itself, so that it may be taken for some of them.
    `spared`, with the same state, moves the parameters that do not decay; by default, the same without weight decay.
    """

    state: tuple[str, ...]
    step: Take
    by_parameter: bool = False
    spared: "Stepper | None" = None


class AnyOptimizer(Protocol):
    """`state` are the vectors that move with the parameters: they are read after a step and may be written before."""

    state: dict[str, Tensor]

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int) -> None:
        """Move the parameters by one update; `gradient` is the mean over the batch, shape (length,)."""


def optimizer_of(spec: JobSpec, parameters: FlatParameters) -> AnyOptimizer:
    """The optimizer of a spec over the trained parameters of a model. Raises WorkloadError if it does not fit them."""
    made = spec.optimizer.entry.load()(spec.optimizer.settings)
    if isinstance(made, Stepper):
        return FlatOptimizer(spec, parameters, made)
    optimizer: AnyOptimizer = made(spec, parameters)
    return optimizer


class FlatOptimizer:
    """Takes the steps of a Stepper. See AnyOptimizer."""

    def __init__(self, spec: JobSpec, parameters: FlatParameters, stepper: Stepper) -> None:
        vector, cut = parameters.vector.data, parameters.last_from
        self.state: dict[str, Tensor] = {name: torch.zeros_like(vector) for name in stepper.state}
        decayed = [span.place for span in parameters.spans if span.start < cut]
        others = [span.place for span in parameters.spans if span.start >= cut]
        parts = [(stepper, place) for place in _places(stepper, decayed)]
        if others:
            spared = stepper.spared or _undecayed(spec)
            parts += [(spared, place) for place in _places(spared, others)]
        self._parameters, self._steps = vector, parts
        self._bound = self._bind(slice(0, len(vector)))

    def within(self, place: slice) -> "FlatOptimizer":
        """One that moves only the parameters at `place`, whole ones; its gradients are theirs, shape of the slice.

        Its state is that of this one: the same vectors. It takes the same steps, bit for bit.
        """
        part = copy(self)
        part._bound = self._bind(place)
        return part

    def _bind(self, within: slice) -> list[_Bound]:
        """The steps with the views that they work on, and their place in the gradient of these parameters."""
        bound: list[_Bound] = []
        for stepper, place in self._steps:
            start, stop = max(place.start, within.start), min(place.stop, within.stop)
            for lo, hi in _blocks(stepper, start, stop, self._parameters.device):
                state = {name: whole[lo:hi] for name, whole in self.state.items()}
                bound.append(
                    (stepper.step, slice(lo - within.start, hi - within.start), self._parameters[lo:hi], state)
                )
        return bound

    def step(self, gradient: Tensor, learning_rate: float, updates_done: int) -> None:
        """Move the vector by one update; `gradient` is the mean over the batch, shape (length,).

        None of these tensors requires a gradient, so `no_grad` would only take time.
        """
        for step, place, vector, state in self._bound:
            step(vector, gradient[place], state, learning_rate, updates_done)


def _places(stepper: Stepper, parameters: Sequence[slice]) -> Sequence[slice]:
    """Where the steps are taken, given adjacent parameters: for each, or for all at once."""
    if stepper.by_parameter or not parameters:
        return parameters
    return [slice(parameters[0].start, parameters[-1].stop)]


def _blocks(stepper: Stepper, start: int, stop: int, device: torch.device) -> Iterator[tuple[int, int]]:
    """Where the steps on [start, stop) begin and end: one step, or on a CPU a step for each block.

    A step is several operations, each of which reads and writes its vectors; those of a block stay in the caches.
    """
    whole = stepper.by_parameter or device.type != "cpu"
    block = stop - start if whole else BLOCK * torch.get_num_threads()
    for lo in range(start, stop, max(1, block)):
        yield lo, min(lo + block, stop)


def _undecayed(spec: JobSpec) -> Stepper:
    settings = spec.optimizer.settings
    if not hasattr(settings, "weight_decay"):
        raise WorkloadError(
            f"optimizer.withoutDecay: {spec.optimizer.type} has no weightDecay, so leave withoutDecay out"
        )
    stepper: Stepper = spec.optimizer.entry.load()(settings.model_copy(update={"weight_decay": "0"}))
    return stepper
