"""The log of driver and workers: silent unless it is turned on."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.logs import DASK_LEVEL_VARIABLE, FORMAT_VARIABLE, LEVEL_VARIABLE

DIGITS = Path(__file__).parents[2] / "examples" / "digits.yaml"
JOB = ("epochs=1", "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}", "workers.maximum=1")
WORKER_STARTS = "Start worker at"
DRIVER_STARTS = "Receive client connection"

Log = Callable[..., str]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    """A function: what `batchgrowth run` with these options writes to stderr."""

    def run(*options: str) -> str:
        command = [str(Path(sys.executable).with_name("batchgrowth")), "run", str(DIGITS), "--output-dir", tmp_path]
        overrides = [f"--set={each}" for each in JOB]
        done = subprocess.run(
            [*command, "--no-plots", *overrides, *options], capture_output=True, text=True, timeout=120, check=True
        )
        assert "weights SHA-256" in done.stdout
        return done.stderr

    return run


def test_a_run_logs_nothing_by_default(log: Log) -> None:
    assert log() == ""


def test_at_debug_a_run_logs_its_own_lines_and_none_of_dasks(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option overrides the environment, in the workers too."""
    monkeypatch.setenv(LEVEL_VARIABLE, "error")
    text = log("--log-level", "debug")

    assert "INFO batchgrowth_trainer.worker.service: digits: preparing a member" in text
    assert "INFO batchgrowth_trainer.drivers.generations: digits, update 0: generation 1, workers: 1" in text
    assert WORKER_STARTS not in text
    assert DRIVER_STARTS not in text


def test_dasks_messages_have_a_level_of_their_own(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the driver and its workers, without ours."""
    monkeypatch.setenv(DASK_LEVEL_VARIABLE, "error")
    text = log("--dask-log-level", "debug")

    assert not re.search("(INFO|DEBUG) batchgrowth_trainer", text)
    assert f"INFO distributed.worker:       {WORKER_STARTS}" in text
    assert f"INFO distributed.scheduler: {DRIVER_STARTS}" in text
    assert "DEBUG distributed.core: " in text


def test_json_is_one_object_per_line(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    records = [json.loads(line) for line in log("--log-level", "info", "--dask-log-level", "info").splitlines()]

    messages = " ".join(record["message"] for record in records)
    assert WORKER_STARTS in messages
    assert DRIVER_STARTS in messages
    assert {"level", "logger", "message", "timestamp"} <= set.intersection(*(set(record) for record in records))
    ours = [record for record in records if record["logger"].startswith("batchgrowth")]
    assert ours
    assert [record for record in ours if record["level"] != "INFO"] == [], "Dask alone may complain when it closes"


def test_pods_take_their_settings_from_the_environment(
    pods: Any, digits_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "debug")
    monkeypatch.setenv(DASK_LEVEL_VARIABLE, "debug")
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    pods.scheduler()
    worker = pods.worker()

    assert pods.trainer(digits_job(*JOB)).wait(timeout=120) == 0

    pods.terminated(worker)
    _, of_worker, of_trainer = (path.read_text() for path in sorted(pods.folder.glob("*.txt")))
    assert WORKER_STARTS in " ".join(record["message"] for record in objects(of_worker))
    assert {"distributed.client", "batchgrowth_trainer.sinks.events"} <= {one["logger"] for one in objects(of_trainer)}


HAPPENED = {
    "start": r"digits, update 0: starts a plan of 140 updates in 2 stages",
    "resize asked": r"digits, update \d+: workers requested: 2 \(before: 1; now training: 1\); this stage needs",
    "registration": r"digits, update \d+: worker \w+://\S+ has registered",
    "join": r"digits, update \d+: worker \w+://\S+, \S+ on \S+, joins",
    "first generation": r"digits, update 0: generation 1, workers: 1: training begins",
    "later generation": r"digits, update \d+: generation \d+, workers: 2: (generation \d+ reached|1 more)",
    "member": r"digits, update \d+: generation \d+ begins, rank 1 of 2",
    "resize done": r"digits, update \d+: workers 1 → 2, a pause of \d+ ms",
    "checkpoint": r"digits, update \d+: checkpoint of update \d+ written: [\d,]+ bytes in",
    "evaluation": r"digits, update \d+: evaluated after epoch 1: loss 0\.\d+",
    "leave": r"digits, update \d+: worker \w+://\S+ is gone",
    "loss": r"digits, update \d+: 1 of 2 workers were lost; going on",
    "retry": r"digits, update \d+: generation \d+, workers: \d: 1 of 2 workers were lost",
    "end": r"digits, update 140: finished; weights SHA-256 \w{64}",
}
"""What happens to a run whose batch grows and that loses a worker, each with the line of the log that says so."""


def test_at_debug_each_thing_that_happens_has_a_line(start: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "slow_digits.py").write_text((Path(__file__).parent / "user_code" / "slow_digits.py").read_text())
    (tmp_path / "job.yaml").write_text(DIGITS.read_text())
    overrides = (
        "workload={entrypoint: 'slow_digits:workload', examples: 1437, arguments: {seconds: '0.05'}}",
        "epochs=8",
        "batch={initial: 64, maximum: 128, shard: 64}",
        "batch.growth={type: Geometric, geometric: {factor: '2', everyEpochs: 4}}",
        "workers={examplesPerWorker: 64, maximum: 2}",
        "checkpoint.everySeconds=1",
    )
    run = start(tmp_path / "job.yaml", "--log-level", "debug", *(f"--set={each}" for each in overrides))
    run.until(lambda: run.says("workers 1 → 2"))
    run.until(run.workers)[0].kill()
    assert run.wait() == 0, run.text
    missing = [what for what, line in HAPPENED.items() if not re.search(line, run.text)]
    assert missing == [], run.text


def objects(text: str) -> list[dict[str, str]]:
    """The lines that are JSON."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
