"""The claim that the operator makes for a job's checkpoints, and what a job without storage loses."""

import json
from dataclasses import replace
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.job.conditions import AWAITED, NOT_KEPT
from batchgrowth_operator.seen.observed import Failure, Ref

MakeWorld = Any
CLAIM = Ref("PersistentVolumeClaim", "digits-checkpoints")
JOB = Ref("Job", "digits-trainer")
SIZED = {"volume": {"size": "10Gi", "storageClassName": "fast"}}


def mounted(world: Any) -> dict[str, Any]:
    """The trainer's volume for checkpoints, without its name."""
    volumes = world.trainer["spec"]["template"]["spec"]["volumes"]
    return next(volume for volume in volumes if volume["name"] == "checkpoints") | {"name": ""}


def message(world: Any, kind: str) -> str:
    return next(c["message"] for c in world.status["conditions"] if c["type"] == kind)


def with_default(world: Any, size: str) -> Any:
    """The world under an operator with that default size."""
    world.defaults = replace(world.defaults, checkpoint_size=size)
    return world


def test_the_claim_is_made_before_the_trainer_that_alone_mounts_it(make_world: MakeWorld) -> None:
    world = make_world(checkpoint=SIZED)
    applied = [Ref(m["kind"], m["metadata"]["name"]) for m in world.step().apply]

    assert applied.index(CLAIM) < applied.index(JOB)
    claim = world.children[CLAIM]
    wanted = {"accessModes": ["ReadWriteOnce"], "storageClassName": "fast"}
    assert claim["spec"] == wanted | {"resources": {"requests": {"storage": "10Gi"}}}
    assert names.labels("digits", "checkpoints") == claim["metadata"]["labels"]
    assert [(o["name"], o["blockOwnerDeletion"]) for o in claim["metadata"]["ownerReferences"]] == [("digits", False)]
    assert mounted(world) == {"name": "", "persistentVolumeClaim": {"claimName": CLAIM.name}}
    assert CLAIM.name not in json.dumps(world.deployment)
    world.settle()
    assert NOT_KEPT not in message(world, "Accepted")


def test_an_older_trainer_reads_the_name_of_the_claim(make_world: MakeWorld) -> None:
    world = make_world(checkpoint=SIZED | {"everySeconds": 9})
    world.settle()
    job = json.loads(world.child("ConfigMap", "digits-plan")["data"][names.JOB_KEY])
    assert job["spec"]["checkpoint"] == {"volume": {"claimName": CLAIM.name}, "everySeconds": 9}


def test_a_job_that_waits_to_begin_has_no_claim(make_world: MakeWorld) -> None:
    world = make_world(checkpoint=SIZED, suspend=True)
    world.settle()
    assert CLAIM not in world.children

    world.edit(suspend=False).settle()
    assert CLAIM in world.children


def test_a_default_is_for_jobs_that_name_no_place(make_world: MakeWorld) -> None:
    made = {}
    for name, kept in {"none": {}, "claim": {"volume": {"claimName": "kept"}}, "uri": {"uri": "s3://runs/a"}}.items():
        world = with_default(make_world(checkpoint=kept), "2Gi")
        world.settle()
        made[name] = CLAIM in world.children, message(world, "Accepted").partition("updates.")[2]

    told = (
        f" spec.checkpoint names no place for checkpoints, so they are kept in the claim {CLAIM.name} of 2Gi, which is"
    )
    assert {"none": (True, f"{told} deleted with the job."), "claim": (False, ""), "uri": (False, "")} == made


def test_another_default_changes_no_job_that_has_a_trainer(training_world: MakeWorld, make_world: MakeWorld) -> None:
    plain = with_default(training_world(), "2Gi")
    assert plain.decide().is_empty
    plain.edit(suspend=True).settle()
    plain.trainer["status"] = {}
    plain.settle()
    plain.edit(suspend=False).settle()
    assert CLAIM not in plain.children, "its Job keeps its pod template"

    sized = with_default(make_world(), "2Gi")
    sized.settle()
    for size in ("4Gi", ""):
        assert with_default(sized, size).decide().is_empty


@pytest.mark.parametrize("kept", [SIZED, {"volume": {"claimName": "kept"}}, {"uri": "s3://runs/a"}])
def test_a_place_that_comes_late_restarts_no_trainer(training_world: MakeWorld, kept: Any) -> None:
    """It would lose what it has. Once it has ended, the next one has the place."""
    world = training_world().edit(checkpoint=kept)
    world.settle()
    assert message(world, "Accepted").partition("updates. ")[2] == AWAITED
    assert mounted(world) == {"name": "", "emptyDir": {}}

    world.edit(suspend=True).settle()
    assert world.condition("Suspended") == ("Unknown", "Discarding")
    world.trainer["status"] = {}
    world.settle()
    world.edit(suspend=False).settle()
    assert "uri" in kept or "persistentVolumeClaim" in mounted(world)
    assert AWAITED not in message(world, "Accepted")


def test_a_trainer_that_starts_over_begins_with_the_default(training_world: MakeWorld) -> None:
    """What it had is lost anyway."""
    world = with_default(training_world(), "2Gi")
    del world.children[JOB]
    world.settle()
    assert mounted(world) == {"name": "", "persistentVolumeClaim": {"claimName": CLAIM.name}}


def test_a_claim_that_is_gone_for_good_leaves_a_trainer_without(make_world: MakeWorld) -> None:
    """The default that it was made by is gone as well."""
    world = with_default(make_world(), "2Gi")
    world.settle()
    del with_default(world, "").children[CLAIM]

    assert world.step().delete == (JOB,)
    world.settle()
    assert mounted(world) == {"name": "", "emptyDir": {}}


