"""When Kubernetes has to retry the creation of pods that the API server refused.

Its own back-off grows to a quarter of an hour, so it notices late that a quota was raised. A change of the Deployment
makes it retry at once.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from batchgrowth import names

from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.seen.observed import Object, Observed, annotations_of
from batchgrowth_operator.seen.problems import replica_failure
from batchgrowth_operator.seen.scheduler import deployment_of
from batchgrowth_operator.seen.timestamps import parse_timestamp, timestamp

RETRY_SECONDS = 30
"""Time between two retries, which start at multiples of it."""


def retry_annotation(deployment: Object | None, now: datetime) -> str | None:
    """The time of the latest retry, past or due; None if no pods are refused or the first retry is not due yet."""
    since = _refused_since(deployment, now)
    if since is None or _window(now) <= _window(since):
        return None
    return timestamp(datetime.fromtimestamp(_window(now) * RETRY_SECONDS, UTC))


def scheduler_retry(seen: Observed) -> Iterator[Manifest]:
    """The scheduler's Deployment with a new annotation and nothing else, since the Dask operator owns the rest."""
    found = deployment_of(seen)
    due = retry_annotation(found, seen.now)
    if found is not None and due is not None and annotations_of(found).get(names.RETRIED) != due:
        metadata = {"name": names.scheduler(seen.name), "namespace": seen.namespace}
        yield {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata | {"annotations": {names.RETRIED: due}},
        }


def seconds_until_retry(seen: Observed) -> float | None:
    """Seconds until the next retry; None if no pods are refused."""
    deployments = deployment_of(seen), seen.child("Deployment", names.workers(seen.name))
    if all(_refused_since(deployment, seen.now) is None for deployment in deployments):
        return None
    return RETRY_SECONDS - seen.now.timestamp() % RETRY_SECONDS


def _window(time: datetime) -> int:
    return int(time.timestamp() // RETRY_SECONDS)


def _refused_since(deployment: Object | None, now: datetime) -> datetime | None:
    failure = replica_failure(deployment)
    return None if failure is None else parse_timestamp(str(failure.get("lastTransitionTime") or timestamp(now)))
