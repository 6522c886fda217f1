"""An image of the Dask operator for a cluster without a registry, from the layers of our operator's image."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cluster.build import Say
from cluster.images import archive_upon, only, whole_archive
from cluster.layers import without_last_layer

REPOSITORY = "localhost/dask-kubernetes-operator"
TAG = "dev"
# As the public image runs. Its chart sets user 1000, whose name kopf looks up.
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
    """Return the image's archives in import order; make them unless cached.

    The operator depends on dask-kubernetes, so its image without the project's layer is the Dask operator's.
    Import them before the operator's archives: the first one bears that image's name.
    """
    whole = whole_archive("operator", say)
    path = archive_upon(whole, "dask-operator", json.dumps(RUN))
    if not path.exists():
        partial = path.with_suffix(".partial")
        without_last_layer(whole, partial, f"{REPOSITORY}:{TAG}", RUN)
        partial.rename(path)
        only(path, "dask-operator-*")
    return [whole, path]
