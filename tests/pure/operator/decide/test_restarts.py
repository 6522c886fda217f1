"""A trainer that always ends with exit code 75 is not restarted for ever."""

from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.errors import ClusterError, Interrupted, StorageError
from batchgrowth_operator.decide.restarts import MOST_FRUITLESS_RETRIES


def ends(world: Any, times: int, code: int = ClusterError.exit_code, text: str = "", **status: Any) -> Any:
    """That many more trainer pods end, one after the other, each seen by the operator."""
    for _ in range(times):
        number = len(world.pods)
        ending = {
            "exitCode": code,
            "message": text or f"workers were lost, {number}",
            "finishedAt": f"2026-11-20T10:{number}Z",
        }
        state = {"phase": "Failed", "containerStatuses": [{"state": {"terminated": ending}}]}
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
    assert ("Unknown", "InProgress") == world.condition("Succeeded")
    ends(world, 1)
    assert is_failed(world)
    assert "Failed" == world.status["phase"]
    assert message(world, "Succeeded") == (
        "The trainer ended 10 times without getting past update 60; last: exit code 75: workers were lost, 9"
    )
    assert world.trainer["spec"]["suspend"], "Kubernetes must not start another pod"


@pytest.mark.fault("D08")
def test_a_full_disk_is_a_restart_with_its_cause_until_it_was_tried_too_often(training_world: Any) -> None:
    """The Job ignores these ends, so its own status counts none of them."""
    world = ends(at_update_60(training_world), 1, StorageError.exit_code, "/checkpoints: No space left on device")
    assert ("Unknown", "InProgress") == world.condition("Succeeded")
    world.trainer["status"] = {"active": 1, "ready": 0}
    world.settle()
    assert ("False", "TrainerRestarting") == world.condition("Training")
    assert "exit code 75: /checkpoints: No space left on device" in message(world, "Training")
    world.trainer["status"] = {"active": 1, "ready": 1}
    world.settle()
    assert ("True", "UpdatesCommitted") == world.condition("Training")
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
