"""The trainer's metrics are those of the table, and events fill them."""

import socket
import time
import urllib.error
import urllib.request
from typing import Any

import pytest
from batchgrowth.contract.metrics import TRAINER, ExchangeFigures
from batchgrowth.errors import PortError
from batchgrowth.evaluations import BestEvaluation
from batchgrowth.forecast.course_time import Outlook
from batchgrowth.forecast.step_time import Estimated
from batchgrowth.plan import make_plan
from batchgrowth.position import Position
from batchgrowth_trainer.__main__ import ANYWHERE
from batchgrowth_trainer.record.history import EvaluationRow, GrowthRow, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks.events import (
    CheckpointFailed,
    CheckpointSaved,
    EndedEarly,
    Looked,
    Recovered,
    Undone,
)
from batchgrowth_trainer.sinks.telemetry import LIVENESS_PATH, Endpoint, Telemetry
from prometheus_client import CollectorRegistry


def row(update: int, epoch: float) -> HistoryRow:
    outlook = Outlook(remaining=Estimated(value=40.0, low=30.0, high=60.0), update_seconds=0.4)
    return HistoryRow(update, epoch, 1, 16, 0.05, 0.7, 2, 0.2, 0.1, 0.05, 3.0, outlook=outlook)


def values(telemetry: Telemetry) -> dict[str, float]:
    return {
        sample.name + "".join(f"[{value}]" for key, value in sample.labels.items() if key != "le"): sample.value
        for family in telemetry.registry.collect()
        for sample in family.samples
    }


def filled(job: Any) -> Telemetry:
    telemetry = Telemetry(make_plan(job.spec))
    for event in (
        row(1, 0.25),
        row(2, 0.5),
        EvaluationRow(2, 1.0, 1.0, 0.6, {"accuracy": 0.9}),
        ResizeRow(1, 1, 2, 0.02),
        ResizeRow(2, 2, 1, 0.02),
        Looked(GrowthRow(2, 0.5, 610.0, 192, 192), "noise scale", 128, make_plan(job.spec), ()),
        Recovered(2, "a worker was lost"),
        ExchangeFigures(bytes_sent=1000, replica_distance=0.5, largest_staleness=3, mean_staleness=1.5),
        ExchangeFigures(compression_error=0.004, backups=3, backups_first=2),
        ExchangeFigures(checks=5, differences=1, checked_update=200),
        CheckpointSaved(2, 0.1, 500),
        CheckpointFailed("no room"),
    ):
        telemetry.handle(event)
    return telemetry


def test_the_registry_holds_the_table_and_nothing_else(small_job: Any) -> None:
    families = {family.name: family for family in filled(small_job()).registry.collect()}
    assert {metric.name.removesuffix("_total"): metric.kind for metric in TRAINER} == {
        name: family.type for name, family in families.items()
    }
    for metric in TRAINER:
        assert metric.help == families[metric.name.removesuffix("_total")].documentation


@pytest.mark.fault("O27")
def test_what_is_not_known_yet_is_absent(small_job: Any) -> None:
    """Rather than 0: a loss, a rate and a checkpoint of 0 bytes that nobody has seen."""
    at_first = values(Telemetry(make_plan(small_job().spec)))
    later = {metric.name for metric in TRAINER if metric.begins_later}

    assert {"batchgrowth_loss", "batchgrowth_learning_rate", "batchgrowth_checkpoint_size_bytes"} == later
    assert not later & at_first.keys()
    assert later <= values(filled(small_job())).keys()


def test_a_run_that_ends_early_is_complete(small_job: Any) -> None:
    job = small_job("evaluation.stopEarly={metric: loss, mode: Minimize, patience: 1}")
    telemetry = filled(job)
    assert values(telemetry)["batchgrowth_progress_ratio"] < 1
    telemetry.handle(EndedEarly(make_plan(job.spec).until(1), job.spec, BestEvaluation(1)))
    assert values(telemetry)["batchgrowth_progress_ratio"] == 1


def test_every_metric_can_be_filled(small_job: Any) -> None:
    found = values(filled(small_job()))
    for metric in TRAINER:
        sample = metric.name + ("_count" if metric.kind == "histogram" else "")
        assert any(value for name, value in found.items() if name.partition("[")[0] == sample), metric.name


