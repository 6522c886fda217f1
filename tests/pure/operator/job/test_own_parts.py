"""Volumes, environment, resources and code that a job adds to its pods, and what a change of them does."""

import json
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity, pod_faults, written_pods
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_operator.seen.observed import Ref
from batchgrowth_operator.settings import Defaults

MakeWorld = Any
TRAINER = (Ref("Job", names.of("digits").trainer),)
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "images"}}
OWN: dict[str, Any] = {
    "volumes": [CLAIM],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
    "env": [
        {"name": "HF_HOME", "value": "/data/hub"},
        {"name": "HOME", "value": "/data/home"},
        {"name": "NCCL_SOCKET_IFNAME", "value": "eth0"},
    ],
    "envFrom": [{"secretRef": {"name": "tokens"}}],
    "resources": {"requests": {"cpu": 2}, "limits": {"memory": "256Mi"}},
}


def pod(world: Any, role: str) -> dict[str, Any]:
    template = (world.trainer if role == "trainer" else world.deployment)["spec"]["template"]
    return dict(template["spec"])


def by(key: str, entries: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {entry[key]: entry for entry in entries}


@pytest.mark.parametrize("role", ["trainer", "worker"])
def test_both_have_what_the_spec_adds(make_world: MakeWorld, role: str) -> None:
    world = make_world(**OWN)
    world.settle()
    spec = pod(world, role)
    [container] = spec["containers"]

    assert by("name", spec["volumes"])["data"] == CLAIM
    assert {"batchgrowth", "tmp"} < by("name", spec["volumes"]).keys()
    assert OWN["volumeMounts"][0] == by("mountPath", container["volumeMounts"])["/data"]
    env = by("name", container["env"])
    assert OWN["env"] == [env[own["name"]] for own in OWN["env"]]
    assert OWN["envFrom"] == container["envFrom"]
    assert container["resources"] == {"requests": {"cpu": "2"}, "limits": {"memory": "256Mi"}}


def test_the_scheduler_has_none_of_it(make_world: MakeWorld) -> None:
    plain, own = make_world(), make_world(**OWN, workload=with_source(make_world()))
    assert len({str(world.settle() or world.cluster["spec"]) for world in (plain, own)}) == 1


def test_the_template_takes_the_place_of_a_source_for_workers_alone(make_world: MakeWorld) -> None:
    secret = {"secretKeyRef": {"name": "hub", "key": "token"}}
    over = {
        "volumes": [{"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}],
        "containers": [{"name": "worker", "env": [{"name": "HF_HOME", "valueFrom": secret}]}],
    }
    world = make_world(**OWN, workers={"maximum": 4, "template": {"spec": over}})
    world.settle()

    worker, trainer = pod(world, "worker"), pod(world, "trainer")

    assert by("name", worker["volumes"])["data"] == {"name": "data", "emptyDir": {"sizeLimit": "1Gi"}}
    assert {"name": "HF_HOME", "valueFrom": secret} == by("name", worker["containers"][0]["env"])["HF_HOME"]
    assert by("name", trainer["volumes"])["data"] == CLAIM


def test_the_store_s_secret_stays_with_the_trainer(make_world: MakeWorld) -> None:
    world = make_world(**OWN, checkpoint={"uri": "s3://bucket/digits", "secretName": "s3"})
    world.settle()
    named = {
        role: [source["secretRef"]["name"] for source in pod(world, role)["containers"][0]["envFrom"]]
        for role in ("trainer", "worker")
    }
    assert named == {"trainer": ["s3", "tokens"], "worker": ["tokens"]}


def with_source(world: Any, **source: Any) -> dict[str, Any]:
    return {**world.job["spec"]["workload"], "source": {"configMap": "digits-code", **source}}


@pytest.mark.parametrize("items", [None, [{"key": "layers.norm.py", "path": "layers/norm.py"}]])
@pytest.mark.parametrize("role", ["trainer", "worker"])
def test_the_code_is_mounted_where_the_trainer_looks(make_world: MakeWorld, role: str, items: Any) -> None:
    source = {"items": items} if items else {}
    world = make_world(workload=with_source(make_world(), **source))
    world.settle()
    spec = pod(world, role)

    volume = by("name", spec["volumes"])["batchgrowth-source"]
    mount = by("mountPath", spec["containers"][0]["volumeMounts"])["/etc/batchgrowth-source"]

    assert {"name": "digits-code", **source} == volume["configMap"]
    assert (mount["name"], mount["readOnly"]) == ("batchgrowth-source", True)


def test_a_trainer_of_an_older_version_can_read_the_job(make_world: MakeWorld) -> None:
    """It would refuse fields that it does not know, and has no use for these; of the code it has to be told."""
    world = make_world(**OWN, workload=with_source(make_world()))
    world.settle()
    told = json.loads(world.child("ConfigMap", names.of("digits").plan)["data"]["job.json"])["spec"]
    assert told.keys() & OWN.keys() == set()
    assert told["workload"]["source"] == {"configMap": "digits-code"}


@pytest.mark.parametrize(
    "change",
    [{"env": [{"name": "HF_HOME", "value": "/elsewhere"}]}, {"resources": None}, dict.fromkeys(OWN)],
    ids=["another value", "one less", "none"],
)
def test_a_change_recreates_the_trainer_and_rolls_the_workers(training_world: MakeWorld, change: Any) -> None:
    """And is done once, though the API server has filled in the volumes of the Job that was there."""
    world = training_world(**OWN)
    before = world.deployment["spec"]["template"]
    filled_in = world.trainer["spec"]["template"]["spec"]
    filled_in["volumes"][-1].setdefault("emptyDir", {})
    filled_in["volumes"].append({"name": "token", "projected": {"defaultMode": 420, "sources": []}})
    assert world.decide().is_empty

    world.edit(**change)
    assert world.step().delete == TRAINER
    assert None is world.trainer
    world.settle()

    assert before != world.deployment["spec"]["template"]
    assert world.trainer is not None
    assert world.decide().is_empty


def test_added_parts_recreate_the_trainer(training_world: MakeWorld) -> None:
    world = training_world()
    world.edit(**OWN)
    assert world.step().delete == TRAINER
    world.settle()
    assert by("name", pod(world, "trainer")["volumes"])["data"] == CLAIM


def test_a_forged_annotation_recreates_nothing(training_world: MakeWorld) -> None:
    world = training_world(**OWN)
    world.trainer["metadata"]["annotations"][names.INPUTS] = "forged"
    assert world.step().delete == ()


def test_a_volume_that_pod_security_forbids_is_named_where_it_was_written(make_world: MakeWorld) -> None:
    """Once for the volumes of all pods, and once more for what workers alone add; the operator says what check says."""
    root, nfs = {"name": "root", "hostPath": {"path": "/"}}, {"name": "nfs", "nfs": {"server": "a", "path": "/"}}
    template = {"spec": {"volumes": [{"name": "host", "hostPath": {"path": "/etc"}}]}}
    world = make_world(volumes=[root, nfs], workers={"maximum": 4, "template": template})
    world.settle()
    assert (world.children, world.condition("Accepted")) == ({}, ("False", "PodsNotAllowed"))

    job = {key: world.job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "digits"}}
    spec = read_manifest(str(job)).spec
    paths = [fault.path for fault in pod_faults(spec, written_pods(spec), PodLimits())]
    told = next(one["message"] for one in world.status["conditions"] if one["type"] == "Accepted")

    of_workers = "spec.workers.template.spec.volumes.host.hostPath"
    assert ["spec.volumes.root.hostPath", "spec.volumes.nfs.nfs", of_workers] == paths
    assert all(path in told for path in paths)


def test_baseline_allows_other_volumes(make_world: MakeWorld) -> None:
    world = make_world(volumes=[{"name": "nfs", "nfs": {"server": "a", "path": "/"}}])
    world.defaults = Defaults(image="example/trainer:1", pods=PodLimits(standard=PodSecurity.baseline))
    world.settle()
    assert "nfs" in by("name", pod(world, "trainer")["volumes"])
