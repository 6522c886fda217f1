"""The operator as a process against a real API server: what it creates and repairs."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.api.client import EVENTS, KINDS
from batchgrowth_operator.children.dask_cluster import SETTLED_AFTER_SECONDS
from batchgrowth_operator.seen.observed import Ref
from operator_field import CHILDREN, CLAIM, CLUSTER, JOB, KEPT, PLAN, TRAINER, WORKERS, Field, until

ROOT = Path(__file__).parents[2]
SERVICES = KINDS["Service"]
AUTHORITY, TLS = Ref("Secret", names.of("digits").authority), Ref("Secret", "digits-tls")


def test_the_children_of_the_example(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)

    uid = ground.get(JOB)["metadata"]["uid"]
    for ref in CHILDREN:
        metadata = ground.get(ref)["metadata"]
        assert [uid] == [owner["uid"] for owner in metadata["ownerReferences"]]
        assert metadata["labels"][names.JOB_LABEL] == "digits"
    assert ground.condition("Accepted") == ("True", "PlanMade")
    assert "finalizers" not in ground.get(JOB)["metadata"]
    writers = {(entry["manager"], entry.get("subresource")) for entry in ground.get(JOB)["metadata"]["managedFields"]}
    assert {writer for writer in writers if writer[0] == names.FIELD_MANAGER} == {("batchgrowth-operator", "status")}


def test_nothing_is_written_when_nothing_changes(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    before = ground.rest()

    time.sleep(3)

    assert before == ground.everything()


def test_own_parts_are_written_once(ground: Field) -> None:
    """The API server fills in volumes and writes amounts in another way; the operator takes neither for a change."""
    own = yaml.safe_load((ROOT / "tests" / "corpus" / "good" / "own-pods.yaml").read_text())["spec"]
    parts = ("volumes", "volumeMounts", "env", "envFrom", "resources")
    ground.apply(**{name: own[name] for name in parts}, workload=own["workload"])
    until(ground.is_complete)
    before = ground.rest()
    time.sleep(3)
    assert before == ground.everything()

    for ref in (TRAINER, WORKERS):
        pod = ground.get(ref)["spec"]["template"]["spec"]
        mounted = {volume["name"] for volume in pod["volumes"]}
        assert {"data", "cache", "settings", "batchgrowth-source"} < mounted
        assert pod["containers"][0]["resources"]["requests"] == {"cpu": "2", "memory": "1536Mi"}

    ground.patch(JOB, {"spec": {"env": [{"name": "HF_HOME", "value": "/data/other"}]}})
    until(lambda: "deletionTimestamp" in ground.get(TRAINER)["metadata"])  # no controller completes it here
    env = ground.get(WORKERS)["spec"]["template"]["spec"]["containers"][0]["env"]
    assert {"name": "HF_HOME", "value": "/data/other"} in env
    assert not [variable for variable in env if variable["name"] in ("HF_TOKEN", "NODE", "EMPTY")]


def test_a_milestone_brings_workers(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.workers_come()
    ground.report(10)
    until(lambda: ground.condition("Training"), ("True", "UpdatesCommitted"))
    assert ground.replicas() == 1

    ground.report(398)
    until(ground.replicas, 2)
    until(lambda: ground.condition("Resizing"), ("True", "ScalingUp"))
    ground.workers_come()
    until(lambda: ground.condition("Resizing"), ("False", "AtTarget"))

    assert ground.get(JOB)["status"]["workers"]["ready"] == 2


def test_a_job_without_a_plan_is_rejected(ground: Field) -> None:
    rate = {"initial": "0.05", "rule": "DecayPastMaximum", "warmup": {"initial": "0.01", "updates": 100_000}}
    ground.apply(learningRate=rate)

    until(lambda: ground.condition("Accepted"), ("False", "PlanImpossible"))
    assert ground.get(JOB)["status"]["phase"] == "Rejected"

    ground.rest()
    assert [ref for ref in CHILDREN if ground.get(ref) is not None] == []


def test_suspend_resume_and_the_end(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.patch(JOB, {"spec": {"suspend": True}})
    until(
        lambda: (ground.get(WORKERS), ground.get(CLUSTER), ground.get(TRAINER)["spec"]["suspend"]), (None, None, True)
    )
    until(lambda: ground.condition("Suspended"), ("True", "BySpec"))

    ground.patch(JOB, {"spec": {"suspend": False}})
    until(lambda: ground.is_complete() and not ground.get(TRAINER)["spec"]["suspend"])

    ground.report(460)
    ground.trainer_ends()
    until(lambda: ground.condition("Succeeded"), ("True", "Finished"))
    until(lambda: (ground.get(WORKERS), ground.get(CLUSTER)), (None, None))
    assert ground.get(TRAINER) is not None


def test_bounds_change_midway(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.report(440)
    until(ground.replicas, 4)

    ground.patch(JOB, {"spec": {"workers": {"maximum": 3}}})
    until(ground.replicas, 3)


@pytest.mark.fault("B18", "B19")
@pytest.mark.parametrize(
    "refs",
    [
        [TLS, *(ref for ref in [*CHILDREN, CLAIM] if ref not in (TLS, AUTHORITY))],
        pytest.param([AUTHORITY], marks=pytest.mark.long),  # another half minute
    ],
    ids=("all", "authority"),
)
def test_children_that_are_deleted_come_back(ground: Field, refs: list[Ref]) -> None:
    """One after another; a Secret within half a minute, since Secrets are not watched."""
    ground.apply(**KEPT)
    until(ground.is_complete)
    ground.rest()

    def uid(ref: Ref) -> str | None:
        found = ground.get(ref)
        return found and found["metadata"]["uid"]

    before = {ref: uid(ref) for ref in refs}
    for ref in refs:
        if ref.kind in ("Job", CLAIM.kind):
            ground.patch(ref, {"metadata": {"finalizers": None}})
        ground.delete(ref)
        if ref.kind != "Secret":
            until(lambda ref=ref: uid(ref) not in (None, before[ref]), seconds=60)

    until(lambda: [ref for ref in refs if uid(ref) in (None, before[ref])], [], seconds=60)


@pytest.mark.fault("A29", "A30", "B20")
def test_a_child_that_is_changed_or_loses_its_label_is_repaired(ground: Field) -> None:
    ground.apply()
    until(ground.is_complete)
    ground.patch(WORKERS, {"spec": {"replicas": 9}, "metadata": {"labels": {names.JOB_LABEL: None}}})
    ground.patch(PLAN, {"data": {names.PLAN_KEY: "{}"}})

    until(ground.replicas, 1)
    until(lambda: ground.get(WORKERS)["metadata"]["labels"].get(names.JOB_LABEL), "digits")
    until(lambda: json.loads(ground.get(PLAN)["data"][names.PLAN_KEY]) != {})


@pytest.mark.fault("B21")
def test_an_autoscaler_of_the_workers(ground: Field) -> None:
    """The API server records who scaled; a change of the job is written at once all the same."""
    ground.apply()
    until(ground.is_complete)
    scale = {"apiVersion": "autoscaling/v1", "kind": "Scale", "spec": {"replicas": 9}}
    path = KINDS["Deployment"].path(ground.namespace, WORKERS.name, "scale")
    merge = {"content_type": "application/merge-patch+json", "field_manager": "autoscaler"}

    def scaled() -> tuple[str, str]:
        ground.api._send("patch", KINDS["Deployment"], path, body=scale, **merge)
        return ground.condition("Contested")

    until(scaled, ("True", "ChildRewritten"))
    [contested] = [c for c in ground.get(JOB)["status"]["conditions"] if c["type"] == "Contested"]
    assert contested["message"].startswith("autoscaler (scale) changes spec.replicas of the Deployment digits-workers")
    ground.report(440)
    until(ground.replicas, 4)


@pytest.mark.fault("B29")
def test_a_flapping_pod(ground: Field) -> None:
    """The API server keeps one event with a count."""
    ground.apply()
    until(ground.is_complete)
    for _ in range(3):
        ground.workers_come()
        until(lambda: ground.condition("Resizing"), ("False", "AtTarget"))
        ground.patch(WORKERS, {"status": {"readyReplicas": 0}}, "status")
        until(lambda: ground.condition("Resizing"), ("True", "ScalingUp"))

    def counts() -> list[int]:
        found = ground.api._send("get", EVENTS, EVENTS.path(ground.namespace))["items"]
        return [event["count"] for event in found if event["reason"] == "ScalingUp"]

    until(counts, [4])


@pytest.mark.fault("A12")
def test_an_object_of_another_owner_is_not_taken(ground: Field) -> None:
    theirs = {"metadata": {"name": PLAN.name, "namespace": ground.namespace}, "data": {"theirs": "1"}}
    ground.api._send("post", KINDS["ConfigMap"], KINDS["ConfigMap"].path(ground.namespace), body=theirs)
    ground.apply()
    until(lambda: ground.condition("ClusterReady"), ("False", "NameTaken"))
    assert ground.get(PLAN)["data"] == {"theirs": "1"}

    ground.delete(PLAN)
    until(ground.is_complete)
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForScheduler"))


def test_a_template_that_the_api_server_refuses(ground: Field) -> None:
    """Server-side apply with strict validation refuses unknown fields."""
    ground.apply(workers={"template": {"spec": {"nodeSelektor": {"a": "b"}}}})

    until(lambda: ground.condition("ClusterReady"), ("False", "ChildRefused"))

    [ready] = [c for c in ground.get(JOB)["status"]["conditions"] if c["type"] == "ClusterReady"]
    assert "nodeSelektor" in ready["message"]


@pytest.mark.fault("A23")
@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"limits": {"cpu": "INVALID"}}, "quantities must match the regular expression"),
        ({"requests": {"memory": "-1"}}, "must be greater than or equal to 0"),
        ({"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}, "must be less than or equal to memory limit"),
    ],
)
def test_resources_that_no_pod_can_have(ground: Field, resources: dict[str, Any], words: str) -> None:
    """The message is the API server's, no trainer starts, and the job continues once they are mended."""
    ground.apply(workers={"template": {"spec": {"containers": [{"name": "worker", "resources": resources}]}}})

    until(lambda: ground.condition("ClusterReady"), ("False", "ChildRefused"))

    [ready] = [c for c in ground.get(JOB)["status"]["conditions"] if c["type"] == "ClusterReady"]
    assert words in ready["message"]
    assert (ground.get(WORKERS), ground.get(TRAINER)) == (None, None)
    ground.patch(JOB, {"spec": {"workers": {"template": None}}})
    until(ground.is_complete)


def test_a_deleted_part_of_the_scheduler_is_requested(ground: Field) -> None:
    """The Dask operator creates missing parts only in the phase Created."""
    ground.apply()
    until(ground.is_complete)
    ground.make_scheduler()
    until(lambda: ground.condition("ClusterReady"), ("False", "WaitingForWorkers"))
    time.sleep(SETTLED_AFTER_SECONDS)
    assert ground.get(CLUSTER)["status"]["phase"] == "Running"

    ground.api._send("delete", SERVICES, SERVICES.path(ground.namespace, "digits-scheduler"))

    until(lambda: ground.get(CLUSTER)["status"]["phase"], "Created", seconds=SETTLED_AFTER_SECONDS + 30)
    ground.rest()
    assert "ChildRefused" != ground.condition("ClusterReady")[1], (
        "a slow Dask operator still has to take the phase over"
    )
    ground.make_scheduler()
    ground.rest()
    assert ground.get(CLUSTER)["status"]["phase"] == "Running"
