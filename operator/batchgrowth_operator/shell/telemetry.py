"""The operator's metrics, made from the table in `batchgrowth.metrics`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from batchgrowth import names
from batchgrowth.conditions import CONDITIONS
from batchgrowth.metrics import OPERATOR, Metric
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from batchgrowth_operator.decide.decision import Decision
from batchgrowth_operator.seen.observed import Object, Observed, annotations_of, ref_of
from batchgrowth_operator.server.store import Key

STATUSES = ("True", "False", "Unknown")
CONDITION = "batchgrowth_operator_job_condition"


class Conditions(Collector):
    """The conditions of all jobs as one metric, whose series are made when they are asked for.

    There are two dozen for each job: as objects of prometheus_client they take more memory than all else of it.
    """

    def __init__(self, metric: Metric) -> None:
        self._metric = metric
        self._states: dict[Key, tuple[int, ...]] = {}  # an index of STATUSES for each of CONDITIONS

    def set(self, key: Key, said: Mapping[str, str]) -> None:
        """What the job's conditions are; those that were never said are unknown."""
        self._states[key] = tuple(STATUSES.index(said.get(kind, "Unknown")) for kind in CONDITIONS)

    def remove(self, key: Key) -> None:
        """The job is gone."""
        del self._states[key]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One gauge of 0 and 1 for each job, condition and status."""
        family = GaugeMetricFamily(self._metric.name, self._metric.help, labels=self._metric.labels)
        for key, states in list(self._states.items()):
            for kind, state in zip(CONDITIONS, states, strict=True):
                for index, status in enumerate(STATUSES):
                    family.add_metric([*key, kind, status], float(index == state))
        yield family


class Telemetry:
    """Every metric of the operator, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._metrics: dict[str, Any] = {metric.name: _made(metric, self.registry) for metric in OPERATOR}
        self._states: dict[Key, str] = {}
        self._resizes: dict[Key, str] = {}

    def request(self, verb: str, resource: str, code: str) -> None:
        """A request to the API server was answered."""
        self._metrics["batchgrowth_operator_api_requests_total"].labels(verb, resource, code).inc()

    def reconciled(self, result: str, seconds: float) -> None:
        """A pass is over."""
        self._metrics["batchgrowth_operator_reconciles_total"].labels(result).inc()
        self._metrics["batchgrowth_operator_reconcile_duration_seconds"].observe(seconds)

    def decided(self, key: Key, seen: Observed, decision: Decision) -> None:
        """A decision is about to be carried out."""
        written = "written" if decision.status is not None else "unchanged"
        self._metrics["batchgrowth_operator_status_writes_total"].labels(written).inc()
        for manifest in decision.apply:
            found = seen.children.get(ref_of(manifest))
            if found is not None and _made_from(found) == _made_from(manifest):
                self._metrics["batchgrowth_operator_repairs_total"].labels(manifest["kind"]).inc()
        if decision.status is not None:
            self._status(key, decision.status)

    def forget(self, key: Key) -> None:
        """The job is gone, and its series with it."""
        if key in self._states:
            self._metrics[CONDITION].remove(key)
            self._count(key, None)

    def forget_all(self) -> None:
        """What is known of jobs is to be learned anew."""
        for key in list(self._states):
            self.forget(key)

    def _status(self, key: Key, status: dict[str, Any]) -> None:
        said = {condition["type"]: condition["status"] for condition in status["conditions"]}
        self._metrics[CONDITION].set(key, said)
        self._count(key, status["phase"])
        took, before = (status.get("workers") or {}).get("resizeSeconds"), self._resizes.get(key)
        if took is not None and took != before:
            self._resizes[key] = took
            self._metrics["batchgrowth_operator_workers_ready_duration_seconds"].labels("up").observe(float(took))

    def _count(self, key: Key, state: str | None) -> None:
        gauge = self._metrics["batchgrowth_operator_jobs"]
        if key in self._states:
            gauge.labels(self._states.pop(key)).dec()
        if state is None:
            self._resizes.pop(key, None)
        else:
            self._states[key] = state
            gauge.labels(state).inc()


def _made_from(body: Object) -> str | None:
    return annotations_of(body).get(names.MANIFEST)


def _made(metric: Metric, registry: CollectorRegistry) -> Counter | Gauge | Histogram | Conditions:
    if metric.name == CONDITION:
        conditions = Conditions(metric)
        registry.register(conditions)
        return conditions
    if metric.kind == "counter":
        return Counter(metric.name, metric.help, metric.labels, registry=registry)
    if metric.kind == "gauge":
        return Gauge(metric.name, metric.help, metric.labels, registry=registry)
    return Histogram(metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=registry)
