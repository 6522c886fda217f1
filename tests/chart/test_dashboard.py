"""The Grafana dashboard: it draws every metric of a job, and no unknown ones."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
from batchgrowth import names
from batchgrowth.contract.metrics import BY_NAME, TRAINER

from charts.folders import CHART
from cluster.build import built, silence
from cluster.prometheus import Prometheus
from cluster.recipe import PROMETHEUS

DASHBOARD = json.loads((CHART / "dashboards" / "job.json").read_text())
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
JOB = "batchgrowth_dev_job"
UNITS = {"percentunit", "none", "s", "suffix: examples/s", "Bps", "bytes"}
KINDS = {"stat", "gauge", "bargauge", "timeseries"}
Use = tuple[str, frozenset[str]]


def uses(prometheus: Prometheus, expression: str) -> list[Use]:
    """Returns each metric of the expression with the labels that it is matched or grouped by."""
    return list(_uses(prometheus.parsed(expression.replace("$__rate_interval", "1m")), frozenset()))


def _uses(node: Any, grouped: frozenset[str]) -> Iterator[Use]:
    if isinstance(node, list):
        for each in node:
            yield from _uses(each, grouped)
    elif isinstance(node, dict):
        if node["type"] in {"vectorSelector", "matrixSelector"}:
            yield node["name"], grouped | {matcher["name"] for matcher in node["matchers"]} - {"__name__"}
        grouped |= frozenset(node.get("grouping") or ())
        for part in ("args", "expr", "lhs", "rhs"):
            yield from _uses(node.get(part), grouped)


def labels_of(name: str) -> frozenset[str]:
    """Returns the labels of a series of this name; empty if no metric has it."""
    for suffix in ("_bucket", "_sum", "_count"):
        metric = BY_NAME.get(name.removesuffix(suffix))
        if name.endswith(suffix) and metric is not None and metric.kind == "histogram":
            more = {"le"} if suffix == "_bucket" else set()
            return job_labels(name) | {*metric.labels, *more}
    metric = BY_NAME.get(name)
    return job_labels(name) | {*metric.labels} if metric and metric.kind != "histogram" else frozenset()


def job_labels(name: str) -> frozenset[str]:
    """Returns the labels that select one job: of its trainer's pod, or those that the operator gives."""
    of_the_operator = name.startswith("batchgrowth_operator_")
    return frozenset({"job_namespace", "job_name"} if of_the_operator else {"namespace", JOB})


@pytest.mark.fault("F06")
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_every_expression_is_one(prometheus: Prometheus, expression: str) -> None:
    """Prometheus parses it; it uses metrics that exist by labels that they have, and selects one job."""
    found = uses(prometheus, expression)

    assert found
    for name, labels in found:
        assert labels - {"pod"} <= labels_of(name), (name, labels)
        assert job_labels(name) <= labels, (name, labels)
        assert ("le" in labels) is name.endswith("_bucket"), (name, labels)


@pytest.mark.fault("F06")
def test_a_prometheus_without_data_answers_every_panel(prometheus: Prometheus) -> None:
    """With nothing, and not with an error."""
    for expression in EXPRESSIONS:
        query = expression.replace("$__rate_interval", "1m").replace("$namespace", "default").replace("$job", "none")
        assert prometheus.over(query, 1_790_000_000, 1_790_000_060) == [], query


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_every_panel_says_what_it_shows(panel: dict[str, Any]) -> None:
    """Title, description and unit; a legend for every line; the data source of the choice."""
    assert panel["title"]
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["type"] in KINDS
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    for target in panel["targets"]:
        assert target["legendFormat"]
        assert target["instant"] is not target["range"]
        assert (panel["type"] == "timeseries") is target["range"]


def test_panels_lie_side_by_side() -> None:
    """On the grid of 24 columns, without overlaps, each with its own id and title."""
    cells = [
        (x, y)
        for panel in PANELS
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]

    assert len(cells) == len(set(cells))
    assert 24 > max(x for x, _ in cells)
    assert len(PANELS) == len({panel["id"] for panel in PANELS}) == len({panel["title"] for panel in PANELS})


def test_batch_and_workers_are_steps_on_one_time_axis(prometheus: Prometheus) -> None:
    """Milestones are visible: one panel has both, without slopes between values."""
    [panel] = [panel for panel in PANELS if panel["title"] == "Batch and workers"]
    metrics = {name for target in panel["targets"] for name, _ in uses(prometheus, target["expr"])}

    assert metrics == {"batchgrowth_batch_size", "batchgrowth_workers"}
    assert panel["fieldConfig"]["defaults"]["custom"]["lineInterpolation"] == "stepAfter"
    assert [override["matcher"]["options"] for override in panel["fieldConfig"]["overrides"]] == ["B"]


