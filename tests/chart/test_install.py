"""The chart on a real API server with its controllers: installed, tested, uninstalled, installed again."""

import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from charts.folders import CHART, ROOT
from cluster.apiserver import ApiServer

Helm = Callable[..., subprocess.CompletedProcess[str]]
Render = Callable[..., list[dict[str, Any]]]
NAMESPACE = "operators"
IMAGES = ("-f", str(CHART / "ci" / "images-values.yaml"))
OPERATOR = f"system:serviceaccount:{NAMESPACE}:batchgrowth"
PATIENCE_SECONDS = 60
RESTRICTED = "pod-security.kubernetes.io/enforce=restricted"


def ok(result: subprocess.CompletedProcess[str]) -> str:
    """Returns its output; fails unless it succeeded."""
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="session")  # as long as the API server: these tests may run with others in between
def notes(apiserver: ApiServer, helm: Helm, chart: Path) -> str:
    """Installs the chart in a namespace that admits restricted pods only; returns helm's output."""
    ok(apiserver.kubectl("create", "namespace", NAMESPACE))
    ok(apiserver.kubectl("label", "namespace", NAMESPACE, RESTRICTED))
    return install(apiserver, helm, chart)


def install(apiserver: ApiServer, helm: Helm, chart: Path, *arguments: str) -> str:
    """Returns helm's output."""
    words = ("install", "batchgrowth", chart, "--namespace", NAMESPACE, *IMAGES, *arguments)
    return ok(helm(*words, KUBECONFIG=str(apiserver.kubeconfig)))


def objects(apiserver: ApiServer, *arguments: str) -> list[dict[str, Any]]:
    """Returns what `kubectl get` lists."""
    found: list[dict[str, Any]] = json.loads(ok(apiserver.kubectl("get", *arguments, "-o", "json")))["items"]
    return found


def may(apiserver: ApiServer, who: str, *what: str) -> bool:
    """Whether RBAC allows a request."""
    return apiserver.kubectl("auth", "can-i", f"--as={who}", *what).stdout.strip() == "yes"


def eventually(holds: Callable[[], Any]) -> None:
    """Polls until controllers have acted; they emit no signal when they are done."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def test_the_notes_give_the_next_command(notes: str, apiserver: ApiServer) -> None:
    """Pasted into a shell, it creates the example job."""
    manifest = notes.split("<<'EOF'\n")[1].split("\nEOF\n")[0]

    assert "helm test batchgrowth --namespace operators" in notes
    assert yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text()) == yaml.safe_load(manifest)
    ok(apiserver.kubectl("apply", "--namespace", "default", "-f", "-", given=manifest))


def test_the_pods_are_admitted(notes: str, apiserver: ApiServer) -> None:
    """The namespace enforces `restricted`, and both Deployments get their pod."""

    def owners() -> set[str]:
        pods = objects(apiserver, "pods", "--namespace", NAMESPACE)
        return {pod["metadata"]["labels"]["app.kubernetes.io/name"] for pod in pods}

    eventually(lambda: owners() == {"batchgrowth", "dask-kubernetes-operator"})


def test_the_test_s_pod_is_admitted(notes: str, apiserver: ApiServer, render: Render) -> None:
    """The profile admits the pod of `helm test` too."""
    [pod] = [body for body in render() if body["kind"] == "Pod"]
    account = [
        body for body in render() if body["kind"] == "ServiceAccount" and body["metadata"]["name"].endswith("-test")
    ]
    ok(apiserver.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(account)))

    ok(apiserver.kubectl("apply", "--dry-run=server", "-f", "-", given=yaml.safe_dump(pod)))


def test_the_operator_s_rights(notes: str, apiserver: ApiServer) -> None:
    """RBAC itself grants or denies each request."""
    for right in (
        "watch batchgrowthjobs -A",
        "patch batchgrowthjobs --subresource=status",
        "create secrets -n default",
    ):
        assert may(apiserver, OPERATOR, *right.split()), right
    for right in ("list secrets -A", "patch batchgrowthjobs", "create pods/exec", "get nodes", "delete configmaps"):
        assert not may(apiserver, OPERATOR, *right.split()), right


def test_the_operator_can_give_the_trainer_its_right(notes: str, apiserver: ApiServer) -> None:
    """Kubernetes refuses to let users grant rights that they lack, and the chart's policy all but this one."""

    def make(*verbs: str) -> int:
        owner = {"apiVersion": "batchgrowth.dev/v1alpha1", "kind": "BatchGrowthJob", "name": "digits", "uid": "0"}
        labels = {"batchgrowth.dev/job": "digits", "app.kubernetes.io/managed-by": "batchgrowth"}
        metadata = {"name": "digits-progress", "labels": labels, "ownerReferences": [owner | {"controller": True}]}
        rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["digits-progress"], "verbs": verbs}
        role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": metadata, "rules": [rule]}
        words = ("create", "-f", "-", f"--as={OPERATOR}", "--dry-run=server")
        return apiserver.kubectl(*words, given=json.dumps(role)).returncode

    assert (make("get", "patch"), make("get", "patch", "update")) == (0, 1)


