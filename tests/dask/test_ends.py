"""Every process ends soon after SIGTERM, even if the scheduler ended first, hangs, or ends at the same time."""

import signal
import subprocess
import sys
import time
from typing import Any

import pytest
from batchgrowth.errors import Interrupted

JOB = (
    "epochs=100",
    "batch={initial: 128, maximum: 128, shard: 32, growth: {type: Constant}}",
    "workers.maximum=1",
    "workload.entrypoint=slow_digits:workload",
    "workload.arguments={seconds: '0.1'}",
)
LATE = 20.0  # seconds of a worker pod's grace period of 60 s; the rest is for a busy machine
TRAINER_LATE = 60.0  # of the trainer's 120 s: it looks for the newest state until it knows that nobody has it


def seconds_to_go(*processes: subprocess.Popen[bytes]) -> list[float]:
    """Seconds from a SIGTERM to all of them until each has ended, at most TRAINER_LATE."""
    began = time.monotonic()
    for process in processes:
        process.send_signal(signal.SIGTERM)
    ends: dict[int, float] = {}
    while len(ends) < len(processes) and time.monotonic() - began < TRAINER_LATE:
        time.sleep(0.02)
        ends |= {p.pid: time.monotonic() - began for p in processes if p.poll() is not None and p.pid not in ends}
    return [round(ends.get(process.pid, TRAINER_LATE), 1) for process in processes]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_the_scheduler_ends_first(pods: Any, digits_job: Any, exchange: str, end: signal.Signals) -> None:
    scheduler, worker, idle = pods.scheduler(), pods.worker(), None
    trainer = pods.trainer(digits_job(*JOB, f"exchange.type={exchange}", "checkpoint.everySeconds=1"))
    pods.until(lambda: pods.is_trained_by(1) and pods.progress.checkpoint_update)
    idle = pods.worker()
    pods.until(lambda: pods.is_trained_by(2))

    scheduler.send_signal(end)
    if end != signal.SIGSTOP:
        scheduler.wait(timeout=60)
    took = seconds_to_go(worker, idle, trainer)

    assert max(took[:2]) < LATE, took
    assert took[2] < TRAINER_LATE, took
    assert Interrupted.exit_code == trainer.returncode, pods.text()
    # Python handles no signals once its interpreter is finalizing.
    assert {worker.returncode, idle.returncode} <= {0, -signal.SIGTERM}


def test_all_end_at_once(pods: Any, digits_job: Any) -> None:
    """As in a namespace that is deleted."""
    scheduler, workers = pods.scheduler(), [pods.worker(), pods.worker()]
    trainer = pods.trainer(digits_job(*JOB))
    pods.until(lambda: pods.is_trained_by(2))
    took = seconds_to_go(scheduler, trainer, *workers)
    assert max(took[1:]) < LATE, took
    assert Interrupted.exit_code == trainer.returncode


@pytest.mark.fault("D18")
@pytest.mark.parametrize("stream", ["sys.stdout.close()", "os.close(1)"])
def test_a_process_ends_with_its_code_though_its_output_is_closed(stream: str) -> None:
    code = (
        "import os, sys; from batchgrowth_trainer.worker.exits import end_unfinalized\n"
        f"end_unfinalized(lambda: True, 7); print('x'); {stream}"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, stdout=subprocess.DEVNULL)
    assert ended.returncode == 7


@pytest.mark.fault("D18")
def test_a_process_ends_even_if_a_thread_hangs() -> None:
    """Also if its last output cannot be written."""
    code = (
        "import asyncio, os, sys; from batchgrowth_trainer.worker.exits import end_within\n"
        "print('x' * 100_000, flush=False); sys.stdout.flush = lambda: asyncio.run(asyncio.Event().wait())\n"
        "end_within(0.2, 7); asyncio.run(asyncio.Event().wait())"
    )
    ended = subprocess.run([sys.executable, "-c", code], timeout=60, check=False, stdout=subprocess.DEVNULL)
    assert ended.returncode == 7
