"""What pods and the events about them say of what holds them up, in words that stay the same while nothing changes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, NamedTuple

from batchgrowth_operator.seen.moments import seconds_since
from batchgrowth_operator.seen.observed import Object
from batchgrowth_operator.seen.trainer_outcome import shortened

EVENTS_COUNT_SECONDS = 180
"""Whoever is held up is complained of again within this time: a volume that cannot be mounted, every two minutes."""
RESTARTS_OF_THE_BROKEN = 2

_PULL = {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"}
_BROKEN = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}
_EVENTS = {
    "FailedAttachVolume": "PodBroken",
    "FailedCreate": "PodsRefused",
    "FailedCreatePodSandBox": "PodBroken",
    "FailedMount": "PodBroken",
    "FailedToRetrieveImagePullSecret": "ImagePullFailed",
}
_MISSING = re.compile(r'\b(persistentvolumeclaim|secret|configmap|serviceaccount) "([^"]+)" not found', re.IGNORECASE)
_PULL_SECRET = re.compile(r"image pull secrets \(([^)]+)\)")
_POD_NAME = re.compile(r'pods? "([^"]+)-[a-z0-9]{5}"')
ADVICE = {
    "ImagePullFailed": "Give an image that the nodes can pull: spec.image, spec.imagePullSecrets.",
    "QuotaExceeded": "Raise the quota, or ask for less: spec.workers.maximum, the template's resources.",
    "Unschedulable": "Add a node that fits, or ask for less: spec.workers.maximum, the template.",
}


class Trouble(NamedTuple):
    """A reason of a condition, and the words of whoever complained."""

    reason: str
    message: str


def of_pod(pod: Object) -> Iterator[Trouble]:
    """What the pod's own status complains of."""
    name = pod["metadata"]["name"]
    for condition in status_list(pod, "conditions"):
        if condition.get("type") == "PodScheduled" and condition.get("reason") == "Unschedulable":
            yield _sorted("Unschedulable", name, str(condition.get("message", "")))
    for container in [*status_list(pod, "initContainerStatuses"), *status_list(pod, "containerStatuses")]:
        yield from _of_container(name, container)


def of_events(events: tuple[Object, ...], name: str, now: datetime) -> Iterator[Trouble]:
    """What was last complained of about the object of that name, unless it is long ago."""
    about = [
        event
        for event in events
        if event["involvedObject"].get("name") == name
        and event.get("reason") in _EVENTS
        and seconds_since(_when(event), now) < EVENTS_COUNT_SECONDS
    ]
    for event in sorted(about, key=_when, reverse=True)[:1]:
        text = str(event.get("message", "")).removeprefix("Error creating: ")
        if event["reason"] == "FailedCreate":
            yield refusal(text)
        else:
            yield _sorted(_EVENTS[event["reason"]], name, text)


def refusal(text: str) -> Trouble:
    """What the API server said when it refused a pod; each try has another name for it."""
    words = _POD_NAME.sub(r"pods \1-…", text)
    return _sorted("QuotaExceeded" if "exceeded quota" in words else "PodsRefused", "", words)


def status_list(body: Object | None, field: str) -> list[dict[str, Any]]:
    """A list in the status of an object; empty where there is none."""
    return ((body or {}).get("status") or {}).get(field) or []


def replica_failure(deployment: Object | None) -> dict[str, Any] | None:
    """The condition that says that the API server refuses a Deployment's pods; None where it does not."""
    return next(
        (
            condition
            for condition in status_list(deployment, "conditions")
            if condition.get("type") == "ReplicaFailure" and condition.get("status") == "True"
        ),
        None,
    )


def _of_container(pod: str, container: Object) -> Iterator[Trouble]:
    waiting = (container.get("state") or {}).get("waiting") or {}
    reason = waiting.get("reason")
    ending = _ending(container)
    if reason in _PULL:
        said = str(waiting.get("message") or reason)
        yield _sorted(
            "ImagePullFailed", pod, said.partition("ErrImagePull: ")[2] or said
        )  # the same while it backs off
    elif ending is not None and not container.get("ready"):
        yield _sorted("PodBroken", pod, ending)
    elif reason in _BROKEN:
        yield _sorted("PodBroken", pod, f"{reason}: {waiting.get('message', '')}")


def _ending(container: Object) -> str | None:
    """How a container ended that is started again and again; None where that is not so.

    It is told whether the container waits, runs or has just ended: it goes through all three in turn.
    """
    waits = ((container.get("state") or {}).get("waiting") or {}).get("reason") == "CrashLoopBackOff"
    if not waits and container.get("restartCount", 0) < RESTARTS_OF_THE_BROKEN:
        return None
    states = ((container.get(field) or {}).get("terminated") for field in ("state", "lastState"))
    last = next(filter(None, states), None)
    if last is None or not last.get("exitCode"):
        return None
    said = str(last.get("message") or "").strip()
    code = f"container {container.get('name')} ends with exit code {last['exitCode']} ({last.get('reason')})"
    return f"{code}: {said}" if said else f"{code}."


def _sorted(reason: str, who: str, words: str) -> Trouble:
    told = f"{who}: {words}" if who else words
    missing, secret = _MISSING.search(words), _PULL_SECRET.search(words)
    if missing is not None or secret is not None:
        kind, name = missing.groups() if missing is not None else ("secret", secret[1] if secret else "")
        return Trouble("ReferenceMissing", _advised(told, f"Make the {kind} {name}, or take it out of the job."))
    return Trouble(reason, _advised(told, ADVICE.get(reason, "")))


def _advised(words: str, advice: str) -> str:
    end = "" if not advice or words.endswith((".", "!")) else "."
    return shortened(f"{words}{end} {advice}".strip())


def _when(event: Object) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")
