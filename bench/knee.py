"""`python -m bench.knee`: the number of workers that `batchgrowth forecast` finds worth it, and where running shows it.

A run with a batch that grows, on one, two and four of the hosts of `bench.networks`, gives the constants. With them,
the forecast finds the knee of a job with the largest batch alone, and a number of workers that keeps a deadline. Then
the job runs with each number of workers, and as the manifest for the deadline says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from batchgrowth.errors import BatchGrowthError, counted
from batchgrowth.forecast.answers import knee_of
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.record.runs import read_run

from bench.emulator import Link
from bench.hosts import ROOT, Hosts
from bench.networks import EXAMPLE, WORKERS, Stand
from bench.paced_workload import __name__ as WORKLOAD
from bench.tables import about, show, write

EXCHANGES = ("AllReduce", "GatherScatter", "ParameterServer")
SHARD = 16
BATCH = 6 * SHARD
"""Of six shards, the busiest of four workers has two, as of three: the fourth worker brings nothing."""
CASES = {"slow hosts": ("0.0014", Link(delay_seconds=0.01)), "slow network": ("0.0001", Link(delay_seconds=0.02))}
"""Name -> the seconds that an example takes, and the links: on slow hosts three workers pay, on a slow network one."""
WORTH_PERCENT = 10.0
"""By how much a further worker must shorten the run."""
DEADLINE_SHARE = 1.3
QUICK_DEADLINE_SHARE = 4.0
"""The deadline, as a multiple of the time that the forecast has for two workers; a quick run has a wide interval."""


@dataclass(frozen=True, slots=True)
class Knee:
    """One exchange in one of the cases: the seconds by number of workers, forecast and measured, and what each says.

    `deadline` is in seconds, `chosen` the workers that the forecast chose for it, and `took` what that run took.
    """

    case: str
    exchange: str
    forecast: dict[int, float]
    measured: dict[int, float]
    forecast_knee: int
    measured_knee: int
    deadline: float
    chosen: int
    took: float


@dataclass(frozen=True, slots=True)
class Knees:
    """All exchanges."""

    quick: bool
    knees: list[Knee] = field(default_factory=list)


def job(exchange: str, case: str, epochs: int, *, grows: bool, maximum: int = WORKERS) -> BatchGrowthJob:
    """Return a job with one batch, or one that `grows` to it from a quarter and a half, and whose workers grow too."""
    growth: dict[str, Any] = {"type": "Constant"}
    initial = BATCH
    if grows:
        initial = BATCH // 4
        growth = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": epochs // 3}}
    given = {
        "epochs": epochs,
        "workload.device": "CPU",
        "workload.entrypoint": f"{WORKLOAD}:mlp",
        "workload.arguments": {"hidden": "512", "seconds": CASES[case][0]},
        "batch": {"initial": initial, "maximum": BATCH, "shard": SHARD, "growth": growth},
        "exchange": {"type": exchange},
        "workers": {"examplesPerWorker": BATCH // 4, "minimum": 1, "maximum": maximum, "waitSeconds": 60},
    }
    return load_manifest(EXAMPLE, [f"{path}={json.dumps(value)}" for path, value in given.items()])


# --- the measurement --------------------------------------------------------------------------------------------------


def measure(*, quick: bool) -> Knees:
    """Return the knees of all exchanges; with `quick`, of one."""
    epochs = 3 if quick else 9
    share = QUICK_DEADLINE_SHARE if quick else DEADLINE_SHARE
    found = Knees(quick)
    with tempfile.TemporaryDirectory(prefix="batchgrowth-bench-") as folder, Hosts(WORKERS + 1) as hosts:
        stand = Stand(hosts, Path(folder))
        for case, (_, link) in CASES.items():
            stand.train("warm-up", job(EXCHANGES[0], case, 3, grows=False), link)
            for exchange in EXCHANGES[:1] if quick else EXCHANGES:
                found.knees.append(_knee(stand, exchange, case, epochs, share, Path(folder) / case / exchange))
    return found


def _knee(stand: Stand, exchange: str, case: str, epochs: int, share: float, folder: Path) -> Knee:
    _took(stand, case, f"{exchange}, growing", job(exchange, case, epochs, grows=True), folder / "growing")
    long = job(exchange, case, epochs, grows=False)
    said = forecast(long, folder / "growing" / "run")
    expected = {point["workers"]: point["seconds"] for point in said["forecasts"][0]["curve"]}
    deadline = share * expected[2]
    answer = forecast(long, folder / "growing" / "run", "--deadline", f"{deadline:.3f}s")
    chosen = BatchGrowthJob.model_validate(answer["choice"]["manifest"])
    measured = {}
    for workers in range(1, WORKERS + 1):
        one = job(exchange, case, epochs, grows=False, maximum=workers)
        measured[workers] = _took(stand, case, f"{exchange}, {counted(workers, 'worker')}", one, folder / str(workers))
    return Knee(
        case=case,
        exchange=exchange,
        forecast=expected,
        measured=measured,
        forecast_knee=said["forecasts"][0]["knee"]["workers"],
        measured_knee=knee_of(measured, WORTH_PERCENT / 100),
        deadline=deadline,
        chosen=chosen.spec.workers.maximum,
        took=_took(stand, case, f"{exchange}, with a deadline of {deadline:.1f} s", chosen, folder / "deadline"),
    )


def _took(stand: Stand, case: str, name: str, one: BatchGrowthJob, kept: Path) -> float:
    """Return the seconds of a run's training, without its start and end. Raises BatchGrowthError if it failed."""
    kept.mkdir(parents=True)
    trained = stand.train(f"{case}, {name}", one, CASES[case][1], kept=kept)
    if trained.error:
        raise BatchGrowthError(f"{case}, {name}: {trained.error}")
    return read_run(kept / "run").history[-1].seconds


