"""The alerts: promtool lets each fire on its fault, and none while jobs are as they should be."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from batchgrowth.contract.metrics import METRICS
from batchgrowth.contract.status import CONDITIONS

from charts.folders import CHART, ROOT
from cluster.build import built, silence
from cluster.recipe import PROMETHEUS

FILE = CHART / "files" / "alerts.yaml"
RULES = {rule["alert"]: rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]}
MINUTES = 180
JOB, TRAINER = {"job_namespace": "team", "job_name": "digits"}, {"namespace": "team", "batchgrowth_dev_job": "digits"}
Labels = Mapping[str, str]
Series = dict[str, str]
"""The values of a metric with its labels, one a minute, in promtool's notation."""


def condition(kind: str, *statuses: tuple[str, int]) -> Series:
    """A condition of the job that has each of these statuses for that many minutes, and the last to the end."""
    minutes = [status for status, count in statuses for _ in range(count)]
    minutes += [statuses[-1][0]] * (MINUTES - len(minutes))
    name = 'batchgrowth_operator_job_condition{{job_namespace="team", job_name="digits", type="{}", status="{}"}}'
    return {
        name.format(kind, status): " ".join(str(int(status == each)) for each in minutes)
        for status in ("True", "False", "Unknown")
    }


def counter(name: str, labels: Labels, *steps: tuple[int, int]) -> Series:
    """A counter that begins at 0; each step is by how much it grows a minute, and for how many minutes."""
    total, values = 0, list[int]()
    for each, minutes in steps:
        for _ in range(minutes):
            values.append(total)
            total += each
    inner = ", ".join(f'{key}="{value}"' for key, value in labels.items())
    return {f"{name}{{{inner}}}": " ".join(map(str, values))}


OPERATOR = "batchgrowth_operator_reconcile_duration_seconds_count"
ALIVE = counter(OPERATOR, {}, (6, MINUTES))
RELEASE = {"namespace": "ml", "service": "gpu-metrics"}
PASSES, REQUESTS = "batchgrowth_operator_reconciles_total", "batchgrowth_operator_api_requests_total"
FAILURES, RECOVERIES = "batchgrowth_checkpoint_failures_total", "batchgrowth_recoveries_total"
BROKEN = "batchgrowth_operator_watch_broken"
PATCHES = {"verb": "patch", "resource": "deployments", "code": "403"}
READY = condition("Accepted", ("True", MINUTES)) | condition("Succeeded", ("Unknown", MINUTES))

FAULTS: dict[str, tuple[Series, Labels]] = {
    "BatchGrowthOperatorMissing": ({"up": "1"}, {}),
    "BatchGrowthReleaseMissing": (ALIVE | counter(OPERATOR, RELEASE, (6, 30)), RELEASE),
    "BatchGrowthPassesFail": (ALIVE | counter(PASSES, {"result": "failed"}, (2, MINUTES)), {"result": "failed"}),
    "BatchGrowthRequestsForbidden": (
        ALIVE | counter(REQUESTS, PATCHES, (1, MINUTES)),
        {"verb": "patch", "resource": "deployments"},
    ),
    "BatchGrowthWatchBroken": (
        ALIVE | {f'{BROKEN}{{watched_namespace="team", resource="pods"}}': f"1x{MINUTES}"},
        {"watched_namespace": "team"},
    ),
    "BatchGrowthJobNotAccepted": (ALIVE | condition("Accepted", ("False", MINUTES)), JOB),
    "BatchGrowthJobWaiting": (
        ALIVE | READY | condition("Suspended", ("False", 1)) | condition("ClusterReady", ("False", MINUTES)),
        JOB,
    ),
    "BatchGrowthJobNotTraining": (
        ALIVE | READY | condition("Suspended", ("False", 1)) | condition("Training", ("False", MINUTES)),
        JOB,
    ),
    "BatchGrowthJobStalled": (ALIVE | READY | condition("Stalled", ("True", MINUTES)), JOB),
    "BatchGrowthJobDegraded": (ALIVE | READY | condition("Degraded", ("True", MINUTES)), JOB),
    "BatchGrowthJobContested": (ALIVE | READY | condition("Contested", ("True", MINUTES)), JOB),
    "BatchGrowthJobFailed": (ALIVE | condition("Succeeded", ("False", MINUTES)), JOB),
    "BatchGrowthCheckpointsFail": (ALIVE | counter(FAILURES, TRAINER, (1, MINUTES)), TRAINER),
    "BatchGrowthWorkerComputesWrongly": (
        ALIVE
        | counter("batchgrowth_checks_total", TRAINER | {"result": "different"}, (0, 30), (1, 1), (0, MINUTES - 31)),
        TRAINER,
    ),
    "BatchGrowthWorkersLost": (ALIVE | counter(RECOVERIES, TRAINER, (1, MINUTES)), TRAINER),
}
"""For each alert its fault, and the labels that it then has."""

