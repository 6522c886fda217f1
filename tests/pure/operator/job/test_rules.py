"""Each condition by its table: the observed state, and the condition's status, reason and message."""

import json
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.contract.status import REASONS
from batchgrowth_operator.job.conditions import NOT_KEPT
from batchgrowth_operator.seen.observed import Failure, Ref

MakeWorld = Any


REQUIRED = {"workers": {"maximum": 4, "sameArithmetic": "Required"}}


def pod(name: str, role: str = "worker", **status: Any) -> dict[str, Any]:
    return {"kind": "Pod", "metadata": {"name": name, "labels": names.labels("digits", role)}, "status": status}


def waiting(reason: str, message: str = "") -> dict[str, Any]:
    return {"containerStatuses": [{"state": {"waiting": {"reason": reason, "message": message}}}]}


def ended(code: int, message: str = "", at: str = "2026-11-20T10:00:00Z") -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "message": message, "finishedAt": at}}
    return {"phase": "Failed", "containerStatuses": [{"name": "trainer", "state": state}]}


def message(world: Any, kind: str) -> str:
    return next(c["message"] for c in world.status["conditions"] if c["type"] == kind)


@pytest.mark.fault("A21")
@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (
            pod("w-1", **waiting("ImagePullBackOff", "no such image")),
            "ImagePullFailed",
            "w-1: no such image. Give an image",
        ),
        (pod("s-1", "scheduler", **waiting("ErrImagePull")), "ImagePullFailed", "s-1: ErrImagePull"),
        (pod("w-1", **waiting("CreateContainerConfigError", "no key a")), "PodBroken", "ConfigError: no key a"),
        (
            pod("w-1", **waiting("CreateContainerConfigError", 'secret "x" not found')),
            "ReferenceMissing",
            "Create the secret x",
        ),
        (
            pod("w-1", conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}]),
            "Unschedulable",
            "w-1: 0/3 nodes",
        ),
        (
            pod("w-1", conditions=[{"type": "PodScheduled", "reason": "SchedulingGated", "message": "blocked"}])
            | {"spec": {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}, {"name": "example.com/paid"}]}},
            "Unschedulable",
            "w-1: Scheduling gates hold the pod: kueue.x-k8s.io/admission, example.com/paid. What set them",
        ),
        (pod("w-1", **waiting("ContainerCreating")), "WaitingForWorkers", "0 of 1"),
        (pod("w-1"), "WaitingForWorkers", "0 of 1"),
        (pod("w-1", conditions=[{"type": "PodScheduled", "status": "True"}]), "WaitingForWorkers", "0 of 1"),
    ],
)
def test_problems_of_pods(make_world: MakeWorld, found: Any, reason: str, words: str) -> None:
    world = make_world()
    world.step()
    world.scheduler_ready().pods = [found]
    world.settle()

    assert ("False", reason) == world.condition("ClusterReady")
    assert words in message(world, "ClusterReady")


@pytest.mark.fault("B23")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pods is forbidden: exceeded quota: small, requested: pods=1", "QuotaExceeded"),
        ("violates PodSecurity", "PodsRefused"),
    ],
)
def test_refused_pods(make_world: MakeWorld, text: str, reason: str) -> None:
    world = make_world()
    world.step()
    others = [{"type": "Progressing", "status": "True"}, {"type": "ReplicaFailure", "status": "False"}]
    world.deployment["status"] = {
        "conditions": [*others, {"type": "ReplicaFailure", "status": "True", "message": text}]
    }
    world.settle()

    assert ("False", reason) == world.condition("ClusterReady")
    assert world.events[-1].type == "Warning"


@pytest.mark.fault("B13")
@pytest.mark.parametrize(
    ("failure", "reason", "words"),
    [
        (Failure(Ref("DaskCluster", "digits"), 404, "not found"), "DaskOperatorMissing", "no kind DaskCluster"),
        (Failure(Ref("ConfigMap", "digits-plan"), 0, "x"), "NameTaken", "ConfigMap digits-plan is not this job's"),
        (Failure(Ref("Deployment", "digits-workers"), 422, "bad quantity"), "ChildRefused", "bad quantity"),
        (Failure(Ref("Deployment", "digits-workers"), 422, "x" * 5000), "ChildRefused", "…xxx"),
    ],
)
def test_refused_writes(training_world: MakeWorld, failure: Failure, reason: str, words: str) -> None:
    world = training_world()
    world.failures = (failure,)
    world.settle()

    assert ("False", reason) == world.condition("ClusterReady")
    assert words in message(world, "ClusterReady")


