"""Progress reports: their content, their delivery, and that training never waits for them."""

import json
import math
import os
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.client import BadStatusLine, HTTPException, IncompleteRead
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import trustme
from batchgrowth.contract.metrics import ExchangeFigures
from batchgrowth.contract.progress import LONGEST_CAUSE, LONGEST_PERIOD_SECONDS, MOST_DIFFERING, Progress, WentBack
from batchgrowth.errors import CheckpointError, Interrupted, PlanError
from batchgrowth.expected_batch import ExpectedBatch
from batchgrowth.names import LAST_START
from batchgrowth.plan import BatchDecision, make_plan
from batchgrowth.position import Position
from batchgrowth.spec import BatchGrowthJob
from batchgrowth_trainer.__main__ import checked_plan
from batchgrowth_trainer.record.history import GrowthRow, HistoryRow, ResizeRow
from batchgrowth_trainer.sinks import report as sinks_report
from batchgrowth_trainer.sinks.events import (
    ArithmeticDiffers,
    Looked,
    Started,
    Stopped,
    Undone,
    Waiting,
    WorkersReady,
)
from batchgrowth_trainer.sinks.report import Reporter, repeat, to_config_map, to_file
from batchgrowth_trainer.training import Options, train

MakeJob = Callable[..., BatchGrowthJob]
stored = {"text": "{}"}
"""What the API server of these tests answers to a GET."""


def test_the_last_report_is_of_the_end(tmp_path: Path, small_job: MakeJob) -> None:
    """A whole run, reported to a file."""
    job = small_job()
    reports: list[Progress] = []

    def deliver(report: str) -> None:
        reports.append(Progress.from_json(report))

    train(job, Options(output_dir=tmp_path), [Reporter(deliver, lambda: 7)])

    plan = make_plan(job.spec)
    assert (0, plan.updates) == (reports[0].update, reports[-1].update)
    assert (7, plan.updates, float(plan.epochs)) == (reports[-1].start, reports[-1].updates, reports[-1].epoch)
    assert (reports[-1].workers, reports[-1].eta_seconds) == (1, 0.0)
    assert {str(stage.index): 1 for stage in plan.stages} == reports[-1].crews
    assert reports == sorted(reports, key=lambda report: report.update)
    assert json.loads((tmp_path / "summary.json").read_text())["weightsSha256"] == reports[-1].weights_sha256
    assert plan.updates == reports[-1].checkpoint_update


def test_the_first_report_has_the_learning_rate_of_the_first_update(small_job: MakeJob) -> None:
    """Warmed up and with the schedule's factor, as the rows that follow."""
    changes = ("learningRate.warmup={updates: 20}", "learningRate.schedule={type: Linear}")
    plan, reports = make_plan(small_job(*changes).spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, plan.position_at(3)))
    reporter.handle(Stopped())

    assert plan.step_at(plan.position_at(3)).learning_rate == reports[0].learning_rate


