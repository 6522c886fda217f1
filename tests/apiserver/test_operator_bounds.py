"""What the operator's and the trainer's accounts cannot do, tried with their real tokens.

The operator's rights and policies are the chart's; test_operator_rights.py shows that they are enough for it.
"""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth_operator.api.client import KINDS, Refused, connect
from batchgrowth_operator.api.events import EventPoster
from batchgrowth_operator.job.announcements import Event
from batchgrowth_operator.seen.observed import Observed, Ref
from operator_account import ACCOUNT, HOME, grant, rendered, token_kubeconfig
from operator_field import CHILDREN, CLAIM, CLUSTER, KEPT, TRAINER, WORKERS, Field, until

from cluster.apiserver import ApiServer

Object = dict[str, Any]
Tried = Callable[..., subprocess.CompletedProcess[str]]
BY_POLICY = "ValidatingAdmissionPolicy"
SECRET, ROLE, BINDING = (
    Ref("Secret", "digits-tls"),
    Ref("Role", "digits-progress"),
    Ref("RoleBinding", "digits-progress"),
)
SETUP_SECONDS = 150
NOT_A_JOB_S = "writes only objects with a job's labels"


@pytest.fixture(scope="session")
def account(apiserver: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kubeconfig with the operator's token, once its policies are in force."""
    folder = tmp_path_factory.mktemp("account")
    grant(apiserver, rendered(folder))
    kubeconfig = token_kubeconfig(apiserver, folder / "kubeconfig", HOME, ACCOUNT)
    stray = ("create", "configmap", "stray", "--namespace=default", "--dry-run=server", "--kubeconfig", kubeconfig)
    until(lambda: NOT_A_JOB_S in apiserver.kubectl(*stray).stderr, seconds=SETUP_SECONDS)
    return kubeconfig


@pytest.fixture(scope="session")
def field(apiserver: ApiServer, account: Path, dask_crds: list[Path], preloaded: None) -> Iterator[Field]:
    """A namespace in which the operator, with its token, has made the children of the digits job, and has stopped."""
    created = apiserver.kubectl("create", "namespace", "bounds")
    assert created.returncode == 0, created.stderr
    made = Field(connect(apiserver.kubeconfig, lambda *_: None), account, "bounds")
    made.start()
    try:
        made.apply(**KEPT)
        until(made.is_complete, seconds=SETUP_SECONDS)
    finally:
        made.stop()
    for name in ("digits-progress", "other"):  # a binding's role must exist
        words = ("create", "role", name, "--verb=get", "--resource=configmaps", "--resource-name=digits-progress")
        created = apiserver.kubectl(*words, "--namespace=default")
        assert created.returncode == 0, created.stderr
    yield made
    apiserver.kubectl("delete", "batchgrowthjobs", "--all", "--namespace=bounds")


@pytest.fixture
def tries(apiserver: ApiServer, account: Path) -> Tried:
    """A function that runs kubectl as the operator."""
    return lambda *words, given=None: apiserver.kubectl("--kubeconfig", account, *words, given=given)


def child(field: Field, ref: Ref) -> Object:
    """The child, as if it was to be created."""
    body: Object = copy.deepcopy(field.get(ref))
    for name in ("managedFields", "creationTimestamp", "resourceVersion", "uid", "generation"):
        body["metadata"].pop(name, None)
    return {"apiVersion": KINDS[ref.kind].api_version, "kind": ref.kind} | body


def changed(body: Object, path: str, value: Any) -> Object:
    """The object with another value at a dotted path; None removes it."""
    *parents, name = path.split(".")
    node: Any = body
    for parent in parents:
        node = node[int(parent)] if isinstance(node, list) else node.setdefault(parent, {})
    if value is None:
        del node[name]
    else:
        node[int(name) if isinstance(node, list) else name] = value
    return body


def elsewhere(field: Field, ref: Ref) -> Object:
    """The child, as if it was to be created in another namespace."""
    body = changed(child(field, ref), "metadata.namespace", "kube-public" if ref == ROLE else "default")
    if ref == BINDING:
        body["subjects"][0]["namespace"] = "default"
    if ref == TRAINER:  # the API server chooses a Job's selector
        del body["spec"]["selector"]
        body["spec"]["template"]["metadata"]["labels"] = {}
    if ref in (TRAINER, WORKERS):  # the old name of serviceAccountName, which the API server fills in
        body["spec"]["template"]["spec"].pop("serviceAccount", None)
    return body


OTHER = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "digits", "uid": "0", "controller": True}
POD = "spec.template.spec"
ON_NODE = {"name": "tmp", "hostPath": {"path": "/"}}
CASES: dict[str, tuple[Ref, str, Any, str]] = {
    "no labels": (WORKERS, "metadata.labels", None, NOT_A_JOB_S),
    "no manager": (WORKERS, "metadata.labels", {"batchgrowth.dev/job": "digits"}, NOT_A_JOB_S),
    "another job": (WORKERS, "metadata.labels", {"batchgrowth.dev/job": "other"}, NOT_A_JOB_S),
    "no owner": (SECRET, "metadata.ownerReferences", None, NOT_A_JOB_S),
    "another owner": (SECRET, "metadata.ownerReferences", [OTHER], NOT_A_JOB_S),
    "no controller": (SECRET, "metadata.ownerReferences.0.controller", False, NOT_A_JOB_S),
    "another name": (SECRET, "metadata.name", "digits-other", "names of a job's children"),
    "a token": (SECRET, "type", "kubernetes.io/service-account-token", "type Opaque"),
    "another's volume": (CLAIM, "spec.volumeName", "theirs", "new, empty volumes"),
    "another's data": (CLAIM, "spec.dataSource", {"kind": "PersistentVolumeClaim", "name": "theirs"},
        "new, empty volumes"),
    "another right": (ROLE, "rules.0.verbs", ["get", "patch", "create"], "get and patch a job's progress"),
    "another resource": (ROLE, "rules.0.resources", ["secrets"], "get and patch a job's progress"),
    "every name": (ROLE, "rules.0.resourceNames", None, "get and patch a job's progress"),
    "another subject": (BINDING, "subjects.0.name", "default", "only to the job's trainer"),
    "another namespace": (BINDING, "subjects.0.namespace", "kube-system", "only to the job's trainer"),
    "another role": (BINDING, "roleRef", {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "other"},
        "only to the job's trainer"),
    "host path": (WORKERS, f"{POD}.volumes.1", ON_NODE, "host paths"),
    "host network": (TRAINER, f"{POD}.hostNetwork", True, "host paths"),
    "host processes": (CLUSTER, "spec.scheduler.spec.hostPID", True, "host paths"),
    "privileged": (WORKERS, f"{POD}.containers.0.securityContext", {"privileged": True}, "privileged"),
    "mount": (WORKERS, f"{POD}.containers.0.securityContext", {"capabilities": {"add": ["SYS_ADMIN"]}}, "privileged"),
    "init": (CLUSTER, "spec.worker.spec.initContainers", [
        {"name": "a", "image": "b", "securityContext": {"privileged": True}}], "privileged"),
    "account of workers": (WORKERS, f"{POD}.serviceAccountName", "admin", "other service accounts"),
    "account of the trainer": (TRAINER, f"{POD}.serviceAccountName", "admin", "other service accounts"),
    "account of the scheduler": (CLUSTER, "spec.scheduler.spec.serviceAccountName", "admin", "other service accounts"),
    "account by its old name": (CLUSTER, "spec.scheduler.spec.serviceAccount", "admin", "other service accounts"),
}  # fmt: skip


