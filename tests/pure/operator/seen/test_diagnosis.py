"""Problems that keep pods from running: the condition and message that report them, and the time of the next pass."""

import copy
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.status import REASONS
from batchgrowth_operator.children.dask_cluster import NUDGE_SECONDS
from batchgrowth_operator.seen.observed import Clock, Ref
from batchgrowth_operator.seen.problems import MOST_EVENT_READS, unexplained

MakeWorld = Any
CREATED = "2026-11-20T10:00:10Z"
RUNNING = {"running": {}}
KILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
BACK_OFF = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}}


def pod(name: str, role: str = "worker", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "uid": f"uid of {name}", "creationTimestamp": CREATED}
    labels = names.labels("digits", role)
    return {"kind": "Pod", "metadata": metadata | {"labels": labels}, "status": {"phase": "Pending"} | status}


def container(**status: Any) -> dict[str, Any]:
    return {"containerStatuses": [{"name": "worker", "ready": False, **status}]}


def pulling(reason: str, words: str) -> dict[str, Any]:
    return {"waiting": {"reason": reason, "message": words}}


def crashed(code: int, output: str) -> dict[str, Any]:
    ended = {"exitCode": code, "reason": "Error", "message": output}
    return {"state": BACK_OFF, "lastState": {"terminated": ended}}


def unschedulable(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "reason": "Unschedulable", "message": message}]}


def event(name: str, reason: str, message: str, **moments: Any) -> dict[str, Any]:
    moments = moments or {"lastTimestamp": CREATED}
    return {"involvedObject": {"name": name}, "reason": reason, "message": message, **moments}


def message(world: Any, kind: str) -> str:
    return next(c["message"] for c in world.status["conditions"] if c["type"] == kind)


@pytest.fixture
def waiting_world(make_world: MakeWorld) -> Any:
    """A world with a scheduler and no workers."""
    world = make_world()
    world.settle()
    world.wait(10).scheduler_ready().settle()
    return world


@pytest.mark.fault("A16", "A22", "A24", "C05", "O27")
@pytest.mark.parametrize(
    ("found", "reason", "words"),
    [
        (pod("w", **unschedulable("0/3 nodes: no GPU.")), "Unschedulable", "w: 0/3 nodes: no GPU. Add a node"),
        (
            pod("my-trainer-scheduler-7b8-x2f4z", "scheduler", **unschedulable("0/3 nodes.")),
            "Unschedulable",
            "Add a node that fits, or request less by the chart's jobs.schedulerResources.",
        ),
        (
            pod("w", **unschedulable('0/3 nodes: persistentvolumeclaim "data" not found. not found')),
            "ReferenceMissing",
            "Create the persistentvolumeclaim data, or remove it from the job.",
        ),
        (pod("w", **container(state=pulling("ErrImagePull", "no host"))), "ImagePullFailed", "w: no host. Give"),
        (
            pod("w", **container(state=pulling("ImagePullBackOff", 'Back-off pulling "x": ErrImagePull: no host'))),
            "ImagePullFailed",
            "w: no host. Give",
        ),
        (
            pod("w", **container(restartCount=3, state=BACK_OFF, lastState=KILLED)),
            "PodBroken",
            "w: container worker ends with exit code 137 (OOMKilled).",
        ),
        (pod("w", **container(restartCount=2, state=RUNNING, lastState=KILLED)), "PodBroken", "exit code 137"),
        (pod("w", **container(restartCount=2, state=KILLED)), "PodBroken", "exit code 137"),
        (
            pod(
                "w", **container(state=BACK_OFF, lastState={"terminated": {"exitCode": 1, "message": "no module x\n"}})
            ),
            "PodBroken",
            "exit code 1 (None): no module x",
        ),
        (pod("w", **container(state=BACK_OFF)), "PodBroken", "CrashLoopBackOff: back-off 40s"),
        (pod("w", **container(restartCount=1, state=RUNNING, lastState=KILLED)), "WaitingForWorkers", "0 of 1"),
        (
            pod("w", **container(restartCount=2, state=RUNNING, lastState={"terminated": {"exitCode": 0}})),
            "WaitingForWorkers",
            "0 of 1",
        ),
        (pod("w", **container(restartCount=2, ready=True, lastState=KILLED)), "WaitingForWorkers", "0 of 1"),
        (pod("w", phase="Failed", **container(restartCount=2, state=KILLED)), "WaitingForWorkers", "0 of 1"),
        (pod("t", "trainer", **unschedulable("0/3 nodes")), "WaitingForWorkers", "0 of 1"),
    ],
)
def test_problems_in_the_status_of_pods(waiting_world: Any, found: Any, reason: str, words: str) -> None:
    """With the same message whether a container waits, runs or has just ended."""
    waiting_world.pods = [found]
    waiting_world.settle()

    assert ("False", reason) == waiting_world.condition("ClusterReady")
    assert words in message(waiting_world, "ClusterReady")


