"""A user's pod template for workers: which parts it may set, and which the operator owns."""

from typing import Any

import pytest
from batchgrowth.spec.pods import template_faults
from batchgrowth.spec.workers import Workers
from pydantic import ValidationError


def worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


@pytest.mark.parametrize(
    "overlay",
    [
        {},
        {"metadata": {"labels": {"team": "red"}, "annotations": {"a": "b"}}},
        worker(
            env=[
                {"name": "BATCHGROWTH_LOG_LEVEL", "value": "debug"},
                {"name": "BATCHGROWTH_LOG_FORMAT", "value": "json"},
            ]
        ),
        {"spec": {"nodeSelector": {"a": "b"}, "volumes": [{"name": "data", "emptyDir": {}}]}},
        worker(resources={"limits": {"cpu": "2"}}, env=[{"name": "MALLOC_TRIM_THRESHOLD_", "value": "1"}]),
        {"spec": {"containers": [{"name": "proxy", "image": "example/proxy:1", "command": ["proxy"]}]}},
    ],
)
def test_good_templates(overlay: Any) -> None:
    assert overlay == Workers(template=overlay).template


@pytest.mark.fault("A15")
@pytest.mark.parametrize(
    ("overlay", "field"),
    [
        ({"metadata": []}, "spec.workers.template.metadata"),
        ({"spec": "x"}, "spec.workers.template.spec"),
        ({"metadata": {"labels": [{"a": "b"}]}}, "spec.workers.template.metadata.labels"),
        ({"spec": {"volumes": [{"name": 1}]}}, "spec.workers.template.spec.volumes"),
        ({"spec": {"containers": "x"}}, "spec.workers.template.spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.workers.template.spec.containers"),
        (worker(env={"A": "1"}), "spec.workers.template.spec.containers.worker.env"),
        (
            {"metadata": {"labels": {"batchgrowth.dev/job": "x"}}},
            "spec.workers.template.metadata.labels.batchgrowth.dev/job",
        ),
        ({"spec": {"restartPolicy": "Never"}}, "spec.workers.template.spec.restartPolicy"),
        ({"spec": {"serviceAccount": "admin"}}, "spec.workers.template.spec.serviceAccount"),
        ({"spec": {"volumes": [{"name": "tmp"}]}}, "spec.workers.template.spec.volumes.tmp"),
        (worker(image="x"), "spec.workers.template.spec.containers.worker.image"),
        (worker(command=["x"]), "spec.workers.template.spec.containers.worker.command"),
        (
            worker(volumeMounts=[{"mountPath": "/tmp"}]),
            "spec.workers.template.spec.containers.worker.volumeMounts./tmp",
        ),
        (worker(env=[{"name": "OMP_NUM_THREADS"}]), "spec.workers.template.spec.containers.worker.env.OMP_NUM_THREADS"),
        (worker(env=[{"name": "BATCHGROWTH_SCHEDULER"}]), "spec.workers.template.spec.containers.worker.env."),
        (worker(env=[{"name": "DASK_DISTRIBUTED__COMM__X"}]), "spec.workers.template.spec.containers.worker.env."),
        (worker(env=[{"name": "POD_NAME"}]), "spec.workers.template.spec.containers.worker.env.POD_NAME"),
        (
            worker(volumeMounts=[{"mountPath": "/etc/batchgrowth/tls"}]),
            "spec.workers.template.spec.containers.worker.volumeMounts./etc/batchgrowth/tls",
        ),
    ],
)
def test_what_the_operator_owns_is_refused(overlay: Any, field: str) -> None:
    [(path, _, remedy)] = template_faults(overlay)
    assert f"spec.workers.template.{path}".startswith(field)
    assert remedy


def test_a_remedy_names_the_field_to_use() -> None:
    with pytest.raises(ValidationError, match=r"give spec\.image"):
        Workers(template=worker(image="x"))


@pytest.mark.fault("A15")
def test_all_owned_parts_are_named_at_once() -> None:
    overlay = worker(image="x", command=["x"]) | {"metadata": {"labels": {"batchgrowth.dev/role": "x"}}}
    assert [path for path, *_ in template_faults(overlay)] == [
        "metadata.labels.batchgrowth.dev/role",
        "spec.containers.worker.command",
        "spec.containers.worker.image",
    ]
