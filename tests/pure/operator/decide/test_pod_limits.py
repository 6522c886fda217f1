"""A job whose workers' pods exceed what the installation allows."""

from typing import Any

import pytest
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity, pod_faults, written_pods
from batchgrowth.manifest.reading import read_manifest
from batchgrowth_operator.seen.observed import Ref
from batchgrowth_operator.settings import Defaults

MakeWorld = Any
ROOT_USER = {"securityContext": {"runAsUser": 0, "runAsNonRoot": False}}
ON_THE_NODE = {"hostNetwork": True, "volumes": [{"name": "root", "hostPath": {"path": "/"}}]}
BASELINE = Defaults(image="example/trainer:1", pods=PodLimits(standard=PodSecurity.baseline))


def workers(pod: Any) -> dict[str, Any]:
    return {"workers": {"examplesPerWorker": 128, "maximum": 4, "template": {"spec": pod}}}


def accepted(world: Any) -> str:
    return str(next(one["message"] for one in world.status["conditions"] if one["type"] == "Accepted"))


@pytest.mark.parametrize("suspend", [False, True])
@pytest.mark.fault("A14")
def test_nothing_is_created(make_world: MakeWorld, suspend: bool) -> None:
    world = make_world(**workers(ON_THE_NODE), suspend=suspend)

    decision = world.step()

    assert ("False", "PodsNotAllowed") == world.condition("Accepted")
    assert ({}, "Rejected") == (world.children, world.status["phase"])
    assert [("Warning", "PodsNotAllowed")] == [(event.type, event.reason) for event in decision.events]
    assert world.decide().is_empty


def test_the_condition_says_what_check_says(make_world: MakeWorld) -> None:
    """The operator judges the merged pods and check what the user wrote, with the same result."""
    worker = {"name": "worker", "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}}}
    sidecar = {"name": "side", "image": "example/side:1", "ports": [{"containerPort": 80, "hostPort": 80}]}
    pod = ON_THE_NODE | ROOT_USER | {"containers": [worker, sidecar], "automountServiceAccountToken": True}
    world = make_world(**workers(pod))
    world.settle()

    job = {key: world.job[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {"name": "digits"}}
    spec = read_manifest(str(job)).spec
    faults = pod_faults(spec, written_pods(spec), PodLimits())
    assert 10 == len(faults)
    assert "\n".join(map(str, faults)).endswith(accepted(world).removeprefix("…"))


def test_baseline_allows_what_restricted_does_not(make_world: MakeWorld) -> None:
    world = make_world(**workers(ROOT_USER))
    world.settle()
    assert ("False", "PodsNotAllowed") == world.condition("Accepted")

    world.defaults = BASELINE
    world.settle()

    assert ("True", "PlanMade") == world.condition("Accepted")
    assert 0 == world.deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"]


def test_only_allowed_accounts(make_world: MakeWorld) -> None:
    world = make_world(serviceAccountName="admin")
    world.settle()
    assert ({}, ("False", "PodsNotAllowed")) == (world.children, world.condition("Accepted"))
    assert 'spec.serviceAccountName: "admin"' in accepted(world)

    world.edit(serviceAccountName="reader").settle()

    assert "reader" == world.deployment["spec"]["template"]["spec"]["serviceAccountName"]


@pytest.fixture
def upgraded(training_world: MakeWorld) -> Any:
    """A job that trains with pods which the operator accepted, and which its next version refuses."""
    world = training_world(**workers({}))
    world.defaults = BASELINE
    world.edit(**workers(ROOT_USER)).settle()
    world.defaults = Defaults(image="example/trainer:1")
    return world


def test_a_running_job_whose_pods_are_refused_later_keeps_its_children(upgraded: Any) -> None:
    before = {ref: dict(child) for ref, child in upgraded.children.items()}

    upgraded.settle()
    upgraded.report(440).settle()

    assert before.keys() == upgraded.children.keys()
    assert before[Ref("Deployment", "digits-workers")] == upgraded.deployment
    assert ("False", "PodsNotAllowed") == upgraded.condition("Accepted")
    assert ("True", "UpdatesCommitted") == upgraded.condition("Training")


def test_it_ends_like_any_other(upgraded: Any) -> None:
    upgraded.settle()
    upgraded.report(460).trainer_ends().settle()

    assert ("Succeeded", ("True", "Finished")) == (upgraded.status["phase"], upgraded.condition("Succeeded"))
    assert ("False", "PodsNotAllowed") == upgraded.condition("Accepted")
    assert (None, None) == (upgraded.deployment, upgraded.cluster)


def test_it_can_be_suspended_and_then_creates_nothing(upgraded: Any) -> None:
    upgraded.edit(suspend=True).settle()
    assert upgraded.trainer["spec"]["suspend"]
    upgraded.trainer["status"] = {}

    upgraded.settle()
    assert (None, None) == (upgraded.deployment, upgraded.cluster)
    upgraded.edit(suspend=False).settle()

    assert (None, "Rejected") == (upgraded.deployment, upgraded.status["phase"])
