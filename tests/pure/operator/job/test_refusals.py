"""What others refuse or undo of each kind of child, and the sentences that the job's status has for it.

Each cell of the table is in refusals.yaml: read it as `kubectl describe` shows it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth import names
from batchgrowth_operator.children.drift import FREE_ROUNDS
from batchgrowth_operator.seen.observed import Clock, Failure, Ref
from batchgrowth_operator.seen.problems import STUCK_AFTER_SECONDS, STUCK_JOB_AFTER_SECONDS, unexplained
from batchgrowth_operator.seen.refused_objects import refused_write

MakeWorld = Any
EXPECTED: dict[str, dict[str, str]] = yaml.safe_load(Path(__file__).with_name("refusals.yaml").read_text())
CHILDREN = {
    "ConfigMap": names.of("digits").plan,
    "DaskCluster": names.of("digits").cluster,
    "Deployment": names.of("digits").workers,
    "Job": names.of("digits").trainer,
    "NetworkPolicy": names.of("digits").network_policy,
    "PersistentVolumeClaim": names.of("digits").checkpoints,
    "Role": names.of("digits").progress,
    "RoleBinding": names.of("digits").progress,
    "Secret": names.of("digits").tls,
    "ServiceAccount": names.of("digits").trainer,
}
REWRITES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "ConfigMap": ("f:data", lambda body: body["data"].update({names.PLAN_KEY: "{}"})),
    "DaskCluster": ("f:spec", lambda body: body["spec"]["worker"].update(replicas=3)),
    "Deployment": ("f:spec", lambda body: body["spec"]["template"]["metadata"].update(labels={})),
    "Job": ("f:spec", lambda body: body["spec"].update(backoffLimit=0)),
    "NetworkPolicy": ("f:spec", lambda body: body["spec"].update(ingress=[])),
    "PersistentVolumeClaim": ("f:metadata", lambda body: body["metadata"].update(labels={})),
    "Role": ("f:rules", lambda body: body.update(rules=[])),
    "RoleBinding": ("f:subjects", lambda body: body.update(subjects=[])),
    "Secret": ("f:data", lambda body: body.update(data={})),
    "ServiceAccount": ("f:automountServiceAccountToken", lambda b: b.update(automountServiceAccountToken=True)),
}
"""What another process changes of each kind, with the field that it owns then."""
PLURALS = {kind: f"{kind.lower()}s" for kind in CHILDREN} | {"NetworkPolicy": "networkpolicies"}


def refusal(kind: str, by: str) -> tuple[int, str]:
    """The API server's answer to a write of an object of that kind."""
    plural, name = PLURALS[kind], CHILDREN[kind]
    forbidden = f'{plural} "{name}" is forbidden: '
    return {
        "quota": (
            403,
            f"{forbidden}exceeded quota: objects, requested: count/{plural}=1, used: count/{plural}=4, "
            f"limited: count/{plural}=4",
        ),
        "webhook": (403, 'admission webhook "labels.example.com" denied the request: the label cost-centre is missing'),
        "silent webhook": (
            500,
            'Internal error occurred: failed calling webhook "labels.example.com": failed to call webhook: Post '
            '"https://labels.policy.svc:443/?timeout=10s": service "labels" not found',
        ),
        "policy": (
            422,
            f"{forbidden}ValidatingAdmissionPolicy 'cost' with binding 'all' denied request: every object needs the "
            "label cost-centre",
        ),
        "right": (
            403,
            f'{forbidden}User "system:serviceaccount:batchgrowth-system:batchgrowth" cannot patch resource "{plural}" '
            'in API group "" in the namespace "default"',
        ),
        "escalation": (
            403,
            f'{forbidden}user "system:serviceaccount:batchgrowth-system:batchgrowth" is attempting to grant RBAC '
            'permissions not currently held:\n{APIGroups:[""], Resources:["configmaps"], Verbs:["get" "patch"]}',
        ),
        "limit range": (
            403,
            f"{forbidden}minimum storage usage per PersistentVolumeClaim is 10Gi, but request is 1Gi",
        ),
        "schema": (422, f'{kind} "{name}" is invalid: spec: Invalid value: "x": field is immutable'),
        "dying namespace": (
            403,
            f"{forbidden}unable to create new content in namespace default because it is being terminated",
        ),
        "missing kind": (404, "the server could not find the requested resource"),
        "conflict": (409, f'Operation cannot be fulfilled on {plural} "{name}": the object has been modified'),
        "size": (413, "Request entity too large: limit is 3145728"),
        "rate": (429, "the server has received too many requests and has asked us to try again later"),
        "etcd": (500, "etcdserver: request timed out"),
        "anything": (418, "not today"),
    }[by]


