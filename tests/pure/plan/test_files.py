"""Files that are read: a pipe or a device under their name is refused at once, and the error names it."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from batchgrowth.errors import SpecError
from batchgrowth.manifest import files
from batchgrowth.manifest.files import open_given, open_regular, read_regular
from batchgrowth.manifest.reading import load_manifest


@pytest.fixture(params=["pipe", "socket", "device", "link to a pipe"])
def other(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """What is no regular file and, opened without care, may wait for ever or never end."""
    path = tmp_path / "job.yaml"
    with socket.socket(socket.AF_UNIX) as unix:
        if request.param == "pipe":
            os.mkfifo(path)
        elif request.param == "socket":
            unix.bind(os.path.relpath(path))
        elif request.param == "device":
            path.symlink_to("/dev/zero")
        else:
            os.mkfifo(tmp_path / "pipe")
            path.symlink_to("pipe")
        yield path


@pytest.mark.fault("G03")
def test_nothing_but_a_regular_file_is_read(other: Path) -> None:
    with pytest.raises(OSError) as raised:
        read_regular(other)
    assert raised.value.strerror == "not a regular file"
    assert raised.value.filename == str(other)


@pytest.mark.fault("G03")
def test_a_manifest_must_be_a_regular_file(other: Path) -> None:
    with pytest.raises(SpecError, match=r"job\.yaml: cannot be read \(not a regular file\)"):
        load_manifest(other)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"text")
    (tmp_path / "here").symlink_to("there")
    assert read_regular(tmp_path / "here") == b"text"


def test_a_folder_says_that_it_is_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)


def test_a_file_that_is_exchanged_meanwhile_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.yaml"
    path.touch()
    before = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(files.os, "stat", lambda _: before)
    with pytest.raises(OSError, match="not a regular file"):
        open_regular(path)


def test_a_pipe_of_the_shell_is_read() -> None:
    """As in `batchgrowth check <(helm template …)`."""
    reads, writes = os.pipe()
    os.write(writes, b"kind: BatchGrowthJob")
    os.close(writes)
    with open_given(Path(f"/dev/fd/{reads}")) as file:
        assert file.read() == b"kind: BatchGrowthJob"
    os.close(reads)
