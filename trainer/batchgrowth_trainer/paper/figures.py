"""The experiments without training: the illustration of Fig. 1, schedules, simulated wall-clock times, Tables 1 and 2.

One colour per schedule in all figures, as the paper has it. The tables show updates, workers and minutes, the published
ones beside ours.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import cos, hypot, pi, sin

from batchgrowth.forecast.course_time import elapsed, run_time
from batchgrowth.forecast.networks import named
from batchgrowth.forecast.step_time import Constants, StepTime
from batchgrowth.plan import Plan
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import FuncFormatter

from batchgrowth_trainer.paper.experiment import Cell, Experiment
from batchgrowth_trainer.paper.published import (
    ACCURACY,
    AT_EPOCHS,
    EXAMPLES,
    LOSS,
    NETWORKS,
    SCHEDULES,
    SLOTS,
    TABLE1_MINUTES,
    PublishedSchedule,
)
from batchgrowth_trainer.plots.figure import COLOURS, GREY
from batchgrowth_trainer.plots.still import new_canvas, style

_MINUTE = 60.0


def _canvas(title: str, panels: int = 1, inches: tuple[float, float] = (7.5, 5.0)) -> tuple[Canvas, Sequence[Axes]]:
    """Return a canvas with a title and its panels, side by side."""
    canvas = new_canvas(inches, title)
    grid = canvas.subplots(1, panels, squeeze=False)[0]
    for panel in grid:
        style(panel)
    return canvas, list(grid)


# --- Fig. 1: gradients of a two-dimensional quadratic ---

DATA = ((-1.0, -0.6), (-0.5, 1.1), (0.7, 0.8), (0.9, -0.9))
"""The coordinates of the four examples."""
MODELS: Mapping[str, tuple[float, float]] = {"A": (0.25, 0.3), "B": (4.2, 3.4)}
"""A model near the optimum, and one far from it."""


def fig1() -> Experiment:
    """Return the gradient of each of four examples, at a model near the optimum and at one far from it."""
    rows: list[tuple[Cell, ...]] = []
    for name, model in MODELS.items():
        gradients = gradients_at(model)
        for number, (x, y) in enumerate(gradients):
            rows.append((name, *model, number, x, y, round(diversity(gradients), 3)))
    return Experiment(
        name="fig1",
        title="Fig. 1: near the optimum, the examples' gradients differ more",
        columns=("model", "w_x", "w_y", "example", "gradient_x", "gradient_y", "diversity"),
        rows=tuple(rows),
        remark="f(w) is the sum over four examples of their squared distance from w. Diversity is the sum of the "
        "gradients' squared norms over the squared norm of their sum (Yin et al. 2018): a quarter if all are equal, 1 "
        "if they are orthogonal, and more if they cancel out. The paper does not give its coordinates; these are ours.",
        draw=_draw_fig1,
    )


def gradients_at(model: tuple[float, float]) -> list[tuple[float, float]]:
    """Return the gradient of each example's part of the quadratic."""
    return [(2 * (model[0] - x), 2 * (model[1] - y)) for x, y in DATA]


def diversity(gradients: Sequence[tuple[float, float]]) -> float:
    """Return the gradient diversity: the sum of squared norms over the squared norm of the sum."""
    squares = sum(hypot(*one) ** 2 for one in gradients)
    return squares / hypot(sum(x for x, _ in gradients), sum(y for _, y in gradients)) ** 2


