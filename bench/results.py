"""The results of a benchmark run: written as JSON, read back, and compared with the targets."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np
import torch
from batchgrowth.errors import BatchGrowthError
from pydantic import TypeAdapter, ValidationError

from bench import loopback
from bench.epoch_ends import EpochEnds
from bench.pauses import Pauses
from bench.rounds import Figures, Measured, Spread
from bench.systems import DDP, ENCRYPTED, MEASURING, OUR_LOADERS, OUR_ONE, OUR_REDUCE

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that the results were measured on."""

    processor: str
    cores: int
    python: str
    torch: str
    private_network: bool


@dataclass(frozen=True, slots=True)
class Results:
    """All results; `quick` figures only show that everything runs."""

    machine: Machine
    quick: bool
    cases: list[Measured]
    pauses: list[Pauses]
    epoch_ends: list[EpochEnds] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Target:
    """A promise of the design, its measured value, and whether it was met, None if it was not measured."""

    promise: str
    measured: str
    met: bool | None


def this_machine() -> Machine:
    """The machine that this process runs on."""
    return Machine(
        _processor(),
        len(os.sched_getaffinity(0)),
        platform.python_version(),
        torch.__version__,
        loopback.is_private(),
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def write(results: DataclassInstance, file: Path) -> None:
    """Write the results of any benchmark as JSON."""
    file.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")


def read(file: Path) -> Results:
    """The results in a file that `write` wrote. Raises BatchGrowthError for any other file."""
    try:
        return TypeAdapter(Results).validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise BatchGrowthError(f"--input {file}: no results of the benchmarks; give a file --output wrote") from error


def percentile(numbers: list[float], percent: float) -> float:
    """The percentile, interpolated linearly between the two nearest numbers."""
    return float(np.percentile(numbers, percent))


def targets(results: Results) -> list[Target]:
    """The promises about speed, each with its measured value."""
    ours = {
        (one.model, one.batch): figures
        for one in results.cases
        if one.figures[0].system == DDP
        for figures in one.figures
        if figures.system == OUR_REDUCE
    }
    ratios = {case: figures.ratio for case, figures in ours.items()}
    costs = {(one.model, one.batch, f.system): f.ratio for one in results.cases for f in one.figures}
    return [
        *(_ratio(f"AllReduce at most {most:g} times DDP, {model} {batch}", most, ratios.get((model, batch)))
          for model, batch, most in (("mlp", 64, 1.3), ("mlp", 512, 1.3), ("wrn", 64, 1.0), ("vgg11", 256, 1.0))),
        *(_ratio(f"{system} at most {most:g} times AllReduce, {model} {batch}", most, costs.get((model, batch, system)))
          for system, model, batch, most in ((MEASURING, "mlp", 64, 1.05), (MEASURING, "wrn", 64, 1.03),
                                             (ENCRYPTED, "mlp", 64, 1.25), (ENCRYPTED, "wrn", 64, 1.05))),
        _bytes(ours.get(("wrn", 64))),
        *(_ratio(f"{OUR_ONE} at most {most:g} times plain PyTorch, {model} {batch}", most,
                 costs.get((model, batch, OUR_ONE)))
          for model, batch, most in (("mlp", 64, 1.3), ("digits", 64, 1.05), ("wrn", 32, 1.05))),
        _images(costs.get(("images", 32, OUR_LOADERS))),
        *(_epoch_end(one) for one in results.epoch_ends),
        _pause(results.pauses),
    ]  # fmt: skip


def _ratio(promise: str, most: float, ratio: Spread | None) -> Target:
    if ratio is None:
        return Target(promise, "not measured", None)
    return Target(promise, _measured(ratio), ratio.middle <= most)


def _images(time: Spread | None) -> Target:
    """Of the ratio of the times, of which that of images per second is the inverse."""
    promise = "images per second at least .95 times DataLoader's, images 32"
    if time is None:
        return Target(promise, "not measured", None)
    rate = Spread(1 / time.most, 1 / time.middle, 1 / time.least)
    return Target(promise, _measured(rate), rate.middle >= 0.95)


def _epoch_end(found: EpochEnds) -> Target:
    promise = f"an epoch's end at most 5 ms, {found.case}, {found.examples:,} examples"
    cost, ends = median(found.costs), len(found.costs)
    return Target(promise, f"{cost * 1e3:.2f} ms over {ends} ends", cost <= 5e-3)


def _measured(ratio: Spread) -> str:
    return f"{ratio.middle:.3f} ({ratio.least:.3f} to {ratio.most:.3f})"


def _bytes(figures: Figures | None) -> Target:
    promise = "AllReduce moves at most 23 MB, wrn 64"
    if figures is None:
        return Target(promise, "not measured", None)
    return Target(promise, f"{figures.sent / 1e6:.2f} MB", figures.sent <= 23e6)


def _pause(found: list[Pauses]) -> Target:
    promise = "95 of 100 pauses at most .25 s, warm"
    everything = [pause for one in found for pause in (*one.joins, *one.leaves)]
    if not everything:
        return Target(promise, "not measured", None)
    p95 = percentile(everything, 95)
    return Target(promise, f"{p95 * 1e3:.0f} ms over {len(everything)} resizes", p95 <= 0.25)
