"""Draws a training before it begins: a plan by update, and a forecast by time and by the number of workers."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from batchgrowth.errors import BatchGrowthError, counted
from batchgrowth.forecast.sentences import Forecasted, Unit, number, unit_of
from batchgrowth.growth_decisions import Course
from batchgrowth.plan import Plan
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchgrowth_trainer.plots.figure import COLOURS, GREY, MOST_POINTS
from batchgrowth_trainer.plots.still import new_canvas, save, style

INCHES = (9.0, 6.6)


def draw_plan(course: Course, path: Path) -> None:
    """Write the picture of a plan to `path`, in the format of its suffix. Raises OSError."""
    plan = course.plan
    canvas = new_canvas(INCHES, _title(course))
    grid = canvas.subplots(3, 1, sharex=True, gridspec_kw={"height_ratios": [2, 1.2, 2]})
    batch, workers, rate = grid
    corners = [stage.first_update for stage in plan.stages] + [plan.updates]
    _steps(batch, corners, [stage.batch_size for stage in plan.stages], COLOURS[0])
    _steps(workers, corners, [stage.workers for stage in plan.stages], COLOURS[2])
    updates = rated_updates(plan)
    rates = [plan.learning_rate_at(plan.position_at(update)) for update in updates]
    rate.plot(updates, rates, color=COLOURS[1], lw=1.8)
    for panel, name in ((batch, "batch size"), (workers, "workers"), (rate, "learning rate")):
        style(panel)
        panel.set_ylabel(name, fontsize=11)
        for corner in corners[1:-1]:
            panel.axvline(corner, color=GREY, lw=0.6, ls=":", zorder=1)
    batch.set_yscale("log", base=2)
    batch.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    workers.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    workers.set_ylim(0, 1.15 * max(stage.workers for stage in plan.stages))
    rate.set_ylim(bottom=0)
    rate.set_xlabel("updates", fontsize=11)
    save(canvas, path)


def rated_updates(plan: Plan) -> list[int]:
    """Return the updates whose learning rates are drawn: evenly spaced, and the first and last of each stage."""
    even = np.linspace(0, plan.updates - 1, min(plan.updates, MOST_POINTS)).astype(np.int64).tolist()
    ends = [stage.first_update + stage.updates - 1 for stage in plan.stages]
    starts = [stage.first_update for stage in plan.stages]
    return sorted({*even, *starts, *ends})


def _steps(panel: Axes, corners: Sequence[int], values: Sequence[int], colour: str) -> None:
    panel.plot(corners, [*values, values[-1]], drawstyle="steps-post", color=colour, lw=1.8)


def _title(course: Course) -> str:
    plan = course.plan
    text = f"{counted(plan.updates, 'update')} in {counted(len(plan.stages), 'stage')}, "
    text += counted(plan.epochs, "epoch")
    if course.is_measured and not course.decisions:
        text = f"at most {text}: the batch follows the {course.quantity}, which training measures"
    if course.largest_gain(max(stage.batch_size for stage in plan.stages)) > 1:
        text += "\nthe learning rate without its gain, which training measures"
    return text


# --- A forecast ---

FORECAST_INCHES = (12.0, 5.0)


def plot_forecast(found: Forecasted, path: Path) -> None:
    """Write the picture of a forecast to `path`, in the format of its suffix. Raises BatchGrowthError."""
    made = found.made
    unit = unit_of(made.seconds.value)
    money = "" if made.money is None else f", ${number(made.money.value)}"
    title = f"{unit.text(made.seconds)} {unit.name}, {number(made.worker_hours.value)} worker-hours{money}"
    # Between two dollar signs, matplotlib would read a formula.
    canvas = new_canvas(FORECAST_INCHES, title.replace("$", r"\$"))
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
    # Both axes end well above their lines, so that the legend hides none.
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
