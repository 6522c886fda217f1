"""What users see of a worker that computed wrongly, as a spot check of the trainer found."""

from __future__ import annotations

from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.progress import WentBack
from batchgrowth.contract.status import MOST_FINDINGS

CAUSE = "worker w-1 differs from 2 others: the gradient of model.0.weight, in shard 3 of update 91; it is replaced"


def pod(name: str, node: str = "", role: str = "worker") -> dict[str, Any]:
    labels = {names.ROLE_LABEL: role}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"nodeName": node} if node else {}, "status": {}}


def went_back(times: int = 1, workers: tuple[str, ...] = ("w-1",), **values: Any) -> WentBack:
    return WentBack(**({"times": times, "workers": workers, "cause": CAUSE, "reached": 91, "update": 40} | values))


def told(world: Any) -> list[str]:
    return [event.message for event in world.events if (event.type, event.reason) == ("Warning", "ComputedWrongly")]


@pytest.fixture
def world(training_world: Any) -> Any:
    """A world whose trainer has done 90 updates, and found none of two workers wrong."""
    made = training_world()
    made.pods = [pod("w-1", "old-node"), pod("w-2"), pod("digits-trainer-x", "first-node", "trainer")]
    made.report(90).wait(10).settle()
    return made


@pytest.mark.fault("C26")
def test_status_and_event_name_the_pod_its_node_and_what_is_undone(world: Any) -> None:
    world.report(40, went_back=went_back()).settle()

    [found] = world.status["findings"]
    assert found == {
        "start": 0,
        "times": 1,
        "workers": [{"pod": "w-1", "node": "old-node"}],
        "cause": CAUSE,
        "reached": 91,
        "update": 40,
        "time": found["time"],
    }
    assert told(world) == [
        f"w-1 on node old-node computed wrongly: {CAUSE}. Training goes back from update 91 to update 40. The hardware "
        "is suspect, and a restarted container stays there: kubectl cordon old-node, then delete the pod."
    ]


@pytest.mark.fault("C26")
def test_reports_count_although_training_went_back(world: Any) -> None:
    """The status has had a later update of the same start."""
    world.report(40, went_back=went_back()).settle()
    assert world.status["trainerStatus"]["update"] == 40
    world.report(41, went_back=went_back()).wait(10).settle()
    assert world.status["trainerStatus"]["update"] == 41
    world.report(90).wait(10).settle()
    assert world.status["trainerStatus"]["update"] == 41, "a report from before the finding comes late"


def test_a_finding_is_told_once_and_stays(world: Any) -> None:
    """Also when the trainer has been restarted; its count then begins again."""
    world.report(40, went_back=went_back()).settle()
    world.report(60, went_back=went_back()).wait(10).settle()
    world.report(50, start=1).wait(10).settle()
    assert [1, 1] == [len(told(world)), len(world.status["findings"])]
    assert world.status["trainerStatus"]["update"] == 50

    world.report(45, start=1, went_back=went_back(update=45)).settle()
    assert [(0, 1, 40), (1, 1, 45)] == [(f["start"], f["times"], f["update"]) for f in world.status["findings"]]
    assert len(told(world)) == 2


def test_the_newest_findings_are_kept(world: Any) -> None:
    for times in range(1, MOST_FINDINGS + 3):
        world.report(40, went_back=went_back(times)).settle()
    assert [found["times"] for found in world.status["findings"]] == [*range(3, MOST_FINDINGS + 3)]


@pytest.mark.parametrize(
    ("workers", "who"),
    [
        (("w-1", "w-2"), "w-1 on node old-node and w-2"),
        (("w-9",), "w-9"),
        (("trainer",), "digits-trainer-x on node first-node"),
    ],
)
def test_each_wrong_process_is_named(world: Any, workers: tuple[str, ...], who: str) -> None:
    """One without a node had its pod deleted, or has no node yet."""
    world.report(40, went_back=went_back(workers=workers)).settle()
    [text] = told(world)
    assert text.startswith(f"{who} computed wrongly: ")
    assert ("kubectl cordon" in text) == ("on node" in who)


@pytest.mark.parametrize(
    ("present", "node"), [("uid", "at-work"), ("later", "newest")], ids=["its pod works", "its pod is gone"]
)
def test_the_node_of_the_trainer_that_found_itself_wrong_is_named(world: Any, present: str, node: str) -> None:
    """Not that of a pod that has ended, whose name may come later in the alphabet."""
    world.trainer["metadata"]["uid"] = present
    world.pods = [pod(name, name, "trainer") for name in ("at-work", "failed", "left", "newest", "older")]
    for one, minute in zip(world.pods, (3, 1, 2, 4, 1), strict=True):
        owner = "uid" if one["metadata"]["name"] in ("at-work", "failed", "left") else "earlier"
        one["metadata"] |= {"ownerReferences": [{"uid": owner}], "creationTimestamp": f"2026-11-20T10:0{minute}:00Z"}
    world.pods[1]["status"] = {"phase": "Failed"}
    left = {"name": "trainer", "state": {"terminated": {"exitCode": 75}}}
    world.pods[2]["status"] = {"phase": "Running", "containerStatuses": [left]}

    world.report(40, went_back=went_back(workers=("trainer",))).settle()

    assert [[{"pod": node, "node": node}]] == [found["workers"] for found in world.status["findings"]]


def test_a_trainer_without_its_pod_is_named_by_its_role(world: Any) -> None:
    world.pods = []
    world.report(40, went_back=went_back(workers=("trainer",))).settle()
    assert [[{"pod": "trainer"}]] == [found["workers"] for found in world.status["findings"]]


def test_what_a_hostile_report_says_of_a_finding_fits_into_the_status(world: Any) -> None:
    workers = tuple(str(number) * 300 for number in range(50))
    world.report(40, went_back=went_back(workers=workers, cause="x" * 5000)).settle()
    [found] = world.status["findings"]
    assert [8, 512] == [len(found["workers"]), len(found["cause"])]
    assert max(len(text) for text in told(world)) <= 1024
