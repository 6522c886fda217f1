"""An error that ends a training ends it after the newest committed state is saved, wherever it is raised."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import breaking
import pytest
from batchgrowth.errors import BatchGrowthError, WorkloadError
from batchgrowth_trainer.api import load
from batchgrowth_trainer.record.history import HistoryRow
from batchgrowth_trainer.sinks.events import Event, Note
from batchgrowth_trainer.training import Options, train

JOB = (
    "workload.entrypoint=breaking:workload",
    "optimizer={type: Torch, torch: {optimizer: 'breaking:Optimizer'}}",
    "batch.growth={type: Custom, looks: {everyUpdates: 5, leastChange: '1.01'},"
    " custom: {entrypoint: 'breaking:growth', memory: 2}}",
)


class Breaker:
    """A sink that breaks a place after an update, and keeps what the user is told."""

    def __init__(self, place: str, update: int) -> None:
        self.place = place
        self.update = update
        self.committed = 0
        self.notes: list[str] = []

    def handle(self, event: Event) -> None:
        if isinstance(event, Note):
            self.notes.append(event.text)
        if isinstance(event, HistoryRow):
            self.committed = event.update
            if event.update == self.update:
                breaking.BROKEN = self.place


@pytest.fixture(autouse=True)
def _whole() -> Iterator[None]:
    yield
    breaking.BROKEN = ""


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights of each exchange's undisturbed run, filled by `expected`."""
    return {}


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name.split("-")[1]) for path in (folder / "checkpoints").glob("update-*"))


@pytest.mark.fault("N03")
@pytest.mark.parametrize("place", breaking.PLACES)
def test_an_error_in_the_users_code(small_job: Any, tmp_path: Path, undisturbed: dict[str, str], place: str) -> None:
    job = small_job(*JOB)
    if not undisturbed:
        undisturbed["SHA-256"] = train(job, Options(output_dir=tmp_path / "whole"))["weightsSha256"]
    folder, breaker = tmp_path / "broken", Breaker(place, 7)

    with pytest.raises(BatchGrowthError) if place != "state_dict" else pytest.raises(breaking.Broken):
        train(job, Options(output_dir=folder), [breaker])

    assert breaker.committed >= 7
    assert [breaker.committed] == saved(folder)
    assert (
        f"the checkpoint of update {breaker.committed} is in {folder}, and --resume continues from it" in breaker.notes
    )
    breaking.BROKEN = ""
    assert undisturbed["SHA-256"] == train(job, Options(output_dir=folder, resume=True))["weightsSha256"]


@pytest.mark.fault("T11")
def test_a_loss_that_is_not_finite(small_job: Any, tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"update (\d+) .* is not finite") as raised:
        train(small_job("workload.entrypoint=small:diverging"), Options(output_dir=tmp_path))
    failed = int(str(raised.value).split()[1])
    assert [failed - 1] == saved(tmp_path)


def test_metrics_and_test_sets_are_tried_before_the_first_update(small_job: Any, tmp_path: Path) -> None:
    for place in ("read of the test set", "metric", "whole-set metric"):
        breaking.BROKEN = place
        with pytest.raises(BatchGrowthError, match=place) as raised:
            train(small_job(*JOB), Options(output_dir=tmp_path))
        assert not saved(tmp_path)
        if place.startswith("read"):
            assert "example 0 of Rows, test of the workload: Broken: read of the test set" in str(raised.value)
            assert str(raised.value).endswith("read it alone in Python to see the whole traceback: test[0]")


@pytest.mark.fault("T17")
def test_a_metric_that_is_not_a_number(small_job: Any, tmp_path: Path) -> None:
    seen = Breaker("", 0)
    summary = train(small_job("workload.entrypoint=breaking:not_a_number"), Options(output_dir=tmp_path), [seen])

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is not JSON")

    written = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert written["accuracy"] is None
    assert summary["accuracy"] is None
    cells = csv.DictReader((tmp_path / "evaluations.csv").read_text().splitlines())
    assert [row["accuracy"] for row in cells] == [""] * 4
    assert load(tmp_path).evaluations["accuracy"].isna().all()
    assert sum("accuracy is nan, which is no finite number" in note for note in seen.notes) == 1
