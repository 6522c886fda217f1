"""Nets for benchmarks on hosts whose processors are slower than this machine's.

A worker sleeps after each shard, until the shard has lasted a multiple of the least processor time that such a shard
took in this process. So each of the hosts that share two cores computes as if it had a processor of its own, and one of
them can be slower than the others. The sleep changes no bit of the gradients.
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

_LEAST: dict[int, float] = {}
"""Number of examples -> the least processor time that a shard took in this process, in seconds."""


def mlp(hidden: str, pace: str, slowest: str = "", times: str = "1") -> Workload:
    """Return the net with one hidden layer.

    A shard lasts `pace` times its processor time, and `times` that on the host with the address `slowest`.
    """
    return _paced(digits.mlp(hidden), float(pace), slowest, float(times))


def conv_net(hidden: str, pace: str) -> Workload:
    """Return the convolutional net. A shard lasts `pace` times its processor time."""
    return _paced(digits.workload(hidden), float(pace))


def _paced(workload: Workload, factor: float, slowest: str = "", times: float = 1.0) -> Workload:
    here = os.environ.get(HOST, "")
    if not here:
        return workload
    if here == slowest:
        factor *= times
    return replace(workload, step=partial(_step, workload.loss, factor))


def _step(
    loss: Callable[[Any, Any], Tensor], factor: float, model: nn.Module, inputs: Tensor, target: Tensor
) -> Tensor:
    end = partial(_end, len(inputs), factor, time.monotonic(), time.thread_time())
    started: Tensor = _AtEnd.apply(inputs.detach().requires_grad_(), end)
    return loss(model(started), target)


def _end(examples: int, factor: float, began: float, processor_began: float) -> None:
    """Sleep until the shard that began at these times has lasted as long as it should."""
    _LEAST[examples] = min(_LEAST.get(examples, float("inf")), time.thread_time() - processor_began)
    time.sleep(max(0.0, began + factor * _LEAST[examples] - time.monotonic()))


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