@pytest.mark.fault("B16")
def test_an_unresponsive_dask_operator(make_world: MakeWorld) -> None:
    world = make_world()
    world.step()
    assert world.condition("ClusterReady") == ("False", "WaitingForScheduler")

    world.wait(20).step()

    assert world.condition("ClusterReady") == ("False", "DaskOperatorMissing")


@pytest.mark.fault("A17", "A20")
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (2, "ManifestRefused"),
        (3, "WorkloadFailed"),
        (4, "DataFailed"),
        (5, "CheckpointFailed"),
        (1, "RestartsExceeded"),
        (137, "RestartsExceeded"),
    ],
)
def test_how_a_trainer_failed(training_world: MakeWorld, code: int, reason: str) -> None:
    world = training_world()
    world.pods = [
        pod("t-1", "trainer", **ended(1, "earlier", "2026-11-20T09:00:00Z")),
        pod("t-2", "trainer", **ended(code, "ValueError: no")),
        pod("t-3", "trainer", phase="Failed"),
    ]
    world.trainer_ends("Failed").settle()

    assert ("False", reason) == world.condition("Succeeded")
    assert message(world, "Succeeded").startswith("ValueError: no")
    assert world.status["phase"] == "Failed"


@pytest.mark.fault("C05", "C24")
@pytest.mark.parametrize(
    ("reason", "output", "words"),
    [
        ("OOMKilled", "epoch 3 of 9", "epoch 3 of 9 (out of memory)"),
        ("Error", "", "killed, as a hung container is by its liveness probe: the pod's events say why"),
    ],
)
def test_what_killed_a_trainer(training_world: MakeWorld, reason: str, output: str, words: str) -> None:
    """Its output does not say it. It goes on, and the condition says why it had to."""
    world = training_world(checkpoint={"volume": {"claimName": "kept"}})
    killed = ended(137, output)
    killed["containerStatuses"][0]["state"]["terminated"]["reason"] = reason
    world.pods = [pod("t-1", "trainer", **killed)]
    world.trainer["status"] = {"active": 1, "failed": 1}
    world.settle()

    said = f"The trainer restarts from its last checkpoint: exit code 137: {words}"
    assert world.condition("Training") == ("False", "TrainerRestarting")
    assert said == message(world, "Training")


@pytest.mark.fault("O30")
@pytest.mark.parametrize(
    ("output", "remedy"),
    [
        ("exec /opt/python: exec format error", "Build the image for the processors of the nodes"),
        ("/usr/bin/python: No module named batchgrowth", "Build the image in spec.image from the trainer image"),
    ],
)
def test_a_trainer_with_the_wrong_image(training_world: MakeWorld, output: str, remedy: str) -> None:
    """Its node may have another kind of processor than those of the scheduler and the workers."""
    world = training_world()
    world.pods = [pod("t-1", "trainer", **ended(255, output))]
    world.trainer["status"] = {"active": 1, "failed": 1}
    world.settle()

    assert world.condition("Training") == ("False", "TrainerRestarting")
    assert f"{output}. {remedy}" in message(world, "Training")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Container trainer for pod default/t failed with exit code 3 matching FailJob rule at index 0",
            "WorkloadFailed",
        ),
        ("Job has reached the specified backoff limit", "RestartsExceeded"),
    ],
)
def test_a_failed_trainer_whose_pods_are_gone(training_world: MakeWorld, text: str, reason: str) -> None:
    world = training_world()
    world.trainer_ends("Failed", text).settle()

    assert (("False", reason), text) == (world.condition("Succeeded"), message(world, "Succeeded"))


def test_training_restarts(training_world: MakeWorld) -> None:
    world = training_world()
    world.trainer["status"] = {"active": 1, "failed": 1}
    world.settle()

    assert world.condition("Training") == ("False", "TrainerRestarting")
    assert (world.status["phase"], world.status["restarts"]) == ("Pending", 1)


def test_training_has_not_started(make_world: MakeWorld) -> None:
    world = make_world()
    world.settle()

    assert world.condition("Training") == ("False", "NotStarted")
    assert message(world, "Training") == "The trainer has not committed an update yet."


