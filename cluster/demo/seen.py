"""What there is to see of a job: its status, and the events about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3
from batchgrowth.crd import GROUP, PLURAL, VERSION
from batchgrowth.manifest import read_manifest
from batchgrowth.plan import Plan, make_plan
from batchgrowth.spec.job import API_VERSION, KIND
from batchgrowth.status import JobStatus
from kubernetes import client, config

PATIENCE: dict[str, Any] = {"_request_timeout": 5}  # seconds


@dataclass(frozen=True, slots=True)
class Event:
    """One event about the job."""

    at: datetime
    reason: str
    message: str
    warning: bool


@dataclass(frozen=True, slots=True)
class Seen:
    """A job as it is now; `events` has the oldest first."""

    name: str
    namespace: str
    uid: str
    applied: datetime
    plan: Plan
    status: JobStatus
    events: tuple[Event, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in {"Succeeded", "Failed"}

    @property
    def ended(self) -> datetime | None:
        """When it was over, or nothing while it is not."""
        return None if self.status.completion_time is None else moment(self.status.completion_time)


class Reader:
    """Asks the API server that a kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        self._api = config.new_client_from_config(str(kubeconfig))  # type: ignore[no-untyped-call]

    @property
    def server(self) -> str:
        """The API server's address."""
        return str(self._api.configuration.host)

    def look(self, name: str, namespace: str) -> Seen | None:
        """The job, or nothing where there is none of that name; OSError while nobody answers."""
        place = (GROUP, VERSION, namespace, PLURAL, name)
        about = f"involvedObject.kind={KIND},involvedObject.name={name}"
        try:
            job: Any = client.CustomObjectsApi(self._api).get_namespaced_custom_object(*place, **PATIENCE)
            events: Any = client.CoreV1Api(self._api).list_namespaced_event(
                namespace, field_selector=about, _preload_content=False, **PATIENCE
            )
        except client.ApiException as error:
            if error.status == HTTPStatus.NOT_FOUND:
                return None
            raise ConnectionError(f"the API server says {error.status} {error.reason}") from error
        except urllib3.exceptions.HTTPError as error:
            raise ConnectionError("the API server does not answer") from error
        return seen(job, json.loads(events.data)["items"])


def seen(job: dict[str, Any], events: list[dict[str, Any]]) -> Seen:
    """The job of an answer of the API server, with those events that are about it and not about an earlier one."""
    about = job["metadata"]
    manifest = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": about["name"]}, "spec": job["spec"]}
    own = [_event(each) for each in events if each["involvedObject"].get("uid") == about["uid"]]
    return Seen(
        name=about["name"],
        namespace=about["namespace"],
        uid=about["uid"],
        applied=moment(about["creationTimestamp"]),
        plan=make_plan(read_manifest(json.dumps(manifest)).spec),
        status=JobStatus.model_validate(job.get("status") or {}),
        events=tuple(sorted(own, key=lambda event: event.at)),
    )


def moment(stamp: str) -> datetime:
    """The point in time of an RFC 3339 text."""
    return datetime.fromisoformat(stamp)


def now() -> datetime:
    """The present, on this machine's clock; a cluster's may differ a little."""
    return datetime.now(UTC)


def _event(body: dict[str, Any]) -> Event:
    series = body.get("series") or {}
    stamp = series.get("lastObservedTime") or body.get("lastTimestamp") or body.get("eventTime")
    return Event(
        at=moment(stamp or body["metadata"]["creationTimestamp"]),
        reason=body.get("reason") or "",
        message=body.get("message") or "",
        warning=body.get("type") == "Warning",
    )
