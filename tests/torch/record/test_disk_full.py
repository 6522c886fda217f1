"""A disk that fills up while a run writes: a small file system, if this process may mount one."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from batchgrowth.errors import CheckpointError
from batchgrowth_trainer.drivers.run import Run
from batchgrowth_trainer.record.history import History
from batchgrowth_trainer.training import Options, train


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=10)
    except FileNotFoundError:
        pytest.skip("there is no mount command here")
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True, timeout=10)


def fill(folder: Path, leave: int) -> Path:
    """Fills all but `leave` bytes of the disk."""
    stuffing, free = folder / "stuffing", os.statvfs(folder)
    stuffing.write_bytes(b"x" * (free.f_bavail * free.f_bsize - leave))
    return stuffing


@pytest.mark.fault("D08")
def test_a_full_disk_ends_in_one_paragraph_and_after_making_room_the_run_goes_on(
    small_job: Any, small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Run, "checkpoint_due", lambda run: run.position.update in (10, 20))
    whole = train(small_job(), Options(output_dir=tmp_path / "whole"))
    stuffing: list[Path] = []
    save = Run.save

    def save_and_fill(run: Run, snapshot: Any) -> None:
        save(run, snapshot)
        if snapshot.position.update == 10:
            stuffing.append(fill(small_disk, 0))

    monkeypatch.setattr(Run, "save", save_and_fill)
    with pytest.raises(CheckpointError, match="No space left on device") as raised:
        train(small_job(), Options(output_dir=small_disk / "run"))
    assert "\n" not in str(raised.value)
    assert ["update-0000000010"] == [path.name for path in (small_disk / "run" / "checkpoints").iterdir()]
    monkeypatch.setattr(Run, "save", save)
    stuffing[0].unlink()
    again = train(small_job(), Options(output_dir=small_disk / "run", resume=True))
    assert whole["weightsSha256"] == again["weightsSha256"]


@pytest.mark.fault("D08")
@pytest.mark.parametrize("call", ["append", "append_evaluation", "flush", "close", "truncate"])
def test_a_history_that_cannot_be_written_is_an_error_that_names_the_file(
    small_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write = getattr(History, call)

    def full(*given: Any) -> None:
        write(*given)
        raise OSError(errno.ENOSPC, "No space left on device", str(tmp_path / "history.csv"))

    if call == "truncate":
        train(small_job("epochs=2"), Options(output_dir=tmp_path))
        (tmp_path / "summary.json").unlink()
    monkeypatch.setattr(History, call, full)
    with pytest.raises(CheckpointError, match=r"history\.csv could not be written \(No space left on device\)"):
        train(small_job("epochs=2"), Options(output_dir=tmp_path, resume=call == "truncate"))
