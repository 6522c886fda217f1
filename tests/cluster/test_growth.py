"""Large jobs on nodes that kwok plays: all the workers of every stage come, and go again."""

from collections.abc import Iterator

import pytest
from real_job import until

from bench.growth import Api, namespace_of_its_own, play
from cluster.local import LocalCluster


@pytest.fixture
def api(local: LocalCluster) -> Iterator[Api]:
    """The API server, with a namespace of the test's own, and GPUs for 128 workers."""
    with namespace_of_its_own(local) as made:
        yield made


@pytest.mark.parametrize(("maximum", "workers"), [(5120, [1, 5, 25, 40]), (16000, [1, 5, 25, 125])])
def test_workers_come_with_every_milestone(api: Api, maximum: int, workers: list[int]) -> None:
    """Each with a GPU of its own; the plan is the table's, and so are the pods."""
    job = play(api, maximum)
    grown = [stage for stage in job.plan.stages if stage.workers > 1]

    for stage in grown:
        assert job.grown(stage, start=2**33) > 0  # newer than whatever the job's own trainer says
    assert workers == list(dict.fromkeys(stage.workers for stage in job.plan.stages))

    def settled() -> bool:
        told = job.status()["workers"]
        return [workers[-1]] * 3 == [told[each] for each in ("desired", "requested", "ready")]

    until("the status", settled, 30, lambda: str(job.status()))
    told = job.status()["workers"]
    assert float(told["resizeSeconds"]) > 0
    assert float(told["leadSeconds"]) > 0
    pods = api.core.list_namespaced_pod(api.namespace, label_selector=told["selector"]).items
    assert workers[-1] == len({pod.metadata.name for pod in pods})
    assert {"nvidia.com/gpu": "1"} == pods[0].spec.containers[0].resources.limits
