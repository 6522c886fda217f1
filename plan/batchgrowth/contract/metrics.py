"""Every metric of trainer and operator as data (name, meaning, unit, labels), and the figures of an exchange.

Metrics follow the conventions of Prometheus: base units, `_total` on counters, ratios from 0 to 1, timestamps instead
of ages. The number of a label's values must not grow with the length of a training, as updates, epochs or losses would.
A figure of an exchange is declared once: messages, reports, metrics and the job's status read it from here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

LARGEST = 2**53
"""The largest value of a figure that a report may give."""


def _total(description: str, *, part_of: str = "") -> Any:
    """Declare a count since the trainer's start; the counts of several updates are added."""
    return field(default=0, metadata={"description": description, "part_of": part_of})


def _last(description: str) -> Any:
    """Declare a value of the last update that had one; None if the exchange has no such value, or not yet."""
    return field(default=None, metadata={"description": description, "part_of": ""})


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFigures:
    """What an exchange did in some updates, or since the trainer's start; the CRD has these descriptions."""

    bytes_sent: int = _total("Bytes that the workers have sent each other since the trainer's start.")
    replica_distance: float | None = _last("Root mean square distance of the logical replicas from their mean.")
    compression_error: float | None = _last(
        "Norm of the error that exchange.compression adds to a gradient sum, or of what TopK leaves for later, "
        "relative to the norm of the sum."
    )
    largest_staleness: int | None = _last(
        "Most updates that the Downpour server made between a worker's fetch and its push, in the last round."
    )
    mean_staleness: float | None = _last("Mean number of these updates, in the last round.")
    backups: int = _total("Parts of updates that an idle worker repeated since the trainer's start.")
    backups_first: int = _total("Repeated parts whose backup came first.", part_of="backups")

    checks: int = _total("Checks in which the workers computed the same shard, since the trainer's start.")
    differences: int = _total("Checks that found a difference.", part_of="checks")
    checked_update: int | None = _last("Newest update after which a check found no difference.")

    @property
    def checks_passed(self) -> int:
        """Return the number of checks that found no difference."""
        return self.checks - self.differences

    @property
    def backups_second(self) -> int:
        """Return the number of repeated parts whose original came first."""
        return self.backups - self.backups_first

    def then(self, later: "ExchangeFigures") -> "ExchangeFigures":
        """Return these figures combined with later ones: totals are added, and later values replace earlier ones."""
        values: dict[str, Any] = {}
        for each in fields(self):
            before = getattr(self, each.name)
            after = getattr(later, each.name)
            if each.default is not None:  # a total, which begins at 0; a last value begins at None
                values[each.name] = before + after
            elif after is not None:
                values[each.name] = after
            else:
                values[each.name] = before
        return ExchangeFigures(**values)

    def known(self) -> dict[str, int | float]:
        """Return the figures that the exchange has, by name; a total of 0 is left out, together with its parts."""
        known: dict[str, int | float] = {}
        for each in fields(self):
            whole = each.metadata["part_of"] or each.name
            is_unused = each.default is not None and getattr(self, whole) == 0
            if not is_unused and getattr(self, each.name) is not None:
                known[each.name] = getattr(self, each.name)
        return known

    def is_possible(self) -> bool:
        """Return whether every value is from 0 to LARGEST, and no part larger than its whole."""
        for each in fields(self):
            value = getattr(self, each.name)
            most = getattr(self, each.metadata["part_of"] or each.name)
            if value is not None and not 0 <= value <= min(most, LARGEST):
                return False
        return True


Kind = Literal["counter", "gauge", "histogram"]

