"""The picture of `bench.growth_rules`: test error against updates, and the batch size over the epochs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from batchgrowth_trainer.plots.figure import COLOURS
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.growth_trials import Contestant

STYLES = (("o", "-"), ("s", "--"))
"""Marker and line, one pair for each time that the colours are used."""
INCHES, DOTS_PER_INCH = (13.0, 5.8), 90
WIDEST, NARROWER = 4.4, 0.28


def draw(contestants: list[Contestant], epochs: int, path: Path) -> None:
    """Write the picture to `path`, as PNG or SVG by its name. Raises OSError, or ValueError for another name."""
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    results, batches = figure.subplots(1, 2)
    handles = []
    for index, one in enumerate(contestants):
        colour = COLOURS[index % len(COLOURS)]
        marker, line = STYLES[index // len(COLOURS) % len(STYLES)]
        results.errorbar(
            one.mean("updates"), 100 * (1 - one.mean("accuracy")), yerr=100 * one.error("accuracy"),
            xerr=one.error("updates"), color=colour, marker=marker, ms=8, capsize=4, ls="none",
        )  # fmt: skip
        _steps(batches, one, epochs, color=colour, ls=line, lw=max(1.2, WIDEST - NARROWER * index))
        handles.append(Line2D([], [], color=colour, marker=marker, ls=line, lw=2, label=one.name))
    _label(results, f"test error after {epochs} epochs, % (mean ± standard error)", "updates")
    _label(batches, "batch size, first seed", "epochs")
    results.set_xscale("log")
    results.set_yscale("log")
    for axis in (results.xaxis, results.yaxis):
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_minor_locator(NullLocator())
    batches.set_yscale("log", base=2)
    for axis in (results.xaxis, results.yaxis, batches.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.5g}"))
    figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False, handlelength=4)
    figure.savefig(path, facecolor="white")


def _steps(panel: Axes, one: Contestant, epochs: int, **style: Any) -> None:
    starts, sizes = zip(*one.trials[0].batches, strict=True)
    panel.plot([*starts, epochs], [*sizes, sizes[-1]], drawstyle="steps-post", **style)


def _label(panel: Axes, up: str, right: str) -> None:
    panel.set_ylabel(up, fontsize=11)
    panel.set_xlabel(right, fontsize=11)
    panel.grid(visible=True, color="#e5e7eb", lw=0.7)
    panel.spines[["top", "right"]].set_visible(False)
