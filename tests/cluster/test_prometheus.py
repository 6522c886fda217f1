"""A real Prometheus beside the cluster, with the configuration that users get, and the dashboard's own queries."""

import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml
from real_job import RealJob, example_job, until

from charts.folders import CHART
from cluster.build import built, silence
from cluster.local import LocalCluster
from cluster.prometheus import CONFIGURATION, Prometheus
from cluster.recipe import PROMETHEUS

DASHBOARDS = sorted(CHART.glob("dashboards/*.json"))
SECONDS_BETWEEN_CHECKPOINTS = 5
EPOCHS = 60  # enough for the workers to join before the end
MakeJob = Callable[..., RealJob]


@pytest.fixture(scope="module")
def prometheus(local: LocalCluster) -> Iterator[Prometheus]:
    """It scrapes while the tests of this file run."""
    with Prometheus(local.kubeconfig) as server:
        yield server


def interval() -> int:
    """Seconds between scrapes."""
    text: str = yaml.safe_load(CONFIGURATION.read_text())["global"]["scrape_interval"]
    return int(text.removesuffix("s"))


def substituted(expression: str, job: RealJob) -> str:
    """The query as Grafana sends it, with its variables set and a rate over four scrapes."""
    values = {"$namespace": job.namespace, "$job": job.name, "$__rate_interval": f"{4 * interval()}s"}
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def numbers(prometheus: Prometheus, query: str, began: float, ended: float) -> list[float]:
    """Returns every finite value of a range query."""
    found = prometheus.over(query, began, ended)
    values = [float(value) for series in found for _, value in series["values"]]
    return [value for value in values if math.isfinite(value)]


def scraped(prometheus: Prometheus, namespace: str) -> str:
    """Returns the scrape address of the namespace's one target once it is up."""

    def up() -> str | None:
        found = [each for each in prometheus.targets() if each["labels"].get("namespace") == namespace]
        assert len(found) <= 1, found
        return next((str(each["scrapeUrl"]) for each in found if each["health"] == "up"), None)

    address: str = until(f"a pod of {namespace} is scraped", up, 60, lambda: json.dumps(prometheus.targets(), indent=1))
    return address


def healths(prometheus: Prometheus) -> set[str]:
    """Returns the health of the rules once each was evaluated: a group's first turn comes anywhere in its interval."""

    def known() -> set[str] | None:
        found = {str(rule["health"]) for rule in prometheus.rules()}
        return None if "unknown" in found else found

    found: set[str] = until("every rule was evaluated", known, 60, lambda: json.dumps(prometheus.rules(), indent=1))
    return found


def linted(address: str) -> str:
    """Returns the findings of Prometheus' linter on the metrics at an address."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        text: bytes = answer.read()
    promtool = built(PROMETHEUS, silence) / "promtool"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    return (done.stdout + done.stderr).decode()


def panels() -> list[tuple[str, dict[str, Any]]]:
    """Returns every query of the dashboards with its panel's title."""
    dashboards = [json.loads(dashboard.read_text()) for dashboard in DASHBOARDS]
    found = [
        (panel["title"], target)
        for dashboard in dashboards
        for panel in dashboard["panels"]
        for target in panel["targets"]
    ]
    assert found
    return found


def unanswered(prometheus: Prometheus, job: RealJob, began: float, ended: float) -> list[tuple[str, str]]:
    """Returns the panels and queries of the dashboards without data in that time."""
    return [
        (title, target["expr"])
        for title, target in panels()
        if not numbers(prometheus, substituted(target["expr"], job), began, ended)
    ]


@pytest.mark.fault("F06", "F07")
def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus, job: MakeJob) -> None:
    """After a measured job with checkpoints every line of every panel has data, and the variables offer the job.

    No alert has fired.
    """
    manifest = example_job(epochs=EPOCHS, checkpoint={"everySeconds": SECONDS_BETWEEN_CHECKPOINTS})
    manifest["spec"]["batch"]["growth"] = {"type": "LossRatio"}
    began = time.time()
    digits = job(manifest)
    digits.reaches(1)

    assert "" == linted(scraped(prometheus, digits.namespace))
    status, ended = digits.succeeds(), time.time()

    (progress,) = (target["expr"] for title, target in panels() if title == "Progress")
    until(
        "the dashboard shows that the job is done",
        lambda: 1.0 in numbers(prometheus, substituted(progress, digits), ended, time.time()),
        4 * interval() + 60,
        lambda: json.dumps(prometheus.over(substituted(progress, digits), began, time.time())),
    )
    assert [] == unanswered(prometheus, digits, began, ended)
    mine = {"namespace": digits.namespace, "batchgrowth_dev_job": digits.name}
    offered = prometheus.over("count by (namespace, batchgrowth_dev_job) (batchgrowth_progress_ratio)", began, ended)
    assert mine in [each["metric"] for each in offered]
    batches = numbers(prometheus, substituted("batchgrowth_batch_size{namespace='$namespace'}", digits), began, ended)
    assert {record["batchSize"] for record in status["history"]} >= set(batches) - {0.0}  # 0 before the first update
    query = f"batchgrowth_operator_job_condition{{job_namespace='{digits.namespace}', job_name='digits'}}"
    assert numbers(prometheus, query, began, ended), "the operator's series have the job's namespace, not its own"
    assert {"ok"} == healths(prometheus)
    mine_or_the_operators = (
        f'ALERTS{{alertstate="firing", namespace=~"{digits.namespace}|", job_namespace=~"{digits.namespace}|"}}'
    )
    assert [] == prometheus.over(mine_or_the_operators, began, ended)


@pytest.mark.operator
def test_the_operator_is_scraped(prometheus: Prometheus) -> None:
    """In its own pod, found by its annotations."""
    assert "" == linted(scraped(prometheus, "batchgrowth-system"))


def test_the_configuration_that_users_get_is_good() -> None:
    """promtool reads it, as Prometheus does."""
    promtool = built(PROMETHEUS, silence) / "promtool"

    done = subprocess.run([promtool, "check", "config", CONFIGURATION], capture_output=True, text=True, check=False)

    assert 0 == done.returncode, done.stdout + done.stderr