def test_a_trainer_that_never_comes_to_its_first_update(make_world: MakeWorld) -> None:
    """The next one tries for minutes before it ends too, so the reason stays while it tries."""
    world = make_world()
    world.settle()
    refused = "the API server does not number this start of the trainer (timed out)"
    world.pods = [pod("t-1", "trainer", **ended(75, refused)), pod("t-2", "trainer", phase="Running")]
    world.trainer["status"] = {"active": 1, "failed": 1, "ready": 1}
    world.settle()

    said = f"The trainer has not committed an update yet; the last one ended with exit code 75: {refused}"
    assert (("False", "NotStarted"), said) == (world.condition("Training"), message(world, "Training"))


@pytest.mark.fault("A21", "C15")
def test_degraded_after_a_while_and_healed(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(431).settle()
    world.workers_ready().settle()
    world.workers_ready(3).settle()
    assert world.condition("Degraded") == ("False", "FullStrength")
    assert world.decide().requeue_after_seconds == 10

    world.pods = [pod("w", conditions=[{"type": "PodScheduled", "reason": "Unschedulable", "message": "0/3 nodes"}])]
    world.wait(10).settle()
    assert world.condition("Degraded") == ("True", "TooFewWorkers")
    assert "3 of 4 workers joined. w: 0/3 nodes. Add a node that fits" in message(world, "Degraded")

    world.workers_ready().settle()
    assert world.condition("Degraded") == ("False", "FullStrength")


@pytest.mark.fault("C15")
def test_workers_that_were_requested_a_moment_ago_are_not_missing_yet(training_world: MakeWorld) -> None:
    """Though the workers of the stage before had not all been there either; a job that is degraded already stays so."""
    world = training_world(workers={"examplesPerWorker": 128, "maximum": 4, "leadSeconds": 0})
    world.workers_ready(0).settle()
    world.wait(9)
    world.report(432).settle()
    world.wait(9).settle()
    assert world.condition("Degraded") == ("False", "FullStrength")

    world.wait(1).settle()
    assert world.condition("Degraded") == ("True", "TooFewWorkers")

    world.report(600).settle()
    assert world.condition("Degraded") == ("True", "TooFewWorkers")


@pytest.mark.fault("C15")
def test_a_job_that_may_wait_is_degraded_later(training_world: MakeWorld) -> None:
    world = training_world(workers={"waitSeconds": 60})
    world.workers_ready(0).settle()
    world.wait(59).settle()
    assert world.condition("Degraded") == ("False", "FullStrength")

    world.wait(1).settle()

    assert world.condition("Degraded") == ("True", "TooFewWorkers")
    assert message(world, "Degraded") == "0 of 1 worker joined."


@pytest.mark.parametrize(("setting", "what"), [({}, "may end with other last bits"), (REQUIRED, "Required refuses it")])
def test_a_worker_that_adds_differently_is_named_with_its_node(
    training_world: MakeWorld, setting: dict[str, Any], what: str
) -> None:
    """As a warning, until none differs; a worker whose pod is gone has no node."""
    world = training_world(**setting)
    world.pods = [{**pod("w-1"), "spec": {"nodeName": "old-node"}}, {**pod("w-2"), "spec": {}}]
    reported = {"w-1": "AVX2 rather than AVX512", "w-2": "2 threads rather than 1 thread", "w-3": "the same"}
    world.report(30, differing=reported).settle()
    assert world.condition("Degraded") == ("True", "ArithmeticDiffers")
    text = message(world, "Degraded")
    assert (
        "w-1 on node old-node (AVX2 rather than AVX512), w-2 (2 threads rather than 1 thread), w-3 (the same)" in text
    )
    assert what in text
    assert [event.type for event in world.events if event.reason == "ArithmeticDiffers"] == ["Warning"]
    world.report(40).settle()
    assert world.condition("Degraded") == ("False", "FullStrength")
    world.report(50, differing=reported).edit(suspend=True).settle()
    assert world.condition("Degraded") == ("False", "FullStrength"), "a suspended job has no workers"


def test_what_a_hostile_report_says_of_workers_fits_into_the_status(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(30, differing={str(n): "x" * 500 for n in range(50)}).settle()
    assert 1024 >= len(message(world, "Degraded"))


def test_stalled(training_world: MakeWorld) -> None:
    world = training_world()
    assert world.decide().requeue_after_seconds == 120
    world.wait(120).settle()
    assert (world.condition("Stalled"), world.status["phase"]) == (("True", "NoProgress"), "Stalled")

    world.report(11).settle()
    assert world.condition("Stalled") == ("False", "ProgressSeen")


@pytest.mark.parametrize(("pace", "limit"), [(0.5, 30), (20.0, 400)])
def test_a_stalled_job_says_what_its_trainer_waits_for(training_world: MakeWorld, pace: float, limit: int) -> None:
    world = training_world()
    world.report(10, seconds_per_update=pace, waiting_for="a worker; 1 registered, none ready").step()
    world.wait(600).settle()

    [stalled] = [c for c in world.status["conditions"] if c["type"] == "Stalled"]
    assert (
        f"No update was committed for {limit} s. The trainer waits for a worker; 1 registered, none"
        in stalled["message"]
    )


def test_slow_updates_are_not_stalled(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(11, seconds_per_update=60.0).wait(5).settle()

    world.wait(600).settle()

    assert world.condition("Stalled") == ("False", "ProgressSeen")


def test_workers_that_are_being_removed(training_world: MakeWorld) -> None:
    world = training_world()
    world.workers_ready(3).settle()

    assert (world.condition("Resizing"), world.status["phase"]) == (("True", "ScalingDown"), "Resizing")


@pytest.mark.fault("A32")
@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"loss": 0.123456}, {"loss": "0.1235"}),
        ({"eta_seconds": 12.6}, {"estimatedRemainingSeconds": 13}),
        ({"metrics": {"accuracy": 0.97, "x" * 65: 1.0, "": 1.0}}, {"metrics": [{"name": "accuracy", "value": "0.97"}]}),
        ({"start": 3}, {"start": 3}),
        (
            {"exchanged": ExchangeFigures(bytes_sent=10**12, compression_error=1 / 3)},
            {"exchange": {"bytesSent": 10**12, "compressionError": "0.3333"}},
        ),
        (
            {"exchanged": ExchangeFigures(replica_distance=2.0**53, largest_staleness=0, mean_staleness=0.0)},
            {"exchange": {"replicaDistance": "9.007e+15", "largestStaleness": 0, "meanStaleness": "0"}},
        ),
        (
            {"exchanged": ExchangeFigures(backups=3)},
            {"exchange": {"backups": 3, "backupsFirst": 0}},
        ),
        (
            {"metrics": {f"m{n:05}": 1.0 for n in range(10_000)}},
            {"metrics": [{"name": f"m{n:05}", "value": "1"} for n in range(16)]},
        ),
        ({"metrics": {"a b\n\x1b[2J🌱": 1.0}}, {"metrics": [{"name": "a b\n\x1b[2J🌱", "value": "1"}]}),
    ],
)
def test_progress_in_the_status(training_world: MakeWorld, values: dict[str, Any], reported: dict[str, Any]) -> None:
    world = training_world()
    world.report(20, **values).wait(5).settle()

    assert reported.items() <= world.status["trainerStatus"].items()


