"""Table 1 and Table 2: updates, workers and minutes, the published ones beside ours."""

from collections.abc import Mapping
from dataclasses import replace

from batchgrowth.forecast.course_time import run_time
from batchgrowth.forecast.networks import named
from batchgrowth.forecast.step_time import Constants
from batchgrowth.plan import Plan

from batchgrowth_trainer.paper.experiment import Cell, Experiment
from batchgrowth_trainer.paper.published import SCHEDULES, SLOTS, TABLE1_MINUTES, PublishedSchedule


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
    """Return the minutes under each network, as the paper simulated them, and with all workers computing at once."""
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
