"""Plots of runs: a PNG, and an interactive HTML page that needs no network."""

from collections.abc import Sequence
from pathlib import Path

from batchgrowth.errors import BatchGrowthError, DataError

from batchgrowth_trainer.plots.figure import figure_of
from batchgrowth_trainer.plots.interactive import write_html
from batchgrowth_trainer.plots.still import write_png
from batchgrowth_trainer.record.runs import read_run

__all__ = ["plot_runs"]


STEM = "plot"


def plot_runs(directories: Sequence[Path], output: Path | None = None) -> tuple[Path, Path]:
    """Write a PNG and an HTML page with one figure of the runs in `directories`, and return their paths.

    `output` is a path whose suffix is replaced by .png and .html. By default one run is plotted into its own
    directory and several into the current one, as plot.png and plot.html.
    Raises DataError if a directory holds no run, BatchGrowthError if a file cannot be written.
    """
    if not directories:
        raise DataError("RUN: none was given; name at least one --output-dir of a run")
    figure = figure_of([read_run(directory) for directory in directories])
    target = output or (directories[0] if len(directories) == 1 else Path()) / STEM
    target = target.with_suffix("") if target.suffix in (".png", ".html") else target
    png, html = (target.with_name(target.name + suffix) for suffix in (".png", ".html"))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_png(figure, png)
        write_html(figure, html)
    except OSError as error:
        raise BatchGrowthError(f"the plots could not be written: {error}") from error
    return png, html
