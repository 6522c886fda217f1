"""The chart on a cluster, installed by helm as a user does it."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from charts import dask_operator
from charts.folders import CHART
from cluster import dask_image, images
from cluster.build import Say, silence, tool
from cluster.errors import HarnessError
from cluster.local import LocalCluster
from cluster.locks import alone
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
    say: Say = silence,
) -> str:
    """What helm said once every pod is ready: the release is installed, or upgraded to exactly these values.

    The namespace is made where it is not there, and takes pods of the profile "restricted" alone.
    The cluster of this machine is given the images of this working tree first, and the operator is started anew if its
    image changed; any other cluster has to find the images that the values name.
    HarnessError with helm's words if it does not come to that.
    """
    first = load_images(cluster, say) if isinstance(cluster, LocalCluster) else cluster.values
    _make_namespace(cluster, namespace)
    say(f"installing the chart as {release} in the namespace {namespace} …")
    with alone("chart"):
        dask_operator.vendor(CHART / "charts")
        words = ("upgrade", "--install", release, CHART, "--namespace", namespace, "--wait", "--timeout", PATIENCE)
        return _with_values(cluster, words, [first, values or {}])


def uninstall(cluster: Cluster, namespace: str = NAMESPACE, *, release: str = RELEASE) -> str:
    """What helm said once what the release made is gone, its pods too; its CRD, and with it every job, stays."""
    words = ("uninstall", release, "--namespace", namespace, "--wait", "--cascade", "foreground")
    return helm(cluster, *words, "--timeout", PATIENCE)


def check(cluster: Cluster, namespace: str = NAMESPACE, *, release: str = RELEASE) -> str:
    """What `helm test` said; HarnessError where the test fails, and then its pod is there with what it found."""
    return helm(cluster, "test", release, "--namespace", namespace, "--timeout", PATIENCE)


def helm(cluster: Cluster, *arguments: Argument) -> str:
    """What helm said; HarnessError if it fails. It leaves nothing in the user's own folders."""
    with tempfile.TemporaryDirectory(prefix="batchgrowth-helm-") as home:
        own = {f"HELM_{kind}_HOME": home for kind in ("CACHE", "CONFIG", "DATA")}
        words = [tool(TOOLS, "helm"), "--kubeconfig", cluster.kubeconfig, *arguments]
        return output(words, environment=own)


def load_images(cluster: LocalCluster, say: Say = silence) -> Values:
    """The values that name the images of this working tree, which the cluster has now."""
    with alone("images"):
        images.load(cluster, dask_image.archives_of_the_dask_operator(say))
        images.load(cluster, images.archives_of("trainer", say))
        operator = images.archives_of("operator", say)
        images.load(cluster, operator)
    return {
        "image": _image("operator"),
        "trainer": {"image": _image("trainer")},
        # The tag never changes; by this the Deployment does when the image did.
        "podAnnotations": {"batchgrowth.dev/image": operator[-1].stem},
        "dask-kubernetes-operator": {"image": {"name": dask_image.REPOSITORY, "tag": dask_image.TAG}},
    }


def _image(target: str) -> dict[str, str]:
    repository, _, tag = images.name_of(target).rpartition(":")
    return {"repository": repository, "tag": tag}


def _make_namespace(cluster: Cluster, namespace: str) -> None:
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace, "labels": RESTRICTED}}
    applied = cluster.kubectl("apply", "--filename", "-", given=json.dumps(body))
    if applied.returncode:
        raise HarnessError(f"the namespace {namespace}: {applied.stderr.strip()}")


def _with_values(cluster: Cluster, words: Sequence[Argument], given: Sequence[Values]) -> str:
    """What helm said, given each of the values as a file; the later ones go before the earlier."""
    with tempfile.TemporaryDirectory(prefix="batchgrowth-values-") as folder:
        files: list[Argument] = []
        for place, values in enumerate(given):
            path = Path(folder) / f"{place}.yaml"
            path.write_text(json.dumps(values))
            files += ["--values", path]
        return helm(cluster, *words, *files)
