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

    assert world.condition("Accepted") == ("False", "PodsNotAllowed")
    assert (world.children, world.status["phase"]) == ({}, "Rejected")
    assert [(event.type, event.reason) for event in decision.events] == [("Warning", "PodsNotAllowed")]
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
    assert len(faults) == 10
    assert "\n".join(map(str, faults)).endswith(accepted(world).removeprefix("…"))


def test_baseline_allows_what_restricted_does_not(make_world: MakeWorld) -> None:
    world = make_world(**workers(ROOT_USER))
    world.settle()
    assert world.condition("Accepted") == ("False", "PodsNotAllowed")

    world.defaults = BASELINE
    world.settle()

    assert world.condition("Accepted") == ("True", "PlanMade")
    assert world.deployment["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 0


def test_only_allowed_accounts(make_world: MakeWorld) -> None:
    world = make_world(serviceAccountName="admin")
    world.settle()
    assert (world.children, world.condition("Accepted")) == ({}, ("False", "PodsNotAllowed"))
    assert 'spec.serviceAccountName: "admin"' in accepted(world)

    world.edit(serviceAccountName="reader").settle()

    assert world.deployment["spec"]["template"]["spec"]["serviceAccountName"] == "reader"


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
    assert upgraded.condition("Accepted") == ("False", "PodsNotAllowed")
    assert upgraded.condition("Training") == ("True", "UpdatesCommitted")


def test_it_ends_like_any_other(upgraded: Any) -> None:
    upgraded.settle()
    upgraded.report(460).trainer_ends().settle()

    assert (upgraded.status["phase"], upgraded.condition("Succeeded")) == ("Succeeded", ("True", "Finished"))
    assert upgraded.condition("Accepted") == ("False", "PodsNotAllowed")
    assert (upgraded.deployment, upgraded.cluster) == (None, None)


def test_it_can_be_suspended_and_then_creates_nothing(upgraded: Any) -> None:
    upgraded.edit(suspend=True).settle()
    assert upgraded.trainer["spec"]["suspend"]
    upgraded.trainer["status"] = {}

    upgraded.settle()
    assert (upgraded.deployment, upgraded.cluster) == (None, None)
    upgraded.edit(suspend=False).settle()

    assert (upgraded.deployment, upgraded.status["phase"]) == (None, "Rejected")
