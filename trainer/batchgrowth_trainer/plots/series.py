"""The lines of a plot, each with its x in epochs, updates and seconds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow

Numbers = npt.NDArray[np.float64]
Row = HistoryRow | EvaluationRow

# The x axes that a reader can choose from, with their titles.
AXES: Mapping[str, str] = {"epoch": "epochs", "update": "updates", "seconds": "seconds"}
MOST_POINTS = 1500
SMOOTHED_SHARE = 60


@dataclass(frozen=True, slots=True)
class Line:
    """The points of a line: `x` by axis name, each as long as `y`, and `note`, the text at each point."""

    x: Mapping[str, Numbers]
    y: Numbers
    note: tuple[str, ...] = ()


def positions(rows: Sequence[Row]) -> dict[str, Numbers]:
    """Each row's x on each axis."""
    return {axis: column(rows, axis) for axis in AXES}


def column(rows: Sequence[Any], name: str) -> Numbers:
    """One field of all rows."""
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def thinned(line: Line) -> Line:
    """The line with at most `MOST_POINTS` points, each the mean of its neighbours, so that no drift is lost."""
    if len(line.y) <= MOST_POINTS:
        return line
    starts = np.linspace(0, len(line.y), MOST_POINTS, endpoint=False).astype(np.int64)
    sizes = np.diff(np.append(starts, len(line.y)))
    means = np.add.reduceat(line.y, starts) / sizes
    return Line({axis: x[starts + sizes - 1] for axis, x in line.x.items()}, means)


def smoothed(line: Line) -> Line:
    """The line's centred moving mean over a sixtieth of its points, without the values that are not finite."""
    width = 2 * (len(line.y) // SMOOTHED_SHARE) + 1
    finite = np.isfinite(line.y)
    window = np.ones(width)
    sums = np.convolve(np.where(finite, line.y, 0.0), window, mode="same")
    counts = np.convolve(finite.astype(np.float64), window, mode="same")
    return Line(line.x, np.divide(sums, counts, out=np.full(len(line.y), np.nan), where=counts > 0))


def steps(rows: Sequence[HistoryRow], name: str) -> Line:
    """The corners of a step function: each value of the field starts at the beginning of its first update."""
    values = column(rows, name)
    changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    ends = positions(rows)
    x = {
        axis: np.append(np.concatenate([[_start(rows, axis)], end[:-1]])[changes], end[-1])
        for axis, end in ends.items()
    }
    return Line(x, np.append(values[changes], values[-1]))


def _start(rows: Sequence[HistoryRow], axis: str) -> float:
    """The x at which the history begins: 0 if it has update 1, else that of its first row."""
    return 0.0 if rows[0].update == 1 else float(getattr(rows[0], axis))
