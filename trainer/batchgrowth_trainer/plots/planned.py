"""Draws a plan before it is trained: batch size, workers and learning rate by update."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from batchgrowth.errors import counted
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
