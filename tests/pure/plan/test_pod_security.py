"""The Pod Security Standards, control by control, and who may use which service account."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.errors import SpecError
from batchgrowth.manifest.pod_limits import PodLimits, PodSecurity, broken_parts, pod_faults, written_pods
from batchgrowth.manifest.reading import read_manifest

ROOT = Path(__file__).parents[3]
BASELINE, RESTRICTED = PodSecurity.baseline, PodSecurity.restricted
MEETS: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
RUNTIME = {"type": "RuntimeDefault"}


def faults(limits: PodLimits, template: Any, **spec: Any) -> list[str]:
    """What check says of the digits example with this template."""
    job = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    job["spec"] |= spec
    job["spec"]["workers"]["template"] = template
    read = read_manifest(yaml.safe_dump(job)).spec
    return [str(fault) for fault in pod_faults(read, written_pods(read), limits)]


def paths(template: Any, standard: PodSecurity) -> list[str]:
    return [path for path, *_ in broken_parts(template, standard)]


def pod(**fields: Any) -> Any:
    """A pod that meets `restricted`, apart from the fields."""
    context = {"runAsNonRoot": True, "seccompProfile": RUNTIME} | fields.pop("context", {})
    return {"spec": {"containers": [container()], "securityContext": context} | fields}


def container(context: Any = None, **fields: Any) -> Any:
    return {"name": "one", "securityContext": MEETS | (context or {})} | fields


def within(context: Any = None, **fields: Any) -> Any:
    return pod(containers=[container(context, **fields)])


@pytest.mark.parametrize("others", [[], [{"secret": {"name": "keys"}}]])
def test_no_volume_of_all_pods_has_a_token(others: list[Any]) -> None:
    """The trainer has an account of its own, whose token is mounted nowhere else, even if any account is allowed."""
    token = {"serviceAccountToken": {"path": "token", "audience": "sts.example.com"}}
    anyone = PodLimits(accounts=None)
    assert faults(anyone, {}, volumes=[{"name": "mixed", "projected": {"sources": others}}]) == []
    volume = {"name": "mixed", "projected": {"sources": [*others, token]}}
    with pytest.raises(SpecError, match=r"spec\.volumes\[0\]\.name: .mixed.; project no serviceAccountToken"):
        faults(anyone, {}, volumes=[volume], serviceAccountName="admin")


ONE = "spec.containers.one"
FORBIDDEN_BY_BASELINE = [
    (pod(hostNetwork=True), "spec.hostNetwork"),
    (pod(hostPID=True), "spec.hostPID"),
    (pod(hostIPC=True), "spec.hostIPC"),
    (pod(volumes=[{"name": "root", "hostPath": {"path": "/"}}]), "spec.volumes.root.hostPath"),
    (pod(context={"windowsOptions": {"hostProcess": True}}), "spec.securityContext.windowsOptions.hostProcess"),
    (within({"windowsOptions": {"hostProcess": True}}), f"{ONE}.securityContext.windowsOptions.hostProcess"),
    (within({"privileged": True}), f"{ONE}.securityContext.privileged"),
    (within({"capabilities": {"drop": ["ALL"], "add": ["SYS_ADMIN"]}}), f"{ONE}.securityContext.capabilities.add"),
    (within(ports=[{"containerPort": 80, "hostPort": 80}]), f"{ONE}.ports.80.hostPort"),
    (within(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 1}}), f"{ONE}.livenessProbe.httpGet.host"),
    (
        within(lifecycle={"preStop": {"tcpSocket": {"host": "10.0.0.1", "port": 1}}}),
        f"{ONE}.lifecycle.preStop.tcpSocket.host",
    ),
    (pod(context={"appArmorProfile": {"type": "Unconfined"}}), "spec.securityContext.appArmorProfile.type"),
    (within({"seLinuxOptions": {"type": "spc_t"}}), f"{ONE}.securityContext.seLinuxOptions.type"),
    (pod(context={"seLinuxOptions": {"user": "root"}}), "spec.securityContext.seLinuxOptions.user"),
    (pod(context={"seLinuxOptions": {"role": "sysadm_r"}}), "spec.securityContext.seLinuxOptions.role"),
    (within({"procMount": "Unmasked"}), f"{ONE}.securityContext.procMount"),
    (within({"seccompProfile": {"type": "Unconfined"}}), f"{ONE}.securityContext.seccompProfile.type"),
    (
        pod(context={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
        "spec.securityContext.sysctls.kernel.msgmax",
    ),
    (
        pod() | {"metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/one": "unconfined"}}},
        "metadata.annotations.container.apparmor.security.beta.kubernetes.io/one",
    ),
]
FORBIDDEN_BY_RESTRICTED = [
    (pod(volumes=[{"name": "data", "nfs": {"server": "a", "path": "/"}}]), "spec.volumes.data.nfs"),
    (pod(context={"runAsUser": 0}), "spec.securityContext.runAsUser"),
    (within({"runAsUser": 0}), f"{ONE}.securityContext.runAsUser"),
    (pod(context={"runAsNonRoot": False}), "spec.securityContext.runAsNonRoot"),
    (within({"runAsNonRoot": False}), f"{ONE}.securityContext.runAsNonRoot"),
    (pod(context={"runAsNonRoot": None}), f"{ONE}.securityContext.runAsNonRoot"),
    (pod(context={"seccompProfile": None}), f"{ONE}.securityContext.seccompProfile.type"),
    (within({"allowPrivilegeEscalation": True}), f"{ONE}.securityContext.allowPrivilegeEscalation"),
    (within({"allowPrivilegeEscalation": None}), f"{ONE}.securityContext.allowPrivilegeEscalation"),
    (within({"capabilities": None}), f"{ONE}.securityContext.capabilities.drop"),
    (within({"capabilities": {"drop": ["KILL"]}}), f"{ONE}.securityContext.capabilities.drop"),
    (within({"capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}), f"{ONE}.securityContext.capabilities.add"),
]
ALLOWED = [
    pod(),
    pod(hostNetwork=False, hostPID=None),
    pod(volumes=[{"name": "a"}, {"name": "b", "emptyDir": {}}, {"name": "c", "hostPath": None, "csi": {}}]),
    pod(context={"runAsNonRoot": None, "seccompProfile": None}, containers=[
        container({"runAsNonRoot": True, "seccompProfile": {"type": "Localhost", "localhostProfile": "p"}})
    ]),
    pod(context={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}], "seLinuxOptions": {"level": "s0"}}),
    within({"capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]}, "runAsUser": 7, "procMount": "Default"}),
    within(ports=[{"containerPort": 80, "hostPort": 0}], readinessProbe={"httpGet": {"port": 80}}),
    pod() | {"metadata": {"annotations": {
        "container.apparmor.security.beta.kubernetes.io/one": "localhost/mine", "a": "unconfined",
    }}},
]  # fmt: skip


@pytest.mark.parametrize(("template", "path"), FORBIDDEN_BY_BASELINE, ids=[path for _, path in FORBIDDEN_BY_BASELINE])
def test_what_baseline_forbids(template: Any, path: str) -> None:
    assert ([path], [path]) == (paths(template, BASELINE), paths(template, RESTRICTED))


@pytest.mark.parametrize(
    ("template", "path"), FORBIDDEN_BY_RESTRICTED, ids=[path for _, path in FORBIDDEN_BY_RESTRICTED]
)
@pytest.mark.fault("A14")
def test_what_only_restricted_forbids(template: Any, path: str) -> None:
    assert ([], [path]) == (paths(template, BASELINE), paths(template, RESTRICTED))


GIVEN = {"another user": 1000, "true": True, "false": False, "[ALL]": ["ALL"], "RuntimeDefault": "RuntimeDefault"}
"""What a remedy tells to give -> its value."""


def follow(node: Any, path: str, value: Any, remedy: str) -> None:
    """Do to a template what its message says: lists are entered by their entries' names, as its path has them."""
    if isinstance(node, list):
        if remedy == "remove it" and value in node:
            node.remove(value)
            return
        [entry] = [each for each in node if path.startswith(f"{each.get('name', each.get('containerPort'))}.") or
                   path == each.get("name")]  # fmt: skip
        name = str(entry.get("name", entry.get("containerPort")))
        if path == name:
            node.remove(entry)
            return
        follow(entry, path.removeprefix(f"{name}."), value, remedy)
        return
    if path in node and not isinstance(node[path], list):
        del node[path]
    key, _, rest = path.partition(".")
    if remedy.startswith("give "):
        if not rest:
            node[key] = GIVEN[remedy.removeprefix("give ")]
            return
        node[key] = node.get(key) or {}
    if key in node:
        follow(node[key], rest, value, remedy)


