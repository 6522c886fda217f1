"""The measured lead time, if the trainer reports how many workers are ready."""

from datetime import timedelta
from typing import Any

import pytest
from batchgrowth import names

MakeWorld = Any


def test_workers_count_when_the_trainer_reports_them_ready(training_world: MakeWorld) -> None:
    """A pod is ready before its worker has registered and loaded the data."""
    world = training_world()
    world.report(386, seconds_per_update=1.0, ready=1).step()
    world.wait(4).workers_ready().settle()
    assert world.condition("Resizing") == ("True", "ScalingUp")
    assert (world.status["workers"]["ready"], world.status["workers"]["requested"]) == (1, 2)

    world.wait(2).report(388, seconds_per_update=1.0, ready=2).settle()

    workers = world.status["workers"]
    assert (workers["ready"], workers["resizeSeconds"], workers["leadSeconds"]) == (2, "6.000", "8.000")


def test_the_last_report_of_an_ended_trainer_does_not_count(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(386, seconds_per_update=1.0, ready=1).step()

    world.trainer_runs(active=0, ready=0).wait(4).workers_ready().settle()

    assert world.status["workers"]["ready"] == 2


@pytest.mark.parametrize(("came", "took"), [(9, None), (10, "3.000"), (12, "3.000"), (None, "3.000")])
def test_workers_that_reconnect_to_a_restarted_trainer_are_no_resize(
    training_world: MakeWorld, came: int | None, took: str | None
) -> None:
    """They were ready all along; if a pod became ready since, or nobody says when, it is a resize."""
    world = training_world()
    before = world.status["workers"]["leadSeconds"]
    at = None if came is None else (world.now + timedelta(seconds=came)).isoformat()
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": at}]
    labels = names.labels("digits", "worker")
    world.pods = [{"metadata": {"name": "w", "labels": labels}, "status": {"conditions": conditions}}]
    world.wait(10).report(11, start=1, ready=0).settle()
    assert world.condition("Resizing") == ("True", "ScalingUp")

    world.wait(3).report(11, start=1, ready=1).settle()

    assert world.condition("Resizing") == ("False", "AtTarget")
    assert (before != world.status["workers"]["leadSeconds"]) == (took is not None)
    assert (took or "10.000") == world.status["workers"]["resizeSeconds"]


def test_workers_on_a_virtual_node_are_timed_by_what_is_known(training_world: MakeWorld) -> None:
    """Its kubelet gives no times of its pods' conditions, which the API server then shows as null."""
    world = training_world()
    world.report(386, seconds_per_update=1.0).step()
    conditions = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": None}]
    labels = names.labels("digits", "worker")
    world.pods = [{"metadata": {"name": "w", "labels": labels}, "status": {"conditions": conditions}}]

    world.wait(6).workers_ready().settle()

    assert (world.condition("Resizing"), world.status["workers"]["resizeSeconds"]) == (("False", "AtTarget"), "6.000")


def test_workers_for_a_stage_after_the_next_stay_while_the_trainer_starts_again(training_world: MakeWorld) -> None:
    """Quick updates bring two milestones within the lead time; a trainer that starts again has no pace yet."""
    world = training_world()
    world.report(245, seconds_per_update=0.05).workers_ready().settle()
    workers = world.status["workers"]
    assert (workers["desired"], workers["requested"]) == (1, 4)

    world.trainer_runs(active=0, ready=0).wait(5).settle()
    assert (world.status["workers"]["desired"], world.status["workers"]["requested"]) == (1, 4)

    world.trainer_runs().report(245, start=1, seconds_per_update=None).wait(1).settle()
    assert (world.status["workers"]["desired"], world.status["workers"]["requested"]) == (1, 4)

    # At the new trainer's pace the milestone is far away.
    world.report(246, start=1, seconds_per_update=10.0).wait(1).settle()
    assert (world.status["workers"]["desired"], world.status["workers"]["requested"]) == (1, 1)
