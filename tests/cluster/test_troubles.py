"""A condition names a fault soon, and the job recovers once the fault is fixed."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_job import CONSTANT, Kubectl, RealJob, example_job, said, until

SOON_SECONDS = 180  # a minute on a quiet machine
HEALED_SECONDS = 240
PULLED_BY = {"imagePullSecrets": [{"name": "registry"}]}
NOTHING = "localhost/nothing:none"
PROBED_SECONDS = 720
QUIET_SECONDS, REST_WITHIN_SECONDS = 20, 120

MakeJob = Callable[..., RealJob]


def example(name: str, template: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """The digits job with a template of its workers and parts of its spec replaced."""
    body = example_job(name)
    body["spec"]["workers"]["template"] = {"spec": template or {}}
    body["spec"].update(parts)
    return body


def worker(**parts: Any) -> dict[str, Any]:
    """A pod template with these fields in the worker's container."""
    return {"containers": [{"name": "worker", **parts}]}


def mounted(source: dict[str, Any]) -> dict[str, Any]:
    """A pod template whose worker mounts this volume source."""
    return worker(volumeMounts=[{"name": "data", "mountPath": "/data"}]) | {"volumes": [{"name": "data", **source}]}


KEY = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "key"}}}
FAULTS: dict[str, tuple[dict[str, Any], tuple[str, str], str]] = {
    "image": (example("image", image=NOTHING), ("ClusterReady", "ImagePullFailed"), NOTHING),
    "image-name": (example("image-name", image="NO/../image"), ("ClusterReady", "ImagePullFailed"), "NO/../image"),
    "pull-secret": (
        example("pull-secret", image=NOTHING, **PULLED_BY),
        ("ClusterReady", "ReferenceMissing"),
        "Create the secret registry",
    ),
    "variable": (
        example("variable", worker(env=[KEY])),
        ("ClusterReady", "ReferenceMissing"),
        "Create the secret absent",
    ),
    "volume": (
        example("volume", mounted({"secret": {"secretName": "absent"}})),
        ("ClusterReady", "ReferenceMissing"),
        "Create the secret absent",
    ),
    "claim": (
        example("claim", mounted({"persistentVolumeClaim": {"claimName": "data"}})),
        ("ClusterReady", "ReferenceMissing"),
        "Create the persistentvolumeclaim data",
    ),
    "checkpoints": (
        example("checkpoints", checkpoint={"volume": {"claimName": "kept"}}),
        ("Training", "ReferenceMissing"),
        "Create the persistentvolumeclaim kept",
    ),
    "account": (
        example("account", serviceAccountName="nobody"),
        ("ClusterReady", "ReferenceMissing"),
        "Create the serviceaccount",
    ),
    "node": (example("node", {"nodeSelector": {"pool": "none"}}), ("ClusterReady", "Unschedulable"), "Add a node"),
    "memory": (
        example("memory", worker(resources={"limits": {"memory": "32Mi"}})),
        ("ClusterReady", "PodBroken"),
        "exit code 137 (OOMKilled)",
    ),
}
WORKLOAD = {"entrypoint": "batchgrowth_trainer.workloads.digits:nothing", "examples": 1437}


def come_to_rest(jobs: list[RealJob]) -> None:
    """Returns once no write to any of the jobs has happened for QUIET_SECONDS, so no loop runs hot."""
    began = since = time.monotonic()
    before: dict[RealJob, str] = {}
    while time.monotonic() - since < QUIET_SECONDS:
        now = {job: job.get()["metadata"]["resourceVersion"] for job in jobs}
        written = [job for job in jobs if now[job] != before.get(job)]
        if written:
            before, since = now, time.monotonic()
        assert since - began < REST_WITHIN_SECONDS, "\n\n".join(job.story() for job in written)
        time.sleep(1)


