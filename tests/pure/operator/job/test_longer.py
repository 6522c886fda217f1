"""spec.epochs grows while a job trains: its trainer starts again from its checkpoint, with the longer plan."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.seen.observed import Ref

MakeWorld = Callable[..., Any]
KEPT = {"checkpoint": {"volume": {"claimName": "kept"}}}
TRAINER = Ref("Job", "digits-trainer")
WHOLE = {"type": "Cosine"}
"""A schedule that falls over the whole training."""


def made_for(world: Any) -> str:
    return str(world.trainer["spec"]["template"]["metadata"]["annotations"][names.EPOCHS])


def of_an_earlier_operator(world: Any) -> Any:
    """Let the trainer's Job be one that does not say for how many epochs it was made."""
    del world.trainer["spec"]["template"]["metadata"]["annotations"][names.EPOCHS]
    return world


@pytest.mark.fault("N05")
@pytest.mark.parametrize("is_earlier", [False, True], ids=["", "made by an earlier operator"])
def test_the_trainer_starts_again_with_the_longer_plan(training_world: MakeWorld, is_earlier: bool) -> None:
    world = training_world(**KEPT)
    world.report(245).wait(10).settle()
    assert (world.status["trainerStatus"]["progressPercentage"], made_for(world)) == (53, "30")
    if is_earlier:
        of_an_earlier_operator(world)
    world.edit(epochs=40)

    decision = world.step()

    assert decision.delete == (TRAINER,)
    assert decision.recreated == {TRAINER: "spec.epochs was 30 and is 40"}
    world.settle()
    assert made_for(world) == "40"
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert (world.status["trainerStatus"]["progressPercentage"], world.status["trainerStatus"]["update"]) == (50, 245)

    # Until the new trainer reports, the report is that of the old one; it makes no third trainer.
    world.trainer_runs().settle()
    assert made_for(world) == "40"
    world.report(300, updates=490, epochs=40, start=1).wait(10).settle()
    assert world.status["trainerStatus"]["update"] == 300


@pytest.mark.fault("N05")
def test_a_training_that_has_just_ended_goes_on(training_world: MakeWorld) -> None:
    """The status does not say yet that it is over, so the API server takes the change."""
    world = training_world(**KEPT)
    world.report(460, weights_sha256="0" * 64).trainer_ends().edit(epochs=40).settle()

    assert made_for(world) == "40"
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert "weightsSha256" not in world.status["trainerStatus"]


@pytest.mark.fault("N05")
def test_a_job_that_is_over_stays_over(training_world: MakeWorld) -> None:
    world = training_world(**KEPT)
    world.report(460, weights_sha256="0" * 64).trainer_ends().settle()
    assert world.condition("Succeeded") == ("True", "Finished")

    world.edit(epochs=40).settle()

    assert made_for(world) == "30"
    assert world.condition("Succeeded") == ("True", "Finished")


def refused(world: Any, sentence: str) -> None:
    """The job is refused with that sentence, and its trainer goes on to its earlier end."""
    assert world.step().delete == ()
    world.settle()
    assert world.status["phase"] == "Rejected"
    [message] = [c["message"] for c in world.status["conditions"] if c["reason"] == "SpecInvalid"]
    assert sentence in message
    assert made_for(world) == "30"


@pytest.mark.fault("N05")
def test_updates_that_would_have_been_different_refuse_it(training_world: MakeWorld) -> None:
    world = training_world(**KEPT, learningRate={"initial": "0.05", "schedule": WHOLE})
    world.report(100).wait(10).settle()

    world.edit(epochs=40)

    refused(world, "spec.epochs: 40, and the trainer has trained as for 30: update 46 has learning rate")
    world.report(110, epochs=10**12).settle()  # without a report the status tells how far training was
    assert world.status["phase"] == "Rejected"
    world.report(120).edit(epochs=30).settle()
    assert world.status["phase"] == "Training"


@pytest.mark.fault("N05")
@pytest.mark.parametrize("updates", [100, 400])
def test_fewer_epochs_than_the_trainer_knows_are_refused(training_world: MakeWorld, updates: int) -> None:
    """The API server takes them of a job that is rejected, so that a refused number can be taken back."""
    world = training_world(**KEPT)
    world.report(updates).wait(10).settle()

    world.edit(epochs=20)

    refused(world, "20, and the trainer has trained as for 30: the epochs of a job that has started may only grow")
    world.edit(epochs=30).settle()
    assert world.condition("Accepted")[0] == "True"


@pytest.mark.fault("N05")
def test_a_training_without_kept_checkpoints_would_begin_again(training_world: MakeWorld) -> None:
    world = training_world().edit(epochs=40)

    refused(world, "its checkpoints are not kept, so training would begin again; write 30, or make a new job")


@pytest.mark.fault("N05")
def test_before_the_first_update_nothing_is_lost(make_world: MakeWorld) -> None:
    world = make_world()
    world.settle()
    world.wait(10).scheduler_ready().workers_ready().trainer_runs()

    world.edit(epochs=40).settle()

    assert made_for(world) == "40"


@pytest.mark.fault("N05")
def test_a_report_of_no_training_with_fewer_epochs_is_no_report(training_world: MakeWorld) -> None:
    """Its updates fit neither plan, or its epochs would make no job: the schedule is longer."""
    schedule = {"type": "Cosine", "cosine": {"finalFactor": "0.1", "epochs": 25}}
    world = training_world(**KEPT, learningRate={"initial": "0.05", "schedule": schedule}).edit(epochs=40)
    world.settle()
    for epochs in (29, 24, 10**12):
        world.report(12, updates=461, epochs=epochs).settle()
        assert world.status["trainerStatus"]["update"] == 10


@pytest.mark.fault("N05")
def test_a_suspended_job_takes_it_when_it_goes_on(training_world: MakeWorld) -> None:
    world = training_world(**KEPT)
    world.edit(suspend=True).settle()
    world.trainer["status"] = {}

    world.edit(epochs=40).settle()
    assert made_for(world) == "30"
    world.edit(suspend=False).settle()

    assert made_for(world) == "40"