def refused(done: subprocess.CompletedProcess[str], words: str) -> bool:
    return 0 != done.returncode and BY_POLICY in done.stderr and words in done.stderr


def test_the_children_pass_and_their_changes_do_not(field: Field, tries: Tried) -> None:
    """Each child as it is could be created in another namespace, and none with a change that gives more."""
    for ref in [*CHILDREN, CLAIM]:
        done = tries("create", "--dry-run=server", "-f", "-", given=json.dumps(elsewhere(field, ref)))
        assert done.returncode == 0, (ref, done.stderr)


@pytest.mark.parametrize("case", CASES)
def test_objects_that_no_job_has(field: Field, tries: Tried, case: str) -> None:
    ref, path, value, words = CASES[case]
    body = elsewhere(field, ref)
    if path == "type":
        body["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "default"}

    done = tries("create", "--dry-run=server", "-f", "-", given=json.dumps(changed(body, path, value)))

    assert refused(done, words), done.stderr


def test_objects_of_others(field: Field, apiserver: ApiServer, tries: Tried) -> None:
    """It can neither change nor delete them, nor take them over with the labels and the owner of a job."""
    mine = child(field, SECRET)
    stranger = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "other-tls", "namespace": "bounds"}}
    made = apiserver.kubectl("apply", "-f", "-", given=json.dumps(stranger | {"data": {"key": "c2VjcmV0"}}))
    assert made.returncode == 0, made.stderr
    made = apiserver.kubectl("create", "deployment", "web", "--image=example/web:1", "--namespace=bounds")
    assert made.returncode == 0, made.stderr
    metadata = {"labels": mine["metadata"]["labels"] | {"batchgrowth.dev/job": "other"}}
    metadata["ownerReferences"] = [mine["metadata"]["ownerReferences"][0] | {"name": "other"}]
    patch = ("patch", "--namespace=bounds", "--type=merge")

    taken = tries(*patch, "secret", "other-tls", "-p", json.dumps({"metadata": metadata, "data": {"key": "eA=="}}))
    scaled = tries(*patch, "deployment", "web", "-p", '{"spec": {"replicas": 5}}')
    deleted = tries("delete", "deployment", "web", "--namespace=bounds")

    assert refused(taken, "that a BatchGrowthJob owns"), taken.stderr
    assert refused(scaled, NOT_A_JOB_S), scaled.stderr
    assert refused(deleted, "that a BatchGrowthJob owns"), deleted.stderr


