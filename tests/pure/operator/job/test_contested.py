"""A field of a child that others change again and again is put back less and less often, and a condition says so."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth_operator.children.drift import CALM_SECONDS, FREE_ROUNDS, LONGEST_WAIT_SECONDS
from batchgrowth_operator.seen.observed import Ref, ref_of

MakeWorld = Any
WORKERS = Ref("Deployment", "digits-workers")
PLAN = Ref("ConfigMap", "digits-plan")
START = datetime(2026, 11, 20, 10, tzinfo=UTC)
"""The beginning of each world; its training begins ten seconds later."""
AT_REST = ("False", "ChildrenKept")
CONTESTED = ("True", "ChildRewritten")


def hpa(world: Any, replicas: int = 9) -> None:
    """A HorizontalPodAutoscaler sets its own number of workers."""
    world.deployment["spec"]["replicas"] = replicas
    world.deployment["metadata"]["managedFields"] = [
        {"manager": "kubectl-label", "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}}},
        {"manager": "kube-controller-manager", "subresource": "scale", "fieldsV1": {"f:spec": {"f:replicas": {}}}},
    ]


def webhook(world: Any) -> None:
    """A mutating webhook sets the image of the workers to a mirror's; the object names no manager of its own for it."""
    [container] = world.deployment["spec"]["template"]["spec"]["containers"]
    container["image"] = "mirror.example/trainer:1"


def fight(world: Any, rewrite: Callable[[Any], None], seconds: int, each: float = 1.0) -> list[float]:
    """The seconds at which the workers' Deployment was written, while others rewrite it between all passes."""
    began, times = world.now, []
    while (world.now - began).total_seconds() < seconds:
        rewrite(world)
        if WORKERS in map(ref_of, world.step().apply):
            times.append((world.now - began).total_seconds())
        world.wait(each)
    return times


def message(world: Any) -> str:
    return next(c["message"] for c in world.status["conditions"] if c["type"] == "Contested")


@pytest.mark.fault("B21")
@pytest.mark.parametrize("rewrite", [hpa, webhook])
def test_a_fight_backs_off(training_world: MakeWorld, rewrite: Callable[[Any], None]) -> None:
    """Five times at once, then after 1, 2, 4 … seconds, up to five minutes."""
    world = training_world()

    times = fight(world, rewrite, 70)
    later = fight(world, rewrite, 3000, each=50)

    assert times == [0, 1, 2, 3, 4, 5, 7, 11, 19, 35, 67]
    assert [after - before for before, after in pairwise(later)][-6:] == [300] * 6
    assert (5, 300) == (FREE_ROUNDS, LONGEST_WAIT_SECONDS)
    assert world.condition("Contested") == CONTESTED
    assert [event.reason for event in world.events if event.reason == "ChildRewritten"] == ["ChildRewritten"]


def test_the_condition_says_what_is_changed_by_whom_and_what_would_help(training_world: MakeWorld) -> None:
    world = training_world()
    fight(world, hpa, 8)
    assert (
        message(world)
        == "kube-controller-manager (scale) changes spec.replicas of the Deployment digits-workers again and again; "
        "the operator puts it back ever less often. Remove the HorizontalPodAutoscaler from the Deployment; an "
        "autoscaler of the job itself sets spec.workers.maximum."
    )
    assert {event.type for event in world.events if event.reason == "ChildRewritten"} == {"Warning"}

    world = training_world()
    fight(world, webhook, 8)
    assert (
        message(world)
        == "A webhook or another controller changes spec.template.spec.containers[worker].image of the Deployment "
        "digits-workers again and again; the operator puts it back ever less often. Remove what changes it, or exempt "
        "objects with the label batchgrowth.dev/job. Or give the job the value that is written there."
    )


