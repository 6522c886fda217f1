"""Workers that live are waited for; workers that cannot start end the run within seconds, with the first cause."""

import re
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import BatchGrowthError, ClusterError
from batchgrowth_trainer.pool import starts
from batchgrowth_trainer.sinks.events import Event, Waiting
from batchgrowth_trainer.training import Options, train

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
