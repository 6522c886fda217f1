"""A worker pod that begins to compute wrongly is found, named and replaced; the weights are those of one worker."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.choices import EXCHANGES
from real_job import RealJob, example_job

USER_CODE = Path(__file__).parents[1] / "dask" / "user_code"
MODULES = [USER_CODE / "slow_digits.py", USER_CODE / "wrong_bit.py"]
EXACT = [name for name, entry in EXCHANGES.items() if entry.promise == "Exact" and name != "SingleProcess"]
GOOD_SHARDS = 40
"""Shards that the faulty pod computes rightly before it errs, in every one of its shards."""

MakeJob = Callable[..., RealJob]


def of_three(**parts: Any) -> dict[str, Any]:
    """The digits job on three workers from the beginning, each with a shard of the first batch."""
    growth = {"type": "Geometric", "geometric": {"factor": "2", "everyEpochs": 6}}
    return example_job(
        epochs=12,
        batch={"initial": 96, "maximum": 192, "shard": 32, "growth": growth},
        workers={"examplesPerWorker": 32, "minimum": 3, "maximum": 3, "waitSeconds": 600},
        **parts,
    )


@pytest.mark.fault("C26")
@pytest.mark.long
@pytest.mark.parametrize("exact", EXACT)
def test_a_pod_that_computes_wrongly_changes_nothing(
    claim: str, job: MakeJob, local_sha256: Callable[..., str], tmp_path: Path, exact: str
) -> None:
    """The claim keeps which process is faulty, so the container that replaces it computes rightly."""
    arguments = {"folder": "/faults", "times": "1", "good": str(GOOD_SHARDS)}
    body = of_three(
        exchange={"type": exact},
        workload={
            "entrypoint": "wrong_bit:workload",
            "arguments": arguments,
            "examples": 1437,
            "source": {"configMap": "wrong-bit"},
        },
        volumes=[{"name": "faults", "persistentVolumeClaim": {"claimName": claim}}],
        volumeMounts=[{"name": "faults", "mountPath": "/faults"}],
        checkpoint={"everySeconds": 2},
    )
    running = job(body)
    data = {module.name: module.read_text() for module in MODULES}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "wrong-bit"}, "data": data}
    running.in_namespace("create", "--filename", "-", given=json.dumps(config_map))

    status = running.succeeds()

    alone = of_three(workload={"entrypoint": "slow_digits:workload", "examples": 1437})
    assert local_sha256(yaml.safe_dump(alone), MODULES[0]) == status["trainerStatus"]["weightsSha256"]
    [found] = status["findings"]
    [wrong] = found["workers"]
    assert f"worker {wrong['pod']} " in found["cause"]
    assert "the gradient of model." in found["cause"]
    assert found["update"] < found["reached"]
    assert [path.name for path in (tmp_path / "volume").iterdir()] == ["0.claimed"]
