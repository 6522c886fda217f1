"""Deleting a job, a namespace and the release; reinstalling and upgrading the release."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from real_job import Kubectl, Object, RealJob, digits, example_job, said, until, values_of

from cluster import release
from cluster.release import NAMESPACE, RELEASE, Cluster

ROOT = Path(__file__).parents[2]
SOON = 180  # seconds; a minute on a quiet machine
# The API server makes these in every namespace, and forgets events by itself.
OF_EVERY_NAMESPACE = {"configmap/kube-root-ca.crt", "serviceaccount/default"}
REMEDY = {"metadata": {"finalizers": None}}
MakeJob = Callable[..., RealJob]


def long_job(epochs: int = 10_000, milestone: int = 9_999) -> Object:
    """Digits with one worker, and with two after the milestone; by default it outlasts its test."""
    manifest = example_job(epochs=epochs, checkpoint={"everySeconds": 5})
    growth = {"type": "Geometric", "geometric": {"factor": "8", "everyEpochs": milestone}}
    manifest["spec"]["batch"] |= {"growth": growth, "maximum": 256}
    return manifest


@pytest.fixture
def kinds(kubectl: Kubectl) -> str:
    """Every kind of object that a namespace may have, but for events, separated by commas."""
    found = said(kubectl("api-resources", "--namespaced", "--verbs=list,delete", "--output=name")).split()
    return ",".join(kind for kind in found if not kind.startswith("events"))


def everything(job: RealJob, kinds: str) -> set[str]:
    """Returns the objects of these kinds in the job's namespace."""
    return set(job.in_namespace("get", kinds, "--output=name", "--ignore-not-found").split()) - OF_EVERY_NAMESPACE


def pods(job: RealJob) -> set[tuple[str, int]]:
    """Returns the job's pods with their containers' restart counts."""
    return {
        (pod["metadata"]["uid"], status["restartCount"])
        for role in ("trainer", "worker", "scheduler")
        for pod in job.pods(role)
        for status in pod["status"].get("containerStatuses", ())
    }


@pytest.mark.fault("A30", "B25")
def test_a_deleted_job_leaves_nothing(job: MakeJob, kinds: str) -> None:
    """Deleted while it trains: pods, Dask cluster, secrets and roles are gone soon."""
    digits = job(long_job())
    digits.reaches(1)
    assert len(everything(digits, kinds)) > 10

    digits.in_namespace("delete", "batchgrowthjob", digits.name, "--wait=false")

    until("nothing is left", lambda: not everything(digits, kinds), SOON, digits.story)


@pytest.mark.fault("B22")
def test_a_namespace_goes_while_a_job_trains(kubectl: Kubectl, job: MakeJob) -> None:
    """No finalizer blocks it: the namespace is gone soon."""
    digits = job(long_job())
    digits.reaches(1)

    said(kubectl("delete", "namespace", digits.namespace, "--wait=false"))

    def gone() -> bool:
        return not said(kubectl("get", "namespace", digits.namespace, "--ignore-not-found", "--output=name"))

    until("the namespace is gone", gone, SOON, lambda: said(kubectl("get", "namespace", "--output=yaml")))


@pytest.mark.alone
@pytest.mark.fault("B28")
def test_a_job_outlives_the_release(reinstalled: Cluster, kubectl: Kubectl, job: MakeJob) -> None:
    """CRD and job survive an uninstall and training continues; the reinstalled operator adopts the job."""
    digits = job(long_job(epochs=100, milestone=80))
    digits.reaches(1)
    uid, before = digits.get()["metadata"]["uid"], pods(digits)

    release.uninstall(reinstalled)

    assert not said(kubectl("--namespace", NAMESPACE, "get", "deployments,pods", "--output=name"))
    said(kubectl("get", "crd", "batchgrowthjobs.batchgrowth.dev"))
    before_it = digits.update
    until("training continues", lambda: digits.update > before_it + 10, SOON, digits.story)
    reported = digits.status["trainerStatus"]["update"]

    release.install(reinstalled, values=values_of(reinstalled))

    until(
        "progress is reported again",
        lambda: digits.status["trainerStatus"]["update"] > reported,
        SOON,
        digits.story,
    )
    assert before == pods(digits) or len(digits.pods("worker")) > 1
    assert before <= pods(digits)
    status = digits.succeeds()
    assert 0 == status["restarts"]
    assert uid == digits.get()["metadata"]["uid"]
    assert 2 == status["history"][-1]["workers"], "the milestone came after the operator did"


