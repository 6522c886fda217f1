"""`python -m bench.forecasts`: the time left that a run forecasts after a tenth of itself, beside the actual one.

The runs are real: three nets, three exchanges, and a batch and workers that grow, or shrink, after that tenth. Each
worker computes as slowly as if it had a processor of its own, or four of them would contend for the cores of a laptop,
which no run on a cluster does, and which an update on one worker cannot foretell.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from batchgrowth.plan import Plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.history import HistoryRow

from bench import loopback
from bench.cases import make_job
from bench.paced_workload import HOST
from bench.paced_workload import __name__ as WORKLOAD

SHARE = 0.1
"""The share of its time after which a run is asked how much is left."""
MOST_ERROR = 0.15
LEAST_COVERED = 0.8
"""The targets: the median error, and the share of runs whose time left is in the interval."""
WORKERS = 4
EXAMPLES = 1437
SHARD = 32
NETS = {
    "mlp": (f"{WORKLOAD}:mlp", {"hidden": "512", "seconds": "0.00035"}, 60),
    "wide mlp": (f"{WORKLOAD}:mlp", {"hidden": "4096", "seconds": "0.0003"}, 60),
    "conv net": (f"{WORKLOAD}:conv_net", {"hidden": "16", "seconds": "0.00075"}, 36),
}
"""Name -> entrypoint, its arguments, and the epochs that take about a minute."""
EXCHANGES = ("AllReduce", "GatherScatter", "ParameterServer")
SIZES = {"growth": (SHARD, 2 * SHARD, 4 * SHARD), "shrink": (4 * SHARD, 2 * SHARD, SHARD)}
"""The batches of two fifths of a run's examples, of three tenths and of the rest; each has a worker per shard."""
TURNS = (0.4, 0.3)
"""The shares of the examples before the last of these sizes."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A run's time left after a tenth of it, in seconds: the forecast with its interval, and what came."""

    run: str
    forecast: float
    low: float
    high: float
    actual: float

    @property
    def error(self) -> float:
        """Return the relative error."""
        return abs(self.forecast / self.actual - 1)

    @property
    def is_covered(self) -> bool:
        """Return whether what came is in the interval."""
        return self.low <= self.actual <= self.high


def jobs(*, quick: bool = False) -> Iterator[tuple[str, BatchGrowthJob]]:
    """Yield (name, job) for each net, exchange and direction; with `quick`, two of the smallest net."""
    for net, (entrypoint, arguments, epochs) in NETS.items():
        for exchange in EXCHANGES:
            for direction, sizes in SIZES.items():
                if not quick or (net == "mlp" and exchange == "AllReduce"):
                    job = _job(entrypoint, arguments, exchange, sizes, 3 if quick else epochs)
                    yield f"{net}, {exchange}, {direction}", job


def _job(
    entrypoint: str, arguments: dict[str, str], exchange: str, sizes: Sequence[int], epochs: int
) -> BatchGrowthJob:
    steps: list[dict[str, Any]] = []
    update = 0
    if sizes[0] > SHARD:
        update = 1
        steps.append({"update": update, "batchSize": sizes[0]})  # a batch has to grow before it may shrink
    for before, share, size in zip(sizes, TURNS, sizes[1:], strict=False):
        update += int(share * EXAMPLES * epochs / before)
        steps.append({"update": update, "batchSize": size})
    return make_job(
        "forecast",
        epochs=epochs,
        workload={"entrypoint": entrypoint, "arguments": arguments, "examples": EXAMPLES},
        batch={
            "initial": SHARD,
            "maximum": max(sizes),
            "shard": SHARD,
            "growth": {"type": "Milestones", "milestones": {"steps": steps}},
        },
        exchange={"type": exchange},
        workers={"examplesPerWorker": SHARD, "minimum": 1, "maximum": WORKERS, "waitSeconds": 60},
        evaluation={"everyEpochs": 1},
    )


def judged(name: str, rows: Sequence[HistoryRow]) -> Judged:
    """Return what the run had forecast after a tenth of its time. Raises ValueError if it had no forecast by then."""
    end = rows[-1].seconds
    for row in rows:
        if row.seconds >= SHARE * end and row.outlook is not None:
            left = row.outlook.remaining
            return Judged(name, left.value, left.low, left.high, end - row.seconds)
    raise ValueError(f"{name}: the run ended before its first forecast")


def planned(plan: Plan, position: Position) -> int:
    """Return the workers that the plan wants at this position."""
    return plan.stage_at(position.update).workers


Quick = Annotated[bool, typer.Option("--quick", help="Two small runs, to see that everything runs.")]
Output = Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here, too.")]


def main(quick: Quick = False, output: Output = None) -> None:
    """Train short runs, and compare the time left that each forecast after a tenth with what came."""
    from bench import ours
    from bench.tables import about, show, write

    found: list[Judged] = []
    os.environ[HOST] = "any"  # the workers take it from here
    with ours.workers_ready(WORKERS) as scheduler:
        for name, job in jobs(quick=quick):
            print(f"forecasts: {name}", file=sys.stderr)
            kept = ours.Rows()
            ours.run(job, scheduler, planned, [kept])
            found.append(judged(name, kept.rows))
    print(f"{about(quick=quick)} Load average over 5 minutes: {os.getloadavg()[1]:.1f}.")
    columns = ("run", "forecast in s", "low", "high", "actual", "error")
    rows = [
        [one.run, *(f"{seconds:.2f}" for seconds in (one.forecast, one.low, one.high, one.actual)), f"{one.error:.1%}"]
        for one in found
    ]
    show("Time left after a tenth of a run", columns, rows)
    error = median(one.error for one in found)
    covered = sum(one.is_covered for one in found) / len(found)
    targets = [
        (f"error at most {MOST_ERROR:.0%} in the median", f"{error:.1%}", "met" if error <= MOST_ERROR else "missed"),
        (
            f"interval covers at least {LEAST_COVERED:.0%}",
            f"{covered:.0%}",
            "met" if covered >= LEAST_COVERED else "missed",
        ),
    ]
    show("Targets", ("target", "measured", ""), targets)
    if output:
        write(Forecasts(found), output)


@dataclass(frozen=True, slots=True)
class Forecasts:
    """All runs."""

    runs: list[Judged]


if __name__ == "__main__":
    loopback.enter_private_network("bench.forecasts", sys.argv[1:])
    typer.run(main)
