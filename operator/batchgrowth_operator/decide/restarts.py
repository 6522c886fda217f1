"""Restarts of the trainer: bounds those that Kubernetes does not count, and shortens those that it delays.

A training that ended with exit code 75 may be restarted any number of times if it gets further, else
MOST_FRUITLESS_RETRIES times. The ended pods are the count, so it survives the operator; no clock is compared with
another.

Kubernetes waits before it makes a Job's next pod: 10 s, then twice as long each time, up to ten minutes, also for pods
that were evicted and with months between them. A Job that is made again starts at once.
"""

from batchgrowth.status import RetriesStatus

from batchgrowth_operator.seen.diagnosis import trainer_problem
from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.timestamps import seconds_since
from batchgrowth_operator.seen.trainer_outcome import Outcome, is_between_pods, last_exit, num_retries, truncated

MOST_FRUITLESS_RETRIES = 10
SHORTEST_LIFE_SECONDS = 30.0
"""Age from which a trainer's Job that waits is made again, so that a trainer that always fails does so slowly."""


def next_retries(seen: Observed, known: RetriesStatus | None, update: int) -> RetriesStatus:
    """What retries are counted from, now that `update` updates are done; an update that is repeated is no progress."""
    previous, ended = known or RetriesStatus(), num_retries(seen)
    if update > previous.update:
        return RetriesStatus(update=update, before=ended)
    return RetriesStatus(update=previous.update, before=min(previous.before, ended))  # a deleted Job's pods are gone


def fruitless(seen: Observed, since: RetriesStatus) -> Outcome | None:
    """The failure of a job whose trainer was retried too often since then; None if it may go on."""
    retries = _more_than(seen, since)
    if retries < MOST_FRUITLESS_RETRIES:
        return None
    text = f"The trainer ended {retries} times without getting past update {since.update:,}; last: {last_exit(seen)}"
    return Outcome(False, "RetriesFruitless", truncated(text))


def seconds_until_renewal(seen: Observed, since: RetriesStatus) -> float | None:
    """Seconds until the trainer's Job, which waits to make its next pod, should be made again; None if never.

    Its pods go with it, so not while they count retries since then, nor while the API server refuses new ones.
    """
    job = seen.trainer
    if job is None or _more_than(seen, since) or not is_between_pods(seen) or trainer_problem(seen) is not None:
        return None
    return max(0.0, SHORTEST_LIFE_SECONDS - seconds_since(job["metadata"].get("creationTimestamp"), seen.now))


def _more_than(seen: Observed, since: RetriesStatus) -> int:
    """The retries after those that a status counted."""
    return num_retries(seen) - since.before
