"""What pods an installation allows: a Pod Security Standard, and the service accounts that jobs may use.

`batchgrowth check` checks the templates that users write; the operator checks the pods that it is about to create. The
standards are those of Kubernetes 1.34, without the exceptions for Windows and for user namespaces:
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from batchgrowth.errors import Fault
from batchgrowth.manifest.documents import printable
from batchgrowth.spec import JobSpec
from batchgrowth.spec.all_pods import overlay_of, plain_pods
from batchgrowth.spec.pods import CONTAINER, merged, plain

USER = 65532
"""The user and group of the operator's own containers."""
RESTRICTED_CONTAINER = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
RESTRICTED_POD = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
IDENTITY = ("runAsUser", "runAsGroup", "fsGroup")
"""The fields of RESTRICTED_POD that a platform may choose, as OpenShift does from a range of the namespace."""

REMOVE = "remove it"
CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
PROFILES = ("RuntimeDefault", "Localhost")
CAPABILITIES = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP",
    "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
SYSCTLS = (
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
)  # fmt: skip
VOLUMES = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
CONTEXTS: dict[str, tuple[Any, ...]] = {
    "appArmorProfile.type": (None, *PROFILES),
    "privileged": (None, False),
    "procMount": (None, "Default"),
    "seLinuxOptions.role": (None, ""),
    "seLinuxOptions.type": (None, "", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"),
    "seLinuxOptions.user": (None, ""),
    "seccompProfile.type": (None, *PROFILES),
    "windowsOptions.hostProcess": (None, False),
}
"""Fields of a security context, a pod's or a container's -> the values that `baseline` allows."""
HANDLERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")
APP_ARMOR = "container.apparmor.security.beta.kubernetes.io/"

Broken = tuple[str, Any, str]
"""Path below the template, the value there or None, and the remedy."""


class PodSecurity(StrEnum):
    """A Pod Security Standard; a pod that breaks `baseline` breaks `restricted` too."""

    restricted = "restricted"
    baseline = "baseline"


def broken_parts(template: Mapping[str, Any], standard: PodSecurity) -> list[Broken]:
    """Return the parts of the pod template that break the standard."""
    broken = list(_baseline(template))
    if standard is PodSecurity.restricted:
        broken += [each for each in _restricted(template) if each not in broken]
    return [
        (path, value, f'{remedy}, Pod Security "{standard}" {"forbids" if remedy == REMOVE else "requires"} it')
        for path, value, remedy in broken
    ]


def _baseline(template: Mapping[str, Any]) -> Iterator[Broken]:
    for name in ("hostIPC", "hostNetwork", "hostPID"):
        if at(template, f"spec.{name}") not in (None, False):
            yield f"spec.{name}", at(template, f"spec.{name}"), REMOVE
    for volume in maps(at(template, "spec.volumes")):
        if volume.get("hostPath") is not None:
            yield f"spec.volumes.{volume.get('name')}.hostPath", volume["hostPath"], REMOVE
    for sysctl in maps(at(template, "spec.securityContext.sysctls")):
        if sysctl.get("name") not in SYSCTLS:
            yield f"spec.securityContext.sysctls.{sysctl.get('name')}", sysctl.get("value"), REMOVE
    annotations = at(template, "metadata.annotations")
    if not isinstance(annotations, Mapping):
        annotations = {}
    for name, profile in annotations.items():
        if name.startswith(APP_ARMOR) and not str(profile).startswith(("runtime/default", "localhost/")):
            yield f"metadata.annotations.{name}", profile, REMOVE
    yield from _context(at(template, "spec.securityContext"), "spec.securityContext")
    for path, container in _containers(template):
        yield from _context(container.get("securityContext"), f"{path}.securityContext")
        yield from _added(container, path, CAPABILITIES)
        yield from _reaching_the_host(container, path)


def _context(context: Any, path: str) -> Iterator[Broken]:
    for field, allowed in CONTEXTS.items():
        value = at(context, field)
        if value not in allowed:
            yield f"{path}.{field}", value, REMOVE


def _added(container: Mapping[str, Any], path: str, allowed: tuple[str, ...]) -> Iterator[Broken]:
    added = at(container, "securityContext.capabilities.add")
    if not isinstance(added, list):
        return  # the API server refuses it
    for name in added:
        if name not in allowed:
            yield f"{path}.securityContext.capabilities.add", name, REMOVE


def _reaching_the_host(container: Mapping[str, Any], path: str) -> Iterator[Broken]:
    for port in maps(container.get("ports")):
        if port.get("hostPort") not in (None, 0):
            yield f"{path}.ports.{port.get('containerPort')}.hostPort", port["hostPort"], REMOVE
    for field in (f"{handler}.{action}.host" for handler in HANDLERS for action in ("httpGet", "tcpSocket")):
        host = at(container, field)
        if host not in (None, ""):
            yield f"{path}.{field}", host, REMOVE


def _restricted(template: Mapping[str, Any]) -> Iterator[Broken]:
    for volume in maps(at(template, "spec.volumes")):
        for source, value in volume.items():
            if source not in ("name", *VOLUMES) and value is not None:
                yield f"spec.volumes.{volume.get('name')}.{source}", value, REMOVE
    pod = at(template, "spec.securityContext")
    yield from _user(pod, "spec.securityContext")
    for path, container in _containers(template):
        context = container.get("securityContext")
        yield from _user(context, f"{path}.securityContext")
        yield from _required(context, pod, f"{path}.securityContext")
        yield from _added(container, path, ("NET_BIND_SERVICE",))


def _user(context: Any, path: str) -> Iterator[Broken]:
    if at(context, "runAsUser") == 0:
        yield f"{path}.runAsUser", 0, "give another user"
    if at(context, "runAsNonRoot") not in (None, True):
        yield f"{path}.runAsNonRoot", at(context, "runAsNonRoot"), "give true"


def _required(context: Any, pod: Any, path: str) -> Iterator[Broken]:
    """Yield the required settings that neither the container nor its pod has."""
    if at(context, "allowPrivilegeEscalation") is not False:
        yield f"{path}.allowPrivilegeEscalation", at(context, "allowPrivilegeEscalation"), "give false"
    dropped = at(context, "capabilities.drop")
    if not isinstance(dropped, list) or "ALL" not in dropped:
        yield f"{path}.capabilities.drop", dropped, "give [ALL]"
    if at(context, "runAsNonRoot") is None and at(pod, "runAsNonRoot") is None:
        yield f"{path}.runAsNonRoot", None, "give true"
    if at(context, "seccompProfile.type") is None and at(pod, "seccompProfile.type") is None:
        yield f"{path}.seccompProfile.type", None, "give RuntimeDefault"


def _containers(template: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in CONTAINERS:
        for container in maps(at(template, f"spec.{kind}")):
            yield f"spec.{kind}.{container.get('name')}", container


def at(node: Any, path: str) -> Any:
    """Return the value at a dotted path; None if a part of the path is missing or not a map."""
    for key in path.split("."):
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def maps(node: Any) -> list[Mapping[str, Any]]:
    """Return the maps of a list; none if the value is not a list, which the API server refuses anyway."""
    if not isinstance(node, list):
        return []
    return [entry for entry in node if isinstance(entry, Mapping)]


PODS = "spec.pods"
TEMPLATE = "spec.workers.template"
ACCOUNT = "spec.serviceAccountName"
VALUE = "the chart's value jobs.serviceAccounts"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodLimits:
    """The standard for the workers' pods, and the service accounts that jobs may name; None allows any."""

    standard: PodSecurity = PodSecurity.restricted
    accounts: frozenset[str] | None = frozenset()


STRICTEST = PodLimits()


def written_pods(spec: JobSpec) -> dict[str, Any]:
    """Return the parts of the workers' pod template that the limits cover: the operator's, with the user's merged over
    them.

    From the user, the pods of trainer and scheduler contain only parts of the same fields.
    """
    shared = _with_shared(plain_pods(spec.pods))
    template: dict[str, Any] = merged(merged(shared, {"spec": {"volumes": plain(spec.volumes)}}), spec.workers.template)
    return template


def _with_shared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operator's own pod with what a user gives in spec.pods."""
    container = {"name": CONTAINER, "securityContext": RESTRICTED_CONTAINER}
    pod = {
        "automountServiceAccountToken": False,
        "securityContext": RESTRICTED_POD,
        "containers": [container],
        "volumes": [],
    }
    template: dict[str, Any] = merged({"metadata": {}, "spec": pod}, overlay_of(given, CONTAINER))
    return template


def pod_faults(spec: JobSpec, template: Mapping[str, Any], limits: PodLimits) -> tuple[Fault, ...]:
    """Return what exceeds the limits: parts of all pods, of the workers' merged template, and the job's account."""
    of_pods = broken_parts(_with_shared(plain_pods(spec.pods)), limits.standard)
    of_all = broken_parts({"spec": {"volumes": plain(spec.volumes)}}, limits.standard)
    of_workers = [each for each in broken_parts(template, limits.standard) if each not in (*of_pods, *of_all)]
    faults = []
    for path, value, remedy in of_pods:
        field = path.removeprefix("metadata.").removeprefix("spec.")
        faults.append(Fault(f"{PODS}.{field}", _shown(value), remedy))
    faults += [Fault(path, _shown(value), remedy) for path, value, remedy in of_all]
    faults += [Fault(f"{TEMPLATE}.{path}", _shown(value), remedy) for path, value, remedy in of_workers]
    return (*faults, *_account_faults(spec, template, limits))


def account_note(spec: JobSpec) -> str:
    """Return what an installation must allow for the job's service account; empty if the job names none."""
    if spec.service_account_name is None:
        return ""
    return f'note: {ACCOUNT} "{spec.service_account_name}" is refused unless {VALUE} lists it.'


def _account_faults(spec: JobSpec, template: Mapping[str, Any], limits: PodLimits) -> Iterator[Fault]:
    """Yield faults of the account and of tokens: only an allowed account's token may be mounted.

    A pod that names no account has its namespace's default account.
    """
    account = spec.service_account_name
    if account is not None:
        if limits.accounts is None or account in limits.accounts:
            return
        yield Fault(ACCOUNT, _shown(account), f"remove it, or have an administrator add it to {VALUE}")
    remedy = f"remove it, or name an account in {ACCOUNT} that {VALUE} lists"
    automount = at(template, "spec.automountServiceAccountToken")
    if automount is not False:  # Kubernetes mounts the token unless the pod says false
        yield Fault(f"{TEMPLATE}.spec.automountServiceAccountToken", _shown(automount), remedy)
    for volume in maps(at(template, "spec.volumes")):
        if any(source.get("serviceAccountToken") is not None for source in maps(at(volume, "projected.sources"))):
            path = f"{TEMPLATE}.spec.volumes.{volume.get('name')}.projected"
            yield Fault(path, "a serviceAccountToken", remedy)


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    return printable(json.dumps(value, ensure_ascii=False, default=str))
