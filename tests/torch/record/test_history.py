"""history.csv and evaluations.csv: appended, truncated, read back, and whole after a crash."""

import collections
import dataclasses
import errno
import math
import resource
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from batchgrowth.errors import CheckpointError, DataError, StorageError
from batchgrowth_trainer.record import history as history_module
from batchgrowth_trainer.record.history import LEAST_HEADER, EvaluationRow, GrowthRow, History, HistoryRow, ResizeRow
from batchgrowth_trainer.record.runs import read_run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st


def row(update: int, **changes: object) -> HistoryRow:
    plain = HistoryRow(
        update=update,
        epoch=update / 8,
        stage=0,
        batch_size=32,
        learning_rate=0.05,
        loss=1 / update,
        workers=1,
        compute_seconds=0.1,
        exchange_seconds=0.01,
        wait_seconds=0.001,
        seconds=update / 3,
    )
    return dataclasses.replace(plain, **changes)


def evaluation(update: int, **metrics: float) -> EvaluationRow:
    return EvaluationRow(update, update / 8, update / 3, 0.5, metrics or {"accuracy": 0.9})


def write(directory: Path, updates: range) -> None:
    with closing(History(directory)) as history:
        for update in updates:
            history.append(row(update))


def updates_in(directory: Path) -> list[int]:
    return [entry.update for entry in read_run(directory).history]


def test_the_header_is_the_documented_one(tmp_path: Path) -> None:
    write(tmp_path, range(1, 2))
    expected = (
        "update,epoch,stage,batchSize,learningRate,loss,workers,computeSeconds,exchangeSeconds,waitSeconds,seconds,"
        "remainingSeconds"
    )
    assert (tmp_path / "history.csv").read_text().splitlines()[0] == expected


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    loss=st.floats(),
    seconds=st.floats(0, 1e9),
    batch_size=st.integers(1, 10**9),
)
def test_what_is_written_is_read_back_exactly(
    tmp_path_factory: pytest.TempPathFactory, loss: float, seconds: float, batch_size: int
) -> None:
    directory = tmp_path_factory.mktemp("run")
    wanted = row(1, loss=loss, seconds=seconds, batch_size=batch_size)
    with closing(History(directory)) as history:
        history.append(wanted)
    (found,) = read_run(directory).history
    if math.isnan(loss):
        wanted, found = (dataclasses.replace(entry, loss=0.0) for entry in (wanted, found))
    assert found == wanted


def test_evaluations_keep_their_metrics(tmp_path: Path) -> None:
    write(tmp_path, range(1, 3))
    with closing(History(tmp_path)) as history:
        history.append_evaluation(evaluation(2, accuracy=0.75, top5=0.9))
    assert (evaluation(2, accuracy=0.75, top5=0.9),) == read_run(tmp_path).evaluations


def test_an_update_done_again_is_not_written_again(tmp_path: Path) -> None:
    with closing(History(tmp_path)) as history:
        assert history.append(row(1))
        assert history.append(row(2))
        assert not history.append(row(2, loss=9.0))
        assert not history.append(row(1))
        assert history.append_evaluation(evaluation(2))
        assert not history.append_evaluation(evaluation(2))
    assert (row(1), row(2)) == read_run(tmp_path).history


def test_a_reopened_history_goes_on_where_it_was(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    write(tmp_path, range(2, 6))
    assert updates_in(tmp_path) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("columns", "cells", "written"),
    [
        pytest.param((), "", "", id="an earlier one, without remaining seconds"),
        pytest.param(("joules", "remainingSeconds"), ",2.5,9.0", ",,7.5", id="a later one, with one more"),
    ],
)
def test_a_run_of_another_version_keeps_its_columns(
    columns: tuple[str, ...], cells: str, written: str, tmp_path: Path
) -> None:
    """So a trainer's image can be rolled back in the midst of a run."""
    first = [",".join([*LEAST_HEADER, *columns]), "1,0.125,0,32,0.05,1.0,1,0.1,0.01,0.001,0.3" + cells]
    (tmp_path / "history.csv").write_text("\n".join(first) + "\n")
    with closing(History(tmp_path)) as history:
        history.append(row(2, remaining_seconds=7.5))
    lines = (tmp_path / "history.csv").read_text().splitlines()

    assert lines[:2] == first
    assert lines[2].endswith(written)
    assert lines[2].count(",") == lines[0].count(",")
    expected = [(1, 9.0), (2, 7.5)] if columns else [(1, None), (2, None)]
    assert [(entry.update, entry.remaining_seconds) for entry in read_run(tmp_path).history] == expected