def test_the_longest_pause_of_each_stage_is_reported(small_job: MakeJob) -> None:
    """A pause belongs to the stage of the update that follows it."""
    plan, reports = make_plan(small_job().spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    second = plan.stages[1].first_update
    for update, seconds in ((0, 0.1), (second - 1, 0.3), (second, 0.05), (second + 1, 0.04)):
        reporter.handle(ResizeRow(update, 1, 2, seconds))
    reporter.handle(Stopped())

    assert reports[-1].pauses == {"0": 0.3, "1": 0.05}


def test_decisions_are_reported_with_the_plan_that_they_make(small_job: MakeJob) -> None:
    spec, reports = small_job("batch.growth={type: LossRatio}").spec, list[Progress]()
    decisions = BatchDecision(12, 16, 2.5), BatchDecision(18, 32, math.inf)
    before, after = make_plan(spec, decisions[:1]), make_plan(spec, decisions)
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", before, before.position_at(15), decisions[:1]))
    reporter.handle(Looked(GrowthRow(18, 2.0, math.inf, 32, 32), "loss ratio", 16, after, decisions))
    reporter.handle(Stopped())

    assert decisions == reports[-1].decisions
    assert after.updates == reports[-1].updates < before.updates


def test_a_forecast_is_reported_until_its_look(small_job: MakeJob) -> None:
    """With the seconds until then at the current pace."""
    plan, forecast = (
        make_plan(small_job("batch.growth={type: LossRatio}").spec),
        ExpectedBatch(update=24, batch_size=32, workers=2),
    )
    looked = Looked(GrowthRow(12, 1.0, 2.0, 16, 16), "loss ratio", 8, plan, (), forecast)
    for last, due_seconds in ((12, 6.0), (14, 5.0), (24, None)):
        reports = list[Progress]()
        reporter = Reporter(lambda report, to=reports: to.append(Progress.from_json(report)))
        reporter.handle(Started("small", plan, Position(11)))
        for number in range(12, last + 1):
            reporter.handle(HistoryRow(number, 1.0, 0, 8, 0.05, 0.7, 2, 0.5, 0.0, 0.0, 1.0))
            if number == 12:
                reporter.handle(looked)
        reporter.handle(Stopped())

        assert (replace(forecast, due_seconds=due_seconds) if due_seconds else None) == reports[-1].forecast


def test_the_time_left_is_that_of_the_newest_row_that_has_one(small_job: MakeJob) -> None:
    plan, reports = make_plan(small_job().spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    reporter.handle(HistoryRow(1, 0.1, 0, 8, 0.05, 0.7, 2, 0.01, 0.0, 0.0, 1.0, remaining_seconds=90.5))
    reporter.handle(HistoryRow(2, 0.2, 0, 8, 0.05, 0.7, 2, 0.01, 0.0, 0.0, 1.0))
    reporter.handle(Stopped())

    assert (reports[-1].update, reports[-1].eta_seconds) == (2, 90.5)


def test_a_wait_is_reported_until_the_next_update(small_job: MakeJob) -> None:
    plan, reports = make_plan(small_job().spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    reporter.handle(Waiting("a worker"))
    while not (reports and reports[-1].waiting_for):
        time.sleep(0.01)
    assert reports[-1].waiting_for == "a worker"
    reporter.handle(WorkersReady(2))
    reporter.handle(HistoryRow(1, 0.1, 0, 8, 0.05, 0.7, 2, 0.01, 0.0, 0.0, 1.0))
    reporter.handle(Stopped())
    assert (reports[-1].waiting_for, reports[-1].ready, reports[-1].workers) == (None, 2, 2)


def test_what_the_exchange_did_is_reported(small_job: MakeJob) -> None:
    """Bytes and backups since the start, and the last values of the others."""
    plan, reports = make_plan(small_job().spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    for event in (
        ExchangeFigures(bytes_sent=1000, replica_distance=0.5, compression_error=0.004),
        ExchangeFigures(bytes_sent=500, replica_distance=0.25, largest_staleness=3, mean_staleness=1.5),
        ExchangeFigures(backups=3, backups_first=2),
        ExchangeFigures(backups=1),
    ):
        reporter.handle(event)
    reporter.handle(HistoryRow(1, 0.1, 0, 8, 0.05, 0.7, 2, 0.01, 0.0, 0.0, 1.0))
    reporter.handle(Stopped())
    assert reports[-1].exchanged == ExchangeFigures(
        bytes_sent=1500, replica_distance=0.25, compression_error=0.004, largest_staleness=3, mean_staleness=1.5,
        backups=4, backups_first=2,
    )  # fmt: skip


def test_workers_that_add_differently_are_reported_while_there_are_any(small_job: MakeJob) -> None:
    """A few of many, so that the report stays small."""
    plan, reports = make_plan(small_job().spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    reporter.handle(ArithmeticDiffers({str(n): "AVX2 rather than AVX512" for n in range(20)}, "a line"))
    while not (reports and reports[-1].differing):
        time.sleep(0.01)
    assert len(reports[-1].differing) == MOST_DIFFERING
    reporter.handle(ArithmeticDiffers({}, ""))
    reporter.handle(Stopped())
    assert reports[-1].differing == {}


@pytest.mark.fault("C26")
def test_how_far_training_went_back_is_reported(small_job: MakeJob) -> None:
    """With the workers that computed wrongly; the last of several findings stays until the trainer's end."""
    plan, reports = make_plan(small_job().spec), list[Progress]()
    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    reporter.handle(Undone("w-0 differs", 3, Position(), plan, workers=("w-0",)))
    reporter.handle(Undone("w-1 differs" * 100, 2, plan.position_at(1), plan, workers=("w-1",)))
    reporter.handle(HistoryRow(2, 0.1, 0, 8, 0.05, 0.7, 2, 0.01, 0.0, 0.0, 1.0))
    reporter.handle(Stopped())
    cause = ("w-1 differs" * 100)[:LONGEST_CAUSE]
    assert reports[-1].went_back == WentBack(times=2, workers=("w-1",), cause=cause, reached=3, update=1)
    assert reports[-1].update == 2


@pytest.mark.fault("B12")
def test_a_delivery_that_fails_is_retried(tmp_path: Path, small_job: MakeJob) -> None:
    """The newest report arrives in the end."""
    arrived: list[str] = []
    failures = iter([OSError("away"), OSError("away")])

    def deliver(report: str) -> None:
        for error in failures:
            raise error
        arrived.append(report)

    train(small_job(), Options(output_dir=tmp_path), [Reporter(deliver)])

    assert make_plan(small_job().spec).updates == Progress.from_json(arrived[-1]).update


@pytest.mark.fault("B12")
def test_a_report_that_is_never_delivered_does_not_stop_training(
    tmp_path: Path, small_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks_report, "PERIOD_SECONDS", 0.001)

    def refuse(_: str) -> None:
        raise OSError("away")

    reporter = Reporter(refuse, lambda: 3)
    assert reporter.newest == ""
    summary = train(small_job(), Options(output_dir=tmp_path), [reporter])

    assert make_plan(small_job().spec).updates == summary["updates"]
    last = Progress.from_json(reporter.newest)
    assert (3, summary["updates"], summary["weightsSha256"]) == (last.start, last.update, last.weights_sha256)


@pytest.mark.parametrize(("running", "period"), [(0, 1), (20, 1), (100, 5), (200, 10), (1e6, LONGEST_PERIOD_SECONDS)])
def test_a_long_training_is_reported_less_often(running: float, period: float) -> None:
    assert period == sinks_report.period_seconds(running)


def test_changes_are_reported_at_once_however_long_the_period_is(
    small_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Progress alone waits: with a period of a minute only the first report, the changes and the last arrive."""
    monkeypatch.setattr(sinks_report, "period_seconds", lambda _: 60.0)
    plan, reports = make_plan(small_job().spec), list[Progress]()

    def until(number: int) -> None:
        while len(reports) < number:
            time.sleep(0.01)

    reporter = Reporter(lambda report: reports.append(Progress.from_json(report)))
    reporter.handle(Started("small", plan, Position()))
    until(1)
    reporter.handle(WorkersReady(2))
    until(2)
    for update in (1, 2, 3):
        reporter.handle(HistoryRow(update, 0.1, 0, 8, 0.05, 0.7, 2, 0.01, 0.0, 0.0, 1.0))
        if update == 1:
            until(3)
    reporter.handle(Stopped())

    assert [report.update for report in reports] == [0, 0, 1, 3]


@pytest.mark.fault("O16")
def test_a_trainer_that_has_nothing_new_reports_all_the_same(
    small_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits or evaluates, so that its silence means something."""
    monkeypatch.setattr(sinks_report, "PERIOD_SECONDS", 0.001)
    monkeypatch.setattr(sinks_report, "LONGEST_PERIOD_SECONDS", 0.001)
    reports: list[Progress] = []
    has_four = threading.Event()

    def deliver(text: str) -> None:
        reports.append(Progress.from_json(text))
        if len(reports) == 4:
            has_four.set()

    reporter = Reporter(deliver)
    reporter.handle(Started("small", make_plan(small_job().spec), Position()))
    assert has_four.wait(60)
    reporter.handle(Stopped())

    assert [report.beat for report in reports[:4]] == [1, 2, 3, 4]
    assert all(replace(report, beat=1) == reports[0] for report in reports)


def test_an_earlier_run_that_did_every_update_is_reported(tmp_path: Path, small_job: MakeJob) -> None:
    """A job that was deleted and made again with the same place for its checkpoints has no report of that run."""
    job = small_job()
    summary = train(job, Options(output_dir=tmp_path))
    reporter = Reporter(lambda _: None)
    assert summary == train(job, Options(output_dir=tmp_path, resume=True), [reporter])
    reporter.handle(Stopped())

    plan = make_plan(job.spec)
    told = Progress.from_json(reporter.newest)
    assert (told.update, told.epoch, told.stage) == (plan.updates, plan.epochs, len(plan.stages) - 1)
    assert (told.weights_sha256, told.loss) == (summary["weightsSha256"], summary["finalLoss"])
    assert told.metrics == summary["metrics"]
    assert told.checkpoint_update == plan.updates
    assert told.eta_seconds == 0.0


@pytest.mark.fault("O25")
def test_the_times_at_which_the_newest_stages_began_are_reported(small_job: MakeJob) -> None:
    reporter = Reporter(lambda _: None)
    reporter.handle(Started("small", make_plan(small_job().spec), Position()))
    row = HistoryRow(1, 0.1, 0, 8, 0.05, 0.7, 2, 1.0, 0.0, 0.0, 1.0)
    for update in range(40):
        reporter.handle(replace(row, update=update, stage=update // 2, committed_at=1000.0 + update))
    reporter.handle(Stopped())

    begun = Progress.from_json(reporter.newest).begun
    assert begun == {str(stage): 999.0 + 2 * stage for stage in range(4, 20)}


def test_the_last_report_is_repeated_where_the_kubelet_reads_it(tmp_path: Path) -> None:
    """If such a file is there and holds the whole report."""
    log = tmp_path / "termination-log"
    repeat("none", log)
    assert not log.exists(), "outside of a pod"

    log.touch()
    repeat('{"update": 2}', log)
    assert log.read_text() == '{"update": 2}'

    repeat("ä" * 2049, log)
    assert log.read_text() == '{"update": 2}', "4,096 bytes are read"
    repeat("ä" * 2048, log)
    assert log.read_text() == "ä" * 2048


def test_a_file_holds_the_newest_report(tmp_path: Path) -> None:
    """And no other file is left beside it."""
    write, count_start = to_file(tmp_path / "progress.json")
    assert count_start() == 0

    write('{"update": 1}')
    write('{"update": 2}')

    assert (tmp_path / "progress.json").read_text() == '{"update": 2}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["progress.json"]
    assert count_start() == 0, "a text that is no report numbers nothing"
    write(report(start=41))
    assert count_start() == 42


def report(start: int) -> str:
    """A report of that start."""
    made = Progress(
        update=1, updates=9, epoch=0.1, epochs=1, stage=0, batch_size=8, learning_rate=0.1, workers=1, start=start
    )
    return made.to_json()


@pytest.fixture
def api_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[tuple[str, str, dict[str, object]]]]]:
    """A server that keeps (path, token, body) of each PATCH; without TLS, which is the standard library's to test.

    A GET answers the `text` of `stored`.
    """
    seen: list[tuple[str, str, dict[str, object]]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            seen.append((self.path, self.headers["Authorization"], json.loads(body)))
            self.send_response(200 if "missing" not in self.path else 404)
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(stored["text"].encode())

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: None)
    real = "urllib.request.Request.__init__"
    original = __import__("urllib.request").request.Request.__init__
    monkeypatch.setattr(real, lambda self, url, **kw: original(self, url.replace("https:", "http:"), **kw))
    yield server.server_port, seen
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_config_map_is_patched(tmp_path: Path, api_server: tuple[int, list[tuple[str, str, object]]]) -> None:
    """With the current token, the report under its key, and only while the start that was claimed first is the last."""
    port, seen = api_server
    (tmp_path / "token").write_text("first\n")
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    stored["text"] = json.dumps({"metadata": {"resourceVersion": "7"}})
    patch, _ = to_config_map("team", "digits-progress", environment, tmp_path)

    patch("one")
    (tmp_path / "token").write_text("second")
    patch("two")

    path, held = (
        "/api/v1/namespaces/team/configmaps/digits-progress",
        {"op": "test", "path": "/data/start", "value": "0"},
    )
    assert [
        (path, "Bearer first", {"metadata": {"resourceVersion": "7"}, "data": {"start": "0"}}),
        (path, "Bearer first", [held, {"op": "add", "path": "/data/progress.json", "value": "one"}]),
        (path, "Bearer second", [held, {"op": "add", "path": "/data/progress.json", "value": "two"}]),
    ] == seen
    with pytest.raises(OSError, match="404"):
        to_config_map("team", "missing", environment, tmp_path)[0]("three")


@pytest.mark.fault("O01")
def test_a_proxy_in_the_environment_is_not_asked_for_the_api_server(
    tmp_path: Path, api_server: tuple[int, list[tuple[str, str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The company's, which a job's `env` names for its data, and which knows nothing of the cluster."""
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    port, seen = api_server
    (tmp_path / "token").write_text("token")
    stored["text"] = json.dumps({"metadata": {"resourceVersion": "7"}})
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    patch, _ = to_config_map("team", "digits-progress", environment, tmp_path)
    patch("one")
    assert 2 == len(seen)


def test_the_authority_of_the_api_server_may_be_replaced(tmp_path: Path) -> None:
    """The kubelet replaces ca.crt as it does the token, and a training outlasts many an authority."""

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"metadata": {"resourceVersion": "7"}}')

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    (tmp_path / "token").write_text("token")
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = served.wrap_socket(server.socket, server_side=True)
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
        patch, _ = to_config_map("team", "digits-progress", environment, tmp_path)
        with pytest.raises(FileNotFoundError):
            patch("the kubelet is late")

        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            for report in ("one", "two"):
                authority = trustme.CA()
                authority.issue_cert("127.0.0.1").configure_cert(served)
                authority.cert_pem.write_to_path(tmp_path / "ca.crt")
                patch(report)
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("broken", [IncompleteRead(b"{"), BadStatusLine("garbage")], ids=repr)
def test_an_answer_that_is_broken_is_an_error_that_may_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: HTTPException
) -> None:
    """Or the thread of the reports would end by it, since it waits for none but OSErrors to pass."""

    def answer(*_given: object, **_options: object) -> None:
        raise broken

    monkeypatch.setattr("urllib.request.OpenerDirector.open", answer)
    monkeypatch.setattr("ssl.create_default_context", lambda cafile: None)
    (tmp_path / "token").write_text("token")
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "9"}
    patch, _ = to_config_map("team", "digits-progress", environment, tmp_path)
    with pytest.raises(OSError, match=type(broken).__name__):
        patch("one")


@pytest.mark.fault("B14")
@pytest.mark.parametrize(
    ("annotations", "data", "number"),
    [
        (None, None, 0),
        (None, {"progress.json": report(start=3)}, 4),
        ({LAST_START: "7"}, {"progress.json": report(start=3)}, 8),
        ({LAST_START: "7"}, None, 8),
        ({LAST_START: "2"}, {"progress.json": report(start=1_795_000_000)}, 1_795_000_001),  # an older trainer's time
        ({LAST_START: "2"}, {"progress.json": report(start=2**60)}, 3),
        ({LAST_START: "-2"}, {"progress.json": "nonsense"}, 0),
        (None, {"progress.json": report(start=2**53)}, 2**53),
        ({LAST_START: "7"}, {"progress.json": report(start=3), "start": "9"}, 10),  # claimed, and not yet reported
        (None, {"start": "9" * 5000}, 0),
    ],
)
def test_a_start_is_numbered_after_all_that_are_known(
    tmp_path: Path, api_server: Any, annotations: Any, data: Any, number: int
) -> None:
    """By no clock: that of a trainer's node may be behind."""
    port, _ = api_server
    (tmp_path / "token").write_text("token")
    stored["text"] = json.dumps({"metadata": {"annotations": annotations}, "data": data})
    environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    _, count_start = to_config_map("team", "digits-progress", environment, tmp_path)
    assert number == count_start() == count_start()
    stored["text"] = "<html>"
    with pytest.raises(OSError, match="not a ConfigMap"):
        to_config_map("team", "digits-progress", environment, tmp_path)[1]()


def test_nothing_is_delivered_before_the_start_has_its_number(tmp_path: Path, small_job: MakeJob) -> None:
    numbers, arrived = iter([OSError("away"), OSError("away"), 5]), list[Progress]()

    def count_start() -> int:
        number = next(numbers)
        if isinstance(number, OSError):
            raise number
        return number

    reporter = Reporter(lambda text: arrived.append(Progress.from_json(text)), count_start)
    train(small_job(), Options(output_dir=tmp_path), [reporter])
    assert {one.start for one in arrived} == {5}


def test_another_plan_is_refused(tmp_path: Path, small_job: MakeJob) -> None:
    """An operator and a trainer of different versions are noticed before training."""
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(make_plan(small_job().spec).to_json()))

    assert make_plan(small_job().spec) == checked_plan(small_job(), path)

    with pytest.raises(PlanError, match="another plan"):
        checked_plan(small_job("epochs=5"), path)
    with pytest.raises(PlanError, match="cannot be read"):
        checked_plan(small_job(), tmp_path / "absent.json")


def test_the_trainer_of_a_pod(tmp_path: Path, small_job: MakeJob) -> None:
    """`python -m batchgrowth_trainer` trains its job, and resuming a finished run is quick and quiet."""
    job = small_job()
    (tmp_path / "job.json").write_text(job.model_dump_json(by_alias=True, exclude_none=True))
    (tmp_path / "plan.json").write_text(json.dumps(make_plan(job.spec).to_json()))
    command = [sys.executable, "-m", "batchgrowth_trainer", "--job", "job.json", "--plan", "plan.json"]
    command += ["--output-dir", "checkpoints", "--metrics-port", "0"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1] / "user_code")}

    for _ in range(2):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr

    told = Progress.from_json((tmp_path / "checkpoints" / "progress.json").read_text())
    assert make_plan(job.spec).updates == told.update
    assert (tmp_path / "checkpoints" / "summary.json").exists()

    def refused(code: int, text: str) -> None:
        ended = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert code == ended.returncode
        assert text in ended.stderr
        assert "Traceback" not in ended.stderr

    command[command.index("checkpoints")] = "job.json"
    refused(CheckpointError.exit_code, "--output-dir job.json: ")
    (tmp_path / "plan.json").write_text("{}")
    refused(PlanError.exit_code, "another plan")


@pytest.mark.parametrize("loading", ["batchgrowth.cli", "torch"])
def test_a_trainer_that_still_loads_ends_at_once(tmp_path: Path, small_job: MakeJob, loading: str) -> None:
    """The first process of a container ignores signals without a handler, and would begin to train."""
    job = small_job()
    (tmp_path / "job.json").write_text(job.model_dump_json(by_alias=True, exclude_none=True))
    (tmp_path / "plan.json").write_text(json.dumps(make_plan(job.spec).to_json()))
    code = f"""
import os, runpy, sys

class Eviction:
    def find_spec(self, name, *_):
        if name == "{loading}":
            os.kill(os.getpid(), {signal.SIGTERM.value})

sys.meta_path.insert(0, Eviction())
sys.argv[1:] = ["--job", "job.json", "--plan", "plan.json", "--output-dir", "checkpoints", "--metrics-port", "0"]
runpy.run_module("batchgrowth_trainer", run_name="__main__", alter_sys=True)
"""
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)

    assert ended.returncode == Interrupted.exit_code
    assert "Traceback" not in ended.stderr