UNPACK = 'failed to pull and unpack image "registry.example.com/trainer:1": '
HEAD = 'failed to do request: Head "https://registry.example.com/v2/trainer/manifests/1": '


@pytest.mark.fault("O30")
@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        (f"{UNPACK}no match for platform in manifest: not found", "docker build --platform"),
        ("no matching manifest for linux/amd64 in the manifest list entries", "docker build --platform"),
        (
            'choosing image instance: no image found in manifest list for architecture amd64, variant "", OS linux',
            "docker build --platform",
        ),
        (f"{HEAD}tls: failed to verify certificate: x509: certificate signed by unknown authority", "does not trust"),
        (f"{HEAD}http: server gave HTTP response to HTTPS client", "does not trust"),
        (f"{UNPACK}unexpected status from HEAD request: 429 Too Many Requests", "The registry limits pulls"),
        (f"{HEAD}dial tcp: lookup registry.example.com: no such host", "does not reach the registry"),
        (f"{HEAD}dial tcp 10.0.0.1:443: i/o timeout", "does not reach the registry"),
        (f"{UNPACK}write /var/lib/containerd/x: no space left on device", "disk is full"),
        (f"{UNPACK}registry.example.com/trainer:1: not found", "Give an image that the nodes can pull"),
    ],
)
def test_what_helps_against_a_failed_pull(waiting_world: Any, said: str, remedy: str) -> None:
    """By the words of containerd, CRI-O and Docker: an image that is there cannot be pulled for many reasons."""
    waiting_world.pods = [pod("w", **container(state=pulling("ErrImagePull", said)))]
    waiting_world.settle()

    assert waiting_world.condition("ClusterReady") == ("False", "ImagePullFailed")
    assert message(waiting_world, "ClusterReady").startswith(f"w: {said}. ")
    assert remedy in message(waiting_world, "ClusterReady")


NO_DASK = 'OCI runtime create failed: runc create failed: exec: "dask": executable file not found in $PATH: unknown'


@pytest.mark.fault("O30")
@pytest.mark.parametrize(
    ("state", "words"),
    [
        (crashed(255, "exec /opt/python: exec format error"), "exec format error. Build the image for the processors"),
        ({"state": {"waiting": {"reason": "RunContainerError", "message": NO_DASK}}}, "by FROM: it lacks batchgrowth."),
        (crashed(1, "No module named 'batchgrowth_trainer'"), "by FROM: it lacks batchgrowth."),
        (crashed(1, "No module named 'dask_ml'"), "exit code 1 (Error): No module named 'dask_ml'"),
    ],
)
def test_an_image_that_was_pulled_and_is_the_wrong_one(waiting_world: Any, state: Any, words: str) -> None:
    """For another kind of processor, as an image without a list of platforms may be, or without batchgrowth."""
    waiting_world.pods = [pod("w", **container(**state))]
    waiting_world.settle()

    assert waiting_world.condition("ClusterReady") == ("False", "PodBroken")
    assert words in message(waiting_world, "ClusterReady")


@pytest.mark.parametrize(
    ("happened", "reason", "words"),
    [
        (
            event("w", "FailedMount", 'MountVolume.SetUp failed for volume "v" : secret "key" not found'),
            "ReferenceMissing",
            "Create the secret key",
        ),
        (
            event("w", "FailedToRetrieveImagePullSecret", "Unable to retrieve some image pull secrets (registry)"),
            "ReferenceMissing",
            "Create the secret registry",
        ),
        (event("w", "FailedMount", "timed out"), "PodBroken", "w: timed out"),
        (event("w", "FailedMount", "x", series={"lastObservedTime": CREATED}, eventTime=None), "PodBroken", "w: x"),
        (event("w", "FailedMount", "x", eventTime=CREATED), "PodBroken", "w: x"),
        (event("w", "FailedMount", "long ago", lastTimestamp="2026-11-20T09:50:00Z"), "WaitingForWorkers", "0 of 1"),
        (event("w", "Unhealthy", "probe failed"), "WaitingForWorkers", "0 of 1"),
        (event("other", "FailedMount", "timed out"), "WaitingForWorkers", "0 of 1"),
    ],
)
def test_problems_in_events_about_pods(waiting_world: Any, happened: Any, reason: str, words: str) -> None:
    """Events count if the status of a pending pod explains nothing."""
    waiting_world.pods = [pod("w")]
    waiting_world.warnings = [happened]
    waiting_world.settle()

    assert ("False", reason) == waiting_world.condition("ClusterReady")
    assert words in message(waiting_world, "ClusterReady")


