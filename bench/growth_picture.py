"""The picture of `bench.growth_rules`: accuracy against updates, and the batch size over the epochs."""

from __future__ import annotations

from pathlib import Path

from batchgrowth_trainer.plots.figure import COLOURS
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from bench.growth_trials import Contestant

MARKERS = ("o", "s")
INCHES, DOTS_PER_INCH = (13.0, 5.6), 90


def draw(contestants: list[Contestant], epochs: int, path: Path) -> None:
    """Write the picture to `path`, as PNG or SVG by its name. Raises OSError, or ValueError for another name."""
    figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    results, batches = figure.subplots(1, 2)
    for index, one in enumerate(contestants):
        colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index // len(COLOURS) % len(MARKERS)]
        results.errorbar(
            one.mean("updates"), 100 * one.mean("accuracy"), yerr=100 * one.error("accuracy"),
            xerr=one.error("updates"), color=colour, marker=marker, ms=8, capsize=4, ls="none", label=one.name,
        )  # fmt: skip
        _steps(batches, one, epochs, color=colour, ls="--" if index >= len(COLOURS) else "-")
    _label(results, f"test accuracy after {epochs} epochs, %", "updates (fewer is faster with enough workers)")
    _label(batches, "batch size, first seed", "epochs")
    batches.set_yscale("log", base=2)
    batches.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    figure.legend(*results.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, facecolor="white")


def _steps(panel: Axes, one: Contestant, epochs: int, **style: str) -> None:
    starts, sizes = zip(*one.trials[0].batches, strict=True)
    panel.plot([*starts, epochs], [*sizes, sizes[-1]], drawstyle="steps-post", lw=1.8, **style)  # type: ignore[arg-type]


def _label(panel: Axes, up: str, right: str) -> None:
    panel.set_ylabel(up, fontsize=11)
    panel.set_xlabel(right, fontsize=11)
    panel.grid(visible=True, color="#e5e7eb", lw=0.7)
    panel.spines[["top", "right"]].set_visible(False)
