"""One pass of a job: observe it, decide what to write, write it, and say when to look again."""

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from batchgrowth.errors import redacted

from batchgrowth_operator.api.apply import Outdated, Writer
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.api.client import Refused
from batchgrowth_operator.api.observe import Observer
from batchgrowth_operator.children.dask_cluster import seconds_to_release
from batchgrowth_operator.job.announcements import heading, taken_up
from batchgrowth_operator.job.reconcile import reconcile
from batchgrowth_operator.loop.metrics import OperatorMetrics
from batchgrowth_operator.loop.queue import DEBOUNCE_SECONDS, PassResult, ProgressRate
from batchgrowth_operator.seen.observed import Failure, Object, operator_class_of, stored_status
from batchgrowth_operator.seen.refused_objects import is_of_dying_namespace

BLIND_SECONDS = 1.0
"""Time between two looks at whether the watches of a job's namespace work again."""
OUTDATED_SECONDS = 0.2
"""Delay of the pass that follows an outdated one, if the pass before that was not outdated."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Makes passes of jobs with this `operator_class`, and ignores jobs of other classes."""

    observer: Observer
    writer: Writer
    rate: ProgressRate
    metrics: OperatorMetrics
    operator_class: str = ""
    is_blind: Callable[[str], bool] = lambda _: False
    """Returns whether a watch in that namespace is broken."""
    _known: set[Key] = field(default_factory=set)
    """Jobs that this process has taken up."""

    async def make_pass(self, key: Key, failures: tuple[Failure, ...]) -> PassResult:
        """Make a pass of the job and count it. After any failure, another pass follows after a back-off.

        `failures` are the writes that the API server refused the last pass.
        """
        began = time.monotonic()
        label = "done"
        try:
            result = await self._run(key, failures)
        except Outdated:
            log.debug("%s/%s: the job or a child changed during the pass, which starts over", *key)
            label = "outdated"
            result = PassResult(failures=failures, requeue_after_seconds=OUTDATED_SECONDS, is_outdated=True)
        except (Refused, OSError) as error:
            log.warning("%s/%s: a request to the API server failed: %s", *key, error)
            label = "refused"
            result = PassResult(failures=failures, backs_off=True)
        except Exception:
            log.exception("%s/%s: the pass failed", *key)
            label = "failed"
            result = PassResult(failures=failures, backs_off=True)
        self.metrics.reconciled(label, time.monotonic() - began)
        return result

    async def _run(self, key: Key, failures: tuple[Failure, ...]) -> PassResult:
        """Observe the job, decide what to write, and write it. Raises what requests to the API server raise."""
        if self.is_blind(key.namespace):
            # The store could lack half of the objects. A log line and a metric name the watch.
            return PassResult(failures=failures, requeue_after_seconds=BLIND_SECONDS)
        # Before the job is observed, so that this operator reads no Secret of another's job.
        job = self.observer.store.job(key)
        if job is not None and self._is_of_another(key, job):
            return PassResult()
        seen = await self.observer.observe(key, failures)
        if seen is None:
            self._leave(key, "the job is gone")
            self.writer.poster.forget(key)
            return await self._release(key)
        if self._is_of_another(key, seen.job):  # by now
            return PassResult()
        if key not in self._known:
            self._known.add(key)
            log.info("%s: %s", heading(seen), taken_up(stored_status(seen)))

        trains = seen.cluster is not None
        writes = reconcile(seen, self.rate.defaults_for(key, trains=trains))
        requeue = min(self.observer.resync_seconds(key), writes.requeue_after_seconds or math.inf)
        self.metrics.decided(key, seen, writes)
        # Nothing is tried again in a namespace that is being deleted, so no later refusal would tell of it.
        lasting = tuple(filter(is_of_dying_namespace, seen.failures))
        if writes.is_empty:
            self.observer.remember(key, writes.put_backs)
            return PassResult(failures=lasting, requeue_after_seconds=requeue)

        # What was decided is written even if the operator stops meanwhile and cancels this queue.
        refused = await asyncio.shield(asyncio.to_thread(self.writer.carry_out, seen, writes))
        for failure in refused:
            log.warning("%s: the API server refuses %s/%s: %s", heading(seen), *failure.ref, redacted(failure.message))
        self.observer.remember(key, writes.put_backs, refused)
        if refused:
            return PassResult(failures=refused, backs_off=True)
        if lasting:
            return PassResult(failures=lasting, requeue_after_seconds=requeue)
        if failures:  # the status that was just written still tells of them
            return PassResult(requeue_after_seconds=DEBOUNCE_SECONDS)
        return PassResult(requeue_after_seconds=requeue)

    async def _release(self, key: Key) -> PassResult:
        """Release the DaskCluster that the job has left behind, once it has stayed for too long."""
        cluster = self.observer.left_cluster(key)
        if cluster is None:
            return PassResult(gone=True)
        seconds = seconds_to_release(cluster, self.observer.api.clock.now())
        if seconds is None:
            return PassResult(gone=True)
        if seconds > 0:
            return PassResult(requeue_after_seconds=seconds)
        await asyncio.to_thread(self.writer.release, key, cluster)
        return PassResult(gone=True)

    def _is_of_another(self, key: Key, job: Object) -> bool:
        """Return whether another operator serves the job; if so, forget it."""
        given = operator_class_of(job)
        if given == self.operator_class:
            return False
        self._leave(key, f'left to the operator of class "{given}"')
        return True

    def _leave(self, key: Key, why: str) -> None:
        """Forget a job that this operator no longer serves."""
        if key in self._known:
            self._known.discard(key)
            log.info("%s/%s: %s", *key, why)
        self.metrics.forget(key)
        self.rate.forget(key)
