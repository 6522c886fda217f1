"""Figs 3 and 4 and a table of their ends, from real trainings; the paper's own trainings are drawn above ours."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import isnan

from batchgrowth.forecast.networks import named
from batchgrowth.plan import Plan
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter, MaxNLocator

from batchgrowth_trainer.paper.experiment import Cell, Experiment
from batchgrowth_trainer.paper.figures import minutes_at
from batchgrowth_trainer.paper.published import ACCURACY, AT_EPOCHS, LOSS, SLOTS
from batchgrowth_trainer.paper.trainings import Comparison, SeedMean, TrainedSchedule
from batchgrowth_trainer.plots.still import new_canvas, style

_WHAT = "Above are the paper's trainings, one for each schedule; below ours, with a band of one standard error."
_ACCURACY = "test accuracy (%)"
_LOSS = "test loss"
_SHOWN_BELOW = 12.0
"""The axis of an accuracy begins this many points below the best, since the first epochs would hide the others."""


def accuracy(comparison: Comparison) -> Experiment:
    """Return the updates and the final accuracy of each schedule, the paper's and ours."""
    rows: list[tuple[Cell, ...]] = []
    for one in comparison.schedules:
        end = one.accuracy[-1]
        rows.append(
            (
                one.schedule.name, one.plan.stages[-1].batch_size, one.schedule.updates, one.schedule.accuracy,
                one.plan.updates, one.updates[-1], round(end.mean, 2), _error(end, 2), round(one.loss[-1].mean, 4),
            )
        )  # fmt: skip
    return Experiment(
        name="accuracy",
        title=f"The ends of Figs 3 and 4: updates and test accuracy, {_of(comparison)}",
        columns=(
            "maximum batch", "maximum here", "updates, paper", "accuracy, paper", "updates, planned", "updates",
            "accuracy", "standard error", "loss",
        ),
        rows=tuple(rows),
        remark=comparison.likeness(),
        shown=True,
    )  # fmt: skip


def fig3(comparison: Comparison) -> Experiment:
    """Return the test accuracy and the test loss of each schedule by epoch."""
    title = f"Fig. 3: test accuracy and loss by epoch, {_of(comparison)}"
    return Experiment(
        name="fig3",
        title=title,
        columns=("schedule", "epoch", "accuracy", "standard error", "loss", "loss, standard error"),
        rows=tuple(
            (one.schedule.name, epoch, *_rounded(accuracy), *_rounded(loss))
            for one in comparison.schedules
            for epoch, accuracy, loss in zip(one.epochs, one.accuracy, one.loss, strict=True)
        ),
        remark=f"{_WHAT} The paper finds the same performance by epoch, whatever the schedule. {comparison.likeness()}",
        draw=partial(_draw_fig3, title, comparison),
    )


def fig4(comparison: Comparison) -> Experiment:
    """Return the test accuracy of each schedule by update and by time."""
    title = f"Fig. 4: test accuracy by update and by time, {_of(comparison)}"
    return Experiment(
        name="fig4",
        title=title,
        columns=("schedule", "epoch", "updates", "seconds", "accuracy", "standard error"),
        rows=tuple(
            (one.schedule.name, epoch, updates, round(seconds.mean, 3), *_rounded(accuracy))
            for one in comparison.schedules
            for epoch, updates, seconds, accuracy in zip(
                one.epochs, one.updates, one.seconds, one.accuracy, strict=True
            )
        ),
        remark=f"{_WHAT} The paper's time is that of Table 1, simulated for the centralized architecture; ours is what "
        "one process of this machine took, so it shows the updates that were saved, and not what workers add.",
        draw=partial(_draw_fig4, title, comparison),
    )


FROM_RUNS: Mapping[str, Callable[[Comparison], Experiment]] = {"accuracy": accuracy, "fig3": fig3, "fig4": fig4}
"""The experiments that are made of real trainings."""


def _of(comparison: Comparison) -> str:
    seeds = "1 seed" if comparison.seeds == 1 else f"{comparison.seeds} seeds"
    return f"{comparison.problem.label}, {seeds}"


def _rounded(value: SeedMean) -> tuple[Cell, Cell]:
    return round(value.mean, 4), _error(value, 4)


def _error(value: SeedMean, digits: int) -> Cell:
    return "" if isnan(value.error) else round(value.error, digits)


