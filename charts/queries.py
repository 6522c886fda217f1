"""The queries of the dashboards: PromQL over the metrics of `batchgrowth.contract.metrics`."""

from __future__ import annotations

from batchgrowth import names

from charts.panels import Query

JOB = names.JOB_LABEL.replace(".", "_").replace("/", "_")
"""Prometheus' label for the pod label with the job's name."""
OF_THE_JOB = f'namespace="$namespace", {JOB}="$job"'


def latest(metric: str, /, *by: str, **labels: str) -> str:
    """Return the largest value over the job's trainers: for a while Prometheus also has the series of a lost one."""
    return f"max{_by(by)} ({metric}{_matching(labels)})"


def progress() -> str:
    """Return the trainer's progress and, once it has ended, the operator's: nothing scrapes a trainer's last update."""
    of_the_status = 'batchgrowth_operator_job_progress_ratio{job_namespace="$namespace", job_name="$job"}'
    return f"max (batchgrowth_progress_ratio{{{OF_THE_JOB}}} or {of_the_status})"


def age(metric: str) -> str:
    """Seconds since the timestamp in a metric; no series while it is 0."""
    return f"time() - ({latest(metric)} > 0)"


def pace(metric: str, *by: str, over: tuple[str, ...] = ()) -> str:
    """Growth of a counter per second, with the sum over the labels `over`.

    Each pod counts once: the monitors of two releases may scrape the same one.
    """
    of_a_pod = f"max{_by((*by, *over, 'pod'))} (rate({metric}{_matching({})}[$__rate_interval]))"
    return f"sum{_by(by)} ({of_a_pod})"


def quantile(metric: str, part: float, *by: str) -> str:
    """Return a quantile over the histogram's lifetime: its events are too rare for a rate window."""
    return f"histogram_quantile({part}, sum{_by(('le', *by))} ({metric}_bucket{_matching({})}))"


def mean(metric: str, *by: str) -> str:
    """Return a histogram's mean over the rate window."""
    return f"{pace(metric + '_sum', *by)} / {pace(metric + '_count', *by)}"


def _by(labels: tuple[str, ...]) -> str:
    return f" by ({', '.join(labels)})" if labels else ""


def _matching(labels: dict[str, str]) -> str:
    more = [f'{name}{condition}"' for name, condition in labels.items()]
    return "{" + ", ".join([OF_THE_JOB, *more]) + "}"


def quantiles(metric: str, by: str = "") -> tuple[Query, ...]:
    """Median, 95th and 99th percentile."""
    legend = f"{{{{{by}}}}} " if by else ""
    return tuple(
        Query(quantile(metric, part, *filter(None, [by])), f"{legend}p{part * 100:.0f}") for part in (0.5, 0.95, 0.99)
    )
