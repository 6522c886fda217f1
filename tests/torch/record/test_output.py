"""A run's folder: locked for one run, earlier results kept, files whole or absent."""

import errno
import json
import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from batchgrowth.errors import CheckpointError, Interrupted, StorageError, Superseded
from batchgrowth.manifest.reading import load_manifest, read_manifest
from batchgrowth_trainer.record import output
from batchgrowth_trainer.record.output import OutputFolder
from batchgrowth_trainer.record.runs import manifest_text

GOOD = sorted((Path(__file__).parents[2] / "corpus" / "good").iterdir())

SUMMARY = {"name": "a", "exchange": "AllReduce", "updates": 3, "examples": 9, "epochs": 1, "seconds": 0.5,
           "finalLoss": 0.25, "weightsSha256": "00"}  # fmt: skip


@pytest.mark.fault("D13")
def test_a_folder_is_one_runs_at_a_time(tmp_path: Path) -> None:
    with (
        closing(OutputFolder(tmp_path / "run")),
        pytest.raises(CheckpointError, match="another run is writing there"),
    ):
        OutputFolder(tmp_path / "run")
    OutputFolder(tmp_path / "run").close()


def test_a_folder_is_free_while_a_child_of_the_ended_run_lives(tmp_path: Path) -> None:
    """A process that reads ahead, and ends a moment later, has inherited the descriptor of the lock."""
    ended = OutputFolder(tmp_path)
    with subprocess.Popen(["sleep", "60"], pass_fds=[ended._lock]) as child:
        ended.close()
        try:
            OutputFolder(tmp_path).close()
        finally:
            child.kill()


@pytest.mark.fault("D13")
def test_a_lock_that_another_run_holds_may_be_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LOCK_RETRY_SECONDS", 0.01)
    other, notes = OutputFolder(tmp_path), list[str]()
    looks = iter([False, False, True])

    def ended() -> bool:
        if next(looks):
            other.close()
        return False

    OutputFolder(tmp_path, patience=60, stop_requested=ended, note=notes.append).close()
    assert [f"--output-dir {tmp_path}: another run is writing there; waiting up to 60 s for its end"] == notes


@pytest.mark.fault("D13")
def test_a_lock_that_stays_held_may_be_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_LOCK_RETRY_SECONDS", 0.01)
    with closing(OutputFolder(tmp_path)), pytest.raises(StorageError, match="another run is writing there"):
        OutputFolder(tmp_path, patience=0.05)


@pytest.mark.fault("C25", "D13")
def test_a_run_whose_lock_was_given_to_another_writes_no_more(tmp_path: Path) -> None:
    """As by a file server that could not reach its machine; the lock of a removed file is such a lock too."""
    with closing(OutputFolder(tmp_path)) as first:
        first.write("kept", b"by the first")
        (tmp_path / ".lock").unlink()
        first.check_held()
        with closing(OutputFolder(tmp_path)) as second:
            with pytest.raises(Superseded, match="another run has taken over the folder"):
                first.write("kept", b"too late")
            second.check_held()
    assert (tmp_path / "kept").read_bytes() == b"by the first"


def test_a_requested_stop_ends_the_wait(tmp_path: Path) -> None:
    with closing(OutputFolder(tmp_path)), pytest.raises(Interrupted, match="stopped while waiting for the other run"):
        OutputFolder(tmp_path, patience=60, stop_requested=lambda: True)


@pytest.mark.fault("D08")
@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.ENOLCK, StorageError), (errno.ESTALE, StorageError), (errno.EACCES, CheckpointError)],
)
def test_a_folder_that_cannot_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception]
) -> None:
    def fail(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(output.fcntl, "flock", fail)
    with pytest.raises(CheckpointError, match=f"cannot be locked .{os.strerror(number)}") as raised:
        OutputFolder(tmp_path)
    assert kind is type(raised.value)


def test_a_lock_of_another_user_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a volume to which root has copied a run, or whose pods had another user before: the folder is all right."""
    OutputFolder(tmp_path).close()

    def refuse(path: Path, *_: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(output, "open_own", refuse)
    with pytest.raises(CheckpointError, match=r"\.lock cannot be opened \(Permission denied\); give it to this user"):
        OutputFolder(tmp_path)
    (tmp_path / ".lock").unlink()
    with pytest.raises(CheckpointError, match="Permission denied; give a folder that can be written"):
        OutputFolder(tmp_path)


def test_a_file_in_its_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("mine")
    with pytest.raises(CheckpointError, match=r"--output-dir .*run: .*; give a folder that can be written"):
        OutputFolder(tmp_path / "run")
    with pytest.raises(CheckpointError, match="Not a directory") as raised:
        OutputFolder(tmp_path / "run" / "below")
    assert not isinstance(raised.value, StorageError)


def test_what_an_earlier_run_left_is_set_aside_whole_and_again_and_again(tmp_path: Path) -> None:
    with closing(OutputFolder(tmp_path)) as folder:
        assert folder.set_earlier_run_aside() is None
        for number in (1, 2, 3):
            (tmp_path / "history.csv").write_text(f"run {number}")
            (tmp_path / "checkpoints" / "update-1").mkdir(parents=True)
            (tmp_path / "notes.txt").write_text("the user's own")
            assert tmp_path / "earlier" / str(number) == folder.set_earlier_run_aside()
    assert (tmp_path / "earlier" / "2" / "history.csv").read_text() == "run 2"
    assert (tmp_path / "earlier" / "3" / "checkpoints" / "update-1").is_dir()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != ".lock") == ["earlier", "notes.txt"]


def test_an_earlier_run_that_a_user_has_renamed_is_no_number(tmp_path: Path) -> None:
    with closing(OutputFolder(tmp_path)) as folder:
        (tmp_path / "earlier" / "1-good").mkdir(parents=True)
        (tmp_path / "earlier" / "2").mkdir()
        (tmp_path / "history.csv").touch()
        assert tmp_path / "earlier" / "3" == folder.set_earlier_run_aside()


def test_a_summary_says_that_the_run_is_finished(tmp_path: Path) -> None:
    with closing(OutputFolder(tmp_path)) as folder:
        assert folder.summary() is None
        folder.write_summary(SUMMARY)
        assert folder.summary() == SUMMARY
        lacking = json.dumps({key: value for key, value in SUMMARY.items() if key != "updates"})
        for damaged in ("{", "[1]", "", "{}", "[" * 5000, lacking, json.dumps(SUMMARY | {"updates": "many"})):
            (tmp_path / "summary.json").write_text(damaged)
            assert folder.summary() is None


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.stem)
def test_the_manifest_of_a_run_is_read_back(path: Path) -> None:
    """Also the decimals that YAML would take for text, and Kubernetes for floats."""
    job = load_manifest(path)
    assert read_manifest(manifest_text(job)).spec == job.spec


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(OutputFolder(tmp_path)) as folder:
        folder.write("model.safetensors", b"old")
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"could not be written \(No space left on device\)"):
            folder.write("model.safetensors", b"new")
    assert (tmp_path / "model.safetensors").read_bytes() == b"old"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".lock", "model.safetensors"]
