"""The digits net on hosts whose processors are slower than this machine's: what `bench.networks` trains.

A worker sleeps after each shard, until it has lasted a multiple of the processor time that such a shard takes when
nothing disturbs it: the least that this process has measured. So hosts that share two cores each compute as if they had
a processor of their own, and one of them can be slower than the others.
The sleep changes no bit of the gradients.
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
"""Variable with the address of a worker's host; a process without it is not slowed down."""

_LEAST: dict[tuple[str, int], float] = {}
"""Seconds of a processor for a shard, by net and number of examples: the least that this process has measured."""


def mlp(hidden: str, pace: str, slowest: str = "", times: str = "1") -> Workload:
    """The net with one hidden layer; a shard lasts `pace` times its processor time, and `times` that on `slowest`."""
    return _paced(digits.mlp(hidden), f"mlp {hidden}", pace, slowest, times)


def conv_net(hidden: str, pace: str, slowest: str = "", times: str = "1") -> Workload:
    """The convolutional net of examples/digits.yaml, in the same way."""
    return _paced(digits.workload(hidden, dropout="0"), f"conv_net {hidden}", pace, slowest, times)


def _paced(workload: Workload, net: str, pace: str, slowest: str, times: str) -> Workload:
    here = os.environ.get(HOST, "")
    if not here:
        return workload
    factor = float(pace) * (float(times) if here == slowest else 1.0)
    return replace(workload, step=partial(_step, workload.loss, net, factor))


def _step(
    loss: Callable[[Any, Any], Tensor], net: str, factor: float, model: nn.Module, inputs: Tensor, target: Tensor
) -> Tensor:
    end = partial(_end, (net, len(inputs)), factor, time.monotonic(), time.thread_time())
    started: Tensor = _AtEnd.apply(inputs.detach().requires_grad_(), end)
    return loss(model(started), target)


def _end(key: tuple[str, int], factor: float, began: float, processor_began: float) -> None:
    """Sleep until the shard that began at these times has lasted as long as it should."""
    least = _LEAST[key] = min(_LEAST.get(key, float("inf")), time.thread_time() - processor_began)
    time.sleep(max(0.0, began + factor * least - time.monotonic()))


class _AtEnd(autograd.Function):
    """The identity, whose gradient is the last thing that the backward pass of a shard computes: then it calls."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, end: Callable[[], None]) -> Tensor:
        ctx.end = end
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        ctx.end()
        return None, None
