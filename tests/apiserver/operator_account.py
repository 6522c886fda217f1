"""The chart's service account of the operator on an API server: its rights, its admission policies and its token."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from charts import dask_operator
from charts.folders import CHART
from cluster.apiserver import ApiServer
from cluster.build import tool
from cluster.processes import output
from cluster.recipe import KUBERNETES, TOOLS
from cluster.release import settings_of_helm

HOME, ACCOUNT = "operators", "batchgrowth"
KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")


def rendered(folder: Path, *arguments: str, release: str = ACCOUNT) -> list[dict[str, Any]]:
    """The objects of the chart, released in the namespace `operators`; hooks are left out."""
    copy = folder / CHART.name
    if not copy.exists():
        shutil.copytree(CHART, copy, ignore=shutil.ignore_patterns("charts"))
        dask_operator.vendor(copy / "charts")
    place = ("--namespace", HOME, "--kube-version", KUBERNETES, "--no-hooks", "-f", CHART / "ci" / "images-values.yaml")
    text = output(
        [tool(TOOLS, "helm"), "template", release, copy, *place, *arguments], environment=settings_of_helm(folder)
    )
    return [body for body in yaml.safe_load_all(text) if body and "dask-kubernetes" not in body["metadata"]["name"]]


def grant(server: ApiServer, objects: list[dict[str, Any]]) -> None:
    """Creates the account with its rights and policies."""
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}}
    wanted = [namespace, *(body for body in objects if body["kind"] in KINDS + POLICIES)]
    applied = server.kubectl("apply", "-f", "-", given=yaml.safe_dump_all(wanted))
    assert applied.returncode == 0, applied.stderr


def token_kubeconfig(server: ApiServer, path: Path, namespace: str, account: str) -> Path:
    """Writes a kubeconfig with a new token of the account."""
    made = server.kubectl("create", "token", account, "--namespace", namespace, "--duration=1h")
    assert made.returncode == 0, made.stderr
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"] = [{"name": account, "user": {"token": made.stdout.strip()}}]
    [context] = config["contexts"]
    context["context"]["user"] = account
    path.write_text(yaml.safe_dump(config))
    return path
