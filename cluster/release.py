"""Installing the chart on a cluster with helm, as a user does."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from charts import dask_operator
from charts.folders import CHART
from cluster import dask_image, images
from cluster.build import Say, silence, tool
from cluster.errors import HarnessError
from cluster.local import LocalCluster
from cluster.locks import alone
from cluster.network import IPV6
from cluster.processes import Argument, output
from cluster.recipe import TOOLS
from cluster.users import UsersCluster

NAMESPACE = "batchgrowth-system"
RELEASE = "batchgrowth"
PATIENCE = "180s"
RESTRICTED = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
Values = Mapping[str, Any]
Cluster = LocalCluster | UsersCluster


def install(
    cluster: Cluster,
    namespace: str = NAMESPACE,
    *,
    release: str = RELEASE,
    values: Values | None = None,
    user: str = "",
    say: Say = silence,
) -> str:
    """Installs the release, or upgrades it to exactly these values; returns helm's output when every pod is ready.

    Helm acts as the user if one is named.

    Creates the namespace if needed; it admits pods of the profile "restricted" only.
    Loads the images of this working tree into this machine's cluster first, and restarts the operator if its image
    changed; a user's cluster pulls the images that its values name.
    Raises HarnessError with helm's message.
    """
    first = load_images(cluster, say) if isinstance(cluster, LocalCluster) else cluster.values
    _create_namespace(cluster, namespace)
    say(f"installing the chart as {release} in the namespace {namespace} …")
    with alone("chart"):
        dask_operator.vendor(CHART / "charts")
        words = ("upgrade", "--install", release, CHART, "--namespace", namespace, "--wait", "--timeout", PATIENCE)
        as_user = ("--kube-as-user", user) if user else ()
        return _with_values(cluster, (*words, *as_user), [first, values or {}])


def uninstall(cluster: Cluster, namespace: str = NAMESPACE, *, release: str = RELEASE) -> str:
    """Uninstalls the release and returns helm's output once its pods are gone; the CRD and all jobs stay."""
    words = ("uninstall", release, "--namespace", namespace, "--wait", "--cascade", "foreground")
    return helm(cluster, *words, "--timeout", PATIENCE)


def helm(cluster: Cluster, *arguments: Argument) -> str:
    """Return helm's output, with its state in a temporary folder. Raises HarnessError if it fails."""
    with tempfile.TemporaryDirectory(prefix="batchgrowth-helm-") as home:
        words = [tool(TOOLS, "helm"), "--kubeconfig", cluster.kubeconfig, *arguments]
        return output(words, environment=settings_of_helm(home))


def settings_of_helm(home: str | Path) -> dict[str, str]:
    """Return environment variables with which helm keeps its state in a folder, and takes no cluster from the user's.

    HELM_KUBEAPISERVER and its kin count for more than a kubeconfig.
    """
    own = {f"HELM_{kind}_HOME": str(home) for kind in ("CACHE", "CONFIG", "DATA")}
    return own | {name: "" for name in os.environ if name.startswith("HELM_KUBE")}


def load_images(cluster: LocalCluster, say: Say = silence) -> Values:
    """Load the images of this working tree into the cluster; return the chart values for it, which name them."""
    with alone("images"):
        images.load(cluster, dask_image.archives_of_the_dask_operator(say))
        images.load(cluster, images.archives_of("trainer", say))
        operator = images.archives_of("operator", say)
        images.load(cluster, operator)
    dask: dict[str, Any] = {}
    if cluster.network is IPV6:
        dask = yaml.safe_load((CHART / "ci" / "ipv6-values.yaml").read_text())["dask-kubernetes-operator"]
    return {
        "image": _image("operator"),
        "trainer": {"image": _image("trainer")},
        # The tag never changes; this annotation restarts the Deployment when the image changes.
        "podAnnotations": {"batchgrowth.dev/image": operator[-1].stem},
        "dask-kubernetes-operator": {
            "image": {"name": dask_image.REPOSITORY, "tag": dask_image.TAG},
            # Without a request it gets no processor time beside pods that train, and fails its liveness probe.
            "resources": {"requests": {"cpu": "200m"}},
            **dask,
        },
    }


def _image(target: str) -> dict[str, str]:
    repository, _, tag = images.name_of(target).rpartition(":")
    return {"repository": repository, "tag": tag}


def _create_namespace(cluster: Cluster, namespace: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": RESTRICTED}}
    applied = cluster.kubectl("apply", "--filename", "-", given=json.dumps(body))
    if applied.returncode:
        raise HarnessError(f"the namespace {namespace}: {applied.stderr.strip()}")


def _with_values(cluster: Cluster, words: Sequence[Argument], given: Sequence[Values]) -> str:
    """Run helm with each of the values as a file; later ones override earlier ones."""
    with tempfile.TemporaryDirectory(prefix="batchgrowth-values-") as folder:
        files: list[Argument] = []
        for place, values in enumerate(given):
            path = Path(folder) / f"{place}.yaml"
            path.write_text(json.dumps(values))
            files += ["--values", path]
        return helm(cluster, *words, *files)
