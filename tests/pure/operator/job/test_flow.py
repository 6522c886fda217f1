"""A job's life as decisions: what is created, when workers are requested, and how the job ends."""

import copy
import json
from dataclasses import replace
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.manifest.reading import read_stored
from batchgrowth.plan import make_plan
from batchgrowth_operator.seen.observed import Failure, Ref

MakeWorld = Any
FIRST = [
    "ConfigMap digits-plan",
    "Secret digits-authority",
    "Secret digits-tls",
    "ConfigMap digits-progress",
    "ServiceAccount digits-trainer",
    "Role digits-progress",
    "RoleBinding digits-progress",
    "NetworkPolicy digits",
    "DaskCluster digits",
    "Deployment digits-workers",
    "Job digits-trainer",
]


def made(decision: Any) -> list[str]:
    return [f"{m['kind']} {m['metadata']['name']}" for m in decision.apply]


def replicas(world: Any) -> int:
    return int(world.deployment["spec"]["replicas"])


def test_the_first_pass_creates_everything(make_world: MakeWorld) -> None:
    world = make_world()

    decision = world.step()

    assert made(decision) == FIRST
    assert [(e.type, e.reason) for e in decision.events] == [("Normal", "PlanMade"), ("Normal", "ScalingUp")]
    assert world.condition("Accepted") == ("True", "PlanMade")
    assert world.status["startTime"] == "2026-11-20T10:00:00Z"
    assert world.status["phase"] == "Pending"
    assert world.decide().is_empty


def test_the_trainer_finds_its_job_and_plan(make_world: MakeWorld) -> None:
    """The ConfigMap holds the job, without its defaults, and the plan that follows from it."""
    world = make_world()
    world.step()

    data = world.child("ConfigMap", "digits-plan")["data"]

    given = read_stored(json.dumps(world.job)).job.spec
    assert given == read_stored(data[names.JOB_KEY]).job.spec
    assert "seed" not in json.loads(data[names.JOB_KEY])["spec"]
    assert json.loads(data[names.PLAN_KEY])["updates"] == 460


def test_an_argument_may_have_any_character_of_json(make_world: MakeWorld) -> None:
    """YAML refuses some of them, and takes others for the end of a line."""
    world = make_world()
    strange = "".join(map(chr, (*range(0x100), 0x2028, 0x2029, 0xFEFF, 0xFFFE, 0xFFFF, 0x1F331)))
    world.job["spec"]["workload"]["arguments"] = {"hidden": strange}
    world.step()

    data = world.child("ConfigMap", "digits-plan")["data"]
    assert world.condition("Accepted") == ("True", "PlanMade")
    assert read_stored(data[names.JOB_KEY]).job.spec.workload.arguments == {"hidden": strange}


def test_a_spec_without_a_plan_creates_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.job["spec"]["learningRate"] |= {"warmup": {"initial": "0.01", "updates": 10_000}}

    decision = world.step()

    assert (made(decision), world.condition("Accepted")[1]) == ([], "PlanImpossible")
    assert world.status["phase"] == "Rejected"
    assert [(e.type, e.reason) for e in decision.events] == [("Warning", "PlanImpossible")]
    assert world.condition("Succeeded")[0] == "Unknown"
    assert world.decide().is_empty


def test_a_spec_with_a_fault_that_the_schema_cannot_see_is_refused(make_world: MakeWorld) -> None:
    world = make_world()
    world.job["spec"]["workload"]["arguments"] = {"not a name": "1"}

    decision = world.step()

    assert (made(decision), world.condition("Accepted")) == ([], ("False", "SpecInvalid"))
    assert "arguments" in world.status["conditions"][0]["message"]


def test_a_job_whose_spec_went_bad_keeps_its_children(training_world: MakeWorld) -> None:
    """It was stored before the rule it breaks; its children and the other conditions stay as they are."""
    world = training_world()
    before = set(world.children)
    world.edit(workload=world.job["spec"]["workload"] | {"arguments": {"not a name": "1"}})

    world.settle()

    assert (before, ("False", "SpecInvalid")) == (set(world.children), world.condition("Accepted"))
    assert world.condition("Training") == ("True", "UpdatesCommitted")
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    assert world.status["phase"] == "Rejected"


