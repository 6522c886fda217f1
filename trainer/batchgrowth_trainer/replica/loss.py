"""The loss of a training shard: what the workload's functions make of its examples."""

from typing import Any

import torch
from batchgrowth.spec import JobSpec
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from batchgrowth_trainer.replica.compiled import Compiled
from batchgrowth_trainer.replica.devices import autocast
from batchgrowth_trainer.workload import Workload


class Loss:
    """Computes the loss of a shard, in the arithmetic of spec.precision, compiled if spec.compile says so."""

    def __init__(self, spec: JobSpec, workload: Workload, model: nn.Module, device: torch.device) -> None:
        self._spec, self._workload, self._model, self._device = spec, workload, model, device
        self._values = Compiled(workload.values, spec, device) if spec.compile else workload.values
        self._modules = tuple(model.modules())
        self._norms = [m for m in self._modules if isinstance(m, _BatchNorm)]

    def begin(self) -> None:
        """Put the model into training mode, unless all of it is: to look takes less time than to do it."""
        if not all(module.training for module in self._modules):
            self._model.train()

    def __call__(self, inputs: Any, target: Any, count: int) -> Tensor:
        """The losses of the `count` examples of a shard, floats of shape (count,), with their graph.

        Raises WorkloadError if the workload returns something else than one loss per example.
        """
        workload = self._workload
        inputs = workload.augmented(inputs)
        # One example has no variance, so batch norm uses its running statistics.
        resting = [norm for norm in self._norms if norm.training] if count == 1 else []
        for norm in resting:
            norm.eval()
        with autocast(self._spec, self._device):
            losses = workload.checked(self._values(self._model, inputs, target), target, count)
        for norm in resting:
            norm.train()
        return losses

    def differentiate(self, losses: Tensor) -> Tensor:
        """Add the gradient of the sum of the losses to the parameters' own; the sum, of no dimensions, without a graph.

        To differentiate the losses themselves takes less time, but makes torch import sympy: .4 s, and tens of MiB of
        each process.
        """
        total = (losses.float() if losses.dtype is torch.bfloat16 else losses).sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total.detach()
