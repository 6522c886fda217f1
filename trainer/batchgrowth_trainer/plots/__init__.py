"""Plots of runs: a picture, and an interactive HTML page that needs no network; and the picture of a plan."""

from collections.abc import Sequence
from pathlib import Path

from batchgrowth.errors import BatchGrowthError, DataError
from batchgrowth.growth_decisions import Course

from batchgrowth_trainer.plots.figure import figure_of
from batchgrowth_trainer.plots.interactive import write_html
from batchgrowth_trainer.plots.planned import draw_plan
from batchgrowth_trainer.plots.still import write_picture
from batchgrowth_trainer.record.runs import read_run

__all__ = ["plot_plan", "plot_runs"]


DEFAULT = "plot.png"
PICTURES = (".png", ".svg", ".pdf")
"""The suffixes of pictures that can be written."""
PAGE = ".html"


def plot_runs(directories: Sequence[Path], output: Path | None = None) -> tuple[Path, Path]:
    """Write a picture and an HTML page with one figure of the runs in `directories`, and return their paths.

    `output` is the path of the picture, a PNG, SVG or PDF by its suffix, or of the page; the other is written beside
    it. If it is a folder, they are its plot.png and plot.html. By default one run is plotted into its own directory,
    and several into the current one.
    Raises DataError if a directory holds no run, BatchGrowthError if a file cannot be written.
    """
    if not directories:
        raise DataError("RUN: none was given; name at least one --output-dir of a run")
    figure = figure_of([read_run(directory) for directory in directories])
    folder = directories[0] if len(directories) == 1 else Path()
    picture = folder / DEFAULT if output is None else _picture(output)
    page = picture.with_suffix(PAGE)
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        write_picture(figure, picture)
        write_html(figure, page)
    except OSError as error:
        raise BatchGrowthError(f"the plots could not be written: {error}") from error
    return picture, page


def plot_plan(course: Course, output: Path) -> Path:
    """Draw a plan into the file `output`, a PNG, SVG or PDF by its suffix, or as plot.png into the folder `output`, and
    return the picture's path.

    Raises BatchGrowthError if it cannot be written.
    """
    picture = _picture(output)
    try:
        picture.parent.mkdir(parents=True, exist_ok=True)
        draw_plan(course, picture)
    except OSError as error:
        raise BatchGrowthError(f"the plot could not be written: {error}") from error
    return picture


def _picture(target: Path) -> Path:
    """Return the path of the picture: a name without the suffix of a picture gets .png, a folder has plot.png."""
    if target.is_dir():
        return target / DEFAULT
    if target.suffix.lower() in PICTURES:
        return target
    if target.suffix == PAGE:
        target = target.with_suffix("")
    return target.with_name(f"{target.name}.png")
