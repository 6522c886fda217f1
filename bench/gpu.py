"""`python -m bench.gpu`: what needs a GPU: the tests of tests/gpu, and updates of ours beside those of plain torch.

Without a CUDA device it runs nothing, and says what was never run on this machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated

import torch
import typer
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.building import build_replica, build_workload
from batchgrowth_trainer.replica.data import Requests, fetch, to_device
from batchgrowth_trainer.replica.reproducible import autocast, make_device, prepare_process

from bench.cases import OUR_REDUCE, Case, System, cases
from bench.tables import cells, show, spread

ROOT = Path(__file__).parents[1]
CASES = ("mlp-512", "wrn-64", "all-vgg11-256")
SAME = "plain torch, with the same kernels"
OURS = "batchgrowth, one worker"
SHARDS = "batchgrowth, four shards a batch"
FREE = "batchgrowth, deterministic: false"
PLAIN = "plain torch, with its default settings"
NARROWER = ("TensorFloat32", "BFloat16")
_WARM_UPDATES = 20
_TIMED_UPDATES = 200


@dataclass(frozen=True, slots=True)
class Turn:
    """A system: the function that makes an update, and the kernels with which it computes."""

    spec: JobSpec
    update: Callable[[], None]
    default_kernels: bool = False

    def choose_kernels(self) -> None:
        """Set the process so that the next update computes with them."""
        prepare_process(self.spec)
        if self.default_kernels:
            torch.use_deterministic_algorithms(mode=False)
            torch.backends.cudnn.allow_tf32 = True


def main(tests: Annotated[bool, typer.Option(help="Run tests/gpu first.")] = True) -> None:
    """Run the tests of tests/gpu and the benchmarks on this machine's GPU; the exit code is that of the tests."""
    if not torch.cuda.is_available():
        print("No CUDA device is visible here, so nothing was run. These were never run on this machine:")
        print("\n".join(f"  {name}" for name in [*never_run(), *(f"benchmark {name}" for name in CASES)]))
        return
    print(f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    failed = 0
    if tests:
        words = [sys.executable, "-m", "pytest", "-m", "not long", "tests/gpu"]
        failed = subprocess.run(words, cwd=ROOT, check=False).returncode
    for case in cases(quick=False):
        if case.name in CASES:
            show_times(case.name, compare(case, "CUDA", _WARM_UPDATES, _TIMED_UPDATES))
    raise typer.Exit(failed)


def never_run() -> list[str]:
    """Return the ids of the tests in tests/gpu."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "tests/gpu"]
    plain = os.environ | {"PYTEST_ADDOPTS": ""}
    listed = subprocess.run(words, cwd=ROOT, env=plain, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


def compare(case: Case, device: str, warm: int, timed: int) -> dict[str, list[float]]:
    """Return the milliseconds of each timed update, by system.

    All systems take turns, an update each, on that workload.device. The batch is one shard, but four for SHARDS.
    """
    whole = _spec(case, device, case.batch)
    systems = {
        SAME: _plain(whole),
        OURS: _ours(whole),
        SHARDS: _ours(_spec(case, device, case.batch // 4)),
        FREE: _ours(whole.model_copy(update={"deterministic": False})),
        PLAIN: _plain(whole, default_kernels=True),
    }
    for precision in NARROWER:
        spec = whole.model_copy(update={"precision": precision})
        systems |= {f"plain torch, {precision}": _plain(spec), f"batchgrowth, {precision}": _ours(spec)}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(warm + timed):
        for name, system in systems.items():
            system.choose_kernels()
            _wait(device)
            began = perf_counter()
            system.update()
            _wait(device)
            if turn >= warm:
                times[name].append((perf_counter() - began) * 1e3)
    return times


def show_times(case: str, times: dict[str, list[float]]) -> None:
    """Print a table of the times, and of their ratios to those of plain torch with the same kernels."""
    rows = []
    for name, mine in times.items():
        ratios = [one / other for one, other in zip(mine, times[SAME], strict=True)]
        rows.append((name, *cells(spread(mine), 2), *cells(spread(ratios), 2)))
    columns = ["system", "ms per update: min", "median", "max", "ratio: min", "median", "max"]
    show(f"{case} on one device", columns, rows)


def _spec(case: Case, device: str, shard: int) -> JobSpec:
    spec = case.job(System(OUR_REDUCE, "AllReduce", shard)).spec
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"device": device}), "epochs": 1_000})


def _ours(spec: JobSpec) -> Turn:
    replica = build_replica(spec)

    def update() -> None:
        step = replica.plan.step_at(replica.position)
        partials = replica.partials(step, (0, step.shards))
        replica.commit(step, partials[0].row)
        replica.rows.release(partials)

    return Turn(spec, update)


def _plain(spec: JobSpec, *, default_kernels: bool = False) -> Turn:
    """Return the loop that a user writes: the same examples in the same order, SGD of torch, and no history."""
    workload = build_workload(spec)
    device = make_device(spec)
    model = workload.model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(spec.learning_rate.initial), momentum=0.9)
    requests = Requests(spec.seed)
    examples = spec.workload.examples
    size = spec.batch.initial
    starts = ((epoch, at) for epoch in range(spec.epochs) for at in range(0, examples, size))

    def update() -> None:
        epoch, at = next(starts)
        indices = requests.order(epoch, examples)[at : at + size]
        inputs, target = to_device(fetch(workload.train, indices), device)
        optimizer.zero_grad()
        with autocast(spec, device):
            loss = workload.loss(model(inputs), target).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return Turn(spec, update, default_kernels)


def _wait(device: str) -> None:
    if device == "CUDA":
        torch.cuda.synchronize()


if __name__ == "__main__":
    typer.run(main)
