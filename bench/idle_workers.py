"""`python -m bench.idle_workers`: what idle processes of Dask take, with Dask's settings and with ours.

The two take turns. Each starts a scheduler and workers on this machine, waits until they have settled, and counts the
CPU time of each process for some seconds; the driver has the scheduler and all nannies.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import Annotated

import dask
import psutil
import typer
from batchgrowth.contract.environment import DASK
from distributed import LocalCluster
from rich.console import Console

from bench.report import Sheet, as_table, cells
from bench.rounds import spread

_SETTLE_SECONDS = 5.0
_HERE = "127.0.0.1"


def main(
    workers: Annotated[int, typer.Option(min=1, max=64)] = 4,
    seconds: Annotated[float, typer.Option(min=1, help="How long CPU time is counted, each time.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1)] = 3,
) -> None:
    """Print the CPU time of one idle worker and of the driver, in ms per second."""
    settings = {"Dask's settings": dict[str, bool | str](), "ours": DASK}
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(rounds):
        for name, chosen in settings.items():
            worker, driver = _cpu(chosen, workers, seconds)
            found.setdefault((name, "worker"), []).append(worker)
            found.setdefault((name, f"driver of {workers}"), []).append(driver)
    rows: list[tuple[str, ...]] = [(*key, *cells(spread(times), 1)) for key, times in found.items()]
    columns = ("settings", "process", "ms/s: min", "median", "max")
    Console().print(as_table(Sheet(f"CPU time of idle processes, {rounds} rounds in turns", columns, rows)))


def _cpu(settings: dict[str, bool | str], workers: int, seconds: float) -> tuple[float, float]:
    """The CPU time of one worker, and of this process, in ms per second."""
    quiet = {
        "dashboard_address": f"{_HERE}:0",
        "worker_dashboard_address": None,
        "memory_limit": 0,
        "scheduler_kwargs": {"dashboard": False},
    }
    with ExitStack() as stack:
        stack.enter_context(dask.config.set(settings))
        stack.enter_context(LocalCluster(n_workers=workers, threads_per_worker=1, host=_HERE, **quiet))
        time.sleep(_SETTLE_SECONDS)
        here = psutil.Process()
        others = here.children(recursive=True)
        before = _spent(here), sum(map(_spent, others))
        time.sleep(seconds)
        mine, theirs = _spent(here) - before[0], sum(map(_spent, others)) - before[1]
    return 1e3 * theirs / workers / seconds, 1e3 * mine / seconds


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    typer.run(main)
