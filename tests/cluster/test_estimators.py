"""An estimator on a Dask cluster of the user's, whose workers are pods that the estimator asks for."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from real_job import Kubectl, said

from cluster import images
from cluster.local import LocalCluster

EXAMPLES = Path(__file__).parents[2] / "examples"
NAME = "dask"
SAFE: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
SAFE_POD: dict[str, Any] = {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
CONNECTED = f"""
import os
from dask_kubernetes.operator import KubeCluster
cluster = KubeCluster.from_name("{NAME}", namespace=os.environ["NAMESPACE"], quiet=True)
"""
LISTING = """
from sklearn.base import clone
alone = clone(est).set_params(cluster=None, max_workers=1, random_state=est.seed_).fit(X, y)
assert alone.weights_sha256_ == est.weights_sha256_, "other weights"
"""
GROWING = (
    """
import torch
from batchgrowth_trainer import DaskClassifier
from batchgrowth_trainer.dampers import GeoDamp
from batchgrowth_trainer.workloads.digits import split
from sklearn.base import clone
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.2),
                                    nn.Linear(32, 10))

    def forward(self, x):
        return self.layers(x)

X, y = split()[0].tensors
est = DaskClassifier(
    Net, optimizer=torch.optim.Adam, optimizer__lr=0.01, batch_size=GeoDamp(initial=32, delay=1, factor=2),
    max_batch_size=128, grads_per_worker=32, max_workers=3, max_epochs=4, random_state=5, cluster=cluster,
    device="cpu", spec={"workers": {"wait_seconds": 300}, "batch": {"shard": 32}},
)
est.fit(X, y)
assert [row["n_workers"] for row in est.history_] == [1, 2, 3, 3], est.history_
"""
    + LISTING
)


@pytest.fixture
def dask_cluster(request: pytest.FixtureRequest, local: LocalCluster, kubectl: Kubectl, namespace: str) -> str:
    """The namespace of a DaskCluster that begins without workers; its pods have the trainer's image."""
    if request.config.getoption("--family") == "IPv6":
        pytest.skip("Dask's own scheduler answers probes on IPv4 alone: docs/decisions/0021-addresses.md")

    def container(role: str, *command: str, **more: Any) -> dict[str, Any]:
        env = [{"name": "HOME", "value": "/tmp"}]
        small = {"requests": {"cpu": "20m", "memory": "256Mi"}}
        own = {
            "name": role,
            "image": images.name_of("trainer"),
            "command": ["dask"],
            "args": [role, *command],  # KubeCluster.from_name reads them
            "env": env,
            "resources": small,
        }
        return {"containers": [own | more | {"securityContext": SAFE}], "securityContext": SAFE_POD}

    ports = [{"name": "tcp-comm", "containerPort": 8786}, {"name": "http-dashboard", "containerPort": 8787}]
    ready = {"httpGet": {"path": "/health", "port": "http-dashboard"}, "periodSeconds": 1}
    labels = {"dask.org/cluster-name": NAME, "dask.org/component": "scheduler"}
    body = {
        "apiVersion": "kubernetes.dask.org/v1",
        "kind": "DaskCluster",
        "metadata": {"name": NAME},
        "spec": {
            "worker": {"replicas": 0, "spec": container("worker", "--name", "$(DASK_WORKER_NAME)", "--nthreads=1")},
            "scheduler": {
                "spec": container("scheduler", ports=ports, readinessProbe=ready),
                "service": {
                    "type": "ClusterIP",
                    "selector": labels,
                    "ports": [
                        {"name": one["name"], "port": one["containerPort"], "targetPort": one["name"]} for one in ports
                    ],
                },
            },
        },
    }
    said(kubectl("--namespace", namespace, "create", "--filename", "-", given=json.dumps(body)))
    return namespace


@pytest.mark.parametrize("which", ["the paper's listing", "a batch that grows"])
def test_pods_change_nothing(
    local: LocalCluster, dask_cluster: str, kubectl: Kubectl, which: str, tmp_path: Path
) -> None:
    """The weights are those of one process; the listing of the paper differs in its imports, and in its cluster."""
    script = CONNECTED + GROWING
    workers = 3
    if which == "the paper's listing":
        listing, fit, after = (EXAMPLES / "paper_listing.py").read_text().partition("est.fit(X, y)")
        assert fit
        script = f"{CONNECTED}{listing}est.set_params(cluster=cluster)\n{fit}{after}{LISTING}"
        workers = 4  # GeoDamp begins with 128 examples, and a worker gets 32
    (tmp_path / "script.py").write_text(script)
    environment = os.environ | {"KUBECONFIG": str(local.kubeconfig), "NAMESPACE": dask_cluster}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [group] = json.loads(said(kubectl("--namespace", dask_cluster, "get", "daskworkergroups", "--output=json")))[
        "items"
    ]
    assert group["spec"]["worker"]["replicas"] == workers