def test_every_metric_of_the_trainer_is_drawn(prometheus: Prometheus) -> None:
    drawn = {name for expression in EXPRESSIONS for name, _ in uses(prometheus, expression)}
    suffixes = ("", "_bucket", "_sum", "_count")
    missing = {metric.name for metric in TRAINER if not {metric.name + suffix for suffix in suffixes} & drawn}

    assert missing == set()


@pytest.mark.parametrize(
    ("title", "name", "labels"),
    [
        ("Examples per second", "batchgrowth_examples_total", ("",)),
        ("Bytes exchanged per second", "batchgrowth_exchange_bytes_total", ("",)),
        (
            "Time of an update by part",
            "batchgrowth_update_duration_seconds_sum",
            (', part="compute"', ', part="wait"'),
        ),
    ],
)
def test_a_trainer_that_two_releases_scrape_counts_once(
    prometheus: Prometheus, tmp_path: Path, title: str, name: str, labels: tuple[str, ...]
) -> None:
    """Each release has its PodMonitor, and one of them may watch all namespaces."""
    of_the_pod = f'namespace="team", {JOB}="digits", pod="trainer"'
    names = {name, name.replace("_sum", "_count")}
    series = [
        {"series": f'{one}{{{of_the_pod}, job="{release}"{label}}}', "values": "0+60x30"}
        for one in names
        for release in ("first", "second")
        for label in labels
    ]
    [expression] = [target["expr"] for panel in PANELS if panel["title"] == title for target in panel["targets"]]
    for variable, value in (("$__rate_interval", "5m"), ("$namespace", "team"), ("$job", "digits")):
        expression = expression.replace(variable, value)
    samples = [{"labels": f"{{{label.removeprefix(', ')}}}", "value": 1} for label in labels]
    asked = {"expr": expression, "eval_time": "20m", "exp_samples": samples}
    file = tmp_path / "test.yaml"
    file.write_text(json.dumps({"tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [asked]}]}))

    promtool = built(PROMETHEUS, silence) / "promtool"
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_variables_choose_source_namespace_and_job() -> None:
    """Their choices come from existing series."""
    source, namespace, job = DASHBOARD["templating"]["list"]

    assert (source["type"], source["query"]) == ("datasource", "prometheus")
    assert namespace["query"]["query"] == "label_values(batchgrowth_progress_ratio, namespace)"
    assert job["query"]["query"] == f'label_values(batchgrowth_progress_ratio{{namespace="$namespace"}}, {JOB})'
    assert [namespace["name"], job["name"]] == ["namespace", "job"]


def test_the_job_s_label_is_that_of_its_pods() -> None:
    """Prometheus replaces characters that its labels cannot have with underscores."""
    assert names.JOB_LABEL.replace(".", "_").replace("/", "_") == JOB


def test_the_schema_is_grafana_s_present_one() -> None:
    """Grafana 12 writes 41, and migrates older ones whenever they are opened."""
    assert 41 <= DASHBOARD["schemaVersion"]
    assert {"uid", "title", "tags", "time", "refresh", "templating", "panels"} <= DASHBOARD.keys()


def test_the_config_map_carries_it_whole(render: Callable[..., list[dict[str, Any]]]) -> None:
    """With the sidecar's label, and with Grafana's own braces unchanged."""
    [found] = [body for body in render() if body["metadata"]["name"] == "batchgrowth-dashboard"]

    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["batchgrowth-job.json"]) == DASHBOARD


@pytest.mark.parametrize("text", ["sum(rate(a[5m])", "rate(a)", "a[5 minutes]", "sum(a[5m])", "a{b=c}", ""])
def test_nonsense_is_refused(prometheus: Prometheus, text: str) -> None:
    """So a dashboard cannot have it."""
    with pytest.raises(HTTPError, match="400"):
        prometheus.parsed(text)


def test_an_expression_is_read(prometheus: Prometheus) -> None:
    """Labels are those matched, and those grouped by around the metric."""
    text = 'histogram_quantile(0.95, sum by (le, part) (rate(a_bucket{job="x"}[5m]))) / 2 - max(b)'

    assert uses(prometheus, text) == [("a_bucket", frozenset({"job", "le", "part"})), ("b", frozenset())]
