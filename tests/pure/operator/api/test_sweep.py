"""The sweep finds changes that the watches missed."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.spec import KIND
from batchgrowth_operator.api import cache
from batchgrowth_operator.api.cache import Key, Store, Sweep
from batchgrowth_operator.api.client import JOBS, WATCHED, Refused
from batchgrowth_operator.seen.observed import Ref

KEY = Key("default", "digits")
PLAN = Ref("ConfigMap", "digits-plan")


def config_map(version: int, name: str = "digits-plan", namespace: str = "default") -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "resourceVersion": str(version)}
    return {"kind": "ConfigMap", "metadata": metadata | {"labels": {names.JOB_LABEL: "digits"}}}


@dataclass
class FakeApi:
    """An API server with these objects; `asked` records the lists of single objects."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    fault: Exception | None = None
    asked: list[str] = field(default_factory=list)
    swept: list[tuple[str, str, str | None]] = field(default_factory=list)

    def listed(self, kind: str, namespace: str, label_selector: str | None) -> Any:
        self.swept.append((kind, namespace, label_selector))
        if self.fault is not None:
            raise self.fault
        places = ("", *(body["metadata"]["namespace"] for body in self.objects))
        return [body for body in self.objects if body["kind"] == kind and namespace in places]

    def list_of(self, kind: str, namespace: str, field_selector: str) -> Any:
        self.asked.append(field_selector)
        return [body for body in self.objects if f"metadata.name={body['metadata']['name']}" == field_selector]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "GRACE_SECONDS", 0.001)
    monkeypatch.setattr(cache, "SWEEP_SECONDS", 0.001)


def swept(api: FakeApi, store: Store, namespace: str = "") -> list[Key]:
    return asyncio.run(Sweep(api, store).sweep("ConfigMap", namespace))  # type: ignore[arg-type]


def test_nothing_is_read_if_the_store_is_up_to_date() -> None:
    store, api = Store(), FakeApi([config_map(3)])
    store.update(config_map(3))

    assert swept(api, store) == []
    assert api.asked == []
    assert [("ConfigMap", "", names.JOB_LABEL)] == api.swept


@pytest.mark.fault("B06", "B07", "B08")
def test_a_deleted_object_is_discarded() -> None:
    store = Store()
    store.update(config_map(3))

    assert swept(FakeApi(), store) == [KEY]
    assert store.refs(KEY) == ()


@pytest.mark.fault("B06", "B07", "B08")
@pytest.mark.parametrize("known", [None, 3])
def test_a_newer_object_is_read(known: int | None) -> None:
    store = Store()
    if known:
        store.update(config_map(known))

    assert swept(FakeApi([config_map(4)]), store) == [KEY]
    assert store.versions("ConfigMap") == {(KEY, PLAN): 4}


@pytest.mark.fault("B07")
def test_an_older_object_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions go back if etcd is restored from a backup. A response that arrives later is newer than the list."""
    store, api = Store(), FakeApi([config_map(4), config_map(5, "digits-progress")])
    store.update(config_map(9))
    store.update(config_map(9, "digits-progress"))
    list_of = api.list_of

    def slow(kind: str, namespace: str, field_selector: str) -> Any:
        found = list_of(kind, namespace, field_selector)
        if field_selector.endswith("digits-progress"):
            store.update(config_map(10, "digits-progress"))
        return found

    monkeypatch.setattr(api, "list_of", slow)

    assert swept(api, store) == [KEY, KEY]
    assert {ref.name: version for (_, ref), version in store.versions("ConfigMap").items()} == {
        "digits-plan": 4,
        "digits-progress": 10,
    }


@pytest.mark.fault("B06")
def test_what_was_read_wakes_its_job_though_the_next_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The store has it by then, so no later sweep would find it."""
    store, api = Store(), FakeApi([config_map(4), config_map(5, "digits-progress")])
    list_of = api.list_of

    def reset(kind: str, namespace: str, field_selector: str) -> Any:
        if field_selector.endswith("digits-progress"):
            raise ConnectionResetError("the API server restarts")
        return list_of(kind, namespace, field_selector)

    monkeypatch.setattr(api, "list_of", reset)
    assert swept(api, store) == [KEY]
    assert caplog.messages == ["default/digits: cannot read ConfigMap digits-progress: the API server restarts"]

    monkeypatch.undo()
    monkeypatch.setattr(cache, "GRACE_SECONDS", 0.001)
    assert swept(api, store) == [KEY]
    assert swept(api, store) == []


def test_an_object_that_a_watch_reports_within_the_grace_time_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    store, api = Store(), FakeApi([config_map(4), config_map(9, "new")])
    for name in ("digits-plan", "old"):
        store.update(config_map(3, name))
    real_sleep = asyncio.sleep

    async def told(_: float) -> None:
        store.update(config_map(5))
        store.remove(config_map(6, "old"))
        store.update(config_map(9, "new"))
        await real_sleep(0)

    monkeypatch.setattr(asyncio, "sleep", told)

    assert swept(api, store) == []
    assert api.asked == []


