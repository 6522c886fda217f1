"""Nets for benchmarks on hosts whose processors are slower than this machine's.

A worker sleeps after each shard, until the shard has lasted so long for each of its examples. So each of the hosts that
share two cores computes as if it had a processor of its own, always of the same speed, and one of them can be slower
than the others. The sleep changes no bit of the gradients.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from batchgrowth_trainer.workload import Workload
from batchgrowth_trainer.workloads import digits
from torch import Tensor, autograd, nn

HOST = "BATCHGROWTH_BENCH_HOST"
"""The variable with the address of a worker's host; a process without it is not slowed down."""


def mlp(hidden: str, seconds: str, slowest: str = "", times: str = "1") -> Workload:
    """Return the net with one hidden layer.

    A shard lasts so many `seconds` for each of its examples, and `times` that on the host with the address `slowest`.
    """
    return _paced(digits.mlp(hidden), float(seconds), slowest, float(times))


def conv_net(hidden: str, seconds: str) -> Workload:
    """Return the convolutional net. A shard lasts so many `seconds` for each of its examples."""
    return _paced(digits.workload(hidden), float(seconds))


def _paced(workload: Workload, seconds: float, slowest: str = "", times: float = 1.0) -> Workload:
    here = os.environ.get(HOST, "")
    if not here:
        return workload
    if here == slowest:
        seconds *= times
    return replace(workload, step=partial(_step, workload.loss, seconds))


def _step(
    loss: Callable[[Any, Any], Tensor], seconds: float, model: nn.Module, inputs: Tensor, target: Tensor
) -> Tensor:
    end = partial(_sleep_until, time.monotonic() + seconds * len(inputs))
    started: Tensor = _AtEnd.apply(inputs.detach().requires_grad_(), end)
    return loss(model(started), target)


def _sleep_until(end: float) -> None:
    """Sleep until this time, at which the shard has lasted as long as it should."""
    time.sleep(max(0.0, end - time.monotonic()))


class _AtEnd(autograd.Function):
    """The identity; the backward pass of a shard computes its gradient last, and then calls `end`."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, end: Callable[[], None]) -> Tensor:
        ctx.end = end
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        ctx.end()
        return None, None