@pytest.mark.fault("N10")
@pytest.mark.parametrize(
    ("template", "path"),
    FORBIDDEN_BY_BASELINE + FORBIDDEN_BY_RESTRICTED,
    ids=[path for _, path in FORBIDDEN_BY_BASELINE + FORBIDDEN_BY_RESTRICTED],
)
def test_the_remedy_helps(template: Any, path: str) -> None:
    mended = copy.deepcopy(template)
    [(_, value, remedy)] = broken_parts(mended, RESTRICTED)
    follow(mended, path, value, remedy.partition(", Pod Security")[0])
    assert paths(mended, RESTRICTED) == []
    assert mended != template


@pytest.mark.parametrize("template", ALLOWED)
def test_what_restricted_allows(template: Any) -> None:
    assert paths(template, RESTRICTED) == []


@pytest.mark.parametrize("kind", ["containers", "initContainers", "ephemeralContainers"])
def test_every_container_is_judged(kind: str) -> None:
    """A sidecar that says nothing does not meet `restricted`, and a privileged one does not meet `baseline`."""
    one = pod(**{kind: [*pod()["spec"].get(kind, ()), {"name": "side"}]})
    other = pod(**{kind: [*pod()["spec"].get(kind, ()), {"name": "side", "securityContext": {"privileged": True}}]})

    said = [f"spec.{kind}.side.securityContext.{name}" for name in ("allowPrivilegeEscalation", "capabilities.drop")]
    assert ([], said) == (paths(one, BASELINE), paths(one, RESTRICTED))
    assert [f"spec.{kind}.side.securityContext.privileged"] == paths(other, BASELINE)


