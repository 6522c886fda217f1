"""The log of driver and workers: silent unless it is turned on."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.contract.logs import FORMAT_VARIABLE, LEVEL_VARIABLE

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
    assert "" == log()


def test_at_debug_the_driver_and_its_workers_log_what_dask_does(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """An option overrides the environment, in the workers too."""
    monkeypatch.setenv(LEVEL_VARIABLE, "error")
    text = log("--log-level", "debug")

    assert f"INFO distributed.worker:       {WORKER_STARTS}" in text
    assert f"INFO distributed.scheduler: {DRIVER_STARTS}" in text
    assert "DEBUG distributed.core: " in text


def test_json_is_one_object_per_line(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    records = [json.loads(line) for line in log("--log-level", "info").splitlines()]

    messages = " ".join(record["message"] for record in records)
    assert WORKER_STARTS in messages
    assert DRIVER_STARTS in messages
    assert {"level", "logger", "message", "timestamp"} <= set.intersection(*(set(record) for record in records))
    ours = [record for record in records if record["logger"].startswith("batchgrowth")]
    assert [] == [record for record in ours if record["level"] != "INFO"], "Dask alone may complain when it closes"


def test_pods_take_their_settings_from_the_environment(
    pods: Any, digits_job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(LEVEL_VARIABLE, "debug")
    monkeypatch.setenv(FORMAT_VARIABLE, "json")
    pods.scheduler()
    worker = pods.worker()

    assert 0 == pods.trainer(digits_job(*JOB)).wait(timeout=120)

    pods.terminated(worker)
    _, of_worker, of_trainer = (path.read_text() for path in sorted(pods.folder.glob("*.txt")))
    assert WORKER_STARTS in " ".join(record["message"] for record in objects(of_worker))
    assert "distributed.client" in {record["logger"] for record in objects(of_trainer)}


def objects(text: str) -> list[dict[str, str]]:
    """The lines that are JSON."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]