BY = {
    "ConfigMap": ("quota", "policy"), "DaskCluster": ("webhook", "silent webhook"), "Deployment": ("policy", "webhook"),
    "Job": ("quota", "right"), "NetworkPolicy": ("right", "policy"), "PersistentVolumeClaim": ("limit range", "schema"),
    "Role": ("escalation", "silent webhook"), "RoleBinding": ("webhook", "escalation"), "Secret": ("quota", "webhook"),
    "ServiceAccount": ("silent webhook", "policy"),
}  # fmt: skip
"""Who refuses to create an object of each kind, and who refuses to change it."""
ONCE = (
    ("ConfigMap", "dying namespace"), ("ConfigMap", "conflict"), ("ConfigMap", "size"), ("ConfigMap", "rate"),
    ("ConfigMap", "etcd"), ("ConfigMap", "anything"), ("DaskCluster", "missing kind"),
    ("PersistentVolumeClaim", "quota"),
)  # fmt: skip
"""Answers that are the same for all kinds, or occur for one."""


@pytest.fixture
def world(training_world: MakeWorld) -> Any:
    """A job that trains, with a child of every kind."""
    return training_world(checkpoint={"volume": {"size": "1Gi"}})


def told(world: Any, kind: str) -> str:
    """The condition as `kubectl describe` shows it; its event says the same."""
    [found] = [one for one in world.status["conditions"] if one["type"] == kind]
    assert found["reason"] in [event.reason for event in world.events if event.type == "Warning"]
    return f"{kind} {found['status']} {found['reason']}: {found['message']}"


def expected(kind: str, case: str) -> str:
    return EXPECTED[case][kind]


def stays(world: Any, kind: str, seconds: float = 900) -> bool:
    """Whether the condition is the same at each pass of that time; passes come when the operator asks for them."""
    before = told(world, kind)
    ends = world.now.timestamp() + seconds
    while world.now.timestamp() < ends:
        pause = world.step().requeue_after_seconds or 30.0
        if told(world, kind) != before:
            return False
        world.wait(min(pause, 30.0))
    return True


@pytest.mark.parametrize("kind", CHILDREN)
def test_refused_to_create(make_world: MakeWorld, kind: str) -> None:
    world = make_world(checkpoint={"volume": {"size": "1Gi"}})
    world.step()
    world.children.clear()
    world.failures = (Failure(Ref(kind, CHILDREN[kind]), *refusal(kind, BY[kind][0]), "create"),)
    world.step()
    assert told(world, "ClusterReady") == expected(kind, "create refused")
    assert stays(world, "ClusterReady")


@pytest.mark.parametrize("kind", CHILDREN)
def test_refused_to_change(world: Any, kind: str) -> None:
    """Also while training goes on, because what the job asks for is not done."""
    world.failures = (Failure(Ref(kind, CHILDREN[kind]), *refusal(kind, BY[kind][1]), "change"),)
    world.step()
    assert told(world, "ClusterReady") == expected(kind, "patch refused")
    assert stays(world, "ClusterReady", 120)


