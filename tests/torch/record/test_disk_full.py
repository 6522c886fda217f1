"""A disk that fills up while a run writes: a small file system, if this process may mount one."""

import errno
import mmap
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import StorageError
from batchgrowth_trainer.drivers.run import RunState
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.history import History
from batchgrowth_trainer.record.output import OutputFolder
from batchgrowth_trainer.sinks.events import CheckpointFailed, CheckpointSaved, Event
from batchgrowth_trainer.training import Options, train

PAGE = mmap.PAGESIZE


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last writes of a run are given up soon."""
    monkeypatch.setattr(storage, "_FIRST_WAIT_SECONDS", 0.05)
    monkeypatch.setattr(storage, "LAST_SECONDS", 0.2)


@pytest.mark.fault("D08")
def test_a_full_disk_ends_in_one_paragraph_and_after_making_room_the_run_goes_on(
    small_job: Any, small_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: run.position.update in (10, 20))
    whole = train(small_job(), Options(output_dir=tmp_path / "whole"))
    stuffing: list[Path] = []
    save = RunState.save

    def save_and_fill(run: RunState, snapshot: Any) -> None:
        save(run, snapshot)
        if snapshot.position.update == 10:
            stuffing.append(small_disk.fill())

    monkeypatch.setattr(RunState, "save", save_and_fill)
    with pytest.raises(StorageError, match="No space left on device") as raised:
        train(small_job(), Options(output_dir=small_disk.path / "run"))
    assert "\n" not in str(raised.value)
    assert [path.name for path in (small_disk.path / "run" / "checkpoints").iterdir()] == ["update-0000000010"]
    monkeypatch.setattr(RunState, "save", save)
    stuffing[0].unlink()
    again = train(small_job(), Options(output_dir=small_disk.path / "run", resume=True))
    assert whole["weightsSha256"] == again["weightsSha256"]


@pytest.mark.fault("D08")
@pytest.mark.parametrize("call", ["append", "append_evaluation", "sync", "close"])
def test_a_history_that_cannot_be_written_is_an_error_that_names_the_file(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write = getattr(History, call)

    def full(*given: Any) -> None:
        write(*given)
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "history.csv"))

    monkeypatch.setattr(History, call, full)
    with pytest.raises(StorageError, match=r"history\.csv could not be written \(No space left on device\)"):
        train(small_job("epochs=2"), Options(output_dir=tmp_path))


class Emptier:
    """A sink that fills the disk once a checkpoint is saved, and empties it when `until` is published."""

    def __init__(self, disk: Any, until: type[Event]) -> None:
        self._disk, self._until = disk, until
        self._stuffing: Path | None = None
        self.failures = 0

    def handle(self, event: Event) -> None:
        self.failures += isinstance(event, CheckpointFailed)
        if isinstance(event, CheckpointSaved) and self._stuffing is None:
            self._stuffing = self._disk.fill()
        elif isinstance(event, self._until) and self._stuffing is not None:
            self._stuffing.unlink(missing_ok=True)


@pytest.mark.fault("D08")
def test_the_end_waits_for_room(
    small_job: Any, small_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: run.position.update == 10)
    monkeypatch.setattr(storage, "LAST_SECONDS", 20)
    emptier = Emptier(small_disk, CheckpointFailed)
    done = train(small_job(), Options(output_dir=small_disk.path / "run"), [emptier])
    assert emptier.failures == 1
    assert train(small_job(), Options(output_dir=tmp_path))["weightsSha256"] == done["weightsSha256"]


@pytest.mark.fault("D08")
@pytest.mark.parametrize("name", ["model.safetensors", "summary.json"])
def test_the_results_wait_for_room_too(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write, failed = OutputFolder.write, []

    def full_at_first(folder: OutputFolder, file: str, data: bytes) -> Path:
        if file == name and len(failed) < 2:
            failed.append(file)
            raise StorageError("no room.")
        return write(folder, file, data)

    monkeypatch.setattr(storage, "LAST_SECONDS", 20)
    monkeypatch.setattr(OutputFolder, "write", full_at_first)
    train(small_job("epochs=1"), Options(output_dir=tmp_path))
    assert [name] * 2 == failed
    assert (tmp_path / name).exists()


@pytest.mark.fault("D08")
@pytest.mark.parametrize("room", [0, PAGE], ids=["none", "a page"])
def test_a_row_torn_by_a_full_disk_does_not_break_the_next_resume(
    small_job: Any, small_disk: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The file ends with a page, and so within a row, unless the times in the rows make one end there."""
    job = small_job("epochs=12", "batch={initial: 8, maximum: 8, shard: 4, growth: {type: Constant}}")
    monkeypatch.setattr(RunState, "checkpoint_due", lambda run: run.position.update == 10)
    stuffing: list[Path] = []

    class Filler:
        def handle(self, event: Event) -> None:
            if isinstance(event, CheckpointSaved):
                stuffing.append(small_disk.fill(leave=room))

    with pytest.raises(StorageError, match=r"history\.csv could not be written \(No space left on device\)"):
        train(job, Options(output_dir=small_disk.path / "run"), [Filler()])
    written = (small_disk.path / "run" / "history.csv").stat().st_size
    assert written % PAGE == 0
    stuffing[0].unlink()
    again = train(job, Options(output_dir=small_disk.path / "run", resume=True))
    rows = (small_disk.path / "run" / "history.csv").read_text().splitlines()[1:]
    assert list(range(1, again["updates"] + 1)) == [int(row.split(",")[0]) for row in rows]
    assert train(job, Options(output_dir=tmp_path))["weightsSha256"] == again["weightsSha256"]
