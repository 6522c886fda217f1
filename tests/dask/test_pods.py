"""A trainer whose pods come and go uses the workers that are ready, waits if none is, and trains the same weights."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import Interrupted

JOB = (
    "epochs=6",
    "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}",
    "workers.maximum=1",
    "exchange.timeoutSeconds=20",
)
SLOW = ("workload.entrypoint=slow_digits:workload", "workload.arguments={seconds: '0.1'}")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory, digits_weights: Callable[..., str]) -> str:
    """The weights of one undisturbed process."""
    return digits_weights(tmp_path_factory.mktemp("alone"), *JOB, "workload.arguments={hidden: '8'}")


@pytest.mark.fault("C11", "C14", "C17")
@pytest.mark.sampled(1)
def test_workers_join_and_leave(pods: Any, digits_job: Any, expected: str, exchange: str) -> None:
    """Every ready worker is used, whatever the plan wants, and SIGTERM to a worker costs no update."""
    pods.scheduler()
    first = pods.worker()
    trainer = pods.trainer(digits_job(*JOB, *SLOW, f"exchange.type={exchange}"))
    pods.until(lambda: pods.is_trained_by(1))
    others = [pods.worker() for _ in range(2)]
    pods.until(lambda: pods.is_trained_by(3))

    assert pods.terminated(first, others[0]) == [0, 0]
    pods.until(lambda: pods.is_trained_by(1))

    assert pods.terminated(others[1]) == [0]
    pods.until(lambda: pods.waits_for("a worker"))
    pods.worker()
    assert trainer.wait(timeout=120) == 0
    assert pods.check(expected)["recoveries"] == 0


def test_the_code_of_a_source_is_found_by_trainer_and_workers(pods: Any, digits_job: Any, expected: str) -> None:
    """In a package of the mounted folder, which no path of theirs names; a worker that joins later finds it too.

    The scheduler imports neither it nor torch, which would take half a gigabyte.
    """
    package = pods.folder / "source" / "own"
    package.mkdir(parents=True)
    (package / "settings.py").write_text('HIDDEN = "8"\n')
    (package / "net.py").write_text(
        "from batchgrowth_trainer.workloads import digits\n\nfrom own.settings import HIDDEN\n\n\n"
        "def workload():\n    return digits.workload(hidden=HIDDEN)\n"
    )
    scheduler = pods.scheduler()
    job = digits_job(*JOB, "workload.entrypoint=own.net:workload", "workload.source={configMap: own}")
    trainer = pods.trainer(job, "--source", str(package.parent))
    pods.worker()

    assert trainer.wait(timeout=120) == 0
    pods.check(expected)
    if sys.platform == "linux":
        assert "libtorch" not in Path(f"/proc/{scheduler.pid}/maps").read_text()


@pytest.mark.fault("B19", "C03")
@pytest.mark.sampled(1)
def test_a_scheduler_that_dies_and_comes_back(pods: Any, digits_job: Any, expected: str, exchange: str) -> None:
    scheduler, workers = pods.scheduler(), [pods.worker(), pods.worker()]
    trainer = pods.trainer(digits_job(*JOB, *SLOW, f"exchange.type={exchange}", "checkpoint.everySeconds=1"))
    pods.until(lambda: pods.is_trained_by(2) and pods.progress.checkpoint_update)

    scheduler.kill()
    for worker in workers:
        worker.wait(timeout=60)
    pods.until(lambda: pods.waits_for("the Dask scheduler"))
    pods.scheduler()
    pods.until(lambda: pods.waits_for("a worker"))
    pods.worker()
    assert trainer.wait(timeout=120) == 0
    pods.check(expected)


@pytest.mark.fault("C21")
def test_the_certificates_of_a_running_job_are_replaced(pods: Any, digits_job: Any, expected: str) -> None:
    """By those of another authority: a worker that starts afterwards joins, and trains with the one from before."""
    pods.scheduler()
    pods.worker()
    trainer = pods.trainer(digits_job(*JOB, *SLOW))
    pods.until(lambda: pods.is_trained_by(1))

    pods.issue()
    pods.worker()

    pods.until(lambda: pods.is_trained_by(2))
    assert trainer.wait(timeout=120) == 0
    assert pods.check(expected)["recoveries"] == 0


def test_a_trainer_that_waits_can_be_stopped(pods: Any, digits_job: Any) -> None:
    trainer = pods.trainer(digits_job(*JOB))
    pods.until(lambda: pods.waits_for("the Dask scheduler"))
    assert [Interrupted.exit_code] == pods.terminated(trainer)

    pods.scheduler()
    trainer = pods.trainer(digits_job(*JOB))
    pods.until(lambda: pods.waits_for("a worker"))
    assert [Interrupted.exit_code] == pods.terminated(trainer)
    assert "Traceback" not in pods.text()


def test_a_worker_without_a_trainer_ends_soon(pods: Any, digits_job: Any) -> None:
    pods.scheduler()
    worker, trainer = pods.worker(), pods.trainer(digits_job(*JOB, *SLOW))
    pods.until(lambda: pods.is_trained_by(1))
    trainer.kill()
    trainer.wait()
    began = time.monotonic()
    assert pods.terminated(worker) == [0]
    assert time.monotonic() - began < 20


def test_a_worker_that_still_loads_or_has_no_scheduler_ends_at_once(pods: Any) -> None:
    """The first process of a container ignores signals without a handler, and would start to train."""
    code = "import os; from batchgrowth_trainer.worker import exits; exits.exit_when_asked(); os.kill(os.getpid(), 15)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0

    worker = pods.worker()
    pods.until(lambda: "Start worker at" in pods.text() or "Run preload setup" in pods.text())
    assert pods.terminated(worker) == [0]