@pytest.mark.parametrize("kind", ["DaskCluster", "Deployment"])
def test_refused_to_delete(world: Any, kind: str) -> None:
    world.failures = (Failure(Ref(kind, CHILDREN[kind]), *refusal(kind, "webhook"), "delete"),)
    world.edit(suspend=True)
    world.trainer["status"] = {}
    world.step()
    assert told(world, "ClusterReady") == expected(kind, "delete refused")


@pytest.mark.fault("O19")
@pytest.mark.parametrize(("kind", "by"), ONCE)
def test_other_answers(make_world: MakeWorld, kind: str, by: str) -> None:
    world = make_world(checkpoint={"volume": {"size": "1Gi"}})
    world.step()
    world.children.clear()
    world.failures = (Failure(Ref(kind, CHILDREN[kind]), *refusal(kind, by), "create"),)
    world.step()
    assert told(world, "ClusterReady") == expected(kind, by)


@pytest.mark.fault("O02")
@pytest.mark.parametrize("kind", CHILDREN)
def test_rewritten_at_every_write(world: Any, kind: str) -> None:
    """As a mutating webhook does: a write changes nothing then, so no event asks for a pass."""
    field, rewrite = REWRITES[kind]
    ref = Ref(kind, CHILDREN[kind])
    apply = world._apply
    world.is_renewal_due = kind == "Secret"

    def apply_rewritten(manifest: dict[str, Any]) -> None:
        apply(manifest)
        rewrite_it()

    def rewrite_it() -> None:
        rewrite(world.children[ref])
        world.children[ref]["metadata"]["managedFields"] = [{"manager": "kyverno", "fieldsV1": {field: {}}}]

    world._apply = apply_rewritten
    rewrite_it()
    for _ in range(FREE_ROUNDS + 1):
        pause = world.step().requeue_after_seconds
        assert pause is not None
        world.wait(min(pause, 30.0))

    assert told(world, "Contested") == expected(kind, "mutated")
    assert stays(world, "Contested")


@pytest.mark.parametrize("kind", CHILDREN)
def test_deleted_again_and_again(world: Any, kind: str) -> None:
    world.is_renewal_due = kind == "Secret"
    for _ in range(FREE_ROUNDS + 1):
        world.children.pop(Ref(kind, CHILDREN[kind]), None)
        world.step()
        world.wait(1)
    assert told(world, "Contested") == expected(kind, "deleted")
    assert stays(world, "Contested", 59)


@pytest.mark.fault("O03")
@pytest.mark.parametrize("manager", ["kueue", ""])
def test_another_process_suspends_the_trainer(make_world: MakeWorld, manager: str) -> None:
    """Two seconds after the first time, and for as long as it does so."""
    world = make_world()
    world.settle()
    world.wait(10).scheduler_ready().workers_ready().settle()
    apply = world._apply

    def suspend(manifest: dict[str, Any]) -> None:
        apply(manifest)
        if manifest["kind"] == "Job":
            world.trainer["spec"]["suspend"] = True
            if manager:
                owned = {"f:spec": {"f:suspend": {}}}
                world.trainer["metadata"]["managedFields"] = [{"manager": manager, "fieldsV1": owned}]

    world._apply = suspend
    suspend({**copy.deepcopy(world.trainer)})
    for _ in range(4):
        pause = world.step().requeue_after_seconds
        assert pause is not None
        assert pause <= 1
        world.wait(pause)

    assert told(world, "Training") == expected("Job", f"suspended{' by ' if manager else ''}{manager}")
    assert stays(world, "Training")
    assert world.condition("Contested") == ("True", "ChildRewritten")


