"""Access control: the trainer's one permission, and the network policy around the job's pods."""

from typing import Any

from batchgrowth import names

from batchgrowth_operator.decide.children.base import child
from batchgrowth_operator.decide.children.pods import METRICS_PORT
from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.decide.situation import Situation

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
