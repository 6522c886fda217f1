"""What all benchmarks share: spreads, turns, files of results, and tables in Markdown, which a terminal shows well."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

from bench import loopback

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Spread:
    """The minimum, median and maximum of some numbers."""

    least: float
    middle: float
    most: float


def spread(numbers: Sequence[float]) -> Spread:
    """Return the spread of these numbers."""
    return Spread(min(numbers), median(numbers), max(numbers))


def percentile(numbers: Sequence[float], percent: float) -> float:
    """Return the percentile, interpolated linearly between the two nearest numbers."""
    return float(np.percentile(numbers, percent))


def turned(things: Sequence[T], number: int) -> list[T]:
    """Return these in the order of round `number`, from 0: rotated by one a round, and backwards every second round.

    So no system always runs after the same other one.
    """
    turn = number % max(1, len(things))
    order = [*things[turn:], *things[:turn]]
    if number % 2:
        order.reverse()
    return order


def cells(numbers: Spread, digits: int) -> list[str]:
    """Return the minimum, the median and the maximum, as a table shows them."""
    return [f"{number:,.{digits}f}" for number in (numbers.least, numbers.middle, numbers.most)]


def between(numbers: Spread, digits: int) -> str:
    """Return the median, with the minimum and the maximum."""
    least, middle, most = cells(numbers, digits)
    return f"{middle} ({least} to {most})"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table in Markdown: names in the first column, figures in the others."""
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    print(f"\n**{title}**\n")
    for row in (columns, rule, *rows):
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print(f"| {' | '.join([first.strip().ljust(widths[0]), *others])} |")


def about(*, quick: bool) -> str:
    """Return the first line of a benchmark's output: where it was measured."""
    network = "the machine's shared loopback interface"
    if loopback.is_private():
        network = "a loopback interface of its own"
    line = (
        f"{_processor()}, {len(os.sched_getaffinity(0))} cores; Python {platform.python_version()}, "
        f"torch {torch.__version__}; {network}."
    )
    if quick:
        line += " Quick mode: these figures only say that everything runs."
    return line


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def write(results: Any, file: Path) -> None:
    """Write the results of a benchmark, a dataclass, as JSON."""
    file.write_text(json.dumps(asdict(results), indent=1) + "\n", encoding="utf-8")
