"""Which trouble with a disk may pass, and how long it is waited for."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from batchgrowth.errors import CheckpointError, StorageError
from batchgrowth_trainer.record import storage
from batchgrowth_trainer.record.storage import flush_folder, read_patiently, reported_as_checkpoint_error, retried

MAY_PASS = (
    errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.EROFS, errno.ENOLCK, errno.ENOTCONN,
)  # fmt: skip
COMES_AGAIN = (errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOENT)
KINDS = [*((number, StorageError) for number in MAY_PASS), *((number, CheckpointError) for number in COMES_AGAIN)]


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "_FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setattr(storage, "READ_SECONDS", 0.1)


def failing(times: int, error: Exception) -> Callable[[], int]:
    """A function that raises the error that many times, then returns the number of its calls."""
    calls = []

    def act() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error
        return len(calls)

    return act


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/out/history.csv")


@pytest.mark.fault("D08")
@pytest.mark.parametrize(("number", "kind"), KINDS, ids=[errno.errorcode[number] for number, _ in KINDS])
def test_what_may_pass_is_retried_and_what_comes_again_is_not(number: int, kind: type[CheckpointError]) -> None:
    with pytest.raises(CheckpointError, match=r"/out/history\.csv could") as raised, reported_as_checkpoint_error():
        raise os_error(number)
    assert kind is type(raised.value)
    assert os.strerror(number) in str(raised.value)


def test_a_storage_error_is_retried_and_each_is_noted() -> None:
    notes: list[str] = []
    assert retried(failing(2, StorageError("no room.")), 60, notes.append) == 3
    assert notes == ["no room; trying again, for up to 60 s"] * 2


def test_it_is_retried_for_a_bounded_time() -> None:
    with pytest.raises(StorageError, match="no room"):
        retried(failing(10**6, StorageError("no room")), 0.1)


def test_other_errors_are_not_retried() -> None:
    act = failing(1, CheckpointError("foreign"))
    with pytest.raises(CheckpointError, match="foreign"):
        retried(act, 60)
    assert act() == 2


def test_a_file_that_cannot_be_read_for_a_moment_is_read() -> None:
    assert read_patiently("state", failing(2, os_error(errno.EIO))) == 3


def test_a_file_that_can_never_be_read_is_named() -> None:
    with pytest.raises(StorageError, match=r"state cannot be read \(Stale file handle\)"):
        read_patiently("state", failing(10**6, os_error(errno.ESTALE)))
    with pytest.raises(CheckpointError, match=r"state cannot be read \(Permission denied\)") as raised:
        read_patiently("state", failing(10**6, os_error(errno.EACCES)))
    assert not isinstance(raised.value, StorageError)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_file_system_that_flushes_no_folders_is_enough(tmp_path: Path) -> None:
    """As the shared folders of VirtualBox and some of 9p, and /proc, which answer EINVAL; other errors count."""
    flush_folder(Path("/proc"))
    with pytest.raises(FileNotFoundError):
        flush_folder(tmp_path / "absent")


def test_a_missing_file_is_left_to_the_caller(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_patiently("state", (tmp_path / "state").read_bytes)
