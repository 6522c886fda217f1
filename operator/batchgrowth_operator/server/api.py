"""A thin client of the API server: the few requests that the operator makes, each counted. Only `observe`, `sweep`,
`apply` and `lease` use it.

Paths come from a table and not from discovery: a kind that the server does not have is an answer, not an error.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from batchgrowth import names
from kubernetes import client, config
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import DynamicApiError
from urllib3.exceptions import HTTPError

from batchgrowth_operator.seen.observed import Object, Ref
from batchgrowth_operator.server.kinds import EVENTS, KINDS, LEASES, Kind

CONNECTIONS = 16
TIMEOUT_SECONDS = 30
PAGE = 250
METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"

Count = Callable[[str, str, str], None]
"""Takes verb, resource and status code of a request."""


class Refused(Exception):
    """The API server said no: `code` is its HTTP status, the text its own words."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Access:
    """How to get at the API server, for those with a client of their own."""

    server: str
    ca_path: str | None
    insecure: bool
    certificate_path: str | None
    private_key_path: str | None
    scheme: str | None
    token: str | None


class Api:
    """Requests that block; callers run them in threads. Raises Refused, and OSError where no server answers."""

    def __init__(self, connection: client.ApiClient, count: Count) -> None:
        self._configuration = connection.configuration
        self._dynamic = DynamicClient(connection, discoverer=lambda *_: None)  # type: ignore[no-untyped-call]
        self._count = count

    def access(self) -> Access:
        """The access of now: a token is read anew when it is about to expire."""
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
        """The object, or None where it is not there."""
        try:
            return self._send("get", KINDS[ref.kind], KINDS[ref.kind].path(namespace, ref.name))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def list_of(self, kind: str, namespace: str, **selectors: str) -> list[dict[str, Any]]:
        """The objects of a kind by `label_selector` or `field_selector`; none where the server has no such kind."""
        place = KINDS[kind]
        try:
            found = self._send("get", place, place.path(namespace), **selectors)
        except Refused as refused:
            if refused.code == 404:
                return []
            raise
        whole = {"kind": kind, "apiVersion": place.api_version}
        return [whole | item for item in found["items"]]

    def listed(self, kind: str, namespace: str, label_selector: str | None) -> Iterator[Object]:
        """The metadata of all objects of a kind, page by page; none where the server has no such kind."""
        place, more = KINDS[kind], None
        while more != "":
            try:
                found = self._send(
                    "get",
                    place,
                    place.path(namespace),
                    label_selector=label_selector,
                    limit=PAGE,
                    _continue=more,
                    header_params={"Accept": METADATA},
                )
            except Refused as refused:
                if refused.code == 404:
                    return
                raise
            yield from ({"kind": kind, "metadata": item["metadata"]} for item in found["items"] or [])
            more = found["metadata"].get("continue", "")

    def apply(self, manifest: Object, subresource: str = "") -> Object:
        """The object after server-side apply; fields that the server does not know are refused, not dropped."""
        kind, metadata = KINDS[manifest["kind"]], manifest["metadata"]
        return self._send(
            "patch",
            kind,
            kind.path(metadata["namespace"], metadata["name"], subresource),
            body=manifest,
            content_type="application/apply-patch+yaml",
            field_manager=names.FIELD_MANAGER,
            force_conflicts="true",
            query_params=[("fieldValidation", "Strict")],
        )

    def delete(self, ref: Ref, namespace: str, uid: str, propagation: str) -> None:
        """Deletes that very object; nothing happens where it is gone, or another has its name."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": propagation}
        try:
            self._send("delete", KINDS[ref.kind], KINDS[ref.kind].path(namespace, ref.name), body=body)
        except Refused as refused:
            if refused.code not in (404, 409):
                raise

    def warnings(self, namespace: str, uid: str) -> list[dict[str, Any]]:
        """The events that warn of something about the object with that uid."""
        about = f"involvedObject.uid={uid},type=Warning"
        items: list[dict[str, Any]] = self._send("get", EVENTS, EVENTS.path(namespace), field_selector=about)["items"]
        return items

    def post_event(self, namespace: str, event: Object) -> None:
        """Adds an event."""
        self._send("post", EVENTS, EVENTS.path(namespace), body=event, field_manager=names.FIELD_MANAGER)

    def get_lease(self, namespace: str, name: str) -> Object | None:
        """The Lease, or None where it is not there."""
        try:
            return self._send("get", LEASES, LEASES.path(namespace, name))
        except Refused as refused:
            if refused.code == 404:
                return None
            raise

    def put_lease(self, lease: Object) -> Object:
        """The Lease as it is written: made where it has no resource version, else changed if it still has that one."""
        metadata = lease["metadata"]
        if "resourceVersion" not in metadata:
            return self._send("post", LEASES, LEASES.path(metadata["namespace"]), body=lease)
        return self._send("put", LEASES, LEASES.path(metadata["namespace"], metadata["name"]), body=lease)

    def _send(self, verb: str, kind: Kind, path: str, **options: Any) -> dict[str, Any]:
        try:
            response = self._dynamic.request(verb, path, serialize=False, _request_timeout=TIMEOUT_SECONDS, **options)
        except DynamicApiError as error:
            self._count(verb, kind.plural, str(error.status))
            raise Refused(int(error.status), _words(error)) from error
        except HTTPError as error:  # urllib3's own, which is no OSError
            raise ConnectionError(f"{verb} {path}: {error}") from error
        self._count(verb, kind.plural, str(response.status))
        answer: dict[str, Any] = json.loads(response.data)
        return answer


def connect(kubeconfig: Path | None, count: Count) -> Api:
    """The API server of the kubeconfig, or without one that of the pod's service account."""
    configuration = client.Configuration()
    if kubeconfig is not None:
        config.load_kube_config(str(kubeconfig), client_configuration=configuration)  # type: ignore[no-untyped-call]
    else:
        config.load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
    configuration.connection_pool_maxsize = CONNECTIONS
    configuration.retries = False
    return Api(client.ApiClient(configuration), count)


def _words(error: DynamicApiError) -> str:
    try:
        return str(json.loads(error.body or "")["message"])
    except (ValueError, KeyError, TypeError):
        return str(error.reason)
