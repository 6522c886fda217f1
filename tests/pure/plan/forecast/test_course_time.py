"""What a plan takes: an update, a stage, a whole run; and the paper's Table 2."""

from dataclasses import replace
from pathlib import Path

import pytest
from batchgrowth.forecast.course_time import alike_updates, elapsed, plan_seconds, run_time, used_workers
from batchgrowth.forecast.networks import DASK_OVERHEAD, named
from batchgrowth.forecast.step_time import Constants, Estimated, StepTime
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import Plan, make_plan

EXAMPLES = Path(__file__).parents[4] / "examples"
TABLE2 = {
    5120: (69.9, 45.1, 43.5), 3200: (107.2, 67.7, 65.5), 16_000: (107.5, 67.7, 65.7), 640: (116.9, 73.6, 71.8),
    128: (200.2, 121.7, 121.5),
}  # fmt: skip
"""Largest batch -> the minutes that the paper published, for the networks centralized, moderate and high."""


def plan_of(name: str, *changes: str) -> Plan:
    return make_plan(load_manifest(EXAMPLES / name, changes).spec)


@pytest.mark.parametrize("maximum", TABLE2)
def test_table2(maximum: int) -> None:
    """Each of the published minutes within 1 %."""
    plan = plan_of(f"table1/{maximum}.yaml")
    ours = [run_time(plan, constants.with_slots(4)).seconds.value / 60 for constants in named("paper")]

    assert ours == pytest.approx(TABLE2[maximum], rel=0.01)


def test_as_many_places_as_workers() -> None:
    """Without slots and without Dask's overhead, the moderate network takes 20 minutes rather than 102."""
    (moderate,) = named("moderate")
    minutes = [run_time(plan_of(f"table1/{maximum}.yaml"), moderate).seconds.value / 60 for maximum in (5120, 128)]

    assert [round(one, 1) for one in minutes] == [20.1, 102.0]


STEP = StepTime(per_example=0.001, per_shard=0.01, per_update=0.1, per_group=1, per_doubling=2, per_worker=3)


def test_an_update_is_the_sum_of_its_parts() -> None:
    # 3 of 10 shards on the busiest worker, which are 30 of 100 examples; then 2 doublings and 3 more workers.
    assert STEP.seconds(100, 10, 4) == pytest.approx(0.1 + 3 * 0.01 + 30 * 0.001 + 1 + 2 * 2 + 3 * 3)
    assert STEP.seconds(100, 10, 1) == pytest.approx(0.1 + 10 * 0.01 + 100 * 0.001)


def test_slots_make_rounds() -> None:
    two = replace(STEP, slots=2)

    assert two.seconds(100, 10, 5) == pytest.approx(3 * STEP.seconds(100, 10, 5))
    assert two.seconds(100, 10, 2) == STEP.seconds(100, 10, 2)


def test_the_overhead_is_linear_between_its_lines_and_goes_on_after_the_last() -> None:
    step = StepTime(overhead=DASK_OVERHEAD)

    found = [step.overhead_of(workers) for workers in (1, 2, 3, 5, 125, 150)]
    assert found == pytest.approx([0.0156, 0.0195, 0.0247, 0.0351, 0.3195, 0.3195 + 25 * 0.176 / 85])
    assert StepTime(overhead=((3, 0.5),)).overhead_of(7) == 0.5
    assert StepTime().overhead_of(7) == 0


@pytest.mark.parametrize(
    ("start", "updates", "groups"),
    [
        (0, 3, [(3, 30)]),
        (0, 4, [(3, 30), (1, 10)]),
        (0, 8, [(6, 30), (2, 10)]),
        (0, 9, [(7, 30), (2, 10)]),
        (50, 2, [(1, 30), (1, 20)]),
        (50, 6, [(4, 30), (1, 20), (1, 10)]),
        (70, 1, [(1, 30)]),
        (90, 1, [(1, 10)]),
        (90, 5, [(3, 30), (2, 10)]),
    ],
)
def test_only_the_last_update_of_an_epoch_is_short(start: int, updates: int, groups: list[tuple[int, int]]) -> None:
    """100 examples, batches of 30."""
    assert [(one.count, one.examples) for one in alike_updates(start, 100, updates, 30)] == groups


@pytest.mark.parametrize("change", ["epochs=30", "batch.growth={type: Linear, linear: {examplesPerUpdate: '0.3'}}"])
def test_the_groups_are_the_updates_of_the_plan(change: str) -> None:
    """Walked update by update, stages that begin within an epoch included."""
    plan = plan_of("digits.yaml", change)
    step = StepTime(per_example=1.0, per_update=0.5)
    walked = 0.0
    position = plan.position_at(0)
    while not plan.is_done(position):
        update = plan.step_at(position)
        workers = min(update.workers, plan.parts(update.batch_size))
        walked += step.seconds(update.examples, update.shards, workers)
        position = update.after

    assert sum(plan_seconds(plan, step)) == pytest.approx(walked)


def test_a_run_costs_the_workers_that_it_asks_for() -> None:
    """Also those that a batch has no shard for."""
    plan = plan_of("digits.yaml", "workers.minimum=2", "workers.maximum=2")
    constants = Constants(label="x", step=StepTime(per_update=3600), error=0.1)
    made = run_time(plan, constants, price=0.5)

    assert used_workers(plan, plan.stages[0]) == made.stages[0].workers == 1
    assert made.worker_hours.value == pytest.approx(2 * plan.updates)
    assert made.money is not None
    assert made.money.value == pytest.approx(plan.updates)
    assert sum(stage.money.value for stage in made.stages if stage.money) == pytest.approx(made.money.value)
    assert run_time(plan, constants).money is None


def test_the_interval_has_the_draws_and_the_shared_error() -> None:
    step = StepTime(per_update=1)
    alone = Constants(label="x", step=step, error=0.1)
    drawn = replace(alone, draws=(StepTime(per_update=0.8), StepTime(per_update=1.25)))
    plan = plan_of("digits.yaml")

    narrow = run_time(plan, alone).seconds
    wide = run_time(plan, drawn).seconds
    assert narrow.value == wide.value == pytest.approx(plan.updates)
    assert (narrow.low / narrow.value, narrow.high / narrow.value) == pytest.approx((0.848, 1.179), abs=1e-3)
    assert wide.high / wide.value == pytest.approx(1.4953, abs=1e-3)
    assert alone.estimated(0.0, []) == Estimated(value=0, low=0, high=0)


def test_what_has_passed_at_the_end_of_each_stage() -> None:
    plan = plan_of("digits.yaml")
    passed = list(elapsed(plan, StepTime(per_update=1, per_epoch=10)))

    assert passed[:2] == [(0, 0), (5, 225 + 50)]
    assert passed[-1] == (30, pytest.approx(460 + 300))