def test_rows_are_on_disk_after_flush(tmp_path: Path) -> None:
    with closing(History(tmp_path)) as history:
        history.append(row(1))
        history.flush()
        assert updates_in(tmp_path) == [1]


def test_truncate_goes_back_to_a_checkpoint_and_appends_from_there(tmp_path: Path) -> None:
    with closing(History(tmp_path)) as history:
        for update in range(1, 11):
            history.append(row(update))
        history.append_evaluation(evaluation(4))
        history.append_evaluation(evaluation(8))
        history.truncate(6)
        assert history.last_update == 6
        assert history.append(row(7, loss=7.0))
    run = read_run(tmp_path)
    assert [entry.update for entry in run.history] == [1, 2, 3, 4, 5, 6, 7]
    assert run.history[-1].loss == 7.0
    assert [entry.update for entry in run.evaluations] == [4]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluations.csv", "history.csv"]


def test_truncating_to_the_beginning_leaves_the_header(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    with closing(History(tmp_path)) as history:
        history.truncate(0)
        assert history.last_update == 0
        history.append(row(1))
    assert updates_in(tmp_path) == [1]


def test_a_failed_truncation_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, range(1, 4))
    before = (tmp_path / "history.csv").read_bytes()

    def failing(descriptor: int, length: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("os.ftruncate", failing)
    with closing(History(tmp_path)) as history, pytest.raises(OSError, match=r"Input/output error.*history\.csv"):
        history.truncate(1)
    assert before == (tmp_path / "history.csv").read_bytes()
    assert [path.name for path in tmp_path.iterdir()] == ["history.csv"]


def test_a_line_torn_anywhere_is_dropped(tmp_path: Path) -> None:
    write(tmp_path, range(1, 4))
    path = tmp_path / "history.csv"
    whole = path.read_bytes()
    start_of_last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start_of_last, len(whole)):
        path.write_bytes(whole[:end])
        assert updates_in(tmp_path) == [1, 2]
    write(tmp_path, range(3, 5))
    assert updates_in(tmp_path) == [1, 2, 3, 4]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    updates=st.lists(st.integers(1, 10**6), max_size=12, unique=True).map(sorted),
    torn=st.binary(max_size=20).filter(lambda torn: b"," not in torn)
    | st.sampled_from([b"7", b"1,2,3\n", b"x,1\n", b"\n", b"\x00" * 30]),
    most=st.integers(0, 10**6) | st.just(math.inf),
    block=st.integers(20, 60),
)
def test_the_end_of_a_file_is_found_from_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, updates: list[int], torn: bytes, most: float, block: int
) -> None:
    """Whatever was torn, and wherever the blocks begin that are read."""
    monkeypatch.setattr(history_module, "_BLOCK_BYTES", block)
    path = tmp_path / "some.csv"
    kept = b"update,loss\n" + b"".join(b"%d,0.5\n" % update for update in updates if update <= most)
    path.write_bytes(b"update,loss\n" + b"".join(b"%d,0.5\n" % update for update in updates) + torn)
    file = history_module.RowFile(path)
    file.truncate(most)  # type: ignore[arg-type]
    assert max((update for update in updates if update <= most), default=0) == file.last
    assert kept == path.read_bytes()


def test_the_end_alone_of_a_long_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 200_000
    path, read = tmp_path / "some.csv", list[bytes]()
    path.write_bytes(b"update,loss\n" + b"".join(b"%d,0.123456789\n" % update for update in range(1, count + 1)))

    def counted(block: bytes, *limits: float) -> tuple[int, int]:
        read.append(block)
        return whole_rows(block, *limits)

    whole_rows = history_module._whole_rows
    monkeypatch.setattr(history_module, "_whole_rows", counted)
    file = history_module.RowFile(path)
    assert count == file.last
    file.truncate(count - 1000)
    assert count - 1000 == file.last
    assert 0 < sum(map(len, read)) <= 2 * history_module._BLOCK_BYTES < path.stat().st_size