@pytest.mark.parametrize(
    "template",
    [
        {"spec": {"securityContext": "x", "containers": "x", "volumes": 1, "initContainers": ["x"]}},
        pod(context={"sysctls": "x"}, volumes=[{"name": "a", "projected": {"sources": "x"}}]),
        within({"capabilities": {"drop": ["ALL"], "add": "SYS_ADMIN"}}, ports=None, lifecycle=[], livenessProbe="x"),
        {"metadata": {"annotations": ["x"]}, "spec": pod()["spec"]},
    ],
)
def test_parts_of_the_wrong_form_are_left_to_the_api_server(template: Any) -> None:
    assert paths(template, BASELINE) == []


def test_a_fault_names_the_field_of_the_manifest_and_what_would_do() -> None:
    worker = {"name": "worker", "securityContext": {"privileged": True, "capabilities": {"add": ["SYS_ADMIN"]}}}
    template = {"spec": {"hostNetwork": True, "securityContext": {"runAsUser": 0}, "containers": [worker]}}
    path = "spec.workers.template.spec"

    assert [
        f'{path}.hostNetwork: true; remove it, Pod Security "restricted" forbids it',
        f'{path}.containers.worker.securityContext.privileged: true; remove it, Pod Security "restricted" forbids it',
        f'{path}.containers.worker.securityContext.capabilities.add: "SYS_ADMIN"; remove it, '
        'Pod Security "restricted" forbids it',
        f'{path}.securityContext.runAsUser: 0; give another user, Pod Security "restricted" requires it',
    ] == faults(PodLimits(), template)
    assert len(faults(PodLimits(standard=BASELINE), template)) == 3


def test_what_a_sidecar_must_say() -> None:
    [first, second] = faults(PodLimits(), {"spec": {"containers": [{"name": "proxy", "image": "example/proxy:1"}]}})

    path = "spec.workers.template.spec.containers.proxy.securityContext"
    why = 'Pod Security "restricted" requires it'
    assert f"{path}.allowPrivilegeEscalation: missing; give false, {why}" == first
    assert f"{path}.capabilities.drop: missing; give [ALL], {why}" == second


