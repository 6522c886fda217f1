"""Draws a forecast: workers and batch by time, and what other numbers of workers would take."""

from pathlib import Path

from batchgrowth.errors import BatchGrowthError
from batchgrowth.forecast.sentences import Forecasted
from batchgrowth.forecast.tables import Unit, number, unit_of
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchgrowth_trainer.plots.figure import COLOURS, GREY
from batchgrowth_trainer.plots.still import new_canvas, save, style

INCHES = (12.0, 5.0)


def plot_forecast(found: Forecasted, path: Path) -> None:
    """Write the picture of a forecast to `path`, in the format of its suffix. Raises BatchGrowthError."""
    made = found.made
    unit = unit_of(made.seconds.value)
    money = "" if made.money is None else f", ${number(made.money.value)}"
    title = f"{unit.text(made.seconds)} {unit.name}, {number(made.worker_hours.value)} worker-hours{money}"
    canvas = new_canvas(INCHES, title.replace("$", r"\$"))
    course, curve = canvas.subplots(1, 2)
    _draw_course(course, found, unit)
    _draw_curve(curve, found, unit)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save(canvas, path)
    except (OSError, ValueError) as error:
        raise BatchGrowthError(f"--output {path}: {error}; give a path that ends in .png, .svg or .pdf") from error


def _draw_course(panel: Axes, found: Forecasted, unit: Unit) -> None:
    """Draw workers and batch by time, and the interval of the end."""
    stages = found.made.stages
    corners = [0.0]
    for stage in stages:
        corners.append(corners[-1] + stage.seconds.value / unit.seconds)
    workers = [stage.stage.workers for stage in stages]
    panel.plot(corners, [*workers, workers[-1]], drawstyle="steps-post", color=COLOURS[2], lw=2, label="workers")
    end = found.made.seconds.times(1 / unit.seconds)
    panel.axvspan(end.low, end.high, color=COLOURS[5], alpha=0.25, lw=0, label="end, in 9 of 10 cases")
    if found.constant is not None:
        constant = found.constant.seconds.value / unit.seconds
        panel.axvline(constant, color=COLOURS[1], ls="--", lw=1.4, label="end with a constant batch")
    batch = panel.twinx()
    sizes = [stage.stage.batch_size for stage in stages]
    batch.plot(corners, [*sizes, sizes[-1]], drawstyle="steps-post", color=COLOURS[0], lw=1.4, ls=":")
    panel.plot([], [], color=COLOURS[0], lw=1.4, ls=":", label="batch size (right)")
    style(panel)
    batch.set_yscale("log", base=2)
    batch.set_ylim(top=max(sizes) * (max(sizes) / min(sizes)) ** 0.6 * 2)
    batch.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    batch.spines[["top"]].set_visible(False)
    batch.tick_params(colors="#374151", labelsize=9)
    panel.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    panel.set_ylim(0, max(workers) * 1.6)
    panel.set_xlim(left=0)
    panel.set_xlabel(unit.name, fontsize=11)
    panel.set_ylabel("workers", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_curve(panel: Axes, found: Forecasted, unit: Unit) -> None:
    """Draw the time by workers.maximum, with the laws that are fitted to it and the knee."""
    workers = list(found.curve)
    panel.plot(workers, [found.curve[one] / unit.seconds for one in workers], "o", color=GREY, ms=4, label="forecast")
    for law, colour in zip(found.laws, (COLOURS[1], COLOURS[0]), strict=False):
        times = [law.single_seconds / unit.seconds / law.speedup(one) for one in workers]
        panel.plot(workers, times, color=colour, lw=1.4, label=f"{law.name}'s law, off by {law.misfit:.1%}")
    panel.axvline(found.knee, color=COLOURS[4], ls="--", lw=1.4, label=f"knee, {found.knee} workers")
    style(panel)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("workers.maximum", fontsize=11)
    panel.set_ylabel(unit.name, fontsize=11)
    panel.legend(frameon=False, fontsize=9)
