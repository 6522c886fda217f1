"""Draws a figure as a PNG, an SVG or a PDF, with a row per panel and a column per x axis (epochs, updates, seconds).

`plot_runs` in __init__.py calls it at the end of a run, and interactive.py for the page.
"""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchgrowth_trainer.plots.figure import AXES, GREY, LOW, TALL, Figure, Line
from batchgrowth_trainer.record.storage import replace_file

INCHES_WIDE = 15.0
DOTS_PER_INCH = 110
SUBTITLE_INCHES = 0.46  # from the top


def write_picture(figure: Figure, path: Path) -> None:
    """Write `figure` to `path`, in the format of its suffix, without matplotlib's global state. Raises OSError."""
    heights = [TALL] * (1 + len(figure.metrics)) + [LOW, LOW, LOW]
    canvas = new_canvas((INCHES_WIDE, sum(heights) + 1.6))
    grid = canvas.subplots(
        len(heights), len(AXES), sharex="col", sharey="row", squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axes, axis in zip(grid.T, AXES, strict=True):
        _draw_column(figure, list(axes), axis)
    _label_rows(figure, list(grid[:, 0]))
    _add_title_and_legend(canvas, figure)
    save(canvas, path)


def new_canvas(inches: tuple[float, float], title: str = "") -> Canvas:
    """Return an empty canvas, perhaps with a title, that uses none of matplotlib's global state."""
    canvas = Canvas(figsize=inches, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(canvas)
    if title:
        canvas.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    return canvas


def save(canvas: Canvas, path: Path) -> None:
    """Write what is drawn to `path`, in the format of its suffix. Raises OSError."""
    picture = BytesIO()
    canvas.savefig(picture, format=path.suffix.removeprefix(".").lower(), facecolor="white")
    replace_file(path, picture.getvalue(), durable=False)


def _draw_column(figure: Figure, axes: Sequence[Axes], axis: str) -> None:
    for run in figure.runs:
        if run.raw_loss is not None:
            _curve(axes[0], run.raw_loss, axis, color=run.colour, alpha=0.22, lw=0.7)
        _curve(axes[0], run.train_loss, axis, color=run.colour, lw=1.8 + run.halo)
        if run.test_loss is not None:
            _curve(axes[0], run.test_loss, axis, color=run.colour, lw=1.4 + run.halo, ls="--")
        for panel, metric in zip(axes[1:-3], figure.metrics, strict=True):
            if metric in run.metrics:
                _curve(panel, run.metrics[metric], axis, color=run.colour, marker=".", lw=1.4 + run.halo)
        for panel, line in ((axes[-3], run.rate), (axes[-2], run.batch), (axes[-1], run.workers)):
            _curve(panel, line, axis, color=run.colour, drawstyle="steps-post", lw=1.8 + run.halo)
        _curve(axes[-1], run.resizes, axis, color=run.colour, marker="o", ms=4 + 1.5 * run.halo, ls="none")
        if len(figure.runs) == 1:
            for panel in axes:
                for x in run.resizes.x[axis]:
                    panel.axvline(x, color=GREY, lw=1.0, ls=":", zorder=1)
    for panel in axes:
        style(panel)
    axes[-1].set_xlabel(AXES[axis], fontsize=11)


def style(panel: Axes) -> None:
    """Give a panel its grid and its colours."""
    panel.grid(visible=True, color="#e5e7eb", lw=0.7)
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(colors="#374151", labelsize=9)
    panel.margins(x=0.01)


def _curve(panel: Axes, line: Line, axis: str, **style: object) -> None:
    panel.plot(line.x[axis], line.y, **style)  # type: ignore[arg-type]


def _label_rows(figure: Figure, first: Sequence[Axes]) -> None:
    for panel, name in zip(first, ["loss", *figure.metrics, "learning rate", "batch size", "workers"], strict=True):
        panel.set_ylabel(name, fontsize=11)
    if figure.log_loss:
        first[0].set_yscale("log")
    for panel, metric in zip(first[1:-3], figure.metrics, strict=True):
        panel.set_yscale("log" if figure.is_log(metric) else "linear")
    rate, batch, workers = first[-3:]
    if figure.log_rate:
        rate.set_yscale("log")
    else:
        rate.set_ylim(bottom=0)
    batch.set_yscale("log", base=2)
    batch.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    workers.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    workers.set_ylim(0, figure.most_workers * 1.15)


def _add_title_and_legend(canvas: Canvas, figure: Figure) -> None:
    # The empty line of the title is the place of the subtitle.
    canvas.suptitle(f"{_literal(figure.title)}\n", fontsize=16, fontweight="bold", x=0.01, ha="left")
    below_title = 1 - SUBTITLE_INCHES / canvas.get_figheight()
    canvas.text(0.01, below_title, _literal(figure.subtitle), fontsize=11, color=GREY, va="center")
    runs = [Line2D([], [], color=run.colour, lw=2.5, label=_literal(run.label)) for run in figure.runs]
    styles = [Line2D([], [], color=GREY, lw=1.8, label="training"), Line2D([], [], color=GREY, ls="--", label="test")]
    handles = [*runs, *styles]
    if any(len(run.resizes.y) for run in figure.runs):
        handles.append(Line2D([], [], color=GREY, marker="o", ms=4, ls=":", label="workers join or leave"))
    canvas.legend(handles=handles, loc="outside lower center", ncols=min(4, len(handles)), frameon=False, fontsize=10)


def _literal(text: str) -> str:
    """Escape the text, so that matplotlib finds no formula in it."""
    return text.replace("$", r"\$")
