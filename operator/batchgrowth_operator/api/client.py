"""A thin client for the API server: the kinds that the operator reads and writes, its requests, and the server's clock.

Paths come from the table of kinds below instead of discovery, so that a kind that the server lacks reads as empty.
"""

import copy
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import yaml
from batchgrowth import names
from batchgrowth.errors import BatchGrowthError
from batchgrowth.manifest.crd import GROUP, PLURAL, VERSION
from batchgrowth.spec import KIND
from kubernetes import client, config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

from batchgrowth_operator.seen.observed import Object, Ref
from batchgrowth_operator.seen.refused_objects import is_namespace_end


class Kind(NamedTuple):
    """A kind's group (empty for the core), version and plural."""

    group: str
    version: str
    plural: str

    @property
    def api_version(self) -> str:
        """Return the apiVersion of manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Return the URL path of one object, or of all objects of this kind in a namespace or in the cluster."""
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

CONNECTIONS = 16
"""Connections that the client keeps open."""
TIMEOUT_SECONDS = 30
"""Timeout of a request."""
LEASE_TIMEOUT_SECONDS = 5
"""Timeout of a request for the Lease, so that two of them fit between a renewal and the loss."""
PAGE = 250
"""Objects per page of a list, so that a thousand jobs and their children are never in memory at once."""
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

MERGE = "application/merge-patch+json"

TERMINATING = "terminating"
"""The code that is counted for a write that is refused because its namespace is being deleted."""

Count = Callable[[str, str, str], None]
"""Counts a request; takes its verb, resource and status code."""


class Refused(Exception):
    """The API server refused a request: `code` is the HTTP status, the text is the server's message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of the API server, for kopf's own client."""

    server: str
    ca_path: str | None
    insecure: bool
    certificate_path: str | None
    private_key_path: str | None
    scheme: str | None
    token: str | None