@pytest.mark.fault("O15")
@pytest.mark.parametrize("kind", CHILDREN)
def test_stuck_in_deletion(world: Any, kind: str) -> None:
    finalizers = {"Job": ["foregroundDeletion"], "PersistentVolumeClaim": ["kubernetes.io/pvc-protection"]}
    metadata = world.children[Ref(kind, CHILDREN[kind])]["metadata"]
    metadata |= {"deletionTimestamp": "2026-11-20T10:00:10Z"}
    metadata |= {"finalizers": finalizers.get(kind, [f"{kind.lower()}.example.com/kept"])}
    world.settle()
    before = world.condition("ClusterReady")
    world.wait(STUCK_JOB_AFTER_SECONDS if kind == "Job" else STUCK_AFTER_SECONDS).settle()
    assert before == ("True", "AllWorkersJoined")
    assert told(world, "ClusterReady") == expected(kind, "stuck in deletion")
    assert stays(world, "ClusterReady", 120)


def test_stuck_without_a_finalizer(world: Any) -> None:
    world.children[Ref("Role", CHILDREN["Role"])]["metadata"] |= {"deletionTimestamp": "2026-11-20T10:00:10Z"}
    world.wait(STUCK_AFTER_SECONDS).settle()
    assert told(world, "ClusterReady") == expected("Role", "stuck without a finalizer")


@pytest.mark.fault("O11")
@pytest.mark.parametrize("kept", [True, False], ids=["with a claim", "without a claim"])
def test_objects_of_an_earlier_job(make_world: MakeWorld, world: Any, *, kept: bool) -> None:
    """`kubectl delete bgj digits --cascade=orphan`, then applied again: all at once, with the command."""
    again = make_world()
    again.step()
    again.children.clear()
    for ref, body in world.children.items():
        if kept or ref.kind != "PersistentVolumeClaim":
            again.strangers[ref] = {"kind": ref.kind, "metadata": body["metadata"] | {"ownerReferences": []}}
    again.failures = (Failure(Ref("ConfigMap", CHILDREN["ConfigMap"]), 0, "is not this job's", "create"),)
    again.step()
    assert told(again, "ClusterReady") == expected("ConfigMap", f"left over, {'a' if kept else 'no'} claim too")

    again.strangers = {Ref("Role", CHILDREN["Role"]): again.strangers[Ref("Role", CHILDREN["Role"])]}
    again.step()
    assert told(again, "ClusterReady") == expected("Role", "left over")


def test_objects_that_garbage_collection_takes(make_world: MakeWorld, world: Any) -> None:
    """They have an owner that is gone, and are named one by one while they last; another's stay."""
    again = make_world()
    again.step()
    again.children.clear()
    again.strangers = dict(world.children)
    again.failures = (Failure(Ref("ConfigMap", CHILDREN["ConfigMap"]), 0, "is not this job's", "create"),)
    again.step()
    assert told(again, "ClusterReady") == expected("ConfigMap", "an earlier job's")

    for body in again.strangers.values():
        body["metadata"]["ownerReferences"] = [{"kind": "BatchGrowthJob", "name": "digits-2", "uid": "another"}]
    again.step()
    assert told(again, "ClusterReady") == expected("ConfigMap", "another owner's")


@pytest.mark.fault("O15")
def test_a_dask_cluster_of_an_earlier_job_that_stays(make_world: MakeWorld) -> None:
    """The Dask operator is gone, and a new job of the same name waits for the name."""
    world = make_world()
    world.step()
    world.children.clear()
    metadata = {"name": "digits", "deletionTimestamp": "2026-11-20T09:00:00Z", "finalizers": ["kopf.zalando.org/x"]}
    world.strangers = {Ref("DaskCluster", "digits"): {"kind": "DaskCluster", "metadata": metadata}}
    world.failures = (Failure(Ref("DaskCluster", "digits"), 0, "is not this job's", "create"),)
    world.step()
    assert told(world, "ClusterReady") == expected("DaskCluster", "stuck in deletion, of an earlier job")


QUOTA = 'deployments.apps "digits-scheduler" is forbidden: exceeded quota: q, requested: count/deployments.apps=1, '
QUOTA += "used: count/deployments.apps=1, limited: count/deployments.apps=1"
POLICY = (
    "services \"digits-scheduler\" is forbidden: ValidatingAdmissionPolicy 'no-services' with binding 'all' denied "
)
POLICY += "request: Services need an owner"