def test_the_metrics_of_an_evaluation_are_in_the_status_before_another_update(training_world: MakeWorld) -> None:
    """An evaluation follows its update; its metrics are written as seldom as other progress."""
    world = training_world()
    world.report(20).wait(5).settle()
    known = world.status["trainerStatus"]

    world.report(20, metrics={"accuracy": 0.97}).wait(5).settle()

    assert world.status["trainerStatus"]["metrics"] == [{"name": "accuracy", "value": "0.97"}]
    world.report(20, metrics={"accuracy": 0.98}).wait(0.1).settle()
    assert world.status["trainerStatus"]["metrics"] == [{"name": "accuracy", "value": "0.97"}]
    world.wait(5).settle()
    assert world.status["trainerStatus"]["metrics"] == [{"name": "accuracy", "value": "0.98"}]
    world.wait(5).report(20, start=0).settle()
    assert known["update"] == world.status["trainerStatus"]["update"]
    assert world.decide().status is None, "a report without metrics is no news"


def test_an_exchange_that_has_done_nothing_is_not_in_the_status(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(20, exchanged=ExchangeFigures()).wait(5).settle()

    assert "exchange" not in world.status["trainerStatus"]


def test_a_checkpoint_is_timed_once(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(20, checkpoint_update=16).wait(5).settle()
    first = world.status["checkpoint"]
    world.report(30, checkpoint_update=16).wait(5).settle()

    assert ({"update": 16, "time": "2026-11-20T10:00:15Z"}, first) == (first, world.status["checkpoint"])


def test_the_digest_of_the_weights(training_world: MakeWorld) -> None:
    """The last update is reported before its weights have been hashed."""
    world = training_world()
    world.report(460).wait(5).settle()
    assert "weightsSha256" not in world.status["trainerStatus"]

    world.report(460, weights_sha256="ab" * 32).wait(5).settle()

    assert world.status["trainerStatus"]["weightsSha256"] == "ab" * 32


def done(message: str, code: int = 0) -> dict[str, Any]:
    """A trainer's pod that ended, with that termination message."""
    state = {"terminated": {"exitCode": code, "message": message, "finishedAt": "2026-11-20T10:00:00Z"}}
    return pod("t", "trainer", phase="Succeeded", containerStatuses=[{"name": "trainer", "state": state}])


def report_text(world: Any) -> str:
    return str(world.child("ConfigMap", "digits-progress")["data"][names.PROGRESS_KEY])


def test_the_last_report_outlives_its_config_map(training_world: MakeWorld) -> None:
    """Someone deletes the ConfigMap after the trainer's end, and before a pass has seen the last report in it."""
    world = training_world()
    at_the_end = report_text(world.report(460, start=1, weights_sha256="ab" * 32))
    del world.children[Ref("ConfigMap", "digits-progress")]
    world.pods = [done(at_the_end)]
    world.trainer_ends().wait(5).settle()

    assert world.condition("Succeeded") == ("True", "Finished")
    assert (world.status["trainerStatus"]["update"], world.status["trainerStatus"]["start"]) == (460, 1)
    assert world.status["trainerStatus"]["weightsSha256"] == "ab" * 32


def test_the_last_report_need_not_arrive(training_world: MakeWorld) -> None:
    """The API server refused it, and has the one before of the same update."""
    world = training_world()
    at_the_end = report_text(world.report(460, start=1, weights_sha256="ab" * 32))
    world.report(460, start=1).pods = [done(at_the_end)]
    world.trainer_ends().wait(5).settle()

    assert world.status["trainerStatus"]["weightsSha256"] == "ab" * 32


@pytest.mark.parametrize(("message", "code"), [("all is well", 0), ("[]", 0), ("", 0), ("error", 3)])
def test_another_termination_message_is_no_report(training_world: MakeWorld, message: str, code: int) -> None:
    """Of a trainer of an earlier version, of a user's code, or of an error."""
    world = training_world()
    world.report(100).pods = [done(message, code)]
    world.trainer_ends().wait(5).settle()

    assert world.status["trainerStatus"]["update"] == 100


def test_a_later_start_is_believed_before_an_ended_one(training_world: MakeWorld) -> None:
    world = training_world()
    at_the_end = report_text(world.report(460, start=1))
    world.report(20, start=2).pods = [done(at_the_end)]
    world.wait(5).settle()

    assert (world.status["trainerStatus"]["update"], world.status["trainerStatus"]["start"]) == (20, 2)


def test_workers_and_pauses_by_stage(training_world: MakeWorld) -> None:
    """A restarted trainer reports only its own pauses."""
    world = training_world()
    world.report(300, stage=1, crews={"0": 1, "1": 2}, pauses={"0": 0.02, "1": 0.0684}).settle()
    world.report(310, stage=1, start=1, crews={"1": 1}, pauses={"1": 0.03}).wait(5).settle()

    assert [(r["workers"], r["pauseSeconds"]) for r in world.status["history"]] == [(1, "0.020"), (2, "0.068")]


def test_the_next_batch(training_world: MakeWorld) -> None:
    world = training_world()
    assert world.status["batch"] == {"current": 32, "next": 64, "nextAtEpoch": "5"}

    world.report(459).settle()

    assert world.status["batch"] == {"current": 512}


@pytest.mark.fault("B02")
def test_stages_between_two_passes_are_recorded(training_world: MakeWorld) -> None:
    world = training_world()
    world.report(440).settle()

    assert [record["index"] for record in world.status["history"]] == [0, 1, 2, 3, 4]
    assert [event.reason for event in world.events if event.reason == "StageBegan"] == ["StageBegan"] * 5


def test_a_trainer_that_lost_its_checkpoint_starts_over(training_world: MakeWorld) -> None:
    """A restarted trainer's report counts even if it has done fewer updates."""
    world = training_world()
    world.report(440).settle()
    world.report(5, start=1).wait(5).settle()

    assert [record["index"] for record in world.status["history"]] == [0, 1, 2, 3, 4, 0]
    assert world.status["trainerStatus"]["update"] == 5


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"update": 1}'])
def test_an_unreadable_report_is_ignored(training_world: MakeWorld, text: str) -> None:
    world = training_world()
    world.report(420).wait(5).settle()
    before = world.status
    world.child("ConfigMap", "digits-progress")["data"] = {names.PROGRESS_KEY: text}

    world.settle()

    assert before["trainerStatus"] == world.status["trainerStatus"]
    assert world.status["workers"]["desired"] == 2


@pytest.mark.parametrize(
    "report", [{"update": 100}, {"update": 5, "start": 1}, {"update": 7, "updates": 1000, "start": 9}]
)
def test_outdated_and_foreign_reports_are_ignored(training_world: MakeWorld, report: dict[str, Any]) -> None:
    """An earlier report of this start, one of an earlier start, and one of another plan; the workers stay."""
    world = training_world()
    world.report(440, start=2).wait(5).settle()
    world.workers_ready().settle()

    world.report(**report).settle()

    assert world.deployment["spec"]["replicas"] == 4
    assert world.status["trainerStatus"]["update"] == 440


def test_unreadable_fields_of_a_stored_status_are_ignored(training_world: MakeWorld) -> None:
    world = training_world()
    world.status["someday"] = 1
    world.status["stage"] = "none"

    world.settle()

    assert (world.status["stage"], world.status["startTime"]) == (0, "2026-11-20T10:00:00Z")


@pytest.mark.fault("A29")
@pytest.mark.parametrize("workers", [None, {}, {"requested": "many"}])
def test_a_status_without_its_workers_is_restored(training_world: MakeWorld, workers: dict[str, Any] | None) -> None:
    """While more workers are awaited; others have removed that part, or written one that cannot be read."""
    world = training_world()
    world.report(386, seconds_per_update=1.0).settle()
    assert world.condition("Resizing") == ("True", "ScalingUp")
    world.status["workers"] = workers

    world.wait(1).settle()

    assert {"desired": 1, "requested": 2, "ready": 1}.items() <= world.status["workers"].items()


@pytest.mark.fault("B05")
def test_a_job_that_is_over_stays_so_beside_a_condition_of_a_newer_operator(training_world: MakeWorld) -> None:
    """After a rollback: a type that this version does not know hides no other condition."""
    world = training_world()
    world.report(460).trainer_ends().settle()
    del world.children[Ref("Job", "digits-trainer")]
    newer = {"type": "Paced", "status": "True", "reason": "AtPace", "lastTransitionTime": "2026-11-20T10:00:00Z"}
    world.status["conditions"].append(newer)

    world.settle()

    assert (world.status["phase"], world.condition("Succeeded")) == ("Succeeded", ("True", "Finished"))
    assert world.trainer is None


def test_reasons_are_documented(training_world: MakeWorld) -> None:
    """The reason of every condition is in the table from which docs/conditions.md is generated."""
    world = training_world()
    for condition in world.status["conditions"]:
        assert condition["reason"] in REASONS[condition["type"]]


def test_a_job_that_suspending_throws_back_says_so(make_world: MakeWorld) -> None:
    messages = []
    for checkpoint in ({}, {"volume": {"claimName": "kept"}}, {"uri": "s3://runs/digits"}):
        world = make_world(checkpoint=checkpoint)
        world.settle()
        messages += [one["message"] for one in world.status["conditions"] if one["type"] == "Accepted"]
    assert f"{messages[1]} {NOT_KEPT}" == messages[0]
    assert messages[1] == messages[2]


@pytest.mark.fault("B15", "F03")
def test_fields_of_another_version_are_ignored_and_named(make_world: MakeWorld) -> None:
    """They are handed on to the trainer, whose version may know them."""
    world = make_world(pruning="Magnitude")
    world.job["spec"]["workers"]["spot"] = True
    world.settle()

    accepted = next(one for one in world.status["conditions"] if one["type"] == "Accepted")
    assert accepted["status"] == "True"
    assert accepted["message"].endswith(" ignores what it does not know: spec.workers.spot, spec.pruning.")
    handed_on = json.loads(world.child("ConfigMap", "digits-plan")["data"][names.JOB_KEY])
    assert (handed_on["spec"]["pruning"], handed_on["spec"]["workers"]["spot"]) == ("Magnitude", True)


@pytest.mark.parametrize(
    ("changes", "deleted", "reason"),
    [
        ({}, None, "TrainerUnreachable"),
        ({}, "2026-11-20T10:00:00Z", "TrainerUnreachable"),  # deleted by Kubernetes, and its time to end is over
        ({}, "2026-11-20T10:05:00Z", "UpdatesCommitted"),  # deleted by somebody, and writing its checkpoint
        ({"phase": "Failed"}, None, "UpdatesCommitted"),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, None, "UpdatesCommitted"),
        ({"containerStatuses": ended(1)["containerStatuses"]}, None, "UpdatesCommitted"),
    ],
)
def test_a_trainer_on_a_lost_node(
    training_world: MakeWorld, changes: dict[str, Any], deleted: str | None, reason: str
) -> None:
    world = training_world()
    lost = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]} | changes
    world.pods = [pod("digits-trainer-x", "trainer", **lost)]
    world.pods[0]["metadata"]["ownerReferences"] = [{"uid": "its"}]
    world.trainer["metadata"]["uid"] = "its"
    if deleted:
        world.pods[0]["metadata"]["deletionTimestamp"] = deleted
    world.wait(45).trainer["status"] = {"active": 1, "ready": 0}
    world.settle()

    assert reason == world.condition("Training")[1]
    unreachable = reason == "TrainerUnreachable"
    message = next(one["message"] for one in world.status["conditions"] if one["type"] == "Training")
    assert unreachable == ("The node of pod digits-trainer-x does not answer" in message)