@pytest.mark.fault("A16", "A21", "A24", "C05")
@pytest.mark.parametrize("faults", [list(FAULTS)[half::2] for half in range(2)], ids="-".join)
def test_faults_are_named(job: MakeJob, faults: list[str]) -> None:
    """The condition that a fault blocks names it; then the operator stops writing. All at once would not fit."""
    stuck = {fault: job(FAULTS[fault][0]) for fault in faults}

    def named(fault: str) -> bool:
        _, (kind, reason), words = FAULTS[fault]
        condition = stuck[fault].condition(kind)
        return condition.get("reason") == reason and words in condition["message"] and condition["status"] == "False"

    for fault, each in stuck.items():
        kind, _ = FAULTS[fault][1]
        until(f"{kind} names {fault}", lambda fault=fault: named(fault), SOON_SECONDS, each.story)
        assert each.condition(kind)["lastTransitionTime"] >= each.get()["metadata"]["creationTimestamp"]
    come_to_rest(list(stuck.values()))


@pytest.mark.fault("A17")
def test_a_missing_entrypoint(job: MakeJob) -> None:
    """A restart would not help: the job fails, and its message lists the module's names."""
    failed = job(example("entrypoint", workload=WORKLOAD))
    until("the end", lambda: failed.status.get("phase") == "Failed", SOON_SECONDS, failed.story)

    succeeded = failed.condition("Succeeded")
    assert "WorkloadFailed" == succeeded["reason"]
    assert "has no 'nothing'; it defines conv_net, mlp, split, workload" in succeeded["message"]


@pytest.mark.fault("A24")
def test_missing_secrets_are_created(job: MakeJob) -> None:
    """The job recovers without a change to it. With one worker throughout, the condition then stays as it is."""
    template = mounted({"secret": {"secretName": "absent"}})
    template["containers"][0]["env"] = [KEY]
    alone = {"examplesPerWorker": 256, "maximum": 1, "template": {"spec": template}}
    late = job(example("late", epochs=3000, batch=CONSTANT, workers=alone))

    def ready() -> tuple[str, str]:
        condition = late.condition("ClusterReady")
        return condition.get("status", ""), condition.get("reason", "")

    until("named", lambda: ready() == ("False", "ReferenceMissing"), SOON_SECONDS, late.story)

    late.in_namespace("create", "secret", "generic", "absent", "--from-literal=key=x")

    late.reaches(1, HEALED_SECONDS)
    until("all joined", lambda: ready() == ("True", "AllWorkersJoined"), SOON_SECONDS, late.story)


@pytest.mark.fault("A16")
def test_a_wrong_image_is_fixed(job: MakeJob) -> None:
    wrong = job(example("wrong", image=NOTHING))
    until("named", lambda: wrong.condition("Training").get("reason") == "ImagePullFailed", SOON_SECONDS, wrong.story)

    wrong.patch(image=None)

    wrong.reaches(1, HEALED_SECONDS)


@pytest.fixture
def quota(kubectl: Kubectl, namespace: str) -> Callable[[int], None]:
    """Returns a function that limits the number of pods in the test's namespace."""

    def set_to(pods: int) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods"},
            "spec": {"hard": {"pods": pods}},
        }
        said(kubectl("--namespace", namespace, "apply", "--filename", "-", given=json.dumps(body)))

    return set_to


@pytest.mark.fault("B23")
@pytest.mark.long
def test_a_quota_holds_up_the_trainer(job: MakeJob, quota: Callable[[int], None]) -> None:
    """Only events say why a Job has no pod; its status does not."""
    quota(0)
    held = job(example("held"))
    for kind in ("ClusterReady", "Training"):

        def quota_named(kind: str = kind) -> bool:
            told = held.condition(kind)
            return told.get("reason") == "QuotaExceeded" and "the quota pods is used up" in told["message"]

        until(kind, quota_named, SOON_SECONDS, held.story)

    quota(10)

    held.reaches(1, HEALED_SECONDS)


