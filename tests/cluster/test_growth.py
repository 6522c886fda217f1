"""Large jobs on kwok's nodes: the operator requests the workers of every stage."""

from collections.abc import Iterator
from typing import Any

import pytest
from batchgrowth.plan import BatchDecision
from real_job import until

from bench.growth import DECLARED, MEASURED, Api, manifest, namespace_of_its_own, play
from cluster.local import LocalCluster


@pytest.fixture
def api(local: LocalCluster) -> Iterator[Api]:
    """The API server with the test's own namespace, and GPUs for 128 workers."""
    with namespace_of_its_own(local) as made:
        yield made


DECISIONS = tuple(
    BatchDecision(update, batch, 2.0 * batch) for update, batch in ((9000, 640), (12000, 3200), (13000, 16000))
)


@pytest.mark.parametrize(
    ("growth", "decisions", "maximum", "workers"),
    [(DECLARED, (), 5120, [1, 5, 25, 40]), (MEASURED, DECISIONS, 16000, [1, 5, 25, 125])],
)
def test_workers_come_with_every_stage(
    api: Api, growth: dict[str, Any], decisions: tuple[BatchDecision, ...], maximum: int, workers: list[int]
) -> None:
    """Whether declared or decided while training, each with its own GPU; plan and pods match the table."""
    job = play(api, manifest(maximum, growth), decisions)
    grown = [stage for stage in job.plan.stages if stage.workers > 1]

    for stage in grown:
        assert job.grown(stage, start=1) > 0
    assert workers == list(dict.fromkeys(stage.workers for stage in job.plan.stages))

    def settled() -> bool:
        status = job.status()["workers"]
        return [workers[-1]] * 3 == [status[each] for each in ("desired", "requested", "ready")]

    until("the status", settled, 30, lambda: str(job.status()))
    status = job.status()["workers"]
    assert float(status["resizeSeconds"]) > 0
    assert float(status["leadSeconds"]) > 0
    pods = api.core.list_namespaced_pod(api.namespace, label_selector=status["selector"]).items
    assert workers[-1] == len({pod.metadata.name for pod in pods})
    assert {"nvidia.com/gpu": "1"} == pods[0].spec.containers[0].resources.limits
