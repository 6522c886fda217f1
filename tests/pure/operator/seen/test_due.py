"""The clock of a pass: each answer that time alone will change wakes the operator."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.seen.observed import Clock, Ref, timestamp

NOW = datetime(2026, 11, 20, 10, tzinfo=UTC)


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("since", "answer", "due"),
    [
        (timestamp(ago(61)), True, None),
        (timestamp(ago(60)), True, None),
        (timestamp(ago(45)), False, 15.0),
        (timestamp(ago(-5)), False, 60.0),
        (None, False, 60.0),
    ],
    ids=["passed", "just passed", "not yet", "in the future", "without a time"],
)
def test_what_has_passed_and_when_it_will_have(since: str | None, answer: bool, due: float | None) -> None:
    clock = Clock(NOW)
    assert clock.passed(since, 60) is answer
    assert clock.requeue_after_seconds == due


@pytest.mark.parametrize(
    ("seconds", "answer", "due"), [(0, True, 60.0), (45, True, 15.0), (60, False, None), (-5, False, None)]
)
def test_what_is_still_remembered_and_until_when(seconds: float, answer: bool, due: float | None) -> None:
    """A time in the future was written before a clock was set back, and is forgotten."""
    clock = Clock(NOW)
    assert clock.within(ago(seconds), 60) is answer
    assert clock.requeue_after_seconds == due


def test_the_soonest_of_all_answers_is_due() -> None:
    clock = Clock(NOW)
    clock.wake_in(-1)
    assert clock.requeue_after_seconds is None
    assert [clock.reached(age, 30) for age in (10, 40, 25, 5)] == [False, True, False, False]
    assert clock.requeue_after_seconds == 5


def test_a_claim_without_a_class_is_looked_at_again(make_world: Any) -> None:
    world = make_world(checkpoint={"volume": {"size": "1Gi"}})
    world.settle()
    world.children[Ref("PersistentVolumeClaim", "digits-checkpoints")]["status"] = {"phase": "Pending"}
    world.wait(3).settle()
    assert world.condition("Training") == ("False", "NotStarted")

    assert world.decide().requeue_after_seconds == 5
    assert world.wait(5).step().requeue_after_seconds is not None
    assert world.condition("Training") == ("False", "VolumePending")


def test_a_problem_ends_with_the_life_of_its_event(make_world: Any) -> None:
    world = make_world()
    world.settle()
    world.wait(10).scheduler_ready().settle()
    labels = names.labels("digits", "worker")
    metadata = {"name": "w", "uid": "w", "labels": labels, "creationTimestamp": timestamp(world.now)}
    world.pods = [{"kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}}]
    about = {"involvedObject": {"name": "w"}, "reason": "FailedMount", "message": "no such device"}
    world.warnings = [about | {"lastTimestamp": timestamp(world.now)}]
    world.wait(175).settle()
    assert world.condition("ClusterReady") == ("False", "PodBroken")

    assert world.decide().requeue_after_seconds == 5
    world.wait(5).step()
    assert world.condition("ClusterReady") == ("False", "WaitingForWorkers")


def test_a_deleted_pod_of_a_lost_node_is_looked_at_after_its_grace_period(training_world: Any) -> None:
    world = training_world(checkpoint={"volume": {"claimName": "kept"}})
    world.trainer["metadata"]["uid"] = "first"
    world.trainer["status"] = {"active": 1, "ready": 0}
    not_ready = {"type": "Ready", "status": "False", "lastTransitionTime": timestamp(world.now)}
    metadata = {
        "name": "t",
        "labels": names.labels("digits", "trainer"),
        "ownerReferences": [{"kind": "Job", "name": "digits-trainer", "uid": "first", "controller": True}],
        "deletionTimestamp": timestamp(world.now + timedelta(seconds=20)),
    }
    world.pods = [{"kind": "Pod", "metadata": metadata, "status": {"phase": "Running", "conditions": [not_ready]}}]
    world.settle()
    assert world.condition("Training") == ("True", "UpdatesCommitted")

    assert world.decide().requeue_after_seconds == 20
    world.wait(21).step()
    assert world.condition("Training") == ("False", "TrainerUnreachable")