def test_a_job_whose_spec_is_mended_is_no_longer_rejected(make_world: MakeWorld) -> None:
    world = make_world()
    good = world.job["spec"]["workload"]
    world.edit(workload=good | {"arguments": {"not a name": "1"}}).settle()
    assert world.status["phase"] == "Rejected"

    world.edit(workload=good).settle()

    assert (world.status["phase"], world.condition("Accepted")) == ("Pending", ("True", "PlanMade"))


def test_a_job_that_is_over_stays_so_if_its_spec_goes_bad(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(460).trainer_ends().settle()
    world.edit(workload=world.job["spec"]["workload"] | {"arguments": {"not a name": "1"}}).settle()

    assert (world.status["phase"], world.condition("Accepted")) == ("Succeeded", ("False", "SpecInvalid"))


@pytest.mark.fault("A15")
def test_a_stored_template_that_sets_what_the_operator_owns_is_refused(make_world: MakeWorld) -> None:
    """The CRD's schema cannot check it."""
    container = {"name": "worker", "image": "example/mine:1"}
    world = make_world(workers={"maximum": 4, "template": {"spec": {"containers": [container]}}})

    world.settle()

    assert (world.children, world.status["phase"]) == ({}, "Rejected")
    assert "spec.workers.template.spec.containers.worker.image" in world.status["conditions"][0]["message"]
    assert "give spec.image" in world.status["conditions"][0]["message"]


@pytest.mark.fault("B25")
def test_a_job_that_is_being_deleted_is_left_alone(training_world: MakeWorld) -> None:
    world = training_world()
    world.job["metadata"]["deletionTimestamp"] = "2026-11-20T11:00:00Z"
    world.children.clear()

    assert world.decide().is_empty


def test_a_training_job_s_status(training_world: MakeWorld) -> None:
    world = training_world()

    trainer = world.status["trainerStatus"]

    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")
    assert world.condition("Training") == ("True", "UpdatesCommitted")
    assert (trainer["update"], trainer["epoch"], trainer["progressPercentage"]) == (10, "0.22", 2)
    assert [record["index"] for record in world.status["history"]] == [0]


def test_workers_are_requested_ahead_of_the_milestone(training_world: MakeWorld) -> None:
    """At one update a second, with the first lead time of 10 s and half of it as slack."""
    world = training_world()
    world.report(380, seconds_per_update=1.0).step()
    assert (replicas(world), world.decide().requeue_after_seconds) == (1, 5.0)

    world.report(386, seconds_per_update=1.0).step()

    assert replicas(world) == 2
    assert {k: world.status["workers"][k] for k in ("desired", "requested")} == {"desired": 1, "requested": 2}
    assert world.condition("Resizing") == ("True", "ScalingUp")
    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")


def test_time_that_passes_without_a_report_counts(training_world: MakeWorld) -> None:
    """An update may take longer than the lead time, with no report in between."""
    world = training_world()
    world.report(399, seconds_per_update=60.0).step()
    assert (replicas(world), world.decide().requeue_after_seconds) == (1, 45.0)

    world.wait(46).step()

    assert replicas(world) == 2


def test_time_counts_though_the_progress_is_not_written_yet(training_world: MakeWorld) -> None:
    """With many jobs each has its progress written less often, but its workers requested as soon."""
    world = training_world()
    world.report(360, seconds_per_update=1.0).settle()
    world.defaults = replace(world.defaults, report_seconds=1000)
    world.report(383, seconds_per_update=1.0)
    assert (world.decide().is_empty, world.decide().requeue_after_seconds) == (True, 2.0)

    world.wait(2).step()

    assert replicas(world) == 2


def test_an_unsteady_pace_does_not_make_workers_come_and_go(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(386, seconds_per_update=1.0).step()
    assert replicas(world) == 2

    world.report(387, seconds_per_update=3.0).step()
    assert replicas(world) == 2

    world.report(388, seconds_per_update=60.0).step()
    assert replicas(world) == 1


def test_without_lead_workers_are_requested_at_the_milestone(training_world: MakeWorld) -> None:
    world = training_world(workers={"examplesPerWorker": 128, "maximum": 4, "leadSeconds": 0})
    world.report(399).settle()
    assert replicas(world) == 1

    world.report(400).settle()
    assert replicas(world) == 2

    world.report(430).settle()
    assert replicas(world) == 4


def test_the_lead_time_is_measured(training_world: MakeWorld) -> None:
    """10 s at first; two workers took 4 s, so the next are requested 7 s ahead; the stage records its resize time."""
    world = training_world()
    world.report(386, seconds_per_update=1.0).step()
    world.wait(4).workers_ready().settle()

    workers = world.status["workers"]
    assert (workers["resizeSeconds"], workers["leadSeconds"]) == ("4.000", "7.000")
    assert world.condition("Resizing") == ("False", "AtTarget")

    world.report(400, seconds_per_update=1.0).step()
    assert [record.get("resizeSeconds") for record in world.status["history"]] == [None, None, None, "4.000"]


@pytest.mark.parametrize(("placed", "lead"), [(None, "4.000"), (8, "2.000")])
def test_the_first_worker_sets_the_lead_time(make_world: MakeWorld, placed: int | None, lead: str) -> None:
    """The default is not averaged in, and the wait for a free node does not count."""
    world = make_world()
    world.settle()
    pod = {"kind": "Pod", "metadata": {"name": "w", "labels": names.labels("digits", "worker")}, "status": {}}
    if placed is not None:
        world.wait(placed - 2)
        at = (world.now).isoformat()
        pod["status"] = {"conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": at}]}
        world.wait(2)
    else:
        world.wait(4)
    world.pods = [pod]
    world.scheduler_ready().workers_ready().trainer_runs().settle()

    assert lead == world.status["workers"]["leadSeconds"]