def test_the_scheduler_s_deployment_is_annotated_only(field: Field, tries: Tried, apiserver: ApiServer) -> None:
    """So that Kubernetes retries its pods; all else about it is the Dask operator's."""
    field.make_scheduler()
    owner = {"apiVersion": "kubernetes.dask.org/v1", "kind": "DaskCluster", "name": "digits", "uid": "0"}
    patch = ("patch", "deployment", "digits-scheduler", "--namespace=bounds", "--type=merge", "-p")
    adopted = apiserver.kubectl(*patch, json.dumps({"metadata": {"ownerReferences": [owner]}}))
    assert adopted.returncode == 0, adopted.stderr

    annotated = tries(*patch, '{"metadata": {"annotations": {"batchgrowth.dev/retried": "now"}}}')
    scaled = tries(*patch, '{"spec": {"replicas": 5}}')
    own = {"metadata": {"ownerReferences": child(field, WORKERS)["metadata"]["ownerReferences"]}}
    taken = tries(*patch, json.dumps(own))
    deleted = tries("delete", "deployment", "digits-scheduler", "--namespace=bounds")

    assert annotated.returncode == 0, annotated.stderr
    assert all(refused(done, "the operator") for done in (scaled, taken, deleted))


def test_jobs_are_deleted_only_if_they_ask_for_it(field: Field, tries: Tried) -> None:
    done = tries("delete", "bgj", "digits", "--namespace=bounds", "--dry-run=server")
    assert refused(done, "spec.ttlSecondsAfterFinished"), done.stderr


def test_events_about_other_things(field: Field, tries: Tried) -> None:
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "e", "namespace": "bounds"},
        "involvedObject": {"kind": "Pod", "name": "p", "namespace": "bounds"},
        "reportingComponent": "batchgrowth-operator",
    }
    done = tries("create", "-f", "-", given=json.dumps(event))
    assert refused(done, "events about a BatchGrowthJob"), done.stderr


def test_an_event_of_others_is_not_changed(field: Field, account: Path, apiserver: ApiServer) -> None:
    """The operator's own are, to count them again."""
    about = {"kind": "BatchGrowthJob", "name": "digits", "namespace": "bounds"}
    for name, component in (("theirs", "kubelet"), ("ours", "batchgrowth-operator")):
        metadata = {"name": name, "namespace": "bounds"}
        event = {"apiVersion": "v1", "kind": "Event", "metadata": metadata, "reportingComponent": component}
        made = apiserver.kubectl("create", "-f", "-", given=json.dumps(event | {"involvedObject": about}))
        assert made.returncode == 0, made.stderr
    api, change = connect(account, lambda *_: None), {"count": 7, "reportingComponent": "batchgrowth-operator"}

    with pytest.raises(Refused, match="its own events"):
        api.repeat_event("bounds", "theirs", change)
    assert api.repeat_event("bounds", "ours", change)
    assert not api.repeat_event("bounds", "none", change)


