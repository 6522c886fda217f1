"""A trainer on a node that does not answer: what is said, and when another takes its place."""

from datetime import timedelta
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.job.reconcile import Writes
from batchgrowth_operator.seen.observed import Ref, timestamp

KEPT = {"volume": {"claimName": "kept"}}
JOB = Ref("Job", "digits-trainer")
GRACE = timedelta(seconds=120)


def lose_node(world: Any) -> dict[str, Any]:
    """The pod of the trainer's Job as the node controller marks it when the node has not answered for 40 s."""
    world.wait(45).trainer["metadata"]["uid"] = "first"
    world.trainer["status"] = {"active": 1, "ready": 0}
    lost = {
        "kind": "Pod",
        "metadata": {
            "name": "digits-trainer-x",
            "labels": names.labels("digits", "trainer"),
            "ownerReferences": [{"kind": "Job", "name": "digits-trainer", "uid": "first", "controller": True}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": timestamp(world.now)}],
            "containerStatuses": [{"name": "trainer", "state": {"running": {}}}],
        },
    }
    world.pods = [lost]
    return lost


def renewal(decision: Writes) -> tuple[Any, Any]:
    return decision.delete, decision.in_background


@pytest.mark.fault("C25")
@pytest.mark.parametrize("checkpoint", [KEPT, {"uri": "s3://bucket/kept"}], ids=["volume", "object store"])
def test_another_trainer_starts_after_a_minute(training_world: Any, checkpoint: Any) -> None:
    """The pod's Job would make no other while the lost one is there, which no kubelet ends."""
    world = training_world(checkpoint=checkpoint)
    lost = lose_node(world)
    decision = world.step()
    assert world.condition("Training") == ("False", "TrainerUnreachable")
    assert decision.requeue_after_seconds == 60
    assert (world.events[-1].type, world.events[-1].reason) == ("Warning", "TrainerUnreachable")
    assert renewal(world.wait(59).step()) == ((), frozenset())

    assert renewal(world.wait(1).step()) == ((JOB,), {JOB})
    lost["metadata"]["deletionTimestamp"] = timestamp(world.now + GRACE)  # by the garbage collector
    world.settle()
    assert world.condition("Training") == ("False", "TrainerReplaced")
    assert world.events[-1].reason == "TrainerReplaced"
    assert "uid" not in world.trainer["metadata"], "another Job"

    world.trainer["metadata"]["uid"] = "second"
    world.trainer["status"] = {"active": 1, "ready": 1}
    world.settle()
    assert world.condition("Training") == ("False", "NotStarted")
    world.report(11, start=1).settle()
    assert world.condition("Training") == ("True", "UpdatesCommitted")
    assert world.wait(1000).decide().delete == (), "the lost pod is not the new Job's"


@pytest.mark.fault("C25")
def test_a_node_that_answers_again_in_time_keeps_its_trainer(training_world: Any) -> None:
    world = training_world(checkpoint=KEPT)
    lost = lose_node(world)
    world.step()
    lost["status"]["conditions"][0]["status"] = "True"
    world.trainer["status"]["ready"] = 1
    world.wait(100).settle()
    assert world.condition("Training") == ("True", "UpdatesCommitted")
    assert world.trainer["metadata"]["uid"] == "first"


@pytest.mark.fault("C25")
def test_a_trainer_beside_a_container_that_is_not_ready_keeps_working(training_world: Any) -> None:
    """Its kubelet says so, and its node is there, unless the pod outlives its deletion."""
    world = training_world(checkpoint=KEPT)
    pod = lose_node(world)
    pod["status"]["conditions"][0]["reason"] = "ContainersNotReady"
    world.wait(1000).settle()
    assert world.condition("Training") == ("True", "UpdatesCommitted")
    assert world.trainer["metadata"]["uid"] == "first"

    pod["metadata"]["deletionTimestamp"] = timestamp(world.now + GRACE)
    assert world.decide().requeue_after_seconds == GRACE.total_seconds()
    assert renewal(world.wait(119).decide()) == ((), frozenset())
    assert renewal(world.wait(60).decide()) == ((), frozenset()), "it is given as long as any other"
    assert renewal(world.wait(1).decide()) == ((JOB,), {JOB})


@pytest.mark.fault("C25")
def test_without_storage_kubernetes_decides(training_world: Any) -> None:
    """Since the training is lost with its trainer; a pod that is deleted ends though its node comes back."""
    world = training_world()
    lost = lose_node(world)
    assert world.wait(290).step().delete == ()
    said = next(one["message"] for one in world.status["conditions"] if one["type"] == "Training")
    assert "Without spec.checkpoint.volume or uri the training would be lost" in said

    world.wait(10)
    lost["metadata"]["deletionTimestamp"] = timestamp(world.now + GRACE)
    assert renewal(world.step()) == ((JOB,), {JOB})


@pytest.mark.fault("C25")
def test_a_job_whose_deletion_waits_for_a_lost_pod_is_released(training_world: Any) -> None:
    """Of a job with another image, whose Job was deleted together with its pod."""
    world = training_world(checkpoint=KEPT)
    lose_node(world)
    world.trainer["metadata"]["deletionTimestamp"] = timestamp(world.now)
    assert renewal(world.wait(61).step()) == ((JOB,), {JOB})


@pytest.mark.fault("C25")
def test_a_suspended_job_does_not_wait_for_a_lost_trainer(training_world: Any) -> None:
    world = training_world(checkpoint=KEPT)
    lost = lose_node(world)
    lost["metadata"]["deletionTimestamp"] = timestamp(world.now)
    world.trainer["status"] = {"active": 0}
    world.edit(suspend=True).step()
    assert world.condition("Suspended") == ("Unknown", "Checkpointing")

    world.wait(61).settle()

    assert world.condition("Suspended") == ("True", "BySpec")
    assert world.cluster is None


def cut_off(world: Any, role: str, node: str = "n1") -> None:
    """Mark a pod of that role as the node controller does, which leaves the kubelet's last word on its containers."""
    name = f"digits-{role}-x"
    status = {
        "phase": "Running",
        "conditions": [
            {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(world.now)},
            {"type": "ContainersReady", "status": "True"},
        ],
        "containerStatuses": [{"name": role, "ready": True, "state": {"running": {}}}],
    }
    metadata = {"name": name, "labels": names.labels("digits", role)}
    world.pods.append({"kind": "Pod", "metadata": metadata, "spec": {"nodeName": node}, "status": status})


def message(world: Any, kind: str) -> str:
    return next(str(one["message"]) for one in world.status["conditions"] if one["type"] == kind)


@pytest.mark.fault("O24")
@pytest.mark.parametrize("lost", [("scheduler",), ("worker",), ("trainer",), ("scheduler", "worker", "trainer")])
def test_a_job_that_trains_on_though_a_node_does_not_answer(training_world: Any, lost: tuple[str, ...]) -> None:
    """Its kubelet is gone, and its pods are not: the phase follows the updates, and Degraded has the node."""
    world = training_world(checkpoint=KEPT)
    world.report(20, ready=1).wait(45)
    for role in lost:
        cut_off(world, role)
    if "scheduler" in lost:
        world.parts[Ref("Deployment", "digits-scheduler")]["status"] = {}
    if "worker" in lost:
        world.workers_ready(0)
    if "trainer" in lost:
        world.trainer["status"] = {"active": 1, "ready": 0}
    world.report(65, ready=1).settle()

    assert (world.condition("Training"), world.status["phase"]) == (("True", "UpdatesCommitted"), "Training")
    assert world.condition("Degraded") == ("True", "NodeUnreachable")
    pods = ", ".join(f"digits-{role}-x" for role in lost)
    assert message(world, "Degraded").startswith(f"Updates go on. Node n1 of {pods} does not answer Kubernetes.")
    if "scheduler" in lost:
        assert world.condition("ClusterReady") == ("False", "NodeUnreachable")
    else:
        assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")

    world.pods.clear()
    world.scheduler_ready().workers_ready().trainer_runs().wait(5).report(70, ready=1).settle()
    assert world.condition("Degraded") == ("False", "FullStrength")
    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")


@pytest.mark.fault("O24")
def test_a_scheduler_that_is_not_ready_while_updates_go_on_is_not_starting(training_world: Any) -> None:
    world = training_world()
    world.parts[Ref("Deployment", "digits-scheduler")]["status"] = {}
    world.wait(5).report(20).settle()
    assert message(world, "ClusterReady") == "The scheduler is not ready, though updates go on."
    assert world.status["phase"] == "Training"


@pytest.mark.fault("O24")
@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Pending"},
        {"conditions": [{"type": "Ready", "status": "True"}]},
        {"conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}]},
        {"containerStatuses": [{"name": "worker", "ready": False}]},
        {"containerStatuses": [{"name": "worker", "state": {"terminated": {"exitCode": 1}}}]},
    ],
)
def test_a_pod_that_its_kubelet_calls_not_ready_is_not_cut_off(training_world: Any, status: dict[str, Any]) -> None:
    world = training_world()
    cut_off(world, "worker")
    world.pods[0]["status"] |= status
    world.wait(5).report(20).settle()
    assert world.condition("Degraded") == ("False", "FullStrength")
