"""Passes and queues, against an API server that is a dictionary."""

import asyncio
import copy
import itertools
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.contract.progress import Progress
from batchgrowth.contract.status import JobStatus
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth_operator import certificates
from batchgrowth_operator.api import observe
from batchgrowth_operator.api.apply import Writer
from batchgrowth_operator.api.cache import Key, Store
from batchgrowth_operator.api.client import Refused, ServerClock
from batchgrowth_operator.api.events import BURST, EventPoster
from batchgrowth_operator.api.observe import INQUIRY_SECONDS, RESYNC_SECONDS, SECRET_SECONDS, SETTLED_SECONDS, Observer
from batchgrowth_operator.children.dask_cluster import DASK_FINALIZER, RELEASED_AFTER_SECONDS
from batchgrowth_operator.job import announcements as told
from batchgrowth_operator.job import status as job_status
from batchgrowth_operator.job.reconcile import Writes
from batchgrowth_operator.loop import one_pass, queue
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.loop.one_pass import Reconciler
from batchgrowth_operator.loop.queue import Passes, PassResult, ProgressRate
from batchgrowth_operator.seen import situation
from batchgrowth_operator.seen.observed import Failure, Inquiry, Observed, Ref, ref_of, timestamp
from batchgrowth_operator.seen.problems import LONGEST_EVENT_AGE_SECONDS
from batchgrowth_operator.settings import Defaults
from prometheus_client import generate_latest

KEY = Key("default", "digits")
JOB = Ref("BatchGrowthJob", "digits")
SECRET, AUTHORITY = Ref("Secret", "digits-tls"), Ref("Secret", "digits-authority")
PLAN, PROGRESS = Ref("ConfigMap", "digits-plan"), Ref("ConfigMap", "digits-progress")
WORKERS, TRAINER = Ref("Deployment", "digits-workers"), Ref("Job", "digits-trainer")
CLUSTER = Ref("DaskCluster", "digits")


@dataclass
class FakeApi:
    """Stores applied objects, refuses those in `refused`, and records requests in `asked`."""

    objects: dict[Ref, dict[str, Any]] = field(default_factory=dict)
    refused: dict[Ref, Exception] = field(default_factory=dict)
    undeletable: dict[Ref, Refused] = field(default_factory=dict)
    happened: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    asked: list[tuple[str, Ref]] = field(default_factory=list)
    propagations: dict[Ref, str] = field(default_factory=dict)
    events: dict[str, dict[str, Any]] = field(default_factory=dict)
    version: int = 100
    clock: ServerClock = field(default_factory=ServerClock)

    def within(self, seconds: float) -> Any:
        return self

    def get(self, ref: Ref, namespace: str) -> Any:
        self.asked.append(("get", ref))
        return copy.deepcopy(self.objects.get(ref))

    def list_of(self, kind: str, namespace: str, label_selector: str = "", field_selector: str = "") -> Any:
        self.asked.append(("list", Ref(kind, field_selector or label_selector)))
        if Ref(kind, "") in self.refused:
            raise self.refused[Ref(kind, "")]
        return [copy.deepcopy(body) for ref, body in self.objects.items() if ref.kind == kind]

    def apply(self, manifest: Any, subresource: str = "") -> Any:
        ref = ref_of(manifest)
        self.asked.append(("apply", ref))
        if ref in self.refused:
            raise self.refused[ref]
        self.version += 1
        found = self.objects.setdefault(ref, {"metadata": {"uid": f"uid of {ref.name}"}})
        metadata = found["metadata"] | manifest["metadata"] | {"resourceVersion": str(self.version)}
        self.objects[ref] = {**found, **copy.deepcopy(manifest), "metadata": metadata}
        return copy.deepcopy(self.objects[ref])

    def delete(self, ref: Ref, namespace: str, uid: str, propagation: str) -> None:
        self.asked.append(("delete", ref))
        if ref in self.undeletable:
            raise self.undeletable[ref]
        self.propagations[ref] = propagation
        self.objects.pop(ref, None)

    def release(self, ref: Ref, namespace: str, version: str, finalizers: list[str]) -> None:
        self.asked.append(("release", ref))
        if ref in self.refused:
            raise self.refused[ref]
        if self.objects[ref]["metadata"]["resourceVersion"] == version:
            self.objects[ref]["metadata"]["finalizers"] = finalizers

    def warnings(self, namespace: str, uid: str) -> Any:
        self.asked.append(("list", Ref("Event", uid)))
        if Ref("Event", "") in self.refused:
            raise self.refused[Ref("Event", "")]
        return list(self.happened.get(uid, ()))

    def post_event(self, namespace: str, event: Any) -> None:
        self.asked.append(("post", Ref("Event", event["reason"])))
        self.events[event["metadata"]["name"]] = event
        if Ref("Event", event["reason"]) in self.refused:
            raise self.refused[Ref("Event", event["reason"])]

    def repeat_event(self, namespace: str, name: str, change: Any) -> bool:
        found = self.events.get(name)
        self.asked.append(("patch", Ref("Event", found["reason"] if found else name)))
        if found is not None:
            found |= change
        return found is not None

    def writes(self) -> list[tuple[str, Ref]]:
        return [(verb, ref) for verb, ref in self.asked if verb not in ("get", "list")]


@dataclass
class Setting:
    """The parts of an operator around a fake API server that has the example job."""

    api: FakeApi
    store: Store
    metrics: OperatorMetrics
    observer: Observer
    writer: Writer
    make_pass: Any

    def once(self, failures: tuple[Failure, ...] = ()) -> PassResult:
        result: PassResult = asyncio.run(self.make_pass(KEY, failures))
        self.post()
        return result

    def post(self) -> None:
        """Posts all events that wait."""
        while self.writer.poster.post_next() is not None:
            pass


@pytest.fixture
def setting(make_world: Any) -> Setting:
    api, store, metrics = FakeApi(), Store(), OperatorMetrics()
    job = make_world().job
    job["metadata"]["resourceVersion"] = "1"
    api.objects[JOB] = job
    store.update(job)
    observer = Observer(api, store)  # type: ignore[arg-type]
    writer = Writer(api, store, EventPoster(api))  # type: ignore[arg-type]
    make_pass = Reconciler(observer, writer, ProgressRate(Defaults(image="example/trainer:1")), metrics).make_pass
    return Setting(api, store, metrics, observer, writer, make_pass)


def test_one_pass_creates_everything_and_the_next_nothing(setting: Setting) -> None:
    assert PassResult(requeue_after_seconds=RESYNC_SECONDS) == setting.once()
    made = setting.api.writes()
    assert made[:1] == [("apply", JOB)]
    assert len([verb for verb, _ in made if verb == "apply"]) == 12

    setting.once()

    assert made == setting.api.writes()


@pytest.mark.parametrize(("of_job", "of_operator"), [("", "gpu"), ("gpu", ""), ("gpu", "cpu"), (None, "gpu")])
def test_a_job_of_another_class_is_left_alone(setting: Setting, of_job: str | None, of_operator: str) -> None:
    """Also one that this operator ran before its class was changed: nothing is deleted, and no Secret is read."""
    setting.once()
    job = setting.api.objects[JOB]
    metadata = job["metadata"] | {"resourceVersion": "1000"}
    setting.store.update({**job, "metadata": metadata, "spec": job["spec"] | {"operatorClass": of_job, "epochs": 7}})
    observer, writer = (
        Observer(setting.api, setting.store),
        Writer(setting.api, setting.store, EventPoster(setting.api)),
    )  # type: ignore[arg-type]
    make_pass = Reconciler(
        observer, writer, ProgressRate(Defaults(image="example/trainer:2")), setting.metrics, of_operator
    ).make_pass

    setting.api.asked.clear()
    assert PassResult() == asyncio.run(make_pass(KEY, ()))
    assert setting.api.asked == []
    assert b'namespace="default"' not in generate_latest(setting.metrics.registry)