def test_a_job_with_the_values_of_the_platform_ends_the_fight(training_world: MakeWorld) -> None:
    """As its condition says; GKE Autopilot raises the sizes of small pods and lets nobody out."""

    def autopilot(world: Any) -> None:
        [container] = world.deployment["spec"]["template"]["spec"]["containers"]
        container["resources"] = {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "2Gi"}}

    world = training_world()
    fight(world, autopilot, 8)
    assert message(world).startswith(
        "A webhook or another controller changes spec.template.spec.containers[worker].resources.requests.cpu of"
    )
    assert message(world).endswith("Or give the job the value that is written there.")

    world.edit(resources={"requests": {"cpu": "500m"}})
    fight(world, autopilot, 200)

    assert world.condition("Contested") == AT_REST


def test_a_fight_over_two_children(training_world: MakeWorld) -> None:
    def rewrite(world: Any) -> None:
        hpa(world)
        world.children[PLAN]["data"][names.PLAN_KEY] = "{}"

    world = training_world()
    fight(world, rewrite, 8)

    assert "data[plan.json] of the ConfigMap digits-plan" in message(world)
    assert message(world).endswith("So it is with 1 other object.")


def test_a_fight_holds_up_nothing_else(training_world: MakeWorld) -> None:
    """The rest of the pass does not wait, nor does another field of the child."""
    world = training_world()
    fight(world, hpa, 100)
    hpa(world)
    world.children[PLAN]["data"] = {}
    assert [ref_of(manifest) for manifest in world.step().apply] == [PLAN]

    world.deployment["metadata"]["labels"] = {}
    assert [ref_of(manifest) for manifest in world.step().apply] == [WORKERS]


def test_what_the_job_wants_is_written_at_once(training_world: MakeWorld) -> None:
    """A milestone's workers, a change of the spec, and a release; the fight goes on afterwards."""
    world = training_world()
    fight(world, hpa, 100)

    hpa(world)
    world.report(431)
    assert [ref_of(manifest) for manifest in world.step().apply] == [WORKERS]
    assert world.deployment["spec"]["replicas"] == 4
    hpa(world)
    assert world.step().apply == ()
    assert world.condition("Contested") == CONTESTED

    world.edit(workers={"examplesPerWorker": 128, "maximum": 2}).step()
    assert world.deployment["spec"]["replicas"] == 2
    world.edit(suspend=True)
    world.trainer["status"] = {}
    world.settle()
    assert None is world.deployment


def test_a_fight_ends(training_world: MakeWorld) -> None:
    """Once nothing was changed for a minute, or twice the last wait; the next edit is put back at once."""
    world = training_world()
    assert fight(world, hpa, 8)[-1] == 7

    requeue = world.decide().requeue_after_seconds
    assert requeue is not None
    assert requeue <= CALM_SECONDS
    world.wait(CALM_SECONDS - 2).settle()
    assert world.condition("Contested") == CONTESTED
    world.wait(1).settle()

    assert world.condition("Contested") == AT_REST
    assert world.put_backs == {}
    assert "No field of the job's objects is changed again and again any more." in {e.message for e in world.events}
    assert fight(world, hpa, 2) == [0, 1]


def test_the_operator_looks_again_when_the_wait_is_over(training_world: MakeWorld) -> None:
    world = training_world()
    assert fight(world, hpa, 40)[-1] == 35
    hpa(world)

    while not (decision := world.step()).apply:
        assert decision.requeue_after_seconds is not None
        world.wait(decision.requeue_after_seconds)

    assert (world.now - START).total_seconds() == 10 + 35 + 32


@pytest.mark.parametrize("edits", [1, 2, 4])
def test_a_few_edits_are_no_fight(training_world: MakeWorld, edits: int) -> None:
    world = training_world()

    assert edits == len(fight(world, hpa, edits))
    assert world.condition("Contested") == AT_REST


def test_edits_now_and_then_are_no_fight(training_world: MakeWorld) -> None:
    """Each is put back at once."""
    world = training_world()

    assert len(fight(world, hpa, 20 * 90, each=90)) == 20
    assert world.condition("Contested") == AT_REST


