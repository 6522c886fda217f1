"""The trainer's pod ends with the trainer and with its exit code, whatever other containers do in it."""

from copy import deepcopy
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.errors import ClusterError, DataError
from batchgrowth_operator.seen.observed import timestamp
from batchgrowth_operator.seen.trainer_pods import LINGERS_AFTER_SECONDS, MOST_FRUITLESS_RETRIES

pytestmark = pytest.mark.fault("O29")
RUNNING = {"running": {"startedAt": "2026-11-20T09:00:00Z"}}


def ended(code: int, at: str, message: str = "") -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": at, "message": message}}


@pytest.fixture
def world(training_world: Any) -> Any:
    """A world whose trainer's pod has a proxy as its first container."""
    world = training_world(checkpoint={"volume": {"size": "1Gi"}})
    world.trainer["metadata"]["uid"] = "job-uid"
    world.pods = [
        {
            "kind": "Pod",
            "metadata": {
                "name": "digits-trainer-x",
                "labels": names.labels("digits", "trainer"),
                "ownerReferences": [{"uid": "job-uid"}],
            },
            "status": {"phase": "Running"},
        }
    ]
    states(world, RUNNING, RUNNING)
    world.settle()
    return world


def states(world: Any, proxy: dict[str, Any], trainer: dict[str, Any]) -> None:
    world.pods[0]["status"]["containerStatuses"] = [
        {"name": "istio-proxy", "state": proxy},
        {"name": "trainer", "state": trainer},
    ]


def trainer_ends(world: Any, code: int, message: str = "") -> Any:
    """The trainer ends, its proxy runs on, and Kubernetes therefore says that the pod runs and is not ready."""
    states(world, RUNNING, ended(code, timestamp(world.now), message))
    world.trainer["status"] = {"active": 1, "ready": 0}
    world.settle()
    return world


def pod_goes(world: Any) -> None:
    world.pods = []
    world.trainer["status"] = {}
    world.settle()


def is_suspended(world: Any) -> bool:
    return bool(world.trainer["spec"]["suspend"])


def test_a_trainer_that_finished_ends_the_job_though_its_proxy_runs_on(world: Any) -> None:
    trainer_ends(world, 0)
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert not is_suspended(world), "the proxy has time to end by itself"
    assert world.decide().requeue_after_seconds <= LINGERS_AFTER_SECONDS

    world.wait(LINGERS_AFTER_SECONDS).settle()

    assert world.condition("Succeeded") == ("True", "Finished")
    assert world.status["phase"] == "Succeeded"
    assert is_suspended(world), "Kubernetes deletes the pods of a suspended Job"
    pod_goes(world)
    assert world.condition("Succeeded") == ("True", "Finished")
    assert is_suspended(world), "a Job that goes on would start the trainer again"
    assert world.cluster is None, "the cluster is released"


def test_the_cluster_is_released_while_the_proxy_takes_its_time_to_end(world: Any) -> None:
    trainer_ends(world, 0).wait(LINGERS_AFTER_SECONDS).settle()
    world.trainer["status"] = {"terminating": 1}
    world.pods[0]["metadata"]["deletionTimestamp"] = timestamp(world.now)
    world.settle()
    assert world.cluster is None


def test_an_error_that_would_recur_fails_the_job_with_the_trainers_message(world: Any) -> None:
    trainer_ends(world, DataError.exit_code, "data: no such file").wait(LINGERS_AFTER_SECONDS).settle()

    assert world.condition("Succeeded") == ("False", "DataFailed")
    assert is_suspended(world)
    [failed] = [one for one in world.status["conditions"] if one["type"] == "Succeeded"]
    assert failed["message"] == "data: no such file"


@pytest.mark.parametrize("code", [1, 137, ClusterError.exit_code])
def test_a_failure_that_a_restart_may_mend_restarts_the_trainer(world: Any, code: int) -> None:
    """The Job makes no other pod before this one has ended, so the operator suspends it until then."""
    trainer_ends(world, code)
    assert not is_suspended(world)
    world.wait(LINGERS_AFTER_SECONDS).settle()
    assert is_suspended(world)
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert world.condition("Training")[0] == "False"
    world.pods[0]["metadata"]["deletionTimestamp"] = timestamp(world.now)
    world.settle()
    assert is_suspended(world), "its pod has not ended yet"

    pod_goes(world)

    assert not is_suspended(world)
    assert world.cluster is not None


def test_fruitless_retries_are_counted_though_their_pods_were_deleted(world: Any) -> None:
    """Kubernetes keeps a pod that ended by itself; one that a proxy keeps is deleted, and the status remembers it."""
    pod = world.pods[0]

    def trainer_is_retried(times: int, begins: int) -> None:
        for number in range(begins, begins + times):
            world.pods = [deepcopy(pod)]
            world.pods[0]["metadata"]["name"] = f"digits-trainer-{number}"
            trainer_ends(world, ClusterError.exit_code, "no scheduler").wait(LINGERS_AFTER_SECONDS).settle()
            if world.condition("Succeeded")[0] == "Unknown":
                pod_goes(world)

    trainer_is_retried(MOST_FRUITLESS_RETRIES - 1, 0)
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    world.report(60, start=9).settle()  # the count begins again
    trainer_is_retried(MOST_FRUITLESS_RETRIES - 1, 20)
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert len(world.status["retries"]["lingered"]) == MOST_FRUITLESS_RETRIES - 1
    trainer_is_retried(1, 40)
    assert world.condition("Succeeded") == ("False", "RetriesFruitless")
    [failed] = [one for one in world.status["conditions"] if one["type"] == "Succeeded"]
    assert failed["message"] == (
        "The trainer ended 10 times without getting past update 60; last: exit code 75: no scheduler"
    )
    assert is_suspended(world)


def test_an_evicted_pod_that_its_proxy_kept_is_no_retry(world: Any) -> None:
    world.pods[0]["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True"}]
    trainer_ends(world, ClusterError.exit_code).wait(LINGERS_AFTER_SECONDS).settle()
    pod_goes(world)
    assert world.status["retries"]["lingered"] == []


@pytest.mark.parametrize("ends", ["before", "after"])
def test_a_proxy_that_fails_does_not_fail_a_trainer_that_finished(world: Any, ends: str) -> None:
    """Its exit code makes the pod fail, which the Job would count as a failure of the trainer."""
    at = timestamp(world.now)
    if ends == "before":
        states(world, ended(1, at), RUNNING)
        world.settle()
        assert world.condition("Training") == ("True", "UpdatesCommitted")
    states(world, ended(1, at), ended(0, at))
    world.pods[0]["status"]["phase"] = "Failed"
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}
    world.trainer["status"] = {"failed": 1, "conditions": [failed]}
    world.settle()
    assert world.condition("Succeeded") == ("True", "Finished")


def test_a_proxy_that_ends_in_time_changes_nothing(world: Any) -> None:
    trainer_ends(world, 1)
    states(world, ended(0, timestamp(world.now)), ended(1, timestamp(world.now)))
    world.pods[0]["status"]["phase"] = "Failed"
    world.trainer["status"] = {"failed": 1}
    world.wait(LINGERS_AFTER_SECONDS).settle()
    assert not is_suspended(world)
    assert world.condition("Succeeded") == ("Unknown", "InProgress")


def test_the_pod_of_an_earlier_trainer_is_not_asked(world: Any) -> None:
    trainer_ends(world, 0)
    world.pods[0]["metadata"]["ownerReferences"] = [{"uid": "earlier"}]
    world.wait(LINGERS_AFTER_SECONDS).settle()
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert not is_suspended(world)