def test_users_get_their_rights(notes: str, apiserver: ApiServer) -> None:
    """The cluster's own roles aggregate the chart's."""
    for role in ("view", "edit", "admin"):
        words = ("create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", "--namespace=default")
        ok(apiserver.kubectl(*words))
    eventually(lambda: may(apiserver, "admin", "patch", "batchgrowthjobs", "--subresource=status"))

    result = {
        (role, right): may(apiserver, role, *right.split())
        for role in ("view", "edit", "admin")
        for right in ("list bgj", "create bgj", "patch bgj --subresource=scale", "patch bgj --subresource=status")
    }
    assert {key for key, allowed in result.items() if allowed} == {
        ("view", "list bgj"),
        ("edit", "list bgj"),
        ("edit", "create bgj"),
        ("edit", "patch bgj --subresource=scale"),
        ("admin", "list bgj"),
        ("admin", "create bgj"),
        ("admin", "patch bgj --subresource=scale"),
        ("admin", "patch bgj --subresource=status"),
    }


@pytest.fixture
def account(notes: str, apiserver: ApiServer, render: Render, tmp_path: Path) -> Path:
    """The service account files that the test's pod would mount."""
    rights = [
        body
        for body in render()
        if body["kind"] in {"ServiceAccount", "Role", "RoleBinding"} and body["metadata"]["name"] == "batchgrowth-test"
    ]
    ok(apiserver.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(rights)))
    token = ok(apiserver.kubectl("create", "token", "batchgrowth-test", "--namespace", NAMESPACE))
    [cluster] = yaml.safe_load(apiserver.kubeconfig.read_text())["clusters"]
    trusted = cluster["cluster"]
    if "certificate-authority-data" in trusted:
        authority = base64.b64decode(trusted["certificate-authority-data"]).decode()
    else:
        authority = Path(trusted["certificate-authority"]).read_text()
    for name, text in {"token": token.strip(), "namespace": NAMESPACE, "ca.crt": authority}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def check(apiserver: ApiServer, account: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Runs the program of `helm test`."""
    address = urlsplit(apiserver.url)
    environment = {
        "ACCOUNT": str(account),
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
        "DEPLOYMENT": "batchgrowth",
        "EXAMPLE": json.dumps(yaml.safe_load((CHART / "files" / "digits.yaml").read_text())),
    }
    words = [sys.executable, CHART / "files" / "check.py"]
    return subprocess.run(words, env=os.environ | environment | changes, capture_output=True, text=True, check=False)


def test_helm_test_tells_what_is_wrong(apiserver: ApiServer, account: Path) -> None:
    """Without a node the operator is down; the other checks pass beside a job of the example's name, and leave nothing
    behind.
    """
    job = ("--namespace", NAMESPACE, "--filename", CHART / "files" / "digits.yaml")
    ok(apiserver.kubectl("create", *job))

    result = check(apiserver, account)

    ok(apiserver.kubectl("delete", *job))
    assert result.returncode == 1, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["FAIL", "ok", "ok", "ok", "ok"]
    assert "no replica of the Deployment batchgrowth is available" in result.stdout
    assert objects(apiserver, "bgj", "--namespace", NAMESPACE) == []


def test_helm_test_tells_bad_jobs(apiserver: ApiServer, account: Path) -> None:
    """An example that this CRD refuses."""
    example = yaml.safe_load((CHART / "files" / "digits.yaml").read_text())
    example["spec"]["epochs"] = 0

    result = check(apiserver, account, EXAMPLE=json.dumps(example))

    assert "FAIL  the example job is good: the API server says 422" in result.stdout
    assert "spec.epochs" in result.stdout


@pytest.mark.fault("F01")
def test_a_release_that_would_share_jobs_is_refused(
    notes: str, apiserver: ApiServer, helm: Helm, chart: Path, tmp_path: Path
) -> None:
    """The first release serves all namespaces, so that any other needs a class, or must not overlap."""
    ok(apiserver.kubectl("create", "namespace", "team"))
    second, first = ("second", "--namespace", "team"), ("batchgrowth", "--namespace", NAMESPACE)
    cluster_scoped = ("--set", "crds.enabled=false,userRoles.enabled=false,dask-kubernetes-operator.enabled=false")

    def attempt(*words: str) -> subprocess.CompletedProcess[str]:
        given = (*words[:1], *words[1:4], chart, *IMAGES, *words[4:], "--dry-run=server")
        return helm(*map(str, given), KUBECONFIG=str(apiserver.kubeconfig))

    shared = attempt("install", *second, *cluster_scoped, "--set", "watch.namespaces={team}")
    assert 0 != shared.returncode
    assert 'the release batchgrowth in namespace operators already serves jobs of class ""' in shared.stderr
    assert "give another class" in shared.stderr

    classed = ("--set", "operatorClass=team,watch.namespaces={team}")
    said = ok(attempt("install", *second, *cluster_scoped, *classed))
    assert "--operator-class=team" in said
    assert yaml.safe_load(said.split("<<'EOF'\n")[-1].split("\nEOF\n")[0])["spec"]["operatorClass"] == "team"
    ok(attempt("upgrade", *first))
    renamed = attempt("upgrade", *first, "--set", "fullnameOverride=growing")
    assert "fullnameOverride: Helm would start the operator growing before it ends the one" in renamed.stderr
    named = tmp_path / "values.yaml"
    named.write_text("operatorClass: gpu\nwatch: {namespaces: [team]}\n")
    ok(helm("install", *second, chart, *IMAGES, *cluster_scoped, "-f", named, KUBECONFIG=str(apiserver.kubeconfig)))
    overlapping = attempt("upgrade", *first, "--set", "operatorClass=gpu,watch.namespaces={default,team}")
    assert "in team" in overlapping.stderr
    ok(attempt("upgrade", *first, "--set", "operatorClass=gpu,watch.namespaces={default}"))
    ok(helm("uninstall", *second, KUBECONFIG=str(apiserver.kubeconfig)))


@pytest.mark.fault("O09")
def test_rights_in_one_namespace_are_enough(notes: str, apiserver: ApiServer, helm: Helm, chart: Path) -> None:
    """A user who may do everything there and nothing elsewhere installs and removes a release; so little it has."""
    place = ("--namespace", "own")
    ok(apiserver.kubectl("create", "namespace", "own"))
    ok(apiserver.kubectl("create", "role", "owner", "--verb=*", "--resource=*.*", *place))
    ok(apiserver.kubectl("create", "rolebinding", "owner", "--role=owner", "--user=ann", *place))
    by_ann = {"KUBECONFIG": str(apiserver.kubeconfig), "HELM_KUBEASUSER": "ann"}
    given = (*place, chart, *IMAGES, "--set", "operatorClass=own,dask-kubernetes-operator.enabled=false")

    refused = helm("install", "mine", *given, **by_ann)
    assert 0 != refused.returncode
    assert "forbidden" in refused.stderr

    said = ok(helm("install", "mine", *given, "--set", "rbac.namespaced=true", **by_ann))
    assert "watches own." in said
    assert "this release has nothing outside of the namespace own" in said
    account = "system:serviceaccount:own:mine-batchgrowth"
    assert may(apiserver, account, "create", "daskclusters.kubernetes.dask.org", *place)
    assert not may(apiserver, account, "list", "pods", "--namespace", "default")
    assert not may(apiserver, account, "list", "customresourcedefinitions")
    ok(helm("uninstall", "mine", *place, **by_ann))


@pytest.mark.fault("B28")
def test_uninstalled_and_installed_again(notes: str, apiserver: ApiServer, helm: Helm, chart: Path) -> None:
    """Uninstalling keeps the CRD and the jobs only; a new release adopts the CRD and changes no job."""
    ok(apiserver.kubectl("apply", "-f", ROOT / "examples" / "digits.yaml"))
    ok(
        apiserver.kubectl(
            "delete", "serviceaccount,role,rolebinding", "batchgrowth-test", "-n", NAMESPACE, "--ignore-not-found"
        )
    )
    [before] = objects(apiserver, "bgj", "--namespace", "default")
    kinds = "deployments,pods,services,configmaps,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"

    ok(helm("uninstall", "batchgrowth", "--namespace", NAMESPACE, KUBECONFIG=str(apiserver.kubeconfig)))

    selector = "app.kubernetes.io/instance=batchgrowth"
    eventually(lambda: [] == objects(apiserver, kinds, "--all-namespaces", "-l", selector))
    assert [before] == objects(apiserver, "bgj", "--namespace", "default")
    install(apiserver, helm, chart)
    assert [before] == objects(apiserver, "bgj", "--namespace", "default")


def test_everything_is_removed(notes: str, apiserver: ApiServer, helm: Helm) -> None:
    """The commands of docs/chart.md, in their order; the release of this file has another namespace."""
    text = (ROOT / "docs" / "chart.md").read_text().split("To remove everything:")[1]
    commands = [line.removeprefix("$ ") for line in text.split("```")[1].splitlines() if line.startswith("$ ")]

    for words in (command.replace("batchgrowth-system", NAMESPACE).split() for command in commands):
        if words[0] == "helm":
            ok(helm(*words[1:], KUBECONFIG=str(apiserver.kubeconfig)))
        else:
            ok(apiserver.kubectl(*words[1:]))

    assert [command.split()[0] for command in commands] == ["kubectl", "kubectl", "helm", "kubectl"]
    found = ok(apiserver.kubectl("get", "crds", "--output", "name")).split()
    assert found
    assert not [name for name in found if "batchgrowth" in name]
