"""Access control: the trainer's one permission, and the network policy around the job's pods."""

from batchgrowth import names

from batchgrowth_operator.decide.children.base import child
from batchgrowth_operator.decide.children.pods import METRICS_PORT
from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.decide.situation import Situation

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
    """The policy that admits traffic from the job's own pods, and from anywhere to the metrics port."""
    own = {"matchLabels": {names.JOB_LABEL: s.seen.name}}
    spec = {
        "podSelector": own,
        "policyTypes": ["Ingress"],
        "ingress": [
            {"from": [{"podSelector": own}]},
            {"ports": [{"port": METRICS_PORT, "protocol": "TCP"}]},
        ],
    }
    name = names.network_policy(s.seen.name)
    return child(s, "networking.k8s.io/v1", "NetworkPolicy", name, "guard", spec=spec)