HEALTHY: dict[str, Series] = {
    "no job": ALIVE,
    "two releases, whose operators are replaced": {
        f'{OPERATOR}{{namespace="{namespace}", service="batchgrowth-metrics", pod="{pod}"}}': values
        for namespace in ("a", "b")
        for pod, values in (("first", "0x60"), ("second", f"{'_ ' * 68} 0x{MINUTES - 68}"))
    },
    "a job that starts, grows, and succeeds": ALIVE
    | condition("Accepted", ("True", MINUTES))
    | condition("ClusterReady", ("Unknown", 1), ("False", 10), ("True", 40), ("False", 5), ("True", 60), ("False", 1))
    | condition("Degraded", ("False", 60), ("True", 5), ("False", 1))
    | condition("Stalled", ("False", MINUTES))
    | condition("Training", ("Unknown", 1), ("False", 10), ("True", 105), ("False", 1))
    | condition("Succeeded", ("Unknown", 116), ("True", 1))
    | condition("Suspended", ("False", MINUTES)),
    "a job that is suspended for an hour": ALIVE
    | READY
    | condition("ClusterReady", ("True", 30), ("False", 60), ("True", 1))
    | condition("Training", ("True", 30), ("False", 65), ("True", 1))
    | condition("Suspended", ("False", 30), ("Unknown", 2), ("True", 58), ("False", 1)),
    "what passes": ALIVE
    | counter(PASSES, {"result": "failed"}, (0, 30), (3, 3), (0, MINUTES - 33))
    | counter(PASSES, {"result": "outdated"}, (5, MINUTES))
    | counter(REQUESTS, PATCHES, (0, 30), (1, 1), (0, MINUTES - 31))
    | counter(REQUESTS, PATCHES | {"code": "409"}, (5, MINUTES))
    | counter(REQUESTS, PATCHES | {"code": "terminating"}, (5, MINUTES))
    | {f'{BROKEN}{{watched_namespace="team", resource="pods"}}': f"0x30 1x4 0x{MINUTES - 36}"}
    | counter(FAILURES, TRAINER, (0, 30), (1, 2), (0, MINUTES - 32))
    | counter("batchgrowth_checks_total", TRAINER | {"result": "different"}, (0, MINUTES))
    | counter("batchgrowth_checks_total", TRAINER | {"result": "same"}, (1, MINUTES))
    | counter(RECOVERIES, TRAINER, *[(0, 9), (1, 1)] * (MINUTES // 10)),
    "a trainer that the monitors of two releases scrape": ALIVE
    | counter(FAILURES, TRAINER | {"pod": "trainer", "job": "one"}, (0, 30), (1, 2), (0, MINUTES - 32))
    | counter(FAILURES, TRAINER | {"pod": "trainer", "job": "two"}, (0, 30), (1, 2), (0, MINUTES - 32))
    | counter(RECOVERIES, TRAINER | {"pod": "trainer", "job": "one"}, *[(0, 9), (1, 1)] * (MINUTES // 10))
    | counter(RECOVERIES, TRAINER | {"pod": "trainer", "job": "two"}, *[(0, 9), (1, 1)] * (MINUTES // 10)),
}
Judge = Callable[[Series, Sequence[Any]], str]


@pytest.fixture(scope="module")
def promtool(prometheus: object) -> Path:
    """The program, once it is built."""
    return built(PROMETHEUS, silence) / "promtool"


@pytest.fixture
def judge(promtool: Path, tmp_path: Path) -> Judge:
    """A function: what promtool finds wrong if these series are to have these alerts; empty if nothing."""

    def judged(series: Series, expected: Sequence[Any]) -> str:
        test = {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in series.items()],
            "alert_rule_test": expected,
        }
        file = tmp_path / "test.yaml"
        file.write_text(json.dumps({"rule_files": [str(FILE)], "evaluation_interval": "1m", "tests": [test]}))
        done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
        return "" if done.returncode == 0 else done.stdout + done.stderr

    return judged


def silent(*names: str) -> Iterator[dict[str, Any]]:
    """That none of these alerts fires, at any minute."""
    for name in names:
        for minute in range(0, MINUTES, 3):
            yield {"alertname": name, "eval_time": f"{minute}m", "exp_alerts": []}


def fired(name: str, labels: Labels) -> dict[str, Any]:
    """That the alert fires after an hour, once, with these labels and its texts."""

    def filled(text: str) -> str:
        return re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels[found[1]], text)

    shown = {key: value for key, value in labels.items() if value}
    texts = {key: filled(text) for key, text in RULES[name]["annotations"].items()}
    alert = {"exp_labels": {**shown, **RULES[name]["labels"]}, "exp_annotations": texts}
    return {"alertname": name, "eval_time": "60m", "exp_alerts": [alert]}


@pytest.mark.fault("F07")
@pytest.mark.parametrize("name", RULES)
def test_an_alert_fires_on_its_fault_and_no_other_does(judge: Judge, name: str) -> None:
    series, labels = FAULTS[name]
    others = [other for other in RULES if other != name]
    assert judge(series, [fired(name, labels), *silent(*others)]) == ""


@pytest.mark.fault("O19")
def test_a_validating_policy_that_refuses_is_an_alert(judge: Judge) -> None:
    """The API server answers with 422 instead of 403."""
    name = "BatchGrowthRequestsForbidden"
    series = ALIVE | counter(REQUESTS, PATCHES | {"code": "422"}, (1, MINUTES))
    assert judge(series, [fired(name, FAULTS[name][1])]) == ""


@pytest.mark.fault("B11")
def test_an_operator_that_may_watch_nothing_is_an_alert(judge: Judge) -> None:
    """It starts over again and again, each time without the metric for a while and with the watch that broke first."""
    series = ALIVE | {
        f'{BROKEN}{{watched_namespace="", resource="pods"}}': "1 1 _ _ _ _ _ _ _ _ _ _ " * (MINUTES // 12),
        f'{BROKEN}{{watched_namespace="", resource="jobs"}}': "_ _ _ _ _ _ 1 1 _ _ _ _ " * (MINUTES // 12),
    }
    assert judge(series, [fired("BatchGrowthWatchBroken", {"watched_namespace": ""})]) == ""


@pytest.mark.fault("F07")
@pytest.mark.parametrize("name", HEALTHY)
def test_none_fires_without_a_fault(judge: Judge, name: str) -> None:
    assert judge(HEALTHY[name], [*silent(*RULES)]) == ""


def test_a_wrong_expectation_is_found(judge: Judge) -> None:
    """So that the tests above can fail."""
    assert "" != judge(FAULTS["BatchGrowthJobFailed"][0], [*silent("BatchGrowthJobFailed")])


def test_what_they_ask_for_exists() -> None:
    """A metric or a condition that was renamed would make an alert silent."""
    names = {metric.name for metric in METRICS}
    for name, rule in RULES.items():
        found = set(re.findall(r"batchgrowth_operator_\w+|batchgrowth_(?!dev)\w+", rule["expr"]))
        assert found
        assert {one.removesuffix("_count") for one in found} <= names, name
        assert set(re.findall(r'type="(\w+)"', rule["expr"])) <= CONDITIONS.keys(), name


def test_the_results_of_passes_are_those_that_are_counted() -> None:
    text = (ROOT / "operator" / "batchgrowth_operator" / "loop" / "one_pass.py").read_text()
    results = re.search(r'result=~"([\w|]+)"', RULES["BatchGrowthPassesFail"]["expr"])
    assert results is not None
    for result in results[1].split("|"):
        assert f'"{result}"' in text


def test_each_says_how_bad_it_is_and_what_would_do() -> None:
    for rule in RULES.values():
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
