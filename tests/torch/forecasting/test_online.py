"""The time left of a run, fitted to its own updates while it trains."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from batchgrowth.forecast.course_time import NOTHING_LEFT, Outlook
from batchgrowth.forecast.step_time import StepTime
from batchgrowth.plan import Plan, Stage, make_plan
from batchgrowth_trainer.forecasting.fitting import BLOCKS
from batchgrowth_trainer.forecasting.online import LONG_UPDATE_SECONDS, PAUSE_PER_FIT, Between, OnlineForecast, RunParts
from batchgrowth_trainer.record.history import HistoryRow

from tests.torch.forecasting.test_fitting import GROWTH, history, job_of

STEP = StepTime(per_update=0.01, per_example=0.001, per_group=0.002, per_doubling=0.004)


def planned(_: Plan, stage: Stage) -> int:
    return stage.workers


def at_once(fit: Callable[[], None]) -> None:
    fit()


class Clock:
    """A clock that tests move."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def seen(rows: list[HistoryRow], plan: Plan) -> Outlook:
    """What the last of these rows gets, if each one is fitted at once, a minute after the one before."""
    clock = Clock()
    forecast = OnlineForecast(planned, clock, at_once)
    outlook = None
    for row in rows:
        clock.now += 60
        outlook = forecast.seen(row, plan)
    assert outlook is not None
    return outlook


def test_what_remains_is_right_before_the_batch_and_the_workers_grow() -> None:
    """After a tenth of the updates, all with one worker and the first batch, of a noisy run."""
    plan = make_plan(job_of(GROWTH).spec)
    rows = history(plan, STEP, 1.0, seed=1)
    part = rows[: len(rows) // 10]
    actual = rows[-1].seconds - part[-1].seconds
    found = seen(part, plan).remaining

    assert {row.workers for row in part} == {1} != {row.workers for row in rows}
    assert found.value == pytest.approx(actual, rel=0.15)
    assert found.low <= actual <= found.high
    # The pace of an example until now, which a run without a model has:
    assert part[-1].seconds / part[-1].epoch * (plan.epochs - part[-1].epoch) > 1.3 * actual


def test_the_second_update_has_a_forecast_and_the_last_has_nothing_left() -> None:
    plan = make_plan(job_of(GROWTH).spec)
    rows = history(plan, STEP, 1.0, seed=2)

    assert OnlineForecast(planned, Clock(), at_once).seen(rows[0], plan) is None
    assert seen(rows[:2], plan).remaining.value == pytest.approx(rows[-1].seconds, rel=0.5)
    assert seen(rows, plan).remaining == NOTHING_LEFT


def test_the_present_stage_goes_on_with_the_workers_that_train() -> None:
    """One of the four that the plan wants."""
    plan = make_plan(job_of("batch={initial: 512, maximum: 512}").spec)
    rows = [replace(row, workers=1) for row in history(plan, STEP, 0.5, seed=3)]
    pace = rows[-1].seconds / len(rows)

    assert [stage.workers for stage in plan.stages] == [4]
    assert seen(rows, plan).remaining.value == pytest.approx(pace * (plan.updates - len(rows)), rel=0.1)


def test_a_fit_takes_a_hundredth_of_the_time_at_most() -> None:
    """If each fit takes 0.5 s, 50 s pass before the next one; and none begins while one runs."""
    plan = make_plan(job_of(GROWTH).spec)
    fits: list[float] = []

    class Ticking(Clock):
        """Half a second later whenever it is read: a fit reads it when it begins and when it ends."""

        def __call__(self) -> float:
            self.now += 0.5
            return self.now

    clock = Ticking()

    def slow(fit: Callable[[], None]) -> None:
        fits.append(clock.now)
        fit()

    forecast = OnlineForecast(planned, clock, slow)
    for row in history(plan, STEP, 1.0, seed=4):
        forecast.seen(row, plan)
    pauses = [after - before for before, after in pairwise(fits)]
    assert len(fits) > 2
    assert min(pauses) > 0.5 * PAUSE_PER_FIT

    waiting: list[Callable[[], None]] = []
    forecast = OnlineForecast(planned, clock, waiting.append)
    assert [forecast.seen(row, plan) for row in history(plan, STEP, 0.1, seed=5)] == [None] * 46
    assert len(waiting) == 1


def test_updates_without_a_time_are_no_base() -> None:
    plan = make_plan(job_of(GROWTH).spec)
    row = replace(history(plan, STEP, 0.01, seed=6)[0], compute_seconds=0.0)

    assert OnlineForecast(planned, Clock(), at_once).seen(row, plan) is None


def test_a_long_run_is_kept_in_few_parts() -> None:
    """Their means are those of all updates but the first, which are warm-up."""
    parts = RunParts()
    random = np.random.default_rng(0)
    times = random.uniform(1, 2, 10_003)
    for number, seconds in enumerate(times):
        parts.add((32, 1, 1 + number % 2), float(seconds), float(seconds))
    cells = parts.cells()

    assert BLOCKS <= len({id(cell) for cell in cells}) / 2 <= 2 * BLOCKS
    assert np.mean([cell.seconds for cell in cells]) == pytest.approx(times[3:].mean(), rel=0.01)
    assert {cell.workers for cell in cells} == {1, 2}


def test_the_first_updates_count_until_there_are_others() -> None:
    parts = RunParts()
    assert parts.cells() == []
    means = []
    for seconds in (9.0, 3.0, 2.0, 1.0):
        parts.add((32, 1, 1), seconds, seconds)
        means.append([cell.seconds for cell in parts.cells()])
    assert means == [[], [3.0], [2.0], [1.0]]

    long = RunParts()
    long.add((32, 1, 1), 2 * LONG_UPDATE_SECONDS, 1.0)
    assert [cell.seconds for cell in long.cells()] == [2 * LONG_UPDATE_SECONDS]


def test_the_usual_time_between_updates_is_that_of_an_epoch() -> None:
    """An evaluation of 2 s at each epoch's end; once, workers were waited for."""
    plan = make_plan(job_of("epochs=30").spec)
    between = Between()
    for row in history(plan, STEP, 0.4, seed=7):
        wait = 100.0 if row.epoch > 3 else 0.0
        between.add(replace(row, seconds=row.seconds + 2 * ((row.epoch * 1437 - 1) // 1437) + wait), row.update_seconds)
        if row.update == 45:
            assert between.seconds == 0

    assert between.seconds == pytest.approx(2.0)


def test_reading_and_fitting_a_run_needs_neither_torch_nor_scipy() -> None:
    """Their imports take seconds, of which `forecast --fit` has two."""
    script = (
        "import sys; import batchgrowth_trainer.forecasting.fitting; "
        "print(sorted({'torch', 'scipy', 'sklearn', 'distributed', 'pandas'} & set(sys.modules)))"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert found.stdout == "[]\n"
