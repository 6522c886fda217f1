"""Many workers on few cores: each is slow to start and to answer, and none is given up for that."""

from pathlib import Path
from typing import Any

import pytest
from batchgrowth_trainer.sinks.events import Event, Note
from batchgrowth_trainer.training import Options, train

GROWTH = "growth: {type: Geometric, geometric: {factor: '5', everyEpochs: 1}}"


class Notes:
    """A sink that keeps the lines for the user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Note):
            self.lines.append(event.text)


@pytest.mark.fault("C09", "C12")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [40, pytest.param(125, marks=pytest.mark.long)])
def test_many_workers_on_few_cores(digits_job: Any, tmp_path: Path, workers: int) -> None:
    """One worker, then 5, 25, and all of them: the weights of one process, and no worker is restarted."""
    job = (
        "workload.entrypoint=batchgrowth_trainer.workloads.digits:mlp",
        "workload.arguments={hidden: '32'}",
        "epochs=5",
        f"batch={{initial: 10, maximum: {10 * workers}, shard: 10, {GROWTH}}}",
        f"workers={{examplesPerWorker: 10, maximum: {workers}, waitSeconds: 900}}",
    )
    alone = train(digits_job(*job, "exchange.type=SingleProcess"), Options(output_dir=tmp_path / "alone"))
    notes = Notes()

    summary = train(digits_job(*job), Options(output_dir=tmp_path / "many"), [notes])

    assert alone["weightsSha256"] == summary["weightsSha256"]
    assert [5, 25, workers] == [resize["to"] for resize in summary["resizes"]]
    assert 0 == summary["recoveries"]
    assert [] == [line for line in notes.lines if "does not answer" in line]
