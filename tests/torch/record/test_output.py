"""A run's folder: locked for one run, earlier results kept, files whole or absent."""

import errno
import os
from contextlib import closing
from pathlib import Path

import pytest
from batchgrowth.errors import CheckpointError
from batchgrowth_trainer.record.output import OutputFolder


@pytest.mark.fault("D13")
def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    with (
        closing(OutputFolder(tmp_path / "run")),
        pytest.raises(CheckpointError, match="another run is writing there"),
    ):
        OutputFolder(tmp_path / "run")
    OutputFolder(tmp_path / "run").close()


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(CheckpointError, match=r"--output-dir .*run: .*; give a folder that can be written"):
        OutputFolder(tmp_path / "run")
    with pytest.raises(CheckpointError, match="Not a directory"):
        OutputFolder(tmp_path / "run" / "below")


def test_what_an_earlier_run_left_is_set_aside_whole_and_again_and_again(tmp_path: Path) -> None:
    with closing(OutputFolder(tmp_path)) as folder:
        assert folder.set_earlier_run_aside() is None
        for number in (1, 2, 3):
            (tmp_path / "history.csv").write_text(f"run {number}")
            (tmp_path / "checkpoints" / "update-1").mkdir(parents=True)
            (tmp_path / "notes.txt").write_text("the user's own")
            assert tmp_path / "earlier" / str(number) == folder.set_earlier_run_aside()
    assert "run 2" == (tmp_path / "earlier" / "2" / "history.csv").read_text()
    assert (tmp_path / "earlier" / "3" / "checkpoints" / "update-1").is_dir()
    assert ["earlier", "notes.txt"] == sorted(p.name for p in tmp_path.iterdir() if p.name != ".lock")


def test_a_summary_says_that_the_run_is_finished(tmp_path: Path) -> None:
    with closing(OutputFolder(tmp_path)) as folder:
        assert folder.summary() is None
        folder.write_summary({"updates": 3})
        assert {"updates": 3} == folder.summary()
        for damaged in ("{", "[1]", ""):
            (tmp_path / "summary.json").write_text(damaged)
            assert folder.summary() is None


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(OutputFolder(tmp_path)) as folder:
        folder.write("model.safetensors", b"old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match=r"could not be written \(No space left on device\)"):
            folder.write("model.safetensors", b"new")
    assert b"old" == (tmp_path / "model.safetensors").read_bytes()
    assert [".lock", "model.safetensors"] == sorted(p.name for p in tmp_path.iterdir())