class ServerClock:
    """The API server's time of day, from the `Date` of its responses.

    It starts with this machine's time of day and advances with the monotonic clock, so later changes of this machine's
    clock do not matter. If a response contradicts it, the response corrects it.
    """

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()
        self._lock = Lock()  # requests are made in many threads

    def now(self) -> datetime:
        """Return the current time, in UTC."""
        return datetime.fromtimestamp(self._offset + time.monotonic(), UTC)

    def correct(self, date: str | None, requested: float) -> None:
        """Correct the clock by the `Date` of a response to a request that was sent at `requested` on the monotonic
        clock.

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


class Api:
    """Requests to the API server, which block and so run in threads. Raises Refused, and OSError if no server answers.

    `clock` has the server's time of day.
    """

    def __init__(self, connection: client.ApiClient, count: Count) -> None:
        self._configuration = connection.configuration
        self._dynamic = DynamicClient(connection, discoverer=lambda *_: None)  # type: ignore[no-untyped-call]
        self._count = count
        self.clock = ServerClock()
        self._timeout_seconds: float = TIMEOUT_SECONDS

    def within(self, seconds: float) -> "Api":
        """Return a copy of this client whose requests time out after at most so many seconds."""
        bounded = copy.copy(self)
        bounded._timeout_seconds = min(self._timeout_seconds, seconds)
        return bounded

    def access(self) -> Access:
        """Return the current access; if the token is about to expire, read it again."""
        has = self._configuration
        scheme, _, token = (has.get_api_key_with_prefix("BearerToken") or "").partition(" ")
        return Access(
            server=has.host,
            ca_path=has.ssl_ca_cert,
            insecure=not has.verify_ssl,
            certificate_path=has.cert_file,
            private_key_path=has.key_file,
            scheme=scheme or None,
            token=token or None,
        )

    def get(self, ref: Ref, namespace: str) -> Object | None:
        """Return the object, or None if it does not exist."""
        return self._get_if_any(KINDS[ref.kind], KINDS[ref.kind].path(namespace, ref.name))

    def list_of(self, kind: str, namespace: str, **selectors: str) -> list[dict[str, Any]]:
        """Return the objects of a kind by `label_selector` or `field_selector`; none if the server has no such kind."""
        resource = KINDS[kind]
        found = self._get_if_any(resource, resource.path(namespace), **selectors)
        if found is None:
            return []
        return [{"kind": kind, "apiVersion": resource.api_version} | item for item in found["items"]]

    def listed(self, kind: str, namespace: str, label_selector: str | None) -> Iterator[Object]:
        """Yield the metadata of all objects of a kind, page by page; none if the server has no such kind."""
        resource = KINDS[kind]
        more = None
        while more != "":
            page = {"label_selector": label_selector, "limit": PAGE, "_continue": more}
            found = self._get_if_any(resource, resource.path(namespace), header_params={"Accept": METADATA}, **page)
            if found is None:
                return
            yield from ({"kind": kind, "metadata": item["metadata"]} for item in found["items"] or [])
            more = found["metadata"].get("continue", "")

    def apply(
        self,
        manifest: Object,
        subresource: str = "",
        *,
        manager: str = names.FIELD_MANAGER,
        force: bool = True,
        dry_run: bool = False,
    ) -> Object:
        """Apply the manifest on the server, which refuses unknown fields instead of dropping them; return the object.

        Without `force` it refuses to change fields of other managers; with `dry_run` it stores nothing.
        """
        kind = KINDS[manifest["kind"]]
        metadata = manifest["metadata"]
        return self._send(
            "patch",
            kind,
            kind.path(metadata["namespace"], metadata["name"], subresource),
            body=manifest,
            content_type="application/apply-patch+yaml",
            field_manager=manager,
            force_conflicts="true" if force else "false",
            query_params=[("fieldValidation", "Strict"), *([("dryRun", "All")] if dry_run else [])],
        )

    def delete(self, ref: Ref, namespace: str, uid: str, propagation: str) -> None:
        """Delete the object with that uid; do nothing if it is gone or another object has its name."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        self._send_if_unchanged("delete", ref, namespace, body=body)

    def release(self, ref: Ref, namespace: str, version: str, finalizers: list[str]) -> None:
        """Leave the object only these finalizers; do nothing if it is gone or no longer has that version."""
        change = {"metadata": {"resourceVersion": version, "finalizers": finalizers}}
        self._send_if_unchanged("patch", ref, namespace, body=change, content_type=MERGE)

    def warnings(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        """Return the events about the object with that uid that are not normal: the Dask operator's type is Error."""
        about = f"involvedObject.uid={uid},type!=Normal"
        items: list[dict[str, Any]] = self._send("get", EVENTS, EVENTS.path(namespace), field_selector=about)["items"]
        return items

    def post_event(self, namespace: str, event: Object) -> None:
        """Create an event."""
        self._send("post", EVENTS, EVENTS.path(namespace), body=event, field_manager=names.FIELD_MANAGER)

    def repeat_event(self, namespace: str, name: str, change: Object) -> bool:
        """Change fields of an event; return False if it does not exist."""
        path = EVENTS.path(namespace, name)
        try:
            self._send("patch", EVENTS, path, body=change, content_type=MERGE, field_manager=names.FIELD_MANAGER)
        except Refused as refused:
            if refused.code != HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def get_lease(self, namespace: str, name: str) -> Object | None:
        """Return the Lease, or None if it does not exist."""
        return self._get_if_any(LEASES, LEASES.path(namespace, name), timeout_seconds=LEASE_TIMEOUT_SECONDS)

    def put_lease(self, lease: Object) -> Object:
        """Write the Lease and return the stored one. Without a resource version it is created; with one it is updated,
        unless it has changed since.
        """
        metadata = lease["metadata"]
        if "resourceVersion" not in metadata:
            path = LEASES.path(metadata["namespace"])
            return self._send("post", LEASES, path, timeout_seconds=LEASE_TIMEOUT_SECONDS, body=lease)
        path = LEASES.path(metadata["namespace"], metadata["name"])
        return self._send("put", LEASES, path, timeout_seconds=LEASE_TIMEOUT_SECONDS, body=lease)

    def _send_if_unchanged(self, verb: str, ref: Ref, namespace: str, **options: Any) -> None:
        """Send a request that names the object's uid or version; do nothing if the object is gone or has another."""
        kind = KINDS[ref.kind]
        try:
            self._send(verb, kind, kind.path(namespace, ref.name), **options)
        except Refused as refused:
            if refused.code not in (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT):
                raise

    def _get_if_any(self, kind: Kind, path: str, **options: Any) -> dict[str, Any] | None:
        try:
            return self._send("get", kind, path, **options)
        except Refused as refused:
            if refused.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def _send(
        self, verb: str, kind: Kind, path: str, timeout_seconds: float = TIMEOUT_SECONDS, **options: Any
    ) -> dict[str, Any]:
        timeout = min(timeout_seconds, self._timeout_seconds)
        requested = time.monotonic()
        try:
            response = self._dynamic.request(verb, path, serialize=False, _request_timeout=timeout, **options)
            self.clock.correct(response.headers.get("Date"), requested)
            text = response.data  # which is read from the connection only now
        except DynamicApiError as error:
            if not error.status:  # no server has answered: kubernetes' client makes this of a failed TLS handshake
                raise ConnectionError(f"{verb} {path}: {' '.join(str(error.reason).split())}") from error
            message = _message(error)
            # A namespace's end is no fault on which an alert should fire.
            code = TERMINATING if is_namespace_end(message) else str(error.status)
            self._count(verb, kind.plural, code)
            raise Refused(int(error.status), message) from error
        except HTTPError as error:  # urllib3's own, which is no OSError
            raise ConnectionError(f"{verb} {path}: {error}") from error
        self._count(verb, kind.plural, str(response.status))
        try:
            answer: dict[str, Any] = json.loads(text)
        except ValueError as error:
            raise ConnectionError(f"{verb} {path}: the answer is not JSON: {error}") from error
        return answer


def connect(kubeconfig: Path | None, count: Count) -> Api:
    """Connect to the kubeconfig's API server; without a kubeconfig, to the pod's cluster by its service account.

    Raises BatchGrowthError if the kubeconfig cannot be used, or if there is none outside of a pod.
    """
    configuration = client.Configuration()
    with _explained("no cluster to work in", "outside of a pod, give a file by --kubeconfig"):
        if kubeconfig is not None:
            config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
        else:
            config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    if kubeconfig is None:
        configuration.proxy = None  # a proxy in the environment is for connections out of the cluster
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False
    return Api(client.ApiClient(configuration), count)


def connect_as_user(kubeconfig: Path | None, context: str | None) -> tuple[Api, str]:
    """Connect to the cluster of a user's context; return the client and the namespace of that context.

    Raises BatchGrowthError if there is no such kubeconfig or context, or if it cannot be used.
    """
    configuration = client.Configuration()
    file = None if kubeconfig is None else str(kubeconfig)
    remedy = "give a file by --kubeconfig or KUBECONFIG, and one of its contexts by --context"
    with _explained("no cluster to submit to", remedy):
        config.load_kube_config(file, context, client_configuration=configuration)  # type: ignore[no-untyped-call]
        contexts, active = config.list_kube_config_contexts(file)  # type: ignore[no-untyped-call]
    configuration.retries = False
    chosen = next((each for each in contexts if each["name"] == context), active)
    return Api(client.ApiClient(configuration), lambda *_: None), chosen["context"].get("namespace") or "default"


@contextmanager
def _explained(lacking: str, remedy: str) -> Iterator[None]:
    """Raise BatchGrowthError instead of what kubernetes' client raises for a configuration that it cannot use."""
    try:
        yield
    except (config.ConfigException, OSError) as error:
        raise BatchGrowthError(f"{lacking}: {str(error).rstrip('.')}; {remedy}") from error
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError) as error:
        why = " ".join(str(error).split())
        raise BatchGrowthError(f"{lacking}: the kubeconfig is malformed ({why}); {remedy}") from error


def _message(error: DynamicApiError) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