UPDATE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
PAUSE_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 15.0, 60.0, 300.0)
RECONCILE_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
"""Bounds of the buckets of histograms, in seconds."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` has no suffix of a histogram's series, such as `_bucket`; `unit` is a base unit or empty.

    `figures` maps each value of the label, or "" without labels, to the figure of an exchange that is shown there.
    A metric that `begins_later` is absent before its first value, since a 0 could be taken for one.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    begins_later: bool = False


TRAINER = (
    Metric(
        "batchgrowth_backups_total",
        "counter",
        "Parts of updates that an idle worker repeated with GatherScatter, by the copy that came first: backup or "
        "original.",
        labels=("first",),
        figures={"backup": "backups_first", "original": "backups_second"},
    ),
    Metric("batchgrowth_batch_size", "gauge", "Batch size of the current stage.", "examples"),
    Metric(
        "batchgrowth_checked_updates",
        "gauge",
        "Updates that were done at the newest check that found no difference between the workers.",
        figures={"": "checked_update"},
    ),
    Metric(
        "batchgrowth_checkpoint_duration_seconds",
        "histogram",
        "Checkpoint write time.",
        "seconds",
        buckets=PAUSE_BUCKETS,
    ),
    Metric("batchgrowth_checkpoint_failures_total", "counter", "Checkpoints that could not be written."),
    Metric(
        "batchgrowth_checkpoint_last_success_timestamp_seconds", "gauge", "Time of the newest checkpoint.", "seconds"
    ),
    Metric("batchgrowth_checkpoint_size_bytes", "gauge", "Size of the newest checkpoint.", "bytes", begins_later=True),
    Metric(
        "batchgrowth_checks_total",
        "counter",
        "Checks in which the workers computed the same shard, by whether they got the same bits: same or different.",
        labels=("result",),
        figures={"same": "checks_passed", "different": "differences"},
    ),
    Metric(
        "batchgrowth_compression_error_ratio",
        "gauge",
        "Norm of the error that exchange.compression adds to a gradient sum, or of what TopK leaves for later, "
        "relative to the norm of the sum; 0 with neither.",
        "ratio",
        figures={"": "compression_error"},
    ),
    Metric("batchgrowth_epochs", "gauge", "Epochs done, including the fraction of the current one."),
    Metric("batchgrowth_evaluation", "gauge", "Last value of each metric of the workload.", labels=("metric",)),
    Metric("batchgrowth_examples_total", "counter", "Examples used.", "examples"),
    Metric(
        "batchgrowth_exchange_bytes_total",
        "counter",
        "Bytes that the workers sent to each other.",
        "bytes",
        figures={"": "bytes_sent"},
    ),
    Metric(
        "batchgrowth_growth_quantity",
        "gauge",
        "Value that a measured growth rule measured at its last look; infinity if noise hides it.",
        labels=("quantity",),
    ),
    Metric("batchgrowth_last_progress_timestamp_seconds", "gauge", "Time of the last committed update.", "seconds"),
    Metric("batchgrowth_learning_rate", "gauge", "Learning rate of the last update.", begins_later=True),
    Metric("batchgrowth_loss", "gauge", "Training loss of the last update, per example.", begins_later=True),
    Metric("batchgrowth_progress_ratio", "gauge", "Share of the plan's updates that are done, from 0 to 1.", "ratio"),
    Metric("batchgrowth_recoveries_total", "counter", "Updates repeated because a worker was lost."),
    Metric(
        "batchgrowth_remaining_seconds",
        "gauge",
        "Time to the end of the run by the model of the forecast: expected, or an end of the interval that should "
        "contain 9 in 10 runs, low or high.",
        "seconds",
        labels=("bound",),
    ),
    Metric(
        "batchgrowth_replica_distance",
        "gauge",
        "Root mean square distance of the logical replicas from their mean; 0 with an exchange without replicas.",
        figures={"": "replica_distance"},
    ),
    Metric(
        "batchgrowth_resize_duration_seconds",
        "histogram",
        "Time for which training pauses while workers join or leave.",
        "seconds",
        labels=("direction",),
        buckets=PAUSE_BUCKETS,
    ),
    Metric("batchgrowth_stage", "gauge", "Index of the current stage, from 0."),
    Metric(
        "batchgrowth_staleness",
        "gauge",
        "Updates that the Downpour server made between a worker's fetch and its push, in the last round.",
        labels=("statistic",),
        figures={"largest": "largest_staleness", "mean": "mean_staleness"},
    ),
    Metric(
        "batchgrowth_update_duration_seconds",
        "histogram",
        "Time of one update, by part: compute, exchange or wait.",
        "seconds",
        labels=("part",),
        buckets=UPDATE_BUCKETS,
    ),
    Metric(
        "batchgrowth_update_forecast_seconds",
        "gauge",
        "Time of an update of the current stage by the model of the forecast, with its share of evaluations.",
        "seconds",
    ),
    Metric("batchgrowth_updates_total", "counter", "Updates committed."),
    Metric("batchgrowth_workers", "gauge", "Workers, by state: wanted by the plan, or training.", labels=("state",)),
)

OPERATOR = (
    Metric(
        "batchgrowth_operator_api_requests_total",
        "counter",
        "Requests to the API server. The code of a write into a namespace that is being deleted is terminating.",
        labels=("verb", "resource", "code"),
    ),
    Metric(
        "batchgrowth_operator_job_condition",
        "gauge",
        "1 for the status that a job's condition has now, 0 for its other statuses.",
        labels=("job_namespace", "job_name", "type", "status"),
    ),
    Metric(
        "batchgrowth_operator_job_progress_ratio",
        "gauge",
        "Share of the plan's updates that are done, from 0 to 1, as the job's status shows it; it stays after the end.",
        "ratio",
        labels=("job_namespace", "job_name"),
    ),
    Metric("batchgrowth_operator_jobs", "gauge", "Jobs, by state (the phase).", labels=("state",)),
    Metric(
        "batchgrowth_operator_reconcile_duration_seconds",
        "histogram",
        "Duration of one reconcile.",
        "seconds",
        buckets=RECONCILE_BUCKETS,
    ),
    Metric("batchgrowth_operator_reconciles_total", "counter", "Reconciles, by result.", labels=("result",)),
    Metric(
        "batchgrowth_operator_repairs_total", "counter", "Children repaired after a change by others.", "", ("kind",)
    ),
    Metric(
        "batchgrowth_operator_status_writes_total",
        "counter",
        "Status writes, by whether one was needed.",
        labels=("result",),
    ),
    Metric(
        "batchgrowth_operator_watch_broken",
        "gauge",
        "1 while the API server refuses the watch of a resource in a namespace, or sends no list; its jobs wait. The "
        "namespace is empty if the watch is of the whole cluster; no job is decided on meanwhile.",
        labels=("watched_namespace", "resource"),
    ),
    Metric(
        "batchgrowth_operator_workers_ready_duration_seconds",
        "histogram",
        "Time from the request of workers until all have joined.",
        "seconds",
        labels=("direction",),
        buckets=PAUSE_BUCKETS,
    ),
)

METRICS = TRAINER + OPERATOR
BY_NAME = {metric.name: metric for metric in METRICS}
