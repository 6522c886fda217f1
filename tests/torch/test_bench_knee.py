"""What `python -m bench.knee` trains."""

from batchgrowth.plan import make_plan
from batchgrowth.shards import shard_count

from bench.knee import BATCH, EXCHANGES, WORKERS, job


def test_the_short_run_has_one_two_and_four_workers() -> None:
    for exchange in EXCHANGES:
        plan = make_plan(job(exchange, 6, grows=True).spec)
        assert [(stage.batch_size, stage.workers) for stage in plan.stages] == [
            (BATCH // 4, 1),
            (BATCH // 2, 2),
            (BATCH, 4),
        ]


def test_each_number_of_workers_has_as_many_shards() -> None:
    for maximum in range(1, WORKERS + 1):
        plan = make_plan(job("AllReduce", 3, grows=False, maximum=maximum).spec)
        (stage,) = plan.stages
        assert stage.workers == maximum
        assert shard_count(BATCH, plan.shard, plan.replicas) % maximum == 0