def test_a_deleted_claim_comes_back_once_it_is_gone(make_world: MakeWorld) -> None:
    """Until its last pod has ended, Kubernetes keeps it."""
    world = make_world(checkpoint=SIZED)
    world.settle()
    world.children[CLAIM]["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"
    assert world.decide().is_empty

    del world.children[CLAIM]
    assert [Ref(m["kind"], m["metadata"]["name"]) for m in world.step().apply] == [CLAIM]


def test_a_claim_grows_and_nothing_else_of_it_changes(make_world: MakeWorld) -> None:
    """The API server would refuse the rest; and a size is a number, however it is written."""
    world = make_world(checkpoint={"volume": {"size": "10Gi"}})
    world.settle()
    filled_in = {"volumeName": "pvc-1", "volumeMode": "Filesystem", "storageClassName": "standard"}
    world.children[CLAIM]["spec"] |= filled_in
    world.settle(passes=2)
    world.children[CLAIM]["spec"] |= {"resources": {"requests": {"storage": "10240Mi"}}} | filled_in
    assert world.decide().is_empty

    world.edit(checkpoint={"volume": {"size": "20Gi"}}).settle()
    assert world.children[CLAIM]["spec"]["resources"] == {"requests": {"storage": "20Gi"}}
    assert world.decide().delete == ()

    world.edit(checkpoint={"volume": {"size": "5Gi", "storageClassName": "slow"}}).settle()
    spec = world.children[CLAIM]["spec"]
    assert (spec["resources"]["requests"]["storage"], spec["storageClassName"]) == ("20Gi", "standard")
    keeps = f"The claim {CLAIM.name} keeps its"
    said = f"{keeps} 20Gi, since claims do not shrink. {keeps} class, standard."
    assert message(world, "Accepted").endswith(said)


def test_a_claim_without_a_class_keeps_none(make_world: MakeWorld) -> None:
    world = make_world(checkpoint={"volume": {"size": "10Gi"}})
    world.settle()
    world.edit(checkpoint=SIZED).settle()
    assert "storageClassName" not in world.children[CLAIM]["spec"]
    assert message(world, "Accepted").endswith("keeps its class, which has no name.")


def test_a_suspended_job_says_what_is_lost(training_world: MakeWorld) -> None:
    """A trainer that has done nothing yet loses nothing."""
    for update, reasons in ((0, ["Checkpointing", "BySpec"]), (433, ["Discarding", "StateLost"])):
        world = training_world()
        world.report(update, start=1).settle()
        world.edit(suspend=True).settle()
        found = [world.condition("Suspended")[1]]
        world.trainer["status"] = {}
        world.settle()
        assert reasons == [*found, world.condition("Suspended")[1]]
    warnings = {event.reason: event.message for event in world.events if event.type == "Warning"}
    assert warnings["Discarding"] == f"The trainer stops, and update 433 is lost. {NOT_KEPT}"
    assert "Update 433 is lost: the training starts over when the job is resumed." in warnings["StateLost"]


UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims."


@pytest.mark.parametrize(
    ("given", "seconds", "status", "event", "said"),
    [
        ({"size": "1Gi"}, 9, {"phase": "Pending"}, "", "it names no StorageClass, and the cluster has no default one"),
        ({"size": "1Gi"}, 1, {}, "", ""),
        (SIZED["volume"], 9, {"phase": "Pending"}, "no such class", "digits-checkpoints: no such class. `kubectl"),
        (SIZED["volume"], 9, {"phase": "Pending"}, "", ""),
        (SIZED["volume"], 9, {"phase": "Lost"}, "", "The volume of the claim digits-checkpoints is gone"),
        (SIZED["volume"], 9, {"phase": "Bound"}, "", ""),
    ],
)
def test_what_a_claim_waits_for(
    make_world: MakeWorld, given: Any, seconds: float, status: Any, event: str, said: str
) -> None:
    world = make_world(checkpoint={"volume": given})
    world.settle()
    world.children[CLAIM] |= {"status": status}
    if event:
        about = {"involvedObject": {"name": CLAIM.name}, "reason": "ProvisioningFailed", "message": event}
        world.warnings = [about | {"lastTimestamp": "2026-11-20T10:00:00Z"}]
    world.wait(seconds).settle()

    assert ("False", "VolumePending" if said else "NotStarted") == world.condition("Training")
    assert said in message(world, "Training")


def test_a_pod_that_waits_for_a_volume_needs_no_node(make_world: MakeWorld) -> None:
    world = make_world(checkpoint=SIZED)
    world.settle()
    unscheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": UNBOUND}
    metadata = {"name": "t", "labels": names.labels("digits", "trainer")}
    world.pods = [{"kind": "Pod", "metadata": metadata, "status": {"phase": "Pending", "conditions": [unscheduled]}}]
    world.settle()
    assert world.condition("Training") == ("False", "VolumePending")


def test_a_quota_that_the_claim_exceeds(make_world: MakeWorld) -> None:
    world = make_world(checkpoint=SIZED)
    refused = "digits-checkpoints is forbidden: exceeded quota: q, requested: requests.storage=1Gi, limited: 0"
    world.failures = (Failure(CLAIM, 403, refused),)
    world.settle()
    assert world.condition("ClusterReady") == ("False", "QuotaExceeded")
    assert "Give a smaller spec.checkpoint.volume.size, or raise the quota" in message(world, "ClusterReady")
