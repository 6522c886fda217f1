"""A real Prometheus beside the cluster, with the configuration that users get, and the dashboard's own queries."""

import json
import math
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator

import pytest
import yaml
from real_job import RealJob, until

from charts.folders import CHART, ROOT
from cluster.build import built, silence
from cluster.local import LocalCluster
from cluster.prometheus import CONFIGURATION, Prometheus
from cluster.recipe import PROMETHEUS

DASHBOARDS = sorted(CHART.glob("dashboards/*.json"))
SECONDS_BETWEEN_CHECKPOINTS = 5
MakeJob = Callable[..., RealJob]


@pytest.fixture(scope="module")
def prometheus(local: LocalCluster) -> Iterator[Prometheus]:
    """It scrapes while the tests of this file run."""
    with Prometheus(local.kubeconfig) as server:
        yield server


def interval() -> int:
    """Seconds between two scrapes, as Grafana would be told."""
    text: str = yaml.safe_load(CONFIGURATION.read_text())["global"]["scrape_interval"]
    return int(text.removesuffix("s"))


def substituted(expression: str, job: RealJob) -> str:
    """The query as Grafana sends it: its variables chosen, and four scrapes for a rate."""
    values = {"$namespace": job.namespace, "$job": job.name, "$__rate_interval": f"{4 * interval()}s"}
    for variable, value in values.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


def numbers(prometheus: Prometheus, query: str, began: float, ended: float) -> list[float]:
    """Every finite value of a query in that time."""
    found = prometheus.over(query, began, ended)
    values = [float(value) for series in found for _, value in series["values"]]
    return [value for value in values if math.isfinite(value)]


def scraped(prometheus: Prometheus, namespace: str) -> str:
    """The address of the one pod of a namespace that is scraped, once that goes well."""

    def up() -> str | None:
        found = [each for each in prometheus.targets() if each["labels"].get("namespace") == namespace]
        assert len(found) <= 1, found
        return next((str(each["scrapeUrl"]) for each in found if each["health"] == "up"), None)

    address: str = until(f"a pod of {namespace} is scraped", up, 60, lambda: json.dumps(prometheus.targets(), indent=1))
    return address


def linted(address: str) -> str:
    """What Prometheus' own linter has to say about the metrics at an address."""
    with urllib.request.urlopen(address, timeout=10) as answer:
        text: bytes = answer.read()
    promtool = built(PROMETHEUS, silence) / "promtool"
    told = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, check=False)
    return (told.stdout + told.stderr).decode()


def unanswered(prometheus: Prometheus, job: RealJob, began: float, ended: float) -> list[tuple[str, str]]:
    """Panels and queries of the dashboards that showed nothing in all that time."""
    return [
        (panel["title"], target["expr"])
        for dashboard in DASHBOARDS
        for panel in json.loads(dashboard.read_text())["panels"]
        for target in panel["targets"]
        if not numbers(prometheus, substituted(target["expr"], job), began, ended)
    ]


def test_every_query_of_the_dashboard_has_data(prometheus: Prometheus, job: MakeJob) -> None:
    """A job runs, with checkpoints; then every line of every panel has something to show, and the choices offer it."""
    manifest = yaml.safe_load((ROOT / "examples" / "digits.yaml").read_text())
    manifest["spec"]["checkpoint"] = {"everySeconds": SECONDS_BETWEEN_CHECKPOINTS}
    began = time.time()
    digits = job(manifest)
    digits.reaches(1)

    assert "" == linted(scraped(prometheus, digits.namespace))
    status, ended = digits.succeeds(), time.time()

    assert DASHBOARDS
    assert [] == unanswered(prometheus, digits, began, ended)
    mine = {"namespace": digits.namespace, "batchgrowth_dev_job": digits.name}
    offered = prometheus.over("count by (namespace, batchgrowth_dev_job) (batchgrowth_progress_ratio)", began, ended)
    assert mine in [each["metric"] for each in offered]
    batches = numbers(prometheus, substituted("batchgrowth_batch_size{namespace='$namespace'}", digits), began, ended)
    assert {record["batchSize"] for record in status["history"]} >= set(batches) - {0.0}  # 0 before the first update
    told = f"batchgrowth_operator_job_condition{{namespace='{digits.namespace}', job='digits'}}"
    assert numbers(prometheus, told, began, ended), "the operator's series bear the job's namespace, not its own"


def test_the_operator_is_scraped(prometheus: Prometheus) -> None:
    """In its own pod, found by its annotations."""
    assert "" == linted(scraped(prometheus, "batchgrowth-system"))


def test_the_configuration_that_users_get_is_good() -> None:
    """promtool reads it, as Prometheus does."""
    promtool = built(PROMETHEUS, silence) / "promtool"

    told = subprocess.run([promtool, "check", "config", CONFIGURATION], capture_output=True, text=True, check=False)

    assert 0 == told.returncode, told.stdout + told.stderr
