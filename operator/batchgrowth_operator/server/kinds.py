"""The kinds that the operator reads and writes, with their URL paths."""

from typing import NamedTuple

from batchgrowth.crd import GROUP, PLURAL, VERSION
from batchgrowth.spec import KIND


class Kind(NamedTuple):
    """A kind's group (empty for the core), version and plural."""

    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """The apiVersion of manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """The URL path of an object, of all objects in a namespace, or without a namespace of all in the cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = ("namespaces", namespace) if namespace else ()
        return "/".join(filter(None, (root, *scope, self.plural, name, subresource)))


JOBS = {KIND: Kind(GROUP, VERSION, PLURAL)}
WATCHED = {
    "ConfigMap": Kind("", "v1", "configmaps"),
    "DaskCluster": Kind("kubernetes.dask.org", "v1", "daskclusters"),
    "Deployment": Kind("apps", "v1", "deployments"),
    "Job": Kind("batch", "v1", "jobs"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "Pod": Kind("", "v1", "pods"),
    "Role": Kind("rbac.authorization.k8s.io", "v1", "roles"),
    "RoleBinding": Kind("rbac.authorization.k8s.io", "v1", "rolebindings"),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
}
"""Children, pods and the scheduler's Service, watched by their job label."""
READ_ONLY = frozenset({"Pod", "Service"})
"""Watched kinds that the operator never writes."""
UNWATCHED = {"Secret": Kind("", "v1", "secrets")}
"""Kinds read by name only, so that the operator needs no permission to list Secrets."""
KINDS = JOBS | WATCHED | UNWATCHED
EVENTS = Kind("", "v1", "events")
LEASES = Kind("coordination.k8s.io", "v1", "leases")