def _draw_fig1() -> Canvas:
    canvas, [panel] = _canvas("Fig. 1: the gradients of four examples", inches=(6.8, 5.6))
    optimum = (sum(x for x, _ in DATA) / len(DATA), sum(y for _, y in DATA) / len(DATA))
    for radius in (1, 2, 3, 4, 5, 6):
        angles = [2 * pi * step / 50 for step in range(51)]
        panel.plot(
            [optimum[0] + radius * cos(angle) for angle in angles],
            [optimum[1] + radius * sin(angle) for angle in angles],
            color="#e5e7eb", lw=0.9, zorder=1,
        )  # fmt: skip
    panel.plot(*zip(*DATA, strict=True), "o", color=COLOURS[6], ms=7, label="examples")
    panel.plot(*optimum, "*", color=COLOURS[4], ms=14, label="optimum")
    for (name, model), colour in zip(MODELS.items(), (COLOURS[0], COLOURS[1]), strict=True):
        gradients = gradients_at(model)
        for x, y in gradients:
            ahead = (model[0] - 0.25 * x, model[1] - 0.25 * y)
            arrow = {"arrowstyle": "-|>", "color": colour, "lw": 1.6}
            panel.annotate("", xy=ahead, xytext=model, arrowprops=arrow)
        label = f"model {name}, diversity {diversity(gradients):.2f}"
        panel.plot(*model, "s", color=colour, ms=8, label=label)
        panel.annotate(name, model, xytext=(7, 7), textcoords="offset points", color=colour, fontweight="bold")
    panel.set_aspect("equal")
    panel.set_xlim(-2, 5)
    panel.set_ylim(-2, 4.4)
    panel.set_xlabel("$w_x$", fontsize=11)
    panel.set_ylabel("$w_y$", fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper left")
    return canvas


# --- Fig. 2: the schedules ---


def fig2() -> Experiment:
    """Return the learning rate and the batch size of each schedule by epoch."""
    rows = tuple(
        (schedule.name, float(stage.epoch_from), float(stage.epoch_to), stage.batch_size, stage.learning_rate)
        for schedule in SCHEDULES
        for stage in schedule.plan().stages
    )
    return Experiment(
        name="fig2",
        title="Fig. 2: learning rate and batch size by epoch",
        columns=("schedule", "from epoch", "to epoch", "batch size", "learning rate"),
        rows=rows,
        remark="From the plans. (*2): the initial batch and the learning rate are twice as large.",
        draw=_draw_fig2,
    )


def _draw_fig2() -> Canvas:
    canvas, (rate, batch) = _canvas("Fig. 2: schedules of learning rate and batch size", 2, (11.0, 4.4))
    for place, schedule in enumerate(SCHEDULES):
        stages = schedule.plan().stages
        epochs = [float(stage.epoch_from) for stage in stages] + [float(stages[-1].epoch_to)]
        wide = 1.8 + 1.1 * (len(SCHEDULES) - 1 - place)  # earlier lines are wider, so that none hides another
        for panel, values in (
            (rate, [stage.learning_rate for stage in stages]),
            (batch, [stage.batch_size for stage in stages]),
        ):
            drawn = [*values, values[-1]]
            panel.plot(epochs, drawn, drawstyle="steps-post", color=schedule.colour, lw=wide, label=schedule.name)
    for panel, name in ((rate, "learning rate"), (batch, "batch size")):
        panel.set_yscale("log")
        panel.set_xlabel("epochs", fontsize=11)
        panel.set_ylabel(name, fontsize=11)
    batch.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    rate.legend(frameon=False, fontsize=9, title="maximum batch size")
    return canvas


# --- Fig. 5: minutes against updates ---

NETWORK_COLOURS = dict(zip(NETWORKS, (COLOURS[1], COLOURS[0], COLOURS[2]), strict=True))


def fig5() -> Experiment:
    """Return updates and minutes of each schedule under each network, and on the line of an ideal system."""
    rows: list[tuple[Cell, ...]] = []
    for constants in named("paper"):
        for schedule, published in _published(constants.label):
            minutes = minutes_of(schedule.plan(), constants.with_slots(SLOTS))
            updates = schedule.plan().updates
            ideal = _ideal_minutes(constants, updates)
            rows.append((constants.label, schedule.name, updates, published, round(minutes, 2), round(ideal, 2)))
    return Experiment(
        name="fig5",
        title="Fig. 5: training time by the number of updates",
        columns=("network", "schedule", "updates", "minutes, paper", "minutes", "minutes, ideal"),
        rows=tuple(rows),
        remark="Crosses are the paper's minutes, circles ours. The ideal line is that of updates which all take as "
        "long as one of a single worker, whatever the batch.",
        draw=_draw_fig5,
    )


def _published(network: str) -> Iterator[tuple[PublishedSchedule, float]]:
    place = NETWORKS.index(network)
    for schedule in SCHEDULES:
        yield schedule, schedule.minutes[place]


def _ideal_minutes(constants: Constants, updates: int) -> float:
    return updates * constants.step.seconds(128, 1, 1) / _MINUTE


def _draw_fig5() -> Canvas:
    canvas, [panel] = _canvas("Fig. 5: training time by the number of updates")
    for constants in named("paper"):
        colour = NETWORK_COLOURS[constants.label]
        points = sorted(
            (schedule.plan().updates, minutes_of(schedule.plan(), constants.with_slots(SLOTS)), published)
            for schedule, published in _published(constants.label)
        )
        updates = [point[0] for point in points]
        panel.plot(updates, [point[1] for point in points], "o-", color=colour, lw=1.6, label=constants.label)
        panel.plot(updates, [point[2] for point in points], "x", color="black", ms=6, zorder=3)
    moderate = named("paper")[NETWORKS.index("moderate")]
    ends = [0, 80_000]
    ideal = [_ideal_minutes(moderate, count) for count in ends]
    panel.plot(ends, ideal, "--", color=GREY, lw=1.4, label="ideal (decentralized)")
    panel.plot([], [], "x", color="black", label="published")
    panel.set_xlim(left=0)
    panel.set_ylim(bottom=0)
    panel.set_xlabel("model updates", fontsize=11)
    panel.set_ylabel("training time (minutes)", fontsize=11)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.legend(frameon=False, fontsize=9)
    return canvas


# --- Figs 6 and 8 to 10: accuracy and loss by time ---

_CURVES = {"accuracy": (ACCURACY, "test accuracy (%)"), "loss": (LOSS, "test loss")}


def by_time(name: str, network: str, measures: tuple[str, ...]) -> Experiment:
    """Return the paper's test accuracy or loss of each schedule by the simulated minutes under a network."""
    constants = next(one for one in named("paper") if one.label == network)
    rows: list[tuple[Cell, ...]] = []
    for schedule in SCHEDULES:
        times = minutes_at(schedule.plan(), constants.with_slots(SLOTS).step, AT_EPOCHS)
        for place, (epoch, minutes) in enumerate(zip(AT_EPOCHS, times, strict=True)):
            values = [_CURVES[measure][0][schedule.name][place] for measure in measures]
            rows.append((schedule.name, epoch, round(minutes, 3), *values))
    title = f"{name.replace('fig', 'Fig. ')}: test {' and '.join(measures)} by time, network {network}"
    return Experiment(
        name=name,
        title=title,
        columns=("schedule", "epoch", "minutes", *measures),
        rows=tuple(rows),
        remark="Minutes are ours. Accuracy and loss are those of the paper's own training at every tenth epoch, which "
        "the paper replayed in its simulations too; dotted lines are the minutes that it published.",
        draw=partial(_draw_by_time, title, network, measures, constants.with_slots(SLOTS).step),
    )


def minutes_at(plan: Plan, step: StepTime, epochs: Sequence[float]) -> list[float]:
    """Return the minutes after which each epoch is done; within a stage, all epochs take equally long."""
    corners = list(elapsed(plan, step))
    found = []
    for epoch in epochs:
        # The corners are the ends of stages, between which time is linear in epochs.
        (low, before), (high, after) = next(pair for pair in pairwise(corners) if epoch <= pair[1][0])
        found.append((before + (after - before) * (epoch - low) / (high - low)) / _MINUTE)
    return found


def _draw_by_time(title: str, network: str, measures: tuple[str, ...], step: StepTime) -> Canvas:
    canvas, panels = _canvas(title, len(measures), (5.5 * len(measures) + 2.0, 4.8))
    for panel, measure in zip(panels, measures, strict=True):
        curves, label = _CURVES[measure]
        for schedule, published in _published(network):
            minutes = minutes_at(schedule.plan(), step, AT_EPOCHS)
            values = curves[schedule.name]
            panel.plot(minutes, values, color=schedule.colour, lw=1.6, label=schedule.name)
            panel.plot(minutes[-1], values[-1], "o", color=schedule.colour, ms=6)
            panel.axvline(published, color=schedule.colour, lw=0.9, ls=":")
        panel.set_xlim(left=0)
        panel.set_xlabel("training time (minutes)", fontsize=11)
        panel.set_ylabel(label, fontsize=11)
    panels[0].legend(frameon=False, fontsize=9, title="maximum batch size")
    return canvas


# --- Fig. 7: the time of a pass by the examples of a worker ---

FIG7_BATCH = 512
FIG7_WORKERS = (1, 2, 4, 8, 16)
FIG7_PUBLISHED_MS: Mapping[int, float] = {1: 174.0, 2: 103.0, 4: 74.5, 8: 78.0, 16: 113.0}
"""Workers -> the median of an update that the authors' simulation took, in ms."""
FIG7_OVERHEAD = ((1, 0.018), (2, 0.025), (4, 0.035), (8, 0.059), (16, 0.103))
"""Workers -> seconds of Dask's overhead in that simulation, which ran on a machine with 16 places."""


def fig7() -> Experiment:
    """Return the seconds of a pass through the data with a batch of 512, by the examples of a worker."""
    rows = tuple((FIG7_BATCH // workers, workers, *fig7_seconds(workers)) for workers in FIG7_WORKERS)
    return Experiment(
        name="fig7",
        title="Fig. 7: the time of a pass by the examples of a worker, batch 512",
        columns=("examples per worker", "workers", "seconds, paper", "seconds", "seconds without Dask"),
        rows=rows,
        remark="The network is the high one, and gradients take half as long as in the other simulations, as in the "
        "paper's. Below 128 examples per worker it is Dask's overhead that grows, and not the exchange.",
        draw=_draw_fig7,
        shown=True,
    )


def fig7_step() -> StepTime:
    """Return the step time of Fig. 7: half of a T4's time for a gradient, the high network, and FIG7_OVERHEAD."""
    (high,) = named("high")
    return replace(high.step, per_example=high.step.per_example / 2, overhead=FIG7_OVERHEAD)


def fig7_seconds(workers: int) -> tuple[float, float, float]:
    """Return the seconds of a pass: the published ones, ours, and ours without Dask's overhead."""
    updates = -(-EXAMPLES // FIG7_BATCH)
    step = fig7_step()
    seconds = step.seconds(FIG7_BATCH, workers, workers)
    bare = replace(step, overhead=()).seconds(FIG7_BATCH, workers, workers)
    published = FIG7_PUBLISHED_MS[workers] / 1000
    return round(updates * published, 2), round(updates * seconds, 2), round(updates * bare, 2)


def _draw_fig7() -> Canvas:
    canvas, [panel] = _canvas("Fig. 7: the time of a pass, batch 512, network high")
    each = [FIG7_BATCH // workers for workers in FIG7_WORKERS]
    published, simulated, bare = zip(*map(fig7_seconds, FIG7_WORKERS), strict=True)
    panel.plot(each, simulated, "o-", color=COLOURS[2], lw=1.8, label="simulated")
    panel.plot(each, bare, "o--", color=COLOURS[0], lw=1.4, label="without Dask's overhead")
    panel.plot(each, published, "x", color="black", ms=7, zorder=3, label="published")
    panel.margins(x=0.05)
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.set_ylim(bottom=0)
    panel.set_xlabel("examples per worker", fontsize=11)
    panel.set_ylabel("seconds per pass", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
    return canvas


# --- Tables 1 and 2 ---


def table1() -> Experiment:
    """Return the updates, the minutes under the centralized architecture and the largest number of workers."""
    rows: list[tuple[Cell, ...]] = []
    for schedule in SCHEDULES:
        plan = schedule.plan()
        published = TABLE1_MINUTES[schedule.name]
        ours = simulated_minutes(schedule)["centralized"]
        workers = max(stage.workers for stage in plan.stages)
        rows.append(
            (
                schedule.name, schedule.updates, plan.updates, published, round(ours, 2), difference(ours, published),
                schedule.workers, workers,
            )
        )  # fmt: skip
    return Experiment(
        name="table1",
        title="Table 1: updates, training time and workers",
        columns=(
            "maximum batch", "updates, paper", "updates", "minutes, paper", "minutes", "difference",
            "workers, paper", "workers",
        ),
        rows=tuple(rows),
        remark="Updates and workers are those of the plan, and equal to the paper's. Minutes are simulated, as in the "
        "paper: constants of a T4, and four workers computing at a time.",
        shown=True,
    )  # fmt: skip


def table2() -> Experiment:
    """Return the minutes under each network: as simulated in the paper, with all workers at once, without overhead."""
    rows: list[tuple[Cell, ...]] = []
    for schedule in SCHEDULES:
        plan = schedule.plan()
        for constants, published in zip(named("paper"), schedule.minutes, strict=True):
            ours = minutes_of(plan, constants.with_slots(SLOTS))
            at_once = minutes_of(plan, constants)
            bare = minutes_of(plan, replace(constants, step=replace(constants.step, overhead=())))
            rows.append(
                (
                    schedule.name, constants.label, published, round(ours, 1), difference(ours, published),
                    round(at_once, 1), round(bare, 1),
                )
            )  # fmt: skip
    return Experiment(
        name="table2",
        title="Table 2: minutes of training under three networks",
        columns=("maximum batch", "network", "paper", "ours", "difference", "all at once", "no overhead"),
        rows=tuple(rows),
        remark='The paper\'s simulations computed the gradients of at most four workers at a time. "All at once" is '
        'what as many workers as the plan asks for would take with the same overhead of Dask, and "no overhead" what '
        "they would take without it.",
        shown=True,
    )


def simulated_minutes(schedule: PublishedSchedule) -> Mapping[str, float]:
    """Return the minutes that the paper's simulator gives a schedule, by network."""
    plan = schedule.plan()
    return {constants.label: minutes_of(plan, constants.with_slots(SLOTS)) for constants in named("paper")}


def minutes_of(plan: Plan, constants: Constants) -> float:
    """Return the minutes that the constants forecast for a plan."""
    return run_time(plan, constants).seconds.value / 60


def difference(ours: float, published: float) -> str:
    """Return how far ours is from the published number: `+0.3%`."""
    return f"{ours / published - 1:+.1%}"


FIGURES: Mapping[str, Callable[[], Experiment]] = {
    "fig1": fig1,
    "fig2": fig2,
    "fig5": fig5,
    "fig6": partial(by_time, "fig6", "moderate", ("accuracy",)),
    "fig7": fig7,
    "fig8": partial(by_time, "fig8", "moderate", ("accuracy", "loss")),
    "fig9": partial(by_time, "fig9", "high", ("accuracy", "loss")),
    "fig10": partial(by_time, "fig10", "centralized", ("accuracy", "loss")),
}
