"""The rights that the chart gives to the operator, next to the calls that it makes in a life."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml
from batchgrowth import names
from batchgrowth_operator.server.kinds import KINDS
from operator_field import CLUSTER, JOB, ROOT, TRAINER, WORKERS, Field, until

from cluster.apiserver import ApiServer

RULES = ROOT / "charts" / "batchgrowth" / "templates" / "_rules.tpl"
CRDS = {"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"], "verbs": ["list", "watch"]}
ASKED_FIRST = {("", "namespaces", "list"), ("", "namespaces", "watch")}
"""kopf asks, takes a no for an answer, and goes on with the namespaces that it was given."""

Grant = tuple[str, str, str]
"""Group, resource, verb."""

_PATH = re.compile(r"/(?:api/v1|apis/([^/]+)/[^/]+)(?:/namespaces/[^/]+)?/([a-z]+)(?:/([^/]+)(?:/([a-z]+))?)?")


def rules_of_the_chart() -> list[dict[str, Any]]:
    """What the chart's ClusterRole says; there is nothing in it for helm to fill in."""
    found = re.search(r"\{\{- define .*?\}\}\n(.*)\{\{- end \}\}", RULES.read_text(), re.DOTALL)
    assert found is not None
    rules: list[dict[str, Any]] = yaml.safe_load(found[1])
    return [*rules, CRDS]


def grants(rules: list[dict[str, Any]]) -> set[Grant]:
    """Everything that rules allow."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def needed_for(method: str, url: str) -> Iterator[Grant]:
    """The rights that the API server asks for before it does this."""
    parts = urlsplit(url)
    found, query = _PATH.fullmatch(parts.path), parse_qs(parts.query)
    if found is None:
        return  # discovery: anybody may
    group, plural, name, subresource = found.groups()
    resource = f"{plural}/{subresource}" if subresource else plural
    reads = "get" if name else "watch" if "watch" in query else "list"
    yield group or "", resource, {"GET": reads, "POST": "create", "PUT": "update"}.get(method, method.lower())
    if method == "PATCH" and "fieldManager" in query and not subresource:
        yield group or "", resource, "create"  # server-side apply makes what is not there


def test_each_right_is_used_and_each_call_is_granted(
    make_field: Callable[[], Field], apiserver: ApiServer, tmp_path: Path
) -> None:
    """A life in which everything happens that the operator has an answer to, with the chart's rights and no others."""
    name = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "operator-of-tests"}}
    bound = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "operator-of-tests"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "operator"}],
    }
    rules = rules_of_the_chart()
    for body in ({"kind": "ClusterRole", "rules": rules}, {"kind": "ClusterRoleBinding", **bound}):
        applied = apiserver.kubectl("apply", "-f", "-", given=json.dumps(name | body))
        assert 0 == applied.returncode, applied.stderr
    ground = make_field()
    ground.kubeconfig = apiserver.client("operator", "operator")
    ground.start(calls=tmp_path / "calls")

    live_through_everything(ground)

    ground.stop()
    calls = [line.split(" ", 1) for line in (tmp_path / "calls").read_text().splitlines()]
    used = {grant for method, url in calls for grant in needed_for(method, url)}
    assert grants(rules) == used - ASKED_FIRST


def live_through_everything(ground: Field) -> None:
    """Growth, a pod that is held up, another image, the end, and the time to live after it."""
    ground.apply(ttlSecondsAfterFinished=5)
    until(ground.is_complete)
    pod = {
        "metadata": {"name": "held-up", "labels": names.labels("digits", "worker")},
        "spec": {"containers": [{"name": "worker", "image": "none"}]},
    }
    ground.api._send("post", KINDS["Pod"], KINDS["Pod"].path(ground.namespace), body=pod)
    ground.workers_come()
    ground.report(440)
    until(ground.replicas, 4)
    before = [ground.get(ref)["metadata"]["uid"] for ref in (CLUSTER, TRAINER)]
    ground.patch(JOB, {"spec": {"image": "example/other:1"}})
    until(lambda: "deletionTimestamp" in (ground.get(TRAINER) or {"metadata": {"deletionTimestamp"}})["metadata"])
    if ground.get(TRAINER) is not None:
        ground.patch(TRAINER, {"metadata": {"finalizers": None}})  # the controller that does this is not here
    until(ground.is_complete)
    assert all(uid != ground.get(ref)["metadata"]["uid"] for ref, uid in zip((CLUSTER, TRAINER), before, strict=True))
    until(lambda: _asked_why(ground))
    ground.trainer_ends()
    until(lambda: [ground.get(ref) for ref in (WORKERS, CLUSTER, JOB)], [None, None, None])


def _asked_why(ground: Field) -> bool:
    """Whether the pod has waited for so long that its events were read."""
    assert ground.calls is not None
    return any(line.startswith("GET ") and "/events?" in line for line in ground.calls.read_text().splitlines())
