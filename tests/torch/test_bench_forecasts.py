"""What `python -m bench.forecasts` trains, and how it judges a run."""

import pytest
from batchgrowth.forecast.course_time import Outlook
from batchgrowth.forecast.step_time import Estimated
from batchgrowth.plan import make_plan
from batchgrowth_trainer.record.history import HistoryRow

from bench.forecasts import SHARE, Judged, jobs, judged


def test_batch_and_workers_grow_or_shrink_after_the_tenth() -> None:
    """In each of three nets with three exchanges."""
    found = {name: make_plan(job.spec) for name, job in jobs()}

    assert len(found) == 18
    for name, plan in found.items():
        sizes = [(stage.batch_size, stage.workers) for stage in plan.stages]
        first = sizes.index((128, 4)) if "shrink" in name else 0
        assert sizes[first:] == ([(32, 1), (64, 2), (128, 4)] if "growth" in name else [(128, 4), (64, 2), (32, 1)])
        assert plan.stages[first].updates > SHARE * plan.updates


def row(update: int, left: float | None) -> HistoryRow:
    outlook = None
    if left is not None:
        outlook = Outlook(remaining=Estimated(value=left, low=left - 1, high=left + 1), update_seconds=1.0)
    return HistoryRow(update, update / 4, 0, 64, 0.01, 1.0, 1, 0.0, 0.0, 0.0, float(update), outlook=outlook)


def test_a_run_is_judged_by_what_it_said_after_a_tenth() -> None:
    rows = [row(update, 19.0 if update == 2 else 5.0) for update in range(1, 21)]

    assert judged("a run", rows) == Judged("a run", 19.0, 18.0, 20.0, 18.0)
    assert judged("a run", rows).error == pytest.approx(1 / 18)
    assert judged("a run", rows).is_covered
    assert not Judged("a run", 19.0, 18.5, 20.0, 18.0).is_covered
    with pytest.raises(ValueError, match="a run: the run ended before its first forecast"):
        judged("a run", [row(1, None), row(2, None)])
