"""Links, pipes and devices that somebody has put under the names of a run's files: none is written through or read."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from batchgrowth.errors import CheckpointError
from batchgrowth.position import Position
from batchgrowth_trainer.record.checkpoint import MANIFEST, STATE, CheckpointStore
from batchgrowth_trainer.record.history import EVALUATIONS_FILE, GROWTH_FILE, HISTORY_FILE, EvaluationRow, History
from batchgrowth_trainer.record.output import OutputFolder
from batchgrowth_trainer.record.snapshot import Snapshot
from batchgrowth_trainer.record.storage import replace_file
from batchgrowth_trainer.record.summary import SUMMARY_FILE, read_summary
from batchgrowth_trainer.sinks.events import Finished, Journal

Plant = Callable[[Path], None]
STORY = {"seconds": 0.0, "resizes": [], "recoveries": 0, "evaluated": 0}


@pytest.fixture
def precious(tmp_path: Path) -> Path:
    """A file of the user's outside of the run's folder."""
    path = tmp_path / "precious"
    path.write_text("precious")
    return path


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run."""
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def evaluated(folder: Path) -> None:
    history = History(folder)
    history.append_evaluation(EvaluationRow(1, 1.0, 0.1, 0.5, {}))
    history.close()


def journaled(folder: Path) -> None:
    Journal(folder).handle(Finished("0" * 64))


def locked(folder: Path) -> None:
    OutputFolder(folder).close()


@pytest.mark.fault("G03")
@pytest.mark.parametrize("is_there", [True, False], ids=["to a file", "to nothing"])
@pytest.mark.parametrize(
    ("name", "write"),
    [(EVALUATIONS_FILE, evaluated), ("journal.jsonl", journaled), (".lock", locked)],
    ids=["rows", "journal", "lock"],
)
def test_no_file_is_written_through_a_link(
    run: Path, precious: Path, name: str, write: Callable[[Path], None], is_there: bool
) -> None:
    if not is_there:
        precious.unlink()
    (run / name).symlink_to(precious)
    if write is journaled:  # which ends no training
        write(run)
    else:
        with pytest.raises((OSError, CheckpointError), match="a symbolic link; remove it"):
            write(run)
    assert (precious.read_text() if precious.exists() else "") == ("precious" if is_there else "")


@pytest.mark.fault("G03")
def test_rows_are_not_cut_through_a_link(run: Path, precious: Path) -> None:
    evaluated(run)
    precious.write_text((run / EVALUATIONS_FILE).read_text() + "torn")
    (run / EVALUATIONS_FILE).unlink()
    (run / EVALUATIONS_FILE).symlink_to(precious)
    with pytest.raises(OSError, match="a symbolic link; remove it"):
        History(run).sync()
    assert precious.read_text().endswith("torn")


@pytest.mark.fault("G03")
def test_a_file_is_replaced_and_not_what_a_link_points_to(run: Path, precious: Path) -> None:
    for name in (SUMMARY_FILE, f".unfinished-{SUMMARY_FILE}"):
        (run / name).symlink_to(precious)
    replace_file(run / SUMMARY_FILE, b"{}")
    assert {path.name: path.read_text() for path in run.iterdir()} == {SUMMARY_FILE: "{}"}
    assert not (run / SUMMARY_FILE).is_symlink()
    assert precious.read_text() == "precious"


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.fixture(params=[a_pipe, a_device])
def plant(request: pytest.FixtureRequest) -> Plant:
    """Puts what never ends, or waits for ever, under a name."""
    made: Plant = request.param
    return made


@pytest.mark.fault("G03")
@pytest.mark.parametrize("name", [HISTORY_FILE, EVALUATIONS_FILE, GROWTH_FILE])
def test_rows_are_read_from_regular_files(run: Path, plant: Plant, name: str) -> None:
    plant(run / name)
    with pytest.raises(OSError, match="not a regular file") as raised:
        History(run)
    assert raised.value.filename == str(run / name)


@pytest.mark.fault("G03")
def test_a_summary_is_a_regular_file(run: Path, plant: Plant) -> None:
    plant(run / SUMMARY_FILE)
    with pytest.raises(CheckpointError, match=r"summary\.json cannot be read \(not a regular file\)"):
        read_summary(run)


@pytest.mark.fault("G03")
@pytest.mark.parametrize("name", [STATE, MANIFEST])
def test_a_checkpoint_of_something_else_counts_as_damaged(run: Path, plant: Plant, name: str) -> None:
    store = CheckpointStore(run, {}, keep=3)
    for update in (1, 2):
        store.save(Snapshot(Position(update, 0, 0), {"weight": torch.tensor([float(update)])}), STORY)
    newest = run / "update-0000000002" / name
    newest.unlink()
    plant(newest)
    notes: list[str] = []
    saved = store.load_latest(notes.append)
    assert saved is not None
    assert saved.snapshot.position.update == 1
    told = f"checkpoint update-0000000002: {name} cannot be read (not a regular file); trying the one before it"
    assert notes == [told]


@pytest.mark.fault("G03")
def test_a_run_does_not_wait_at_a_lock_that_is_a_pipe(run: Path) -> None:
    os.mkfifo(run / ".lock")
    with pytest.raises(CheckpointError, match=r"\.lock is not a regular file; remove it"):
        OutputFolder(run)


@pytest.mark.fault("G03")
def test_no_other_user_can_hold_the_lock(run: Path) -> None:
    locked(run)
    assert stat.S_IMODE((run / ".lock").stat().st_mode) == 0o600