@pytest.mark.fault("A16")
@pytest.mark.parametrize("spec", [{"imagePullSecrets": [{"name": "registry"}]}, {}], ids=["named by the job", ""])
def test_a_missing_pull_secret(make_world: MakeWorld, spec: dict[str, Any]) -> None:
    """Also one that the workers' template, the installation or the pods' account names."""
    world = make_world(**spec)
    world.settle()
    world.pods = [pod("s", "scheduler", **container(state={"waiting": {"reason": "ErrImagePull", "message": "no"}}))]
    world.settle()
    assert world.condition("ClusterReady") == ("False", "ImagePullFailed")
    assert world.pods == list(unexplained(world.observed(), Clock(world.now)))

    # A node that is busy may mount a volume at its second attempt; the event is younger than the pod's status.
    world.warnings = [event("s", "FailedMount", "failed to sync configmap cache: timed out waiting for the condition")]
    world.settle()
    assert world.condition("ClusterReady") == ("False", "ImagePullFailed")

    text = "Unable to retrieve some image pull secrets (registry); attempting to pull the image may not succeed."
    world.warnings = [event("s", "FailedToRetrieveImagePullSecret", text)]
    world.settle()

    assert world.condition("ClusterReady") == ("False", "ReferenceMissing")
    assert message(world, "ClusterReady").endswith("Create the secret registry, or remove it from the job.")


NO_STORE_SECRET = {"reason": "CreateContainerConfigError", "message": 'secret "store" not found'}


@pytest.mark.fault("A24")
@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (pod("t", "trainer", **unschedulable('persistentvolumeclaim "ckpt" not found')), "ReferenceMissing"),
        (pod("t", "trainer", **container(state={"waiting": {"reason": "ErrImagePull"}})), "ImagePullFailed"),
        (pod("t", "trainer", **container(state={"waiting": NO_STORE_SECRET})), "ReferenceMissing"),
    ],
)
def test_problems_of_the_trainer(waiting_world: Any, found: Any, reason: str) -> None:
    """All workers may have joined, so the condition Training reports it."""
    waiting_world.workers_ready()
    waiting_world.trainer["status"] = {"active": 1, "ready": 0}
    waiting_world.pods = [found]
    waiting_world.settle()
    assert ("False", reason) == waiting_world.condition("Training")
    assert waiting_world.condition("ClusterReady") == ("True", "AllWorkersJoined")
    assert next(e for e in waiting_world.events if e.reason == reason).type == "Warning"

    waiting_world.pods = []
    waiting_world.trainer_runs().report(10).settle()

    assert waiting_world.condition("Training") == ("True", "UpdatesCommitted")


def test_a_trainer_whose_pod_is_refused(waiting_world: Any) -> None:
    """Only an event reports it. Each retry has another pod name, but the message stays the same."""
    text = 'Error creating: pods "digits-trainer-b96{}n" is forbidden: exceeded quota: q, requested: pods=1'
    waiting_world.trainer["status"] = {"startTime": CREATED, "active": 0}
    assert waiting_world.decide().requeue_after_seconds == 8
    waiting_world.wait(8)
    [job] = unexplained(waiting_world.observed(), Clock(waiting_world.now))
    assert job["kind"] == "Job"

    waiting_world.warnings = [event("digits-trainer", "FailedCreate", text.format(1), lastTimestamp=CREATED)]
    waiting_world.settle()
    before = message(waiting_world, "Training")
    waiting_world.warnings.append(event("digits-trainer", "FailedCreate", text.format(2), eventTime=CREATED))

    assert waiting_world.condition("Training") == ("False", "QuotaExceeded")
    assert "Pod digits-trainer-… cannot be created, because the quota q is used up: requested: pods=1. Raise" in before
    assert waiting_world.decide().is_empty
    assert waiting_world.decide().requeue_after_seconds == 10
    assert waiting_world.wait(112).decide().requeue_after_seconds == 30
    assert waiting_world.wait(1000).decide().requeue_after_seconds == 60


