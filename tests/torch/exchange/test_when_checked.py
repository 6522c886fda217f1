"""After which updates the workers of a job are checked."""

from typing import Any

import pytest
import small
from batchgrowth_trainer.exchange import spot_check
from batchgrowth_trainer.exchange.spot_check import SHARDS_BETWEEN, checked_every, is_check_due, updates_between


@pytest.mark.parametrize("shards", [1, 3, 8, 64, 1000])
@pytest.mark.parametrize("workers", [1, 2, 3, 40])
def test_a_check_costs_half_a_percent_of_the_shards(shards: int, workers: int) -> None:
    every = updates_between(shards, workers)
    longest = -(-shards // workers)
    computed = 1 if workers > 1 else 2
    assert every * longest >= SHARDS_BETWEEN * computed
    assert (every - 1) * longest < SHARDS_BETWEEN * computed


def test_a_check_that_waits_for_loaders_comes_more_seldom() -> None:
    assert 5 * updates_between(4, 2) == updates_between(4, 2, read_ahead=4)


def test_a_check_is_due_after_so_many_updates_and_once_in_a_longer_round(
    small_job: Any, make_replica: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five shards for two workers, of which one computes three: fifteen shards are five updates."""
    monkeypatch.setattr(spot_check, "SHARDS_BETWEEN", 15)
    job = small_job("workload.entrypoint=small:plain", "epochs=4", "batch={initial: 20, maximum: 20, shard: 4}")
    replica = make_replica(job, small.plain())
    steps = [replica.plan.step_at(replica.plan.position_at(update)) for update in range(20)]
    every = checked_every(replica, 20, workers=2)
    due = [step.after.update for step in steps if is_check_due(step, step, every)]
    assert due == [5, 10, 15, 20]
    assert is_check_due(steps[0], steps[15], every)
    assert not is_check_due(steps[5], steps[8], every)
