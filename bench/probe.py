"""`python -m bench.probe`: the milestones of a probe on the digits, beside a geometric growth and a constant batch.

One run, of a seed of its own, is probed now and then, and goes on with the batch that was found. The milestones that it
ends with are then trained with other seeds, as are the two other growths. All train in this process.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.probe import batch_block
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.probing import probed
from batchgrowth_trainer.training import Options, train

from bench.tables import about, show, write

DIGITS = Path(__file__).parent.parent / "examples" / "digits.yaml"
GROWTHS = {
    "constant 32": {"initial": 32, "maximum": 32, "growth": {"type": "Constant"}},
    "Geometric": {
        "initial": 32,
        "maximum": 512,
        "growth": {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 5}},
    },
}
"""`spec.batch` of the growths that the probe's is compared with; the second is that of examples/digits.yaml."""
PROBED = "probe's milestones"
PILOT_SEED = 1000


@dataclass(frozen=True, slots=True)
class ProbeCase:
    """What is trained, after which epochs the first run is probed, and how."""

    net: str = "mlp"
    arguments: str = "{}"
    epochs: int = 30
    probe_after: Sequence[int] = (1, 2, 4, 8, 16)
    seeds: int = 10
    orders: int = 3
    examples: int | None = None
    tolerance: float = 0.02

    def job(self, *overrides: str) -> BatchGrowthJob:
        """Return the job with these settings."""
        workload = f"batchgrowth_trainer.workloads.digits:{self.net}"
        settings = [f"workload.entrypoint={workload}", f"workload.arguments={self.arguments}"]
        return load_manifest(DIGITS, [*settings, "exchange={type: SingleProcess}", *overrides])


@dataclass(slots=True)
class GrowthAccuracy:
    """The test accuracy of each seed, in percent, and the updates."""

    growth: str
    accuracies: list[float]
    updates: int

    @property
    def error(self) -> float:
        """Return the standard error of the mean accuracy."""
        if len(self.accuracies) < 2:
            return math.nan
        return stdev(self.accuracies) / math.sqrt(len(self.accuracies))


@dataclass(slots=True)
class ProbeResults:
    """The growths, and what the probes found: the epoch, the batch before, the critical batch, and the batch after."""

    case: ProbeCase
    growths: list[GrowthAccuracy] = field(default_factory=list)
    probes: list[dict[str, Any]] = field(default_factory=list)
    batch: dict[str, Any] = field(default_factory=dict)
    probed_examples: int = 0


def probed_batch(case: ProbeCase, folder: Path, results: ProbeResults) -> dict[str, Any]:
    """Train a run, probe it after some epochs, and return the `spec.batch` that it ends with."""
    batch = GROWTHS["constant 32"]
    for epoch in case.probe_after:
        job = case.job(f"seed={PILOT_SEED}", f"epochs={epoch}", f"batch={json.dumps(batch)}")
        train(job, Options(output_dir=folder, resume=epoch != case.probe_after[0]))
        probe = probed(
            folder,
            [f"epochs={case.epochs}"],
            examples=case.examples,
            orders=case.orders,
            tolerance=case.tolerance,
            say=lambda _line: None,
        )
        start = probe.start
        critical = probe.critical(case.tolerance)
        block = batch_block(start.job.spec, start.plan, start.snapshot.position, critical.within)
        assert block is not None, "nothing holds the batch below what its growth wants"
        results.probes.append(
            {"epoch": epoch, "batch": probe.batches.of_run, "branches": [row.to_json() for row in probe.rows],
             **critical.to_json()}
        )  # fmt: skip
        results.probed_examples += len(probe.branches) * case.orders * probe.stretch.examples
        batch = block
    return batch


def trained(case: ProbeCase, name: str, batch: dict[str, Any], folder: Path) -> GrowthAccuracy:
    """Train with each seed."""
    accuracies = []
    updates = 0
    for seed in range(case.seeds):
        job = case.job(f"seed={seed}", f"epochs={case.epochs}", f"batch={json.dumps(batch)}")
        summary = train(job, Options(output_dir=folder / f"{name}-{seed}"))
        accuracies.append(100 * summary["accuracy"])
        updates = summary["updates"]
    return GrowthAccuracy(name, accuracies, updates)


def measure(case: ProbeCase) -> ProbeResults:
    """Probe one run, and train each growth with each seed."""
    results = ProbeResults(case)
    with tempfile.TemporaryDirectory() as folder:
        results.batch = probed_batch(case, Path(folder) / "pilot", results)
        for name, batch in {**GROWTHS, PROBED: results.batch}.items():
            results.growths.append(trained(case, name, batch, Path(folder)))
    return results


def show_results(results: ProbeResults) -> None:
    """Print what the probes found, and the accuracies."""
    rows = []
    for probe in results.probes:
        high = "more" if probe["high"] is None else str(probe["high"])
        value = "or more" if probe["value"] is None else f"{probe['value']:.0f}"
        found = (str(probe["epoch"]), str(probe["batch"]), value, str(probe["low"]), high, str(probe["within"]))
        rows.append(found)
    show("What the probes found", ["after epoch", "batch", "critical", "from", "to", "batch then"], rows)
    cells = [
        (one.growth, f"{fmean(one.accuracies):.2f} ± {one.error:.2f}", f"{one.updates:,}") for one in results.growths
    ]
    seeds = results.case.seeds
    show(f"Test accuracy, {seeds} seeds", ["growth", "accuracy, %", "updates"], cells)
    epochs = results.probed_examples / results.case.job().spec.workload.examples
    print(f"\nThe probes took the examples of {epochs:.0f} epochs.")


def main(
    net: Annotated[str, typer.Option(help="The function of workloads.digits: mlp, or workload.")] = "mlp",
    arguments: Annotated[str, typer.Option(help="Its arguments, such as {hidden: '16'}.")] = "{}",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds each growth is trained with.")] = 10,
    tolerance: Annotated[float, typer.Option(min=0.1, help="That of the probes, in percent.")] = 2.0,
    output: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Write the results here, too.")] = None,
) -> None:
    """Train the milestones of a probe on the digits, beside a geometric growth and a constant batch."""
    print(about(quick=False))
    results = measure(ProbeCase(net=net, arguments=arguments, seeds=seeds, tolerance=tolerance / 100))
    show_results(results)
    if output is not None:
        write(results, output)


if __name__ == "__main__":
    typer.run(main)
