"""Looking at a job again and again until it is over."""

from __future__ import annotations

from time import sleep

from cluster.demo.seen import Reader, Seen
from cluster.demo.views import View
from cluster.errors import ClusterError

LOOK_EVERY_SECONDS = 0.5


def watched(reader: Reader, first: Seen, view: View) -> Seen:
    """The job once it has succeeded or failed.

    An API server that does not answer is waited for: the training goes on without it.
    ClusterError where the job is deleted, for then there is nothing to wait for.
    """
    last = first
    with view:
        view.show(last)
        while not last.is_over:
            sleep(LOOK_EVERY_SECONDS)
            try:
                found = reader.look(first.name, first.namespace)
            except ConnectionError as error:
                view.show(last, f"{error}; the training goes on, and so does this view when it does")
                continue
            if found is None or found.uid != first.uid:
                raise ClusterError(f"the job {first.name} was deleted; `make demo` begins again")
            last = found
            view.show(last)
    return last
