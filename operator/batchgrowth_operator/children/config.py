"""The job's ConfigMaps, Secrets, claim and access control, and the metadata of every child."""

import base64
import json
from functools import lru_cache
from typing import Any

from batchgrowth import names
from batchgrowth.manifest.reading import VERSION, VERSION_ANNOTATION, stored_text
from batchgrowth.spec import API_VERSION, KIND
from batchgrowth.spec.pods import OF_PODS

from batchgrowth_operator.children.drift import digest, is_smaller
from batchgrowth_operator.seen.observed import CLAIM, Manifest, Ref, TlsSecrets
from batchgrowth_operator.seen.progress import MOST_TEXTS, stored, undecided
from batchgrowth_operator.seen.situation import Situation, class_of, size_of

METRICS_PORT = 9090
"""The trainer's port; the network policy admits those that read metrics there."""
DNS_PORT = 53
RBAC = "rbac.authorization.k8s.io"


def owned(s: Situation, role: str, manifest: Manifest, inputs: Any = None) -> Manifest:
    """Return the manifest as a child of the job, with the digest of the manifest.

    Args:
        s: The job's situation.
        role: What the child is for; its label.
        manifest: The child with its name and annotations as its only metadata. It is changed in place.
        inputs: What the child was made from, if the child cannot be changed in place: other inputs recreate it.
    """
    metadata = manifest["metadata"]
    metadata["namespace"] = s.seen.namespace
    metadata["labels"] = names.labels(s.seen.name, role)
    metadata["ownerReferences"] = [
        {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "name": s.seen.name,
            "uid": s.seen.uid,
            "controller": True,
            "blockOwnerDeletion": False,
        }
    ]
    annotations = metadata.pop("annotations", None)
    if annotations:
        metadata["annotations"] = annotations
    # Last, because the digest covers all that was set before; the inputs have a digest of their own.
    metadata["annotations"] = {**(annotations or {}), names.MANIFEST: digest(manifest)}
    if inputs is not None:
        metadata["annotations"][names.INPUTS] = digest(inputs)
    return manifest


def plan_config_map(s: Situation) -> Manifest:
    """Return the ConfigMap from which the trainer reads the job, and the plan that follows from the job's spec alone.

    Decisions of a measured growth do not change it: a trainer that starts compares it with its own plan of the spec.
    """
    job, plan = _job_and_plan(s.text)
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": s.seen.names.plan},
        "data": {names.JOB_KEY: job, names.PLAN_KEY: plan},
    }
    return owned(s, "plan", manifest)


@lru_cache(maxsize=MOST_TEXTS)  # only an edit of the spec changes them
def _job_and_plan(text: str) -> tuple[str, str]:
    """Return the job and its plan as the trainer reads them."""
    job = json.loads(text)
    known = stored(text)
    spec = {name: part for name, part in known.short.items() if name not in OF_PODS}
    volume = known.job.spec.checkpoint.volume
    if volume is not None and volume.size is not None:  # an older trainer does not know `volume.size`
        claim = names.of(job["metadata"]["name"]).checkpoints
        spec |= {"checkpoint": spec["checkpoint"] | {"volume": {"claimName": claim}}}
    job["metadata"]["annotations"] = {VERSION_ANNOTATION: VERSION}
    return stored_text({**job, "spec": spec}), json.dumps(undecided(text).to_json(), sort_keys=True)


def progress_config_map(s: Situation) -> Manifest:
    """Return the ConfigMap that the trainer writes its reports to; the operator never writes its data.

    Its annotation has the last start. If the data is lost, the next trainer numbers its start above that, or the
    operator would take its reports for old ones.
    """
    known = s.report or s.previous.trainer_status
    last = 0
    if s.awaited_start is not None:
        last = s.awaited_start - 1
    elif known is not None and known.start:
        last = known.start
        if s.is_report_awaited:
            last -= 1  # the status has the number of the next start
    manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": s.seen.names.progress,
            "annotations": {names.LAST_START: str(last)} if last or s.is_report_awaited else {},
        },
    }
    return owned(s, "progress", manifest)


def secrets(s: Situation, content: TlsSecrets) -> list[Manifest]:
    """Return the Secrets that must change: with the authority's key, and with the certificates that pods mount."""
    pem = {s.seen.names.authority: content.authority, s.seen.names.tls: content.tls}
    return [
        owned(
            s,
            "tls",
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name},
                "type": "Opaque",
                "data": {key: base64.b64encode(text.encode()).decode() for key, text in sorted(texts.items())},
            },
        )
        for name, texts in pem.items()
        if texts
    ]


def checkpoint_claim(s: Situation) -> Manifest:
    """Return the claim that the operator makes for the job's checkpoints.

    A claim that exists keeps its class and never shrinks: the API server would refuse either change. Only the trainer
    mounts it, so one node at a time is enough.
    """
    found = s.seen.children.get(Ref(CLAIM, s.storage.claim))
    size = s.storage.size
    if found is not None and is_smaller(size, size_of(found)):
        size = size_of(found)
    storage_class = s.storage.storage_class if found is None else class_of(found)
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": size}},
    }
    if storage_class:
        spec["storageClassName"] = storage_class
    manifest = {"apiVersion": "v1", "kind": CLAIM, "metadata": {"name": s.storage.claim}, "spec": spec}
    return owned(s, "checkpoints", manifest)


def trainer_account(s: Situation) -> list[Manifest]:
    """Return the account that the trainer runs as, the Role, and the RoleBinding of the two.

    The Role permits only getting and patching the progress ConfigMap.
    """
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": s.seen.names.trainer},
        "automountServiceAccountToken": False,
    }
    rule = {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [s.seen.names.progress],
        "verbs": ["get", "patch"],
    }
    role = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "Role",
        "metadata": {"name": s.seen.names.progress},
        "rules": [rule],
    }
    subject = {"kind": "ServiceAccount", "name": s.seen.names.trainer, "namespace": s.seen.namespace}
    binding = {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": s.seen.names.progress},
        "roleRef": {"apiGroup": RBAC, "kind": "Role", "name": s.seen.names.progress},
        "subjects": [subject],
    }
    return [owned(s, "trainer", account), owned(s, "progress", role), owned(s, "progress", binding)]


def network_policy(s: Situation) -> Manifest:
    """Return the network policy, which admits the job's own pods, and on the metrics port the pods that may read
    metrics.

    Unless the installation restricts it, the pods may connect to anything, so that a workload can download its data.
    """
    own = {"matchLabels": {names.JOB_LABEL: s.seen.name}}
    metrics: dict[str, Any] = {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]}
    if s.defaults.network.metrics_from:
        metrics["from"] = list(s.defaults.network.metrics_from)
    spec: dict[str, Any] = {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": own}]}, metrics],
    }
    if s.defaults.network.egress is not None:
        dns = {"ports": [{"port": DNS_PORT, "protocol": "UDP"}, {"port": DNS_PORT, "protocol": "TCP"}]}
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [{"to": [{"podSelector": own}]}, dns, *s.defaults.network.egress]
    manifest = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": s.seen.names.network_policy},
        "spec": spec,
    }
    return owned(s, "guard", manifest)
