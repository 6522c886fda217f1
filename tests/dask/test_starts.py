"""Workers that live are waited for; workers that cannot start end the run within seconds, with the first cause."""

import multiprocessing
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import BatchGrowthError, ClusterError
from batchgrowth_trainer.pool import local_cluster, starts
from batchgrowth_trainer.sinks.events import Event, Waiting
from batchgrowth_trainer.training import Options, train

ROOT = Path(__file__).parents[2]
CODE = Path(__file__).parent / "user_code"


class Waits:
    """Makes the file for which the workload waits once a line says what it does."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.line = ""

    def handle(self, event: Event) -> None:
        if isinstance(event, Waiting) and "starting_badly" in event.cause:
            self.line = event.cause
            self.file.touch()


def job(digits_job: Any, function: str, more: str = "") -> Any:
    workload = f"workload={{entrypoint: 'starting_badly:{function}', examples: 1437{more}}}"
    return digits_job("epochs=1", "workers.maximum=1", workload)


@pytest.mark.smoke
@pytest.mark.fault("N02")
def test_a_worker_that_loads_for_long_is_waited_for(
    digits_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starts, "ASK_SECONDS", 0.5)
    monkeypatch.setattr(starts, "FIRST_LINE_SECONDS", 2.0)
    waits = Waits(tmp_path / "loaded")
    slow = job(digits_job, "slow", f", arguments: {{until: '{waits.file}'}}")
    train(slow, Options(output_dir=tmp_path / "run", paths=(str(CODE),)), [waits])
    assert re.search(rf"has prepared for .*, now at {re.escape(str(CODE))}/starting_badly\.py:\d+, in load", waits.line)


@pytest.mark.smoke
@pytest.mark.fault("T09")
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("function", "kind", "cause"),
    [
        ("crashing", ClusterError, r"was killed by signal 11 \(SIGSEGV\) at .*starting_badly\.py:\d+, in <lambda>"),
        ("exiting", ClusterError, "exited with code 3"),
        ("killed", ClusterError, r"was killed by signal 9 \(SIGKILL\)"),
        ("unpicklable", BatchGrowthError, "Odd: odd"),
    ],
)
def test_workers_that_cannot_start_end_the_run(
    digits_job: Any, tmp_path: Path, function: str, kind: type[BatchGrowthError], cause: str
) -> None:
    with pytest.raises(kind, match=cause):
        train(job(digits_job, function), Options(output_dir=tmp_path, paths=(str(CODE),)))


def refuse(*_: Any) -> None:
    raise OSError(30, "Read-only file system")


@pytest.mark.fault("T09")
@pytest.mark.parametrize(
    ("owner", "name", "cause"),
    [
        (multiprocessing, "Lock", r"no semaphore can be made.*Read-only file system.*/dev/shm"),
        (socket.socket, "connect", r"cannot connect to each other.*`ip link set lo up`"),
    ],
    ids=["a folder of semaphores that is read-only", "a loopback interface that is down"],
)
def test_a_machine_on_which_processes_cannot_meet(
    digits_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, cause: str
) -> None:
    """As in a sandbox: told before anything is started."""
    monkeypatch.setattr(owner, name, refuse)
    with pytest.raises(ClusterError, match=cause):
        train(digits_job("epochs=1"), Options(output_dir=tmp_path / "run"))


def test_the_first_cause_of_a_start_that_fails() -> None:
    """Dask raises an AssertionError while it handles the error."""

    def start() -> None:
        try:
            refuse()
        finally:
            assert not refuse

    with pytest.raises(AssertionError) as caught:
        start()
    assert "Read-only" in str(local_cluster._first_of(caught.value))


@pytest.mark.fault("G01")
def test_whoever_started_it_blocks_all_signals(tmp_path: Path) -> None:
    """A run ends all the same: the server that forks workers learns of their ends by SIGCHLD."""
    command = [sys.executable, "-m", "batchgrowth", "run", "examples/digits.yaml", "--workers", "2"]
    options = ["--set", "epochs=1", "--output-dir", str(tmp_path / "run")]

    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    done = subprocess.run([*command, *options], cwd=ROOT, preexec_fn=block, timeout=240, check=False)
    assert done.returncode == 0