def test_a_torn_header_is_written_anew(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_bytes(b"update,epo")
    write(tmp_path, range(1, 3))
    assert updates_in(tmp_path) == [1, 2]


def test_other_metrics_than_the_file_has_are_refused(tmp_path: Path) -> None:
    with closing(History(tmp_path)) as history:
        history.append_evaluation(evaluation(1, accuracy=0.5))
        with pytest.raises(CheckpointError, match=r"evaluations\.csv has the columns .*accuracy, but now .*recall;"):
            history.append_evaluation(evaluation(2, recall=0.5))


def test_a_full_disk_is_an_oserror_that_names_the_file_and_loses_no_row(tmp_path: Path) -> None:
    with closing(History(tmp_path)) as history:
        history.append(row(1))
        history.append(row(2))
        torn = (tmp_path / "history.csv").stat().st_size + 10
        with largest_file(torn), pytest.raises(OSError, match=r"history\.csv"):
            history.flush()
        assert torn == (tmp_path / "history.csv").stat().st_size
        assert updates_in(tmp_path) == [1]
        history.append(row(3))
    assert (row(1), row(2), row(3)) == read_run(tmp_path).history


@pytest.mark.fault("D08")
def test_rows_wait_in_memory_for_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many: an endless wait would end in a lack of memory."""
    monkeypatch.setattr(history_module, "_BUFFER_BYTES", 200)
    with closing(History(tmp_path)) as history:
        history.append(row(1))
        with largest_file((tmp_path / "history.csv").stat().st_size + 1):
            for update in range(2, 50):
                history.append(row(update))
            monkeypatch.setattr(history_module, "_MOST_WAITING_BYTES", 5000)
            with pytest.raises(OSError, match=r"history\.csv"):
                collections.deque(map(history.append, map(row, range(50, 100))))
        assert updates_in(tmp_path) == [1]
        last = history.last_update
    assert list(range(1, last + 1)) == updates_in(tmp_path)


@pytest.mark.fault("D08")
def test_a_look_waits_in_memory_for_a_full_disk_too(tmp_path: Path) -> None:
    """It is written at once otherwise, as the rows of the batches that it leads to follow it."""
    with closing(History(tmp_path)) as history:
        history.append_growth(GrowthRow(5, 0.5, 1.5, 16, 16))
        written = (tmp_path / "growth.csv").read_text()
        assert written.count("\n") == 2
        with largest_file(len(written) + 1):
            history.append_growth(GrowthRow(10, 1.0, 2.5, 32, 32))
        assert history.last_look == 10
    assert (tmp_path / "growth.csv").read_text().splitlines()[2] == "10,1.0,2.5,32,32"


def test_rows_wait_in_memory_while_the_lock_cannot_be_read(tmp_path: Path) -> None:
    trouble = [StorageError("the lock cannot be read")]

    def check_held() -> None:
        if trouble:
            raise trouble.pop()

    with closing(History(tmp_path, check_held=check_held)) as history:
        history.append(row(1))
        assert not (tmp_path / "history.csv").exists()
        history.append(row(2))
    assert updates_in(tmp_path) == [1, 2]


def test_a_missing_right_is_an_error_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*given: object, **named: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with closing(History(tmp_path)) as history:
        monkeypatch.setattr(history_module, "open_own", forbidden)
        with pytest.raises(PermissionError, match=r"history\.csv"):
            history.append(row(1))
        monkeypatch.undo()


def test_every_file_is_closed_even_if_one_cannot_be_written(tmp_path: Path) -> None:
    history = History(tmp_path)
    for update in (1, 2):
        history.append(row(update))
        history.append_evaluation(evaluation(update))
    with largest_file((tmp_path / "history.csv").stat().st_size), pytest.raises(OSError, match=r"history\.csv"):
        history.close()
    history.close()
    assert updates_in(tmp_path) == [1]


@contextmanager
def largest_file(bytes_: int) -> Iterator[None]:
    """A block in which no file can grow beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_resize_is_spelt_as_the_summary_spells_it() -> None:
    resize = ResizeRow(update=120, from_workers=1, to_workers=2, pause_seconds=0.125)
    assert resize.to_json() == {"update": 120, "from": 1, "to": 2, "pauseSeconds": 0.125}
    assert resize == ResizeRow.from_json(resize.to_json())


def test_a_folder_without_a_run_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no history\.csv here; name the --output-dir"):
        read_run(tmp_path)


def test_a_run_without_an_update_yet_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "history.csv").touch()
    with pytest.raises(DataError, match="no update is recorded yet"):
        read_run(tmp_path)


def test_another_csv_is_a_data_error(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("step,loss\n1,0.5\n")
    with pytest.raises(DataError, match="columns are 'step,loss'"):
        read_run(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_a_damaged_summary_is_a_checkpoint_error(tmp_path: Path, text: str) -> None:
    write(tmp_path, range(1, 2))
    (tmp_path / "summary.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"summary\.json: "):
        read_run(tmp_path)
