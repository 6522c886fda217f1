"""The problems that pods and their events report, in messages that stay the same while the problem does."""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from batchgrowth_operator.seen.observed import Object
from batchgrowth_operator.seen.timestamps import seconds_since
from batchgrowth_operator.seen.trainer_outcome import truncated

EVENT_LIFE_SECONDS = 180
"""Age beyond which an event is ignored; a kubelet repeats a failed mount every two minutes."""
RESTARTS_OF_THE_BROKEN = 2
"""Restarts after which a container counts as broken."""

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
_EVENTS = {
    "FailedAttachVolume": "PodBroken",
    "FailedCreate": "PodsRefused",
    "FailedCreatePodSandBox": "PodBroken",
    "FailedMount": "PodBroken",
    "FailedToRetrieveImagePullSecret": "ImagePullFailed",
    "ProvisioningFailed": "VolumePending",
}
_MISSING = re.compile(r'\b(persistentvolumeclaim|secret|configmap|serviceaccount) "([^"]+)" not found', re.IGNORECASE)
_UNBOUND = re.compile("unbound immediate PersistentVolumeClaims|available persistent volumes to bind")
_PULL_SECRET = re.compile(r"image pull secrets \(([^)]+)\)")
_POD_NAME = re.compile(r'pods? "([^"]+)-[a-z0-9]{5}"')
REMEDIES = {
    "ImagePullFailed": "Give an image that the nodes can pull: spec.image, spec.imagePullSecrets.",
    "QuotaExceeded": "Raise the quota, or request less: spec.workers.maximum, the template's resources.",
    "Unschedulable": "Add a node that fits, or request less: spec.workers.maximum, the template.",
    "VolumePending": "`kubectl describe persistentvolumeclaims` says what provides it.",
}


class Problem(NamedTuple):
    """A condition's reason and message."""

    reason: str
    message: str


def pod_problems(pod: Object) -> Iterator[Problem]:
    """The problems in the pod's own status."""
    name = pod["metadata"]["name"]
    for condition in status_list(pod, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield _problem("Unschedulable", name, str(condition.get("message", "")))
    for container in [*status_list(pod, "initContainerStatuses"), *status_list(pod, "containerStatuses")]:
        yield from _container_problems(name, container)


def event_problems(events: tuple[Object, ...], name: str, now: datetime) -> Iterator[Problem]:
    """The problem in the newest event about the object of that name; none if the event is too old."""
    about = [
        event
        for event in events
        if event["involvedObject"].get("name") == name
        and event.get("reason") in _EVENTS
        and seconds_since(_time(event), now) < EVENT_LIFE_SECONDS
    ]
    for event in sorted(about, key=_time, reverse=True)[:1]:
        text = str(event.get("message", "")).removeprefix("Error creating: ")
        if event["reason"] == "FailedCreate":
            yield refusal(text)
        else:
            yield _problem(_EVENTS[event["reason"]], name, text)


def refusal(text: str) -> Problem:
    """The problem in the API server's refusal of a pod, without the pod's name, which changes with each retry."""
    message = _POD_NAME.sub(r"pods \1-…", text)
    return _problem("QuotaExceeded" if "exceeded quota" in message else "PodsRefused", "", message)


def status_list(body: Object | None, field: str) -> list[dict[str, Any]]:
    """A list in the object's status; empty if it is not there."""
    return ((body or {}).get("status") or {}).get(field) or []


def replica_failure(deployment: Object | None) -> dict[str, Any] | None:
    """The condition by which a Deployment reports that its pods are refused; None if they are not."""
    return next(
        (
            condition
            for condition in status_list(deployment, "conditions")
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        ),
        None,
    )


def _container_problems(pod: str, container: Object) -> Iterator[Problem]:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason")
    crash = _crash(container)
    if reason in _PULL:
        message = str(waiting.get("message") or reason)
        # The part after "ErrImagePull: " stays the same while the kubelet backs off.
        yield _problem("ImagePullFailed", pod, message.partition("ErrImagePull: ")[2] or message)
    elif crash is not None and not container.get("ready"):
        yield _problem("PodBroken", pod, crash)
    elif reason in _BROKEN:
        yield _problem("PodBroken", pod, f"{reason}: {waiting.get('message', '')}")


def _crash(container: Object) -> str | None:
    """How a container ended that keeps crashing; None if it does not.

    The text is the same in all three states of a crash loop: waiting, running and terminated.
    """
    waits = ((container.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    if not waits and container.get("restartCount", 0) < RESTARTS_OF_THE_BROKEN:
        return None
    states = ((container.get(field) or {}).get("terminated") for field in ("state", "lastState"))
    last = next(filter(None, states), None)
    if last is None or not last.get("exitCode"):
        return None
    output = str(last.get("message") or "").strip()
    code = f"container {container.get('name')} ends with exit code {last['exitCode']} ({last.get('reason')})"
    return f"{code}: {output}" if output else f"{code}."


def _problem(reason: str, pod: str, text: str) -> Problem:
    message = f"{pod}: {text}" if pod else text
    missing, secret = _MISSING.search(text), _PULL_SECRET.search(text)
    if missing is not None or secret is not None:
        kind, name = missing.groups() if missing is not None else ("secret", secret[1] if secret else "")
        return Problem(
            "ReferenceMissing", _with_remedy(message, f"Create the {kind} {name}, or remove it from the job.")
        )
    if reason == "Unschedulable" and _UNBOUND.search(text):
        reason = "VolumePending"
    return Problem(reason, _with_remedy(message, REMEDIES.get(reason, "")))


def _with_remedy(text: str, remedy: str) -> str:
    end = "" if not remedy or text.endswith((".", "!")) else "."
    return truncated(f"{text}{end} {remedy}".strip())


def _time(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