def forecast(one: BatchGrowthJob, run: Path, *options: str) -> Any:
    """Return what `batchgrowth forecast --json` says of a job after that run."""
    manifest = run.parent / "asked.yaml"
    manifest.write_text(one.model_dump_json(by_alias=True, exclude_unset=True), encoding="utf-8")
    command = [sys.executable, "-m", "batchgrowth", "forecast", str(manifest), "--fit", str(run), "--json"]
    command += ["--worth", f"{WORTH_PERCENT:g}", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BatchGrowthError(f"forecast: {done.stderr}")
    return json.loads(done.stdout)


def main(
    quick: Annotated[
        bool, typer.Option("--quick", help="One exchange in short runs, to see that everything runs.")
    ] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here, too.")] = None,
) -> None:
    """Compare the knee that the forecast finds, and a deadline that it keeps, with runs on one to four hosts."""
    try:
        found = measure(quick=quick)
    except BatchGrowthError as error:
        raise typer.BadParameter(str(error)) from error
    show_knees(found)
    if output:
        write(found, output)


def show_knees(found: Knees) -> None:
    """Print the tables, the targets last."""
    print(about(quick=found.quick))
    numbers = [f"{workers} workers: forecast, measured" for workers in range(1, WORKERS + 1)]
    columns = ["case", "exchange", *numbers, "knees"]
    rows = []
    for one in found.knees:
        pairs = [f"{one.forecast[w]:.1f} s, {one.measured[w]:.1f} s" for w in range(1, WORKERS + 1)]
        rows.append([one.case, one.exchange, *pairs, f"{one.forecast_knee}, {one.measured_knee}"])
    show("The time by the number of workers", columns, rows)
    columns = ["case", "exchange", "deadline", "workers that the forecast chose", "the run took"]
    rows = []
    for one in found.knees:
        rows.append([one.case, one.exchange, f"{one.deadline:.1f} s", str(one.chosen), f"{one.took:.1f} s"])
    show("A deadline", columns, rows)
    words = {True: "met", False: "missed"}
    same = sum(one.forecast_knee == one.measured_knee for one in found.knees)
    kept = sum(one.took <= one.deadline for one in found.knees)
    every = len(found.knees)
    targets = [
        ("the forecast's knee is where running shows it", f"{same} of {every}", words[same == every]),
        ("a manifest for a deadline keeps it", f"{kept} of {every}", words[kept == every]),
    ]
    show("Targets", ("target", "measured", ""), targets)


if __name__ == "__main__":
    typer.run(main)