def test_the_longest_message_of_an_event(field: Field, account: Path, apiserver: ApiServer) -> None:
    """Of an event the API server counts bytes, of a condition characters."""
    about = {"kind": "BatchGrowthJob", "metadata": {"name": "digits", "namespace": "bounds", "uid": "1"}}
    events = EventPoster(connect(account, lambda *_: None))
    for _ in range(2):
        events.record(Observed(job=about, now=datetime.now(UTC)), Event("Warning", "WorkloadFailed", "é" * 1024))
        events.post_next()

    chosen = ("--namespace=bounds", "--field-selector=reason=WorkloadFailed", "--output=jsonpath={.items[*].count}")
    assert apiserver.kubectl("get", "events", *chosen).stdout == "2"


def test_another_lease(apiserver: ApiServer, field: Field, tmp_path: Path) -> None:
    """RBAC cannot bind the right to create to a name."""
    grant(apiserver, rendered(tmp_path, "--set", "replicaCount=2"))
    kubeconfig = token_kubeconfig(apiserver, tmp_path / "kubeconfig", HOME, ACCOUNT)

    def create(name: str) -> subprocess.CompletedProcess[str]:
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": HOME}}
        words = ("--kubeconfig", kubeconfig, "create", "--dry-run=server", "-f", "-")
        return apiserver.kubectl(*words, given=json.dumps(lease))

    until(lambda: create("batchgrowth").returncode, 0)
    assert refused(create("kube-controller-manager"), "only its own Lease")


def test_others_are_not_bound(field: Field, apiserver: ApiServer) -> None:
    """The policies are for one account."""
    made = apiserver.kubectl("create", "configmap", "stray", "--namespace=bounds")
    assert made.returncode == 0, made.stderr


OUT_OF_REACH = [
    "list secrets -A",
    "list configmaps -n bounds",
    "get configmap/digits-plan -n bounds",
    "get secret/digits-tls -n bounds",
    "patch configmap/digits-plan -n bounds",
    "update configmap/digits-progress -n bounds",
    "delete configmap/digits-progress -n bounds",
    "create configmap -n bounds",
    "patch bgj/digits -n bounds",
    "patch bgj/digits --subresource=status -n bounds",
    "create pods -n bounds",
    "create pods --subresource=exec -n bounds",
    "patch configmap/digits-progress -n default",
]


def test_the_trainer_reaches_one_config_map(field: Field, apiserver: ApiServer, tmp_path: Path) -> None:
    kubeconfig = token_kubeconfig(apiserver, tmp_path / "kubeconfig", "bounds", "digits-trainer")
    as_trainer = ("--kubeconfig", kubeconfig)

    report = (
        "patch",
        "configmap",
        "digits-progress",
        "--namespace=bounds",
        "--type=merge",
        "-p",
        '{"data": {"a": "b"}}',
    )
    allowed = apiserver.kubectl(*as_trainer, *report)
    assert allowed.returncode == 0, allowed.stderr
    other = apiserver.kubectl(*as_trainer, *(word.replace("digits-progress", "digits-plan") for word in report))
    assert "forbidden" in other.stderr.lower()
    answers = {
        right: apiserver.kubectl(*as_trainer, "auth", "can-i", *right.split()).stdout.strip() for right in OUT_OF_REACH
    }
    assert set(answers.values()) == {"no"}, answers


def test_a_stolen_token_reads_secrets_by_name_alone(field: Field, tries: Tried) -> None:
    """Admission does not see reads, so this right stays; in namespaced mode it ends at the watched namespaces."""
    assert tries("get", "secret", "digits-tls", "--namespace=bounds").returncode == 0
    listed = tries("get", "secrets", "--namespace=bounds")
    assert "cannot list resource" in listed.stderr


def test_the_policies_are_sound(apiserver: ApiServer, account: Path) -> None:
    """The API server evaluates them; it would report an expression that it cannot compile."""
    found = yaml.safe_load(apiserver.kubectl("get", "validatingadmissionpolicies", "-o", "yaml").stdout)["items"]
    names = {one["metadata"]["name"] for one in found}  # of other releases too, which other tests have made
    assert {"batchgrowth-operators-children", "batchgrowth-operators-others"} <= names
