"""A trainer that stops and starts again: what the status keeps of its training, and which workers are requested."""

from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth_operator.seen.observed import Ref

MakeWorld = Any
KEPT = {"checkpoint": {"volume": {"claimName": "kept"}}}


def replicas(world: Any) -> int:
    return int(world.deployment["spec"]["replicas"])


def suspended(world: Any) -> Any:
    """The world once the job is suspended and its pods are gone."""
    world.workers_ready().settle()
    world.edit(suspend=True).settle()
    world.trainer["status"] = {}
    world.settle()
    assert (world.deployment, world.status["phase"]) == (None, "Suspended")
    return world


def requests_of(world: Any, *reports: dict[str, Any]) -> list[int]:
    """The numbers of workers that are requested, one after the other, from a resume through these reports."""
    world.edit(suspend=False).settle()
    found = [replicas(world)]
    world.wait(10).scheduler_ready().trainer_runs()
    for report in reports:
        world.wait(2).workers_ready().report(**report).settle()
        found.append(replicas(world))
    return [one for index, one in enumerate(found) if found[index - 1 : index] != [one]]


@pytest.mark.fault("O22")
def test_a_job_that_lost_its_state_is_resumed_from_its_first_stage(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(431, checkpoint_update=430).settle()
    suspended(world)
    assert world.condition("Suspended") == ("True", "StateLost")
    assert "Update 431 is lost" in next(c["message"] for c in world.status["conditions"] if c["type"] == "Suspended")

    world.edit(suspend=False).settle()

    assert (replicas(world), world.status["stage"], world.status["batch"]["current"]) == (1, 0, 32)
    assert world.condition("Training") == ("False", "NotStarted")
    assert world.status["phase"] == "Pending"
    trainer = world.status["trainerStatus"]
    assert (trainer["update"], trainer["start"], trainer["progressPercentage"]) == (0, 1, 0)
    assert "checkpoint" not in world.status
    assert world.decide().is_empty


@pytest.mark.fault("O22")
def test_the_report_of_what_was_lost_is_not_taken_again(training_world: MakeWorld) -> None:
    """It lies in its ConfigMap until the next trainer's first report, whose start has the next number."""
    world = suspended(training_world().report(431).workers_ready())
    world.edit(suspend=False).settle()
    world.wait(10).scheduler_ready().workers_ready().trainer_runs().settle()
    assert world.condition("Training") == ("False", "NotStarted")
    annotations = world.child("ConfigMap", names.of("digits").progress)["metadata"]["annotations"]
    assert annotations[names.LAST_START] == "0"

    world.report(0, start=1, seconds_per_update=None).settle()
    assert world.condition("Training") == ("False", "NotStarted")
    world.wait(5).report(3, start=1).settle()

    assert world.condition("Training") == ("True", "UpdatesCommitted")
    assert [record["index"] for record in world.status["history"]][-1] == 0


@pytest.mark.fault("O22")
def test_a_measured_job_forgets_the_decisions_that_were_lost(measured_world: MakeWorld) -> None:
    world = measured_world()
    world.report_decided(1000, (500, 4000, 0.1)).settle()
    assert world.status["batch"]["current"] == 4000
    suspended(world)

    world.edit(suspend=False).settle()

    assert (world.status["batch"]["current"], world.status["stages"], world.status["stage"]) == (128, 1, 0)
    world.wait(5).settle()
    assert (world.status["batch"]["current"], replicas(world)) == (128, 1)


@pytest.mark.fault("O22")
@pytest.mark.parametrize("spec", [{}, KEPT], ids=["lost", "kept"])
def test_no_update_is_committed_before_a_trainer_runs(training_world: MakeWorld, spec: dict[str, Any]) -> None:
    world = suspended(training_world(**spec).report(100).workers_ready())

    world.edit(suspend=False).settle()

    assert world.condition("Training") == ("False", "NotStarted")
    assert world.status["trainerStatus"]["update"] == (100 if spec else 0)


@pytest.mark.fault("O23")
def test_a_resumed_job_requests_once_what_its_next_stage_needs(training_world: MakeWorld) -> None:
    """Update 390 is ten seconds before a stage of two workers. The new trainer's pace is not known at first."""
    world = suspended(training_world(**KEPT).report(390).workers_ready())

    first = {"update": 390, "start": 1, "seconds_per_update": None, "ready": 0}
    asked = requests_of(world, first, first | {"ready": 1}, {"update": 391, "start": 1, "ready": 1})

    assert asked == [1, 2]


@pytest.mark.fault("O23")
def test_a_restarted_trainer_keeps_the_workers_requested_ahead(training_world: MakeWorld) -> None:
    world = training_world(**KEPT)
    world.report(390).settle()
    world.workers_ready().settle()
    assert replicas(world) == 2

    world.trainer["status"] = {"startTime": "2026-11-20T10:00:00Z", "failed": 1}
    world.settle()
    assert (replicas(world), world.condition("Training")) == (2, ("False", "TrainerRestarting"))
    world.trainer_runs(failed=1).report(388, start=1, seconds_per_update=None, ready=2).settle()
    assert replicas(world) == 2

    world.wait(5).report(389, start=1, seconds_per_update=60.0, ready=2).settle()
    assert replicas(world) == 1


def test_a_checkpoint_before_the_last_report_is_no_old_report(training_world: MakeWorld) -> None:
    """The next start goes on from its checkpoint, which has fewer updates."""
    world = suspended(training_world(**KEPT).report(390).workers_ready())
    world.edit(suspend=False).settle()

    world.wait(9).scheduler_ready().workers_ready().trainer_runs().report(350, start=1).settle()

    assert (world.status["trainerStatus"]["update"], world.status["trainerStatus"]["start"]) == (350, 1)
    assert world.condition("Training") == ("True", "UpdatesCommitted")


def test_a_trainer_that_has_just_finished_is_no_trainer_that_stopped(training_world: MakeWorld) -> None:
    """Its pod has ended, and its Job does not say so yet."""
    world = training_world()
    labels = names.labels("digits", "trainer")
    ended = {"name": "trainer", "state": {"terminated": {"exitCode": 0}}}
    world.report(460, weights_sha256="5f" * 32)
    world.pods = [
        {
            "metadata": {"name": "digits-trainer-x", "labels": labels},
            "status": {"phase": "Succeeded", "containerStatuses": [ended]},
        }
    ]
    world.trainer["status"] = {"startTime": "2026-11-20T10:00:00Z"}

    world.wait(6).settle()

    assert world.status["trainerStatus"]["update"] == 460


def test_the_remaining_time_is_that_of_the_moment(training_world: MakeWorld) -> None:
    """With many jobs, a report is written to the status long after it came."""
    world = training_world()
    world.report(20, eta_seconds=400.0).decide()
    world.wait(30).settle()

    assert world.status["trainerStatus"]["estimatedRemainingSeconds"] == 370


def test_the_numbers_of_starts_rise_one_by_one(training_world: MakeWorld) -> None:
    """The annotation from which a trainer numbers its start has the number of the last one."""
    world = training_world(**KEPT)
    world.report(100, start=4).settle()
    suspended(world)
    world.edit(suspend=False).settle()

    config_map = world.child("ConfigMap", names.of("digits").progress)

    assert config_map["metadata"]["annotations"][names.LAST_START] == "4"
    assert Progress.from_json(config_map["data"][names.PROGRESS_KEY]).start == 4
    assert world.status["trainerStatus"]["start"] == 5


def test_a_report_that_is_lost_with_its_config_map_leaves_the_number_of_its_start(training_world: MakeWorld) -> None:
    """Or the next trainer would take a number below the one that is awaited, and none of its reports would count."""
    world = training_world()
    world.children.pop(Ref("ConfigMap", names.of("digits").progress))
    world.children.pop(Ref("Job", names.of("digits").trainer))

    world.settle()

    annotations = world.child("ConfigMap", names.of("digits").progress)["metadata"]["annotations"]
    assert (annotations[names.LAST_START], world.status["trainerStatus"]["start"]) == ("0", 1)


def test_a_status_without_the_number_of_a_start_counts_as_of_the_first(training_world: MakeWorld) -> None:
    """An operator that did not number starts yet has written it."""
    world = training_world()
    world.children.pop(Ref("ConfigMap", names.of("digits").progress))
    world.children.pop(Ref("Job", names.of("digits").trainer))
    del world.status["trainerStatus"]["start"]

    world.settle()

    assert world.status["trainerStatus"]["start"] == 1
