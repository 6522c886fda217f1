"""Code and data of one's own in real pods: each way trains the weights of the same modules on one machine.

The commands of docs/own-code.md, with which a folder becomes a ConfigMap, are run by test_docs.py.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from real_job import SMALL, RealJob, until
from safetensors.numpy import save_file

from cluster import images
from cluster.local import LocalCluster

SPIRAL = Path(__file__).parents[2] / "examples" / "spiral"
IMAGE = "localhost/own-spiral:dev"
LOADS = """\
from dataclasses import replace
from pathlib import Path

import numpy as np
import spiral
import torch


class Points:
    def __init__(self, folder):
        self.points = np.load(folder / "points.npy", mmap_mode="r")
        self.sides = np.load(folder / "sides.npy", mmap_mode="r")

    def __len__(self):
        return len(self.points)

    def __getitem__(self, index):
        return torch.from_numpy(self.points[index].copy()), torch.tensor(self.sides[index])


def workload(folder):
    return replace(spiral.workload(), train=Points(Path(folder)))
"""

MakeJob = Callable[..., RealJob]


def spiral(**workload: Any) -> dict[str, Any]:
    """The example with ten epochs and two workers at the end."""
    body: dict[str, Any] = yaml.safe_load((SPIRAL / "job.yaml").read_text())
    body["spec"] |= {"epochs": 10, "batch": {"initial": 64, "maximum": 256, "growth": GROWS}, "workers": WORKERS}
    body["spec"]["resources"] = SMALL
    body["spec"]["workload"] |= workload
    return body


GROWS = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 4}}
WORKERS = {"examplesPerWorker": 128, "maximum": 2}


def sha256(job: RealJob) -> str:
    return str(job.succeeds()["trainerStatus"]["weightsSha256"])


def test_an_image_from_ours(
    local: LocalCluster, job: MakeJob, local_sha256: Callable[..., str], tmp_path: Path
) -> None:
    """With the module in a folder that PYTHONPATH names, as in the Dockerfile of the page."""
    (tmp_path / "spiral.py").write_text((SPIRAL / "spiral.py").read_text())
    images.load_with(local, "trainer", tmp_path, "/opt/own", IMAGE, PYTHONPATH="/opt/own")
    body = spiral()

    trained = job(body | {"spec": body["spec"] | {"image": IMAGE}})

    assert local_sha256(yaml.safe_dump(body), SPIRAL / "spiral.py") == sha256(trained)


def test_code_data_and_first_weights_on_a_claim(
    claim: str, job: MakeJob, local_sha256: Callable[..., str], tmp_path: Path
) -> None:
    """The claim is read-only in trainer and workers, and PYTHONPATH names a folder of it.

    A loader of each worker maps the data there and reads them ahead; here nothing reads ahead.
    """
    volume = tmp_path / "volume"
    random = np.random.default_rng(0)
    first = {f"{name}.bias": random.normal(size=size).astype("float32") for name, size in ((0, 64), (2, 64), (4, 1))}
    save_file(first, volume / "first.safetensors")
    np.save(volume / "points.npy", random.normal(size=(2000, 2)).astype("float32"))
    np.save(volume / "sides.npy", random.integers(2, size=2000).astype("float32"))
    (volume / "code").mkdir()
    modules = [volume / "code" / "spiral.py", volume / "code" / "loads.py"]
    for module, text in zip(modules, ((SPIRAL / "spiral.py").read_text(), LOADS), strict=True):
        module.write_text(text)
    for path in (volume, *volume.rglob("*")):
        path.chmod(0o755)
    here, there = (
        spiral(entrypoint="loads:workload", arguments={"folder": folder}) for folder in (str(volume), "/data")
    )
    for body, folder in ((here, str(volume)), (there, "/data")):
        body["spec"]["initialWeights"] = {"path": f"{folder}/first.safetensors", "match": "ByName"}
    there["spec"] |= {
        "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
        "env": [{"name": "PYTHONPATH", "value": "/data/code"}],
        "workers": WORKERS | {"loaders": 1},
    }

    assert local_sha256(yaml.safe_dump(here), *modules) == sha256(job(there))


def test_a_config_map_that_comes_late(job: MakeJob, local_sha256: Callable[..., str]) -> None:
    """The conditions name it, and the job continues once it is there; `items` give its modules their package."""
    late = spiral(entrypoint="own.spiral:workload")
    late["spec"]["workload"]["source"] = {
        "configMap": "own-code", "items": [{"key": "own.spiral.py", "path": "own/spiral.py"}]
    }  # fmt: skip
    waiting = job(late)
    until(
        "a condition that names the ConfigMap",
        lambda: "own-code" in waiting.condition("ClusterReady").get("message", ""), 120, waiting.story,
    )  # fmt: skip
    assert "ReferenceMissing" == waiting.condition("ClusterReady")["reason"]

    text = (SPIRAL / "spiral.py").read_text()
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own-code"}, "immutable": True}
    waiting.in_namespace("create", "--filename", "-", given=json.dumps(config_map | {"data": {"own.spiral.py": text}}))

    assert local_sha256(yaml.safe_dump(spiral()), SPIRAL / "spiral.py") == sha256(waiting)


@pytest.fixture
def other_pods(job: MakeJob) -> RealJob:
    """A job with variables, from itself and from a Secret, and resources for all of its pods."""
    body = spiral()
    body["spec"] |= {
        "env": [{"name": "WHERE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "envFrom": [{"secretRef": {"name": "tokens"}}],
        "resources": {"requests": {"cpu": "50m"}, "limits": {"memory": "2Gi"}},
    }
    return job(body)


def test_a_secret_that_is_missing(other_pods: RealJob) -> None:
    """The API server takes pods with these parts, and the conditions name what they lack."""
    until(
        "a condition that names the Secret",
        lambda: "tokens" in other_pods.condition("ClusterReady").get("message", ""), 120, other_pods.story,
    )  # fmt: skip
    [worker, *_] = other_pods.pods("worker")
    assert {"requests": {"cpu": "50m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}} == (
        worker["spec"]["containers"][0]["resources"]
    )
