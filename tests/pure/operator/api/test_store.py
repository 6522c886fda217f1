"""The store keeps the newest state, in whatever order watches and responses arrive."""

from itertools import count, permutations
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.api import cache as store_module
from batchgrowth_operator.api.cache import TOMBSTONE_SECONDS, Key, Store, key_of
from batchgrowth_operator.api.client import KINDS
from batchgrowth_operator.seen.observed import Ref, is_owned_by

KEY = Key("default", "digits")


def job(version: int) -> dict[str, Any]:
    return {
        "kind": "BatchGrowthJob",
        "metadata": {"name": "digits", "namespace": "default", "resourceVersion": str(version)},
    }


def child(version: int, kind: str = "Deployment", **fields: Any) -> dict[str, Any]:
    metadata = {"name": "digits-workers", "namespace": "default", "resourceVersion": str(version)}
    return {"kind": kind, "metadata": metadata | {"labels": {names.JOB_LABEL: "digits"}}, **fields}


def test_jobs_and_their_children() -> None:
    store = Store()
    assert (store.update(job(1)), store.update(child(2))) == (KEY, KEY)

    assert job(1) == store.job(KEY)
    assert {Ref("Deployment", "digits-workers"): child(2)} == store.children(KEY)
    assert None is store.job(Key("default", "other"))


@pytest.mark.fault("B08")
@pytest.mark.parametrize("order", list(permutations([("update", 2), ("update", 3), ("update", 1)])))
def test_the_newest_wins_in_any_order(order: Any) -> None:
    store = Store()
    for _, version in order:
        store.update(child(version))

    [found] = store.children(KEY).values()
    assert found["metadata"]["resourceVersion"] == "3"


@pytest.mark.fault("B08")
@pytest.mark.parametrize("order", list(permutations([("update", 2), ("remove", 3), ("update", 1)])))
def test_a_deleted_object_stays_deleted_in_any_order(order: Any) -> None:
    store = Store()
    store.update(job(1))
    for what, version in order:
        getattr(store, what)(child(version))

    assert store.children(KEY) == {}


@pytest.mark.fault("B08")
@pytest.mark.parametrize("order", list(permutations([("update", 2), ("remove", 3), ("update", 4)])))
def test_a_recreated_object_is_stored_in_any_order(order: Any) -> None:
    store = Store()
    store.update(job(1))
    for what, version in order:
        getattr(store, what)(child(version))

    assert len(store.children(KEY)) == 1


