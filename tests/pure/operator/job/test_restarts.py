"""A trainer that always ends with exit code 75 is not restarted for ever, and one that may go on starts soon."""

from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.errors import ClusterError, Interrupted, StorageError
from batchgrowth_operator.job.reconcile import SHORTEST_LIFE_SECONDS
from batchgrowth_operator.seen.observed import Ref, ref_of, timestamp
from batchgrowth_operator.seen.trainer_pods import MOST_FRUITLESS_RETRIES


def ends(world: Any, times: int, code: int = ClusterError.exit_code, text: str = "", **status: Any) -> Any:
    """That many more trainer pods end, one after the other, each seen by the operator."""
    for _ in range(times):
        number = len(world.pods)
        ending = {
            "exitCode": code,
            "message": text or f"workers were lost, {number}",
            "finishedAt": f"2026-11-20T10:{number}Z",
        }
        state = {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": {"terminated": ending}}]}
        labels = names.labels("digits", "trainer")
        world.pods.append(
            {"kind": "Pod", "metadata": {"name": f"t-{number}", "labels": labels}, "status": state | status}
        )
        world.settle()
    return world


def at_update_60(training_world: Any) -> Any:
    world = training_world().report(60).wait(6)
    world.settle()
    return world


def message(world: Any, kind: str) -> str:
    return str(next(one["message"] for one in world.status["conditions"] if one["type"] == kind))


def is_failed(world: Any) -> bool:
    return ("False", "RetriesFruitless") == world.condition("Succeeded")


def test_the_tenth_end_without_progress_fails_the_job(training_world: Any) -> None:
    world = ends(at_update_60(training_world), MOST_FRUITLESS_RETRIES - 1)
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    ends(world, 1)
    assert is_failed(world)
    assert world.status["phase"] == "Failed"
    assert message(world, "Succeeded") == (
        "The trainer ended 10 times without getting past update 60; last: exit code 75: workers were lost, 9"
    )
    assert world.trainer["spec"]["suspend"], "Kubernetes must not start another pod"


@pytest.mark.fault("D08")
def test_a_full_disk_is_a_restart_with_its_cause_until_it_was_tried_too_often(training_world: Any) -> None:
    """The Job ignores these ends, so its own status counts none of them."""
    world = ends(at_update_60(training_world), 1, StorageError.exit_code, "/checkpoints: No space left on device")
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    world.trainer["status"] = {"active": 1, "ready": 0}
    world.settle()
    assert world.condition("Training") == ("False", "TrainerRestarting")
    assert "exit code 75: /checkpoints: No space left on device" in message(world, "Training")
    world.trainer["status"] = {"active": 1, "ready": 1}
    world.settle()
    assert world.condition("Training") == ("True", "UpdatesCommitted")
    ends(world, MOST_FRUITLESS_RETRIES - 1, StorageError.exit_code, "/checkpoints: No space left on device")
    assert is_failed(world)
    assert message(world, "Succeeded").endswith("last: exit code 75: /checkpoints: No space left on device")


def test_a_job_that_never_began_fails_too(make_world: Any) -> None:
    world = make_world()
    world.settle()
    assert is_failed(ends(world, MOST_FRUITLESS_RETRIES))


def test_a_new_update_starts_the_count_over(training_world: Any) -> None:
    world = ends(at_update_60(training_world), MOST_FRUITLESS_RETRIES - 1)
    world.report(61, start=1).wait(6).settle()
    ends(world, MOST_FRUITLESS_RETRIES - 1)
    assert not is_failed(world)
    assert is_failed(ends(world, 1))


def test_a_repeated_update_does_not(training_world: Any) -> None:
    """A fault at one update comes back after each restart from the same checkpoint."""
    world = at_update_60(training_world)
    for start in range(1, MOST_FRUITLESS_RETRIES + 1):
        assert not is_failed(world)
        ends(world, 1)
        for update in (50, 55, 60):
            world.report(update, start=start).wait(6).settle()
    assert is_failed(world)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Interrupted.exit_code, {}),
        (137, {}),
        (ClusterError.exit_code, {"conditions": [{"type": "DisruptionTarget", "status": "True"}]}),
    ],
    ids=["interrupted", "killed", "evicted"],
)
def test_other_ends_do_not_count(training_world: Any, code: int, status: Any) -> None:
    assert not is_failed(ends(at_update_60(training_world), 2 * MOST_FRUITLESS_RETRIES, code, **status))


def test_the_pods_of_a_deleted_job_are_forgotten(training_world: Any) -> None:
    world = ends(at_update_60(training_world), 5)
    world.report(70).wait(6).settle()
    world.pods.clear()
    world.wait(6).settle()
    ends(world, MOST_FRUITLESS_RETRIES - 1)
    assert not is_failed(world)
    assert is_failed(ends(world, 1))