TOKEN = {"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}
MOUNTS = {"spec": {"automountServiceAccountToken": True, "volumes": [TOKEN]}}


def test_only_named_and_allowed_accounts() -> None:
    reader = PodLimits(accounts=frozenset({"reader"}))

    assert faults(reader, MOUNTS, serviceAccountName="reader") == []
    assert faults(PodLimits(accounts=None), {}, serviceAccountName="whatever") == []
    [account, *_] = faults(reader, MOUNTS, serviceAccountName="admin")
    assert account == (
        'spec.serviceAccountName: "admin"; remove it, or have an administrator add it to the chart\'s value '
        "jobs.serviceAccounts"
    )


@pytest.mark.parametrize("limits", [PodLimits(), PodLimits(accounts=None), PodLimits(standard=BASELINE)])
def test_the_default_account_s_token_is_mounted_nowhere(limits: PodLimits) -> None:
    """Neither by a switch nor by a volume; a null would give the API server's default, which is to mount it."""
    [switch, volume] = faults(limits, MOUNTS)

    assert switch.startswith("spec.workers.template.spec.automountServiceAccountToken: true; remove it, or name")
    assert volume.startswith(
        "spec.workers.template.spec.volumes.t.projected: a serviceAccountToken; remove it, or name"
    )
    [missing] = faults(limits, {"spec": {"automountServiceAccountToken": None}})
    assert missing.startswith("spec.workers.template.spec.automountServiceAccountToken: missing; ")


@pytest.mark.fault("O04")
@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"securityContext": {"runAsUser": 0}}, "securityContext.runAsUser: 0; give another user"),
        ({"securityContext": {"runAsNonRoot": False}}, "securityContext.runAsNonRoot: false; give true"),
        ({"volumes": [{"name": "r", "hostPath": {"path": "/"}}]}, 'volumes.r.hostPath: {"path": "/"}; remove it'),
        (
            {"annotations": {"container.apparmor.security.beta.kubernetes.io/worker": "unconfined"}},
            'annotations.container.apparmor.security.beta.kubernetes.io/worker: "unconfined"; remove it',
        ),
    ],
)
def test_all_pods_keep_to_the_standard(given: Any, field: str) -> None:
    """Even if the workers' template takes it back, because trainer and scheduler have no template."""
    [fault] = faults(PodLimits(), {"spec": {"securityContext": {"runAsUser": 7, "runAsNonRoot": True}}}, pods=given)
    assert fault.startswith(f"spec.pods.{field}")


@pytest.mark.fault("O04")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"labels": {"batchgrowth.dev/job": "other"}}, r"spec\.pods\.labels: "),
        ({"labels": {"dask.org/component": "scheduler"}}, r"spec\.pods\.labels: "),
        ({"labels": {"app.kubernetes.io/managed-by": "me"}}, r"spec\.pods\.labels: "),
        ({"annotations": {"batchgrowth.dev/inputs": "x"}}, r"spec\.pods\.annotations: "),
        ({"nodeSelector": {"a b": "c"}}, r"spec\.pods\.nodeSelector: "),
        ({"affinity": {"podAffinity": 1}}, r"spec\.pods\.affinity"),
        ({"imagePullSecrets": [{"name": "a"}, {"name": "a"}]}, r"spec\.pods\.imagePullSecrets: "),
        ({"env": [{"name": "OMP_NUM_THREADS", "value": "4"}]}, r"spec\.pods\.env\[0\]\.name: "),
        ({"env": [{"name": "A", "valueFrom": {"fileKeyRef": {}}}]}, r"spec\.pods\.env\[0\]\.valueFrom: "),
        ({"volumes": [{"name": "tmp", "emptyDir": {}}]}, r"spec\.pods\.volumes\[0\]\.name: "),
        ({"volumeMounts": [{"name": "a", "mountPath": "/a"}]}, r"spec\.pods\.volumeMounts: .*spec\.pods\.volumes"),
        ({"serviceAccountName": "admin"}, r"spec\.pods\.serviceAccountName: no such field"),
        ({"restartPolicy": "Always"}, r"spec\.pods\.restartPolicy: no such field"),
    ],
)
def test_the_doors_of_the_template_are_shut_for_all_pods(given: Any, named: str) -> None:
    with pytest.raises(SpecError, match=named):
        faults(PodLimits(), {}, pods=given)