@pytest.mark.fault("B23", "C14", "C15")
def test_a_quota_leaves_too_few_workers(job: MakeJob, quota: Callable[[int], None]) -> None:
    """Training continues with fewer workers; Degraded names the quota, and clears once it is raised."""
    few = job(example("few", epochs=3000, batch=CONSTANT, workers={"examplesPerWorker": 128, "maximum": 1}))
    few.reaches(1)
    quota(3)
    few.patch(workers={"maximum": 2})

    def quota_named() -> bool:
        degraded = few.condition("Degraded")
        words = "1 of 2 workers joined." in degraded["message"] and "the quota pods is used up" in degraded["message"]
        return words and degraded["status"] == "True"

    until("the quota named", quota_named, SOON_SECONDS, few.story)
    update = few.update
    few.reaches(update + 1)

    quota(10)

    until("healed", lambda: few.condition("Degraded").get("status") == "False", HEALED_SECONDS, few.story)


@pytest.mark.fault("B19")
@pytest.mark.long
@pytest.mark.parametrize("kind", ["service", "deployment"])
def test_a_part_of_the_scheduler_is_deleted(job: MakeJob, kind: str) -> None:
    """The Dask operator recreates it, and training completes."""
    robbed = job(example("robbed", epochs=60))
    robbed.reaches(10)
    before = robbed.objects(kind, fields="metadata.name=robbed-scheduler")

    robbed.in_namespace("delete", kind, "robbed-scheduler", "--wait=true")

    def again() -> bool:
        found = robbed.objects(kind, fields="metadata.name=robbed-scheduler")
        return bool(found) and found[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]

    until(f"another {kind}", again, SOON_SECONDS, robbed.story)
    robbed.succeeds()


@pytest.fixture
def no_dask_operator(kubectl: Kubectl) -> Iterator[Callable[[int], None]]:
    """Stops the Dask operator; returns a function that scales it."""
    where = ("--namespace", "batchgrowth-system", "scale", "deployment", "batchgrowth-dask-kubernetes-operator")
    gone = (
        "--namespace",
        "batchgrowth-system",
        "wait",
        "pod",
        "--selector=app.kubernetes.io/name=dask-kubernetes-operator",
    )

    def scale(replicas: int) -> None:
        said(kubectl(*where, f"--replicas={replicas}"))

    scale(0)
    said(kubectl(*gone, "--for=delete", "--timeout=60s"))
    yield scale
    scale(1)


@pytest.mark.alone
@pytest.mark.fault("B16")
def test_the_dask_operator_is_down(job: MakeJob, no_dask_operator: Callable[[int], None]) -> None:
    orphan = job(example("orphan"))

    def named() -> bool:
        return orphan.condition("ClusterReady").get("reason") == "DaskOperatorMissing"

    until("named", named, SOON_SECONDS, orphan.story)
    no_dask_operator(1)

    orphan.reaches(1, HEALED_SECONDS)


def process_of(pod: str) -> int:
    """The first process of a pod, whose nodes are this machine."""
    for folder in sorted(Path("/proc").glob("[0-9]*"), key=lambda folder: int(folder.name)):
        try:
            words = (folder / "environ").read_bytes().split(b"\0")
        except OSError:  # it has ended since
            continue
        if f"HOSTNAME={pod}".encode() in words:
            return int(folder.name)
    raise LookupError(f"no process of the pod {pod}")


@pytest.mark.fault("C09")
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_the_kubelet_restarts_a_worker_that_stands_still(job: MakeJob) -> None:
    """Its probe does not count for five minutes and fails for five more; the others train on meanwhile."""
    workers = {"examplesPerWorker": 128, "minimum": 2, "maximum": 2}
    halted = job(example("halted", epochs=1_000_000, batch=CONSTANT, workers=workers))
    until("two workers", lambda: halted.report().get("workers") == 2, HEALED_SECONDS, halted.story)
    pod = halted.pods("worker")[0]["metadata"]["name"]
    os.kill(process_of(pod), signal.SIGSTOP)
    until("one worker", lambda: halted.report().get("workers") == 1, SOON_SECONDS, halted.story)
    halted.reaches(halted.update + 100)

    def restarts() -> int:
        [found] = [each for each in halted.pods("worker") if each["metadata"]["name"] == pod]
        return int(found["status"]["containerStatuses"][0]["restartCount"])

    assert 0 == restarts()
    until("a restart", lambda: restarts() == 1, PROBED_SECONDS, halted.story)
    until("two workers", lambda: halted.report().get("workers") == 2, HEALED_SECONDS, halted.story)
