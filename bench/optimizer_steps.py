"""`python -m bench.optimizer_steps`: the optimizer's step of a large model, at once and on blocks of its vectors.

Two processes, with the memory settings of workers, take each step at the same time, since the workers of a machine
share its memory's bandwidth and some of its caches. The sizes of blocks take turns.
"""

from __future__ import annotations

import os
import time
from multiprocessing import get_context
from typing import TYPE_CHECKING, Annotated, Any
from unittest.mock import patch

import torch
import typer
from batchgrowth.contract.environment import worker_environment
from batchgrowth_trainer.replica import optimizers
from batchgrowth_trainer.replica.flat import FlatParameters
from batchgrowth_trainer.replica.optimizers import AnyOptimizer, optimizer_of
from rich.console import Console
from torch import nn

from bench.cases import DIGITS, make_job
from bench.report import Sheet, as_markdown, as_table, cells
from bench.rounds import spread, turned

if TYPE_CHECKING:
    from multiprocessing.synchronize import Barrier

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD, momentum": {"type": "SGD", "sgd": {"momentum": "0.9"}},
    "SGD, Nesterov's momentum, weight decay": {
        "type": "SGD",
        "sgd": {"momentum": "0.9", "nesterov": True, "weightDecay": "0.0005"},
    },
    "AdamW": {"type": "AdamW"},
}
BLOCKS = (1 << 62, 1 << 18, optimizers.BLOCK, 1 << 15, 1 << 13)
"""The first is longer than any vector."""
_PROCESSES, _WARM = 2, 2


def main(
    elements: Annotated[int, typer.Option(min=1, help="Parameters of the model; by default those of VGG-11.")] = (
        9_230_000
    ),
    steps: Annotated[int, typer.Option(min=1, help="Steps with each size, after two others.")] = 20,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print Markdown, for docs/benchmarks.md.")] = False,
) -> None:
    """Print the milliseconds of a step of each process, and the ratios to a step at once in the same turn."""
    for name in OPTIMIZERS:
        rows: list[tuple[str, ...]] = []
        found = _measured(name, elements, steps)
        for block, times in found.items():
            ratios = spread([mine / theirs for mine, theirs in zip(times, found[BLOCKS[0]], strict=True)])
            size = "all" if block == BLOCKS[0] else f"{block:,}"
            rows.append((size, *cells(spread(times), 1), *cells(ratios, 3)))
        columns = ("elements at once", "ms: min", "median", "max", "ratio: min", "median", "max")
        sheet = Sheet(
            f"{name}: {elements:,} parameters, {steps} steps in each of {_PROCESSES} processes", columns, rows
        )
        if markdown:
            typer.echo(f"{as_markdown(sheet)}\n")
        else:
            Console().print(as_table(sheet))


def _measured(name: str, elements: int, steps: int) -> dict[int, list[float]]:
    """The milliseconds of all processes, by the size of the blocks."""
    context = get_context("spawn")
    together = context.Barrier(_PROCESSES)
    receivers = []
    processes = []
    with patch.dict(os.environ, worker_environment(1)):
        for _ in range(_PROCESSES):
            receiver, sender = context.Pipe(duplex=False)
            receivers.append(receiver)
            processes.append(context.Process(target=_take, args=(name, elements, steps, together, sender)))
            processes[-1].start()
            sender.close()
    answers = [receiver.recv() for receiver in receivers]
    for process in processes:
        process.join()
    return {block: [ms for answer in answers for ms in answer[block]] for block in BLOCKS}


def _take(name: str, elements: int, steps: int, together: Barrier, sender: Any) -> None:
    """Send the milliseconds of the steps of this process, by the size of the blocks."""
    torch.set_num_threads(1)
    workload = {"entrypoint": "batchgrowth_trainer.workloads.digits:mlp", "examples": DIGITS}
    batch = {"initial": 64, "maximum": 64, "growth": {"type": "Constant"}}
    spec = make_job("steps", workload=workload, epochs=1, batch=batch, optimizer=OPTIMIZERS[name]).spec
    gradient = torch.randn(elements)
    made = {block: _optimizer(spec, elements, block) for block in BLOCKS}
    times: dict[int, list[float]] = {block: [] for block in BLOCKS}
    for number in range(_WARM + steps):
        for block in turned(BLOCKS, number):
            together.wait()
            began = time.perf_counter()
            made[block].step(gradient, 0.01, 1 + number)
            times[block].append((time.perf_counter() - began) * 1e3)
    sender.send({block: found[_WARM:] for block, found in times.items()})


def _optimizer(spec: Any, elements: int, block: int) -> AnyOptimizer:
    model = nn.Module()
    model.register_parameter("weight", nn.Parameter(torch.randn(elements)))
    optimizers.BLOCK = block
    return optimizer_of(spec, FlatParameters(model, torch.device("cpu")))


if __name__ == "__main__":
    typer.run(main)
