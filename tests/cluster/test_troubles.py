"""What is missing or wrong is named by a condition within a minute, and heals by itself once it is there."""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from real_job import Kubectl, RealJob, said, until

ROOT = Path(__file__).parents[2]
SOON_SECONDS = 60
HEALED_SECONDS = 120
PULLED_BY = {"imagePullSecrets": [{"name": "registry"}]}
NOTHING = "localhost/nothing:none"
QUIET_SECONDS, REST_WITHIN_SECONDS = 20, 60

MakeJob = Callable[..., RealJob]


def example(name: str, template: dict[str, Any] | None = None, **parts: Any) -> dict[str, Any]:
    """The digits job with other parts, long enough for something to happen to it."""
    body: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    body["metadata"]["name"] = name
    body["spec"]["workers"]["template"] = {"spec": template or {}}
    body["spec"].update(parts)
    return body


def worker(**parts: Any) -> dict[str, Any]:
    """A pod template in which the worker's container has these parts."""
    return {"containers": [{"name": "worker", **parts}]}


def mounted(source: dict[str, Any]) -> dict[str, Any]:
    """A pod template whose worker mounts this."""
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


def comes_to_rest(job: RealJob) -> None:
    """Returns when nobody has written to the job for a while: nothing loops hot."""
    began = since = time.monotonic()
    before = job.get()["metadata"]["resourceVersion"]
    while time.monotonic() - since < QUIET_SECONDS:
        assert since - began < REST_WITHIN_SECONDS, job.story()
        time.sleep(1)
        now = job.get()["metadata"]["resourceVersion"]
        if now != before:
            before, since = now, time.monotonic()


@pytest.mark.parametrize("fault", FAULTS)
def test_named_within_a_minute(job: MakeJob, fault: str) -> None:
    """By the condition that it keeps from becoming true; and then nobody writes any more."""
    manifest, (kind, reason), words = FAULTS[fault]
    stuck = job(manifest)

    def named() -> bool:
        condition = stuck.condition(kind)
        return condition.get("reason") == reason and words in condition["message"] and condition["status"] == "False"

    until(f"{kind} names {fault}", named, SOON_SECONDS, stuck.story)
    assert stuck.condition(kind)["lastTransitionTime"] >= stuck.get()["metadata"]["creationTimestamp"]
    comes_to_rest(stuck)


def test_an_entrypoint_that_is_not_there(job: MakeJob) -> None:
    """No restart would help: the job has failed, and says what the module has instead."""
    failed = job(example("entrypoint", workload=WORKLOAD))
    until("the end", lambda: failed.status.get("phase") == "Failed", SOON_SECONDS, failed.story)

    succeeded = failed.condition("Succeeded")
    assert "WorkloadFailed" == succeeded["reason"]
    assert "has no 'nothing'; it defines conv_net, mlp, split, workload" in succeeded["message"]


def test_secrets_that_come_later(job: MakeJob) -> None:
    """Nobody has to touch the job."""
    template = mounted({"secret": {"secretName": "absent"}})
    template["containers"][0]["env"] = [KEY]
    late = job(example("late", template))
    until("told", lambda: late.condition("ClusterReady").get("reason") == "ReferenceMissing", SOON_SECONDS, late.story)

    late.in_namespace("create", "secret", "generic", "absent", "--from-literal=key=x")

    late.reaches(1, HEALED_SECONDS)
    assert ("True", "AllWorkersJoined") == (
        late.condition("ClusterReady")["status"],
        late.condition("ClusterReady")["reason"],
    )


def test_an_image_that_is_put_right(job: MakeJob) -> None:
    wrong = job(example("wrong", image=NOTHING))
    until("told", lambda: wrong.condition("Training").get("reason") == "ImagePullFailed", SOON_SECONDS, wrong.story)

    wrong.patch(image=None)

    wrong.reaches(1, HEALED_SECONDS)


@pytest.fixture
def quota(kubectl: Kubectl, namespace: str) -> Callable[[int], None]:
    """A function: so many pods may be in the test's namespace."""

    def set_to(pods: int) -> None:
        body = {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "pods"},
            "spec": {"hard": {"pods": pods}},
        }
        said(kubectl("--namespace", namespace, "apply", "--filename", "-", given=json.dumps(body)))

    return set_to


def test_a_quota_holds_up_the_trainer(job: MakeJob, quota: Callable[[int], None]) -> None:
    """A Job's status does not say why it has no pod: only events do."""
    quota(0)
    held = job(example("held"))
    for kind in ("ClusterReady", "Training"):
        until(kind, lambda kind=kind: held.condition(kind).get("reason") == "QuotaExceeded", SOON_SECONDS, held.story)
        assert "exceeded quota: pods" in held.condition(kind)["message"]

    quota(10)

    held.reaches(1, HEALED_SECONDS)


def test_a_quota_leaves_too_few_workers(job: MakeJob, quota: Callable[[int], None]) -> None:
    """Training goes on with what there is; what is missing is told, and since when; it heals by itself."""
    constant = {"initial": 256, "maximum": 512, "shard": 32, "growth": {"type": "Constant"}}
    few = job(example("few", epochs=3000, batch=constant, workers={"examplesPerWorker": 128, "maximum": 1}))
    few.reaches(1)
    quota(3)
    few.patch(workers={"maximum": 2})
    until("degraded", lambda: few.condition("Degraded").get("status") == "True", SOON_SECONDS, few.story)
    degraded = few.condition("Degraded")
    assert "1 of 2 workers joined." in degraded["message"]
    assert "exceeded quota: pods" in degraded["message"]
    update = few.update
    few.reaches(update + 1)

    quota(10)

    until("healed", lambda: few.condition("Degraded").get("status") == "False", HEALED_SECONDS, few.story)


@pytest.mark.parametrize("kind", ["service", "deployment"])
def test_a_part_of_the_scheduler_is_deleted(job: MakeJob, kind: str) -> None:
    """The Dask operator makes it once, and is asked for it again; training goes on to its end."""
    robbed = job(example("robbed", epochs=150))
    robbed.reaches(10)
    before = robbed.objects(kind, "--field-selector", "metadata.name=robbed-scheduler")

    robbed.in_namespace("delete", kind, "robbed-scheduler", "--wait=true")

    def again() -> bool:
        found = robbed.objects(kind, "--field-selector", "metadata.name=robbed-scheduler")
        return bool(found) and found[0]["metadata"]["uid"] != before[0]["metadata"]["uid"]

    until(f"another {kind}", again, SOON_SECONDS, robbed.story)
    robbed.succeeds()


@pytest.fixture
def no_dask_operator(kubectl: Kubectl) -> Iterator[Callable[[int], None]]:
    """The Dask operator is not running; a function: so many of it are to be."""
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


def test_nobody_answers_for_the_dask_cluster(job: MakeJob, no_dask_operator: Callable[[int], None]) -> None:
    orphan = job(example("orphan"))

    def told() -> bool:
        return orphan.condition("ClusterReady").get("reason") == "DaskOperatorMissing"

    until("told", told, SOON_SECONDS, orphan.story)
    no_dask_operator(1)

    orphan.reaches(1, HEALED_SECONDS)