def test_a_restart_is_reported_with_the_trainer_s_last_output(training_world: MakeWorld) -> None:
    world = training_world()
    for output, cause in (("", "exit code 1"), ("lost", "exit code 1: lost")):
        ending = {"exitCode": 1, "message": output, "finishedAt": CREATED}
        trainer = {"name": "trainer", "state": {"terminated": ending}}
        world.pods = [pod("t", "trainer", phase="Failed", containerStatuses=[trainer])]
        world.trainer["status"] = {"active": 1, "failed": 1}
        world.settle()
        assert world.condition("Training") == ("False", "TrainerRestarting")
        assert f"The trainer starts over, since nothing keeps its checkpoints: {cause}" == message(world, "Training")


def test_few_objects_count_as_unexplained_and_only_after_a_while(waiting_world: Any) -> None:
    waiting_world.trainer_runs().pods = [pod(f"w-{n}") for n in range(9)]
    waiting_world.pods[1]["metadata"]["deletionTimestamp"] = CREATED
    waiting_world.wait(5)
    assert unexplained(waiting_world.observed(), Clock(waiting_world.now)) == ()
    assert waiting_world.decide().requeue_after_seconds == 3

    waiting_world.wait(3)

    found = unexplained(waiting_world.observed(), Clock(waiting_world.now))
    assert [body["metadata"]["name"] for body in found] == ["w-0", "w-2", "w-3"]
    assert 3 == MOST_EVENT_READS


@pytest.mark.parametrize(
    ("phase", "metadata", "reason"),
    [
        ("", {}, "DaskOperatorMissing"),
        ("Error", {}, "ChildRefused"),
        ("Running", {"deletionTimestamp": CREATED}, "DaskOperatorMissing"),
        ("Running", {}, "PartsMissing"),
        ("Created", {}, "PartsMissing"),
    ],
)
def test_problems_of_the_dask_cluster(waiting_world: Any, phase: str, metadata: Any, reason: str) -> None:
    waiting_world.parts = {}
    waiting_world.cluster["status"] = {"phase": phase}
    waiting_world.cluster["metadata"] |= metadata
    waiting_world.wait(25)
    waiting_world.step()

    assert ("False", reason) == waiting_world.condition("ClusterReady")


def test_a_terminating_dask_cluster_is_waited_for(waiting_world: Any) -> None:
    waiting_world.trainer_runs().cluster["metadata"]["deletionTimestamp"] = CREATED
    waiting_world.settle()

    assert waiting_world.decide().requeue_after_seconds == 20


@pytest.mark.fault("B22")
@pytest.mark.parametrize("kind", ["Deployment", "Service"])
def test_a_lost_part_of_the_scheduler_is_requested(training_world: MakeWorld, kind: str) -> None:
    """From the Dask operator, which creates the missing part and leaves the rest and the training alone.

    Only after a while: in a namespace that is being deleted, the part goes just before the job.
    """
    world = training_world()
    parts = copy.deepcopy(world.parts)
    del world.parts[Ref(kind, "digits-scheduler")]
    assert world.decide().apply == ()
    assert world.decide().requeue_after_seconds == 10

    world.wait(10).settle()
    assert world.decide().requeue_after_seconds == 10, "then the events about the DaskCluster are read again"
    world.wait(19).settle()
    assert "Created" != world.cluster["status"]["phase"]

    world.wait(1).settle()
    assert world.cluster["status"]["phase"] == "Created"

    assert world.decide().apply == (), "the phase is ours until the Dask operator changes it"
    world.cluster["status"]["phase"] = "Pending"
    world.wait(19).settle()
    assert world.cluster["status"]["phase"] == "Pending", "the watch may report the new part later than the phase"

    world.parts = parts
    world.settle()
    assert names.PARTS_MISSING not in world.cluster["metadata"]["annotations"]
    assert (world.cluster["status"]["phase"], world.decide().apply) == ("Pending", ())