def test_a_job_whose_class_changes_while_it_is_observed_is_left_alone(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(*_: Any) -> None:
        changed(setting, JOB, spec=setting.api.objects[JOB]["spec"] | {"operatorClass": "gpu"})

    monkeypatch.setattr(setting.api, "get", change)

    assert PassResult() == setting.once()
    assert setting.api.writes() == []


def test_a_job_whose_watches_are_broken_waits(setting: Setting) -> None:
    """Half of its objects could be unknown."""
    rate = ProgressRate(Defaults(image="example/trainer:1"))
    broken = Reconciler(
        setting.observer, setting.writer, rate, setting.metrics, is_blind=lambda namespace: namespace == "default"
    )

    result = asyncio.run(broken.make_pass(KEY, ()))

    assert PassResult(requeue_after_seconds=one_pass.BLIND_SECONDS) == result
    assert setting.api.asked == []


def test_a_job_of_the_operators_class_is_served(setting: Setting) -> None:
    job = setting.api.objects[JOB]
    job["spec"]["operatorClass"] = "gpu"
    setting.store.update({**job, "metadata": job["metadata"] | {"resourceVersion": "2"}})
    observer, writer = (
        Observer(setting.api, setting.store),
        Writer(setting.api, setting.store, EventPoster(setting.api)),
    )  # type: ignore[arg-type]
    make_pass = Reconciler(
        observer, writer, ProgressRate(Defaults(image="example/trainer:1")), setting.metrics, "gpu"
    ).make_pass

    asyncio.run(make_pass(KEY, ()))

    assert len([verb for verb, _ in setting.api.writes() if verb == "apply"]) == 12


def test_a_deleted_job(setting: Setting) -> None:
    setting.store.remove(
        setting.api.objects[JOB] | {"metadata": setting.api.objects[JOB]["metadata"] | {"resourceVersion": "2"}}
    )

    assert setting.once().gone
    assert setting.api.asked == []


def left_behind(setting: Setting, *finalizers: str, seconds: float) -> None:
    """The job is gone, and its DaskCluster is being deleted for so long, and held by these."""
    setting.once()
    found, job = setting.api.objects[CLUSTER], setting.api.objects.pop(JOB)
    deleted = timestamp(setting.api.clock.now() - timedelta(seconds=seconds))
    found["metadata"] |= {"finalizers": [*finalizers], "deletionTimestamp": deleted, "resourceVersion": "900"}
    setting.store.update(copy.deepcopy(found))
    setting.store.remove(job | {"metadata": job["metadata"] | {"resourceVersion": "901"}})
    setting.api.asked.clear()


@pytest.mark.fault("O20")
def test_a_dask_cluster_that_the_dask_operator_does_not_release_is_released(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """Only its finalizer goes, and only after a while."""
    left_behind(setting, DASK_FINALIZER, "example.com/backup", seconds=5)
    waits = setting.once()
    assert not waits.gone
    assert waits.requeue_after_seconds == pytest.approx(RELEASED_AFTER_SECONDS - 5, abs=2)
    assert setting.api.asked == []

    left_behind_since = setting.api.clock.now() - timedelta(seconds=RELEASED_AFTER_SECONDS + 1)
    found = setting.api.objects[CLUSTER]
    found["metadata"] |= {"deletionTimestamp": timestamp(left_behind_since), "resourceVersion": "902"}
    setting.store.update(copy.deepcopy(found))
    assert setting.once().gone
    assert setting.api.asked == [("release", CLUSTER)]
    assert found["metadata"]["finalizers"] == ["example.com/backup"]
    assert f"the Dask operator has not released DaskCluster digits since {timestamp(left_behind_since)}" in caplog.text


@pytest.mark.fault("O20")
def test_a_refused_release_is_tried_again(setting: Setting) -> None:
    left_behind(setting, DASK_FINALIZER, seconds=60)
    setting.api.refused[CLUSTER] = Refused(500, "the webhook does not answer")
    assert setting.once().backs_off
    setting.api.refused.clear()
    assert setting.once().gone
    assert setting.api.objects[CLUSTER]["metadata"]["finalizers"] == []


@pytest.mark.parametrize("case", ["another's finalizer", "not deleted", "another's cluster"])
def test_what_is_not_held_by_the_dask_operator_is_left(setting: Setting, case: str) -> None:
    left_behind(setting, "example.com/backup" if case == "another's finalizer" else DASK_FINALIZER, seconds=60)
    found = setting.api.objects[CLUSTER]
    if case == "not deleted":
        del found["metadata"]["deletionTimestamp"]
    if case == "another's cluster":
        found["metadata"]["ownerReferences"] = []
    found["metadata"]["resourceVersion"] = "902"
    setting.store.update(copy.deepcopy(found))

    assert setting.once().gone
    assert setting.api.asked == []


@pytest.mark.fault("A12")
def test_an_object_of_another_owner_is_not_touched(setting: Setting) -> None:
    setting.api.objects[PLAN] = {
        "kind": "ConfigMap",
        "metadata": {"name": "digits-plan", "namespace": "default", "uid": "x"},
    }

    result = setting.once()

    assert (Failure(PLAN, 0, "is not this job's"),) == result.failures
    assert result.backs_off
    assert ("apply", PLAN) not in setting.api.asked


@pytest.mark.fault("B09")
def test_an_unobserved_object_of_the_job_causes_another_pass(setting: Setting) -> None:
    setting.once()
    setting.store.discard(KEY, PLAN)
    before = len(setting.api.writes())

    result = setting.once()

    assert (one_pass.OUTDATED_SECONDS, before) == (result.requeue_after_seconds, len(setting.api.writes()))
    assert PLAN in setting.store.children(KEY)


def test_a_refusal_is_reported_by_the_next_pass(setting: Setting) -> None:
    """And later writes, which may depend on the refused one, are skipped."""
    cluster = Ref("DaskCluster", "digits")
    setting.api.refused[cluster] = Refused(404, "not found")
    first = setting.once()
    assert ((Failure(cluster, 404, "not found"),), True) == (first.failures, first.backs_off)
    assert Ref("Job", "digits-trainer") not in setting.api.objects

    assert setting.once(first.failures).failures == first.failures
    conditions = {c["type"]: c["reason"] for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert conditions["ClusterReady"] == "DaskOperatorMissing"

    setting.api.refused.clear()
    healed = setting.once(first.failures)
    assert (healed.failures, healed.backs_off) == ((), False)


@pytest.mark.fault("O19")
def test_nothing_is_tried_again_in_a_namespace_that_is_being_deleted(setting: Setting) -> None:
    """The status says so for as long as the job is there."""
    text = "configmaps is forbidden: unable to create new content in namespace default because it is being terminated"
    setting.api.refused[PLAN] = Refused(403, text)
    result = setting.once()
    before = len([ref for verb, ref in setting.api.writes() if ref == PLAN])

    for _ in range(4):
        result = setting.once(result.failures)

    assert (result.failures, result.backs_off) == ((Failure(PLAN, 403, text),), False)
    assert before == len([ref for verb, ref in setting.api.writes() if ref == PLAN])
    conditions = {c["type"]: c["reason"] for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert conditions["ClusterReady"] == "NamespaceTerminating"


@pytest.mark.fault("A34")
def test_a_job_of_a_namespace_that_was_made_again_is_made(setting: Setting) -> None:
    """The namespace and its jobs came back while the queue backed off, so that no pass has seen that they were gone."""
    text = "configmaps is forbidden: unable to create new content in namespace default because it is being terminated"
    setting.api.refused[PLAN] = Refused(403, text)
    failures = setting.once().failures

    setting.api.refused.clear()
    setting.api.objects.clear()
    another(setting, KEY, "second", 1000)
    result = setting.once(failures)

    assert (result.failures, result.backs_off) == ((), False)
    assert TRAINER in setting.api.objects


@pytest.mark.fault("B09")
@pytest.mark.parametrize("code", [409, 404])
def test_a_job_that_changed_since_is_observed_again(setting: Setting, code: int) -> None:
    setting.api.refused[JOB] = Refused(code, "no")

    outcome = setting.once()

    found = setting.metrics.registry.get_sample_value("batchgrowth_operator_reconciles_total", {"result": "outdated"})
    assert (found, outcome.backs_off, outcome.is_outdated) == (1, False, True)
    assert setting.api.writes() == [("apply", JOB)]


@pytest.mark.fault("B09")
def test_conflicts_that_do_not_end_are_retried_ever_less_often(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while the watch of jobs is silent, or if a CRD lacks the subresource."""
    outdated = PassResult(requeue_after_seconds=one_pass.OUTDATED_SECONDS, is_outdated=True)
    results = iter([*[outdated] * 7, PassResult(requeue_after_seconds=600.0), outdated, PassResult(gone=True)])
    waits: list[float] = []
    clock = [100.0]

    async def make_pass(_key: Key, _failures: tuple[Failure, ...]) -> PassResult:
        return next(results)

    async def wait_for(woken: Any, seconds: float) -> None:
        woken.close()
        waits.append(seconds)
        clock[0] += seconds

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY)
        await task(queues)

    monkeypatch.setattr(queue.asyncio, "wait_for", wait_for)
    monkeypatch.setattr(queue.time, "monotonic", lambda: clock[0])
    asyncio.run(scene())

    assert waits == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6, 6, 600, 0.2])
    assert caplog.messages == [
        f"default/digits: {number} passes in a row found the job or a child changed, more than the watches report"
        for number in (6, 7)
    ]


@pytest.mark.fault("B13")
def test_a_new_job_whose_status_cannot_be_written_gets_nothing(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    """An event says why, and none tells of the plan before the status does."""
    setting.api.refused[JOB] = Refused(403, "forbidden: token=c4naryHunter2")

    outcome = setting.once()

    assert (True, (Failure(JOB, 403, "forbidden: token=c4naryHunter2"),)) == (outcome.backs_off, outcome.failures)
    assert set(setting.api.objects) == {JOB}
    told = [(event["reason"], event["message"]) for event in setting.api.events.values()]
    assert told == [("StatusRefused", "The API server refuses the job's status: forbidden: token=[redacted]")]
    assert "refuses BatchGrowthJob/digits: forbidden: token=[redacted]" in caplog.text

    setting.api.refused.clear()
    assert setting.once(outcome.failures).failures == ()
    conditions = {c["type"]: c["reason"] for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert conditions["ClusterReady"] == "WaitingForScheduler", "a status that is stored is not refused"
    assert {"StatusRefused", "PlanMade"} < {event["reason"] for event in setting.api.events.values()}


@pytest.mark.fault("B10")
@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        (429, "the server has received too many requests", []),
        (502, "bad gateway", []),
        (503, "apiserver is shutting down", []),
        (504, "request did not complete within the allowed duration", []),
        (500, 'failed calling webhook "a"', ['The API server refuses the job\'s status: failed calling webhook "a"']),
    ],
)
def test_a_server_that_is_busy_refuses_no_status(setting: Setting, code: int, message: str, told: list[str]) -> None:
    """No event warns of a refusal of which nobody can find a cause; the status is written once the server answers."""
    setting.api.refused[JOB] = Refused(code, message)
    busy = setting.once()
    assert busy.backs_off
    assert told == [event["message"] for event in setting.api.events.values()]

    setting.api.refused.clear()
    assert setting.once(busy.failures).failures == ()
    assert "PlanMade" in {event["reason"] for event in setting.api.events.values()}


def suspended(setting: Setting) -> None:
    """Someone suspends the job; the operator's watch reports it."""
    setting.api.version += 1
    found = setting.api.objects[JOB]
    metadata = found["metadata"] | {"resourceVersion": str(setting.api.version)}
    setting.api.objects[JOB] = {**found, "metadata": metadata, "spec": found["spec"] | {"suspend": True}}
    setting.store.update(copy.deepcopy(setting.api.objects[JOB]))


@pytest.mark.fault("B13")
def test_a_status_that_cannot_be_written(setting: Setting) -> None:
    """It holds up neither suspending nor releasing; what is missing waits for it."""
    setting.once()
    account = Ref("ServiceAccount", "digits-trainer")
    setting.store.remove(setting.api.objects.pop(account) | {"kind": account.kind})
    suspended(setting)
    setting.api.refused[JOB] = Refused(500, "the webhook does not answer")

    outcome = setting.once()

    assert (Failure(JOB, 500, "the webhook does not answer"),) == outcome.failures
    assert setting.api.objects[TRAINER]["spec"]["suspend"]
    assert {WORKERS, CLUSTER, account}.isdisjoint(setting.api.objects)

    setting.api.refused.clear()
    setting.once(outcome.failures)
    assert account in setting.api.objects
    [told] = [c for c in setting.api.objects[JOB]["status"]["conditions"] if c["type"] == "Suspended"]
    assert (told["status"], told["reason"]) == ("True", "BySpec")


def test_the_events_of_a_stored_status_are_posted_whatever_comes_after(setting: Setting) -> None:
    """The next pass finds the status stored, and has no event for it."""
    setting.api.refused[PLAN] = ConnectionError("timed out")
    assert setting.once().backs_off
    setting.api.refused.clear()
    setting.once()

    assert "PlanMade" in {event["reason"] for event in setting.api.events.values()}


@pytest.mark.fault("B13")
def test_an_object_that_cannot_be_deleted(setting: Setting) -> None:
    """It holds up neither other deletions nor events, and the status says so."""
    setting.once()
    suspended(setting)
    setting.api.undeletable[WORKERS] = Refused(403, "no deletion of Deployments today")
    failures: tuple[Failure, ...] = ()

    for _ in range(3):
        outcome = setting.once(failures)
        failures = outcome.failures

    assert (True, (Failure(WORKERS, 403, "no deletion of Deployments today"),)) == (outcome.backs_off, failures)
    assert CLUSTER not in setting.api.objects
    conditions = {c["type"]: (c["reason"], c["message"]) for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert conditions["Suspended"][0] == "Releasing"
    refusal = (
        "Deployment digits-workers cannot be deleted, because the API server refuses it: no deletion of Deployments "
        "today. Remove what refuses it; the operator tries again."
    )
    assert ("ChildRefused", refusal) == conditions["ClusterReady"]
    assert {"BySpec", "ChildRefused"} < {event["reason"] for event in setting.api.events.values()}

    setting.api.undeletable.clear()
    setting.store.remove(setting.api.objects[WORKERS] | {"kind": WORKERS.kind})
    setting.once(setting.once(failures).failures)
    conditions = {c["type"]: c["reason"] for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert (conditions["Suspended"], conditions["ClusterReady"]) == ("BySpec", "Released")


@pytest.mark.fault("B13")
def test_a_job_is_not_deleted_after_a_refusal(setting: Setting) -> None:
    """Its time to live counts from a time that may not be stored; and a refused deletion is tried again."""
    setting.once()
    seen = asyncio.run(setting.observer.observe(KEY, ()))
    assert seen is not None
    for decision in (Writes(status={}, delete_job=True), Writes(delete=(PLAN,), delete_job=True)):
        setting.api.refused[JOB] = setting.api.undeletable[PLAN] = Refused(500, "no")
        assert len(setting.writer.carry_out(seen, decision)) == 1
        assert ("delete", JOB) not in setting.api.asked

    setting.api.undeletable[JOB] = Refused(500, "not the job")
    assert (Failure(JOB, 500, "not the job"),) == setting.writer.carry_out(seen, Writes(delete_job=True))


@pytest.mark.fault("B12")
def test_an_unreachable_api_server(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: Any) -> None:
        raise ConnectionRefusedError("nobody there")

    monkeypatch.setattr(setting.api, "apply", away)

    assert setting.once().backs_off


FIRST, LATER = Ref("ConfigMap", "digits-progress"), Ref("Job", "digits-trainer")


@pytest.mark.fault("B10", "B11")
@pytest.mark.parametrize("is_carried_out", [False, True], ids=["refused", "carried out without an answer"])
@pytest.mark.parametrize("ref", [FIRST, LATER], ids=lambda ref: ref.kind)
@pytest.mark.parametrize(
    "error",
    [*(Refused(code, "no") for code in (401, 403, 404, 409, 422, 429, 500, 503)), ConnectionError("timed out")],
    ids=lambda error: str(getattr(error, "code", error)),
)
def test_a_write_that_fails_is_repeated(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, error: Exception, ref: Ref, is_carried_out: bool
) -> None:
    """With a back-off, and to the same end, also if the server did what it then failed to confirm."""
    apply, failed = setting.api.apply, list[Ref]()

    def once_failing(manifest: Any, subresource: str = "") -> Any:
        if ref_of(manifest) != ref or failed:
            return apply(manifest, subresource)
        failed.append(ref)
        if is_carried_out:
            apply(manifest, subresource)
            setting.api.objects[ref]["metadata"]["ownerReferences"] = manifest["metadata"]["ownerReferences"]
        raise error

    monkeypatch.setattr(setting.api, "apply", once_failing)
    first = setting.once()
    assert first.backs_off
    failures = first.failures
    for _ in range(3):
        outcome = setting.once(failures)
        failures = outcome.failures
    assert (outcome.backs_off, outcome.failures) == (False, ())
    assert len(setting.api.objects) == 12, "the job and its eleven children"
    before = len(setting.api.writes())
    setting.once()
    assert before == len(setting.api.writes())


def test_an_error_of_our_own_is_logged_and_retried(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(setting.api, "apply", lambda *_: 1 / 0)

    assert setting.once().backs_off
    assert "default/digits: the pass failed" in caplog.text


def test_a_refused_event_does_not_stop_the_pass(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    setting.api.refused[Ref("Event", "PlanMade")] = Refused(403, "no")

    assert setting.once().failures == ()
    assert "cannot post the event PlanMade" in caplog.text


def test_deletions(setting: Setting, make_world: Any) -> None:
    setting.once()
    seen = asyncio.run(Observer(setting.api, setting.store).observe(KEY, ()))  # type: ignore[arg-type]
    assert seen is not None
    writer = Writer(setting.api, setting.store, EventPoster(setting.api))  # type: ignore[arg-type]

    writer.carry_out(seen, Writes(delete=(PLAN,), delete_job=True))

    assert {JOB, PLAN}.isdisjoint(setting.api.objects)


@pytest.mark.fault("C25")
@pytest.mark.parametrize(("abandoned", "propagation"), [(True, "Background"), (False, "Foreground")])
def test_a_job_goes_with_its_last_pod_unless_that_is_lost(setting: Setting, abandoned: bool, propagation: str) -> None:
    """A pod of a lost node stays until the node is back or gone, and a Job that waits for it too."""
    setting.once()
    trainer = Ref("Job", "digits-trainer")
    seen = asyncio.run(Observer(setting.api, setting.store).observe(KEY, ()))  # type: ignore[arg-type]
    assert seen is not None
    decision = Writes(delete=(trainer,), in_background=frozenset([trainer] * abandoned))

    Writer(setting.api, setting.store, EventPoster(setting.api)).carry_out(seen, decision)  # type: ignore[arg-type]

    assert {trainer: propagation} == setting.api.propagations


def test_the_observer_forgets_a_deleted_job(setting: Setting) -> None:
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    setting.once()
    asyncio.run(observer.observe(KEY, ()))
    setting.store.remove(setting.api.objects[JOB] | {"kind": JOB.kind})

    assert None is asyncio.run(observer.observe(KEY, ()))
    assert observer._memories == {}


def test_a_secret_is_read_again_regularly(setting: Setting) -> None:
    """Also that of a job without a cluster, but less often."""
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    asyncio.run(observer.observe(KEY, ()))
    setting.once()
    setting.store.discard(KEY, Ref("DaskCluster", "digits"))
    setting.api.asked.clear()
    del setting.api.objects[SECRET]
    asyncio.run(observer.observe(KEY, ()))
    assert setting.api.asked == []

    observer._memories[KEY].secrets_read -= RESYNC_SECONDS
    seen = asyncio.run(observer.observe(KEY, ()))

    assert seen is not None
    assert seen.tls_secrets is not None
    assert setting.api.asked == [("get", AUTHORITY), ("get", SECRET)]


def test_certificates_are_looked_at_once_for_each_time_that_they_are_read(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take half a millisecond, and a job that trains has a pass every few seconds."""
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    asyncio.run(observer.observe(KEY, ()))
    setting.once()
    looked: list[str] = []
    renewed = certificates.renewed
    monkeypatch.setattr(certificates, "renewed", lambda *given: (looked.append(given[0]), renewed(*given))[1])

    for _ in range(3):
        seen = asyncio.run(observer.observe(KEY, ()))
        assert seen is not None
        assert seen.tls_secrets is None
    assert looked == ["digits"]

    observer._memories[KEY].secrets_read -= RESYNC_SECONDS
    asyncio.run(observer.observe(KEY, ()))
    assert looked == ["digits", "digits"]


def test_the_secret_of_a_job_with_a_cluster_is_read_often(setting: Setting) -> None:
    """Secrets are not watched, and no new pod starts without its Secret."""
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    asyncio.run(observer.observe(KEY, ()))
    assert observer.resync_seconds(KEY) == RESYNC_SECONDS
    setting.once()
    asyncio.run(observer.observe(KEY, ()))
    setting.api.asked.clear()
    del setting.api.objects[SECRET]

    observer._memories[KEY].secrets_read -= SECRET_SECONDS
    seen = asyncio.run(observer.observe(KEY, ()))

    assert seen is not None
    assert seen.tls_secrets is not None
    assert setting.api.asked == [("get", AUTHORITY), ("get", SECRET)]
    assert observer.resync_seconds(KEY) == SECRET_SECONDS


def test_the_age_of_a_report(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    """It counts from the first sight of that many updates, whatever else the trainer reports, and with any content."""
    now = 1000.0
    clock = SimpleNamespace(monotonic=lambda: now)
    monkeypatch.setattr(observe, "time", clock)
    setting.once()
    progress = setting.api.objects[PROGRESS]
    observer, version = Observer(setting.api, setting.store), itertools.count(5000)  # type: ignore[arg-type]

    def age(text: str | None) -> float:
        metadata = progress["metadata"] | {"resourceVersion": str(next(version)), "namespace": "default"}
        data = {} if text is None else {"progress.json": text}
        setting.store.update({**progress, "metadata": metadata, "data": data})
        seen = asyncio.run(observer.observe(KEY, ()))
        assert seen is not None
        return seen.report_age_seconds

    def report(update: int, ready: int) -> str:
        return Progress(
            update=update, updates=460, epoch=1.0, epochs=30, stage=0, batch_size=32, learning_rate=0.05, workers=1,
            ready=ready,
        ).to_json()  # fmt: skip

    assert [age(None), age(report(10, 1)), age("neither")] == [0.0, 0.0, 0.0]
    assert age(report(11, 1)) == 0.0
    now += 7
    assert age(report(11, 2)) == 7.0
    assert age(report(12, 2)) == 0.0


REPORT = Progress(
    update=10,
    updates=460,
    epoch=1.0,
    epochs=30,
    stage=0,
    batch_size=32,
    learning_rate=0.05,
    workers=1,
    loss=0.5,
    seconds_per_update=0.2,
)


FORECAST = ExpectedBatch(update=20, batch_size=64, workers=1, due_seconds=2.0)


def test_that_a_forecast_s_look_comes_closer_is_no_news(setting: Setting) -> None:
    """Every report says so: a pass for each would come before the milestones of other jobs."""
    setting.once()
    progress, news = setting.api.objects[PROGRESS], []
    for update, forecast in (
        (10, FORECAST),
        (11, replace(FORECAST, due_seconds=1.8)),
        (12, replace(FORECAST, workers=2)),
    ):
        report = replace(REPORT, update=update, forecast=forecast)
        metadata = progress["metadata"] | {"resourceVersion": str(5000 + update), "namespace": "default"}
        setting.store.update({**progress, "metadata": metadata, "data": {"progress.json": report.to_json()}})
        news.append(setting.observer.note_change(KEY, PROGRESS))

    assert news == [True, False, True]


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({"update": 11, "epoch": 1.1, "loss": 0.4, "eta_seconds": 9.0, "learning_rate": 0.04}, False),
        ({"update": 11, "metrics": {"accuracy": 0.9}, "checkpoint_update": 11, "seconds_per_update": 0.1}, False),
        ({"update": 11, "forecast": FORECAST}, True),
        ({"update": 11, "seconds_per_update": None}, True),
        ({"update": 115, "stage": 1, "batch_size": 64}, True),
        ({"ready": 2}, True),
        ({"start": 1}, True),
        ({"waiting_for": "workers"}, True),
        (None, True),
    ],
)
def test_news_in_a_report(
    setting: Setting, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any] | None, is_news: bool
) -> None:
    """A training that goes on is no news, but its report has arrived; no text that is not a report stays unseen."""
    now = 1000.0
    monkeypatch.setattr(observe, "time", SimpleNamespace(monotonic=lambda: now))
    setting.once()
    progress, version = setting.api.objects[PROGRESS], itertools.count(5000)

    def arrive(text: str, labels: dict[str, str]) -> bool:
        metadata = progress["metadata"] | {"resourceVersion": str(next(version)), "namespace": "default"}
        metadata["labels"] = metadata["labels"] | labels
        setting.store.update({**progress, "metadata": metadata, "data": {"progress.json": text}})
        return setting.observer.note_change(KEY, PROGRESS)

    assert arrive(REPORT.to_json(), {})
    later = replace(REPORT, **change).to_json() if change is not None else "neither"
    assert is_news == arrive(later, {})
    assert not arrive(later, {})
    assert arrive(later, {"team": "blue"})
    now += 7
    seen = asyncio.run(setting.observer.observe(KEY, ()))
    assert seen is not None
    assert seen.report_age_seconds == 7.0


def test_every_other_object_is_news(setting: Setting) -> None:
    """So is a ConfigMap of that name that is not the job's, and one that is gone."""
    setting.once()
    setting.observer.note_change(KEY, PROGRESS)
    assert [setting.observer.note_change(KEY, ref) for ref in (PLAN, WORKERS, PROGRESS)] == [True, True, False]

    progress = setting.api.objects[PROGRESS]
    metadata = progress["metadata"] | {"resourceVersion": "5000", "namespace": "default", "ownerReferences": []}
    setting.store.update({**progress, "metadata": metadata})
    assert [setting.observer.note_change(KEY, PROGRESS) for _ in range(2)] == [True, True]

    setting.store.discard(KEY, PROGRESS)
    assert setting.observer.note_change(KEY, PROGRESS)


def test_a_pass_for_progress_alone_waits_and_is_part_of_any_other() -> None:
    """Two reports within the time apart cause one pass; whatever else happens causes one at once, which serves both."""
    made: list[float] = []

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        made.append(asyncio.get_running_loop().time())
        return PassResult(gone=len(made) == 4)

    async def until(number: int) -> None:
        while len(made) < number:
            await asyncio.sleep(0.001)

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY, 60)  # the first pass of a job waits for nothing
        await asyncio.wait_for(until(1), 10)
        queues.wake(KEY, 60)
        queues.wake(KEY, 60)
        assert 50 < queues._queues[KEY].due - queues._queues[KEY].last_pass <= 60
        queues.wake(KEY)
        await asyncio.wait_for(until(2), 10)
        queues.wake(KEY, 0.1)
        queues.wake(KEY, 0.1)
        await asyncio.wait_for(until(3), 10)
        assert made[2] - made[1] >= 0.1
        queues.wake(KEY, 60)
        queues.wake(Key("default", "another"))
        await asyncio.wait_for(until(4), 10)
        await queues.stop()
        assert queues._queues == {}

    asyncio.run(scene())


WAS, IS = "2026-11-20T10:00:00Z", "2026-11-20T10:00:30Z"
ENDED: Any = {"completionTime": WAS}, {"completionTime": IS}
ACTIVE: Any = tuple(
    {"conditions": [{"type": "Suspended", "status": "False", "lastTransitionTime": time}]} for time in (WAS, IS)
)
SUSPENDED = {"conditions": [{"type": "Suspended", "status": "True", "lastTransitionTime": IS}]}
AT = datetime.fromisoformat(IS)
DAY = 86400.0


@pytest.mark.fault("B14")
@pytest.mark.parametrize(
    ("times", "statuses", "jump", "expected"),
    [
        pytest.param((0, 7), ({}, ENDED[1]), DAY, [0.0, 0.0, 7.0], id="it ended while this operator ran"),
        pytest.param((0, 7), (ENDED[0],), DAY, [30.0, 30.0, 37.0], id="it had ended before"),
        pytest.param((0, 7), (ENDED[0],), -DAY, [30.0, 30.0, 37.0], id="the clock jumps back"),
        pytest.param((-60, 7), (ENDED[1],), 0.0, [0.0, 0.0, 7.0], id="a time in the future"),
        pytest.param((0, 7), (ENDED[0], ENDED[1]), DAY, [30.0, 0.0, 7.0], id="another time"),
        pytest.param((0, 7), (ACTIVE[0],), DAY, [30.0, 30.0, 37.0], id="it had become active before"),
        pytest.param((0, 7), (SUSPENDED, ACTIVE[1]), DAY, [0.0, 0.0, 7.0], id="it was resumed"),
        pytest.param((0, 7), (ACTIVE[0], SUSPENDED), DAY, [30.0, 0.0, 0.0], id="it was suspended"),
    ],
)
def test_the_ages_of_stored_times(
    setting: Setting,
    monkeypatch: pytest.MonkeyPatch,
    times: tuple[float, float],
    statuses: tuple[Any, ...],
    jump: float,
    expected: list[float],
) -> None:
    """A jump of the clock adds nothing: what this process sees pass counts, and what its first look found."""
    now, version = 0.0, itertools.count(5000)
    clock: Any = SimpleNamespace(now=lambda: AT + timedelta(seconds=times[0] + now))
    setting.api.clock = clock
    monkeypatch.setattr(observe, "time", SimpleNamespace(monotonic=lambda: now))
    observer, job = Observer(setting.api, setting.store), setting.api.objects[JOB]  # type: ignore[arg-type]

    def age(status: Any) -> float:
        metadata = job["metadata"] | {"resourceVersion": str(next(version))}
        setting.store.update({**job, "metadata": metadata, "status": status})
        seen = asyncio.run(observer.observe(KEY, ()))
        assert seen is not None
        return max(seen.active_seconds, seen.ended_seconds)

    ages = [age(statuses[0]), age(statuses[-1])]
    now += times[1]
    clock.now = lambda: AT + timedelta(seconds=jump)

    assert [*ages, age(statuses[-1])] == expected


@pytest.mark.parametrize(("jobs", "seconds"), [(1, 5.0), (100, 5.0), (1000, 50.0)])
def test_the_more_jobs_train_the_less_often_each_has_its_progress_written(jobs: int, seconds: float) -> None:
    pace = ProgressRate(Defaults(image="x"))
    keys = [Key("default", f"job-{number}") for number in range(jobs)]
    for key in keys:
        pace.defaults_for(key, trains=True)
    assert jobs / 20 == pace.seconds_apart
    assert seconds == pace.defaults_for(keys[0], trains=True).report_seconds
    for key in keys[: jobs // 2]:
        pace.defaults_for(key, trains=False)
    for key in keys[jobs // 2 :]:
        pace.forget(key)
    assert pace.defaults_for(KEY, trains=False).report_seconds == 5.0


def starting(scheduled: str) -> dict[str, Any]:
    """A worker's pod before its containers run."""
    labels = {"batchgrowth.dev/job": "digits", "batchgrowth.dev/role": "worker"}
    metadata = {"name": "w", "namespace": "default", "uid": "uid of w", "labels": labels, "resourceVersion": "500"}
    conditions = [{"type": "PodScheduled", "status": scheduled}]
    return {"kind": "Pod", "metadata": metadata, "status": {"phase": "Pending", "conditions": conditions}}


@pytest.mark.parametrize(
    ("ready", "scheduled", "seconds"),
    [(1, "", SETTLED_SECONDS), (0, "", SECRET_SECONDS), (1, "True", SECRET_SECONDS), (1, "False", SETTLED_SECONDS)],
    ids=["ready", "a worker is missing", "a pod starts", "a pod has no node"],
)
def test_the_secrets_of_a_job_that_trains_are_read_less_often(
    setting: Setting, ready: int, scheduled: str, seconds: int
) -> None:
    """Its pods have mounted them; a pod that starts has them read at once."""
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    setting.once()
    asyncio.run(observer.observe(KEY, ()))
    workers = setting.api.objects[WORKERS]
    version = {"resourceVersion": "400", "namespace": "default"}
    setting.store.update(workers | {"metadata": workers["metadata"] | version, "status": {"readyReplicas": ready}})
    setting.api.asked.clear()

    observer._memories[KEY].secrets_read -= SECRET_SECONDS
    if scheduled:
        setting.store.update(starting(scheduled))
    asyncio.run(observer.observe(KEY, ()))

    assert seconds == observer.resync_seconds(KEY)
    read = [("get", AUTHORITY), ("get", SECRET)] if seconds == SECRET_SECONDS else []
    assert read == [asked for asked in setting.api.asked if asked[0] == "get"]


@pytest.mark.fault("C21")
@pytest.mark.parametrize("lost", [(SECRET,), (AUTHORITY,), (SECRET, AUTHORITY)], ids=["tls", "authority", "both"])
def test_lost_secrets_come_back(setting: Setting, lost: tuple[Ref, ...]) -> None:
    """An authority that cannot be stored is not trusted: the next pass makes another one."""
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    make_pass = Reconciler(
        observer, setting.writer, ProgressRate(Defaults(image="example/trainer:1")), setting.metrics
    ).make_pass
    setting.once()
    before = setting.api.objects[SECRET]["data"]
    for ref in lost:
        del setting.api.objects[ref]
    setting.api.refused[AUTHORITY] = Refused(503, "no")
    asyncio.run(make_pass(KEY, ()))
    assert (SECRET in setting.api.objects) == (AUTHORITY not in lost or SECRET not in lost)
    if SECRET not in lost:
        assert before == setting.api.objects[SECRET]["data"]

    setting.api.refused.clear()
    for _ in range(2):
        asyncio.run(make_pass(KEY, ()))
    made = setting.api.writes()
    asyncio.run(make_pass(KEY, ()))

    assert made == setting.api.writes()
    assert setting.api.objects[AUTHORITY]["data"].keys() == {"ca.crt", "ca.key"}
    assert setting.api.objects[SECRET]["data"].keys() == {"ca.crt", "tls.crt", "tls.key"}
    assert (lost == (AUTHORITY,)) == (before["tls.crt"] == setting.api.objects[SECRET]["data"]["tls.crt"])


@pytest.mark.fault("C21")
def test_a_certificate_that_is_refused_is_reported(setting: Setting) -> None:
    """By the condition for which the chart has an alert."""
    setting.once()
    del setting.api.objects[SECRET]
    setting.api.refused[SECRET] = Refused(403, "a webhook says no")
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    make_pass = Reconciler(
        observer, setting.writer, ProgressRate(Defaults(image="example/trainer:1")), setting.metrics
    ).make_pass
    failures = asyncio.run(make_pass(KEY, ())).failures
    asyncio.run(make_pass(KEY, failures))
    conditions = {c["type"]: c for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert (conditions["ClusterReady"]["status"], conditions["ClusterReady"]["reason"]) == ("False", "ChildRefused")
    refusal = "Secret digits-tls cannot be created, because the API server refuses it: a webhook says no."
    assert refusal in conditions["ClusterReady"]["message"]


@pytest.mark.parametrize("error", [Refused(403, "no"), ConnectionError("no")], ids=["refused", "no answer"])
def test_events_about_a_pending_pod_are_read(
    setting: Setting, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    """At intervals; if they cannot be read, the last ones count."""
    setting.once()
    labels = {"batchgrowth.dev/job": "digits", "batchgrowth.dev/role": "worker"}
    metadata = {"name": "w", "namespace": "default", "uid": "uid of w", "labels": labels, "resourceVersion": "500"}
    metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
    metadata["ownerReferences"] = [{"kind": "ReplicaSet", "name": "digits-workers-5d4f", "controller": True}]
    pod = {"kind": "Pod", "metadata": metadata, "status": {"phase": "Pending"}}
    setting.store.update(pod)
    setting.api.happened["uid of w"] = [{"reason": "FailedMount"}]
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]

    def warnings() -> Any:
        seen = asyncio.run(observer.observe(KEY, ()))
        assert seen is not None
        return seen.warnings

    assert warnings() == ({"reason": "FailedMount"},)
    setting.api.happened["uid of w"].clear()
    assert warnings() == ({"reason": "FailedMount"},)
    observer._memories[KEY].warnings_read -= LONGEST_EVENT_AGE_SECONDS
    setting.api.refused[Ref("Event", "")] = error
    assert warnings() == ({"reason": "FailedMount"},)
    assert "default/digits: cannot read events: no" in caplog.text
    observer._memories[KEY].warnings_read -= LONGEST_EVENT_AGE_SECONDS
    del setting.api.refused[Ref("Event", "")]
    assert warnings() == ()


def another(setting: Setting, key: Key, uid: str, version: int) -> dict[str, Any]:
    """A job like the example, as the API server has it and a watch reports it."""
    job = copy.deepcopy(setting.api.objects.get(JOB) or setting.store.job(KEY))
    assert job is not None
    job["metadata"] |= {"name": key.name, "uid": uid, "resourceVersion": str(version)}
    job.pop("status", None)
    setting.store.update(job)
    setting.api.objects[Ref(JOB.kind, key.name)] = job
    return job


@pytest.mark.fault("A34")
def test_many_jobs_at_once(setting: Setting) -> None:
    keys, made = [Key("default", f"digits-{n}") for n in range(200)], set[Key]()

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        outcome: PassResult = await setting.make_pass(key, failures)
        made.add(key)
        return outcome

    async def scene() -> None:
        queues = Passes(make_pass)
        for key in keys:
            another(setting, key, f"uid of {key.name}", 1)
            queues.wake(key)
        async with asyncio.timeout(120):
            while made != {*keys}:
                await asyncio.sleep(0.01)
        await queues.stop()

    asyncio.run(scene())
    owners = [o["metadata"]["ownerReferences"][0]["uid"] for r, o in setting.api.objects.items() if r.kind != JOB.kind]
    assert {f"uid of {key.name}": 11 for key in keys} == {uid: owners.count(uid) for uid in {*owners}}


@pytest.mark.fault("A34", "B26")
def test_one_name_again_and_again(setting: Setting) -> None:
    """A job never takes the children of an earlier one of its name, which may be collected late, and leaves nothing."""
    for life in range(100):
        job, is_late = another(setting, KEY, f"life {life}", 10_000 * (life + 1)), life % 2 == 1
        if is_late:
            assert (
                setting.once().failures[0].code,
                str(setting.once().failures[0].message),
            ) == (0, "is not this job's")
            assert {f"life {life - 1}"} == {o["metadata"]["ownerReferences"][0]["uid"] for o in children(setting)}
            collect(setting)
        assert setting.once().failures == ()
        assert [f"life {life}"] * 11 == [o["metadata"]["ownerReferences"][0]["uid"] for o in children(setting)]
        for ref in [ref for ref in setting.store.refs(KEY) if ref.kind not in ("Secret", JOB.kind)]:
            setting.store.remove(setting.api.objects[ref] | {"kind": ref.kind})
        gone = setting.store.job(KEY) or job
        setting.store.remove(gone | {"kind": JOB.kind})
        assert setting.once().gone
        assert setting.store._objects == {}
        if is_late:
            collect(setting)


def children(setting: Setting) -> list[dict[str, Any]]:
    return [body for ref, body in setting.api.objects.items() if ref.kind != JOB.kind]


def collect(setting: Setting) -> None:
    """The garbage collector deletes the children of a deleted job."""
    for ref in [ref for ref in setting.api.objects if ref.kind != JOB.kind]:
        del setting.api.objects[ref]


def task(queues: Passes) -> asyncio.Task[None]:
    """The task of the only queue, which ends with it."""
    [queue] = queues._queues.values()
    assert queue.task is not None
    return queue.task


@pytest.mark.fault("C18")
def test_events_during_a_pass_cause_one_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "DEBOUNCE_SECONDS", 0)
    made: list[Key] = []

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY)

        async def three_times() -> None:
            while len(made) < 3:
                await asyncio.sleep(0)

        async def make_all() -> None:
            await asyncio.wait_for(three_times(), 10)

        nonlocal wake
        wake = queues.wake
        await make_all()
        await queues.stop()

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        made.append(key)
        if len(made) < 3:
            wake(key)
            wake(key)
        return PassResult()

    wake: Any = None
    asyncio.run(scene())

    assert made == [KEY] * 3


@pytest.mark.fault("C18")
@pytest.mark.parametrize(("quiet", "waits"), [(1.0, 0.0), (0.02, 0.03)])
def test_an_event_is_debounced(monkeypatch: pytest.MonkeyPatch, quiet: float, waits: float) -> None:
    """Only if it follows a pass shortly."""
    slept: list[float] = []
    real_sleep, clock = asyncio.sleep, [100.0]
    made = 0

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real_sleep(0)

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        nonlocal made
        made += 1
        return PassResult(gone=made == 2)

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY)
        while made < 1:
            await real_sleep(0)
        await real_sleep(0)  # the queue waits
        clock[0] += quiet
        queues.wake(KEY)
        await asyncio.wait_for(task(queues), 10)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    monkeypatch.setattr(queue.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(queue, "DEBOUNCE_SECONDS", 0.05)
    asyncio.run(scene())

    assert [pytest.approx(waits)] == slept


@pytest.mark.fault("B10")
def test_backing_off_and_the_end_of_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each failure doubles the wait and is passed on to the next pass; the queue of a deleted job ends."""
    slept: list[float] = []
    failure = (Failure(PLAN, 422, "no"),)
    script = [
        PassResult(backs_off=True, failures=failure),
        PassResult(backs_off=True),
        PassResult(requeue_after_seconds=0.001),
        PassResult(gone=True),
    ]
    handed: list[Any] = []
    real_sleep = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real_sleep(0)

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        handed.append(failures)
        return script[len(handed) - 1]

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY)
        await asyncio.wait_for(task(queues), 10)
        assert queues._queues == {}

    monkeypatch.setattr(asyncio, "sleep", sleep)
    asyncio.run(scene())

    assert [(), failure, (), ()] == handed
    assert slept[:2] == [1.0, 2.0]
    assert 0 <= slept[2] <= queue.DEBOUNCE_SECONDS


def test_an_unexpected_error_backs_off_and_the_queue_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slept: list[float] = []
    outcomes = iter([ZeroDivisionError("odd"), PassResult(gone=True)])

    async def make_pass(_key: Key, _failures: tuple[Failure, ...]) -> PassResult:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY)
        await task(queues)

    monkeypatch.setattr(queue.asyncio, "sleep", sleep)
    asyncio.run(scene())

    assert slept[0] == 1.0
    assert "default/digits: the pass ended with an unexpected error" in caplog.text
    assert None is next(outcomes, None), "there was another pass"


@pytest.mark.fault("B10")
@pytest.mark.parametrize(
    ("failures", "seconds"), [(1, 1.0), (2, 2.0), (5, 16.0), (6, 30.0), (7, 30.0), (1_000_000, 30.0)]
)
def test_the_back_off_doubles_up_to_a_limit(failures: int, seconds: float) -> None:
    """For as long as it takes: an unbounded exponent overflowed after 1,025 failures, in less than nine hours."""
    assert seconds == queue.backoff_seconds(failures)


def test_no_pass_begins_once_they_are_stopped() -> None:
    """Watches and the sweep end after the queues, and the Lease may be acquired at that moment."""
    made: list[Key] = []

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        made.append(key)
        return PassResult(gone=True)

    async def scene() -> None:
        queues = Passes(make_pass, waits=True)
        await queues.stop()
        queues.begin([KEY])
        queues.wake(KEY)
        assert queues._queues == {}
        await asyncio.sleep(0.01)

    asyncio.run(scene())

    assert made == []


def test_passes_wait_for_the_lease() -> None:
    """A replica that waits remembers nothing of jobs, thousands of which may come and go until it leads."""
    made: list[Key] = []

    async def make_pass(key: Key, failures: tuple[Failure, ...]) -> PassResult:
        made.append(key)
        return PassResult(gone=True)

    async def scene() -> None:
        queues = Passes(make_pass, waits=True)
        queues.wake(KEY)
        await asyncio.sleep(0.01)
        assert (made, queues._queues) == ([], {})

        queues.begin([KEY])
        await asyncio.wait_for(task(queues), 10)
        await queues.stop()

    asyncio.run(scene())

    assert made == [KEY]


@pytest.mark.fault("B13")
def test_a_refused_object_holds_up_no_other_that_exists(setting: Setting) -> None:
    """A failing webhook on ConfigMaps leaves suspending, scaling and releasing alone, and nothing new is made."""
    setting.once()
    account = Ref("ServiceAccount", "digits-trainer")
    setting.api.refused[PLAN] = Refused(500, "the webhook does not answer")
    edited = copy.deepcopy(setting.api.objects[JOB])
    edited["spec"] |= {"suspend": True}
    edited["metadata"]["resourceVersion"] = setting.api.objects[JOB]["metadata"]["resourceVersion"] = "999"
    setting.api.objects[JOB]["spec"] |= {"suspend": True}
    setting.store.update(edited)
    setting.store.remove(setting.api.objects.pop(account) | {"kind": account.kind})

    outcome = setting.once()

    assert [(failure.ref, failure.code) for failure in outcome.failures] == [(PLAN, 500)]
    assert outcome.backs_off
    trainer = Ref("Job", "digits-trainer")
    assert setting.api.objects[trainer]["spec"]["suspend"]
    assert Ref("Deployment", "digits-workers") not in setting.api.objects, "its workers are released"
    assert account not in setting.api.objects
    seen = asyncio.run(Observer(setting.api, setting.store).observe(KEY, ()))  # type: ignore[arg-type]
    assert seen is not None
    plan = dict(seen.children[PLAN])
    decision = Writes(
        apply=(plan,), delete=(trainer, Ref("Role", "digits-progress")), recreated={trainer: "its inputs changed"}
    )
    Writer(setting.api, setting.store, EventPoster(setting.api)).carry_out(seen, decision)  # type: ignore[arg-type]
    assert trainer in setting.api.objects, "what would be made again stays while that cannot be"
    assert Ref("Role", "digits-progress") not in setting.api.objects

    del setting.api.refused[PLAN]
    setting.once()
    assert account in setting.api.objects


@pytest.mark.fault("B04")
def test_nothing_is_written_once_another_operator_may_lead(setting: Setting, caplog: pytest.LogCaptureFixture) -> None:
    """A process that was paused in the middle of a pass finds its lease outdated before its next write."""
    leads = iter([12.0, 12.0, 0.0])
    writer = Writer(setting.api, setting.store, EventPoster(setting.api), lambda: next(leads, 0.0))  # type: ignore[arg-type]
    make_pass = Reconciler(
        Observer(setting.api, setting.store), writer, ProgressRate(Defaults(image="a")), setting.metrics
    ).make_pass  # type: ignore[arg-type]
    assert asyncio.run(make_pass(KEY, ())).backs_off
    assert len(setting.api.writes()) == 2
    assert "the lease was not renewed in time" in caplog.text


@pytest.mark.fault("A12")
@pytest.mark.parametrize(
    ("owner", "is_ours"),
    [
        (("Job", "digits-trainer", True), True),
        (("ReplicaSet", "digits-workers-5d4f", True), True),
        (("ReplicaSet", "digits-scheduler-77c", True), True),
        (("Job", "digits-trainer", False), False),
        (("Job", "digits", True), False),
        (("ReplicaSet", "digits-workers2-5d4f", True), False),
        (("StatefulSet", "digits-workers-0", True), False),
        (None, False),
    ],
)
def test_a_pod_that_only_has_the_job_s_labels_is_not_observed(setting: Setting, owner: Any, is_ours: bool) -> None:
    """It would keep a finished cluster alive, as a trainer that still works does."""
    setting.once()
    metadata: dict[str, Any] = {"name": "w", "namespace": "default", "uid": "w", "resourceVersion": "500"}
    metadata["labels"] = {"batchgrowth.dev/job": "digits", "batchgrowth.dev/role": "trainer"}
    if owner is not None:
        kind, name, controller = owner
        metadata["ownerReferences"] = [{"kind": kind, "name": name, "controller": controller}]
    setting.store.update({"kind": "Pod", "metadata": metadata, "status": {"phase": "Running"}})
    seen = asyncio.run(Observer(setting.api, setting.store).observe(KEY, ()))  # type: ignore[arg-type]
    assert seen is not None
    assert is_ours == bool(seen.pods)


@pytest.mark.fault("O11")
@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.parametrize(
    ("owners", "words"),
    [
        ([], "Left without an owner by an earlier job of this name: Job digits-trainer. Delete what is left:"),
        ([{"uid": "another's"}], "Job digits-trainer is not this job's; rename it or the job."),
    ],
)
def test_a_pod_of_another_s_trainer_that_still_runs(
    setting: Setting, owners: list[Any], words: str, *, suspend: bool
) -> None:
    """Their Job has the name of the trainer's, so no trainer of this job's runs, whatever their pod's name and labels.

    The job neither waits for that pod's last checkpoint nor keeps quiet about the name that it cannot have.
    """
    labels = {"batchgrowth.dev/job": "digits", "batchgrowth.dev/role": "trainer"}
    common = {"namespace": "default", "labels": labels, "resourceVersion": "500"}
    theirs = {
        "kind": "Job",
        "metadata": {**common, "name": TRAINER.name, "uid": "their Job", "ownerReferences": owners},
        "spec": {"template": {"spec": {}}},
        "status": {"active": 1},
    }
    controller = {"kind": "Job", "name": TRAINER.name, "uid": "their Job", "controller": True}
    pod = {**common, "name": "digits-trainer-x", "uid": "their pod", "ownerReferences": [controller]}
    setting.api.objects[TRAINER] = theirs
    setting.store.update(theirs)
    setting.store.update({"kind": "Pod", "metadata": pod, "status": {"phase": "Running"}})
    job = setting.api.objects[JOB]
    job["spec"]["suspend"] = suspend
    setting.store.update(job | {"metadata": job["metadata"] | {"resourceVersion": "501"}})

    setting.once(setting.once().failures)

    told = {one["type"]: one for one in setting.api.objects[JOB]["status"]["conditions"]}
    if suspend:
        assert (told["Suspended"]["status"], told["ClusterReady"]["reason"]) == ("True", "Released")
    else:
        assert told["ClusterReady"]["reason"] == "NameTaken"
        assert told["ClusterReady"]["message"].startswith(words)
    assert ("delete", TRAINER) not in setting.api.asked

    setting.store.remove(theirs | {"metadata": theirs["metadata"] | {"resourceVersion": "502"}})
    seen = asyncio.run(Observer(setting.api, setting.store).observe(KEY, ()))  # type: ignore[arg-type]
    assert seen is not None
    assert ["their pod"] == [one["metadata"]["uid"] for one in seen.pods], "a pod whose Job is gone may be the job's"


@pytest.mark.fault("A12")
@pytest.mark.parametrize("code", [0, 75])
def test_how_an_earlier_job_s_trainer_ended_is_not_this_job_s_end(setting: Setting, code: int) -> None:
    """Its pods outlive their Job for a moment, with the last report of a training or with all its fruitless retries."""
    done: dict[str, Any] = {"update": 460, "updates": 460, "epoch": 30.0, "epochs": 30, "stage": 5, "workers": 4}
    report = Progress(**done, batch_size=512, learning_rate=0.025, seconds_per_update=1.0).to_json()
    ending = {"exitCode": code, "message": report, "finishedAt": "2026-11-20T09:59:30Z"}
    controller = {"kind": "Job", "name": TRAINER.name, "uid": "the earlier job's", "controller": True}
    for number in range(10):
        metadata = {"name": f"digits-trainer-{number}", "uid": f"pod {number}", "resourceVersion": str(50 + number)}
        metadata |= {"namespace": "default", "creationTimestamp": "2026-11-20T09:00:00Z"}
        labels = names.labels("digits", "trainer")
        pod = {"kind": "Pod", "metadata": metadata | {"labels": labels, "ownerReferences": [controller]}}
        phase = "Failed" if code else "Succeeded"
        containers = [{"name": "trainer", "state": {"terminated": ending}}]
        setting.store.update(pod | {"status": {"phase": phase, "containerStatuses": containers}})
    job = setting.api.objects[JOB]
    job["metadata"] |= {"creationTimestamp": "2026-11-20T10:00:00Z", "resourceVersion": "90"}
    setting.store.update(job)

    setting.once()

    status = setting.api.objects[JOB]["status"]
    assert (status["phase"], status["workers"]["requested"], status["history"]) == ("Pending", 1, [])
    assert "trainerStatus" not in status


@pytest.mark.fault("A12")
@pytest.mark.parametrize(
    ("created", "phase", "is_seen"), [("09", "Running", True), ("10", "Failed", True), ("09", "Failed", False)]
)
def test_an_earlier_job_s_trainer_is_waited_for(setting: Setting, created: str, phase: str, *, is_seen: bool) -> None:
    """It may still write its checkpoint; and this job's own earlier trainers, whose Job is gone as well, stay known."""
    controller = {"kind": "Job", "name": TRAINER.name, "uid": "its Job", "controller": True}
    metadata = {"name": "digits-trainer-x", "namespace": "default", "uid": "its pod", "resourceVersion": "50"}
    metadata |= {"labels": names.labels("digits", "trainer"), "ownerReferences": [controller]}
    metadata |= {"creationTimestamp": f"2026-11-20T{created}:30:00Z"}
    setting.store.update({"kind": "Pod", "metadata": metadata, "status": {"phase": phase}})
    job = setting.api.objects[JOB]
    job["metadata"] |= {"creationTimestamp": "2026-11-20T10:00:00Z", "resourceVersion": "90"}
    setting.store.update(job)

    seen = asyncio.run(setting.observer.observe(KEY, ()))

    assert seen is not None
    assert is_seen == bool(seen.pods)


@pytest.mark.fault("B26")
def test_nothing_of_a_deleted_job_stays_in_memory(setting: Setting) -> None:
    """Its Secrets, which nobody watches, go with the rest."""
    setting.once()
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    asyncio.run(observer.observe(KEY, ()))
    for ref in [ref for ref in setting.store.refs(KEY) if ref.kind != "Secret"]:
        setting.store.remove(setting.api.objects[ref] | {"kind": ref.kind})
    assert set(setting.store.refs(KEY)) == {SECRET, AUTHORITY}
    assert None is asyncio.run(observer.observe(KEY, ()))
    assert setting.store._objects == {}


# --- what others change again and again -------------------------------------------------------------------------------


@pytest.fixture
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.now(UTC)
    monkeypatch.setattr(ServerClock, "now", lambda _: now)


def rewrite(setting: Setting, replicas: int) -> None:
    """An autoscaler scales the workers; the operator's watch reports it."""
    setting.api.version += 1
    found = setting.api.objects[WORKERS]
    managed = [{"manager": "hpa", "fieldsV1": {"f:spec": {"f:replicas": {}}}}]
    metadata = found["metadata"] | {"resourceVersion": str(setting.api.version), "managedFields": managed}
    setting.api.objects[WORKERS] = {**found, "metadata": metadata, "spec": found["spec"] | {"replicas": replicas}}
    setting.store.update(setting.api.objects[WORKERS])


@pytest.mark.fault("B21")
@pytest.mark.usefixtures("stopped_clock")
def test_an_autoscaler_does_not_cost_a_write_per_pass(setting: Setting) -> None:
    setting.once()
    before = len(setting.api.writes())

    for _ in range(20):
        rewrite(setting, 9)
        setting.once()

    written = setting.api.writes()[before:]
    assert [write for write in written if write[1] == WORKERS] == [("apply", WORKERS)] * 5
    assert written.count(("post", Ref("Event", "ChildRewritten"))) == 1
    [contested] = [c for c in setting.api.objects[JOB]["status"]["conditions"] if c["type"] == "Contested"]
    assert contested["message"].startswith("hpa changes spec.replicas of the Deployment digits-workers")


@pytest.mark.usefixtures("stopped_clock")
def test_a_refused_repair_is_no_fight(setting: Setting) -> None:
    """It has a back-off and a condition of its own."""
    setting.once()
    setting.api.refused[WORKERS] = Refused(422, "no")
    rewrite(setting, 9)
    failures: tuple[Failure, ...] = ()

    for _ in range(8):
        failures = setting.once(failures).failures
        assert [failure.ref for failure in failures] == [WORKERS]

    conditions = {c["type"]: c["reason"] for c in setting.api.objects[JOB]["status"]["conditions"]}
    assert (conditions["ClusterReady"], conditions["Contested"]) == ("ChildRefused", "ChildrenKept")


def test_a_fight_is_forgotten_with_its_job(setting: Setting) -> None:
    setting.once()
    rewrite(setting, 9)
    setting.once()
    assert set(setting.observer._memories[KEY].put_backs) == {WORKERS}

    setting.store.remove(setting.api.objects[JOB] | {"kind": JOB.kind})

    assert setting.once().gone
    assert KEY not in setting.observer._memories


# --- events -----------------------------------------------------------------------------------------------------------


def flap(setting: Setting, ready: int) -> None:
    """The workers' pod becomes ready, or is not any more."""
    setting.api.version += 1
    found = setting.api.objects[WORKERS]
    metadata = found["metadata"] | {"resourceVersion": str(setting.api.version)}
    setting.api.objects[WORKERS] = {**found, "metadata": metadata, "status": {"readyReplicas": ready}}
    setting.store.update(setting.api.objects[WORKERS])
    setting.once()


@pytest.mark.fault("B29")
def test_a_flapping_pod_makes_one_event_per_message(setting: Setting) -> None:
    """With a count, and the times of the first and the last."""
    setting.once()
    for _ in range(4):
        flap(setting, 1)
        flap(setting, 0)

    made = {(e["reason"], e["message"]): e["count"] for e in setting.api.events.values()}
    assert len(made) == len(setting.api.events)
    assert made["ScalingUp", "Requested 1 worker; 0 joined so far."] == 5
    assert made["AtTarget", "The requested worker has joined."] == 4


@pytest.mark.fault("B29")
def test_a_pod_that_flaps_for_long_makes_few_writes_of_events(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if its conditions showed every turn; and what is new is posted all the same."""
    monkeypatch.setattr(situation, "MOST_TURNS", 10**9)
    monkeypatch.setattr(job_status, "MOST_TURNS", 10**9)
    setting.once()
    for _ in range(100):
        flap(setting, 1)
        flap(setting, 0)
    about_events = [ref.name for verb, ref in setting.api.writes() if ref.kind == "Event"]
    assert BURST <= len(about_events) <= BURST + 3

    job = setting.api.objects[JOB]
    setting.store.update(
        {**job, "metadata": job["metadata"] | {"resourceVersion": "9000"}, "spec": job["spec"] | {"suspend": True}}
    )
    setting.once()

    assert {"BySpec"} < {event["reason"] for event in setting.api.events.values()}


def test_an_event_that_expired_is_posted_again(setting: Setting) -> None:
    setting.once()
    flap(setting, 1)
    flap(setting, 0)
    setting.api.events.clear()

    flap(setting, 1)

    [event] = setting.api.events.values()
    assert (event["reason"], event["count"]) == ("AtTarget", 2)


def test_the_events_of_a_deleted_job_are_forgotten(setting: Setting) -> None:
    setting.once()
    assert set(setting.writer.poster.correlator._jobs) == {KEY}
    setting.store.remove(setting.api.objects[JOB] | {"kind": JOB.kind})

    setting.once()

    assert setting.writer.poster.correlator._jobs == {}


# --- the log, as someone on call reads it -----------------------------------------------------------------------------


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Returns the lines at info and above since the last call."""
    caplog.set_level(logging.INFO, logger="batchgrowth_operator")

    def since_last() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
        caplog.clear()
        return found

    return since_last


VERSIONS = itertools.count(1_000_000, 1000)
"""Versions that no other test has, since comparisons with a version are remembered."""


def changed(setting: Setting, ref: Ref, **parts: Any) -> None:
    """Something changes the object; the operator's watch reports it."""
    setting.api.version = next(VERSIONS)
    found = setting.api.objects[ref]
    metadata = found["metadata"] | {"resourceVersion": str(setting.api.version)}
    setting.api.objects[ref] = {**found, **parts, "metadata": metadata}
    setting.store.update(copy.deepcopy(setting.api.objects[ref]))


def reported(setting: Setting, report: Progress) -> None:
    """The trainer reports its progress, with one worker ready."""
    changed(setting, WORKERS, status={"readyReplicas": 1})
    changed(setting, PROGRESS, data={"progress.json": report.to_json()})


def test_the_log_of_a_new_job(setting: Setting, lines: Callable[[], list[str]]) -> None:
    setting.once()

    told = lines()
    assert told[0] == "default/digits: a new job"
    assert "default/digits: requests 1 worker instead of 0: Requested 1 worker; 0 joined so far." in told
    assert told[-1] == "default/digits: created Job/digits-trainer, which did not exist"
    assert len([line for line in told if "created" in line]) == 11

    setting.once()
    assert lines() == [], "a pass that does nothing has no line"


def test_the_log_of_a_training(setting: Setting, lines: Callable[[], list[str]]) -> None:
    """What begins has a line with its update; progress alone has one at debug only."""
    setting.once()
    lines()
    reported(setting, REPORT)
    setting.once()
    told = lines()
    assert "default/digits, update 10: stage 1 began with batch size 32" in told
    assert any(line.startswith("default/digits, update 10: Training is True, UpdatesCommitted: ") for line in told)
    assert any(line.startswith("default/digits, update 10: 1 worker joined within ") for line in told)
    assert "default/digits, update 10: phase Pending → Training" in told

    changed(setting, PROGRESS, data={"progress.json": replace(REPORT, update=20).to_json()})
    setting.make_pass.__self__.rate._defaults = replace(setting.make_pass.__self__.rate._defaults, report_seconds=0.0)
    setting.once()
    assert lines() == []


def test_the_log_of_a_job_that_is_taken_over_and_deleted(setting: Setting, lines: Callable[[], list[str]]) -> None:
    setting.once()
    reported(setting, REPORT)
    setting.once()
    lines()
    observer = Observer(setting.api, setting.store)  # type: ignore[arg-type]
    rate = ProgressRate(Defaults(image="example/trainer:1"))
    make_pass = Reconciler(observer, setting.writer, rate, setting.metrics).make_pass
    asyncio.run(make_pass(KEY, ()))
    assert lines()[0] == "default/digits, update 10: taken up in phase Training with 1 worker requested"

    changed(setting, JOB, spec=setting.api.objects[JOB]["spec"] | {"operatorClass": "gpu"})
    asyncio.run(make_pass(KEY, ()))
    asyncio.run(make_pass(KEY, ()))
    assert lines() == ['default/digits: left to the operator of class "gpu"']

    setting.store.remove(setting.api.objects[JOB] | {"kind": JOB.kind})
    assert setting.once().gone
    assert lines() == ["default/digits: the job is gone"]


def test_the_log_of_changed_children(setting: Setting, lines: Callable[[], list[str]]) -> None:
    """What is scaled, put back, renewed and changed, each with the fields; no value of a Secret is shown."""
    setting.once()
    lines()
    workers = setting.api.objects[WORKERS]["spec"]
    changed(setting, WORKERS, spec=workers | {"replicas": 9})
    setting.once()
    assert [line for line in lines() if "Deployment" in line] == [
        "default/digits: put back Deployment/digits-workers, which another process changed: spec.replicas"
    ]

    changed(setting, JOB, spec=setting.api.objects[JOB]["spec"] | {"suspend": True})
    setting.once()
    told = lines()
    assert "default/digits: changed Job/digits-trainer: spec.suspend" in told
    assert "default/digits: deleted Deployment/digits-workers: the job is over or suspended" in told
    assert "default/digits: deleted DaskCluster/digits: the job is over or suspended" in told
    assert "default/digits: Suspended is True, BySpec: " in "\n".join(told)


@pytest.mark.parametrize(
    ("found", "wanted", "line"),
    [
        ({"replicas": 2}, {"replicas": 4}, "scaled Deployment/d from 2 to 4 replicas: spec.replicas"),
        ({}, {"replicas": 4, "paused": True}, "scaled Deployment/d from 0 to 4 replicas: spec.replicas, spec.paused"),
        ({}, dict.fromkeys("abcdef", 1), "changed Deployment/d: spec.a, spec.b, spec.c, spec.d, …"),
    ],
)
def test_the_line_about_a_changed_deployment(found: dict[str, Any], wanted: dict[str, Any], line: str) -> None:
    def child(digest: str, spec: dict[str, Any]) -> dict[str, Any]:
        metadata = {"name": "d", "annotations": {names.MANIFEST: digest}}
        return {"kind": "Deployment", "metadata": metadata, "spec": spec}

    seen = Observed(job={}, now=AT, children={Ref("Deployment", "d"): child("before", found)})

    assert line == told.applied(seen, child("after", wanted))


def test_the_log_of_renewed_certificates(setting: Setting, lines: Callable[[], list[str]]) -> None:
    setting.once()
    lines()
    setting.store.update(
        {
            **setting.api.objects[SECRET],
            "metadata": setting.api.objects[SECRET]["metadata"] | {"resourceVersion": "999"},
        }
        | {"data": {}}
    )
    setting.once()

    [line] = lines()
    assert line.startswith("default/digits: renewed the certificates in Secret/digits-tls: ")
    assert "tls.crt" in line


@pytest.mark.parametrize(
    ("writes", "ref", "line"),
    [
        (Writes(), JOB, "deleted the job, whose time to live after its end is over"),
        (
            Writes(recreated={TRAINER: "its pod is on a lost node"}),
            TRAINER,
            "deleted Job/digits-trainer to recreate it: its pod is on a lost node",
        ),
        (Writes(), CLUSTER, "deleted DaskCluster/digits: the job is over or suspended"),
    ],
)
def test_the_line_about_a_deletion(writes: Writes, ref: Ref, line: str) -> None:
    assert line == told.deleted(ref, writes.recreated.get(ref))


def test_the_lines_about_a_status() -> None:
    """A condition that turns has a line, one that only repeats itself has none; a first one only if it is bad."""

    def condition(kind: str, status: str, reason: str) -> dict[str, Any]:
        return {"type": kind, "status": status, "reason": reason, "message": "why", "lastTransitionTime": WAS}

    before = JobStatus.model_validate(
        {
            "restarts": 1,
            "workers": {"requested": 2, "ready": 2, "resizeSeconds": "3.5"},
            "conditions": [
                condition("Degraded", "False", "FullStrength"),
                condition("Stalled", "False", "ProgressSeen"),
            ],
        }
    )
    after = {
        "restarts": 2,
        "workers": {"requested": 4, "ready": 4, "resizeSeconds": "2.5"},
        "conditions": [
            condition("Degraded", "True", "TooFewWorkers"),
            condition("Stalled", "False", "ProgressSeen"),
            condition("Accepted", "False", "SpecInvalid"),
            condition("Suspended", "False", "NotSuspended"),
        ],
    }

    assert [*told.changes(before, JobStatus.model_validate(after))] == [
        "requests 4 workers instead of 2",
        "4 workers joined within 2.5 s of the request",
        "restart 2 of the trainer",
        "Degraded is True, TooFewWorkers: why",
        "Accepted is False, SpecInvalid: why",
    ]


def test_the_log_of_retries(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    caplog.set_level(logging.INFO, logger="batchgrowth_operator")
    results = iter([PassResult(backs_off=True), PassResult(backs_off=True), PassResult(gone=True)])

    async def make_pass(_key: Key, _failures: tuple[Failure, ...]) -> PassResult:
        return next(results)

    async def scene() -> None:
        queues = Passes(make_pass)
        queues.wake(KEY)
        await task(queues)

    monkeypatch.setattr(queue, "backoff_seconds", lambda failures: failures / 1000)
    asyncio.run(scene())

    assert caplog.messages == [
        "default/digits: attempt 1 failed; retries in 0.001 s",
        "default/digits: attempt 2 failed; retries in 0.002 s",
    ]


@pytest.mark.fault("O16")
def test_a_silent_trainer_is_asked_after_now_and_then(setting: Setting) -> None:
    """The namespace's policies are listed, and the report is read, since the watch may have missed one."""
    setting.once()
    reported(setting, replace(REPORT, beat=3))
    changed(setting, Ref("Job", "digits-trainer"), status={"active": 1, "ready": 1})
    policy = Ref("NetworkPolicy", "deny-all")
    setting.api.objects[policy] = {"metadata": {"name": "deny-all"}, "spec": {"podSelector": {}}}

    def inquiry() -> Any:
        seen = asyncio.run(setting.observer.observe(KEY, ()))
        assert seen is not None
        return seen.inquiry

    assert inquiry() is None
    memory = setting.observer._memories[KEY]
    assert memory.last_report is not None
    memory.last_report = memory.last_report[0], memory.last_report[1] - timedelta(seconds=60)
    assert inquiry() == Inquiry(policies=("deny-all",))
    del setting.api.objects[policy]
    assert inquiry() == Inquiry(policies=("deny-all",))

    memory.inquired -= INQUIRY_SECONDS
    setting.api.refused[Ref("NetworkPolicy", "")] = Refused(403, "no")
    assert inquiry() == Inquiry(refusal="no")
    memory.inquired -= INQUIRY_SECONDS
    setting.api.refused.clear()
    report = setting.api.objects.pop(PROGRESS)
    assert inquiry() == Inquiry()
    setting.api.objects[PROGRESS] = report
    memory.inquired -= INQUIRY_SECONDS
    missed = {"data": {"progress.json": replace(REPORT, beat=4).to_json()}}
    metadata = report["metadata"] | {"resourceVersion": str(setting.api.version + 1)}
    setting.api.objects[PROGRESS] = report | missed | {"metadata": metadata}
    assert inquiry() is None, "the report that the watch has missed is decided on at once"
