"""When Kubernetes is asked to try again to make pods that it was refused.

It tries more and more rarely by itself, up to a quarter of an hour apart, and so late it would find that a quota was
raised. Whoever changes the Deployment makes it try at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from batchgrowth import names

from batchgrowth_operator.decide.decision import Manifest
from batchgrowth_operator.seen.moments import moment, stamp
from batchgrowth_operator.seen.observed import Object, Observed, annotations_of
from batchgrowth_operator.seen.scheduler import deployment_of
from batchgrowth_operator.seen.words import replica_failure

RETRY_SECONDS = 30


def retried(deployment: Object | None, now: datetime) -> str | None:
    """When it was last asked, or is to be asked now; None where pods are not refused, or only just were."""
    since = _refused_since(deployment, now)
    if since is None or _window(now) <= _window(since):
        return None
    return stamp(datetime.fromtimestamp(_window(now) * RETRY_SECONDS, UTC))


def scheduler_asked_again(seen: Observed) -> Iterator[Manifest]:
    """The annotation alone, for the scheduler's Deployment is the Dask operator's."""
    found = deployment_of(seen)
    asked = retried(found, seen.now)
    if found is not None and asked is not None and annotations_of(found).get(names.RETRIED) != asked:
        metadata = {"name": names.scheduler(seen.name), "namespace": seen.namespace}
        yield {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": metadata | {"annotations": {names.RETRIED: asked}},
        }


def seconds_to_a_retry(seen: Observed) -> float | None:
    """Seconds until Kubernetes is asked the next time; None where no pods are refused."""
    deployments = deployment_of(seen), seen.child("Deployment", names.workers(seen.name))
    if all(_refused_since(deployment, seen.now) is None for deployment in deployments):
        return None
    return RETRY_SECONDS - seen.now.timestamp() % RETRY_SECONDS


def _window(when: datetime) -> int:
    return int(when.timestamp() // RETRY_SECONDS)


def _refused_since(deployment: Object | None, now: datetime) -> datetime | None:
    failure = replica_failure(deployment)
    return None if failure is None else moment(str(failure.get("lastTransitionTime") or stamp(now)))
