"""A run whose checkpoints are in an object store: the same weights and the same files as with a folder."""

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record import remote, storage
from batchgrowth_trainer.sinks.events import CheckpointFailed, CheckpointSaved, Event
from batchgrowth_trainer.training import Options, train

URI = "s3://runs/small"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails is given up soon."""
    monkeypatch.setitem(remote._RETRIES, "max_retries", 0)
    monkeypatch.setattr(storage, "_FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(storage, "READ_SECONDS", 0.2)
    monkeypatch.setattr(storage, "LAST_SECONDS", 0.2)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[str], Options]:
    """A function: the options of a trainer whose pod has a new folder of this name."""
    return lambda name: Options(output_dir=tmp_path / name, resume=True, checkpoint_uri=URI)


class Sink:
    """Counts checkpoints, and calls `act` after each event."""

    def __init__(self, act: Callable[["Sink"], None]) -> None:
        self.saved = self.failed = 0
        self._act = act

    def handle(self, event: Event) -> None:
        self.saved += isinstance(event, CheckpointSaved)
        self.failed += isinstance(event, CheckpointFailed)
        self._act(self)


def updates(folder: Path) -> list[int]:
    with (folder / "history.csv").open() as file:
        return [int(row["update"]) for row in csv.DictReader(file)]


@pytest.mark.fault("D06", "D19")
def test_a_run_that_ends_and_goes_on_elsewhere_has_the_same_weights_and_history(
    s3: Any, small_job: Any, tmp_path: Path, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: run.position.update % 3 == 2)
    job = small_job("optimizer={type: Adam, adam: {}}")
    expected = train(job, Options(output_dir=tmp_path / "alone"))

    def stop(sink: Sink) -> None:
        if sink.saved == 4:
            raise KeyboardInterrupt

    for number in range(2):
        with pytest.raises(KeyboardInterrupt):
            train(job, stored(f"pod-{number}"), [Sink(stop)])
    done = train(job, stored("last"))
    assert expected["weightsSha256"] == done["weightsSha256"]
    assert list(range(1, done["updates"] + 1)) == updates(tmp_path / "last")
    kept = {name: s3.objects[f"small/{name}"][0] for name in ("history.csv", "evaluations.csv", "model.safetensors")}
    assert kept == {name: (tmp_path / "last" / name).read_bytes() for name in kept}
    assert len([name for name in s3.names if name.startswith("small/states/")]) == 3

    assert done == train(job, stored("again"))


@pytest.mark.fault("D19")
def test_a_store_that_fails_for_a_while_costs_checkpoints_and_nothing_else(
    s3: Any, small_job: Any, tmp_path: Path, stored: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: run.position.update % 3 == 2)

    def disturb(sink: Sink) -> None:
        s3.failure = (503, "SlowDown") if sink.saved == 2 and sink.failed < 3 else None

    sink = Sink(disturb)
    done = train(small_job(), stored("pod"), [sink])
    assert sink.failed == 3
    assert sink.saved > 3
    assert done["weightsSha256"] == train(small_job(), Options(output_dir=tmp_path / "alone"))["weightsSha256"]


@pytest.mark.fault("D19")
@pytest.mark.parametrize(
    ("failure", "kind", "words"),
    [
        ((403, "AccessDenied"), CheckpointError, "s3://runs/small: README.txt cannot be written: access is denied"),
        ((404, "NoSuchBucket"), CheckpointError, "there is no such bucket"),
        ((503, "SlowDown"), StorageError, "the store fails for now"),
    ],
    ids=["denied", "no bucket", "failing"],
)
def test_a_store_that_cannot_be_used_ends_the_run_before_an_update(
    s3: Any, small_job: Any, tmp_path: Path, stored: Any, failure: tuple[int, str], kind: Any, words: str
) -> None:
    s3.failure = failure
    with pytest.raises(kind, match=words) as raised:
        train(small_job(), stored("pod"))
    assert kind is type(raised.value)
    assert not (tmp_path / "pod" / "history.csv").exists()


@pytest.mark.fault("D19")
def test_results_that_cannot_be_kept_leave_a_checkpoint_from_which_they_are_written_again(
    s3: Any, small_job: Any, stored: Any
) -> None:
    def disturb(sink: Sink) -> None:
        s3.failure = (503, "SlowDown") if sink.saved else None

    with pytest.raises(
        StorageError, match=r"job\.yaml cannot be written: the store fails for now \(HTTP 503 SlowDown\)"
    ):
        train(small_job(), stored("pod"), [Sink(disturb)])
    s3.failure = None
    assert "small/summary.json" not in s3.names
    done = train(small_job(), stored("next"))
    assert "small/summary.json" in s3.names
    assert 0 < done["updates"]


@pytest.mark.fault("D19")
def test_a_longer_training_whose_results_were_not_kept_does_not_end_with_the_results_of_the_shorter_one(
    s3: Any, small_job: Any, tmp_path: Path, stored: Any
) -> None:
    """Its trainer was killed after the last checkpoint; the summary in the store is that of the shorter training."""
    longer = small_job("epochs=5")
    expected = train(longer, Options(output_dir=tmp_path / "alone"))
    shorter = train(small_job(), stored("shorter"))

    def disturb(event: Event) -> None:
        if isinstance(event, CheckpointSaved) and event.update == expected["updates"]:
            s3.failure = (503, "SlowDown")

    with pytest.raises(StorageError, match="the store fails for now"):
        train(longer, stored("killed"), [SimpleNamespace(handle=disturb)])
    s3.failure = None
    assert shorter["weightsSha256"].encode() in s3.objects["small/summary.json"][0]
    done = train(longer, stored("next"))
    assert (expected["updates"], expected["weightsSha256"]) == (done["updates"], done["weightsSha256"])
    assert done["weightsSha256"].encode() in s3.objects["small/summary.json"][0]
