"""Bounds the restarts that Kubernetes does not count: those of a trainer that ended with exit code 75.

A training that gets further may be restarted any number of times, one that does not MOST_FRUITLESS_RETRIES times. The
ended pods are the count, so it survives the operator; no clock is compared with another.
"""

from batchgrowth.status import RetriesStatus

from batchgrowth_operator.seen.observed import Observed
from batchgrowth_operator.seen.trainer_outcome import Outcome, last_exit, num_retries, truncated

MOST_FRUITLESS_RETRIES = 10


def next_retries(seen: Observed, known: RetriesStatus | None, update: int) -> RetriesStatus:
    """What retries are counted from, now that `update` updates are done; an update that is repeated is no progress."""
    previous, ended = known or RetriesStatus(), num_retries(seen)
    if update > previous.update:
        return RetriesStatus(update=update, before=ended)
    return RetriesStatus(update=previous.update, before=min(previous.before, ended))  # a deleted Job's pods are gone


def fruitless(seen: Observed, since: RetriesStatus) -> Outcome | None:
    """The failure of a job whose trainer was retried too often since then; None if it may go on."""
    retries = num_retries(seen) - since.before
    if retries < MOST_FRUITLESS_RETRIES:
        return None
    text = f"The trainer ended {retries} times without getting past update {since.update:,}; last: {last_exit(seen)}"
    return Outcome(False, "RetriesFruitless", truncated(text))
