"""The operator's metrics, made from the table in `batchgrowth.contract.metrics`."""

from collections.abc import Iterator, Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.contract.metrics import BY_NAME, OPERATOR, Metric
from batchgrowth.contract.status import CONDITIONS, RESTATED
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.job.reconcile import Writes
from batchgrowth_operator.seen.observed import Object, Observed, annotations_of, ref_of, stored_status

SHOWN = tuple(kind for kind in CONDITIONS if kind not in RESTATED)
STATUSES = ("True", "False", "Unknown")
CONDITION = "batchgrowth_operator_job_condition"
PROGRESS = "batchgrowth_operator_job_progress_ratio"


class Jobs(Collector):
    """The metrics of each job, from its status; their series exist only while Prometheus scrapes them.

    As prometheus_client objects, a job's two dozen series would take more memory than everything else about it.
    """

    def __init__(self, conditions: Metric, progress: Metric) -> None:
        self._metrics = (conditions, progress)
        self._states: dict[Key, tuple[tuple[int, ...], int | None]] = {}
        # for each job an index of STATUSES for each of SHOWN, and the progress in percent, if it is known

    def set(self, key: Key, status: Mapping[str, Any]) -> None:
        """Set what the job's status shows; a missing condition is Unknown, and unknown progress has no series."""
        statuses = {condition["type"]: condition["status"] for condition in status["conditions"]}
        shown = tuple(STATUSES.index(statuses.get(kind, "Unknown")) for kind in SHOWN)
        self._states[key] = shown, (status.get("trainerStatus") or {}).get("progressPercentage")

    def remove(self, key: Key) -> None:
        """Remove the job's series."""
        del self._states[key]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield a gauge, 0 or 1, for each job, condition and status, and a gauge of each job's progress."""
        conditions, progress = (
            GaugeMetricFamily(metric.name, metric.help, labels=metric.labels) for metric in self._metrics
        )
        # A copy, because passes go on while the thread of the metrics endpoint reads.
        for key, (shown, percentage) in list(self._states.items()):
            for kind, state in zip(SHOWN, shown, strict=True):
                for index, status in enumerate(STATUSES):
                    conditions.add_metric([*key, kind, status], float(index == state))
            if percentage is not None:
                progress.add_metric(key, percentage / 100)
        yield conditions
        yield progress


class OperatorMetrics:
    """All metrics of the operator, in their own registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._jobs = Jobs(BY_NAME[CONDITION], BY_NAME[PROGRESS])
        self.registry.register(self._jobs)
        self._metrics: dict[str, Any] = {
            metric.name: _collector(metric, self.registry)
            for metric in OPERATOR
            if metric.name not in (CONDITION, PROGRESS)
        }
        self._states: dict[Key, str] = {}
        self._resizes: dict[Key, str | None] = {}

    def request(self, verb: str, resource: str, code: str) -> None:
        """Count a request that the API server answered."""
        self._metrics["batchgrowth_operator_api_requests_total"].labels(verb, resource, code).inc()

    def watch_broken(self, namespace: str, resource: str, is_broken: bool) -> None:
        """Set whether the watch of that resource in that namespace is broken."""
        self._metrics["batchgrowth_operator_watch_broken"].labels(namespace, resource).set(float(is_broken))

    def reconciled(self, result: str, seconds: float) -> None:
        """Record the result and duration of a pass."""
        self._metrics["batchgrowth_operator_reconciles_total"].labels(result).inc()
        self._metrics["batchgrowth_operator_reconcile_duration_seconds"].observe(seconds)

    def decided(self, key: Key, seen: Observed, writes: Writes) -> None:
        """Count the writes of a pass, which are about to be carried out."""
        written = "written" if writes.status is not None else "unchanged"
        self._metrics["batchgrowth_operator_status_writes_total"].labels(written).inc()
        for manifest in writes.apply:
            found = seen.children.get(ref_of(manifest))
            if found is not None and _digest(found) == _digest(manifest):
                self._metrics["batchgrowth_operator_repairs_total"].labels(manifest["kind"]).inc()
        if key not in self._states:
            # A job that this process has not seen before is shown as its stored status says, because the status may
            # never be written again. An earlier process has observed the resize in it.
            stored = stored_status(seen)
            if stored.conditions:
                status = stored.to_json()
                self._resizes[key] = _resize_seconds(status)
                self._status(key, status)
        if writes.status is not None:
            self._status(key, writes.status)

    def forget(self, key: Key) -> None:
        """Remove the series of a job that is gone."""
        if key in self._states:
            self._jobs.remove(key)
            self._count(key, None)

    def forget_all(self) -> None:
        """Remove the series of all jobs, and of all watches that were broken."""
        for key in list(self._states):
            self.forget(key)
        self._metrics["batchgrowth_operator_watch_broken"].clear()

    def _status(self, key: Key, status: dict[str, Any]) -> None:
        self._jobs.set(key, status)
        self._count(key, status["phase"])
        seconds = _resize_seconds(status)
        if seconds is not None and seconds != self._resizes.get(key):
            self._resizes[key] = seconds
            self._metrics["batchgrowth_operator_workers_ready_duration_seconds"].labels("up").observe(float(seconds))

    def _count(self, key: Key, state: str | None) -> None:
        gauge = self._metrics["batchgrowth_operator_jobs"]
        if key in self._states:
            gauge.labels(self._states.pop(key)).dec()
        if state is None:
            self._resizes.pop(key, None)
        else:
            self._states[key] = state
            gauge.labels(state).inc()


def _resize_seconds(status: Mapping[str, Any]) -> str | None:
    return (status.get("workers") or {}).get("resizeSeconds")


def _digest(body: Object) -> str | None:
    return annotations_of(body).get(names.MANIFEST)


def _collector(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram:
    if metric.kind == "histogram":
        return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
    simple = Counter if metric.kind == "counter" else Gauge
    return simple(metric.name, metric.help, metric.labels, registry=registry)
