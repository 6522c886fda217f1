"""The job's shards, timed on this machine: what is timed, and what follows."""

from itertools import count
from typing import Any

import pytest
from batchgrowth.plan import make_plan
from batchgrowth_trainer.forecasting import measuring
from batchgrowth_trainer.forecasting.measuring import kinds_of, measured


def test_each_stage_is_timed_as_its_busiest_worker_has_it(small_job: Any) -> None:
    plan = make_plan(small_job().spec)
    kinds = kinds_of(plan)

    assert [step.batch_size for step, _ in kinds] == [stage.batch_size for stage in plan.stages]
    for step, (begin, end) in kinds:
        assert end - begin == -(-step.shards // min(step.workers, step.shards))


def test_of_a_long_plan_some_stages_are_timed(small_job: Any) -> None:
    plan = make_plan(small_job("batch.growth={type: Linear, linear: {examplesPerUpdate: '1'}}").spec)
    kinds = kinds_of(plan)

    assert len(plan.stages) > len(kinds) == measuring.MOST_KINDS
    assert (kinds[0][0].stage, kinds[-1][0].stage) == (0, plan.stages[-1].index)


def test_constants_are_measured(small_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that shows a tenth of a second more at each look: that is what each update takes."""
    monkeypatch.setattr(measuring, "BUDGET_SECONDS", 0.5)
    looks = count()
    constants, size = measured(small_job(), (), lambda: next(looks) / 10)

    assert constants.label == "measured"
    assert constants.exchange_note == "the exchange is a guess; --network gives that of your network"
    assert constants.step.seconds(8, 1, 1) == pytest.approx(0.1, rel=0.5)
    assert size % 4 == 0
