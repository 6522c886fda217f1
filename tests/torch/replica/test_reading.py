"""An example that cannot be read is read again, a bounded number of times, and with the same draws."""

import errno
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import unreadable
from batchgrowth.errors import DataError
from batchgrowth_trainer.record.storage import may_pass
from batchgrowth_trainer.replica import data
from batchgrowth_trainer.training import Options, train
from batchgrowth_trainer.user_errors import ReadFault
from torch import Tensor


def read(indices: Tensor) -> Any:
    return data.read(unreadable.single(), data.Request(None, indices, 0))


@pytest.fixture(autouse=True)
def _quick_and_empty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(data, "_LONGEST_WAIT_SECONDS", 0.001)
    yield
    unreadable.fails.clear()
    unreadable.reads.clear()


@pytest.mark.parametrize("entrypoint", ["unreadable:single", "unreadable:batched"])
@pytest.mark.fault("D04")
def test_a_retried_example_gives_the_same_weights(small_job: Any, tmp_path: Path, entrypoint: str) -> None:
    job = small_job("epochs=2", f"workload.entrypoint={entrypoint}")
    whole = train(job, Options(output_dir=tmp_path / "whole"))
    unreadable.fails |= {7: unreadable.stale(), 8: unreadable.stale(3), 50: unreadable.stale(data.MOST_TRIES - 1)}
    again = train(job, Options(output_dir=tmp_path / "again"))
    assert list(unreadable.fails.values()) == [[], [], []]
    assert whole["weightsSha256"] == again["weightsSha256"]
    assert whole["accuracy"] == again["accuracy"]


def test_the_number_of_retries_is_bounded(small_job: Any, tmp_path: Path) -> None:
    unreadable.fails[7] = unreadable.stale(1000)
    with pytest.raises(ReadFault, match=r"example 7 of Drawing: OSError: \[Errno \d+\] Stale file handle"):
        read(unreadable.torch.tensor([6, 7]))
    assert data.MOST_TRIES + 1 == unreadable.reads.count(7)
    assert unreadable.reads.count(6) == 2


@pytest.mark.fault("D04")
def test_the_time_of_all_retries_of_a_shard_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "_RETRY_SECONDS", 0.1)
    monkeypatch.setattr(data, "_LONGEST_WAIT_SECONDS", 0.06)
    unreadable.fails |= {index: unreadable.stale(2) for index in range(6)}
    with pytest.raises(ReadFault, match="example 1 of Drawing"):
        read(unreadable.torch.arange(6))


@pytest.mark.parametrize(
    "error",
    [FileNotFoundError(errno.ENOENT, "gone"), PermissionError(errno.EACCES, "no"), TypeError("a bug"), KeyError("k")],
)
def test_an_error_that_would_recur_is_raised_at_once(error: Exception) -> None:
    unreadable.fails[7] = [error]  # type: ignore[list-item]
    with pytest.raises(DataError, match="example 7 of Drawing") as raised:
        read(unreadable.torch.tensor([7]))
    assert not isinstance(raised.value, ReadFault)
    assert unreadable.reads == [7]


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (OSError(errno.EIO, "Input/output error"), True),
        (ConnectionResetError(errno.ECONNRESET, "reset"), True),
        (TimeoutError("slow"), True),
        (OSError("image file is truncated"), True),
        (OSError(errno.EROFS, "Read-only file system"), False),
        (io.UnsupportedOperation("not readable"), False),
        (IsADirectoryError(errno.EISDIR, "a directory"), False),
        (ValueError("no OSError"), False),
        (None, False),
    ],
)
def test_what_may_pass(error: BaseException | None, passes: bool) -> None:
    assert passes == may_pass(error)