def _draw_fig3(title: str, comparison: Comparison) -> Canvas:
    canvas, grid = _canvas(title)
    epochs = list(map(float, AT_EPOCHS))
    for place, one in enumerate(comparison.schedules):
        # Equal schedules have equal weights: earlier lines are wider, so that none hides another.
        wide = 1.6 + 0.9 * (len(comparison.schedules) - 1 - place)
        name = one.schedule.name
        for column, (curves, ours) in enumerate(((ACCURACY, one.accuracy), (LOSS, one.loss))):
            grid[0][column].plot(epochs, curves[name], color=one.schedule.colour, lw=1.6, label=name)
            _draw_ours(grid[1][column], one, one.epochs, ours, wide)
    for row in grid:
        _begin_near_the_best(row[0])
        for panel, label in zip(row, (_ACCURACY, _LOSS), strict=True):
            panel.set_xlabel("epochs", fontsize=11)
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.set_ylabel(label, fontsize=11)
    for panel in (grid[0][1], grid[1][1]):
        panel.set_yscale("log")
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        panel.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _add_legends(grid, comparison)
    return canvas


def _draw_fig4(title: str, comparison: Comparison) -> Canvas:
    canvas, grid = _canvas(title)
    (centralized,) = (one for one in named("paper") if one.label == "centralized")
    step = centralized.with_slots(SLOTS).step
    for one in comparison.schedules:
        schedule = one.schedule
        published = schedule.plan()
        points = ([updates_at(published, epoch) for epoch in AT_EPOCHS], minutes_at(published, step, AT_EPOCHS))
        ours = (list(map(float, one.updates)), [each.mean for each in one.seconds])
        for column in (0, 1):
            panel = grid[0][column]
            values = ACCURACY[schedule.name]
            panel.plot(points[column], values, color=schedule.colour, lw=1.6, label=schedule.name)
            panel.plot(points[column][-1], values[-1], "o", color=schedule.colour, ms=6)
            _draw_ours(grid[1][column], one, ours[column], one.accuracy, 1.6)
            grid[1][column].plot(ours[column][-1], one.accuracy[-1].mean, "o", color=schedule.colour, ms=6)
    for row, time in zip(grid, ("training time (minutes)", "training time (seconds)"), strict=True):
        for panel, label in zip(row, ("model updates", time), strict=True):
            panel.set_xlim(left=0)
            panel.set_xlabel(label, fontsize=11)
            panel.set_ylabel(_ACCURACY, fontsize=11)
            panel.xaxis.set_major_formatter(
                FuncFormatter(lambda value, _: f"{value:,.3g}" if value < 1000 else f"{value:,.0f}")
            )
            _begin_near_the_best(panel)
    _add_legends(grid, comparison)
    return canvas


def updates_at(plan: Plan, epoch: float) -> float:
    """Return how many updates a plan has done after an epoch."""
    place = bisect_left([float(stage.epoch_to) for stage in plan.stages], epoch)
    stage = plan.stages[place]
    return stage.first_update + (epoch - float(stage.epoch_from)) * stage.updates_per_epoch


def _canvas(title: str) -> tuple[Canvas, Sequence[Sequence[Axes]]]:
    """Return a canvas with two rows of two panels, the published ones above ours."""
    canvas = new_canvas((11.5, 8.4), title)
    grid = [list(row) for row in canvas.subplots(2, 2, squeeze=False)]
    for row in grid:
        for panel in row:
            style(panel)
    return canvas, grid


def _draw_ours(
    panel: Axes, one: TrainedSchedule, at: Sequence[float], values: Sequence[SeedMean], width: float
) -> None:
    label = f"{one.schedule.name}: {one.plan.stages[-1].batch_size:,}"
    panel.plot(at, [value.mean for value in values], color=one.schedule.colour, lw=width, label=label)
    if not isnan(values[0].error):
        low = [value.mean - value.error for value in values]
        high = [value.mean + value.error for value in values]
        panel.fill_between(at, low, high, color=one.schedule.colour, alpha=0.18, lw=0)


def _begin_near_the_best(panel: Axes) -> None:
    _, top = panel.get_ylim()
    panel.set_ylim(top - _SHOWN_BELOW, top)


def _add_legends(grid: Sequence[Sequence[Axes]], comparison: Comparison) -> None:
    grid[0][0].set_title("published: CIFAR-10, WRN 16-4", fontsize=11, loc="left")
    grid[1][0].set_title(f"ours: {_of(comparison)}", fontsize=11, loc="left")
    grid[0][0].legend(frameon=False, fontsize=9, title="maximum batch size", loc="lower right")
    grid[1][0].legend(frameon=False, fontsize=9, title="in the paper: here", loc="lower right")