BETWEEN_PODS = {"startTime": "2026-11-20T10:00:00Z", "active": 0, "ready": 0}
"""The status of a Job whose pod was deleted: Kubernetes waits, ever longer, before it makes the next."""
TRAINER = Ref("Job", names.of("digits").trainer)


def between_pods(world: Any, after: float = 60.0, **status: Any) -> Any:
    world.wait(after)
    world.trainer["status"] = BETWEEN_PODS | status
    return world


@pytest.mark.fault("C04")
def test_a_job_that_waits_to_make_its_next_pod_is_made_again(training_world: Any) -> None:
    world = between_pods(at_update_60(training_world))

    decision = world.step()

    assert decision.delete == (TRAINER,)
    assert decision.recreated == {TRAINER: "Kubernetes backs off for long before its next pod"}
    assert TRAINER not in map(ref_of, decision.apply)
    assert world.condition("Training") == ("False", "TrainerRestarting")
    world.settle()
    assert "status" not in world.trainer
    assert world.status["restarts"] == 0


def test_failures_that_count_go_on_counting(training_world: Any) -> None:
    world = between_pods(at_update_60(training_world), failed=2)
    limit = world.trainer["spec"]["backoffLimit"]
    world.settle()
    assert limit - 2 == world.trainer["spec"]["backoffLimit"]
    assert world.status["restarts"] == 2

    world.trainer_runs(failed=1)
    world.settle()

    assert world.status["restarts"] == 3
    assert limit - 2 == world.trainer["spec"]["backoffLimit"]
    between_pods(world, failed=1).settle()
    assert world.trainer["spec"]["backoffLimit"] == 0
    world.trainer["metadata"]["annotations"][names.RESTARTS_BEFORE] = "9" * 99
    world.settle()
    assert world.status["restarts"] == 3


def test_a_job_is_made_again_only_after_a_while(training_world: Any) -> None:
    world = at_update_60(training_world)
    world.trainer["metadata"]["creationTimestamp"] = timestamp(world.now)
    between_pods(world, SHORTEST_LIFE_SECONDS - 1)

    decision = world.step()

    assert decision.delete == ()
    assert decision.requeue_after_seconds == pytest.approx(1)
    assert world.wait(1).step().delete == (TRAINER,)


@pytest.mark.parametrize(
    "status",
    [
        {"startTime": None},
        {"active": 1},
        {"terminating": 1},
        {"succeeded": 1},
        {"uncountedTerminatedPods": {"failed": ["uid"]}},
        {"conditions": [{"type": "FailureTarget", "status": "True"}]},
    ],
    ids=lambda status: next(iter(status)),
)
def test_a_job_that_does_not_wait_is_left_alone(training_world: Any, status: Any) -> None:
    assert between_pods(at_update_60(training_world), **status).step().delete == ()


def test_a_job_with_a_pod_that_may_work_is_left_alone(training_world: Any) -> None:
    world = between_pods(at_update_60(training_world))
    labels = names.labels("digits", "trainer")
    world.pods.append({"kind": "Pod", "metadata": {"name": "t", "labels": labels}, "status": {"phase": "Pending"}})
    assert world.step().delete == ()


def test_a_job_whose_pods_count_fruitless_retries_is_left_alone(training_world: Any) -> None:
    world = ends(at_update_60(training_world), 1)
    assert between_pods(world).step().delete == ()
    world.report(61, start=1)
    assert world.step().delete == (TRAINER,)


def test_a_suspended_job_and_one_that_never_reported_are_left_alone(training_world: Any, make_world: Any) -> None:
    assert TRAINER not in between_pods(at_update_60(training_world)).edit(suspend=True).step().delete
    world = make_world()
    world.settle()
    assert between_pods(world).step().delete == ()


def test_a_job_whose_pods_are_refused_is_left_alone(training_world: Any) -> None:
    world = between_pods(at_update_60(training_world))
    refusal = {
        "reason": "FailedCreate",
        "message": "exceeded quota",
        "involvedObject": {"kind": "Job", "name": TRAINER.name},
        "lastTimestamp": timestamp(world.now),
    }
    world.warnings.append(refusal)
    assert world.step().delete == ()


# Pods that ended through no doing of the trainer.

OUT_OF_CPU = {
    "phase": "Failed",
    "reason": "OutOfcpu",
    "message": "Node didn't have enough resource: cpu, requested: 100, used: 1950, capacity: 2000",
}
BACKOFF_LIMIT = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too many"}


def refused(world: Any, times: int = 1, **status: Any) -> Any:
    """That many pods of the trainer's Job were refused by node n1; the Job has counted them."""
    for _ in range(times):
        number = len(world.pods)
        world.pods.append(
            {
                "kind": "Pod",
                "metadata": {
                    "name": f"t-{number}",
                    "labels": names.labels("digits", "trainer"),
                    "ownerReferences": [{"uid": world.trainer["metadata"].get("uid", "")}],
                    "creationTimestamp": timestamp(world.now),
                },
                "spec": {"nodeName": "n1"},
                "status": OUT_OF_CPU | status,
            }
        )
    return world


