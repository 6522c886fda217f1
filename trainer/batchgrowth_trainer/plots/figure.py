"""The content of a figure of one or several runs: its lines, each with x values in epochs, updates and seconds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from batchgrowth_trainer.record.history import EvaluationRow, HistoryRow, ResizeRow
from batchgrowth_trainer.record.runs import RecordedRun

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
    """Return each row's x on each axis."""
    return {axis: column(rows, axis) for axis in AXES}


def column(rows: Sequence[Any], name: str) -> Numbers:
    """Return one field of all rows."""
    return np.array([getattr(row, name) for row in rows], dtype=np.float64)


def thinned(line: Line) -> Line:
    """Return the line with at most `MOST_POINTS` points, each the mean of neighbouring points, so that no drift is
    lost.
    """
    if len(line.y) <= MOST_POINTS:
        return line
    starts = np.linspace(0, len(line.y), MOST_POINTS, endpoint=False).astype(np.int64)
    sizes = np.diff(np.append(starts, len(line.y)))
    means = np.add.reduceat(line.y, starts) / sizes
    return Line({axis: x[starts + sizes - 1] for axis, x in line.x.items()}, means)


def smoothed(line: Line) -> Line:
    """Return the line's centred moving mean of finite values, over a sixtieth of its points on either side."""
    width = 2 * (len(line.y) // SMOOTHED_SHARE) + 1
    finite = np.isfinite(line.y)
    window = np.ones(width)
    sums = np.convolve(np.where(finite, line.y, 0.0), window, mode="same")
    counts = np.convolve(finite.astype(np.float64), window, mode="same")
    return Line(line.x, np.divide(sums, counts, out=np.full(len(line.y), np.nan), where=counts > 0))


def steps(rows: Sequence[HistoryRow], name: str) -> Line:
    """Return the corners of a step function: each value of the field holds from the start of its first update."""
    values = column(rows, name)
    # A first value differs from NaN, and so counts as a change.
    changes = np.flatnonzero(np.diff(values, prepend=np.nan) != 0)
    x = {}
    for axis, ends in positions(rows).items():
        # A history may lack the first updates of its run; then it does not say where its own first one began.
        first = 0.0 if rows[0].update == 1 else ends[0]
        starts = np.concatenate([[first], ends[:-1]])
        x[axis] = np.append(starts[changes], ends[-1])
    return Line(x, np.append(values[changes], values[-1]))


# M. Okabe and K. Ito's colour-blind safe palette, darkest first; then those of P. Tol's that differ from all of them.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444", "#882255", "#999933", "#332288",
    "#AA4499", "#117733",
)  # fmt: skip
LOG_FROM_RATIO = 20
LONGEST_TITLE = 90
GREY = "#6b7280"
TALL = 3.0
LOW = 1.35
HALO = 1.4
WIDEST_HALO = 4.2
MOST_WIDE = 4
"""The most runs with wide lines, and with marks where workers join or leave: more marks would hide other lines."""
WIDEST_OF_MANY = 1.8


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """One run's lines, in one colour. `halo` widens earlier runs' lines, so that equal later lines do not hide them."""

    name: str
    label: str
    colour: str
    halo: float
    raw_loss: Line | None
    train_loss: Line
    test_loss: Line | None
    metrics: dict[str, Line]
    rate: Line
    batch: Line
    workers: Line
    resizes: Line


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure with the panels, from the top, loss, each metric, learning rate, batch size and workers."""

    title: str
    subtitle: str
    runs: tuple[DrawnRun, ...]
    metrics: tuple[str, ...]

    @property
    def log_loss(self) -> bool:
        """Return whether all losses are positive and span enough for a logarithmic axis."""
        return _spans_magnitudes([line for run in self.runs for line in (run.train_loss, run.test_loss) if line])

    def is_log(self, metric: str) -> bool:
        """Return whether the values of this metric are positive and span enough for a logarithmic axis."""
        return _spans_magnitudes([run.metrics[metric] for run in self.runs if metric in run.metrics])

    @property
    def log_rate(self) -> bool:
        """Return whether the learning rates are positive and span enough for a logarithmic axis."""
        return _spans_magnitudes([run.rate for run in self.runs])

    @property
    def most_workers(self) -> int:
        """Return the largest number of workers in any run."""
        return int(max(run.workers.y.max() for run in self.runs))


def _spans_magnitudes(lines: Sequence[Line]) -> bool:
    values = np.concatenate([line.y for line in lines])
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and finite.min() > 0 and bool(finite.max() / finite.min() > LOG_FROM_RATIO)


def figure_of(runs: Sequence[RecordedRun]) -> Figure:
    """Make the figure of `runs`, with one colour per run."""
    names = [str((run.summary or {}).get("name") or run.directory.resolve().name) for run in runs]
    # Runs of one job differ by their folder alone.
    names = [str(run.directory) if names.count(name) > 1 else name for run, name in zip(runs, names, strict=True)]
    drawn = tuple(
        _drawn(run, name, place, len(runs)) for place, (run, name) in enumerate(zip(runs, names, strict=True))
    )
    metrics = tuple(dict.fromkeys(name for run in drawn for name in run.metrics))
    if len(runs) > 1:
        title = "  ·  ".join(names)
        if len(title) > LONGEST_TITLE:
            title = ", ".join(names[:2]) + ", …"
        return Figure(title, f"{len(runs)} runs compared", drawn, metrics)

    run = runs[0]
    title = f"{names[0]}: {_outcome(run)}"
    if constant := constant_batch_updates(run):
        title += f" instead of {constant:,} at a constant batch of {run.history[0].batch_size}"
    last = run.history[-1]
    subtitle = (
        f"{last.epoch:.4g} epochs in {last.seconds:,.1f} s  ·  batch {_path([row.batch_size for row in run.history])}"
        f"  ·  workers {_path([row.workers for row in run.history])}"
    )
    return Figure(title, subtitle, drawn, metrics)


def _drawn(run: RecordedRun, name: str, place: int, number: int) -> DrawnRun:
    several = number > 1
    raw = Line(positions(run.history), column(run.history, "loss"))
    at = positions(run.evaluations)
    metrics = list(dict.fromkeys(name for row in run.evaluations for name in row.metrics))
    lines = {name: Line(at, np.array([row.metrics[name] for row in run.evaluations])) for name in metrics}
    # The values that a growth rule measured at its looks have a panel too; no axis shows infinite ones.
    rows = {row.update: row for row in run.history}
    looks = [look for look in run.looks if math.isfinite(look.value) and look.update in rows]
    if run.quantity and looks:
        lines[run.quantity] = Line(positions([rows[look.update] for look in looks]), column(looks, "value"))
    widest = WIDEST_HALO if number <= MOST_WIDE else WIDEST_OF_MANY
    return DrawnRun(
        name=name,
        label=f"{name}: {_outcome(run)}" if several else name,
        colour=COLOURS[place % len(COLOURS)],
        halo=min(HALO, widest / number) * (number - 1 - place),
        raw_loss=None if several else thinned(raw),
        train_loss=thinned(smoothed(raw)),
        test_loss=Line(at, column(run.evaluations, "loss")) if run.evaluations else None,
        metrics=lines,
        rate=thinned(steps(run.history, "learning_rate")),
        batch=steps(run.history, "batch_size"),
        workers=steps(run.history, "workers"),
        resizes=_resizes(run if number <= MOST_WIDE else replace(run, history=run.history[:1])),
    )


def _resizes(run: RecordedRun) -> Line:
    """Return a point for each change of the number of workers; its note has the pause if it is known."""
    history = run.history
    known = {row.update: row for row in map(ResizeRow.from_json, (run.summary or {}).get("resizes", ()))}
    changed = [k for k in range(1, len(history)) if history[k].workers != history[k - 1].workers]
    ends = positions([history[k - 1] for k in changed])
    notes = []
    for k in changed:
        before = history[k - 1]
        resize = known.get(before.update)
        pause = "" if resize is None else f", pause {1000 * resize.pause_seconds:.0f} ms"
        notes.append(f"{before.workers} → {history[k].workers} workers after update {before.update:,}{pause}")
    return Line(ends, np.array([history[k].workers for k in changed], dtype=np.float64), tuple(notes))


def _outcome(run: RecordedRun) -> str:
    metrics = run.evaluations[-1].metrics if run.evaluations else {}
    measured = [f"{name} {value:.4f}" for name, value in metrics.items()][:1]
    return ", ".join([*measured, f"{run.history[-1].update:,} updates"])


def constant_batch_updates(run: RecordedRun) -> int | None:
    """Return how many updates the first batch size would have taken for the same epochs.

    None if the batch never changed or the history does not start at update 1.
    """
    first = run.history[0]
    last = run.history[-1]
    if first.update != 1 or first.epoch <= 0 or all(row.batch_size == first.batch_size for row in run.history):
        return None
    # After the first update, `epoch` is the batch's share of the examples.
    examples = round(first.batch_size / first.epoch)
    # Less a little, since a rounded `epoch` may lie just above a whole number.
    return math.ceil(examples / first.batch_size) * math.ceil(last.epoch - 1e-9)


def _path(values: Sequence[int]) -> str:
    """Return the sequence of distinct values, shortened in the middle if it is long."""
    distinct = [value for k, value in enumerate(values) if k == 0 or value != values[k - 1]]
    shown = [str(value) for value in distinct]
    return " → ".join(shown if len(shown) <= 8 else [*shown[:3], "…", *shown[-3:]])