def test_a_part_that_comes_back_is_not_requested(training_world: MakeWorld) -> None:
    """The time that it was missing does not count for the next time."""
    world = training_world()
    world.wait(1000).settle()
    parts, world.parts = world.parts, {}
    world.settle()
    world.wait(15)
    world.parts, lost = parts, world.parts
    world.settle()
    assert names.PARTS_MISSING not in world.cluster["metadata"]["annotations"]
    world.parts = lost
    world.settle()

    world.wait(19).settle()

    assert "Created" != world.cluster["status"]["phase"]


@pytest.mark.parametrize("is_known", [False, True])
def test_a_part_is_requested_though_the_clock_was_set_back(training_world: MakeWorld, *, is_known: bool) -> None:
    """By a day, before or after the part went: its times lie in the future then, and are counted again."""
    world = training_world()
    world.wait(1000).settle()
    world.parts = {}
    if is_known:
        world.settle()
    world.wait(-86_400).settle()
    assert "Created" != world.cluster["status"]["phase"]
    world.wait(20).settle()
    assert world.cluster["status"]["phase"] == "Created"


@pytest.mark.fault("A29")
@pytest.mark.parametrize("text", ["yesterday", "", "2026-11-20T10:00:00", "{}"])
def test_a_part_is_requested_though_its_time_was_edited(training_world: MakeWorld, text: str) -> None:
    """Such an edit of the DaskCluster's annotation ended every pass of the job with an error."""
    world = training_world()
    world.wait(1000).settle()
    world.parts = {}
    world.cluster["metadata"]["annotations"][names.PARTS_MISSING] = text
    world.settle()
    world.wait(20).settle()
    assert world.cluster["status"]["phase"] == "Created"


def test_pods_of_the_scheduler_that_are_refused(waiting_world: Any) -> None:
    """Running workers have no scheduler to join."""
    waiting_world.workers_ready()
    waiting_world.parts[Ref("Deployment", "digits-scheduler")]["status"] = {
        "conditions": [{"type": "ReplicaFailure", "status": "True", "message": 'serviceaccount "x" not found'}]
    }
    waiting_world.settle()

    assert waiting_world.condition("ClusterReady") == ("False", "ReferenceMissing")


@pytest.mark.fault("B23", "C15")
def test_refused_worker_pods_are_retried(training_world: MakeWorld) -> None:
    """Every half minute; Kubernetes itself would back off to a quarter of an hour."""
    world = training_world(workers={"examplesPerWorker": 16, "maximum": 2})
    refused = {"type": "ReplicaFailure", "status": "True", "lastTransitionTime": world.now.isoformat()}
    world.deployment["status"] = {"readyReplicas": 1, "conditions": [refused | {"message": "exceeded quota: pods"}]}

    def retried_at() -> str | None:
        world.settle()
        return world.deployment["metadata"]["annotations"].get(names.RETRIED)

    assert None is retried_at()
    retries = set()
    for _ in range(9):
        world.wait(10)
        retries.add(retried_at())
    assert sorted(retries - {None}) == ["2026-11-20T10:00:30Z", "2026-11-20T10:01:00Z", "2026-11-20T10:01:30Z"]
    assert world.decide().requeue_after_seconds <= NUDGE_SECONDS

    world.workers_ready()
    assert None is retried_at()


def test_a_refused_scheduler_is_retried(waiting_world: Any) -> None:
    """By an annotation alone, since the Dask operator owns the Deployment."""
    ref = Ref("Deployment", "digits-scheduler")
    refused = {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota: pods"}
    waiting_world.parts[ref]["status"] = {
        "conditions": [refused | {"lastTransitionTime": waiting_world.now.isoformat()}]
    }
    waiting_world.settle()
    waiting_world.wait(NUDGE_SECONDS)

    [manifest] = waiting_world.decide().apply
    assert ref == Ref(manifest["kind"], manifest["metadata"]["name"])
    assert manifest["metadata"].keys() == {"name", "namespace", "annotations"}
    assert "spec" not in manifest

    waiting_world.parts[ref]["metadata"]["annotations"] = manifest["metadata"]["annotations"]
    assert waiting_world.decide().apply == ()
    assert waiting_world.decide().requeue_after_seconds <= NUDGE_SECONDS


def test_reasons_are_documented() -> None:
    reasons = {"ReferenceMissing", "ImagePullFailed", "QuotaExceeded", "Unschedulable", "PodBroken", "PodsRefused"}
    for kind in ("ClusterReady", "Training"):
        assert reasons <= set(REASONS[kind])