def test_a_slow_namespace_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    swept_names: list[str] = []
    hangs = asyncio.Event()

    async def sweep(_: Sweep, kind: str, namespace: str = "") -> list[Key]:
        if namespace == "slow":
            await hangs.wait()
        swept_names.append(f"{namespace} {kind}")
        return []

    async def scene() -> None:
        sweeping = asyncio.create_task(Sweep(FakeApi(), Store(), ("slow", "other")).run(lambda _: None))  # type: ignore[arg-type]
        while len(swept_names) < 2 * len(JOBS | WATCHED):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    monkeypatch.setattr(cache, "SWEEP_SECONDS", 0.0)
    monkeypatch.setattr(Sweep, "sweep", sweep)
    asyncio.run(asyncio.wait_for(scene(), 60))
    assert {name.split()[0] for name in swept_names} == {"other"}


def test_an_object_that_lost_its_label_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in no list by label, but still the job's."""
    store, api = Store(), FakeApi([config_map(5)])
    store.update(config_map(3))
    monkeypatch.setattr(api, "listed", lambda *_: [])

    assert swept(api, store) == [KEY]
    assert store.versions("ConfigMap") == {(KEY, PLAN): 5}


def test_an_object_with_another_job_s_label_is_its_owner_s() -> None:
    """Somebody gave it the label of another job, and the operator has put the label back."""
    store, other = Store(), Key("default", "other")
    job = {"kind": KIND, "metadata": {"name": "digits", "namespace": "default", "resourceVersion": "1", "uid": "u"}}
    child = config_map(3)
    child["metadata"] |= {"uid": "c", "ownerReferences": [{"uid": "u"}]}
    relabelled = {
        **child,
        "metadata": child["metadata"] | {"resourceVersion": "4", "labels": {names.JOB_LABEL: "other"}},
    }
    put_back = {**child, "metadata": child["metadata"] | {"resourceVersion": "5"}}
    for body in (job, child, relabelled):
        store.update(body)

    assert KEY in swept(FakeApi([relabelled]), store)
    assert store.child(KEY, PLAN) == relabelled, "so that the next pass puts the label back"

    store.update(put_back)
    swept(FakeApi([put_back]), store)
    assert store.refs(other) == ()
    assert swept(FakeApi([put_back]), store) == []


@pytest.mark.parametrize(("controller", "is_kept"), [("digits-workers-5d", True), ("others", False)])
def test_a_pod_with_another_job_s_label_is_its_controller_s(controller: str, is_kept: bool) -> None:
    owner = {"kind": "ReplicaSet", "name": controller, "uid": "r", "controller": True}
    metadata = {"name": "p", "namespace": "default", "uid": "p", "resourceVersion": "3", "ownerReferences": [owner]}
    pod = {"kind": "Pod", "metadata": metadata | {"labels": {names.JOB_LABEL: "digits"}}}
    relabelled = {**pod, "metadata": metadata | {"resourceVersion": "4", "labels": {names.JOB_LABEL: "other"}}}
    store = Store()
    for body in (pod, relabelled):
        store.update(body)

    asyncio.run(Sweep(FakeApi([relabelled]), store).sweep("Pod"))  # type: ignore[arg-type]

    assert is_kept == (Ref("Pod", "p") in store.refs(KEY))


def test_other_namespaces_are_left_alone() -> None:
    store = Store()
    store.update(config_map(3, namespace="other"))

    assert swept(FakeApi(), store, "default") == []
    assert [Key("other", "digits")] == swept(FakeApi(), store, "other")


@pytest.mark.fault("B06")
@pytest.mark.parametrize(("namespaces", "places"), [((), {""}), (("default", "b"), {"default", "b"})])
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (None, "default/digits: the watch of ConfigMap missed a change, which a list found"),
        (Refused(403, "no"), "cannot list ConfigMap{}: no"),
        (RuntimeError("a fault of ours"), "the sweep of ConfigMap{} failed"),
    ],
)
def test_all_kinds_are_swept_repeatedly(
    namespaces: tuple[str, ...], places: set[str], fault: Exception | None, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    store, api, woken = Store(), FakeApi(fault=fault), []
    for place in places:
        store.update(config_map(3, namespace=place or "default"))

    async def scene() -> None:
        sweeping = asyncio.create_task(Sweep(api, store, namespaces).run(woken.append))  # type: ignore[arg-type]
        while len(api.swept) < 3 * len(JOBS | WATCHED) * len(places):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    asyncio.run(asyncio.wait_for(scene(), 60))

    assert {(kind, place) for kind in JOBS | WATCHED for place in places} == {(k, p) for k, p, _ in api.swept}
    assert {label for kind, _, label in api.swept if kind in JOBS} == {None}
    assert told.format(" in default" if namespaces else "") in caplog.text
    assert ([] if fault else sorted(Key(place or "default", "digits") for place in places)) == sorted(woken)