@pytest.mark.fault("F05")
def test_counters_count_and_gauges_hold_the_last_value(small_job: Any) -> None:
    found = values(filled(small_job()))
    assert found["batchgrowth_updates_total"] == 2
    assert found["batchgrowth_examples_total"] == 45
    assert found["batchgrowth_epochs"] == 0.5
    assert found["batchgrowth_workers[training]"] == 2
    assert [found[f"batchgrowth_remaining_seconds[{bound}]"] for bound in ("low", "expected", "high")] == [30, 40, 60]
    assert found["batchgrowth_update_forecast_seconds"] == 0.4
    assert found["batchgrowth_evaluation[accuracy]"] == 0.9
    assert found["batchgrowth_update_duration_seconds_sum[compute]"] == pytest.approx(0.4)
    assert found["batchgrowth_resize_duration_seconds_count[up]"] == 1
    assert found["batchgrowth_backups_total[backup]"] == 2
    assert found["batchgrowth_backups_total[original]"] == 1
    assert found["batchgrowth_checks_total[same]"] == 4
    assert found["batchgrowth_checks_total[different]"] == 1


def test_after_a_resume_examples_count_from_zero_like_updates(small_job: Any) -> None:
    telemetry = Telemetry(make_plan(small_job().spec), epochs=2.0)
    telemetry.handle(row(30, 2.25))
    found = values(telemetry)
    assert found["batchgrowth_updates_total"] == 1
    assert found["batchgrowth_examples_total"] == 22.5


def test_examples_that_are_used_again_after_an_undo_count_again(small_job: Any) -> None:
    """As their updates do."""
    plan = make_plan(small_job().spec)
    telemetry = Telemetry(plan)
    telemetry.handle(row(2, 0.5))
    telemetry.handle(Undone("worker 1 differs", 1, Position(1, 0, 30), plan))
    telemetry.handle(row(2, 0.5))
    assert values(telemetry)["batchgrowth_examples_total"] == pytest.approx(45 + 15)


def test_the_endpoint_answers_until_it_is_closed(small_job: Any) -> None:
    endpoint = Endpoint(filled(small_job()).registry, "127.0.0.1", 0)
    with urllib.request.urlopen(endpoint.url, timeout=5) as answer:
        assert "batchgrowth_updates_total 2.0" in answer.read().decode()
    endpoint.close()
    with pytest.raises(OSError):
        urllib.request.urlopen(endpoint.url, timeout=5)


@pytest.mark.fault("C24")
def test_the_endpoint_says_what_hangs_and_serves_the_metrics_beside_it(small_job: Any) -> None:
    hung = [""]
    endpoint = Endpoint(filled(small_job()).registry, "127.0.0.1", 0, lambda: hung[0])
    livez = endpoint.url.replace("/metrics", LIVENESS_PATH)
    with urllib.request.urlopen(livez, timeout=5) as answer:
        assert (answer.status, answer.read()) == (200, b"ok")
    hung[0] = "the event loop has not turned"
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(livez, timeout=5)
    assert (refused.value.code, refused.value.read()) == (503, b"the event loop has not turned")
    refused.value.close()
    with urllib.request.urlopen(endpoint.url, timeout=5) as answer:
        assert "batchgrowth_updates_total 2.0" in answer.read().decode()
    endpoint.close()


@pytest.mark.fault("C24")
def test_the_endpoint_of_a_pod_answers_over_ipv4_and_ipv6(small_job: Any) -> None:
    """A pod may have an address of only one of them, and its probe uses that."""
    endpoint = Endpoint(filled(small_job()).registry, ANYWHERE, 0)
    port = int(endpoint.url.rpartition(":")[2].split("/")[0])
    for host in ("127.0.0.1", *(["[::1]"] if socket.has_dualstack_ipv6() else ())):
        with urllib.request.urlopen(f"http://{host}:{port}{LIVENESS_PATH}", timeout=5) as answer:
            assert answer.read() == b"ok"
    endpoint.close()


@pytest.mark.fault("D17")
def test_a_hundred_clients_that_never_read_hold_up_nothing(small_job: Any) -> None:
    """Neither events, which the training publishes, nor another client."""
    telemetry = filled(small_job())
    endpoint = Endpoint(telemetry.registry, "127.0.0.1", 0)
    clients = [socket.socket() for _ in range(100)]
    for client in clients:
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", int(endpoint.url.split("/")[2].split(":")[1])))

    began = time.monotonic()
    for number in range(3, 1000):
        telemetry.handle(row(number, 0.5))
    assert time.monotonic() - began < 5
    with urllib.request.urlopen(endpoint.url, timeout=60) as answer:
        assert "batchgrowth_updates_total 999.0" in answer.read().decode()
    for client in clients:
        client.close()
    endpoint.close()


@pytest.mark.fault("D17")
def test_a_taken_port_is_reported() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortError, match=rf"--metrics-port {port}: .* cannot be opened .*or 0 for any free one"):
            Endpoint(CollectorRegistry(), "127.0.0.1", port)