@pytest.mark.parametrize("reported", [True, False])
def test_a_pod_that_its_node_refuses_is_no_restart_and_has_its_cause_in_the_status(
    training_world: Any, make_world: Any, reported: bool
) -> None:
    """Also before the first report, when Kubernetes is otherwise left to make the next pod."""
    if reported:
        world = at_update_60(training_world)
    else:
        world = make_world()
        world.settle()
    world.trainer["metadata"]["creationTimestamp"] = timestamp(world.now)
    between_pods(refused(world), SHORTEST_LIFE_SECONDS - 1, failed=1)

    assert world.step().delete == ()
    assert world.condition("Training") == ("False", "TrainerRestarting")
    assert message(world, "Training").endswith(
        "node n1 refused pod t-0: OutOfcpu: Node didn't have enough resource: cpu, requested: 100, used: 1950, "
        "capacity: 2000. It does not count as a restart"
    )
    decision = world.wait(1).step()
    assert decision.recreated == {TRAINER: "a node refused its pod"}
    world.pods.clear()
    world.settle()
    assert world.status["restarts"] == 0


def test_a_job_that_nodes_alone_have_failed_is_made_again(training_world: Any) -> None:
    world = at_update_60(training_world)
    limit = world.trainer["spec"]["backoffLimit"]
    between_pods(refused(world, limit + 1), failed=limit + 1, conditions=[BACKOFF_LIMIT])

    assert world.step().recreated == {TRAINER: "a node refused its pod"}
    world.pods.clear()
    world.settle()
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert (world.status["restarts"], world.trainer["spec"]["backoffLimit"]) == (0, limit)


def test_retries_without_progress_go_on_counting_though_nodes_have_failed_their_job(training_world: Any) -> None:
    """The Job makes no other pod, so it is made again, and its pods go with it."""
    world = ends(at_update_60(training_world), 3)
    for pod in world.pods:
        pod["metadata"]["ownerReferences"] = [{"uid": ""}]
    limit = world.trainer["spec"]["backoffLimit"]
    between_pods(refused(world, limit + 1), failed=limit + 1, conditions=[BACKOFF_LIMIT])

    assert world.step().recreated == {TRAINER: "a node refused its pod"}
    world.pods.clear()
    world.settle()

    assert world.status["retries"]["lingered"] == ["t-0", "t-1", "t-2"]
    for number in range(3, MOST_FRUITLESS_RETRIES):
        assert not is_failed(world)
        ends(world, 1)
        world.pods[-1]["metadata"]["name"] = f"later-{number}"
    assert is_failed(world)


@pytest.mark.parametrize("fails", [True, False])
def test_the_failures_of_a_job_that_is_being_deleted_are_not_its_own(training_world: Any, fails: bool) -> None:
    """Kubernetes deletes the refused pods before their Job, whose status still counts them."""
    world = at_update_60(training_world)
    limit = world.trainer["spec"]["backoffLimit"]
    failed = limit + 1 if fails else 1
    between_pods(refused(world, failed), failed=failed, conditions=[BACKOFF_LIMIT] if fails else [])
    job = world.trainer
    assert world.step().delete == (TRAINER,)
    world.children[TRAINER] = job
    job["metadata"]["deletionTimestamp"] = timestamp(world.now)
    world.pods.clear()

    world.settle()

    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert world.status["restarts"] == 0
    del world.children[TRAINER]
    world.settle()
    assert world.trainer["spec"]["backoffLimit"] == limit


def test_failures_of_its_own_end_a_job_whatever_nodes_refuse(training_world: Any) -> None:
    world = at_update_60(training_world)
    limit = world.trainer["spec"]["backoffLimit"]
    between_pods(refused(world), failed=limit + 2, conditions=[BACKOFF_LIMIT]).settle()
    assert world.condition("Succeeded") == ("False", "RestartsExceeded")


@pytest.mark.parametrize(
    ("disruption", "said"),
    [
        (
            {"reason": "PreemptionByScheduler", "message": "default-scheduler: preempting to accommodate a pod"},
            "Kubernetes removed pod t-0: PreemptionByScheduler: default-scheduler: preempting to accommodate a pod",
        ),
        (
            {"reason": "TerminationByKubelet", "message": "The node was low on resource: memory."},
            "Kubernetes removed pod t-0: TerminationByKubelet: The node was low on resource: memory",
        ),
        ({}, "Kubernetes removed pod t-0: no reason is given"),
    ],
)
def test_what_removed_a_pod_is_its_cause(training_world: Any, disruption: Any, said: str) -> None:
    world = ends(
        at_update_60(training_world),
        1,
        143,
        conditions=[{"type": "DisruptionTarget", "status": "True", **disruption}],
    )
    between_pods(world, 1).settle()
    assert world.condition("Training") == ("False", "TrainerRestarting")
    assert message(world, "Training").endswith(said)
