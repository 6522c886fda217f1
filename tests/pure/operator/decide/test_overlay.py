"""The user's pod template over the operator's: what meets, what is replaced, what is refused."""

from typing import Any

import pytest
from batchgrowth.errors import SpecError
from batchgrowth_operator.decide.overlay import check_overlay, merged


@pytest.mark.parametrize(
    ("base", "overlay", "expected"),
    [
        ({"a": 1, "b": {"c": 1}}, {"b": {"d": 2}}, {"a": 1, "b": {"c": 1, "d": 2}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({"a": 1}, {"a": {"b": 1}}, {"a": {"b": 1}}),
        (
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]},
            {"env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"}]},
        ),
        (
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}]},
            {"volumeMounts": [{"mountPath": "/data", "name": "data"}]},
            {"volumeMounts": [{"mountPath": "/tmp", "name": "tmp"}, {"mountPath": "/data", "name": "data"}]},
        ),
    ],
)
def test_merging(base: Any, overlay: Any, expected: Any) -> None:
    assert expected == merged(base, overlay)


def worker(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", **fields}]}}


@pytest.mark.parametrize(
    "overlay",
    [
        {},
        {"metadata": {"labels": {"team": "red"}, "annotations": {"a": "b"}}},
        {"spec": {"nodeSelector": {"a": "b"}, "volumes": [{"name": "data", "emptyDir": {}}]}},
        worker(resources={"limits": {"cpu": "2"}}, env=[{"name": "MALLOC_TRIM_THRESHOLD_", "value": "1"}]),
        {"spec": {"containers": [{"name": "proxy", "image": "example/proxy:1", "command": ["proxy"]}]}},
    ],
)
def test_good_overlays(overlay: Any) -> None:
    check_overlay(overlay)


@pytest.mark.parametrize(
    ("overlay", "field"),
    [
        ({"metadata": []}, "spec.workers.template.metadata"),
        ({"spec": "x"}, "spec.workers.template.spec"),
        ({"spec": {"containers": "x"}}, "spec.workers.template.spec.containers"),
        ({"spec": {"containers": [{"image": "x"}]}}, "spec.workers.template.spec.containers"),
        (worker(env={"A": "1"}), "spec.workers.template.spec.containers.worker.env"),
        (
            {"metadata": {"labels": {"batchgrowth.dev/job": "x"}}},
            "spec.workers.template.metadata.labels.batchgrowth.dev/job",
        ),
        ({"spec": {"restartPolicy": "Never"}}, "spec.workers.template.spec.restartPolicy"),
        ({"spec": {"volumes": [{"name": "tmp"}]}}, "spec.workers.template.spec.volumes.tmp"),
        (worker(image="x"), "spec.workers.template.spec.containers.worker.image"),
        (worker(command=["x"]), "spec.workers.template.spec.containers.worker.command"),
        (
            worker(volumeMounts=[{"mountPath": "/tmp"}]),
            "spec.workers.template.spec.containers.worker.volumeMounts./tmp",
        ),
        (worker(env=[{"name": "OMP_NUM_THREADS"}]), "spec.workers.template.spec.containers.worker.env.OMP_NUM_THREADS"),
        (worker(env=[{"name": "DASK_DISTRIBUTED__COMM__X"}]), "spec.workers.template.spec.containers.worker.env."),
    ],
)
def test_what_belongs_to_the_operator_is_refused(overlay: Any, field: str) -> None:
    with pytest.raises(SpecError) as caught:
        check_overlay(overlay)

    [fault] = caught.value.faults
    assert fault.path.startswith(field)
    assert fault.remedy


def test_a_remedy_names_the_field_that_does_it() -> None:
    with pytest.raises(SpecError, match=r"give spec\.image"):
        check_overlay(worker(image="x"))