def test_secrets_of_a_workload_are_shown_nowhere(training_world: MakeWorld) -> None:
    """What its pods, events about them and its reports say reaches neither the status nor an event as it is."""
    canary = "c4naryHunter2c4naryHunter2"
    event = {
        "reason": "FailedMount",
        "message": f"mount //nas: password={canary}",
        "lastTimestamp": "2026-11-20T10:00:00Z",
    }
    world = training_world()
    world.report(10, waiting_for=f"s3://me:{canary}@store").step()
    world.pods = [pod("w-1", phase="Pending", **waiting("CreateContainerError", f"env HF_TOKEN={canary}"))]
    world.warnings = [{**event, "involvedObject": {"name": "w-1"}}]
    world.wait(600).settle()
    world.pods = [pod("t-1", "trainer", **ended(3, f"requests.HTTPError: 401 for Authorization: Bearer {canary}"))]
    world.trainer_ends("Failed").settle()

    shown = json.dumps(world.status) + repr(world.events)
    assert "requests.HTTPError: 401 for Authorization: " in message(world, "Succeeded")
    assert canary not in shown
    assert shown.count("[redacted]") > 3


@pytest.mark.fault("N07", "N15")
def test_accepted_notes_what_the_plan_cannot_give(make_world: MakeWorld) -> None:
    """The first of the notes, and how many more `batchgrowth check` has; a job without notes has none."""

    def seen(world: Any) -> Any:
        world.settle()
        return world

    four = {"examplesPerWorker": 128, "minimum": 4, "maximum": 4}
    world = seen(make_world(workers=four, batch={"initial": 32, "maximum": 32}))
    told = message(world, "Accepted")
    assert told.startswith(
        "The plan has 1 stage and 1,350 updates. Note: spec.workers.minimum: 4 requests 4 workers in stage 1, whose 32 "
        "examples are 1 shard of at most 128, so 3 never compute; give 1. "
    )
    assert told.endswith(NOT_KEPT)

    world = seen(make_world(workers=four, batch={"initial": 32, "maximum": 64}))
    assert " `batchgrowth check` has 1 more note. " in message(world, "Accepted")
    assert "Note" not in message(seen(make_world()), "Accepted")
