"""The digits net on hosts whose processors are slower than this machine's: what `bench.networks` trains.

After each shard a worker sleeps, in proportion to the processor time that the shard took. So hosts that share two cores
each compute as if they had a core of their own, and one of them can be slower than the others.
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


def mlp(hidden: str, pace: str, slowest: str = "", times: str = "1") -> Workload:
    """The net with one hidden layer; a shard takes `pace` times its processor time, and `times` that on `slowest`."""
    return _paced(digits.mlp(hidden), pace, slowest, times)


def conv_net(hidden: str, pace: str, slowest: str = "", times: str = "1") -> Workload:
    """The convolutional net of examples/digits.yaml, in the same way."""
    return _paced(digits.workload(hidden, dropout="0"), pace, slowest, times)


def _paced(workload: Workload, pace: str, slowest: str, times: str) -> Workload:
    here = os.environ.get(HOST, "")
    if not here:
        return workload
    factor = float(pace) * (float(times) if here == slowest else 1.0)
    return replace(workload, step=partial(_step, workload.loss, factor - 1.0))


def _step(loss: Callable[[Any, Any], Tensor], more: float, model: nn.Module, inputs: Tensor, target: Tensor) -> Tensor:
    began = time.thread_time()
    started: Tensor = _Pace.apply(inputs.detach().requires_grad_(), began, more)
    return loss(model(started), target)


class _Pace(autograd.Function):
    """The identity, whose gradient is the last thing that the backward pass of a shard computes: then it sleeps."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, began: float, more: float) -> Tensor:
        ctx.began, ctx.more = began, more
        return inputs.view_as(inputs)

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        time.sleep(ctx.more * (time.thread_time() - ctx.began))
        return None, None, None
