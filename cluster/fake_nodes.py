"""Nodes with GPUs that kwok simulates: their pods are Ready at once and compute nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from cluster.network import Network
from cluster.processes import Argument

ANNOTATION = "kwok.x-k8s.io/node"
STAGES = ("node-initialize", "node-heartbeat", "pod-ready", "pod-delete")


def kwok(program: Path, kubeconfig: Path, network: Network) -> list[Argument]:
    """Return the command line of kwok, which simulates the nodes with the annotation."""
    stages = [f"--config={program.parent / stage}.yaml" for stage in STAGES]
    return [
        program,
        f"--kubeconfig={kubeconfig}",
        f"--manage-nodes-with-annotation-selector={ANNOTATION}=fake",
        "--node-lease-duration-seconds=40",
        f"--cidr={network.fake_pods}",
        *stages,
    ]


def manifests(count: int, gpus: int) -> str:
    """Return the nodes fake-1 to fake-COUNT as YAML; only pods that tolerate their taint are scheduled there."""
    return yaml.safe_dump_all(_node(f"fake-{number}", gpus) for number in range(1, count + 1))


def _node(name: str, gpus: int) -> dict[str, Any]:
    labels = {
        "type": "kwok",
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    resources = {"cpu": "1000", "memory": "4Ti", "pods": "1000", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "annotations": {ANNOTATION: "fake"}, "labels": labels},
        "spec": {"taints": [{"key": ANNOTATION, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": resources, "capacity": resources},
    }
