"""The time that is left after an update: looked up, and the same as adding the rest of the plan up."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from batchgrowth.forecast.course_time import (
    NOTHING_LEFT,
    Outlook,
    plan_seconds,
    remaining_plan,
    remaining_time,
    used_workers,
)
from batchgrowth.forecast.step_time import Constants, StepTime
from batchgrowth.manifest.reading import load_manifest
from batchgrowth.plan import Plan, Stage, make_plan

EXAMPLES = Path(__file__).parents[4] / "examples"
STEP = StepTime(per_example=0.001, per_update=0.01, per_doubling=0.005)


def digits(*changes: str) -> Plan:
    return make_plan(load_manifest(EXAMPLES / "digits.yaml", changes).spec)


def planned(stage: Stage) -> int:
    return stage.workers


def test_what_is_left_counts_the_batches_and_workers_of_later_stages() -> None:
    plan = digits()
    whole = plan_seconds(plan, STEP)
    found = remaining_time(plan, 0, Constants(label="x", step=STEP), planned)

    assert found.after(0).remaining.value == pytest.approx(sum(whole))
    assert len({used_workers(plan, stage) for stage in plan.stages}) > 1
    for index, stage in enumerate(plan.stages):
        outlook = found.after(stage.first_update)
        assert outlook.remaining.value == pytest.approx(sum(whole[index:]))
        assert outlook.update_seconds == pytest.approx(whole[index] / stage.updates)
    assert found.after(plan.updates) == Outlook(remaining=NOTHING_LEFT, update_seconds=found.paces[-1])


def test_within_a_stage_it_falls_by_the_same_with_each_update() -> None:
    plan = digits("epochs=4")
    found = remaining_time(plan, 20, Constants(label="x", step=STEP), planned)
    left = [found.after(update).remaining.value for update in range(20, 30)]

    assert left[0] == pytest.approx(sum(plan_seconds(remaining_plan(plan, 20), STEP)))
    assert [before - after for before, after in pairwise(left)] == pytest.approx([found.after(20).update_seconds] * 9)


def test_other_workers_than_planned_take_another_time() -> None:
    plan = digits()
    constants = Constants(label="x", step=StepTime(per_example=0.001))
    alone = remaining_time(plan, 0, constants, lambda _: 1).after(0).remaining.value

    assert alone == pytest.approx(0.001 * plan.examples)
    assert remaining_time(plan, 0, constants, planned).after(0).remaining.value < alone


def test_the_interval_is_that_of_the_constants() -> None:
    draws = (StepTime(per_example=0.0005), StepTime(per_example=0.002))
    constants = Constants(label="x", step=StepTime(per_example=0.001), error=0.1, draws=draws)
    found = remaining_time(digits(), 3, constants, planned).after(40).remaining

    assert found.low < found.value / 2 < 2 * found.value < found.high
    assert found.low * found.high == pytest.approx(found.value**2)


def test_updates_that_take_no_time_leave_none() -> None:
    found = remaining_time(digits(), 0, Constants(label="x", step=StepTime()), planned)

    assert found.after(0).remaining == NOTHING_LEFT


def test_nothing_is_left_of_a_plan_that_is_done() -> None:
    plan = digits()

    with pytest.raises(ValueError, match="nothing is left after"):
        remaining_time(plan, plan.updates, Constants(label="x", step=STEP), planned)


def test_workers_of_whom_no_update_was_seen_widen_the_interval() -> None:
    constants = Constants(label="here", step=StepTime(per_update=1.0), error=0.04, seen_workers=frozenset({1, 2}))

    assert constants.extrapolated([1, 2]) is constants
    assert constants.extrapolated([1, 3]).error == pytest.approx((0.04**2 + 0.1**2) ** 0.5)
    assert replace(constants, seen_workers=frozenset()).extrapolated([3]).error == 0.04, "that does not matter then"


def test_one_worker_exchanges_if_the_model_is_elsewhere() -> None:
    step = StepTime(per_group=2.0, per_doubling=1.0, per_worker=0.5)
    central = replace(step, lone_exchange=True)

    assert [step.exchange(workers) for workers in (1, 2)] == [0.0, 3.5]
    assert [central.exchange(workers) for workers in (1, 2)] == [2.0, 3.5]