def test_nothing_is_kept_of_a_deleted_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not before the response to any write of it has arrived, which brings nothing back."""
    now, store = 0.0, Store()
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: now))
    store.update(job(1))
    store.update(child(2))
    store.remove(child(4))
    store.remove(job(6))
    store.update(job(5))
    store.update(child(3))

    assert store._objects == {}

    now += TOMBSTONE_SECONDS
    store.update({**job(7), "metadata": job(7)["metadata"] | {"name": "another"}})
    assert store._gone == {}


def test_a_read_from_the_api_server_overrides_an_equal_version() -> None:
    store = Store()
    store.update(job(1))
    store.remove(child(5))
    store.refresh(KEY, child(5))
    assert len(store.children(KEY)) == 1

    store.refresh(KEY, child(4))
    [found] = store.children(KEY).values()
    assert found["metadata"]["resourceVersion"] == "5"

    store.discard(KEY, Ref("Deployment", "digits-workers"))
    assert store.children(KEY) == {}


def test_fields_that_no_decision_needs_are_not_kept() -> None:
    store = Store()
    ending = {"terminated": {"exitCode": 3}}
    containers = [{"name": "worker", "ready": True, "state": ending, "imageID": "sha256:0", "resources": {}}]
    gated = {"schedulingGates": [{"name": "example.com/paid"}]}
    status = {"phase": "Running", "podIP": "10.0.0.1", "containerStatuses": containers}
    store.update(child(1, "Pod", spec={"containers": [], "nodeName": "n-1", **gated}, status=status))
    fields = child(2)
    fields["metadata"]["managedFields"] = []
    store.update(fields)

    kept = store.children(KEY)
    pod = kept[Ref("Pod", "digits-workers")]
    assert pod.keys() == {"kind", "status", "metadata", "spec"}
    assert pod["spec"] == {"nodeName": "n-1", **gated}, "for the names of nodes and of what holds pods back"
    assert pod["metadata"].keys() == {"name", "namespace", "labels", "resourceVersion"}
    kept_of_the_container = {"name": "worker", "ready": True, "state": ending}
    assert {"phase": "Running", "containerStatuses": [kept_of_the_container]} == pod["status"]
    assert "managedFields" not in kept[Ref("Deployment", "digits-workers")]["metadata"]


def test_what_others_manage_is_kept() -> None:
    """For the name of whoever changes a field against the operator; their status, and what is ours, is not."""
    store, fields = Store(), {"f:spec": {"f:replicas": {}}}
    body = child(1)
    body["metadata"]["managedFields"] = [
        {"manager": "batchgrowth-operator", "operation": "Apply", "fieldsV1": fields},
        {"manager": "kube-controller-manager", "operation": "Update", "subresource": "status", "fieldsV1": {}},
        {"manager": "hpa", "operation": "Update", "subresource": "scale", "fieldsV1": fields, "time": "now"},
    ]
    store.update(body)

    [kept] = store.children(KEY).values()
    assert [{"manager": "hpa", "subresource": "scale", "fieldsV1": fields}] == kept["metadata"]["managedFields"]


def test_stored_objects_are_compressed() -> None:
    """And each caller gets its own copy."""
    store = Store()
    store.update(child(1, spec={"containers": [{"name": f"c{n}", "image": "example/x:1"} for n in range(50)]}))
    [packed] = store._objects[KEY].values()
    assert len(packed.text) < 500

    [first] = store.children(KEY).values()
    first["spec"]["containers"].clear()

    [second] = store.children(KEY).values()
    assert len(second["spec"]["containers"]) == 50


def test_an_object_without_a_label_belongs_to_no_job() -> None:
    assert Key("default", "") == key_of({"kind": "Pod", "metadata": {"name": "x", "namespace": "default"}})


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("ConfigMap", "/api/v1/namespaces/n/configmaps/x/status"),
        ("BatchGrowthJob", "/apis/batchgrowth.dev/v1alpha1/namespaces/n/batchgrowthjobs/x/status"),
    ],
)
def test_paths(kind: str, path: str) -> None:
    assert path == KINDS[kind].path("n", "x", "status")


def test_api_versions() -> None:
    assert (KINDS["Pod"].api_version, KINDS["Deployment"].api_version) == ("v1", "apps/v1")


@pytest.mark.fault("B26")
def test_what_came_and_went_in_a_living_job_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """But not before the response to any write of it has arrived."""
    now, store, version = 0.0, Store(), count(2)
    monkeypatch.setattr(store_module, "time", SimpleNamespace(monotonic=lambda: now))
    store.update(job(1))

    def pod(name: int) -> dict[str, Any]:
        body = child(next(version), "Pod")
        body["metadata"]["name"] = f"digits-workers-{name}"
        return body

    for number in range(10_000):
        now += 1.0
        response = pod(number)
        store.update(pod(number))
        store.remove(pod(number))
        store.update(response)
        assert store.children(KEY) == {}
        assert len(store._gone) <= TOMBSTONE_SECONDS

    now += TOMBSTONE_SECONDS - 0.1
    store.update(response)
    assert (store.children(KEY), len(store._gone)) == ({}, 1)
    now += 0.1
    store.update(job(next(version)))
    assert store._gone == {}


@pytest.mark.parametrize(
    ("owners", "expected"), [([{"uid": "a"}, {"uid": "b"}], True), ([{"uid": "b"}], False), (None, False)]
)
def test_owners(owners: Any, expected: bool) -> None:
    assert is_owned_by({"metadata": {"ownerReferences": owners}}, "a") == expected


@pytest.mark.fault("B09")
def test_an_object_that_changed_since_is_not_discarded() -> None:
    store = Store()
    store.update(child(2))
    where = (KEY, Ref("Deployment", "digits-workers"))

    store.discard(*where, version=1)
    assert {where: 2} == store.versions("Deployment")
    store.discard(*where, version=2)
    assert store.versions("Deployment") == {}


def test_the_echo_of_a_write_after_which_nothing_follows() -> None:
    """Only that state of the job, and only if the response came before its echo."""
    store = Store()
    store.update(job(1))
    assert not store.is_progress_echo(job(1))
    store.update(job(5), is_progress_only=True)
    assert [store.is_progress_echo(job(version)) for version in (4, 5, 6)] == [False, True, False]
    assert not store.is_progress_echo(child(5))

    store.update(job(6))
    store.update(job(6), is_progress_only=True)
    assert not store.is_progress_echo(job(6)), "a pass may have been asked for already"

    store.remove(job(7))
    assert not store.is_progress_echo(job(5)), "it is gone, and its name may return"
