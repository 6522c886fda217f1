"""What `python -m bench.knee` trains."""

from batchgrowth.plan import make_plan
from batchgrowth.shards import shard_count

from bench.knee import BATCH, CASES, EXCHANGES, WORKERS, job


def test_the_run_that_gives_the_constants_has_one_two_and_four_workers() -> None:
    for exchange in EXCHANGES:
        plan = make_plan(job(exchange, "slow hosts", 6, grows=True).spec)
        assert [(stage.batch_size, stage.workers) for stage in plan.stages] == [
            (BATCH // 4, 1),
            (BATCH // 2, 2),
            (BATCH, 4),
        ]


def test_a_fourth_worker_brings_nothing() -> None:
    """The busiest worker has 6, 3, 2 and 2 shards."""
    for case in CASES:
        busiest = []
        for maximum in range(1, WORKERS + 1):
            plan = make_plan(job("AllReduce", case, 3, grows=False, maximum=maximum).spec)
            (stage,) = plan.stages
            assert stage.workers == maximum
            busiest.append(-(-shard_count(BATCH, plan.shard, plan.replicas) // maximum))
        assert busiest == [6, 3, 2, 2]
