"""`python -m bench.kept_memory`: what it costs a worker to give the memory of each update back to the system.

A process computes one shard of each update, and commits, in another thread than its first, as Dask's workers do. It is
started in turns with the settings of glibc, with those that Dask gives its workers, with thresholds alone, which were
ours before, and with ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import subprocess
import sys
import threading
from dataclasses import dataclass
from statistics import median
from typing import Annotated

import torch
import typer
from batchgrowth.contract.environment import TRIM_THRESHOLD_BYTES, worker_environment
from batchgrowth.schedule.plan import make_plan
from batchgrowth_trainer.replica.building import build_replica
from rich.console import Console

from bench.cases import cases
from bench.computing import update
from bench.report import Sheet, as_table, cells
from bench.rounds import spread, turned

SETTINGS = {
    "glibc's": {},
    "Dask's": {"MALLOC_TRIM_THRESHOLD_": "65536"},
    "thresholds alone": {
        "MALLOC_TRIM_THRESHOLD_": str(TRIM_THRESHOLD_BYTES),
        "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    },
    "ours": worker_environment(1),
}
_WARM = 2  # updates, which are not counted
_PR_SET_THP_DISABLE = 41  # prctl(2)


def main(
    only: Annotated[str, typer.Option(help="The case of `python -m bench` whose updates are computed.")] = (
        "all-vgg11-256"
    ),
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    updates: Annotated[int, typer.Option(min=1, help="Updates in each run, after two others.")] = 6,
    huge_pages: Annotated[bool, typer.Option(help="Whether Linux may give large pages that nothing asked for.")] = True,
) -> None:
    """Print the time of an update, the median of each run, the pages that it waited for, and the memory at most."""
    known = {case.name: case for case in cases(quick=False)}
    if only not in known:
        raise typer.BadParameter(f"no such case; give one of {', '.join(known)}", param_hint="--only")
    planned = make_plan(known[only].job().spec).updates
    if _WARM + updates > planned:
        most = f"{only} has {planned} updates, and the first {_WARM} are not counted"
        raise typer.BadParameter(f"{most}; give {planned - _WARM} at most", param_hint="--updates")
    found: dict[str, list[_Run]] = {name: [] for name in SETTINGS}
    for number in range(rounds):
        for name in turned(list(SETTINGS), number):
            found[name].append(_run(only, updates, SETTINGS[name], huge_pages=huge_pages))
    first = [run.ms for run in found["Dask's"]]
    rows: list[tuple[str, ...]] = []
    for name, runs in found.items():
        times = [run.ms for run in runs]
        ratios = spread([mine / theirs for mine, theirs in zip(times, first, strict=True)])
        rows.append((name, *cells(spread(times), 0), *cells(ratios, 3), f"{median(run.pages for run in runs):,.0f}",
                     f"{median(run.mib for run in runs):,.0f}"))  # fmt: skip
    columns = ("settings", "ms: min", "median", "max", "ratio to Dask's: min", "median", "max", "pages", "MiB")
    Console().print(as_table(Sheet(f"An update of {only}, {rounds} rounds of {updates} updates", columns, rows)))


@dataclass(frozen=True, slots=True)
class _Run:
    """The milliseconds and the page faults of an update, medians, and the memory of the process at most."""

    ms: float
    pages: float
    mib: float


def _run(case: str, updates: int, settings: dict[str, str], *, huge_pages: bool) -> _Run:
    """A run in a process with these variables."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    call = f"compute({case!r}, {updates}, huge_pages={huge_pages})"
    command = [sys.executable, "-c", f"from bench.kept_memory import compute; {call}"]
    done = subprocess.run(command, env=kept | settings, check=True, capture_output=True, text=True)
    times, pages, mib = json.loads(done.stdout)
    return _Run(median(times), median(pages), mib)


def compute(case: str, updates: int, *, huge_pages: bool) -> None:
    """Print the milliseconds and the page faults of each update of the case's job, and the MiB at most, as JSON."""
    if not huge_pages:
        ctypes.CDLL(None).prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    torch.set_num_threads(1)
    found: list[tuple[float, int]] = []
    thread = threading.Thread(target=lambda: found.extend(_updates(case, updates)))
    thread.start()
    thread.join()
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps([[ms for ms, _ in found], [pages for _, pages in found], most]))


def _updates(case: str, updates: int) -> list[tuple[float, int]]:
    replica = build_replica(next(one for one in cases(quick=False) if one.name == case).job().spec)
    found = []
    for _ in range(_WARM + updates):
        before, microseconds = _faults(), update(replica)
        found.append((microseconds / 1e3, _faults() - before))
    return found[_WARM:]


def _faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


if __name__ == "__main__":
    typer.run(main)
