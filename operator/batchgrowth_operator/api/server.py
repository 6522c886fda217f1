"""The API server: the kinds that the operator reads and writes there, and its time of day."""

import time
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from threading import Lock
from typing import NamedTuple

from batchgrowth.manifest.crd import GROUP, PLURAL, VERSION
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
        """Return the URL path of an object, of all in a namespace, or without a namespace of all in the cluster."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = ("namespaces", namespace) if namespace else ()
        return "/".join(filter(None, (root, *scope, self.plural, name, subresource)))


JOBS = {KIND: Kind(GROUP, VERSION, PLURAL)}
"""The kind of the jobs."""
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
"""The kinds of jobs and of all their children."""
EVENTS = Kind("", "v1", "events")
LEASES = Kind("coordination.k8s.io", "v1", "leases")


class ServerClock:
    """The API server's time of day, from the `Date` of its responses.

    It starts with this machine's time of day and advances with the monotonic clock, so that nothing that happens to
    this machine's clock afterwards matters. A response corrects it if the two cannot both be right.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._lock = Lock()  # requests are made in many threads

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return datetime.fromtimestamp(self._offset + time.monotonic(), UTC)

    def correct(self, date: str | None, requested: float) -> None:
        """Correct the clock by the `Date` of a response; its request was sent at that time of the monotonic clock.

        The server read its clock between then and now, and cut off the fraction of the second. A response without a
        date, or with one that cannot be read, changes nothing.
        """
        arrived = time.monotonic()
        try:
            said = parsedate_to_datetime(date or "").timestamp()
        except ValueError:
            return
        with self._lock:
            self._offset = min(max(self._offset, said - arrived), said + 1 - requested)
