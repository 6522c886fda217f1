"""The operator's metrics after passes, and after a job is deleted."""

from typing import Any

import pytest
from batchgrowth.contract.metrics import OPERATOR, TRAINER
from batchgrowth_operator.api.cache import Key
from batchgrowth_operator.loop.metrics import OperatorMetrics

MakeWorld = Any
KEY = Key("default", "digits")
NAMES = {"job_namespace": "default", "job_name": "digits"}
OF_TARGETS = {
    "cluster",
    "container",
    "endpoint",
    "instance",
    "job",
    "namespace",
    "node",
    "pod",
    "prometheus",
    "service",
}
"""The labels that Prometheus, its operator and usual relabelings give to what they scrape."""


def value(telemetry: OperatorMetrics, name: str, **labels: str) -> float | None:
    return telemetry.registry.get_sample_value(f"batchgrowth_operator_{name}", labels)


def record(world: Any, telemetry: OperatorMetrics) -> None:
    telemetry.decided(KEY, world.observed(), world.decide())
    world.step()


@pytest.mark.fault("O06")
def test_no_label_clashes_with_those_of_a_target() -> None:
    """Prometheus renames a label that does to exported_…, and alerts and dashboards find nothing."""
    assert not [(metric.name, label) for metric in (*OPERATOR, *TRAINER) for label in OF_TARGETS & {*metric.labels}]


@pytest.mark.fault("B20", "F05")
def test_the_metrics_of_a_job_s_life(make_world: MakeWorld) -> None:
    world, telemetry = make_world(), OperatorMetrics()
    record(world, telemetry)
    assert value(telemetry, "jobs", state="Pending") == 1
    assert value(telemetry, "job_condition", **NAMES, type="Accepted", status="True") == 1
    assert None is value(telemetry, "repairs_total", kind="Deployment")
    assert None is value(telemetry, "job_progress_ratio", **NAMES)

    world.wait(4).scheduler_ready().workers_ready().trainer_runs().report(10)
    record(world, telemetry)
    assert (value(telemetry, "jobs", state="Pending"), value(telemetry, "jobs", state="Training")) == (0, 1)
    assert value(telemetry, "workers_ready_duration_seconds_sum", direction="up") == 4

    record(world, telemetry)
    assert value(telemetry, "status_writes_total", result="unchanged") == 1

    world.deployment["spec"]["replicas"] = 9
    record(world, telemetry)
    assert value(telemetry, "repairs_total", kind="Deployment") == 1

    world.report(440)
    record(world, telemetry)
    assert value(telemetry, "repairs_total", kind="Deployment") == 1, "our own change is not a repair"
    assert (
        value(telemetry, "job_progress_ratio", **NAMES)
        == world.job["status"]["trainerStatus"]["progressPercentage"] / 100
        > 0
    )

    telemetry.forget_all()
    telemetry.forget(KEY)
    assert value(telemetry, "jobs", state="Training") == 0
    assert None is value(telemetry, "job_condition", **NAMES, type="Accepted", status="True")
    assert None is value(telemetry, "job_progress_ratio", **NAMES)


def test_a_new_process_shows_jobs_that_are_never_written_again(training_world: MakeWorld) -> None:
    """An alert about a failed job must not end because the operator is upgraded."""
    world = training_world()
    world.workers_ready().report(20).settle()
    world.trainer_ends("Failed").settle()
    assert world.job["status"]["phase"] == "Failed"
    assert world.job["status"]["workers"]["resizeSeconds"]
    telemetry = OperatorMetrics()

    record(world, telemetry)

    assert value(telemetry, "status_writes_total", result="unchanged") == 1
    assert value(telemetry, "jobs", state="Failed") == 1
    assert value(telemetry, "job_condition", **NAMES, type="Succeeded", status="False") == 1
    observed = value(telemetry, "workers_ready_duration_seconds_count", direction="up")
    assert not observed, "the process before has observed that resize"


def test_requests_and_passes_are_counted() -> None:
    telemetry = OperatorMetrics()
    telemetry.request("get", "secrets", "200")
    telemetry.reconciled("done", 0.01)

    assert value(telemetry, "api_requests_total", verb="get", resource="secrets", code="200") == 1
    assert value(telemetry, "reconciles_total", result="done") == 1
    assert value(telemetry, "reconcile_duration_seconds_sum") == 0.01