@pytest.mark.alone
@pytest.mark.fault("B03")
@pytest.mark.long
def test_a_job_deleted_without_a_dask_operator(reinstalled: Cluster, job: MakeJob, kinds: str) -> None:
    """A finalizer of an uninstalled Dask operator blocks the DaskCluster; the command in docs/chart.md removes it."""
    digits = job(long_job())
    digits.reaches(1)
    release.uninstall(reinstalled)
    patched(digits, {"metadata": {"finalizers": ["kopf.zalando.org/KopfFinalizerMarker"]}})  # not every version has one

    digits.in_namespace("delete", "batchgrowthjob", digits.name, "--wait=false")
    until("the DaskCluster is blocked", lambda: deleted(digits.objects("daskcluster")), SOON, digits.story)
    patched(digits, REMEDY)

    until("nothing is left", lambda: not everything(digits, kinds), SOON, digits.story)
    text = (ROOT / "docs" / "chart.md").read_text()
    assert f"--type merge --patch '{json.dumps(REMEDY, separators=(',', ':'))}'" in text


def deleted(objects: list[Object]) -> bool:
    """Whether finalizers alone keep the objects."""
    return bool(objects) and all("deletionTimestamp" in each["metadata"] for each in objects)


def patched(job: RealJob, patch: Object) -> None:
    """Patches the job's DaskCluster."""
    job.in_namespace("patch", "daskcluster", job.name, "--type", "merge", "--patch", json.dumps(patch))


@pytest.mark.long
@pytest.mark.fault("O09")
def test_a_release_with_rights_in_one_namespace(
    installed: Cluster, kubectl: Kubectl, namespace: str, job: MakeJob, local_sha256: Callable[[str], str]
) -> None:
    """A user who may do everything there and nothing elsewhere installs it, beside that of the whole cluster."""
    for words in (
        ("role", "owner", "--verb=*", "--resource=*.*"),
        ("rolebinding", "owner", "--role=owner", "--user=ann"),
    ):
        said(kubectl("--namespace", namespace, "create", *words))
    own = {"rbac": {"namespaced": True}, "operatorClass": "own", "dask-kubernetes-operator": {"enabled": False}}
    release.install(installed, namespace, release="own", values=values_of(installed) | own, user="ann")

    manifest = digits("digits", epochs=30, operatorClass="own")
    status = job(manifest).succeeds()

    assert local_sha256(yaml.safe_dump(manifest)) == status["trainerStatus"]["weightsSha256"]
    release.uninstall(installed, namespace, release="own")


@pytest.mark.operator
@pytest.mark.fault("B05", "F02")
def test_an_upgrade_changes_the_operator_alone(reinstalled: Cluster, kubectl: Kubectl, job: MakeJob) -> None:
    """Two replicas and other resources, while a job trains: one of the two is active, and the job's pods stay."""
    digits = job(long_job())
    digits.reaches(1)
    before = pods(digits)

    changed = {"replicaCount": 2, "resources": {"limits": {"memory": "640Mi"}}}
    release.install(reinstalled, values=values_of(reinstalled) | changed)

    found: Object = json.loads(said(kubectl("--namespace", NAMESPACE, "get", "deployment", RELEASE, "--output=json")))
    [container] = found["spec"]["template"]["spec"]["containers"]
    assert (2, "640Mi") == (found["status"]["readyReplicas"], container["resources"]["limits"]["memory"])
    reported = digits.status["trainerStatus"]["update"]
    until("progress is reported", lambda: digits.status["trainerStatus"]["update"] > reported, SOON, digits.story)
    assert before <= pods(digits)
    lease = said(kubectl("--namespace", NAMESPACE, "get", "lease", RELEASE, "--output=jsonpath={.spec.holderIdentity}"))
    assert lease.startswith(RELEASE)
