"""The picture of `bench.networks`: seconds to the accuracy, a panel for each network and a line for each exchange."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import median

from batchgrowth_trainer.plots.figure import COLOURS, GREY
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from bench.network_results import EXACT, NetworkResults

STYLES = {
    EXACT: (COLOURS[0], "o", "exact: the weights of one process"),
    "Repeatable": (COLOURS[1], "s", "repeatable: the same weights on any number of workers"),
    "Nondeterministic": (COLOURS[2], "D", "nondeterministic: weights differ from run to run"),
}
"""Promise of an exchange -> the colour and the marker of its lines, and what the legend says."""
COLUMNS, DOTS_PER_INCH = 3, 90
WIDE, TALL, LOW = 13.0, 0.27, 0.9
"""Inches of the figure, of a line, and of a panel besides its lines."""
PAD = 0.12
"""Inches around each panel."""
BAND = "#f3f4f6"


def draw(results: NetworkResults, path: Path) -> None:
    """Write the picture to `path`, as PNG or SVG by its name. Raises OSError, or ValueError for another name."""
    strategies, rows = _ordered(results), math.ceil(len(results.networks) / COLUMNS)
    figure = Figure(
        figsize=(WIDE, rows * (LOW + TALL * len(strategies)) + LOW), dpi=DOTS_PER_INCH,
        layout=ConstrainedLayoutEngine(h_pad=PAD, w_pad=PAD),
    )  # fmt: skip
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).flat
    for panel, (network, title) in zip(panels, results.networks.items(), strict=False):
        _draw(panel, results, network, strategies)
        panel.set_title(title, fontsize=11, loc="left", fontweight="bold")
    for panel in list(panels)[len(results.networks) :]:
        panel.set_visible(False)
    _scale(figure.axes, results, strategies)
    shown = [style for promise, style in STYLES.items() if promise in results.promises.values()]
    handles = [Line2D([], [], color=c, marker=marker, ls="-", lw=2, ms=7, label=label) for c, marker, label in shown]
    title = (
        f"seconds to an accuracy of {results.accuracy:g}: median, minimum and maximum, on a logarithmic scale; "
        "bold: the fastest, and the fastest that is exact"
    )
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, title=title)
    legend.get_title().set_fontsize(10.5)
    figure.savefig(path, facecolor="white")


def _ordered(results: NetworkResults) -> list[str]:
    """The strategies from the bottom up: of one promise together, and those of STYLES from the top down."""
    promises = list(STYLES)
    return sorted(results.strategies, key=lambda name: promises.index(results.promises[name]))[::-1]


def _draw(panel: Axes, results: NetworkResults, network: str, strategies: list[str]) -> None:
    exact = [name for name in strategies if results.promises[name] == EXACT]
    best = {results.fastest(network, strategies), results.fastest(network, exact)}
    for line, name in enumerate(strategies):
        colour, marker, _ = STYLES[results.promises[name]]
        if line % 2:
            panel.axhspan(line - 0.5, line + 0.5, color=BAND, zorder=0, lw=0)
        found = results.reached(name, network)
        if not found:
            panel.annotate(
                "not reached" if results.of(name, network) else "not measured", (0.02, line),
                xycoords=("axes fraction", "data"), va="center", fontsize=9, color=GREY, style="italic",
            )  # fmt: skip
            continue
        weight = "bold" if name in best else "normal"
        panel.plot([min(found), max(found)], [line, line], color=colour, lw=2, solid_capstyle="butt")
        panel.plot([median(found)], [line], color=colour, marker=marker, ms=8 if name in best else 6)
        rounds = len(results.of(name, network))
        some = "" if results.reached_always(name, network) else f" ({len(found)} of {rounds} rounds)"
        panel.annotate(
            f"{median(found):.1f}{some}", (max(found), line), xytext=(7, 0), textcoords="offset points", va="center",
            fontsize=9.5, fontweight=weight,
        )  # fmt: skip


def _scale(panels: list[Axes], results: NetworkResults, strategies: list[str]) -> None:
    """One axis for all panels, with room for the figures."""
    every = [s for name in strategies for network in results.networks for s in results.reached(name, network)]
    for panel in panels:
        panel.set_xscale("log")
        if every:
            panel.set_xlim(min(every) / 1.25, max(every) * 1.9)
        panel.set_ylim(-0.5, len(strategies) - 0.5)
        panel.set_yticks(range(len(strategies)), strategies, fontsize=10)
        panel.tick_params(axis="y", length=0)
        panel.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.3g}"))
        panel.grid(visible=True, axis="x", color="#e5e7eb", lw=0.7)
        panel.spines[["top", "right", "left"]].set_visible(False)