@pytest.mark.fault("O17")
@pytest.mark.parametrize(("lacking", "answer"), [("Deployment", QUOTA), ("Service", POLICY), ("Deployment", "")])
@pytest.mark.parametrize("phase", ["Created", "Pending"])
def test_parts_that_the_dask_operator_could_not_make(
    make_world: MakeWorld, lacking: str, answer: str, phase: str
) -> None:
    """Within 30 s. The Dask operator logs its traceback as an event about the DaskCluster."""
    world = make_world()
    world.settle()
    world.wait(2).scheduler_ready()
    world.cluster["status"]["phase"] = phase
    world.workers_ready()
    parts = dict(world.parts)
    missing = ["Deployment", "Service"] if lacking == "Deployment" else ["Service"]
    for kind in missing:
        del world.parts[Ref(kind, names.of("digits").scheduler)]
    world.settle()
    world.wait(8)
    assert world.cluster in unexplained(world.observed(), Clock(world.now))
    if answer:
        text = f"Handler 'daskcluster_create_components' failed. Will retry.\nTraceback\nkr8s.ServerError: {answer}"
        about = {"name": "digits"}
        told_at = world.now.isoformat()
        world.warnings = [{"involvedObject": about, "reason": "Logging", "message": text, "lastTimestamp": told_at}]
    else:
        world.wait(12)
    world.settle()
    case = "part refused to the Dask operator" if answer else "part not made by the Dask operator"
    assert told(world, "ClusterReady") == expected(lacking, case)

    world.parts = parts
    world.settle()
    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")


def test_an_event_of_the_dask_operator_without_a_message(training_world: MakeWorld) -> None:
    world = training_world()
    del world.parts[Ref("Service", names.of("digits").scheduler)]
    about = {"name": "digits"}
    world.warnings = [{"involvedObject": about, "reason": "Logging", "lastTimestamp": world.now.isoformat()}]
    world.settle()
    assert world.condition("ClusterReady") == ("False", "ChildRefused")


def test_a_service_that_the_dask_operator_has_not_made(training_world: MakeWorld) -> None:
    """Also while training goes on, since no worker could join any more."""
    world = training_world().wait(60)
    del world.parts[Ref("Service", names.of("digits").scheduler)]
    world.settle()
    world.wait(20).step()
    assert told(world, "ClusterReady") == expected("Service", "part not made by the Dask operator")


PODS = {
    "limit range": "maximum cpu usage per Container is 1, but limit is 2",
    "quota": "exceeded quota: cpus, requested: requests.cpu=1, used: requests.cpu=3, limited: requests.cpu=3",
    "quota without sizes": "failed quota: cpus: must specify limits.cpu for: worker; requests.memory for: worker",
    "quota of a priority": "insufficient quota to match these scopes: [{PriorityClass In [urgent]}]",
    "node selector": "pod node label selector conflicts with its namespace node label selector",
    "tolerations": "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace "
    "whitelist",
    "security context constraint": 'unable to validate against any security context constraint: [provider "anyuid": '
    "Forbidden: not usable by user or serviceaccount, provider restricted-v2: .containers[0].runAsUser: Invalid value: "
    "65532: must be in the ranges: [1000650000, 1000659999]]",
    "pod security": 'violates PodSecurity "restricted:latest": seLinuxOptions (pod set forbidden type "spc_t")',
    "priority class": "no PriorityClass with name urgent was found",
    "runtime class": 'pod rejected: RuntimeClass "gvisor" not found',
    "policy": "ValidatingAdmissionPolicy 'cost' with binding 'all' denied request: pods need the label cost-centre",
    "webhook": 'admission webhook "labels.example.com" denied the request: the label cost-centre is missing',
    "node": "pod affinity topology is not served here",
}
"""What the API server says of a pod that it refuses."""
OF_EACH_ROLE = ("limit range", "quota", "quota without sizes")


