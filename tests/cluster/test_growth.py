"""Large jobs on kwok's nodes: the operator requests the workers of every stage."""

from collections.abc import Iterator

import pytest
from real_job import until

from bench.growth import Api, namespace_of_its_own, play
from cluster.local import LocalCluster


@pytest.fixture
def api(local: LocalCluster) -> Iterator[Api]:
    """The API server with the test's own namespace, and GPUs for 128 workers."""
    with namespace_of_its_own(local) as made:
        yield made


@pytest.mark.parametrize(("maximum", "workers"), [(5120, [1, 5, 25, 40]), (16000, [1, 5, 25, 125])])
def test_workers_come_with_every_milestone(api: Api, maximum: int, workers: list[int]) -> None:
    """Each with its own GPU; plan and pods match the table."""
    job = play(api, maximum)
    grown = [stage for stage in job.plan.stages if stage.workers > 1]

    for stage in grown:
        assert job.grown(stage, start=2**33) > 0  # newer than the job's own trainer
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
