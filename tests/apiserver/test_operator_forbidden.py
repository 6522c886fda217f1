"""An operator whose account lacks a permission."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from operator_field import PLAN, Field, until
from test_operator_rights import rules_of_the_chart

from cluster.apiserver import ApiServer


def without(resource: str, verb: str) -> list[dict[str, Any]]:
    """The rules of the chart without one permission."""
    whole = [
        {"apiGroups": rule["apiGroups"], "resources": [each], "verbs": rule["verbs"]}
        for rule in rules_of_the_chart()
        for each in rule["resources"]
    ]
    return [r | {"verbs": [v for v in r["verbs"] if (r["resources"], v) != ([resource], verb)]} for r in whole]


def grant(server: ApiServer, user: str, rules: list[dict[str, Any]]) -> None:
    group = "rbac.authorization.k8s.io"
    name = {"apiVersion": f"{group}/v1", "metadata": {"name": user}}
    bound = {
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": user},
        "subjects": [{"apiGroup": group, "kind": "User", "name": user}],
    }
    for body in ({"kind": "ClusterRole", "rules": rules}, {"kind": "ClusterRoleBinding", **bound}):
        applied = server.kubectl("apply", "-f", "-", given=json.dumps(name | body))
        assert applied.returncode == 0, applied.stderr


@contextmanager
def operator(kubeconfig: Path, namespace: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    words = ["--image", "example/trainer:1", "--kubeconfig", str(kubeconfig), "--namespace", namespace]
    with (
        log.open("wb") as stderr,
        subprocess.Popen([sys.executable, "-m", "batchgrowth_operator", *words], stderr=stderr) as started,
    ):
        try:
            yield started
        finally:
            started.kill()


@pytest.mark.fault("B11")
@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_missing_permission_is_logged_in_a_line(
    make_field: Callable[[], Field], apiserver: ApiServer, tmp_path: Path, verb: str
) -> None:
    """The line names verb, resource and remedy; the operator keeps retrying and works once it has the permission."""
    ground, user, log = make_field(), f"lacks-{verb}", tmp_path / "log"
    grant(apiserver, user, without("pods", verb))
    kubeconfig = apiserver.client(user, user)
    ground.apply()

    def refusals() -> list[str]:
        return [line for line in log.read_text().splitlines() if f"cannot {verb} resource" in line]

    with operator(kubeconfig, ground.namespace, log) as process:
        until(lambda: len(refusals()) >= 2, seconds=120)
        for line in refusals():
            assert 'resource "pods"' in line
            assert "the chart's roles have every permission that the operator needs; retrying in" in line
        assert re.findall("Traceback|Request attempt", log.read_text()) == []
        assert None is process.poll()

        grant(apiserver, user, rules_of_the_chart())

        until(lambda: ground.get(PLAN) is not None, seconds=120)
