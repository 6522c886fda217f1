"""Many workers on few cores: each is slow to start and to answer, and none is given up for that."""

from pathlib import Path
from typing import Any

import pytest
from batchgrowth_trainer.sinks.events import Event, Note
from batchgrowth_trainer.training import Options, train

CREWS = [
    pytest.param((5, 25, 40), id="40"),
    pytest.param((5, 25, 125), id="125", marks=pytest.mark.long),
    pytest.param((4, 16, 64, 256), id="256", marks=[pytest.mark.long, pytest.mark.apart]),  # takes 10 GB
]
"""The numbers of workers after the first one, each the same multiple of the one before."""


class Notes:
    """A sink that keeps the lines for the user."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Note):
            self.lines.append(event.text)


@pytest.mark.fault("C09", "C12")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("crews", CREWS)
def test_many_workers_on_few_cores(digits_job: Any, tmp_path: Path, crews: tuple[int, ...]) -> None:
    """One worker, and in steps all of them: the weights of one process, and no worker is restarted."""
    factor, most, shard = crews[0], crews[-1], 10 if crews[-1] <= 125 else 5
    growth = f"growth: {{type: Geometric, geometric: {{factor: '{factor}', everyEpochs: 1}}}}"
    job = (
        "workload.entrypoint=batchgrowth_trainer.workloads.digits:mlp",
        "workload.arguments={hidden: '32'}",
        f"epochs={len(crews) + 2}",
        f"batch={{initial: {shard}, maximum: {shard * most}, shard: {shard}, {growth}}}",
        f"workers={{examplesPerWorker: {shard}, maximum: {most}, waitSeconds: 900}}",
    )
    alone = train(digits_job(*job, "exchange.type=SingleProcess"), Options(output_dir=tmp_path / "alone"))
    notes = Notes()

    summary = train(digits_job(*job), Options(output_dir=tmp_path / "many"), [notes])

    assert alone["weightsSha256"] == summary["weightsSha256"]
    assert [*crews] == [resize["to"] for resize in summary["resizes"]]
    assert summary["recoveries"] == 0
    assert [line for line in notes.lines if "does not answer" in line] == []
