"""Files are replaced whole or not at all."""

import errno
import os
from pathlib import Path

import pytest
from batchgrowth_trainer.record.storage import replace_file


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The descriptors that were flushed to the disk."""
    seen: list[int] = []
    monkeypatch.setattr(os, "fsync", seen.append)
    return seen


def test_a_file_and_its_folder_are_flushed(tmp_path: Path, flushed: list[int]) -> None:
    replace_file(tmp_path / "report", b"old")
    replace_file(tmp_path / "report", b"new")

    assert (tmp_path / "report").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
    assert len(flushed) == 4


def test_a_file_that_need_not_last_is_not_flushed(tmp_path: Path, flushed: list[int]) -> None:
    replace_file(tmp_path / "report", b"text", durable=False)

    assert (tmp_path / "report").read_bytes() == b"text"
    assert flushed == []


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    replace_file(tmp_path / "report", b"old")
    monkeypatch.setattr(os, "fsync", full)

    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "report", b"new")

    assert (tmp_path / "report").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["report"]