@pytest.mark.fault("O12")
@pytest.mark.parametrize(
    ("role", "by"),
    [
        (role, by)
        for by in PODS
        for role in ("workers", "scheduler", "trainer")
        if by in OF_EACH_ROLE or role == "workers"
    ],
)
def test_refused_pods(make_world: MakeWorld, role: str, by: str) -> None:
    """Which pods, who refuses them, what helps; the same at each retry, which makes up another name."""
    world = make_world()
    world.settle()
    if role != "workers":
        world.scheduler_ready()
    if role == "trainer":
        world.workers_ready()
        world.trainer["status"] = {"startTime": world.now.isoformat(), "active": 0}
        world.wait(10)

    def refuse(pod: str) -> str:
        text = f'pods "{pod}" is forbidden: {PODS[by]}'
        if role == "trainer":
            about = {"kind": "Job", "name": "digits-trainer"}
            said = {"reason": "FailedCreate", "type": "Warning", "message": f"Error creating: {text}"}
            world.warnings = [{"involvedObject": about, "lastTimestamp": world.now.isoformat(), **said}]
        else:
            failed = [{"type": "ReplicaFailure", "status": "True", "message": text}]
            parts = world.parts if role == "scheduler" else world.children
            parts[Ref("Deployment", f"digits-{role}")]["status"] = {"conditions": failed}
        world.settle()
        return told(world, "Training" if role == "trainer" else "ClusterReady")

    owner = "digits-trainer" if role == "trainer" else f"digits-{role}-5b7c9d"
    first = refuse(f"{owner}-x2x4k")
    assert first == expected(role, f"pods refused by {by}")
    assert first == refuse(f"{owner}-9qqq7")
    assert first == refuse(f"{owner}-"), "as older Kubernetes names it"


@pytest.mark.fault("O26")
def test_workers_refused_ahead_of_a_milestone(training_world: MakeWorld) -> None:
    """All workers of the stage have joined, so only the resize is in trouble."""
    world = training_world().report(386)
    world.step()
    message = (
        'pods "digits-workers-5b7c9d-x2x4k" is forbidden: exceeded quota: pods, requested: pods=1, used: pods=3, '
        "limited: pods=3"
    )
    refused = {"type": "ReplicaFailure", "status": "True", "message": message}
    world.deployment["status"]["conditions"] = [refused | {"lastTransitionTime": world.now.isoformat()}]
    world.settle()
    assert told(world, "Resizing") == expected("Deployment", "pods refused ahead of a milestone")
    assert world.condition("ClusterReady") == ("True", "AllWorkersJoined")


@pytest.mark.fault("O19")
def test_nothing_is_made_in_a_namespace_that_is_being_deleted(world: Any) -> None:
    """Nor is the Dask operator asked for a part; what exists is still released."""
    ref = Ref("ConfigMap", CHILDREN["ConfigMap"])
    del world.children[ref]
    world.parts = {}
    world.failures = (Failure(ref, *refusal("ConfigMap", "dying namespace"), "create"),)
    for _ in range(10):
        assert world.step().apply == ()
        world.wait(10)
    assert told(world, "ClusterReady") == expected("ConfigMap", "dying namespace")


def test_a_long_refusal_keeps_its_beginning_its_end_and_the_remedy() -> None:
    failure = Failure(Ref("Role", "digits-progress"), 418, f"begins {'x' * 2000} ends", "change")
    message = refused_write(failure, "default").message
    assert message.startswith("Role digits-progress cannot be changed, because the API server refuses it: begins xxx")
    assert message.endswith("xxx ends. Remove what refuses it; the operator tries again.")
    assert len(message) < 700


def test_every_cell_is_tested_and_long_enough() -> None:
    cells = [sentence for row in EXPECTED.values() for sentence in row.values()]
    assert len(cells) >= 60
    assert [sentence for sentence in cells if len(sentence) > 1100] == []
