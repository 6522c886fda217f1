"""`spec.pods`, for the pods of scheduler, trainer and workers alike, and its defaults in the chart."""

import json
from typing import Any

import pytest
from batchgrowth import names
from batchgrowth.manifest.pod_limits import PodSecurity
from batchgrowth_operator.commands import job_pods, scheduler_resources
from batchgrowth_operator.seen.observed import Ref
from batchgrowth_operator.settings import Defaults
from typer import BadParameter

MakeWorld = Any
ROLES = ("scheduler", "trainer", "worker")
SCHEDULER, TRAINER = Ref("DaskCluster", "digits"), Ref("Job", names.of("digits").trainer)
SCRATCH = {"name": "scratch", "emptyDir": {}}
AFFINITY = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}
SPREAD = {"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}
OF_PODS: dict[str, Any] = {
    "nodeSelector": {"pool": "training"},
    "tolerations": [{"key": "training", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": AFFINITY,
    "topologySpreadConstraints": [SPREAD],
    "priorityClassName": "batch",
    "runtimeClassName": "gvisor",
    "imagePullSecrets": [{"name": "registry"}],
}
ALL: dict[str, Any] = OF_PODS | {
    "labels": {"cost-center": "research"},
    "annotations": {"example.com/owner": "team-a"},
    "securityContext": {"runAsUser": 1000650000},
    "env": [{"name": "HF_HOME", "value": "/scratch"}],
    "volumes": [SCRATCH],
    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
}


def template(world: Any, role: str) -> dict[str, Any]:
    if role == "scheduler":
        return dict(world.cluster["spec"]["scheduler"])
    return dict((world.trainer if role == "trainer" else world.deployment)["spec"]["template"])


def value_of(world: Any, role: str, name: str) -> str:
    [container] = template(world, role)["spec"]["containers"]
    return str(next(each["value"] for each in container["env"] if each["name"] == name))


@pytest.mark.fault("O04")
@pytest.mark.parametrize("by_chart", [False, True], ids=["job", "chart"])
@pytest.mark.parametrize("role", ROLES)
def test_each_pod_has_what_the_job_or_the_chart_gives_to_all(make_world: MakeWorld, role: str, by_chart: bool) -> None:
    world = make_world(**({} if by_chart else {"pods": ALL}))
    if by_chart:
        world.defaults = Defaults(image="example/trainer:1", job_pods=ALL)
    world.settle()

    found = template(world, role)
    spec = found["spec"]
    [container] = spec["containers"]

    assert {name: spec[name] for name in OF_PODS} == OF_PODS
    assert found["metadata"]["labels"]["cost-center"] == "research"
    assert found["metadata"]["annotations"]["example.com/owner"] == "team-a"
    context = {name: spec["securityContext"][name] for name in ("runAsUser", "runAsGroup", "runAsNonRoot")}
    assert context == {"runAsUser": 1000650000, "runAsGroup": 65532, "runAsNonRoot": True}
    assert value_of(world, role, "HF_HOME") == "/scratch"
    assert SCRATCH in spec["volumes"]
    assert ALL["volumeMounts"][0] in container["volumeMounts"]
    assert world.decide().is_empty


@pytest.mark.fault("O04")
def test_what_is_nearer_to_the_pod_takes_precedence(make_world: MakeWorld) -> None:
    """Chart, spec.pods, the spec's fields for trainer and workers, workers.template."""
    variables = ("CHART", "PODS", "SPEC", "TEMPLATE")

    def env(value: str, first: int) -> list[dict[str, str]]:
        return [{"name": name, "value": value} for name in variables[first:]]

    worker = {"name": "worker", "env": env("template", 3)}
    pods = {"env": env("pods", 1), "labels": {"team": "job"}, "tolerations": [{"key": "job"}]}
    over = {"metadata": {"labels": {"team": "worker"}}, "spec": {"containers": [worker]}}
    world = make_world(pods=pods, env=env("spec", 2), workers={"maximum": 4, "template": over})
    chart = {"env": env("chart", 0), "labels": {"team": "chart", "cost": "1"}, "tolerations": [{"key": "chart"}]}
    world.defaults = Defaults(image="example/trainer:1", job_pods=chart)
    world.settle()

    told = {role: [value_of(world, role, name) for name in variables] for role in ROLES}
    labels = {role: template(world, role)["metadata"]["labels"] for role in ROLES}

    assert told == {
        "scheduler": ["chart", "pods", "pods", "pods"],
        "trainer": ["chart", "pods", "spec", "spec"],
        "worker": ["chart", "pods", "spec", "template"],
    }
    assert [(labels[role]["team"], labels[role]["cost"]) for role in ROLES] == [
        ("job", "1"), ("job", "1"), ("worker", "1"),
    ]  # fmt: skip
    assert [template(world, role)["spec"]["tolerations"] for role in ROLES] == [[{"key": "job"}]] * 3


def test_another_spec_pods_recreates_scheduler_and_trainer(training_world: MakeWorld) -> None:
    world = training_world()
    for pods in (ALL, ALL | {"priorityClassName": "urgent"}, None):
        world.edit(pods=pods)
        gone: set[Ref] = set()
        for _ in range(6):
            gone |= set(world.step().delete)
        assert {SCHEDULER, TRAINER} <= gone
        assert world.decide().is_empty


def test_another_default_of_the_chart_restarts_no_trainer(training_world: MakeWorld) -> None:
    """Only the workers follow, one after another, as after any upgrade that changes their pods."""
    world = training_world()
    before = template(world, "trainer")
    world.defaults = Defaults(image="example/trainer:1", job_pods=ALL)

    decision = world.step()
    world.settle()

    assert decision.delete == ()
    assert template(world, "trainer") == before
    assert template(world, "worker")["spec"]["priorityClassName"] == "batch"


def test_a_trainer_of_an_older_version_does_not_read_it(make_world: MakeWorld) -> None:
    world = make_world(pods=ALL)
    world.settle()
    told = json.loads(world.child("ConfigMap", names.of("digits").plan)["data"]["job.json"])["spec"]
    assert "pods" not in told


@pytest.mark.fault("O04")
@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("x", "--pods: "),
        ('{"tolerationz": []}', "spec.pods.tolerationz: no such field"),
        ('{"labels": {"dask.org/component": "scheduler"}}', "spec.pods.labels: "),
        ('{"securityContext": {"runAsUser": 0}}', "spec.pods.securityContext.runAsUser: 0; give another user"),
    ],
)
def test_the_operator_refuses_defaults_that_a_job_could_not_have(text: str, named: str) -> None:
    with pytest.raises(BadParameter, match="--pods: ") as raised:
        job_pods(text, PodSecurity.restricted)
    assert named in str(raised.value)


def test_defaults_are_read_as_a_manifest_is() -> None:
    assert job_pods(json.dumps(ALL), PodSecurity.restricted) == ALL
    assert job_pods("{}", PodSecurity.restricted) == {}


# What the installation decides for all pods.


@pytest.mark.fault("O05")
@pytest.mark.parametrize("role", ROLES)
def test_a_platform_may_choose_the_user(make_world: MakeWorld, role: str) -> None:
    """As OpenShift does, from a range of the namespace. Such a user has no name, so the environment gives one."""
    world = make_world()
    world.defaults = Defaults(image="example/trainer:1", fixed_user=False)
    world.settle()

    context = template(world, role)["spec"]["securityContext"]

    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    assert (value_of(world, role, "USER"), value_of(world, role, "HOME")) == ("batchgrowth", "/tmp")
    assert world.decide().is_empty


@pytest.mark.parametrize("role", ROLES)
def test_no_pod_gets_variables_of_the_namespaces_services(make_world: MakeWorld, role: str) -> None:
    world = make_world()
    world.settle()
    assert template(world, role)["spec"]["enableServiceLinks"] is False


def test_the_scheduler_has_limits_that_the_installation_may_change(make_world: MakeWorld) -> None:
    """A quota of limits refuses pods without them."""
    world = make_world()
    world.settle()
    [container] = template(world, "scheduler")["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}

    world.defaults = Defaults(
        image="example/trainer:1", scheduler_resources=scheduler_resources('{"limits": {"memory": "8Gi"}}')
    )
    world.settle()
    [container] = template(world, "scheduler")["spec"]["containers"]
    assert container["resources"] == {"requests": {}, "limits": {"memory": "8Gi"}}


def test_resources_may_be_numbers() -> None:
    """As YAML reads `cpu: 0.5` in the chart's values, whose schema admits it."""
    given = '{"limits": {"cpu": 0.5, "memory": 536870912}}'
    assert scheduler_resources(given) == {"requests": {}, "limits": {"cpu": "0.5", "memory": "536870912"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "--scheduler-resources: {: "),
        ("[]", "--scheduler-resources: []: "),
        ('{"limit": {}}', "--scheduler-resources: limit: "),
        ('{"limits": {"memory": "lots"}}', "--scheduler-resources: limits.memory: "),
    ],
)
def test_resources_that_are_none_are_refused(text: str, said: str) -> None:
    with pytest.raises(BadParameter) as refused:
        scheduler_resources(text)
    assert str(refused.value).startswith(said)
    assert "give a map such as" in str(refused.value)