def test_a_child_that_loses_its_annotations_again_and_again(training_world: MakeWorld) -> None:
    """Among them is the one that says from which manifest it was made."""
    world = training_world()

    times = fight(world, lambda w: w.deployment["metadata"].update(annotations=None), 300)

    assert len(times) < 16
    assert "metadata.annotations[batchgrowth.dev/manifest] of the Deployment digits-workers" in message(world)


def test_another_child_of_the_same_name_starts_afresh(training_world: MakeWorld) -> None:
    world = training_world()
    fight(world, hpa, 100)
    del world.children[WORKERS]
    world.step()
    world.deployment["metadata"]["uid"] = "another"

    assert fight(world, hpa, 2) == [0, 1]


def test_a_clock_that_is_set_back_holds_nothing_up(training_world: MakeWorld) -> None:
    world = training_world()
    fight(world, hpa, 100)
    world.wait(-86_400)

    assert fight(world, hpa, 2) == [0, 1]


@pytest.mark.parametrize(
    ("fields", "manager"),
    [
        ({"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"worker"}': {"f:image": {}}}}}}}, "kyverno"),
        ({"f:spec": {"f:template": {}}}, "kyverno"),
        ({"f:spec": {"f:template": {"f:spec": {"f:containers": {'k:{"name":"sidecar"}': {}}}}}}, "A webhook"),
        ({"f:spec": None}, "A webhook"),
        (None, "A webhook"),
    ],
)
def test_the_manager_of_the_field_is_named(training_world: MakeWorld, fields: Any, manager: str) -> None:
    """As managedFields have it; a field may be owned as part of a larger one."""

    def rewrite(world: Any) -> None:
        webhook(world)
        own = {"manager": names.FIELD_MANAGER, "fieldsV1": {"f:spec": {}}}
        world.deployment["metadata"]["managedFields"] = [own, {"manager": "kyverno", "fieldsV1": fields}]

    world = training_world()
    fight(world, rewrite, 8)

    assert message(world).startswith(manager), json.dumps(fields)


def test_the_manager_of_a_list_is_named(training_world: MakeWorld) -> None:
    """It owns the list's entries, by a key of theirs."""

    def adopt(world: Any) -> None:
        [owner] = world.deployment["metadata"]["ownerReferences"]
        owner["controller"] = False
        owned = {"f:ownerReferences": {".": {}, f'k:{{"uid":"{owner["uid"]}"}}': {}}}
        world.deployment["metadata"]["managedFields"] = [{"manager": "adopter", "fieldsV1": {"f:metadata": owned}}]

    world = training_world()
    fight(world, adopt, 8)

    assert message(world).startswith("adopter changes metadata.ownerReferences[0000-1111].controller of the Deployment")


def test_the_manager_of_entries_of_a_list_that_counts_as_a_whole_is_named(training_world: MakeWorld) -> None:
    """The job has no key by which the entries could be matched."""
    spread = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}

    def add_a_zone(world: Any) -> None:
        pods = world.deployment["spec"]["template"]["spec"]
        pods["topologySpreadConstraints"] = [spread, spread | {"topologyKey": "zone"}]
        entry = 'k:{"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}'
        owned = {"f:spec": {"f:template": {"f:spec": {"f:topologySpreadConstraints": {entry: {}}}}}}
        world.deployment["metadata"]["managedFields"] = [{"manager": "kyverno", "fieldsV1": owned}]

    world = training_world(pods={"topologySpreadConstraints": [spread]})
    fight(world, add_a_zone, 8)

    assert message(world).startswith("kyverno changes spec.template.spec.topologySpreadConstraints of the Deployment")


def test_another_owner_beside_the_job_is_no_fight(training_world: MakeWorld) -> None:
    """The API server merges owners by their uid, so that the operator's own reference would be put back in vain."""

    def adopt(world: Any) -> None:
        [own, *_] = world.deployment["metadata"]["ownerReferences"]
        world.deployment["metadata"]["ownerReferences"] = [own, {"uid": "an application's"}]

    world = training_world()

    assert fight(world, adopt, 8) == []
    assert world.condition("Contested") == AT_REST