def test_a_resize_that_ends_after_its_milestone_is_recorded_too(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(399, seconds_per_update=1.0).step()
    world.wait(3).report(401, seconds_per_update=1.0).step()
    assert None is world.status["history"][-1].get("resizeSeconds")

    world.wait(2).workers_ready().settle()

    assert world.status["history"][-1]["resizeSeconds"] == "5.000"


def test_a_resize_that_ends_as_its_milestone_comes_is_recorded_with_it(training_world: MakeWorld) -> None:
    """One pass sees both: the record of the new stage has the time of this resize, and not of the one before."""
    world = training_world()
    world.report(399, seconds_per_update=1.0).step()

    world.wait(3).workers_ready().report(401, seconds_per_update=1.0).step()

    assert world.status["history"][-1]["resizeSeconds"] == "3.000"


def test_a_replaced_worker_is_timed_from_its_loss(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(386, seconds_per_update=1.0).step()
    world.wait(4).workers_ready().settle()
    world.wait(100).workers_ready(1).settle()
    assert world.condition("Resizing") == ("True", "ScalingUp")

    world.wait(2).workers_ready(2).settle()

    assert world.status["workers"]["resizeSeconds"] == "2.000"


@pytest.mark.fault("A26", "C18")
def test_bounds_that_change_midway_change_the_workers(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(431).settle()
    world.workers_ready().settle()
    assert replicas(world) == 4

    world.edit(workers={"examplesPerWorker": 128, "maximum": 2}).settle()
    assert replicas(world) == 2
    assert world.condition("Resizing") == ("True", "ScalingDown")

    world.edit(workers={"examplesPerWorker": 128, "maximum": 4}).settle()
    assert replicas(world) == 4


@pytest.mark.fault("B27")
def test_suspend_lets_the_trainer_finish_before_the_cluster_goes(training_world: MakeWorld) -> None:
    world = training_world(checkpoint={"volume": {"claimName": "kept"}})
    world.edit(suspend=True).settle()
    assert (world.trainer["spec"]["suspend"], replicas(world)) == (True, 1)
    assert world.condition("Suspended") == ("Unknown", "Checkpointing")

    world.trainer["status"] = {}
    world.settle()

    assert (world.deployment, world.cluster) == (None, None)
    assert world.condition("Suspended") == ("True", "BySpec")
    assert world.status["phase"] == "Suspended"
    assert world.status["workers"]["requested"] == 0

    world.edit(suspend=False).settle()
    assert (world.trainer["spec"]["suspend"], replicas(world)) == (False, 1)
    assert world.condition("Suspended") == ("False", "NotSuspended")


@pytest.mark.fault("B24")
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("stops_at_once", [True, False])
def test_suspend_that_flips_ends_as_it_was_last_set(training_world: MakeWorld, last: bool, stops_at_once: bool) -> None:
    """Twenty times in a minute, whether the trainer stops within one flip or within none of them."""
    world = training_world()
    for flip in range(20):
        world.edit(suspend=(flip % 2 == 1) == last).wait(3).step()
        if stops_at_once and world.trainer["spec"]["suspend"]:
            world.trainer["status"] = {}
    world.trainer["status"] = {} if last else {"active": 1, "ready": 1}
    world.settle()

    assert last == world.trainer["spec"]["suspend"]
    assert (last, last) == (world.deployment is None, world.cluster is None)
    assert ("True" if last else "False") == world.condition("Suspended")[0]


@pytest.mark.fault("C16")
@pytest.mark.parametrize("alive", [0, 1, 2, 3])
def test_a_worker_that_dies_during_a_resize_changes_no_request(training_world: MakeWorld, alive: int) -> None:
    """The request follows from the plan and the position, whatever is left of the workers."""
    world = training_world()
    world.report(431).step()
    assert replicas(world) == 4

    world.workers_ready(alive).settle()
    assert (replicas(world), world.status["workers"]["desired"]) == (4, 4)

    world.edit(workers={"examplesPerWorker": 128, "maximum": 2}).step()
    world.workers_ready(min(alive, 1)).settle()
    assert replicas(world) == 2


@pytest.mark.fault("A29")
def test_a_status_that_others_edit_is_overwritten(training_world: MakeWorld) -> None:
    """But for what only the status remembers, such as the end of the job, which those who may write it can set."""
    world = training_world()
    world.report(431).settle()
    before, children = copy.deepcopy(world.status), copy.deepcopy(world.children)
    for condition in world.status["conditions"]:
        condition |= {"reason": "Forged", "message": "forged"}
    world.status["workers"] |= {"desired": 0, "requested": 99, "ready": 99}
    world.job["status"] |= {"phase": "Succeeded", "batch": {"current": 7}, "stages": 1, "stage": 0}

    world.settle()

    assert (before, children) == (world.status, world.children)


@pytest.mark.fault("A27")
def test_a_job_that_is_born_suspended_starts_nothing(make_world: MakeWorld) -> None:
    """It has no start time, so that every field of its spec may still change."""
    world = make_world(suspend=True)

    world.settle()

    assert (world.deployment, world.cluster, world.trainer) == (None, None, None)
    assert "startTime" not in world.status


@pytest.mark.parametrize(
    ("retention", "ending", "kept"),
    [
        ("DeleteOnFinish", "Complete", False),
        ("DeleteOnFinish", "Failed", False),
        ("RetainOnFailure", "Complete", False),
        ("RetainOnFailure", "Failed", True),
        ("Retain", "Complete", True),
    ],
)
def test_retention(training_world: MakeWorld, retention: str, ending: str, kept: bool) -> None:
    world = training_world(clusterRetention=retention)
    world.report(460).trainer_ends(ending).settle()

    assert (kept, kept) == (world.deployment is not None, world.cluster is not None)
    assert ("Succeeded" if ending == "Complete" else "Failed") == world.status["phase"]
    assert ("clusterName" in world.status) == kept


def test_the_end_is_remembered(training_world: MakeWorld) -> None:
    """Even if the trainer's Job is deleted later."""
    world = training_world()
    world.report(460).wait(5).trainer_ends().settle()
    assert world.condition("Succeeded") == ("True", "Finished")
    assert world.status["completionTime"] == "2026-11-20T10:00:15Z"

    world.children.pop(Ref("Job", "digits-trainer"))

    assert world.decide().is_empty


STOPS = {"evaluation": {"everyEpochs": 2, "stopEarly": {"metric": "loss", "mode": "Minimize", "patience": 3}}}


def test_an_early_end_is_a_success(training_world: MakeWorld) -> None:
    """After epoch 10, where the third stage would have begun: the job has two, and all of its updates are done."""
    world = training_world(**STOPS)
    at_the_end = {"update": 340, "epoch": 10.0, "weights_sha256": "5f" * 32}
    world.report(**at_the_end).wait(2).settle()
    assert (world.status["stage"], [one["index"] for one in world.status["history"]]) == (2, [0, 1, 2])
    world.report(**at_the_end, updates=340, epochs=10, ended_at_epoch=10).wait(6).settle()
    assert world.condition("Succeeded") == ("Unknown", "InProgress")
    world.wait(5).trainer_ends().settle()

    assert world.condition("Succeeded") == ("True", "StoppedEarly")
    assert (world.status["phase"], world.status["trainerStatus"]["progressPercentage"]) == ("Succeeded", 100)
    [event] = [event for event in world.events if event.reason == "StoppedEarly"]
    ended = "Training ended after epoch 10 of 30: loss got no better, and stopEarly.patience is 3."
    assert ("Normal", ended) == (event.type, event.message)
    assert (world.deployment, world.cluster) == (None, None)
    assert [one["index"] for one in world.status["history"]] == [0, 1, 2]
    assert (world.status["stage"], world.status["stages"]) == (1, 2)
    world.child("ConfigMap", "digits-progress")["data"].clear()
    world.settle()
    assert world.condition("Succeeded") == ("True", "StoppedEarly")


def test_a_trainer_that_falls_back_before_its_early_end_goes_on(training_world: MakeWorld) -> None:
    """It was lost before it had saved the end, and finds it again."""
    world = training_world(**STOPS)
    world.report(340, epoch=10.0, updates=340, epochs=10, ended_at_epoch=10).wait(2).settle()
    assert world.status["stages"] == 2
    world.report(230, start=1).wait(6).settle()
    assert (world.status["stages"], world.status["stage"]) == (6, 1)


def test_a_failure_after_an_early_end_is_a_failure(training_world: MakeWorld) -> None:
    world = training_world(**STOPS)
    world.report(340, epoch=10.0, updates=340, epochs=10, ended_at_epoch=10).trainer_ends("Failed").settle()
    assert world.status["phase"] == "Failed"


def test_a_finished_job_is_deleted_after_its_time(training_world: MakeWorld) -> None:
    world = training_world(ttlSecondsAfterFinished=60)
    world.report(460).trainer_ends().settle()
    assert world.decide().requeue_after_seconds == 60

    world.wait(61).step()

    assert world.job_deleted


@pytest.mark.parametrize(
    ("seconds", "lasts"), [(60, 60), (None, None), (-1, None), ("60", None)], ids=["", "none", "negative", "text"]
)
def test_a_time_to_live_outlasts_the_spec_s_refusal(training_world: MakeWorld, seconds: Any, lasts: int | None) -> None:
    """As by a newer operator, whose rules the stored spec breaks; one that is itself refused does not count."""
    world = training_world()
    bad = world.job["spec"]["workload"] | {"arguments": {"not a name": "1"}}
    world.edit(workload=bad, ttlSecondsAfterFinished=0).settle()
    assert (world.decide().is_empty, world.decide().requeue_after_seconds) == (True, None), "it is not over"

    over = training_world()
    over.report(460).trainer_ends().settle()
    over.edit(workload=bad, ttlSecondsAfterFinished=seconds).settle()
    pause = over.decide().requeue_after_seconds
    assert (pause, over.condition("Accepted")) == (lasts, ("False", "SpecInvalid"))
    assert over.wait(60).decide().delete_job == (lasts is not None)


def test_a_time_to_live_of_nothing(training_world: MakeWorld) -> None:
    """Those who wait for the end still see it: the job goes once its status says how it ended."""
    world = training_world(ttlSecondsAfterFinished=0)

    world.report(460).trainer_ends().step()
    assert (world.job_deleted, world.condition("Succeeded")[0]) == (False, "True")

    world.step()
    assert world.job_deleted


@pytest.mark.fault("A21")
def test_the_deadline_ends_the_job(training_world: MakeWorld) -> None:
    world = training_world(activeDeadlineSeconds=100)
    assert world.decide().requeue_after_seconds == 90

    world.wait(90).settle()
    assert world.condition("Succeeded") == ("False", "DeadlineExceeded")
    assert (world.trainer["spec"]["suspend"], world.deployment is not None) == (True, True)

    world.trainer["status"] = {}
    world.settle()
    assert None is world.deployment


def test_the_deadline_does_not_run_while_suspended(training_world: MakeWorld) -> None:
    world = training_world(activeDeadlineSeconds=100)
    world.wait(80).edit(suspend=True).settle()
    world.trainer["status"] = {}
    world.wait(1000).settle()

    world.edit(suspend=False).settle()

    assert world.condition("Succeeded") == ("Unknown", "InProgress")


@pytest.mark.fault("A25")
def test_another_image_recreates_trainer_and_cluster(training_world: MakeWorld) -> None:
    """A Job's template is immutable: the old trainer ends, the scheduler is replaced, the new trainer starts."""
    world = training_world()
    world.edit(image="example/trainer:2")

    assert (Ref("Job", "digits-trainer"),) == world.step().delete
    assert (world.trainer, world.cluster is not None) == (None, True)
    world.settle()

    pods = (world.trainer["spec"], world.deployment["spec"], world.cluster["spec"]["scheduler"])
    images = [(p.get("template") or p)["spec"]["containers"][0]["image"] for p in pods]
    assert images == ["example/trainer:2"] * 3


@pytest.mark.fault("A29")
def test_an_edited_annotation_recreates_nothing(training_world: MakeWorld) -> None:
    """A child is recreated if its own pods differ from what is wanted, whatever its annotation says."""
    world = training_world(checkpoint={"volume": {"claimName": "kept"}})
    for child in world.children.values():
        child["metadata"]["annotations"][names.INPUTS] = "forged"

    assert world.step().delete == ()
    assert "forged" not in [child["metadata"]["annotations"][names.INPUTS] for child in (world.trainer, world.cluster)]
    assert world.edit(checkpoint={"volume": {"claimName": "kept"}}).step().delete == ()
    assert (Ref("Job", "digits-trainer"),) == world.edit(checkpoint={"volume": {"claimName": "other"}}).step().delete


@pytest.mark.fault("A29")
def test_another_object_store_or_secret_restarts_the_trainer_and_nothing_else_does(training_world: MakeWorld) -> None:
    kept = {"uri": "s3://runs/digits", "secretName": "store"}
    world = training_world(checkpoint=kept)
    world.trainer["metadata"]["annotations"][names.INPUTS] = "forged"
    assert world.step().delete == ()
    assert world.edit(checkpoint=kept | {"everySeconds": 9}).step().delete == ()
    for changed in ({"uri": "s3://runs/other"}, {"secretName": "other"}, {"caConfigMap": "company"}):
        other = training_world(checkpoint=kept).edit(checkpoint=kept | changed)
        assert (Ref("Job", "digits-trainer"),) == other.step().delete
    trusted = training_world(checkpoint=kept | {"caConfigMap": "company"})
    trusted.trainer["metadata"]["annotations"][names.INPUTS] = "forged"
    assert trusted.step().delete == ()
    account = training_world(checkpoint={"uri": "s3://runs/digits"})
    account.trainer["metadata"]["annotations"][names.INPUTS] = "forged"
    assert account.step().delete == ()


@pytest.mark.fault("D13")
def test_the_new_trainer_waits_for_the_old_trainer_pod(training_world: MakeWorld) -> None:
    world = training_world()
    world.pods = [pod("digits-trainer-x", "trainer", phase="Running")]
    world.edit(image="example/trainer:2").settle()
    assert None is world.trainer

    world.pods = []
    world.settle()

    assert world.trainer is not None


@pytest.mark.fault("B05")
def test_a_new_operator_image_leaves_running_jobs_alone(training_world: MakeWorld) -> None:
    world = training_world()
    for child in (world.trainer, world.deployment):
        child["spec"]["template"]["spec"]["containers"][0]["image"] = "example/trainer:0"
    world.settle()

    assert world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "example/trainer:0"

    world.children.pop(Ref("Job", "digits-trainer"))
    world.settle()

    assert world.trainer["spec"]["template"]["spec"]["containers"][0]["image"] == "example/trainer:0"

    world.children.pop(Ref("Job", "digits-trainer"))
    world.children.pop(Ref("Deployment", "digits-workers"))
    world.settle()

    assert world.trainer["spec"]["template"]["spec"]["containers"][0]["image"] == "example/trainer:1"


def test_an_image_that_is_removed_before_training_began(make_world: MakeWorld) -> None:
    """The job falls back to the operator's default image."""
    world = make_world(image="example/wrong:1")
    world.settle()
    world.edit(image=None).settle()

    assert world.trainer["spec"]["template"]["spec"]["containers"][0]["image"] == "example/trainer:1"
    assert world.deployment["spec"]["template"]["spec"]["containers"][0]["image"] == "example/trainer:1"


def images(world: Any) -> list[str]:
    """The images of trainer, workers and scheduler."""
    pods = (world.trainer["spec"], world.deployment["spec"], world.cluster["spec"]["scheduler"])
    return [(p.get("template") or p)["spec"]["containers"][0]["image"] for p in pods]


@pytest.mark.fault("O18")
def test_a_wrong_image_that_is_removed_while_training(training_world: MakeWorld) -> None:
    """The children follow to the image with which training began, which is not the default of the operator today."""
    world = training_world()
    world.defaults = replace(world.defaults, image="example/trainer:2")
    world.edit(image="example/wrong:1").settle()
    assert images(world) == ["example/wrong:1"] * 3

    world.edit(image=None).settle()

    assert images(world) == ["example/trainer:1"] * 3
    assert world.decide().is_empty


@pytest.mark.fault("O18")
def test_an_image_that_was_there_from_the_beginning_is_removed(training_world: MakeWorld) -> None:
    world = training_world(image="example/mine:1")
    world.edit(image=None).settle()
    assert images(world) == ["example/trainer:1"] * 3


@pytest.mark.fault("O18")
def test_an_image_of_a_job_that_an_earlier_operator_began_is_removed(training_world: MakeWorld) -> None:
    """Its children do not say what the image replaced; nothing is recreated to note it."""
    world = training_world(image="example/mine:1")
    for child in (world.trainer, world.deployment):
        del child["metadata"]["annotations"][names.DEFAULT_IMAGE]
    assert world.step().delete == ()

    world.edit(image=None).settle()

    assert images(world) == ["example/trainer:1"] * 3


@pytest.mark.fault("O18")
@pytest.mark.parametrize(
    "given", [{"volume": {"claimName": "kept"}}, {"uri": "s3://runs/digits"}], ids=["claim", "store"]
)
def test_a_place_for_checkpoints_that_is_removed_means_the_default_one(
    training_world: MakeWorld, given: dict[str, Any]
) -> None:
    world = training_world(checkpoint=given)
    world.defaults = replace(world.defaults, checkpoint_size="1Gi")
    world.edit(checkpoint={})
    world.trainer["status"] = {}
    world.settle()

    claims = [v["persistentVolumeClaim"]["claimName"] for v in volumes(world) if "persistentVolumeClaim" in v]
    assert claims == ["digits-checkpoints"]


def volumes(world: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.trainer["spec"]["template"]["spec"]["volumes"]
    return found


def test_terminating_children_are_waited_for(training_world: MakeWorld) -> None:
    world = training_world()
    for child in (world.cluster, world.deployment):
        child["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"
    world.edit(suspend=True)
    world.trainer["status"] = {}

    assert world.step().delete == ()


@pytest.mark.fault("B18", "B20")
def test_a_changed_child_is_repaired(training_world: MakeWorld) -> None:
    world = training_world()
    world.deployment["spec"]["replicas"] = 7
    del world.children[Ref("NetworkPolicy", "digits")]
    world.child("Role", "digits-progress")["rules"][0]["resourceNames"].append("other")

    decision = world.step()

    assert made(decision) == ["Role digits-progress", "NetworkPolicy digits", "Deployment digits-workers"]
    assert world.decide().is_empty


def test_fields_added_by_others_are_left_alone(training_world: MakeWorld) -> None:
    world = training_world()
    world.deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    world.deployment["spec"]["progressDeadlineSeconds"] = 600
    world.child("ConfigMap", "digits-progress")["data"]["extra"] = "1"

    assert world.decide().is_empty


@pytest.mark.parametrize(("kind", "name"), [("Deployment", "digits-workers"), ("ConfigMap", "digits-progress")])
def test_an_annotation_of_inputs_deletes_no_child_that_has_none(
    training_world: MakeWorld, kind: str, name: str
) -> None:
    world = training_world()
    world.child(kind, name)["metadata"]["annotations"][names.INPUTS] = "another"

    assert world.decide().is_empty


def test_progress_alone_is_written_every_few_seconds(training_world: MakeWorld) -> None:
    world = training_world()
    assert None is world.report(11, seconds_per_update=0.5).decide().status
    assert world.decide().requeue_after_seconds == 5.0

    world.wait(5).step()

    assert world.status["trainerStatus"]["update"] == 11


def test_refused_writes_are_reported(make_world: MakeWorld) -> None:
    world = make_world()
    world.step()
    del world.children[Ref("DaskCluster", "digits")]
    world.failures = (Failure(Ref("DaskCluster", "digits"), 404, "not found"),)

    world.step()

    assert world.condition("ClusterReady") == ("False", "DaskOperatorMissing")
    assert world.events[-1].type == "Warning"


def test_the_plan_in_the_cluster_is_the_plan_of_the_command_line(make_world: MakeWorld, digits_job: Any) -> None:
    world = make_world()
    world.step()

    data = world.child("ConfigMap", "digits-plan")["data"]

    assert json.loads(json.dumps(make_plan(digits_job().spec).to_json())) == json.loads(data[names.PLAN_KEY])


def pod(name: str, role: str, **status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "labels": names.labels("digits", role)}, "status": status}
