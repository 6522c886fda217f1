"""The temporary folder of a run's own cluster: private, and removed by the next run if its own was killed."""

import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from batchgrowth_trainer.pool.local_cluster import OWNER_FILE, PREFIX, remove_abandoned, scratch_folder


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """The folder of a run that was killed."""
    folder = tmp_path / f"{PREFIX}abandoned"
    folder.mkdir()
    (folder / OWNER_FILE).touch()
    (folder / "dask-scratch-space").mkdir()
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.fault("G03")
def test_only_its_user_can_open_it(root: Path) -> None:
    before = os.umask(0)
    try:
        with scratch_folder() as folder:
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
            assert stat.S_IMODE((folder / OWNER_FILE).stat().st_mode) == 0o600
    finally:
        os.umask(before)
    assert [*root.iterdir()] == []


@pytest.mark.fault("G03")
def test_a_start_removes_what_killed_runs_have_left(root: Path, abandoned: Path) -> None:
    with scratch_folder() as folder:
        assert [*root.iterdir()] == [folder]


def test_the_folder_of_a_run_that_lives_stays(root: Path) -> None:
    with scratch_folder() as folder:
        remove_abandoned(root)
        assert (folder / OWNER_FILE).exists()


def test_the_folder_of_another_user_stays(root: Path, abandoned: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    another = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: another)
    remove_abandoned(root)
    assert abandoned.exists()


def test_a_link_is_not_followed(root: Path, abandoned: Path) -> None:
    elsewhere = root / "elsewhere"
    abandoned.rename(elsewhere)
    abandoned.symlink_to(elsewhere)
    remove_abandoned(root)
    assert elsewhere.exists()


def test_folders_of_others_with_such_a_name_stay(root: Path) -> None:
    """As those of an earlier version, which has no owner's file."""
    (root / f"{PREFIX}other").mkdir()
    (root / f"{PREFIX}file").touch()
    remove_abandoned(root)
    assert {path.name for path in root.iterdir()} == {f"{PREFIX}other", f"{PREFIX}file"}


def test_the_owner_s_lock_is_not_taken_by_looking(root: Path, abandoned: Path) -> None:
    with (abandoned / OWNER_FILE).open() as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        remove_abandoned(root)
        assert abandoned.exists()
    remove_abandoned(root)
    assert not abandoned.exists()
