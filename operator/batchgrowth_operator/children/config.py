"""The job's documents, claim and access control, and the metadata of every child."""

import base64
import json
from collections.abc import Iterator, Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.manifest.reading import VERSION, VERSION_ANNOTATION
from batchgrowth.spec import API_VERSION, KIND
from batchgrowth.spec.pods import OF_PODS

from batchgrowth_operator.children.drift import digest, is_smaller
from batchgrowth_operator.children.pods import METRICS_PORT
from batchgrowth_operator.children.writes import Manifest
from batchgrowth_operator.seen.observed import CLAIM, Credentials
from batchgrowth_operator.seen.situation import Situation
from batchgrowth_operator.seen.storage import class_of, size_of

# --- The metadata of every child: namespace, labels, owner, and the digest of its manifest ---


def child(
    s: Situation,
    api_version: str,
    kind: str,
    name: str,
    role: str,
    annotations: Mapping[str, str] | None = None,
    **parts: Any,
) -> Manifest:
    """A manifest in the job's namespace, owned by the job; `parts` are its fields beside the metadata."""
    manifest = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": s.seen.namespace,
            "labels": names.labels(s.seen.name, role),
            "ownerReferences": [_owner(s)],
            **({"annotations": annotations} if annotations else {}),
        },
        **parts,
    }
    manifest["metadata"]["annotations"] = {**(annotations or {}), names.MANIFEST: digest(manifest)}
    return manifest


def with_inputs(manifest: Manifest, inputs: Any) -> Manifest:
    """The manifest with the digest of the inputs whose change recreates the child."""
    manifest["metadata"]["annotations"][names.INPUTS] = digest(inputs)
    return manifest


def _owner(s: Situation) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": s.seen.name,
        "uid": s.seen.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


# --- The job's documents: its plan, its progress, its certificates ---


def plan_config_map(s: Situation) -> Manifest:
    """The ConfigMap from which the trainer reads the job and the plan that follows from its spec alone.

    It stays the same while decisions arrive: a trainer that starts compares it with the plan that it makes of the spec.
    """
    job = {
        "apiVersion": s.seen.job["apiVersion"],
        "kind": s.seen.job["kind"],
        "metadata": {
            "name": s.seen.name,
            "namespace": s.seen.namespace,
            "annotations": {VERSION_ANNOTATION: VERSION},
        },
        "spec": _spec(s),
    }
    data = {
        names.JOB_KEY: json.dumps(job, sort_keys=True, ensure_ascii=False),
        names.PLAN_KEY: json.dumps(s.undecided.to_json(), sort_keys=True),
    }
    return child(s, "v1", "ConfigMap", names.plan(s.seen.name), "plan", data=data)


def _spec(s: Situation) -> dict[str, Any]:
    """The spec for the trainer; with the name of its claim, since an older trainer does not know `volume.size`."""
    spec = {name: part for name, part in s.stored.short.items() if name not in OF_PODS}
    volume = s.spec.checkpoint.volume
    if volume is None or volume.size is None:
        return spec
    return spec | {"checkpoint": spec["checkpoint"] | {"volume": {"claimName": names.checkpoints(s.seen.name)}}}


def progress_config_map(s: Situation) -> Manifest:
    """The ConfigMap that the trainer writes its reports to; the operator leaves its data alone.

    If it is lost, the next trainer learns from the annotation how its start must be numbered to be newer.
    """
    known = s.report or s.previous.trainer_status
    annotations = {names.LAST_START: str(known.start)} if known and known.start else None
    return child(s, "v1", "ConfigMap", names.progress(s.seen.name), "progress", annotations)


def secrets(s: Situation, credentials: Credentials) -> Iterator[Manifest]:
    """The Secret with the authority's key, and the one with the certificates that pods mount; those that change."""
    owned = {names.authority(s.seen.name): credentials.authority, names.tls(s.seen.name): credentials.tls}
    for name, pem in owned.items():
        if pem:
            data = {key: base64.b64encode(text.encode()).decode() for key, text in sorted(pem.items())}
            yield child(s, "v1", "Secret", name, "tls", type="Opaque", data=data)


# --- The claim that the operator makes for the checkpoints of one job ---


def checkpoint_claim(s: Situation) -> Manifest:
    """The claim. One that exists keeps its class and never shrinks: the API server would refuse either change.

    It is the trainer's alone, so one node at a time needs to mount it.
    """
    storage, found = s.storage, s.seen.child(CLAIM, s.storage.claim)
    size, known = storage.size, size_of(found)
    storage_class = class_of(found) if found is not None else storage.storage_class
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": known if known and is_smaller(size, known) else size}},
        **({"storageClassName": storage_class} if storage_class else {}),
    }
    return child(s, "v1", CLAIM, storage.claim, "checkpoints", spec=spec)


# --- Access control: the trainer's one permission, and the network policy around the job's pods ---

DNS_PORT = 53
RBAC = "rbac.authorization.k8s.io"


def service_account(s: Situation) -> Manifest:
    """The account that the trainer runs as."""
    return child(s, "v1", "ServiceAccount", names.trainer(s.seen.name), "trainer", automountServiceAccountToken=False)


def progress_role(s: Situation) -> Manifest:
    """The permission to get and patch the progress ConfigMap."""
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [names.progress(s.seen.name)],
        "verbs": ["get", "patch"],
    }
    return child(s, f"{RBAC}/v1", "Role", names.progress_role(s.seen.name), "progress", rules=[rule])


def progress_role_binding(s: Situation) -> Manifest:
    """The binding of that permission to the trainer's account."""
    role = {"apiGroup": RBAC, "kind": "Role", "name": names.progress_role(s.seen.name)}
    account = {"kind": "ServiceAccount", "name": names.trainer(s.seen.name), "namespace": s.seen.namespace}
    name = names.progress_role(s.seen.name)
    return child(s, f"{RBAC}/v1", "RoleBinding", name, "progress", roleRef=role, subjects=[account])


def network_policy(s: Situation) -> Manifest:
    """The policy that admits traffic from the job's own pods, and to the metrics port from those that may read it.

    Unless the installation restricts it, the pods may connect to anything, so that a workload can download its data.
    """
    own = {"matchLabels": {names.JOB_LABEL: s.seen.name}}
    network = s.defaults.network
    readers = {"from": list(network.metrics_from)} if network.metrics_from else {}
    spec: dict[str, Any] = {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": own}]},
            {**readers, "ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
        ],
    }
    if network.egress is not None:
        dns = {"ports": [{"port": DNS_PORT, "protocol": protocol} for protocol in ("UDP", "TCP")]}
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [{"to": [{"podSelector": own}]}, dns, *network.egress]
    name = names.network_policy(s.seen.name)
    return child(s, "networking.k8s.io/v1", "NetworkPolicy", name, "guard", spec=spec)
