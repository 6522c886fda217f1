"""The permissions that the chart grants the operator are those that it uses in a job's life."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.api.client import KINDS
from batchgrowth_operator.children.dask_cluster import DASK_FINALIZER, RELEASED_AFTER_SECONDS
from operator_account import ACCOUNT, HOME, grant, rendered, token_kubeconfig
from operator_field import CLUSTER, JOB, KEPT, PATIENCE_SECONDS, ROOT, TRAINER, WORKERS, Field, live, until

from cluster.apiserver import ApiServer

RULES = ROOT / "charts" / "batchgrowth" / "templates" / "_rules.tpl"
CRDS = {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list", "watch"]}
ASKED_FIRST = {("", "namespaces", "list"), ("", "namespaces", "watch")}
"""kopf tries it, accepts a 403, and continues with the given namespaces."""

Grant = tuple[str, str, str]
"""Group, resource, verb."""

_PATH = re.compile(r"/(?:api/v1|apis/([^/]+)/[^/]+)(?:/namespaces/[^/]+)?/([a-z]+)(?:/([^/]+)(?:/([a-z]+))?)?")


def rules_of_the_chart() -> list[dict[str, Any]]:
    """The rules of the chart's ClusterRole, which contains no templates."""
    found = re.search(r"\{\{- define .*?\}\}\n(.*)\{\{- end \}\}", RULES.read_text(), re.DOTALL)
    assert found is not None
    rules: list[dict[str, Any]] = yaml.safe_load(found[1])
    return [*rules, CRDS]


def grants(rules: list[dict[str, Any]]) -> set[Grant]:
    """All permissions of the rules."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed_for(method: str, url: str) -> Iterator[Grant]:
    """The permissions that the API server requires for this request."""
    parts = urlsplit(url)
    found, query = _PATH.fullmatch(parts.path), parse_qs(parts.query)
    if found is None:
        return  # discovery needs no permission
    group, plural, name, subresource = found.groups()
    resource = f"{plural}/{subresource}" if subresource else plural
    reads = "get" if name else "watch" if "watch" in query else "list"
    yield group or "", resource, {"GET": reads, "POST": "create", "PUT": "update"}.get(method, method.lower())
    if method == "PATCH" and "fieldManager" in query and not subresource:
        yield group or "", resource, "create"  # server-side apply creates a missing object


def test_each_right_is_used_and_each_call_is_granted(
    make_field: Callable[[], Field], apiserver: ApiServer, tmp_path: Path
) -> None:
    """A life in which every request of the operator occurs, with the token, rights and policies of the chart."""
    grant(apiserver, rendered(tmp_path))
    rules = rules_of_the_chart()
    ground = make_field()
    ground.kubeconfig = token_kubeconfig(apiserver, tmp_path / "kubeconfig", HOME, ACCOUNT)
    ground.start(calls=tmp_path / "calls")

    live_through_everything(ground)

    ground.stop()
    calls = [line.split(" ", 1) for line in (tmp_path / "calls").read_text().splitlines()]
    used = {grant for method, url in calls for grant in needed_for(method, url)}
    assert grants(rules) == used - ASKED_FIRST


@pytest.mark.fault("O09")
@pytest.mark.parametrize("may_read_crds", [True, False])
def test_an_operator_of_one_namespace(
    make_field: Callable[[], Field], apiserver: ApiServer, tmp_path: Path, may_read_crds: bool
) -> None:
    """It needs rights in its namespace alone, and can neither read nor write in another."""
    ground, elsewhere = make_field(), make_field()
    one = ("--set", f"watch.namespaces={{{ground.namespace}}}")
    if not may_read_crds:
        own = "rbac.namespaced=true,dask-kubernetes-operator.enabled=false"
        one = (*one, "--namespace", ground.namespace, "--set", own)
    release = f"only-{ground.namespace}"
    objects = rendered(tmp_path, *one, release=release)
    assert may_read_crds == any(body["kind"] == "ClusterRole" for body in objects)
    grant(apiserver, objects)
    [account] = [body["metadata"] for body in objects if body["kind"] == "ServiceAccount"]
    ground.kubeconfig = token_kubeconfig(apiserver, tmp_path / "kubeconfig", account["namespace"], account["name"])
    elsewhere.apply()
    ground.start()

    live(ground)

    as_it = ("--kubeconfig", ground.kubeconfig, "--namespace", elsewhere.namespace)
    for words in (
        ("get", "secrets"),
        ("get", "batchgrowthjob", "digits"),
        ("create", "configmap", "stray"),
        ("delete", "batchgrowthjob", "digits"),
    ):
        assert "forbidden" in apiserver.kubectl(*as_it, *words).stderr.lower(), words
    assert "status" not in elsewhere.get(JOB)


@pytest.mark.fault("O20")
def test_a_dask_cluster_that_nobody_releases(
    make_field: Callable[[], Field], apiserver: ApiServer, tmp_path: Path
) -> None:
    """As by a Dask operator that waits for a part which it cannot make, since the namespace is being deleted."""
    grant(apiserver, rendered(tmp_path))
    ground = make_field()
    ground.kubeconfig = token_kubeconfig(apiserver, tmp_path / "kubeconfig", HOME, ACCOUNT)
    ground.start()
    ground.apply(**KEPT)
    until(ground.is_complete)
    ground.patch(CLUSTER, {"metadata": {"finalizers": [DASK_FINALIZER]}})

    for ref in (JOB, CLUSTER):  # no garbage collector runs here
        ground.delete(ref)

    until(lambda: ground.get(CLUSTER), None, RELEASED_AFTER_SECONDS + PATIENCE_SECONDS)


def live_through_everything(ground: Field) -> None:
    """A flapping pod, growth, a pending pod, another image, the end, and the time to live after it."""
    ground.apply(ttlSecondsAfterFinished=5, **KEPT)
    until(ground.is_complete)
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": "digits-workers-0",
        "uid": "none",
        "controller": True,
    }
    pod = {
        "metadata": {"name": "held-up", "labels": names.labels("digits", "worker"), "ownerReferences": [owner]},
        "spec": {"containers": [{"name": "worker", "image": "none"}]},
    }
    ground.api._send("post", KINDS["Pod"], KINDS["Pod"].path(ground.namespace), body=pod)
    for ready in (1, 0, 1):
        ground.patch(WORKERS, {"status": {"replicas": 1, "readyReplicas": ready}}, "status")
        until(lambda ready=ready: ground.condition("Resizing")[0], str(ready == 0))
    ground.report(440)
    until(ground.replicas, 4)
    before = [ground.get(ref)["metadata"]["uid"] for ref in (CLUSTER, TRAINER)]
    ground.patch(JOB, {"spec": {"image": "example/other:1"}})
    until(lambda: "deletionTimestamp" in (ground.get(TRAINER) or {"metadata": {"deletionTimestamp"}})["metadata"])
    if ground.get(TRAINER) is not None:
        ground.patch(TRAINER, {"metadata": {"finalizers": None}})  # no garbage collector runs here
    until(ground.is_complete)
    assert all(uid != ground.get(ref)["metadata"]["uid"] for ref, uid in zip((CLUSTER, TRAINER), before, strict=True))
    until(lambda: _asked_why(ground))
    ground.trainer_ends()
    until(lambda: [ground.get(ref) for ref in (WORKERS, CLUSTER, JOB)], [None, None, None])


def _asked_why(ground: Field) -> bool:
    """Whether the pod has been pending for long enough that its events were read."""
    assert ground.calls is not None
    return any(line.startswith("GET ") and "/events?" in line for line in ground.calls.read_text().splitlines())
