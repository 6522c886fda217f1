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

import torch
import typer
from batchgrowth.spec import JobSpec
from batchgrowth_trainer.replica.building import build_replica, build_workload
from batchgrowth_trainer.replica.devices import make_device, prepare_process, to_device
from batchgrowth_trainer.replica.replica import Replica
from batchgrowth_trainer.replica.requests import Requests
from batchgrowth_trainer.workload import fetch
from rich.console import Console

from bench.cases import Case, cases
from bench.report import Sheet, as_table, cells
from bench.rounds import spread
from bench.systems import OUR_REDUCE, System

ROOT = Path(__file__).parents[1]
CASES = ("mlp-512", "wrn-64")
OURS, PLAIN = "batchgrowth, one worker", "plain torch"
_WARM, _TIMED = 20, 200  # updates


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each timed update, by system."""

    case: str
    by_system: dict[str, list[float]]


def main() -> None:
    """Run the tests of tests/gpu and the benchmarks on this machine's GPU; the exit code is that of the tests."""
    if not torch.cuda.is_available():
        print("No CUDA device is visible here, so nothing was run. These were never run on this machine:")
        print("\n".join(f"  {name}" for name in [*never_run(), *(f"benchmark {name}" for name in CASES)]))
        return
    print(f"{torch.cuda.device_count()} × {torch.cuda.get_device_name()}", flush=True)
    tests = subprocess.run([sys.executable, "-m", "pytest", "tests/gpu"], cwd=ROOT, check=False)
    for case in cases(quick=False):
        if case.name in CASES:
            show(compare(case, "CUDA", _WARM, _TIMED))
    raise typer.Exit(tests.returncode)


def never_run() -> list[str]:
    """The tests of tests/gpu, by their ids."""
    words = [sys.executable, "-m", "pytest", "--collect-only", "--quiet", "tests/gpu"]
    plain = os.environ | {"PYTEST_ADDOPTS": ""}
    listed = subprocess.run(words, cwd=ROOT, env=plain, capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if "::" in line]


def compare(case: Case, device: str, warm: int, timed: int) -> Times:
    """Both systems in turns, an update each, with the whole batch as one shard on that workload.device."""
    spec = _spec(case, device)
    prepare_process(spec)
    systems = {OURS: _ours(build_replica(spec)), PLAIN: _plain(spec)}
    times: dict[str, list[float]] = {name: [] for name in systems}
    for turn in range(warm + timed):
        for name, update in systems.items():
            _wait(device)
            began = perf_counter()
            update()
            _wait(device)
            if turn >= warm:
                times[name].append((perf_counter() - began) * 1e3)
    return Times(case.name, times)


def show(found: Times) -> None:
    """Print a table of the times, and their ratio."""
    rows = [(name, *cells(spread(times), 2)) for name, times in found.by_system.items()]
    ratios = [ours / plain for ours, plain in zip(found.by_system[OURS], found.by_system[PLAIN], strict=True)]
    rows.append(("ours / plain", *cells(spread(ratios), 3)))
    columns = ("system", "ms per update: min", "median", "max")
    Console(width=120).print(as_table(Sheet(f"{found.case} on one device", columns, rows)))


def _spec(case: Case, device: str) -> JobSpec:
    spec = case.job(System(OUR_REDUCE, "AllReduce", case.batch)).spec
    return spec.model_copy(update={"workload": spec.workload.model_copy(update={"device": device}), "epochs": 1_000})


def _ours(replica: Replica) -> Callable[[], None]:
    def update() -> None:
        step = replica.plan.step_at(replica.position)
        partials = replica.partials(step, (0, step.shards))
        replica.commit(step, partials[0].row)
        replica.rows.release(partials)

    return update


def _plain(spec: JobSpec) -> Callable[[], None]:
    """The loop that a user writes: the same examples in the same order, SGD of torch, and no history."""
    workload, device = build_workload(spec), make_device(spec)
    model = workload.model.to(device).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=float(spec.learning_rate.initial), momentum=0.9)
    requests, examples, size = Requests(spec.seed), spec.workload.examples, spec.batch.initial
    starts = (start for epoch in range(spec.epochs) for start in ((epoch, at) for at in range(0, examples, size)))

    def update() -> None:
        epoch, at = next(starts)
        indices = requests.order(epoch, examples)[at : at + size]
        inputs, target = to_device(fetch(workload.train, indices), device)
        optimizer.zero_grad()
        workload.loss(model(inputs), target).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return update


def _wait(device: str) -> None:
    if device == "CUDA":
        torch.cuda.synchronize()


if __name__ == "__main__":
    typer.run(main)
