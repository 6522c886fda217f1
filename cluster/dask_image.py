"""An image of the Dask operator for a cluster that reaches no registry: the operator's own image, run otherwise."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from cluster.build import Say
from cluster.folders import cache
from cluster.images import whole_archive
from cluster.layers import without_last_layer

REPOSITORY = "localhost/dask-kubernetes-operator"
TAG = "dev"
# As the public image is run. Its chart sets user 1000, for whom kopf wants to know a name.
RUN: dict[str, Any] = {
    "User": "1000",
    "Env": [
        "PATH=/opt/batchgrowth/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME=/tmp",
        "USER=dask",
        "PYTHONUNBUFFERED=1",
    ],
    "Entrypoint": ["kopf", "run", "-m", "dask_kubernetes.operator.controller"],
    "Cmd": ["--liveness=http://0.0.0.0:8080/healthz", "--all-namespaces"],
    "Labels": {"org.opencontainers.image.title": "Dask operator"},
}


def archives_of_the_dask_operator(say: Say) -> list[Path]:
    """The archives of the image, in the order of their import; made now if they are not there.

    The operator's dependencies have dask-kubernetes among them, so its layers without the project's are the image.
    They are to be imported before the operator's, whose name the first of them bears.
    """
    whole = whole_archive("operator", say)
    key = hashlib.sha256(f"{whole.stem} {json.dumps(RUN)}".encode()).hexdigest()[:16]
    path = cache() / "images" / f"dask-operator-{key}.tar"
    if not path.exists():
        partial = path.with_suffix(".partial")
        without_last_layer(whole, partial, f"{REPOSITORY}:{TAG}", RUN)
        partial.rename(path)
    return [whole, path]
